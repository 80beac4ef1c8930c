//! Posthaste delivers webhooks: it takes an event once, keeps it durably and
//! delivers it signed, in order and calmly.
//!
//! The modules in reading order. Imports go one way:
//! `main → cli → app → api → lifecycle → store → model`.

// What things are.
pub mod model;

// Where facts rest, what is counted, and the only place that reads the clock.
pub mod clock;
pub mod metrics;
pub mod store;

// How an event moves.
pub mod lifecycle;

// Doors.
pub mod api;
pub mod cli;

// What joins it all.
pub mod app;
pub mod config;
pub mod telemetry;
