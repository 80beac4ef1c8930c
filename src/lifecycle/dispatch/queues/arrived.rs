//! Takes in what other nodes accepted, by the numbers that the store reports.
//!
//! A page of what is due would bring it as well. But while pages are read, what this
//! node accepts is left to the store, too, since a page may have brought it. A read of
//! single deliveries brings nothing else.

use std::time::Duration;

use jiff::Timestamp;

use super::read::READ_BYTES_MAX;
use super::{EndpointQueues, READY_BYTES_MAX, READY_MAX, cost};
use crate::lifecycle::dispatch::gate::EndpointGate;
use crate::lifecycle::dispatch::queue::QueueOwner;
use crate::model::delivery::time_after;
use crate::model::id::EndpointId;
use crate::model::shard::Lease;
use crate::store::{ArrivedDelivery, ArrivedQuery, ReadClaims};

/// How far the clocks of two nodes may be apart. What one has just accepted may not be
/// due yet by the clock of the other.
const CLOCKS_DIFFER: Duration = Duration::from_millis(100);

impl EndpointQueues {
    /// Notes deliveries that other nodes accepted, the first of which is due at this
    /// time. Returns what to read now: those that may start at once are read by their
    /// numbers, the others are left to the store.
    pub fn arrived(
        &mut self,
        endpoint: EndpointId,
        due_at: Timestamp,
        deliveries: &[ArrivedDelivery],
        now: Timestamp,
        gate: impl FnOnce() -> Option<EndpointGate>,
    ) -> Option<(Lease, ArrivedQuery)> {
        let is_crowded = self.ready_bytes > READY_BYTES_MAX;
        let queue = self.queue(endpoint, now, gate)?;
        let latest = deliveries.iter().map(|one| one.due_at).max();
        let are_due = latest.is_some_and(|due_at| due_at <= time_after(now, CLOCKS_DIFFER));
        let known = queue.ready.len() + queue.arrived.waiting.len();
        if is_crowded || !are_due || known >= READY_MAX || !queue.takes_arrived(now) {
            self.due_in_store(endpoint, due_at, now, || None);
            return None;
        }
        queue.arrived.waiting.extend_from_slice(deliveries);
        self.begin_arrived_read(endpoint, now)
    }

    /// Takes what was read of them, or the time at which to read them again. Returns
    /// what to read next. A delivery that was settled or changed during the read, or
    /// that is known by now, is left out: then something else has brought it.
    pub fn arrived_read(
        &mut self,
        lease: Lease,
        ask: &ArrivedQuery,
        read: Result<ReadClaims, Timestamp>,
        now: Timestamp,
    ) -> Option<ArrivedQuery> {
        let queue = self.endpoints.get_mut(&ask.endpoint)?;
        let is_ours = queue.owner == QueueOwner::ThisNode && queue.gate.lease_terms.lease == lease;
        let read = match read {
            Ok(read) if is_ours && read.reached > 0 => read,
            _ => {
                // Pages bring them, if the shard is this node's, or is so again.
                let due_at = queue.arrived.give_up().unwrap_or(now);
                let again_at = read.err().filter(|_| is_ours).unwrap_or(due_at);
                if queue.owner == QueueOwner::ThisNode {
                    queue.reading_due = queue.reading_due.into_iter().chain([due_at]).min();
                    queue.stored_due_at(again_at);
                }
                self.reschedule(ask.endpoint, now);
                return None;
            }
        };
        let changed = std::mem::take(&mut queue.arrived.changed);
        queue.arrived.due = None;
        queue.arrived.waiting.splice(..0, ask.deliveries.iter().skip(read.reached).copied());
        for claim in read.claims.into_iter().filter(|claim| !changed.contains(&claim.id)) {
            let latest = if claim.progress.attempts == 0 { time_after(now, CLOCKS_DIFFER) } else { now };
            if claim.due_at > latest || !queue.may_start(&claim, now) {
                queue.put_back(&claim);
            } else if queue.known.insert(claim.id) {
                self.ready_bytes += cost(&claim);
                queue.ready.push_back(claim);
            }
        }
        // Pages bring the rest as soon as there is room for it.
        if self.ready_bytes > READY_BYTES_MAX
            && let Some(due_at) = queue.arrived.give_up()
        {
            queue.stored_due_at(due_at);
        }
        self.begin_arrived_read(ask.endpoint, now).map(|(_, ask)| ask)
    }

    fn begin_arrived_read(&mut self, endpoint: EndpointId, now: Timestamp) -> Option<(Lease, ArrivedQuery)> {
        let queue = self.endpoints.get_mut(&endpoint)?;
        let lease = queue.gate.lease_terms.lease;
        let read = queue.arrived.begin().map(|deliveries| {
            let ask = ArrivedQuery { endpoint, deliveries, bytes_max: READ_BYTES_MAX };
            (lease, ask)
        });
        self.reschedule(endpoint, now);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::deliver::tests::claim as any_claim;
    use crate::lifecycle::dispatch::gate::LeaseTerms;
    use crate::lifecycle::dispatch::limits::NodeLimits;
    use crate::model::breaker::BreakerSettings;
    use crate::model::endpoint::EndpointState;
    use crate::model::health::{AutoPauseLimits, EndpointHealth};
    use crate::model::id::DeliveryId;
    use crate::model::rate::Rate;
    use crate::model::shard::{Epoch, Shard};
    use crate::model::tenant::TenantQuota;
    use crate::store::{Claim, DuePage};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    fn endpoint() -> EndpointId {
        EndpointId::mint(at(0), 1)
    }

    fn lease() -> Lease {
        Lease { shard: Shard(7), epoch: Epoch(1) }
    }

    fn gate() -> EndpointGate {
        EndpointGate {
            tenant: "default".parse().unwrap(),
            quota: TenantQuota::default(),
            host: None,
            state: EndpointState::Active,
            cap: 64,
            rate: Rate { per_second: 1_000_000.0, burst: 100_000 },
            backpressure_until: None,
            breaker: BreakerSettings::default(),
            health: EndpointHealth::default(),
            created_at: at(-1_000_000),
            lease_terms: LeaseTerms { lease: lease(), since: None, needed: Duration::ZERO },
        }
    }

    fn claim(n: u128, due_at: i64) -> Claim {
        Claim {
            id: DeliveryId::mint(at(0), n),
            endpoint: endpoint(),
            lane: None,
            due_at: at(due_at),
            ..any_claim(b"{}")
        }
    }

    fn named(claim: &Claim) -> ArrivedDelivery {
        ArrivedDelivery { id: claim.id, event: 1, due_at: claim.due_at }
    }

    fn node() -> EndpointQueues {
        let limits = NodeLimits { slots: 100, per_host: None, quarantine: AutoPauseLimits::default() };
        EndpointQueues::new(limits, at(-1_000_000))
    }

    fn arrive(queues: &mut EndpointQueues, claims: &[Claim], now: i64) -> Option<ArrivedQuery> {
        let named: Vec<ArrivedDelivery> = claims.iter().map(named).collect();
        let first = claims.iter().map(|claim| claim.due_at).min().unwrap();
        queues.arrived(endpoint(), first, &named, at(now), || Some(gate())).map(|(_, ask)| ask)
    }

    /// Answers with these of the claims that were asked for.
    fn answer(queues: &mut EndpointQueues, ask: &ArrivedQuery, claims: &[Claim], now: i64) -> Option<ArrivedQuery> {
        let claims: Vec<Claim> =
            claims.iter().filter(|claim| ask.deliveries.contains(&named(claim))).cloned().collect();
        let read = ReadClaims { claims, reached: ask.deliveries.len() };
        queues.arrived_read(lease(), ask, Ok(read), at(now))
    }

    fn take(queues: &mut EndpointQueues, now: i64) -> Vec<Claim> {
        std::iter::from_fn(|| queues.take_next(at(now), None, || 1)).map(|(claim, _)| claim).collect()
    }

    fn end(queues: &mut EndpointQueues, claim: &Claim, now: i64) {
        queues.apply_attempt_result(endpoint(), claim.id, None, at(now));
        queues.settled(claim, None, at(now));
    }

    #[test]
    fn what_other_nodes_accepted_is_read_alone_and_what_this_one_accepts_stays_in_memory() {
        let mut queues = node();
        let theirs = [claim(1, 0), claim(2, 1)];
        let ask = arrive(&mut queues, &theirs, 2).expect("they are read at once");
        queues.admit(claim(3, 2), at(2), at(3), || Some(gate()));
        assert_eq!(take(&mut queues, 3).len(), 1, "ours needs no read");
        assert!(answer(&mut queues, &ask, &theirs, 4).is_none());
        assert!(queues.poll_due(at(4)).is_empty(), "no page is read");
        assert_eq!(take(&mut queues, 4).len(), 2);
    }

    #[test]
    fn what_arrives_during_a_read_is_read_after_it_and_so_is_what_did_not_fit() {
        let mut queues = node();
        let claims: Vec<Claim> = (0..600).map(|n| claim(n, 0)).collect();
        let first = arrive(&mut queues, &claims[..1], 1).expect("it is read at once");
        assert!(arrive(&mut queues, &claims[1..], 1).is_none(), "one read at a time");
        let second = answer(&mut queues, &first, &claims, 2).expect("the rest is read now");
        assert_eq!(second.deliveries.len(), 512);
        let read = ReadClaims { claims: claims[1..11].to_vec(), reached: 10 };
        let third = queues.arrived_read(lease(), &second, Ok(read), at(3)).expect("data was too large");
        assert_eq!(third.deliveries[0].id, claims[11].id);
        let fourth = answer(&mut queues, &third, &claims, 4).expect("there are more than one read takes");
        assert!(answer(&mut queues, &fourth, &claims, 5).is_none());
        let mut started = 0;
        while let Some((claim, _)) = queues.take_next(at(6), None, || 1) {
            end(&mut queues, &claim, 6);
            started += 1;
        }
        assert_eq!(started, 600);
        assert!(queues.ready_bytes == 0 && queues.poll_due(at(6)).is_empty(), "nothing is left behind");
    }

    #[test]
    fn what_memory_has_no_room_for_is_left_to_pages() {
        let mut queues = node();
        let large = any_claim(&[b'1'; 1_024 * 1_024]);
        let claims: Vec<Claim> = (0..100).map(|n| Claim { event: large.event.clone(), ..claim(n, 0) }).collect();
        let mut ask = arrive(&mut queues, &claims, 1);
        while let Some(asked) = ask {
            let first = claims.iter().filter(|claim| claim.id == asked.deliveries[0].id);
            let read = ReadClaims { claims: first.cloned().collect(), reached: 1 };
            ask = queues.arrived_read(lease(), &asked, Ok(read), at(2));
        }
        assert!(queues.ready_bytes <= READY_BYTES_MAX + cost(&claims[0]), "{}", queues.ready_bytes);
        let mut started = 0;
        while let Some((claim, _)) = queues.take_next(at(3), None, || 1) {
            end(&mut queues, &claim, 3);
            started += 1;
        }
        assert!(started > 20 && queues.poll_due(at(3)).len() == 1, "a page brings what is left after {started}");
    }

    #[test]
    fn what_a_page_brought_meanwhile_is_not_sent_twice() {
        let mut queues = node();
        let theirs = [claim(1, 0), claim(2, 0)];
        queues.due_in_store(endpoint(), at(0), at(1), || Some(gate()));
        assert_eq!(queues.poll_due(at(1)).len(), 1);
        let ask = arrive(&mut queues, &theirs, 1).expect("the page may not have them");
        queues.read_done(endpoint(), Some(DuePage { claims: theirs.to_vec(), ..DuePage::default() }), at(2), at(9));
        let started = take(&mut queues, 2);
        assert_eq!(started.len(), 2);
        end(&mut queues, &started[0], 3);
        // The read saw both before the first was settled.
        assert!(answer(&mut queues, &ask, &theirs, 4).is_none());
        assert!(take(&mut queues, 4).is_empty());
        end(&mut queues, &started[1], 5);
        assert!(take(&mut queues, 5).is_empty());
    }

    #[test]
    fn what_a_person_changes_during_the_read_is_for_the_store_to_say() {
        let mut queues = node();
        let theirs = [claim(1, 0)];
        let ask = arrive(&mut queues, &theirs, 1).expect("it is read at once");
        queues.changed(endpoint(), theirs[0].id, None, at(2), || Some(gate()));
        assert!(answer(&mut queues, &ask, &theirs, 3).is_none());
        assert!(take(&mut queues, 3).is_empty(), "it was cancelled");
    }

    #[test]
    fn what_may_not_start_or_comes_after_a_backlog_is_left_to_the_store() {
        let mut queues = node();
        assert!(arrive(&mut queues, &[claim(1, 5_000)], 0).is_none(), "it is not due");
        assert_eq!(queues.next_wake(), Some(at(5_000)));
        queues.due_in_store(endpoint(), at(0), at(0), || None);
        assert!(arrive(&mut queues, &[claim(2, 0)], 1).is_none(), "older ones are in the store");
        let mut queues = node();
        let ask = arrive(&mut queues, &[claim(3, 0)], 1).expect("it is read at once");
        queues.update_gate(endpoint(), EndpointGate { state: EndpointState::Paused, ..gate() }, at(2));
        assert!(answer(&mut queues, &ask, &[claim(3, 0)], 3).is_none());
        assert!(take(&mut queues, 3).is_empty());
        queues.update_gate(endpoint(), gate(), at(4));
        assert_eq!(queues.poll_due(at(4)).len(), 1, "a page brings it after the resume");
    }

    #[test]
    fn what_another_nodes_clock_dates_a_moment_ahead_starts_and_a_retry_waits_for_its_time() {
        let mut queues = node();
        let mut theirs = [claim(1, 20), claim(2, 20)];
        let ask = arrive(&mut queues, &theirs, 1).expect("clocks differ");
        theirs[1].progress.attempts = 1;
        assert!(answer(&mut queues, &ask, &theirs, 2).is_none());
        assert_eq!(take(&mut queues, 2).len(), 1);
        assert_eq!(queues.next_wake(), Some(at(20)));
    }

    #[test]
    fn a_read_that_failed_or_found_nothing_is_followed_by_a_page() {
        for (read, again_at) in [(Err(at(900)), 900), (Ok(ReadClaims::default()), 0)] {
            let mut queues = node();
            let ask = arrive(&mut queues, &[claim(1, 0)], 1).expect("it is read at once");
            arrive(&mut queues, &[claim(2, 0)], 1);
            assert!(queues.arrived_read(lease(), &ask, read, at(2)).is_none());
            assert_eq!(queues.next_wake(), Some(at(again_at)));
            assert_eq!(queues.oldest(at(3)).lag(at(3)).lag_ms, 3, "it is late all the same");
        }
    }

    #[test]
    fn a_read_for_a_shard_that_went_is_void_and_a_page_follows_if_it_came_back() {
        let mut queues = node();
        let theirs = [claim(1, 0)];
        let ask = arrive(&mut queues, &theirs, 1).expect("it is read at once");
        queues.forget_shards(&[Shard(7)], at(2));
        assert!(!queues.endpoints.is_empty(), "until the read is back");
        let again = LeaseTerms { lease: Lease { epoch: Epoch(3), ..lease() }, ..gate().lease_terms };
        queues.regain_queues(&[Shard(7)], at(3), |_| Some(EndpointGate { lease_terms: again, ..gate() }));
        assert!(answer(&mut queues, &ask, &theirs, 4).is_none());
        assert!(take(&mut queues, 4).is_empty());
        assert_eq!(queues.poll_due(at(4)).len(), 1);
        let mut queues = node();
        let ask = arrive(&mut queues, &theirs, 1).expect("it is read at once");
        queues.forget_shards(&[Shard(7)], at(2));
        assert!(answer(&mut queues, &ask, &theirs, 4).is_none());
        assert!(queues.endpoints.is_empty());
    }
}
