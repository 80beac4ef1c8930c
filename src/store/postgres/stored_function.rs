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
//! made while the queue was empty. So the planner is set to ignore sizes and to look rows up through an index, one by one.

use aws_lc_rs::digest::{SHA256, digest};
use tokio_postgres::types::Type;

use crate::store::row::{Batch, PostgresColumns};

/// Planner settings for lookups by given keys, through an index.
pub const LOOKUPS: &str = "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off \
                           SET enable_mergejoin = off";
/// Planner settings for reads of the first rows in an index's order: no plan
/// may collect and sort all that waits, however little the statistics expect. No
/// process is started for it, as a plan for a huge table might.
pub const IN_ORDER: &str = "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off \
                            SET enable_hashjoin = off SET enable_mergejoin = off SET enable_hashagg = off \
                            SET max_parallel_workers_per_gather = 0";
/// Planner settings for joins of long parameter arrays with each other.
pub const BULK: &str = "SET enable_seqscan = off SET enable_nestloop = off";

/// A statement whose parameters have names. `{node}` is a single parameter;
/// `{rows}` are all arrays of a batch, `{rows.columns}` their columns, and
/// `{rows.no}` is the array of the column `no`.
pub struct NamedSql {
    sql: String,
    types: Vec<Type>,
}

impl NamedSql {
    /// Creates a statement without parameters.
    pub fn new(sql: &str) -> Self {
        Self { sql: sql.into(), types: Vec::new() }
    }

    /// Adds a single parameter.
    pub fn parameter(mut self, name: &str, kind: Type) -> Self {
        self.types.push(kind);
        let number = format!("${}", self.types.len());
        self.replace(name, &number)
    }

    /// Adds the arrays of a batch.
    pub fn batch<B: Batch>(mut self, name: &str) -> Self {
        let first = self.types.len() + 1;
        self.types.extend(B::types());
        let arrays: Vec<String> = (first..=self.types.len()).map(|n| format!("${n}")).collect();
        let named = self.replace(name, &arrays.join(", ")).replace(&format!("{name}.columns"), B::COLUMNS);
        B::COLUMNS
            .split(", ")
            .zip(&arrays)
            .fold(named, |sql, (column, array)| sql.replace(&format!("{name}.{column}"), array))
    }

    /// Puts a text into the place of a name.
    pub fn replace(mut self, name: &str, text: &str) -> Self {
        self.sql = self.sql.replace(&format!("{{{name}}}"), text);
        self
    }

    /// Returns the statement, to be sent as text.
    pub fn text(self) -> String {
        self.sql
    }
}

/// Returns a statement and its parameters, which are given with their names.
macro_rules! by_name {
    ($sql:expr; $($name:ident = $value:expr),* $(,)?) => {{
        let bound = vec![$($crate::store::typed_parameter::bound(&$value)),*];
        let sql = $crate::store::postgres::stored_function::NamedSql::new($sql);
        let names = [$(stringify!($name)),*].into_iter().zip(&bound);
        (names.fold(sql, |sql, (name, (_, kind))| sql.parameter(name, kind.clone())).text(), bound)
    }};
}
pub(crate) use by_name;

/// A statement that is a function in the database.
pub struct StoredFunction {
    /// Name of the function.
    pub name: String,
    /// Statement that creates it.
    pub definition: String,
    call: String,
}

impl StoredFunction {
    /// Creates a function that runs a single statement and returns its rows.
    pub fn query<Row: PostgresColumns>(name: &str, planner: &str, sql: NamedSql) -> Self {
        let sql = NamedSql { sql: format!("BEGIN\nRETURN QUERY\n{};\nEND", sql.sql), ..sql };
        Self::body::<Row>(name, planner, sql)
    }

    /// Creates a function with this body.
    pub fn body<Row: PostgresColumns>(name: &str, planner: &str, body: NamedSql) -> Self {
        let mut columns = Vec::new();
        Row::add_types(&mut columns);
        let columns: Vec<String> = columns.iter().enumerate().map(|(n, kind)| format!("c{n} {kind}")).collect();
        let takes: Vec<&str> = body.types.iter().map(Type::name).collect();
        let rest = format!(
            "({}) RETURNS TABLE ({}) LANGUAGE plpgsql
             SET plan_cache_mode = force_generic_plan SET jit = off {planner}
             AS $routine$\n#variable_conflict use_column\n{}\n$routine$",
            takes.join(", "),
            columns.join(", "),
            body.sql,
        );
        let hash = digest(&SHA256, rest.as_bytes());
        let hash: String = hash.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{name}_{hash}");
        let parameters: Vec<String> = (1..=takes.len()).map(|n| format!("${n}")).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::event_row::EventBatch;
    use crate::store::row::batch;

    batch! {
        struct Pairs of new Pair {
            no: i64 = "no",
            name: Option<String> = "name",
        }
    }

    #[test]
    fn parameters_are_numbered_in_the_order_in_which_they_are_added() {
        let sql = "SELECT {node}, {all.columns} FROM unnest({all}) AS a ({all.columns}) WHERE {last} AND {all.name}";
        let sql = NamedSql::new(sql).parameter("node", Type::INT8).batch::<Pairs>("all").parameter("last", Type::BOOL);
        assert_eq!(sql.types, [Type::INT8, Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::BOOL]);
        assert_eq!(sql.text(), "SELECT $1, no, name FROM unnest($2, $3) AS a (no, name) WHERE $4 AND $3");
    }

    #[test]
    fn a_batch_has_a_type_and_an_array_for_every_column() {
        let mut pairs = Pairs::default();
        pairs.push(Pair { no: 7, name: None });
        assert_eq!(pairs.parameters().len(), Pairs::types().len());
        assert_eq!(EventBatch::types().len(), EventBatch::COLUMNS.split(", ").count());
    }
}
