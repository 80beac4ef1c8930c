//! Figures of the whole store that are measured now and then: how many dead
//! letters there are, what is in retry for long, and which jobs are not over.
//!
//! Reading them costs a look into the store, and whoever scrapes needs no token.
//! So one reading is shown to all who ask within a few seconds.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Mutex;
use tracing::debug;

use super::Gateway;
use super::deliver::tls::certificate_end;
use crate::model::dead_letter_group::{GroupBy, GroupFilter};
use crate::store::{LongRetries, OpenJobCounts, Result};

/// For how long a reading is shown.
const KEPT: Duration = Duration::from_secs(15);
/// How long a scrape waits for the store.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after its first attempt from which a delivery has been in retry for long.
pub const LONG_RETRY: Duration = Duration::from_secs(86_400);

/// Gauges of the whole store.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreGauges {
    /// Number of dead letters.
    pub dead_letters: u64,
    /// Time at which the oldest of them died, in engine time.
    pub oldest_dead_at: Option<Timestamp>,
    /// Deliveries that have been in retry for over a day.
    pub long_retries: LongRetries,
    /// Jobs that are not over.
    pub jobs: OpenJobCounts,
    /// Wall time at which the first client certificate of an endpoint ends.
    pub certificate_ends_at: Option<Timestamp>,
    /// Wall time at which the first replaced secret of an endpoint ends.
    pub secret_ends_at: Option<Timestamp>,
}

/// The last reading, and when it was made.
#[derive(Debug, Default)]
pub struct StoreGaugeCache(Mutex<Option<(Timestamp, Option<StoreGauges>)>>);

impl StoreGaugeCache {
    /// Returns what is known of the store; nothing while it does not answer.
    pub async fn get(&self, gateway: &Gateway) -> Option<StoreGauges> {
        let mut last = self.0.lock().await;
        let now = gateway.clock.now();
        if let Some((read_at, gauges)) = *last
            && read_at > time_before(now, KEPT)
        {
            return gauges;
        }
        let gauges = match tokio::time::timeout(PATIENCE, read(gateway, now)).await {
            Ok(Ok(gauges)) => Some(gauges),
            Ok(Err(problem)) => {
                debug!("the figures of the whole store could not be read: {problem}");
                None
            }
            Err(_) => None,
        };
        *last = Some((now, gauges));
        gauges
    }
}

async fn read(gateway: &Gateway, now: Timestamp) -> Result<StoreGauges> {
    let store = &gateway.store;
    let whole = GroupFilter { by: Some(GroupBy::of(&[])), ..GroupFilter::default() };
    let dead = store.dead_letter_groups(None, whole, 1).await?;
    let long_retries = store.long_retries(None, None, time_before(now, LONG_RETRY)).await?;
    let jobs = store.open_job_counts().await?;
    let wall = gateway.clock.wall();
    let tenants = store.tenants();
    let (mut certificate_ends_at, mut secret_ends_at) = (None, None);
    for endpoint in tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id)) {
        let certificate = endpoint.settings.tls.client_certificate.as_deref().and_then(certificate_end);
        let secret = endpoint.secrets.iter().filter_map(|secret| secret.expires_at).filter(|at| *at > wall).min();
        certificate_ends_at = earlier_time(certificate_ends_at, certificate);
        secret_ends_at = earlier_time(secret_ends_at, secret);
    }
    Ok(StoreGauges {
        dead_letters: dead.count,
        oldest_dead_at: dead.oldest_at,
        long_retries,
        jobs,
        certificate_ends_at,
        secret_ends_at,
    })
}

/// Returns the time this long before another.
pub fn time_before(now: Timestamp, span: Duration) -> Timestamp {
    now.checked_sub(span).unwrap_or(Timestamp::MIN)
}

fn earlier_time(known: Option<Timestamp>, found: Option<Timestamp>) -> Option<Timestamp> {
    known.into_iter().chain(found).min()
}
