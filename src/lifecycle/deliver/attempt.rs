//! Makes one attempt and decides what it means. Nothing is written here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::HeaderMap;
use jiff::Timestamp;
use tokio::sync::Notify;
use tracing::{error, info, warn};

use super::DeliveryContext;
use super::lease_guard::{LeaseGuard, run_within, time_needed};
use super::sign::{TRACE_HEADERS, sha256_hex, sign, trace_headers};
use crate::lifecycle::expiry_schedule::just_after;
use crate::model::answer::{Answer, FailureKind};
use crate::model::attempt::{Attempt, Decision};
use crate::model::blocker::{Capacity, DeliveryConditions, EndpointConditions};
use crate::model::delivery::{DeadlineSource, time_after};
use crate::model::endpoint::Endpoint;
use crate::model::endpoint_event::DisableCause;
use crate::model::explain::{answer_words, secret_change};
use crate::model::headers::is_reserved;
use crate::model::health::{BreakerInput, EndpointHealth};
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::named_enum::NamedEnum;
use crate::model::next_state::{AttemptTimes, NextState, next_state};
use crate::model::shard::Lease;
use crate::model::signing::SignatureProfile;
use crate::model::verdict::judge;
use crate::store::{Claim, ClaimOutcome, EndpointUpdate};

/// The result of a claim, before anything is written.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the common variant is the large one, and is moved once")]
pub enum ClaimResult {
    /// An outcome to settle, with what the answer says about the endpoint.
    Outcome(ClaimOutcome, Option<AttemptResult>),
    /// The endpoint was deleted: nothing is written.
    Deleted,
    /// The endpoint was closed between the claim's turn and now: nothing is
    /// written, and the delivery stays as it is.
    Closed,
    /// The lease was too short: no request was made, or none whose answer
    /// counts. The delivery stays as it is, and may be tried again then.
    Unsent {
        /// Time at which it may be tried again.
        due_at: Timestamp,
    },
    /// The endpoint is dispatched by another node.
    Stale,
}

/// Facts that an answer gives about its endpoint as a whole.
#[derive(Debug, Clone)]
pub struct AttemptResult {
    /// The answer as the circuit breaker sees it.
    pub breaker_input: BreakerInput,
    /// Whether the receiver answered at all, and did not just hold the line.
    pub is_answer: bool,
    /// Time until which the receiver asks for no further requests.
    pub backpressure_until: Option<Timestamp>,
    /// Why the receiver asks never to be called again, if it does.
    pub disables: Option<DisableCause>,
    /// A random number in `[0, 1)` for the breaker.
    pub draw: f64,
}

/// The right to call one endpoint.
struct LeasedEndpoint<'a> {
    context: &'a DeliveryContext,
    endpoint: &'a Endpoint,
    lease: Lease,
}

impl LeasedEndpoint<'_> {
    fn is_current(&self) -> bool {
        self.context.store.lease(&self.endpoint.tenant, self.endpoint.id) == self.lease
    }

    /// Returns the result of a claim that the lease was too short for.
    fn too_short(&self) -> ClaimResult {
        if self.is_current() {
            ClaimResult::Unsent { due_at: time_after(self.context.clock.now(), self.context.lease_delay()) }
        } else {
            ClaimResult::Stale
        }
    }
}

impl LeaseGuard for LeasedEndpoint<'_> {
    fn ends_at(&self) -> Option<Instant> {
        self.context.store.leased_until()
    }

    fn is_revoked(&self) -> bool {
        self.context.is_aborting.load(Ordering::SeqCst) || !self.is_current()
    }

    fn lease_moves(&self) -> &Notify {
        &self.context.leases_changed
    }
}

/// Makes one attempt.
pub async fn attempt(context: &DeliveryContext, claim: &Claim, lease: Lease) -> ClaimResult {
    let Some(endpoint) = context.store.any_endpoint(claim.endpoint) else { return ClaimResult::Deleted };
    let started_at = context.clock.now();
    if !may_attempt(&endpoint, claim, started_at) {
        return ClaimResult::Closed;
    }
    let leased = LeasedEndpoint { context, endpoint: &endpoint, lease };
    if !leased.fits(time_needed(endpoint.timeout().total.0, context.store.lease_length())) {
        return leased.too_short();
    }
    if claim.is_damaged {
        error!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %endpoint.id, tenant.id = %endpoint.tenant,
               "delivery is dead (damaged), nothing was sent: the stored event does not match its checksum; check the disk");
        return ClaimResult::Outcome(ClaimOutcome::Damaged, None);
    }
    let limits = context.expiry.limits(&endpoint, claim.expires_at, started_at);
    if let Some(end) = claim.progress.deadline(&limits).filter(|end| started_at > end.at) {
        return ClaimResult::Outcome(ClaimOutcome::Expired { by: end.by, progress: claim.progress }, None);
    }
    let wall = context.clock.wall();
    let mut request = match sign(claim, &endpoint, &context.links, wall) {
        Ok(request) => request,
        Err(why) => {
            error!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %endpoint.id,
                   "attempt not started and not counted, tried again later: {why}");
            let due_at = time_after(started_at, context.put_back_delay());
            return ClaimResult::Outcome(ClaimOutcome::PutBack { due_at }, None);
        }
    };
    let traceparent = pass_trace_on(context, claim, &mut request.headers);
    let body_sha256 = sha256_hex(&request.body);
    let Some(answer) = run_within(&leased, context.sender.send(request)).await else { return leased.too_short() };
    let sent = SentRequest { endpoint: &endpoint, started_at, wall, body_sha256, traceparent };
    let (outcome, result) = decide(context, claim, sent, answer);
    if !claim.event.is_self_test() && is_logged(context, &outcome) {
        log_attempt(claim, &endpoint, &outcome);
    }
    ClaimResult::Outcome(outcome, result)
}

/// Whether this claim may still be attempted, by what is written: its endpoint
/// may have been closed between its turn and now. The breaker and the room were
/// the dispatcher's to weigh, and it has let the claim go.
fn may_attempt(endpoint: &Endpoint, claim: &Claim, now: Timestamp) -> bool {
    let endpoint = EndpointConditions {
        state: endpoint.status.state,
        backpressure_until: endpoint.backpressure_until,
        health: &EndpointHealth::default(),
        capacity: Capacity::Free,
    };
    let delivery = DeliveryConditions { due_at: now, is_urgent: claim.is_urgent, is_behind: false };
    endpoint.blocker(delivery, now).is_none()
}

/// A request that was sent, with the endpoint as it was then: it may change
/// meanwhile.
struct SentRequest<'a> {
    endpoint: &'a Endpoint,
    started_at: Timestamp,
    /// The wall time that was signed.
    wall: Timestamp,
    body_sha256: String,
    /// The `traceparent` that was sent.
    traceparent: Option<String>,
}

/// Adds the headers of the trace that the event belongs to, in place of custom ones,
/// if its producer gave one. Returns the `traceparent`.
fn pass_trace_on(context: &DeliveryContext, claim: &Claim, headers: &mut HeaderMap) -> Option<String> {
    let trace = claim.event.trace.as_ref()?;
    let span = context.notifier.tracer().and_then(|tracer| tracer.attempt_span(claim));
    let traceparent = span.map_or_else(|| trace.traceparent().to_owned(), |span| trace.traceparent_of(span));
    TRACE_HEADERS.iter().for_each(|name| drop(headers.remove(name)));
    headers.extend(trace_headers(&traceparent, trace.tracestate()));
    Some(traceparent)
}

/// Decides what the answer means for the delivery, by the endpoint's present
/// rules and policy, and what it says about the endpoint.
fn decide(
    context: &DeliveryContext,
    claim: &Claim,
    sent: SentRequest<'_>,
    answer: Answer,
) -> (ClaimOutcome, Option<AttemptResult>) {
    let now = context.clock.now();
    if matches!(&answer.result, Err(failure) if failure.kind == FailureKind::Ours) {
        return (ClaimOutcome::PutBack { due_at: time_after(now, context.put_back_delay()) }, None);
    }
    // Deleted meanwhile, nothing will come of it; but the attempt was made.
    let known = context.store.any_endpoint(claim.endpoint);
    let endpoint = known.as_deref().unwrap_or(sent.endpoint);
    let limits = context.expiry.limits(endpoint, claim.expires_at, now);
    let judgement = judge(&answer, &endpoint.settings.status_rules);
    let mut progress = claim.progress;
    let moment = AttemptTimes { started_at: sent.started_at, now, wall: context.clock.wall(), draw: context.draw() };
    let step = next_state(&mut progress, &limits, &answer, &judgement, moment);
    // Once the URL has changed, this answer says nothing about the endpoint.
    let is_theirs = endpoint.urls.number() == sent.endpoint.urls.number();
    let expiry_check_at = progress.deadline(&limits).map(|end| just_after(end.at));
    let started_at = sent.started_at;
    let decision = step.decision.to_wall_time(context.clock.wall_offset());
    let created_at = context.clock.wall_offset().wall(sent.endpoint.created_at);
    let sent_secrets = &sent.endpoint.secrets;
    let attempt = Arc::new(attempt_record(progress.attempts, sent, answer, decision));
    let is_timeout = attempt.error.as_ref().is_some_and(|failure| failure.kind == FailureKind::Timeout);
    let changed = secret_change(sent_secrets, created_at, &attempt);
    let answer = changed.into_iter().fold(answer_words(&attempt), |answer, changed| format!("{answer}, and {changed}"));
    let result = is_theirs.then(|| AttemptResult {
        breaker_input: BreakerInput {
            verdict: judgement.verdict,
            is_limited: attempt.status == Some(429),
            is_asked: claim.is_urgent,
            started_at,
            answer,
        },
        is_answer: !is_timeout,
        backpressure_until: step.backpressure_until.filter(|_| judgement.disables.is_none()),
        disables: judgement.disables,
        draw: context.draw(),
    });
    (
        ClaimOutcome::Attempted {
            attempt,
            next: step.next,
            progress,
            expiry_check_at,
            update: EndpointUpdate::default(),
        },
        result,
    )
}

fn attempt_record(number: u32, sent: SentRequest<'_>, answer: Answer, decision: Decision) -> Attempt {
    let (response, mut error) = match answer.result {
        Ok(response) => (Some(response), None),
        Err(failure) => (None, Some(failure)),
    };
    let refused_target = error.as_mut().and_then(|failure| failure.refused_target.take());
    let status = response.as_ref().map(|response| response.status);
    let response = response.unwrap_or_default();
    let settings = &sent.endpoint.settings;
    let is_traced = sent.traceparent.is_some();
    let is_ours = |name: &str| {
        is_reserved(name) || is_traced && TRACE_HEADERS.iter().any(|ours| name.eq_ignore_ascii_case(ours.as_str()))
    };
    Attempt {
        number,
        started_at: sent.wall,
        timings: answer.timings,
        url: String::new(),
        url_version: sent.endpoint.urls.number(),
        status,
        error,
        refused_target,
        custom_headers: settings.headers.keys().filter(|name| !is_ours(name)).cloned().collect(),
        signatures: settings
            .signatures
            .iter()
            .copied()
            .filter(|profile| *profile != SignatureProfile::Standard)
            .collect(),
        traceparent: sent.traceparent,
        secret_id: sent.endpoint.secrets.iter().find(|secret| secret.is_active(sent.wall)).map(|secret| secret.id),
        response_headers: response.headers,
        response_body: response.body,
        truncated: response.is_truncated,
        body_sha256: sent.body_sha256,
        decision,
    }
}

/// Whether the outcome has a line in the log, as far as the settings decide it.
fn is_logged(context: &DeliveryContext, outcome: &ClaimOutcome) -> bool {
    let is_delivered = matches!(outcome, ClaimOutcome::Attempted { next: NextState::Delivered, .. });
    context.logged_attempts.includes(is_delivered, || context.draw())
}

/// Logs an attempt, or that none was made.
pub fn log_attempt(claim: &Claim, endpoint: &Endpoint, outcome: &ClaimOutcome) {
    let (attempt, next) = match outcome {
        ClaimOutcome::Attempted { attempt, next, .. } => (attempt, next),
        ClaimOutcome::PutBack { due_at } => {
            warn!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %endpoint.id, next_at = %due_at,
                  "attempt not started because of a failure in the gateway; not counted, tried again later");
            return;
        }
        ClaimOutcome::Expired { .. }
        | ClaimOutcome::RecheckExpiry { .. }
        | ClaimOutcome::InternalError { .. }
        | ClaimOutcome::Damaged => return,
    };
    let (outcome, next_at) = match (next, next.cause()) {
        (NextState::Waiting { due_at }, _) => (format!("next attempt at {due_at}"), Some(due_at)),
        (_, Some(cause)) => (format!("dead ({})", cause.as_str()), None),
        (_, None) => ("delivered".to_owned(), None),
    };
    let answer = answer_words(attempt);
    info!(
        event.id = %claim.event.id,
        delivery.id = %claim.id,
        endpoint.id = %endpoint.id,
        tenant.id = %endpoint.tenant,
        attempt = attempt.number,
        status = attempt.status,
        error = attempt.error.as_ref().map(|failure| failure.kind.as_str()),
        verdict = attempt.decision.verdict.as_str(),
        duration_ms = attempt.timings.total,
        next_at = next_at.map(tracing::field::display),
        body_sha256 = attempt.body_sha256,
        "attempt {} {answer}: {outcome}", attempt.number,
    );
}

/// Logs that a delivery's time was over before another attempt.
pub fn log_expired(id: DeliveryId, endpoint: EndpointId, tenant: &TenantId, by: DeadlineSource) {
    let why = match by {
        DeadlineSource::Age => "its max_age has passed",
        DeadlineSource::Hold => "it waited too long for its first attempt",
        DeadlineSource::Expiry => "its event's expires_at has passed",
    };
    info!(delivery.id = %id, endpoint.id = %endpoint, tenant.id = %tenant,
          "dead (expired) without a further attempt, because {why}");
}
