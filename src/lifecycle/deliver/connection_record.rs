//! Records the steps of opening a connection, and how far a failed one came.

use std::time::Duration;

use tokio::time::Instant;

use super::response_prefix::ResponsePrefixRecorder;
use super::tls::CertificateRequested;
use crate::model::answer::{AttemptFailure, Timings, millis};

/// Times of a connection's steps, and what was received on it.
#[derive(Debug, Clone)]
pub struct ConnectionRecord {
    /// Time at which opening began.
    pub at: Instant,
    /// Duration of the name lookup, if it was finished.
    pub dns: Option<Duration>,
    /// Duration of connecting, if it was finished.
    pub connect: Option<Duration>,
    /// Duration of the TLS handshake, if it was finished.
    pub tls: Option<Duration>,
    /// Whether the server asked for a client certificate, and got one.
    pub asked: CertificateRequested,
    /// Recorder of the first bytes of each answer.
    pub recorder: ResponsePrefixRecorder,
}

impl ConnectionRecord {
    /// Creates the record of a connection whose opening begins now.
    pub fn begin() -> Self {
        let (dns, connect, tls) = (None, None, None);
        Self {
            at: Instant::now(),
            dns,
            connect,
            tls,
            asked: CertificateRequested::No,
            recorder: ResponsePrefixRecorder::default(),
        }
    }

    /// Copies the durations into an attempt's timings.
    pub fn copy_into(&self, timings: &mut Timings) {
        timings.dns = self.dns.map(millis);
        timings.connect = self.connect.map(millis);
        timings.tls = self.tls.map(millis);
    }
}

/// The failure of opening a connection, and how far it came.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", failure.message)]
pub struct ConnectFailure {
    /// Reason of the failure.
    pub failure: AttemptFailure,
    /// Steps that were finished before the failure.
    pub opened: ConnectionRecord,
}
