//! Draws a preview for a terminal: at most 80 columns, text alone.

use std::fmt::Write;

use crate::cli::output::wrapped;
use crate::model::preview::{PlannedAttempt, Preview, Survival};
use crate::model::span::Span;

/// What is left of a line after the number and the three times.
const PLOT: usize = 44;
/// A longer plan is folded.
const ROWS_MAX: usize = 18;
/// How many attempts are shown before the fold.
const ROWS_FIRST: usize = 12;

/// The whole preview.
pub fn draw(preview: &Preview) -> String {
    let parts = [
        wrapped(&preview.policy, ""),
        attempts(&preview.attempts),
        survival(&preview.survival),
        format!("{}\n{}", wrapped(&recovery(preview), ""), wrapped(ASSUMED, "")),
    ];
    parts.map(|part| part.trim_end().to_owned()).join("\n\n")
}

const ASSUMED: &str = "Assumed: each request fails at once and nothing else holds a delivery back (Retry-After, \
                       its lane, a pause, the cap). Odds come from simulated deliveries.";

/// One line per attempt: its times, and where they lie.
fn attempts(planned: &[PlannedAttempt]) -> String {
    let axis = TimeAxis::of(planned);
    let mut out = line("#", "earliest", "expected", "latest", &axis.labels);
    let row = |attempt: &PlannedAttempt| {
        let times = [attempt.earliest, attempt.expected, attempt.latest].map(Span::words);
        line(&attempt.number.to_string(), &times[0], &times[1], &times[2], &axis.row(attempt))
    };
    // What no simulated delivery got is not worth a line.
    let seen: Vec<&PlannedAttempt> = planned.iter().filter(|attempt| attempt.odds > 0.0).collect();
    if seen.len() <= ROWS_MAX {
        seen.iter().for_each(|attempt| out += &row(attempt));
    } else {
        let usual = seen.iter().rposition(|attempt| attempt.odds >= 0.5).unwrap_or(ROWS_FIRST).max(ROWS_FIRST);
        seen[..ROWS_FIRST].iter().for_each(|attempt| out += &row(attempt));
        out += &fold(&seen[ROWS_FIRST - 1..=usual]);
        out += &row(seen[usual]);
    }
    out + &ending(&seen)
}

fn line(number: &str, earliest: &str, expected: &str, latest: &str, plot: &str) -> String {
    let line = format!("{number:>4}  {earliest:>8}  {expected:>8}  {latest:>8}  {plot}");
    format!("{}\n", line.trim_end())
}

/// What stands for the attempts between the first and the last of these.
fn fold(run: &[&PlannedAttempt]) -> String {
    let hidden = run.len().saturating_sub(2);
    if hidden == 0 {
        return String::new();
    }
    // Those that only some get are told too early: who gets them was quick.
    let sure = run.iter().filter(|attempt| attempt.odds == 1.0).count().max(2);
    let gap = |from: usize, to: usize| {
        let between = run[to].expected.as_millis() - run[from].expected.as_millis();
        roughly(Span::millis(between / (to - from) as u64))
    };
    // Neighbours differ by rounding, thirds by what the policy does.
    let (last, third) = (sure - 1, sure.div_ceil(3).min(sure - 1));
    let (early, late) = (gap(0, third), gap(last - third, last));
    let pace = match late.as_millis() * 2 > early.as_millis() * 3 {
        true => format!("{} to {} apart", early.words(), late.words()),
        false => format!("about every {}", gap(0, last).words()),
    };
    format!("   …  {hidden} more, {pace}\n")
}

/// How many attempts there are where the age limit comes first.
fn ending(seen: &[&PlannedAttempt]) -> String {
    let with = |odds: f64| seen.iter().filter(|attempt| attempt.odds >= odds).count();
    match seen.last() {
        Some(last) if last.odds < 1.0 => {
            let (age, least, usual, most) = (last.latest.words(), with(1.0), with(0.5), last.number);
            format!("      The age limit of {age} ends it: {least} to {most} attempts, typically {usual}.\n")
        }
        _ => String::new(),
    }
}

/// The time axis of the plot: zero, then the logarithm of time.
struct TimeAxis {
    from: f64,
    to: f64,
    /// Where it is marked.
    columns: Vec<usize>,
    labels: String,
}

/// Times people know their way by, in milliseconds.
const MARKS: [u64; 13] = [
    1,
    10,
    100,
    1_000,
    10_000,
    60_000,
    600_000,
    3_600_000,
    6 * 3_600_000,
    24 * 3_600_000,
    72 * 3_600_000,
    7 * 86_400_000,
    30 * 86_400_000,
];
/// Zero has no logarithm; it gets the first column, and the axis starts here.
const AXIS_FROM: usize = 3;

impl TimeAxis {
    fn of(planned: &[PlannedAttempt]) -> Self {
        let to = planned.last().map_or(0, |last| last.latest.as_millis());
        // A window that begins at zero comes from the left edge.
        let left = |attempt: &PlannedAttempt| match attempt.earliest.as_millis() {
            0 => attempt.expected.as_millis(),
            earliest => earliest,
        };
        let least = planned.iter().map(left).filter(|millis| *millis > 0).min().unwrap_or(1);
        let from = MARKS.into_iter().rev().find(|mark| *mark <= least).unwrap_or(1);
        let axis = Self { from: from as f64, to: to.max(from * 2) as f64, columns: Vec::new(), labels: "0".to_owned() };
        MARKS.into_iter().filter(|mark| (from..=to).contains(mark)).fold(axis, Self::marked)
    }

    /// With one more mark, if there is room for its name.
    fn marked(mut self, millis: u64) -> Self {
        let mark = Span::millis(millis);
        let label = mark.to_string();
        let place = self.column(mark).min(PLOT - label.len());
        if place > self.labels.len() {
            self.columns.push(self.column(mark));
            self.labels = format!("{:place$}{label}", self.labels);
        }
        self
    }

    fn column(&self, at: Span) -> usize {
        match at.as_millis() {
            0 => 0,
            millis => {
                let share = (millis as f64 / self.from).ln() / (self.to / self.from).ln();
                AXIS_FROM + (share.clamp(0.0, 1.0) * (PLOT - 1 - AXIS_FROM) as f64).round() as usize
            }
        }
    }

    /// An attempt's window, with its expected time.
    fn row(&self, attempt: &PlannedAttempt) -> String {
        let mut cells = [' '; PLOT];
        self.columns.iter().for_each(|column| cells[*column] = '┊');
        let (from, to) = (self.column(attempt.earliest), self.column(attempt.latest));
        cells[from..=to].fill('─');
        cells[self.column(attempt.expected)] = '●';
        if attempt.odds < 1.0 {
            // Late windows leave the left free.
            let note = format!("{} get it ", percent(attempt.odds));
            let room = from.saturating_sub(note.chars().count());
            note.chars().zip(&mut cells[room..]).for_each(|(letter, cell)| *cell = letter);
        }
        cells.iter().collect()
    }
}

/// A bar for each outage.
fn survival(rungs: &[Survival]) -> String {
    const BAR: usize = 50;
    let mut out = "How many get over an outage that begins with their first attempt:\n".to_owned();
    for rung in rungs {
        let full = (rung.odds * BAR as f64).round() as usize;
        // Some is never drawn as none, nor as all.
        let full = if rung.odds > 0.0 && rung.odds < 1.0 { full.clamp(1, BAR - 1) } else { full };
        let bar = "█".repeat(full) + &"░".repeat(BAR - full);
        writeln!(out, "{:>8}  {bar}  {:>6}", rung.outage.words(), percent(rung.odds)).expect("text takes all");
    }
    out
}

/// A share in percent: `100 %`, `99.9 %`, `7.3 %`.
fn percent(odds: f64) -> String {
    format!("{} %", (odds * 1_000.0).round() / 10.0)
}

fn recovery(preview: &Preview) -> String {
    if preview.attempts.len() == 1 {
        return "Nothing waits for the end of an outage: there is one attempt.".to_owned();
    }
    let come = match preview.recovery.first_minute {
        0 => "hardly any waiting delivery comes".to_owned(),
        1 => "1 of 1,000 waiting deliveries comes".to_owned(),
        1_000 => "all waiting deliveries come".to_owned(),
        some => format!("{some} of 1,000 waiting deliveries come"),
    };
    let outage = preview.recovery.outage.words();
    format!("After an outage of {outage} under steady traffic, {come} in the first minute.")
}

/// A time to about two digits.
fn roughly(span: Span) -> Span {
    let millis = span.as_millis();
    let steps = [3_600_000, 600_000, 60_000, 10_000, 1_000, 100, 10];
    let step = steps.into_iter().find(|step| millis >= step * 20).unwrap_or(1);
    Span::millis((millis + step / 2) / step * step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::RetrySpec;
    use crate::model::preset::Preset;
    use crate::model::preview::preview;
    use serde_json::json;

    fn drawn(json: serde_json::Value) -> String {
        draw(&preview(&serde_json::from_value::<RetrySpec>(json).unwrap().resolve().unwrap(), None))
    }

    #[test]
    fn every_preset_is_drawn_as_agreed() {
        for preset in Preset::ALL {
            insta::assert_snapshot!(preset.as_str(), draw(&preview(&preset.policy(), None)));
        }
    }

    #[test]
    fn odd_policies_are_drawn_as_agreed() {
        for (name, json) in odd() {
            insta::assert_snapshot!(name, drawn(json));
        }
    }

    fn odd() -> [(&'static str, serde_json::Value); 5] {
        [
            ("no_jitter", json!({"schedule":["5s","1m","30m"],"jitter":"none","max_attempts":6})),
            ("one_attempt", json!({"max_attempts":1})),
            (
                "decorrelated",
                json!({"backoff":{"base":"10s","max":"30m"},"jitter":"decorrelated","max_attempts":12,"max_age":"4h"}),
            ),
            (
                "a_thousand",
                json!({"backoff":{"base":"1s","max":"1h","factor":1.5},"jitter":"full","max_attempts":1000,"max_age":"30d"}),
            ),
            ("within_a_second", json!({"schedule":["100ms"],"max_attempts":4})),
        ]
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let presets = Preset::ALL.map(|preset| json!({ "preset": preset }));
        for json in presets.into_iter().chain(odd().map(|(_, json)| json)) {
            for line in drawn(json.clone()).lines() {
                assert!(line.chars().count() <= crate::cli::output::WIDTH, "{json}: {line}");
                assert_eq!(line.trim_end(), line, "{json}");
            }
        }
    }

    #[test]
    fn some_is_never_drawn_as_none_or_all() {
        let bar = |odds| survival(&[Survival { outage: Span::secs(60), odds }]);
        assert!(bar(0.001).contains('█') && bar(0.001).contains("0.1 %"));
        assert!(bar(0.999).contains('░') && bar(0.999).contains("99.9 %"));
        assert!(!bar(1.0).contains('░') && !bar(0.0).contains('█'));
    }
}
