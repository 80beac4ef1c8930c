//! Reports to the lifecycle what happens in the cluster, and waits until it has
//! acted on it.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::store::ClusterEvent;

/// The channel to the lifecycle, and what the lifecycle has yet to do.
pub struct ClusterNotifier {
    events: mpsc::UnboundedSender<ClusterEvent>,
    /// The other end, until the lifecycle listens.
    listener: Mutex<Option<mpsc::UnboundedReceiver<ClusterEvent>>>,
    /// Changes of other nodes that are not in force here yet.
    pending_changes: Mutex<Vec<oneshot::Receiver<()>>>,
    /// Numbers of the questions of other nodes that are being answered.
    open_questions: Mutex<HashSet<i64>>,
}

impl Default for ClusterNotifier {
    fn default() -> Self {
        let (events, listener) = mpsc::unbounded_channel();
        let listener = Mutex::new(Some(listener));
        Self { events, listener, pending_changes: Mutex::default(), open_questions: Mutex::default() }
    }
}

impl ClusterNotifier {
    /// Reports an event. After the lifecycle's end nothing receives it.
    pub fn send(&self, event: ClusterEvent) {
        let _ = self.events.send(event);
    }

    /// Returns the receiver of the events, for the lifecycle. Whoever asks later
    /// gets one that receives nothing.
    pub fn listen(&self) -> mpsc::UnboundedReceiver<ClusterEvent> {
        self.listener.lock().take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }

    /// Whether the lifecycle listens. During the start it does not yet.
    pub fn has_listener(&self) -> bool {
        self.listener.lock().is_none()
    }

    /// Remembers a change of another node until it is in force here.
    pub fn add_pending_change(&self, in_force: oneshot::Receiver<()>) {
        self.pending_changes.lock().push(in_force);
    }

    /// Waits until the changes of other nodes are in force here. If the wait is
    /// cancelled, the next call waits for the rest.
    pub async fn await_changes_applied(&self) {
        loop {
            let next = self.pending_changes.lock().pop();
            let Some(next) = next else { return };
            let mut waiting = PendingChange { notifier: self, in_force: Some(next) };
            if let Some(in_force) = &mut waiting.in_force {
                let _ = in_force.await;
            }
            waiting.in_force = None;
        }
    }

    /// Notes that a question is being answered. Returns whether it was not
    /// before.
    pub fn begin_answer(&self, question: i64) -> bool {
        self.open_questions.lock().insert(question)
    }

    /// Notes that a question was answered.
    pub fn end_answer(&self, question: i64) {
        self.open_questions.lock().remove(&question);
    }
}

/// A change that is being waited for. If the wait is cancelled, the change goes
/// back to the list.
struct PendingChange<'a> {
    notifier: &'a ClusterNotifier,
    in_force: Option<oneshot::Receiver<()>>,
}

impl Drop for PendingChange<'_> {
    fn drop(&mut self) {
        self.notifier.pending_changes.lock().extend(self.in_force.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_whose_wait_was_cancelled_is_waited_for_again() {
        let notifier = ClusterNotifier::default();
        let (done, in_force) = oneshot::channel();
        notifier.add_pending_change(in_force);
        let now = std::future::ready(());
        tokio::select! {
            biased;
            () = notifier.await_changes_applied() => panic!("it is not in force yet"),
            () = now => {}
        }
        assert_eq!(notifier.pending_changes.lock().len(), 1, "it went back to the list");
        done.send(()).unwrap();
        notifier.await_changes_applied().await;
        assert!(notifier.pending_changes.lock().is_empty());
    }
}
