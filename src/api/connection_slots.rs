//! Who holds connections, and who has to give one up.
//!
//! A connection is proven while its last request carried a valid token. Those
//! that are not are counted against their address, which may hold a part of
//! all places and no more; the next ones get a spare place, for one request.
//! A valid token turns a spare place into a usual one, if need be at the cost
//! of an unproven connection that waits for a request. So whoever has no token
//! cannot keep out those who have one, from whichever addresses he comes.
//!
//! Invariant: what decides does so under one lock; a request on a connection
//! that is proven already does not take it.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::origin::Network;
use super::server::ServerLimits;

/// The part of all places that unproven connections of one address may hold.
const PART: usize = 2;
/// Places are scarce when no more than this part of them is free.
const SCARCE: usize = 8;
/// How often unproven connections are looked through while places are scarce.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// Every connection that is open.
pub struct ConnectionSlots {
    limits: ServerLimits,
    began: Instant,
    open: Mutex<OpenConnections>,
    /// Told whenever a connection ends.
    ended: Notify,
}

#[derive(Default)]
struct OpenConnections {
    last_id: u64,
    usual: usize,
    spare: usize,
    unproven: HashMap<Network, usize>,
    entries: HashMap<u64, ConnectionEntry>,
    swept_at: Option<Instant>,
}

struct ConnectionEntry {
    is_spare: bool,
    /// The address it is counted against.
    counted: Option<Network>,
    connection: Arc<ConnectionHandle>,
}

/// One connection, as its task and its requests see it.
struct ConnectionHandle {
    id: u64,
    is_proven: AtomicBool,
    is_spare: AtomicBool,
    /// Whether its address holds too many, so that this answer is its last.
    is_over: AtomicBool,
    /// Since when it waits for a request, in milliseconds; 0 while it has one.
    waiting_since: AtomicU64,
    evicted: Notify,
}

impl ConnectionHandle {
    fn is_waiting(&self) -> bool {
        self.waiting_since.load(Ordering::Relaxed) != 0
    }
}

impl ConnectionSlots {
    /// As many as these limits say.
    pub fn of(limits: ServerLimits) -> Arc<Self> {
        Arc::new(Self { limits, began: Instant::now(), open: Mutex::default(), ended: Notify::new() })
    }

    /// A place for a connection from there; none while even the spare ones are
    /// all being answered on.
    fn try_take(self: &Arc<Self>, from: Option<Network>) -> Option<ConnectionSlot> {
        let mut open = self.lock();
        self.sweep(&mut open);
        let held = from.and_then(|from| open.unproven.get(&from).copied()).unwrap_or(0);
        let is_spare = open.usual >= self.limits.connections || held >= self.part();
        if is_spare && open.spare >= self.limits.spare {
            let oldest = open.longest_waiting(|entry| entry.is_spare)?;
            open.evict(oldest);
        }
        open.last_id += 1;
        let id = open.last_id;
        let connection = Arc::new(ConnectionHandle {
            id,
            is_proven: AtomicBool::new(false),
            is_spare: AtomicBool::new(is_spare),
            is_over: AtomicBool::new(false),
            waiting_since: AtomicU64::new(self.now()),
            evicted: Notify::new(),
        });
        // Spare places are few and short: nobody can hold much by them.
        let counted = from.filter(|_| !is_spare);
        open.add(ConnectionEntry { is_spare, counted, connection: connection.clone() });
        Some(ConnectionSlot(ConnectionStatus { places: self.clone(), connection }))
    }

    /// A place for a connection from there, once there is one.
    pub async fn take(self: &Arc<Self>, from: Option<Network>) -> ConnectionSlot {
        loop {
            let ended = self.ended.notified();
            if let Some(place) = self.try_take(from) {
                return place;
            }
            ended.await;
        }
    }

    fn part(&self) -> usize {
        (self.limits.connections / PART).max(1)
    }

    /// Milliseconds since it began, never 0.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }

    /// Closes what has shown no valid token and waits, once places are scarce.
    fn sweep(&self, open: &mut OpenConnections) {
        let free = self.limits.connections.saturating_sub(open.usual);
        if free > self.limits.connections / SCARCE || open.swept_at.is_some_and(|at| at.elapsed() < SWEEP_EVERY) {
            return;
        }
        open.swept_at = Some(Instant::now());
        let patience = u64::try_from(self.limits.scarce.as_millis()).unwrap_or(u64::MAX);
        let (now, mut idle) = (self.now(), Vec::new());
        for (id, entry) in &open.entries {
            let since = entry.connection.waiting_since.load(Ordering::Relaxed);
            let is_idle = since != 0 && now.saturating_sub(since) >= patience;
            if is_idle && !entry.is_spare && !entry.connection.is_proven.load(Ordering::Relaxed) {
                idle.push(*id);
            }
        }
        for id in idle {
            open.evict(id);
        }
    }
}

impl OpenConnections {
    fn add(&mut self, entry: ConnectionEntry) {
        match entry.is_spare {
            true => self.spare += 1,
            false => self.usual += 1,
        }
        if let Some(network) = entry.counted {
            *self.unproven.entry(network).or_default() += 1;
        }
        self.entries.insert(entry.connection.id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<ConnectionEntry> {
        let entry = self.entries.remove(&id)?;
        match entry.is_spare {
            true => self.spare -= 1,
            false => self.usual -= 1,
        }
        if let Some(network) = entry.counted
            && let Some(held) = self.unproven.get_mut(&network)
        {
            *held -= 1;
            if *held == 0 {
                self.unproven.remove(&network);
            }
        }
        Some(entry)
    }

    /// Makes a connection end; its place is free at once.
    fn evict(&mut self, id: u64) {
        if let Some(entry) = self.remove(id) {
            entry.connection.evicted.notify_one();
        }
    }

    /// The unproven connection that has waited longest for a request.
    fn longest_waiting(&self, is_one: impl Fn(&ConnectionEntry) -> bool) -> Option<u64> {
        let waiting = self.entries.values().filter(|entry| {
            is_one(entry) && entry.connection.is_waiting() && !entry.connection.is_proven.load(Ordering::Relaxed)
        });
        let oldest =
            waiting.min_by_key(|entry| (entry.connection.waiting_since.load(Ordering::Relaxed), entry.connection.id));
        oldest.map(|entry| entry.connection.id)
    }
}

/// What a connection takes up until it ends.
pub struct ConnectionSlot(ConnectionStatus);

impl ConnectionSlot {
    /// What its requests know of it.
    pub fn status(&self) -> ConnectionStatus {
        self.0.clone()
    }

    /// Waits until the connection has to end: others need its place, or it is
    /// spare and its time is over.
    pub async fn evicted_or_expired(&self) {
        let ConnectionStatus { places, connection } = &self.0;
        let evicted = connection.evicted.notified();
        tokio::pin!(evicted);
        let ServerLimits { spare_head, spare_for, .. } = places.limits;
        if connection.is_spare.load(Ordering::Relaxed) {
            let timed_out = async {
                tokio::time::sleep(spare_head).await;
                if !connection.is_waiting() {
                    tokio::time::sleep(spare_for.saturating_sub(spare_head)).await;
                }
            };
            tokio::select! {
                () = &mut evicted => return,
                () = timed_out => {}
            }
            if connection.is_spare.load(Ordering::Relaxed) {
                return;
            }
        }
        evicted.await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let ConnectionStatus { places, connection } = &self.0;
        places.lock().remove(connection.id);
        places.ended.notify_one();
    }
}

/// How the connection of a request stands.
#[derive(Clone)]
pub struct ConnectionStatus {
    places: Arc<ConnectionSlots>,
    connection: Arc<ConnectionHandle>,
}

impl ConnectionStatus {
    /// A request begins.
    pub fn begin(&self) {
        self.connection.waiting_since.store(0, Ordering::Relaxed);
    }

    /// Its answer is known, and the next request is waited for.
    pub fn end(&self) {
        self.connection.waiting_since.store(self.places.now(), Ordering::Relaxed);
    }

    /// Whether it has a spare place, where only health checks are answered.
    pub fn is_spare(&self) -> bool {
        self.connection.is_spare.load(Ordering::Relaxed)
    }

    /// Whether it is to be closed after the answer.
    pub fn is_closing(&self) -> bool {
        self.is_spare() || self.connection.is_over.load(Ordering::Relaxed)
    }

    /// The request carries a valid token. Tells whether it can be served: on a
    /// spare place it is, if a usual one can be had.
    pub fn mark_authenticated(&self) -> bool {
        if self.connection.is_proven.load(Ordering::Relaxed) {
            return true;
        }
        let mut open = self.places.lock();
        if self.is_spare() && open.usual >= self.places.limits.connections {
            let Some(oldest) = open.longest_waiting(|entry| !entry.is_spare) else { return false };
            open.evict(oldest);
        }
        // One that others have taken the place of meanwhile is gone after this answer.
        let Some(entry) = open.remove(self.connection.id) else { return true };
        open.add(ConnectionEntry { is_spare: false, counted: None, ..entry });
        self.connection.is_spare.store(false, Ordering::Relaxed);
        self.connection.is_over.store(false, Ordering::Relaxed);
        self.connection.is_proven.store(true, Ordering::Relaxed);
        true
    }

    /// The request carries no valid token, and comes from there.
    pub fn mark_unauthenticated(&self, from: Option<Network>) {
        let mut open = self.places.lock();
        if self.is_spare() {
            return;
        }
        let Some(entry) = open.remove(self.connection.id) else { return };
        open.add(ConnectionEntry { counted: from, ..entry });
        self.connection.is_proven.store(false, Ordering::Relaxed);
        let held = from.and_then(|from| open.unproven.get(&from).copied()).unwrap_or(0);
        self.connection.is_over.store(held > self.places.part(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::origin::network;

    fn from(address: &str) -> Option<Network> {
        Some(network(address.parse().unwrap()))
    }

    fn places(connections: usize, spare: usize) -> Arc<ConnectionSlots> {
        ConnectionSlots::of(ServerLimits { spare, ..ServerLimits::of(connections) })
    }

    fn take(places: &Arc<ConnectionSlots>, address: &str) -> ConnectionSlot {
        places.try_take(from(address)).expect("a place")
    }

    async fn is_evicted(place: &ConnectionSlot) -> bool {
        tokio::time::timeout(Duration::ZERO, place.0.connection.evicted.notified()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_holds_half_of_the_places_unless_it_shows_tokens() {
        let places = places(8, 2);
        let held: Vec<ConnectionSlot> = (0..4).map(|_| take(&places, "10.0.0.1")).collect();
        assert!(held.iter().all(|place| !place.status().is_spare()));
        assert!(take(&places, "10.0.0.1").status().is_spare());
        assert!(!take(&places, "10.0.0.2").status().is_spare());
        // A token frees the address's share, and losing it takes it up again.
        assert!(held[0].status().mark_authenticated());
        let fifth = take(&places, "10.0.0.1");
        assert!(!fifth.status().is_spare());
        held[0].status().mark_unauthenticated(from("10.0.0.1"));
        assert!(held[0].status().is_closing() && !fifth.status().is_closing());
        drop(fifth);
        held[0].status().mark_unauthenticated(from("10.0.0.1"));
        assert!(!held[0].status().is_closing());
        drop(held);
        let open = places.lock();
        assert!(open.unproven.is_empty() && open.entries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_through_a_proxy_of_ours_is_counted_where_it_comes_from() {
        let places = places(4, 2);
        let held: Vec<ConnectionSlot> = (0..3).map(|_| places.try_take(None).expect("a place")).collect();
        assert!(held.iter().all(|place| !place.status().is_spare()), "the proxy itself is not counted");
        for place in &held {
            place.status().mark_unauthenticated(from("203.0.113.9"));
        }
        let closing: Vec<bool> = held.iter().map(|place| place.status().is_closing()).collect();
        assert_eq!(closing, [false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_valid_token_gets_the_place_of_whoever_waited_longest_without_one() {
        let places = places(2, 2);
        let first = take(&places, "10.0.0.1");
        tokio::time::advance(Duration::from_millis(10)).await;
        let second = take(&places, "10.0.0.2");
        let third = take(&places, "10.0.0.1");
        assert!(third.status().is_spare() && third.status().mark_authenticated() && !third.status().is_spare());
        assert!(is_evicted(&first).await && !is_evicted(&second).await);
        // Who is being answered is not cut off, and who has shown a token stays.
        second.status().begin();
        let fourth = take(&places, "10.0.0.3");
        assert!(!fourth.status().mark_authenticated() && fourth.status().is_spare());
        second.status().end();
        assert!(fourth.status().mark_authenticated() && is_evicted(&second).await);
        let fifth = take(&places, "10.0.0.4");
        assert!(!fifth.status().mark_authenticated(), "all places are held with tokens");
        let counts = || {
            let open = places.lock();
            (open.usual, open.spare)
        };
        assert_eq!(counts(), (2, 1));
        drop((first, second, third, fourth, fifth));
        assert_eq!(counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_spare_place_goes_to_the_newest_and_the_one_that_waited_longest_ends() {
        let places = places(1, 2);
        let _usual = take(&places, "10.0.0.1");
        let first = take(&places, "10.0.0.1");
        let second = take(&places, "10.0.0.1");
        second.status().begin();
        let third = take(&places, "10.0.0.2");
        assert!(is_evicted(&first).await && !is_evicted(&second).await);
        third.status().begin();
        assert!(places.try_take(from("10.0.0.3")).is_none(), "both are being answered on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_spare_connection_without_a_request_ends_sooner_than_one_with_one() {
        let places = places(1, 4);
        let _usual = take(&places, "10.0.0.1");
        let ServerLimits { spare_head, spare_for, .. } = places.limits;
        let silent = take(&places, "10.0.0.1");
        let began = Instant::now();
        silent.evicted_or_expired().await;
        assert_eq!(began.elapsed(), spare_head);
        let asking = take(&places, "10.0.0.1");
        asking.status().begin();
        let began = Instant::now();
        asking.evicted_or_expired().await;
        assert_eq!(began.elapsed(), spare_for);
        let proven = take(&places, "10.0.0.1");
        assert!(proven.status().mark_authenticated());
        let lasting = tokio::time::timeout(Duration::from_secs(3_600), proven.evicted_or_expired()).await;
        assert!(lasting.is_err(), "a valid token made it a usual one");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_without_a_token_end_early_once_places_are_scarce() {
        let places = places(8, 2);
        let idle = take(&places, "10.0.0.1");
        let proven = take(&places, "10.0.0.1");
        assert!(proven.status().mark_authenticated());
        tokio::time::advance(Duration::from_secs(5)).await;
        let others: Vec<ConnectionSlot> = (3..8).map(|n| take(&places, &format!("10.0.0.{n}"))).collect();
        assert!(!is_evicted(&idle).await, "there is room for all");
        let _next = take(&places, "10.0.0.8");
        assert!(is_evicted(&idle).await && !is_evicted(&proven).await);
        for place in &others {
            assert!(!is_evicted(place).await, "it has only just come");
        }
    }
}
