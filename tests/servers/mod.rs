//! Servers that tests on PostgreSQL need: a throwaway PostgreSQL, a pooler, and
//! a proxy between the gateway and the database.

pub mod guard;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
