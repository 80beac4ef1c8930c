//! Keeps each rendered page for a second, for everybody who may see the same.
//!
//! However many people watch a page, it is rendered once a second, by one of
//! them, while the others wait for it.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::page_error::PageError;

/// Time for which a rendered page is served again.
const FRESH: SignedDuration = SignedDuration::from_secs(1);
/// Most pages that are kept.
const PAGES_MAX: usize = 512;

/// A page as it was rendered, before the values of a session are put in.
#[derive(Clone)]
pub struct RenderedPage {
    /// The HTML, with placeholders.
    pub html: Arc<str>,
    /// Digest of the HTML, for `ETag`.
    pub digest: Arc<str>,
}

impl RenderedPage {
    /// Takes rendered HTML.
    pub fn new(html: String) -> Self {
        let digest = hex::encode(&digest::digest(&digest::SHA256, html.as_bytes()).as_ref()[..12]);
        Self { html: html.into(), digest: digest.into() }
    }
}

type Slot = Arc<tokio::sync::Mutex<Option<(Timestamp, RenderedPage)>>>;

/// The pages that were rendered within the last second.
#[derive(Default)]
pub struct PageCache(Mutex<HashMap<String, Slot>>);

impl PageCache {
    /// Returns the page with this key, rendered within the last second; renders it
    /// otherwise. `key` has everything that the page depends on.
    pub async fn get(
        &self,
        key: String,
        now: Timestamp,
        render: impl Future<Output = Result<RenderedPage, PageError>>,
    ) -> Result<RenderedPage, PageError> {
        let slot = self.slot(key);
        let mut kept = slot.lock().await;
        if let Some((at, page)) = kept.as_ref().filter(|(at, _)| now.duration_since(*at).abs() < FRESH) {
            let _ = at;
            return Ok(page.clone());
        }
        let page = render.await?;
        *kept = Some((now, page.clone()));
        Ok(page)
    }

    fn slot(&self, key: String) -> Slot {
        let mut slots = self.0.lock();
        if slots.len() >= PAGES_MAX && !slots.contains_key(&key) {
            slots.clear();
        }
        slots.entry(key).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_page_is_rendered_once_a_second_for_each_key() {
        let (cache, count) = (PageCache::default(), AtomicUsize::new(0));
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let ask = async |key: &str, millis| {
            let render = async {
                let number = count.fetch_add(1, Ordering::Relaxed);
                Ok(RenderedPage::new(format!("{key} {number}")))
            };
            cache.get(key.to_owned(), at(millis), render).await.unwrap().html.to_string()
        };
        assert_eq!(ask("a", 0).await, "a 0");
        assert_eq!(ask("a", 999).await, "a 0");
        assert_eq!(ask("b", 999).await, "b 1", "another viewer may see something else");
        assert_eq!(ask("a", 1000).await, "a 2");
    }

    #[tokio::test]
    async fn what_could_not_be_rendered_is_tried_again() {
        let cache = PageCache::default();
        let failed = cache.get("a".into(), Timestamp::UNIX_EPOCH, async { Err(PageError::not_found()) }).await;
        assert!(failed.is_err());
        let page = cache.get("a".into(), Timestamp::UNIX_EPOCH, async { Ok(RenderedPage::new("x".into())) }).await;
        assert_eq!(&*page.unwrap().html, "x");
    }
}
