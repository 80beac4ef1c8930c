//! Compares explanations with their snapshots, word for word.

use super::*;
use crate::model::answer::{Answer, FailureKind, Response, Timings};
use crate::model::delivery::{DeliveryTimeLimits, Progress};
use crate::model::endpoint::{EndpointSettings, EndpointState, EndpointStatus};
use crate::model::endpoint_event::Actor;
use crate::model::health::{BreakerPhase, EndpointHealth};
use crate::model::id::{EndpointId, EventId};
use crate::model::next_state::{AttemptTimes, NextState, next_state};
use crate::model::verdict::judge;
use serde_json::{Value, json};

const HOLD_MAX: Span = Span::secs(30 * 86_400);

fn at(seconds: i64) -> Timestamp {
    let began: Timestamp = "2026-11-15T10:00:00Z".parse().unwrap();
    began.checked_add(Span::secs(seconds as u64).0).unwrap()
}

fn endpoint(settings: Value) -> Endpoint {
    let mut document = json!({"url": "https://shop.example/hooks"});
    document.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let settings: EndpointSettings = serde_json::from_value(document).unwrap();
    Endpoint {
        id: EndpointId::mint(at(0), 7),
        tenant: "default".parse().unwrap(),
        urls: crate::model::url_versions::UrlVersions::first(&settings.url),
        ceiling: Default::default(),
        policy: settings.check().unwrap(),
        settings,
        status: EndpointStatus::active(at(0)),
        backpressure_until: None,
        health: EndpointHealth::default(),
        mailed_at: None,
        secrets: Vec::new(),
        created_at: at(0),
        updated_at: at(0),
    }
}

/// A delivery and what has happened to it, decided by the real rules.
struct DeliveryHistory {
    delivery: Delivery,
    attempts: Vec<Attempt>,
    endpoint: Endpoint,
    head: Option<(DeliveryId, bool)>,
    sees_notes: bool,
}

impl DeliveryHistory {
    fn of(endpoint: Endpoint) -> Self {
        let delivery = Delivery {
            format: Default::default(),
            id: DeliveryId::mint(at(0), 9),
            tenant: "default".parse().unwrap(),
            event_id: EventId::from_stored("pay-1"),
            event_type: "invoice.paid".into(),
            endpoint_id: endpoint.id,
            key: None,
            lane: None,
            seq: None,
            state: DeliveryState::Waiting,
            cause: None,
            is_behind: false,
            due_at: at(0),
            is_urgent: false,
            expires_at: None,
            progress: Progress { begun_at: Some(at(0)), ..Progress::default() },
            created_at: at(0),
            first_attempt_at: None,
            finished_at: None,
            last_status: None,
            last_error: None,
            internal_errors: 0,
            internal_error: None,
            body_sha256: None,
        };
        Self { delivery, attempts: Vec::new(), endpoint, head: None, sees_notes: true }
    }

    fn limits(&self, now: Timestamp) -> DeliveryTimeLimits<'_> {
        let held = self.endpoint.held(now);
        DeliveryTimeLimits {
            policy: &self.endpoint.policy,
            held,
            hold_max: HOLD_MAX,
            expires_at: self.delivery.expires_at,
        }
    }

    /// An attempt when it is due.
    fn attempt(mut self, result: Result<Response, AttemptFailure>) -> Self {
        let started_at = self.delivery.due_at.max(at(1));
        let now = started_at.checked_add(Duration::from_millis(120)).unwrap();
        let answer = Answer { result, timings: Timings { total: 120.0, ..Timings::default() } };
        let judgement = judge(&answer, &self.endpoint.settings.status_rules);
        let mut progress = self.delivery.progress;
        let moment = AttemptTimes { started_at, now, wall: now, draw: 0.25 };
        let consequence = next_state(&mut progress, &self.limits(now), &answer, &judgement, moment);
        self.delivery.progress = progress;
        match consequence.next {
            NextState::Waiting { due_at } => self.delivery.due_at = due_at,
            NextState::Delivered => self = self.finished(DeliveryState::Delivered, None, now),
            NextState::Dead(cause) => self = self.finished(DeliveryState::Dead, Some(cause), now),
            NextState::ExpiredByProducer => self = self.finished(DeliveryState::Dead, Some(DeadCause::Expired), now),
        }
        let (status, error) = match answer.result {
            Ok(response) => (Some(response.status), None),
            Err(failure) => (None, Some(failure)),
        };
        self.attempts.push(Attempt {
            number: progress.attempts,
            started_at,
            timings: answer.timings,
            url: String::new(),
            url_version: 1,
            status,
            error,
            refused_target: None,
            custom_headers: Vec::new(),
            signatures: Vec::new(),
            secret_id: None,
            traceparent: None,
            response_headers: Vec::new(),
            response_body: String::new(),
            truncated: false,
            body_sha256: String::new(),
            decision: consequence.decision,
        });
        self
    }

    fn answered(self, status: u16) -> Self {
        self.attempt(Ok(Response { status, ..Response::default() }))
    }

    fn answered_with(self, status: u16, name: &str, value: &str) -> Self {
        let headers = vec![(name.to_owned(), value.to_owned())];
        self.attempt(Ok(Response { status, headers, ..Response::default() }))
    }

    fn failed(self, kind: FailureKind, message: &str) -> Self {
        self.attempt(Err(AttemptFailure::new(kind, message)))
    }

    fn finished(mut self, state: DeliveryState, cause: Option<DeadCause>, now: Timestamp) -> Self {
        (self.delivery.state, self.delivery.cause, self.delivery.finished_at) = (state, cause, Some(now));
        self
    }

    fn with_status(mut self, state: EndpointState, reason: &str, now: Timestamp) -> Self {
        self.endpoint.status = self.endpoint.status.with_state(state, Some(reason.into()), Actor::Person, now);
        self
    }

    fn in_lane(mut self, seq: u64, head: Option<(DeliveryId, bool)>) -> Self {
        (self.delivery.key, self.delivery.lane) = (Some("acct 7".into()), Some("acct 7".into()));
        (self.delivery.seq, self.head) = (Some(seq), head);
        self.delivery.is_behind = head.is_some();
        self
    }

    /// The explanation, as the command line prints it.
    fn explained(&self, waiting_for: Option<WaitingFor>, now: Timestamp) -> String {
        let next_attempt_at = match waiting_for {
            Some(WaitingFor::Due | WaitingFor::Slot) => Some(self.delivery.due_at.max(now)),
            Some(WaitingFor::Backpressure) => self.endpoint.backpressure_until,
            _ => None,
        };
        let end = self.delivery.progress.deadline(&self.limits(now));
        let is_in_flight = self.delivery.state == DeliveryState::Waiting && waiting_for.is_none();
        let outlook = DeliveryOutlook { is_in_flight, waiting_for, next_attempt_at, end };
        let explanation = explain(&ExplanationFacts {
            delivery: &self.delivery,
            attempts: &self.attempts,
            endpoint: Some(&self.endpoint),
            head: self.head,
            outlook,
            hold_max: HOLD_MAX,
            reader: ExplanationReader { is_operator: false, sees_notes: self.sees_notes },
            now,
        });
        let mut out = explanation.summary + "\n";
        explanation.sentences.iter().for_each(|sentence| out.push_str(&format!("  {sentence}\n")));
        for attempt in explanation.attempts.iter().rev().skip(1).rev() {
            out.push_str(&format!("attempt {}\n", attempt.number));
            attempt.sentences.iter().for_each(|sentence| out.push_str(&format!("  {sentence}\n")));
        }
        out
    }
}

fn standard() -> Endpoint {
    endpoint(json!({}))
}

fn head() -> DeliveryId {
    DeliveryId::mint(at(0), 3)
}

#[test]
fn a_waiting_delivery_says_what_was_answered_and_when_it_goes_next() {
    let story = DeliveryHistory::of(standard()).answered(503).answered(503);
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Due), at(20)));
}

#[test]
fn a_delivery_that_has_not_been_tried_says_so() {
    insta::assert_snapshot!(DeliveryHistory::of(standard()).explained(Some(WaitingFor::Due), at(0)));
}

#[test]
fn a_retry_after_is_told_with_what_it_changed() {
    let story = DeliveryHistory::of(standard()).answered_with(429, "retry-after", "600");
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Due), at(2)));
}

#[test]
fn a_429_without_one_doubles() {
    let story = DeliveryHistory::of(standard()).answered_with(429, "retry-after", "soon");
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Due), at(2)));
}

#[test]
fn backpressure_names_the_time_and_the_way_through() {
    let mut story = DeliveryHistory::of(standard()).answered(500);
    story.endpoint.backpressure_until = Some(at(900));
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Backpressure), at(60)));
}

#[test]
fn a_pause_is_told_with_its_reason() {
    let story =
        DeliveryHistory::of(standard()).answered(500).with_status(EndpointState::Paused, "moving house", at(100));
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Pause), at(200)));
}

#[test]
fn a_lane_behind_a_dead_letter_names_it() {
    let story = DeliveryHistory::of(standard()).in_lane(4, Some((head(), true)));
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Key), at(200)));
}

#[test]
fn a_lane_behind_a_living_head_names_it() {
    let story = DeliveryHistory::of(standard()).in_lane(4, Some((head(), false)));
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Key), at(200)));
}

#[test]
fn a_missing_slot_names_the_cap() {
    insta::assert_snapshot!(DeliveryHistory::of(standard()).explained(Some(WaitingFor::Slot), at(200)));
}

#[test]
fn an_open_breaker_says_why_and_when_it_is_probed() {
    let mut story = DeliveryHistory::of(standard()).answered(503);
    story.endpoint.health = EndpointHealth {
        phase: BreakerPhase::Open { until: Some(at(60)) },
        reason: Some("10 failures in a row; the last was answered 503 Service Unavailable".into()),
        ..EndpointHealth::default()
    };
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Breaker), at(30)));
}

#[test]
fn a_breaker_that_a_person_opened_is_told_as_such() {
    let mut story = DeliveryHistory::of(standard());
    story.endpoint.health = EndpointHealth::default().forced_open(None, Some("maintenance".into()), at(0));
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Breaker), at(30)));
}

#[test]
fn a_breaker_that_a_person_opened_without_a_note_is_given_no_reason() {
    let mut story = DeliveryHistory::of(standard());
    story.endpoint.health = EndpointHealth::default().forced_open(None, None, at(0));
    assert_eq!(story.endpoint.health.reason.as_deref(), Some("opened by a person"), "other places say it");
    let told = story.explained(Some(WaitingFor::Breaker), at(30));
    assert!(told.starts_with("Waiting: a person opened its endpoint's breaker.\n"), "{told}");
}

#[test]
fn whoever_may_not_read_notes_is_told_that_a_person_did_it() {
    let story = |sees_notes, history: DeliveryHistory| DeliveryHistory { sees_notes, ..history };
    let paused = || DeliveryHistory::of(standard()).with_status(EndpointState::Paused, "unpaid bill", at(100));
    let opened = |until| {
        let mut history = DeliveryHistory::of(standard());
        history.endpoint.health = EndpointHealth::default().forced_open(until, Some("unpaid bill".into()), at(0));
        history
    };
    // Once the time is over, a ramp begins; its reason is still the note.
    let recovering = || {
        let mut history = opened(Some(at(10)));
        history.endpoint.health.phase = BreakerPhase::Ramp { width: 1 };
        history
    };
    let held: [(WaitingFor, &dyn Fn() -> DeliveryHistory); 4] = [
        (WaitingFor::Pause, &paused),
        (WaitingFor::Breaker, &|| opened(None)),
        (WaitingFor::Breaker, &|| opened(Some(at(900)))),
        (WaitingFor::Breaker, &recovering),
    ];
    for (waiting_for, history) in held {
        let told = story(true, history()).explained(Some(waiting_for), at(200));
        assert!(told.contains("unpaid bill"), "{told}");
        let told = story(false, history()).explained(Some(waiting_for), at(200));
        assert!(!told.contains("unpaid"), "{told}");
    }
    let told = story(false, paused()).explained(Some(WaitingFor::Pause), at(200));
    assert!(told.contains("its endpoint is paused since") && told.contains("(by a person)"), "{told}");
    // What the gateway decided is no secret of anybody.
    let mut refused = paused();
    refused.endpoint.status.by = Some(Actor::Gateway);
    assert!(story(false, refused).explained(Some(WaitingFor::Pause), at(200)).contains("unpaid bill"));
}

#[test]
fn a_rate_is_named() {
    insta::assert_snapshot!(DeliveryHistory::of(standard()).explained(Some(WaitingFor::Rate), at(200)));
}

#[test]
fn poison_is_told_with_the_internal_error() {
    let mut story = DeliveryHistory::of(standard()).finished(DeliveryState::Dead, Some(DeadCause::Poisoned), at(40));
    (story.delivery.internal_errors, story.delivery.internal_error) = (3, Some("index out of bounds".into()));
    insta::assert_snapshot!(story.explained(None, at(50)));
}

#[test]
fn in_flight_is_told() {
    insta::assert_snapshot!(DeliveryHistory::of(standard()).answered(500).explained(None, at(5)));
}

#[test]
fn a_policy_that_changed_is_told_in_the_attempt_and_for_the_next() {
    let mut story = DeliveryHistory::of(standard()).answered(500);
    story.endpoint = endpoint(json!({"retry": {"preset": "hourly"}}));
    let mut story = story.answered(500);
    story.endpoint = endpoint(json!({"retry": {"preset": "quick", "max_attempts": 3}}));
    insta::assert_snapshot!(story.explained(Some(WaitingFor::Due), at(10)));
}

#[test]
fn a_refused_delivery_says_by_which_rule_and_what_to_do() {
    insta::assert_snapshot!(DeliveryHistory::of(standard()).answered(422).explained(None, at(5)));
}

#[test]
fn an_endpoints_own_rule_is_named_as_such() {
    let story =
        DeliveryHistory::of(endpoint(json!({"status_rules": {"preset": "strict", "404": "refuse"}}))).answered(404);
    insta::assert_snapshot!(story.explained(None, at(5)));
}

#[test]
fn the_receivers_own_word_is_named_as_such() {
    let story = DeliveryHistory::of(standard()).answered_with(503, "webhook-delivery", "abort");
    insta::assert_snapshot!(story.explained(None, at(5)));
}

#[test]
fn gone_says_that_the_endpoint_is_disabled() {
    let story = DeliveryHistory::of(standard()).answered(410).with_status(EndpointState::Disabled, "410", at(2));
    insta::assert_snapshot!(story.explained(None, at(5)));
}

#[test]
fn an_exhausted_delivery_tells_every_attempt() {
    let policy = json!({"retry": {"preset": "quick", "max_attempts": 3}});
    let story = DeliveryHistory::of(endpoint(policy))
        .failed(FailureKind::ConnectionRefused, "nothing listens there: the connection was refused")
        .failed(FailureKind::Timeout, "no answer within 10s")
        .answered(502);
    insta::assert_snapshot!(story.explained(None, at(60)));
}

#[test]
fn a_short_budget_is_counted_aloud() {
    let rules = json!({"retry": {"schedule": ["1s"], "jitter": "none"}});
    let story = (0..10).fold(DeliveryHistory::of(endpoint(rules)), |story, _| story.answered(404));
    insta::assert_snapshot!(story.explained(None, at(60)).lines().take(9).collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_target_that_may_not_be_called_is_told_with_what_helps_and_with_nothing_else() {
    let endpoint = endpoint(json!({"retry": {"schedule": ["1s"], "jitter": "none"}}));
    let message =
        "port 25 belongs to another service; use another port, or have its operator open it with --allow-port 25";
    let story =
        (0..5).fold(DeliveryHistory::of(endpoint), |story, _| story.failed(FailureKind::TargetForbidden, message));
    let said = story.explained(None, at(60));
    assert!(said.contains(message) && !said.contains("--allow-egress"), "{said}");
    assert!(
        said.contains("Once it may be called, or the endpoint has another URL, `posthaste dead-letters replay"),
        "{said}"
    );
}

#[test]
fn an_age_that_ran_out_says_what_would_have_been() {
    let story = DeliveryHistory::of(endpoint(json!({"retry": {"schedule": ["40m"], "max_age": "1h"}})))
        .answered(500)
        .answered(500)
        .answered(500);
    insta::assert_snapshot!(story.explained(None, at(4_000)));
}

#[test]
fn an_age_that_ran_out_while_held_back_is_told() {
    let story = DeliveryHistory::of(standard()).answered(500).finished(
        DeliveryState::Dead,
        Some(DeadCause::Expired),
        at(300_000),
    );
    insta::assert_snapshot!(story.explained(None, at(300_001)));
}

#[test]
fn an_event_over_by_its_own_account_says_so() {
    let mut story = DeliveryHistory::of(standard());
    story.delivery.expires_at = Some(at(600));
    let story = story.finished(DeliveryState::Dead, Some(DeadCause::Expired), at(601));
    insta::assert_snapshot!(story.explained(None, at(700)));
}

#[test]
fn a_delivery_held_too_long_says_so() {
    let story =
        DeliveryHistory::of(standard()).finished(DeliveryState::Dead, Some(DeadCause::Expired), at(31 * 86_400));
    insta::assert_snapshot!(story.explained(None, at(32 * 86_400)));
}

#[test]
fn a_delivered_one_tells_how_long_it_took() {
    let story = DeliveryHistory::of(standard()).answered(503).answered_with(429, "retry-after", "30").answered(200);
    insta::assert_snapshot!(story.explained(None, at(5_000)));
}

#[test]
fn what_went_with_its_endpoint_says_so() {
    let story = DeliveryHistory::of(standard()).answered(500).finished(DeliveryState::Cancelled, None, at(50));
    let facts = ExplanationFacts {
        delivery: &story.delivery,
        attempts: &story.attempts,
        endpoint: None,
        head: None,
        outlook: DeliveryOutlook::default(),
        hold_max: HOLD_MAX,
        reader: ExplanationReader { is_operator: false, sees_notes: true },
        now: at(60),
    };
    let Explanation { summary, sentences, .. } = explain(&facts);
    assert_eq!(summary, "Cancelled at 2026-11-15T10:00:50Z with its endpoint, after 1 attempt.");
    assert!(sentences[0].ends_with("which has been deleted."), "{}", sentences[0]);
}

#[test]
fn a_discarded_one_keeps_its_cause() {
    let story = DeliveryHistory::of(standard()).answered(400).finished(
        DeliveryState::Cancelled,
        Some(DeadCause::Refused),
        at(50),
    );
    insta::assert_snapshot!(story.explained(None, at(60)));
}

#[test]
fn a_replay_is_told_with_its_fresh_budget() {
    let mut story = DeliveryHistory::of(standard()).answered(400);
    let replayed = Progress { attempts_before: 1, begun_at: Some(at(500)), ..Progress::default() };
    story.delivery.progress = Progress { attempts: 1, ..replayed };
    (story.delivery.state, story.delivery.cause, story.delivery.finished_at) = (DeliveryState::Waiting, None, None);
    story.delivery.due_at = at(500);
    insta::assert_snapshot!(story.answered(503).explained(Some(WaitingFor::Due), at(501)));
}

#[test]
fn a_refusal_after_a_change_of_secrets_names_it_and_no_other_answer_does() {
    let secret = |made: i64, ends: Option<i64>| Secret {
        id: crate::model::id::SecretId::mint(at(made), 1),
        text: String::new(),
        key: String::new(),
        created_at: at(made),
        expires_at: ends.map(at),
    };
    let attempt = |status: u16| DeliveryHistory::of(standard()).answered(status).attempts.remove(0);
    let change = |secrets: &[Secret], seconds: i64, status: u16| {
        let attempt = Attempt { started_at: at(seconds), ..attempt(status) };
        secret_change(secrets, at(0), &attempt)
    };
    let rotated = [secret(100, None), secret(0, Some(100))];
    for status in [400, 401, 403] {
        let said = change(&rotated, 280, status);
        assert_eq!(said.as_deref(), Some("a secret of this endpoint was rotated 3m before"), "{status}");
    }
    let overlapping = [secret(100, None), secret(0, Some(4_000))];
    assert_eq!(
        change(&overlapping, 4_060, 401).as_deref(),
        Some("an old secret of this endpoint stopped signing 1m before")
    );
    assert!(change(&[secret(100, None)], 280, 401).is_some(), "the old one may be forgotten");
    assert_eq!(change(&[secret(0, None)], 280, 401), None, "the first secret is no change");
    assert_eq!(change(&rotated, 99, 401), None, "it was sent before");
    let overlapping = [secret(100, None), secret(0, Some(500))];
    assert_eq!(change(&overlapping, 280, 401), None, "the old secret signs as well");
    let signatures = vec![crate::model::signing::SignatureProfile::Github];
    let attempt = Attempt { started_at: at(280), signatures, ..attempt(401) };
    assert!(secret_change(&overlapping, at(0), &attempt).is_some(), "there is room for the old one's signature alone");
    let ended = change(&overlapping, 560, 401);
    assert_eq!(ended.as_deref(), Some("an old secret of this endpoint stopped signing 1m before"));
    assert!(change(&rotated, 100, 401).unwrap().ends_with("rotated a moment before"));
    assert_eq!(change(&rotated, 90_000, 401), None, "that is too long ago");
    for status in [200, 404, 422, 503] {
        assert_eq!(change(&rotated, 280, status), None, "{status}");
    }
}
