//! The outbox in a producer's own PostgreSQL: rows that the producer writes in
//! its own transactions, which a relay hands in and deletes.
//!
//! [`install`] creates it, [`OutboxDatabase`] reads and changes it: [`claim`]
//! for the relay, [`lease`] for the right to be the relay, [`status`] for
//! people. What is done with the rows is up to `lifecycle::outbox`.
//!
//! Invariant: no row is skipped. Rows are never paged by id, because a row
//! with a lower id may commit later; whatever is there is claimed.

use deadpool_postgres::Pool;
use tokio_postgres::error::SqlState;

use super::postgres::connect;
use super::postgres::transaction::{self, bind, with_timeout};
use super::typed_parameter::SqlParameter;
use crate::model::database::DatabaseUrl;
use crate::store::{self, UnavailableReason};

pub mod claim;
pub mod install;
pub mod lease;
pub mod status;

/// The outbox of one producer, over one connection.
pub struct OutboxDatabase {
    pool: Pool,
    url: DatabaseUrl,
}

/// An error of an outbox, by what can be done about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The database is away or busy; trying again may work.
    #[error("{0}")]
    Unavailable(String),
    /// A person must change something first.
    #[error("{0}")]
    Unusable(String),
}

/// The result of a call to an outbox.
pub type OutboxResult<T> = std::result::Result<T, OutboxError>;

impl From<store::Error> for OutboxError {
    fn from(problem: store::Error) -> Self {
        match problem {
            // Without the words "the store", which is another database.
            store::Error::Unavailable(reason) => Self::of_reason(&reason),
            store::Error::Full(words) => Self::Unavailable(words),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl OutboxError {
    /// Sorts a reason of the database by its code.
    fn of_reason(reason: &UnavailableReason) -> Self {
        let is_absent = [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN]
            .iter()
            .any(|code| reason.has_sqlstate(code.code()));
        let advice = if reason.has_sqlstate(SqlState::INSUFFICIENT_PRIVILEGE.code()) {
            "give the role its rights with `posthaste outbox install --relay-role ROLE`, as the owner of the outbox"
        } else if is_absent {
            "create the outbox, or bring it up to date, with `posthaste outbox install`"
        } else {
            return Self::Unavailable(reason.to_string());
        };
        Self::Unusable(format!("{reason}; {advice}"))
    }
}

/// Which outbox this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxIdentity {
    /// Random id that the ids of its events begin with.
    pub install_id: String,
}

impl OutboxDatabase {
    /// Prepares the connection; it is opened when it is needed. There is one,
    /// because the lease belongs to it.
    pub fn new(url: &DatabaseUrl) -> anyhow::Result<Self> {
        Ok(Self { pool: connect::pool(url.reveal(), 1)?, url: url.clone() })
    }

    /// Returns host, port, database and user in words, without the password.
    pub fn description(&self) -> &str {
        self.url.description()
    }

    /// Checks that the outbox is there, in this version, and that this role may
    /// relay from it.
    pub async fn check(&self) -> OutboxResult<OutboxIdentity> {
        let sql = "SELECT to_regclass('posthaste_outbox.installation') IS NOT NULL, pg_is_in_recovery()";
        let rows = self.query(sql, &[]).await?;
        let (is_there, is_standby): (bool, bool) = (rows[0].get(0), rows[0].get(1));
        if !is_there {
            return Err(OutboxError::Unusable(
                "there is no outbox in this database; create it with `posthaste outbox install`".into(),
            ));
        }
        if is_standby {
            return Err(OutboxError::Unavailable("it is a standby, which takes no writes; name its primary".into()));
        }
        let sql = "SELECT install_id, schema_version,
                          has_table_privilege('posthaste_outbox.outbox', 'SELECT')
                          AND has_table_privilege('posthaste_outbox.outbox', 'DELETE')
                          AND has_any_column_privilege('posthaste_outbox.outbox', 'UPDATE')
                          AND has_table_privilege('posthaste_outbox.relay', 'SELECT')
                          AND has_table_privilege('posthaste_outbox.relay', 'UPDATE')
                   FROM posthaste_outbox.installation";
        let rows = self.query(sql, &[]).await?;
        let Some(row) = rows.first() else {
            return Err(OutboxError::Unusable("posthaste_outbox.installation has lost its row".into()));
        };
        check_version(row.get(1))?;
        if !row.get::<_, bool>(2) {
            return Err(OutboxError::Unusable(
                "this role may not relay: it needs SELECT, UPDATE and DELETE on posthaste_outbox.outbox, and SELECT and \
                 UPDATE on posthaste_outbox.relay; `posthaste outbox install --relay-role ROLE` grants them"
                    .into(),
            ));
        }
        Ok(OutboxIdentity { install_id: row.get(0) })
    }

    /// Whether a row may be relayed. It costs one short index scan.
    pub async fn has_rows(&self) -> OutboxResult<bool> {
        let sql = "SELECT 1 FROM posthaste_outbox.outbox WHERE set_aside_at IS NULL ORDER BY tenant, id LIMIT 1";
        Ok(!self.query(sql, &[]).await?.is_empty())
    }

    /// Runs one statement.
    async fn query(&self, sql: &str, bound: &[SqlParameter<'_>]) -> OutboxResult<Vec<tokio_postgres::Row>> {
        let client = transaction::connection(&self.pool).await?;
        Ok(with_timeout(client.query_typed(sql, bound)).await?)
    }
}

/// Refuses an outbox of another version.
fn check_version(found: i32) -> OutboxResult<()> {
    let known = install::STEPS.len() as i32;
    match found.cmp(&known) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(OutboxError::Unusable(format!(
            "the outbox has version {found} and this posthaste needs {known}; run `posthaste outbox install` with it"
        ))),
        std::cmp::Ordering::Greater => Err(OutboxError::Unusable(format!(
            "the outbox has version {found} and this posthaste knows {known}; run the posthaste that upgraded it"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DatabaseFault;

    #[test]
    fn only_the_version_that_is_known_is_used() {
        let known = install::STEPS.len() as i32;
        assert_eq!(check_version(known), Ok(()));
        let older = check_version(known - 1).unwrap_err().to_string();
        assert!(older.contains("run `posthaste outbox install`"), "{older}");
        let newer = check_version(known + 1).unwrap_err().to_string();
        assert!(newer.contains("run the posthaste that upgraded it"), "{newer}");
    }

    #[test]
    fn what_a_person_must_change_is_told_apart_from_what_passes() {
        let of = |fault| {
            let reason = UnavailableReason::of_database("the database says no".into(), fault);
            OutboxError::from(store::Error::Unavailable(reason))
        };
        let refused = |code: &str| of(DatabaseFault::Sqlstate(code.to_owned()));
        assert!(matches!(refused("42501"), OutboxError::Unusable(_)), "a right is missing");
        assert!(matches!(refused("42P01"), OutboxError::Unusable(_)), "a table is missing");
        assert!(matches!(refused("57P03"), OutboxError::Unavailable(_)), "it is starting");
        assert!(!of(DatabaseFault::Unreachable).to_string().contains("the store"));
    }
}
