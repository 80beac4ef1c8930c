//! Egress proxies: HTTP CONNECT and SOCKS5, with or without a login.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// The protocol of a proxy and how it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyBehaviour {
    /// CONNECT, and connects to the target.
    Connect,
    /// CONNECT, and answers with this status line instead.
    ConnectAnswering(&'static str),
    /// SOCKS5, and connects to the target.
    Socks5,
    /// SOCKS5 with a login, and connects to the target.
    Socks5WithLogin,
    /// SOCKS5, and answers with this code instead.
    Socks5Answering(u8),
}

/// A proxy on a free port of this machine.
pub struct Proxy {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Proxy {
    pub async fn behaving(behaviour: ProxyBehaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let asked_targets = asked.clone();
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let asked_targets = asked_targets.clone();
                connections.spawn(async move {
                    let _ = serve(stream, behaviour, &asked_targets).await;
                });
            }
        });
        Self { address, asked, serving }
    }

    /// Returns the targets it was asked for, each with the login.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, behaviour: ProxyBehaviour, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let target = match behaviour {
        ProxyBehaviour::Connect | ProxyBehaviour::ConnectAnswering(_) => {
            let head = head(&mut stream).await?;
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let login = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: ")).unwrap_or("nobody");
            asked.lock().unwrap().push(format!("{target} for {login}"));
            if let ProxyBehaviour::ConnectAnswering(line) = behaviour {
                return stream.write_all(format!("{line}\r\nX-Proxy: yes\r\n\r\n").as_bytes()).await;
            }
            target
        }
        _ => {
            let login = greet(&mut stream, behaviour).await?;
            let mut request = [0; 4];
            stream.read_exact(&mut request).await?;
            let host = match request[3] {
                1 => {
                    let mut octets = [0; 4];
                    stream.read_exact(&mut octets).await?;
                    std::net::Ipv4Addr::from(octets).to_string()
                }
                other => format!("kind {other}"),
            };
            let target = format!("{host}:{}", stream.read_u16().await?);
            asked.lock().unwrap().push(format!("{target} for {login}"));
            if let ProxyBehaviour::Socks5Answering(code) = behaviour {
                return stream.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await;
            }
            target
        }
    };
    let mut there = TcpStream::connect(&target).await?;
    match behaviour {
        ProxyBehaviour::Connect => stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
        // The answer names its own address by a name, which SOCKS5 allows.
        _ => stream.write_all(&[&[5, 0, 0, 3, 9], b"localhost".as_slice(), &[0, 7]].concat()).await?,
    }
    copy_bidirectional(&mut stream, &mut there).await.map(drop)
}

async fn head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn greet(stream: &mut TcpStream, behaviour: ProxyBehaviour) -> std::io::Result<String> {
    let mut offer = [0; 2];
    stream.read_exact(&mut offer).await?;
    let mut methods = vec![0; usize::from(offer[1])];
    stream.read_exact(&mut methods).await?;
    if behaviour != ProxyBehaviour::Socks5WithLogin {
        stream.write_all(&[5, 0]).await?;
        return Ok("nobody".into());
    }
    stream.write_all(&[5, 2]).await?;
    let mut parts = Vec::new();
    stream.read_u8().await?;
    for _ in 0..2 {
        let mut part = vec![0; usize::from(stream.read_u8().await?)];
        stream.read_exact(&mut part).await?;
        parts.push(String::from_utf8_lossy(&part).into_owned());
    }
    stream.write_all(&[1, 0]).await?;
    Ok(parts.join(":"))
}
