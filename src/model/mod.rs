//! Types and rules of the gateway: pure, without I/O, clock, randomness or async.

pub mod checksum;
pub mod id;
pub mod size;
pub mod span;
pub mod wall_offset;

pub mod database;
pub mod egress;
pub mod endpoint;
pub mod endpoint_event;
pub mod event;
pub mod filter;
pub mod headers;
pub mod invalid_setting;
pub mod limits;
pub mod mail;
pub mod named_enum;
pub mod tenant;

pub mod answer;
pub mod attempt;
pub mod blocker;
pub mod breaker;
pub mod dead_letter_group;
pub mod delivery;
pub mod delivery_filter;
pub mod explain;
pub mod health;
pub mod job;
pub mod next_state;
pub mod operational_event;
pub mod parse_fault;
pub mod pointer;
pub mod policy;
pub mod preset;
pub mod preview;
pub mod rate;
pub mod retry_after;
pub mod retry_spec;
pub mod rfc3339;
pub mod setting_in_force;
pub mod signing;
pub mod status_rules;
pub mod suggested_command;
pub mod tls;
pub mod url_versions;
pub mod verdict;

pub mod shard;

pub mod audit;
pub mod token;
