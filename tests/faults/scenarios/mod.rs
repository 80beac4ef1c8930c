//! What is done to a gateway, and what must hold then.

mod power;
mod stops;
