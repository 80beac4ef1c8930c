//! Parses the script of a receiver's answers, such as `503x3,429:5s,200`.
//!
//! Steps are used up one after the other; the last one repeats for ever.

use std::fmt;
use std::str::FromStr;

use http::StatusCode;

use crate::model::span::Span;

/// A script of answers, and how far it is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerScript {
    steps: Vec<ScriptStep>,
    /// Index of the present step.
    step: usize,
    /// Number of times that the present step was used.
    used: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScriptStep {
    answer: ScriptedAnswer,
    count: u32,
}

/// One answer of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptedAnswer {
    /// Status of the answer.
    pub status: StatusCode,
    /// Value of `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// Value of `webhook-delivery`: abort or disable.
    pub word: Option<&'static str>,
}

/// The step of a text that makes it no script, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "step {step:?} {why}; write steps like 503x3,429:5s,200 (STATUS, then xCOUNT and :RETRY_AFTER, :abort or :disable where wanted)"
)]
pub struct InvalidScript {
    step: String,
    why: &'static str,
}

impl AnswerScript {
    /// Returns the next answer and uses it up.
    pub fn use_next(&mut self) -> ScriptedAnswer {
        let step = self.steps[self.step];
        self.used = self.used.saturating_add(1);
        if self.used >= step.count && self.step + 1 < self.steps.len() {
            self.step += 1;
            self.used = 0;
        }
        step.answer
    }
}

impl ScriptedAnswer {
    /// Returns an answer with a status alone.
    pub const fn plain(status: StatusCode) -> Self {
        Self { status, retry_after: None, word: None }
    }
}

impl FromStr for AnswerScript {
    type Err = InvalidScript;

    fn from_str(text: &str) -> Result<Self, InvalidScript> {
        let steps = text.split(',').map(|step| {
            let step = step.trim();
            read_step(step).map_err(|why| InvalidScript { step: step.to_owned(), why })
        });
        Ok(Self { steps: steps.collect::<Result<_, _>>()?, step: 0, used: 0 })
    }
}

fn read_step(step: &str) -> Result<ScriptStep, &'static str> {
    let (rest, retry_after, word) = match step.split_once(':') {
        None => (step, None, None),
        Some((rest, "abort")) => (rest, None, Some("abort")),
        Some((rest, "disable")) => (rest, None, Some("disable")),
        Some((rest, span)) => (rest, Some(read_seconds(span)?), None),
    };
    let (status, count) = match rest.split_once('x') {
        None => (rest, 1),
        Some((status, count)) => (status, read_count(count)?),
    };
    Ok(ScriptStep { answer: ScriptedAnswer { status: read_status(status)?, retry_after, word }, count })
}

fn read_status(text: &str) -> Result<StatusCode, &'static str> {
    let why = "has no status from 200 to 999";
    let number: u16 = text.parse().map_err(|_| why)?;
    // A status below 200 is never a final answer, so a server cannot send it as one.
    StatusCode::from_u16(number).ok().filter(|status| status.as_u16() >= 200).ok_or(why)
}

fn read_count(text: &str) -> Result<u32, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("has no count of 1 or more after its x")
}

fn read_seconds(text: &str) -> Result<u64, &'static str> {
    let why = "has no span of whole seconds after its colon, such as 5s or 2m";
    let millis = text.parse::<Span>().map_err(|_| why)?.as_millis();
    if millis.is_multiple_of(1_000) { Ok(millis / 1_000) } else { Err(why) }
}

impl fmt::Display for AnswerScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.steps.len() - 1;
        for (n, step) in self.steps.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", then " };
            let count = match (n == last, step.count) {
                (true, _) if n > 0 => " for ever".to_owned(),
                (true, _) | (false, 1) => String::new(),
                (false, count) => format!(" ({count} times)"),
            };
            write!(f, "{comma}{}{count}", step.answer)?;
        }
        Ok(())
    }
}

impl fmt::Display for ScriptedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.retry_after, self.word) {
            (Some(seconds), _) => write!(f, "{} with Retry-After {seconds}", self.status.as_u16()),
            (None, Some(word)) => write!(f, "{} with webhook-delivery {word}", self.status.as_u16()),
            (None, None) => write!(f, "{}", self.status.as_u16()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(script: &str, count: usize) -> Vec<(u16, Option<u64>)> {
        let mut script: AnswerScript = script.parse().unwrap();
        (0..count).map(|_| script.use_next()).map(|answer| (answer.status.as_u16(), answer.retry_after)).collect()
    }

    #[test]
    fn steps_are_used_up_in_order_and_the_last_repeats_for_ever() {
        let expected = [(503, None), (503, None), (503, None), (429, Some(5)), (200, None), (200, None), (200, None)];
        assert_eq!(answers("503x3,429:5s,200", 7), expected);
        assert_eq!(answers("200", 3), [(200, None); 3]);
        assert_eq!(answers("500x2", 4), [(500, None); 4]);
        assert_eq!(answers(" 503x2:2m , 204 ", 3), [(503, Some(120)), (503, Some(120)), (204, None)]);
        assert_eq!(answers("429:0s,999", 3), [(429, Some(0)), (999, None), (999, None)]);
    }

    #[test]
    fn a_wrong_script_names_its_step_and_shows_a_right_one() {
        let wrong = [
            ("", ""),
            ("503,", ""),
            ("503x3,,200", ""),
            ("abc", "abc"),
            ("200,99", "99"),
            ("100", "100"),
            ("1000", "1000"),
            ("503x0", "503x0"),
            ("503x", "503x"),
            ("503x-1", "503x-1"),
            ("x3", "x3"),
            ("200,429:5", "429:5"),
            ("429:", "429:"),
            ("429:500ms", "429:500ms"),
            ("429:5sx3", "429:5sx3"),
            ("-200", "-200"),
        ];
        for (text, step) in wrong {
            let refusal = text.parse::<AnswerScript>().unwrap_err().to_string();
            assert!(refusal.starts_with(&format!("step {step:?} has no ")), "{text}: {refusal}");
            assert!(refusal.contains("503x3,429:5s,200"), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_script_can_be_told() {
        let shown = |text: &str| text.parse::<AnswerScript>().unwrap().to_string();
        assert_eq!(shown("503x3,429:5s,200"), "503 (3 times), then 429 with Retry-After 5, then 200 for ever");
        assert_eq!(shown("200"), "200");
        assert_eq!(
            shown("503:abort,200:disable"),
            "503 with webhook-delivery abort, then 200 with webhook-delivery disable for ever"
        );
    }
}
