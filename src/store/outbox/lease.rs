//! The right to be the relay of an outbox, for a short time.
//!
//! The lease saves work and keeps nothing safe: two relays at once never hold
//! the same row, and an event that is handed in twice has one id.

use std::time::Duration;

use super::{OutboxDatabase, OutboxError, OutboxResult, bind, check_version};

/// How long the lease lasts that is not renewed. The lease of a killed process
/// ends with its connection, unless the network hides that.
pub const LEASE: Duration = Duration::from_secs(15);
/// How often the lease is renewed.
pub const RENEWAL: Duration = Duration::from_secs(5);

const TAKE: &str = include_str!("sql/lease.sql");
const RELEASE: &str = include_str!("sql/release.sql");

/// Who relays, and what was done since the lease was last renewed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RelayReport {
    /// Random id of the relay.
    pub holder: String,
    /// Name of the relay for people.
    pub name: String,
    /// Rows relayed per second since the last report.
    pub rows_per_second: f64,
    /// Errors since the last report.
    pub errors: i64,
    /// Last of these errors.
    pub last_error: Option<String>,
}

impl OutboxDatabase {
    /// Takes or renews the lease. Returns its epoch, or nothing if another
    /// relay has it.
    pub async fn take_lease(&self, report: &RelayReport) -> OutboxResult<Option<i64>> {
        let version = self.query("SELECT schema_version FROM posthaste_outbox.installation", &[]).await?;
        let found = version.first().ok_or_else(|| OutboxError::Unusable("the outbox has lost its version".into()))?;
        check_version(found.get(0))?;
        let (holder, name, seconds) = (report.holder.as_str(), report.name.as_str(), LEASE.as_secs_f64());
        let RelayReport { rows_per_second, errors, last_error, .. } = report;
        let bound = bind![holder, name, seconds, *rows_per_second, *errors, *last_error];
        let taken = self.query(TAKE, bound).await?;
        Ok(taken.first().map(|row| row.get(0)))
    }

    /// Gives the lease back, so that another relay need not wait for its end.
    pub async fn release_lease(&self, report: &RelayReport) -> OutboxResult<()> {
        let holder = report.holder.as_str();
        self.query(RELEASE, bind![holder]).await.map(drop)
    }
}
