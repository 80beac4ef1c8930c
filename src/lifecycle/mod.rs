//! Moves an event from acceptance to the end of its deliveries, in this order.
//!
//! ```text
//! accept ──► dispatch ──► deliver (sign, egress, send) ──► judge ──► settle
//!               ▲                                                     │
//!               ├──── waiting again ◄────────────────────────────────┤
//!               └──── change: retry, cancel, replay, discard          └─► delivered, dead
//! ```
//!
//! The other modules:
//!
//! - [`intake`], [`storage_admission`] and [`disk_space`] limit what is accepted;
//! - [`expire`] ends deliveries that waited too long, [`retention`] deletes what
//!   has been kept long enough, [`scrub`] finds damaged events;
//! - [`jobs`] makes one change of many deliveries, a step at a time, and [`purge`]
//!   deletes all that is stored of a tenant;
//! - [`self_test`] sends an event the whole way once a minute;
//! - [`attention`] collects what is not plainly well, and [`health_table`] what
//!   the health table is made of;
//! - [`store_gauges`] measures the whole store now and then;
//! - [`figures`] writes what happened, by endpoint and time, and
//!   [`figure_series`] reads it;
//! - [`notifier`] counts what happened and writes to the owners of endpoints
//!   through [`mail`];
//! - [`traces`] makes the spans of events and exports them;
//! - [`outbox`] relays what producers wrote into outboxes of their own;
//! - [`egress`] decides which addresses may be called;
//! - [`links`] lets receivers fetch the data of thin events;
//! - [`waiting`] and [`explain`] say what a delivery waits for and why;
//! - [`cluster`] applies what other nodes report, [`live_status`] reads what they
//!   publish, [`node_questions`] asks them, and [`shared_answers`] remembers for a second.
//!
//! Everything here relies only on what the traits of [`crate::store`] promise,
//! and can run against a scripted [`deliver::send::Sender`] in simulated time.

use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;

use self::admin_token::AdminToken;
use self::deliver::DeliveryContext;
use self::disk_space::DiskSpace;
use self::dispatch::Dispatcher;
use self::intake::Intake;
use self::mail::MailQueue;
use self::shared_answers::SharedAnswers;
use crate::metrics::Metrics;
use crate::model::rate::Rate;
use crate::model::tenant::Tenant;

pub mod accept;
pub mod admin_token;
pub mod attention;
pub mod backups;
mod catch_panic;
pub mod change;
pub mod cluster;
pub mod deliver;
pub mod disk_space;
pub mod dispatch;
pub mod egress;
pub mod expire;
pub mod expiry_schedule;
pub mod explain;
pub mod figure_series;
pub mod figures;
pub mod health_table;
pub mod intake;
pub mod jobs;
pub mod linked_data;
pub mod links;
pub mod live_status;
pub mod mail;
pub mod node_questions;
pub mod notifier;
pub mod outbox;
pub mod publish_status;
pub mod purge;
pub mod retention;
pub mod scrub;
pub mod self_test;
pub mod share_accept_delays;
pub mod shared_answers;
pub mod signature_check;
pub mod storage_admission;
pub mod store_gauges;
pub mod tail;
pub mod traces;
pub mod waiting;

/// The parts of a running gateway that the API and the background tasks share. Those
/// that deliveries are made with, such as the store and the clock, are reached through
/// `Deref`, as if they were fields of its own.
pub struct Gateway {
    /// Parts that deliveries are made with.
    pub context: Arc<DeliveryContext>,
    /// Dispatcher that starts attempts.
    pub dispatcher: Dispatcher,
    /// Free space of the disk that holds the store.
    pub space: DiskSpace,
    /// Queue of mails to the owners of endpoints.
    pub mail: MailQueue,
    /// Limits on incoming requests.
    pub intake: Intake,
    /// Admin token in force on this node.
    pub admin: AdminToken,
    /// Networks that receivers see this node call from; none if that is not known.
    pub called_from: Vec<IpNet>,
    /// What other nodes answered a moment ago.
    pub answers: SharedAnswers,
    /// Metrics of this node.
    pub metrics: Arc<Metrics>,
}

impl Deref for Gateway {
    type Target = DeliveryContext;

    fn deref(&self) -> &DeliveryContext {
        &self.context
    }
}

impl Gateway {
    /// Returns how fast a tenant may submit events through this node.
    pub fn ingest_rate(&self, tenant: &Tenant) -> Rate {
        self.rate_here(tenant.quota.ingest)
    }

    /// Returns how fast a tenant's tokens may make other calls through this node.
    pub fn management_rate(&self, tenant: &Tenant) -> Rate {
        self.rate_here(tenant.limits.management)
    }

    /// Returns this node's part of a rate. Every node has the same part,
    /// because load balancers spread requests evenly; all nodes together
    /// never exceed the whole rate.
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
