//! Serves the API: connections in, with limits; a stop that lets answers out.
//!
//! There is a limit to how many connections are open at once. Beyond it a few
//! more are taken, each for one request and a short while: health checks are
//! answered on them, everything else is told to come back. So the gateway can
//! be full and still be seen to be alive. Whoever comes while those are taken
//! as well waits to be accepted.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{debug, warn};

use super::origin::Peer;
use super::problem::{Code, Problem};
use super::stall::Impatient;

/// How many lines the head of a request may have.
pub const HEADERS_MAX: usize = 64;
/// How many bytes it may have.
pub const HEAD_BYTES_MAX: usize = 64 * 1_024;

/// How much is served at once, and for how long a peer is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
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
}

impl Limits {
    /// The usual ones, with so many connections.
    pub fn of(connections: usize) -> Self {
        Self {
            connections,
            spare: 64,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            spare_for: Duration::from_secs(2),
        }
    }
}

/// Marks a request that came on a spare connection.
#[derive(Debug, Clone, Copy)]
pub struct Spare;

/// Whether this is answered on spare connections, too.
pub fn is_vital(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

/// What everything else is told there.
pub fn full() -> Problem {
    Problem::new(
        Code::Unavailable,
        "as many connections are open as may be; keep one open instead of opening many, or raise --max-connections",
    )
}

/// Serves until told to stop, then lets open requests finish for as long as
/// the deadline allows.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut stop: oneshot::Receiver<()>,
    deadline: Duration,
) {
    let graceful = GracefulShutdown::new();
    let places = Places::of(limits);
    loop {
        let accepted = tokio::select! {
            accepted = places.accept(&listener) => accepted,
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
        let is_spare = matches!(place, Place::Spare(_));
        let inner = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer);
            if is_spare {
                request.extensions_mut().insert(Spare);
            }
            inner.call(request)
        });
        let io = TokioIo::new(Impatient::new(stream, limits.stall));
        let connection = graceful.watch(builder(limits, is_spare).serve_connection(io, service));
        tokio::spawn(async move {
            let ended = match &place {
                Place::Usual(_) => Ok(connection.await),
                Place::Spare(_) => tokio::time::timeout(limits.spare_for, connection).await,
            };
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(problem)) => debug!("a connection ended early: {problem}"),
                Err(_) => debug!("a spare connection was not used in time"),
            }
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(deadline, graceful.shutdown()).await;
}

fn builder(limits: Limits, is_spare: bool) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .keep_alive(!is_spare);
    builder
}

/// What a connection takes up until it ends.
enum Place {
    Usual(#[expect(dead_code, reason = "it is held, not read")] OwnedSemaphorePermit),
    Spare(#[expect(dead_code, reason = "it is held, not read")] OwnedSemaphorePermit),
}

/// Where connections can go.
struct Places {
    usual: Arc<Semaphore>,
    spare: Arc<Semaphore>,
}

impl Places {
    fn of(limits: Limits) -> Self {
        Self { usual: Arc::new(Semaphore::new(limits.connections)), spare: Arc::new(Semaphore::new(limits.spare)) }
    }

    /// The next connection, once there is a place for it.
    async fn accept(&self, listener: &TcpListener) -> std::io::Result<(TcpStream, Peer, Place)> {
        let place = match self.usual.clone().try_acquire_owned() {
            Ok(place) => Place::Usual(place),
            Err(_) => tokio::select! {
                biased;
                place = self.usual.clone().acquire_owned() => Place::Usual(place.expect("it is never closed")),
                place = self.spare.clone().acquire_owned() => Place::Spare(place.expect("it is never closed")),
            },
        };
        let (stream, peer) = listener.accept().await?;
        // It may have come after a usual place became free.
        let place = match (place, self.usual.clone().try_acquire_owned()) {
            (Place::Spare(_), Ok(usual)) => Place::Usual(usual),
            (place, _) => place,
        };
        Ok((stream, Peer(peer.ip()), place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Extension;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Serves a word with these limits; how it is reached, and how it ends.
    async fn serving(limits: Limits) -> (SocketAddr, oneshot::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let say = |peer: Extension<Peer>, spare: Option<Extension<Spare>>| async move {
            format!("{} {}", peer.0.0, if spare.is_some() { "spare" } else { "usual" })
        };
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().route("/", get(say));
        tokio::spawn(serve(listener, router, limits, stopped, Duration::ZERO));
        (address, stop)
    }

    fn quick() -> Limits {
        Limits { head: Duration::from_millis(150), ..Limits::of(2) }
    }

    /// Everything that comes until the connection is closed.
    async fn rest(stream: &mut TcpStream) -> String {
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
        let (address, _stop) = serving(quick()).await;
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
        assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200"), "answered, then closed");
    }

    #[tokio::test]
    async fn a_head_with_too_many_lines_or_bytes_is_refused() {
        let (address, _stop) = serving(Limits::of(10)).await;
        let ask = |lines: String| async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream
                .write_all(format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{lines}\r\n").as_bytes())
                .await;
            rest(&mut stream).await.get(..12).unwrap_or_default().to_owned()
        };
        let lines = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
        assert_eq!(ask(lines(HEADERS_MAX - 2)).await, "HTTP/1.1 200");
        assert_eq!(ask(lines(HEADERS_MAX - 1)).await, "HTTP/1.1 431");
        assert_eq!(ask(format!("x: {}\r\n", "a".repeat(HEAD_BYTES_MAX - 1_024))).await, "HTTP/1.1 200");
        assert_eq!(ask(format!("x: {}\r\n", "a".repeat(HEAD_BYTES_MAX))).await, "HTTP/1.1 431");
    }

    #[tokio::test]
    async fn beyond_the_limit_there_is_a_spare_place_for_one_request() {
        let patient =
            Limits { head: Duration::from_secs(60), spare: 1, spare_for: Duration::from_millis(300), ..Limits::of(2) };
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
        let heard = rest(&mut third).await;
        assert!(heard.contains("connection: close") && heard.ends_with("spare"), "{heard}");
        // One that says nothing does not keep the spare place for long.
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut fourth = TcpStream::connect(address).await.unwrap();
        fourth.write_all(ASK).await.unwrap();
        assert!(rest(&mut fourth).await.ends_with("spare"), "it waited for its turn");
        assert_eq!(rest(&mut silent).await, "");
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
