//! Receives webhooks of Posthaste, and of any other sender that signs like it:
//! verifies them, applies each event once, and in order per key.
//!
//! A gateway delivers at least once. A receiver therefore has three duties, and
//! this crate has a part for each:
//!
//! 1. **Verify.** [`Verifier`] checks the signature, so that nobody else can
//!    send events.
//! 2. **Apply once.** An [`Inbox`] records the id of each event in the
//!    transaction in which your handler works. A repeat has no effect.
//! 3. **Apply in order.** The inbox keeps the place of each key, stores what
//!    comes too early, and applies it after its predecessors.
//!
//! # A receiver in five lines
//!
//! ```
//! use posthaste_receiver::rusqlite::{Connection, Transaction};
//! use posthaste_receiver::{
//!     Event, HandlerError, InboxSettings, Place, Profile, Receiver, RequestReader, SqliteInbox, Verifier,
//! };
//!
//! fn apply(transaction: &Transaction<'_>, event: &Event, _: &Place) -> Result<(), HandlerError> {
//!     transaction.execute("INSERT INTO seen (id, data) VALUES (?1, ?2)", (&event.id, event.data()))?;
//!     Ok(())
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
//! # let database = Connection::open_in_memory()?;
//! let verifier = Verifier::new(Profile::Standard, [secret])?;
//! let inbox = SqliteInbox::open(database, apply, InboxSettings::default())?;
//! let receiver = Receiver::new(RequestReader::new(verifier), inbox);
//! # let background = receiver.clone();
//! // Applies what came too early: spawn it beside the server.
//! let _running = async move { background.run().await };
//! // And mount the receiver: `Router::new().route("/hook", post_service(receiver))` with axum.
//! # let _ = receiver;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/service.rs` is a whole service of this kind, in fewer than eighty
//! lines.
//!
//! With PostgreSQL, any number of processes share an inbox. Give the pool a
//! runtime: the inbox waits for a connection no longer than a second.
//!
//! ```no_run
//! use posthaste_receiver::deadpool_postgres::{Manager, Pool, Runtime};
//! use posthaste_receiver::tokio_postgres::{NoTls, Transaction};
//! use posthaste_receiver::{Event, HandlerError, InboxSettings, Place, PostgresHandler, PostgresInbox};
//!
//! struct Ledger;
//!
//! impl PostgresHandler for Ledger {
//!     async fn apply(&self, transaction: &Transaction<'_>, event: &Event, _: &Place) -> Result<(), HandlerError> {
//!         let booking = "INSERT INTO booking (account, data) VALUES ($1, $2)";
//!         transaction.execute(booking, &[&event.key, &event.data()]).await?;
//!         Ok(())
//!     }
//! }
//!
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = Manager::new("postgres://shop:secret@localhost/shop".parse()?, NoTls);
//! let pool = Pool::builder(manager).max_size(8).runtime(Runtime::Tokio1).build()?;
//! let inbox = PostgresInbox::new(pool, Ledger, InboxSettings::default());
//! inbox.create_tables().await?;
//! # Ok(())
//! # }
//! ```
//!
//! `rusqlite`, `tokio_postgres` and `deadpool_postgres` are those that the inboxes
//! use: take them from here, and their versions always fit.
//!
//! # Verify
//!
//! A [`Verifier`] has a [`Profile`] and any number of secrets: `whsec_…`, or
//! public keys, `whpk_…`. Give the old and the new one while a secret is being
//! replaced. Times more than five minutes away are refused
//! ([`Verifier::tolerance`]). A [`VerifyError`] says which check failed, in
//! words, and never contains a secret.
//!
//! ```
//! use std::time::{Duration, UNIX_EPOCH};
//! use posthaste_receiver::{Profile, Verifier};
//!
//! let verifier = Verifier::new(Profile::Standard, ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
//! let mut headers = http::HeaderMap::new();
//! headers.insert("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".parse()?);
//! headers.insert("webhook-timestamp", "1614265330".parse()?);
//! headers.insert("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".parse()?);
//! let body = br#"{"test": 2432232314}"#;
//!
//! let signed_at = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
//! assert!(verifier.verify(&headers, body, signed_at).is_ok());
//! let problem = verifier.verify(&headers, body, signed_at + Duration::from_secs(900)).unwrap_err();
//! assert_eq!(
//!     problem.to_string(),
//!     "the timestamp in webhook-timestamp is 900 seconds old, and at most 300 are accepted",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Verify the raw body, before anything parses it. [`RequestReader`] reads it,
//! verifies, and returns the [`Event`]; [`VerifyLayer`] does so in front of any
//! tower service; with the feature `axum`, `Event` is an extractor. Both answer
//! 429 beyond [`RequestReader::in_flight_max`] requests at once.
//!
//! Apart from those that a profile signs, headers are not signed: whoever sees a
//! request can send it again with others. So [`Event`] takes id, tenant, key and
//! place from the body wherever it has them. An endpoint with the format `raw`
//! has them in headers only: then the signed id alone tells events apart, and
//! the order is as good as the way between gateway and receiver.
//!
//! # Apply once
//!
//! | Inbox | Handler | Effect and id are one |
//! |---|---|---|
//! | [`MemoryInbox`] | [`Handler`], async | as long as the process lives |
//! | `SqliteInbox`, feature `sqlite` | `SqliteHandler`, or a closure | in one transaction |
//! | `PostgresInbox`, feature `postgres` | `PostgresHandler`, async | in one transaction, over any number of processes |
//!
//! The handler writes with the transaction that it is given. If it returns an
//! error, panics, or the process dies, the transaction is rolled back, the id
//! is not recorded, and the gateway sends the event again. What a handler does
//! outside of the transaction (a mail, a call) can happen twice: write it down
//! in the transaction, and do it from there.
//!
//! Events are told apart by tenant and id. Ids are remembered for 14 days
//! ([`InboxSettings::retention`]). That must be longer than the gateway goes on
//! trying (three days, with the usual policy) and than you replay. A gateway can
//! replay what it has delivered in the last 30 days (`--retention`), and dead
//! letters of the last 90 (`--dead-letter-retention`): whoever may do so needs
//! as many days here. The place of a lane is forgotten after the same time
//! without an event of it.
//!
//! # Apply in order
//!
//! Events with a key have a place in their lane, `seq`. The inbox applies place
//! n + 1 after n. What comes too early is stored, answered 202 at once, and
//! applied by [`Receiver::run`] when its predecessors are, or after
//! [`InboxSettings::gap_timeout`] (30 seconds) without them. No request ever
//! waits for another.
//!
//! Gaps are normal: a gateway skips a dead letter, an event expires or is
//! discarded, a lane goes on above 1 after it was forgotten, or the receiver is
//! new and the endpoint is not. The handler is told by its [`Place`]:
//!
//! - [`Place::Next`]: the event follows the last one.
//! - [`Place::AfterGap`]: the missing places did not come in time.
//! - [`Place::Late`]: a later event was applied already. This is a replay, or a
//!   predecessor that took too long. A handler that writes a newer state over an
//!   older one returns `Ok(())` here and does nothing; one that adds things up
//!   applies it.
//!
//! Use one inbox per endpoint ([`InboxSettings::name`]), and a new name when an
//! endpoint was made anew, because its places then begin at 1. Say
//! [`Lanes::Endpoint`] if the endpoint's `ordering` is `endpoint`.
//!
//! A stored event was acknowledged, so the gateway does not send it again. If
//! its handler fails or panics, or its transaction cannot be committed, the
//! inbox tries again after 1 s, 2 s, 4 s and so on up to 5 minutes, and its lane
//! waits; other lanes do not. [`HandlerError::Refuse`] gives the event up: it
//! stays in the table with state 2, and the lane goes on. To the gateway it is
//! delivered, and a replay of it is answered 200, as a repeat of any known event.
//! When the cause is removed, release it with [`Receiver::release`], or delete
//! its row, and replay the delivery: it is applied as [`Place::Late`] then.
//!
//! # Answers
//!
//! [`Answer`] has the status that makes the gateway do the right thing: 202
//! applied or stored, 200 known already, 400 (or 401) bad signature, 422 no
//! event or refused, 413 too large, 429 with `Retry-After` too many at once,
//! 503 the handler or the database failed. After 400, 401, 413 and 422 a gateway
//! like ours makes a dead letter at once. So after a wrong secret was put right,
//! replay the dead letters of that time
//! (`posthaste dead-letters replay --endpoint … --since …`).
//!
//! # Watch it
//!
//! [`Receiver::counters`] returns plain numbers ([`CounterValues`]), for any
//! metrics library: applied, duplicates, stored, gaps and missing places, late
//! ones, failures of the handler, and the sum and maximum of the time between
//! arrival and application. `handler_failures` that rise while `applied` does
//! not are a handler that needs help; `bad_signatures` that rise are a wrong
//! secret, or a stranger. [`Receiver::waiting`] asks the inbox how many stored
//! events wait now, and for how long the oldest: longer than the gap timeout
//! means that a handler fails, or that nothing runs [`Receiver::run`].

pub use crate::answer::Answer;
pub use crate::counters::{CounterValues, Counters};
pub use crate::event::{Event, Format, MalformedEvent};
pub use crate::inbox::{
    BoxError, BoxFuture, Handler, HandlerError, Inbox, InboxError, InboxSettings, Lanes, MemoryInbox, Place, Received,
    Round, WaitingEvents,
};
#[cfg(feature = "postgres")]
pub use crate::inbox::{PostgresHandler, PostgresInbox};
#[cfg(feature = "sqlite")]
pub use crate::inbox::{SqliteHandler, SqliteInbox};
pub use crate::layer::{VerifyLayer, VerifyService};
pub use crate::reader::{RefusedRequests, RequestReader};
pub use crate::receiver::Receiver;
pub use crate::verify::{Profile, SecretError, TOLERANCE, UnknownProfile, Verified, Verifier, VerifyError};
#[cfg(feature = "postgres")]
pub use deadpool_postgres;
#[cfg(feature = "sqlite")]
pub use rusqlite;
#[cfg(feature = "postgres")]
pub use tokio_postgres;

mod answer;
#[cfg(feature = "axum")]
mod axum;
mod clock;
mod counters;
mod event;
mod in_flight;
mod inbox;
mod layer;
mod reader;
mod receiver;
mod verify;
