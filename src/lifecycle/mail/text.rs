//! Writes the text of mails to the owners of endpoints.
//!
//! A mail says what happened, since when, what the gateway does now, and what
//! the owner can do. It contains no secret: of the URL only scheme, host and
//! path.

use jiff::Timestamp;

use crate::model::endpoint_event::{Actor, EndpointEvent};
use crate::model::suggested_command::command_anywhere;
use crate::model::url_versions::mask_url;

/// The kind of trouble that a mail is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailReason {
    /// The endpoint keeps failing; deliveries are held, and it is probed.
    BreakerOpened,
    /// The gateway paused the endpoint; deliveries are held until it is resumed.
    Paused,
    /// The endpoint answered that it is gone; deliveries are held until it is resumed.
    Disabled,
    /// A delivery to the endpoint is dead.
    Dead,
    /// Many deliveries to the endpoint were refused.
    Refused,
}

impl MailReason {
    /// Returns the kind of trouble that an event is, if its owner is mailed
    /// about it. A person who did it knows.
    pub fn of(event: &EndpointEvent) -> Option<Self> {
        let reason = match event {
            EndpointEvent::BreakerOpened { .. } => Self::BreakerOpened,
            EndpointEvent::Paused(_) => Self::Paused,
            EndpointEvent::Disabled(_) => Self::Disabled,
            EndpointEvent::Resumed { .. }
            | EndpointEvent::ProbeFailed { .. }
            | EndpointEvent::BreakerClosed(_)
            | EndpointEvent::Recovered => return None,
        };
        Some(reason).filter(|_| event.by() != Actor::Person)
    }
}

/// The facts that a mail is written from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailFacts {
    /// Id of the endpoint.
    pub endpoint: String,
    /// Id of the endpoint's tenant.
    pub tenant: String,
    /// URL of the endpoint; the mail leaves out its query, fragment and user.
    pub url: String,
    /// Description of the endpoint; may be empty.
    pub description: String,
    /// Reason of the trouble, as a sentence without a full stop.
    pub reason: String,
    /// Wall time at which the trouble began.
    pub since: Timestamp,
    /// Number of deliveries waiting for the endpoint, if it is known.
    pub waiting: Option<u64>,
    /// Wall time of the next probe, if it is known.
    pub next_probe_at: Option<Timestamp>,
    /// Kind of the trouble.
    pub reason_kind: MailReason,
}

/// Most characters of a foreign text in a subject.
const NAME_CHARS_MAX: usize = 80;
/// Most characters of a foreign text in a line of the body.
const LINE_CHARS_MAX: usize = 300;

/// Returns the subject and the text of a mail about trouble.
pub fn subject_and_text(facts: &MailFacts) -> (String, String) {
    let description = one_line(&facts.description);
    let name = cut_to_chars(if description.is_empty() { mask_url(&facts.url) } else { description }, NAME_CHARS_MAX);
    let subject = match facts.reason_kind {
        MailReason::BreakerOpened => format!("Webhooks are failing: {name}"),
        MailReason::Paused => format!("Webhooks are paused: {name}"),
        MailReason::Disabled => format!("Webhooks are switched off: {name}"),
        MailReason::Dead => format!("A webhook was given up: {name}"),
        MailReason::Refused => format!("Webhooks are refused: {name}"),
    };
    let parts = [trouble(facts), details(facts), consequence(facts), remedy(facts), footer(facts)];
    (subject, format!("{}\n", parts.join("\n\n")))
}

fn trouble(facts: &MailFacts) -> String {
    match facts.reason_kind {
        MailReason::BreakerOpened => {
            "Your webhook endpoint keeps failing, so we have stopped sending it events for now."
        }
        MailReason::Paused => "We have paused your webhook endpoint, because nothing it was sent has been accepted.",
        MailReason::Disabled => "Your webhook endpoint answered that it is gone, so we no longer call it.",
        MailReason::Dead => "We have given up delivering an event to your webhook endpoint.",
        MailReason::Refused => "Your webhook endpoint refuses many of the events that it is sent.",
    }
    .to_owned()
}

fn details(facts: &MailFacts) -> String {
    let mut rows = vec![("URL", mask_url(&facts.url))];
    let description = one_line(&facts.description);
    if !description.is_empty() {
        rows.push(("Description", cut_to_chars(description, LINE_CHARS_MAX)));
    }
    rows.push(("Endpoint", facts.endpoint.clone()));
    rows.push(("Tenant", facts.tenant.clone()));
    rows.push(("Since", utc_text(facts.since)));
    rows.push(("Reason", cut_to_chars(one_line(&facts.reason), LINE_CHARS_MAX)));
    rows.extend(facts.waiting.map(|waiting| ("Waiting", deliveries_words(waiting))));
    let rows: Vec<String> = rows.iter().map(|(name, value)| format!("  {:<12} {value}", format!("{name}:"))).collect();
    rows.join("\n")
}

/// Returns the paragraph about what the gateway does now.
fn consequence(facts: &MailFacts) -> String {
    const HELD: &str = "Nothing is lost: what waits is held, and so are new events.";
    match facts.reason_kind {
        MailReason::BreakerOpened => {
            let probe = match facts.next_probe_at {
                Some(at) => format!("The next try is at {}", utc_text(at)),
                None => "We try it again now and then".to_owned(),
            };
            format!("{HELD} {probe}, with one delivery; when that is accepted, the rest follows, slowly at first.")
        }
        MailReason::Paused | MailReason::Disabled => {
            format!("{HELD} We do not call the endpoint until somebody resumes it.")
        }
        MailReason::Refused => {
            "An answer that refuses an event ends its delivery, so these events are not sent again by themselves. They \
                       are kept as dead letters. Other events are still being sent."
                .to_owned()
        }
        MailReason::Dead => {
            "The event is kept as a dead letter and can be delivered again. Other events are still being \
                       sent, unless they have to arrive in order behind this one."
                .to_owned()
        }
    }
}

/// Returns the paragraph about what the owner can do.
fn remedy(facts: &MailFacts) -> String {
    let MailFacts { endpoint, tenant, .. } = facts;
    let choice = |verb: &str, id: &str, route: &str| format!("  {}\n  {route}", command_anywhere(tenant, verb, id));
    let path = format!("/v1/tenants/{tenant}/endpoints/{endpoint}");
    let resume = choice("endpoints resume", endpoint, &format!("POST {path}/resume"));
    let dead_letters = format!("/v1/tenants/{tenant}/dead-letters");
    let list_route = format!("GET {dead_letters}?endpoint={endpoint}");
    let list = choice("dead-letters list --endpoint", endpoint, &list_route);
    let replay = choice("dead-letters replay", "DELIVERY", &format!("POST {dead_letters}/DELIVERY/replay"));
    match facts.reason_kind {
        MailReason::BreakerOpened => format!(
            "Please look at the receiver. Once it answers again, deliveries go on by themselves. If it \
             will be away for long, pause the endpoint, so that nothing grows too old meanwhile, on the command \
             line or over the API:\n\n{}",
            choice("endpoints pause", endpoint, &format!("POST {path}/pause"))
        ),
        MailReason::Paused => format!(
            "Please look at the receiver. Once it is mended, resume the endpoint, on the command line or over the \
             API; what waits is delivered then:\n\n{resume}\n\nWhat the receiver refused until then is kept as dead \
             letters. They are listed, and each of them can be delivered again, by:\n\n{list}\n\n{replay}"
        ),
        MailReason::Disabled => format!(
            "If that is what you want, there is nothing to do. If it was a mistake, mend the receiver and resume the \
             endpoint, on the command line or over the API; what waits is delivered then:\n\n{resume}"
        ),
        MailReason::Dead | MailReason::Refused => format!(
            "Please look at the receiver. The dead letters of this endpoint are listed, on the command line or over \
             the API, by:\n\n{}\n\nOnce the receiver is mended, each of them can be delivered again:\n\n{}",
            list, replay
        ),
    }
}

/// Returns the paragraph that says why the reader got this mail, and how often
/// to expect one.
fn footer(facts: &MailFacts) -> String {
    let frequency = match facts.reason_kind {
        MailReason::BreakerOpened => "There is one such mail per outage, and at most one an hour.",
        MailReason::Dead | MailReason::Refused => "There is at most one such mail a day.",
        MailReason::Paused | MailReason::Disabled => "There are no further mails about it.",
    };
    format!("You get this because you are the owner_email of the endpoint. {frequency}")
}

/// Joins a text to one line, so that a text from outside cannot start a new
/// line or a header.
pub(super) fn one_line(text: &str) -> String {
    let parts: Vec<&str> = text.split(char::is_control).map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

fn cut_to_chars(text: String, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn deliveries_words(count: u64) -> String {
    match count {
        0 => "no deliveries".to_owned(),
        1 => "1 delivery".to_owned(),
        count => format!("{count} deliveries"),
    }
}

fn utc_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::endpoint_event::{DisableCause, OpenCause, PauseCause};

    fn facts(reason_kind: MailReason) -> MailFacts {
        MailFacts {
            endpoint: "ep_06cvyq2m7nz1k8t5w3x4r9b0ch".into(),
            tenant: "acme".into(),
            url: "https://user:hush@shop.example.com/hooks?token=hush#hush".into(),
            description: String::new(),
            reason: "10 answers in a row were 503".into(),
            since: "2026-11-15T10:39:50.123Z".parse().unwrap(),
            waiting: Some(1_204),
            next_probe_at: None,
            reason_kind,
        }
    }

    fn letter(facts: &MailFacts) -> String {
        let (subject, text) = subject_and_text(facts);
        assert!(!subject.contains("hush") && !text.contains("hush"), "{subject}\n{text}");
        format!("{subject}\n\n{text}")
    }

    #[test]
    fn nobody_is_mailed_about_what_a_person_did_or_what_is_no_trouble() {
        let (answer, note) = ("answered 503".to_owned(), None);
        for (event, expected) in [
            (EndpointEvent::Paused(PauseCause::Person { note }), None),
            (EndpointEvent::Paused(PauseCause::Refusals { count: 101, answer }), Some(MailReason::Paused)),
            (EndpointEvent::Disabled(DisableCause::Person { note: None }), None),
            (EndpointEvent::Disabled(DisableCause::Directive), Some(MailReason::Disabled)),
            (EndpointEvent::BreakerOpened { until: None, cause: OpenCause::Person { note: None } }, None),
            (EndpointEvent::Recovered, None),
        ] {
            assert_eq!(MailReason::of(&event), expected, "{event:?}");
        }
    }

    #[test]
    fn an_open_breaker_is_told() {
        let next_probe_at = Some("2026-11-15T10:40:00Z".parse().unwrap());
        insta::assert_snapshot!(letter(&MailFacts { next_probe_at, ..facts(MailReason::BreakerOpened) }));
    }

    #[test]
    fn a_pause_is_told() {
        let reason = "101 answers in a row were refusals, the last a 401".into();
        insta::assert_snapshot!(letter(&MailFacts { reason, waiting: Some(1), ..facts(MailReason::Paused) }));
    }

    #[test]
    fn a_disabled_endpoint_is_told() {
        let reason = "the receiver answered 410".into();
        insta::assert_snapshot!(letter(&MailFacts { reason, waiting: Some(0), ..facts(MailReason::Disabled) }));
    }

    #[test]
    fn a_dead_letter_is_told() {
        let (reason, description) = ("the receiver answered 404 ten times".into(), "Orders of the shop".into());
        insta::assert_snapshot!(letter(&MailFacts { reason, description, ..facts(MailReason::Dead) }));
    }

    #[test]
    fn a_breaker_without_a_planned_probe_promises_no_time() {
        assert!(letter(&facts(MailReason::BreakerOpened)).contains("We try it again now and then, with one delivery"));
    }

    #[test]
    fn what_comes_from_outside_stays_on_its_line() {
        let (description, reason) = ("Shop\r\nBcc: x@example.com".into(), "503\n\nYou owe us money".into());
        let (subject, text) = subject_and_text(&MailFacts { description, reason, ..facts(MailReason::Paused) });
        assert_eq!(subject, "Webhooks are paused: Shop Bcc: x@example.com");
        assert!(text.contains("Description: Shop Bcc: x@example.com\n"), "{text}");
        assert!(text.contains("Reason:      503 You owe us money\n"), "{text}");
    }

    #[test]
    fn a_long_name_is_cut_in_the_subject() {
        let (subject, _) = subject_and_text(&MailFacts { description: "ü".repeat(500), ..facts(MailReason::Paused) });
        assert_eq!(subject.chars().filter(|c| *c == 'ü').count(), NAME_CHARS_MAX);
    }
}
