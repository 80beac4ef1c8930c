//! Serves the API: connections in, with limits; a stop that lets answers out.
//!
//! There is a limit to how many connections are open at once. Beyond it a few
//! more are taken, each for one request and a short while: health checks are
//! answered on them, a valid token gets a usual place if one can be had, and
//! everything else is told to come back. So the gateway can be full and still
//! be seen to be alive. [`places`](super::places) decides who gets which.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::connection_slots::{ConnectionSlot, ConnectionSlots};
use super::origin::{self, Peer};
use super::problem::{Problem, ProblemCode};
use super::request_head::{HeadCheckedStream, InvalidHead};
use super::write_timeout::WriteTimeoutStream;

/// How many lines the head of a request may have.
pub const HEADERS_MAX: usize = 64;
/// How many bytes it may have.
pub const HEAD_BYTES_MAX: usize = 64 * 1_024;

/// How much is served at once, and for how long a peer is waited for.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// How many connections may be open.
    pub connections: usize,
    /// How many more are taken for health checks.
    pub spare: usize,
    /// How long the head of a request may take to arrive, the wait on a
    /// kept-alive connection included.
    pub head: Duration,
    /// How long a peer may leave unread what it asked for.
    pub stall: Duration,
    /// How long a spare connection may last in all.
    pub spare_for: Duration,
    /// How long it may take to send the head of its request.
    pub spare_head: Duration,
    /// How long a connection that has shown no valid token may wait for its
    /// next request while places are scarce.
    pub scarce: Duration,
    /// How large a body may ever be.
    pub body_bytes_max: u64,
}

impl ServerLimits {
    /// The usual ones, with so many connections.
    pub fn of(connections: usize) -> Self {
        Self {
            connections,
            spare: 64,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            spare_for: Duration::from_secs(2),
            spare_head: Duration::from_millis(500),
            scarce: Duration::from_secs(1),
            body_bytes_max: 64 * 1_024 * 1_024,
        }
    }
}

/// Whether this is answered on spare connections, too.
pub fn is_health_check(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

/// What everything else is told there.
pub fn full() -> Problem {
    Problem::new(
        ProblemCode::Unavailable,
        "as many connections are open as may be, in all or from this address without a valid token; keep one open \
         instead of opening many, send a valid token, or raise --max-connections",
    )
}

/// Serves until told to stop, then lets open requests finish for as long as
/// the deadline allows. Connections of trusted proxies are counted against
/// those they speak for.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    trusted_proxies: Vec<IpNet>,
    mut stop: oneshot::Receiver<()>,
    deadline: Duration,
) {
    let graceful = GracefulShutdown::new();
    let places = ConnectionSlots::of(limits);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places, &trusted_proxies) => accepted,
            _ = &mut stop => break,
        };
        let (stream, peer, place) = match accepted {
            Ok(accepted) => accepted,
            Err(problem) => {
                // Out of file handles, most likely: others must close first.
                warn!("could not accept a connection: {problem}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let inner = TowerToHyperService::new(router.clone());
        let standing = place.status();
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            standing.begin();
            let refusal = InvalidHead::of(&request);
            let answering = refusal.is_none().then(|| {
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(standing.clone());
                inner.call(request)
            });
            let standing = standing.clone();
            async move {
                let mut response = match (answering, refusal) {
                    (Some(answering), _) => answering.await?,
                    (None, refusal) => {
                        let refusal = refusal.expect("what is not answered is refused");
                        refusal.problem(limits.body_bytes_max).answer(&HeaderMap::new())
                    }
                };
                if standing.is_closing() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                standing.end();
                Ok::<_, Infallible>(response)
            }
        });
        let stream = HeadCheckedStream::new(WriteTimeoutStream::new(stream, limits.stall), limits.body_bytes_max);
        let connection = graceful.watch(builder(limits).serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(problem) = ended {
                    debug!("a connection ended early: {problem}");
                },
                () = place.evicted_or_expired() => debug!("a connection without a valid token had to make room"),
            }
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(deadline, graceful.shutdown()).await;
}

/// The next connection, with its place.
async fn accept(
    listener: &TcpListener,
    places: &std::sync::Arc<ConnectionSlots>,
    trusted_proxies: &[IpNet],
) -> std::io::Result<(TcpStream, Peer, ConnectionSlot)> {
    let (stream, peer) = listener.accept().await?;
    let peer = peer.ip().to_canonical();
    let is_proxy = trusted_proxies.iter().any(|network| network.contains(&peer));
    let place = places.take((!is_proxy).then(|| origin::network(peer))).await;
    Ok((stream, Peer(peer), place))
}

fn builder(limits: ServerLimits) -> http1::Builder {
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
    use crate::api::connection_slots::ConnectionStatus;
    use axum::Extension;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Serves a word with these limits; how it is reached, and how it ends.
    async fn serving(limits: ServerLimits) -> (SocketAddr, oneshot::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let say = |peer: Extension<Peer>, standing: Extension<ConnectionStatus>| async move {
            format!("{} {}", peer.0.0, if standing.is_spare() { "spare" } else { "usual" })
        };
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().route("/", get(say));
        tokio::spawn(serve(listener, router, limits, Vec::new(), stopped, Duration::ZERO));
        (address, stop)
    }

    fn serve_spare() -> ServerLimits {
        ServerLimits { head: Duration::from_millis(150), ..ServerLimits::of(2) }
    }

    /// Everything that comes until the connection is closed.
    async fn read_to_end(stream: &mut TcpStream) -> String {
        let mut heard = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await.expect("it ends");
        String::from_utf8_lossy(&heard).into_owned()
    }

    async fn answer(stream: &mut TcpStream) -> String {
        let mut heard = vec![0; 4_096];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut heard)).await.expect("an answer");
        String::from_utf8_lossy(&heard[..read.unwrap()]).into_owned()
    }

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    #[tokio::test]
    async fn a_head_that_drips_in_is_cut_off_and_so_is_an_idle_connection() {
        let (address, _stop) = serving(serve_spare()).await;
        let mut dripping = TcpStream::connect(address).await.unwrap();
        let (mut reading, mut writing) = dripping.split();
        let drip = async {
            // Each byte in time, the head as a whole never.
            for byte in b"GET / HTTP/1.1\r\nhost: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".iter().cycle() {
                if writing.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let mut heard = Vec::new();
        tokio::select! {
            () = drip => {}
            ended = tokio::time::timeout(Duration::from_secs(20), reading.read_to_end(&mut heard)) => drop(ended.expect("it is cut off")),
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
            let heard = ask(&format!("{fine}{wrong}{fine}")).await;
            let (first, second) = heard.rsplit_once("HTTP/1.1 ").unwrap();
            assert!(first.starts_with("HTTP/1.1 200 ") && first.ends_with("usual"), "{wrong:?}: {heard}");
            assert!(!heard.contains("100 Continue"), "{wrong:?}: {heard}");
            assert!(second.starts_with(&status.to_string()) && second.contains(words), "{wrong:?}: {heard}");
            assert!(second.contains("connection: close") && second.contains("\"request_id\":\"req_"), "{heard}");
        }
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
            assert!(answer(&mut stream).await.ends_with("127.0.0.1 usual"));
            open.push(stream);
        }
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(ASK).await.unwrap();
        let heard = read_to_end(&mut third).await;
        assert!(heard.contains("connection: close") && heard.ends_with("spare"), "{heard}");
        // One that says nothing does not keep the spare place for long.
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut fourth = TcpStream::connect(address).await.unwrap();
        fourth.write_all(ASK).await.unwrap();
        assert!(read_to_end(&mut fourth).await.ends_with("spare"), "it need not wait");
        assert_eq!(read_to_end(&mut silent).await, "");
        // Whoever leaves makes room.
        drop(open.pop());
        let usual = loop {
            let mut next = TcpStream::connect(address).await.unwrap();
            next.write_all(ASK).await.unwrap();
            let heard = answer(&mut next).await;
            if !heard.ends_with("spare") {
                break heard;
            }
        };
        assert!(usual.ends_with("usual"), "{usual}");
    }
}
