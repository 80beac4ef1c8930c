//! The signals after which a command cleans up and ends: interrupt, terminate, and the hangup of
//! a terminal that is gone, as after a lost ssh session.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that tell this process to end, caught from the creation of this value on.
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    /// None if hangups were ignored from the start, as under `nohup`; they still are.
    hangup: Option<Signal>,
}

impl EndSignals {
    /// Catches the signals from here on.
    pub fn catch() -> io::Result<Self> {
        // Where there is no such file, nothing says that hangups are ignored.
        let is_ignored = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangups(&status));
        let hangup = if is_ignored { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Returns when one of them has come, with what it means in words.
    pub async fn received(&mut self) -> &'static str {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => "was interrupted",
            _ = terminate.recv() => "was told to end",
            _ = hung_up => "has lost its terminal",
        }
    }
}

/// Whether a process with this status, in the words of the kernel, ignores SIGHUP, which is signal 1.
fn ignores_hangups(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_that_was_ignored_from_the_start_stays_so() {
        assert!(ignores_hangups("Name:\tposthaste\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n"));
        assert!(!ignores_hangups("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hangups(""));
    }
}
