//! The steps that bring the schema of each store to this version, in their order.
//!
//! A step that was released is never changed; what comes later is a new step.
//! A column that both stores get is one step in each list.

/// Steps of the embedded store. Their number is the version of its schema.
pub const EMBEDDED: &[&str] = &[
    include_str!("embedded/migrations/0001.sql"),
    include_str!("embedded/migrations/0002.sql"),
    include_str!("embedded/migrations/0003.sql"),
    include_str!("embedded/migrations/0004.sql"),
    include_str!("embedded/migrations/0005.sql"),
    include_str!("embedded/migrations/0006.sql"),
    include_str!("embedded/migrations/0007.sql"),
    include_str!("embedded/migrations/0008.sql"),
    include_str!("embedded/migrations/0009.sql"),
    include_str!("embedded/migrations/0010.sql"),
    include_str!("embedded/migrations/0011.sql"),
    include_str!("embedded/migrations/0012.sql"),
    include_str!("embedded/migrations/0013.sql"),
    include_str!("embedded/migrations/0014.sql"),
    include_str!("embedded/migrations/0015.sql"),
];

/// Steps of the store in PostgreSQL.
pub const POSTGRES: &[&str] = &[
    include_str!("postgres/migrations/0001.sql"),
    include_str!("postgres/migrations/0002.sql"),
    include_str!("postgres/migrations/0003.sql"),
    include_str!("postgres/migrations/0004.sql"),
    include_str!("postgres/migrations/0005.sql"),
    include_str!("postgres/migrations/0006.sql"),
    include_str!("postgres/migrations/0007.sql"),
    include_str!("postgres/migrations/0008.sql"),
    include_str!("postgres/migrations/0009.sql"),
    include_str!("postgres/migrations/0010.sql"),
    include_str!("postgres/migrations/0011.sql"),
    include_str!("postgres/migrations/0012.sql"),
    include_str!("postgres/migrations/0013.sql"),
    include_str!("postgres/migrations/0014.sql"),
    include_str!("postgres/migrations/0015.sql"),
];
