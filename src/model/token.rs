//! API tokens and their rights.
//!
//! A token is `pht_`, its id and 256 random bits. Only a hash is stored; it is
//! looked up by the id. A token belongs to a tenant, or to the gateway itself.
//! One-time codes and sessions of people are kept as tokens of another kind, which
//! the API never accepts.
//!
//! [`RequiredRight`] is what a route requires; [`Right::holds`] decides which
//! rights satisfy it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{TenantId, TokenId};
use super::named_enum::NamedEnum;
use super::sign_in::SignIn;

/// Beginning of every token but the admin token, so that scanners can find leaked ones.
pub const PREFIX: &str = "pht_";
/// Beginning of every one-time code.
pub const CODE_PREFIX: &str = "phc_";
/// Beginning of every session's secret.
pub const SESSION_PREFIX: &str = "phs_";

/// The hash of a token, as stored.
pub type TokenHash = [u8; 32];

/// What a token may do: the first four in its tenant, of the others one in the
/// whole gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Right {
    /// Publish events, and nothing else.
    Publish,
    /// Change endpoints, see secrets, retry and replay, revoke tokens, and read.
    Manage,
    /// See everything but secrets.
    Read,
    /// Make links to the portal, with at most the token's other rights.
    Portal,
    /// Do everything, as the admin token.
    Admin,
    /// See everything that an admin sees, but secrets.
    AdminRead,
    /// Do everything in all tenants, and create tenants and their tokens.
    Tenants,
}

/// The right that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredRight {
    /// The route is open to everybody.
    Nothing,
    /// The route requires this right of a tenant, or one that includes it.
    Right(Right),
    /// The route manages tenants.
    Tenants,
    /// The route administers the gateway.
    Admin,
}

impl RequiredRight {
    /// Returns the required right as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Right(right) => right.as_str(),
            Self::Tenants => Right::Tenants.as_str(),
            Self::Admin => Right::Admin.as_str(),
        }
    }

    /// Returns the required right of this name, as routes write it.
    pub fn named(name: &str) -> Option<Self> {
        let right = Right::ALL.iter().copied().find(|right| right.as_str() == name)?;
        match right {
            Right::Publish | Right::Manage | Right::Read | Right::Portal => Some(Self::Right(right)),
            Right::Tenants => Some(Self::Tenants),
            Right::Admin => Some(Self::Admin),
            // No route requires it: it is a way to have `read`.
            Right::AdminRead => None,
        }
    }
}

impl Right {
    /// Rights that a tenant's token can have.
    pub const OF_TENANTS: [Self; 4] = [Self::Publish, Self::Manage, Self::Read, Self::Portal];
    /// Rights of which a token of the gateway has exactly one.
    pub const OF_GATEWAY: [Self; 3] = [Self::Admin, Self::AdminRead, Self::Tenants];

    /// Whether it is a right of the gateway's tokens, and not of tenants' tokens.
    pub fn is_of_gateway(self) -> bool {
        Self::OF_GATEWAY.contains(&self)
    }

    /// Whether this right satisfies what a route requires. `is_reading` says that
    /// the request changes nothing and shows no secrets. `manage` includes `read`,
    /// but not `publish`: a token with which a customer manages endpoints must not
    /// publish events in the producer's name.
    pub fn holds(self, required: RequiredRight, is_reading: bool) -> bool {
        match (self, required) {
            (_, RequiredRight::Nothing) | (Self::Admin, _) => true,
            (Self::AdminRead, _) => is_reading,
            (Self::Tenants, RequiredRight::Right(_) | RequiredRight::Tenants) => true,
            (Self::Manage, RequiredRight::Right(Self::Read)) => true,
            (has @ (Self::Publish | Self::Manage | Self::Read | Self::Portal), RequiredRight::Right(needed)) => {
                has == needed
            }
            (Self::Publish | Self::Manage | Self::Read | Self::Portal, RequiredRight::Tenants) => false,
            (Self::Publish | Self::Manage | Self::Read | Self::Portal | Self::Tenants, RequiredRight::Admin) => false,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a stored token is for.
///
/// The numbers are the stored codes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::FromRepr)]
#[repr(i16)]
pub enum TokenKind {
    /// A token for the API.
    #[default]
    Api = 0,
    /// A one-time code, which becomes a session once.
    Code = 1,
    /// The session of a person who is signed in to the pages.
    Session = 2,
    /// A kind that only a newer version knows, and that is accepted nowhere. It is
    /// never written.
    Unknown = i16::MAX,
}

/// A token of a tenant or of the gateway, as stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Id of the token.
    pub id: TokenId,
    /// What the token is for.
    pub kind: TokenKind,
    /// What a code or a session has besides.
    pub sign_in: Option<SignIn>,
    /// Tenant the token belongs to; none for a token of the gateway.
    pub tenant: Option<TenantId>,
    /// Display name of the token.
    pub name: String,
    /// Rights of the token.
    pub rights: Vec<Right>,
    /// Hash of the token itself.
    pub hash: TokenHash,
    /// Time at which it was created.
    pub created_at: Timestamp,
    /// Time at which it expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// Time of its last use, to about a minute, if ever.
    pub used_at: Option<Timestamp>,
}

impl Token {
    /// Whether it satisfies what a route requires; see [`Right::holds`].
    pub fn may(&self, required: RequiredRight, is_reading: bool) -> bool {
        required == RequiredRight::Nothing || self.rights.iter().any(|right| right.holds(required, is_reading))
    }

    /// Returns the tenant whose audit log records its creation and revocation.
    pub fn recorded_with(&self) -> TenantId {
        self.tenant.clone().unwrap_or_else(TenantId::system)
    }

    /// Whether the token has expired.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// Prints the id and the owner, and not the hash.
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
        use Right::{Manage, Portal, Publish, Read};
        for is_reading in [false, true] {
            let held: Vec<(Right, Right)> = Right::OF_TENANTS
                .into_iter()
                .flat_map(|has| Right::OF_TENANTS.map(|needed| (has, needed)))
                .filter(|(has, needed)| has.holds(RequiredRight::Right(*needed), is_reading))
                .collect();
            assert_eq!(held, [(Publish, Publish), (Manage, Manage), (Manage, Read), (Read, Read), (Portal, Portal)]);
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
            RequiredRight::Right(Right::Portal),
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
            kind: TokenKind::Api,
            sign_in: None,
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
