//! Retain: forgets what has been kept long enough, a little at a time.

use std::ops::Range;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::model::delivery::after;
use crate::model::rate::roughly;
use crate::model::span::Span;
use crate::store::{AccessStore, DeliveryQueue, ForgottenCounts, Result, RetentionHorizon, Store};

/// How long things are kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Delivered and cancelled deliveries, and events without any.
    pub finished: Span,
    /// Dead letters.
    pub dead: Span,
    /// The data of events that no endpoint wanted.
    pub unmatched: Span,
    /// The audit log.
    pub audit: Span,
}

/// How many events one step looks at: a few milliseconds of the writer.
const STEP: usize = 200;
/// A breath between steps, so that a long sweep is never in anyone's way.
const BREATH: Duration = Duration::from_millis(20);

/// When the first sweep is: a process that starts has better things to do at
/// first, and many that start together should not sweep together.
const FIRST_SECONDS: Range<f64> = 10.0..60.0;

/// Sweeps now and then, for ever.
pub async fn run(store: &dyn Store, clock: &dyn Clock, retention: Retention) {
    let first_in = Duration::from_secs_f64(rand::random_range(FIRST_SECONDS));
    clock.sleep_until(after(clock.now(), first_in)).await;
    loop {
        if let Err(problem) = sweep_audit(store, clock, retention).await {
            warn!("the audit log could not be swept, and is next time: {problem}");
        }
        match sweep(store, clock, retention).await {
            Ok(ForgottenCounts { events: 0, deliveries: 0, .. }) => {}
            Ok(ForgottenCounts { events, deliveries, .. }) => {
                info!(events, deliveries, "forgot {events} events and {deliveries} deliveries past their retention");
            }
            Err(problem) => warn!("forgetting stopped and is tried again later: {problem}"),
        }
        clock.sleep_until(after(clock.now(), pause(retention, rand::random()))).await;
    }
}

/// How long to rest between sweeps. About a minute at least and about an hour
/// at most, so short retentions are kept in time.
fn pause(retention: Retention, draw: f64) -> Duration {
    let every =
        (retention.finished.min(retention.unmatched).0 / 24).clamp(Duration::from_secs(60), Duration::from_secs(3_600));
    roughly(every, draw)
}

/// Looks at everything once, and forgets what is old enough.
pub async fn sweep(store: &dyn DeliveryQueue, clock: &dyn Clock, retention: Retention) -> Result<ForgottenCounts> {
    let now = clock.now();
    let mut total = ForgottenCounts::default();
    let mut looked_until = 0;
    loop {
        let horizon = RetentionHorizon {
            finished_before: before(now, retention.finished),
            dead_before: before(now, retention.dead),
            unmatched_before: before(now, retention.unmatched),
            after: looked_until,
            step: STEP,
        };
        let forgotten = store.forget(horizon).await?;
        total.events += forgotten.events;
        total.deliveries += forgotten.deliveries;
        match forgotten.next {
            Some(next) => looked_until = next,
            None => return Ok(total),
        }
        if forgotten.deliveries + forgotten.events > 0 {
            clock.sleep_until(after(clock.now(), BREATH)).await;
        }
    }
}

/// Forgets what of the audit log is old enough; returns how many entries.
pub async fn sweep_audit(store: &dyn AccessStore, clock: &dyn Clock, retention: Retention) -> Result<usize> {
    let end = before(clock.wall(), retention.audit);
    let mut total = 0;
    loop {
        let gone = store.forget_audit(end, STEP).await?;
        total += gone;
        if gone < STEP {
            return Ok(total);
        }
        clock.sleep_until(after(clock.now(), BREATH)).await;
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
