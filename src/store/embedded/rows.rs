//! Converts between rows and the values of the model.

use uuid::Uuid;

use crate::model::checksum::Checksum;
pub use crate::store::codes::*;
use crate::store::row::row;
use crate::store::row_error::RowError;
use crate::store::seal::SealError;
use crate::store::stored_json::UnreadableRecord;

/// An unknown code makes a row unreadable, like a value of the wrong type.
impl From<UnknownCode> for rusqlite::Error {
    fn from(code: UnknownCode) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Integer, Box::new(code))
    }
}

/// A text that another key sealed makes a row unreadable, too.
impl From<SealError> for rusqlite::Error {
    fn from(problem: SealError) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, Box::new(problem))
    }
}

/// A value of a newer version makes a row unreadable, too.
impl From<UnreadableRecord> for rusqlite::Error {
    fn from(record: UnreadableRecord) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(record))
    }
}

impl From<RowError> for rusqlite::Error {
    fn from(problem: RowError) -> Self {
        match problem {
            RowError::UnknownCode(code) => code.into(),
            RowError::Unreadable(record) => record.into(),
            RowError::Sealed(problem) => problem.into(),
        }
    }
}

/// Returns the value of a newer version that made a row unreadable, if that is the
/// reason.
pub fn unreadable_record(problem: &rusqlite::Error) -> Option<&UnreadableRecord> {
    match problem {
        rusqlite::Error::FromSqlConversionFailure(_, _, why) => why.downcast_ref(),
        _ => None,
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
pub fn separate_unknown_codes<T>(read: rusqlite::Result<T>) -> rusqlite::Result<Result<T, UnknownCode>> {
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

row! {
    /// The columns of a delivery that its request contains, besides its event.
    pub sqlite struct RequestColumns {
        /// Number of the delivery.
        no: i64 = "d.no",
        /// Creation time, which makes the id together with the number.
        created_at: i64 = "d.created_at",
        /// Code of the body format.
        format: i64 = "d.format",
        /// Position in its lane.
        seq: Option<i64> = "d.seq",
    }
}

impl RequestColumns {
    /// Returns the checksum of the row, which includes that of its event.
    pub fn checksum(&self, of_event: i64) -> i64 {
        [of_event, self.no, self.created_at, self.format, self.seq.unwrap_or(-1)]
            .into_iter()
            .fold(Checksum::default(), |sum, number| sum.number(number.cast_unsigned()))
            .finish()
    }
}
