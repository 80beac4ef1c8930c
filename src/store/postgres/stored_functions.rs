//! Routines: statements that run all the time, kept by the server with their
//! plans.
//!
//! A statement that is sent as text is parsed and planned each time, which
//! for a batch of twenty settlements is more work than writing them. Prepared
//! statements would help, but a pooler that gives each transaction another
//! session knows none. So these are functions of the database, and whichever
//! session runs one keeps its plan. A function is named after its own text:
//! versions of posthaste that differ can share a database, and none is ever
//! changed under another.
//!
//! A plan that is kept must be right for a queue of any size, also if it was
//! made while there was none. So it is made without looking at sizes: what
//! is looked up, is looked up through an index, row by row.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use tokio_postgres::Transaction;

/// Rows are looked up by what is given, through an index.
const LOOKUPS: &str = "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off";
/// What is given is joined with itself, and may be long.
const BULK: &str = "SET enable_seqscan = off SET enable_nestloop = off";

/// Holds this node's own row: `sql/hold_node.sql`.
pub static HOLD_NODE: LazyLock<StoredFunction> =
    LazyLock::new(|| StoredFunction::query("hold_node", include_str!("sql/hold_node.sql"), LOOKUPS, "int8", "int8"));

/// Locks the lanes of deliveries: `sql/lock_lanes.sql`.
pub static LOCK_LANES: LazyLock<StoredFunction> = LazyLock::new(|| {
    StoredFunction::query("lock_lanes", include_str!("sql/lock_lanes.sql"), LOOKUPS, "int8[]", "int8")
});

/// Settles what arrived: `sql/settle_delivered.sql`.
pub static SETTLE_DELIVERED: LazyLock<StoredFunction> = LazyLock::new(|| {
    let takes = "int8, int8[], int8[], int8[], int8[], text[], int4[], int4[], int8[], int8[], int4[], int4[], int4[], \
                 int8[]";
    let gives = "int8, int8, text, int8, bool, int8";
    StoredFunction::query("settle_delivered", include_str!("sql/settle_delivered.sql"), LOOKUPS, takes, gives)
});

/// Settles what waits again: `sql/settle_retry.sql`.
pub static SETTLE_RETRY: LazyLock<StoredFunction> = LazyLock::new(|| {
    let takes = "int8, int8[], int8[], int8[], int8[], text[], int4[], int4[], int8[], int8[], int4[], int4[], int4[], \
                 int8[], int8[], int8[], int8[]";
    StoredFunction::query("settle_retry", include_str!("sql/settle_retry.sql"), LOOKUPS, takes, "int8, int8")
});

/// Reads what an attempt needs, but for the event: `sql/read_claims.sql`.
pub static READ_CLAIMS: LazyLock<StoredFunction> = LazyLock::new(|| {
    let gives = "int8, int8, uuid, int2, text, int8, int8, text, int8, bool, int8, int4, int4, int8, int8, int4, int4, \
                 int4, int8, int8, int8";
    StoredFunction::query("read_claims", include_str!("sql/read_claims.sql"), LOOKUPS, "int8[]", gives)
});

/// Accepts events: `sql/accept.sql`, with the ids that producers chose.
pub static ACCEPT: LazyLock<StoredFunction> = LazyLock::new(|| {
    let takes = "int8, int8, int8[], int8[], text[], text[], text[], text[], int8[], text[], text[], int8[], int8[], \
                 int4[], bytea[], int8[], text[], int8[], int8[], int8[], int8[], int8[], int8[], int2[], int8[], \
                 int8[], int2[], text[], int8[], int8[], int8[], int8[], text[], int8[], bytea[], int8[], int4[], int8[], \
                 int8[], int4[], int8[]";
    let body = include_str!("sql/accept_all.sql").replace(":accept", include_str!("sql/accept.sql"));
    StoredFunction::body("accept", &body, BULK, takes, "int8, int8, int8, bool")
});

/// A statement that the server keeps.
pub struct StoredFunction {
    name: String,
    definition: String,
    call: String,
}

impl StoredFunction {
    /// One that runs a single statement and gives its rows.
    fn query(name: &str, sql: &str, ways: &str, takes: &str, gives: &str) -> Self {
        Self::body(name, &format!("BEGIN\nRETURN QUERY\n{sql};\nEND"), ways, takes, gives)
    }

    /// One with this body.
    fn body(name: &str, body: &str, ways: &str, takes: &str, gives: &str) -> Self {
        let columns: Vec<String> = gives.split(", ").enumerate().map(|(n, kind)| format!("c{n} {kind}")).collect();
        let rest = format!(
            "({takes}) RETURNS TABLE ({}) LANGUAGE plpgsql
             SET plan_cache_mode = force_generic_plan SET jit = off {ways}
             AS $routine$\n#variable_conflict use_column\n{body}\n$routine$",
            columns.join(", ")
        );
        let print = digest(&SHA256, rest.as_bytes());
        let print: String = print.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{name}_{print}");
        let places: Vec<String> = (1..=takes.split(", ").count()).map(|n| format!("${n}")).collect();
        Self {
            definition: format!("CREATE FUNCTION posthaste.{name}{rest}"),
            call: format!("SELECT * FROM posthaste.{name}({})", places.join(", ")),
            name,
        }
    }

    /// How it is asked for.
    pub fn call(&self) -> &str {
        &self.call
    }
}

/// Makes those that the database does not have yet. Whoever does so holds the
/// lock of all who change its shape.
pub async fn create_missing(transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    let known = "SELECT proname::text FROM pg_catalog.pg_proc WHERE pronamespace = 'posthaste'::regnamespace";
    let known = transaction.query_typed(known, &[]).await?;
    let known: Vec<&str> = known.iter().map(|row| row.get(0)).collect();
    for routine in [&HOLD_NODE, &LOCK_LANES, &SETTLE_DELIVERED, &SETTLE_RETRY, &READ_CLAIMS, &ACCEPT] {
        if !known.contains(&routine.name.as_str()) {
            transaction.batch_execute(&routine.definition).await?;
        }
    }
    Ok(())
}
