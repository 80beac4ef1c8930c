//! Assigns slots to connections, and decides which connection has to close.
//!
//! A connection is authenticated while its last request carried a valid token.
//! Unauthenticated connections are counted against their address, which may hold
//! half of all slots; further ones get a spare slot, for one request. A request
//! with a valid token moves its connection from a spare slot to a regular one,
//! if need be by closing an unauthenticated connection that waits for a request.
//! So clients without a token cannot keep out those with one, from however many
//! addresses they come.
//!
//! Invariant: every decision is made under one lock; a request on a connection
//! that is already authenticated does not take it.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::origin::Network;
use super::server_limits::ServerLimits;

/// Divisor of all slots that gives the share of one address's unauthenticated
/// connections.
const ADDRESS_SHARE_DIVISOR: usize = 2;
/// Divisor of all slots: slots are scarce when no more than this share is free.
const SCARCE_DIVISOR: usize = 8;
/// Shortest time between two sweeps for idle connections while slots are scarce.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The slots of a server, and every open connection.
pub struct ConnectionSlots {
    limits: ServerLimits,
    began: Instant,
    open: Mutex<OpenConnections>,
    /// Notified whenever a connection ends.
    ended: Notify,
}

#[derive(Default)]
struct OpenConnections {
    last_id: u64,
    regular: usize,
    spare: usize,
    /// Unauthenticated connections in regular slots, by address.
    unauthenticated: HashMap<Network, usize>,
    entries: HashMap<u64, ConnectionEntry>,
    swept_at: Option<Instant>,
}

struct ConnectionEntry {
    is_spare: bool,
    /// Address that the connection is counted against.
    counted_for: Option<Network>,
    connection: Arc<ConnectionHandle>,
}

/// One connection, shared by its task and its requests.
struct ConnectionHandle {
    id: u64,
    is_authenticated: AtomicBool,
    is_spare: AtomicBool,
    /// Whether its address holds too many slots, so that it closes after the
    /// present response.
    is_over_share: AtomicBool,
    /// Time since which it waits for a request, in milliseconds after
    /// [`ConnectionSlots::began`]; 0 while it has one.
    waiting_since: AtomicU64,
    evicted: Notify,
}

impl ConnectionHandle {
    fn is_waiting(&self) -> bool {
        self.waiting_since.load(Ordering::Relaxed) != 0
    }
}

impl ConnectionSlots {
    /// Returns the slots of a server with these limits.
    pub fn of(limits: ServerLimits) -> Arc<Self> {
        Arc::new(Self { limits, began: Instant::now(), open: Mutex::default(), ended: Notify::new() })
    }

    /// Takes a slot for a connection from this address; none while every spare
    /// slot has a request open.
    fn try_take(self: &Arc<Self>, from: Option<Network>) -> Option<ConnectionSlot> {
        let mut open = self.lock();
        self.close_unauthenticated(&mut open);
        let count = from.and_then(|from| open.unauthenticated.get(&from).copied()).unwrap_or(0);
        let is_spare = open.regular >= self.limits.connections || count >= self.address_share();
        if is_spare && open.spare >= self.limits.spare {
            let oldest = open.longest_waiting(|entry| entry.is_spare)?;
            open.evict(oldest);
        }
        open.last_id += 1;
        let id = open.last_id;
        let connection = Arc::new(ConnectionHandle {
            id,
            is_authenticated: AtomicBool::new(false),
            is_spare: AtomicBool::new(is_spare),
            is_over_share: AtomicBool::new(false),
            waiting_since: AtomicU64::new(self.elapsed_ms()),
            evicted: Notify::new(),
        });
        // Spare slots are few and held for a short time, so they are not counted by address.
        let counted_for = from.filter(|_| !is_spare);
        open.add(ConnectionEntry { is_spare, counted_for, connection: connection.clone() });
        Some(ConnectionSlot(ConnectionStatus { slots: self.clone(), connection }))
    }

    /// Takes a slot for a connection from this address, and waits until there is
    /// one.
    pub async fn take(self: &Arc<Self>, from: Option<Network>) -> ConnectionSlot {
        loop {
            let ended = self.ended.notified();
            if let Some(slot) = self.try_take(from) {
                return slot;
            }
            ended.await;
        }
    }

    fn address_share(&self) -> usize {
        (self.limits.connections / ADDRESS_SHARE_DIVISOR).max(1)
    }

    /// Returns the milliseconds since the server began, never 0.
    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }

    /// Closes unauthenticated connections that have waited too long for a request,
    /// while slots are scarce.
    fn close_unauthenticated(&self, open: &mut OpenConnections) {
        let free = self.limits.connections.saturating_sub(open.regular);
        if free > self.limits.connections / SCARCE_DIVISOR
            || open.swept_at.is_some_and(|at| at.elapsed() < SWEEP_INTERVAL)
        {
            return;
        }
        open.swept_at = Some(Instant::now());
        let timeout = u64::try_from(self.limits.scarce.as_millis()).unwrap_or(u64::MAX);
        let (now, mut idle) = (self.elapsed_ms(), Vec::new());
        for (id, entry) in &open.entries {
            let since = entry.connection.waiting_since.load(Ordering::Relaxed);
            let is_idle = since != 0 && now.saturating_sub(since) >= timeout;
            if is_idle && !entry.is_spare && !entry.connection.is_authenticated.load(Ordering::Relaxed) {
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
        if entry.is_spare {
            self.spare += 1;
        } else {
            self.regular += 1;
        }
        if let Some(network) = entry.counted_for {
            *self.unauthenticated.entry(network).or_default() += 1;
        }
        self.entries.insert(entry.connection.id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<ConnectionEntry> {
        let entry = self.entries.remove(&id)?;
        if entry.is_spare {
            self.spare -= 1;
        } else {
            self.regular -= 1;
        }
        if let Some(network) = entry.counted_for
            && let Some(count) = self.unauthenticated.get_mut(&network)
        {
            *count -= 1;
            if *count == 0 {
                self.unauthenticated.remove(&network);
            }
        }
        Some(entry)
    }

    /// Makes a connection end and frees its slot at once.
    fn evict(&mut self, id: u64) {
        if let Some(entry) = self.remove(id) {
            entry.connection.evicted.notify_one();
        }
    }

    /// Returns the unauthenticated connection that has waited longest for a
    /// request, of those that `is_candidate` selects.
    fn longest_waiting(&self, is_candidate: impl Fn(&ConnectionEntry) -> bool) -> Option<u64> {
        let waiting = self.entries.values().filter(|entry| {
            is_candidate(entry)
                && entry.connection.is_waiting()
                && !entry.connection.is_authenticated.load(Ordering::Relaxed)
        });
        let oldest =
            waiting.min_by_key(|entry| (entry.connection.waiting_since.load(Ordering::Relaxed), entry.connection.id));
        oldest.map(|entry| entry.connection.id)
    }
}

/// The slot that a connection holds until it is dropped.
pub struct ConnectionSlot(ConnectionStatus);

impl ConnectionSlot {
    /// Returns the status of the connection, for its requests.
    pub fn status(&self) -> ConnectionStatus {
        self.0.clone()
    }

    /// Waits until the connection has to end: another needs its slot, or the slot
    /// is spare and its time is over.
    pub async fn evicted_or_expired(&self) {
        let ConnectionStatus { slots, connection } = &self.0;
        let evicted = connection.evicted.notified();
        tokio::pin!(evicted);
        let ServerLimits { spare_head, spare_for, .. } = slots.limits;
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
        let ConnectionStatus { slots, connection } = &self.0;
        slots.lock().remove(connection.id);
        slots.ended.notify_one();
    }
}

/// The connection of a request: its slot, and whether it is authenticated.
#[derive(Clone)]
pub struct ConnectionStatus {
    slots: Arc<ConnectionSlots>,
    connection: Arc<ConnectionHandle>,
}

impl ConnectionStatus {
    /// Marks the beginning of a request.
    pub fn begin_request(&self) {
        self.connection.waiting_since.store(0, Ordering::Relaxed);
    }

    /// Marks the end of a request; the connection waits for the next one.
    pub fn end_request(&self) {
        self.connection.waiting_since.store(self.slots.elapsed_ms(), Ordering::Relaxed);
    }

    /// Whether the connection has a spare slot, where only health checks are
    /// answered.
    pub fn is_spare(&self) -> bool {
        self.connection.is_spare.load(Ordering::Relaxed)
    }

    /// Whether the connection is closed after the present response.
    pub fn is_closing(&self) -> bool {
        self.is_spare() || self.connection.is_over_share.load(Ordering::Relaxed)
    }

    /// Marks the connection as authenticated. Returns whether the request can be
    /// served: from a spare slot it can if a regular slot is free or can be freed.
    pub fn mark_authenticated(&self) -> bool {
        if self.connection.is_authenticated.load(Ordering::Relaxed) {
            return true;
        }
        let mut open = self.slots.lock();
        if self.is_spare() && open.regular >= self.slots.limits.connections {
            let Some(oldest) = open.longest_waiting(|entry| !entry.is_spare) else { return false };
            open.evict(oldest);
        }
        // A connection that was evicted meanwhile ends after this response.
        let Some(entry) = open.remove(self.connection.id) else { return true };
        open.add(ConnectionEntry { is_spare: false, counted_for: None, ..entry });
        self.connection.is_spare.store(false, Ordering::Relaxed);
        self.connection.is_over_share.store(false, Ordering::Relaxed);
        self.connection.is_authenticated.store(true, Ordering::Relaxed);
        true
    }

    /// Marks the connection as unauthenticated, and counts it against the address.
    pub fn mark_unauthenticated(&self, from: Option<Network>) {
        let mut open = self.slots.lock();
        if self.is_spare() {
            return;
        }
        let Some(entry) = open.remove(self.connection.id) else { return };
        open.add(ConnectionEntry { counted_for: from, ..entry });
        self.connection.is_authenticated.store(false, Ordering::Relaxed);
        let count = from.and_then(|from| open.unauthenticated.get(&from).copied()).unwrap_or(0);
        self.connection.is_over_share.store(count > self.slots.address_share(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::origin::network;

    fn from(address: &str) -> Option<Network> {
        Some(network(address.parse().unwrap()))
    }

    fn slots(connections: usize, spare: usize) -> Arc<ConnectionSlots> {
        ConnectionSlots::of(ServerLimits { spare, ..ServerLimits::of(connections) })
    }

    fn take(slots: &Arc<ConnectionSlots>, address: &str) -> ConnectionSlot {
        slots.try_take(from(address)).expect("a slot")
    }

    async fn is_evicted(slot: &ConnectionSlot) -> bool {
        tokio::time::timeout(Duration::ZERO, slot.0.connection.evicted.notified()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_holds_half_of_the_places_unless_it_shows_tokens() {
        let slots = slots(8, 2);
        let taken: Vec<ConnectionSlot> = (0..4).map(|_| take(&slots, "10.0.0.1")).collect();
        assert!(taken.iter().all(|slot| !slot.status().is_spare()));
        assert!(take(&slots, "10.0.0.1").status().is_spare());
        assert!(!take(&slots, "10.0.0.2").status().is_spare());
        // A valid token frees a slot of the address's share; a request without one takes it up again.
        assert!(taken[0].status().mark_authenticated());
        let fifth = take(&slots, "10.0.0.1");
        assert!(!fifth.status().is_spare());
        taken[0].status().mark_unauthenticated(from("10.0.0.1"));
        assert!(taken[0].status().is_closing() && !fifth.status().is_closing());
        drop(fifth);
        taken[0].status().mark_unauthenticated(from("10.0.0.1"));
        assert!(!taken[0].status().is_closing());
        drop(taken);
        let open = slots.lock();
        assert!(open.unauthenticated.is_empty() && open.entries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_through_a_proxy_of_ours_is_counted_where_it_comes_from() {
        let slots = slots(4, 2);
        let taken: Vec<ConnectionSlot> = (0..3).map(|_| slots.try_take(None).expect("a slot")).collect();
        assert!(taken.iter().all(|slot| !slot.status().is_spare()), "the proxy itself is not counted");
        for slot in &taken {
            slot.status().mark_unauthenticated(from("203.0.113.9"));
        }
        let closing: Vec<bool> = taken.iter().map(|slot| slot.status().is_closing()).collect();
        assert_eq!(closing, [false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_valid_token_gets_the_place_of_whoever_waited_longest_without_one() {
        let slots = slots(2, 2);
        let first = take(&slots, "10.0.0.1");
        tokio::time::advance(Duration::from_millis(10)).await;
        let second = take(&slots, "10.0.0.2");
        let third = take(&slots, "10.0.0.1");
        assert!(third.status().is_spare() && third.status().mark_authenticated() && !third.status().is_spare());
        assert!(is_evicted(&first).await && !is_evicted(&second).await);
        // A connection with an open request is not cut off, and an authenticated one stays.
        second.status().begin_request();
        let fourth = take(&slots, "10.0.0.3");
        assert!(!fourth.status().mark_authenticated() && fourth.status().is_spare());
        second.status().end_request();
        assert!(fourth.status().mark_authenticated() && is_evicted(&second).await);
        let fifth = take(&slots, "10.0.0.4");
        assert!(!fifth.status().mark_authenticated(), "all slots are held with tokens");
        let counts = || {
            let open = slots.lock();
            (open.regular, open.spare)
        };
        assert_eq!(counts(), (2, 1));
        drop((first, second, third, fourth, fifth));
        assert_eq!(counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_spare_place_goes_to_the_newest_and_the_one_that_waited_longest_ends() {
        let slots = slots(1, 2);
        let _regular = take(&slots, "10.0.0.1");
        let first = take(&slots, "10.0.0.1");
        let second = take(&slots, "10.0.0.1");
        second.status().begin_request();
        let third = take(&slots, "10.0.0.2");
        assert!(is_evicted(&first).await && !is_evicted(&second).await);
        third.status().begin_request();
        assert!(slots.try_take(from("10.0.0.3")).is_none(), "both are being answered on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_spare_connection_without_a_request_ends_sooner_than_one_with_one() {
        let slots = slots(1, 4);
        let _regular = take(&slots, "10.0.0.1");
        let ServerLimits { spare_head, spare_for, .. } = slots.limits;
        let silent = take(&slots, "10.0.0.1");
        let began = Instant::now();
        silent.evicted_or_expired().await;
        assert_eq!(began.elapsed(), spare_head);
        let asking = take(&slots, "10.0.0.1");
        asking.status().begin_request();
        let began = Instant::now();
        asking.evicted_or_expired().await;
        assert_eq!(began.elapsed(), spare_for);
        let authenticated = take(&slots, "10.0.0.1");
        assert!(authenticated.status().mark_authenticated());
        let lasting = tokio::time::timeout(Duration::from_secs(3_600), authenticated.evicted_or_expired()).await;
        assert!(lasting.is_err(), "a valid token made it a regular one");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_without_a_token_end_early_once_places_are_scarce() {
        let slots = slots(8, 2);
        let idle = take(&slots, "10.0.0.1");
        let authenticated = take(&slots, "10.0.0.1");
        assert!(authenticated.status().mark_authenticated());
        tokio::time::advance(Duration::from_secs(5)).await;
        let others: Vec<ConnectionSlot> = (3..8).map(|n| take(&slots, &format!("10.0.0.{n}"))).collect();
        assert!(!is_evicted(&idle).await, "there is room for all");
        let _next = take(&slots, "10.0.0.8");
        assert!(is_evicted(&idle).await && !is_evicted(&authenticated).await);
        for slot in &others {
            assert!(!is_evicted(slot).await, "it has only just come");
        }
    }
}
