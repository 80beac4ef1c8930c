//! Tells where deliveries come from, for receivers that allow-list addresses.

use axum::Json;
use axum::extract::State;
use ipnet::IpNet;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::problem::Problems;
use crate::lifecycle::node_questions::egress_of_others;

/// The addresses that receivers see deliveries come from.
#[derive(Serialize, ToSchema)]
pub struct EgressView {
    /// The networks to allow, such as `192.0.2.7/32`, over all nodes.
    #[schema(value_type = Vec<String>, example = json!(["192.0.2.7/32", "2001:db8::7/128"]))]
    networks: Vec<IpNet>,
    /// Whether deliveries come from these networks alone. If not, a node does not know its addresses (`--egress-bind` and `--egress-addresses` are not set) or did not answer, and a receiver must not allow-list.
    complete: bool,
}

/// Show the addresses that deliveries come from
///
/// Receivers may allow-list them once `complete` is true. Any valid token may ask.
#[utoipa::path(
    get, path = "/v1/egress", operation_id = "get_egress", tag = "status",
    responses((status = 200, body = EgressView), Problems),
    security(("token" = [])),
)]
pub async fn show(State(api): State<SharedApiState>) -> Json<EgressView> {
    let gateway = &api.gateway;
    let (nodes, others) = (gateway.store.nodes(), egress_of_others(gateway).await);
    let all = std::iter::once(gateway.called_from.clone()).chain(others).collect::<Vec<_>>();
    let complete = all.len() >= nodes && all.iter().all(|networks| !networks.is_empty());
    let mut networks = all.concat();
    networks.sort_unstable();
    networks.dedup();
    Json(EgressView { networks, complete })
}
