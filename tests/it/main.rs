//! Stories a user would tell: a real gateway process, real receivers, real
//! sockets, real signals.

#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

/// Makes each story a test on each store: the gateway it starts keeps its facts
/// in its folder, or in a PostgreSQL database of its own.
macro_rules! for_every_store {
    ($($story:ident,)*) => {
        mod embedded {
            $(
                #[tokio::test]
                async fn $story() {
                    super::$story().await;
                }
            )*
        }
        mod postgres {
            $(
                #[tokio::test]
                async fn $story() {
                    crate::support::on_postgres(super::$story()).await;
                }
            )*
        }
    };
}

#[path = "../servers/mod.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod servers;
#[allow(dead_code, reason = "other tests need more of it")]
mod support;

mod accept;
mod at_rest;
mod attention;
mod backlog;
mod backup;
mod backup_postgres;
mod bad_input;
mod bench;
mod breaker;
mod bytes;
mod caps;
mod check_store;
mod cli;
mod client_crate;
mod crash;
mod dead_letters;
mod demo;
mod deploy_files;
mod doctor;
mod drill;
mod egress;
mod endpoint_list;
mod examples;
mod explain;
mod failures;
mod fair;
mod figures;
mod find;
mod front_tls;
mod generated_clients;
mod headers;
mod health_table;
mod hostile;
mod intake;
mod isolation;
mod jobs;
mod kit_service;
mod lag;
mod lanes;
mod limits;
mod listen;
mod live_keys;
mod load;
mod logged_attempts;
mod mail;
mod metrics;
mod migrate_store;
mod night;
mod older_store;
mod on_postgres;
mod operational_events;
mod operator_questions;
mod outbox;
mod outbox_faults;
mod package;
mod pages;
mod pages_access;
mod pages_deliveries;
mod pages_edges;
mod pages_endpoints;
mod pages_hostile;
mod pages_recovery;
mod pause;
mod portal;
mod portal_host;
mod prometheus;
mod public_keys;
mod purge;
mod rates;
mod retry;
mod reverse_proxies;
mod secrets;
mod self_test;
mod signatures;
mod start_stop;
mod system_calls;
mod tenant_limits;
mod terminal;
mod thin;
mod tls;
mod tokens;
mod tour;
mod traces;
mod verdicts;
mod verify;
mod without_token;
