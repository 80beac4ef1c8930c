//! Says why a name could not be looked up, and whose fault it is.

use std::io;

use hickory_resolver::net::{DnsError, NetError};

use crate::model::answer::{AttemptFailure, FailureKind};

/// Returns the failure of a name lookup by the gateway's own resolver. A
/// missing name and a failing name server count against the receiver; a
/// resolver that does not answer counts as ours.
pub fn lookup_failure(host: &str, problem: &NetError, has_resolver: bool) -> AttemptFailure {
    match problem {
        problem if problem.is_nx_domain() => {
            AttemptFailure::new(FailureKind::NoSuchName, format!("the name {host} does not exist"))
        }
        problem if problem.is_no_records_found() => {
            AttemptFailure::new(FailureKind::NoSuchName, format!("the name {host} exists, but has no address"))
        }
        NetError::Dns(DnsError::ResponseCode(code)) => {
            let code = code.to_str().to_lowercase();
            AttemptFailure::new(FailureKind::Dns, format!("the name servers of {host} failed; they say: {code}"))
        }
        NetError::Dns(problem) => {
            AttemptFailure::new(FailureKind::Dns, format!("the name servers of {host} failed: {problem}"))
        }
        problem if has_resolver => AttemptFailure::new(
            FailureKind::Dns,
            format!("the name servers of {host} did not answer in time: {problem}"),
        ),
        _ => AttemptFailure::new(FailureKind::Ours, format!("no resolver answered for {host}: {problem}")),
    }
}

/// Returns the failure of a name lookup by the machine's resolver. It reports
/// a missing name only in its text, and does not say whose fault the rest is.
pub fn system_lookup_failed(host: &str, problem: &io::Error) -> AttemptFailure {
    let text = problem.to_string();
    let texts_of_absence = ["Name or service not known", "No address associated", "nodename nor servname"];
    if texts_of_absence.iter().any(|absence| text.contains(absence)) {
        AttemptFailure::new(FailureKind::NoSuchName, format!("the name {host} does not exist, or has no address"))
    } else {
        AttemptFailure::new(FailureKind::Dns, format!("the name {host} could not be looked up: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::net::NoRecords;
    use hickory_resolver::proto::op::{Query, ResponseCode};

    use super::*;

    fn described(failure: AttemptFailure) -> (FailureKind, String) {
        (failure.kind, failure.message)
    }

    #[test]
    fn a_missing_name_is_not_a_failing_name_server_and_neither_is_our_resolver() {
        let lookup = |problem: NetError| described(lookup_failure("a.example", &problem, false));
        let without = |code| NetError::Dns(DnsError::NoRecordsFound(NoRecords::new(Query::default(), code)));
        let cases = [
            (without(ResponseCode::NXDomain), FailureKind::NoSuchName, "the name a.example does not exist"),
            (without(ResponseCode::NoError), FailureKind::NoSuchName, "the name a.example exists, but has no address"),
            (
                NetError::Dns(DnsError::ResponseCode(ResponseCode::ServFail)),
                FailureKind::Dns,
                "the name servers of a.example failed; they say: server failure",
            ),
            (NetError::Timeout, FailureKind::Ours, "no resolver answered for a.example: request timed out"),
            (
                NetError::NoConnections,
                FailureKind::Ours,
                "no resolver answered for a.example: no connections available",
            ),
        ];
        for (problem, kind, message) in cases {
            assert_eq!(lookup(problem), (kind, message.to_owned()));
        }
        // If the resolver answers other questions, the name's own servers are at fault.
        let (kind, message) = described(lookup_failure("a.example", &NetError::Timeout, true));
        assert_eq!((kind, message.contains("did not answer in time")), (FailureKind::Dns, true));
    }
}
