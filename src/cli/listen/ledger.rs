//! Records which events the receiver has applied, decides each answer, and counts
//! requests.
//!
//! Invariant: an event that was answered 2xx is never applied again. Its repeats are
//! answered 200 at once and use up no step of the script.

use std::collections::HashMap;
use std::fmt;

use http::StatusCode;

use super::script::{AnswerScript, ScriptedAnswer};
use crate::lifecycle::deliver::sign::SignatureError;

/// The events and counters of one run.
#[derive(Debug)]
pub struct RequestLedger {
    script: AnswerScript,
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
    Refused(SignatureError),
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
    /// Answer to send; none when the connection is dropped.
    pub answer: Option<ScriptedAnswer>,
}

impl RequestLedger {
    /// Returns an empty ledger with this script.
    pub fn new(script: AnswerScript) -> Self {
        Self { script, events: HashMap::new(), totals: RequestTotals::default() }
    }

    /// Decides the reply to a request and records it. The event of a dropped request
    /// is not applied.
    pub fn decide(&mut self, id: Option<&str>, signature: &SignatureCheck, is_dropped: bool) -> ReceiverReply {
        self.totals.requests += 1;
        let kind = self.kind(id, signature);
        self.totals.repeats += u64::from(kind == RequestKind::Repeat);
        if is_dropped {
            self.totals.dropped += 1;
            return ReceiverReply { kind, answer: None };
        }
        let answer = match kind {
            RequestKind::Forged => ScriptedAnswer::plain(StatusCode::BAD_REQUEST),
            RequestKind::Duplicate => ScriptedAnswer::plain(StatusCode::OK),
            RequestKind::New | RequestKind::Repeat => self.script.use_next(),
        };
        match kind {
            RequestKind::Forged => self.totals.refused += 1,
            RequestKind::Duplicate => self.totals.duplicates += 1,
            RequestKind::New | RequestKind::Repeat if answer.status.is_success() => self.apply(id),
            RequestKind::New | RequestKind::Repeat => {}
        }
        ReceiverReply { kind, answer: Some(answer) }
    }

    fn kind(&mut self, id: Option<&str>, signature: &SignatureCheck) -> RequestKind {
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

    fn apply(&mut self, id: Option<&str>) {
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

    fn ledger(script: &str) -> RequestLedger {
        RequestLedger::new(script.parse().unwrap())
    }

    fn ask(ledger: &mut RequestLedger, id: &str) -> (RequestKind, u16) {
        let reply = ledger.decide(Some(id), &SignatureCheck::Verified, false);
        (reply.kind, reply.answer.unwrap().status.as_u16())
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
        assert_eq!(
            ledger.decide(Some("a"), &SignatureCheck::Verified, true),
            ReceiverReply { kind: RequestKind::New, answer: None }
        );
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::Repeat, 503));
    }

    #[test]
    fn a_forged_request_is_refused_and_its_id_is_not_remembered() {
        let mut ledger = ledger("200");
        let forged = SignatureCheck::Refused(SignatureError::NoMatch);
        let reply = ledger.decide(Some("a"), &forged, false);
        assert_eq!((reply.kind, reply.answer.unwrap().status.as_u16()), (RequestKind::Forged, 400));
        assert_eq!(ask(&mut ledger, "a"), (RequestKind::New, 200));
    }

    #[test]
    fn without_an_id_every_request_is_new() {
        let mut ledger = ledger("200");
        for _ in 0..2 {
            assert_eq!(ledger.decide(None, &SignatureCheck::NotVerified, false).kind, RequestKind::New);
        }
    }
}
