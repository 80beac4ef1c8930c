//! Knows where standard output goes: how wide the terminal is, and whether it shows
//! colours. A pipe or a file has no width and no colours.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use unicode_width::UnicodeWidthStr;

use super::wrap::wrapped_to;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::endpoint::EndpointState;
use crate::model::health::BreakerState;
use crate::model::named_enum::NamedEnum;
use crate::model::verdict::Verdict;

/// Width of a terminal that does not report its own.
const USUAL_WIDTH: usize = 80;

/// Narrowest width that output is laid out for.
const MIN_WIDTH: usize = 20;

/// The place that output is laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns of the terminal; none where output is not a terminal.
    pub width: Option<usize>,
    /// Whether output may have colours.
    pub has_colour: bool,
}

/// What a colour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Good,
    /// It may become well by itself.
    Watch,
    /// Somebody should look at it.
    Bad,
    /// Text that matters less.
    Faint,
    /// Text of a heading.
    Strong,
}

impl Screen {
    /// A pipe or a file.
    pub const PLAIN: Self = Self { width: None, has_colour: false };

    /// Returns the place that standard output goes to. `COLUMNS` sets the width of a
    /// terminal, and `NO_COLOR` turns its colours off.
    pub fn of_stdout() -> Self {
        Self::of(&std::io::stdout())
    }

    /// Returns the place that standard error goes to.
    pub fn of_stderr() -> Self {
        Self::of(&std::io::stderr())
    }

    fn of(out: &(impl IsTerminal + AsFd)) -> Self {
        if !out.is_terminal() {
            return Self::PLAIN;
        }
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let reported = rustix::termios::tcgetwinsize(out).map_or(0, |size| usize::from(size.ws_col));
        let chosen = variable("COLUMNS").parse().unwrap_or(0);
        let width = [chosen, reported].into_iter().find(|width| *width > 0).unwrap_or(USUAL_WIDTH);
        let has_colour = variable("NO_COLOR").is_empty() && variable("TERM") != "dumb";
        Self { width: Some(width.max(MIN_WIDTH)), has_colour }
    }

    /// Returns how many lines the terminal of standard output shows; none where it is not a
    /// terminal, or does not say. `LINES` sets it.
    pub fn lines_of_stdout() -> Option<usize> {
        let out = std::io::stdout();
        let chosen = std::env::var("LINES").ok().and_then(|lines| lines.parse().ok()).unwrap_or(0);
        let reported = || rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_row));
        let is_terminal = out.is_terminal();
        [chosen, if is_terminal { reported() } else { 0 }].into_iter().find(|lines| is_terminal && *lines > 0)
    }

    /// Returns how many lines a text without colours takes, with those that the terminal
    /// breaks by itself.
    pub fn lines_of(self, text: &str) -> usize {
        let of = |line: &str| self.width.map_or(1, |width| line.width().div_ceil(width).max(1));
        text.split('\n').map(of).sum()
    }

    /// Returns the place with some columns taken away on the left.
    pub fn indented(self, columns: usize) -> Self {
        Self { width: self.width.map(|width| width.saturating_sub(columns).max(MIN_WIDTH)), ..self }
    }

    /// Breaks the lines of a text between words, where they are wider than the place.
    /// Indented lines are there to be copied, and stay as they are.
    pub fn break_lines(self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let fitted = |line: &str| if line.starts_with("  ") { line.to_owned() } else { wrapped_to(line, "", width) };
        text.split('\n').map(fitted).collect::<Vec<_>>().join("\n")
    }

    /// Colours a text, if the place shows colours.
    pub fn paint(self, tone: Option<Tone>, text: &str) -> String {
        let code = match tone {
            Some(_) if !self.has_colour || text.is_empty() => return text.to_owned(),
            None => return text.to_owned(),
            Some(Tone::Good) => "32",
            Some(Tone::Watch) => "33",
            Some(Tone::Bad) => "31",
            Some(Tone::Faint) => "2",
            Some(Tone::Strong) => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

impl Tone {
    /// Returns the tone of a field's value, where the value is a state or a verdict.
    pub fn of(field: &str, value: &str) -> Option<Self> {
        let name = field.rsplit('.').next().unwrap_or(field);
        let word = value.split(' ').next().unwrap_or(value);
        match name {
            "state" if value.starts_with("in flight") => Some(Self::Watch),
            "state" => {
                variant_named(word).map(Self::of_delivery).or_else(|| variant_named(word).map(Self::of_endpoint))
            }
            "breaker" => variant_named(word).map(Self::of_breaker),
            "verdict" => variant_named(word).map(Self::of_verdict),
            "cause" => variant_named(word).map(|_: DeadCause| Self::Bad),
            "blocked" => (word == "true").then_some(Self::Bad),
            _ => None,
        }
    }

    fn of_delivery(state: DeliveryState) -> Self {
        match state {
            DeliveryState::Delivered => Self::Good,
            DeliveryState::Waiting => Self::Watch,
            DeliveryState::Dead => Self::Bad,
            DeliveryState::Cancelled => Self::Faint,
        }
    }

    fn of_endpoint(state: EndpointState) -> Self {
        match state {
            EndpointState::Active => Self::Good,
            EndpointState::Paused => Self::Watch,
            EndpointState::Disabled => Self::Bad,
        }
    }

    fn of_breaker(state: BreakerState) -> Self {
        match state {
            BreakerState::Closed => Self::Good,
            BreakerState::HalfOpen | BreakerState::Ramp => Self::Watch,
            BreakerState::Open => Self::Bad,
        }
    }

    fn of_verdict(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Delivered => Self::Good,
            Verdict::Retry => Self::Watch,
            Verdict::Refused | Verdict::Gone => Self::Bad,
        }
    }
}

/// Returns the variant of this name, if there is one.
fn variant_named<T: NamedEnum>(name: &str) -> Option<T> {
    T::ALL.iter().copied().find(|value| value.as_str() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colour_says_how_a_thing_stands() {
        for (field, value, tone) in [
            ("state", "delivered", Some(Tone::Good)),
            ("state", "dead (refused)", Some(Tone::Bad)),
            ("state", "in flight", Some(Tone::Watch)),
            ("health.breaker", "half_open", Some(Tone::Watch)),
            ("blocked", "true", Some(Tone::Bad)),
            ("blocked", "false", None),
            ("description", "dead", None),
        ] {
            assert_eq!(Tone::of(field, value), tone, "{field} {value}");
        }
        for cause in DeadCause::ALL {
            assert_eq!(Tone::of("cause", cause.as_str()), Some(Tone::Bad), "{cause:?}");
        }
    }

    #[test]
    fn sentences_are_wrapped_and_what_is_to_be_copied_stays_whole() {
        let screen = Screen { width: Some(20), has_colour: false };
        let command = "  posthaste listen --secret whsec_1234567890";
        assert_eq!(
            screen.break_lines(&format!("one two three four five\n{command}")),
            format!("one two three four\nfive\n{command}")
        );
    }

    #[test]
    fn lines_that_the_terminal_breaks_count_each() {
        let screen = Screen { width: Some(10), has_colour: false };
        assert_eq!(screen.lines_of("ten chars!\n\neleven char"), 1 + 1 + 2);
        assert_eq!(Screen::PLAIN.lines_of("as wide as it likes to be\n"), 2);
    }

    #[test]
    fn only_a_screen_with_colours_gets_them() {
        let colourful = Screen { width: Some(80), has_colour: true };
        assert_eq!(colourful.paint(Some(Tone::Bad), "dead"), "\x1b[31mdead\x1b[0m");
        assert_eq!(colourful.paint(None, "dead"), "dead");
        assert_eq!(Screen::PLAIN.paint(Some(Tone::Bad), "dead"), "dead");
    }
}
