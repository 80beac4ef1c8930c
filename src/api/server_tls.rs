//! Encrypts connections to the API, and tells clients that speak plain HTTP to use
//! https.
//!
//! The certificate can be replaced while the server runs: a handshake takes the one
//! in force, and open connections stay as they are.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use crate::lifecycle::deliver::tls::certificate_end;

/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// Most bytes of a plain request that are read before it is answered.
const HEAD_BYTES_MAX: usize = 4 * 1_024;
/// Most bytes that are read after that.
const DRAINED_BYTES_MAX: usize = 1_024 * 1_024;

/// Answer to a plain request on a port that takes https.
const USE_HTTPS: &str = "this port takes https alone: write https:// instead of http://\n";

/// A certificate with its chain, and its private key.
#[derive(Clone)]
pub struct ServerCertificate {
    certified: Arc<CertifiedKey>,
    /// Time at which the certificate ends, if that can be read.
    pub ends_at: Option<Timestamp>,
}

/// Shows no key.
impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerCertificate(ends at {:?})", self.ends_at)
    }
}

/// Reason why a certificate or its key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableCertificate {
    /// The file of the certificate has none.
    #[error("the certificate file holds no certificate in PEM; it begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// The file of the key has none.
    #[error(
        "the key file holds no private key in PEM; it begins with -----BEGIN PRIVATE KEY-----, and encrypted ones are \
         not read"
    )]
    NoKey,
    /// The key is of another kind than those supported.
    #[error("the key is of a kind that is not supported; use RSA, ECDSA (P-256, P-384) or Ed25519")]
    UnknownKey,
    /// The key belongs to another certificate.
    #[error(
        "the key does not belong to the first certificate of its file; put the gateway's own certificate first, its chain after it"
    )]
    ForeignKey,
    /// The certificate cannot be read.
    #[error("the certificate cannot be used: {0}")]
    Invalid(String),
}

impl ServerCertificate {
    /// Reads a certificate, its chain after it, and its key, all in PEM.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, UnusableCertificate> {
        let ends_at = certificate_end(chain);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or(UnusableCertificate::NoCertificate)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| UnusableCertificate::NoKey)?;
        let key = default_provider().key_provider.load_private_key(key);
        let certified = CertifiedKey::new(chain, key.map_err(|_| UnusableCertificate::UnknownKey)?);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(UnusableCertificate::ForeignKey),
            Err(problem) => return Err(UnusableCertificate::Invalid(problem.to_string())),
        }
        Ok(Self { certified: Arc::new(certified), ends_at })
    }
}

/// The certificate in force, which every handshake asks for.
struct CurrentCertificate(RwLock<ServerCertificate>);

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.read().fmt(f)
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().certified.clone())
    }
}

/// TLS of a server: the certificate in force, and what is agreed on with clients.
pub struct ServerTls {
    config: Arc<ServerConfig>,
    current: Arc<CurrentCertificate>,
}

impl ServerTls {
    /// Prepares TLS 1.2 and 1.3 with this certificate.
    pub fn new(certificate: ServerCertificate) -> Result<Self, rustls::Error> {
        let current = Arc::new(CurrentCertificate(RwLock::new(certificate)));
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = Ticketer::new()?;
        Ok(Self { config: Arc::new(config), current })
    }

    /// Puts another certificate in force, for handshakes from now on.
    pub fn replace(&self, certificate: ServerCertificate) {
        *self.current.0.write() = certificate;
    }

    /// Returns when the certificate in force ends, if that can be read.
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.current.0.read().ends_at
    }

    /// Encrypts a connection. Plain HTTP is answered, and nothing is returned then,
    /// nor for anything else that is no TLS.
    pub async fn encrypt(&self, mut stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1) if first[0] == HANDSHAKE => {}
            Ok(1) if first[0].is_ascii_alphabetic() => {
                if let Err(problem) = answer_plain(&mut stream).await {
                    debug!("a plain request to the https port could not be answered: {problem}");
                }
                return None;
            }
            _ => return None,
        }
        let agreed = TlsAcceptor::from(self.config.clone()).accept(stream).await;
        agreed.inspect_err(|problem| debug!("TLS handshake with a client failed: {problem}")).ok()
    }
}

/// Answers a plain request. What the client sends is read, because a connection that
/// is closed with unread bytes is reset, and the client may lose the answer.
async fn answer_plain(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 4 * 1_024];
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
    let length = USE_HTTPS.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{USE_HTTPS}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut drained = 0;
    while drained < DRAINED_BYTES_MAX {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => drained += count,
        }
    }
    Ok(())
}
