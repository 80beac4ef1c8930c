//! Which shards are this node's, as far as its dispatcher has heard.
//!
//! Pure bookkeeping. The store may know of a move a moment earlier than its
//! tiding is dealt with; what comes in that moment for a shard that is about
//! to be this node's is remembered, and looked at with the gain.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::model::id::{EndpointId, TenantId};
use crate::model::pace::Rate;
use crate::model::shard::{Epoch, SHARDS, Shard};

/// What a node holds.
pub struct Holdings {
    shards: Vec<Holding>,
    /// Whether each was this node's before.
    was_ours: Vec<bool>,
    /// What came for a shard before its gain was heard of.
    early: HashMap<EndpointId, (Shard, Timestamp)>,
    /// How much of each tenant that has a rate is this node's.
    parts: HashMap<TenantId, Part>,
}

/// How a node stands to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
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
pub struct Part {
    /// So many are.
    pub owned: usize,
    /// Of so many.
    pub all: usize,
}

impl Holdings {
    /// Everything, for ever: there are no others.
    pub fn all() -> Self {
        Self::of(Holding::Ours { since: None, epoch: None })
    }

    /// Nothing yet.
    pub fn none() -> Self {
        Self::of(Holding::Foreign)
    }

    fn of(holding: Holding) -> Self {
        Self {
            shards: vec![holding; SHARDS],
            was_ours: vec![false; SHARDS],
            early: HashMap::new(),
            parts: HashMap::new(),
        }
    }

    /// How this node stands to a shard.
    pub fn at(&self, shard: Shard) -> Holding {
        self.shards[usize::from(shard.0)]
    }

    /// Whether something may be started for a shard.
    pub fn is_ours(&self, shard: Shard) -> bool {
        matches!(self.at(shard), Holding::Ours { .. })
    }

    /// When a shard came, if others may have called its endpoints until then.
    pub fn since(&self, shard: Shard) -> Option<Timestamp> {
        match self.at(shard) {
            Holding::Ours { since, .. } => since,
            Holding::Foreign | Holding::Leaving => None,
        }
    }

    /// Whether a shard is this node's under the epoch that the store has it
    /// under. If not, its loss, and perhaps its gain, is still to be heard of.
    pub fn is_ours_under(&mut self, shard: Shard, current: Epoch) -> bool {
        match &mut self.shards[usize::from(shard.0)] {
            Holding::Ours { epoch, .. } => *epoch.get_or_insert(current) == current,
            Holding::Foreign | Holding::Leaving => false,
        }
    }

    /// These are this node's from now on; with `were_owned`, others may have
    /// called their endpoints until then. Where they were this node's before,
    /// it has forgotten itself what it did. Returns what came too early for them.
    pub fn gained(&mut self, shards: &[Shard], were_owned: bool, now: Timestamp) -> Vec<(EndpointId, Timestamp)> {
        for shard in shards {
            let was_ours = std::mem::replace(&mut self.was_ours[usize::from(shard.0)], true);
            let since = (were_owned || was_ours).then_some(now);
            self.set(&[*shard], Holding::Ours { since, epoch: None });
        }
        let early = self.early.extract_if(|_, (shard, _)| shards.contains(shard));
        early.map(|(endpoint, (_, due_at))| (endpoint, due_at)).collect()
    }

    /// These are to go to another node.
    pub fn wanted(&mut self, shards: &[Shard]) {
        self.set(shards, Holding::Leaving);
    }

    /// These are another's.
    pub fn lost(&mut self, shards: &[Shard]) {
        self.set(shards, Holding::Foreign);
    }

    fn set(&mut self, shards: &[Shard], holding: Holding) {
        for shard in shards {
            self.shards[usize::from(shard.0)] = holding;
        }
    }

    /// Something is due at this time, in a shard that is about to be ours.
    pub fn note_early(&mut self, shard: Shard, endpoint: EndpointId, due_at: Timestamp) {
        let noted = self.early.entry(endpoint).or_insert((shard, due_at));
        noted.1 = noted.1.min(due_at);
    }

    /// How much of a tenant is this node's, if that was counted.
    pub fn part(&self, tenant: &TenantId) -> Option<Part> {
        self.parts.get(tenant).copied()
    }

    /// So much of a tenant is this node's; returns whether that is news.
    pub fn set_part(&mut self, tenant: &TenantId, part: Part) -> bool {
        self.parts.insert(tenant.clone(), part) != Some(part)
    }
}

impl Part {
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
        let (mut holdings, endpoint) = (Holdings::none(), EndpointId::mint(at(0), 1));
        holdings.note_early(Shard(1), endpoint, at(9));
        holdings.note_early(Shard(1), endpoint, at(7));
        holdings.note_early(Shard(2), EndpointId::mint(at(0), 2), at(1));
        assert_eq!(holdings.gained(&[Shard(1)], false, at(9)), [(endpoint, at(7))]);
        assert_eq!(holdings.since(Shard(1)), None, "nobody has called anyone there before");
        assert_eq!(holdings.gained(&[Shard(1)], false, at(9)), [], "once");
        assert_eq!(holdings.since(Shard(1)), Some(at(9)), "what it did itself is forgotten");
        assert!(holdings.is_ours(Shard(1)) && !holdings.is_ours(Shard(2)));
    }

    #[test]
    fn another_epoch_is_another_ownership() {
        let mut holdings = Holdings::none();
        assert!(!holdings.is_ours_under(Shard(1), Epoch(3)));
        holdings.gained(&[Shard(1)], true, at(5));
        assert!(holdings.is_ours_under(Shard(1), Epoch(3)));
        assert!(!holdings.is_ours_under(Shard(1), Epoch(5)), "lost and gained, and not heard of yet");
        assert_eq!(holdings.since(Shard(1)), Some(at(5)));
        holdings.wanted(&[Shard(1)]);
        assert!(!holdings.is_ours_under(Shard(1), Epoch(3)));
        holdings.lost(&[Shard(1)]);
        holdings.gained(&[Shard(1)], false, at(5));
        assert!(holdings.is_ours_under(Shard(1), Epoch(5)));
    }

    #[test]
    fn parts_of_a_rate_add_up_to_it() {
        let rate = Rate { per_second: 90.0, burst: 10 };
        let parts = [1, 2, 6].map(|owned| Part { owned, all: 9 }.of(rate).unwrap());
        assert!((parts.iter().map(|part| part.per_second).sum::<f64>() - 90.0).abs() < 1e-9);
        assert_eq!(parts.map(|part| part.burst), [1, 2, 6]);
        assert_eq!(Part { owned: 0, all: 9 }.of(rate), None);
        assert_eq!(Part { owned: 1, all: 9 }.of(Rate { burst: 1, ..rate }).unwrap().burst, 1, "one goes at least");
    }
}
