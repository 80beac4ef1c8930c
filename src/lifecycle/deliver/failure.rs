//! Says why a request had no answer: a kind for programs, a sentence for people.
//!
//! Each function belongs to one phase of an attempt, and its sentences say how
//! far the attempt came. Failures of TLS are in [`super::tls`], those of name
//! lookups in [`crate::lifecycle::egress`].

use std::error::Error;
use std::io;

use super::connection_record::ConnectionRecord;
use super::response::{HEAD_BYTES_MAX, HEAD_FIELDS_MAX};
use super::response_prefix::ResponsePrefix;
use crate::model::answer::{AttemptFailure, FailureKind};
use crate::model::span::Span;

/// Creates a failure of this kind with this message.
pub fn failure(kind: FailureKind, message: impl Into<String>) -> AttemptFailure {
    AttemptFailure::new(kind, message)
}

/// Returns the failure of a TCP connection.
pub fn connect_failure(host: &str, port: u16, problem: &io::Error) -> AttemptFailure {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut,
    };
    let unreachable = |why: String| failure(FailureKind::Unreachable, format!("{host} cannot be reached: {why}"));
    match problem.kind() {
        ConnectionRefused => failure(
            FailureKind::ConnectionRefused,
            format!("nothing listens on port {port} of {host}: the connection was refused"),
        ),
        ConnectionReset => failure(FailureKind::ConnectionReset, "the connection was reset while it was being opened"),
        TimedOut => failure(FailureKind::Timeout, format!("no connection: {host} did not answer on port {port}")),
        HostUnreachable => unreachable("there is no way to the host".into()),
        NetworkUnreachable => unreachable("there is no way to its network".into()),
        NetworkDown => unreachable("the network is down".into()),
        _ if is_ours(problem) => {
            failure(FailureKind::Ours, format!("this machine could not open a connection: {problem}"))
        }
        _ => unreachable(problem.to_string()),
    }
}

/// Whether this machine is out of file handles, ports or memory, which is not
/// the receiver's fault.
fn is_ours(problem: &io::Error) -> bool {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    problem.raw_os_error().is_some_and(|code| ours.iter().any(|errno| errno.raw_os_error() == code))
}

/// Returns the failure of a connection that was not open in time.
pub fn unopened_within(
    timeout: Span,
    host: &str,
    port: u16,
    opened: &ConnectionRecord,
    has_resolver: bool,
) -> AttemptFailure {
    let message = match (opened.dns, opened.connect) {
        (None, _) if !has_resolver => {
            return failure(FailureKind::Ours, format!("no resolver answered for {host} within {timeout}"));
        }
        (None, _) => format!("no connection within {timeout}: looking up the name {host} took too long"),
        (Some(_), None) => format!("no connection within {timeout}: {host} did not answer on port {port}"),
        (Some(_), Some(_)) => {
            format!("no secure connection within {timeout}: {host} did not finish the TLS handshake on port {port}")
        }
    };
    failure(FailureKind::Timeout, message)
}

/// Returns the failure of an attempt that missed its total deadline; `prefix`
/// is of its connection, if it had one.
pub fn unanswered_within(total: Span, prefix: Option<&ResponsePrefix>) -> AttemptFailure {
    let message = match prefix.map(ResponsePrefix::quoted_line) {
        None => format!("no connection within {total}"),
        Some(None) => format!("the connection was opened, but no answer came within {total}"),
        Some(Some(beginning)) if prefix.is_some_and(ResponsePrefix::is_interim) => {
            format!("an interim answer came ({beginning}), but no final one within {total}")
        }
        Some(Some(beginning)) => {
            format!("an answer began with {beginning}, but its head was not complete within {total}")
        }
    };
    failure(FailureKind::Timeout, message)
}

/// Returns the failure of a receiver that sends interim answers without end.
pub fn endless_interim(prefix: &ResponsePrefix) -> AttemptFailure {
    let beginning = prefix.quoted_line().unwrap_or_default();
    failure(FailureKind::MalformedAnswer, format!("interim answers came without end ({beginning}), and no final one"))
}

/// Returns the failure of an exchange that ended without an answer, from its
/// causes and what was received until then.
pub fn exchange_failure(problem: &(dyn Error + 'static), prefix: &ResponsePrefix) -> AttemptFailure {
    let mut is_unexpected = false;
    for cause in causes(problem) {
        if let Some(http) = cause.downcast_ref::<hyper::Error>() {
            if http.is_parse_too_large() {
                return oversized_failure();
            }
            if http.is_parse() {
                return malformed_failure(http, prefix);
            }
            if http.is_incomplete_message() {
                return cut_off("closed", prefix);
            }
            // The HTTP client has no public test for "unexpected message": it
            // is what remains when these are not true.
            is_unexpected |= !http.is_canceled() && !http.is_closed() && !http.is_user();
        }
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            return broken_failure(io, prefix);
        }
    }
    // The request never started. Servers such as mail servers and shells send
    // a greeting first; even a greeting that looks like an answer is not one.
    if is_unexpected || !prefix.bytes.is_empty() {
        failure(
            FailureKind::MalformedAnswer,
            format!("what answered does not speak HTTP: it spoke before it was asked{}", describe_prefix(prefix)),
        )
    } else {
        cut_off("closed", prefix)
    }
}

fn describe_prefix(prefix: &ResponsePrefix) -> String {
    prefix.quoted_line().map(|beginning| format!(", beginning with {beginning}")).unwrap_or_default()
}

/// Returns an error and its causes, from the nearest to the first.
pub fn causes<'a>(problem: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(problem), |cause| (*cause).source())
}

fn oversized_failure() -> AttemptFailure {
    let kib = HEAD_BYTES_MAX / 1_024;
    failure(
        FailureKind::OversizedHeaders,
        format!(
            "the head of the answer is too large: it has more than {kib} KiB or more than {HEAD_FIELDS_MAX} headers"
        ),
    )
}

fn malformed_failure(problem: &hyper::Error, prefix: &ResponsePrefix) -> AttemptFailure {
    let line = prefix.first_line();
    let beginning = prefix.quoted_line().unwrap_or_else(|| "nothing that can be shown".into());
    let is_http_1 = line.starts_with(b"HTTP/1.1") || line.starts_with(b"HTTP/1.0");
    let message = if matches!(prefix.bytes[..], [0x15 | 0x16, 0x03, ..]) {
        "what answered speaks TLS; should the URL begin with https?".to_owned()
    } else if !line.starts_with(b"HTTP/") {
        format!("what answered does not speak HTTP: it begins with {beginning}")
    } else if !is_http_1 {
        format!("the answer is not in HTTP/1.1: it begins with {beginning}")
    } else if !is_status_line(line) {
        format!("the status line of the answer is malformed: {beginning}; it needs a status from 100 to 999")
    } else if problem.is_parse_status() {
        format!("the status line of the answer is malformed: {beginning}")
    } else {
        format!("the head of the answer is malformed after {beginning}: {problem}")
    };
    failure(FailureKind::MalformedAnswer, message)
}

/// Whether a line begins like `HTTP/1.1 200`.
fn is_status_line(line: &[u8]) -> bool {
    let status = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "));
    matches!(status, Some([b'1'..=b'9', b'0'..=b'9', b'0'..=b'9', rest @ ..]) if matches!(rest, [] | [b' ', ..]))
}

fn broken_failure(problem: &io::Error, prefix: &ResponsePrefix) -> AttemptFailure {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
    match problem.kind() {
        // TLS that ends without a close notification counts as closed.
        UnexpectedEof => cut_off("closed", prefix),
        ConnectionReset | ConnectionAborted | BrokenPipe => cut_off("reset", prefix),
        TimedOut => failure(FailureKind::Timeout, "the connection was opened, but the host stopped answering"),
        _ => failure(FailureKind::ConnectionReset, format!("the connection broke before an answer came: {problem}")),
    }
}

/// Returns the failure of a connection that was closed or reset, with how far
/// the exchange came.
fn cut_off(how: &str, prefix: &ResponsePrefix) -> AttemptFailure {
    let message = match prefix.quoted_line() {
        Some(beginning) if prefix.is_interim() => {
            format!("the connection was {how} after an interim answer ({beginning}), before a final one came")
        }
        Some(beginning) => {
            format!(
                "the connection was {how} before the head of the answer was complete; what came begins with {beginning}"
            )
        }
        None if prefix.broke_while_sending => format!("the connection was {how} while the request was being sent"),
        None => format!("the connection was {how} before an answer came"),
    };
    failure(FailureKind::ConnectionReset, message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_way_of_not_connecting_has_its_kind() {
        use rustix::io::Errno;
        let cases = [
            (Errno::CONNREFUSED, FailureKind::ConnectionRefused, "nothing listens on port 443 of a.example"),
            (Errno::HOSTUNREACH, FailureKind::Unreachable, "no way to the host"),
            (Errno::NETUNREACH, FailureKind::Unreachable, "no way to its network"),
            (Errno::NETDOWN, FailureKind::Unreachable, "the network is down"),
            (Errno::ACCESS, FailureKind::Unreachable, "a.example cannot be reached"),
            (Errno::CONNRESET, FailureKind::ConnectionReset, "while it was being opened"),
            (Errno::TIMEDOUT, FailureKind::Timeout, "did not answer on port 443"),
            (Errno::MFILE, FailureKind::Ours, "this machine"),
            (Errno::ADDRNOTAVAIL, FailureKind::Ours, "this machine"),
        ];
        for (errno, kind, words) in cases {
            let failure = connect_failure("a.example", 443, &io::Error::from_raw_os_error(errno.raw_os_error()));
            assert_eq!(failure.kind, kind, "{failure:?}");
            assert!(failure.message.contains(words), "{failure:?}");
        }
    }

    #[test]
    fn a_deadline_says_in_which_phase_it_passed() {
        let failure = |dns, connect| {
            let opened = ConnectionRecord { dns, connect, ..ConnectionRecord::begin() };
            unopened_within(Span::secs(5), "a.example", 443, &opened, dns.is_some())
        };
        let message = |dns, connect| failure(dns, connect).message;
        let done = Some(Duration::ZERO);
        assert_eq!(failure(None, None).kind, FailureKind::Ours, "a silent resolver is not the receiver's");
        assert_eq!(failure(done, None).kind, FailureKind::Timeout);
        assert_eq!(message(None, None), "no resolver answered for a.example within 5s");
        assert_eq!(message(done, None), "no connection within 5s: a.example did not answer on port 443");
        assert_eq!(
            message(done, done),
            "no secure connection within 5s: a.example did not finish the TLS handshake on port 443"
        );
        assert_eq!(unanswered_within(Span::secs(10), None).message, "no connection within 10s");
    }

    #[test]
    fn what_breaks_says_how_far_it_came() {
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let prefix = |bytes: &[u8], broke_while_sending| ResponsePrefix {
            bytes: bytes.into(),
            broke_while_sending,
            ..ResponsePrefix::default()
        };
        let message = |prefix| broken_failure(&reset, &prefix).message;
        assert_eq!(message(prefix(b"", false)), "the connection was reset before an answer came");
        assert_eq!(message(prefix(b"", true)), "the connection was reset while the request was being sent");
        assert_eq!(
            message(prefix(b"HTTP/1.1 200 OK\r\nserver: x", true)),
            "the connection was reset before the head of the answer was complete; what came begins with \"HTTP/1.1 200 OK\""
        );
    }

    #[test]
    fn a_status_line_has_three_digits() {
        for line in ["HTTP/1.1 200", "HTTP/1.1 999 ", "HTTP/1.0 100 Continue"] {
            assert!(is_status_line(line.as_bytes()), "{line}");
        }
        for line in ["HTTP/1.1", "HTTP/1.1 99", "HTTP/1.1 1000 X", "HTTP/1.1 099", "HTTP/1.1 abc", "HTTP/1.2 200"] {
            assert!(!is_status_line(line.as_bytes()), "{line}");
        }
    }
}
