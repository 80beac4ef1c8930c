//! Shows what needs attention.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::auth::Principal;
use super::input::TenantPath;
use super::problem::{Problem, Problems};
use crate::lifecycle::attention::collect;
use crate::model::attention::{AttentionItem, AttentionKind, Severity};
use crate::model::id::{EndpointId, TenantId};

/// Most items that are shown.
const ITEMS_MAX: usize = 500;

/// Something that is not plainly well.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttentionItemView {
    /// The kind of trouble.
    kind: AttentionKind,
    /// How bad it is.
    severity: Severity,
    /// Whose it is; null for the gateway itself.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// The endpoint it concerns; null where it is none.
    #[schema(value_type = Option<String>)]
    endpoint: Option<EndpointId>,
    /// Since when it has been so; null where that is not known.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Why, in a sentence.
    reason: String,
    /// How many deliveries wait there; null where that is not known.
    waiting: Option<u64>,
    /// For how many seconds the oldest delivery that could go has not gone; null where that is not the trouble.
    oldest_due_age_s: Option<u64>,
    /// When it ends, or the gateway does something about it by itself; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_at: Option<Timestamp>,
    /// The command that helps, or shows more.
    command: String,
}

impl AttentionItemView {
    fn of(item: AttentionItem, sees_notes: bool) -> Self {
        Self {
            kind: item.kind,
            severity: item.severity,
            tenant: item.tenant,
            endpoint: item.endpoint,
            since: item.since,
            reason: item.note.filter(|_| sees_notes).unwrap_or(item.reason),
            waiting: item.waiting,
            oldest_due_age_s: item.oldest_due_age.map(|age| age.as_secs()),
            next_at: item.next_at,
            command: item.command,
        }
    }
}

/// What needs attention.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttentionView {
    /// What is not plainly well, the worst first; at most 500.
    data: Vec<AttentionItemView>,
    /// How many more there are than `data` has: beyond 500 in all, and beyond the 100 endpoints with the most dead letters of the last two days. `GET /v1/dead-letters/groups` has those of every endpoint.
    more: u64,
    /// Nodes that were not heard in time, so that what only they know is missing.
    unanswered_nodes: Vec<String>,
}

async fn view(api: &SharedApiState, principal: &Principal, tenant: Option<&TenantId>) -> Json<AttentionView> {
    let attention = collect(&api.gateway, tenant).await;
    let more = attention.items.len().saturating_sub(ITEMS_MAX) as u64 + attention.more_with_dead;
    let viewed = |item| AttentionItemView::of(item, principal.sees_notes());
    let data = attention.items.into_iter().take(ITEMS_MAX).map(viewed).collect();
    Json(AttentionView { data, more, unanswered_nodes: attention.unanswered_nodes })
}

/// Show what needs attention
///
/// Everything that is not plainly well, the worst first: endpoints that are stopped or fail, lanes that stand, dead letters that nobody has dealt with (of each endpoint for two days after the last death, then in one line of their tenant), tenants at their limits, and trouble of the gateway itself. An empty list means that nobody need look.
#[utoipa::path(
    get, path = "/v1/attention", operation_id = "get_attention", tag = "status",
    responses((status = 200, body = AttentionView), Problems),
    security(("token" = ["admin"])),
)]
pub async fn of_all(State(api): State<SharedApiState>, principal: Principal) -> Result<Json<AttentionView>, Problem> {
    Ok(view(&api, &principal, None).await)
}

/// Show what needs attention of one tenant
///
/// As over all tenants, without what concerns the gateway itself. A token of the tenant is not told what a person noted who opened a breaker.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/attention", operation_id = "get_tenant_attention", tag = "status",
    params(("tenant" = String, Path, description = "Whose endpoints they are")),
    responses((status = 200, body = AttentionView), Problems),
    security(("token" = ["read"])),
)]
pub async fn of_tenant(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    principal: Principal,
) -> Result<Json<AttentionView>, Problem> {
    Ok(view(&api, &principal, Some(&tenant)).await)
}
