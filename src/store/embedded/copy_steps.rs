//! Copies the store a few pages at a time, on the writer's own connection and
//! between its commits.
//!
//! SQLite brings pages that were copied already up to date when the same
//! connection writes them. From any other connection each commit would make the
//! copy begin anew, and one long read would keep the log from being checkpointed.
//!
//! Invariant: when the last step is done, the copy is the store as of the last
//! commit before that step.

use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use tokio::sync::oneshot;

use super::failure::failure_of;
use crate::store::{Error, Result};

/// A part of a copy that the writer makes between two commits.
pub enum CopyRequest {
    /// Begins a copy into this empty database; a copy that is under way is given up.
    Begin {
        /// Database that is copied into.
        to: Connection,
        /// Answered once the copy has begun.
        answer: oneshot::Sender<Result<()>>,
    },
    /// Copies some more pages.
    Step {
        /// Number of pages to copy.
        pages: i32,
        /// Answered with how far the copy is.
        answer: oneshot::Sender<Result<CopyStep>>,
    },
    /// Gives the copy up.
    End,
}

/// State of a copy after a step.
#[derive(Debug, Clone, Copy)]
pub struct CopyStep {
    /// Whether the copy is complete.
    pub end: Option<CopyEnd>,
    /// Pages that are still to be copied.
    pub remaining: i32,
    /// Pages of the store.
    pub page_count: i32,
    /// Time that the step took on the writer's thread.
    pub took: Duration,
    /// Jobs that the writer committed since the step before.
    pub jobs: usize,
}

/// Last event and delivery that a complete copy has to contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyEnd {
    /// Number of the last event.
    pub last_event: Option<i64>,
    /// Number of the last delivery.
    pub last_delivery: Option<i64>,
}

impl CopyEnd {
    /// Reads what a store contains.
    pub fn of(db: &Connection) -> rusqlite::Result<Self> {
        db.query_row("SELECT (SELECT max(no) FROM events), (SELECT max(no) FROM deliveries)", [], |row| {
            Ok(Self { last_event: row.get(0)?, last_delivery: row.get(1)? })
        })
    }
}

/// Copies some pages. `from` is the database that `copy` reads.
pub fn step(from: &Connection, copy: &Backup<'_, '_>, pages: i32, jobs: usize) -> Result<CopyStep> {
    let began = Instant::now();
    let end = match copy.step(pages).map_err(|problem| copy_failure(&problem))? {
        StepResult::Done => Some(CopyEnd::of(from).map_err(|problem| failure_of(&problem))?),
        StepResult::More => None,
        // Nobody else has the copy open, and the writer is between two transactions.
        _ => return Err(Error::Unavailable("the copy of the store is locked by something else".into())),
    };
    let progress = copy.progress();
    Ok(CopyStep { end, remaining: progress.remaining, page_count: progress.pagecount, took: began.elapsed(), jobs })
}

/// A failure of the copy's own file is none of the store's.
pub fn copy_failure(problem: &rusqlite::Error) -> Error {
    Error::Unavailable(format!("the copy of the store cannot be written: {problem}").into())
}
