//! Catches panics of a future, so that a panic ends one attempt, or one step of
//! a relay, and nothing else.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

/// Runs a future to its end; if it panics, returns the panic's message.
pub async fn catch_panic<F: Future>(future: F) -> Result<F::Output, String> {
    // A future that panicked is not polled again, so its broken state is never seen.
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| panic_message(panic.as_ref()))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_told_in_its_own_words() {
        let number = std::hint::black_box(7);
        assert_eq!(catch_panic(async { number }).await, Ok(7));
        assert_eq!(catch_panic(async { panic!("plain") }).await, Err::<(), _>("plain".into()));
        assert_eq!(catch_panic(async move { panic!("with {number}") }).await, Err::<(), _>("with 7".into()));
    }
}
