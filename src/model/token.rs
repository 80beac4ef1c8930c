//! Tokens: what lets a program use the API, and how far.
//!
//! A token is `pht_`, its id and 256 random bits. Only a hash is kept; the id
//! finds it. It belongs to a tenant, or to the gateway itself.
//!
//! `Need` is what a route asks for, and which right holds it is decided here.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{TenantId, TokenId};

/// What every token but the admin token begins with, so that scanners can find lost ones.
pub const PREFIX: &str = "pht_";

/// The hash of a token, as kept.
pub type TokenHash = [u8; 32];

/// What a token may do: the first three in its tenant, of the others one in the
/// whole gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Hand in events, and nothing else.
    Publish,
    /// Change endpoints, see secrets, retry and replay, revoke tokens; and read.
    Manage,
    /// See everything but secrets.
    Read,
    /// Do everything, as the admin token.
    Admin,
    /// See everything that an admin sees, but secrets.
    AdminRead,
    /// Do everything in all tenants, and make tenants and their tokens.
    Tenants,
}

/// What a route asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredRight {
    /// Nothing: everybody may.
    Nothing,
    /// This right of a tenant, or whatever holds it.
    Right(Right),
    /// To act on tenants as such.
    Tenants,
    /// To administer the gateway.
    Admin,
}

impl RequiredRight {
    /// What has to be held, in a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Right(right) => right.as_str(),
            Self::Tenants => "tenants",
            Self::Admin => "admin",
        }
    }

    /// The need of this name, as routes write it.
    pub fn named(name: &str) -> Option<Self> {
        let right = Right::OF_TENANTS.into_iter().find(|right| right.as_str() == name).map(Self::Right);
        right.or(match name {
            "tenants" => Some(Self::Tenants),
            "admin" => Some(Self::Admin),
            _ => None,
        })
    }
}

impl Right {
    /// Those that a tenant's token has.
    pub const OF_TENANTS: [Self; 3] = [Self::Publish, Self::Manage, Self::Read];
    /// Those of which a token of the gateway has one.
    pub const OF_GATEWAY: [Self; 3] = [Self::Admin, Self::AdminRead, Self::Tenants];

    /// Whether tokens of the gateway have it, and not those of tenants.
    pub fn is_of_gateway(self) -> bool {
        Self::OF_GATEWAY.contains(&self)
    }

    /// The right as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Manage => "manage",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::AdminRead => "admin_read",
            Self::Tenants => "tenants",
        }
    }

    /// Whether whoever has this right may do what is asked for; `is_reading`
    /// where that changes nothing and shows no secrets. `manage` holds `read`,
    /// but not `publish`: a token that a customer manages endpoints with must
    /// not speak in the producer's name.
    pub fn holds(self, need: RequiredRight, is_reading: bool) -> bool {
        match (self, need) {
            (_, RequiredRight::Nothing) | (Self::Admin, _) => true,
            (Self::AdminRead, _) => is_reading,
            (Self::Tenants, RequiredRight::Right(_) | RequiredRight::Tenants) => true,
            (Self::Manage, RequiredRight::Right(Self::Read)) => true,
            (has @ (Self::Publish | Self::Manage | Self::Read), RequiredRight::Right(needed)) => has == needed,
            (Self::Publish | Self::Manage | Self::Read, RequiredRight::Tenants) => false,
            (Self::Publish | Self::Manage | Self::Read | Self::Tenants, RequiredRight::Admin) => false,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A token of a tenant or of the gateway, as kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// Whose it is; nobody's, if it is the gateway's own.
    pub tenant: Option<TenantId>,
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
    /// Whether it may do what is asked for; see [`Right::holds`].
    pub fn may(&self, need: RequiredRight, is_reading: bool) -> bool {
        need == RequiredRight::Nothing || self.rights.iter().any(|right| right.holds(need, is_reading))
    }

    /// In whose audit log it is recorded that it was made or revoked.
    pub fn recorded_with(&self) -> TenantId {
        self.tenant.clone().unwrap_or_else(TenantId::system)
    }

    /// Whether its time is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// The hash stays inside.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} of {})", self.id, self.tenant.as_ref().map_or("the gateway", TenantId::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manage_holds_read_and_nobody_holds_what_was_not_given() {
        use Right::{Manage, Publish, Read};
        for is_reading in [false, true] {
            let held: Vec<(Right, Right)> = Right::OF_TENANTS
                .into_iter()
                .flat_map(|has| Right::OF_TENANTS.map(|needed| (has, needed)))
                .filter(|(has, needed)| has.holds(RequiredRight::Right(*needed), is_reading))
                .collect();
            assert_eq!(held, [(Publish, Publish), (Manage, Manage), (Manage, Read), (Read, Read)]);
            for has in Right::OF_TENANTS {
                assert!(
                    !has.holds(RequiredRight::Tenants, is_reading) && !has.holds(RequiredRight::Admin, is_reading),
                    "{has}"
                );
            }
        }
    }

    #[test]
    fn a_gateways_token_may_everything_or_only_read_or_all_but_the_gateway() {
        let needs = [
            RequiredRight::Right(Right::Publish),
            RequiredRight::Right(Right::Manage),
            RequiredRight::Right(Right::Read),
            RequiredRight::Tenants,
            RequiredRight::Admin,
        ];
        for need in needs {
            assert_eq!(RequiredRight::named(need.as_str()), Some(need));
            assert!(Right::Admin.holds(need, false));
            assert!(Right::AdminRead.holds(need, true) && !Right::AdminRead.holds(need, false));
            assert_eq!(Right::Tenants.holds(need, true), need != RequiredRight::Admin);
            assert_eq!(Right::Tenants.holds(need, false), need != RequiredRight::Admin);
        }
        assert_eq!(RequiredRight::named("admin_read"), None, "a route asks for what is done, not for who does it");
    }

    #[test]
    fn a_token_is_over_at_its_end_and_its_hash_is_not_shown() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let token = Token {
            id: TokenId::mint(at(0), 1),
            tenant: Some("acme".parse().unwrap()),
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
