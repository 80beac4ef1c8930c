//! Draws the preview of a retry policy as text, at most 80 columns wide.

use std::fmt::Write;

use crate::cli::output::wrap_text;
use crate::model::preview::{OutageOdds, PlannedAttempt, Preview};
use crate::model::span::Span;

/// Width of the plot: what is left of a line after the number and the three times.
const PLOT_WIDTH: usize = 44;
/// Most rows of attempts; a longer plan is folded.
const ROWS_MAX: usize = 18;
/// Number of attempts shown before the fold.
const ROWS_FIRST: usize = 12;

/// Renders the whole preview.
pub fn draw(preview: &Preview) -> String {
    let parts = [
        wrap_text(&preview.policy, ""),
        render_attempts(&preview.attempts),
        draw_survival(&preview.survival),
        [&render_recovery(preview), &preview.age, ASSUMED].map(|text| wrap_text(text, "")).join("\n"),
    ];
    parts.map(|part| part.trim_end().to_owned()).join("\n\n")
}

const ASSUMED: &str = "Assumed: each request fails at once and nothing else holds a delivery back (Retry-After, \
                       its lane, a pause, the cap, the breaker). Odds come from simulated deliveries.";

/// Renders one line per attempt: its times as text and on the plot.
fn render_attempts(planned: &[PlannedAttempt]) -> String {
    let axis = TimeAxis::of(planned);
    let mut out = render_line("#", "earliest", "expected", "latest", &axis.labels);
    let row = |attempt: &PlannedAttempt| {
        let times = [attempt.earliest, attempt.expected, attempt.latest].map(Span::words);
        render_line(&attempt.number.to_string(), &times[0], &times[1], &times[2], &axis.draw_window(attempt))
    };
    // An attempt that no simulated delivery reached gets no line.
    let reached: Vec<&PlannedAttempt> = planned.iter().filter(|attempt| attempt.odds > 0.0).collect();
    if reached.len() <= ROWS_MAX {
        reached.iter().for_each(|attempt| out += &row(attempt));
    } else {
        let typical_last =
            reached.iter().rposition(|attempt| attempt.odds >= 0.5).unwrap_or(ROWS_FIRST).max(ROWS_FIRST);
        reached[..ROWS_FIRST].iter().for_each(|attempt| out += &row(attempt));
        out += &render_skipped(&reached[ROWS_FIRST - 1..=typical_last]);
        out += &row(reached[typical_last]);
    }
    out + &render_age_limit(&reached)
}

fn render_line(number: &str, earliest: &str, expected: &str, latest: &str, plot: &str) -> String {
    let line = format!("{number:>4}  {earliest:>8}  {expected:>8}  {latest:>8}  {plot}");
    format!("{}\n", line.trim_end())
}

/// Renders the line that stands for the attempts between the first and the last of
/// these.
fn render_skipped(run: &[&PlannedAttempt]) -> String {
    let hidden = run.len().saturating_sub(2);
    if hidden == 0 {
        return String::new();
    }
    // Attempts that only some deliveries reach have expected times that are too early,
    // because the fast deliveries reach them.
    let sure = run.iter().filter(|attempt| attempt.odds == 1.0).count().max(2);
    let gap = |from: usize, to: usize| {
        let between = run[to].expected.as_millis() - run[from].expected.as_millis();
        round_roughly(Span::millis(between / (to - from) as u64))
    };
    // Gaps of neighbours differ by rounding alone; gaps of whole thirds differ by the policy.
    let (last, third) = (sure - 1, sure.div_ceil(3).min(sure - 1));
    let (early, late) = (gap(0, third), gap(last - third, last));
    let pace = if late.as_millis() * 2 > early.as_millis() * 3 {
        format!("{} to {} apart", early.words(), late.words())
    } else {
        format!("about every {}", gap(0, last).words())
    };
    format!("   …  {hidden} more, {pace}\n")
}

/// Renders how many attempts there are if the age limit comes before the attempt
/// limit.
fn render_age_limit(reached: &[&PlannedAttempt]) -> String {
    let count = |odds: f64| reached.iter().filter(|attempt| attempt.odds >= odds).count();
    match reached.last() {
        Some(last) if last.odds < 1.0 => {
            let (age, min, typical, max) = (last.latest.words(), count(1.0), count(0.5), last.number);
            format!("      The age limit of {age} ends it: {min} to {max} attempts, typically {typical}.\n")
        }
        _ => String::new(),
    }
}

/// The time axis of the plot: zero, then a logarithmic scale.
struct TimeAxis {
    from: f64,
    to: f64,
    /// Columns of the marks.
    columns: Vec<usize>,
    labels: String,
}

/// Times that may be marked on the axis, in milliseconds.
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
/// First column of the logarithmic scale. Zero has no logarithm and gets column 0.
const AXIS_START: usize = 3;

impl TimeAxis {
    fn of(planned: &[PlannedAttempt]) -> Self {
        let to = planned.last().map_or(0, |last| last.latest.as_millis());
        // A window that begins at zero is drawn from column 0, so its expected time counts.
        let left = |attempt: &PlannedAttempt| match attempt.earliest.as_millis() {
            0 => attempt.expected.as_millis(),
            earliest => earliest,
        };
        let least = planned.iter().map(left).filter(|millis| *millis > 0).min().unwrap_or(1);
        let from = MARKS.into_iter().rev().find(|mark| *mark <= least).unwrap_or(1);
        let axis = Self { from: from as f64, to: to.max(from * 2) as f64, columns: Vec::new(), labels: "0".to_owned() };
        MARKS.into_iter().filter(|mark| (from..=to).contains(mark)).fold(axis, Self::with_mark)
    }

    /// Adds a mark, if there is room for its label.
    fn with_mark(mut self, millis: u64) -> Self {
        let mark = Span::millis(millis);
        let label = mark.to_string();
        let column = self.column(mark).min(PLOT_WIDTH - label.len());
        if column > self.labels.len() {
            self.columns.push(self.column(mark));
            self.labels = format!("{:column$}{label}", self.labels);
        }
        self
    }

    fn column(&self, at: Span) -> usize {
        match at.as_millis() {
            0 => 0,
            millis => {
                let share = (millis as f64 / self.from).ln() / (self.to / self.from).ln();
                AXIS_START + (share.clamp(0.0, 1.0) * (PLOT_WIDTH - 1 - AXIS_START) as f64).round() as usize
            }
        }
    }

    /// Draws the window of an attempt, with its expected time.
    fn draw_window(&self, attempt: &PlannedAttempt) -> String {
        let mut cells = [' '; PLOT_WIDTH];
        self.columns.iter().for_each(|column| cells[*column] = '┊');
        let (from, to) = (self.column(attempt.earliest), self.column(attempt.latest));
        cells[from..=to].fill('─');
        cells[self.column(attempt.expected)] = '●';
        if attempt.odds < 1.0 {
            // Attempts that only some reach come late, so the left part of their row is free.
            let note = format!("{} get it ", render_percent(attempt.odds));
            let start = from.saturating_sub(note.chars().count());
            note.chars().zip(&mut cells[start..]).for_each(|(letter, cell)| *cell = letter);
        }
        cells.iter().collect()
    }
}

/// Draws a bar for each outage.
fn draw_survival(outages: &[OutageOdds]) -> String {
    const BAR_WIDTH: usize = 50;
    let mut out = "How many get over an outage that begins with their first attempt:\n".to_owned();
    for OutageOdds { outage, odds } in outages {
        let full = (odds * BAR_WIDTH as f64).round() as usize;
        // Odds between 0 and 1 are never drawn as an empty or a full bar.
        let full = if *odds > 0.0 && *odds < 1.0 { full.clamp(1, BAR_WIDTH - 1) } else { full };
        let bar = "█".repeat(full) + &"░".repeat(BAR_WIDTH - full);
        writeln!(out, "{:>8}  {bar}  {:>6}", outage.words(), render_percent(*odds))
            .expect("a string can be written to");
    }
    out
}

/// Renders a share in percent: `100 %`, `99.9 %`, `7.3 %`.
fn render_percent(odds: f64) -> String {
    format!("{} %", (odds * 1_000.0).round() / 10.0)
}

fn render_recovery(preview: &Preview) -> String {
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

/// Rounds a time to about two digits.
fn round_roughly(span: Span) -> Span {
    let millis = span.as_millis();
    let steps = [3_600_000, 600_000, 60_000, 10_000, 1_000, 100, 10];
    let step = steps.into_iter().find(|step| millis >= step * 20).unwrap_or(1);
    Span::millis((millis + step / 2) / step * step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::named_enum::NamedEnum;
    use crate::model::preset::Preset;
    use crate::model::preview::preview;
    use crate::model::retry_spec::RetrySpec;
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
        for (name, json) in odd_policies() {
            insta::assert_snapshot!(name, drawn(json));
        }
    }

    fn odd_policies() -> [(&'static str, serde_json::Value); 5] {
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
        let presets = Preset::ALL.iter().map(|preset| json!({ "preset": preset }));
        for json in presets.into_iter().chain(odd_policies().map(|(_, json)| json)) {
            for line in drawn(json.clone()).lines() {
                assert!(line.chars().count() <= crate::cli::output::WIDTH, "{json}: {line}");
                assert_eq!(line.trim_end(), line, "{json}");
            }
        }
    }

    #[test]
    fn some_is_never_drawn_as_none_or_all() {
        let bar = |odds| draw_survival(&[OutageOdds { outage: Span::secs(60), odds }]);
        assert!(bar(0.001).contains('█') && bar(0.001).contains("0.1 %"));
        assert!(bar(0.999).contains('░') && bar(0.999).contains("99.9 %"));
        assert!(!bar(1.0).contains('░') && !bar(0.0).contains('█'));
    }
}
