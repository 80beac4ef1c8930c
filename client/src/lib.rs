//! Calls a Posthaste gateway: hands in events, each once, and looks up what became of
//! them.
//!
//! # Hand in an event
//!
//! ```no_run
//! use posthaste_client::{Client, NewEvent};
//!
//! # async fn send() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("https://hooks.example.com", "pht_…")?;
//! let shop = client.tenant("shop");
//! let event = NewEvent::new("order.paid", &serde_json::json!({"order": 7, "cents": 1250}))?
//!     .id("order-7-paid")
//!     .key("order-7");
//! let receipt = shop.send(&event).await?;
//! println!("{} goes to {} endpoints", receipt.id, receipt.deliveries);
//! # Ok(())
//! # }
//! ```
//!
//! When [`TenantClient::send`] returns, the event and all its deliveries are on the
//! gateway's disk. `examples/send.rs` is a whole program.
//!
//! # Each once
//!
//! A call can fail after the gateway has accepted the event: the answer got lost. So an
//! event always has an id, and the same id with the same content is accepted once. Take
//! an [`id`](NewEvent::id) from what happened, such as `order-7-paid`: then also a
//! producer that was killed, and sends the event again after its restart, sends it once.
//! An event without one gets a random id, which covers the repeats of this client alone.
//!
//! What is committed in a database and must not be lost between commit and call belongs
//! in an outbox: the gateway can read one out of your PostgreSQL.
//!
//! # Repeats
//!
//! [`send`](TenantClient::send), [`send_batch`](TenantClient::send_batch) and everything
//! that only reads are repeated when the gateway cannot be reached, does not answer in
//! time, or answers 408, 429, 500, 502, 503, 504 or 507. The time between two tries
//! doubles from 100 milliseconds to 10 seconds, with jitter, and is at least what `Retry-After`
//! asks for. After a minute or ten tries the last error is returned ([`RetryPolicy`]).
//! Everything else is tried once.
//!
//! # Batches
//!
//! [`send_batch`](TenantClient::send_batch) hands in up to 1,000 events in one call and one
//! commit, in their order: all of them, or none.
//! [`send_batch_partial`](TenantClient::send_batch_partial) accepts those that can be
//! accepted, and says of each what became of it.
//!
//! # Errors
//!
//! A refusal is an [`Error::Problem`] with the gateway's problem document: a stable
//! [`code`](Problem::code) for programs, such as `id_conflict` or `missing_right`, a
//! sentence for people, and the fields at fault.
//!
//! ```
//! use posthaste_client::Error;
//!
//! fn is_known_already(error: &Error) -> bool {
//!     error.problem().is_some_and(|problem| problem.code == "id_conflict")
//! }
//! # let _ = is_known_already;
//! ```
//!
//! # A private authority
//!
//! [`Client::trust`] with [`Trust::only`] calls a gateway whose certificate no public
//! authority issued: it takes the authority's certificate, or the gateway's own, in PEM.
//!
//! # Look up and replay
//!
//! ```no_run
//! # use posthaste_client::{Client, ListQuery};
//! # async fn look(client: Client) -> Result<(), posthaste_client::Error> {
//! let shop = client.tenant("shop");
//! let mut query = ListQuery::new().filter("cause", "refused").limit(100);
//! loop {
//!     let page = shop.dead_letters(&query).await?;
//!     for dead in &page.data {
//!         println!("{} was answered {:?}", dead.event_id, dead.last_status);
//!         shop.replay(&dead.id).await?;
//!     }
//!     let Some(next) = page.next else { break };
//!     query = query.cursor(&next);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Routes that have no method here are called with [`Client::call`]; the gateway describes
//! them all under `/openapi.json`.

pub use crate::client::{ApiResponse, Client};
pub use crate::error::{Error, FieldProblem, Problem};
pub use crate::event::{BatchItem, BatchRefusal, NewEvent, Receipt};
pub use crate::resource::{Delivery, Endpoint, Event, ListQuery, Page};
pub use crate::retry::RetryPolicy;
pub use crate::tenant::TenantClient;
pub use crate::trust::Trust;

mod client;
mod error;
mod event;
mod resource;
mod retry;
mod tenant;
pub mod transport;
mod trust;
