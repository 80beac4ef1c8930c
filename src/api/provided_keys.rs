//! Reads the signing keys that a caller brings, and makes those it does not.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::problem::{Problem, ProblemCode};
use crate::lifecycle::deliver::keys::{BAD_KEY, BAD_SECRET, key_pair, new_key, new_secret, secret_key};
use crate::model::endpoint::Secret;
use crate::model::id::SecretId;

/// The signing keys that the caller provided.
#[derive(Default)]
pub struct ProvidedKeys {
    /// Shared secret, if the caller brought one.
    pub secret: Option<String>,
    /// Ed25519 key, if the caller brought one.
    pub private_key: Option<String>,
}

impl ProvidedKeys {
    /// Removes the keys from a document that describes an endpoint.
    pub fn take(document: &mut Map<String, Value>) -> Result<Self, Problem> {
        let mut text = |name: &str| match document.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => {
                Err(Problem::field(ProblemCode::InvalidField, format!("/{name}"), format!("{name} is not a text")))
            }
        };
        Ok(Self { secret: text("secret")?, private_key: text("private_key")? })
    }

    /// Makes a secret from the provided keys, and generates those that were not
    /// provided.
    pub fn mint(self, now: Timestamp) -> Result<Secret, Problem> {
        if self.secret.as_deref().is_some_and(|secret| secret_key(secret).is_none()) {
            return Err(Problem::field(ProblemCode::InvalidField, "/secret", BAD_SECRET));
        }
        if self.private_key.as_deref().is_some_and(|key| key_pair(key).is_none()) {
            return Err(Problem::field(ProblemCode::InvalidField, "/private_key", BAD_KEY));
        }
        Ok(Secret {
            id: SecretId::mint(now, rand::random()),
            text: self.secret.unwrap_or_else(|| new_secret(rand::random())),
            key: self.private_key.unwrap_or_else(|| new_key(rand::random())),
            created_at: now,
            expires_at: None,
        })
    }
}
