//! Scrub: compares stored events with their checksums, a little at a time,
//! so that damage is found before the event is needed.

use std::time::Duration;

use tracing::{error, info, warn};

use super::Gateway;
use crate::clock::Clock;
use crate::model::delivery::after;
use crate::model::rate::roughly;
use crate::store::{DeliveryQueue, Result, ScrubStep};

/// How many events are looked at together.
const STEP: usize = 100;
/// How long to rest after a look, at least.
const REST: Duration = Duration::from_millis(250);
/// A look is followed by a rest this many times as long, so that it costs
/// little however slow the disk is.
const REST_TIMES: u32 = 50;
/// How long to rest after everything was looked at.
const PAUSE: Duration = Duration::from_secs(3_600);

/// Looks at everything again and again, for ever.
pub async fn run(gateway: std::sync::Arc<Gateway>) {
    let clock = gateway.clock.clone();
    clock.sleep_until(after(clock.now(), roughly(Duration::from_secs(30), rand::random()))).await;
    loop {
        match pass(&gateway).await {
            Ok((checked, 0)) => {
                info!(checked, "compared {checked} stored events with their checksums; all are as accepted")
            }
            Ok((checked, damaged)) => {
                error!(checked, damaged, "{damaged} of {checked} stored events are damaged; check the disk")
            }
            Err(problem) => {
                warn!("comparing stored events with their checksums stopped, and begins anew later: {problem}")
            }
        }
        clock.sleep_until(after(clock.now(), roughly(PAUSE, rand::random()))).await;
    }
}

/// Looks at everything once; returns how many events there were, and how many
/// of them are damaged.
async fn pass(gateway: &Gateway) -> Result<(usize, usize)> {
    let (store, clock): (&dyn DeliveryQueue, &dyn Clock) = (gateway.store.as_ref(), gateway.clock.as_ref());
    let (mut checked, mut damaged, mut next) = (0, 0, Some(0));
    while let Some(from) = next {
        let began = clock.now();
        let found = store.scrub(ScrubStep { after: from, limit: STEP }).await?;
        checked += found.checked;
        damaged += found.damaged.len();
        gateway.metrics.damaged(found.damaged.len());
        for (tenant, event) in found.damaged {
            error!(event.id = %event, tenant.id = %tenant, "what is stored of event {event} is damaged; it is never sent");
        }
        next = found.next;
        let took = u64::try_from(clock.now().as_millisecond() - began.as_millisecond()).unwrap_or(0);
        let took = Duration::from_millis(took);
        clock.sleep_until(after(clock.now(), REST.max(took * REST_TIMES))).await;
    }
    Ok((checked, damaged))
}
