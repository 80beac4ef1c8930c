//! The self-test: what its events and endpoints are.
//!
//! A node sends itself an event of the tenant `_system` now and then, through an
//! endpoint of its own that nobody else knows. Both are in no list, count,
//! figure or share.

use super::endpoint::Endpoint;
use super::event::Event;

/// URL of a self-test's endpoint. The API refuses it, since it is no http URL.
pub const SELF_TEST_URL: &str = "posthaste://self-test/";
/// Type of a self-test's event.
pub const SELF_TEST_TYPE: &str = "posthaste.self_test";

impl Endpoint {
    /// Whether only self-tests go to it.
    pub fn is_self_test(&self) -> bool {
        self.tenant.is_system() && self.settings.url == SELF_TEST_URL
    }
}

impl Event {
    /// Whether it is a self-test. Only the gateway writes events of `_system`.
    pub fn is_self_test(&self) -> bool {
        self.tenant.is_system() && self.event_type.as_str() == SELF_TEST_TYPE
    }
}
