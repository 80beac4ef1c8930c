//! Posthaste delivers webhooks: it accepts an event once, stores it durably and
//! delivers it signed, in order and at a rate its receiver can take.
//!
//! The modules are listed in reading order. Imports go one way:
//! `main → cli → app → dashboard → api → lifecycle → store → model`.

// Types and rules, without I/O.
pub mod model;

// Storage, metrics, and the only place that reads the clock.
pub mod clock;
pub mod metrics;
pub mod store;

// Accepting, dispatching and delivering events.
pub mod lifecycle;

// The HTTP API, the pages for people, and the command line.
pub mod api;
pub mod cli;
pub mod dashboard;

// Start and stop, settings and logging.
pub mod app;
pub mod config;
pub mod telemetry;
