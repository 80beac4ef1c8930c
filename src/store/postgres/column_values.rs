//! The columns of one row with the values that a statement writes into them.

use tokio_postgres::types::{ToSql, Type};

use crate::store::typed_parameter::{SqlParameter, SqlTyped};

/// Columns with their values, in the order of the parameters from `$1` on.
#[derive(Default)]
pub struct ColumnValues(Vec<(&'static str, Box<dyn ToSql + Sync + Send>, Type)>);

impl ColumnValues {
    /// Adds a column with its value.
    pub fn set<T: SqlTyped + Send + 'static>(mut self, column: &'static str, value: T) -> Self {
        self.0.push((column, Box::new(value), T::sql()));
        self
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> String {
        self.0.iter().map(|(column, ..)| *column).collect::<Vec<_>>().join(", ")
    }

    /// Returns the parameters as SQL names them: `$1, $2`.
    pub fn marks(&self) -> String {
        (1..=self.0.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ")
    }

    /// Returns what an `UPDATE` sets: `name = $1, url = $2`.
    pub fn assignments(&self) -> String {
        let assigned = self.0.iter().zip(1..).map(|((column, ..), n)| format!("{column} = ${n}"));
        assigned.collect::<Vec<_>>().join(", ")
    }

    /// Returns the values, then those of the parameters that follow them.
    pub fn parameters<'a>(&'a self, more: &[SqlParameter<'a>]) -> Vec<SqlParameter<'a>> {
        let values = self.0.iter().map(|(_, value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()));
        values.chain(more.iter().cloned()).collect()
    }

    /// Returns the mark of the first, second or third parameter that follows the
    /// values.
    pub fn mark(&self, follower: usize) -> String {
        format!("${}", self.0.len() + follower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_number_of_its_column_and_what_follows_the_next() {
        let row = ColumnValues::default().set("name", String::from("n")).set("size", 7_i64);
        assert_eq!((row.names(), row.marks()), ("name, size".into(), "$1, $2".into()));
        assert_eq!((row.assignments(), row.mark(1)), ("name = $1, size = $2".into(), "$3".into()));
        let more = [crate::store::typed_parameter::bound(&true)];
        let types: Vec<Type> = row.parameters(&more).into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(types, [Type::TEXT, Type::INT8, Type::BOOL]);
    }
}
