//! Decides which certificates of a gateway are trusted.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::Error;

/// The certificates that a caller trusts. Copies share what was read.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Certificates given by the caller; those of the machine if there are none.
    given: Vec<CertificateDer<'static>>,
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl Trust {
    /// Trusts the certificates in this PEM text and no others: the authorities among
    /// them for whatever they issued, and each of them when a server shows that very
    /// certificate, whatever its name is.
    pub fn only(pem: &[u8]) -> Result<Self, Error> {
        let given: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let given = given.ok().filter(|given| !given.is_empty()).ok_or_else(|| {
            let sentence = "it holds no certificate in PEM; a certificate begins with -----BEGIN CERTIFICATE-----";
            Error::InvalidArgument(sentence.to_owned())
        })?;
        Ok(Self { given, config: Arc::default() })
    }

    /// Returns the configuration of connections. The machine's certificates are read once.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, std::io::Error> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let config = Arc::new(self.build().map_err(std::io::Error::other)?);
        Ok(self.config.get_or_init(|| config).clone())
    }

    fn build(&self) -> Result<ClientConfig, rustls::Error> {
        let provider = Arc::new(default_provider());
        let mut roots = RootCertStore::empty();
        let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        if self.given.is_empty() {
            let (added, _ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            }
            return Ok(config.with_root_certificates(roots).with_no_client_auth());
        }
        let (added, _ignored) = roots.add_parsable_certificates(self.given.iter().cloned());
        let issued = match added {
            0 => None,
            _ => WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().ok(),
        };
        let verifier = GivenCertificates { given: self.given.clone(), issued, provider };
        Ok(config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
    }
}

/// Accepts the given certificates themselves, and what the authorities among them
/// issued.
#[derive(Debug)]
struct GivenCertificates {
    given: Vec<CertificateDer<'static>>,
    issued: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for GivenCertificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // Whoever shows this certificate must have its key, which the handshake proves.
        if self.given.contains(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.issued {
            Some(issued) => issued.verify_server_cert(end_entity, intermediates, name, ocsp, now),
            None => Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
