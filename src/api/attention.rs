//! Shows what needs attention.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
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

impl From<AttentionItem> for AttentionItemView {
    fn from(item: AttentionItem) -> Self {
        Self {
            kind: item.kind,
            severity: item.severity,
            tenant: item.tenant,
            endpoint: item.endpoint,
            since: item.since,
            reason: item.reason,
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
    /// Nodes that were not heard in time, so that what only they know is missing.
    unanswered_nodes: Vec<String>,
}

async fn view(api: &SharedApiState, tenant: Option<&TenantId>) -> Json<AttentionView> {
    let attention = collect(&api.gateway, tenant).await;
    let data = attention.items.into_iter().take(ITEMS_MAX).map(AttentionItemView::from).collect();
    Json(AttentionView { data, unanswered_nodes: attention.unanswered_nodes })
}

/// Show what needs attention
///
/// Everything that is not plainly well, the worst first: endpoints that are stopped or fail, lanes that stand, dead letters that grow or that nobody has dealt with for two days, tenants at their limits, and trouble of the gateway itself. An empty list means that nobody need look.
#[utoipa::path(
    get, path = "/v1/attention", operation_id = "get_attention", tag = "status",
    responses((status = 200, body = AttentionView), Problems),
    security(("token" = ["admin"])),
)]
pub async fn of_all(State(api): State<SharedApiState>) -> Result<Json<AttentionView>, Problem> {
    Ok(view(&api, None).await)
}

/// Show what needs attention of one tenant
///
/// As over all tenants, without what concerns the gateway itself.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/attention", operation_id = "get_tenant_attention", tag = "status",
    params(("tenant" = String, Path, description = "Whose endpoints they are")),
    responses((status = 200, body = AttentionView), Problems),
    security(("token" = ["read"])),
)]
pub async fn of_tenant(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
) -> Result<Json<AttentionView>, Problem> {
    Ok(view(&api, Some(&tenant)).await)
}
