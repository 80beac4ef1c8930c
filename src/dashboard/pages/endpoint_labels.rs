//! What endpoints are called on pages that name them by their id.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde::Deserialize;

use super::endpoint_facts::words_only;
use crate::dashboard::api_caller::{ApiCaller, api_path};
use crate::dashboard::shown_delivery::ShownDelivery;
use crate::model::id::TenantId;

/// Longest name of an endpoint beside a delivery, in characters.
pub const NAME_CHARS_MAX: usize = 48;

/// What a page shows of an endpoint besides its id.
#[derive(Debug, Clone, Default)]
pub struct EndpointLabel {
    /// Tenant that it belongs to.
    pub tenant: String,
    /// Its description, or its URL.
    pub text: String,
    /// Its rate in requests per second.
    pub per_second: Option<f64>,
}

#[derive(Deserialize)]
struct ShownEndpoint {
    #[serde(default)]
    description: String,
    #[serde(default)]
    url: String,
    rate: Option<ShownRate>,
}

#[derive(Deserialize)]
struct ShownRate {
    per_second: Option<f64>,
}

/// Returns the labels of endpoints, by id. Endpoints that are not found have none.
pub async fn endpoint_labels(
    api: &ApiCaller,
    wanted: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, EndpointLabel> {
    let wanted: BTreeMap<String, String> = wanted.map(|(tenant, endpoint)| (endpoint, tenant)).take(100).collect();
    let reads = wanted.iter().map(|(endpoint, tenant)| async move {
        let path = api_path!("/v1/tenants/{}/endpoints/{}", tenant, endpoint);
        let found = api.get_kept::<ShownEndpoint>(&path).await.ok()?;
        let text = if found.description.is_empty() { &found.url } else { &found.description };
        let per_second = found.rate.as_ref().and_then(|rate| rate.per_second);
        let (tenant, text) = (tenant.clone(), text.chars().take(120).collect());
        Some((endpoint.clone(), EndpointLabel { tenant, text, per_second }))
    });
    join_all(reads).await.into_iter().flatten().collect()
}

/// Gives deliveries the names of their endpoints.
pub async fn name_endpoints(api: &ApiCaller, deliveries: &mut [ShownDelivery]) {
    let wanted = deliveries.iter().map(|delivery| (delivery.tenant.clone(), delivery.endpoint_id.clone()));
    let labels = endpoint_labels(api, wanted).await;
    for delivery in deliveries {
        let label = labels.get(&delivery.endpoint_id);
        delivery.endpoint_name = label.map(|label| words_only(&label.text, NAME_CHARS_MAX)).unwrap_or_default();
    }
}

#[derive(Deserialize)]
struct FindResponse {
    data: Vec<OwnerResponse>,
}

#[derive(Deserialize)]
struct OwnerResponse {
    tenant: Option<String>,
}

/// Returns the labels of endpoints of a tenant, by id. What goes over all tenants
/// names the tenant `_system` or none; then the owner of each is found first.
pub async fn labels_in(
    api: &ApiCaller,
    tenant: &str,
    endpoints: impl Iterator<Item = String>,
) -> BTreeMap<String, EndpointLabel> {
    if !tenant.is_empty() && tenant != TenantId::system().as_str() {
        return endpoint_labels(api, endpoints.map(|endpoint| (tenant.to_owned(), endpoint))).await;
    }
    let finds = endpoints.take(100).map(|endpoint| async move {
        let found = api.get::<FindResponse>(&api_path!("/v1/find?id={}", endpoint)).await.ok()?;
        Some((found.data.into_iter().find_map(|found| found.tenant)?, endpoint))
    });
    let named = join_all(finds).await;
    endpoint_labels(api, named.into_iter().flatten()).await
}
