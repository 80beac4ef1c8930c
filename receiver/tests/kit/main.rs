//! What the receiver kit promises: signatures, exactly one effect per event, in
//! order per key, and the answers that a gateway gets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod concurrent;
#[path = "../../examples/service.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod example;
mod http_answers;
mod inboxes;
#[path = "../../../tests/servers/mod.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod servers;
mod shuffled;
mod signed;
mod single_events;
mod verify;
