//! The API as https: with a certificate of the operator's, which changes while the
//! gateway runs, and with commands that trust a private authority.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use jiff::ToSpan;
use jiff::tz::TimeZone;
use posthaste::clock::{Clock, SystemClock};
use posthaste_client::transport::exchange_trusting;
use posthaste_client::{Client, NewEvent, Trust};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cli::{failed, posthaste, succeeded};
use crate::support::{CapturedOutput, Gateway, Options, PATIENCE, Receiver, eventually};
use crate::tls::Authority;

/// Writes a certificate and its key where a gateway reads them.
fn put(folder: &Path, (certificate, key): &(String, String)) {
    let write = |name: &str, text: &str| {
        let beside = folder.join(format!(".{name}"));
        std::fs::write(&beside, text).unwrap();
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&beside, folder.join(name)).unwrap();
    };
    write("tls.pem", certificate);
    write("tls.key", key);
}

fn flags(files: &Path) -> Vec<String> {
    let file = |name: &str| files.join(name).display().to_string();
    vec!["--tls-certificate".into(), file("tls.pem"), "--tls-key".into(), file("tls.key")]
}

/// A gateway with this certificate, whose files are in a folder of their own.
async fn encrypted_gateway(identity: &(String, String), output: Option<CapturedOutput>) -> (Gateway, TempDir) {
    let files = tempfile::tempdir().unwrap();
    put(files.path(), identity);
    let gateway = Gateway::start_with(Options { flags: flags(files.path()), output, ..Options::default() }).await;
    (gateway, files)
}

fn trust(file: &Path) -> Trust {
    Trust::only(&std::fs::read(file).unwrap()).unwrap()
}

fn client(gateway: &Gateway, trust: Trust) -> Client {
    Client::new(&format!("https://{}", gateway.address), gateway.token()).unwrap().trust(trust)
}

/// Makes a handshake of this version, and returns the certificate that was shown.
async fn shown(gateway: &Gateway, authority: &Authority, version: &'static SupportedProtocolVersion) -> Vec<u8> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let tcp = TcpStream::connect(gateway.address).await.unwrap();
    let name = ServerName::from(gateway.address.ip());
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("a handshake");
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

#[tokio::test]
async fn the_api_is_served_as_https_and_whoever_speaks_plain_http_is_told_so() {
    let authority = Authority::named("ours");
    let identity = authority.identity_for(&["127.0.0.1"]);
    let (gateway, _files) = encrypted_gateway(&identity, None).await;
    for version in [&TLS12, &TLS13] {
        assert_eq!(shown(&gateway, &authority, version).await, der(&identity.0));
    }
    let receiver = Receiver::start().await;
    let client = client(&gateway, trust(authority.file()));
    let endpoints = client.url(&["tenants", "default", "endpoints"]).unwrap();
    let endpoint = json!({"url": receiver.url()}).to_string().into_bytes();
    let created = client.call(http::Method::POST, &endpoints, Some(endpoint)).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.body);
    client.tenant("default").send(&NewEvent::new("t", &7).unwrap()).await.unwrap();
    receiver.wait_for(1).await;

    for request in [
        "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        format!(
            "POST /v1/tenants/default/events HTTP/1.1\r\nhost: a\r\ncontent-length: 9000\r\n\r\n{}",
            "x".repeat(9_000)
        ),
    ] {
        let mut plain = TcpStream::connect(gateway.address).await.unwrap();
        plain.write_all(request.as_bytes()).await.unwrap();
        let mut heard = String::new();
        tokio::time::timeout(PATIENCE, plain.read_to_string(&mut heard)).await.expect("an answer").unwrap();
        assert!(heard.starts_with("HTTP/1.1 400 Bad Request\r\n") && heard.contains("connection: close"), "{heard}");
        assert!(heard.ends_with("https:// instead of http://\n"), "{heard}");
    }
    // Neither is anything told to what is neither.
    let mut garbage = TcpStream::connect(gateway.address).await.unwrap();
    garbage.write_all(&[0, 1, 2, 3]).await.unwrap();
    let mut heard = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, garbage.read_to_end(&mut heard)).await.expect("it is closed");
    assert_eq!(heard, b"");
}

#[tokio::test]
async fn pages_at_an_address_of_their_own_are_served_as_https_too() {
    let authority = Authority::named("ours");
    let identity = authority.identity_for(&["127.0.0.1"]);
    let files = tempfile::tempdir().unwrap();
    put(files.path(), &identity);
    let own = std::net::SocketAddr::from(([127, 0, 0, 1], crate::servers::guard::free_port()));
    let flags = [flags(files.path()), vec!["--dashboard".into(), own.to_string()]].concat();
    let gateway = Gateway::start_with(Options { flags, ..Options::default() }).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    // Asked by a name, as over a network: over plain HTTP nobody could sign in here.
    let form = format!("token={}", gateway.token());
    let request = format!(
        "POST /sign-in HTTP/1.1\r\nhost: pages.example.com\r\norigin: https://pages.example.com\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{form}",
        form.len()
    );
    let tcp = TcpStream::connect(own).await.unwrap();
    let mut stream =
        tokio_rustls::TlsConnector::from(config).connect(ServerName::from(own.ip()), tcp).await.expect("a handshake");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 303 ") && answer.contains("set-cookie: __Host-"), "{answer}");
}

/// The first record of a client that knows nothing newer than this version.
fn hello(version: [u8; 2]) -> Vec<u8> {
    let suites = [0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x13, 0xc0, 0x14, 0x00, 0x2f];
    // Signatures with ECDSA and RSA, curves P-256 and X25519, points uncompressed.
    let signatures = [0, 13, 0, 6, 0, 4, 4, 3, 4, 1];
    let curves = [0, 10, 0, 6, 0, 4, 0, 23, 0, 29, 0, 11, 0, 2, 1, 0];
    let mut body = version.to_vec();
    body.extend([7; 32]);
    // No session, the suites, no compression, the extensions.
    body.extend([0, 0, suites.len() as u8]);
    body.extend(suites);
    body.extend([1, 0, 0, (signatures.len() + curves.len()) as u8]);
    body.extend(signatures);
    body.extend(curves);
    let mut record = vec![22, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    record.extend(body);
    record
}

#[tokio::test]
async fn whoever_knows_nothing_newer_than_tls_1_1_is_refused() {
    let authority = Authority::named("ours");
    let (gateway, _files) = encrypted_gateway(&authority.identity_for(&["127.0.0.1"]), None).await;
    for version in [[3, 2], [3, 1], [3, 0]] {
        let mut old = TcpStream::connect(gateway.address).await.unwrap();
        old.write_all(&hello(version)).await.unwrap();
        let mut heard = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, old.read_to_end(&mut heard)).await.expect("it is closed");
        // A fatal alert, protocol_version, and nothing else.
        let alert = heard.split_at_checked(5).map(|(head, alert)| (head[0], alert));
        assert_eq!(alert, Some((21, &[2, 70][..])), "version {version:?}: {heard:?}");
    }
    // The same words with version 1.2 begin a handshake.
    let mut newer = TcpStream::connect(gateway.address).await.unwrap();
    newer.write_all(&hello([3, 3])).await.unwrap();
    let answered = tokio::time::timeout(PATIENCE, newer.read_u8()).await.expect("an answer").unwrap();
    assert_eq!(answered, 22, "a record of a handshake");
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_without_a_restart_and_a_broken_one_is_not() {
    let authority = Authority::named("ours");
    let identity = || authority.identity_for(&["127.0.0.1"]);
    let (first, second, third) = (identity(), identity(), identity());
    let output = CapturedOutput::default();
    let (gateway, files) = encrypted_gateway(&first, Some(output.clone())).await;
    let open = client(&gateway, trust(authority.file()));
    let tenants = open.url(&["tenants"]).unwrap();
    assert_eq!(open.call(http::Method::GET, &tenants, None).await.unwrap().status, 200);
    let in_force = async |identity: &(String, String)| {
        eventually("the new certificate", async || match shown(&gateway, &authority, &TLS13).await {
            shown if shown == der(&identity.0) => Ok(()),
            _ => Err("another one".to_owned()),
        })
        .await;
    };
    put(files.path(), &second);
    in_force(&second).await;
    assert_eq!(open.call(http::Method::GET, &tenants, None).await.unwrap().status, 200, "what is open stays open");

    for broken in [
        (third.0.clone(), first.1.clone()),
        ("no certificate".to_owned(), third.1.clone()),
        (third.0.clone(), "no key".to_owned()),
    ] {
        let logged = output.text().matches("stays in force").count();
        put(files.path(), &broken);
        eventually("a line in the log", async || match output.text().matches("stays in force").count() {
            count if count == logged + 1 => Ok(()),
            _ => Err(output.text()),
        })
        .await;
        assert_eq!(shown(&gateway, &authority, &TLS13).await, der(&second.0));
    }
    put(files.path(), &third);
    in_force(&third).await;
}

#[tokio::test]
async fn a_gateway_does_not_start_with_a_certificate_that_cannot_be_used() {
    let authority = Authority::named("ours");
    let (certificate, key) = authority.identity_for(&["127.0.0.1"]);
    let (_, other_key) = authority.identity_for(&["127.0.0.1"]);
    let said = async |identity: &(String, String), change: fn(&Path)| {
        let (data, files) = (Arc::new(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
        put(files.path(), identity);
        change(files.path());
        let output = CapturedOutput::default();
        let options = Options { flags: flags(files.path()), output: Some(output.clone()), ..Options::default() };
        assert!(Gateway::try_start_in(data.clone(), options).await.is_err());
        eventually("the reason", async || Some(output.text()).filter(|text| !text.is_empty()).ok_or_else(String::new))
            .await
    };
    let foreign = said(&(certificate.clone(), other_key), |_| {}).await;
    assert!(foreign.contains("does not belong to the first certificate"), "{foreign}");
    let identity = (certificate, key);
    let missing = said(&identity, |files| std::fs::remove_file(files.join("tls.pem")).unwrap()).await;
    assert!(missing.contains("cannot read tls-certificate"), "{missing}");
    let open = said(&identity, |files| {
        std::fs::set_permissions(files.join("tls.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    })
    .await;
    assert!(open.contains("tls.key is a secret") && open.contains("chmod o-rwx"), "{open}");
}

#[tokio::test]
async fn commands_reach_an_https_gateway_by_its_folder_or_with_a_ca() {
    let authority = Authority::named("ours");
    let files = tempfile::tempdir().unwrap();
    // A name that no command on this machine would use.
    put(files.path(), &authority.identity_for(&["hooks.example.com"]));
    let home = tempfile::tempdir().unwrap();
    let data = tempfile::Builder::new().prefix("posthaste-data").rand_bytes(0).tempdir_in(home.path()).unwrap();
    let options = Options { flags: flags(files.path()), ..Options::default() };
    let gateway = Gateway::start_in(Arc::new(data), options).await;
    let args = ["tenants", "list"];
    let here = posthaste(&args).current_dir(home.path()).output().await.unwrap();
    assert!(succeeded(&args, &here).contains("default"));

    let server = format!("https://{}", gateway.address);
    let token = gateway.folder().join("admin-token");
    let named = |more: &[&str]| {
        let mut command = posthaste(&[&["tenants", "list", "--server", &server][..], more].concat());
        command.env("POSTHASTE_TOKEN_FILE", &token).current_dir(files.path());
        command
    };
    let untrusted = named(&[]).output().await.unwrap();
    assert_eq!(untrusted.status.code(), Some(6));
    assert!(failed(&args, &untrusted).contains("with --ca"));
    // An authority vouches for a name, and this one is another.
    let other_name = named(&["--ca", authority.file().to_str().unwrap()]).output().await.unwrap();
    assert_eq!(other_name.status.code(), Some(6), "{other_name:?}");
    // The gateway's own certificate is known whatever its name is.
    let own = files.path().join("tls.pem");
    assert!(succeeded(&args, &named(&["--ca", own.to_str().unwrap()]).output().await.unwrap()).contains("default"));
    assert!(succeeded(&args, &named(&[]).env("POSTHASTE_CA", &own).output().await.unwrap()).contains("default"));
    let nothing = named(&["--ca", token.to_str().unwrap()]).output().await.unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    assert!(failed(&args, &nothing).contains("no certificate in PEM"));

    // The same certificate is nobody else's: another one for the same name is refused.
    let another = Authority::named("another").identity_for(&["hooks.example.com"]);
    std::fs::write(files.path().join("another.pem"), another.0).unwrap();
    let url = format!("{server}/healthz").parse().unwrap();
    let request = || http::Request::new(http_body_util::Full::default());
    let trusted = exchange_trusting(&trust(&own), &url, request(), PATIENCE).await.unwrap();
    assert_eq!(trusted.status(), 200);
    let refused = exchange_trusting(&trust(&files.path().join("another.pem")), &url, request(), PATIENCE).await;
    assert!(matches!(refused, Err(posthaste_client::Error::Tls { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_certificate_that_ends_soon_is_told_before_it_does() {
    let authority = Authority::named("ours");
    let (gateway, files) = encrypted_gateway(&authority.identity_until(&["127.0.0.1"], 2090, 1, 1), None).await;
    let client = client(&gateway, trust(authority.file()));
    let seconds_left = async || -> f64 {
        let url = format!("https://{}/metrics", gateway.address).parse().unwrap();
        let request = http::Request::new(http_body_util::Full::default());
        let scrape = exchange_trusting(&trust(authority.file()), &url, request, PATIENCE).await.unwrap();
        let text = String::from_utf8(scrape.into_body().to_vec()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix("posthaste_server_certificate_end_seconds "));
        value.expect("the gauge").parse().unwrap()
    };
    let attention = async || {
        let answer = client.call(http::Method::GET, &client.url(&["attention"]).unwrap(), None).await.unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        let items = answer["data"].as_array().unwrap().clone();
        items.into_iter().find(|item| item["kind"] == "server_certificate_ends")
    };
    assert_eq!(attention().await, None);
    let long = seconds_left().await;
    assert!(long > 30.0 * 86_400.0, "{long}");
    let soon = SystemClock.now().to_zoned(TimeZone::UTC).date().saturating_add(5.days());
    let (year, month, day) = (i32::from(soon.year()), soon.month().unsigned_abs(), soon.day().unsigned_abs());
    put(files.path(), &authority.identity_until(&["127.0.0.1"], year, month, day));
    let item = eventually("the certificate to be told of", async || attention().await.ok_or_else(String::new)).await;
    assert_eq!((&item["severity"], &item["command"]), (&json!("warning"), &json!("posthaste doctor")), "{item}");
    assert!(item["reason"].as_str().unwrap().starts_with("the certificate of the API's address ends in "), "{item}");
    let short = seconds_left().await;
    assert!((0.0..=5.0 * 86_400.0).contains(&short), "{short}");
}
