//! Shows how many dead letters there are, in groups.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::input::TenantPath;
use super::page::{LimitParams, limit_of};
use super::problem::{InputProblems, Problem, Problems};
use super::query_params::ListParams;
use crate::model::dead_letter_group::{DeadLetterGroup, GroupBy, GroupFilter};
use crate::model::delivery::DeadCause;
use crate::model::id::{EndpointId, TenantId};
use crate::model::wall_offset::WallOffset;

/// A group of dead letters. A field that they are not grouped by is null.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeadLetterGroupView {
    /// The tenant that they belong to.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// The endpoint they were for; it may have been deleted since.
    #[schema(value_type = Option<String>)]
    endpoint: Option<EndpointId>,
    /// Why they died.
    cause: Option<DeadCause>,
    /// Their last answer: a status such as `503`, or the kind of a failure such as `timeout`; null also where there was none.
    answer: Option<String>,
    /// The UTC day of their death.
    #[schema(value_type = Option<String>, format = Date)]
    day: Option<Date>,
    /// How many they are.
    count: u64,
    /// When the first of them died.
    #[schema(value_type = String, format = DateTime)]
    oldest_at: Timestamp,
    /// When the last of them died.
    #[schema(value_type = String, format = DateTime)]
    newest_at: Timestamp,
}

impl DeadLetterGroupView {
    fn of(group: DeadLetterGroup, offset: WallOffset) -> Self {
        let DeadLetterGroup { tenant, endpoint, cause, answer, day, count, oldest_at, newest_at } = group;
        let (oldest_at, newest_at) = (offset.wall(oldest_at), offset.wall(newest_at));
        Self { tenant, endpoint, cause, answer, day, count, oldest_at, newest_at }
    }
}

/// All groups together.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeadLetterTotal {
    /// How many dead letters there are.
    count: u64,
    /// In how many groups they are; `data` has the largest of them.
    groups: u64,
    /// When the first of all died; null where there is none.
    #[schema(value_type = Option<String>, format = DateTime)]
    oldest_at: Option<Timestamp>,
}

/// Dead letters in groups.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeadLetterGroupsView {
    /// The groups, the largest first.
    data: Vec<DeadLetterGroupView>,
    /// Sums over all groups, also those that are not in `data`.
    total: DeadLetterTotal,
}

/// Count the dead letters of a tenant, in groups
///
/// The largest groups come first. Nothing is counted for it, however many there are.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/dead-letters/groups", operation_id = "group_dead_letters", tag = "dead letters",
    params(("tenant" = String, Path, description = "The tenant's id"), GroupFilter, LimitParams),
    responses((status = 200, body = DeadLetterGroupsView), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn of_tenant(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    params: ListParams<GroupFilter>,
) -> Result<Json<DeadLetterGroupsView>, Problem> {
    let limit = limit_of(&params.page)?;
    groups(&api, Some(&tenant), params.filter, limit).await
}

/// Count the dead letters of all tenants, in groups
///
/// Without `by`, the tenant is one of the fields that they are grouped by.
#[utoipa::path(
    get, path = "/v1/dead-letters/groups", operation_id = "group_all_dead_letters", tag = "dead letters",
    params(GroupFilter, LimitParams),
    responses((status = 200, body = DeadLetterGroupsView), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn of_all(
    State(api): State<SharedApiState>,
    params: ListParams<GroupFilter>,
) -> Result<Json<DeadLetterGroupsView>, Problem> {
    let limit = limit_of(&params.page)?;
    let by = params.filter.by.clone().unwrap_or_else(|| GroupBy::default().with_tenant());
    groups(&api, None, GroupFilter { by: Some(by), ..params.filter }, limit).await
}

async fn groups(
    api: &SharedApiState,
    tenant: Option<&TenantId>,
    filter: GroupFilter,
    limit: usize,
) -> Result<Json<DeadLetterGroupsView>, Problem> {
    let offset = api.gateway.clock.wall_offset();
    let found = api.gateway.store.dead_letter_groups(tenant, filter.to_engine_time(offset), limit).await?;
    let total = DeadLetterTotal {
        count: found.count,
        groups: found.groups,
        oldest_at: found.oldest_at.map(|at| offset.wall(at)),
    };
    // Within a tenant every group is that tenant's.
    let named = |group: DeadLetterGroup| DeadLetterGroup { tenant: group.tenant.or_else(|| tenant.cloned()), ..group };
    let data = found.data.into_iter().map(|group| DeadLetterGroupView::of(named(group), offset)).collect();
    Ok(Json(DeadLetterGroupsView { data, total }))
}
