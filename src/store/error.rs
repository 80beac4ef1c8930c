//! What can go wrong in a store.

use super::codes::UnknownCode;
use super::seal::SealError;
use super::stored_json::UnreadableRecord;
use crate::model::id::{EndpointId, EventId};
use crate::model::limits::OverLimit;
use crate::model::shard::Shard;
use crate::model::token::TokenKind;

/// An error of a store, by what the caller can do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nothing was written; trying again later may work.
    #[error("the store is unavailable: {0}")]
    Unavailable(UnavailableReason),
    /// Nothing was written; space must be freed first.
    #[error("the store has no space left: {0}")]
    Full(String),
    /// The shard has another owner now; drop whatever you hold of it.
    #[error("the lease on shard {} has ended", .0.0)]
    Stale(Shard),
    /// The resource does not exist.
    #[error("there is no such {0}")]
    NotFound(MissingResource),
    /// The cursor does not belong to the list; start again without it.
    #[error("the cursor is not one of this list; start again without it")]
    InvalidCursor,
    /// The thing exists, but its state does not allow the call.
    #[error("{0}")]
    WrongState(String),
    /// The thing was changed meanwhile; read it again.
    #[error("it was changed by someone else meanwhile")]
    Changed,
    /// The catalog is newer than the one that the events were matched with;
    /// match them again.
    #[error("the endpoints have changed again and again meanwhile; nothing was stored, so try again in a few seconds")]
    Outdated,
    /// The event exists, but its data was expunged.
    #[error("the data of event {0} was expunged")]
    Expunged(EventId),
    /// The event exists, but its data was removed, because no endpoint wanted
    /// it.
    #[error("the data of event {0} is no longer kept, because no endpoint wanted it")]
    Unmatched(EventId),
    /// The event exists, but its data is not the data that was accepted.
    #[error("what is stored of event {0} is damaged; it is not the data that was accepted")]
    Damaged(EventId),
    /// A row holds a code that only a newer version knows. Nothing was
    /// changed; a node of that version can change it.
    #[error(transparent)]
    UnknownCode(#[from] UnknownCode),
    /// A column holds a value that only a newer version can read. Nothing was
    /// changed; a node of that version can change it.
    #[error(transparent)]
    Unreadable(#[from] UnreadableRecord),
    /// The tenant's limits do not allow the call.
    #[error(transparent)]
    OverLimit(OverLimit),
    /// As many people are signed in, or as many codes are open, as may be.
    #[error("{most} {} already; revoke some, or wait until some are over", match .kind {
        TokenKind::Code => "sign-in links are open",
        _ => "people are signed in",
    })]
    TooManySignIns {
        /// Whether codes or sessions are too many.
        kind: TokenKind,
        /// Largest number allowed.
        most: u32,
    },
    /// The event names an endpoint that does not exist.
    #[error("there is no endpoint {0}")]
    UnknownEndpoint(EndpointId),
}

/// Why a store is unavailable: a sentence for people, and what the database said of
/// it, for programs.
#[derive(Debug, Clone)]
pub struct UnavailableReason {
    words: String,
    fault: Option<DatabaseFault>,
}

/// What stands between the gateway and its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseFault {
    /// No connection, or no answer in time.
    Unreachable,
    /// A statement failed with this SQLSTATE.
    Sqlstate(String),
}

impl UnavailableReason {
    /// Returns a reason of the database.
    pub fn of_database(words: String, fault: DatabaseFault) -> Self {
        Self { words, fault: Some(fault) }
    }

    /// Returns what the database said, if it is the reason.
    pub fn fault(&self) -> Option<&DatabaseFault> {
        self.fault.as_ref()
    }

    /// Whether a statement failed with this SQLSTATE.
    pub fn has_sqlstate(&self, code: &str) -> bool {
        matches!(&self.fault, Some(DatabaseFault::Sqlstate(found)) if found == code)
    }
}

impl std::fmt::Display for UnavailableReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl From<String> for UnavailableReason {
    fn from(words: String) -> Self {
        Self { words, fault: None }
    }
}

impl From<&str> for UnavailableReason {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

/// A resource that does not exist.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, strum::Display, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum MissingResource {
    /// The tenant of the call, or the one it is about.
    Tenant,
    /// An endpoint of the tenant.
    Endpoint,
    /// An event of the tenant.
    Event,
    /// A delivery of the tenant.
    Delivery,
    /// A token of the tenant or the gateway.
    Token,
    /// A job of the tenant.
    Job,
    /// A portal link of the tenant.
    Link,
    /// A portal session of the tenant.
    Session,
    /// The logo of the tenant's portal.
    Logo,
}

/// A sealed text that cannot be opened is unavailable: it can be read again
/// with the key that sealed it.
impl From<SealError> for Error {
    fn from(problem: SealError) -> Self {
        Self::Unavailable(problem.to_string().into())
    }
}

/// The result of a call to a store.
pub type Result<T> = std::result::Result<T, Error>;
