//! Remembers when tokens and sessions were last used, and tells the store.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::warn;

use super::SharedApiState;
use crate::model::delivery::time_before;
use crate::model::id::TokenId;

/// Interval at which the last use of tokens is written to the store.
const USES_WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// Time for which the last use of a token stays in memory.
const USES_KEPT: Duration = Duration::from_secs(3_600);

/// The last use of each token on this node. A request only updates memory; a
/// background task writes to the store.
#[derive(Debug, Default)]
pub struct TokenUses(Mutex<HashMap<TokenId, TokenUse>>);

#[derive(Debug, Clone, Copy)]
struct TokenUse {
    at: Timestamp,
    is_written: bool,
}

impl TokenUses {
    /// Records the use of a token, at most once a minute.
    pub fn record_use(&self, id: TokenId, now: Timestamp) {
        let mut uses = self.0.lock();
        let is_due = uses.get(&id).is_none_or(|last| now.duration_since(last.at).unsigned_abs() >= USES_WRITE_INTERVAL);
        if is_due {
            uses.insert(id, TokenUse { at: now, is_written: false });
        }
    }

    /// Returns when a token was last used on this node.
    pub fn last_used_at(&self, id: TokenId) -> Option<Timestamp> {
        self.0.lock().get(&id).map(|last| last.at)
    }

    fn unwritten_uses(&self) -> Vec<(TokenId, Timestamp)> {
        let uses = self.0.lock();
        uses.iter().filter(|(_, last)| !last.is_written).map(|(id, last)| (*id, last.at)).collect()
    }

    fn mark_written(&self, written: &[(TokenId, Timestamp)]) {
        let mut uses = self.0.lock();
        for (id, at) in written {
            if let Some(last) = uses.get_mut(id).filter(|last| last.at == *at) {
                last.is_written = true;
            }
        }
    }

    /// Forgets what is written and old, so that sessions of the past take up no
    /// memory. The store has it.
    fn forget_written(&self, before: Timestamp) {
        self.0.lock().retain(|_, last| !last.is_written || last.at >= before);
    }
}

/// Writes the last use of tokens to the store once a minute, for ever.
pub async fn write_uses_periodically(api: SharedApiState) {
    loop {
        tokio::time::sleep(USES_WRITE_INTERVAL).await;
        write_uses(&api).await;
    }
}

/// Writes the last uses of tokens that the store does not have yet.
pub async fn write_uses(api: &SharedApiState) {
    api.uses.forget_written(time_before(api.gateway.clock.wall(), USES_KEPT));
    let unwritten = api.uses.unwritten_uses();
    if unwritten.is_empty() {
        return;
    }
    match api.gateway.store.use_tokens(unwritten.clone()).await {
        Ok(()) => api.uses.mark_written(&unwritten),
        Err(problem) => warn!(
            "the last use of tokens could not be written to the store, and is written again in a minute: {problem}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_noted_once_a_minute_and_written_once() {
        let (uses, id) = (TokenUses::default(), TokenId::mint(Timestamp::UNIX_EPOCH, 1));
        let at = |second| Timestamp::from_second(second).unwrap();
        uses.record_use(id, at(0));
        uses.record_use(id, at(59));
        assert_eq!(uses.unwritten_uses(), [(id, at(0))]);
        uses.mark_written(&[(id, at(0))]);
        assert!(uses.unwritten_uses().is_empty());
        uses.record_use(id, at(60));
        assert_eq!((uses.unwritten_uses(), uses.last_used_at(id)), (vec![(id, at(60))], Some(at(60))));
        uses.mark_written(&[(id, at(0))]);
        assert_eq!(uses.unwritten_uses(), [(id, at(60))], "what came meanwhile is not lost");
        uses.forget_written(at(61));
        assert_eq!(uses.last_used_at(id), Some(at(60)), "what is not written is not forgotten");
        uses.mark_written(&[(id, at(60))]);
        uses.forget_written(at(61));
        assert_eq!(uses.last_used_at(id), None);
    }
}
