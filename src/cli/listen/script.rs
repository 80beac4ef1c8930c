//! Parses the script of a receiver's replies, such as `503x3,429:5s,hang,200@2s`.
//!
//! Steps are used up one after the other; the last one repeats for ever, unless the
//! script ends with `repeat`: then it starts again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;

use crate::model::span::Span;

/// A script of replies, and how far it is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerScript {
    steps: Vec<ScriptStep>,
    /// Whether the first step follows the last one.
    is_repeated: bool,
    /// Index of the present step.
    step: usize,
    /// Number of times that the present step was used.
    used: u32,
    /// Time of the first request of the present step.
    began_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScriptStep {
    reply: ScriptedReply,
    length: StepLength,
}

/// How long a step of a script lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepLength {
    Requests(u32),
    /// Counted from the first request of the step.
    Time(Duration),
}

/// One reply of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptedReply {
    /// What the reply consists of.
    pub action: ReplyAction,
    /// Time to wait before it.
    pub delay: Duration,
}

/// What a reply consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyAction {
    /// An answer of the receiver's own.
    Answer(ScriptedAnswer),
    /// The answer of the service that the request was forwarded to.
    Pass,
    /// No answer on a connection that stays open.
    Hang,
    /// No answer; the connection is closed.
    Drop,
}

/// An answer that a script describes.
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
    "step {step:?} {why}; write steps like 503x3,429:5s,hangx1m,200@2s (STATUS, hang, drop or pass, then where wanted xCOUNT or xSPAN, @DELAY, and :RETRY_AFTER, :abort or :disable)"
)]
pub struct InvalidScript {
    step: String,
    why: &'static str,
}

impl AnswerScript {
    /// Returns the next reply and uses it up.
    pub fn use_next(&mut self, now: Timestamp) -> ScriptedReply {
        loop {
            let step = self.steps[self.step];
            let has_next = self.is_repeated || self.step + 1 < self.steps.len();
            match step.length {
                StepLength::Requests(count) => {
                    self.used = self.used.saturating_add(1);
                    if self.used >= count && has_next {
                        self.advance();
                    }
                    return step.reply;
                }
                StepLength::Time(span) => {
                    let began_at = *self.began_at.get_or_insert(now);
                    let is_over = now.duration_since(began_at).unsigned_abs() >= span;
                    if !is_over || !has_next {
                        return step.reply;
                    }
                    self.advance();
                }
            }
        }
    }

    fn advance(&mut self) {
        self.step = (self.step + 1) % self.steps.len();
        self.used = 0;
        self.began_at = None;
    }

    /// Whether a step answers as the service does that requests are forwarded to.
    pub fn passes(&self) -> bool {
        self.steps.iter().any(|step| step.reply.action == ReplyAction::Pass)
    }
}

impl ScriptedReply {
    /// Returns an answer at once, with a status alone.
    pub const fn plain(status: StatusCode) -> Self {
        Self { action: ReplyAction::Answer(ScriptedAnswer::plain(status)), delay: Duration::ZERO }
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
        let mut texts: Vec<&str> = text.split(',').map(str::trim).collect();
        let is_repeated = texts.len() > 1 && texts.last() == Some(&"repeat");
        if is_repeated {
            texts.pop();
        }
        let steps = texts
            .into_iter()
            .map(|step| read_step(step).map_err(|why| InvalidScript { step: step.to_owned(), why }))
            .collect::<Result<_, _>>()?;
        Ok(Self { steps, is_repeated, step: 0, used: 0, began_at: None })
    }
}

fn read_step(step: &str) -> Result<ScriptStep, &'static str> {
    let (rest, says) = match step.split_once(':') {
        None => (step, None),
        Some((rest, says)) => (rest, Some(says)),
    };
    let (rest, delay) = match rest.split_once('@') {
        None => (rest, Duration::ZERO),
        Some((rest, span)) => (rest, read_delay(span)?),
    };
    let (name, length) = match rest.split_once('x') {
        None => (rest, StepLength::Requests(1)),
        Some((name, length)) => (name, read_length(length)?),
    };
    let action = match name {
        "hang" => ReplyAction::Hang,
        "drop" => ReplyAction::Drop,
        "pass" => ReplyAction::Pass,
        status => {
            let (retry_after, word) = match says {
                None => (None, None),
                Some("abort") => (None, Some("abort")),
                Some("disable") => (None, Some("disable")),
                Some(span) => (Some(read_seconds(span)?), None),
            };
            ReplyAction::Answer(ScriptedAnswer { status: read_status(status)?, retry_after, word })
        }
    };
    if says.is_some() && !matches!(action, ReplyAction::Answer(_)) {
        return Err("has no status that could say what follows its colon");
    }
    Ok(ScriptStep { reply: ScriptedReply { action, delay }, length })
}

fn read_status(text: &str) -> Result<StatusCode, &'static str> {
    let why = "has no status from 200 to 999";
    let number: u16 = text.parse().map_err(|_| why)?;
    // A status below 200 is never a final answer, so a server cannot send it as one.
    StatusCode::from_u16(number).ok().filter(|status| status.as_u16() >= 200).ok_or(why)
}

fn read_length(text: &str) -> Result<StepLength, &'static str> {
    let why = "has no count of 1 or more and no span such as 30s after its x";
    if let Ok(count) = text.parse::<u32>() {
        return Some(count).filter(|count| *count > 0).map(StepLength::Requests).ok_or(why);
    }
    let span = text.parse::<Span>().map_err(|_| why)?.0;
    Some(span).filter(|span| !span.is_zero()).map(StepLength::Time).ok_or(why)
}

fn read_delay(text: &str) -> Result<Duration, &'static str> {
    text.parse::<Span>().map(|span| span.0).map_err(|_| "has no span after its @, such as 500ms or 2s")
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
            let is_last = n == last && !self.is_repeated;
            let length = match step.length {
                _ if is_last && n > 0 => " for ever".to_owned(),
                _ if is_last => String::new(),
                StepLength::Requests(1) => String::new(),
                StepLength::Requests(count) => format!(" ({count} times)"),
                StepLength::Time(span) => format!(" (for {})", Span(span)),
            };
            write!(f, "{comma}{}{length}", step.reply)?;
        }
        f.write_str(if self.is_repeated { ", and so on" } else { "" })
    }
}

impl fmt::Display for ScriptedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            ReplyAction::Answer(answer) => write!(f, "{answer}")?,
            ReplyAction::Pass => f.write_str("as the service does")?,
            ReplyAction::Hang => f.write_str("nothing (hang)")?,
            ReplyAction::Drop => f.write_str("nothing (drop)")?,
        }
        if self.delay.is_zero() { Ok(()) } else { write!(f, " after {}", Span(self.delay)) }
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

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn answers(script: &str, count: usize) -> Vec<(u16, Option<u64>)> {
        let mut script: AnswerScript = script.parse().unwrap();
        let answer = |reply: ScriptedReply| match reply.action {
            ReplyAction::Answer(answer) => (answer.status.as_u16(), answer.retry_after),
            action => panic!("{action:?} is no answer"),
        };
        (0..count).map(|_| answer(script.use_next(at(0)))).collect()
    }

    #[test]
    fn steps_are_used_up_in_order_and_the_last_repeats_for_ever() {
        let expected = [(503, None), (503, None), (503, None), (429, Some(5)), (200, None), (200, None), (200, None)];
        assert_eq!(answers("503x3,429:5s,200", 7), expected);
        assert_eq!(answers("200", 3), [(200, None); 3]);
        assert_eq!(answers("500x2", 4), [(500, None); 4]);
        assert_eq!(answers(" 503x2:2m , 204 ", 3), [(503, Some(120)), (503, Some(120)), (204, None)]);
        assert_eq!(answers("429:0s,999", 3), [(429, Some(0)), (999, None), (999, None)]);
        assert_eq!(answers("200x2,503,repeat", 5), [(200, None), (200, None), (503, None), (200, None), (200, None)]);
    }

    #[test]
    fn a_step_can_hang_drop_pass_and_take_its_time() {
        let mut script: AnswerScript = "hangx2,drop,pass@1s,429@500ms:5s".parse().unwrap();
        let replies: Vec<(ReplyAction, u64)> = (0..5)
            .map(|_| script.use_next(at(0)))
            .map(|reply| (reply.action, u64::try_from(reply.delay.as_millis()).unwrap()))
            .collect();
        let last = ReplyAction::Answer(ScriptedAnswer {
            status: StatusCode::TOO_MANY_REQUESTS,
            retry_after: Some(5),
            word: None,
        });
        let expected = [
            (ReplyAction::Hang, 0),
            (ReplyAction::Hang, 0),
            (ReplyAction::Drop, 0),
            (ReplyAction::Pass, 1_000),
            (last, 500),
        ];
        assert_eq!(replies, expected);
        assert!(script.passes());
    }

    #[test]
    fn a_step_with_a_span_lasts_from_its_first_request_on() {
        let mut script: AnswerScript = "200x30s,dropx1m,repeat".parse().unwrap();
        let mut is_dropped = |seconds| script.use_next(at(seconds)).action == ReplyAction::Drop;
        let seen = [0, 29, 30, 89, 90, 119, 120].map(&mut is_dropped);
        assert_eq!(seen, [false, false, true, true, false, false, true]);
        let mut last: AnswerScript = "503x1s".parse().unwrap();
        assert_eq!(last.use_next(at(0)), last.use_next(at(100)), "the last step has no end");
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
            ("503x0s", "503x0s"),
            ("503x", "503x"),
            ("503x-1", "503x-1"),
            ("x3", "x3"),
            ("200,429:5", "429:5"),
            ("429:", "429:"),
            ("429:500ms", "429:500ms"),
            ("429:5sx3", "429:5sx3"),
            ("-200", "-200"),
            ("200@", "200@"),
            ("200@2", "200@2"),
            ("hang:5s", "hang:5s"),
            ("repeat", "repeat"),
            ("repeat,200", "repeat"),
        ];
        for (text, step) in wrong {
            let refusal = text.parse::<AnswerScript>().unwrap_err().to_string();
            assert!(refusal.starts_with(&format!("step {step:?} has no ")), "{text}: {refusal}");
            assert!(refusal.contains("503x3,429:5s"), "{text}: {refusal}");
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
        assert_eq!(
            shown("200x30s,hang,drop,pass@2s,repeat"),
            "200 (for 30s), then nothing (hang), then nothing (drop), then as the service does after 2s, and so on"
        );
    }
}
