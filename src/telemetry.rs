//! How the process speaks: one log line per thing that happened.
//!
//! Fields are dotted (`event.id`, `delivery.id`, `endpoint.id`, `tenant.id`);
//! payloads and secrets never appear, only a payload's hash.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging to standard error.
pub fn start(format: LogFormat, filter: &str) {
    let is_human = match format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let is_coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt().with_env_filter(wanted(filter)).with_writer(std::io::stderr);
    // A second start in one process keeps the first.
    let _ = match is_human {
        true => builder.with_target(false).with_ansi(is_coloured).try_init(),
        false => builder.json().flatten_event(true).try_init(),
    };
}

/// What is logged: as asked for, and nothing of rustls unless it is named. It
/// warns of receivers that fumble a handshake, which the attempt's own
/// line says already; whatever is built with its `logging` turns that on for
/// all. The database's driver never says more than a warning, named or not: it
/// would write down what it is given, and that is payloads.
fn wanted(filter: &str) -> EnvFilter {
    let quiet = |filter: EnvFilter| {
        let directive = "tokio_postgres=warn".parse().expect("a directive");
        filter.add_directive(directive)
    };
    EnvFilter::try_new(format!("rustls=off,{filter}")).map(quiet).unwrap_or_else(|_| EnvFilter::new("info"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustls_speaks_only_when_it_is_asked() {
        let shown = |filter: &str| wanted(filter).to_string();
        assert_eq!(shown("info"), "tokio_postgres=warn,rustls=off,info");
        assert_eq!(shown("posthaste=debug,warn"), "tokio_postgres=warn,posthaste=debug,rustls=off,warn");
        assert_eq!(shown("rustls=debug"), "tokio_postgres=warn,rustls=debug");
    }

    #[test]
    fn the_database_driver_never_writes_down_what_it_is_given() {
        for filter in ["trace", "tokio_postgres=trace", "debug,tokio_postgres=debug"] {
            let shown = wanted(filter).to_string();
            assert!(shown.contains("tokio_postgres=warn") && !shown.contains("tokio_postgres=trace"), "{shown}");
        }
    }
}
