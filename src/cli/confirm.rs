//! Asks before something is lost for good.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, bail};

use super::failure::{CommandFailure, ExitReason};
use super::screen::Screen;

/// How a deletion is confirmed.
#[derive(Debug, clap::Args)]
pub struct ConfirmArgs {
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

impl ConfirmArgs {
    /// Says what will happen, and asks whether it shall. Where nobody can answer, only
    /// `--yes` does.
    pub fn confirm(&self, what: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        let (input, mut output) = (std::io::stdin(), std::io::stderr());
        if !input.is_terminal() || !output.is_terminal() {
            bail!(CommandFailure::usage(format!("{what}; repeat this with --yes to do it")));
        }
        let mut answer = String::new();
        let question = Screen::of_stderr().break_lines(&format!("{what}. Do it? [y/N]"));
        write!(output, "{question} ").context("cannot ask whether to do it; repeat this with --yes")?;
        output.flush().and_then(|()| input.lock().read_line(&mut answer)).context("cannot read the answer")?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => bail!(CommandFailure::new(ExitReason::Other, "nothing was done")),
        }
    }
}

/// Renders a number of things, such as `1 endpoint` and `2 endpoints`.
pub fn count_with_noun(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Renders what happens to the deliveries that wait, if it is known how many there are.
pub fn cancelled_words(waiting: Option<u64>) -> String {
    match waiting {
        None => "every waiting delivery".to_owned(),
        Some(0) => "no delivery".to_owned(),
        Some(waiting) => count_with_noun(waiting, "waiting delivery", "waiting deliveries"),
    }
}
