//! What is done to a gateway, and what must hold then.

mod bits;
mod clock;
mod clusters;
mod freeze;
mod power;
mod room;
mod standby;
mod stops;
