//! Stores the most frequent statements as functions in the database, which
//! keeps their plans.
//!
//! A statement that is sent as text is parsed and planned each time, which
//! for a batch of twenty settlements is more work than writing them. Prepared
//! statements would help, but behind a pooler each transaction may get another
//! session, which has none. So these statements are functions of the database,
//! and every session that calls one keeps its plan. A function's name contains
//! a hash of its text: different versions of posthaste can share a database,
//! and none changes a function of another. So even a changed comment in such a
//! file makes a new function.
//!
//! A plan that is kept must be right for a queue of any size, even if it was
//! made while the queue was empty. So the planner is told to ignore sizes and
//! to look rows up through an index, one by one.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use tokio_postgres::Transaction;

/// Planner settings for lookups by given keys, through an index.
const LOOKUPS: &str = "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off";
/// Planner settings for joins of long parameter arrays with each other.
const BULK: &str = "SET enable_seqscan = off SET enable_nestloop = off";

/// Locks this node's own row: `sql/hold_node.sql`.
pub static HOLD_NODE: LazyLock<StoredFunction> =
    LazyLock::new(|| StoredFunction::query("hold_node", include_str!("sql/hold_node.sql"), LOOKUPS, "int8", "int8"));

/// Locks the lanes of deliveries: `sql/lock_lanes.sql`.
pub static LOCK_LANES: LazyLock<StoredFunction> = LazyLock::new(|| {
    StoredFunction::query("lock_lanes", include_str!("sql/lock_lanes.sql"), LOOKUPS, "int8[]", "int8")
});

/// Settles deliveries that were delivered: `sql/settle_delivered.sql`.
pub static SETTLE_DELIVERED: LazyLock<StoredFunction> = LazyLock::new(|| {
    let takes = "int8, int8[], int8[], int8[], int8[], text[], int4[], int4[], int8[], int8[], int4[], int4[], int4[], \
                 int8[]";
    let gives = "int8, int8, text, int8, bool, int8";
    StoredFunction::query("settle_delivered", include_str!("sql/settle_delivered.sql"), LOOKUPS, takes, gives)
});

/// Settles deliveries that wait for a retry: `sql/settle_retry.sql`.
pub static SETTLE_RETRY: LazyLock<StoredFunction> = LazyLock::new(|| {
    let takes = "int8, int8[], int8[], int8[], int8[], text[], int4[], int4[], int8[], int8[], int4[], int4[], int4[], \
                 int8[], int8[], int8[], int8[]";
    StoredFunction::query("settle_retry", include_str!("sql/settle_retry.sql"), LOOKUPS, takes, "int8, int8")
});

/// Reads what an attempt needs, except the event: `sql/read_claims.sql`.
pub static READ_CLAIMS: LazyLock<StoredFunction> = LazyLock::new(|| {
    let gives = "int8, int8, uuid, int2, text, int8, int8, text, int8, bool, int8, int4, int4, int8, int8, int4, int4, \
                 int4, int8, int8, int8";
    StoredFunction::query("read_claims", include_str!("sql/read_claims.sql"), LOOKUPS, "int8[]", gives)
});

/// Accepts events and the ids that producers chose: `sql/accept_all.sql`.
pub static ACCEPT: LazyLock<StoredFunction> = LazyLock::new(|| {
    let takes = "int8, int8, int8[], int8[], text[], text[], text[], text[], int8[], text[], text[], int8[], int8[], \
                 int4[], bytea[], int8[], text[], int8[], int8[], int8[], int8[], int8[], int8[], int2[], int8[], \
                 int8[], int2[], text[], int8[], int8[], int8[], int8[], text[], int8[], bytea[], int8[], int4[], int8[], \
                 int8[], int4[], int8[]";
    let body = include_str!("sql/accept_all.sql").replace(":accept", include_str!("sql/accept.sql"));
    StoredFunction::body("accept", &body, BULK, takes, "int8, int8, int8, bool")
});

/// A statement that is a function in the database.
pub struct StoredFunction {
    name: String,
    definition: String,
    call: String,
}

impl StoredFunction {
    /// Creates a function that runs a single statement and returns its rows.
    fn query(name: &str, sql: &str, planner: &str, takes: &str, gives: &str) -> Self {
        Self::body(name, &format!("BEGIN\nRETURN QUERY\n{sql};\nEND"), planner, takes, gives)
    }

    /// Creates a function with this body.
    fn body(name: &str, body: &str, planner: &str, takes: &str, gives: &str) -> Self {
        let columns: Vec<String> = gives.split(", ").enumerate().map(|(n, kind)| format!("c{n} {kind}")).collect();
        let rest = format!(
            "({takes}) RETURNS TABLE ({}) LANGUAGE plpgsql
             SET plan_cache_mode = force_generic_plan SET jit = off {planner}
             AS $routine$\n#variable_conflict use_column\n{body}\n$routine$",
            columns.join(", ")
        );
        let hash = digest(&SHA256, rest.as_bytes());
        let hash: String = hash.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{name}_{hash}");
        let parameters: Vec<String> = (1..=takes.split(", ").count()).map(|n| format!("${n}")).collect();
        Self {
            definition: format!("CREATE FUNCTION posthaste.{name}{rest}"),
            call: format!("SELECT * FROM posthaste.{name}({})", parameters.join(", ")),
            name,
        }
    }

    /// Returns the SQL that calls the function.
    pub fn call(&self) -> &str {
        &self.call
    }
}

/// Creates the functions that the database does not have yet. The caller holds
/// the lock of [`super::migrate::lock`].
pub async fn create_missing(transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    let known = "SELECT proname::text FROM pg_catalog.pg_proc WHERE pronamespace = 'posthaste'::regnamespace";
    let known = transaction.query_typed(known, &[]).await?;
    let known: Vec<&str> = known.iter().map(|row| row.get(0)).collect();
    for function in [&HOLD_NODE, &LOCK_LANES, &SETTLE_DELIVERED, &SETTLE_RETRY, &READ_CLAIMS, &ACCEPT] {
        if !known.contains(&function.name.as_str()) {
            transaction.batch_execute(&function.definition).await?;
        }
    }
    Ok(())
}
