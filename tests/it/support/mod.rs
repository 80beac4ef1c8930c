//! What the stories share: a gateway, receivers, and a way to wait for
//! something without sleeping through it.

mod client;
mod dns;
mod gateway;
mod proxy;
mod raw;
mod receiver;
mod smtp;

use std::time::{Duration, Instant};

pub use client::{Answer, Client};
pub use dns::{NameServer, Says};
pub use gateway::{Gateway, Options, Printed, eager_retry, is_on_postgres, on_postgres, path_of, unlimited};
pub use proxy::{Proxy, Speaks};
pub use raw::{Act, RawReceiver};
pub use receiver::{Receiver, Reply, Seen, overlaps};
pub use smtp::{MailServer, Manner, Mood, ReceivedMail};

/// How long anything may take before the story has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A time in an answer.
pub fn time(value: &serde_json::Value) -> jiff::Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("not a time: {value}"))
}

/// Asks again until the answer is there; fails with the last one otherwise.
pub async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let until = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(found) => return found,
            Err(last) if Instant::now() > until => panic!("waited in vain for {what}: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
