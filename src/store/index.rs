//! Tenants and endpoints in memory, for every store.
//!
//! Every event asks who wants it, so the answer must cost no I/O. A store
//! changes the index after the commit that made a change durable and before
//! the change's caller is answered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::model::endpoint::{Endpoint, ParsedData};
use crate::model::event::Event;
use crate::model::health::Health;
use crate::model::id::{EndpointId, TenantId, TokenId};
use crate::model::shard::Shard;
use crate::model::tenant::Tenant;
use crate::model::token::Token;
use crate::store::{Error, Result};

/// What is known of tenants and endpoints, in memory.
#[derive(Default)]
pub struct Index {
    tenants: BTreeMap<TenantId, TenantEntry>,
    endpoints: HashMap<EndpointId, EndpointEntry>,
    tokens: HashMap<TokenId, Arc<Token>>,
    /// How many deliveries wait, by the number of the endpoint.
    waiting: HashMap<i64, u64>,
    waiting_in_all: u64,
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
}

struct EndpointEntry {
    no: i64,
    endpoint: Arc<Endpoint>,
}

impl Index {
    /// Counts deliveries that wait for an endpoint from now on, or no longer
    /// do. One that is deleted has none.
    pub fn count_waiting(&mut self, endpoint: i64, more: i64) {
        if let Some(count) = self.waiting.get_mut(&endpoint) {
            let before = *count;
            *count = before.saturating_add_signed(more);
            self.waiting_in_all = self.waiting_in_all + *count - before;
        }
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
    }

    /// Nothing waits for this one any more.
    pub fn forget_waiting(&mut self, endpoint: i64) {
        self.waiting_in_all -= self.waiting.remove(&endpoint).unwrap_or(0);
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
        self.tenants.entry(tenant.id.clone()).and_modify(|entry| entry.tenant = tenant.clone()).or_insert_with(|| {
            TenantEntry { no, tenant, by_type: HashMap::new(), by_pattern: Vec::new(), endpoints: BTreeMap::new() }
        });
    }

    /// One token.
    pub fn token(&self, id: TokenId) -> Option<Arc<Token>> {
        self.tokens.get(&id).cloned()
    }

    /// Takes in a token.
    pub fn put_token(&mut self, token: Arc<Token>) {
        self.tokens.insert(token.id, token);
    }

    /// Takes out a token.
    pub fn remove_token(&mut self, id: TokenId) {
        self.tokens.remove(&id);
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
        }
    }

    /// Takes in an endpoint, or what changed of it.
    pub fn put_endpoint(&mut self, no: i64, endpoint: Arc<Endpoint>) {
        self.remove_endpoint(endpoint.id);
        let Some(entry) = self.tenants.get_mut(&endpoint.tenant) else { return };
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
        entry.endpoints.insert(endpoint.id, endpoint.clone());
        self.waiting.entry(no).or_insert(0);
        self.endpoints.insert(endpoint.id, EndpointEntry { no, endpoint });
    }

    /// Shows how an endpoint is doing. What it wants has not changed, so the
    /// indexes by type need not be touched: this may happen at every attempt.
    pub fn show_health(&mut self, id: EndpointId, health: Health) {
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
