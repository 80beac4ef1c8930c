//! What needs a person's attention: everything that is not plainly well, with the
//! reason and the command that helps.
//!
//! Pure: what is known of an endpoint, a tenant or the gateway is handed in.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::endpoint::{Endpoint, EndpointState};
use super::endpoint_event::Actor;
use super::health::{BreakerState, EndpointHealth};
use super::id::{EndpointId, TenantId};
use super::limits::TenantUsage;
use super::size::Size;
use super::span::Span;
use super::suggested_command::{command_anywhere, quote};
use super::tenant::Tenant;

mod outbox;

pub use outbox::{OutboxFacts, of_outbox};

/// Time that an endpoint fails before it is reported, if its breaker is closed.
const FAILING_FOR: Duration = Duration::from_secs(300);
/// Time that a breaker is open, with deliveries waiting, before that is critical.
const OPEN_FOR: Duration = Duration::from_secs(3_600);
/// Age of the oldest delivery that could go from which the gateway is behind.
const BEHIND_FROM: Duration = Duration::from_secs(60);
/// Time before its end at which a replaced secret is reported.
const SECRET_ENDS_WITHIN: Duration = Duration::from_secs(6 * 3_600);
/// Time before its end at which a certificate is reported.
const CERTIFICATE_ENDS_WITHIN: Duration = Duration::from_secs(14 * 86_400);
/// Time before its end at which a certificate is critical.
const CERTIFICATE_CRITICAL: Duration = Duration::from_secs(2 * 86_400);
/// Time since the last death for which dead letters are reported. Those of two
/// days are still there after a night, or a Sunday, on which nobody looked.
pub const DEAD_REPORTED_FOR: Duration = Duration::from_secs(48 * 3_600);
/// Dead letters at an endpoint from which growth is critical.
const DEAD_CRITICAL: u64 = 1_000;
/// Time since the last death after which dead letters no longer grow.
const GROWING_WITHIN: Duration = Duration::from_secs(3_600);
/// Difference of clocks that is reported.
const CLOCK_OFF_FROM: Duration = Duration::from_secs(1);
/// Difference of clocks that is critical: receivers refuse old signatures.
const CLOCK_OFF_CRITICAL: Duration = Duration::from_secs(60);

/// What kind of trouble it is.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum AttentionKind {
    /// The store does not answer this node.
    StoreFailing,
    /// The disk's reserve is reached, or nearly.
    DiskLow,
    /// Shards have no owner.
    NodeMissing,
    /// What could go has not gone for over a minute.
    Behind,
    /// This machine's clock is off.
    ClockOff,
    /// The certificate of the API's address ends soon.
    ServerCertificateEnds,
    /// The gateway paused an endpoint because it only failed.
    AutoPaused,
    /// A receiver asked never to be called again.
    Disabled,
    /// An endpoint's breaker is open.
    BreakerOpen,
    /// A dead letter holds up a lane in which others wait.
    LaneBlocked,
    /// Dead letters of an endpoint grow, or stand and nobody has dealt with them; or a tenant
    /// has old ones.
    DeadGrowing,
    /// A tenant has reached a limit, or nearly.
    OverQuota,
    /// What a producer has committed in its outbox is not handed in.
    OutboxLag,
    /// Rows of an outbox can never be accepted as they are.
    OutboxRefused,
    /// An endpoint fails, though its breaker is closed.
    Failing,
    /// The client certificate of an endpoint ends soon.
    CertificateEnds,
    /// A replaced secret of an endpoint ends soon.
    SecretEnds,
}

impl AttentionKind {
    /// Whether the trouble is the gateway's own.
    pub fn is_of_gateway(self) -> bool {
        match self {
            Self::StoreFailing
            | Self::DiskLow
            | Self::NodeMissing
            | Self::Behind
            | Self::ClockOff
            | Self::ServerCertificateEnds => true,
            Self::AutoPaused
            | Self::Disabled
            | Self::BreakerOpen
            | Self::LaneBlocked
            | Self::DeadGrowing
            | Self::OverQuota
            | Self::OutboxLag
            | Self::OutboxRefused
            | Self::Failing
            | Self::CertificateEnds
            | Self::SecretEnds => false,
        }
    }

    /// Whether an endpoint gets nothing, or fails.
    pub fn is_of_failing_endpoint(self) -> bool {
        match self {
            Self::AutoPaused | Self::Disabled | Self::BreakerOpen | Self::Failing => true,
            Self::StoreFailing
            | Self::DiskLow
            | Self::NodeMissing
            | Self::Behind
            | Self::ClockOff
            | Self::ServerCertificateEnds
            | Self::LaneBlocked
            | Self::DeadGrowing
            | Self::OverQuota
            | Self::OutboxLag
            | Self::OutboxRefused
            | Self::CertificateEnds
            | Self::SecretEnds => false,
        }
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Somebody should act now.
    Critical,
    /// Somebody should look at it.
    Warning,
}

/// Something that needs attention. Times are as they were handed in.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionItem {
    /// Kind of trouble.
    pub kind: AttentionKind,
    /// How bad it is.
    pub severity: Severity,
    /// Tenant it concerns, if it is one.
    pub tenant: Option<TenantId>,
    /// Endpoint it concerns, if it is one.
    pub endpoint: Option<EndpointId>,
    /// Time since when it has been so, if that is known.
    pub since: Option<Timestamp>,
    /// The reason, for people.
    pub reason: String,
    /// What a person noted about it, which stands in place of the reason for those who may read it.
    pub note: Option<String>,
    /// Deliveries that wait there, if that is known.
    pub waiting: Option<u64>,
    /// Age of the oldest delivery that could go and did not.
    pub oldest_due_age: Option<Duration>,
    /// Time at which the gateway does something about it by itself.
    pub next_at: Option<Timestamp>,
    /// Command that helps, or shows more.
    pub command: String,
}

/// What is known of an endpoint. All times are wall times.
#[derive(Debug, Clone, Copy)]
pub struct EndpointFacts<'a> {
    /// The endpoint itself.
    pub endpoint: &'a Endpoint,
    /// Its health as its owner knows it.
    pub health: &'a EndpointHealth,
    /// Deliveries that wait for it, if that is known.
    pub waiting: Option<u64>,
    /// End of its client certificate, if it has one.
    pub certificate_ends_at: Option<Timestamp>,
}

/// What is known of the gateway itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct GatewayFacts {
    /// Whether the store answers.
    pub is_store_answering: bool,
    /// Free bytes and the reserve of the disk, if this node has one to watch.
    pub disk: Option<(u64, u64)>,
    /// Number of shards without an owner.
    pub unowned_shards: usize,
    /// Age of the oldest delivery that could go and did not, over all nodes.
    pub oldest_due_age: Duration,
    /// Deliveries that wait on this node.
    pub waiting: Option<u64>,
    /// Difference of this machine's clock.
    pub clock_off: Duration,
}

impl AttentionItem {
    fn of_gateway(kind: AttentionKind, severity: Severity, reason: String, command: &str) -> Self {
        Self {
            kind,
            severity,
            tenant: None,
            endpoint: None,
            since: None,
            reason,
            note: None,
            waiting: None,
            oldest_due_age: None,
            next_at: None,
            command: command.to_owned(),
        }
    }

    fn of_endpoint(facts: &EndpointFacts<'_>, kind: AttentionKind, severity: Severity, reason: String) -> Self {
        let (tenant, id) = (&facts.endpoint.tenant, facts.endpoint.id.to_string());
        let verb = match kind {
            AttentionKind::AutoPaused | AttentionKind::Disabled => "endpoints resume",
            AttentionKind::BreakerOpen => "endpoints history",
            AttentionKind::SecretEnds => "endpoints secrets",
            _ => "endpoints get",
        };
        Self {
            tenant: Some(tenant.clone()),
            endpoint: Some(facts.endpoint.id),
            waiting: facts.waiting,
            ..Self::of_gateway(kind, severity, reason, &command_anywhere(tenant.as_str(), verb, &id))
        }
    }
}

/// Returns what is not well about an endpoint.
pub fn of_endpoint(facts: &EndpointFacts<'_>, now: Timestamp) -> Vec<AttentionItem> {
    let mut items = Vec::new();
    items.extend(of_state(facts, now));
    let certificate = facts.certificate_ends_at.and_then(|at| certificate_end("its client certificate", at, now));
    if let Some((severity, reason)) = certificate {
        let item = AttentionItem::of_endpoint(facts, AttentionKind::CertificateEnds, severity, reason);
        items.push(AttentionItem { next_at: facts.certificate_ends_at, ..item });
    }
    let ends = facts.endpoint.secrets.iter().filter_map(|secret| secret.expires_at).filter(|at| *at > now).min();
    if let Some(at) = ends.filter(|at| *at < time_after(now, SECRET_ENDS_WITHIN)) {
        let reason = format!(
            "a replaced secret signs for {} more; its receiver must know the new one by then",
            rough_time_between(at, now)
        );
        let item = AttentionItem::of_endpoint(facts, AttentionKind::SecretEnds, Severity::Warning, reason);
        items.push(AttentionItem { next_at: Some(at), ..item });
    }
    items
}

/// Returns what is not well about an endpoint's state and breaker. A person's own
/// pause is no news.
fn of_state(facts: &EndpointFacts<'_>, now: Timestamp) -> Option<AttentionItem> {
    let (status, health) = (&facts.endpoint.status, facts.health);
    let is_persons = status.by == Some(Actor::Person);
    let reason = |known: &Option<String>, otherwise: &str| known.clone().unwrap_or_else(|| otherwise.to_owned());
    let stopped = |kind| {
        let reason = reason(&status.reason, "it was stopped by the gateway");
        let item = AttentionItem::of_endpoint(facts, kind, Severity::Critical, reason);
        AttentionItem { since: Some(status.since), ..item }
    };
    match status.state {
        EndpointState::Paused | EndpointState::Disabled if is_persons => return None,
        EndpointState::Paused => return Some(stopped(AttentionKind::AutoPaused)),
        EndpointState::Disabled => return Some(stopped(AttentionKind::Disabled)),
        EndpointState::Active => {}
    }
    match health.breaker(now) {
        BreakerState::Open | BreakerState::HalfOpen => {
            let since = health.failing_since.or(health.since);
            let is_long = since.is_some_and(|since| time_after(since, OPEN_FOR) < now) && facts.waiting != Some(0);
            let severity = if is_long { Severity::Critical } else { Severity::Warning };
            let (reason, note) = match &health.reason {
                Some(_) if health.is_reason_of_person() => {
                    ("a person opened its breaker".to_owned(), health.reason.clone())
                }
                known => (reason(known, "its breaker is open"), None),
            };
            let item = AttentionItem::of_endpoint(facts, AttentionKind::BreakerOpen, severity, reason);
            let next_at = health.open_until().filter(|_| !health.is_forced());
            Some(AttentionItem { since: health.since, note, next_at, ..item })
        }
        BreakerState::Closed | BreakerState::Ramp => {
            let since = health.failing_since.filter(|since| time_after(*since, FAILING_FOR) < now)?;
            let reason = format!("it has given nothing but failures for {}", rough_time_between(now, since));
            let item = AttentionItem::of_endpoint(facts, AttentionKind::Failing, Severity::Warning, reason);
            Some(AttentionItem { since: Some(since), ..item })
        }
    }
}

/// Dead letters of an endpoint that are neither replayed nor discarded.
#[derive(Debug, Clone, Copy)]
pub struct StandingDead {
    /// Number of dead letters.
    pub count: u64,
    /// Time of the first death.
    pub oldest_at: Timestamp,
    /// Time of the last death, also of one that was dealt with since.
    pub newest_at: Timestamp,
    /// Whether the endpoint is deleted, so that they cannot be replayed.
    pub is_endpoint_deleted: bool,
}

/// Returns that dead letters of an endpoint stand or grow, until the last death is
/// [`DEAD_REPORTED_FOR`] ago. The tally knows what is left and not what died, so the
/// reason speaks only of what is left.
pub fn of_dead(tenant: &TenantId, endpoint: EndpointId, dead: StandingDead, now: Timestamp) -> Option<AttentionItem> {
    if dead.count == 0 || time_after(dead.newest_at, DEAD_REPORTED_FOR) < now {
        return None;
    }
    let is_growing = time_after(dead.newest_at, GROWING_WITHIN) >= now;
    let is_critical = is_growing && dead.count >= DEAD_CRITICAL;
    let severity = if is_critical { Severity::Critical } else { Severity::Warning };
    let (letters, are) = if dead.count == 1 { ("letter", "is") } else { ("letters", "are") };
    let day = jiff::tz::Offset::UTC.to_datetime(dead.oldest_at).date();
    let last = rough_time_between(now, dead.newest_at);
    let growing = if is_growing { "they grow: the last died" } else { "the last died" };
    let count = dead.count;
    let reason =
        format!("{count} dead {letters} since {day} {are} neither replayed nor discarded; {growing} {last} ago");
    let verb = if dead.is_endpoint_deleted { "discard" } else { "replay" };
    let verb = format!("dead-letters {verb} --endpoint {endpoint} --since {day}T00:00:00Z --dry-run");
    let command = command_anywhere(tenant.as_str(), &verb, "");
    let item = AttentionItem::of_gateway(AttentionKind::DeadGrowing, severity, reason, &command);
    let (tenant, endpoint) = (Some(tenant.clone()), Some(endpoint));
    Some(AttentionItem { tenant, endpoint, since: Some(dead.oldest_at), ..item })
}

/// Returns the item about a tenant's old dead letters: no endpoint reports them any more,
/// because the last death is [`DEAD_REPORTED_FOR`] ago. They stay until somebody deals with them, or
/// retention forgets them.
pub fn of_old_dead(tenant: &TenantId, count: u64, oldest_at: Timestamp) -> AttentionItem {
    let (letters, are) = if count == 1 { ("letter", "is") } else { ("letters", "are") };
    let day = jiff::tz::Offset::UTC.to_datetime(oldest_at).date();
    let hours = DEAD_REPORTED_FOR.as_secs() / 3_600;
    let reason = format!(
        "{count} dead {letters} since {day} {are} neither replayed nor discarded, and over {hours} hours old; they stay \
         until somebody does, or until their retention ends"
    );
    let command = command_anywhere(tenant.as_str(), "dead-letters groups", "");
    let item = AttentionItem::of_gateway(AttentionKind::DeadGrowing, Severity::Warning, reason, &command);
    AttentionItem { tenant: Some(tenant.clone()), since: Some(oldest_at), ..item }
}

/// Returns that a dead letter holds up a lane of an endpoint.
pub fn of_blocked_lane(
    tenant: &TenantId,
    endpoint: EndpointId,
    key: Option<&str>,
    waiting: u64,
    since: Timestamp,
) -> AttentionItem {
    let lane = key.map_or("its one lane".to_owned(), |key| format!("its lane {key:?}"));
    let waits = if waiting == 1 { "1 delivery waits".to_owned() } else { format!("{waiting} deliveries wait") };
    let reason = format!("{lane} stands behind a dead letter, and {waits} in it");
    let command = command_anywhere(tenant.as_str(), "endpoints lanes --blocked", &endpoint.to_string());
    let item = AttentionItem::of_gateway(AttentionKind::LaneBlocked, Severity::Critical, reason, &command);
    let (tenant, endpoint) = (Some(tenant.clone()), Some(endpoint));
    AttentionItem { tenant, endpoint, since: Some(since), waiting: Some(waiting), ..item }
}

/// Returns which limits a tenant has reached, or nearly.
pub fn of_tenant(tenant: &Tenant, usage: &TenantUsage) -> Vec<AttentionItem> {
    let limits = &tenant.limits;
    let stored = limits.stored_bytes.map(|most| (usage.stored_bytes, most.0, "stored_bytes"));
    let waiting = limits.waiting.zip(usage.waiting).map(|(most, waiting)| (waiting, most, "waiting"));
    let endpoints = Some((usage.endpoints, u64::from(limits.endpoints), "endpoints"));
    let near = |used: u64, most: u64| most > 0 && used.saturating_mul(10) >= most.saturating_mul(9);
    let item = |(used, most, name): (u64, u64, &str)| {
        let severity = if used >= most { Severity::Critical } else { Severity::Warning };
        let shown = |count: u64| if name == "stored_bytes" { Size(count).to_string() } else { count.to_string() };
        let reason = format!("it uses {} of at most {} (limits.{name})", shown(used), shown(most));
        let command = format!("posthaste tenants get {}", quote(tenant.id.as_str()));
        let item = AttentionItem::of_gateway(AttentionKind::OverQuota, severity, reason, &command);
        AttentionItem { tenant: Some(tenant.id.clone()), waiting: usage.waiting, ..item }
    };
    [stored, waiting, endpoints].into_iter().flatten().filter(|(used, most, _)| near(*used, *most)).map(item).collect()
}

/// Returns what is not well about the gateway itself.
pub fn of_gateway(facts: &GatewayFacts) -> Vec<AttentionItem> {
    use AttentionKind::{Behind, ClockOff, DiskLow, NodeMissing, StoreFailing};
    let item = AttentionItem::of_gateway;
    let mut items = Vec::new();
    if !facts.is_store_answering {
        let reason = "the store does not answer this node; nothing is accepted or settled".to_owned();
        items.push(item(StoreFailing, Severity::Critical, reason, "posthaste cluster"));
    }
    if let Some((free, reserve)) = facts.disk.filter(|(free, reserve)| *free < reserve.saturating_mul(2)) {
        let severity = if free < reserve { Severity::Critical } else { Severity::Warning };
        let reason = format!("{} are free on the disk, and below {} new events are refused", Size(free), Size(reserve));
        items.push(item(DiskLow, severity, reason, "posthaste config"));
    }
    if facts.unowned_shards > 0 {
        let reason = format!("{} of 256 shards have no owner, and nothing is delivered there", facts.unowned_shards);
        items.push(item(NodeMissing, Severity::Critical, reason, "posthaste cluster"));
    }
    if facts.oldest_due_age > BEHIND_FROM {
        let age = span_words_by_minute(facts.oldest_due_age);
        let reason = format!("a delivery that could go has not gone for {age}; the gateway is slower than its work");
        let behind = item(Behind, Severity::Critical, reason, "posthaste cluster");
        let oldest_due_age = Some(facts.oldest_due_age);
        items.push(AttentionItem { waiting: facts.waiting, oldest_due_age, ..behind });
    }
    if facts.clock_off > CLOCK_OFF_FROM {
        let severity = if facts.clock_off > CLOCK_OFF_CRITICAL { Severity::Critical } else { Severity::Warning };
        let reason = format!("this machine's clock is off by {}", in_whole_units(facts.clock_off));
        items.push(item(ClockOff, severity, reason, "posthaste cluster"));
    }
    items
}

/// Returns that the certificate of this node's API ends soon, if it does.
pub fn of_server_certificate(ends_at: Timestamp, now: Timestamp) -> Option<AttentionItem> {
    let (severity, reason) = certificate_end("the certificate of the API's address", ends_at, now)?;
    let kind = AttentionKind::ServerCertificateEnds;
    let item = AttentionItem::of_gateway(kind, severity, reason, "posthaste doctor");
    Some(AttentionItem { next_at: Some(ends_at), ..item })
}

/// Returns how bad it is that a certificate ends, and says it, if it ends soon.
fn certificate_end(certificate: &str, at: Timestamp, now: Timestamp) -> Option<(Severity, String)> {
    if at >= time_after(now, CERTIFICATE_ENDS_WITHIN) {
        return None;
    }
    let severity = if at < time_after(now, CERTIFICATE_CRITICAL) { Severity::Critical } else { Severity::Warning };
    let ends = if at > now { format!("ends in {}", rough_time_between(at, now)) } else { format!("ended at {at}") };
    Some((severity, format!("{certificate} {ends}")))
}

/// Sorts what needs attention, the worst first: by severity, kind, how many wait,
/// and since when.
pub fn worst_first(items: &mut [AttentionItem]) {
    items.sort_by_cached_key(|item| {
        let waiting = std::cmp::Reverse(item.waiting.unwrap_or(0));
        (item.severity, item.kind, waiting, item.since.unwrap_or(Timestamp::MAX), item.endpoint)
    });
}

fn time_after(at: Timestamp, span: Duration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Returns the time between two moments, roughly.
fn rough_time_between(later: Timestamp, earlier: Timestamp) -> String {
    span_words_by_minute(Duration::try_from(later.duration_since(earlier)).unwrap_or_default())
}

/// Writes a span that is still growing. It changes once a minute at most, so that
/// pages with it stay the same between two looks.
fn span_words_by_minute(span: Duration) -> String {
    if span.as_secs() < 60 { "less than a minute".to_owned() } else { in_whole_units(span).to_string() }
}

/// Returns a span in a unit that suits it: seconds, minutes from one on, hours from
/// two, days from four.
fn in_whole_units(span: Duration) -> Span {
    let seconds = span.as_secs();
    let unit = match seconds {
        345_600.. => 86_400,
        7_200.. => 3_600,
        60.. => 60,
        _ => 1,
    };
    Span::secs(seconds / unit * unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::endpoint::{EndpointDefaults, EndpointSettings, EndpointStatus};
    use crate::model::health::BreakerPhase;
    use crate::model::id::SecretId;
    use crate::model::signing::Secret;
    use crate::model::tenant::TenantQuota;
    use crate::model::url_versions::UrlVersions;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn an_outbox_is_told_when_its_rows_wait_or_were_refused() {
        let facts = |seconds, refused| OutboxFacts {
            description: "shop at db".into(),
            oldest: Duration::from_secs(seconds),
            refused,
            ..OutboxFacts::default()
        };
        let found = |facts: &OutboxFacts| -> Vec<_> {
            of_outbox(facts).into_iter().map(|item| (item.kind, item.severity)).collect()
        };
        assert_eq!(found(&facts(59, 0)), []);
        assert_eq!(found(&facts(61, 0)), [(AttentionKind::OutboxLag, Severity::Warning)]);
        assert_eq!(found(&facts(301, 0)), [(AttentionKind::OutboxLag, Severity::Critical)]);
        assert_eq!(found(&facts(0, 1)), [(AttentionKind::OutboxRefused, Severity::Warning)]);
        let items = of_outbox(&facts(120, 2));
        assert_eq!(items[0].reason, "a row of the outbox at shop at db has not been handed in for 2m");
        assert!(items[1].reason.starts_with("2 rows of the outbox at shop at db"), "{}", items[1].reason);
        assert!(items.iter().all(|item| item.command == "posthaste outbox status"));
    }

    #[test]
    fn an_outbox_that_cannot_be_reached_is_told_though_no_row_is_known_to_wait() {
        let facts = |seconds| OutboxFacts {
            description: "shop at db".into(),
            failing_for: Duration::from_secs(seconds),
            failure: Some("the database cannot be reached".into()),
            ..OutboxFacts::default()
        };
        assert_eq!(of_outbox(&facts(59)), [], "a restart of the database is no trouble");
        let items = of_outbox(&facts(130));
        assert_eq!((items[0].kind, items[0].severity), (AttentionKind::OutboxLag, Severity::Warning));
        let expected = "the outbox at shop at db could not be relayed for 2m: the database cannot be reached";
        assert_eq!(items[0].reason, expected);
        assert_eq!(of_outbox(&facts(301))[0].severity, Severity::Critical);
    }

    fn endpoint() -> Endpoint {
        let settings: EndpointSettings = serde_json::from_str(r#"{"url":"https://example.com/"}"#).unwrap();
        Endpoint {
            id: EndpointId::mint(at(0), 1),
            tenant: "acme".parse().unwrap(),
            urls: UrlVersions::first(&settings.url),
            policy: settings.check().unwrap(),
            settings,
            ceiling: Default::default(),
            status: EndpointStatus::active(at(0)),
            backpressure_until: None,
            health: EndpointHealth::default(),
            mailed_at: None,
            secrets: Vec::new(),
            created_at: at(0),
            updated_at: at(0),
        }
    }

    fn found(endpoint: &Endpoint, now: i64) -> Vec<AttentionItem> {
        let facts = EndpointFacts { endpoint, health: &endpoint.health, waiting: Some(7), certificate_ends_at: None };
        of_endpoint(&facts, at(now))
    }

    #[test]
    fn what_is_well_and_what_a_person_paused_needs_no_attention() {
        assert!(found(&endpoint(), 10).is_empty());
        let paused =
            endpoint().status.with_state(EndpointState::Paused, Some("a release".into()), Actor::Person, at(5));
        assert!(found(&Endpoint { status: paused, ..endpoint() }, 10).is_empty());
    }

    #[test]
    fn what_the_gateway_stopped_is_told_with_its_reason_and_how_to_go_on() {
        for (state, kind) in
            [(EndpointState::Paused, AttentionKind::AutoPaused), (EndpointState::Disabled, AttentionKind::Disabled)]
        {
            let status = endpoint().status.with_state(state, Some("101 refusals".into()), Actor::Gateway, at(5));
            let items = found(&Endpoint { status, ..endpoint() }, 10);
            let id = endpoint().id;
            assert_eq!((items[0].kind, items[0].severity, items[0].since), (kind, Severity::Critical, Some(at(5))));
            assert_eq!(items[0].command, format!("posthaste endpoints resume {id} --tenant acme"));
            assert_eq!((items[0].reason.as_str(), items[0].waiting), ("101 refusals", Some(7)));
        }
    }

    #[test]
    fn an_open_breaker_is_critical_once_it_lasts_and_failures_are_told_before_it_opens() {
        let failing = EndpointHealth { failing_since: Some(at(0)), ..EndpointHealth::default() };
        let open = EndpointHealth {
            phase: BreakerPhase::Open { until: Some(at(9_000)) },
            since: Some(at(100)),
            reason: Some("5 failures in a row".into()),
            ..failing.clone()
        };
        let with = |health: &EndpointHealth, now| found(&Endpoint { health: health.clone(), ..endpoint() }, now);
        assert!(with(&failing, 200).is_empty(), "a moment's failure is our trade");
        assert_eq!(with(&failing, 301)[0].kind, AttentionKind::Failing);
        let opened = with(&open, 200).remove(0);
        assert_eq!((opened.kind, opened.severity), (AttentionKind::BreakerOpen, Severity::Warning));
        assert_eq!((opened.next_at, opened.reason.as_str()), (Some(at(9_000)), "5 failures in a row"));
        assert_eq!(with(&open, 3_700)[0].severity, Severity::Critical);
    }

    #[test]
    fn what_a_person_noted_is_kept_apart_from_the_reason() {
        let opened = EndpointHealth::default().forced_open(None, Some("unpaid invoice".into()), at(0));
        let items = found(&Endpoint { health: opened, ..endpoint() }, 10);
        assert_eq!(
            (items[0].reason.as_str(), items[0].note.as_deref()),
            ("a person opened its breaker", Some("unpaid invoice"))
        );
    }

    #[test]
    fn certificates_and_secrets_are_told_before_they_end() {
        let plain = endpoint();
        let ending = |ends: i64, now: i64| {
            let certificate_ends_at = Some(at(ends));
            let health = &plain.health;
            of_endpoint(&EndpointFacts { endpoint: &plain, health, waiting: None, certificate_ends_at }, at(now))
        };
        let day = 86_400;
        assert!(ending(15 * day, 0).is_empty());
        assert_eq!(ending(13 * day, 0)[0].severity, Severity::Warning);
        assert_eq!(ending(day, 0)[0].severity, Severity::Critical);
        let own = of_server_certificate(at(13 * day), at(0)).unwrap();
        assert_eq!((own.kind, own.severity), (AttentionKind::ServerCertificateEnds, Severity::Warning));
        assert_eq!((own.endpoint, own.next_at, own.command.as_str()), (None, Some(at(13 * day)), "posthaste doctor"));
        assert_eq!(of_server_certificate(at(day), at(0)).unwrap().severity, Severity::Critical);
        assert_eq!(of_server_certificate(at(15 * day), at(0)), None);
        assert!(ending(0, day)[0].reason.contains("ended at"));
        let secret = |ends| Secret {
            id: SecretId::mint(at(0), 1),
            text: String::new(),
            key: String::new(),
            created_at: at(0),
            expires_at: Some(at(ends)),
        };
        let with = |ends| found(&Endpoint { secrets: vec![secret(ends)], ..endpoint() }, 10);
        assert!(with(day).is_empty() && with(5).is_empty(), "one that ended is over");
        assert_eq!(with(3_600)[0].kind, AttentionKind::SecretEnds);
    }

    #[test]
    fn dead_letters_are_told_for_two_days_and_are_critical_only_while_they_grow() {
        let (tenant, endpoint) = ("acme".parse().unwrap(), endpoint().id);
        let told = |count, newest: i64, now: i64| {
            let (oldest_at, newest_at) = (at(-3_600), at(newest));
            let dead = StandingDead { count, oldest_at, newest_at, is_endpoint_deleted: false };
            of_dead(&tenant, endpoint, dead, at(now))
        };
        assert!(told(0, 0, 10).is_none());
        assert_eq!(told(1, 0, 10).unwrap().severity, Severity::Warning);
        let growing = told(200_000, 0, 120).unwrap();
        assert_eq!(
            (growing.severity, growing.reason.as_str()),
            (
                Severity::Critical,
                "200000 dead letters since 2023-11-14 are neither replayed nor discarded; they grow: the last died 2m ago"
            )
        );
        let morning = told(200_000, 0, 7 * 3_600).unwrap();
        assert_eq!(
            (morning.severity, morning.reason.as_str()),
            (
                Severity::Warning,
                "200000 dead letters since 2023-11-14 are neither replayed nor discarded; the last died 7h ago"
            )
        );
        let dry_run = format!(
            "posthaste dead-letters replay --endpoint {endpoint} --since 2023-11-14T00:00:00Z --dry-run --tenant acme"
        );
        assert_eq!(morning.command, dry_run);
        assert!(told(1, 0, 47 * 3_600).unwrap().reason.starts_with("1 dead letter since 2023-11-14 is neither"));
        assert!(told(200_000, 0, 49 * 3_600).is_none());
    }

    #[test]
    fn old_dead_letters_are_told_in_one_line_of_their_tenant() {
        let item = of_old_dead(&"acme".parse().unwrap(), 12, at(0));
        assert_eq!((item.severity, item.endpoint, item.since), (Severity::Warning, None, Some(at(0))));
        let reason = "12 dead letters since 2023-11-14 are neither replayed nor discarded, and over 48 hours old;";
        assert!(item.reason.starts_with(reason), "{}", item.reason);
        assert_eq!(item.command, "posthaste dead-letters groups --tenant acme");
    }

    #[test]
    fn dead_letters_of_a_deleted_endpoint_can_only_be_discarded() {
        let dead = StandingDead { count: 3, oldest_at: at(0), newest_at: at(0), is_endpoint_deleted: true };
        let item = of_dead(&"acme".parse().unwrap(), endpoint().id, dead, at(10)).unwrap();
        assert!(item.command.starts_with("posthaste dead-letters discard --endpoint ep_"), "{}", item.command);
    }

    #[test]
    fn a_limit_is_told_from_nine_tenths_on() {
        let mut tenant = Tenant {
            id: "acme".parse().unwrap(),
            name: String::new(),
            quota: TenantQuota::default(),
            limits: Default::default(),
            defaults: EndpointDefaults::default(),
            retention: Default::default(),
            created_at: at(0),
        };
        tenant.limits.waiting = Some(100);
        let with = |waiting| of_tenant(&tenant, &TenantUsage { waiting: Some(waiting), ..TenantUsage::default() });
        assert!(with(89).is_empty());
        assert_eq!(with(90)[0].severity, Severity::Warning);
        assert_eq!(with(100)[0].reason, "it uses 100 of at most 100 (limits.waiting)");
        assert_eq!(with(100)[0].severity, Severity::Critical);
    }

    #[test]
    fn trouble_of_the_gateway_itself_comes_first() {
        let well = GatewayFacts { is_store_answering: true, disk: Some((1_000, 100)), ..GatewayFacts::default() };
        assert!(of_gateway(&well).is_empty());
        let ill = GatewayFacts {
            is_store_answering: false,
            disk: Some((150, 100)),
            unowned_shards: 3,
            oldest_due_age: Duration::from_secs(61),
            waiting: Some(1),
            clock_off: Duration::from_secs(2),
        };
        let mut items = of_gateway(&ill);
        let dead = StandingDead { count: 1_000, oldest_at: at(0), newest_at: at(0), is_endpoint_deleted: false };
        items.extend(of_dead(&"acme".parse().unwrap(), endpoint().id, dead, at(0)));
        worst_first(&mut items);
        let kinds: Vec<&str> = items.iter().map(|item| item.kind.into()).collect();
        let expected = ["store_failing", "node_missing", "behind", "dead_growing", "disk_low", "clock_off"];
        assert_eq!(kinds, expected);
    }
}
