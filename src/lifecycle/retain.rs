//! Retain: forgets what has been kept long enough, a little at a time.

use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::model::delivery::after;
use crate::model::span::Span;
use crate::store::{Forgotten, Horizon, Queue, Result};

/// How long things are kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Delivered and cancelled deliveries, and events without any.
    pub finished: Span,
    /// Dead letters.
    pub dead: Span,
}

/// How many events one step looks at: a few milliseconds of the writer.
const STEP: usize = 200;
/// A breath between steps, so that a long sweep is never in anyone's way.
const BREATH: Duration = Duration::from_millis(20);

/// Sweeps now and then, for ever. Never more often than once a minute and
/// never less than once an hour, so short retentions are kept in time.
pub async fn run(store: &dyn Queue, clock: &dyn Clock, retention: Retention) {
    let every = (retention.finished.0 / 24).clamp(Duration::from_secs(60), Duration::from_secs(3_600));
    loop {
        match sweep(store, clock, retention).await {
            Ok(Forgotten { events: 0, deliveries: 0, .. }) => {}
            Ok(Forgotten { events, deliveries, .. }) => {
                info!(events, deliveries, "forgot {events} events and {deliveries} deliveries past their retention");
            }
            Err(problem) => warn!("forgetting stopped and is tried again later: {problem}"),
        }
        clock.sleep_until(after(clock.now(), every)).await;
    }
}

/// Looks at everything once, and forgets what is old enough.
pub async fn sweep(store: &dyn Queue, clock: &dyn Clock, retention: Retention) -> Result<Forgotten> {
    let now = clock.now();
    let mut total = Forgotten::default();
    let mut looked_until = 0;
    loop {
        let horizon = Horizon {
            finished_before: before(now, retention.finished),
            dead_before: before(now, retention.dead),
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

fn before(now: Timestamp, span: Span) -> Timestamp {
    let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(now.as_millisecond().saturating_sub(millis)).unwrap_or(Timestamp::MIN)
}
