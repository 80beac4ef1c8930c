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
        // Our own statements name only what the migrations have made.
        _ if is_about_schema(problem) => Error::Unavailable(
            format!("the schema of the store is damaged ({problem}); restore it from a backup").into(),
        ),
        _ => Error::Unavailable(problem.to_string().into()),
    }
}

fn is_about_schema(problem: &rusqlite::Error) -> bool {
    let text = problem.to_string();
    text.contains("no such column") || text.contains("no such table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_is_not_there_is_told_as_damage() {
        let db = rusqlite::Connection::open_in_memory().expect("it opens");
        db.execute_batch("CREATE TABLE deliveries (not_founf INTEGER)").expect("it is made");
        let problem = db.prepare("SELECT not_found FROM deliveries").map(|_| ()).expect_err("it is another name");
        assert!(failure_of(&problem).to_string().contains("the schema of the store is damaged"), "{problem}");
    }
}
