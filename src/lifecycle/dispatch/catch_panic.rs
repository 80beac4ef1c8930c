//! Catches a panic where it happens, so that it ends one attempt and nothing
//! else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs a future to its end, or until it panics: then the panic's words.
pub async fn catch_panic<F: Future>(future: F) -> Result<F::Output, String> {
    CatchPanic(Box::pin(future)).await
}

struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // What panicked is not polled again, so nothing half done is seen.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic_message(panic.as_ref()))),
        }
    }
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
