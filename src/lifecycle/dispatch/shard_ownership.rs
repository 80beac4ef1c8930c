//! Keeps which shards this node owns, by the cluster events that its dispatcher
//! has applied.
//!
//! Pure bookkeeping. The store may know of a move a moment before its cluster
//! event is applied; what comes in that moment for a shard that is about to be
//! this node's is remembered, and returned with the gain.

use jiff::Timestamp;

use crate::model::id::{EndpointId, TenantId};
use crate::model::id_map::IdMap;
use crate::model::rate::Rate;
use crate::model::shard::{Epoch, SHARDS, Shard};

/// The shards of this node.
pub struct ShardOwnership {
    shards: Vec<ShardRole>,
    /// Whether each shard was this node's before.
    was_ours: Vec<bool>,
    /// Due times that came for a shard before its gain was applied.
    early: IdMap<EndpointId, (Shard, Timestamp)>,
    /// Owned fraction of each tenant that has a rate.
    owned_fractions: IdMap<TenantId, OwnedFraction>,
}

/// A node's role for a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardRole {
    /// The shard belongs to another node or to none.
    Foreign,
    /// The shard belongs to this node.
    Ours {
        /// Time of the gain, if others may have called its endpoints before.
        since: Option<Timestamp>,
        /// Epoch of the ownership, once it was asked for.
        epoch: Option<Epoch>,
    },
    /// The shard is about to go to another node; nothing of it is started.
    Leaving,
}

/// The part of a tenant's endpoints that this node owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnedFraction {
    /// Number of the tenant's endpoints that this node owns.
    pub owned: usize,
    /// Number of all endpoints of the tenant.
    pub all: usize,
}

impl ShardOwnership {
    /// Creates an ownership of all shards for ever, for a node without others.
    pub fn all() -> Self {
        Self::of(ShardRole::Ours { since: None, epoch: None })
    }

    /// Creates an ownership of no shard.
    pub fn none() -> Self {
        Self::of(ShardRole::Foreign)
    }

    fn of(role: ShardRole) -> Self {
        Self {
            shards: vec![role; SHARDS],
            was_ours: vec![false; SHARDS],
            early: IdMap::default(),
            owned_fractions: IdMap::default(),
        }
    }

    /// Returns this node's role for a shard.
    pub fn role_at(&self, shard: Shard) -> ShardRole {
        self.shards[usize::from(shard.0)]
    }

    /// Whether this node may start deliveries of a shard.
    pub fn is_ours(&self, shard: Shard) -> bool {
        matches!(self.role_at(shard), ShardRole::Ours { .. })
    }

    /// Returns when a shard was gained, if others may have called its endpoints
    /// before.
    pub fn gained_at(&self, shard: Shard) -> Option<Timestamp> {
        match self.role_at(shard) {
            ShardRole::Ours { since, .. } => since,
            ShardRole::Foreign | ShardRole::Leaving => None,
        }
    }

    /// Whether a shard is this node's under the store's current epoch. If not,
    /// the cluster event of its loss, and perhaps of its gain, is still to come.
    pub fn is_ours_under(&mut self, shard: Shard, current: Epoch) -> bool {
        match &mut self.shards[usize::from(shard.0)] {
            ShardRole::Ours { epoch, .. } => *epoch.get_or_insert(current) == current,
            ShardRole::Foreign | ShardRole::Leaving => false,
        }
    }

    /// Records the gain of shards. With `were_owned`, others may have called
    /// their endpoints before; if they were this node's before, it has forgotten
    /// what it sent itself. Returns the due times that came before the gain.
    pub fn record_gain(&mut self, shards: &[Shard], were_owned: bool, now: Timestamp) -> Vec<(EndpointId, Timestamp)> {
        for shard in shards {
            let was_ours = std::mem::replace(&mut self.was_ours[usize::from(shard.0)], true);
            let since = (were_owned || was_ours).then_some(now);
            self.set_role(&[*shard], ShardRole::Ours { since, epoch: None });
        }
        let early = self.early.extract_if(|_, (shard, _)| shards.contains(shard));
        early.map(|(endpoint, (_, due_at))| (endpoint, due_at)).collect()
    }

    /// Records that these shards are about to go to another node.
    pub fn record_hand_over(&mut self, shards: &[Shard]) {
        self.set_role(shards, ShardRole::Leaving);
    }

    /// Records that another node owns these shards.
    pub fn record_loss(&mut self, shards: &[Shard]) {
        self.set_role(shards, ShardRole::Foreign);
    }

    fn set_role(&mut self, shards: &[Shard], role: ShardRole) {
        for shard in shards {
            self.shards[usize::from(shard.0)] = role;
        }
    }

    /// Remembers a due time of an endpoint whose shard is about to be ours.
    pub fn remember_early_due(&mut self, shard: Shard, endpoint: EndpointId, due_at: Timestamp) {
        let (_, earliest) = self.early.entry(endpoint).or_insert((shard, due_at));
        *earliest = due_at.min(*earliest);
    }

    /// Returns the owned fraction of a tenant, if it was counted.
    pub fn owned_fraction(&self, tenant: &TenantId) -> Option<OwnedFraction> {
        self.owned_fractions.get(tenant).copied()
    }

    /// Sets the owned fraction of a tenant; returns whether it changed.
    pub fn set_owned_fraction(&mut self, tenant: &TenantId, fraction: OwnedFraction) -> bool {
        self.owned_fractions.insert(tenant.clone(), fraction) != Some(fraction)
    }
}

impl OwnedFraction {
    /// Returns this node's part of a tenant's rate, or nothing if it owns no
    /// endpoint. All parts together never exceed the whole, except that each
    /// node has a burst of at least one.
    pub fn part_of(self, rate: Rate) -> Option<Rate> {
        if self.owned == 0 {
            return None;
        }
        let share = self.owned as f64 / self.all.max(self.owned) as f64;
        let burst = (f64::from(rate.burst) * share) as u32;
        Some(Rate { per_second: rate.per_second * share, burst: burst.max(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn what_comes_before_its_shard_is_looked_at_with_the_gain() {
        let (mut ownership, endpoint) = (ShardOwnership::none(), EndpointId::mint(at(0), 1));
        ownership.remember_early_due(Shard(1), endpoint, at(9));
        ownership.remember_early_due(Shard(1), endpoint, at(7));
        ownership.remember_early_due(Shard(2), EndpointId::mint(at(0), 2), at(1));
        assert_eq!(ownership.record_gain(&[Shard(1)], false, at(9)), [(endpoint, at(7))]);
        assert_eq!(ownership.gained_at(Shard(1)), None, "nobody has called anyone there before");
        assert_eq!(ownership.record_gain(&[Shard(1)], false, at(9)), [], "once");
        assert_eq!(ownership.gained_at(Shard(1)), Some(at(9)), "what it did itself is forgotten");
        assert!(ownership.is_ours(Shard(1)) && !ownership.is_ours(Shard(2)));
    }

    #[test]
    fn another_epoch_is_another_ownership() {
        let mut ownership = ShardOwnership::none();
        assert!(!ownership.is_ours_under(Shard(1), Epoch(3)));
        ownership.record_gain(&[Shard(1)], true, at(5));
        assert!(ownership.is_ours_under(Shard(1), Epoch(3)));
        assert!(!ownership.is_ours_under(Shard(1), Epoch(5)), "lost and gained, and not heard of yet");
        assert_eq!(ownership.gained_at(Shard(1)), Some(at(5)));
        ownership.record_hand_over(&[Shard(1)]);
        assert!(!ownership.is_ours_under(Shard(1), Epoch(3)));
        ownership.record_loss(&[Shard(1)]);
        ownership.record_gain(&[Shard(1)], false, at(5));
        assert!(ownership.is_ours_under(Shard(1), Epoch(5)));
    }

    #[test]
    fn parts_of_a_rate_add_up_to_it() {
        let rate = Rate { per_second: 90.0, burst: 10 };
        let parts = [1, 2, 6].map(|owned| OwnedFraction { owned, all: 9 }.part_of(rate).unwrap());
        assert!((parts.iter().map(|part| part.per_second).sum::<f64>() - 90.0).abs() < 1e-9);
        assert_eq!(parts.map(|part| part.burst), [1, 2, 6]);
        assert_eq!(OwnedFraction { owned: 0, all: 9 }.part_of(rate), None);
        assert_eq!(
            OwnedFraction { owned: 1, all: 9 }.part_of(Rate { burst: 1, ..rate }).unwrap().burst,
            1,
            "one goes at least"
        );
    }
}
