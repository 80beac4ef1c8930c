//! Encrypts connections, and explains in plain words why one could not be
//! encrypted.
//!
//! Certificates are always checked. The messages say what is wrong with the
//! server, because their readers have to ask its owner to fix it.

use std::cell::Cell;
use std::error::Error as _;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription as Alert, CertificateError, ClientConfig, InconsistentKeys, InvalidMessage, PeerIncompatible,
    RootCertStore, SignatureScheme, SupportedProtocolVersion,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_cert::der::Decode;

use crate::model::answer::{AttemptFailure, FailureKind};
use crate::model::invalid_setting::InvalidSetting;
use crate::model::tls::{EndpointTls, TlsVersion};

/// Most names of a certificate that a message lists.
const NAMES_SHOWN: usize = 3;

/// Trusted authorities and client certificate of connections.
pub struct TlsTrust {
    config: Arc<ClientConfig>,
    /// Authorities that this machine trusts.
    roots: Arc<RootCertStore>,
    has_own_ca: bool,
    min_version: TlsVersion,
}

impl TlsTrust {
    /// Reads the machine's trusted certificates, or uses the Mozilla set where
    /// there are none; without a client certificate.
    pub fn of_machine() -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        let (added, _ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let roots = Arc::new(roots);
        let min_version = TlsVersion::V12;
        let config = Arc::new(client_config(roots.clone(), min_version, Arc::new(NoCertificate))?);
        Ok(Self { config, roots, has_own_ca: false, min_version })
    }

    /// Returns a copy with an endpoint's TLS settings.
    pub fn for_endpoint(&self, settings: &EndpointTls) -> Result<Self, InvalidSetting> {
        let EndpointTlsParts { authorities, certificate } = parse_settings(settings)?;
        let has_own_ca = authorities.is_some();
        let roots = authorities.map_or_else(|| self.roots.clone(), Arc::new);
        let client_certificate: Arc<dyn ResolvesClientCert> = match certificate {
            Some(certificate) => Arc::new(OwnCertificate(certificate.into())),
            None => Arc::new(NoCertificate),
        };
        let min_version = settings.min_version;
        let config = client_config(roots, min_version, client_certificate)
            .map_err(|problem| invalid_setting("min_version", format!("tls cannot be used: {problem}")))?;
        Ok(Self { config: Arc::new(config), roots: self.roots.clone(), has_own_ca, min_version })
    }

    /// Returns the failure that an error of a handshake means, with the endpoint's settings.
    fn failure_of(&self, problem: &std::io::Error, asked: CertificateRequested) -> AttemptFailure {
        match rustls_error(problem) {
            Some(error) if self.has_own_ca && is_unknown_issuer(error) => tls_failure(NOT_OUR_ISSUER.into()),
            Some(error) if self.min_version == TlsVersion::V13 && is_no_version(error) => tls_failure(NOT_13.into()),
            _ => tls_failure_of(problem, asked).unwrap_or_else(|| handshake_closed(problem)),
        }
    }
}

fn client_config(
    roots: Arc<RootCertStore>,
    min_version: TlsVersion,
    client_certificate: Arc<dyn ResolvesClientCert>,
) -> Result<ClientConfig, rustls::Error> {
    let versions: &[&SupportedProtocolVersion] = match min_version {
        TlsVersion::V12 => &[&TLS13, &TLS12],
        TlsVersion::V13 => &[&TLS13],
    };
    Ok(ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)?
        .with_root_certificates(roots)
        .with_client_cert_resolver(client_certificate))
}

/// The authorities and the certificate in an endpoint's settings.
struct EndpointTlsParts {
    authorities: Option<RootCertStore>,
    certificate: Option<CertifiedKey>,
}

/// Refuses settings that no connection could be made with.
pub fn check(settings: &EndpointTls) -> Result<(), InvalidSetting> {
    if settings.is_default() { Ok(()) } else { parse_settings(settings).map(|_| ()) }
}

fn parse_settings(settings: &EndpointTls) -> Result<EndpointTlsParts, InvalidSetting> {
    let authorities = settings.ca.as_deref().map(parse_authorities).transpose()?;
    let certificate = match (&settings.client_certificate, &settings.client_key) {
        (Some(chain), Some(key)) => Some(certified_key(chain, key.reveal())?),
        _ => None,
    };
    Ok(EndpointTlsParts { authorities, certificate })
}

fn parse_authorities(pem: &str) -> Result<RootCertStore, InvalidSetting> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_certificates("ca", pem)? {
        let refused = |problem: rustls::Error| {
            let why = describe_tls_error(&problem, CertificateRequested::No);
            invalid_setting(
                "ca",
                format!("tls ca holds a certificate that cannot vouch for others: {why}; copy it again"),
            )
        };
        roots.add(certificate).map_err(refused)?;
    }
    Ok(roots)
}

fn parse_certificates(name: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, InvalidSetting> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    certificates.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(|| {
        let message = format!("tls {name} holds no certificate in PEM; it begins with -----BEGIN CERTIFICATE-----");
        invalid_setting(name, message)
    })
}

/// Returns when the first certificate of a chain ends, if that can be read.
pub fn certificate_end(pem: &str) -> Option<Timestamp> {
    let first = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let read = x509_cert::Certificate::from_der(&first).ok()?;
    let end = read.tbs_certificate.validity.not_after.to_unix_duration();
    Timestamp::from_second(i64::try_from(end.as_secs()).ok()?).ok()
}

fn certified_key(chain: &str, key: &str) -> Result<CertifiedKey, InvalidSetting> {
    let chain = parse_certificates("client_certificate", chain)?;
    let unread = "tls client_key holds no private key in PEM; it begins with -----BEGIN PRIVATE KEY-----, and \
                  encrypted ones are not read";
    let key =
        PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| invalid_setting("client_key", unread.into()))?;
    let key = default_provider().key_provider.load_private_key(key);
    let unknown = "tls client_key is of a kind that is not supported; use RSA, ECDSA (P-256, P-384) or Ed25519";
    let certified = CertifiedKey::new(chain, key.map_err(|_| invalid_setting("client_key", unknown.into()))?);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => {
            let message = "tls client_key does not belong to the first certificate in client_certificate";
            Err(invalid_setting("client_key", message.into()))
        }
        Err(problem) => Err(invalid_setting(
            "client_certificate",
            format!(
                "tls client_certificate cannot be used: {}",
                describe_tls_error(&problem, CertificateRequested::No)
            ),
        )),
    }
}

fn invalid_setting(name: &str, message: String) -> InvalidSetting {
    InvalidSetting { pointer: format!("/tls/{name}"), message }
}

/// Whether a server asked for a client certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CertificateRequested {
    /// The server did not ask.
    #[default]
    No,
    /// The server asked, and the endpoint has no certificate.
    Unanswered,
    /// The server asked, and got the endpoint's certificate.
    Answered,
}

/// Encrypts a connection; also returns whether its server asked for a client
/// certificate.
pub async fn encrypt(
    trust: &TlsTrust,
    host: &str,
    tcp: TcpStream,
) -> Result<(Box<TlsStream<TcpStream>>, CertificateRequested), AttemptFailure> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| tls_failure(format!("{host:?} is not a name a certificate can be checked for")))?;
    let handshake = async {
        let result = TlsConnector::from(trust.config.clone()).connect(name, tcp).await;
        (result, ASKED.with(Cell::get))
    };
    match ASKED.scope(Cell::default(), handshake).await {
        (Ok(stream), asked) => Ok((Box::new(stream), asked)),
        (Err(problem), asked) => Err(trust.failure_of(&problem, asked)),
    }
}

tokio::task_local! {
    /// Whether the server of the running handshake asked for a client
    /// certificate. Servers that want one and get none report it in many ways,
    /// so it has to be known whether one was asked for. It is not kept in a
    /// copy of the config, because sessions are resumed only with the same one.
    static ASKED: Cell<CertificateRequested>;
}

/// Returns the failure that an error on a connection means, if it is of TLS.
pub fn tls_failure_of(problem: &std::io::Error, asked: CertificateRequested) -> Option<AttemptFailure> {
    let error = rustls_error(problem)?;
    let kind = match error {
        rustls::Error::FailedToGetCurrentTime | rustls::Error::FailedToGetRandomBytes => FailureKind::Ours,
        _ => FailureKind::Tls,
    };
    Some(AttemptFailure::new(kind, describe_tls_error(error, asked)))
}

/// What is wrong with a TLS connection of whoever calls the gateway, who can change
/// other things than the owner of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsFault {
    /// The server does not speak TLS.
    NotTls(&'static str),
    /// The certificate is of an authority that is not trusted.
    UnknownIssuer(&'static str),
    /// Anything else, in the words of an attempt.
    Other(String),
}

/// Returns what is wrong with a connection that the caller opened, if it is of TLS.
pub fn tls_fault(problem: &std::io::Error) -> Option<TlsFault> {
    Some(match rustls_error(problem)? {
        error if is_not_tls(error) => TlsFault::NotTls(NOT_TLS),
        error if is_unknown_issuer(error) => TlsFault::UnknownIssuer(UNKNOWN_ISSUER),
        other => TlsFault::Other(describe_tls_error(other, CertificateRequested::No)),
    })
}

fn tls_failure(message: String) -> AttemptFailure {
    AttemptFailure::new(FailureKind::Tls, message)
}

fn handshake_closed(problem: &std::io::Error) -> AttemptFailure {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    tls_failure(match problem.kind() {
        UnexpectedEof => "the server closed the connection during the TLS handshake; does it speak TLS there?".into(),
        ConnectionReset | ConnectionAborted | BrokenPipe => {
            "the server reset the connection during the TLS handshake; does it speak TLS there?".into()
        }
        _ => format!("the connection broke during the TLS handshake: {problem}"),
    })
}

const NO_VERSION: &str = "the server speaks neither TLS 1.2 nor TLS 1.3";
const NO_CIPHER: &str = "the server shares no cipher suite or key exchange with us";
const NO_SIGNATURE: &str = "the server's certificate needs a signature scheme that is not supported here";
const CERTIFICATE_WANTED: &str = "the server asks for a client certificate, and this endpoint has none";
const CERTIFICATE_REFUSED: &str = "the server does not accept the client certificate of this endpoint";
const NOT_TLS: &str = "what answered does not speak TLS";
const UNKNOWN_ISSUER: &str = "the certificate was issued by an authority that is not trusted here";
const WHOLE_CHAIN: &str = "the receiver must send its whole chain, or its authority must be trusted by this machine";
const NOT_OUR_ISSUER: &str = "the certificate was issued by an authority that is not in this endpoint's tls ca; the receiver \
                              must send its whole chain, or its authority must be named there";
const NOT_13: &str = "the server does not speak TLS 1.3, which this endpoint asks for";

fn describe_tls_error(error: &rustls::Error, asked: CertificateRequested) -> String {
    use rustls::Error as E;
    match error {
        error if is_no_version(error) => NO_VERSION.into(),
        E::InvalidCertificate(problem) => about_certificate(problem),
        E::AlertReceived(alert) => about_alert(*alert, asked),
        E::PeerIncompatible(problem) => match problem {
            PeerIncompatible::NoCipherSuitesInCommon | PeerIncompatible::NoKxGroupsInCommon => NO_CIPHER.into(),
            PeerIncompatible::NoSignatureSchemesInCommon => NO_SIGNATURE.into(),
            other => format!("the server's TLS does not fit ours: {other:?}"),
        },
        error if is_not_tls(error) => format!("{NOT_TLS}; is it plain http?"),
        E::InvalidMessage(problem) => format!("the server sent a TLS message that cannot be read: {problem:?}"),
        E::InappropriateMessage { .. } | E::InappropriateHandshakeMessage { .. } | E::PeerSentOversizedRecord => {
            format!("the server broke the rules of TLS: {error}")
        }
        E::PeerMisbehaved(problem) => format!("the server broke the rules of TLS: {problem:?}"),
        E::NoCertificatesPresented => "the server presented no certificate".into(),
        E::DecryptError => "what the server sent was damaged on the way: it could not be decrypted".into(),
        E::FailedToGetCurrentTime | E::FailedToGetRandomBytes => {
            format!("this machine could not open a secure connection: {error}")
        }
        other => format!("no secure connection could be agreed on: {other}"),
    }
}

fn rustls_error(problem: &std::io::Error) -> Option<&rustls::Error> {
    problem.get_ref()?.downcast_ref()
}

fn is_unknown_issuer(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))
}

/// Whether both sides have no version of TLS in common.
fn is_no_version(error: &rustls::Error) -> bool {
    use rustls::Error as E;
    matches!(
        error,
        E::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13 | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
        ) | E::AlertReceived(Alert::ProtocolVersion)
    )
}

/// Whether the first bytes were not a TLS record.
fn is_not_tls(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidMessage(problem) = error else { return false };
    matches!(
        problem,
        InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::InvalidEmptyPayload
            | InvalidMessage::MessageTooLarge
    )
}

fn about_certificate(problem: &CertificateError) -> String {
    use CertificateError as C;
    match problem {
        C::Expired => "the certificate has expired".into(),
        C::ExpiredContext { not_after, .. } => format!("the certificate expired on {}", day_text(*not_after)),
        C::NotValidYet => "the certificate is not valid yet; is this machine's clock right?".into(),
        C::NotValidYetContext { not_before, .. } => {
            format!("the certificate is not valid before {}; is this machine's clock right?", day_text(*not_before))
        }
        C::NotValidForName => "the certificate is for another name".into(),
        C::NotValidForNameContext { expected, presented } if presented.is_empty() => {
            format!("the certificate names no host, so it is not for {}", expected.to_str())
        }
        C::NotValidForNameContext { expected, presented } => {
            format!("the certificate is for {}, not for {}", list_names(presented), expected.to_str())
        }
        C::UnknownIssuer => format!("{UNKNOWN_ISSUER}; {WHOLE_CHAIN}"),
        C::Revoked => "the certificate was revoked by its issuer".into(),
        C::BadSignature => "the certificate, or the handshake it vouches for, has a wrong signature".into(),
        C::BadEncoding => "the certificate cannot be read".into(),
        C::UnsupportedSignatureAlgorithmContext { .. } | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            NO_SIGNATURE.into()
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => "the certificate is not meant for servers".into(),
        // The usual self-made certificate. The verifier's error type is not
        // public, so it is recognised by its text.
        C::Other(other) if is_authority_as_server(other) => {
            "the certificate is self-signed and marked as an authority; the receiver needs one that an authority \
             issued for its name"
                .into()
        }
        other => format!("the certificate was not accepted: {other}"),
    }
}

fn is_authority_as_server(other: &rustls::OtherError) -> bool {
    other.source().is_some_and(|source| source.to_string() == "CaUsedAsEndEntity")
}

fn about_alert(alert: Alert, asked: CertificateRequested) -> String {
    match alert {
        Alert::CertificateRequired | Alert::NoCertificate => CERTIFICATE_WANTED.into(),
        // TLS 1.2 has no alert for a missing certificate; servers use any of these.
        Alert::HandshakeFailure
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
            if asked == CertificateRequested::Unanswered =>
        {
            CERTIFICATE_WANTED.into()
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::DecryptError
        | Alert::AccessDenied
            if asked == CertificateRequested::Answered =>
        {
            format!("{CERTIFICATE_REFUSED} (alert {alert:?})")
        }
        Alert::HandshakeFailure | Alert::InsufficientSecurity => NO_CIPHER.into(),
        Alert::ProtocolVersion => NO_VERSION.into(),
        Alert::UnrecognisedName => "the server does not know the name it was called by".into(),
        Alert::InternalError => "the server failed during the TLS handshake, by its own account".into(),
        other => format!("the server broke off the TLS handshake with the alert {other:?}"),
    }
}

/// Returns the day, as `2026-01-01`.
fn day_text(time: UnixTime) -> String {
    let second = i64::try_from(time.as_secs()).ok().and_then(|second| jiff::Timestamp::from_second(second).ok());
    second.map_or_else(|| "an impossible day".into(), |moment| moment.strftime("%Y-%m-%d").to_string())
}

/// Lists names, as `a.example, b.example, c.example and 7 more`.
fn list_names(presented: &[String]) -> String {
    let shown: Vec<&str> = presented.iter().take(NAMES_SHOWN).map(|name| bare_name(name)).collect();
    match presented.len().saturating_sub(NAMES_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns the bare name; the verifier writes `DnsName("a.example")` and
/// `IpAddress(127.0.0.1)`.
fn bare_name(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"')
}

/// Resolver without a client certificate; records that one was asked for.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let _ = ASKED.try_with(|asked| asked.set(CertificateRequested::Unanswered));
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Resolver of an endpoint's client certificate; records that it was asked for.
#[derive(Debug)]
struct OwnCertificate(SingleCertAndKey);

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, issuers: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let _ = ASKED.try_with(|asked| asked.set(CertificateRequested::Answered));
        ResolvesClientCert::resolve(&self.0, issuers, schemes)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_after_a_question_is_about_the_answer() {
        for alert in [Alert::HandshakeFailure, Alert::BadCertificate, Alert::AccessDenied] {
            assert_eq!(about_alert(alert, CertificateRequested::Unanswered), CERTIFICATE_WANTED, "{alert:?}");
            assert_ne!(about_alert(alert, CertificateRequested::No), CERTIFICATE_WANTED, "{alert:?}");
        }
        // Servers may ask without insisting; not every alert is about the certificate.
        assert_eq!(about_alert(Alert::ProtocolVersion, CertificateRequested::Unanswered), NO_VERSION);
        assert_eq!(about_alert(Alert::CertificateRequired, CertificateRequested::No), CERTIFICATE_WANTED);
        assert!(about_alert(Alert::UnknownCA, CertificateRequested::Answered).starts_with(CERTIFICATE_REFUSED));
        assert!(!about_alert(Alert::UnknownCA, CertificateRequested::No).starts_with(CERTIFICATE_REFUSED));
    }

    #[test]
    fn a_certificate_with_many_names_is_told_in_few() {
        let presented: Vec<String> =
            ["a", "b", "c", "d", "e"].iter().map(|name| format!("DnsName(\"{name}.example\")")).collect();
        let problem = |presented: &[String]| {
            about_certificate(&CertificateError::NotValidForNameContext {
                expected: ServerName::try_from("z.example").unwrap(),
                presented: presented.to_vec(),
            })
        };
        assert_eq!(
            problem(&presented),
            "the certificate is for a.example, b.example, c.example and 2 more, not for z.example"
        );
        assert_eq!(problem(&["IpAddress(::1)".into()]), "the certificate is for ::1, not for z.example");
        assert_eq!(problem(&[]), "the certificate names no host, so it is not for z.example");
    }

    #[test]
    fn a_fault_that_the_caller_can_mend_is_told_apart() {
        let of = |error| tls_fault(&std::io::Error::other(error));
        let plain = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(of(plain), Some(TlsFault::NotTls(NOT_TLS)));
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert_eq!(of(unknown), Some(TlsFault::UnknownIssuer(UNKNOWN_ISSUER)));
        assert!(matches!(of(rustls::Error::DecryptError), Some(TlsFault::Other(_))));
        assert_eq!(tls_fault(&std::io::Error::other("another matter")), None);
    }

    #[test]
    fn a_wrong_clock_of_ours_is_not_charged_to_the_receiver() {
        let problem = std::io::Error::other(rustls::Error::FailedToGetCurrentTime);
        assert_eq!(
            tls_failure_of(&problem, CertificateRequested::No).map(|failure| failure.kind),
            Some(FailureKind::Ours)
        );
        let problem = std::io::Error::other(rustls::Error::DecryptError);
        assert_eq!(
            tls_failure_of(&problem, CertificateRequested::No).map(|failure| failure.kind),
            Some(FailureKind::Tls)
        );
        assert_eq!(tls_failure_of(&std::io::Error::other("another matter"), CertificateRequested::No), None);
    }
}
