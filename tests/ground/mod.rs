//! The ground that tests on PostgreSQL stand on: a throwaway server, a pooler
//! and a proxy between them and the gateway.

mod guard;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;

pub use guard::free_port;
