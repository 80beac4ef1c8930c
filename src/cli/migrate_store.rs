//! `posthaste migrate-store`: moves an embedded installation to a PostgreSQL.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};

use super::failure::CommandFailure;
use crate::app::move_store::{MoveProgress, MovedCounts, StoreMove};
use crate::config::{OptionalDatabase, OptionalFilePath, PartialSettings, Settings};

/// Interval of the progress lines where there is no terminal.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Move an embedded installation to a PostgreSQL
///
/// Everything goes: tenants, endpoints and their secrets, the admin token, events, deliveries in every state, attempts and
/// lanes, under the same ids. The gateway must be stopped meanwhile. Stopped or killed, the same command goes on where it
/// was. Nothing of the source is changed; a file named `moved` there keeps a gateway from starting on it again.
#[derive(Debug, clap::Args)]
pub struct MigrateStoreArgs {
    /// The data directory of the embedded store.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The PostgreSQL, empty or half filled by the same command, such as postgres://user:password@db.example.com/posthaste.
    #[arg(long, env = "POSTHASTE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    to: Option<OptionalDatabase>,
    /// The file that holds the PostgreSQL's URL, instead.
    #[arg(long, env = "POSTHASTE_DATABASE_URL_FILE", value_name = "FILE")]
    to_file: Option<OptionalFilePath>,
    /// The key under which secrets are sealed, here and there; without it, `master-key` in the data directory.
    #[arg(long, env = "POSTHASTE_MASTER_KEY_FILE", value_name = "FILE")]
    master_key_file: Option<OptionalFilePath>,
    /// How many rows go in one transaction.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
}

/// Moves everything and prints what was moved.
pub async fn run(args: MigrateStoreArgs) -> anyhow::Result<()> {
    // If both are given, one of them in the environment, the URL itself wins.
    let to_file = args.to_file.filter(|_| args.to.is_none());
    let given = PartialSettings { database_url: args.to, database_url_file: to_file, ..PartialSettings::default() };
    let settings = Settings::resolve(given, PartialSettings::default());
    settings.check()?;
    let Some(to) = settings.database()? else {
        bail!(CommandFailure::usage("it is not said where to move to; name a PostgreSQL with --to postgres://…"))
    };
    let store_move = StoreMove {
        from: args.from,
        to,
        master_key_file: args.master_key_file.and_then(|file| file.0),
        batch: args.batch as usize,
    };
    let mut reporter = ProgressReporter::new();
    let moved = store_move.run(&mut |progress| reporter.report(progress)).await;
    reporter.end_line();
    match moved? {
        Some(moved) => println!("{}", summary(&store_move, &moved)),
        None => println!("Everything in {} was moved there before; nothing was left to do.", store_move.from.display()),
    }
    Ok(())
}

/// Shows the progress: a bar on a terminal, else a line every ten seconds.
struct ProgressReporter {
    bar: ProgressBar,
    is_terminal: bool,
    reported_at: Option<Instant>,
}

impl ProgressReporter {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{bar:40} {pos} of {len} rows, {eta} left; {msg}")
            .expect("the template is well formed");
        let bar = ProgressBar::new(0).with_style(style);
        Self { bar, is_terminal: std::io::stderr().is_terminal(), reported_at: None }
    }

    fn report(&mut self, progress: MoveProgress) {
        if self.is_terminal {
            self.bar.set_length(progress.total);
            self.bar.set_position(progress.done);
            self.bar.set_message(progress.part);
        } else if self.reported_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            self.reported_at = Some(Instant::now());
            let (done, total) = (with_thousands_commas(progress.done), with_thousands_commas(progress.total));
            eprintln!("moving {}: {done} of {total} rows", progress.part);
        }
    }

    fn end_line(&self) {
        self.bar.finish_and_clear();
    }
}

fn summary(store_move: &StoreMove, moved: &MovedCounts) -> String {
    let parts: Vec<String> = moved
        .iter()
        .filter(|(name, _)| *name != "event ids")
        .map(|(name, n)| format!("{} {name}", with_thousands_commas(*n)))
        .collect();
    format!(
        "Moved everything from {} to PostgreSQL at {}:\n{}.\nBoth sides were counted, and agree. \
         Start the nodes with --database-url, each with the key in {}.",
        store_move.from.display(),
        store_move.to.description(),
        parts.join(", "),
        store_move.key_file().display()
    )
}

/// Renders a number with commas between its thousands.
fn with_thousands_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(with_thousands_commas(number), text);
        }
    }
}
