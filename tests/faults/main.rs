//! Tests with faults injected into real processes and files: kills, power cuts,
//! failing disks, damaged bits, freezes, clocks that jump, networks that break.
//!
//! Each scenario runs for some seconds from a random seed, which it prints.
//! `./check faults --minutes N --seed S` chooses both, `--scenario outbox` one file. The seed decides which
//! faults come when; what the machine does meanwhile is its own.

#![allow(clippy::unwrap_used, reason = "a scenario that cannot go on has failed")]

#[path = "../servers/mod.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod servers;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "other stories need more of it")]
mod support;

#[path = "../cluster/audit.rs"]
mod audit;
#[path = "../cluster/ledger.rs"]
#[allow(dead_code, reason = "other stories need more of it")]
mod ledger;
#[path = "../cluster/load.rs"]
#[allow(dead_code, reason = "other stories need more of it")]
mod load;
#[path = "../cluster/nodes.rs"]
#[allow(dead_code, reason = "other stories need more of it")]
mod nodes;
#[path = "../cluster/sockets.rs"]
mod sockets;

mod outbox_processes;
mod recording;
mod report;
mod restarting_gateway;
mod run;
mod scenarios;
mod shim;
