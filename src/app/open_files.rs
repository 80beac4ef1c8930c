//! Raises the limit of open files to fit the number of connections.
//!
//! The usual limit of a shell, 1,024, is less than the connections that may be open
//! in both directions. A process may raise its own limit as far as the system's hard
//! limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Files that the store, the log and the like may have open.
const OWN_FILES: u64 = 256;

/// Raises the limit for this number of connections, and warns if it stays too low.
pub fn raise_open_files_limit(connections: usize) {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OWN_FILES);
    let limit = getrlimit(Resource::Nofile);
    let allowed = raised_limit(limit, wanted);
    if allowed.current != limit.current && setrlimit(Resource::Nofile, allowed).is_err() {
        warn_if_below(limit.current, wanted);
        return;
    }
    warn_if_below(allowed.current, wanted);
}

fn raised_limit(limit: Rlimit, wanted: u64) -> Rlimit {
    let current = limit.current.map(|now| now.max(limit.maximum.map_or(wanted, |hard| hard.min(wanted))));
    Rlimit { current, ..limit }
}

fn warn_if_below(current: Option<u64>, wanted: u64) {
    if let Some(current) = current.filter(|current| *current < wanted) {
        warn!(
            "the limit of open files is {current}, and {wanted} may be needed when all connections are in use; \
             raise it (ulimit -n, LimitNOFILE), or lower --max-connections and --max-in-flight"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_allowed_and_never_lowered() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let to = |current, maximum| raised_limit(limit(current, maximum), 12_000).current;
        assert_eq!(to(Some(1_024), Some(1_048_576)), Some(12_000));
        assert_eq!(to(Some(1_024), Some(4_096)), Some(4_096));
        assert_eq!(to(Some(1_024), None), Some(12_000));
        assert_eq!(to(Some(65_536), Some(65_536)), Some(65_536));
        assert_eq!(to(None, None), None);
    }
}
