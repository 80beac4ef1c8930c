//! Rows with named columns: one list is what a query selects, and what the
//! reader of its rows takes.

/// Declares a row of one query. Each field names its column or expression, so
/// nothing is read by position. `sqlite` rows read with a `Result`, `postgres`
/// rows without one.
///
/// ```ignore
/// row! {
///     /// A lane, as its row has it.
///     sqlite struct LaneRow from "FROM lanes WHERE endpoint = ?" {
///         /// Key of the lane.
///         lane: String = "lane",
///         /// Number of the delivery at its head.
///         head: Option<i64> = "head",
///     }
/// }
/// let lane = db.prepare_cached(LaneRow::SQL)?.query_row([endpoint], LaneRow::read)?;
/// ```
macro_rules! row {
    (
        $(#[$doc:meta])*
        $kind:ident struct $name:ident from $from:literal {
            $(#[$first_doc:meta])* $first:ident: $first_type:ty = $first_column:literal,
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $column:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name {
            $(#[$first_doc])* pub $first: $first_type,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// The query that gives such rows.
            pub const SQL: &'static str = concat!("SELECT ", $first_column, $(", ", $column,)* " ", $from);
        }

        $crate::store::row::row!(@$kind $name { $first $($field)* });
    };
    (@sqlite $name:ident { $($field:ident)* }) => {
        impl $name {
            /// Reads a row of the query.
            pub fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
                let mut column = 0..;
                let mut next = || column.next().expect("columns are counted without end");
                Ok(Self { $($field: row.get(next())?,)* })
            }
        }
    };
    (@postgres $name:ident { $($field:ident)* }) => {
        impl $name {
            /// Reads a row of the query.
            pub fn read(row: &tokio_postgres::Row) -> Self {
                let mut column = 0..;
                let mut next = || column.next().expect("columns are counted without end");
                Self { $($field: row.get::<usize, _>(next()),)* }
            }
        }
    };
}

pub(crate) use row;
