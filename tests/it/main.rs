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
mod backlog;
mod bad_input;
mod bench;
mod breaker;
mod bytes;
mod caps;
mod cli;
mod crash;
mod dead_letters;
mod egress;
mod explain;
mod failures;
mod fair;
mod find;
mod generated_clients;
mod headers;
mod hostile;
mod intake;
mod isolation;
mod jobs;
mod lag;
mod lanes;
mod limits;
mod listen;
mod load;
mod mail;
mod metrics;
mod migrate_store;
mod older_store;
mod on_postgres;
mod operational_events;
mod pause;
mod rates;
mod retry;
mod secrets;
mod signatures;
mod start_stop;
mod tenant_limits;
mod terminal;
mod thin;
mod tls;
mod tokens;
mod tour;
mod verdicts;
mod without_token;
