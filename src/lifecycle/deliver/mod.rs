//! One attempt, told in a straight line: sign, send, judge, decide, settle.
//!
//! A panic inside an attempt ends that attempt alone: it is counted with its
//! delivery, and the third one ends the delivery as poisoned.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rand::rngs::StdRng;
use tokio::sync::Notify;
use tracing::{error, info, warn};

use self::lease_guard::{LeaseGuard, needed, run_within};
use self::send::Sender;
use self::sign::{sha256_hex, sign};
use super::dispatch::gate::admits;
use super::dispatch::observe::AttemptResult;
use super::expire::{ExpirySchedule, just_after};
use super::links::Links;
use super::notifier::Notifier;
use crate::clock::Clock;
use crate::model::attempt::{Answer, Attempt, Decision, FailureKind};
use crate::model::delivery::{DeadCause, DeadlineSource, after};
use crate::model::endpoint::Endpoint;
use crate::model::explain::answer_words;
use crate::model::headers::is_reserved;
use crate::model::health::BreakerInput;
use crate::model::id::DeliveryId;
use crate::model::next_state::{AttemptTimes, NextState, next_state};
use crate::model::rate::roughly;
use crate::model::shard::Lease;
use crate::model::signing::SignatureProfile;
use crate::model::verdict::judge;
use crate::store::{Claim, ClaimOutcome, EndpointUpdate, Error, SettleEffects, Settlement, Store};

pub mod body;
pub mod connect;
pub mod deadline;
pub mod endpoint_stream;
pub mod failure;
pub mod keys;
pub mod lease_guard;
pub mod send;
pub mod sign;
pub mod tls;

/// What attempts are made with: the three seams, and chance.
pub struct DeliveryContext {
    /// Where facts rest.
    pub store: Arc<dyn Store>,
    /// What makes requests.
    pub sender: Arc<dyn Sender>,
    /// What makes the links of thin events.
    pub links: Arc<Links>,
    /// What knows whose time is over.
    pub expiry: Arc<ExpirySchedule>,
    /// What counts and tells.
    pub notifier: Notifier,
    /// What tells the time.
    pub clock: Arc<dyn Clock>,
    /// Where draws come from.
    pub rng: Mutex<StdRng>,
    /// Told when shards have gone, or all is to end.
    pub moved: Notify,
    /// Whether all is to end.
    pub is_cut: AtomicBool,
}

/// How a claim left the desk.
#[derive(Debug)]
pub enum ClaimEnd {
    /// Its outcome is written down, or there is none to write.
    Settled(SettleEffects),
    /// Its outcome was written down before, by a call whose answer got lost.
    Repeated(SettleEffects),
    /// The lease was too short: no request was made, or none whose answer
    /// counts. It rests where it was, and may be looked at again at this time.
    Unsent {
        /// When.
        due_at: Timestamp,
    },
    /// Its endpoint is dispatched by another node.
    Stale,
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

    /// How a claim ends whose time this is not.
    fn ended(&self) -> ClaimEnd {
        match self.is_current() {
            true => ClaimEnd::Unsent { due_at: after(self.context.clock.now(), self.context.lease_delay()) },
            false => ClaimEnd::Stale,
        }
    }
}

impl LeaseGuard for LeasedEndpoint<'_> {
    fn until(&self) -> Option<Instant> {
        self.context.store.leased_until()
    }

    fn is_revoked(&self) -> bool {
        self.context.is_cut.load(Ordering::SeqCst) || !self.is_current()
    }

    fn moved(&self) -> &Notify {
        &self.context.moved
    }
}

/// Makes one attempt and records it. `apply_attempt_result` is called once the receiver
/// is no longer being asked anything, before the record is durable, with what
/// its answer says about the endpoint; what that means is in force from then
/// on, and is written with the attempt.
pub async fn deliver(
    context: &DeliveryContext,
    claim: &Claim,
    lease: Lease,
    mut answered: impl FnMut(Option<AttemptResult>) -> EndpointUpdate,
) -> ClaimEnd {
    let Some(endpoint) = context.store.any_endpoint(claim.endpoint) else {
        return ClaimEnd::Settled(SettleEffects::default());
    };
    let started_at = context.clock.now();
    if !admits(&endpoint, claim, started_at) {
        // Closed between its turn and now: it rests where it was.
        let settled = SettleEffects { due_again_at: Some(claim.due_at), is_void: true, ..SettleEffects::default() };
        return ClaimEnd::Settled(settled);
    }
    let grant = LeasedEndpoint { context, endpoint: &endpoint, lease };
    if !grant.fits(needed(endpoint.timeout().total.0, context.store.lease_length())) {
        return grant.ended();
    }
    if claim.is_damaged {
        error!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %endpoint.id, tenant.id = %endpoint.tenant,
               "dead (damaged) without being sent: what is stored of it is not what was accepted; check the disk");
        return settle(&grant, claim, ClaimOutcome::Damaged).await;
    }
    let limits = context.expiry.limits(&endpoint, claim.expires_at, started_at);
    if let Some(end) = claim.progress.end(&limits).filter(|end| started_at > end.at) {
        let over = ClaimOutcome::Expired { by: end.by, progress: claim.progress };
        let ended = settle(&grant, claim, over).await;
        if matches!(&ended, ClaimEnd::Settled(settled) if !settled.is_void) {
            log_expired(claim.id, &endpoint, end.by);
        }
        return ended;
    }
    let wall = context.clock.wall();
    let request = match sign(claim, &endpoint, &context.links, wall) {
        Ok(request) => request,
        Err(why) => {
            let outcome = ClaimOutcome::PutBack { due_at: after(started_at, context.put_back_delay()) };
            error!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %endpoint.id,
                   "not attempted, put back and not counted: {why}");
            return settle(&grant, claim, outcome).await;
        }
    };
    let body_sha256 = sha256_hex(&request.body);
    let Some(answer) = run_within(&grant, context.sender.send(request)).await else { return grant.ended() };
    let sent = SentRequest { endpoint: &endpoint, started_at, wall, body_sha256 };
    let (mut outcome, says) = decide(context, claim, sent, answer);
    let means = answered(says);
    if let ClaimOutcome::Attempted { update, .. } = &mut outcome {
        *update = means;
    }
    log(claim, &endpoint, &outcome);
    settle(&grant, claim, outcome).await
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
           "an attempt failed inside the gateway; it is put back and not counted: {problem}");
    let due_at = after(context.clock.now(), context.put_back_delay());
    let Some(endpoint) = context.store.any_endpoint(claim.endpoint) else {
        return ClaimEnd::Settled(SettleEffects::default());
    };
    settle(
        &LeasedEndpoint { context, endpoint: &endpoint, lease },
        claim,
        ClaimOutcome::InternalError { due_at, error: problem },
    )
    .await
}

/// What went out: the endpoint as it was then, since it may change meanwhile.
struct SentRequest<'a> {
    endpoint: &'a Endpoint,
    started_at: Timestamp,
    /// The wall time then, as it was signed.
    wall: Timestamp,
    body_sha256: String,
}

/// What the answer means for the delivery, by the endpoint's rules and its
/// policy of now, and what it says about the endpoint.
fn decide(
    context: &DeliveryContext,
    claim: &Claim,
    sent: SentRequest<'_>,
    answer: Answer,
) -> (ClaimOutcome, Option<AttemptResult>) {
    let now = context.clock.now();
    if matches!(&answer.result, Err(failure) if failure.kind == FailureKind::Ours) {
        return (ClaimOutcome::PutBack { due_at: after(now, context.put_back_delay()) }, None);
    }
    // Deleted meanwhile, nothing will come of it; but the attempt was made.
    let known = context.store.any_endpoint(claim.endpoint);
    let endpoint = known.as_deref().unwrap_or(sent.endpoint);
    let limits = context.expiry.limits(endpoint, claim.expires_at, now);
    let judgement = judge(&answer, &endpoint.settings.status_rules);
    let mut progress = claim.progress;
    let moment = AttemptTimes { started_at: sent.started_at, now, wall: context.clock.wall(), draw: context.draw() };
    let step = next_state(&mut progress, &limits, &answer, &judgement, moment);
    // A receiver that is no longer the endpoint's speaks for nobody here.
    let is_theirs = endpoint.urls.number() == sent.endpoint.urls.number();
    let expiry_check_at = progress.end(&limits).map(|end| just_after(end.at));
    let started_at = sent.started_at;
    let decision = step.decision.on_wall(context.clock.wall_offset());
    let attempt = Box::new(record(progress.attempts, sent, answer, decision));
    let is_timeout = attempt.error.as_ref().is_some_and(|failure| failure.kind == FailureKind::Timeout);
    let says = is_theirs.then(|| AttemptResult {
        breaker_input: BreakerInput {
            verdict: judgement.verdict,
            is_limited: attempt.status == Some(429),
            is_asked: claim.is_urgent,
            started_at,
            answer: answer_words(&attempt),
        },
        is_answer: !is_timeout,
        quiet_until: step.quiet_until.filter(|_| judgement.disables.is_none()),
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
        says,
    )
}

fn record(number: u32, sent: SentRequest<'_>, answer: Answer, decision: Decision) -> Attempt {
    let (response, mut error) = match answer.result {
        Ok(response) => (Some(response), None),
        Err(failure) => (None, Some(failure)),
    };
    let refused_target = error.as_mut().and_then(|failure| failure.refused_target.take());
    let status = response.as_ref().map(|response| response.status);
    let response = response.unwrap_or_default();
    let settings = &sent.endpoint.settings;
    Attempt {
        number,
        started_at: sent.wall,
        timings: answer.timings,
        url: String::new(),
        url_version: sent.endpoint.urls.number(),
        status,
        error,
        refused_target,
        custom_headers: settings.headers.keys().filter(|name| !is_reserved(name)).cloned().collect(),
        signatures: settings
            .signatures
            .iter()
            .copied()
            .filter(|profile| *profile != SignatureProfile::Standard)
            .collect(),
        response_headers: response.headers,
        response_body: response.body,
        truncated: response.is_truncated,
        body_sha256: sent.body_sha256,
        decision,
    }
}

/// Records the outcome. It is known now, so a store in trouble is asked again
/// until it takes it: repeating the request instead would be a duplicate. It
/// is written under the lease that the attempt was made under, so once another
/// node has taken over, the store says so.
async fn settle(grant: &LeasedEndpoint<'_>, claim: &Claim, outcome: ClaimOutcome) -> ClaimEnd {
    let LeasedEndpoint { context, endpoint, lease } = *grant;
    let settlement = Settlement { id: claim.id, endpoint: endpoint.id, now: context.clock.now(), outcome };
    loop {
        match context.store.settle(lease, settlement.clone()).await {
            Ok(settled) => {
                if let ClaimOutcome::Attempted { next: NextState::Waiting { .. }, expiry_check_at: Some(at), .. } =
                    &settlement.outcome
                {
                    context.expiry.schedule_check(*at);
                }
                if !settled.is_void {
                    let (outcome, accepted_at) = (&settlement.outcome, claim.event.accepted_at);
                    context.notifier.settled(endpoint.id, accepted_at, outcome, &settled);
                }
                return match settled.is_repeat {
                    true => ClaimEnd::Repeated(settled),
                    false => ClaimEnd::Settled(settled),
                };
            }
            Err(Error::Stale(shard)) => {
                info!(delivery.id = %claim.id, endpoint.id = %endpoint.id,
                      "an outcome is not recorded, because shard {} has another owner", shard.0);
                context.notifier.metrics().stale_write();
                return ClaimEnd::Stale;
            }
            Err(problem) => {
                warn!(delivery.id = %claim.id, "an outcome could not be recorded yet: {problem}");
                // Never all in step, or the store would be asked by all at once.
                let pause = roughly(Duration::from_secs(1), context.draw());
                context.clock.sleep_until(after(context.clock.now(), pause)).await;
            }
        }
    }
}

/// One line per attempt, for operators; and one for what is not attempted.
fn log(claim: &Claim, endpoint: &Endpoint, outcome: &ClaimOutcome) {
    let (attempt, next) = match outcome {
        ClaimOutcome::Attempted { attempt, next, .. } => (attempt, next),
        ClaimOutcome::PutBack { due_at } => {
            warn!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %endpoint.id, next_at = %due_at,
                  "not attempted, through trouble of our own; put back and not counted");
            return;
        }
        ClaimOutcome::Expired { .. }
        | ClaimOutcome::RecheckExpiry { .. }
        | ClaimOutcome::InternalError { .. }
        | ClaimOutcome::Damaged => return,
    };
    let (outcome, next_at) = match next {
        NextState::Delivered => ("delivered".to_owned(), None),
        NextState::Waiting { due_at } => (format!("next attempt at {due_at}"), Some(due_at)),
        NextState::Dead(cause) => (format!("dead ({})", cause.as_str()), None),
        NextState::ExpiredByProducer => (format!("dead ({})", DeadCause::Expired.as_str()), None),
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

/// A delivery's time was over before another attempt.
pub fn log_expired(id: DeliveryId, endpoint: &Endpoint, by: DeadlineSource) {
    let why = match by {
        DeadlineSource::Age => "its max_age has passed",
        DeadlineSource::Hold => "it waited too long for its first attempt",
        DeadlineSource::Expiry => "its event's expires_at has passed",
    };
    info!(delivery.id = %id, endpoint.id = %endpoint.id, tenant.id = %endpoint.tenant,
          "dead (expired) without a further attempt, because {why}");
}

/// The request an attempt was made with, as far as it can be shown: the
/// signature and the endpoint's own values are masked.
pub fn shown_headers(claim: &Claim, attempt: &Attempt) -> Vec<(String, String)> {
    let ours = sign::our_headers(claim, attempt.number, attempt.started_at);
    let vouching = sign::masked_headers(claim.event.id.as_str(), attempt.started_at, &attempt.signatures);
    let shown = ours
        .into_iter()
        .chain(vouching)
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let custom = attempt.custom_headers.iter().map(|name| (name.to_ascii_lowercase(), "***".to_owned()));
    shown.chain(custom).collect()
}

#[cfg(test)]
pub mod tests {
    //! What the tests of this folder share.

    use super::*;
    use crate::lifecycle::retention::Retention;
    use crate::model::delivery::Progress;
    use crate::model::endpoint::BodyFormat;
    use crate::model::event::Event;
    use crate::model::id::{DeliveryId, EndpointId, EventId};
    use crate::model::span::Span;
    use bytes::Bytes;

    /// Links that begin so.
    pub fn links(base: Option<&str>) -> Links {
        let span = Span::secs(60);
        Links::new(
            base.map(str::to_owned),
            &[7; 32],
            Retention { finished: span, dead: span, unmatched: span, audit: span },
        )
    }

    /// A claim on an event with this data, and nothing special about it.
    pub fn claim(data: &[u8]) -> Claim {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let event = Event {
            id: EventId::from_stored("evt_1"),
            tenant: "default".parse().unwrap(),
            event_type: "invoice.paid".parse().unwrap(),
            key: None,
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: None,
            accepted_at: at,
            data: Bytes::copy_from_slice(data),
        };
        Claim {
            id: DeliveryId::mint(at, 1),
            endpoint: EndpointId::mint(at, 1),
            event: Arc::new(event),
            format: BodyFormat::Envelope,
            lane: None,
            seq: None,
            due_at: at,
            is_urgent: false,
            expires_at: None,
            progress: Progress::default(),
            is_damaged: false,
        }
    }
}
