//! Tokens: what lets a program use the API, and how far.
//!
//! A token is `pht_`, its id and 256 random bits. Only a hash is kept; the id
//! finds it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{TenantId, TokenId};

/// What every tenant's token begins with, so that scanners can find lost ones.
pub const PREFIX: &str = "pht_";

/// The hash of a token, as kept.
pub type TokenHash = [u8; 32];

/// What a token of a tenant may do there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Hand in events, and nothing else.
    Publish,
    /// Change endpoints, see secrets, retry and replay, revoke tokens; and read.
    Manage,
    /// See everything but secrets.
    Read,
}

impl Right {
    /// The right as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Manage => "manage",
            Self::Read => "read",
        }
    }

    /// Whether whoever has this right may do what the other is asked for.
    /// `manage` holds `read`, but not `publish`: a token that a customer
    /// manages endpoints with must not speak in the producer's name.
    pub fn holds(self, needed: Self) -> bool {
        match (self, needed) {
            (Self::Manage, Self::Read) => true,
            (has, needed) => has == needed,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A token of a tenant, as kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub rights: Vec<Right>,
    /// What is kept of the token itself.
    pub hash: TokenHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops being good, if ever.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute or so, if ever.
    pub used_at: Option<Timestamp>,
}

impl Token {
    /// Whether it may do what this right is asked for.
    pub fn may(&self, needed: Right) -> bool {
        self.rights.iter().any(|right| right.holds(needed))
    }

    /// Whether its time is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// The hash stays inside.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} of {})", self.id, self.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manage_holds_read_and_nobody_holds_what_was_not_given() {
        use Right::{Manage, Publish, Read};
        let held: Vec<(Right, Right)> = [Publish, Manage, Read]
            .into_iter()
            .flat_map(|has| [Publish, Manage, Read].map(|needed| (has, needed)))
            .filter(|(has, needed)| has.holds(*needed))
            .collect();
        assert_eq!(held, [(Publish, Publish), (Manage, Manage), (Manage, Read), (Read, Read)]);
    }

    #[test]
    fn a_token_is_over_at_its_end_and_its_hash_is_not_shown() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let token = Token {
            id: TokenId::mint(at(0), 1),
            tenant: "acme".parse().unwrap(),
            name: String::new(),
            rights: vec![Right::Read],
            hash: [77; 32],
            created_at: at(0),
            expires_at: Some(at(10)),
            used_at: None,
        };
        assert!(!token.is_over(at(9)) && token.is_over(at(10)));
        assert!(!Token { expires_at: None, ..token.clone() }.is_over(at(10)));
        assert!(!format!("{token:?}").contains("77"));
    }
}
