//! What becomes of requests that are refused for who asks: each is counted,
//! repeated ones are logged, recorded and slowed down.
//!
//! The count is kept for each address (of IPv6 for each /64), in memory and
//! by each node for itself. A request with a valid token is never refused for
//! what others did from its address.
//!
//! Invariant: however many addresses there are, memory, log lines and audit
//! entries are bounded.

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
use super::origin::{self, Network, RequestId};
use super::problem::{Problem, ProblemCode};
use super::rate_limit_headers::whole_seconds;
use crate::metrics::AuthFailureKind;
use crate::model::audit::{AuditAction, AuditedAction, Caller, CallerIdentity};
use crate::model::id::TenantId;
use crate::model::rate::{Gcra, Rate};
use crate::model::token::Token;
use crate::store::with_caller;

/// How many addresses are remembered at least; at most twice as many are.
const ADDRESSES_MAX: usize = 8_192;
/// How long an address is remembered at least.
const PERIOD: Duration = Duration::from_secs(600);
/// How many failures within a period are recorded as repeated.
pub const REPEATED: u32 = 20;
/// How often an address may fail without a valid token before it is told to
/// wait: this often at once, then once a second.
const FREE: Rate = Rate { per_second: 1.0, burst: 100 };
/// How many lines are logged, and how many entries recorded, over all addresses.
const LINES: Rate = Rate { per_second: 1.0, burst: 20 };
const ENTRIES: Rate = Rate { per_second: 0.1, burst: 60 };

/// A request that is refused for who asks.
pub struct AuthFailure {
    /// What was wrong.
    pub kind: AuthFailureKind,
    /// What it is answered.
    pub problem: Problem,
    /// The token it names, which exists.
    pub token: Option<Arc<Token>>,
}

impl AuthFailure {
    /// Whether the token is good, and only not for this.
    fn has_valid_token(&self) -> bool {
        matches!(self.kind, AuthFailureKind::MissingRight | AuthFailureKind::OtherTenant)
    }

    /// Whose token was shown. One that is wrong shows nothing of its owner.
    fn by(&self) -> CallerIdentity {
        match (&self.token, self.kind) {
            (Some(token), AuthFailureKind::MissingRight | AuthFailureKind::OtherTenant | AuthFailureKind::Expired) => {
                CallerIdentity::Token { id: token.id, name: token.name.clone() }
            }
            _ => CallerIdentity::Unknown,
        }
    }
}

/// Counts a failure, and answers it.
pub fn refuse(api: &SharedApiState, request: &Request, failure: AuthFailure) -> Problem {
    let address = origin::of(request, &api.trusted_proxies);
    if let Some(standing) = request.extensions().get::<ConnectionStatus>()
        && !failure.has_valid_token()
    {
        standing.mark_unauthenticated(address.map(origin::network));
    }
    api.gateway.metrics.auth_failed(failure.kind);
    let network = origin::network(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    let noted = api.failures.record_failure(failure.kind, failure.has_valid_token(), network, api.gateway.clock.now());
    let (kind, words) = (failure.kind.as_str(), &failure.problem);
    match noted.line {
        Some(FailureLogLine { is_repeated: true, unlogged }) => {
            warn!(from = %network, kind, unlogged, "{REPEATED} requests from {network} were refused within 10m, the last with {}", words.code().as_str());
        }
        Some(FailureLogLine { is_repeated: false, unlogged }) => {
            info!(from = %network, kind, unlogged, "a request from {network} was refused with {}", words.code().as_str());
        }
        None => {}
    }
    if let Some(kinds) = noted.recorded {
        record(api, request, &failure, network, kinds);
    }
    match noted.wait {
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

/// Puts repeated failures on record: with the tenant of the token that was
/// shown or named, who alone can do something about it, or else with the
/// gateway's own tenant, which its operator reads.
fn record(api: &SharedApiState, request: &Request, failure: &AuthFailure, network: Network, kinds: Vec<String>) {
    let (tenant, resource) = match &failure.token {
        Some(token) => (token.recorded_with(), token.id.to_string()),
        None => (TenantId::system(), network.to_string()),
    };
    let caller = Caller {
        by: failure.by(),
        from: origin::of(request, &api.trusted_proxies),
        request_id: request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default(),
        at: api.gateway.clock.wall(),
    };
    let audited = AuditedAction::new(AuditAction::AuthRepeated, &tenant, resource).changing(kinds);
    let store = api.gateway.store.clone();
    // The answer does not wait for it.
    tokio::spawn(with_caller(Arc::new(caller), async move {
        if let Err(problem) = store.record(audited).await {
            warn!("repeated failures of authentication could not be recorded: {problem}");
        }
    }));
}

/// The failures of every address, as far as they are remembered.
#[derive(Debug)]
pub struct AuthFailures(Mutex<FailureHistory>);

#[derive(Debug)]
struct FailureHistory {
    /// Two generations: what is not seen again during one is forgotten with the next.
    recent: HashMap<Network, AddressFailures>,
    earlier: HashMap<Network, AddressFailures>,
    period_began_at: Timestamp,
    lines: Gcra,
    entries: Gcra,
    /// How many failures were not logged since the last line.
    unlogged: u64,
}

/// What an address has done in its period.
#[derive(Debug, Clone, Copy)]
struct AddressFailures {
    since: Timestamp,
    count: u32,
    /// The kinds that were met, as bits.
    kinds: u8,
    rate: Gcra,
}

/// What is to be done about a failure.
#[derive(Debug, PartialEq)]
struct FailureReaction {
    /// How long the address has to wait, if it has to.
    wait: Option<Duration>,
    line: Option<FailureLogLine>,
    /// The kinds to record, if this is to be recorded.
    recorded: Option<Vec<String>>,
}

/// A line of the log.
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
            lines: Gcra::at_ingest(LINES),
            entries: Gcra::at_ingest(ENTRIES),
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
        let mut remembered = self.0.lock();
        let mut tally = remembered.failures_of(from, now);
        tally.count = tally.count.saturating_add(1);
        tally.kinds |= 1 << kind as u8;
        let wait = match (has_valid_token, tally.rate.is_ready(now)) {
            (true, _) => None,
            (false, true) => {
                tally.rate.take(now);
                None
            }
            (false, false) => Some(tally.rate.ready_at().duration_since(now).unsigned_abs()),
        };
        remembered.recent.insert(from, tally);
        let is_repeated = tally.count == REPEATED;
        let line = (is_repeated || tally.count == 1).then(|| remembered.line(is_repeated, now)).flatten();
        if line.is_none() {
            remembered.unlogged += 1;
        }
        let is_recorded = is_repeated && take(&mut remembered.entries, now);
        let recorded =
            is_recorded.then(|| AuthFailureKind::ALL.iter().filter(|kind| tally.kinds & (1 << **kind as u8) != 0));
        FailureReaction {
            wait,
            line,
            recorded: recorded.map(|kinds| kinds.map(|kind| kind.as_str().to_owned()).collect()),
        }
    }
}

impl FailureHistory {
    /// What is remembered of an address in its present period.
    fn failures_of(&mut self, from: Network, now: Timestamp) -> AddressFailures {
        let age = |since: Timestamp| now.duration_since(since).unsigned_abs();
        if self.recent.len() >= ADDRESSES_MAX || age(self.period_began_at) >= PERIOD {
            self.earlier = std::mem::take(&mut self.recent);
            self.period_began_at = now;
        }
        let known = self.recent.get(&from).copied().or_else(|| self.earlier.remove(&from));
        match known {
            Some(tally) if age(tally.since) < PERIOD => tally,
            // What it owes of its pace it owes still.
            Some(tally) => AddressFailures { since: now, count: 0, kinds: 0, ..tally },
            None => AddressFailures { since: now, count: 0, kinds: 0, rate: Gcra::at_ingest(FREE) },
        }
    }

    fn line(&mut self, is_repeated: bool, now: Timestamp) -> Option<FailureLogLine> {
        if !take(&mut self.lines, now) {
            return None;
        }
        Some(FailureLogLine { is_repeated, unlogged: std::mem::take(&mut self.unlogged) })
    }
}

fn take(pace: &mut Gcra, now: Timestamp) -> bool {
    pace.correct_clock_jump(now);
    let is_ready = pace.is_ready(now);
    if is_ready {
        pace.take(now);
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
        let noted: Vec<FailureReaction> =
            (0..1_500).map(|n| failures.record_failure(AuthFailureKind::Wrong, false, from(7), at(n / 4))).collect();
        assert_eq!(noted.iter().filter(|noted| noted.wait.is_none()).count(), 100);
        assert!(noted[1_499].wait.is_some_and(|wait| wait <= Duration::from_secs(1)), "{:?}", noted[1_499]);
        let lines: Vec<usize> = (0..1_500).filter(|n| noted[*n].line.is_some()).collect();
        assert_eq!(lines, [0, REPEATED as usize - 1]);
        let recorded: Vec<usize> = (0..1_500).filter(|n| noted[*n].recorded.is_some()).collect();
        assert_eq!(recorded, [REPEATED as usize - 1]);
        assert_eq!(noted[REPEATED as usize - 1].recorded, Some(vec!["wrong".to_owned()]));
        // Others are not told to wait, and with a valid token nobody is.
        assert_eq!(failures.record_failure(AuthFailureKind::Wrong, false, from(8), at(400)).wait, None);
        assert_eq!(failures.record_failure(AuthFailureKind::MissingRight, true, from(7), at(400)).wait, None);
        // In the next period it begins anew.
        let later = |n: i64| failures.record_failure(AuthFailureKind::Missing, false, from(7), at(600_001 + 2_000 * n));
        let again: Vec<i64> = (0..40).filter(|n| later(*n).recorded.is_some()).collect();
        assert_eq!(again, [i64::from(REPEATED) - 1]);
    }

    #[test]
    fn whoever_waited_as_told_is_heard_again() {
        let failures = AuthFailures::default();
        let mut now = 0;
        for _ in 0..200 {
            let noted = failures.record_failure(AuthFailureKind::Wrong, false, from(7), at(now));
            if let Some(wait) = noted.wait {
                now += i64::try_from(whole_seconds(wait).max(1)).unwrap() * 1_000;
                assert_eq!(failures.record_failure(AuthFailureKind::Wrong, false, from(7), at(now)).wait, None);
            }
        }
        assert!(now > 40_000, "{now}");
    }

    #[test]
    fn many_addresses_cost_no_more_than_some() {
        let failures = AuthFailures::default();
        let (mut lines, mut entries, mut told) = (0, 0, 0);
        for address in 0..40_000 {
            for _ in 0..REPEATED {
                let noted = failures.record_failure(AuthFailureKind::Wrong, false, from(address), at(0));
                lines += usize::from(noted.line.is_some());
                told += noted.line.map_or(0, |line| 1 + line.unlogged);
                entries += usize::from(noted.recorded.is_some());
            }
        }
        assert_eq!((lines, entries), (20, 60));
        let remembered = failures.0.lock();
        assert!(remembered.recent.len() <= ADDRESSES_MAX && remembered.earlier.len() <= ADDRESSES_MAX);
        assert_eq!(told + remembered.unlogged, 40_000 * u64::from(REPEATED), "what is not logged is counted");
    }
}
