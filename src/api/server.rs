//! Serves the API over HTTP/1.1, with limits on connections and a graceful stop.
//!
//! The number of open connections is limited. Beyond the limit the server
//! accepts a few spare connections, each for one request and a short time:
//! health checks are answered there, a request with a valid token gets a
//! regular slot if one can be freed, and everything else is answered 503. So
//! probes reach a gateway that is full.
//! [`connection_slots`](super::connection_slots) assigns the slots.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Method};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tracing::{debug, warn};

use super::connection_slots::{ConnectionSlot, ConnectionSlots, ConnectionStatus};
use super::direct_routes::DirectRoutes;
use super::event_connection::{RewoundStream, serve_plain};
use super::origin::{self, Peer};
use super::problem::{Problem, ProblemCode};
use super::request_head::{HeadCheckedStream, InvalidHead};
use super::server_limits::{HEAD_BYTES_MAX, HEADERS_MAX, ServerLimits};
use super::server_tls::ServerTls;
use super::write_timeout::WriteTimeoutStream;

/// Whether a request to this path is also answered on a spare connection.
pub fn is_health_check(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

/// Returns the problem for any other request on a spare connection.
pub fn connections_full_problem() -> Problem {
    Problem::new(
        ProblemCode::Unavailable,
        "as many connections are open as may be, in all or from this address without a valid token; keep one open \
         instead of opening many, send a valid token, or raise --max-connections",
    )
}

/// A socket that clients connect to, and its TLS if it takes https.
pub struct Listener {
    /// Socket that accepts the connections.
    pub socket: TcpListener,
    /// TLS of its connections; plain HTTP without.
    pub tls: Option<Arc<ServerTls>>,
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self { socket, tls: None }
    }
}

/// Serves until `stop` fires, then lets open requests finish until the
/// deadline. A connection of a trusted proxy is counted against the client
/// that the proxy forwards for.
pub async fn serve(
    listener: impl Into<Listener>,
    (router, direct): (Router, impl DirectRoutes),
    limits: ServerLimits,
    trusted_proxies: Vec<IpNet>,
    mut stop: oneshot::Receiver<()>,
    deadline: Duration,
) {
    let Listener { socket, tls } = listener.into();
    let graceful = GracefulShutdown::new();
    let (stopping, plain_stop) = watch::channel(false);
    let slots = ConnectionSlots::of(limits);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&socket, &slots, &trusted_proxies) => accepted,
            _ = &mut stop => break,
        };
        match accepted {
            Ok((stream, peer, slot)) => {
                let _ = stream.set_nodelay(true);
                let connection = Connection { stream, peer, slot, limits, plain_stop: plain_stop.clone() };
                let (router, direct, watcher) = (router.clone(), direct.clone(), graceful.watcher());
                match &tls {
                    None => drop(tokio::spawn(connection.serve(router, direct, watcher))),
                    Some(tls) => drop(tokio::spawn(connection.serve_tls(tls.clone(), router, direct, watcher))),
                }
            }
            Err(problem) => {
                // Most likely there is no free file handle, and other connections must close first.
                warn!("cannot accept a connection: {problem}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(socket);
    let _ = stopping.send(true);
    let _ = tokio::time::timeout(deadline, graceful.shutdown()).await;
}

/// A connection that was accepted.
struct Connection<S> {
    stream: S,
    peer: Peer,
    slot: ConnectionSlot,
    limits: ServerLimits,
    /// Changes when the server stops.
    plain_stop: watch::Receiver<bool>,
}

impl Connection<TcpStream> {
    /// Encrypts the connection, and serves it. A handshake ends with the server, with
    /// its slot, and when it takes as long as a head may.
    async fn serve_tls<D: DirectRoutes>(self, tls: Arc<ServerTls>, router: Router, direct: D, watcher: Watcher) {
        let Self { stream, peer, slot, limits, mut plain_stop } = self;
        let encrypted = tokio::select! {
            encrypted = tokio::time::timeout(limits.head, tls.encrypt(stream)) => encrypted.ok().flatten(),
            () = slot.evicted_or_expired() => None,
            _ = plain_stop.changed() => None,
        };
        if let Some(stream) = encrypted {
            Connection { stream, peer, slot, limits, plain_stop }.serve(router, direct, watcher).await;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<S> {
    /// Serves the connection until it ends or has to free its slot.
    async fn serve<D: DirectRoutes>(self, router: Router, direct: D, watcher: Watcher) {
        let Self { stream, peer, slot, limits, plain_stop } = self;
        let status = slot.status();
        let served = async {
            let mut stream = WriteTimeoutStream::new(stream, limits.stall);
            let unread = match serve_plain(&mut stream, (&direct, &status), limits.head, &plain_stop).await {
                Ok(Some(unread)) => unread,
                Ok(None) => return,
                Err(problem) => return debug!("connection ended early: {problem}"),
            };
            // In a box: its state is large, and most busy connections never get here.
            let stream = HeadCheckedStream::new(RewoundStream::new(unread, stream), limits.body_bytes_max);
            let service = Box::pin(serve_http(stream, (router, direct), limits, peer, status.clone(), watcher));
            if let Err(problem) = service.await {
                debug!("connection ended early: {problem}");
            }
        };
        tokio::select! {
            () = served => {}
            () = slot.evicted_or_expired() => {
                debug!("connection without a valid token closed: its slot is needed, or its time on a spare slot is over");
            }
        }
        drop(slot);
    }
}

/// Serves a connection with the HTTP library until it ends.
async fn serve_http<D: DirectRoutes>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (router, direct): (Router, D),
    limits: ServerLimits,
    peer: Peer,
    status: ConnectionStatus,
    watcher: Watcher,
) -> hyper::Result<()> {
    let routes = TowerToHyperService::new(router);
    let take = move |request: &hyper::Request<Incoming>, status: &ConnectionStatus| {
        let uri = request.uri();
        // A whole address may name another host than the header does.
        let is_plain = request.method() == Method::POST && uri.query().is_none() && uri.authority().is_none();
        is_plain.then(|| direct.take(uri.path(), request.headers(), status)).flatten()
    };
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        status.begin_request();
        let route = if let Some(refusal) = InvalidHead::of(&request) {
            Route::Refused(refusal)
        } else if let Some(taken) = take(&request, &status) {
            Route::Direct(D::answer(taken, request))
        } else {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(status.clone());
            Route::Routed(routes.call(request))
        };
        let status = status.clone();
        async move {
            let mut response = match route {
                Route::Direct(response) => response.await,
                Route::Routed(response) => response.await?,
                Route::Refused(refusal) => refusal.problem(limits.body_bytes_max).answer(&HeaderMap::new()),
            };
            if status.is_closing() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            status.end_request();
            Ok::<_, Infallible>(response)
        }
    });
    watcher.watch(http1_builder(limits).serve_connection(TokioIo::new(stream), service)).await
}

/// The way of a request.
enum Route<D, R> {
    /// The request is served without the router.
    Direct(D),
    /// The router serves the request.
    Routed(R),
    /// The head of the request is invalid.
    Refused(InvalidHead),
}

/// Accepts the next connection and takes a slot for it.
async fn accept(
    listener: &TcpListener,
    slots: &std::sync::Arc<ConnectionSlots>,
    trusted_proxies: &[IpNet],
) -> std::io::Result<(TcpStream, Peer, ConnectionSlot)> {
    let (stream, peer) = listener.accept().await?;
    let peer = peer.ip().to_canonical();
    let is_proxy = trusted_proxies.iter().any(|network| network.contains(&peer));
    let slot = slots.take((!is_proxy).then(|| origin::network(peer))).await;
    Ok((stream, Peer(peer), slot))
}

fn http1_builder(limits: ServerLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_BYTES_MAX);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::server_tls::ServerCertificate;
    use axum::Extension;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Starts a server with these limits; returns its address and the sender that stops it.
    async fn serving(limits: ServerLimits) -> (SocketAddr, oneshot::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let show_slot = |peer: Extension<Peer>, status: Extension<ConnectionStatus>| async move {
            format!("{} {}", peer.0.0, if status.is_spare() { "spare" } else { "regular" })
        };
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().route("/", get(show_slot));
        tokio::spawn(serve(listener, (router, ()), limits, Vec::new(), stopped, Duration::ZERO));
        (address, stop)
    }

    fn short_head_timeout() -> ServerLimits {
        ServerLimits { head: Duration::from_millis(150), ..ServerLimits::of(2) }
    }

    /// Reads everything until the connection is closed.
    async fn read_to_end(stream: &mut TcpStream) -> String {
        let mut received = Vec::new();
        let _ =
            tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut received)).await.expect("it ends");
        String::from_utf8_lossy(&received).into_owned()
    }

    async fn answer(stream: &mut TcpStream) -> String {
        let mut received = vec![0; 4_096];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut received)).await.expect("an answer");
        String::from_utf8_lossy(&received[..read.unwrap()]).into_owned()
    }

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    #[tokio::test]
    async fn a_head_that_drips_in_is_cut_off_and_so_is_an_idle_connection() {
        let (address, _stop) = serving(short_head_timeout()).await;
        let mut dripping = TcpStream::connect(address).await.unwrap();
        let (mut reading, mut writing) = dripping.split();
        let drip = async {
            // Every byte arrives in time, but the head as a whole never does.
            for byte in b"GET / HTTP/1.1\r\nhost: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".iter().cycle() {
                if writing.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let mut received = Vec::new();
        tokio::select! {
            () = drip => {}
            ended = tokio::time::timeout(Duration::from_secs(20), reading.read_to_end(&mut received)) => drop(ended.expect("it is cut off")),
        }
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(ASK).await.unwrap();
        assert!(read_to_end(&mut idle).await.starts_with("HTTP/1.1 200"), "answered, then closed");
    }

    #[tokio::test]
    async fn a_head_with_too_many_lines_or_bytes_is_refused() {
        let (address, _stop) = serving(ServerLimits::of(10)).await;
        let ask = |lines: String| async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream
                .write_all(format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{lines}\r\n").as_bytes())
                .await;
            read_to_end(&mut stream).await.get(..12).unwrap_or_default().to_owned()
        };
        let lines = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
        assert_eq!(ask(lines(HEADERS_MAX - 2)).await, "HTTP/1.1 200");
        assert_eq!(ask(lines(HEADERS_MAX - 1)).await, "HTTP/1.1 431");
        assert_eq!(ask(format!("x: {}\r\n", "a".repeat(HEAD_BYTES_MAX - 1_024))).await, "HTTP/1.1 200");
        assert_eq!(ask(format!("x: {}\r\n", "a".repeat(HEAD_BYTES_MAX))).await, "HTTP/1.1 431");
    }

    #[tokio::test]
    async fn a_refused_head_is_answered_in_its_turn_and_is_the_last() {
        let (address, _stop) = serving(ServerLimits { body_bytes_max: 1_000, ..ServerLimits::of(10) }).await;
        let ask = async |heads: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(heads.as_bytes()).await.unwrap();
            read_to_end(&mut stream).await
        };
        let fine = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for (wrong, status, words) in [
            ("GET / HTTP/1.1\r\n\r\n", 400, "exactly one"),
            ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "exactly one"),
            ("GET / HTTP/1.1\nhost: a\n\n", 400, "CR LF"),
            ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 400, "`chunked` alone"),
            ("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n", 413, "1000 bytes"),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551615\r\n\r\n", 413, "1000 bytes"),
        ] {
            let received = ask(&format!("{fine}{wrong}{fine}")).await;
            let (first, second) = received.rsplit_once("HTTP/1.1 ").unwrap();
            assert!(first.starts_with("HTTP/1.1 200 ") && first.ends_with("regular"), "{wrong:?}: {received}");
            assert!(!received.contains("100 Continue"), "{wrong:?}: {received}");
            assert!(second.starts_with(&status.to_string()) && second.contains(words), "{wrong:?}: {received}");
            assert!(second.contains("connection: close") && second.contains("\"request_id\":\"req_"), "{received}");
        }
    }

    #[tokio::test]
    async fn a_handshake_that_never_comes_holds_up_no_stop() {
        let identity = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let certificate = ServerCertificate::from_pem(&identity.cert.pem(), &identity.signing_key.serialize_pem());
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let tls = Some(Arc::new(ServerTls::new(certificate.unwrap()).unwrap()));
        let (stop, stopped) = oneshot::channel();
        let limits = ServerLimits { head: Duration::from_secs(3_600), ..ServerLimits::of(4) };
        let an_hour = Duration::from_secs(3_600);
        let serving =
            tokio::spawn(serve(Listener { socket, tls }, (Router::new(), ()), limits, Vec::new(), stopped, an_hour));
        let mut silent = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(20), serving).await.expect("it ends").unwrap();
        assert_eq!(read_to_end(&mut silent).await, "");
    }

    #[tokio::test]
    async fn beyond_the_limit_there_is_a_spare_place_for_one_request() {
        let patient = ServerLimits {
            head: Duration::from_secs(60),
            spare: 1,
            scarce: Duration::from_secs(60),
            ..ServerLimits::of(4)
        };
        let (address, _stop) = serving(patient).await;
        let mut open = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(ASK).await.unwrap();
            assert!(answer(&mut stream).await.ends_with("127.0.0.1 regular"));
            open.push(stream);
        }
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(ASK).await.unwrap();
        let received = read_to_end(&mut third).await;
        assert!(received.contains("connection: close") && received.ends_with("spare"), "{received}");
        // A silent connection does not keep the spare slot for long.
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut fourth = TcpStream::connect(address).await.unwrap();
        fourth.write_all(ASK).await.unwrap();
        assert!(read_to_end(&mut fourth).await.ends_with("spare"), "it need not wait");
        assert_eq!(read_to_end(&mut silent).await, "");
        // A closed connection frees its slot.
        drop(open.pop());
        let regular = loop {
            let mut next = TcpStream::connect(address).await.unwrap();
            next.write_all(ASK).await.unwrap();
            let received = answer(&mut next).await;
            if !received.ends_with("spare") {
                break received;
            }
        };
        assert!(regular.ends_with("regular"), "{regular}");
    }
}
