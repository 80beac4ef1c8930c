//! Shows the settings that this node runs with.

use axum::Json;
use axum::extract::State;

use super::SharedApiState;
use super::page::Page;
use super::problem::Problems;
use crate::model::setting_in_force::SettingInForce;

/// List the settings in force, and where each came from
///
/// Those of the node that answers; passwords are left out.
#[utoipa::path(
    get, path = "/v1/settings", operation_id = "list_settings", tag = "status",
    responses((status = 200, body = Page<SettingInForce>), Problems),
    security(("token" = ["admin"])),
)]
pub async fn list(State(api): State<SharedApiState>) -> Json<Page<SettingInForce>> {
    Json(Page::whole(api.settings_in_force.clone()))
}
