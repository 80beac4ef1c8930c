//! Tests of many nodes: real gateway processes on one PostgreSQL, and a receiver
//! that keeps an exact ledger.

#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

#[path = "../servers/mod.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod servers;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "other stories need more of it")]
mod support;

#[allow(dead_code, reason = "tests/faults needs more of it")]
mod audit;
#[allow(dead_code, reason = "tests/faults needs more of it")]
mod ledger;
#[allow(dead_code, reason = "tests/faults needs more of it")]
mod load;
#[allow(dead_code, reason = "tests/faults needs more of it")]
mod nodes;
mod sockets;

mod accept_anywhere;
mod changes;
mod drill;
mod figures;
mod frozen;
mod jobs;
mod joining;
mod keys;
mod limits;
mod live_status;
mod night;
mod node_loss;
mod pooler;
mod test_servers;
mod traces;
mod trouble;
mod upgrading;
