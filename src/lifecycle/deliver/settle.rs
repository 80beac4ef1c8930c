//! Writes what came of a claim, and keeps at it until the store takes it.

use std::time::Duration;

use jiff::Timestamp;
use tracing::{error, info, warn};
use url::Url;

use super::DeliveryContext;
use super::attempt::log_expired;
use crate::lifecycle::traces::SettledAttempt;
use crate::model::attempt::Attempt;
use crate::model::delivery::{Progress, time_after};
use crate::model::figures::{CountedAttempt, CountedEnd, CountedSettlement};
use crate::model::next_state::NextState;
use crate::model::rate::vary_by_tenth;
use crate::model::result_class::ResultClass;
use crate::model::shard::Lease;
use crate::store::{Claim, ClaimOutcome, Error, SettleEffects, Settlement};

/// End of the work on a claim.
#[derive(Debug)]
pub enum ClaimEnd {
    /// The outcome is written, or there is none to write.
    Settled(SettleEffects, CountedSettlement),
    /// The outcome was written before, by a call whose answer got lost.
    Repeated(SettleEffects, CountedSettlement),
    /// No request was made, or none whose answer counts. The delivery stays as
    /// it is, and may be tried again then.
    Unsent {
        /// Time at which it may be tried again.
        due_at: Timestamp,
    },
    /// Another node dispatches the endpoint.
    Stale,
}

impl ClaimEnd {
    /// Returns the end of a claim of which there is nothing to write.
    pub fn nothing() -> Self {
        Self::without_outcome(SettleEffects::default())
    }

    /// Returns the end of a claim of which nothing is counted.
    pub fn without_outcome(effects: SettleEffects) -> Self {
        Self::Settled(effects, CountedSettlement::default())
    }
}

/// Writes the outcome of a claim. The outcome is known now, so a store in
/// trouble is asked again until it takes it: repeating the request instead
/// would be a duplicate. It is written under the lease that the attempt was
/// made under, so once another node has taken over, the store says so.
pub async fn settle(context: &DeliveryContext, claim: &Claim, lease: Lease, outcome: ClaimOutcome) -> ClaimEnd {
    let settlement = Settlement { id: claim.id, endpoint: claim.endpoint, now: context.clock.now(), outcome };
    loop {
        match context.store.settle(lease, settlement.clone()).await {
            Ok(effects) => return report_settled(context, claim, &settlement, effects),
            Err(Error::Stale(shard)) => {
                info!(delivery.id = %claim.id, endpoint.id = %claim.endpoint,
                      "the outcome of an attempt is not recorded, because shard {} has another owner", shard.0);
                context.notifier.metrics().count_stale_write();
                return ClaimEnd::Stale;
            }
            Err(problem) => {
                warn!(delivery.id = %claim.id, endpoint.id = %claim.endpoint,
                      "the outcome of an attempt could not be recorded yet, and is written again: {problem}");
                // Never all in step, or the store would be asked by all at once.
                let pause = vary_by_tenth(Duration::from_secs(1), context.draw());
                context.clock.sleep_until(time_after(context.clock.now(), pause)).await;
            }
        }
    }
}

/// Counts and reports what was written.
fn report_settled(
    context: &DeliveryContext,
    claim: &Claim,
    settlement: &Settlement,
    effects: SettleEffects,
) -> ClaimEnd {
    let outcome = &settlement.outcome;
    if let ClaimOutcome::Attempted { next: NextState::Waiting { .. }, expiry_check_at: Some(at), .. } = outcome {
        context.expiry.schedule_check(*at);
    }
    if claim.event.is_self_test() {
        context.notifier.report_self_test();
    } else if !effects.is_void {
        let accepted_at = claim.event.accepted_at;
        let in_slo_since = is_in_slo(&claim.progress, accepted_at).then_some(accepted_at);
        context.notifier.report_settled(settlement, in_slo_since, &effects);
        match outcome {
            ClaimOutcome::Attempted { attempt, next, .. } => {
                context.notifier.tail().publish(context.clock.as_ref(), claim, attempt, next);
                trace_attempt(context, claim, (attempt, next), settlement.now);
            }
            ClaimOutcome::Expired { by, .. } => log_expired(claim.id, claim.endpoint, &claim.event.tenant, *by),
            _ => {}
        }
    }
    let counted = count_settlement(context, claim, settlement, &effects);
    if effects.is_repeat { ClaimEnd::Repeated(effects, counted) } else { ClaimEnd::Settled(effects, counted) }
}

/// Makes the spans of an attempt, if traces are exported. Its outcome was being
/// written since `began`.
fn trace_attempt(context: &DeliveryContext, claim: &Claim, (attempt, next): (&Attempt, &NextState), began: Timestamp) {
    let Some(tracer) = context.notifier.tracer() else { return };
    let written = (began, context.clock.now());
    let settled = SettledAttempt { claim, attempt, next, written, offset: context.clock.wall_offset() };
    tracer.trace_settled(settled, || {
        let endpoint = context.store.any_endpoint(claim.endpoint)?;
        // The URL may have changed since the attempt.
        let is_current = endpoint.urls.number() == attempt.url_version;
        let url = is_current.then(|| Url::parse(&endpoint.settings.url).ok()).flatten()?;
        Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
    });
}

/// Returns what figures count of a settlement: nothing, if nothing was written or
/// it is a self-test.
fn count_settlement(
    context: &DeliveryContext,
    claim: &Claim,
    settlement: &Settlement,
    effects: &SettleEffects,
) -> CountedSettlement {
    if effects.is_void || claim.event.is_self_test() {
        return CountedSettlement::default();
    }
    let is_in_slo = is_in_slo(&claim.progress, claim.event.accepted_at);
    let dead = effects.died.map(|cause| CountedEnd::Dead { cause, is_in_slo });
    let ClaimOutcome::Attempted { attempt, next, progress, .. } = &settlement.outcome else {
        return CountedSettlement { attempt: None, end: dead };
    };
    let used = progress.used_attempts();
    let delivered = (*next == NextState::Delivered).then(|| {
        let took = context.clock.now().duration_since(claim.event.accepted_at).as_millis();
        CountedEnd::Delivered { used, took_ms: u64::try_from(took).unwrap_or(0), is_in_slo }
    });
    let waited = progress.age_from.map_or(0, |first| first.duration_since(claim.event.accepted_at).as_millis());
    let attempt = CountedAttempt {
        verdict: attempt.decision.verdict,
        result: ResultClass::of(attempt),
        latency_ms: attempt.timings.total,
        used,
        status: attempt.status,
        delay_ms: (is_in_slo && used == 1).then(|| u64::try_from(waited).unwrap_or(0)),
    };
    CountedSettlement { attempt: Some(attempt), end: delivered.or(dead) }
}

/// Puts back a claim whose processing failed inside the gateway. One that
/// fails so again and again is dead, and delays no one outside its lane.
pub async fn put_back_after_internal_error(
    context: &DeliveryContext,
    claim: &Claim,
    lease: Lease,
    problem: String,
) -> ClaimEnd {
    error!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %claim.endpoint,
           "attempt failed inside the gateway; not counted, tried again later: {problem}");
    if context.store.any_endpoint(claim.endpoint).is_none() {
        return ClaimEnd::nothing();
    }
    let due_at = time_after(context.clock.now(), context.put_back_delay());
    settle(context, claim, lease, ClaimOutcome::InternalError { due_at, error: problem }).await
}

/// Whether the service-level goal speaks of a delivery: a replay, which has a
/// budget that began after the acceptance, says nothing about our speed.
pub fn is_in_slo(progress: &Progress, accepted_at: Timestamp) -> bool {
    let is_replay = progress.begun_at.is_some_and(|begun_at| begun_at.as_millisecond() > accepted_at.as_millisecond());
    progress.attempts_before == 0 && !is_replay
}
