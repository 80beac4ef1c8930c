//! Claims rows of an outbox, and settles what became of them.
//!
//! A claim is a transaction that holds the locks of its rows until they are
//! settled. If the relay dies in between, the locks are free again, and the
//! next claim hands the same rows in with the same ids.
//!
//! Invariant: no claim has a row whose key has an earlier row that the claim
//! does not have.

use std::collections::HashMap;

use super::{OutboxDatabase, OutboxResult, bind};
use crate::store::postgres::transaction::PgTransaction;

/// Most rows of one claim.
pub const CLAIM_ROWS_MAX: usize = 1_000;
/// Most bytes of one claim, as the database stores them; one row may have more.
const CLAIM_BYTES_MAX: i64 = 4 * 1_024 * 1_024;
/// Largest data that is read at all: no gateway accepts more.
const DATA_BYTES_MAX: i32 = 64 * 1_024 * 1_024;

/// Begins the transaction of a claim. The deletion of rows need not be durable
/// when it is confirmed: a row that comes back after a crash is recognised by
/// its id. A relay that freezes loses its locks after a minute. The planner is
/// told to use the indexes, because the table is now empty, now full.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'; \
    SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL synchronous_commit = off; SET LOCAL jit = off; \
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_mergejoin = off";
/// Lock of whoever changes what is set aside; "phoc" and 0.
pub(super) const SET_ASIDE_LOCK: &str = "SELECT pg_advisory_xact_lock(1885892451, 0)";

const CLAIM: &str = include_str!("sql/claim.sql");
const CONTENT: &str = include_str!("sql/content.sql");
const DELETE: &str = include_str!("sql/delete.sql");
const COUNT: &str = include_str!("sql/count.sql");
const REFUSE: &str = include_str!("sql/refuse.sql");
const HOLD: &str = include_str!("sql/hold.sql");

/// A row of an outbox, as its producer wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Number of the row.
    pub id: i64,
    /// Tenant that the event is for.
    pub tenant: String,
    /// Type of the event.
    pub event_type: String,
    /// Ordering key of the event.
    pub key: Option<String>,
    /// Producer's name for the shape of the data.
    pub schema_version: Option<String>,
    /// Endpoints the event is addressed to.
    pub endpoints: Option<Vec<String>>,
    /// Time of the event, or else at which the row was written.
    pub timestamp: String,
    /// Time after which no attempt starts.
    pub expires_at: Option<String>,
    /// Data byte for byte; none if it is larger than any gateway accepts.
    pub data: Option<String>,
}

/// A row that can never be accepted as it is, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRow {
    /// Number of the row.
    pub id: i64,
    /// Code of the refusal, as the API has it.
    pub code: String,
    /// Reason for people.
    pub reason: String,
}

/// Rows that are locked until they are settled.
pub struct OutboxClaim {
    transaction: PgTransaction,
    /// The rows, in the order of their ids.
    pub rows: Vec<OutboxRow>,
    /// Rows that wait behind a refused row of their key.
    held: Vec<i64>,
    /// Tenant to begin behind next time; empty to begin with the first.
    pub next_after: String,
}

impl OutboxDatabase {
    /// Claims the oldest rows of the tenants behind `after`, without those of
    /// the tenants that are `resting`.
    pub async fn claim(&self, resting: &[String], after: &str) -> OutboxResult<OutboxClaim> {
        let transaction = PgTransaction::begin(&self.pool, BEGIN).await?;
        let (resting, most) = (resting.to_vec(), CLAIM_ROWS_MAX as i32);
        let found = transaction.query(CLAIM, bind![resting, most, most, after]).await?;
        let candidates: Vec<Candidate> = found.iter().map(Candidate::of_row).collect();
        let is_full = candidates.len() >= CLAIM_ROWS_MAX;
        let last = candidates.iter().map(|candidate| candidate.tenant.clone()).max();
        let plan = ClaimPlan::of(candidates);
        let next_after = last.filter(|_| is_full || plan.is_cut).unwrap_or_default();
        let rows = if plan.take.is_empty() {
            Vec::new()
        } else {
            transaction.query(CONTENT, bind![plan.take, DATA_BYTES_MAX]).await?.iter().map(OutboxRow::of_row).collect()
        };
        Ok(OutboxClaim { transaction, rows, held: plan.hold, next_after })
    }
}

impl OutboxClaim {
    /// Whether there is nothing to settle.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.held.is_empty()
    }

    /// Deletes the rows that were accepted, sets those aside that were refused
    /// or wait behind such a row, and gives all others back. What was relayed is
    /// counted in the same transaction.
    pub async fn settle(self, accepted: Vec<i64>, refused: Vec<RefusedRow>) -> OutboxResult<()> {
        let transaction = self.transaction;
        if accepted.is_empty() && refused.is_empty() && self.held.is_empty() {
            transaction.roll_back().await;
            return Ok(());
        }
        let deleted = if accepted.is_empty() { 0 } else { transaction.execute(DELETE, bind![accepted]).await? };
        if !refused.is_empty() || !self.held.is_empty() {
            transaction.query(SET_ASIDE_LOCK, &[]).await?;
        }
        if !refused.is_empty() {
            let ids: Vec<i64> = refused.iter().map(|row| row.id).collect();
            let codes: Vec<String> = refused.iter().map(|row| row.code.clone()).collect();
            let reasons: Vec<String> = refused.into_iter().map(|row| row.reason).collect();
            transaction.execute(REFUSE, bind![ids, codes, reasons]).await?;
        }
        if !self.held.is_empty() {
            transaction.execute(HOLD, bind![self.held]).await?;
        }
        if deleted == 0 {
            return Ok(transaction.commit().await?);
        }
        Ok(transaction.commit_after(&COUNT.replace("{deleted}", &deleted.to_string())).await?)
    }

    /// Gives all rows back.
    pub async fn give_back(self) {
        self.transaction.roll_back().await;
    }
}

impl OutboxRow {
    fn of_row(row: &tokio_postgres::Row) -> Self {
        Self {
            id: row.get("id"),
            tenant: row.get("tenant"),
            event_type: row.get("type"),
            key: row.get("key"),
            schema_version: row.get("schema_version"),
            endpoints: row.get("endpoints"),
            timestamp: row.get("timestamp"),
            expires_at: row.get("expires_at"),
            data: row.get("data"),
        }
    }
}

/// A row that was locked, and the first row of its key that was not.
#[derive(Debug, Clone)]
struct Candidate {
    id: i64,
    tenant: String,
    key: Option<String>,
    stored_bytes: i64,
    gap: Option<i64>,
    is_gap_refused: bool,
}

impl Candidate {
    fn of_row(row: &tokio_postgres::Row) -> Self {
        Self {
            id: row.get("id"),
            tenant: row.get("tenant"),
            key: row.get("key"),
            stored_bytes: row.get("stored_bytes"),
            gap: row.get("gap"),
            is_gap_refused: row.get("is_gap_refused"),
        }
    }

    /// Whether an earlier row of its key was not locked.
    fn is_blocked(&self) -> bool {
        self.gap.is_some_and(|gap| gap < self.id)
    }
}

/// What is done with the rows that were locked.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClaimPlan {
    /// Rows to hand in.
    take: Vec<i64>,
    /// Rows to set aside behind a refused row.
    hold: Vec<i64>,
    /// Whether rows were left out because all would be too large.
    is_cut: bool,
}

impl ClaimPlan {
    fn of(mut candidates: Vec<Candidate>) -> Self {
        candidates.sort_by_key(|candidate| candidate.id);
        let mut plan = Self::default();
        let mut bytes = 0;
        // A key's rows are left out from the first one on that is.
        let mut cut_keys: HashMap<(String, String), ()> = HashMap::new();
        for candidate in candidates {
            if candidate.is_blocked() {
                if candidate.is_gap_refused {
                    plan.hold.push(candidate.id);
                }
                continue;
            }
            let name = candidate.key.map(|key| (candidate.tenant, key));
            let is_behind = name.as_ref().is_some_and(|name| cut_keys.contains_key(name));
            if is_behind || (!plan.take.is_empty() && bytes + candidate.stored_bytes > CLAIM_BYTES_MAX) {
                plan.is_cut = true;
                cut_keys.extend(name.map(|name| (name, ())));
                continue;
            }
            bytes += candidate.stored_bytes;
            plan.take.push(candidate.id);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: i64, key: Option<&str>) -> Candidate {
        Candidate {
            id,
            tenant: "t".into(),
            key: key.map(str::to_owned),
            stored_bytes: 10,
            gap: None,
            is_gap_refused: false,
        }
    }

    #[test]
    fn rows_behind_one_that_is_not_locked_are_left_and_behind_a_refused_one_set_aside() {
        let behind = |id, gap, is_gap_refused| Candidate { gap: Some(gap), is_gap_refused, ..row(id, Some("k")) };
        let plan = ClaimPlan::of(vec![behind(9, 7, false), behind(3, 7, false), row(5, None), behind(8, 7, false)]);
        assert_eq!((plan.take, plan.hold), (vec![3, 5], vec![]), "row 3 is before the gap");
        let plan = ClaimPlan::of(vec![behind(9, 7, true), behind(3, 7, true), row(5, None)]);
        assert_eq!((plan.take, plan.hold), (vec![3, 5], vec![9]));
    }

    #[test]
    fn a_claim_is_bounded_in_bytes_and_keeps_the_order_of_keys() {
        let large = |id, key| Candidate { stored_bytes: CLAIM_BYTES_MAX, ..row(id, key) };
        let plan = ClaimPlan::of(vec![large(1, None), large(2, Some("k")), row(3, Some("k")), row(4, None)]);
        assert_eq!(plan, ClaimPlan { take: vec![1], hold: vec![], is_cut: true });
        let plan = ClaimPlan::of(vec![row(1, None), large(2, Some("k")), row(3, Some("k")), row(4, None)]);
        assert_eq!(plan, ClaimPlan { take: vec![1, 4], hold: vec![], is_cut: true }, "row 3 must not pass row 2");
        let huge = Candidate { stored_bytes: 10 * CLAIM_BYTES_MAX, ..row(1, None) };
        assert_eq!(ClaimPlan::of(vec![huge]).take, [1], "one row is always possible");
    }
}
