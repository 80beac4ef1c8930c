//! Sets up logging to standard error.
//!
//! Field names are dotted (`event.id`, `delivery.id`, `endpoint.id`,
//! `tenant.id`). Payloads and secrets are never logged, only a payload's hash.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use self::json_line::JsonLine;
use self::log_writer::{LogGuard, LogWriter};
use crate::config::LogFormat;

mod json_line;
pub mod log_writer;

/// Starts logging to standard error in this format, for what the filter lets
/// through. The guard is to be kept until the process ends.
pub fn start(format: LogFormat, filter: &str) -> LogGuard {
    let is_human = match format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let is_coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt().with_env_filter(env_filter(filter));
    // A second start in one process fails and leaves the first logger in place.
    if is_human {
        let _ = builder.with_target(false).with_ansi(is_coloured).with_writer(std::io::stderr).try_init();
        return LogGuard(None);
    }
    let writer = LogWriter::start(std::io::stderr());
    let _ = builder.json().event_format(JsonLine::new()).with_writer(writer.clone()).try_init();
    LogGuard(Some(writer))
}

/// Returns the filter as given, with rustls off and tokio_postgres at `warn`. A filter
/// that names parts alone has `info` for everything else: a misspelt part must not
/// silence the log.
///
/// rustls warns of failed handshakes with receivers, which the line of the
/// attempt reports already; a filter that names rustls turns it on again.
/// tokio_postgres logs query parameters below `warn`, and those are payloads,
/// so no filter can lower it.
fn env_filter(filter: &str) -> EnvFilter {
    let cap_tokio_postgres = |filter: EnvFilter| {
        let directive = "tokio_postgres=warn".parse().expect("it is a valid filter directive");
        filter.add_directive(directive)
    };
    let has_level = filter.split(',').any(|part| part.trim().parse::<LevelFilter>().is_ok());
    let default = if has_level { "" } else { "info," };
    EnvFilter::try_new(format!("{default}rustls=off,{filter}"))
        .map(cap_tokio_postgres)
        .unwrap_or_else(|_| EnvFilter::new("info"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustls_speaks_only_when_it_is_asked() {
        let shown = |filter: &str| env_filter(filter).to_string();
        assert_eq!(shown("info"), "tokio_postgres=warn,rustls=off,info");
        assert_eq!(shown("posthaste=debug,warn"), "tokio_postgres=warn,posthaste=debug,rustls=off,warn");
        assert_eq!(shown("rustls=debug"), "tokio_postgres=warn,rustls=debug,info");
        for parts in ["posthaste::lifecycle=debug", "[x]=debug"] {
            assert!(
                shown(parts).split(',').any(|part| part == "info"),
                "the rest is logged as usual: {}",
                shown(parts)
            );
        }
    }

    #[test]
    fn the_database_driver_never_writes_down_what_it_is_given() {
        for filter in ["trace", "tokio_postgres=trace", "debug,tokio_postgres=debug"] {
            let shown = env_filter(filter).to_string();
            assert!(shown.contains("tokio_postgres=warn") && !shown.contains("tokio_postgres=trace"), "{shown}");
        }
    }
}
