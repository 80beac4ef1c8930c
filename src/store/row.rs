//! Rows with named columns: one list is what a statement names, and the order
//! in which its values are read or written.

use rusqlite::types::{FromSql, ToSql};
use tokio_postgres::types::{FromSqlOwned, Type};

use super::typed_parameter::{SqlParameter, SqlTyped};

/// A value that is read from SQLite: one column, or a group of them.
pub trait SqliteColumns: Sized {
    /// Reads from column `next` on, and moves `next` past what was read.
    fn read_next(row: &rusqlite::Row<'_>, next: &mut usize) -> rusqlite::Result<Self>;

    /// Reads a row from its first column on.
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Self::read_next(row, &mut 0)
    }
}

impl<T: FromSql> SqliteColumns for T {
    fn read_next(row: &rusqlite::Row<'_>, next: &mut usize) -> rusqlite::Result<Self> {
        let column = *next;
        *next += 1;
        row.get(column)
    }
}

/// A value that is read from PostgreSQL: one column, or a group of them.
pub trait PostgresColumns: Sized {
    /// Reads from column `next` on, and moves `next` past what was read.
    fn read_next(row: &tokio_postgres::Row, next: &mut usize) -> Self;

    /// Adds the types of its columns.
    fn add_types(types: &mut Vec<Type>);

    /// Reads a row from its first column on.
    fn read(row: &tokio_postgres::Row) -> Self {
        Self::read_next(row, &mut 0)
    }
}

impl<T: FromSqlOwned + SqlTyped> PostgresColumns for T {
    fn read_next(row: &tokio_postgres::Row, next: &mut usize) -> Self {
        let column = *next;
        *next += 1;
        row.get(column)
    }

    fn add_types(types: &mut Vec<Type>) {
        types.push(T::sql());
    }
}

/// Two groups of columns, one after the other.
impl<A: PostgresColumns, B: PostgresColumns> PostgresColumns for (A, B) {
    fn read_next(row: &tokio_postgres::Row, next: &mut usize) -> Self {
        (A::read_next(row, next), B::read_next(row, next))
    }

    fn add_types(types: &mut Vec<Type>) {
        A::add_types(types);
        B::add_types(types);
    }
}

/// A value that is written to SQLite: one column, or a group of them.
pub trait SqliteParameters {
    /// A question mark for each column.
    const MARKS: &'static str;

    /// Binds the values from parameter `next` on, and moves `next` past them.
    fn bind(&self, statement: &mut rusqlite::Statement<'_>, next: &mut usize) -> rusqlite::Result<()>;
}

impl<T: ToSql> SqliteParameters for T {
    const MARKS: &'static str = "?";

    fn bind(&self, statement: &mut rusqlite::Statement<'_>, next: &mut usize) -> rusqlite::Result<()> {
        let parameter = *next;
        *next += 1;
        statement.raw_bind_parameter(parameter, self)
    }
}

/// Rows that are written to PostgreSQL together, each column as one array.
pub trait Batch {
    /// Names of the columns.
    const COLUMNS: &'static str;

    /// Returns the types of the arrays.
    fn types() -> Vec<Type>;

    /// Whether there are no rows.
    fn is_empty(&self) -> bool;

    /// Returns the arrays as parameters.
    fn parameters(&self) -> Vec<SqlParameter<'_>>;
}

/// Returns the length of texts joined by another.
pub const fn joined_length(between: &str, parts: &[&str]) -> usize {
    let (mut length, mut n) = (0, 0);
    while n < parts.len() {
        length += parts[n].len() + if n > 0 { between.len() } else { 0 };
        n += 1;
    }
    length
}

/// Returns the bytes of texts joined by another.
pub const fn joined_bytes<const LENGTH: usize>(between: &str, parts: &[&str]) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let (mut end, mut n) = (0, 0);
    while n < parts.len() {
        if n > 0 {
            end = append(&mut bytes, end, between);
        }
        end = append(&mut bytes, end, parts[n]);
        n += 1;
    }
    bytes
}

const fn append(bytes: &mut [u8], end: usize, text: &str) -> usize {
    let mut n = 0;
    while n < text.len() {
        bytes[end + n] = text.as_bytes()[n];
        n += 1;
    }
    end + n
}

/// Joins constant texts when the program is compiled, as `concat!` joins
/// literals.
macro_rules! joined {
    ($between:literal; $($part:expr),* $(,)?) => {{
        const PARTS: &[&str] = &[$($part),*];
        const BYTES: [u8; $crate::store::row::joined_length($between, PARTS)] =
            $crate::store::row::joined_bytes($between, PARTS);
        match std::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("joined texts are a text"),
        }
    }};
}
pub(crate) use joined;

/// Declares a row that is read, or a group of its columns. Each field names
/// its column or expression, or its group's columns, so nothing is read by
/// position. Rows are read from `sqlite`, `postgres` or `both`; a row with a
/// `from` has the whole query, too.
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
        $vis:vis $kind:ident struct $name:ident $(from $from:literal)? {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $column:expr,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// The columns that it is read from.
            pub const COLUMNS: &'static str = $crate::store::row::joined!(", "; $($column),*);
            $(
                /// The query that gives such rows.
                pub const SQL: &'static str = $crate::store::row::joined!(" "; "SELECT", $name::COLUMNS, $from);
            )?
        }

        $crate::store::row::row!(@$kind $name { $($field: $type,)* });
    };
    (@both $name:ident $fields:tt) => {
        $crate::store::row::row!(@sqlite $name $fields);
        $crate::store::row::row!(@postgres $name $fields);
    };
    (@sqlite $name:ident { $($field:ident: $type:ty,)* }) => {
        impl $crate::store::row::SqliteColumns for $name {
            fn read_next(row: &rusqlite::Row<'_>, next: &mut usize) -> rusqlite::Result<Self> {
                Ok(Self { $($field: $crate::store::row::SqliteColumns::read_next(row, next)?,)* })
            }
        }
    };
    (@postgres $name:ident { $($field:ident: $type:ty,)* }) => {
        impl $crate::store::row::PostgresColumns for $name {
            fn read_next(row: &tokio_postgres::Row, next: &mut usize) -> Self {
                Self { $($field: $crate::store::row::PostgresColumns::read_next(row, next),)* }
            }

            fn add_types(types: &mut Vec<tokio_postgres::types::Type>) {
                $(<$type as $crate::store::row::PostgresColumns>::add_types(types);)*
            }
        }
    };
}
pub(crate) use row;

/// Declares a row that is inserted into a table of SQLite. `SQL` is the
/// statement, and `insert` runs it.
macro_rules! insert {
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident into $table:literal $(, $end:literal)? {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $column:expr,)*
        }
    ) => {
        $(#[$doc])*
        $vis struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// The statement that inserts such a row.
            pub const SQL: &'static str = $crate::store::row::joined!(
                ""; "INSERT INTO ", $table, " (", $crate::store::row::joined!(", "; $($column),*), ") VALUES (",
                $crate::store::row::joined!(", "; $(<$type as $crate::store::row::SqliteParameters>::MARKS),*), ")",
                $(" ", $end,)?
            );

            /// Inserts the row. Returns the number of rows that were inserted.
            pub fn insert(&self, db: &rusqlite::Connection) -> rusqlite::Result<usize> {
                let statement = &mut db.prepare_cached(Self::SQL)?;
                let next = &mut 1;
                $($crate::store::row::SqliteParameters::bind(&self.$field, statement, next)?;)*
                statement.raw_execute()
            }
        }
    };
}
pub(crate) use insert;

/// Declares what an update of one row of a table of SQLite writes. Each field
/// has its assignment, and `key` finds the row. `SQL` is the statement, and
/// `update` runs it.
///
/// With `where` the row must be like that, too: whoever needs several statements
/// composes them of `ASSIGNMENTS` and `CONDITIONS`, and `bind` gives one its values.
macro_rules! update {
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident {
            $($field:ident: $type:ty = $assignment:literal,)*
        } where {
            $($known:ident: $known_type:ty = $condition:literal,)*
        }
    ) => {
        $(#[$doc])*
        $vis struct $name {
            $($field: $type,)*
            $($known: $known_type,)*
        }

        impl $name {
            /// What is written.
            pub const ASSIGNMENTS: &'static str = $crate::store::row::joined!(", "; $($assignment),*);
            /// What the row must be like.
            pub const CONDITIONS: &'static str = $crate::store::row::joined!(" AND "; $($condition),*);

            /// Binds the values to a statement that has the assignments first.
            pub fn bind(&self, statement: &mut rusqlite::Statement<'_>) -> rusqlite::Result<()> {
                let next = &mut 1;
                $($crate::store::row::SqliteParameters::bind(&self.$field, statement, next)?;)*
                $($crate::store::row::SqliteParameters::bind(&self.$known, statement, next)?;)*
                Ok(())
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident of $table:literal by $key:literal {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $assignment:literal,)*
        }
    ) => {
        $(#[$doc])*
        $vis struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// The statement that writes it.
            pub const SQL: &'static str = $crate::store::row::joined!(
                ""; "UPDATE ", $table, " SET ", $crate::store::row::joined!(", "; $($assignment),*), " WHERE ", $key, " = ?"
            );

            /// Writes to the row with this key. Returns the number of rows that were written.
            pub fn update(&self, db: &rusqlite::Connection, key: i64) -> rusqlite::Result<usize> {
                let statement = &mut db.prepare_cached(Self::SQL)?;
                let next = &mut 1;
                $($crate::store::row::SqliteParameters::bind(&self.$field, statement, next)?;)*
                $crate::store::row::SqliteParameters::bind(&key, statement, next)?;
                statement.raw_execute()
            }
        }
    };
}
pub(crate) use update;

/// Declares a [`Batch`] of a row, and with `of new` the row itself.
macro_rules! batch {
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident of new $row:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $column:literal,)*
        }
    ) => {
        #[doc = concat!("A row of [`", stringify!($name), "`].")]
        #[derive(Clone)]
        $vis struct $row {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        $crate::store::row::batch! {
            $(#[$doc])*
            $vis struct $name of $row { $($field: $type = $column,)* }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident of $row:ident {
            $($field:ident: $type:ty = $column:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Default)]
        $vis struct $name {
            $($field: Vec<$type>,)*
        }

        impl $name {
            /// Adds a row.
            pub fn push(&mut self, row: $row) {
                $(self.$field.push(row.$field);)*
            }
        }

        impl FromIterator<$row> for $name {
            fn from_iter<I: IntoIterator<Item = $row>>(rows: I) -> Self {
                let mut batch = Self::default();
                rows.into_iter().for_each(|row| batch.push(row));
                batch
            }
        }

        impl $crate::store::row::Batch for $name {
            const COLUMNS: &'static str = $crate::store::row::joined!(", "; $($column),*);

            fn types() -> Vec<tokio_postgres::types::Type> {
                vec![$(<Vec<$type> as $crate::store::typed_parameter::SqlTyped>::sql(),)*]
            }

            fn is_empty(&self) -> bool {
                $(self.$field.is_empty())&&*
            }

            fn parameters(&self) -> Vec<$crate::store::typed_parameter::SqlParameter<'_>> {
                vec![$($crate::store::typed_parameter::bound(&self.$field),)*]
            }
        }
    };
}
pub(crate) use batch;

#[cfg(test)]
mod tests {
    use super::*;

    row! {
        /// A group that begins in the middle of a row.
        sqlite struct Pair {
            /// The first of the pair.
            left: i64 = "a.left",
            /// The second of the pair.
            right: Option<String> = "a.right",
        }
    }

    row! {
        /// A row with a group between two columns.
        sqlite struct Whole from "FROM things a WHERE a.no = ?" {
            no: i64 = "a.no",
            pair: Pair = Pair::COLUMNS,
            sum: i64 = "a.no + a.left",
        }
    }

    insert! {
        /// A row to insert, in another order than it is read.
        struct NewThing into "things", "ON CONFLICT DO NOTHING" {
            right: Option<String> = "right",
            left: i64 = "left",
            no: i64 = "no",
        }
    }

    update! {
        /// An update, in another order than the table's.
        struct ThingUpdate of "things" by "no" {
            right: Option<String> = "right = ?",
            left: i64 = "left = left + ?",
        }
    }

    update! {
        /// An update of things that are as they were.
        struct KnownThing {
            right: Option<String> = "right = ?",
        } where {
            left: i64 = "left = ?",
            no: i64 = "no = ?",
        }
    }

    #[test]
    fn an_update_with_conditions_changes_only_what_meets_them() {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        db.execute_batch("CREATE TABLE things (left INTEGER, no INTEGER PRIMARY KEY, right TEXT)").unwrap();
        NewThing { right: None, left: 7, no: 3 }.insert(&db).unwrap();
        let sql = joined!(""; "UPDATE things SET ", KnownThing::ASSIGNMENTS, " WHERE ", KnownThing::CONDITIONS);
        let changed = |left| {
            let mut statement = db.prepare(sql).unwrap();
            KnownThing { right: Some("r".into()), left, no: 3 }.bind(&mut statement).unwrap();
            statement.raw_execute().unwrap()
        };
        assert_eq!((changed(3), changed(7)), (0, 1));
    }

    #[test]
    fn each_column_is_written_and_read_under_its_own_name() {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        db.execute_batch("CREATE TABLE things (left INTEGER, no INTEGER PRIMARY KEY, right TEXT)").unwrap();
        let thing = NewThing { right: Some("r".into()), left: 7, no: 3 };
        assert_eq!((thing.insert(&db).unwrap(), thing.insert(&db).unwrap()), (1, 0), "the second is known");
        let Whole { no, pair, sum } = db.query_row(Whole::SQL, [3], Whole::read).unwrap();
        assert_eq!((no, pair.left, pair.right.as_deref(), sum), (3, 7, Some("r"), 10));
        let update = ThingUpdate { right: Some("s".into()), left: 2 };
        assert_eq!((update.update(&db, 3).unwrap(), update.update(&db, 4).unwrap()), (1, 0), "there is no fourth");
        let Whole { pair, .. } = db.query_row(Whole::SQL, [3], Whole::read).unwrap();
        assert_eq!((pair.left, pair.right.as_deref()), (9, Some("s")));
    }
}
