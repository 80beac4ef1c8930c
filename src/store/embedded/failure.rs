//! Sorts SQLite's errors, and ends the process when the disk failed.

use tracing::error;

use super::rows::{unknown_code, unreadable_record};
use crate::store::Error;

/// Exit code `EX_IOERR` of sysexits.h: the disk failed, or its data is damaged.
const EXIT_IO: i32 = 74;

/// Sorts SQLite's errors by what the caller can do about them. A failed sync
/// leaves the file in an unknown state, so the process must not go on.
pub fn failure_of(problem: &rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    if let Some(code) = unknown_code(problem) {
        return Error::UnknownCode(code);
    }
    if let Some(record) = unreadable_record(problem) {
        return Error::Unreadable(record.clone());
    }
    match problem.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full(problem.to_string()),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            error!(
                "the disk failed under the store ({problem}); stopping with exit code 74, so that nothing is promised that may be lost"
            );
            std::process::exit(EXIT_IO);
        }
        _ => Error::Unavailable(problem.to_string()),
    }
}
