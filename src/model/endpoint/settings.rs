//! The settings of an endpoint: their types, defaults and checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::inherited_setting::InheritedSetting;
use crate::model::breaker::BreakerSettings;
use crate::model::delivery::BodyFormat;
use crate::model::filter::{FilterRule, check_glob};
use crate::model::headers::{self, is_reserved};
use crate::model::id::TenantId;
use crate::model::invalid_setting::InvalidSetting;
use crate::model::named_enum::NamedEnum;
use crate::model::pointer::child;
use crate::model::policy::RetryPolicy;
use crate::model::rate::Rate;
use crate::model::retry_spec::RetrySpec;
use crate::model::signing::{self, HiddenText, SignatureProfile, Signing};
use crate::model::size::Size;
use crate::model::span::Span;
use crate::model::status_rules::StatusRules;
use crate::model::tls::EndpointTls;

/// What an endpoint's owner decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointSettings {
    /// Where deliveries go: http or https, at most 2,048 bytes, without user name, password or fragment. Credentials belong into `headers`. A token with `read` alone sees it without its query, and path segments of 16 or more mixed characters as `***`, since they may be secrets.
    #[schema(example = "https://example.com/webhooks")]
    pub url: String,
    /// What people call it, at most 1,024 bytes.
    #[serde(default)]
    pub description: String,
    /// Address that is [mailed](gentle.md#mail) when the endpoint is in trouble, if there is a mail server.
    #[serde(default)]
    #[schema(example = "ops@example.com")]
    pub owner_email: Option<String>,
    /// Up to 50 names (64 bytes) with values (512 bytes) of your own.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// 1 to 500 patterns of the types it wants. `*` stands for any text, dots included: `invoice.*`.
    #[serde(default = "default_event_types")]
    #[schema(example = json!(["invoice.*"]))]
    pub event_types: Vec<String>,
    /// Which events it gets: `events`, those of producers, or `operations`, the [operational events](gentle.md#operational-events) about its own tenant and nothing else.
    #[serde(default)]
    pub listens_to: ListensTo,
    /// [Rules](#filters) on the event's data: `{"path":"/amount","gt":100}`, joined by `all`, `any` and `not`.
    #[serde(default)]
    #[schema(value_type = Option<Object>, example = json!({"path": "/amount", "gt": 100}))]
    pub filter: Option<FilterRule>,
    /// What is delivered [in order](ordering.md).
    #[serde(default)]
    pub ordering: Ordering,
    /// What a lane does behind a dead letter.
    #[serde(default)]
    pub on_dead: OnDead,
    /// What the [body](receiving.md#body) looks like. `thin` needs `--public-url`; `slack`, `teams`, `discord` and `mattermost` are for endpoints that listen to `operations`, and for those of `_system`. Fixed for a delivery when it is accepted.
    #[serde(default)]
    pub format: BodyFormat,
    /// Events whose data is larger than this, such as `"256KiB"`, are sent `thin`, all others in `format` (as `envelope`, if that is `thin`). Needs `--public-url`. Fixed for a delivery when it is accepted.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "256KiB")]
    pub thin_above: Option<Size>,
    /// What signs `webhook-signature`: `hmac`, or `ed25519` for [both](receiving.md#with-a-public-key).
    #[serde(default)]
    pub signing: Signing,
    /// How attempts are signed, any number of [ways](receiving.md#other-signatures) at once. `standard` always is; `sha256` and `timestamped` exclude each other.
    #[serde(default = "default_signatures")]
    pub signatures: Vec<SignatureProfile>,
    /// Up to 32 headers sent with every attempt. Those that Posthaste or the connection writes are refused, and those that tell a server who the client is or what else is asked for: `X-Real-IP`, `True-Client-IP`, `X-Client-IP`, `X-Forwarded-*`, `X-Original-URL`, `X-Rewrite-URL`, `X-HTTP-Method-Override`, `X-Tenant`, `Metadata*`, `X-aws-*`. A stored header whose name is refused by now stays, and is not sent. Values are shown as `***`.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub headers: BTreeMap<String, HiddenText>,
    /// When to try again, and when to stop: `preset`, `backoff` or `schedule`, `jitter`, `max_attempts`, `max_age`, `retry_after_max`; see [retries](retries.md#writing-your-own).
    #[serde(default = "RetrySpec::standard")]
    pub retry: RetrySpec,
    /// Settings that follow the tenant's `defaults`, also when these change later: any of `retry`, `status_rules`, `max_in_flight` and `timeout`. What is in this list cannot have a value of its own.
    #[serde(default)]
    #[schema(value_type = Vec<InheritedSetting>, example = json!(["retry"]))]
    pub inherits: BTreeSet<InheritedSetting>,
    /// What answers mean: a table (`default`, `strict`, `lenient`) and what differs from it, by exact code or class, as `deliver`, `retry`, `refuse` or `disable`: `{"preset":"strict","404":"retry","5xx":"refuse"}`. See [retries](retries.md#an-odd-partner).
    #[serde(default)]
    pub status_rules: StatusRules,
    /// How many requests may be open at once, 1 to 1,000.
    #[serde(default = "default_max_in_flight")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_in_flight: u32,
    /// How often it may be [called](gentle.md#rates). Without `burst`, or with `null`, that is a tenth of a second's worth, at least 1.
    #[serde(default = "default_rate")]
    pub rate: Rate,
    /// The deadlines of an attempt. `total` is 100ms to 1m, `connect` at least 100ms; `total` also limits `connect`.
    #[serde(default)]
    pub timeout: AttemptTimeouts,
    /// When calls stop because it keeps failing; see [the breaker](gentle.md#what-opens-it).
    #[serde(default)]
    pub breaker: BreakerSettings,
    /// TLS settings, in PEM: `ca`, the authorities to trust for this receiver instead of the machine's; `client_certificate`, with its chain, and `client_key`, for mTLS (both or neither); `min_version`, `1.2` or `1.3`. The key is shown as `***`.
    #[serde(default)]
    #[schema(value_type = EndpointTls)]
    pub tls: Arc<EndpointTls>,
}

fn default_event_types() -> Vec<String> {
    vec!["*".to_owned()]
}

fn default_signatures() -> Vec<SignatureProfile> {
    vec![SignatureProfile::Standard]
}

pub(super) fn default_max_in_flight() -> u32 {
    10
}

fn default_rate() -> Rate {
    Rate { per_second: 500.0, burst: 50 }
}

/// Which events an endpoint gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ListensTo {
    /// The events of producers.
    #[default]
    Events,
    /// The operational events about its own tenant.
    Operations,
}

/// What is delivered in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Ordering {
    /// Events that share a key are delivered in order.
    #[default]
    Key,
    /// All events are delivered in order: the endpoint is one lane.
    Endpoint,
    /// No events are ordered; keys are ignored.
    None,
}

/// What a lane does behind a dead letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OnDead {
    /// The lane waits until the dead letter is replayed or discarded.
    #[default]
    Block,
    /// The lane moves on to the next delivery.
    Skip,
}

/// The deadlines of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttemptTimeouts {
    /// For the name, the connection and encryption together; never more than `total`.
    #[serde(default = "default_connect")]
    #[schema(value_type = String, example = "5s")]
    pub connect: Span,
    /// For everything, the response body included.
    #[serde(default = "default_total")]
    #[schema(value_type = String, example = "10s")]
    pub total: Span,
}

fn default_connect() -> Span {
    Span::secs(5)
}

fn default_total() -> Span {
    Span::secs(10)
}

impl Default for AttemptTimeouts {
    fn default() -> Self {
        Self { connect: default_connect(), total: default_total() }
    }
}

impl EndpointSettings {
    /// Returns the body format of a delivery with this data.
    pub fn format_for(&self, data: &[u8]) -> BodyFormat {
        match (self.thin_above, self.format) {
            (Some(Size(above)), _) if data.len() as u64 > above => BodyFormat::Thin,
            (Some(_), BodyFormat::Thin) => BodyFormat::Envelope,
            (_, format) => format,
        }
    }

    /// Returns the body format of an event that has no link to its data.
    pub fn format_without_link(&self) -> BodyFormat {
        if self.format == BodyFormat::Thin { BodyFormat::Envelope } else { self.format }
    }

    /// Checks what it listens to, for this tenant.
    pub fn check_listening(&self, tenant: &TenantId) -> Option<InvalidSetting> {
        if !self.format.is_chat() || self.listens_to == ListensTo::Operations || tenant.is_system() {
            return None;
        }
        let format = self.format.as_str();
        let message = format!(
            "format {format} is for operational events; set listens_to to \"operations\", or use envelope, raw, thin or \
             cloudevents"
        );
        Some(InvalidSetting { pointer: "/format".into(), message })
    }

    /// Whether some of its events may be sent as links instead of data.
    pub fn may_be_thin(&self) -> bool {
        self.format == BodyFormat::Thin || self.thin_above.is_some()
    }

    /// Checks these settings as a change of `known`, which were accepted before.
    /// An unchanged policy, unchanged status rules and unchanged headers are not
    /// refused: a rule that was added later must not prevent changes of other fields.
    pub fn check_change(&self, known: &Self) -> Result<RetryPolicy, Vec<InvalidSetting>> {
        let mut problems = match self.check() {
            Ok(policy) => return Ok(policy),
            Err(problems) => problems,
        };
        let is_unchanged =
            |(name, value): &(&String, &HiddenText)| is_reserved(name) && known.headers.get(*name) == Some(*value);
        let unchanged_headers: Vec<String> =
            self.headers.iter().filter(is_unchanged).map(|(name, _)| child("/headers", name)).collect();
        let is_policy_unchanged = known.retry == self.retry;
        let are_rules_unchanged = known.status_rules == self.status_rules;
        let is_accepted = |pointer: &String| {
            unchanged_headers.contains(pointer)
                || is_policy_unchanged && pointer.starts_with("/retry")
                || are_rules_unchanged && pointer == "/status_rules"
        };
        problems.retain(|problem| !is_accepted(&problem.pointer));
        if problems.is_empty() { Ok(self.retry.fill_defaults()) } else { Err(problems) }
    }

    /// Checks everything but the URL's target, which the egress guard judges.
    pub fn check(&self) -> Result<RetryPolicy, Vec<InvalidSetting>> {
        let mut problems = Vec::new();
        let mut refuse = |pointer: String, message: String| problems.push(InvalidSetting { pointer, message });
        self.check_event_types(&mut refuse);
        check_text("/description", "description", &self.description, 1_024, &mut refuse);
        self.check_metadata(&mut refuse);
        self.check_signatures_and_headers(&mut refuse);
        self.check_limits(&mut refuse);
        self.check_owner_email(&mut refuse);
        for problem in self.tls.check() {
            refuse(problem.pointer, problem.message);
        }
        if let Err(message) = self.status_rules.check() {
            refuse("/status_rules".into(), message);
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

    fn check_event_types(&self, refuse: &mut impl FnMut(String, String)) {
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
    }

    fn check_metadata(&self, refuse: &mut impl FnMut(String, String)) {
        if self.metadata.len() > 50 {
            refuse("/metadata".into(), format!("metadata has {} entries; use at most 50", self.metadata.len()));
        }
        for (name, value) in &self.metadata {
            check_text(&child("/metadata", name), "a metadata name", name, 64, refuse);
            check_text(&child("/metadata", name), "a metadata value", value, 512, refuse);
        }
    }

    fn check_signatures_and_headers(&self, refuse: &mut impl FnMut(String, String)) {
        for (n, message) in signing::check(&self.signatures) {
            refuse(format!("/signatures/{n}"), message);
        }
        for problem in headers::check(&self.headers) {
            refuse(problem.pointer, problem.message);
        }
    }

    /// Checks the settings that limit how the endpoint is called.
    fn check_limits(&self, refuse: &mut impl FnMut(String, String)) {
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
    }

    fn check_owner_email(&self, refuse: &mut impl FnMut(String, String)) {
        if let Some(address) = &self.owner_email
            && !is_mail_address(address)
        {
            refuse(
                "/owner_email".into(),
                format!("owner_email {address:?} is not a mail address; write it like ops@example.com"),
            );
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

    /// Returns how long a connection may take to open: never longer than most of
    /// `total`.
    pub fn connect_within(&self) -> Span {
        // It ends before `total`, so that the failure says that connecting was slow.
        self.connect.min(Span(self.total.0 * 9 / 10))
    }
}

/// Whether the text is one plain mail address. The mail server judges the rest.
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
