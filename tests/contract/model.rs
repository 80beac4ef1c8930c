//! What a store means, in memory and in few words: the reference that
//! [`crate::differential`] compares every store with.
//!
//! It is written from the documents (`docs/delivery.md`, `docs/ordering.md`,
//! `docs/gentle.md`) and from what the traits promise. It knows no tables and
//! no indexes, and looks at everything whenever it is asked.

use std::collections::BTreeMap;

use jiff::Timestamp;
use posthaste::model::delivery::{DeadCause, DeadlineSource, DeliveryState};
use posthaste::model::endpoint::{Endpoint, Ordering};
use posthaste::model::id::TenantId;
use posthaste::model::job::{JobKind, LeftOut};
use posthaste::model::next_state::NextState;
use posthaste::store::{BatchMode, ClaimOutcome, DeliveryChange};

mod answers;
mod backfill;
mod endpoints;
mod lines;

pub use answers::{Accepted, BackfillMade, Effects, JobOrder, JobStepMade, Name, NewEvent, PastEventSeen, Refusal};
pub use endpoints::{EndpointStep, ModelEndpoint};
pub use lines::{Snapshot, delivery_line, endpoint_line};

#[derive(Debug, Clone)]
pub struct ModelEvent {
    pub tenant: TenantId,
    pub id: String,
    data: String,
    key: Option<&'static str>,
    accepted_at: Timestamp,
    pub deliveries: u32,
    is_expunged: bool,
    /// What it tells of which endpoint, if it is an operational event.
    pub tells: Option<(&'static str, usize)>,
}

#[derive(Debug, Clone)]
pub struct ModelDelivery {
    pub state: DeliveryState,
    pub cause: Option<DeadCause>,
    pub due_at: Timestamp,
    pub is_urgent: bool,
    pub attempts: u32,
    pub attempts_before: u32,
    pub begun_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub check_at: Option<Timestamp>,
    pub internal_errors: u32,
    pub lane: Option<String>,
    pub seq: Option<u64>,
    /// Its lane has moved on past it, or will when it comes there.
    pub is_passed: bool,
}

#[derive(Debug, Clone)]
struct ModelLane {
    last_seq: u64,
    /// The latest event that has joined it.
    last_event: u32,
    touched_at: Timestamp,
}

/// All that a store keeps.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub endpoints: Vec<ModelEndpoint>,
    pub events: BTreeMap<u32, ModelEvent>,
    pub deliveries: BTreeMap<Name, ModelDelivery>,
    lanes: BTreeMap<(usize, String), ModelLane>,
    accepted: u32,
}

impl Model {
    pub fn new(endpoints: &[Endpoint]) -> Self {
        Self { endpoints: endpoints.iter().map(ModelEndpoint::of).collect(), ..Self::default() }
    }

    pub fn accept(&mut self, events: &[NewEvent], together: BatchMode, now: Timestamp) -> Vec<Accepted> {
        let before = self.clone();
        let mut answers: Vec<Accepted> = events.iter().map(|new| self.accept_one(new, now)).collect();
        let is_refused = answers.iter().any(|answer| matches!(answer, Accepted::Conflict { .. }));
        if together == BatchMode::All && is_refused {
            *self = before;
            answers.iter_mut().for_each(Accepted::undo);
        }
        answers
    }

    fn accept_one(&mut self, new: &NewEvent, now: Timestamp) -> Accepted {
        if let Some(known) = self.events.values().find(|event| event.tenant == new.tenant && event.id == new.id) {
            let (accepted_at, deliveries) = (known.accepted_at, known.deliveries);
            return if known.data == new.data {
                Accepted::Duplicate { accepted_at, deliveries }
            } else {
                Accepted::Conflict { accepted_at }
            };
        }
        let free = self.insert(new, None, now);
        Accepted::New { deliveries: new.targets.len() as u32, free }
    }

    /// Adds an event and its deliveries; returns those that may go at once.
    fn insert(&mut self, new: &NewEvent, tells: Option<(&'static str, usize)>, now: Timestamp) -> Vec<Name> {
        self.accepted += 1;
        let event = ModelEvent {
            tenant: new.tenant.clone(),
            id: new.id.clone(),
            data: new.data.clone(),
            key: new.key,
            accepted_at: now,
            deliveries: new.targets.len() as u32,
            is_expunged: false,
            tells,
        };
        self.events.insert(self.accepted, event);
        let mut free = Vec::new();
        for &endpoint in &new.targets {
            let name = Name { event: self.accepted, endpoint };
            self.add_delivery(name, new.key, new.expires_at, now);
            let delivery = self.delivery(name);
            delivery.due_at = new.due_at.filter(|_| delivery.lane.is_none()).unwrap_or(now);
            free.extend(Some(name).filter(|name| !self.is_behind(*name)));
        }
        free
    }

    /// Adds a delivery that is due now, at the end of its lane if it has one.
    fn add_delivery(&mut self, name: Name, key: Option<&str>, expires_at: Option<Timestamp>, now: Timestamp) {
        let lane = self.lane_of(name.endpoint, key);
        let seq = lane.as_ref().map(|lane| {
            let last_seq = self.endpoints[name.endpoint].seq_floor;
            let new = ModelLane { last_seq, last_event: name.event, touched_at: now };
            let lane = self.lanes.entry((name.endpoint, lane.clone())).or_insert(new);
            (lane.last_seq, lane.last_event, lane.touched_at) = (lane.last_seq + 1, name.event, now);
            lane.last_seq
        });
        let delivery = ModelDelivery {
            state: DeliveryState::Waiting,
            cause: None,
            due_at: now,
            is_urgent: false,
            attempts: 0,
            attempts_before: 0,
            begun_at: now,
            finished_at: None,
            expires_at,
            check_at: expires_at.map(past),
            internal_errors: 0,
            lane,
            seq,
            is_passed: false,
        };
        self.deliveries.insert(name, delivery);
    }

    /// The lane that an event with this key joins at the endpoint, if it joins one.
    fn lane_of(&self, endpoint: usize, key: Option<&str>) -> Option<String> {
        match self.endpoints[endpoint].ordering {
            Ordering::Key => key.map(str::to_owned),
            Ordering::Endpoint => Some(String::new()),
            Ordering::None => None,
        }
    }

    /// The members of a lane that it has not moved past, in order.
    pub fn members(&self, endpoint: usize, lane: &str) -> Vec<Name> {
        let is_member = |name: &Name, delivery: &ModelDelivery| {
            name.endpoint == endpoint && delivery.lane.as_deref() == Some(lane) && !delivery.is_passed
        };
        let found = self.deliveries.iter().filter(|(name, delivery)| is_member(name, delivery));
        let mut members: Vec<_> = found.map(|(name, delivery)| (delivery.seq, *name)).collect();
        members.sort();
        members.into_iter().map(|(_, name)| name).collect()
    }

    /// The lanes that have members, by endpoint and key. A deleted endpoint
    /// has none.
    pub fn lanes(&self) -> impl Iterator<Item = (usize, &str, Vec<Name>)> {
        let lanes = self.lanes.keys().map(|(endpoint, lane)| (*endpoint, lane.as_str(), self.members(*endpoint, lane)));
        lanes.filter(|(.., members)| !members.is_empty())
    }

    fn is_head(&self, name: Name) -> bool {
        let lane = self.deliveries[&name].lane.as_deref();
        let mut lanes = self.lanes();
        lanes.any(|(endpoint, key, members)| endpoint == name.endpoint && Some(key) == lane && members[0] == name)
    }

    pub fn is_behind(&self, name: Name) -> bool {
        let delivery = &self.deliveries[&name];
        delivery.lane.is_some() && !delivery.is_passed && !self.is_head(name)
    }

    /// A delivery is over for its lane. If it was the head, the lane moves on:
    /// past the dead too, where the endpoint skips them.
    fn pass(&mut self, name: Name, now: Timestamp, effects: &mut Effects) {
        let Some(lane) = self.deliveries[&name].lane.clone() else { return };
        let was_head = self.is_head(name);
        self.delivery(name).is_passed = true;
        if !was_head {
            return;
        }
        self.lanes.get_mut(&(name.endpoint, lane.clone())).expect("it has a head").touched_at = now;
        while let Some(head) = self.members(name.endpoint, &lane).first().copied() {
            match self.deliveries[&head].state {
                DeliveryState::Dead if self.endpoints[name.endpoint].skips => self.delivery(head).is_passed = true,
                DeliveryState::Dead => return self.tell("lane.blocked", name.endpoint, now, effects),
                _ => return effects.freed.push(head),
            }
        }
    }

    fn delivery(&mut self, name: Name) -> &mut ModelDelivery {
        self.deliveries.get_mut(&name).expect("it is there")
    }

    /// Tells of something in an event of its own, unless it is about those who
    /// are told.
    fn tell(&mut self, event_type: &'static str, about: usize, now: Timestamp, effects: &mut Effects) {
        if self.endpoints[about].tenant.is_system() {
            return;
        }
        effects.told.push(event_type);
        let wants = |endpoint: &ModelEndpoint| {
            endpoint.tenant.is_system() && !endpoint.is_deleted && !event_type.starts_with("breaker.")
        };
        let targets = (0..self.endpoints.len()).filter(|n| wants(&self.endpoints[*n])).collect();
        let (tenant, id) = (TenantId::system(), format!("told-{}", self.accepted + 1));
        let new = NewEvent { tenant, id, data: String::new(), key: None, targets, due_at: None, expires_at: None };
        effects.freed.extend(self.insert(&new, Some((event_type, about)), now));
    }

    pub fn settle(&mut self, name: Name, outcome: &ClaimOutcome, now: Timestamp) -> Effects {
        let mut effects = Effects::default();
        // Forgotten: there is nothing to write about.
        let Some(delivery) = self.deliveries.get_mut(&name) else { return effects };
        let is_waiting = delivery.state == DeliveryState::Waiting;
        let next = match outcome {
            ClaimOutcome::Attempted { next, progress, expiry_check_at, .. } => {
                // Replayed while the request was open: it is counted, but not
                // in the new budget.
                let is_budget = progress.begun_at == Some(delivery.begun_at);
                delivery.attempts = progress.attempts;
                delivery.attempts_before = if is_budget { progress.attempts_before } else { progress.attempts };
                if is_budget {
                    (delivery.check_at, delivery.is_urgent) = (*expiry_check_at, false);
                }
                // What a person ended stays ended, unless it arrived all the same.
                match next {
                    NextState::Delivered => Some(*next).filter(|_| delivery.state != DeliveryState::Delivered),
                    _ => Some(*next).filter(|_| is_waiting && is_budget),
                }
            }
            ClaimOutcome::PutBack { due_at } => Some(NextState::Waiting { due_at: *due_at }).filter(|_| is_waiting),
            ClaimOutcome::InternalError { due_at, .. } if is_waiting => {
                delivery.internal_errors += 1;
                Some(match delivery.internal_errors {
                    3.. => NextState::Dead(DeadCause::Poisoned),
                    _ => NextState::Waiting { due_at: *due_at },
                })
            }
            ClaimOutcome::InternalError { .. } => None,
            ClaimOutcome::Damaged => Some(NextState::Dead(DeadCause::Damaged)).filter(|_| is_waiting),
            ClaimOutcome::Expired { progress, .. } | ClaimOutcome::RecheckExpiry { progress, .. }
                if !is_waiting
                    || progress.begun_at != Some(delivery.begun_at)
                    || progress.attempts != delivery.attempts =>
            {
                let due_at = Some(delivery.due_at).filter(|_| is_waiting);
                return Effects { due_at, is_void: true, ..effects };
            }
            ClaimOutcome::Expired { by: DeadlineSource::Expiry, .. } => Some(NextState::ExpiredByProducer),
            ClaimOutcome::Expired { .. } => Some(NextState::Dead(DeadCause::Expired)),
            ClaimOutcome::RecheckExpiry { at, .. } => {
                delivery.check_at = Some(*at);
                return effects;
            }
        };
        if let Some(NextState::Waiting { due_at }) = next {
            delivery.due_at = due_at;
        }
        effects.due_at =
            Some(delivery.due_at).filter(|_| is_waiting && matches!(next, None | Some(NextState::Waiting { .. })));
        let ended = match next {
            Some(NextState::Delivered) => Some((DeliveryState::Delivered, None)),
            Some(NextState::Dead(cause)) => Some((DeliveryState::Dead, Some(cause))),
            Some(NextState::ExpiredByProducer) => Some((DeliveryState::Dead, Some(DeadCause::Expired))),
            Some(NextState::Waiting { .. }) | None => None,
        };
        if let Some((state, cause)) = ended {
            let was_dead = delivery.state == DeliveryState::Dead;
            (delivery.state, delivery.cause, delivery.finished_at) = (state, cause, Some(now));
            if was_dead && self.is_head(name) {
                self.tell("lane.unblocked", name.endpoint, now, &mut effects);
            }
            let blocks = matches!(next, Some(NextState::Dead(_))) && !self.endpoints[name.endpoint].skips;
            if !blocks {
                self.pass(name, now, &mut effects);
            } else if self.is_head(name) {
                self.tell("lane.blocked", name.endpoint, now, &mut effects);
            }
            effects.died = cause;
            if cause.is_some() {
                self.tell("delivery.dead", name.endpoint, now, &mut effects);
            }
        }
        if let ClaimOutcome::Attempted { attempt, update, .. } = outcome {
            self.update_endpoint(name.endpoint, attempt.url_version, update, now, &mut effects);
        }
        effects
    }

    pub fn change(&mut self, name: Name, change: DeliveryChange, now: Timestamp) -> Result<Effects, Refusal> {
        let mut effects = Effects::default();
        let delivery = self.deliveries.get(&name).ok_or(Refusal::NotFound)?;
        let is_dead = delivery.state == DeliveryState::Dead;
        match (change, delivery.state) {
            (DeliveryChange::RetryNow | DeliveryChange::Cancel, DeliveryState::Waiting) => {}
            (DeliveryChange::Discard, DeliveryState::Dead) => {}
            (DeliveryChange::Replay, DeliveryState::Delivered | DeliveryState::Dead | DeliveryState::Cancelled) => {
                if self.endpoints[name.endpoint].is_deleted {
                    return Err(Refusal::WrongState);
                } else if self.events[&name.event].is_expunged {
                    return Err(Refusal::Expunged);
                } else if delivery.cause == Some(DeadCause::Damaged) {
                    return Err(Refusal::WrongState);
                }
            }
            _ => return Err(Refusal::WrongState),
        }
        let unblocks = is_dead && self.is_head(name);
        if unblocks {
            self.tell("lane.unblocked", name.endpoint, now, &mut effects);
        }
        let delivery = self.delivery(name);
        match change {
            DeliveryChange::RetryNow => {
                (delivery.due_at, delivery.is_urgent) = (delivery.due_at.min(now), true);
                effects.due_at = Some(now);
            }
            DeliveryChange::Replay => {
                (delivery.state, delivery.cause, delivery.finished_at) = (DeliveryState::Waiting, None, None);
                (delivery.due_at, delivery.begun_at, delivery.is_urgent) = (now, now, false);
                (delivery.attempts_before, delivery.internal_errors) = (delivery.attempts, 0);
                delivery.expires_at = delivery.expires_at.filter(|at| *at > now);
                delivery.check_at = delivery.expires_at.map(past);
                effects.due_at = Some(now);
            }
            DeliveryChange::Cancel | DeliveryChange::Discard => {
                (delivery.state, delivery.finished_at) = (DeliveryState::Cancelled, Some(now));
                let mut moved = Effects::default();
                self.pass(name, now, &mut moved);
                // The next one is not handed out, but said to be due.
                if moved.told.is_empty() {
                    effects.due_at = moved.freed.pop().map(|head| self.deliveries[&head].due_at);
                }
                effects.told.extend(moved.told);
                effects.freed.extend(moved.freed);
            }
        }
        Ok(effects)
    }

    /// Makes the change of a job where it is possible, one delivery after the other.
    pub fn make_job_step(&mut self, job: JobOrder, names: &[Name], now: Timestamp) -> JobStepMade {
        let change = match job.kind {
            JobKind::Replay => DeliveryChange::Replay,
            JobKind::Retry => DeliveryChange::RetryNow,
            JobKind::Discard => DeliveryChange::Discard,
            JobKind::Cancel => DeliveryChange::Cancel,
            JobKind::Backfill | JobKind::Purge => unreachable!("it changes no deliveries"),
        };
        let mut made = JobStepMade::default();
        for name in names {
            let delivery = &self.deliveries[name];
            let is_overtaken = delivery.lane.is_some() && delivery.is_passed;
            let changed = if delivery.state != job.state || (is_overtaken && !job.even_overtaken) {
                Err(Refusal::WrongState)
            } else {
                self.change(*name, change, now)
            };
            match changed {
                Ok(effects) => made.changed.push((*name, effects)),
                Err(Refusal::Expunged) => *made.left_out.entry(LeftOut::Expunged).or_default() += 1,
                Err(_) => *made.left_out.entry(LeftOut::WrongState).or_default() += 1,
            }
        }
        made
    }

    pub fn expunge(&mut self, tenant: &TenantId, id: &str) -> Result<bool, Refusal> {
        let found = self.events.iter_mut().find(|(_, event)| event.tenant == *tenant && event.id == id);
        let (number, event) = found.ok_or(Refusal::NotFound)?;
        let waits = |(name, delivery): (&Name, &ModelDelivery)| {
            name.event == *number && delivery.state == DeliveryState::Waiting
        };
        event.is_expunged |= !self.deliveries.iter().any(waits);
        Ok(event.is_expunged)
    }

    /// Forgets; returns how many events and deliveries.
    pub fn forget(&mut self, finished_before: Timestamp, dead_before: Timestamp) -> (usize, usize) {
        let before = (self.events.len(), self.deliveries.len());
        let old: Vec<u32> =
            self.events.iter().filter(|(_, event)| event.accepted_at < finished_before).map(|(n, _)| *n).collect();
        // A dead letter stays while others stand behind it.
        let last: Vec<Name> = self.lanes().map(|(.., members)| members[members.len() - 1]).collect();
        let deleted: Vec<bool> = self.endpoints.iter().map(|endpoint| endpoint.is_deleted).collect();
        self.deliveries.retain(|name, delivery| {
            let before = match delivery.state {
                DeliveryState::Waiting => return true,
                DeliveryState::Delivered | DeliveryState::Cancelled if !old.contains(&name.event) => return true,
                DeliveryState::Delivered | DeliveryState::Cancelled => finished_before,
                DeliveryState::Dead
                    if delivery.lane.is_none()
                        || delivery.is_passed
                        || deleted[name.endpoint]
                        || last.contains(name) =>
                {
                    dead_before
                }
                DeliveryState::Dead => return true,
            };
            delivery.finished_at.is_some_and(|at| at >= before)
        });
        let deliveries = &self.deliveries;
        self.events.retain(|n, _| !old.contains(n) || deliveries.keys().any(|name| name.event == *n));
        let used: Vec<(usize, String)> = self.lanes().map(|(n, lane, _)| (n, lane.to_owned())).collect();
        let endpoints = &mut self.endpoints;
        self.lanes.retain(|key, lane| {
            let stays = used.contains(key) || lane.touched_at >= finished_before;
            if !stays {
                // Its numbers never come back.
                endpoints[key.0].seq_floor = endpoints[key.0].seq_floor.max(lane.last_seq);
            }
            stays
        });
        (before.0 - self.events.len(), before.1 - self.deliveries.len())
    }

    /// What may go at an endpoint now, oldest first.
    pub fn due(&self, endpoint: usize, now: Timestamp) -> Vec<Name> {
        let is_due = |name: Name, delivery: &ModelDelivery| {
            name.endpoint == endpoint
                && delivery.state == DeliveryState::Waiting
                && !self.is_behind(name)
                && delivery.due_at <= now
        };
        let found = self.deliveries.iter().filter(|(name, delivery)| is_due(**name, delivery));
        let mut due: Vec<_> = found.map(|(name, delivery)| (delivery.due_at, *name)).collect();
        due.sort();
        due.into_iter().map(|(_, name)| name).collect()
    }

    /// Those that wait and have had no attempt in their present budget.
    pub fn untried(&self) -> Vec<Name> {
        let is_untried = |delivery: &ModelDelivery| {
            delivery.state == DeliveryState::Waiting && delivery.attempts == delivery.attempts_before
        };
        self.deliveries.iter().filter(|(_, delivery)| is_untried(delivery)).map(|(name, _)| *name).collect()
    }

    /// Those whose time may be over.
    pub fn overdue(&self, now: Timestamp) -> Vec<Name> {
        let is_overdue = |delivery: &ModelDelivery| {
            delivery.state == DeliveryState::Waiting && delivery.check_at.is_some_and(|at| at <= now)
        };
        self.deliveries.iter().filter(|(_, delivery)| is_overdue(delivery)).map(|(name, _)| *name).collect()
    }
}

/// The first moment after this one.
fn past(at: Timestamp) -> Timestamp {
    at.checked_add(std::time::Duration::from_millis(1)).expect("in range")
}
