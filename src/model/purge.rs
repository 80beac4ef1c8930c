//! How far the purge of a tenant has come.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The progress of a purge, which is stored with each step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeProgress {
    /// What is deleted now.
    pub stage: PurgeStage,
    /// Position within the stage, if it has one.
    pub after: i64,
    /// Number of rows deleted, by kind.
    pub rows: BTreeMap<String, u64>,
}

/// What a purge deletes, in this order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PurgeStage {
    /// Everything that names the tenant or one of its endpoints.
    #[default]
    Rows,
    /// Figures, which are ordered by time.
    Figures,
    /// Operational events about the tenant, which belong to the system tenant.
    OperationalEvents,
    /// No rows are left: freed space is overwritten.
    Overwrite,
}

impl PurgeProgress {
    /// Counts deleted rows of a kind.
    pub fn count(&mut self, kind: &str, rows: usize) {
        if rows > 0 {
            *self.rows.entry(kind.to_owned()).or_default() += rows as u64;
        }
    }

    /// Adds the rows of another progress.
    pub fn add(&mut self, rows: &BTreeMap<String, u64>) {
        for (kind, count) in rows {
            *self.rows.entry(kind.clone()).or_default() += count;
        }
    }

    /// Returns the number of rows deleted so far.
    pub fn total(&self) -> u64 {
        self.rows.values().sum()
    }

    /// Goes on to another stage, from its beginning.
    pub fn enter(&mut self, stage: PurgeStage) {
        (self.stage, self.after) = (stage, 0);
    }
}
