//! A URL that wants events: what it wants, how it is called, where it stands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::breaker::BreakerSettings;
use super::event::{Event, EventKey};
use super::filter::{FilterInput, FilterRule, check_glob, glob_matches};
use super::headers::is_reserved;
use super::health::EndpointHealth;
use super::id::{EndpointId, TenantId};
use super::limits::EndpointCeiling;
use super::operational_event::Actor;
use super::pointer::child;
use super::policy::{RetryPolicy, RetrySpec};
use super::rate::Rate;
pub use super::signing::Secret;
use super::signing::{self, HiddenText, SignatureProfile, Signing};
use super::size::Size;
use super::span::Span;
use super::status_rules::StatusRules;
use super::tls::EndpointTls;
use super::url_versions::UrlVersions;
use super::wall_offset::WallOffset;

/// An endpoint and everything a delivery needs to know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Its name.
    pub id: EndpointId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What its owner decided.
    pub settings: EndpointSettings,
    /// The URLs it has had, the one in its settings included.
    pub urls: UrlVersions,
    /// The most that its tenant's limits allow, whatever the settings say.
    pub ceiling: EndpointCeiling,
    /// The retry policy in force: what the settings spell out, below the ceiling.
    pub policy: RetryPolicy,
    /// Whether it is being called.
    pub status: EndpointStatus,
    /// Until when its receiver asked to be left alone, with `Retry-After`.
    pub quiet_until: Option<Timestamp>,
    /// How it is doing.
    pub health: EndpointHealth,
    /// When its owner was last written to.
    pub mailed_at: Option<Timestamp>,
    /// What it signs with, newest first.
    pub secrets: Vec<Secret>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its settings last changed.
    pub updated_at: Timestamp,
}

/// What an endpoint's owner decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointSettings {
    /// Where deliveries go: http or https.
    #[schema(example = "https://example.com/webhooks")]
    pub url: String,
    /// What people call it.
    #[serde(default)]
    pub description: String,
    /// Who is written to when it fails for long, if mail is configured.
    #[serde(default)]
    #[schema(example = "ops@example.com")]
    pub owner_email: Option<String>,
    /// Anything its owner wants to keep with it, as text.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Patterns of the event types it wants; `*` stands for any text.
    #[serde(default = "every_type")]
    #[schema(example = json!(["invoice.*"]))]
    pub event_types: Vec<String>,
    /// Rules on the event's data: `{"path":"/amount","gt":100}`, joined by `all`, `any` and `not`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub filter: Option<FilterRule>,
    /// What is delivered in order.
    #[serde(default)]
    pub ordering: Ordering,
    /// What a lane does behind a dead letter.
    #[serde(default)]
    pub on_dead: OnDead,
    /// What the body looks like. Fixed for a delivery when it is accepted.
    #[serde(default)]
    pub format: BodyFormat,
    /// Events whose data is larger than this are sent `thin`, all others in `format` (as `envelope`, if that is `thin`). Fixed for a delivery when it is accepted.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "256KiB")]
    pub thin_above: Option<Size>,
    /// What signs `webhook-signature`. With `ed25519`, receivers can verify with the endpoint's public key.
    #[serde(default)]
    pub signing: Signing,
    /// How attempts are signed, any number of ways at once; `standard` always is. `sha256` and `timestamped` exclude each other.
    #[serde(default = "standard_signature")]
    pub signatures: Vec<SignatureProfile>,
    /// Headers sent with every attempt, besides ours.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub headers: BTreeMap<String, HiddenText>,
    /// When to try again, and when to stop.
    #[serde(default = "RetrySpec::standard")]
    pub retry: RetrySpec,
    /// What answers mean: a table, and what differs from it for this receiver.
    #[serde(default)]
    pub status_rules: StatusRules,
    /// How many requests may be open at once: 1 to 1,000.
    #[serde(default = "ten")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_in_flight: u32,
    /// How often it may be called.
    #[serde(default = "five_hundred")]
    pub rate: Rate,
    /// The deadlines of an attempt.
    #[serde(default)]
    pub timeout: AttemptTimeouts,
    /// When it is left alone because it keeps failing.
    #[serde(default)]
    pub breaker: BreakerSettings,
    /// How its connections are encrypted, where that is special.
    #[serde(default)]
    #[schema(value_type = EndpointTls)]
    pub tls: Arc<EndpointTls>,
}

fn every_type() -> Vec<String> {
    vec!["*".to_owned()]
}

fn standard_signature() -> Vec<SignatureProfile> {
    vec![SignatureProfile::Standard]
}

fn ten() -> u32 {
    10
}

fn five_hundred() -> Rate {
    Rate { per_second: 500.0, burst: 50 }
}

/// What is delivered in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// Events that share a key.
    #[default]
    Key,
    /// Everything: the endpoint is one lane.
    Endpoint,
    /// Nothing; keys are ignored.
    None,
}

/// What a lane does behind a dead letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDead {
    /// It waits until the dead letter is replayed or discarded.
    #[default]
    Block,
    /// It moves on.
    Skip,
}

/// What the body of a delivery looks like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BodyFormat {
    /// The event with its id, type and time around the producer's data.
    #[default]
    Envelope,
    /// The producer's data alone.
    Raw,
    /// The event's id, type and time, and a link from which the receiver fetches the rest; needs `--public-url`.
    Thin,
    /// A CloudEvent 1.0, structured.
    Cloudevents,
}

/// The deadlines of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttemptTimeouts {
    /// For the name, the connection and encryption together; never more than `total`.
    #[serde(default = "five_seconds")]
    #[schema(value_type = String, example = "5s")]
    pub connect: Span,
    /// For everything, the response body included.
    #[serde(default = "ten_seconds")]
    #[schema(value_type = String, example = "10s")]
    pub total: Span,
}

fn five_seconds() -> Span {
    Span::secs(5)
}

fn ten_seconds() -> Span {
    Span::secs(10)
}

impl Default for AttemptTimeouts {
    fn default() -> Self {
        Self { connect: five_seconds(), total: ten_seconds() }
    }
}

/// Whether an endpoint is being called, and the time it was not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Where it stands.
    pub state: EndpointState,
    /// Why, where it does not stand active.
    pub reason: Option<String>,
    /// Through whom it came to stand so.
    #[serde(default)]
    pub by: Option<Actor>,
    /// Since when.
    pub since: Timestamp,
    /// How long it has been held in all, up to `since`. Deliveries do not age
    /// meanwhile, so resuming rewrites none of them.
    pub held_ms: u64,
}

/// Where an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndpointState {
    /// It is called.
    Active,
    /// It was paused, by a person or because it only failed; its deliveries are held.
    Paused,
    /// The receiver asked never to be called again; its deliveries are held.
    Disabled,
}

impl EndpointState {
    /// The state as it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
        }
    }
}

impl Endpoint {
    /// The same with its times as people read them.
    pub fn on_wall(self, offset: WallOffset) -> Self {
        let wall = |at: Timestamp| offset.wall(at);
        Self {
            status: EndpointStatus { since: wall(self.status.since), ..self.status },
            quiet_until: self.quiet_until.map(wall),
            health: self.health.on_wall(offset),
            mailed_at: self.mailed_at.map(wall),
            created_at: wall(self.created_at),
            updated_at: wall(self.updated_at),
            ..self
        }
    }
}

impl EndpointStatus {
    /// How a new endpoint begins.
    pub fn active(now: Timestamp) -> Self {
        Self { state: EndpointState::Active, reason: None, by: None, since: now, held_ms: 0 }
    }

    /// How long the endpoint has been held in all.
    pub fn held(&self, now: Timestamp) -> Duration {
        let before = Duration::from_millis(self.held_ms);
        match self.state {
            EndpointState::Active => before,
            EndpointState::Paused | EndpointState::Disabled => before + between(self.since, now),
        }
    }

    /// The standing after a change of state.
    pub fn moved(&self, state: EndpointState, reason: Option<String>, by: Actor, now: Timestamp) -> Self {
        let held_ms = u64::try_from(self.held(now).as_millis()).unwrap_or(u64::MAX);
        Self { state, reason, by: Some(by), since: now, held_ms }
    }
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    let millis = to.as_millisecond().saturating_sub(from.as_millisecond());
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

impl Endpoint {
    /// The same below this ceiling.
    pub fn below(self, ceiling: EndpointCeiling) -> Self {
        Self { ceiling, policy: ceiling.policy(self.settings.retry.filled()), ..self }
    }

    /// How many requests may be open at once.
    pub fn max_in_flight(&self) -> u32 {
        self.ceiling.max_in_flight(self.settings.max_in_flight)
    }

    /// How often it may be called.
    pub fn rate(&self) -> Rate {
        self.ceiling.rate(self.settings.rate)
    }

    /// The deadlines of an attempt.
    pub fn timeout(&self) -> AttemptTimeouts {
        self.ceiling.timeout(self.settings.timeout)
    }

    /// The lane an event joins here, if order matters: the key's text, or the
    /// empty text for the one lane of a fully ordered endpoint.
    pub fn lane(&self, key: Option<&EventKey>) -> Option<Arc<str>> {
        match self.settings.ordering {
            Ordering::Key => key.map(EventKey::shared),
            Ordering::Endpoint => Some("".into()),
            Ordering::None => None,
        }
    }

    /// Why an event is, or is not, for this endpoint.
    pub fn matches(&self, event: &Event, data: &mut ParsedData<'_>) -> EndpointMatch {
        if let Some(named) = &event.endpoints {
            return match named.contains(&self.id) {
                true => EndpointMatch::yes("the event names this endpoint"),
                false => EndpointMatch::no("the event names its endpoints, and this is not one of them"),
            };
        }
        let event_type = event.event_type.as_str();
        let Some(pattern) = self.settings.event_types.iter().find(|p| glob_matches(p, event_type)) else {
            return EndpointMatch::no(format!(
                "type {event_type} matches none of {}",
                self.settings.event_types.join(", ")
            ));
        };
        let by_type = format!("type {event_type} matches {pattern}");
        match &self.settings.filter {
            None => EndpointMatch::yes(by_type),
            Some(rule) => match rule.filter().check(data.value()) {
                Ok(()) => EndpointMatch::yes(format!("{by_type} and the filter holds")),
                Err(why) => EndpointMatch::no(format!("{by_type}, but the filter does not hold: {why}")),
            },
        }
    }

    /// [`Endpoint::matches`] without the words, for the path every event takes.
    pub fn wants(&self, event: &Event, data: &mut ParsedData<'_>) -> bool {
        let event_type = event.event_type.as_str();
        self.settings.event_types.iter().any(|pattern| glob_matches(pattern, event_type))
            && self.settings.filter.as_ref().is_none_or(|rule| rule.filter().check(data.value()).is_ok())
    }
}

/// Whether an event is for an endpoint, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointMatch {
    /// Whether it is.
    pub matched: bool,
    /// The sentence.
    pub reason: String,
}

impl EndpointMatch {
    fn yes(reason: impl Into<String>) -> Self {
        Self { matched: true, reason: reason.into() }
    }

    fn no(reason: impl Into<String>) -> Self {
        Self { matched: false, reason: reason.into() }
    }
}

/// An event's data, parsed when the first filter asks for it.
pub struct ParsedData<'a> {
    bytes: &'a [u8],
    value: Option<FilterInput<'a>>,
}

impl<'a> ParsedData<'a> {
    /// Nothing is parsed yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, value: None }
    }

    fn value(&mut self) -> &FilterInput<'a> {
        self.value.get_or_insert_with(|| FilterInput::of(self.bytes))
    }
}

/// A setting that is refused: where, and the sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSetting {
    /// The place, as a JSON pointer.
    pub pointer: String,
    /// The sentence.
    pub message: String,
}

impl EndpointSettings {
    /// What the body looks like for data of this length.
    pub fn format_for(&self, data: &[u8]) -> BodyFormat {
        match (self.thin_above, self.format) {
            (Some(Size(above)), _) if data.len() as u64 > above => BodyFormat::Thin,
            (Some(_), BodyFormat::Thin) => BodyFormat::Envelope,
            (_, format) => format,
        }
    }

    /// Whether it may be sent links instead of data.
    pub fn may_be_thin(&self) -> bool {
        self.format == BodyFormat::Thin || self.thin_above.is_some()
    }

    /// Checks what these settings change of others that were accepted before.
    /// A policy and headers that stay as they were are not in question: a rule
    /// that came later must not keep other fields from being changed.
    pub fn check_change(&self, known: &Self) -> Result<RetryPolicy, Vec<InvalidSetting>> {
        let mut problems = match self.check() {
            Ok(policy) => return Ok(policy),
            Err(problems) => problems,
        };
        let is_old =
            |(name, value): &(&String, &HiddenText)| is_reserved(name) && known.headers.get(*name) == Some(*value);
        let old_headers: Vec<String> =
            self.headers.iter().filter(is_old).map(|(name, _)| child("/headers", name)).collect();
        let is_policy_old = known.retry == self.retry;
        let is_accepted =
            |pointer: &String| old_headers.contains(pointer) || is_policy_old && pointer.starts_with("/retry");
        problems.retain(|problem| !is_accepted(&problem.pointer));
        match problems.is_empty() {
            true => Ok(self.retry.filled()),
            false => Err(problems),
        }
    }

    /// Checks everything but the URL's target, which the egress guard judges.
    pub fn check(&self) -> Result<RetryPolicy, Vec<InvalidSetting>> {
        let mut problems = Vec::new();
        let mut refuse = |pointer: String, message: String| problems.push(InvalidSetting { pointer, message });
        if self.event_types.is_empty() || self.event_types.len() > 500 {
            refuse(
                "/event_types".into(),
                format!("event_types has {} patterns; use 1 to 500, or [\"*\"] for every type", self.event_types.len()),
            );
        }
        for (n, pattern) in self.event_types.iter().enumerate() {
            if let Err(problem) = check_glob(pattern) {
                refuse(format!("/event_types/{n}"), problem.to_string());
            }
        }
        check_text("/description", "description", &self.description, 1_024, &mut refuse);
        if self.metadata.len() > 50 {
            refuse("/metadata".into(), format!("metadata has {} entries; use at most 50", self.metadata.len()));
        }
        for (name, value) in &self.metadata {
            check_text(&child("/metadata", name), "a metadata name", name, 64, &mut refuse);
            check_text(&child("/metadata", name), "a metadata value", value, 512, &mut refuse);
        }
        for (n, message) in signing::check(&self.signatures) {
            refuse(format!("/signatures/{n}"), message);
        }
        for problem in super::headers::check(&self.headers) {
            refuse(problem.pointer, problem.message);
        }
        if !(1..=1_000).contains(&self.max_in_flight) {
            refuse(
                "/max_in_flight".into(),
                format!(
                    "max_in_flight is {}; use 1 to 1,000, or pause the endpoint to stop deliveries",
                    self.max_in_flight
                ),
            );
        }
        if let Err((field, message)) = self.rate.check() {
            refuse(format!("/rate{field}"), message);
        }
        if let Err(message) = self.timeout.check() {
            refuse("/timeout".into(), message);
        }
        self.breaker.check(|field, message| refuse(format!("/breaker{field}"), message));
        if let Some(address) = &self.owner_email
            && !is_mail_address(address)
        {
            refuse(
                "/owner_email".into(),
                format!("owner_email {address:?} is not a mail address; write it like ops@example.com"),
            );
        }
        for problem in self.tls.check() {
            refuse(problem.pointer, problem.message);
        }
        let policy = self.retry.resolve();
        if let Err(problem) = &policy {
            refuse(format!("/retry{}", problem.pointer), problem.message.clone());
        }
        match (policy, problems.is_empty()) {
            (Ok(policy), true) => Ok(policy),
            _ => Err(problems),
        }
    }
}

impl AttemptTimeouts {
    /// Refuses deadlines that are too short to work or too long to hold a slot.
    pub fn check(&self) -> Result<(), String> {
        let range = Span::millis(100)..=Span::secs(60);
        if !range.contains(&self.total) {
            return Err(format!("timeout total is {}; use 100ms to 1m", self.total));
        }
        if self.connect < Span::millis(100) {
            return Err(format!("timeout connect is {}; use 100ms to total ({})", self.connect, self.total));
        }
        Ok(())
    }

    /// How long a connection may take to open: what is left out or longer
    /// ends with the whole.
    pub fn connect_within(&self) -> Span {
        // A little earlier, so that it is known what the time was spent on.
        self.connect.min(Span(self.total.0 * 9 / 10))
    }
}

/// One plain address: what stands around the `@` is for the mail server.
fn is_mail_address(text: &str) -> bool {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !"<>()[],;:\\\"@".contains(c);
    let is_part = |part: &str, bytes_max: usize| {
        (1..=bytes_max).contains(&part.len()) && part.chars().all(is_plain) && !part.split('.').any(str::is_empty)
    };
    text.split_once('@').is_some_and(|(name, host)| is_part(name, 64) && is_part(host, 255))
}

fn check_text(pointer: &str, what: &str, text: &str, bytes_max: usize, refuse: &mut impl FnMut(String, String)) {
    if text.len() > bytes_max {
        refuse(pointer.to_owned(), format!("{what} is {} bytes long; use at most {bytes_max}", text.len()));
    }
    if let Some(odd) = text.chars().find(|c| c.is_control() && *c != '\n') {
        refuse(pointer.to_owned(), format!("{what} contains the control character {odd:?}; use printable text"));
    }
}
