//! Converts between rows and the values of the model.

use rusqlite::Row;
use uuid::Uuid;

use crate::model::checksum::Checksum;
use crate::model::delivery::Progress;
pub use crate::store::codes::*;
use crate::store::progress_columns::ProgressColumns;

/// An unknown code makes a row unreadable, like a value of the wrong type.
impl From<UnknownCode> for rusqlite::Error {
    fn from(code: UnknownCode) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Integer, Box::new(code))
    }
}

/// Returns the unknown code that made a row unreadable, if that is the reason.
pub fn unknown_code(problem: &rusqlite::Error) -> Option<UnknownCode> {
    match problem {
        rusqlite::Error::FromSqlConversionFailure(_, _, why) => why.downcast_ref().copied(),
        _ => None,
    }
}

/// Separates unknown codes from failures of the store. Only a failure may roll
/// back a transaction that other jobs share.
pub fn known<T>(read: rusqlite::Result<T>) -> rusqlite::Result<Result<T, UnknownCode>> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(problem) => unknown_code(&problem).map(Err).ok_or(problem),
    }
}

/// Returns the bytes of an id.
pub fn id_bytes(id: Uuid) -> [u8; 16] {
    *id.as_bytes()
}

/// Returns the id with these bytes.
pub fn uuid_of(bytes: [u8; 16]) -> Uuid {
    Uuid::from_bytes(bytes)
}

/// Returns the row number of an attempt.
pub fn attempt_no(delivery: i64, number: u32) -> i64 {
    (delivery << 20) | i64::from(number & 0xf_ffff)
}

/// The columns of a delivery that its request contains, besides its event.
#[derive(Debug, Clone, Copy)]
pub struct RequestColumns {
    /// Number of the delivery.
    pub no: i64,
    /// Creation time, which makes the id together with the number.
    pub created_at: i64,
    /// Code of the body format.
    pub format: i64,
    /// Position in its lane.
    pub seq: Option<i64>,
}

impl RequestColumns {
    /// Returns the checksum of the row, which includes that of its event.
    pub fn checksum(&self, of_event: i64) -> i64 {
        [of_event, self.no, self.created_at, self.format, self.seq.unwrap_or(-1)]
            .into_iter()
            .fold(Checksum::default(), |sum, number| sum.number(number.cast_unsigned()))
            .end()
    }
}

/// The columns that [`progress_from`] reads, of a table called `d`.
pub const PROGRESS: &str = "d.attempts, d.attempts_before, d.age_from, d.held_before,
    d.not_found, d.no_such_name, d.forbidden_target, coalesce(d.replayed_at, d.created_at), d.last_delay, d.max_age";

/// Reads a progress from ten columns that begin at `first`.
pub fn progress_from(row: &Row<'_>, first: usize) -> rusqlite::Result<Progress> {
    Ok(Progress::from(ProgressColumns {
        attempts: row.get(first)?,
        attempts_before: row.get(first + 1)?,
        age_from: row.get(first + 2)?,
        held_before: row.get(first + 3)?,
        not_found: row.get(first + 4)?,
        no_such_name: row.get(first + 5)?,
        forbidden_target: row.get(first + 6)?,
        begun_at: row.get(first + 7)?,
        last_delay: row.get(first + 8)?,
        max_age: row.get(first + 9)?,
    }))
}
