//! Collects what needs attention, from what owners know in memory and have
//! published, and from the tally of dead letters. Nothing scans history.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::Gateway;
use super::deliver::tls::certificate_end;
use super::live_status::{LiveStatusQuery, live_statuses};
use super::node_questions::lags;
use super::store_gauges::ago;
use crate::model::attention::{
    AttentionItem, DEAD_REPORTED_FOR, EndpointFacts, GatewayFacts, StandingDead, of_blocked_lane, of_dead, of_endpoint,
    of_gateway, of_outbox, of_tenant, worst_first,
};
use crate::model::dead_letter_group::{DeadLetterGroup, GroupBy, GroupField, GroupFilter};
use crate::model::endpoint::{Endpoint, OnDead, Ordering};
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::Shard;
use crate::model::tenant::Tenant;
use crate::store::{ClusterState, PageRequest, Result};

/// Most endpoints with dead letters that are looked at.
const DEAD_ENDPOINTS_MAX: usize = 100;
/// Most endpoints whose lanes are looked at.
const LANES_MAX: usize = 20;
/// Most blocked lanes of an endpoint that are looked at.
const LANES_LOOKED: usize = 100;

/// What needs attention, the worst first. Times are wall times.
#[derive(Debug, Default)]
pub struct Attention {
    /// What was found.
    pub items: Vec<AttentionItem>,
    /// Names of the nodes that were not heard in time, so that what they alone
    /// know is missing.
    pub unanswered_nodes: Vec<String>,
}

/// Collects what needs attention about a tenant, or about everything.
pub async fn collect(gateway: &Gateway, tenant: Option<&TenantId>) -> Attention {
    let items = about_endpoints(gateway, tenant).await;
    let mut attention = Attention { items, ..Attention::default() };
    attention.items.extend(about_limits(gateway, tenant));
    let (died, viewed) = (about_dead(gateway, tenant).await, gateway.store.view().await);
    let is_answering = gateway.store.status().is_answering && died.is_ok() && viewed.is_ok();
    match died {
        Ok(items) => attention.items.extend(items),
        Err(problem) => debug!("dead letters could not be read for what needs attention: {problem}"),
    }
    if tenant.is_none() {
        let facts = gateway_facts(gateway, viewed.ok(), is_answering, &mut attention.unanswered_nodes).await;
        attention.items.extend(of_gateway(&facts));
        attention.items.extend(gateway.metrics.outbox_facts().iter().flat_map(of_outbox));
    }
    worst_first(&mut attention.items);
    attention
}

fn tenants_of(gateway: &Gateway, tenant: Option<&TenantId>) -> Vec<Arc<Tenant>> {
    match tenant {
        Some(id) => gateway.store.tenant(id).into_iter().collect(),
        None => gateway.store.tenants(),
    }
}

async fn about_endpoints(gateway: &Gateway, tenant: Option<&TenantId>) -> Vec<AttentionItem> {
    let endpoints: Vec<Arc<Endpoint>> =
        tenants_of(gateway, tenant).iter().flat_map(|tenant| gateway.store.endpoints(&tenant.id)).collect();
    let about = endpoints.iter().map(|endpoint| LiveStatusQuery::endpoint(&endpoint.tenant, endpoint.id)).collect();
    let statuses = live_statuses(gateway, about).await;
    let (wall, offset) = (gateway.clock.wall(), gateway.clock.wall_offset());
    let mut items = Vec::new();
    for endpoint in endpoints {
        let status = statuses.get(&endpoint.id);
        let live = status.and_then(|status| status.health.clone());
        let endpoint = Endpoint::clone(&endpoint).to_wall_time(offset);
        let health = live.map(|health| health.to_wall_time(offset)).unwrap_or_else(|| endpoint.health.clone());
        let facts = EndpointFacts {
            endpoint: &endpoint,
            health: &health,
            waiting: status.and_then(|status| status.waiting),
            certificate_ends_at: endpoint.settings.tls.client_certificate.as_deref().and_then(certificate_end),
        };
        items.extend(of_endpoint(&facts, wall));
    }
    items
}

fn about_limits(gateway: &Gateway, tenant: Option<&TenantId>) -> Vec<AttentionItem> {
    let tenants = tenants_of(gateway, tenant);
    let usages = tenants.iter().filter_map(|tenant| Some((tenant, gateway.store.usage_here(&tenant.id)?)));
    usages.flat_map(|(tenant, usage)| of_tenant(tenant, &usage)).collect()
}

/// Returns at which endpoints dead letters stand or grow, and which lanes they hold up.
async fn about_dead(gateway: &Gateway, tenant: Option<&TenantId>) -> Result<Vec<AttentionItem>> {
    let (now, offset) = (gateway.clock.now(), gateway.clock.wall_offset());
    let by = Some(GroupBy::of(&[GroupField::Tenant, GroupField::Endpoint]));
    let since = Some(ago(now, DEAD_REPORTED_FOR));
    let recent = GroupFilter { by: by.clone(), finished_since: since, ..GroupFilter::default() };
    let died_lately = gateway.store.dead_letter_groups(tenant, recent, DEAD_ENDPOINTS_MAX).await?;
    let mut items = Vec::new();
    for group in &died_lately.data {
        let Some((tenant, endpoint)) = named(group, tenant) else { continue };
        let dead = StandingDead {
            count: group.count,
            oldest_at: offset.wall(group.oldest_at),
            newest_at: offset.wall(group.newest_at),
            is_endpoint_deleted: gateway.store.any_endpoint(endpoint).is_none(),
        };
        items.extend(of_dead(&tenant, endpoint, dead, gateway.clock.wall()));
    }
    let all = GroupFilter { by, ..GroupFilter::default() };
    let died = gateway.store.dead_letter_groups(tenant, all, DEAD_ENDPOINTS_MAX).await?;
    let blocking = died.data.iter().filter_map(|group| named(group, tenant)).filter(|(_, id)| may_block(gateway, *id));
    for (tenant, endpoint) in blocking.take(LANES_MAX) {
        let page = PageRequest { cursor: None, limit: LANES_LOOKED };
        let lanes = gateway.store.lanes(&tenant, endpoint, true, page).await?;
        let fullest = lanes.data.iter().filter(|lane| lane.waiting > 0).max_by_key(|lane| lane.waiting);
        items.extend(fullest.map(|lane| {
            of_blocked_lane(&tenant, endpoint, lane.key.as_deref(), lane.waiting, offset.wall(lane.since))
        }));
    }
    Ok(items)
}

fn named(group: &DeadLetterGroup, tenant: Option<&TenantId>) -> Option<(TenantId, EndpointId)> {
    Some((group.tenant.clone().or_else(|| tenant.cloned())?, group.endpoint?))
}

/// Whether dead letters of an endpoint can hold up a lane.
fn may_block(gateway: &Gateway, endpoint: EndpointId) -> bool {
    gateway.store.any_endpoint(endpoint).is_some_and(|endpoint| {
        endpoint.settings.ordering != Ordering::None && endpoint.settings.on_dead == OnDead::Block
    })
}

async fn gateway_facts(
    gateway: &Gateway,
    view: Option<ClusterState>,
    is_store_answering: bool,
    unanswered: &mut Vec<String>,
) -> GatewayFacts {
    let now = gateway.clock.now();
    let lags = lags(gateway).await;
    let heard: HashSet<Shard> = lags.keys().copied().collect();
    let shards = view.as_ref().map(|view| view.shards.as_slice()).unwrap_or_default();
    for (index, node) in view.iter().flat_map(|view| view.nodes.iter().enumerate()) {
        let mut own = shards.iter().filter(|shard| shard.node == Some(index)).peekable();
        if own.peek().is_some() && !own.any(|shard| heard.contains(&shard.shard)) {
            unanswered.push(node.name.clone());
        }
    }
    let lag_ms = lags.values().map(|lag| lag.lag_ms).max().unwrap_or(0);
    GatewayFacts {
        is_store_answering,
        disk: gateway.space.free_bytes(now).zip(gateway.space.reserve_bytes()),
        unowned_shards: shards.iter().filter(|shard| shard.node.is_none()).count(),
        oldest_due_age: Duration::from_millis(lag_ms),
        waiting: gateway.store.waiting(None),
        clock_off: Duration::from_millis(gateway.clock.machine_ahead_ms().unsigned_abs()),
    }
}
