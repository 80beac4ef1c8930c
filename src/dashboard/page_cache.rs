//! Keeps each rendered page for a second, for everybody who may see the same.
//!
//! However many people watch a page, it is rendered once a second, by one of
//! them, while the others wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::page_error::PageError;

/// Time for which a rendered page is served again.
const FRESH: SignedDuration = SignedDuration::from_secs(1);
/// Longest time that somebody waits for a page, also for its rendering by somebody else.
const RENDER_MAX: Duration = Duration::from_secs(10);
/// Most pages that are kept.
const PAGES_MAX: usize = 512;
/// Most bytes of HTML that are kept.
const BYTES_MAX: usize = 32 * 1024 * 1024;

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

/// Digest of everything that a page depends on, so that a long address takes no more room
/// than a short one.
type PageKey = [u8; 32];

/// A page that somebody has asked for.
#[derive(Default)]
struct CachedPage {
    /// Held by whoever renders it.
    rendering: Arc<tokio::sync::Mutex<()>>,
    page: Option<(Timestamp, RenderedPage)>,
}

/// The pages that were rendered within the last second.
#[derive(Default)]
pub struct PageCache(Mutex<HashMap<PageKey, CachedPage>>);

impl PageCache {
    /// Returns the page with this key, rendered within the last second; renders it
    /// otherwise. `key` has everything that the page depends on.
    pub async fn get(
        &self,
        key: &str,
        now: Timestamp,
        render: impl Future<Output = Result<RenderedPage, PageError>>,
    ) -> Result<RenderedPage, PageError> {
        let mut digest_of_key = PageKey::default();
        digest_of_key.copy_from_slice(digest::digest(&digest::SHA256, key.as_bytes()).as_ref());
        let key = digest_of_key;
        let rendered = async {
            let rendering = match self.find(key, now) {
                Ok(page) => return Ok(page),
                Err(rendering) => rendering,
            };
            // Whoever else wants the page waits for this rendering.
            let _guard = rendering.lock().await;
            if let Ok(page) = self.find(key, now) {
                return Ok(page);
            }
            let page = render.await?;
            self.keep(key, now, &page);
            Ok(page)
        };
        tokio::time::timeout(RENDER_MAX, rendered).await.map_err(|_| PageError::too_slow())?
    }

    /// Returns the page if it is fresh, else the lock of whoever renders it. Drops what is not
    /// fresh and not wanted by anybody.
    fn find(&self, key: PageKey, now: Timestamp) -> Result<RenderedPage, Arc<tokio::sync::Mutex<()>>> {
        let mut pages = self.0.lock();
        let kept = pages.entry(key).or_default();
        if let Some((_, page)) = kept.page.as_ref().filter(|(at, _)| is_fresh(*at, now)) {
            return Ok(page.clone());
        }
        let rendering = kept.rendering.clone();
        pages.retain(|_, kept| {
            kept.page.take_if(|(at, _)| !is_fresh(*at, now));
            kept.page.is_some() || Arc::strong_count(&kept.rendering) > 1
        });
        Err(rendering)
    }

    /// Keeps a page, in place of the oldest if there is no room.
    fn keep(&self, key: PageKey, now: Timestamp, page: &RenderedPage) {
        let mut pages = self.0.lock();
        pages.entry(key).or_default().page = Some((now, page.clone()));
        loop {
            let rendered = pages.iter().filter_map(|(key, kept)| kept.page.as_ref().map(|(at, page)| (key, at, page)));
            let (count, bytes) =
                rendered.clone().fold((0, 0), |(count, bytes), (.., page)| (count + 1, bytes + page.html.len()));
            if count <= PAGES_MAX && bytes <= BYTES_MAX {
                return;
            }
            let Some(oldest) = rendered.min_by_key(|(_, at, _)| **at).map(|(key, ..)| *key) else { return };
            if let Some(kept) = pages.get_mut(&oldest) {
                kept.page = None;
            }
        }
    }
}

fn is_fresh(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).abs() < FRESH
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
            cache.get(key, at(millis), render).await.unwrap().html.to_string()
        };
        assert_eq!(ask("a", 0).await, "a 0");
        assert_eq!(ask("a", 999).await, "a 0");
        assert_eq!(ask("b", 999).await, "b 1", "another viewer may see something else");
        assert_eq!(ask("a", 1000).await, "a 2");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_takes_too_long_is_given_up_and_holds_nobody_up() {
        let cache = PageCache::default();
        let stuck = cache.get("a", Timestamp::UNIX_EPOCH, std::future::pending()).await.err().unwrap();
        assert_eq!(stuck.status, http::StatusCode::SERVICE_UNAVAILABLE);
        assert!(stuck.detail.contains("10 seconds"), "{stuck:?}");
        let page = cache.get("a", Timestamp::UNIX_EPOCH, async { Ok(RenderedPage::new("x".into())) }).await;
        assert_eq!(&*page.unwrap().html, "x");
    }

    #[tokio::test(start_paused = true)]
    async fn viewers_of_a_slow_page_do_not_wait_one_after_the_other() {
        let cache = PageCache::default();
        let began = tokio::time::Instant::now();
        let ask = || async { cache.get("a", Timestamp::UNIX_EPOCH, std::future::pending()).await.is_err() };
        assert_eq!(tokio::join!(ask(), ask(), ask()), (true, true, true));
        assert_eq!(began.elapsed(), RENDER_MAX);
    }

    #[tokio::test]
    async fn what_could_not_be_rendered_is_tried_again() {
        let cache = PageCache::default();
        let failed = cache.get("a", Timestamp::UNIX_EPOCH, async { Err(PageError::not_found()) }).await;
        assert!(failed.is_err());
        let page = cache.get("a", Timestamp::UNIX_EPOCH, async { Ok(RenderedPage::new("x".into())) }).await;
        assert_eq!(&*page.unwrap().html, "x");
    }

    #[tokio::test]
    async fn pages_that_nobody_asks_for_again_are_dropped_and_the_rest_is_bounded() {
        let cache = PageCache::default();
        let ask = async |number: usize, millis: i64, length: usize| {
            let render = async { Ok(RenderedPage::new("x".repeat(length))) };
            cache.get(&number.to_string(), Timestamp::from_millisecond(millis).unwrap(), render).await.unwrap();
        };
        let kept = || {
            let pages = cache.0.lock();
            let htmls: Vec<usize> =
                pages.values().filter_map(|kept| kept.page.as_ref()).map(|kept| kept.1.html.len()).collect();
            (pages.len(), htmls.len(), htmls.iter().sum::<usize>())
        };
        for number in 0..100 {
            ask(number, 0, 10).await;
        }
        assert_eq!(kept(), (100, 100, 1_000));
        ask(100, 1_000, 10).await;
        assert_eq!(kept(), (1, 1, 10), "what is over a second old is dropped");
        // Many large pages within one second.
        for number in 0..60 {
            ask(number, 2_000 + number as i64, BYTES_MAX / 16).await;
            assert!(kept().2 <= BYTES_MAX, "{:?}", kept());
        }
        assert_eq!(kept().1, 16, "the newest stay");
        for number in 0..PAGES_MAX + 100 {
            ask(1_000 + number, 4_000, 10).await;
        }
        assert_eq!(kept().1, PAGES_MAX);
    }
}
