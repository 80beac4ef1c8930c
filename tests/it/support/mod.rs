//! Shared parts of the integration tests: a gateway process, receivers and
//! servers, and a way to wait for a condition.

mod api_description;
mod client;
mod collector;
mod dns;
mod event_stream;
mod gateway;
mod hostile_texts;
pub mod night;
pub mod outbox;
mod page_client;
mod parsed_page;
mod proxy;
mod raw;
mod receiver;
mod smtp;

use std::time::{Duration, Instant};

pub use client::{Answer, Client};
pub use collector::{CollectedSpan, Collector};
pub use dns::{DnsAnswer, NameServer};
pub use event_stream::EventStream;
pub use gateway::{CapturedOutput, Gateway, Options, eager_retry, is_on_postgres, on_postgres, path_of, unlimited};
pub use hostile_texts::{HOSTILE, hostile_texts};
pub use page_client::PageClient;
pub use parsed_page::ParsedPage;
pub use proxy::{Proxy, ProxyBehaviour};
pub use raw::{RawReceiver, RawStep};
pub use receiver::{ReceivedRequest, Receiver, Reply, overlaps};
pub use smtp::{MailServer, MailServerBehaviour, ReceivedMail, SmtpFault};

/// Longest wait for anything before a test fails: long enough for a machine whose
/// processors are all busy.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the time that a JSON value holds.
pub fn time(value: &serde_json::Value) -> jiff::Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("not a time: {value}"))
}

/// Asks again until the answer is `Ok`; panics with the last error after
/// [`PATIENCE`].
pub async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let until = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(last) if Instant::now() > until => panic!("waited in vain for {what}: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
