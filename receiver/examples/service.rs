//! A receiver that books payments, each once, and in order per account:
//!
//!     WEBHOOK_SECRET=whsec_… cargo run -p posthaste-receiver --features axum,sqlite --example service
//!
//! It listens on 127.0.0.1:9000, keeps its bookings in `bookings.db`, and shows
//! its counters under `/counters`.

use std::error::Error;

use axum::Router;
use axum::routing::{get, post_service};
use posthaste_receiver::rusqlite::{Connection, Transaction, params};
use posthaste_receiver::{
    Event, HandlerError, InboxSettings, Place, Profile, Receiver, RequestReader, SqliteInbox, Verifier,
};

#[derive(serde::Deserialize)]
struct Payment {
    cents: i64,
}

/// Books a payment. The inbox records the event in the same transaction, so
/// that there is one booking per event, whatever crashes.
fn book(transaction: &Transaction<'_>, event: &Event, place: &Place) -> Result<(), HandlerError> {
    if event.event_type != "payment.received" {
        return Ok(());
    }
    // What can never work is refused: the gateway makes it a dead letter.
    let payment: Payment = event.json().map_err(|problem| HandlerError::Refuse(problem.into()))?;
    let note = match place {
        Place::Unordered | Place::Next => String::new(),
        Place::AfterGap { missing } => format!("{} to {} did not come", missing.start(), missing.end()),
        Place::Late { applied } => format!("came after {applied}"),
    };
    // Any error of the database lets the gateway send the event again.
    let account = event.key.as_deref().unwrap_or("none");
    let booking = "INSERT INTO booking (account, cents, note) VALUES (?1, ?2, ?3)";
    transaction.execute(booking, params![account, payment.cents, note])?;
    Ok(())
}

/// Makes the service on this database, with these secrets.
pub fn service(database: Connection, secrets: &[&str]) -> Result<(Router, Receiver), Box<dyn Error>> {
    database.execute_batch("CREATE TABLE IF NOT EXISTS booking (account TEXT, cents INTEGER, note TEXT)")?;
    let reader = RequestReader::new(Verifier::new(Profile::Standard, secrets)?);
    let inbox = SqliteInbox::open(database, book, InboxSettings::default())?;
    let receiver = Receiver::new(reader, inbox);
    let counters = receiver.clone();
    let show = move || async move {
        let lines = counters.counters().named().into_iter().map(|(name, value)| format!("{name} {value}\n"));
        lines.collect::<String>()
    };
    let router = Router::new().route("/hook", post_service(receiver.clone())).route("/counters", get(show));
    Ok((router, receiver))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Two, separated by a comma, while a secret is being replaced.
    let secrets = std::env::var("WEBHOOK_SECRET").map_err(|_| "WEBHOOK_SECRET is not set")?;
    let database = Connection::open("bookings.db")?;
    database.pragma_update(None, "journal_mode", "wal")?;
    let (router, receiver) = service(database, &secrets.split(',').collect::<Vec<_>>())?;
    // Applies what came too early, when it is due.
    tokio::spawn(async move { receiver.run().await });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:9000").await?;
    axum::serve(listener, router).await?;
    Ok(())
}
