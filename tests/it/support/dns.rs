//! A name server with scripted answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;

/// The answer of a name server about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsAnswer {
    /// The name has these addresses.
    Addresses(Vec<IpAddr>),
    /// The name is an alias of another, which has these addresses.
    Alias(&'static str, Vec<IpAddr>),
    /// The name does not exist (NXDOMAIN).
    Nothing,
    /// The server fails (SERVFAIL).
    Failure,
    /// The server does not answer.
    Silence,
}

impl DnsAnswer {
    pub fn addresses(addresses: &[&str]) -> Self {
        Self::Addresses(addresses.iter().map(|text| text.parse().expect("an address")).collect())
    }
}

type ChooseAnswer = Box<dyn FnMut(&str) -> DnsAnswer + Send>;

/// A name server on a free port of this machine. Its answers have a TTL of zero.
pub struct NameServer {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    choose: Arc<Mutex<ChooseAnswer>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl NameServer {
    /// Starts a server that answers as `choose` says for each name, which is in
    /// lower case and has no dot at its end. `choose` is called for each query,
    /// of IPv4 and of IPv6.
    pub async fn answering(choose: impl FnMut(&str) -> DnsAnswer + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("an address");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let choose: Arc<Mutex<ChooseAnswer>> = Arc::new(Mutex::new(Box::new(choose)));
        let (asked_names, chosen) = (asked.clone(), choose.clone());
        let serving = tokio::spawn(async move {
            let mut buffer = [0; 1_500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let Some(question) = DnsQuestion::read(&buffer[..length]) else { continue };
                asked_names.lock().unwrap().push(question.name.clone());
                let answer = (chosen.lock().unwrap())(&question.name);
                if let Some(answer) = question.answer(&answer) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Self { address, asked, choose, serving }
    }

    /// Changes its answers from now on.
    pub fn answer_with(&self, choose: impl FnMut(&str) -> DnsAnswer + Send + 'static) {
        *self.choose.lock().unwrap() = Box::new(choose);
    }

    /// Returns the names it was asked for.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;

struct DnsQuestion {
    id: [u8; 2],
    name: String,
    kind: u16,
    /// Bytes of the question section.
    bytes: Vec<u8>,
}

impl DnsQuestion {
    fn read(message: &[u8]) -> Option<Self> {
        let (mut at, mut labels) = (12, Vec::new());
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(message.get(at..at + length)?).to_lowercase());
            at += length;
        }
        let kind = u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?);
        let bytes = message.get(12..at + 4)?.to_vec();
        Some(Self { id: message[..2].try_into().ok()?, name: labels.join("."), kind, bytes })
    }

    fn answer(&self, answer: &DnsAnswer) -> Option<Vec<u8>> {
        let (code, records) = match answer {
            DnsAnswer::Silence => return None,
            DnsAnswer::Nothing => (3, Vec::new()),
            DnsAnswer::Failure => (2, Vec::new()),
            DnsAnswer::Addresses(addresses) => (0, self.records(&self.name, addresses)),
            DnsAnswer::Alias(other, addresses) => {
                let alias = record(&self.name, CNAME, &encoded(other));
                (0, std::iter::once(alias).chain(self.records(other, addresses)).collect())
            }
        };
        let count = u16::try_from(records.len()).expect("few answers").to_be_bytes();
        let mut message = self.id.to_vec();
        message.extend([0x81, 0x80 | code, 0, 1, count[0], count[1], 0, 0, 0, 0]);
        message.extend(&self.bytes);
        message.extend(records.concat());
        Some(message)
    }

    fn records(&self, name: &str, addresses: &[IpAddr]) -> Vec<Vec<u8>> {
        let data = |address: &IpAddr| match (address, self.kind) {
            (IpAddr::V4(address), A) => Some(address.octets().to_vec()),
            (IpAddr::V6(address), AAAA) => Some(address.octets().to_vec()),
            _ => None,
        };
        addresses.iter().filter_map(data).map(|data| record(name, self.kind, &data)).collect()
    }
}

fn encoded(name: &str) -> Vec<u8> {
    let labels = name
        .split('.')
        .flat_map(|label| std::iter::once(u8::try_from(label.len()).expect("a short label")).chain(label.bytes()));
    labels.chain([0]).collect()
}

/// Encodes a record with a TTL of zero.
fn record(name: &str, kind: u16, data: &[u8]) -> Vec<u8> {
    let mut record = encoded(name);
    record.extend(kind.to_be_bytes());
    record.extend([0, 1, 0, 0, 0, 0]);
    record.extend(u16::try_from(data.len()).expect("short data").to_be_bytes());
    record.extend(data);
    record
}
