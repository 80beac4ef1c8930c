//! Receivers behind TLS: trusted ones are called, others are not, and the
//! reason is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::HandshakeKind;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{WantsServerCert, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ConfigBuilder, ServerConfig, SupportedProtocolVersion};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::support::{Gateway, Options, PATIENCE, eager_retry};

/// A certificate authority of our own, in a file.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: tempfile::NamedTempFile,
}

impl Authority {
    /// A name of its own, so that nobody takes one for the other.
    pub fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), issuer.pem()).expect("a certificate");
        Self { issuer, file }
    }

    /// A gateway that trusts this authority and no other.
    pub async fn trusting_gateway(&self) -> Gateway {
        self.trusting_gateway_with(Options::default()).await
    }

    /// The same, started so.
    pub async fn trusting_gateway_with(&self, mut options: Options) -> Gateway {
        let file = self.file.path().display().to_string();
        options.env.push(("SSL_CERT_FILE".to_owned(), file));
        options.env.push(("SSL_CERT_DIR".to_owned(), "/nonexistent".to_owned()));
        Gateway::start_with(options).await
    }

    /// A certificate of this authority's with its key, as an endpoint takes them.
    fn identity(&self) -> (String, String) {
        self.identity_for(&["posthaste.example"])
    }

    /// The same, for these names.
    pub fn identity_for(&self, names: &[&str]) -> (String, String) {
        let (certificate, key) = self.certificate(names, |_| {});
        (certificate.pem(), key.serialize_pem())
    }

    /// The same, with a certificate that ends on this day.
    pub fn identity_until(&self, names: &[&str], year: i32, month: u8, day: u8) -> (String, String) {
        let (certificate, key) = self.certificate(names, |params| params.not_after = date_time_ymd(year, month, day));
        (certificate.pem(), key.serialize_pem())
    }

    /// The file of this authority's own certificate.
    pub fn file(&self) -> &std::path::Path {
        self.file.path()
    }

    /// What a server needs to be these names.
    pub fn server(&self, names: &[&str]) -> TlsAcceptor {
        self.server_with(names, |_| {})
    }

    /// The same, with a certificate that is special in some way.
    fn server_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> TlsAcceptor {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth();
        present(config, self.certificate(names, change))
    }

    /// The same, for clients with a certificate of this authority only.
    fn demanding_server(&self, version: &'static SupportedProtocolVersion) -> TlsAcceptor {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a certificate");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_client_cert_verifier(verifier.expect("a verifier"));
        present(config, self.certificate(&["127.0.0.1"], |_| {}))
    }

    /// The same as [`Authority::server`], in one version alone.
    fn server_of_version(&self, version: &'static SupportedProtocolVersion) -> TlsAcceptor {
        let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[version]);
        present(config.expect("a version").with_no_client_auth(), self.certificate(&["127.0.0.1"], |_| {}))
    }

    fn certificate(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(names);
        change(&mut params);
        (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
    }
}

fn params(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).expect("names")
}

/// The usual self-made certificate: its own authority.
fn self_signed(names: &[&str]) -> (Certificate, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let mut params = params(names);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.self_signed(&key).expect("a certificate"), key)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn present(config: ConfigBuilder<ServerConfig, WantsServerCert>, (leaf, key): (Certificate, KeyPair)) -> TlsAcceptor {
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = config.with_single_cert(vec![leaf.der().clone()], key).expect("a certificate and its key");
    TlsAcceptor::from(Arc::new(config))
}

/// A receiver that speaks TLS, answers 200 and keeps the bodies.
pub struct TlsReceiver {
    pub address: SocketAddr,
    bodies: mpsc::UnboundedReceiver<Bytes>,
    /// How each connection was agreed on.
    handshakes: Arc<Mutex<Vec<HandshakeKind>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for TlsReceiver {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl TlsReceiver {
    pub async fn start(acceptor: TlsAcceptor) -> Self {
        Self::answering(acceptor, "close").await
    }

    /// A receiver that keeps its connections open for more requests.
    async fn keeping(acceptor: TlsAcceptor) -> Self {
        Self::answering(acceptor, "keep-alive").await
    }

    async fn answering(acceptor: TlsAcceptor, connection: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (arrived, bodies) = mpsc::unbounded_channel();
        let handshakes = Arc::<Mutex<Vec<HandshakeKind>>>::default();
        let agreed = handshakes.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, arrived, agreed) = (acceptor.clone(), arrived.clone(), agreed.clone());
                tokio::spawn(async move {
                    // A client that does not trust us goes away here.
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    agreed.lock().unwrap().extend(stream.get_ref().1.handshake_kind());
                    let service = service_fn(|request| receive(&arrived, connection, request));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, bodies, handshakes, accepting }
    }

    pub fn url(&self, host: &str) -> String {
        format!("https://{host}:{}/hook", self.address.port())
    }
}

async fn receive(
    arrived: &mpsc::UnboundedSender<Bytes>,
    connection: &'static str,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let _ = arrived.send(body);
    let response = hyper::Response::builder().header("connection", connection);
    Ok(response.body(Full::default()).expect("a response"))
}

/// Sends one event there and waits until it has died of TLS; the message.
async fn dead_of_tls(gateway: &Gateway, url: String) -> String {
    dead_of_tls_with(gateway, url, json!({})).await
}

/// The same, to an endpoint with these settings.
async fn dead_of_tls_with(gateway: &Gateway, url: String, tls: Value) -> String {
    let endpoint = gateway.create_endpoint(json!({"url": url, "retry": eager_retry(2), "tls": tls})).await;
    let id = format!("for-{}", endpoint["id"].as_str().expect("an id"));
    gateway.send(json!({"id": id, "type": "t", "endpoints": [endpoint["id"]], "data": 1})).await;
    let dead = gateway.wait_for_state(&id, "dead").await;
    assert_eq!((&dead["cause"], &dead["attempts"]), (&json!("exhausted"), &json!(2)), "{dead}");
    assert_eq!((&dead["last_error"]["kind"], &dead["last_status"]), (&json!("tls"), &Value::Null), "{dead}");
    for attempt in gateway.attempts_of(&dead).await {
        assert_eq!(attempt["decision"]["verdict"], "retry", "{attempt}");
    }
    dead["last_error"]["message"].as_str().expect("a message").to_owned()
}

#[tokio::test]
async fn a_receiver_that_closes_its_connections_is_not_made_to_agree_anew_each_time() {
    let authority = Authority::named("ours");
    let gateway = authority.trusting_gateway().await;
    let receiver = TlsReceiver::start(authority.server(&["127.0.0.1"])).await;
    gateway.create_endpoint(json!({"url": receiver.url("127.0.0.1"), "ordering": "endpoint"})).await;
    for n in 0..4 {
        gateway.send(json!({"id": format!("n-{n}"), "type": "t", "data": n})).await;
        gateway.wait_for_state(&format!("n-{n}"), "delivered").await;
    }
    let agreed = receiver.handshakes.lock().unwrap().clone();
    assert_eq!(agreed.len(), 4, "each answer closes its connection");
    assert!(agreed[1..].iter().all(|kind| *kind == HandshakeKind::Resumed), "{agreed:?}");
}

#[tokio::test]
async fn a_receiver_whose_authority_is_trusted_is_called_over_tls() {
    let authority = Authority::named("ours");
    let gateway = authority.trusting_gateway().await;
    let mut receiver = TlsReceiver::start(authority.server(&["127.0.0.1", "localhost"])).await;
    for host in ["127.0.0.1", "localhost"] {
        let endpoint = gateway.create_endpoint(json!({"url": receiver.url(host), "format": "raw"})).await;
        let id = format!("to-{}", host.replace('.', "-"));
        gateway.send(json!({"id": id, "type": "t", "endpoints": [endpoint["id"]], "data": [host]})).await;
        let delivery = gateway.wait_for_state(&id, "delivered").await;
        let attempts = gateway.attempts_of(&delivery).await;
        let timings = &attempts[0]["timings"];
        assert!(timings["tls"].as_f64().is_some_and(|tls| tls > 0.0), "{timings}");
        assert!(timings["connect"].is_number() && timings["first_byte"].is_number(), "{timings}");
        let body = tokio::time::timeout(PATIENCE, receiver.bodies.recv()).await.expect("a request").expect("a body");
        assert_eq!(body, format!("[\"{host}\"]"));
    }
}

#[tokio::test]
async fn a_receiver_whose_authority_is_unknown_is_not_called_and_the_reason_is_told() {
    let (authority, another) = (Authority::named("ours"), Authority::named("another"));
    let gateway = another.trusting_gateway().await;
    let mut receiver = TlsReceiver::start(authority.server(&["127.0.0.1"])).await;
    let message = dead_of_tls(&gateway, receiver.url("127.0.0.1")).await;
    assert_eq!(
        message,
        "the certificate was issued by an authority that is not trusted here; the receiver must send its whole \
         chain, or its authority must be trusted by this machine"
    );
    assert!(receiver.bodies.try_recv().is_err(), "nothing was said to someone unknown");
}

#[tokio::test]
async fn a_certificate_that_does_not_hold_is_refused_and_the_reason_is_told() {
    let authority = Authority::named("ours");
    let gateway = authority.trusting_gateway().await;
    let expired = authority.server_with(&["127.0.0.1"], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 2, 3);
    });
    let early = authority.server_with(&["127.0.0.1"], |params| params.not_before = date_time_ymd(2999, 12, 31));
    let plain =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().expect("versions");
    let cases = [
        (expired, "the certificate expired on 2021-02-03"),
        (early, "the certificate is not valid before 2999-12-31; is this machine's clock right?"),
        (authority.server(&["a.example"]), "the certificate is for a.example, not for 127.0.0.1"),
        (
            authority.server(&["a.example", "127.0.0.2"]),
            "the certificate is for a.example, 127.0.0.2, not for 127.0.0.1",
        ),
        (authority.server(&[]), "the certificate names no host, so it is not for 127.0.0.1"),
        (
            present(plain.with_no_client_auth(), self_signed(&["127.0.0.1"])),
            "the certificate is self-signed and marked as an authority; the receiver needs one that an authority \
             issued for its name",
        ),
    ];
    for (server, message) in cases {
        let mut receiver = TlsReceiver::start(server).await;
        assert_eq!(dead_of_tls(&gateway, receiver.url("127.0.0.1")).await, message);
        assert!(receiver.bodies.try_recv().is_err(), "nothing was said to it: {message}");
    }
}

#[tokio::test]
async fn a_server_that_demands_a_client_certificate_is_told_apart_in_either_version() {
    let authority = Authority::named("ours");
    let gateway = authority.trusting_gateway().await;
    for version in [&TLS12, &TLS13] {
        let mut receiver = TlsReceiver::start(authority.demanding_server(version)).await;
        let message = dead_of_tls(&gateway, receiver.url("127.0.0.1")).await;
        assert_eq!(message, "the server asks for a client certificate, and this endpoint has none", "{version:?}");
        assert!(receiver.bodies.try_recv().is_err(), "{version:?}");
    }
}

#[tokio::test]
async fn a_receiver_that_does_not_speak_tls_is_told_apart() {
    let gateway = Gateway::start().await;
    let plain = crate::support::Receiver::answering(|_| crate::support::Reply::Status(200)).await;
    let message = dead_of_tls(&gateway, plain.url().replace("http:", "https:")).await;
    assert_eq!(message, "what answered does not speak TLS; is it plain http?");
    assert_eq!(plain.count(), 0);
}

/// Sends one event to an endpoint with these settings and waits until it has
/// arrived.
async fn delivered_with(gateway: &Gateway, url: String, tls: Value) -> Value {
    let endpoint = gateway.create_endpoint(json!({"url": url, "tls": tls})).await;
    delivered_to(gateway, &endpoint, "first").await;
    endpoint
}

async fn delivered_to(gateway: &Gateway, endpoint: &Value, name: &str) {
    let id = format!("{name}-{}", endpoint["id"].as_str().expect("an id"));
    gateway.send(json!({"id": id, "type": "t", "endpoints": [endpoint["id"]], "data": 1})).await;
    gateway.wait_for_state(&id, "delivered").await;
}

for_every_store! {
    an_endpoint_may_have_an_authority_and_a_certificate_of_its_own,
}

async fn an_endpoint_may_have_an_authority_and_a_certificate_of_its_own() {
    let (authority, another) = (Authority::named("ours"), Authority::named("another"));
    let gateway = another.trusting_gateway().await;
    let ca = authority.issuer.pem();
    let (certificate, key) = authority.identity();
    let ours = json!({"ca": ca, "client_certificate": certificate, "client_key": key});
    let mut endpoints = Vec::new();
    let mut receivers = Vec::new();
    for version in [&TLS12, &TLS13] {
        let receiver = TlsReceiver::start(authority.demanding_server(version)).await;
        endpoints.push(delivered_with(&gateway, receiver.url("127.0.0.1"), ours.clone()).await);
        let none = dead_of_tls_with(&gateway, receiver.url("127.0.0.1"), json!({"ca": ca})).await;
        assert_eq!(none, "the server asks for a client certificate, and this endpoint has none", "{version:?}");
        let (certificate, key) = another.identity();
        let theirs = json!({"ca": ca, "client_certificate": certificate, "client_key": key});
        let wrong = dead_of_tls_with(&gateway, receiver.url("127.0.0.1"), theirs).await;
        assert!(wrong.starts_with("the server does not accept the client certificate of this endpoint"), "{wrong}");
        let unknown = dead_of_tls(&gateway, receiver.url("127.0.0.1")).await;
        assert!(unknown.contains("must be trusted by this machine"), "its own authority counts for itself alone");
        receivers.push(receiver);
    }
    // The key is never shown again, and is still there after a crash.
    let shown = gateway.endpoint(&endpoints[0]).await;
    assert_eq!((&shown["tls"]["client_key"], &shown["tls"]["ca"]), (&json!("***"), &json!(ca)));
    assert!(!endpoints[0].to_string().contains(key.lines().nth(1).unwrap()));
    let changed = gateway.patch(&endpoints[0], json!({"description": "changed", "tls": {"min_version": "1.2"}})).await;
    assert_eq!(changed["tls"]["client_key"], "***");
    let gateway = gateway.killed_and_restarted().await;
    for endpoint in &endpoints {
        delivered_to(&gateway, endpoint, "again").await;
    }
    gateway.patch(&endpoints[0], json!({"tls": null})).await;
    assert_eq!(gateway.endpoint(&endpoints[0]).await["tls"]["client_key"], Value::Null);
}

#[tokio::test]
async fn an_authority_of_an_endpoints_own_takes_the_place_of_the_machines() {
    let (authority, another) = (Authority::named("ours"), Authority::named("another"));
    let gateway = authority.trusting_gateway().await;
    let mut receiver = TlsReceiver::start(authority.server(&["127.0.0.1"])).await;
    let tls = json!({"ca": another.issuer.pem()});
    let message = dead_of_tls_with(&gateway, receiver.url("127.0.0.1"), tls).await;
    assert_eq!(
        message,
        "the certificate was issued by an authority that is not in this endpoint's tls ca; the receiver must send its \
         whole chain, or its authority must be named there"
    );
    assert!(receiver.bodies.try_recv().is_err(), "nothing was said to it");
}

#[tokio::test]
async fn connections_that_one_endpoint_trusts_are_not_lent_to_another() {
    let (authority, another) = (Authority::named("ours"), Authority::named("another"));
    let gateway = another.trusting_gateway().await;
    let receiver = TlsReceiver::keeping(authority.server(&["127.0.0.1"])).await;
    let tls = json!({"ca": authority.issuer.pem()});
    let trusting = delivered_with(&gateway, receiver.url("127.0.0.1"), tls).await;
    delivered_to(&gateway, &trusting, "second").await;
    assert_eq!(receiver.handshakes.lock().unwrap().len(), 1, "its own are used again");
    let message = dead_of_tls(&gateway, receiver.url("127.0.0.1")).await;
    assert!(message.contains("not trusted here"), "{message}");
}

#[tokio::test]
async fn an_endpoint_may_insist_on_tls_1_3() {
    let authority = Authority::named("ours");
    let gateway = authority.trusting_gateway().await;
    let old = TlsReceiver::start(authority.server_of_version(&TLS12)).await;
    let new = TlsReceiver::start(authority.server_of_version(&TLS13)).await;
    for receiver in [&old, &new] {
        delivered_with(&gateway, receiver.url("127.0.0.1"), json!({"min_version": "1.2"})).await;
    }
    delivered_with(&gateway, new.url("127.0.0.1"), json!({"min_version": "1.3"})).await;
    let message = dead_of_tls_with(&gateway, old.url("127.0.0.1"), json!({"min_version": "1.3"})).await;
    assert_eq!(message, "the server does not speak TLS 1.3, which this endpoint asks for");
}

#[tokio::test]
async fn tls_settings_that_cannot_work_are_refused_by_name_and_without_the_key() {
    let gateway = Gateway::start().await;
    let authority = Authority::named("ours");
    let (certificate, key) = authority.identity();
    let (_, other) = authority.identity();
    let both = |certificate: &str, key: &str| json!({"client_certificate": certificate, "client_key": key});
    for (tls, pointer, words) in [
        (json!({"ca": "hush"}), "/tls/ca", "no certificate in PEM"),
        (json!({"ca": key}), "/tls/ca", "no certificate in PEM"),
        (json!({"ca": 5}), "/tls/ca", "must be a text"),
        (json!({"min_version": "1.1"}), "/tls/min_version", "`1.2`"),
        (json!({"client_certificate": certificate}), "/tls/client_key", "give both"),
        (json!({"client_key": key}), "/tls/client_certificate", "give both"),
        (both("hush", &key), "/tls/client_certificate", "no certificate in PEM"),
        (both(&certificate, "hush"), "/tls/client_key", "no private key in PEM"),
        (both(&certificate, &certificate), "/tls/client_key", "no private key in PEM"),
        (both(&certificate, &other), "/tls/client_key", "does not belong"),
        (both(&certificate, "***"), "/tls/client_key", "give the key itself"),
        (both(&certificate, &"x".repeat(70_000)), "/tls/client_key", "use at most 65536"),
    ] {
        let settings = json!({"url": "https://example.com/", "tls": tls});
        let answer = gateway.client.post_json("/v1/tenants/default/endpoints", &settings).await;
        let problem = answer.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
        for line in key.lines().chain(other.lines()).filter(|line| line.len() > 40) {
            assert!(!problem.to_string().contains(line), "{problem}");
        }
    }
    let list = json!({"url": "https://example.com/", "tls": [certificate]});
    gateway.client.post_json("/v1/tenants/default/endpoints", &list).await.problem(422, "invalid_field");
    let unknown = json!({"url": "https://example.com/", "tls": {"verify": false}});
    gateway.client.post_json("/v1/tenants/default/endpoints", &unknown).await.problem(422, "unknown_field");
}
