//! Connects through a proxy, by HTTP CONNECT or SOCKS5.
//!
//! The proxy is given an address that the guard has passed, never a name, so it
//! cannot look up another address. A failure of the proxy itself counts as
//! ours; a failure that it reports about the target counts as the target's.

use std::net::{IpAddr, SocketAddr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::guard::FORBIDDEN;
use crate::model::answer::{AttemptFailure, FailureKind};
use crate::model::egress::{ProxyKind, ProxyUrl};

/// Most bytes of an answer to CONNECT.
const HEAD_BYTES_MAX: usize = 8 * 1_024;

/// Returns a failure of the proxy itself.
pub fn proxy_failure(proxy: &ProxyUrl, why: &str) -> AttemptFailure {
    AttemptFailure::new(FailureKind::Ours, format!("the egress proxy {proxy} did not do its part: {why}"))
}

/// Makes the proxy at the other end of this connection connect to an address.
/// Afterwards the connection works as if it led there.
pub async fn open_tunnel(
    proxy: &ProxyUrl,
    tcp: &mut TcpStream,
    to: SocketAddr,
    name: &str,
) -> Result<(), AttemptFailure> {
    let result = match proxy.kind {
        ProxyKind::Connect => connect(proxy, tcp, to, name).await,
        ProxyKind::Socks5 => socks5(proxy, tcp, to, name).await,
    };
    result.map_err(|problem| proxy_failure(proxy, &problem.to_string()))?
}

/// The result of a proxy dialogue: an error of the connection to the proxy, or
/// what the proxy answered.
type TunnelResult = std::io::Result<Result<(), AttemptFailure>>;

async fn connect(proxy: &ProxyUrl, tcp: &mut TcpStream, to: SocketAddr, name: &str) -> TunnelResult {
    let mut head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some((user, password)) = &proxy.login {
        head.push_str(&format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}"))));
    }
    head.push_str("\r\n");
    tcp.write_all(head.as_bytes()).await?;
    // One byte at a time, because what follows the head comes from the target.
    let mut answer = Vec::with_capacity(128);
    while !answer.ends_with(b"\r\n\r\n") && !answer.ends_with(b"\n\n") {
        if answer.len() == HEAD_BYTES_MAX {
            return Ok(Err(proxy_failure(proxy, "its answer to CONNECT has no end")));
        }
        answer.push(tcp.read_u8().await?);
    }
    let line = answer.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let status = line.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    Ok(match status {
        Some([b'2', _, _]) => Ok(()),
        Some(b"403") => Err(refused_failure(proxy, to)),
        Some(b"502" | b"503" | b"504") => Err(unreached_failure(name, "the egress proxy found no way to it")),
        _ => Err(proxy_failure(proxy, &format!("it answered CONNECT with \"{}\"", line.escape_ascii()))),
    })
}

const VERSION: u8 = 5;
const NO_LOGIN: u8 = 0;
const LOGIN: u8 = 2;

async fn socks5(proxy: &ProxyUrl, tcp: &mut TcpStream, to: SocketAddr, name: &str) -> TunnelResult {
    let method = if proxy.login.is_some() { LOGIN } else { NO_LOGIN };
    tcp.write_all(&[VERSION, 1, method]).await?;
    let mut chosen = [0; 2];
    tcp.read_exact(&mut chosen).await?;
    if chosen != [VERSION, method] {
        return Ok(Err(proxy_failure(proxy, "it speaks no SOCKS5, or wants another way of signing in")));
    }
    if let Some((user, password)) = &proxy.login {
        let mut login = vec![1];
        for part in [user, password] {
            login.push(u8::try_from(part.len()).expect("a login's parts are short"));
            login.extend_from_slice(part.as_bytes());
        }
        tcp.write_all(&login).await?;
        let mut answer = [0; 2];
        tcp.read_exact(&mut answer).await?;
        if answer[1] != 0 {
            return Ok(Err(proxy_failure(proxy, "it does not know the user or the password")));
        }
    }
    let mut request = vec![VERSION, 1, 0];
    match to.ip() {
        IpAddr::V4(address) => {
            request.push(1);
            request.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            request.push(4);
            request.extend_from_slice(&address.octets());
        }
    }
    request.extend_from_slice(&to.port().to_be_bytes());
    tcp.write_all(&request).await?;
    let mut answer = [0; 4];
    tcp.read_exact(&mut answer).await?;
    // The address that the proxy connects from is read and ignored.
    let length = match answer[3] {
        1 => 4,
        3 => usize::from(tcp.read_u8().await?),
        4 => 16,
        _ => return Ok(Err(proxy_failure(proxy, "its answer is not SOCKS5"))),
    };
    tcp.read_exact(&mut vec![0; length + 2]).await?;
    Ok(match answer[1] {
        0 => Ok(()),
        2 => Err(refused_failure(proxy, to)),
        3 | 4 | 6 => Err(unreached_failure(name, "the egress proxy found no way to it")),
        5 => Err(AttemptFailure::new(
            FailureKind::ConnectionRefused,
            format!("nothing listens on port {} of {name}: the connection was refused", to.port()),
        )),
        code => Err(proxy_failure(proxy, &format!("it answered with the code {code}"))),
    })
}

/// Returns the failure of a target that the proxy refuses. The proxy's rules
/// are the operator's, so the reason goes to the log only.
fn refused_failure(proxy: &ProxyUrl, to: SocketAddr) -> AttemptFailure {
    let reason = format!("{to} is not called: the egress proxy {proxy} refuses it");
    tracing::warn!(address = %to, proxy = %proxy, "{reason}");
    AttemptFailure { refused_target: Some(reason), ..AttemptFailure::new(FailureKind::TargetForbidden, FORBIDDEN) }
}

fn unreached_failure(name: &str, why: &str) -> AttemptFailure {
    AttemptFailure::new(FailureKind::Unreachable, format!("{name} cannot be reached: {why}"))
}
