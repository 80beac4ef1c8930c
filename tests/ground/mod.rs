//! The ground that tests on PostgreSQL stand on: a throwaway server, a pooler
//! and a proxy between them and the gateway.

pub mod guard;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
