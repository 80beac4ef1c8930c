//! What things are: pure, without I/O, clock, randomness or async.

pub mod checksum;
pub mod id;
pub mod size;
pub mod span;
pub mod wall;

pub mod database;
pub mod egress;
pub mod endpoint;
pub mod event;
pub mod filter;
pub mod headers;
pub mod limits;
pub mod mail;
pub mod tenant;

pub mod attempt;
pub mod breaker;
pub mod delivery;
pub mod explain;
pub mod health;
pub mod news;
pub mod next;
pub mod pace;
pub mod pointer;
pub mod policy;
pub mod preset;
pub mod preview;
pub mod retry_after;
pub mod rules;
pub mod signing;
pub mod tls;
pub mod urls;
pub mod verdict;

pub mod shard;

pub mod audit;
pub mod token;
