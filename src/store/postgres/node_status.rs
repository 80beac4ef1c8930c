//! What this node knows of itself, its database and the number of other nodes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// State of the node between two polls.
pub struct NodeStatus {
    is_answering: AtomicBool,
    is_retiring: AtomicBool,
    /// Number of nodes at the last poll.
    nodes: AtomicUsize,
    stale_writes: AtomicU64,
    may_have_missed_events: AtomicBool,
    server_changes: AtomicU64,
}

impl Default for NodeStatus {
    fn default() -> Self {
        Self {
            is_answering: AtomicBool::new(true),
            is_retiring: AtomicBool::new(false),
            nodes: AtomicUsize::new(1),
            stale_writes: AtomicU64::new(0),
            may_have_missed_events: AtomicBool::new(false),
            server_changes: AtomicU64::new(0),
        }
    }
}

impl NodeStatus {
    /// Whether the database answered last.
    pub fn is_answering(&self) -> bool {
        self.is_answering.load(Ordering::Relaxed)
    }

    /// Records whether the database answers. Returns whether it did before.
    pub fn set_answering(&self, is_answering: bool) -> bool {
        self.is_answering.swap(is_answering, Ordering::Relaxed)
    }

    /// Whether this node is about to leave and gives away its shards.
    pub fn is_retiring(&self) -> bool {
        self.is_retiring.load(Ordering::Acquire)
    }

    /// Makes this node give away its shards.
    pub fn retire(&self) {
        self.is_retiring.store(true, Ordering::Release);
    }

    /// Returns the number of nodes, this one among them.
    pub fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed).max(1)
    }

    /// Records the number of nodes. Returns whether it is another one.
    pub fn set_nodes(&self, nodes: usize) -> bool {
        self.nodes.swap(nodes, Ordering::Relaxed) != nodes
    }

    /// Counts a write that came too late, because its shard has another owner.
    pub fn count_stale_write(&self) {
        self.stale_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of writes that came too late.
    pub fn stale_writes(&self) -> u64 {
        self.stale_writes.load(Ordering::Relaxed)
    }

    /// Records that a commit failed without an answer: it may have accepted
    /// events that this node does not know of.
    pub fn note_missed_events(&self) {
        self.may_have_missed_events.store(true, Ordering::Release);
    }

    /// Returns whether events may have been missed since it was last asked.
    pub fn take_missed_events(&self) -> bool {
        self.may_have_missed_events.swap(false, Ordering::AcqRel)
    }

    /// Records that another server was found, or the same one started again.
    pub fn note_server_change(&self) {
        self.note_missed_events();
        self.server_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how often another server was found.
    pub fn server_changes(&self) -> u64 {
        self.server_changes.load(Ordering::Acquire)
    }
}
