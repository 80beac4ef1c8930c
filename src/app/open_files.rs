//! How many files and sockets the process may have open.
//!
//! The usual limit of a shell, 1,024, is less than the connections that may be
//! open, in both directions. A process may raise it as far as the system lets
//! it, and nobody has to be asked.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// What the store, the log and the like have open.
const OWN: u64 = 256;

/// Makes room for so many connections, and says so where there is none.
pub fn raise_open_files_limit(connections: usize) {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OWN);
    let limit = getrlimit(Resource::Nofile);
    let allowed = raised(limit, wanted);
    if allowed.current != limit.current && setrlimit(Resource::Nofile, allowed).is_err() {
        warn_of(limit.current, wanted);
        return;
    }
    warn_of(allowed.current, wanted);
}

fn raised(limit: Rlimit, wanted: u64) -> Rlimit {
    let current = limit.current.map(|now| now.max(limit.maximum.map_or(wanted, |most| most.min(wanted))));
    Rlimit { current, ..limit }
}

fn warn_of(current: Option<u64>, wanted: u64) {
    if let Some(current) = current.filter(|current| *current < wanted) {
        warn!(
            "{current} files may be open, and {wanted} are needed when as many connections are open as may be; \
             raise the limit (ulimit -n, LimitNOFILE), or lower --max-connections and --max-in-flight"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_allowed_and_never_lowered() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let to = |current, maximum| raised(limit(current, maximum), 12_000).current;
        assert_eq!(to(Some(1_024), Some(1_048_576)), Some(12_000));
        assert_eq!(to(Some(1_024), Some(4_096)), Some(4_096));
        assert_eq!(to(Some(1_024), None), Some(12_000));
        assert_eq!(to(Some(65_536), Some(65_536)), Some(65_536));
        assert_eq!(to(None, None), None);
    }
}
