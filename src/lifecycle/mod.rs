//! How an event moves, in this order.
//!
//! ```text
//! accept ──► dispatch ──► deliver (sign, egress, send) ──► judge ──► settle
//!               ▲                                                     │
//!               ├──── waiting again ◄────────────────────────────────┤
//!               └──── change: retry, cancel, replay, discard          └─► delivered, dead
//! ```
//!
//! Beside it: [`intake`] says how much may come in, [`expire`] ends what waits
//! too long, [`retain`] forgets what is over, [`scrub`] looks for damage, [`tell`] counts and writes to the
//! owners of endpoints by [`mail`], [`egress`] says who may be called, [`links`]
//! lets receivers fetch what they were told of alone, [`waiting`] and [`explain`] say why
//! something stands where it stands, [`cluster`] listens to other nodes, [`felt`]
//! asks them.
//!
//! Everything here works on the [`crate::store`]'s promises and may run
//! against a scripted [`deliver::send::Sender`] in simulated time.

use std::sync::Arc;

use self::disk_space::DiskSpace;
use self::dispatch::Dispatcher;
use self::expire::ExpirySchedule;
use self::intake::Intake;
use self::links::Links;
use self::mail::MailQueue;
use self::notifier::Notifier;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::model::rate::Rate;
use crate::model::tenant::Tenant;
use crate::store::Store;

pub mod accept;
pub mod change;
pub mod cluster;
pub mod deliver;
pub mod disk_space;
pub mod dispatch;
pub mod egress;
pub mod expire;
pub mod explain;
pub mod intake;
pub mod links;
pub mod live_status;
pub mod mail;
pub mod notifier;
pub mod publish_status;
pub mod retention;
pub mod scrub;
pub mod storage_admission;
pub mod waiting;

/// What every door works with.
pub struct Gateway {
    /// Where facts rest.
    pub store: Arc<dyn Store>,
    /// What starts attempts.
    pub dispatcher: Dispatcher,
    /// What knows whose time is over.
    pub expiry: Arc<ExpirySchedule>,
    /// What tells the time.
    pub clock: Arc<dyn Clock>,
    /// Whether there is room for more.
    pub space: DiskSpace,
    /// What writes to the owners of endpoints.
    pub mail: MailQueue,
    /// What counts and tells.
    pub notifier: Notifier,
    /// How much may come in.
    pub intake: Intake,
    /// What makes the links of thin events, and knows them again.
    pub links: Arc<Links>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Gateway {
    /// How fast a tenant may hand events in through this node.
    pub fn ingest_rate(&self, tenant: &Tenant) -> Rate {
        self.rate_here(tenant.quota.ingest)
    }

    /// How fast a tenant's tokens may make other calls through this node.
    pub fn management_rate(&self, tenant: &Tenant) -> Rate {
        self.rate_here(tenant.limits.management)
    }

    /// This node's part of a rate. All nodes together let in no more than the
    /// whole: each has the same part of it, since whatever spreads requests
    /// over nodes does so evenly.
    fn rate_here(&self, rate: Rate) -> Rate {
        match self.store.nodes() {
            1 => rate,
            nodes => Rate {
                per_second: rate.per_second / nodes as f64,
                burst: u32::try_from(rate.burst as usize / nodes).unwrap_or(1).max(1),
            },
        }
    }
}
