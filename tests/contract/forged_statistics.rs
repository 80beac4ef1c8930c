//! Whatever PostgreSQL believes of the size of the queue and the lanes, no frequent
//! statement reads all that waits, or all lanes.
//!
//! Autovacuum may analyse the queue while it is nearly empty in a file that
//! stays large. The planner then expects a handful of rows, and would collect
//! and sort all that waits for every page that is read of it.

use serde_json::json;

use crate::fixture::{StoreFixture, at, event};
use crate::servers::postgres::Database;

/// Waiting deliveries of the one endpoint.
const WAITING: i64 = 4_000;
/// More entries of the queue, the lanes and their indexes than any statement here needs.
const READ_MAX: i64 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_frequent_statement_reads_all_that_waits_whatever_the_statistics_say() {
    let fixture = StoreFixture::postgres().await;
    let database = fixture.database();
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("first").expiring(at(99)).to(&endpoint)).await;
    database.execute(&fill()).await;
    let mut too_many = Vec::new();
    for (statistics, forged) in [
        ("true ones", "SELECT 1".to_owned()),
        ("a large file that was nearly empty", forge(10, 5_000)),
        ("a small table", format!("{}; {FORGET_COLUMNS}", forge(1, 1))),
        ("a table that was empty", forge(0, 1)),
        ("a table that was empty, and of which nothing else is known", format!("{}; {FORGET_COLUMNS}", forge(0, 1))),
        ("a table that was never analysed", forge(-1, 0)),
        ("a huge table", forge(1_000_000_000, 100)),
    ] {
        database.execute(&format!("ANALYZE posthaste.queue; ANALYZE posthaste.lanes; {forged}")).await;
        for (name, statement) in frequent_statements(database).await {
            let (read, lists) = read_of_queue(database, &statement).await;
            if read > READ_MAX {
                too_many.push(format!("{name} reads {read} with the statistics of {statistics}"));
            }
            if lists > 0 && BY_NUMBER.contains(&name) {
                too_many.push(format!(
                    "{name} searches an index of lists {lists} times with the statistics of {statistics}"
                ));
            }
        }
    }
    assert!(too_many.is_empty(), "of {WAITING} that wait: {too_many:#?}");
}

/// Statements that are given numbers of deliveries. An index whose second column is the
/// number would be read as a whole, with the entries of all that was settled, for
/// each of them; what it returns of that is one entry, so its use is counted.
const BY_NUMBER: [&str; 4] = ["read_claims", "lock_lanes", "settle_delivered", "settle_retry"];

/// Makes the planner forget what it knows of the queue's columns.
const FORGET_COLUMNS: &str =
    "DELETE FROM pg_statistic WHERE starelid IN ('posthaste.queue'::regclass, 'posthaste.lanes'::regclass)";

/// Returns SQL that makes the planner believe in these sizes of the queue, and of the
/// lanes.
fn forge(rows: i64, pages: i64) -> String {
    format!("UPDATE pg_class SET reltuples = {rows}, relpages = {pages} WHERE oid IN ({TABLES_AND_INDEXES})")
}

/// The queue, the lanes, and their indexes.
const TABLES_AND_INDEXES: &str = "SELECT t.oid FROM pg_class t
     WHERE t.oid IN ('posthaste.queue'::regclass, 'posthaste.lanes'::regclass)
     UNION ALL SELECT indexrelid FROM pg_index
     WHERE indrelid IN ('posthaste.queue'::regclass, 'posthaste.lanes'::regclass)";

/// Returns SQL that copies the one delivery that waits. Every second copy is in
/// the same lane, whose head alone may start. As many other lanes are empty.
fn fill() -> String {
    format!(
        "ALTER TABLE posthaste.queue SET (autovacuum_enabled = off);
         ALTER TABLE posthaste.lanes SET (autovacuum_enabled = off);
         INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, lane, seq, due_at, behind,
                                      expiry_check_at, accepting_node)
         SELECT no + n, tenant, endpoint, shard, event, created_at, format, CASE WHEN n % 2 = 0 THEN 'lane' END,
                CASE WHEN n % 2 = 0 THEN n END, due_at + n, n % 2 = 0 AND n > 2, expiry_check_at + n, accepting_node
         FROM posthaste.queue, generate_series(1, {WAITING}) n;
         INSERT INTO posthaste.lanes (endpoint, lane, last_seq, head, head_since, touched_at)
         SELECT endpoint, lane, {WAITING}, no, 0, 0 FROM posthaste.queue WHERE seq = 2
         UNION ALL
         SELECT endpoint, 'empty ' || n, 1, NULL, 0, 0 FROM posthaste.queue, generate_series(1, {WAITING}) n WHERE seq = 2"
    )
}

/// Returns the frequent statements that read the queue, with their names. Their
/// arguments are constants, so that nothing is read for these.
async fn frequent_statements(database: &Database) -> Vec<(&'static str, String)> {
    let endpoint = database.number("SELECT max(endpoint) FROM posthaste.queue").await;
    let some = array(database, "SELECT no FROM posthaste.queue ORDER BY no LIMIT 5").await;
    let shards = format!("{}::int2[]", array(database, "SELECT shard FROM posthaste.shards").await);
    let mut statements = Vec::new();
    for (name, arguments) in [
        ("read_due", format!("{endpoint}, 0, 5, 3::int2")),
        ("read_urgent", format!("{endpoint}, 0, 5, 3::int2")),
        ("earliest_due", format!("{shards}, 3::int2")),
        ("oldest_due", format!("ARRAY[{endpoint}]")),
        ("overdue", format!("{shards}, 5, 3::int2")),
        ("untried", format!("1, 0, {}, 5, 5, {shards}, 0, 3::int2", i64::MAX)),
        ("poll", format!("'999999999', ARRAY['3', '4'], 0, {shards}")),
        ("read_claims", some.clone()),
        ("lock_lanes", some),
        ("settle_delivered", settled(database, "settle_delivered").await),
        ("settle_retry", settled(database, "settle_retry").await),
    ] {
        let function = format!("SELECT proname FROM pg_proc WHERE {}", is_named(name));
        let function = database.rows(&function).await[0][0].clone().expect("a function has a name");
        statements.push((name, format!("SELECT count(*) FROM posthaste.{function}({arguments})")));
    }
    statements
}

/// Returns the arguments that settle five deliveries. The node, the deliveries,
/// the epochs and the beginnings of their budgets come first; what becomes of
/// them is the same for all.
async fn settled(database: &Database, name: &str) -> String {
    let of_five = |what: &str| {
        format!("SELECT {what} FROM posthaste.queue q JOIN posthaste.shards h USING (shard) ORDER BY q.no LIMIT 5")
    };
    let mut arguments = vec![database.number(&of_five("h.node")).await.to_string()];
    for what in ["q.no", "h.epoch", "q.created_at"] {
        arguments.push(array(database, &of_five(what)).await);
    }
    let kinds = format!(
        "SELECT format_type(kind, NULL) FROM pg_proc, unnest(proargtypes) WITH ORDINALITY AS a (kind, n)
         WHERE {} ORDER BY n OFFSET 4",
        is_named(name)
    );
    for kind in database.rows(&kinds).await {
        let kind = kind[0].as_deref().expect("an argument has a type");
        arguments.push(format!("ARRAY[1, 1, 1, 1, 1]::{kind}"));
    }
    arguments.join(", ")
}

/// Returns the condition that a function has this name and the hash of its text.
fn is_named(name: &str) -> String {
    format!("proname ~ '^{name}_[0-9a-f]{{12}}$'")
}

/// Returns the rows of a query that returns numbers, as an array.
async fn array(database: &Database, query: &str) -> String {
    let rows = database.rows(query).await;
    let numbers: Vec<&str> = rows.iter().map(|row| row[0].as_deref().expect("a number")).collect();
    format!("ARRAY[{}]::int8[]", numbers.join(", "))
}

/// Returns how many entries of the queue, the lanes and their indexes a statement
/// reads, and how often it searches the indexes of lists, and undoes what it did.
async fn read_of_queue(database: &Database, statement: &str) -> (i64, i64) {
    let read = format!(
        "SELECT sum(pg_stat_get_xact_tuples_returned(c.oid))::bigint,
                sum(pg_stat_get_xact_numscans(c.oid))
                    FILTER (WHERE c.relname IN ('queue_by_endpoint', 'queue_by_tenant'))::bigint
         FROM pg_class c WHERE c.oid IN ({TABLES_AND_INDEXES})"
    );
    let rows = database.rows(&format!("BEGIN; {statement}; {read}; ROLLBACK")).await;
    let counts = rows.last().expect("the last row has the counts");
    let count = |n: usize| counts[n].as_ref().and_then(|count| count.parse().ok()).expect("a count");
    (count(0), count(1))
}
