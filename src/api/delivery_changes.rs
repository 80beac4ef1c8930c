//! Changes a delivery as a person asks: retry, cancel, replay, discard.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::SharedApiState;
use super::deliveries::{DeliveryView, find};
use super::input::{NamedDelivery, TenantPath};
use super::problem::{GoneProblems, Problem, ProblemCode, Problems, StateProblems};
use crate::lifecycle::change::change_delivery;
use crate::model::audit::Initiator;
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, TenantId};
use crate::model::named_enum::NamedEnum;
use crate::model::suggested_command::suggested_command;
use crate::store::DeliveryChange;

type ChangeResponse = Result<(StatusCode, Json<DeliveryView>), Problem>;

async fn change(
    api: &SharedApiState,
    by: &Initiator,
    tenant: &TenantId,
    id: DeliveryId,
    change: DeliveryChange,
) -> ChangeResponse {
    change_delivery(&api.gateway, by, tenant, id, change).await?;
    Ok((StatusCode::ACCEPTED, Json(find(api, tenant, id).await?)))
}

/// Try a waiting delivery now
///
/// Skips the wait, also one that the receiver asked for; never its lane, a pause or the cap.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/deliveries/{delivery}/retry", operation_id = "retry_delivery", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 202, body = DeliveryView), Problems, StateProblems),
    security(("token" = ["manage"])),
)]
pub async fn retry(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
) -> ChangeResponse {
    change(&api, &by, &tenant, id, DeliveryChange::RetryNow).await
}

/// Cancel a waiting delivery
///
/// Nothing further is sent. An attempt in flight that succeeds still makes it delivered.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/deliveries/{delivery}/cancel", operation_id = "cancel_delivery", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 202, body = DeliveryView), Problems, StateProblems),
    security(("token" = ["manage"])),
)]
pub async fn cancel(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
) -> ChangeResponse {
    change(&api, &by, &tenant, id, DeliveryChange::Cancel).await
}

/// Deliver a finished delivery again
///
/// Same event id, same body, a fresh budget; attempt numbers go on counting.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/deliveries/{delivery}/replay", operation_id = "replay_delivery", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 202, body = DeliveryView), Problems, StateProblems, GoneProblems),
    security(("token" = ["manage"])),
)]
pub async fn replay(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
) -> ChangeResponse {
    change(&api, &by, &tenant, id, DeliveryChange::Replay).await
}

/// Deliver a dead letter again
///
/// In a lane it is the head again, and those behind it follow in order.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/dead-letters/{delivery}/replay", operation_id = "replay_dead_letter", tag = "dead letters",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 202, body = DeliveryView), Problems, StateProblems, GoneProblems),
    security(("token" = ["manage"])),
)]
pub async fn replay_dead(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
) -> ChangeResponse {
    let delivery = find(&api, &tenant, id).await?;
    if delivery.state != DeliveryState::Dead {
        let detail = match delivery.state {
            DeliveryState::Waiting => {
                let retry = suggested_command(tenant.as_str(), "deliveries retry", &id.to_string());
                format!("delivery {id} is waiting and not a dead letter; retry it to have it tried now: `{retry}`")
            }
            state => {
                let replay = suggested_command(tenant.as_str(), "deliveries replay", &id.to_string());
                let state = state.as_str();
                format!("delivery {id} is {state} and not a dead letter; replay it as a delivery: `{replay}`")
            }
        };
        return Err(Problem::new(ProblemCode::WrongState, detail));
    }
    change(&api, &by, &tenant, id, DeliveryChange::Replay).await
}

/// Discard a dead letter
///
/// It becomes cancelled and keeps its cause; its lane moves on.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/dead-letters/{delivery}/discard", operation_id = "discard_dead_letter", tag = "dead letters",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 202, body = DeliveryView), Problems, StateProblems),
    security(("token" = ["manage"])),
)]
pub async fn discard(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
) -> ChangeResponse {
    change(&api, &by, &tenant, id, DeliveryChange::Discard).await
}
