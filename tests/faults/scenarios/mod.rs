//! The scenarios: the faults injected, and what must hold afterwards.

mod bit_flips;
mod clock;
mod clusters;
mod disk_full;
mod freeze;
mod outbox;
mod power;
mod standby;
mod stops;
