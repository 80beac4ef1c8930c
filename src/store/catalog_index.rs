//! Keeps tenants, endpoints and tokens in memory, for every store.
//!
//! Every accepted event must be matched to its endpoints, so matching must
//! cost no I/O. A store changes the index after the commit that made a change
//! durable and before the change's caller is answered.
//!
//! The index also counts what each tenant uses of its limits. "Number" (`no`)
//! is the key of a row in the store, as opposed to the public id.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::model::endpoint::Endpoint;
use crate::model::health::EndpointHealth;
use crate::model::id::{EndpointId, TenantId, TokenId};
use crate::model::id_map::IdMap;
use crate::model::limits::{TenantUsage, settings_bytes};
use crate::model::shard::Shard;
use crate::model::tenant::Tenant;
use crate::model::token::{Token, TokenKind};
use crate::store::UnreadableRecord;

mod matching;

/// The tenants, endpoints and tokens in memory.
#[derive(Default)]
pub struct CatalogIndex {
    tenants: BTreeMap<TenantId, TenantEntry>,
    endpoints: IdMap<EndpointId, EndpointEntry>,
    tokens: IdMap<TokenId, Arc<Token>>,
    /// Number of waiting deliveries, by the number of the endpoint.
    waiting: IdMap<i64, u64>,
    waiting_in_all: u64,
    /// Number of the tenant, by the number of the endpoint.
    tenant_of: IdMap<i64, i64>,
    /// Usage of each tenant, by the number of the tenant.
    tenant_counts: IdMap<i64, TenantCounts>,
    stored_in_all: u64,
    /// Shards whose endpoints have not been counted since this node gained them.
    uncounted: HashSet<Shard>,
    /// Sum of the weights of the tenants that have an endpoint.
    weight_in_use: u64,
    /// Endpoints of self-tests. They belong to no tenant's entry, so that no list,
    /// count or share knows of them.
    self_test: Vec<EndpointId>,
    /// Endpoints that may need attention, so that nobody has to look at all of them.
    notable: BTreeSet<EndpointId>,
    /// Values that only a newer version can read, by the tenant and its endpoint;
    /// without an endpoint it is the tenant's own.
    unreadable: HashMap<TenantId, HashMap<Option<EndpointId>, UnreadableRecord>>,
}

struct TenantEntry {
    no: i64,
    tenant: Arc<Tenant>,
    /// Endpoints whose event types are all exact names, by type.
    by_type: HashMap<String, Vec<EndpointId>>,
    /// Endpoints with at least one pattern; every event is matched with them.
    by_pattern: Vec<EndpointId>,
    endpoints: BTreeMap<EndpointId, Arc<Endpoint>>,
    /// Bytes that the settings of these endpoints take up.
    settings_bytes: u64,
    tokens: u64,
}

struct EndpointEntry {
    no: i64,
    endpoint: Arc<Endpoint>,
    settings_bytes: u64,
}

/// Usage of one tenant that is counted here.
#[derive(Clone, Copy, Default)]
struct TenantCounts {
    /// Deliveries of the tenant that wait on this node.
    waiting: u64,
    /// Deliveries that wait on other nodes, as those last reported.
    waiting_elsewhere: u64,
    /// Bytes that the tenant's events take up.
    stored: u64,
}

impl CatalogIndex {
    /// Adds `more` to the waiting deliveries of an endpoint; it may be
    /// negative. A deleted endpoint is not counted.
    pub fn count_waiting(&mut self, endpoint: i64, more: i64) {
        if let Some(count) = self.waiting.get_mut(&endpoint) {
            let before = *count;
            *count = before.saturating_add_signed(more);
            let more = count.cast_signed() - before.cast_signed();
            self.waiting_in_all = self.waiting_in_all.saturating_add_signed(more);
            self.count_of_tenant(endpoint, more);
        }
    }

    fn count_of_tenant(&mut self, endpoint: i64, more: i64) {
        if let Some(tenant) = self.tenant_of.get(&endpoint) {
            let counts = self.tenant_counts.entry(*tenant).or_default();
            counts.waiting = counts.waiting.saturating_add_signed(more);
        }
    }

    /// Adds `more` bytes to what a tenant's events take up; it may be negative.
    pub fn count_stored(&mut self, tenant: i64, more: i64) {
        // Events of a deleted tenant are removed later, and its counts are gone.
        if more < 0 && !self.tenant_counts.contains_key(&tenant) {
            return;
        }
        let counts = self.tenant_counts.entry(tenant).or_default();
        let before = counts.stored;
        counts.stored = before.saturating_add_signed(more);
        self.stored_in_all = self.stored_in_all + counts.stored - before;
    }

    /// Takes over what other nodes reported, by the number of the tenant: the
    /// bytes that its events take up, and its deliveries that wait there.
    pub fn set_remote_usage(&mut self, stored: &HashMap<i64, u64>, waiting_elsewhere: &HashMap<i64, u64>) {
        for (tenant, bytes) in stored {
            self.tenant_counts.entry(*tenant).or_default().stored = *bytes;
        }
        for (tenant, counts) in &mut self.tenant_counts {
            counts.waiting_elsewhere = waiting_elsewhere.get(tenant).copied().unwrap_or(0);
        }
        for (tenant, waiting) in waiting_elsewhere {
            self.tenant_counts.entry(*tenant).or_default().waiting_elsewhere = *waiting;
        }
        self.stored_in_all = self.tenant_counts.values().map(|counts| counts.stored).sum();
    }

    /// Returns how many deliveries wait on this node, by the number of the tenant.
    pub fn waiting_by_tenant(&self) -> HashMap<i64, u64> {
        let waiting = self.tenant_counts.iter().filter(|(_, counts)| counts.waiting > 0);
        waiting.map(|(tenant, counts)| (*tenant, counts.waiting)).collect()
    }

    /// Returns the numbers of the tenants that have a limit of stored bytes.
    pub fn with_stored_limit(&self) -> Vec<i64> {
        let limited = self.tenants.values().filter(|entry| entry.tenant.limits.stored_bytes.is_some());
        limited.map(|entry| entry.no).collect()
    }

    /// Returns the bytes that a tenant's events take up, by its number.
    pub fn stored_bytes_of(&self, tenant: i64) -> u64 {
        self.tenant_counts.get(&tenant).map_or(0, |counts| counts.stored)
    }

    /// Returns what a tenant uses of its limits.
    pub fn usage(&self, id: &TenantId) -> Option<TenantUsage> {
        let entry = self.tenants.get(id)?;
        let counts = self.tenant_counts.get(&entry.no).copied().unwrap_or_default();
        Some(TenantUsage {
            endpoints: entry.endpoints.len() as u64,
            settings_bytes: entry.settings_bytes,
            tokens: entry.tokens,
            // Jobs are in no index.
            jobs_running: 0,
            stored_bytes: counts.stored,
            waiting: self.uncounted.is_empty().then_some(counts.waiting + counts.waiting_elsewhere),
        })
    }

    /// Returns the bytes that the events of all tenants take up.
    pub fn stored_in_all(&self) -> u64 {
        self.stored_in_all
    }

    /// Returns how many tenants have stored events.
    pub fn storing_tenants(&self) -> u64 {
        self.tenant_counts.values().filter(|counts| counts.stored > 0).count() as u64
    }

    /// Whether no other tenant has endpoints, tokens or events. The gateway's
    /// own tenant does not count.
    pub fn is_only_tenant(&self, id: &TenantId) -> bool {
        let is_used = |entry: &TenantEntry| {
            let stored = self.tenant_counts.get(&entry.no).map_or(0, |counts| counts.stored);
            !entry.endpoints.is_empty() || entry.tokens > 0 || stored > 0
        };
        !self.tenants.iter().any(|(other, entry)| other != id && !other.is_system() && is_used(entry))
    }

    /// Returns the waiting deliveries, by the number of the endpoint.
    pub fn waiting_counts(&self) -> IdMap<i64, u64> {
        self.waiting.clone()
    }

    /// Takes over fresh counts of waiting deliveries, by the number of the
    /// endpoint. `was_counted` says of a shard whether it was counted: `None`
    /// leaves its counts alone, `Some(false)` sets them to 0 because the shard
    /// is not this node's. An endpoint whose count changed after `before` was
    /// taken keeps its count, because the fresh one may or may not include the
    /// change.
    pub fn recount(
        &mut self,
        counted: &[(i64, u64)],
        before: Option<&IdMap<i64, u64>>,
        was_counted: impl Fn(Shard) -> Option<bool>,
    ) {
        let counted: HashMap<i64, u64> = counted.iter().copied().collect();
        for entry in self.endpoints.values().filter(|entry| !entry.endpoint.is_self_test()) {
            let shard = Shard::of(&entry.endpoint.tenant, entry.endpoint.id);
            let Some(is_counted) = was_counted(shard) else { continue };
            let has_changed = before.is_some_and(|before| before.get(&entry.no) != self.waiting.get(&entry.no));
            if is_counted && has_changed && !self.uncounted.contains(&shard) {
                continue;
            }
            let count = if is_counted { counted.get(&entry.no).copied().unwrap_or(0) } else { 0 };
            self.waiting.insert(entry.no, count);
        }
        self.uncounted.retain(|shard| was_counted(*shard).is_none());
        self.waiting_in_all = self.waiting.values().sum();
        self.tenant_counts.values_mut().for_each(|counts| counts.waiting = 0);
        let counts: Vec<(i64, u64)> = self.waiting.iter().map(|(endpoint, count)| (*endpoint, *count)).collect();
        counts.into_iter().for_each(|(endpoint, count)| self.count_of_tenant(endpoint, count.cast_signed()));
    }

    /// Removes the count of an endpoint, because it was deleted.
    pub fn forget_waiting(&mut self, endpoint: i64) {
        let count = self.waiting.remove(&endpoint).unwrap_or(0);
        self.waiting_in_all -= count;
        self.count_of_tenant(endpoint, -count.cast_signed());
        self.tenant_of.remove(&endpoint);
    }

    /// Returns one tenant.
    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.get(id).map(|entry| entry.tenant.clone())
    }

    /// Returns all tenants, ordered by id.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.values().map(|entry| entry.tenant.clone()).collect()
    }

    /// Returns one endpoint.
    pub fn endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.endpoints.get(&id).map(|entry| entry.endpoint.clone())
    }

    /// Returns a tenant's endpoints, newest first.
    pub fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>> {
        let Some(entry) = self.tenants.get(tenant) else { return Vec::new() };
        entry.endpoints.values().rev().cloned().collect()
    }

    /// Returns the ids of the endpoints of a tenant, or of all tenants, newest first.
    pub fn endpoint_ids(&self, tenant: Option<&TenantId>) -> Vec<EndpointId> {
        let entries = self.tenants.iter().filter(|(id, _)| tenant.is_none_or(|tenant| tenant == *id));
        let mut ids: Vec<EndpointId> = entries.flat_map(|(_, entry)| entry.endpoints.keys().rev().copied()).collect();
        // Each tenant's are in order, which a stable sort finds and merges.
        ids.sort_by(|one, other| other.cmp(one));
        ids
    }

    /// Returns the endpoints of a tenant, or of all tenants, that may need attention,
    /// newest first.
    pub fn notable_endpoints(&self, tenant: Option<&TenantId>) -> Vec<Arc<Endpoint>> {
        let notable = self.notable.iter().rev().filter_map(|id| self.endpoint(*id));
        notable.filter(|endpoint| tenant.is_none_or(|tenant| *tenant == endpoint.tenant)).collect()
    }

    /// Returns the endpoints of self-tests.
    pub fn self_test_endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.self_test.iter().filter_map(|id| self.endpoint(*id)).collect()
    }

    /// Returns how many deliveries wait for an endpoint, or for all endpoints
    /// together; `None` while they have not been counted.
    pub fn waiting(&self, endpoint: Option<EndpointId>) -> Option<u64> {
        let Some(id) = endpoint else {
            return self.uncounted.is_empty().then_some(self.waiting_in_all);
        };
        let Some(entry) = self.endpoints.get(&id) else { return Some(0) };
        let is_counted = self.uncounted.is_empty() || !self.uncounted.contains(&Shard::of(&entry.endpoint.tenant, id));
        is_counted.then(|| self.waiting.get(&entry.no).copied().unwrap_or(0))
    }

    /// Marks the endpoints of shards that were gained as not counted yet.
    pub fn mark_uncounted(&mut self, shards: &[Shard]) {
        self.uncounted.extend(shards);
    }

    /// Returns the sum of the weights of all tenants that have an endpoint.
    pub fn weight_in_use(&self) -> u64 {
        self.weight_in_use
    }

    /// Returns the ids of all tenants, by their numbers.
    pub fn tenants_by_no(&self) -> HashMap<i64, TenantId> {
        self.tenants.iter().map(|(id, entry)| (entry.no, id.clone())).collect()
    }

    /// Returns the number of a tenant.
    pub fn tenant_no(&self, id: &TenantId) -> Option<i64> {
        self.tenants.get(id).map(|entry| entry.no)
    }

    /// Returns an endpoint with its number.
    pub fn endpoint_entry(&self, id: EndpointId) -> Option<(i64, &Arc<Endpoint>)> {
        self.endpoints.get(&id).map(|entry| (entry.no, &entry.endpoint))
    }

    /// Notes that only a newer version can read an endpoint, which is not shown
    /// then, or something of the tenant itself. No event of the tenant is matched
    /// until it can be read again: one that the endpoint wants would be lost.
    pub fn set_unreadable(&mut self, tenant: &TenantId, endpoint: Option<EndpointId>, problem: UnreadableRecord) {
        if let Some(endpoint) = endpoint {
            self.remove_endpoint(endpoint);
        }
        self.unreadable.entry(tenant.clone()).or_default().insert(endpoint, problem);
    }

    /// Returns why only a newer version can read this endpoint, if that is so.
    pub fn unreadable(&self, tenant: &TenantId, endpoint: EndpointId) -> Option<&UnreadableRecord> {
        self.unreadable.get(tenant)?.get(&Some(endpoint))
    }

    fn set_readable(&mut self, endpoint: EndpointId) {
        self.unreadable.retain(|_, rows| {
            rows.remove(&Some(endpoint));
            !rows.is_empty()
        });
    }

    /// Adds a tenant, or replaces it.
    pub fn put_tenant(&mut self, no: i64, tenant: Arc<Tenant>) {
        if let Some(rows) = self.unreadable.get_mut(&tenant.id) {
            rows.remove(&None);
        }
        if let Some(entry) = self.tenants.get(&tenant.id).filter(|entry| !entry.endpoints.is_empty()) {
            let (before, after) = (entry.tenant.quota.weight, tenant.quota.weight);
            self.weight_in_use = self.weight_in_use + u64::from(after) - u64::from(before);
        }
        let id = tenant.id.clone();
        let entry =
            self.tenants.entry(id).and_modify(|entry| entry.tenant = tenant.clone()).or_insert_with(|| TenantEntry {
                no,
                tenant,
                by_type: HashMap::new(),
                by_pattern: Vec::new(),
                endpoints: BTreeMap::new(),
                settings_bytes: 0,
                tokens: 0,
            });
        let tenant = entry.tenant.clone();
        for endpoint in entry.endpoints.values_mut().filter(|endpoint| !endpoint.is_under(tenant.limits.endpoint)) {
            *endpoint = Arc::new(Endpoint::clone(endpoint).with_tenant_rules(tenant.limits.endpoint, &tenant.defaults));
            if let Some(known) = self.endpoints.get_mut(&endpoint.id) {
                known.endpoint = endpoint.clone();
            }
        }
    }

    /// Returns one token.
    pub fn token(&self, id: TokenId) -> Option<Arc<Token>> {
        self.tokens.get(&id).cloned()
    }

    /// Returns all tokens, by id.
    pub fn tokens(&self) -> Vec<Arc<Token>> {
        let mut tokens: Vec<Arc<Token>> = self.tokens.values().cloned().collect();
        tokens.sort_unstable_by_key(|token| token.id);
        tokens
    }

    /// Adds a token, or replaces it.
    pub fn put_token(&mut self, token: Arc<Token>) {
        // Codes and sessions are not counted; each has a cap of its own.
        let counted = token.tenant.clone().filter(|_| token.kind == TokenKind::Api);
        if self.tokens.insert(token.id, token).is_none()
            && let Some(entry) = counted.and_then(|tenant| self.tenants.get_mut(&tenant))
        {
            entry.tokens += 1;
        }
    }

    /// Removes a token.
    pub fn remove_token(&mut self, id: TokenId) {
        if let Some(token) = self.tokens.remove(&id)
            && token.kind == TokenKind::Api
            && let Some(entry) = token.tenant.as_ref().and_then(|tenant| self.tenants.get_mut(tenant))
        {
            entry.tokens -= 1;
        }
    }

    /// Removes a tenant with its endpoints and tokens.
    pub fn remove_tenant(&mut self, id: &TenantId) {
        self.unreadable.remove(id);
        self.tokens.retain(|_, token| token.tenant.as_ref() != Some(id));
        if let Some(entry) = self.tenants.remove(id) {
            if !entry.endpoints.is_empty() {
                self.weight_in_use -= u64::from(entry.tenant.quota.weight);
            }
            for endpoint in entry.endpoints.keys() {
                self.notable.remove(endpoint);
                if let Some(removed) = self.endpoints.remove(endpoint) {
                    self.forget_waiting(removed.no);
                }
            }
            let counts = self.tenant_counts.remove(&entry.no).unwrap_or_default();
            self.stored_in_all -= counts.stored;
        }
    }

    /// Adds an endpoint, or replaces it.
    pub fn put_endpoint(&mut self, no: i64, endpoint: Arc<Endpoint>) {
        self.remove_endpoint(endpoint.id);
        if endpoint.is_self_test() {
            self.self_test.push(endpoint.id);
            self.endpoints.insert(endpoint.id, EndpointEntry { no, endpoint, settings_bytes: 0 });
            return;
        }
        let Some(entry) = self.tenants.get_mut(&endpoint.tenant) else { return };
        let tenant = &entry.tenant;
        let endpoint = if endpoint.is_under(tenant.limits.endpoint) {
            endpoint
        } else {
            Arc::new(Endpoint::clone(&endpoint).with_tenant_rules(tenant.limits.endpoint, &tenant.defaults))
        };
        let types = &endpoint.settings.event_types;
        if types.iter().any(|pattern| pattern.contains('*')) {
            entry.by_pattern.push(endpoint.id);
        } else {
            for exact in types {
                entry.by_type.entry(exact.clone()).or_default().push(endpoint.id);
            }
        }
        if entry.endpoints.is_empty() {
            self.weight_in_use += u64::from(entry.tenant.quota.weight);
        }
        let settings_bytes = settings_bytes(&endpoint.settings);
        entry.settings_bytes += settings_bytes;
        let tenant_no = entry.no;
        entry.endpoints.insert(endpoint.id, endpoint.clone());
        self.waiting.entry(no).or_insert(0);
        self.tenant_of.insert(no, tenant_no);
        self.note_attention(&endpoint);
        self.endpoints.insert(endpoint.id, EndpointEntry { no, endpoint, settings_bytes });
    }

    /// Keeps the endpoint among those that may need attention, or no longer.
    fn note_attention(&mut self, endpoint: &Endpoint) {
        if endpoint.may_need_attention() && !endpoint.is_self_test() {
            self.notable.insert(endpoint.id);
        } else {
            self.notable.remove(&endpoint.id);
        }
    }

    /// Replaces the health of an endpoint. Its event types have not changed, so
    /// the indexes by type stay as they are: this may run at every attempt.
    pub fn show_health(&mut self, id: EndpointId, health: EndpointHealth) {
        let Some(entry) = self.endpoints.get_mut(&id) else { return };
        Arc::make_mut(&mut entry.endpoint).health = health;
        let endpoint = entry.endpoint.clone();
        self.note_attention(&endpoint);
        let tenant = self.tenants.get_mut(&endpoint.tenant);
        if let Some(listed) = tenant.and_then(|tenant| tenant.endpoints.get_mut(&id)) {
            *listed = endpoint;
        }
    }

    /// Removes an endpoint.
    pub fn remove_endpoint(&mut self, id: EndpointId) {
        self.set_readable(id);
        let Some(old) = self.endpoints.remove(&id) else { return };
        self.notable.remove(&id);
        if old.endpoint.is_self_test() {
            self.self_test.retain(|other| *other != id);
            return;
        }
        let Some(entry) = self.tenants.get_mut(&old.endpoint.tenant) else { return };
        entry.endpoints.remove(&id);
        entry.settings_bytes -= old.settings_bytes;
        if entry.endpoints.is_empty() {
            self.weight_in_use -= u64::from(entry.tenant.quota.weight);
        }
        entry.by_pattern.retain(|other| *other != id);
        for exact in &old.endpoint.settings.event_types {
            if let Some(ids) = entry.by_type.get_mut(exact) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    entry.by_type.remove(exact);
                }
            }
        }
    }
}
