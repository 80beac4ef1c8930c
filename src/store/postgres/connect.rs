//! Connects to PostgreSQL as the URL says, with TLS as libpq understands it.
//!
//! `sslmode` says how the server is checked: `prefer` and `require` encrypt
//! and check nothing (with `sslrootcert` they check like `verify-ca`),
//! `verify-ca` checks who signed the certificate, `verify-full` also which
//! host it is for. Nothing here depends on a session: a pooler such as
//! PgBouncer may give every transaction another one.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, QueueMode, RecyclingMethod, Runtime, TimeoutType};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::model::database::DatabaseUrl;
use crate::store::{self, DatabaseFault, UnavailableReason};

/// Time limit for connecting, unless the URL sets one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without an acknowledgement after which a connection counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// URL parameters that are read here, because tokio-postgres does not know
/// them or gives them another meaning than libpq.
const OURS: &[&str] = &["sslmode", "sslrootcert", "tcp_user_timeout", "keepalives_count"];

/// Creates a pool of at most `size` connections; none is opened yet.
///
/// A connection that comes back is not tested: a test costs a round trip each
/// time and proves nothing about the next moment. Nor is it reset: no session
/// state is used.
pub fn pool(url: &str, size: usize) -> anyhow::Result<Pool> {
    let url: DatabaseUrl = url.parse().map_err(|why| anyhow!("database-url is wrong: {why}"))?;
    let (config, tls) = prepare(&url)?;
    // The socket's timeout does not cover TLS and authentication.
    let patience = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT) * 2;
    let manager = Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let pool = Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .create_timeout(Some(patience))
        .wait_timeout(Some(patience))
        // Reuse the same few connections, so that the others stay idle.
        .queue_mode(QueueMode::Lifo);
    pool.build().with_context(|| format!("cannot prepare connections to {}", url.description()))
}

/// Takes a connection from the pool. An error names the host, the database and
/// the user.
pub async fn take_connection(pool: &Pool, url: &str) -> anyhow::Result<deadpool_postgres::Object> {
    pool.get().await.map_err(|problem| {
        let server = url.parse::<DatabaseUrl>().map(|url| url.description().to_owned()).unwrap_or_default();
        let reason = pool_error(&problem);
        let is_transient = match &problem {
            PoolError::Timeout(_) => true,
            PoolError::Backend(problem) => is_transient(problem),
            _ => false,
        };
        if reason.contains("UnknownIssuer") || reason.contains("BadSignature") {
            anyhow!(
                "cannot reach PostgreSQL at {server}: {reason}; name the file of the authority's certificate with \
                 sslrootcert=FILE in the URL"
            )
        } else if is_transient {
            DatabaseUnavailable(format!("cannot reach PostgreSQL at {server}: {reason}")).into()
        } else {
            anyhow!("cannot reach PostgreSQL at {server}: {reason}")
        }
    })
}

/// The database is away or read-only, and may be back a little later.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DatabaseUnavailable(pub String);

/// Returns an error of the database while the store is being opened. `doing`
/// says what failed.
pub fn opening_error(doing: &str, problem: &tokio_postgres::Error) -> anyhow::Error {
    let words = format!("{doing}: {}", error_chain(problem));
    if is_transient(problem) { DatabaseUnavailable(words).into() } else { anyhow!(words) }
}

/// Whether the store could not be opened because the database is away or
/// read-only, and not because the settings are wrong.
pub fn is_unavailable(problem: &anyhow::Error) -> bool {
    let is_away = |reason: &UnavailableReason| match reason.fault() {
        Some(DatabaseFault::Unreachable) => true,
        Some(DatabaseFault::Sqlstate(code)) => is_transient_code(code),
        None => false,
    };
    problem.is::<DatabaseUnavailable>()
        || matches!(problem.downcast_ref::<store::Error>(), Some(store::Error::Unavailable(reason)) if is_away(reason))
}

/// Whether a later try may succeed without anyone changing anything.
fn is_transient(problem: &tokio_postgres::Error) -> bool {
    if let Some(code) = problem.code() {
        return is_transient_code(code.code());
    }
    let causes = std::iter::successors(std::error::Error::source(problem), |cause| cause.source());
    let mut io_errors = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    // TLS errors come as invalid data, and will not pass.
    problem.is_closed()
        || io_errors.next().is_some_and(|why| !matches!(why.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput))
}

/// Whether an SQLSTATE means a broken connection, a server short of resources,
/// one that starts or stops, or one that is read-only.
fn is_transient_code(code: &str) -> bool {
    ["08", "53", "57P"].iter().any(|class| code.starts_with(class)) || code == "25006"
}

/// Says why the pool gave no connection.
pub fn pool_error(problem: &PoolError) -> String {
    match problem {
        PoolError::Timeout(TimeoutType::Wait) => "all connections are in use".into(),
        PoolError::Timeout(TimeoutType::Create) => "it takes too long to connect".into(),
        PoolError::Backend(problem) => error_chain(problem),
        other => error_chain(other),
    }
}

/// Returns an error with all its causes in one line. The driver's own message
/// is only "db error".
pub fn error_chain(problem: &(dyn std::error::Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(problem);
    while let Some(problem) = next {
        let text = problem.to_string();
        // Some errors already include the text of their cause.
        match parts.last_mut() {
            Some(last) if last.ends_with(&text) => {}
            _ => parts.push(text),
        }
        next = problem.source();
    }
    parts.join(": ")
}

/// How strictly a server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CertificateCheck {
    /// Nothing is checked.
    Nothing,
    /// A trusted authority must have signed it.
    Authority,
    /// The certificate must also be for this host.
    Host,
}

fn prepare(url: &DatabaseUrl) -> anyhow::Result<(tokio_postgres::Config, MakeRustlsConnect)> {
    // The parser's messages never repeat a value, such as the password.
    let parsed = url.reveal_without(OURS).parse::<tokio_postgres::Config>();
    let mut config = parsed.map_err(|problem| anyhow!("database-url is wrong: {}", error_chain(&problem)))?;
    if config.get_application_name().is_none() {
        config.application_name("posthaste");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    // One of several hosts may be a standby, which takes no writes.
    let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
    if hosts > 1 && url.param("target_session_attrs").is_none() {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    set_tcp_timeouts(&mut config, url)?;
    let tls = tls_config(&mut config, url)?;
    Ok((config, MakeRustlsConnect::new(tls)))
}

/// Sets TCP timeouts, so that a network that drops every packet does not hold a
/// connection for the quarter of an hour that the system would wait.
fn set_tcp_timeouts(config: &mut tokio_postgres::Config, url: &DatabaseUrl) -> anyhow::Result<()> {
    let number = |name: &str| match url.param(name).map(str::parse::<u32>) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(anyhow!("database-url is wrong: its {name} is not a whole number")),
    };
    match number("tcp_user_timeout")? {
        None => config.tcp_user_timeout(SILENCE_MAX),
        // 0 keeps the system's own timeout.
        Some(0) => config,
        Some(millis) => config.tcp_user_timeout(Duration::from_millis(millis.into())),
    };
    if url.param("keepalives_idle").is_none() {
        config.keepalives_idle(SILENCE_MAX);
    }
    if url.param("keepalives_interval").is_none() {
        config.keepalives_interval(SILENCE_MAX / 4);
    }
    if url.param("keepalives_retries").is_none() {
        config.keepalives_retries(number("keepalives_count")?.unwrap_or(3));
    }
    Ok(())
}

fn tls_config(config: &mut tokio_postgres::Config, url: &DatabaseUrl) -> anyhow::Result<ClientConfig> {
    let (mode, verifier) = verifier(url)?;
    // A Unix socket is never encrypted, whatever the URL asks for.
    let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
    config.ssl_mode(if is_local && !config.get_hosts().is_empty() { SslMode::Disable } else { mode });
    let mut tls = ClientConfig::builder_with_provider(verifier.provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    if config.get_ssl_negotiation() == SslNegotiation::Direct {
        tls.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(tls)
}

fn verifier(url: &DatabaseUrl) -> anyhow::Result<(SslMode, CertificateVerifier)> {
    let file = url.param("sslrootcert").filter(|file| !file.is_empty() && *file != "system");
    let (mode, check) = match url.param("sslmode").unwrap_or("prefer") {
        "disable" => (SslMode::Disable, CertificateCheck::Nothing),
        // An authority that is named is checked.
        "prefer" if file.is_some() => (SslMode::Prefer, CertificateCheck::Authority),
        "require" if file.is_some() => (SslMode::Require, CertificateCheck::Authority),
        "prefer" => (SslMode::Prefer, CertificateCheck::Nothing),
        "require" => (SslMode::Require, CertificateCheck::Nothing),
        "verify-ca" => (SslMode::Require, CertificateCheck::Authority),
        "verify-full" => (SslMode::Require, CertificateCheck::Host),
        _ => bail!("database-url is wrong: its sslmode is none of disable, prefer, require, verify-ca and verify-full"),
    };
    let (roots, pinned) = match (check, file) {
        (CertificateCheck::Nothing, _) => (RootCertStore::empty(), Vec::new()),
        (_, Some(file)) => roots_in(Path::new(file))?,
        (_, None) => (usual_roots(), Vec::new()),
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let inner = match check {
        CertificateCheck::Nothing => None,
        CertificateCheck::Authority | CertificateCheck::Host => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            Some(verifier.build().context("database-url is wrong: its sslrootcert cannot be used")?)
        }
    };
    Ok((mode, CertificateVerifier { check, pinned, inner, provider }))
}

/// Returns the machine's trusted certificates, or the Mozilla set where there
/// are none.
fn usual_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

fn roots_in(file: &Path) -> anyhow::Result<(RootCertStore, Vec<CertificateDer<'static>>)> {
    let context = || format!("cannot read certificates from {}, which sslrootcert names", file.display());
    let text = std::fs::read(file).with_context(context)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>().with_context(context)?;
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(certificates.iter().cloned());
    if added == 0 {
        bail!("there is no certificate in {}, which sslrootcert names; it must hold them as PEM", file.display());
    }
    Ok((roots, certificates))
}

/// Checks a server's certificate as far as `sslmode` asks for it.
#[derive(Debug)]
struct CertificateVerifier {
    check: CertificateCheck,
    /// Certificates of the file, to be compared byte for byte: a self-signed
    /// server certificate, as in PostgreSQL's manual, has no authority.
    pinned: Vec<CertificateDer<'static>>,
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        if self.pinned.iter().any(|known| known == end_entity) {
            return match self.check {
                CertificateCheck::Nothing | CertificateCheck::Authority => Ok(ServerCertVerified::assertion()),
                CertificateCheck::Host => {
                    rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)
                        .map(|()| ServerCertVerified::assertion())
                }
            };
        }
        match inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // The name is checked last, so everything else was right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.check == CertificateCheck::Authority => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> tokio_postgres::Config {
        prepare(&url.parse().unwrap()).unwrap_or_else(|problem| panic!("{url}: {problem:#}")).0
    }

    fn refused(url: &str) -> String {
        format!("{:#}", pool(url, 1).map(|_| ()).expect_err(url))
    }

    #[test]
    fn only_what_may_pass_is_waited_for() {
        let of = |reason: UnavailableReason| is_unavailable(&store::Error::Unavailable(reason).into());
        let database = |fault| of(UnavailableReason::of_database("the database says no".into(), fault));
        assert!(database(DatabaseFault::Unreachable) && database(DatabaseFault::Sqlstate("57P03".into())));
        assert!(!database(DatabaseFault::Sqlstate("42P01".into())), "a table is missing");
        assert!(!of("the database cannot be reached".into()), "words alone decide nothing");
        assert!(!is_unavailable(&anyhow!("the database cannot be reached")));
    }

    #[test]
    fn what_the_url_leaves_out_is_filled_in_and_what_it_says_is_kept() {
        let bare = config("postgres://ops:hush@db/app");
        assert_eq!(bare.get_application_name(), Some("posthaste"));
        assert_eq!(bare.get_connect_timeout(), Some(&Duration::from_secs(5)));
        assert_eq!(bare.get_tcp_user_timeout(), Some(&SILENCE_MAX));
        assert_eq!(bare.get_keepalives_idle(), SILENCE_MAX);
        assert_eq!(bare.get_target_session_attrs(), TargetSessionAttrs::Any);
        assert_eq!(bare.get_password(), Some(b"hush".as_slice()));
        let full = config(
            "postgres://ops@db/app?application_name=eu&connect_timeout=2&tcp_user_timeout=1500&keepalives_idle=60&keepalives_count=9",
        );
        assert_eq!(full.get_application_name(), Some("eu"));
        assert_eq!(full.get_connect_timeout(), Some(&Duration::from_secs(2)));
        assert_eq!(full.get_tcp_user_timeout(), Some(&Duration::from_millis(1_500)), "milliseconds, as libpq has it");
        assert_eq!(full.get_keepalives_idle(), Duration::from_secs(60));
        assert_eq!(full.get_keepalives_retries(), Some(9));
        assert_eq!(config("postgres://o@db/app?tcp_user_timeout=0").get_tcp_user_timeout(), None);
        let several = config("postgres://o@a,b:7000/app");
        assert_eq!(several.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(
            config("postgres://o@a,b/app?target_session_attrs=any").get_target_session_attrs(),
            TargetSessionAttrs::Any
        );
    }

    #[test]
    fn sslmode_means_what_libpq_means_by_it() {
        for (url, mode) in [
            ("postgres://o@db/app", SslMode::Prefer),
            ("postgres://o@db/app?sslmode=disable", SslMode::Disable),
            ("postgres://o@db/app?sslmode=require", SslMode::Require),
            ("postgres://o@db/app?sslmode=verify-ca", SslMode::Require),
            ("postgres://o@db/app?sslmode=verify-full", SslMode::Require),
            ("postgres://o@db/app?sslmode=verify-full&sslrootcert=system", SslMode::Require),
            ("postgres:///app?host=/run/postgresql&user=o&sslmode=require", SslMode::Disable),
        ] {
            assert_eq!(config(url).get_ssl_mode(), mode, "{url}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_name_and_never_with_the_password() {
        for (url, word) in [
            ("postgres://ops:hush@db/app?sslmode=allow", "verify-full"),
            ("postgres://ops:hush@db/app?sslrootcert=/no/such.pem&sslmode=verify-ca", "/no/such.pem"),
            ("postgres://ops:hush@db/app?tcp_user_timeout=hush", "tcp_user_timeout"),
            ("postgres://ops:hush@db/app?connect_timeout=hush", "connect_timeout"),
            ("postgres://ops:hush@db/app?sslcert=x", "sslcert"),
            ("mysql://ops:hush@db/app", "postgres://"),
        ] {
            let why = refused(url);
            assert!(why.contains(word) && !why.contains("hush"), "{url}: {why}");
        }
        let empty = tempfile::NamedTempFile::new().unwrap();
        let path = empty.path().display();
        let why = refused(&format!("postgres://ops:hush@db/app?sslmode=require&sslrootcert={path}"));
        assert!(why.contains("no certificate in"), "{why}");
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_told_with_host_database_and_user_alone() {
        // The port was bound and closed, so nobody listens there.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("postgres://ops:hush@127.0.0.1:{port}/app");
        let why = take_connection(&pool(&url, 1).unwrap(), &url).await.map(|_| ()).unwrap_err().to_string();
        assert!(why.contains(&format!("127.0.0.1:{port}, database app, user ops")), "{why}");
        assert!(why.contains("refused") && !why.contains("hush"), "{why}");
    }

    /// Creates an authority as PEM and DER, and a certificate that it signed.
    fn authority() -> (String, CertificateDer<'static>, CertificateDer<'static>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "authority");
        let root = params.self_signed(&key).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        let leaf_key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["db.example.com".into()]).unwrap();
        let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap();
        (root.pem(), root.der().clone(), leaf.der().clone())
    }

    fn verifies(query: &str, certificate: &CertificateDer<'static>, host: &'static str) -> bool {
        let url: DatabaseUrl = format!("postgres://o@db/app?{query}").parse().unwrap();
        let (_, verifier) = verifier(&url).unwrap();
        let host = ServerName::try_from(host).unwrap();
        verifier.verify_server_cert(certificate, &[], &host, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn a_certificate_is_checked_as_far_as_sslmode_asks() {
        let (pem, root, leaf) = authority();
        let (_, _, foreign) = authority();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), pem).unwrap();
        let with = |mode: &str| format!("sslmode={mode}&sslrootcert={}", file.path().display());
        let (ours, other) = ("db.example.com", "elsewhere.example.com");
        for (query, certificate, host, is_fine) in [
            ("sslmode=require".to_owned(), &foreign, other, true),
            ("sslmode=prefer".to_owned(), &foreign, other, true),
            ("sslmode=verify-full".to_owned(), &leaf, ours, false),
            ("sslmode=verify-ca".to_owned(), &leaf, ours, false),
            (with("require"), &leaf, other, true),
            (with("require"), &foreign, ours, false),
            (with("prefer"), &foreign, ours, false),
            (with("verify-ca"), &leaf, other, true),
            (with("verify-ca"), &foreign, ours, false),
            (with("verify-full"), &leaf, ours, true),
            (with("verify-full"), &leaf, other, false),
            (with("verify-full"), &foreign, ours, false),
            // The server shows the certificate of the file itself.
            (with("verify-ca"), &root, ours, true),
            (with("verify-full"), &root, ours, false),
        ] {
            assert_eq!(verifies(&query, certificate, host), is_fine, "{query} for {host}");
        }
    }
}
