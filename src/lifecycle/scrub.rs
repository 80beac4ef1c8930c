//! Compares stored events with their checksums, in small steps, so that damage
//! is found before an event is needed.

use std::time::Duration;

use tracing::{error, info, warn};

use super::Gateway;
use crate::clock::Clock;
use crate::model::delivery::time_after;
use crate::model::rate::vary_by_tenth;
use crate::store::{DeliveryQueue, Result, ScrubStep};

/// Events that one step checks.
const STEP: usize = 100;
/// Shortest rest after a step.
const REST: Duration = Duration::from_millis(250);
/// Length of the rest after a step, as a multiple of the step's own time, so
/// that scrubbing costs little however slow the disk is.
const REST_TIMES: u32 = 50;
/// Rest after a pass over all events.
const PAUSE: Duration = Duration::from_secs(3_600);

/// Checks all events, pass after pass; never returns.
pub async fn run(gateway: std::sync::Arc<Gateway>) {
    let clock = gateway.clock.clone();
    clock.sleep_until(time_after(clock.now(), vary_by_tenth(Duration::from_secs(30), rand::random()))).await;
    loop {
        match pass(&gateway).await {
            Ok((checked, 0)) => {
                info!(checked, "compared {checked} stored events with their checksums; all are as accepted")
            }
            Ok((checked, damaged)) => {
                error!(checked, damaged, "{damaged} of {checked} stored events are damaged; check the disk")
            }
            Err(problem) => {
                warn!(
                    "comparing stored events with their checksums failed and starts again from the beginning later: {problem}"
                )
            }
        }
        clock.sleep_until(time_after(clock.now(), vary_by_tenth(PAUSE, rand::random()))).await;
    }
}

/// Checks every event once; returns how many were checked, and how many of
/// them are damaged.
async fn pass(gateway: &Gateway) -> Result<(usize, usize)> {
    let (store, clock): (&dyn DeliveryQueue, &dyn Clock) = (gateway.store.as_ref(), gateway.clock.as_ref());
    let (mut checked, mut damaged, mut next) = (0, 0, Some(0));
    while let Some(from) = next {
        let began = clock.now();
        let report = store.scrub(ScrubStep { after: from, limit: STEP }).await?;
        checked += report.checked;
        damaged += report.damaged.len();
        gateway.metrics.count_damaged(report.damaged.len());
        for (tenant, event) in report.damaged {
            error!(event.id = %event, tenant.id = %tenant, "stored event {event} is damaged: it does not match its checksum and is never sent");
        }
        next = report.next;
        let took = u64::try_from(clock.now().as_millisecond() - began.as_millisecond()).unwrap_or(0);
        let took = Duration::from_millis(took);
        clock.sleep_until(time_after(clock.now(), REST.max(took * REST_TIMES))).await;
    }
    Ok((checked, damaged))
}
