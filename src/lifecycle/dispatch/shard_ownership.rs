//! Which shards are this node's, as far as its dispatcher has heard.
//!
//! Pure bookkeeping. The store may know of a move a moment earlier than its
//! tiding is dealt with; what comes in that moment for a shard that is about
//! to be this node's is remembered, and looked at with the gain.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::model::id::{EndpointId, TenantId};
use crate::model::rate::Rate;
use crate::model::shard::{Epoch, SHARDS, Shard};

/// What a node holds.
pub struct ShardOwnership {
    shards: Vec<ShardRole>,
    /// Whether each was this node's before.
    was_ours: Vec<bool>,
    /// What came for a shard before its gain was heard of.
    early: HashMap<EndpointId, (Shard, Timestamp)>,
    /// How much of each tenant that has a rate is this node's.
    owned_fractions: HashMap<TenantId, OwnedFraction>,
}

/// How a node stands to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardRole {
    /// It is another's, or nobody's.
    Foreign,
    /// It is this node's.
    Ours {
        /// When it came, if others may have called its endpoints until then.
        since: Option<Timestamp>,
        /// Under which epoch, once that was asked for.
        epoch: Option<Epoch>,
    },
    /// It is about to go to another node: nothing of it is started any more.
    Leaving,
}

/// How many of a tenant's endpoints are this node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnedFraction {
    /// So many are.
    pub owned: usize,
    /// Of so many.
    pub all: usize,
}

impl ShardOwnership {
    /// Everything, for ever: there are no others.
    pub fn all() -> Self {
        Self::of(ShardRole::Ours { since: None, epoch: None })
    }

    /// Nothing yet.
    pub fn none() -> Self {
        Self::of(ShardRole::Foreign)
    }

    fn of(holding: ShardRole) -> Self {
        Self {
            shards: vec![holding; SHARDS],
            was_ours: vec![false; SHARDS],
            early: HashMap::new(),
            owned_fractions: HashMap::new(),
        }
    }

    /// How this node stands to a shard.
    pub fn role_at(&self, shard: Shard) -> ShardRole {
        self.shards[usize::from(shard.0)]
    }

    /// Whether something may be started for a shard.
    pub fn is_ours(&self, shard: Shard) -> bool {
        matches!(self.role_at(shard), ShardRole::Ours { .. })
    }

    /// When a shard came, if others may have called its endpoints until then.
    pub fn since(&self, shard: Shard) -> Option<Timestamp> {
        match self.role_at(shard) {
            ShardRole::Ours { since, .. } => since,
            ShardRole::Foreign | ShardRole::Leaving => None,
        }
    }

    /// Whether a shard is this node's under the epoch that the store has it
    /// under. If not, its loss, and perhaps its gain, is still to be heard of.
    pub fn is_ours_under(&mut self, shard: Shard, current: Epoch) -> bool {
        match &mut self.shards[usize::from(shard.0)] {
            ShardRole::Ours { epoch, .. } => *epoch.get_or_insert(current) == current,
            ShardRole::Foreign | ShardRole::Leaving => false,
        }
    }

    /// These are this node's from now on; with `were_owned`, others may have
    /// called their endpoints until then. Where they were this node's before,
    /// it has forgotten itself what it did. Returns what came too early for them.
    pub fn shards_gained(
        &mut self,
        shards: &[Shard],
        were_owned: bool,
        now: Timestamp,
    ) -> Vec<(EndpointId, Timestamp)> {
        for shard in shards {
            let was_ours = std::mem::replace(&mut self.was_ours[usize::from(shard.0)], true);
            let since = (were_owned || was_ours).then_some(now);
            self.set(&[*shard], ShardRole::Ours { since, epoch: None });
        }
        let early = self.early.extract_if(|_, (shard, _)| shards.contains(shard));
        early.map(|(endpoint, (_, due_at))| (endpoint, due_at)).collect()
    }

    /// These are to go to another node.
    pub fn shards_leaving(&mut self, shards: &[Shard]) {
        self.set(shards, ShardRole::Leaving);
    }

    /// These are another's.
    pub fn shards_lost(&mut self, shards: &[Shard]) {
        self.set(shards, ShardRole::Foreign);
    }

    fn set(&mut self, shards: &[Shard], holding: ShardRole) {
        for shard in shards {
            self.shards[usize::from(shard.0)] = holding;
        }
    }

    /// Something is due at this time, in a shard that is about to be ours.
    pub fn remember_early_due(&mut self, shard: Shard, endpoint: EndpointId, due_at: Timestamp) {
        let noted = self.early.entry(endpoint).or_insert((shard, due_at));
        noted.1 = noted.1.min(due_at);
    }

    /// How much of a tenant is this node's, if that was counted.
    pub fn owned_fraction(&self, tenant: &TenantId) -> Option<OwnedFraction> {
        self.owned_fractions.get(tenant).copied()
    }

    /// So much of a tenant is this node's; returns whether that is news.
    pub fn set_owned_fraction(&mut self, tenant: &TenantId, part: OwnedFraction) -> bool {
        self.owned_fractions.insert(tenant.clone(), part) != Some(part)
    }
}

impl OwnedFraction {
    /// This node's part of a tenant's rate: all parts together are never more
    /// than the whole, but for a burst, of which everyone has at least one.
    /// Nothing, where nothing is this node's.
    pub fn of(self, rate: Rate) -> Option<Rate> {
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
        assert_eq!(ownership.shards_gained(&[Shard(1)], false, at(9)), [(endpoint, at(7))]);
        assert_eq!(ownership.since(Shard(1)), None, "nobody has called anyone there before");
        assert_eq!(ownership.shards_gained(&[Shard(1)], false, at(9)), [], "once");
        assert_eq!(ownership.since(Shard(1)), Some(at(9)), "what it did itself is forgotten");
        assert!(ownership.is_ours(Shard(1)) && !ownership.is_ours(Shard(2)));
    }

    #[test]
    fn another_epoch_is_another_ownership() {
        let mut ownership = ShardOwnership::none();
        assert!(!ownership.is_ours_under(Shard(1), Epoch(3)));
        ownership.shards_gained(&[Shard(1)], true, at(5));
        assert!(ownership.is_ours_under(Shard(1), Epoch(3)));
        assert!(!ownership.is_ours_under(Shard(1), Epoch(5)), "lost and gained, and not heard of yet");
        assert_eq!(ownership.since(Shard(1)), Some(at(5)));
        ownership.shards_leaving(&[Shard(1)]);
        assert!(!ownership.is_ours_under(Shard(1), Epoch(3)));
        ownership.shards_lost(&[Shard(1)]);
        ownership.shards_gained(&[Shard(1)], false, at(5));
        assert!(ownership.is_ours_under(Shard(1), Epoch(5)));
    }

    #[test]
    fn parts_of_a_rate_add_up_to_it() {
        let rate = Rate { per_second: 90.0, burst: 10 };
        let parts = [1, 2, 6].map(|owned| OwnedFraction { owned, all: 9 }.of(rate).unwrap());
        assert!((parts.iter().map(|part| part.per_second).sum::<f64>() - 90.0).abs() < 1e-9);
        assert_eq!(parts.map(|part| part.burst), [1, 2, 6]);
        assert_eq!(OwnedFraction { owned: 0, all: 9 }.of(rate), None);
        assert_eq!(
            OwnedFraction { owned: 1, all: 9 }.of(Rate { burst: 1, ..rate }).unwrap().burst,
            1,
            "one goes at least"
        );
    }
}
