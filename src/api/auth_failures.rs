//! Counts failed authentications by address; logs, audits and slows down repeated
//! ones.
//!
//! Each node counts for itself, in memory, by IPv4 address or IPv6 /64. A request
//! with a valid token is never refused for failures of others from its address.
//!
//! Invariant: memory, log lines and audit entries are bounded, from however many
//! addresses failures come.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use jiff::Timestamp;
use tracing::{info, warn};

use super::SharedApiState;
use super::connection_slots::ConnectionStatus;
use super::origin::{self, Network};
use super::problem::{Problem, ProblemCode};
use super::rate_limit_headers::whole_seconds;
use crate::metrics::AuthFailureKind;
use crate::model::audit::{AuditAction, AuditedAction, CallerIdentity, Initiator};
use crate::model::id::TenantId;
use crate::model::named_enum::NamedEnum;
use crate::model::rate::{Gcra, Rate};
use crate::model::token::Token;

/// Size of one generation of addresses; at most two generations are in memory.
const ADDRESSES_MAX: usize = 8_192;
/// Shortest time that an address is history.
const PERIOD: Duration = Duration::from_secs(600);
/// Failures of one address within a period that count as repeated.
pub const REPEATED: u32 = 20;
/// Rate of failures without a valid token before an address is answered 429: 100
/// at once, then one per second.
const FAILURE_RATE: Rate = Rate { per_second: 1.0, burst: 100 };
/// Rate of log lines over all addresses.
const LOG_RATE: Rate = Rate { per_second: 1.0, burst: 20 };
/// Rate of audit entries over all addresses.
const AUDIT_RATE: Rate = Rate { per_second: 0.1, burst: 60 };

/// A request that failed authentication or authorization.
pub struct AuthFailure {
    /// Kind of the failure.
    pub kind: AuthFailureKind,
    /// Problem that answers the request.
    pub problem: Problem,
    /// Existing token whose id the request named, even if its secret was wrong.
    pub token: Option<Arc<Token>>,
}

impl AuthFailure {
    /// Whether the token is valid and only lacks the right.
    fn has_valid_token(&self) -> bool {
        matches!(self.kind, AuthFailureKind::MissingRight | AuthFailureKind::OtherTenant)
    }

    /// Returns the caller for the audit entry; unknown if the token was wrong,
    /// because then anybody may have sent it.
    fn identity(&self) -> CallerIdentity {
        match (&self.token, self.kind) {
            (Some(token), AuthFailureKind::MissingRight | AuthFailureKind::OtherTenant | AuthFailureKind::Expired) => {
                CallerIdentity::Token { id: token.id, name: token.name.clone() }
            }
            _ => CallerIdentity::Unknown,
        }
    }
}

/// Counts a failure and returns the problem that answers it.
pub fn refuse(api: &SharedApiState, request: &Request, failure: AuthFailure) -> Problem {
    let address = origin::of(request, &api.trusted_proxies);
    if let Some(connection) = request.extensions().get::<ConnectionStatus>()
        && !failure.has_valid_token()
    {
        connection.mark_unauthenticated(address.map(origin::network));
    }
    api.gateway.metrics.count_auth_failure(failure.kind);
    let network = origin::network(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    let reaction =
        api.failures.record_failure(failure.kind, failure.has_valid_token(), network, api.gateway.clock.now());
    let (kind, code) = (failure.kind.as_str(), failure.problem.code().as_str());
    match reaction.line {
        Some(FailureLogLine { is_repeated: true, unlogged }) => {
            warn!(from = %network, kind, unlogged, "{REPEATED} requests from {network} were refused within 10m, the last with {code}");
        }
        Some(FailureLogLine { is_repeated: false, unlogged }) => {
            info!(from = %network, kind, unlogged, "a request from {network} was refused with {code}");
        }
        None => {}
    }
    if let Some(kinds) = reaction.audited_kinds {
        record(api, request, &failure, network, kinds);
    }
    match reaction.wait {
        None => failure.problem,
        Some(wait) => {
            let seconds = whole_seconds(wait).max(1);
            let detail = format!(
                "too many requests without a valid token came from this address; send a valid token, or try again in {seconds}s"
            );
            Problem::new(ProblemCode::RateLimited, detail).retry_after(seconds)
        }
    }
}

/// Writes an audit entry about repeated failures. It belongs to the tenant of the
/// named token, who alone can act on it, or else to the gateway's own tenant,
/// whose entries the operator reads.
fn record(api: &SharedApiState, request: &Request, failure: &AuthFailure, network: Network, kinds: Vec<String>) {
    let (tenant, resource) = match &failure.token {
        Some(token) => (token.recorded_with(), token.id.to_string()),
        None => (TenantId::system(), network.to_string()),
    };
    let caller = origin::caller(request, &api.trusted_proxies, failure.identity(), api.gateway.clock.wall());
    let by = Initiator::Caller(Arc::new(caller));
    let audited = AuditedAction::new(AuditAction::AuthRepeated, &tenant, resource).with_changed_fields(kinds);
    let store = api.gateway.store.clone();
    // The response does not wait for the store.
    tokio::spawn(async move {
        if let Err(problem) = store.record(&by, audited).await {
            warn!("audit entry about repeated failed authentications could not be written: {problem}");
        }
    });
}

/// Recent failures of every address.
#[derive(Debug)]
pub struct AuthFailures(Mutex<FailureHistory>);

#[derive(Debug)]
struct FailureHistory {
    /// Addresses of the present generation.
    recent: HashMap<Network, AddressFailures>,
    /// Addresses of the generation before. One that does not fail again is
    /// forgotten when the next generation begins.
    earlier: HashMap<Network, AddressFailures>,
    period_began_at: Timestamp,
    log_rate: Gcra,
    audit_rate: Gcra,
    /// Failures that were not logged since the last log line.
    unlogged: u64,
}

/// Failures of one address in its present period.
#[derive(Debug, Clone, Copy)]
struct AddressFailures {
    since: Timestamp,
    count: u32,
    /// Kinds of the failures, one bit each.
    kinds: u8,
    rate: Gcra,
}

/// What has to be done about a failure.
#[derive(Debug, PartialEq)]
struct FailureReaction {
    /// Time that the address has to wait, if it has to.
    wait: Option<Duration>,
    /// Line to log, if the failure is to be logged.
    line: Option<FailureLogLine>,
    /// Kinds for the audit entry, if one is to be written.
    audited_kinds: Option<Vec<String>>,
}

/// A log line about failures of one address.
#[derive(Debug, PartialEq)]
struct FailureLogLine {
    is_repeated: bool,
    unlogged: u64,
}

impl Default for AuthFailures {
    fn default() -> Self {
        Self(Mutex::new(FailureHistory {
            recent: HashMap::new(),
            earlier: HashMap::new(),
            period_began_at: Timestamp::UNIX_EPOCH,
            log_rate: Gcra::at_ingest(LOG_RATE),
            audit_rate: Gcra::at_ingest(AUDIT_RATE),
            unlogged: 0,
        }))
    }
}

impl AuthFailures {
    fn record_failure(
        &self,
        kind: AuthFailureKind,
        has_valid_token: bool,
        from: Network,
        now: Timestamp,
    ) -> FailureReaction {
        let mut history = self.0.lock();
        let mut failures = history.failures_of(from, now);
        failures.count = failures.count.saturating_add(1);
        failures.kinds |= 1 << kind as u8;
        let wait = match (has_valid_token, failures.rate.is_ready(now)) {
            (true, _) => None,
            (false, true) => {
                failures.rate.take(now);
                None
            }
            (false, false) => Some(failures.rate.ready_at().duration_since(now).unsigned_abs()),
        };
        history.recent.insert(from, failures);
        let is_repeated = failures.count == REPEATED;
        let line =
            (is_repeated || failures.count == 1).then(|| history.record_and_log_line(is_repeated, now)).flatten();
        if line.is_none() {
            history.unlogged += 1;
        }
        let is_audited = is_repeated && take_if_ready(&mut history.audit_rate, now);
        let kinds =
            is_audited.then(|| AuthFailureKind::ALL.iter().filter(|kind| failures.kinds & (1 << **kind as u8) != 0));
        FailureReaction {
            wait,
            line,
            audited_kinds: kinds.map(|kinds| kinds.map(|kind| kind.as_str().to_owned()).collect()),
        }
    }
}

impl FailureHistory {
    /// Returns the failures of an address in its present period.
    fn failures_of(&mut self, from: Network, now: Timestamp) -> AddressFailures {
        let age = |since: Timestamp| now.duration_since(since).unsigned_abs();
        if self.recent.len() >= ADDRESSES_MAX || age(self.period_began_at) >= PERIOD {
            self.earlier = std::mem::take(&mut self.recent);
            self.period_began_at = now;
        }
        let known = self.recent.get(&from).copied().or_else(|| self.earlier.remove(&from));
        match known {
            Some(failures) if age(failures.since) < PERIOD => failures,
            // The rate carries over into the next period.
            Some(failures) => AddressFailures { since: now, count: 0, kinds: 0, ..failures },
            None => AddressFailures { since: now, count: 0, kinds: 0, rate: Gcra::at_ingest(FAILURE_RATE) },
        }
    }

    fn record_and_log_line(&mut self, is_repeated: bool, now: Timestamp) -> Option<FailureLogLine> {
        if !take_if_ready(&mut self.log_rate, now) {
            return None;
        }
        Some(FailureLogLine { is_repeated, unlogged: std::mem::take(&mut self.unlogged) })
    }
}

/// Takes one from a rate if it allows that now; returns whether it did.
fn take_if_ready(rate: &mut Gcra, now: Timestamp) -> bool {
    rate.correct_clock_jump(now);
    let is_ready = rate.is_ready(now);
    if is_ready {
        rate.take(now);
    }
    is_ready
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    fn from(n: u32) -> Network {
        origin::network(Ipv4Addr::from(n).into())
    }

    #[test]
    fn guessing_is_slowed_down_and_recorded_once_in_a_period() {
        let failures = AuthFailures::default();
        let reactions: Vec<FailureReaction> =
            (0..1_500).map(|n| failures.record_failure(AuthFailureKind::Wrong, false, from(7), at(n / 4))).collect();
        assert_eq!(reactions.iter().filter(|reaction| reaction.wait.is_none()).count(), 100);
        assert!(reactions[1_499].wait.is_some_and(|wait| wait <= Duration::from_secs(1)), "{:?}", reactions[1_499]);
        let lines: Vec<usize> = (0..1_500).filter(|n| reactions[*n].line.is_some()).collect();
        assert_eq!(lines, [0, REPEATED as usize - 1]);
        let recorded: Vec<usize> = (0..1_500).filter(|n| reactions[*n].audited_kinds.is_some()).collect();
        assert_eq!(recorded, [REPEATED as usize - 1]);
        assert_eq!(reactions[REPEATED as usize - 1].audited_kinds, Some(vec!["wrong".to_owned()]));
        // Other addresses need not wait, and neither do requests with a valid token.
        assert_eq!(failures.record_failure(AuthFailureKind::Wrong, false, from(8), at(400)).wait, None);
        assert_eq!(failures.record_failure(AuthFailureKind::MissingRight, true, from(7), at(400)).wait, None);
        // The count begins anew in the next period.
        let later = |n: i64| failures.record_failure(AuthFailureKind::Missing, false, from(7), at(600_001 + 2_000 * n));
        let again: Vec<i64> = (0..40).filter(|n| later(*n).audited_kinds.is_some()).collect();
        assert_eq!(again, [i64::from(REPEATED) - 1]);
    }

    #[test]
    fn whoever_waited_as_told_is_heard_again() {
        let failures = AuthFailures::default();
        let mut now = 0;
        for _ in 0..200 {
            let reaction = failures.record_failure(AuthFailureKind::Wrong, false, from(7), at(now));
            if let Some(wait) = reaction.wait {
                now += i64::try_from(whole_seconds(wait).max(1)).unwrap() * 1_000;
                assert_eq!(failures.record_failure(AuthFailureKind::Wrong, false, from(7), at(now)).wait, None);
            }
        }
        assert!(now > 40_000, "{now}");
    }

    #[test]
    fn many_addresses_cost_no_more_than_some() {
        let failures = AuthFailures::default();
        let (mut lines, mut entries, mut counted) = (0, 0, 0);
        for address in 0..40_000 {
            for _ in 0..REPEATED {
                let reaction = failures.record_failure(AuthFailureKind::Wrong, false, from(address), at(0));
                lines += usize::from(reaction.line.is_some());
                counted += reaction.line.map_or(0, |line| 1 + line.unlogged);
                entries += usize::from(reaction.audited_kinds.is_some());
            }
        }
        assert_eq!((lines, entries), (20, 60));
        let history = failures.0.lock();
        assert!(history.recent.len() <= ADDRESSES_MAX && history.earlier.len() <= ADDRESSES_MAX);
        assert_eq!(counted + history.unlogged, 40_000 * u64::from(REPEATED), "what is not logged is counted");
    }
}
