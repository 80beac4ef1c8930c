//! What a receiver remembers: which events it has applied, what it answers
//! next, and how much came.
//!
//! Invariant: an event that was answered 2xx is never applied again. Its
//! repeats are answered 200 at once and use up none of the script.

use std::collections::HashMap;
use std::fmt;

use http::StatusCode;

use super::script::{AnswerScript, ScriptedAnswer};
use crate::lifecycle::deliver::sign::SignatureError;

/// The memory of one run.
#[derive(Debug)]
pub struct RequestLedger {
    script: AnswerScript,
    /// Every event seen, and whether it was applied.
    events: HashMap<Box<str>, bool>,
    totals: RequestTotals,
}

/// How much came, and how much of it was odd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTotals {
    requests: u64,
    events: u64,
    applied: u64,
    duplicates: u64,
    refused: u64,
    dropped: u64,
}

/// Whether a request can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignatureCheck {
    /// Its signature fits.
    Verified,
    /// There was no secret to check it with.
    NotVerified,
    /// Its signature does not fit.
    Refused(SignatureError),
}

/// What a request is to the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Not seen before.
    New,
    /// Seen, but not applied.
    Repeat,
    /// Applied already: nothing is left to do.
    Duplicate,
    /// Not to be trusted.
    Forged,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverReply {
    /// What it is.
    pub kind: RequestKind,
    /// The answer, or nothing when the connection is dropped.
    pub answer: Option<ScriptedAnswer>,
}

impl RequestLedger {
    /// Nothing has come yet.
    pub fn new(script: AnswerScript) -> Self {
        Self { script, events: HashMap::new(), totals: RequestTotals::default() }
    }

    /// Decides on a request and remembers it. A dropped one was not applied.
    pub fn decide(&mut self, id: Option<&str>, trust: &SignatureCheck, is_dropped: bool) -> ReceiverReply {
        self.totals.requests += 1;
        let kind = self.kind(id, trust);
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

    fn kind(&mut self, id: Option<&str>, trust: &SignatureCheck) -> RequestKind {
        if matches!(trust, SignatureCheck::Refused(_)) {
            return RequestKind::Forged;
        }
        // What has no id cannot be told from anything else.
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

    /// How much came so far.
    pub fn totals(&self) -> RequestTotals {
        self.totals
    }
}

impl fmt::Display for RequestTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, events, applied, duplicates, refused, dropped } = self;
        write!(
            f,
            "{requests} requests, {events} distinct events, {applied} applied, {duplicates} duplicates, {refused} refused signatures, {dropped} dropped"
        )
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
        let told = ledger.totals().to_string();
        assert_eq!(told, "4 requests, 2 distinct events, 1 applied, 1 duplicates, 0 refused signatures, 0 dropped");
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
