//! Defines the ids: prefixed, sortable, and of a type of their own each.
//!
//! Ids that the gateway mints are UUIDv7 in Crockford base32 (`dlv_01k…`), so they sort by
//! time of creation. Callers choose the ids of tenants, and may choose those of
//! events, within the alphabet checked here.
//!
//! Invariant: an id never contains a dot, because the dot separates the
//! parts of what is signed.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// The reason why a text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidId(pub String);

macro_rules! minted_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Beginning of every id of this kind.
            pub const PREFIX: &'static str = concat!($prefix, "_");

            /// Mints an id that sorts after those minted at earlier times.
            pub fn mint(now: Timestamp, random: u128) -> Self {
                Self(uuid_v7(now, random))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Self::PREFIX)?;
                f.write_str(base32(self.0.as_u128(), &mut [0; 26]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix(Self::PREFIX)
                    .and_then(from_base32)
                    .map(|bits| Self(Uuid::from_u128(bits)))
                    .ok_or_else(|| InvalidId(format!(
                        "{text:?} is not an id of the form {}…", Self::PREFIX)))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

minted_id!(
    /// The id of an endpoint.
    EndpointId, "ep"
);
minted_id!(
    /// The id of a delivery. The store mints it inside the accept commit.
    DeliveryId, "dlv"
);
minted_id!(
    /// The id of an attempt, derived from its delivery, its number and its start.
    AttemptId, "att"
);
minted_id!(
    /// The id of a signing secret of an endpoint.
    SecretId, "sec"
);
minted_id!(
    /// The id of a token.
    TokenId, "key"
);
minted_id!(
    /// The id of a job.
    JobId, "job"
);
minted_id!(
    /// The id of an entry of the audit log.
    AuditId, "aud"
);

impl AttemptId {
    /// Returns the id of a delivery's attempt. It is always the same, so it is
    /// not stored.
    pub fn of(delivery: DeliveryId, number: u32, started_at: Timestamp) -> Self {
        let low = (delivery.0.as_u128() << 12) | u128::from(number & 0xfff);
        Self(uuid_v7(started_at, low))
    }

    /// Returns the low 62 bits of the delivery's id.
    pub fn delivery_bits(self) -> u128 {
        let bits = self.0.as_u128();
        let low = ((bits >> 64) & 0xfff) << 62 | (bits & 0x3fff_ffff_ffff_ffff);
        low >> 12
    }
}

/// Returns a UUIDv7: 48 bits of milliseconds, version, variant and 74 bits of the
/// given number (its 62 low bits are the last 62).
pub fn uuid_v7(at: Timestamp, low: u128) -> Uuid {
    let millis = u128::try_from(at.as_millisecond()).unwrap_or(0) & 0xffff_ffff_ffff;
    let rand_b = low & 0x3fff_ffff_ffff_ffff;
    let rand_a = (low >> 62) & 0xfff;
    Uuid::from_u128((millis << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | rand_b)
}

/// The id of a tenant. The caller chooses it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// Id of the default tenant, which always exists.
    pub const DEFAULT: &'static str = "default";
    /// Id of the tenant whose events are about the gateway itself; it always exists.
    pub const SYSTEM: &'static str = "_system";
    /// Longest id of a tenant, in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Returns the id of the tenant whose events are about the gateway itself.
    pub fn system() -> Self {
        Self(Self::SYSTEM.into())
    }

    /// Whether this is the tenant whose events are about the gateway itself.
    pub fn is_system(&self) -> bool {
        &*self.0 == Self::SYSTEM
    }
}

impl FromStr for TenantId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        if text.starts_with('_') && text != Self::SYSTEM {
            return Err(InvalidId(format!(
                "tenant id {text:?} begins with '_', which is reserved; use a letter or a digit first"
            )));
        }
        check_word("tenant id", text, Self::BYTES_MAX)?;
        Ok(Self(text.into()))
    }
}

/// The id of an event, unique within its tenant. The producer chooses it, or the
/// gateway mints one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Arc<str>);

impl EventId {
    /// Longest id of an event, in bytes.
    pub const BYTES_MAX: usize = 128;

    /// Mints an id for an event that came without one.
    pub fn mint(now: Timestamp, random: u128) -> Self {
        let mut buffer = [0; 26];
        Self(format!("evt_{}", base32(uuid_v7(now, random).as_u128(), &mut buffer)).into())
    }

    /// Wraps an id from the store, which was checked before it was stored.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the millisecond at which the id was minted, if it looks like one
    /// that the gateway minted. An id that a producer chose may look so, too.
    pub fn minted_ms(&self) -> Option<i64> {
        let uuid = Uuid::from_u128(self.0.strip_prefix("evt_").and_then(from_base32)?);
        let is_minted = uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122;
        is_minted.then_some((uuid.as_u128() >> 80) as i64)
    }
}

impl FromStr for EventId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        check_word("id", text, Self::BYTES_MAX)?;
        Ok(Self(text.into()))
    }
}

macro_rules! text_id {
    ($name:ident) => {
        impl $name {
            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
text_id!(TenantId);
text_id!(EventId);

fn check_word(what: &str, text: &str, bytes_max: usize) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId(format!("{what} is empty; use 1 to {bytes_max} of A-Z a-z 0-9 _ -")));
    }
    if text.len() > bytes_max {
        return Err(InvalidId(format!("{what} is {} bytes long; use at most {bytes_max}", text.len())));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || *c == '_' || *c == '-')) {
        Some(odd) => Err(InvalidId(format!("{what} {text:?} contains {odd:?}; use only A-Z a-z 0-9 _ -"))),
        None => Ok(()),
    }
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

fn base32(bits: u128, buffer: &mut [u8; 26]) -> &str {
    for (index, slot) in buffer.iter_mut().enumerate() {
        let shift = 125 - 5 * index;
        *slot = ALPHABET[((bits >> shift) & 31) as usize];
    }
    std::str::from_utf8(buffer).expect("the alphabet is ASCII")
}

fn from_base32(text: &str) -> Option<u128> {
    // 26 characters hold 130 bits; the first may only carry the top three.
    if text.len() != 26 || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes().try_fold(0u128, |bits, byte| {
        let value = ALPHABET.iter().position(|letter| *letter == byte)?;
        Some((bits << 5) | value as u128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn a_minted_id_reads_back_as_itself() {
        let id = DeliveryId::mint(at(1_700_000_000_123), 0x3fff_ffff_ffff_ffff);
        let text = id.to_string();
        assert!(text.starts_with("dlv_"), "{text}");
        assert_eq!(text.len(), 4 + 26);
        assert_eq!(text.parse::<DeliveryId>().unwrap(), id);
        assert_eq!(id.0.get_version_num(), 7);
    }

    #[test]
    fn an_event_id_of_ours_tells_when_it_was_minted() {
        let id = EventId::mint(at(1_700_000_000_123), u128::MAX);
        assert_eq!(id.minted_ms(), Some(1_700_000_000_123));
        let other = format!("evt_{}", base32(0x0123_4567_89ab_4def_8000_0000_0000_0000, &mut [0; 26]));
        for text in ["evt_1", "order-17", "evt_", &id.as_str()[4..], &other] {
            assert_eq!(EventId::from_stored(text).minted_ms(), None, "{text}");
        }
    }

    #[test]
    fn later_ids_sort_after_earlier_ones() {
        let early = EndpointId::mint(at(1_000), u128::MAX).to_string();
        let late = EndpointId::mint(at(1_001), 0).to_string();
        assert!(early < late);
    }

    #[test]
    fn an_id_of_another_kind_is_refused_by_name() {
        let text = EndpointId::mint(at(1), 1).to_string();
        let error = text.parse::<DeliveryId>().unwrap_err();
        assert!(error.to_string().contains("dlv_"), "{error}");
    }

    #[test]
    fn words_outside_the_alphabet_are_refused_with_the_character() {
        for (text, needle) in [("", "empty"), ("a.b", "'.'"), ("a b", "' '"), ("é", "'é'"), ("a\0", "'\\0'")] {
            let error = text.parse::<EventId>().unwrap_err().to_string();
            assert!(error.contains(needle), "{text:?}: {error}");
        }
        assert!("x".repeat(128).parse::<EventId>().is_ok());
        assert!("x".repeat(129).parse::<EventId>().is_err());
        assert!("_systems".parse::<TenantId>().is_err());
        assert!("_system".parse::<TenantId>().unwrap().is_system(), "the one that is there");
    }
}
