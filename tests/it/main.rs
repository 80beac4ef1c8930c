//! Stories a user would tell: a real gateway process, real receivers, real
//! sockets, real signals.

#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod support;

mod accept;
mod backlog;
mod bad_input;
mod breaker;
mod bytes;
mod caps;
mod cli;
mod crash;
mod dead_letters;
mod explain;
mod failures;
mod fair;
mod intake;
mod lanes;
mod listen;
mod load;
mod mail;
mod metrics;
mod pause;
mod rates;
mod retry;
mod signatures;
mod start_stop;
mod tls;
mod told;
mod verdicts;
