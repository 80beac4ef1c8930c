//! The budget of a delivery as both stores write it.

use std::time::Duration;

use super::codes::{at, millis};
use super::row::row;
use crate::model::delivery::{Progress, ShortBudgetCounts};
use crate::model::span::Span;

row! {
    /// The columns of a delivery's budget. A column of its own for every field,
    /// in every table of deliveries.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub both struct ProgressColumns {
        /// Attempts made in the delivery's whole life.
        attempts: i32 = "d.attempts",
        /// Attempts made before the present budget began.
        attempts_before: i32 = "d.attempts_before",
        /// Time from which its age counts, in milliseconds.
        age_from: Option<i64> = "d.age_from",
        /// Time that its endpoint was held before that, in milliseconds.
        held_before: i64 = "d.held_before",
        /// Answers of the short budget for 404.
        not_found: i32 = "d.not_found",
        /// Failures of the short budget for unknown names.
        no_such_name: i32 = "d.no_such_name",
        /// Failures of the short budget for forbidden targets.
        forbidden_target: i32 = "d.forbidden_target",
        /// Time at which the present budget began, in milliseconds.
        begun_at: i64 = "coalesce(d.replayed_at, d.created_at)",
        /// The last delay drawn, in microseconds.
        last_delay: Option<i64> = "d.last_delay",
        /// The age limit of the last verdict, in milliseconds.
        max_age: Option<i64> = "d.max_age",
    }
}

impl From<&Progress> for ProgressColumns {
    fn from(progress: &Progress) -> Self {
        Self {
            attempts: progress.attempts as i32,
            attempts_before: progress.attempts_before as i32,
            age_from: progress.age_from.map(millis),
            held_before: progress.held_before.as_millis() as i64,
            not_found: progress.short_budget_counts.not_found as i32,
            no_such_name: progress.short_budget_counts.no_such_name as i32,
            forbidden_target: progress.short_budget_counts.forbidden_target as i32,
            begun_at: progress.begun_at.map_or(0, millis),
            last_delay: progress.last_delay.map(|delay| delay.as_micros() as i64),
            max_age: progress.max_age.map(|age| age.as_millis() as i64),
        }
    }
}

impl From<ProgressColumns> for Progress {
    fn from(columns: ProgressColumns) -> Self {
        let count = |count: i32| count.max(0) as u32;
        let number = |number: i64| number.max(0) as u64;
        Self {
            attempts: count(columns.attempts),
            attempts_before: count(columns.attempts_before),
            age_from: columns.age_from.map(at),
            held_before: Duration::from_millis(number(columns.held_before)),
            short_budget_counts: ShortBudgetCounts {
                not_found: count(columns.not_found),
                no_such_name: count(columns.no_such_name),
                forbidden_target: count(columns.forbidden_target),
            },
            begun_at: Some(at(columns.begun_at)),
            last_delay: columns.last_delay.map(|micros| Duration::from_micros(number(micros))),
            max_age: columns.max_age.map(|millis| Span::millis(number(millis))),
        }
    }
}
