//! Opens connections and makes single calls over HTTP/1.1.
//!
//! Public for tools beside the client, such as one that fetches the `data_url` of a thin
//! event.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::{Position, Url};

use crate::error::Error;
use crate::trust::Trust;

/// Largest body of an answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1_024 * 1_024;

/// An open connection.
pub type Connection = SendRequest<Full<Bytes>>;

trait ClientStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ClientStream for T {}

/// Opens a connection to the host of a URL, encrypted if it is `https`.
pub async fn open(url: &Url, trust: &Trust) -> Result<Connection, Error> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let unreachable = |source| Error::Unreachable { server: url.clone(), source };
    let tcp = TcpStream::connect((host, url.port_or_known_default().unwrap_or(80))).await.map_err(unreachable)?;
    // Requests are small, and Nagle's algorithm would delay them.
    let _ = tcp.set_nodelay(true);
    let stream: Box<dyn ClientStream> = match url.scheme() {
        "https" => Box::new(encrypt(url, host, tcp, trust).await?),
        _ => Box::new(tcp),
    };
    let interrupted = |source| Error::Interrupted { server: url.clone(), source };
    let (open, connection) = handshake(TokioIo::new(stream)).await.map_err(interrupted)?;
    // The call that uses the connection reports its errors.
    tokio::spawn(async move { drop(connection.await) });
    Ok(open)
}

/// Makes one call on a connection of its own, within a time. Path, query and `Host` are
/// those of the URL; certificates are checked against the machine's.
pub async fn exchange(url: &Url, request: Request<Full<Bytes>>, timeout: Duration) -> Result<Response<Bytes>, Error> {
    exchange_trusting(&Trust::default(), url, request, timeout).await
}

/// Makes one call on a connection of its own, within a time, with these certificates
/// trusted.
pub async fn exchange_trusting(
    trust: &Trust,
    url: &Url,
    request: Request<Full<Bytes>>,
    timeout: Duration,
) -> Result<Response<Bytes>, Error> {
    let exchange = async { exchange_on(&mut open(url, trust).await?, url, request).await };
    let late = |_| Error::Timeout { server: url.clone(), timeout };
    tokio::time::timeout(timeout, exchange).await.map_err(late)?
}

/// Makes one call on an open connection.
pub async fn exchange_on(
    connection: &mut Connection,
    url: &Url,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, Error> {
    let invalid = |_| Error::InvalidArgument(format!("{url} cannot be asked for"));
    *request.uri_mut() = url[Position::BeforePath..Position::AfterQuery].parse().map_err(invalid)?;
    let host = HeaderValue::from_str(&url[Position::BeforeHost..Position::AfterPort]);
    request.headers_mut().insert(HOST, host.map_err(|_| Error::InvalidArgument(format!("{url} has no host")))?);
    let interrupted = |source| Error::Interrupted { server: url.clone(), source };
    let response = connection.send_request(request).await.map_err(interrupted)?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|source| Error::BrokenAnswer { server: url.clone(), source })?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

async fn encrypt(url: &Url, host: &str, tcp: TcpStream, trust: &Trust) -> Result<impl ClientStream + use<>, Error> {
    let failed = |source: std::io::Error| match source.kind() {
        // Whoever restarts closes connections at any moment; only what TLS itself refuses stays refused.
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => Error::Unreachable { server: url.clone(), source },
        _ => Error::Tls { server: url.clone(), source },
    };
    let config = trust.config().map_err(failed)?;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Error::InvalidArgument(format!("{host:?} is not a name a certificate can be checked for")))?;
    tokio_rustls::TlsConnector::from(config).connect(name, tcp).await.map_err(failed)
}
