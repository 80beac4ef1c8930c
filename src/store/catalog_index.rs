//! Tenants and endpoints in memory, for every store.
//!
//! Every event asks who wants it, so the answer must cost no I/O. A store
//! changes the index after the commit that made a change durable and before
//! the change's caller is answered.
//!
//! It also counts what each tenant uses of its limits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::model::endpoint::{Endpoint, ParsedData};
use crate::model::event::Event;
use crate::model::health::EndpointHealth;
use crate::model::id::{EndpointId, TenantId, TokenId};
use crate::model::limits::{TenantUsage, settings_bytes};
use crate::model::shard::Shard;
use crate::model::tenant::Tenant;
use crate::model::token::Token;
use crate::store::{Error, Result};

/// What is known of tenants and endpoints, in memory.
#[derive(Default)]
pub struct CatalogIndex {
    tenants: BTreeMap<TenantId, TenantEntry>,
    endpoints: HashMap<EndpointId, EndpointEntry>,
    tokens: HashMap<TokenId, Arc<Token>>,
    /// How many deliveries wait, by the number of the endpoint.
    waiting: HashMap<i64, u64>,
    waiting_in_all: u64,
    /// The number of the tenant, by the number of the endpoint.
    tenant_of: HashMap<i64, i64>,
    /// What tenants use, by their number.
    tenant_counts: HashMap<i64, TenantCounts>,
    stored_in_all: u64,
    /// Shards whose endpoints have not been counted since they were gained.
    uncounted: HashSet<Shard>,
    /// The weights of the tenants that have an endpoint.
    weight_in_use: u64,
}

struct TenantEntry {
    no: i64,
    tenant: Arc<Tenant>,
    /// Endpoints that name their types exactly, by type.
    by_type: HashMap<String, Vec<EndpointId>>,
    /// Endpoints with at least one pattern; every event asks them.
    by_pattern: Vec<EndpointId>,
    endpoints: BTreeMap<EndpointId, Arc<Endpoint>>,
    /// The bytes of their settings.
    settings_bytes: u64,
    tokens: u64,
}

struct EndpointEntry {
    no: i64,
    endpoint: Arc<Endpoint>,
    settings_bytes: u64,
}

/// What is counted of a tenant.
#[derive(Clone, Copy, Default)]
struct TenantCounts {
    /// Its deliveries that wait here.
    waiting: u64,
    /// Those that wait at other nodes, as they last said.
    waiting_elsewhere: u64,
    /// What its events take up.
    stored: u64,
}

impl CatalogIndex {
    /// Counts deliveries that wait for an endpoint from now on, or no longer
    /// do. One that is deleted has none.
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
            let tally = self.tenant_counts.entry(*tenant).or_default();
            tally.waiting = tally.waiting.saturating_add_signed(more);
        }
    }

    /// Counts what the events of a tenant take up from now on, or no longer do.
    pub fn count_stored(&mut self, tenant: i64, more: i64) {
        // What a deleted tenant had is forgotten in time, and is nobody's.
        if more < 0 && !self.tenant_counts.contains_key(&tenant) {
            return;
        }
        let tally = self.tenant_counts.entry(tenant).or_default();
        let before = tally.stored;
        tally.stored = before.saturating_add_signed(more);
        self.stored_in_all = self.stored_in_all + tally.stored - before;
    }

    /// Takes over what is known elsewhere of tenants, by their number: what
    /// their events take up, and how many of their deliveries wait there.
    pub fn set_remote_usage(&mut self, stored: &HashMap<i64, u64>, waiting_elsewhere: &HashMap<i64, u64>) {
        for (tenant, bytes) in stored {
            self.tenant_counts.entry(*tenant).or_default().stored = *bytes;
        }
        for (tenant, tally) in &mut self.tenant_counts {
            tally.waiting_elsewhere = waiting_elsewhere.get(tenant).copied().unwrap_or(0);
        }
        for (tenant, waiting) in waiting_elsewhere {
            self.tenant_counts.entry(*tenant).or_default().waiting_elsewhere = *waiting;
        }
        self.stored_in_all = self.tenant_counts.values().map(|tally| tally.stored).sum();
    }

    /// How many deliveries of tenants wait here, by the tenant's number.
    pub fn waiting_by_tenant(&self) -> HashMap<i64, u64> {
        let waiting = self.tenant_counts.iter().filter(|(_, tally)| tally.waiting > 0);
        waiting.map(|(tenant, tally)| (*tenant, tally.waiting)).collect()
    }

    /// The numbers of tenants whose events may take up only so much.
    pub fn with_stored_limit(&self) -> Vec<i64> {
        let limited = self.tenants.values().filter(|entry| entry.tenant.limits.stored_bytes.is_some());
        limited.map(|entry| entry.no).collect()
    }

    /// What the events of a tenant take up, by its number.
    pub fn stored_of(&self, tenant: i64) -> u64 {
        self.tenant_counts.get(&tenant).map_or(0, |tally| tally.stored)
    }

    /// What a tenant uses.
    pub fn usage(&self, id: &TenantId) -> Option<TenantUsage> {
        let entry = self.tenants.get(id)?;
        let tally = self.tenant_counts.get(&entry.no).copied().unwrap_or_default();
        Some(TenantUsage {
            endpoints: entry.endpoints.len() as u64,
            settings_bytes: entry.settings_bytes,
            tokens: entry.tokens,
            stored_bytes: tally.stored,
            waiting: self.uncounted.is_empty().then_some(tally.waiting + tally.waiting_elsewhere),
        })
    }

    /// What the events of all tenants take up.
    pub fn stored_in_all(&self) -> u64 {
        self.stored_in_all
    }

    /// How many tenants have events that take up something.
    pub fn storing_tenants(&self) -> u64 {
        self.tenant_counts.values().filter(|tally| tally.stored > 0).count() as u64
    }

    /// Whether no other tenant has endpoints, tokens or events.
    pub fn is_only_tenant(&self, id: &TenantId) -> bool {
        let is_used = |entry: &TenantEntry| {
            let stored = self.tenant_counts.get(&entry.no).map_or(0, |tally| tally.stored);
            !entry.endpoints.is_empty() || entry.tokens > 0 || stored > 0
        };
        !self.tenants.iter().any(|(other, entry)| other != id && !other.is_system() && is_used(entry))
    }

    /// What is counted now, by the number of the endpoint.
    pub fn counts(&self) -> HashMap<i64, u64> {
        self.waiting.clone()
    }

    /// Takes over counts of what waits, by the number of the endpoint. For
    /// each shard it is asked whether it was counted; one that was not is left
    /// alone, or has nothing that is counted here. An endpoint that had
    /// another count before the counting began is left alone, too: what came
    /// or went meanwhile may be counted or not.
    pub fn recount(
        &mut self,
        counted: &[(i64, u64)],
        before: Option<&HashMap<i64, u64>>,
        was_counted: impl Fn(Shard) -> Option<bool>,
    ) {
        let counted: HashMap<i64, u64> = counted.iter().copied().collect();
        for entry in self.endpoints.values() {
            let shard = Shard::of(&entry.endpoint.tenant, entry.endpoint.id);
            let count = match was_counted(shard) {
                None => continue,
                Some(true) if self.uncounted.contains(&shard) => counted.get(&entry.no).copied().unwrap_or(0),
                Some(true) if before.is_some_and(|before| before.get(&entry.no) != self.waiting.get(&entry.no)) => {
                    continue;
                }
                Some(true) => counted.get(&entry.no).copied().unwrap_or(0),
                Some(false) => 0,
            };
            self.waiting.insert(entry.no, count);
        }
        self.uncounted.retain(|shard| was_counted(*shard).is_none());
        self.waiting_in_all = self.waiting.values().sum();
        self.tenant_counts.values_mut().for_each(|tally| tally.waiting = 0);
        let counts: Vec<(i64, u64)> = self.waiting.iter().map(|(endpoint, count)| (*endpoint, *count)).collect();
        counts.into_iter().for_each(|(endpoint, count)| self.count_of_tenant(endpoint, count.cast_signed()));
    }

    /// Nothing waits for this one any more.
    pub fn forget_waiting(&mut self, endpoint: i64) {
        let gone = self.waiting.remove(&endpoint).unwrap_or(0);
        self.waiting_in_all -= gone;
        self.count_of_tenant(endpoint, -gone.cast_signed());
        self.tenant_of.remove(&endpoint);
    }

    /// One tenant.
    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.get(id).map(|entry| entry.tenant.clone())
    }

    /// All tenants, by id.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.values().map(|entry| entry.tenant.clone()).collect()
    }

    /// One endpoint.
    pub fn endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.endpoints.get(&id).map(|entry| entry.endpoint.clone())
    }

    /// A tenant's endpoints, newest first.
    pub fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>> {
        let Some(entry) = self.tenants.get(tenant) else { return Vec::new() };
        entry.endpoints.values().rev().cloned().collect()
    }

    /// How many deliveries wait for an endpoint, or for all of them together,
    /// if they have been counted.
    pub fn waiting(&self, endpoint: Option<EndpointId>) -> Option<u64> {
        let Some(id) = endpoint else {
            return self.uncounted.is_empty().then_some(self.waiting_in_all);
        };
        let Some(entry) = self.endpoints.get(&id) else { return Some(0) };
        let is_counted = self.uncounted.is_empty() || !self.uncounted.contains(&Shard::of(&entry.endpoint.tenant, id));
        is_counted.then(|| self.waiting.get(&entry.no).copied().unwrap_or(0))
    }

    /// These shards were gained: what waits for their endpoints is not known
    /// until it is counted.
    pub fn uncount(&mut self, shards: &[Shard]) {
        self.uncounted.extend(shards);
    }

    /// The weights of all tenants that have an endpoint, added up.
    pub fn weight_in_use(&self) -> u64 {
        self.weight_in_use
    }

    /// The number of a tenant's rows.
    pub fn tenant_no(&self, id: &TenantId) -> Option<i64> {
        self.tenants.get(id).map(|entry| entry.no)
    }

    /// The number of an endpoint's rows, and the endpoint.
    pub fn endpoint_entry(&self, id: EndpointId) -> Option<(i64, &Arc<Endpoint>)> {
        self.endpoints.get(&id).map(|entry| (entry.no, &entry.endpoint))
    }

    /// Takes in a tenant, or what changed of it.
    pub fn put_tenant(&mut self, no: i64, tenant: Arc<Tenant>) {
        if let Some(entry) = self.tenants.get(&tenant.id).filter(|entry| !entry.endpoints.is_empty()) {
            let (before, after) = (entry.tenant.quota.weight, tenant.quota.weight);
            self.weight_in_use = self.weight_in_use + u64::from(after) - u64::from(before);
        }
        let ceiling = tenant.limits.endpoint;
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
        for endpoint in entry.endpoints.values_mut().filter(|endpoint| endpoint.ceiling != ceiling) {
            *endpoint = Arc::new(Endpoint::clone(endpoint).below(ceiling));
            if let Some(known) = self.endpoints.get_mut(&endpoint.id) {
                known.endpoint = endpoint.clone();
            }
        }
    }

    /// One token.
    pub fn token(&self, id: TokenId) -> Option<Arc<Token>> {
        self.tokens.get(&id).cloned()
    }

    /// Takes in a token.
    pub fn put_token(&mut self, token: Arc<Token>) {
        let tenant = token.tenant.clone();
        if self.tokens.insert(token.id, token).is_none()
            && let Some(entry) = tenant.and_then(|tenant| self.tenants.get_mut(&tenant))
        {
            entry.tokens += 1;
        }
    }

    /// Takes out a token.
    pub fn remove_token(&mut self, id: TokenId) {
        if let Some(token) = self.tokens.remove(&id)
            && let Some(entry) = token.tenant.as_ref().and_then(|tenant| self.tenants.get_mut(tenant))
        {
            entry.tokens -= 1;
        }
    }

    /// Takes out a tenant, its endpoints and its tokens.
    pub fn remove_tenant(&mut self, id: &TenantId) {
        self.tokens.retain(|_, token| token.tenant.as_ref() != Some(id));
        if let Some(entry) = self.tenants.remove(id) {
            if !entry.endpoints.is_empty() {
                self.weight_in_use -= u64::from(entry.tenant.quota.weight);
            }
            for endpoint in entry.endpoints.keys() {
                if let Some(removed) = self.endpoints.remove(endpoint) {
                    self.forget_waiting(removed.no);
                }
            }
            let tally = self.tenant_counts.remove(&entry.no).unwrap_or_default();
            self.stored_in_all -= tally.stored;
        }
    }

    /// Takes in an endpoint, or what changed of it.
    pub fn put_endpoint(&mut self, no: i64, endpoint: Arc<Endpoint>) {
        self.remove_endpoint(endpoint.id);
        let Some(entry) = self.tenants.get_mut(&endpoint.tenant) else { return };
        let ceiling = entry.tenant.limits.endpoint;
        let endpoint = match endpoint.ceiling == ceiling {
            true => endpoint,
            false => Arc::new(Endpoint::clone(&endpoint).below(ceiling)),
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
        self.endpoints.insert(endpoint.id, EndpointEntry { no, endpoint, settings_bytes });
    }

    /// Shows how an endpoint is doing. What it wants has not changed, so the
    /// indexes by type need not be touched: this may happen at every attempt.
    pub fn show_health(&mut self, id: EndpointId, health: EndpointHealth) {
        let Some(entry) = self.endpoints.get_mut(&id) else { return };
        Arc::make_mut(&mut entry.endpoint).health = health;
        let endpoint = entry.endpoint.clone();
        if let Some(tenant) = self.tenants.get_mut(&endpoint.tenant) {
            tenant.endpoints.insert(id, endpoint);
        }
    }

    /// Takes out an endpoint.
    pub fn remove_endpoint(&mut self, id: EndpointId) {
        let Some(old) = self.endpoints.remove(&id) else { return };
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

    /// The endpoints that want an event.
    pub fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        let Some(entry) = self.tenants.get(&event.tenant) else {
            return Err(Error::NotFound("tenant"));
        };
        if let Some(named) = &event.endpoints {
            return named
                .iter()
                .map(|id| entry.endpoints.get(id).cloned().ok_or(Error::UnknownEndpoint(*id)))
                .collect();
        }
        let mut data = ParsedData::new(&event.data);
        let by_type = entry.by_type.get(event.event_type.as_str());
        let candidates = by_type.into_iter().flatten().chain(&entry.by_pattern);
        Ok(candidates
            .filter_map(|id| entry.endpoints.get(id))
            .filter(|endpoint| endpoint.wants(event, &mut data))
            .cloned()
            .collect())
    }
}
