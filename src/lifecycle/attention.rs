//! Collects what needs attention, from what owners know in memory and have
//! published, and from the tally of dead letters. Nothing scans history.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::debug;

use super::Gateway;
use super::deliver::tls::certificate_end;
use super::live_status::{LiveStatusQuery, endpoints_to_look_at, live_statuses};
use super::node_questions::shard_lags;
use super::store_gauges::time_before;
use crate::model::attention::{
    AttentionItem, DEAD_REPORTED_FOR, EndpointFacts, GatewayFacts, StandingDead, of_blocked_lane, of_dead, of_endpoint,
    of_gateway, of_old_dead, of_outbox, of_server_certificate, of_tenant, worst_first,
};
use crate::model::dead_letter_group::{DAY_MS, DeadLetterGroup, GroupBy, GroupField, GroupFilter};
use crate::model::endpoint::{Endpoint, OnDead, Ordering};
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::Shard;
use crate::model::tenant::Tenant;
use crate::store::{ClusterState, Lane, Result};

/// Most endpoints whose dead letters are reported.
const DEAD_ENDPOINTS_MAX: usize = 100;
/// Most endpoints with dead letters that are checked for waiting deliveries.
const DEAD_ENDPOINTS_ASKED: usize = 10_000;
/// Most endpoints whose lanes are looked at.
const LANE_ENDPOINTS_MAX: usize = 1_000;
/// Most lanes that are looked at, of all endpoints together.
const LANES_LOOKED: usize = 20_000;
/// Most tenants whose old dead letters are reported.
const OLD_TENANTS_MAX: usize = 100;

/// What needs attention, the worst first. Times are wall times.
#[derive(Debug, Default)]
pub struct Attention {
    /// Items that need attention.
    pub items: Vec<AttentionItem>,
    /// Number of endpoints with recent dead letters beyond those that are reported.
    pub more_with_dead: u64,
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
        Ok((items, more_with_dead)) => {
            attention.items.extend(items);
            attention.more_with_dead = more_with_dead;
        }
        Err(problem) => debug!("dead letters could not be read for what needs attention: {problem}"),
    }
    if tenant.is_none() {
        let facts = gateway_facts(gateway, viewed.ok(), is_answering, &mut attention.unanswered_nodes).await;
        attention.items.extend(of_gateway(&facts));
        let certificate = gateway.metrics.server_certificate_end();
        attention.items.extend(certificate.and_then(|ends_at| of_server_certificate(ends_at, gateway.clock.wall())));
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
    let endpoints = endpoints_to_look_at(gateway, tenant);
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

/// Returns at which endpoints dead letters stand or grow, and which tenants have old ones;
/// and at how many more endpoints some died lately.
async fn about_dead(gateway: &Gateway, tenant: Option<&TenantId>) -> Result<(Vec<AttentionItem>, u64)> {
    let (now, wall, offset) = (gateway.clock.now(), gateway.clock.wall(), gateway.clock.wall_offset());
    let since = time_before(now, DEAD_REPORTED_FOR);
    let by = Some(GroupBy::of(&[GroupField::Tenant, GroupField::Endpoint]));
    let recent = GroupFilter { by, finished_since: Some(since), ..GroupFilter::default() };
    let died_lately = gateway.store.dead_letter_groups(tenant, recent, DEAD_ENDPOINTS_MAX).await?;
    let (mut items, mut old) = (Vec::new(), BTreeMap::new());
    for group in &died_lately.data {
        let Some((tenant, endpoint)) = endpoint_of_group(group, tenant) else { continue };
        let dead = StandingDead {
            count: group.count,
            oldest_at: offset.wall(group.oldest_at),
            newest_at: offset.wall(group.newest_at),
            is_endpoint_deleted: gateway.store.any_endpoint(endpoint).is_none(),
        };
        match of_dead(&tenant, endpoint, dead, wall) {
            Some(item) => items.push(item),
            None => add_old(&mut old, tenant, group),
        }
    }
    // The tally knows whole days: these are the days before those.
    let midnight = before_day_of(since);
    let by = Some(GroupBy::of(&[GroupField::Tenant]));
    let earlier = GroupFilter { by, finished_until: Some(midnight), ..GroupFilter::default() };
    for group in &gateway.store.dead_letter_groups(tenant, earlier, OLD_TENANTS_MAX).await?.data {
        let Some(tenant) = group.tenant.clone().or_else(|| tenant.cloned()) else { continue };
        add_old(&mut old, tenant, group);
    }
    items.extend(old.iter().map(|(tenant, (count, oldest_at))| of_old_dead(tenant, *count, offset.wall(*oldest_at))));
    items.extend(about_lanes(gateway, tenant).await?);
    Ok((items, died_lately.groups.saturating_sub(died_lately.data.len() as u64)))
}

/// Number and first death of dead letters that are no longer told of one endpoint each.
type OldDeadByTenant = BTreeMap<TenantId, (u64, Timestamp)>;

fn add_old(old: &mut OldDeadByTenant, tenant: TenantId, group: &DeadLetterGroup) {
    let (count, oldest_at) = old.entry(tenant).or_insert((0, group.oldest_at));
    *count += group.count;
    *oldest_at = group.oldest_at.min(*oldest_at);
}

/// Returns the midnight at which the UTC day of a time began.
fn before_day_of(at: Timestamp) -> Timestamp {
    let day_ms = at.as_millisecond().div_euclid(DAY_MS) * DAY_MS;
    Timestamp::from_millisecond(day_ms).unwrap_or(Timestamp::MIN)
}

/// Returns which lanes stand behind a dead letter while others wait in them, one of each
/// endpoint.
async fn about_lanes(gateway: &Gateway, tenant: Option<&TenantId>) -> Result<Vec<AttentionItem>> {
    let by = Some(GroupBy::of(&[GroupField::Tenant, GroupField::Endpoint]));
    let all = GroupFilter { by, ..GroupFilter::default() };
    let died = gateway.store.dead_letter_groups(tenant, all, DEAD_ENDPOINTS_ASKED).await?;
    let with_dead = died.data.iter().filter_map(|group| group.endpoint);
    let blocking: Vec<EndpointId> = with_dead.filter(|id| may_block(gateway, *id)).take(LANE_ENDPOINTS_MAX).collect();
    if blocking.is_empty() {
        return Ok(Vec::new());
    }
    let look = LANES_LOOKED / blocking.len();
    let offset = gateway.clock.wall_offset();
    let item = |(id, lane): (EndpointId, Lane)| {
        let endpoint = gateway.store.any_endpoint(id)?;
        Some(of_blocked_lane(&endpoint.tenant, id, lane.key.as_deref(), lane.waiting, offset.wall(lane.since)))
    };
    Ok(gateway.store.blocked_lanes(blocking, look).await?.into_iter().filter_map(item).collect())
}

fn endpoint_of_group(group: &DeadLetterGroup, tenant: Option<&TenantId>) -> Option<(TenantId, EndpointId)> {
    Some((group.tenant.clone().or_else(|| tenant.cloned())?, group.endpoint?))
}

/// Whether dead letters of an endpoint can hold up a lane in which others wait.
fn may_block(gateway: &Gateway, endpoint: EndpointId) -> bool {
    // Another node's endpoints may have some that wait.
    let is_idle = gateway.store.waiting(Some(endpoint)) == Some(0);
    !is_idle
        && gateway.store.any_endpoint(endpoint).is_some_and(|endpoint| {
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
    let lags = shard_lags(gateway).await;
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
