//! Stories of many nodes: real gateway processes on one PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

#[path = "../ground/mod.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod ground;

mod footing;
