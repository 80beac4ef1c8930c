//! The scenarios: the faults injected, and what must hold afterwards.

mod bits;
mod clock;
mod clusters;
mod freeze;
mod power;
mod room;
mod standby;
mod stops;
