//! The limits of a server: connections, sizes and timeouts.

use std::time::Duration;

/// Most header lines that a request may have.
pub const HEADERS_MAX: usize = 64;
/// Largest size of a request's head, in bytes.
pub const HEAD_BYTES_MAX: usize = 64 * 1_024;

/// Limits of one server: connections, sizes and timeouts.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Most regular connections open at once.
    pub connections: usize,
    /// Most spare connections open at once, for health checks.
    pub spare: usize,
    /// Timeout for the head of a request, which includes the idle time of a
    /// kept-alive connection.
    pub head: Duration,
    /// Longest time without progress while a response is written.
    pub stall: Duration,
    /// Longest life of a spare connection.
    pub spare_for: Duration,
    /// Timeout for the head of a request on a spare connection.
    pub spare_head: Duration,
    /// Idle timeout of a connection without a valid token while slots are
    /// scarce.
    pub scarce: Duration,
    /// Largest request body of any route, in bytes.
    pub body_bytes_max: u64,
}

impl ServerLimits {
    /// Returns the default limits with this number of regular connections.
    pub fn of(connections: usize) -> Self {
        Self {
            connections,
            spare: 64,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            spare_for: Duration::from_secs(2),
            spare_head: Duration::from_millis(500),
            scarce: Duration::from_secs(1),
            body_bytes_max: 64 * 1_024 * 1_024,
        }
    }
}
