//! Deletes events, deliveries and audit entries past their retention, in small
//! steps.

use std::ops::Range;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::model::delivery::after;
use crate::model::rate::roughly;
use crate::model::span::Span;
use crate::store::{AccessStore, DeliveryQueue, ForgottenCounts, Result, RetentionHorizon, Store};

/// Time that each kind of record is kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Time that delivered and cancelled deliveries are kept, and events without any.
    pub finished: Span,
    /// Time that dead letters are kept.
    pub dead: Span,
    /// Time that the data of events without a matching endpoint is kept.
    pub unmatched: Span,
    /// Time that audit entries are kept.
    pub audit: Span,
}

/// Events that one step checks: a few milliseconds of the store's writer.
const STEP: usize = 200;
/// How long jobs are kept after their end.
const JOBS_KEPT: Span = Span::secs(90 * 86_400);
/// Pause between steps, so that a long sweep does not delay other writes.
const STEP_PAUSE: Duration = Duration::from_millis(20);

/// Seconds from the start to the first sweep. A starting process has more
/// urgent work, and nodes that start together should not sweep together.
const FIRST_SECONDS: Range<f64> = 10.0..60.0;

/// Sweeps periodically; never returns.
pub async fn run(store: &dyn Store, clock: &dyn Clock, retention: Retention) {
    let first_in = Duration::from_secs_f64(rand::random_range(FIRST_SECONDS));
    clock.sleep_until(after(clock.now(), first_in)).await;
    loop {
        if let Err(problem) = sweep_audit(store, clock, retention).await {
            warn!("deleting old audit entries failed and is tried again later: {problem}");
        }
        if let Err(problem) = store.forget_jobs(before(clock.now(), JOBS_KEPT)).await {
            warn!("deleting old jobs failed and is tried again later: {problem}");
        }
        match sweep(store, clock, retention).await {
            Ok(ForgottenCounts { events: 0, deliveries: 0, .. }) => {}
            Ok(ForgottenCounts { events, deliveries, .. }) => {
                info!(events, deliveries, "deleted {events} events and {deliveries} deliveries past their retention");
            }
            Err(problem) => warn!("deleting events past their retention failed and is tried again later: {problem}"),
        }
        clock.sleep_until(after(clock.now(), pause(retention, rand::random()))).await;
    }
}

/// Returns the time between sweeps: between a minute and an hour, shorter for
/// short retentions, give or take a tenth.
fn pause(retention: Retention, draw: f64) -> Duration {
    let every =
        (retention.finished.min(retention.unmatched).0 / 24).clamp(Duration::from_secs(60), Duration::from_secs(3_600));
    roughly(every, draw)
}

/// Checks every event once, and deletes what is past its retention.
pub async fn sweep(store: &dyn DeliveryQueue, clock: &dyn Clock, retention: Retention) -> Result<ForgottenCounts> {
    let now = clock.now();
    let mut total = ForgottenCounts::default();
    let mut checked_until = 0;
    loop {
        let horizon = RetentionHorizon {
            finished_before: before(now, retention.finished),
            dead_before: before(now, retention.dead),
            unmatched_before: before(now, retention.unmatched),
            after: checked_until,
            step: STEP,
        };
        let forgotten = store.forget(horizon).await?;
        total.events += forgotten.events;
        total.deliveries += forgotten.deliveries;
        match forgotten.next {
            Some(next) => checked_until = next,
            None => return Ok(total),
        }
        if forgotten.deliveries + forgotten.events > 0 {
            clock.sleep_until(after(clock.now(), STEP_PAUSE)).await;
        }
    }
}

/// Deletes audit entries past their retention; returns how many.
pub async fn sweep_audit(store: &dyn AccessStore, clock: &dyn Clock, retention: Retention) -> Result<usize> {
    let end = before(clock.wall(), retention.audit);
    let mut total = 0;
    loop {
        let deleted = store.forget_audit(end, STEP).await?;
        total += deleted;
        if deleted < STEP {
            return Ok(total);
        }
        clock.sleep_until(after(clock.now(), STEP_PAUSE)).await;
    }
}

fn before(now: Timestamp, span: Span) -> Timestamp {
    let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(now.as_millisecond().saturating_sub(millis)).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sweeps_are_in_step_and_none_is_late() {
        let kept_for = |seconds| Retention {
            finished: Span::secs(seconds),
            dead: Span::secs(seconds),
            unmatched: Span::secs(30 * 86_400),
            audit: Span::secs(seconds),
        };
        let minutes = |seconds, draw| pause(kept_for(seconds), draw).as_secs_f64() / 60.0;
        assert_eq!((minutes(60, 0.0), minutes(60, 0.5)), (0.9, 1.0));
        assert_eq!((minutes(30 * 86_400, 0.0), minutes(30 * 86_400, 0.5)), (54.0, 60.0));
        assert!(minutes(30 * 86_400, 0.999_999) < 66.0);
    }
}
