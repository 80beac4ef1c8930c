//! Why a row of a store cannot be read.

use super::codes::UnknownCode;
use super::error::Error;
use super::seal::SealError;
use super::stored_json::UnreadableRecord;

/// The reason why a row cannot be read. The row itself stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// A code that only a newer version knows.
    #[error(transparent)]
    UnknownCode(#[from] UnknownCode),
    /// A value that only a newer version can read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableRecord),
    /// A text that another key sealed.
    #[error(transparent)]
    Sealed(#[from] SealError),
}

impl From<RowError> for Error {
    fn from(problem: RowError) -> Self {
        match problem {
            RowError::UnknownCode(code) => code.into(),
            RowError::Unreadable(record) => record.into(),
            RowError::Sealed(problem) => problem.into(),
        }
    }
}
