//! The contract of the stores, written once and tested with each of them.
//!
//! A promise is a function of a [`fixture::StoreFixture`]: a store in a scratch
//! folder or database. [`for_every_store`] makes it a test per store; another
//! store would be one more module in that macro. Time is an argument, so
//! nothing here sleeps.

#![allow(clippy::unwrap_used, reason = "these are tests; a panic is their answer")]

/// Makes each promise a test of each store. A promise that is left out of the
/// list is dead code, and the compiler says so; one that is not kept yet is
/// marked `#[ignore = "why"]`.
macro_rules! for_every_store {
    ($($(#[$mark:meta])* $promise:ident,)*) => {
        mod embedded {
            $(
                $(#[$mark])*
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    super::$promise(crate::fixture::StoreFixture::embedded().await).await;
                }
            )*
        }
        mod postgres {
            $(
                $(#[$mark])*
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    super::$promise(crate::fixture::StoreFixture::postgres().await).await;
                }
            )*
        }
    };
}

mod fixture;
#[path = "../servers/mod.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod servers;

mod accept;
mod access;
mod all_tenants;
mod backfill;
mod catalog;
mod change;
mod compared_store;
mod damage;
mod dead_letter_groups;
mod differential;
mod due;
mod expunge;
mod figures;
mod forged_statistics;
mod forget;
mod health;
mod history;
mod jobs;
mod lanes;
mod model;
mod newer_records;
mod operational_events;
mod overdue;
mod purge;
mod settle;
mod shared;
mod sign_ins;
mod unknown_codes;
mod usage;
mod waiting;
