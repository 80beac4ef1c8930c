//! Deletes events, deliveries and audit entries past their retention, and sign-ins
//! past their end, in small steps.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use super::Gateway;
use crate::clock::Clock;
use crate::model::delivery::{time_after, time_before};
use crate::model::rate::vary_by_tenth;
use crate::model::sign_in::SESSION_IDLE_MAX;
use crate::model::span::Span;
use crate::model::tenant::{Tenant, TenantRetention};
use crate::store::{AccessStore, ForgottenCounts, Result, RetentionHorizon, RetentionScope, SignInStore};

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

impl Retention {
    /// Returns the retention of a tenant: its own, where it has one.
    pub fn of(self, own: TenantRetention) -> Self {
        Self { finished: own.finished.unwrap_or(self.finished), dead: own.dead.unwrap_or(self.dead), ..self }
    }
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
pub async fn run(gateway: Arc<Gateway>, retention: Retention) {
    let (store, clock) = (gateway.store.as_ref(), gateway.clock.as_ref());
    let first_in = Duration::from_secs_f64(rand::random_range(FIRST_SECONDS));
    clock.sleep_until(time_after(clock.now(), first_in)).await;
    loop {
        if let Err(problem) = sweep_audit(store, clock, retention).await {
            warn!("deleting old audit entries failed and is tried again later: {problem}");
        }
        if let Err(problem) = sweep_sign_ins(store, clock).await {
            warn!("deleting old sign-ins failed and is tried again later: {problem}");
        }
        if let Err(problem) = store.forget_jobs(time_before(clock.now(), JOBS_KEPT.0)).await {
            warn!("deleting old jobs failed and is tried again later: {problem}");
        }
        match sweep(&gateway, retention).await {
            Ok(ForgottenCounts { events: 0, deliveries: 0, .. }) => {}
            Ok(ForgottenCounts { events, deliveries, dead, .. }) => {
                let words = format!("deleted {events} events and {deliveries} deliveries past their retention");
                match dead {
                    0 => info!(events, deliveries, "{words}"),
                    _ => {
                        warn!(events, deliveries, dead, "{words}; {dead} of them were dead letters that never arrived")
                    }
                }
            }
            Err(problem) => warn!("deleting events past their retention failed and is tried again later: {problem}"),
        }
        if let Err(problem) = report_forgotten(&gateway).await {
            warn!(
                "operational events about forgotten dead letters are not written, and are tried again later: {problem}"
            );
        }
        let own = tenants_apart(&gateway).into_iter().map(|tenant| retention.of(tenant.retention).finished).min();
        clock.sleep_until(time_after(clock.now(), time_between_sweeps(retention, own, rand::random()))).await;
    }
}

/// Returns the time between sweeps: between a minute and an hour, shorter for
/// short retentions, give or take a tenth.
fn time_between_sweeps(retention: Retention, shortest_own: Option<Span>, draw: f64) -> Duration {
    let shortest = retention.finished.min(retention.unmatched).min(shortest_own.unwrap_or(retention.finished));
    vary_by_tenth((shortest.0 / 24).clamp(Duration::from_secs(60), Duration::from_secs(3_600)), draw)
}

/// Makes a pass for each tenant that has a retention of its own, and one for all others.
/// Days are dropped at the longest retention of any tenant.
async fn sweep(gateway: &Gateway, retention: Retention) -> Result<ForgottenCounts> {
    let tenants = tenants_apart(gateway);
    let now = gateway.clock.now();
    let mut total = ForgottenCounts::default();
    for tenant in &tenants {
        let scope = RetentionScope::Only(tenant.id.clone());
        pass(gateway, retention.of(tenant.retention), scope, now, &mut total).await?;
    }
    let own = tenants.iter().map(|tenant| retention.of(tenant.retention).finished);
    let longest = own.chain([retention.finished]).max().unwrap_or(retention.finished);
    let except = tenants.iter().map(|tenant| tenant.id.clone()).collect();
    let scope = RetentionScope::All { except, days_before: time_before(now, longest.0) };
    pass(gateway, retention, scope, now, &mut total).await?;
    Ok(total)
}

/// Returns the tenants that have a retention of their own.
fn tenants_apart(gateway: &Gateway) -> Vec<Arc<Tenant>> {
    gateway.store.tenants().into_iter().filter(|tenant| !tenant.retention.is_default()).collect()
}

/// Checks every event of a scope once, and deletes what is past its retention.
async fn pass(
    gateway: &Gateway,
    retention: Retention,
    scope: RetentionScope,
    now: Timestamp,
    total: &mut ForgottenCounts,
) -> Result<()> {
    let (store, clock) = (gateway.store.as_ref(), gateway.clock.as_ref());
    let mut checked_until = 0;
    loop {
        let horizon = RetentionHorizon {
            scope: scope.clone(),
            finished_before: time_before(now, retention.finished.0),
            dead_before: time_before(now, retention.dead.0),
            unmatched_before: time_before(now, retention.unmatched.0),
            after: checked_until,
            step: STEP,
        };
        let forgotten = store.forget(horizon).await?;
        total.events += forgotten.events;
        total.deliveries += forgotten.deliveries;
        total.dead += forgotten.dead;
        gateway.metrics.count_forgotten_dead_letters(forgotten.dead);
        match forgotten.next {
            Some(next) => checked_until = next,
            None => return Ok(()),
        }
        if forgotten.deliveries + forgotten.events > 0 {
            clock.sleep_until(time_after(clock.now(), STEP_PAUSE)).await;
        }
    }
}

/// Reports the dead letters that were forgotten: one operational event for each
/// endpoint, whatever their number. It also reports what an earlier sweep could not.
async fn report_forgotten(gateway: &Gateway) -> Result<()> {
    loop {
        let report = gateway.store.report_forgotten(gateway.clock.now()).await?;
        gateway.dispatcher.admit(report.freed);
        gateway.notifier.operational_events_written(&report.operational_events);
        if report.is_complete {
            return Ok(());
        }
    }
}

/// Deletes audit entries past their retention; returns how many.
pub async fn sweep_audit(store: &dyn AccessStore, clock: &dyn Clock, retention: Retention) -> Result<usize> {
    let end = time_before(clock.wall(), retention.audit.0);
    let mut total = 0;
    loop {
        let deleted = store.forget_audit(end, STEP).await?;
        total += deleted;
        if deleted < STEP {
            return Ok(total);
        }
        clock.sleep_until(time_after(clock.now(), STEP_PAUSE)).await;
    }
}

/// Deletes codes and sessions that are over; returns how many.
pub async fn sweep_sign_ins(store: &dyn SignInStore, clock: &dyn Clock) -> Result<usize> {
    let mut total = 0;
    loop {
        let now = clock.wall();
        // A use may be on its way to the store for some minutes.
        let deleted = store.forget_sign_ins(now, time_before(now, 2 * SESSION_IDLE_MAX.0), STEP).await?;
        total += deleted;
        if deleted < STEP {
            return Ok(total);
        }
        clock.sleep_until(time_after(clock.now(), STEP_PAUSE)).await;
    }
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
        let minutes = |seconds, draw| time_between_sweeps(kept_for(seconds), None, draw).as_secs_f64() / 60.0;
        assert_eq!((minutes(60, 0.0), minutes(60, 0.5)), (0.9, 1.0));
        assert_eq!((minutes(30 * 86_400, 0.0), minutes(30 * 86_400, 0.5)), (54.0, 60.0));
        assert!(minutes(30 * 86_400, 0.999_999) < 66.0);
        let of_tenant = time_between_sweeps(kept_for(30 * 86_400), Some(Span::secs(12 * 3_600)), 0.5);
        assert_eq!(of_tenant, Duration::from_secs(1_800), "a tenant with a short retention is swept as often");
    }
}
