//! How an event moves, in this order.
//!
//! ```text
//! accept ──► dispatch ──► deliver (sign, guard, send) ──► judge ──► settle
//!               ▲                                                     │
//!               ├──── waiting again ◄────────────────────────────────┤
//!               └──── change: retry, cancel, replay, discard          └─► delivered, dead
//! ```
//!
//! Everything here works on the [`crate::store`]'s promises and may run
//! against a scripted [`deliver::send::Sender`] in simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::dispatch::Dispatcher;
use crate::clock::Clock;
use crate::store::Store;

pub mod accept;
pub mod change;
pub mod deliver;
pub mod dispatch;
pub mod retain;
pub mod waiting;

/// What every door works with.
pub struct Gateway {
    /// Where facts rest.
    pub store: Arc<dyn Store>,
    /// What starts attempts.
    pub dispatcher: Dispatcher,
    /// What tells the time.
    pub clock: Arc<dyn Clock>,
    is_disk_low: AtomicBool,
}

impl Gateway {
    /// Joins the parts.
    pub fn new(store: Arc<dyn Store>, dispatcher: Dispatcher, clock: Arc<dyn Clock>) -> Self {
        Self { store, dispatcher, clock, is_disk_low: AtomicBool::new(false) }
    }

    /// Tells whether the disk's last reserve is all that is left. Events are
    /// refused then, so that deliveries can still be recorded.
    pub fn set_disk_low(&self, is_low: bool) {
        self.is_disk_low.store(is_low, Ordering::Relaxed);
    }

    fn is_disk_low(&self) -> bool {
        self.is_disk_low.load(Ordering::Relaxed)
    }
}
