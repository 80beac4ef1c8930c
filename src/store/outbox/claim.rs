//! Claims rows of an outbox, and settles what became of them.
//!
//! A claim is a transaction that holds the locks of its rows until they are
//! settled. If the relay dies in between, the locks are free again, and the
//! next claim hands the same rows in with the same ids.
//!
//! Invariant: no claim has a row whose key has an earlier row that the claim
//! does not have.

use std::collections::HashMap;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::{OutboxDatabase, OutboxError, OutboxResult, bind};
use crate::store::postgres::transaction::PgTransaction;

/// Most rows of one claim.
pub const CLAIM_ROWS_MAX: usize = 1_000;
/// Most bytes of one claim, as the database stores them; one row may have more.
/// Reading stops, too, when this number of bytes has been read.
const CLAIM_BYTES_MAX: i64 = 4 * 1_024 * 1_024;
/// Most bytes that are read at once; one row may have more.
const READ_BYTES_MAX: i64 = 32 * 1_024 * 1_024;
/// How many times as large data can be as it is stored where it is compressed: LZ4
/// reaches 255, PostgreSQL's own method less.
const COMPRESSION_MAX: i64 = 256;
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
    /// Time of the event, or else at which the row was written; empty if it
    /// cannot be said.
    pub timestamp: String,
    /// Time after which no attempt starts.
    pub expires_at: Option<String>,
    /// Data byte for byte; none if it is larger than any gateway accepts.
    pub data: Option<String>,
    /// Column with a value that no event can have, and what is wrong with it.
    pub fault: Option<String>,
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
        let candidates: Vec<Candidate> = found.iter().map(Candidate::of_row).collect::<OutboxResult<_>>()?;
        let is_full = candidates.len() >= CLAIM_ROWS_MAX;
        let last = candidates.iter().map(|candidate| candidate.tenant.clone()).max();
        let plan = ClaimPlan::of(candidates);
        let (rows, is_read) = read_rows(&transaction, plan.parts).await?;
        let next_after = last.filter(|_| is_full || plan.is_cut || !is_read).unwrap_or_default();
        Ok(OutboxClaim { transaction, rows, held: plan.hold, next_after })
    }
}

/// Reads rows, part after part, until there are enough. What is left out are the
/// last rows, so that the order of keys holds. Returns whether all were read.
async fn read_rows(transaction: &PgTransaction, parts: Vec<Vec<i64>>) -> OutboxResult<(Vec<OutboxRow>, bool)> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for part in parts {
        if bytes >= CLAIM_BYTES_MAX as usize {
            return Ok((rows, false));
        }
        for row in &transaction.query(CONTENT, bind![part, DATA_BYTES_MAX]).await? {
            let row = OutboxRow::of_row(row)?;
            bytes += row.data.as_ref().map_or(0, String::len);
            rows.push(row);
        }
    }
    Ok((rows, true))
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
    /// Reads a row. What its producer could write and no event can have is
    /// noted, so that the row is refused and the others go.
    fn of_row(row: &Row) -> OutboxResult<Self> {
        let mut fault = None;
        let timestamp: Option<String> = readable(row, "timestamp", &mut fault);
        if timestamp.is_none() {
            fault.get_or_insert_with(|| "occurred_at is infinite; write a time, or leave it out".to_owned());
        }
        let endpoints: Option<Vec<Option<String>>> = readable(row, "endpoints", &mut fault);
        if endpoints.iter().flatten().any(Option::is_none) {
            fault.get_or_insert_with(|| "endpoints has an element that is NULL".to_owned());
        }
        Ok(Self {
            id: required(row, "id")?,
            tenant: required(row, "tenant")?,
            event_type: readable(row, "type", &mut fault).unwrap_or_default(),
            key: required(row, "key")?,
            schema_version: readable(row, "schema_version", &mut fault),
            endpoints: endpoints.map(|all| all.into_iter().flatten().collect()),
            timestamp: timestamp.unwrap_or_default(),
            expires_at: readable(row, "expires_at", &mut fault),
            data: readable(row, "data", &mut fault),
            fault,
        })
    }
}

/// Reads a column of a claim without which nothing can be done with the row.
fn required<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> OutboxResult<T> {
    row.try_get(column).map_err(|problem| OutboxError::Unavailable(format!("a row cannot be read: {problem}")))
}

/// Reads a column of a row; if it cannot be read, says so.
fn readable<'a, T: FromSql<'a>>(row: &'a Row, column: &str, fault: &mut Option<String>) -> Option<T> {
    row.try_get(column).unwrap_or_else(|problem| {
        let why = std::error::Error::source(&problem).map_or_else(|| problem.to_string(), ToString::to_string);
        fault.get_or_insert_with(|| format!("{column} cannot be read: {why}"));
        None
    })
}

/// A row that was locked, and the first row of its key that was not.
#[derive(Debug, Clone)]
struct Candidate {
    id: i64,
    tenant: String,
    key: Option<String>,
    stored_bytes: i64,
    is_compressed: bool,
    gap: Option<i64>,
    is_gap_refused: bool,
}

impl Candidate {
    fn of_row(row: &Row) -> OutboxResult<Self> {
        Ok(Self {
            id: required(row, "id")?,
            tenant: required(row, "tenant")?,
            key: required(row, "key")?,
            stored_bytes: required(row, "stored_bytes")?,
            is_compressed: required(row, "is_compressed")?,
            gap: required(row, "gap")?,
            is_gap_refused: required(row, "is_gap_refused")?,
        })
    }

    /// Whether an earlier row of its key was not locked.
    fn is_blocked(&self) -> bool {
        self.gap.is_some_and(|gap| gap < self.id)
    }

    /// Most bytes that its data can have when it is read.
    fn bytes_max(&self) -> i64 {
        if self.is_compressed { self.stored_bytes * COMPRESSION_MAX } else { self.stored_bytes }
    }
}

/// What is done with the rows that were locked.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClaimPlan {
    /// Rows to hand in, in the order of their ids, by what is read at once.
    parts: Vec<Vec<i64>>,
    /// Rows to set aside behind a refused row.
    hold: Vec<i64>,
    /// Whether rows were left out because all would be too large.
    is_cut: bool,
}

impl ClaimPlan {
    fn of(mut candidates: Vec<Candidate>) -> Self {
        candidates.sort_by_key(|candidate| candidate.id);
        let mut plan = Self::default();
        let (mut bytes, mut part_bytes) = (0, 0);
        // A key's rows are left out from the first one on that is.
        let mut cut_keys: HashMap<(String, String), ()> = HashMap::new();
        for candidate in candidates {
            if candidate.is_blocked() {
                if candidate.is_gap_refused {
                    plan.hold.push(candidate.id);
                }
                continue;
            }
            let bytes_max = candidate.bytes_max();
            let name = candidate.key.map(|key| (candidate.tenant, key));
            let is_behind = name.as_ref().is_some_and(|name| cut_keys.contains_key(name));
            if is_behind || (!plan.parts.is_empty() && bytes + candidate.stored_bytes > CLAIM_BYTES_MAX) {
                plan.is_cut = true;
                cut_keys.extend(name.map(|name| (name, ())));
                continue;
            }
            bytes += candidate.stored_bytes;
            part_bytes += bytes_max;
            match plan.parts.last_mut() {
                Some(part) if part_bytes <= READ_BYTES_MAX => part.push(candidate.id),
                _ => {
                    part_bytes = bytes_max;
                    plan.parts.push(vec![candidate.id]);
                }
            }
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
            is_compressed: false,
            gap: None,
            is_gap_refused: false,
        }
    }

    #[test]
    fn rows_behind_one_that_is_not_locked_are_left_and_behind_a_refused_one_set_aside() {
        let behind = |id, gap, is_gap_refused| Candidate { gap: Some(gap), is_gap_refused, ..row(id, Some("k")) };
        let plan = ClaimPlan::of(vec![behind(9, 7, false), behind(3, 7, false), row(5, None), behind(8, 7, false)]);
        assert_eq!((plan.parts, plan.hold), (vec![vec![3, 5]], vec![]), "row 3 is before the gap");
        let plan = ClaimPlan::of(vec![behind(9, 7, true), behind(3, 7, true), row(5, None)]);
        assert_eq!((plan.parts, plan.hold), (vec![vec![3, 5]], vec![9]));
    }

    #[test]
    fn a_claim_is_bounded_in_bytes_and_keeps_the_order_of_keys() {
        let large = |id, key| Candidate { stored_bytes: CLAIM_BYTES_MAX, ..row(id, key) };
        let plan = ClaimPlan::of(vec![large(1, None), large(2, Some("k")), row(3, Some("k")), row(4, None)]);
        assert_eq!(plan, ClaimPlan { parts: vec![vec![1]], hold: vec![], is_cut: true });
        let plan = ClaimPlan::of(vec![row(1, None), large(2, Some("k")), row(3, Some("k")), row(4, None)]);
        assert_eq!(
            plan,
            ClaimPlan { parts: vec![vec![1, 4]], hold: vec![], is_cut: true },
            "row 3 must not pass row 2"
        );
        let huge = Candidate { stored_bytes: 10 * CLAIM_BYTES_MAX, ..row(1, None) };
        assert_eq!(ClaimPlan::of(vec![huge]).parts, [[1]], "one row is always possible");
    }

    #[test]
    fn what_can_be_large_when_it_is_read_is_read_in_parts() {
        let compressed =
            |id| Candidate { stored_bytes: READ_BYTES_MAX / COMPRESSION_MAX / 2, is_compressed: true, ..row(id, None) };
        let plan = ClaimPlan::of(vec![compressed(1), compressed(2), row(3, None), compressed(4), row(5, None)]);
        assert_eq!((plan.parts, plan.is_cut), (vec![vec![1, 2], vec![3, 4, 5]], false));
        let plan = ClaimPlan::of((1..=1_000).map(|id| row(id, None)).collect());
        assert_eq!(plan.parts, [(1..=1_000).collect::<Vec<_>>()]);
    }
}
