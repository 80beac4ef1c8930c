//! Ends TLS before a gateway, as a proxy does, and serves pages of other sites that
//! show it in a frame.
//!
//! All names lead here by the browser's resolver rules. It adds a cookie without a
//! partition to everything, to see whether the browser sends such cookies to frames.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, COOKIE, HOST, HeaderValue, SET_COOKIE};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Name of the gateway's own site.
pub const GATEWAY: &str = "hooks.example.com";
/// Name of the site that may show the portal.
pub const HOST_SITE: &str = "app.example.org";
/// Name of a site that may not.
pub const OTHER_SITE: &str = "elsewhere.example.net";

/// A proxy that ends TLS; it ends with the test.
pub struct TlsFront {
    /// Port of this machine that it listens on.
    pub port: u16,
    shared: Arc<FrontState>,
    accepting: tokio::task::JoinHandle<()>,
}

struct FrontState {
    /// Address of the gateway.
    gateway: SocketAddr,
    /// Address that the pages of other sites show in their frame.
    framed: Mutex<String>,
    /// Cookies of each request to the gateway, with its path.
    seen: Mutex<Vec<(String, String)>>,
    /// Cookies that the gateway has set.
    set: Mutex<Vec<String>>,
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl TlsFront {
    /// Starts it before a gateway, with a certificate of its own for all three names.
    pub async fn start(gateway: SocketAddr) -> Self {
        let names = [GATEWAY, HOST_SITE, OTHER_SITE].map(str::to_owned);
        let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared =
            Arc::new(FrontState { gateway, framed: Mutex::default(), seen: Mutex::default(), set: Mutex::default() });
        let state = shared.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (state, tls) = (state.clone(), tls.clone());
                connections.spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let answer = service_fn(|request| answer(state.clone(), request));
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        Self { port, shared, accepting }
    }

    /// Returns the flags with which the browser finds all names here.
    pub fn flags(&self) -> Vec<String> {
        let rules = format!("--host-resolver-rules=MAP *:443 127.0.0.1:{}", self.port);
        vec![rules, "--window-size=1280,900".to_owned()]
    }

    /// Chooses what pages of other sites show in their frame.
    pub fn show_in_frames(&self, address: &str) {
        *self.shared.framed.lock().unwrap() = address.to_owned();
    }

    /// Returns the cookies of requests to the gateway until now, with their paths.
    pub fn cookies_seen(&self) -> Vec<(String, String)> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Returns the cookies that the gateway has set until now.
    pub fn cookies_set(&self) -> Vec<String> {
        self.shared.set.lock().unwrap().clone()
    }
}

async fn answer(
    state: Arc<FrontState>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, std::io::Error> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if host == GATEWAY { pass_on(&state, request).await } else { Ok(host_page(&state)) }
}

/// A page of another site, with the frame and what it hears from it.
fn host_page(state: &FrontState) -> http::Response<Full<Bytes>> {
    let framed = state.framed.lock().unwrap();
    let html = format!(
        "<!doctype html><title>host</title><h1>Your account</h1>\
         <iframe id=portal title=Webhooks width=1100 height=300 allow=clipboard-write src=\"{framed}\"></iframe>\
         <script>addEventListener('message', (event) => {{\
           window.heard = {{origin: event.origin, height: event.data.posthasteHeight}};\
           document.getElementById('portal').height = event.data.posthasteHeight;\
         }});</script>"
    );
    let mut response = http::Response::new(Full::new(Bytes::from(html)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// Passes a request on to the gateway and its answer back.
async fn pass_on(
    state: &FrontState,
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, std::io::Error> {
    let (mut parts, body) = request.into_parts();
    let cookies = parts.headers.get(COOKIE).and_then(|cookies| cookies.to_str().ok()).unwrap_or_default();
    state.seen.lock().unwrap().push((parts.uri.path().to_owned(), cookies.to_owned()));
    parts.headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
    parts.headers.insert("x-forwarded-for", HeaderValue::from_static("192.0.2.7"));
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let stream = TcpStream::connect(state.gateway).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    let answer = sender.send_request(http::Request::from_parts(parts, Full::new(body))).await;
    let (mut parts, body) = answer.map_err(std::io::Error::other)?.into_parts();
    let set = parts.headers.get_all(SET_COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
    state.set.lock().unwrap().extend(set.map(str::to_owned));
    let probe = HeaderValue::from_static("unpartitioned=yes; Path=/; Secure; SameSite=None");
    parts.headers.append(SET_COOKIE, probe);
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    Ok(http::Response::from_parts(parts, Full::new(body)))
}
