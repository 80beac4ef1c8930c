//! What other nodes answered a moment ago, shared by all who want to know it.
//!
//! A question to other nodes is a row that is written, answered and deleted. So
//! whoever looks at figures or at the state of the cluster asks at most once a
//! second for the same, however many look.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::dispatch::lag::Lag;
use crate::model::shard::Shard;
use crate::store::Result;
use crate::store::figures::{FigureScope, StoredFigures};

/// How long an answer is shared.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// How long the answers of other nodes are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same while one of them is silent, until its lease has ended.
const PATIENCE_WITH_SILENT: Duration = Duration::from_millis(250);

/// One answer, and when it came. Those who want it while it is asked for wait for it.
pub struct SharedAnswer<T>(tokio::sync::Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for SharedAnswer<T> {
    fn default() -> Self {
        Self(tokio::sync::Mutex::default())
    }
}

impl<T> SharedAnswer<T> {
    /// Returns the answer of the last second if it is still true, or a new one.
    pub async fn get(&self, is_true: impl Fn(&T) -> bool, ask: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        let mut known = self.0.lock().await;
        if let Some((at, answer)) = &*known
            && at.elapsed() < SHARED_FOR
            && is_true(answer)
        {
            return Ok(answer.clone());
        }
        let answer = Arc::new(ask.await?);
        *known = Some((Instant::now(), answer.clone()));
        Ok(answer)
    }

    /// Whether nobody would get this answer any more.
    fn is_over(&self) -> bool {
        self.0.try_lock().is_ok_and(|known| known.as_ref().is_none_or(|(at, _)| at.elapsed() >= SHARED_FOR))
    }
}

/// The figures of a scope that may still change, of all nodes.
pub struct RecentFigures {
    /// Beginning of the first window that is among them.
    pub from: Timestamp,
    /// Time up to which all figures were written before these were read.
    pub written_until: Option<Timestamp>,
    /// The figures, in order of time.
    pub rows: Vec<StoredFigures>,
}

/// What this node has heard from the others.
#[derive(Default)]
pub struct SharedAnswers {
    /// Lags of the shards of other nodes.
    pub lags: SharedAnswer<Vec<(Shard, Lag)>>,
    figures: parking_lot::Mutex<HashMap<FigureScope, Arc<SharedAnswer<RecentFigures>>>>,
    is_one_silent: AtomicBool,
}

impl SharedAnswers {
    /// Returns the recent figures of a scope, as they are shared.
    pub fn figures(&self, scope: &FigureScope) -> Arc<SharedAnswer<RecentFigures>> {
        let mut figures = self.figures.lock();
        figures.retain(|_, shared| Arc::strong_count(shared) > 1 || !shared.is_over());
        figures.entry(scope.clone()).or_default().clone()
    }

    /// Returns how long the answers of all nodes are waited for.
    pub fn wait_limit(&self) -> Duration {
        if self.is_one_silent.load(Ordering::Relaxed) { PATIENCE_WITH_SILENT } else { PATIENCE }
    }

    /// Notes whether all nodes have answered in time.
    pub fn note_silence(&self, is_one_silent: bool) {
        self.is_one_silent.store(is_one_silent, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_shared_for_a_second_while_it_is_true() {
        let (shared, asked) = (SharedAnswer::default(), std::cell::Cell::new(0));
        let get = async |is_true: bool| {
            let ask = async {
                asked.set(asked.get() + 1);
                Ok(asked.get())
            };
            *shared.get(|_| is_true, ask).await.unwrap()
        };
        assert_eq!((get(true).await, get(true).await), (1, 1));
        assert_eq!(get(false).await, 2, "what is no longer true is asked for again");
        assert!(!shared.is_over());
        tokio::time::advance(SHARED_FOR).await;
        assert!(shared.is_over());
        assert_eq!((get(true).await, asked.get()), (3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_at_once_share_one_answer_and_a_failure_is_not_kept() {
        let (shared, asked) = (SharedAnswer::default(), std::cell::Cell::new(0));
        let get = async || {
            let ask = async {
                asked.set(asked.get() + 1);
                tokio::time::sleep(PATIENCE).await;
                if asked.get() == 1 { Err(crate::store::Error::Changed) } else { Ok(()) }
            };
            shared.get(|()| true, ask).await.map(|_| ())
        };
        let answers = tokio::join!(get(), get(), get());
        assert!(answers.0.is_err() && answers.1.is_ok() && answers.2.is_ok());
        assert_eq!(asked.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_shares_any_more_is_forgotten() {
        let answers = SharedAnswers::default();
        let recent = || RecentFigures { from: Timestamp::UNIX_EPOCH, written_until: None, rows: Vec::new() };
        let gateway = answers.figures(&FigureScope::Gateway);
        gateway.get(|_| true, async { Ok(recent()) }).await.unwrap();
        drop(gateway);
        let tenant = FigureScope::Tenant("a".parse().unwrap());
        drop(answers.figures(&tenant));
        assert!(answers.figures.lock().contains_key(&FigureScope::Gateway));
        tokio::time::advance(SHARED_FOR).await;
        drop(answers.figures(&tenant));
        assert_eq!(answers.figures.lock().keys().collect::<Vec<_>>(), [&tenant]);
    }
}
