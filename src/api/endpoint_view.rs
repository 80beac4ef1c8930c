//! Builds the view of an endpoint: its settings without their secrets, its state
//! and its health.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::auth::Principal;
use super::problem::Problem;
use crate::lifecycle::deliver::keys::public_key;
use crate::lifecycle::live_status::{LiveStatus, LiveStatusQuery, live_statuses};
use crate::model::endpoint::{Endpoint, EndpointSettings, EndpointState};
use crate::model::endpoint_event::Actor;
use crate::model::headers::MASK;
use crate::model::health::BreakerState;
use crate::model::id::{EndpointId, TenantId};
use crate::model::signing::Signing;
use crate::model::span::Span;
use crate::model::url_versions::mask_url;

/// An endpoint as it is shown.
#[derive(Serialize, ToSchema)]
pub struct EndpointView {
    /// The endpoint's id.
    #[schema(value_type = String)]
    id: EndpointId,
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// Settings of the endpoint. The values of its own headers are masked.
    #[serde(flatten)]
    settings: EndpointSettings,
    /// Whether it is called: `active`, `paused` (by a person, or by the gateway because it [only fails](gentle.md#pause-auto-pause-disabled)) or `disabled` (the receiver answered 410 or an equivalent).
    state: EndpointState,
    /// Why it is in this state. The note given with a pause is the reason.
    state_reason: Option<String>,
    /// Since when it has been in this state.
    #[schema(value_type = String, format = DateTime)]
    state_since: Timestamp,
    /// Who changed the state; null when it was never changed.
    state_by: Option<Actor>,
    /// Its breaker and its backlog; see [below](#health).
    health: HealthView,
    /// The end of the break that its receiver asked for with [`Retry-After`](retries.md#retry-after); null when there is none.
    #[schema(value_type = Option<String>, format = DateTime)]
    backpressure_until: Option<Timestamp>,
    /// When its owner was last mailed; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    mailed_at: Option<Timestamp>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When its settings last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Settings that are above the tenant's [ceiling](#tenants), by name, and what is in force instead; left out where there are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capped: BTreeMap<&'static str, String>,
    /// The newest public key, where `signing` is `ed25519`: it verifies `v1a` signatures. Null otherwise.
    public_key: Option<String>,
    /// The secret that signs. Only in the answer to its creation; later, `…/secrets` shows it. Private keys are never shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
}

/// The health of an endpoint.
#[derive(Serialize, ToSchema)]
pub struct HealthView {
    /// The state of its [breaker](gentle.md#the-breaker).
    breaker: BreakerState,
    /// Why the breaker is open, or was before the ramp.
    reason: Option<String>,
    /// Whose words the reason is: `person` for what somebody noted who opened the breaker, else `gateway`; null without a reason.
    reason_by: Option<Actor>,
    /// When this state began; null when it never changed. A failed probe does not change it.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// When the next probe may go; null when the breaker is not open, or a person opened it for good.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_probe_at: Option<Timestamp>,
    /// How many requests may be open at once by the cap and the breaker; a pause is not in it.
    max_in_flight_now: usize,
    /// Failures in a row that the breaker counts.
    consecutive_failures: u32,
    /// Permanent answers without a success between them.
    consecutive_refusals: u32,
    /// Since when there has been nothing but failure; null when the last answer was a success, or there was none.
    #[schema(value_type = Option<String>, format = DateTime)]
    failing_since: Option<Timestamp>,
    /// How many deliveries wait for it, held or on their way; null while that is not known, as for a moment after another node took the endpoint over.
    waiting: Option<u64>,
    /// When the oldest of the deliveries that may start next is, or was, due. Deliveries behind others in their lane do not count.
    #[schema(value_type = Option<String>, format = DateTime)]
    oldest_due_at: Option<Timestamp>,
    /// How long it has been due, to the second; null when nothing is due.
    #[schema(value_type = Option<String>, example = "2m")]
    oldest_due_age: Option<Span>,
}

impl HealthView {
    fn of(endpoint: &Endpoint, status: &LiveStatus, oldest_due_at: Option<Timestamp>, now: Timestamp) -> Self {
        let health = status.health.as_ref().unwrap_or(&endpoint.health);
        let breaker = health.breaker(now);
        let is_open = matches!(breaker, BreakerState::Open | BreakerState::HalfOpen);
        let age = oldest_due_at.map(|due_at| now.as_millisecond() - due_at.as_millisecond());
        Self {
            breaker,
            reason: health.reason.clone(),
            reason_by: health
                .reason
                .as_ref()
                .map(|_| if health.is_reason_of_person() { Actor::Person } else { Actor::Gateway }),
            since: health.since,
            next_probe_at: health.open_until().filter(|_| is_open && !health.is_forced()),
            max_in_flight_now: health.open_requests_limit(endpoint.max_in_flight() as usize, now),
            consecutive_failures: health.failures,
            consecutive_refusals: health.refusals,
            failing_since: health.failing_since,
            waiting: status.waiting,
            oldest_due_at,
            // Whole seconds are precise enough for an age.
            oldest_due_age: age.and_then(|age| u64::try_from(age / 1_000).ok()).map(Span::secs),
        }
    }
}

impl EndpointView {
    /// Masks the URL unless the caller may manage endpoints, because a URL may
    /// contain a credential.
    pub(super) fn seen_by(mut self, principal: &Principal) -> Self {
        if !principal.sees_urls() {
            self.settings.url = mask_url(&self.settings.url);
        }
        self
    }

    /// Builds the view of one endpoint, reading its live status and oldest due time.
    pub(super) async fn read(api: &SharedApiState, endpoint: &Endpoint) -> Result<Self, Problem> {
        Ok(Self::of_all(api, &[endpoint]).await?.remove(0))
    }

    /// Builds the views of several endpoints, reading their live status and oldest
    /// due time at once.
    pub(super) async fn of_all(api: &SharedApiState, endpoints: &[&Endpoint]) -> Result<Vec<Self>, Problem> {
        let queries =
            endpoints.iter().map(|endpoint| LiveStatusQuery::endpoint(&endpoint.tenant, endpoint.id)).collect();
        let ids = endpoints.iter().map(|endpoint| endpoint.id).collect();
        let (statuses, oldest_due) =
            tokio::join!(live_statuses(&api.gateway, queries), api.gateway.store.oldest_due(ids));
        let (now, offset) = (api.gateway.clock.wall(), api.gateway.clock.wall_offset());
        let show = |(endpoint, oldest_due): (&&Endpoint, Option<Timestamp>)| {
            let endpoint = (*endpoint).clone().to_wall_time(offset);
            let mut status = statuses[&endpoint.id].clone();
            status.health = status.health.map(|health| health.to_wall_time(offset));
            Self::of(&endpoint, &status, oldest_due.map(|at| offset.wall(at)), now)
        };
        Ok(endpoints.iter().zip(oldest_due?).map(show).collect())
    }

    fn of(endpoint: &Endpoint, status: &LiveStatus, oldest_due: Option<Timestamp>, now: Timestamp) -> Self {
        let mut settings = endpoint.settings.clone();
        settings.headers.values_mut().for_each(|value| *value = MASK.into());
        settings.tls = Arc::new(settings.tls.masked());
        Self {
            id: endpoint.id,
            tenant: endpoint.tenant.clone(),
            settings,
            state: endpoint.status.state,
            state_reason: endpoint.status.reason.clone(),
            state_since: endpoint.status.since,
            state_by: endpoint.status.by,
            health: HealthView::of(endpoint, status, oldest_due, now),
            mailed_at: endpoint.mailed_at,
            backpressure_until: endpoint.backpressure_until.filter(|until| *until > now),
            created_at: endpoint.created_at,
            updated_at: endpoint.updated_at,
            capped: capped_settings(endpoint),
            public_key: match endpoint.settings.signing {
                Signing::Hmac => None,
                Signing::Ed25519 => endpoint.secrets.first().and_then(|secret| public_key(&secret.key)),
            },
            secret: None,
        }
    }
}

/// Returns the settings above the tenant's ceiling, with the values in force.
fn capped_settings(endpoint: &Endpoint) -> BTreeMap<&'static str, String> {
    let above = endpoint.ceiling.settings_above(&endpoint.settings).into_iter();
    above.map(|above| (above.setting.limit().trim_start_matches("endpoint."), above.most)).collect()
}
