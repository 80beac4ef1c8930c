//! The steps that bring the schema of each store to this version, in their order.
//!
//! A step that was released is never changed; what comes later is a new step.
//! A column that both stores get is one step in each list.
//!
//! Invariant: from 0.2.0 on, a step takes as long on a large store as on an empty one.

/// Last step of the embedded store that takes longer the more rows there are: it is part of
/// 0.2.0, which is upgraded to with a stop. `tests/tidy` looks at those behind it.
pub const LAST_SLOW_EMBEDDED_STEP: usize = 17;
/// The same of the store in PostgreSQL.
pub const LAST_SLOW_POSTGRES_STEP: usize = 18;

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
    include_str!("embedded/migrations/0016.sql"),
    include_str!("embedded/migrations/0017.sql"),
    include_str!("embedded/migrations/0018.sql"),
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
    include_str!("postgres/migrations/0016.sql"),
    include_str!("postgres/migrations/0017.sql"),
    include_str!("postgres/migrations/0018.sql"),
];
