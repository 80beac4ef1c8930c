//! The TLS settings of an endpoint: trusted authorities and a client certificate.

use serde::{Deserialize, Serialize};

use super::headers::MASK;
use super::invalid_setting::InvalidSetting;
use super::signing::HiddenText;

/// Largest certificate or key, in bytes of PEM.
const PEM_BYTES_MAX: usize = 64 * 1_024;

/// What is special about an endpoint's TLS. Usually nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointTls {
    /// The authorities that may vouch for the receiver, in PEM, instead of those this machine trusts.
    #[serde(default)]
    pub ca: Option<String>,
    /// The certificate to show to the receiver, with its chain, in PEM.
    #[serde(default)]
    pub client_certificate: Option<String>,
    /// The private key that belongs to it, in PEM. It is never shown again.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub client_key: Option<HiddenText>,
    /// The oldest version of TLS that is allowed.
    #[serde(default)]
    pub min_version: TlsVersion,
}

/// A version of TLS.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum TlsVersion {
    /// 1.2, and 1.3 where the receiver speaks it.
    #[default]
    #[serde(rename = "1.2")]
    #[strum(serialize = "1.2")]
    V12,
    /// TLS 1.3 and nothing older.
    #[serde(rename = "1.3")]
    #[strum(serialize = "1.3")]
    V13,
}

impl EndpointTls {
    /// Whether all settings are the defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks sizes and combinations. It does not parse the PEM texts; the code that
    /// uses them does.
    pub fn check(&self) -> Vec<InvalidSetting> {
        let mut problems = Vec::new();
        let mut refuse = |name: &str, message: String| {
            problems.push(InvalidSetting { pointer: format!("/tls/{name}"), message });
        };
        let texts = [
            ("ca", self.ca.as_deref()),
            ("client_certificate", self.client_certificate.as_deref()),
            ("client_key", self.client_key.as_ref().map(HiddenText::reveal)),
        ];
        for (name, text) in texts {
            let bytes = text.map_or(0, str::len);
            if bytes > PEM_BYTES_MAX {
                refuse(name, format!("tls {name} is {bytes} bytes long; use at most {PEM_BYTES_MAX}"));
            }
        }
        if self.client_key.as_ref().is_some_and(|key| key.reveal() == MASK) {
            let message =
                format!("tls client_key is {MASK}, which stands for a key that is not shown; give the key itself");
            refuse("client_key", message);
        }
        match (&self.client_certificate, &self.client_key) {
            (Some(_), None) => {
                refuse(
                    "client_key",
                    "tls has a client_certificate and no client_key; give both, or neither".to_owned(),
                );
            }
            (None, Some(_)) => refuse(
                "client_certificate",
                "tls has a client_key and no client_certificate; give both, or neither".to_owned(),
            ),
            (Some(_), Some(_)) | (None, None) => {}
        }
        problems
    }

    /// Returns the same settings with the private key masked.
    pub fn masked(&self) -> Self {
        Self { client_key: self.client_key.as_ref().map(|_| MASK.into()), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_and_its_key_come_together() {
        let of = |json: serde_json::Value| serde_json::from_value::<EndpointTls>(json).unwrap();
        let pointers = |tls: &EndpointTls| tls.check().into_iter().map(|problem| problem.pointer).collect::<Vec<_>>();
        assert!(of(serde_json::json!({})).is_default());
        assert_eq!(pointers(&of(serde_json::json!({"client_certificate": "c", "client_key": "k"}))), [""; 0]);
        assert_eq!(pointers(&of(serde_json::json!({"client_certificate": "c"}))), ["/tls/client_key"]);
        assert_eq!(pointers(&of(serde_json::json!({"client_key": "k"}))), ["/tls/client_certificate"]);
        let masked = of(serde_json::json!({"client_certificate": "c", "client_key": "hush"})).masked();
        assert_eq!(masked.client_key.as_ref().map(HiddenText::reveal), Some(MASK));
        assert_eq!(pointers(&masked), ["/tls/client_key"]);
        assert_eq!(pointers(&of(serde_json::json!({"ca": "x".repeat(PEM_BYTES_MAX + 1)}))), ["/tls/ca"]);
        assert_eq!(of(serde_json::json!({"min_version": "1.3"})).min_version, TlsVersion::V13);
        assert!(serde_json::from_value::<EndpointTls>(serde_json::json!({"min_version": "1.1"})).is_err());
        let printed = format!("{:?}", of(serde_json::json!({"client_key": "hush"})));
        assert!(!printed.contains("hush"), "{printed}");
    }
}
