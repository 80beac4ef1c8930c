//! Records which events the receiver has applied, decides each answer, and counts
//! requests.
//!
//! Invariant: an event that was answered 2xx is never applied again. Its repeats are
//! answered 200 at once and use up no step of the script.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use posthaste_receiver::VerifyError;

use super::script::{AnswerScript, ReplyAction, ScriptedReply};

/// The events and counters of one run.
#[derive(Debug)]
pub struct RequestLedger {
    script: AnswerScript,
    /// Reply to a request whose event was applied already.
    duplicate_reply: ScriptedReply,
    /// Every event seen, with whether it was applied.
    events: HashMap<Box<str>, bool>,
    totals: RequestTotals,
}

/// Numbers of requests and events, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTotals {
    requests: u64,
    events: u64,
    applied: u64,
    repeats: u64,
    duplicates: u64,
    refused: u64,
    dropped: u64,
}

/// The result of checking a request's signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignatureCheck {
    /// The signature is valid.
    Verified,
    /// The receiver has no secret to check it with.
    NotVerified,
    /// The signature is missing or not valid.
    Refused(VerifyError),
}

/// The kind of a request, by its event and signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// The event was not seen before.
    New,
    /// The event was seen, but not applied.
    Repeat,
    /// The event was applied already.
    Duplicate,
    /// The signature was refused.
    Forged,
}

/// The reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverReply {
    /// Kind of the request.
    pub kind: RequestKind,
    /// Reply that is given, and when.
    pub reply: ScriptedReply,
}

impl RequestLedger {
    /// Returns an empty ledger with this script and this reply to duplicates.
    pub fn new(script: AnswerScript, duplicate_reply: ScriptedReply) -> Self {
        Self { script, duplicate_reply, events: HashMap::new(), totals: RequestTotals::default() }
    }

    /// Replies by another script from now on, beginning with its first step.
    pub fn change_script(&mut self, script: AnswerScript) {
        self.script = script;
    }

    /// Decides the reply to a request and records it. The event of a request that is
    /// dropped or hangs is not applied.
    pub fn decide(
        &mut self,
        id: Option<&str>,
        signature: &SignatureCheck,
        is_dropped: bool,
        now: Timestamp,
    ) -> ReceiverReply {
        self.totals.requests += 1;
        let kind = self.classify(id, signature);
        self.totals.repeats += u64::from(kind == RequestKind::Repeat);
        if is_dropped {
            self.totals.dropped += 1;
            let reply = ScriptedReply { action: ReplyAction::Drop, delay: Duration::ZERO };
            return ReceiverReply { kind, reply };
        }
        let reply = match kind {
            RequestKind::Forged => ScriptedReply::plain(StatusCode::BAD_REQUEST),
            RequestKind::Duplicate => self.duplicate_reply,
            RequestKind::New | RequestKind::Repeat => self.script.use_next(now),
        };
        match kind {
            RequestKind::Forged => self.totals.refused += 1,
            RequestKind::Duplicate => self.totals.duplicates += 1,
            RequestKind::New | RequestKind::Repeat => match reply.action {
                ReplyAction::Answer(answer) if answer.status.is_success() => self.record_applied(id),
                ReplyAction::Drop => self.totals.dropped += 1,
                ReplyAction::Answer(_) | ReplyAction::Pass | ReplyAction::Hang => {}
            },
        }
        ReceiverReply { kind, reply }
    }

    /// Records that the service answered a forwarded request with success.
    pub fn record_passed(&mut self, id: Option<&str>, kind: RequestKind) {
        match kind {
            RequestKind::New | RequestKind::Repeat => self.record_applied(id),
            RequestKind::Duplicate | RequestKind::Forged => {}
        }
    }

    fn classify(&mut self, id: Option<&str>, signature: &SignatureCheck) -> RequestKind {
        if matches!(signature, SignatureCheck::Refused(_)) {
            return RequestKind::Forged;
        }
        // A request without an id cannot be recognised as a repeat.
        let Some(id) = id else { return RequestKind::New };
        match self.events.get(id) {
            Some(true) => RequestKind::Duplicate,
            Some(false) => RequestKind::Repeat,
            None => {
                self.events.insert(id.into(), false);
                self.totals.events += 1;
                RequestKind::New
            }
        }
    }

    fn record_applied(&mut self, id: Option<&str>) {
        self.totals.applied += 1;
        if let Some(applied) = id.and_then(|id| self.events.get_mut(id)) {
            *applied = true;
        }
    }

    /// Returns the totals so far.
    pub fn totals(&self) -> RequestTotals {
        self.totals
    }
}

impl fmt::Display for RequestTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, events, applied, repeats, duplicates, refused, dropped } = self;
        let counted = |count: &u64, word: &str| format!("{count} {word}{}", if *count == 1 { "" } else { "s" });
        let parts = [
            counted(requests, "request"),
            counted(events, "distinct event"),
            format!("{applied} applied"),
            counted(repeats, "repeat"),
            counted(duplicates, "duplicate"),
            counted(refused, "refused signature"),
            format!("{dropped} dropped"),
        ];
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Display for SignatureCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verified => f.write_str("verified"),
            Self::NotVerified => f.write_str("not verified"),
            Self::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn ledger(script: &str) -> RequestLedger {
        RequestLedger::new(script.parse().unwrap(), ScriptedReply::plain(StatusCode::OK))
    }

    fn status(reply: ReceiverReply) -> u16 {
        match reply.reply.action {
            ReplyAction::Answer(answer) => answer.status.as_u16(),
            action => panic!("{action:?} is no answer"),
        }
    }

    fn ask(ledger: &mut RequestLedger, id: &str) -> (RequestKind, u16) {
        let reply = ledger.decide(Some(id), &SignatureCheck::Verified, false, NOW);
        (reply.kind, status(reply))
    }

    #[test]
    fn a_duplicate_is_answered_200_and_uses_up_nothing() {
        let mut ledger = ledger("503,200,500");
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::New, 503));
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::Repeat, 200));
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::Duplicate, 200));
        assert_eq!(ask(&mut ledger, "b"), (RequestKind::New, 500));
        let totals = ledger.totals().to_string();
        assert_eq!(
            totals,
            "4 requests, 2 distinct events, 1 applied, 1 repeat, 1 duplicate, 0 refused signatures, 0 dropped"
        );
    }

    #[test]
    fn a_dropped_request_uses_up_nothing_and_applies_nothing() {
        let mut ledger = ledger("503,200");
        let dropped = ledger.decide(Some("a"), &SignatureCheck::Verified, true, NOW);
        assert_eq!((dropped.kind, dropped.reply.action), (RequestKind::New, ReplyAction::Drop));
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::Repeat, 503));
    }

    #[test]
    fn a_request_that_hangs_or_is_passed_on_is_applied_only_by_the_service() {
        let mut ledger = ledger("hang,pass,200");
        assert_eq!(ledger.decide(Some("a"), &SignatureCheck::Verified, false, NOW).reply.action, ReplyAction::Hang);
        let passed = ledger.decide(Some("a"), &SignatureCheck::Verified, false, NOW);
        assert_eq!((passed.kind, passed.reply.action), (RequestKind::Repeat, ReplyAction::Pass));
        ledger.record_passed(Some("a"), passed.kind);
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::Duplicate, 200));
        assert!(ledger.totals().to_string().contains("1 applied"));
    }

    #[test]
    fn a_forged_request_is_refused_and_its_id_is_not_remembered() {
        let mut ledger = ledger("200");
        let forged = SignatureCheck::Refused(VerifyError::MissingHeader("webhook-id"));
        let reply = ledger.decide(Some("a"), &forged, false, NOW);
        assert_eq!((reply.kind, status(reply)), (RequestKind::Forged, 400));
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::New, 200));
    }

    #[test]
    fn without_an_id_every_request_is_new() {
        let mut ledger = ledger("200");
        for _ in 0..2 {
            assert_eq!(ledger.decide(None, &SignatureCheck::NotVerified, false, NOW).kind, RequestKind::New);
        }
    }
}
