//! The charts of one endpoint: attempts, success, latency, backlog, what held it.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::endpoint_facts::words_only;
use super::figure_steps::{FigureRun, FigureSum};
use crate::dashboard::chart::over_time::{OverTime, Series, Shape};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::words;
use crate::model::endpoint_event::{Actor, EndpointEventKind};
use crate::model::named_enum::NamedEnum;

/// Most marks that are drawn over a chart.
const MARKS_MAX: usize = 20;

/// The time that the charts of an endpoint cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartRange {
    /// The last hour.
    Hour,
    /// The last day.
    Day,
    /// The last seven days.
    Week,
}

impl ChartRange {
    /// All ranges, the shortest first.
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    /// Returns the range with this name; a day if there is none.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|range| range.name() == name).unwrap_or(Self::Day)
    }

    /// Returns its name in an address.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    /// Returns its name for people.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Hour => "1 hour",
            Self::Day => "24 hours",
            Self::Week => "7 days",
        }
    }

    /// Whether it is the one with this name.
    pub fn is(&self, name: &str) -> bool {
        self.name() == name
    }

    /// Returns how far back the charts go.
    pub fn covers(self) -> SignedDuration {
        match self {
            Self::Hour => SignedDuration::from_hours(1),
            Self::Day => SignedDuration::from_hours(24),
            Self::Week => SignedDuration::from_hours(7 * 24),
        }
    }

    /// Returns the step of the figures that are asked for.
    pub fn api_step(self) -> &'static str {
        match self {
            Self::Hour | Self::Day => "5m",
            Self::Week => "1h",
        }
    }

    /// Returns the step of the charts.
    pub fn step(self) -> SignedDuration {
        match self {
            Self::Hour => SignedDuration::from_mins(5),
            Self::Day => SignedDuration::from_mins(30),
            Self::Week => SignedDuration::from_hours(4),
        }
    }

    /// Returns the step of the charts for people.
    pub fn step_words(&self) -> &'static str {
        match self {
            Self::Hour => "5 minutes",
            Self::Day => "half an hour",
            Self::Week => "4 hours",
        }
    }
}

/// A chart with its words.
pub struct DrawnChart {
    /// What it shows, as a title.
    pub title: &'static str,
    /// Unit of its values.
    pub unit: &'static str,
    /// The drawing itself.
    pub drawing: Svg,
    /// What the colours mean: class and name.
    pub key: Vec<(&'static str, &'static str)>,
}

/// One step as a row of a table.
pub struct StepRow {
    /// Beginning of the step.
    pub at: String,
    /// The figures, as many as the table has columns.
    pub cells: Vec<String>,
}

/// Something that happened to an endpoint.
#[derive(Deserialize)]
pub struct PastEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// Kind of event.
    pub what: EndpointEventKind,
    /// Why, or the note that was left.
    pub reason: Option<String>,
    /// Who caused it: a person, the receiver or the gateway.
    pub by: Actor,
}

impl PastEvent {
    /// Returns what happened, in words.
    pub fn words(&self) -> String {
        self.what.as_str().replace('_', " ")
    }
}

type Line = (&'static str, ChartTone, fn(&FigureSum) -> Option<f64>);

/// Draws the charts of an endpoint, with what happened to it as marks over them.
pub fn charts(run: &FigureRun, range: ChartRange, history: &[PastEvent], now: Timestamp) -> Vec<DrawnChart> {
    let steps = run.steps(range.step(), now);
    let is_shown = |event: &&PastEvent| event.what != EndpointEventKind::ProbeFailed;
    let mark = |event: &PastEvent| {
        let reason = event.reason.as_ref().map_or(String::new(), |reason| format!(": {}", words_only(reason, 80)));
        (event.at, format!("{}{reason}", event.words()))
    };
    let marks: Vec<(Timestamp, String)> = history.iter().filter(is_shown).take(MARKS_MAX).map(mark).collect();
    let draw = |title: &'static str, unit: &'static str, shape: Shape, lines: &[Line]| {
        let series = lines.iter().map(|(name, tone, value)| Series {
            name: (*name).to_owned(),
            tone: *tone,
            values: steps.iter().map(|sum| sum.as_ref().and_then(value)).collect(),
        });
        let (from, step, marks) = (run.from, range.step(), marks.clone());
        let chart =
            OverTime { title: title.into(), unit: unit.into(), from, step, series: series.collect(), shape, marks };
        let key = lines.iter().map(|(name, tone, _)| (tone.class(), *name)).collect();
        DrawnChart { title, unit, drawing: chart.draw(), key }
    };
    drawn_lines().into_iter().map(|(title, unit, shape, lines)| draw(title, unit, shape, &lines)).collect()
}

/// Returns what the charts show: title, unit, shape and lines of each.
fn drawn_lines() -> Vec<(&'static str, &'static str, Shape, Vec<Line>)> {
    vec![
        (
            "Attempts by answer",
            "per minute",
            Shape::Stacked,
            vec![
                ("2xx", ChartTone::Good, |sum| Some(sum.per_minute(results(sum, AnswerGroup::Good)))),
                ("429", ChartTone::Calm, |sum| Some(sum.per_minute(results(sum, AnswerGroup::Busy)))),
                ("5xx", ChartTone::Watch, |sum| Some(sum.per_minute(results(sum, AnswerGroup::Server)))),
                ("other 4xx and 3xx", ChartTone::Bad, |sum| Some(sum.per_minute(results(sum, AnswerGroup::Client)))),
                ("no answer", ChartTone::Off, |sum| Some(sum.per_minute(results(sum, AnswerGroup::None)))),
            ],
        ),
        (
            "Success",
            "percent of attempts",
            Shape::Percent,
            vec![("delivered", ChartTone::Good, |sum| Some(sum.success()? * 100.0))],
        ),
        (
            "Time to answer",
            "milliseconds",
            Shape::Lines,
            vec![
                ("99 of 100", ChartTone::Off, |sum| sum.latency(0.99)),
                ("95 of 100", ChartTone::Watch, |sum| sum.latency(0.95)),
                ("median", ChartTone::Calm, |sum| sum.latency(0.5)),
            ],
        ),
        ("Waiting", "deliveries", Shape::Lines, vec![("waiting", ChartTone::Calm, |sum| Some(sum.waiting as f64))]),
        (
            "Oldest that could go",
            "seconds",
            Shape::Lines,
            vec![("oldest due", ChartTone::Watch, |sum| Some(sum.oldest_due))],
        ),
        (
            "Held back",
            "seconds in each step",
            Shape::Stacked,
            vec![
                ("by the breaker", ChartTone::Bad, |sum| Some(sum.held.breaker)),
                ("by backpressure", ChartTone::Watch, |sum| Some(sum.held.backpressure)),
                ("by a rate", ChartTone::Calm, |sum| Some(sum.held.rate)),
                ("by a pause", ChartTone::Off, |sum| Some(sum.held.pause)),
            ],
        ),
    ]
}

/// Returns the steps in which something happened as rows, the latest first.
pub fn step_rows(run: &FigureRun, range: ChartRange, now: Timestamp) -> Vec<StepRow> {
    let steps = run.steps(range.step(), now).into_iter().enumerate();
    let rows = steps.filter_map(|(number, sum)| {
        let sum = sum.filter(|sum| sum.attempts() > 0 || sum.waiting > 0)?;
        let at = run.from + range.step() * (number as i32);
        let held = sum.held.breaker + sum.held.pause + sum.held.backpressure + sum.held.rate;
        let millis = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.0} ms"));
        let cells = vec![
            words::count(sum.attempts()),
            words::count(sum.failed()),
            sum.success().map_or("–".to_owned(), words::percent),
            millis(sum.latency(0.5)),
            millis(sum.latency(0.99)),
            words::count(sum.waiting),
            words::span(held.round()),
        ];
        Some(StepRow { at: at.strftime("%b %-d %H:%M").to_string(), cells })
    });
    let mut rows: Vec<StepRow> = rows.collect();
    rows.reverse();
    rows
}

/// What came back, as far as a chart tells it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerGroup {
    Good,
    Busy,
    Server,
    Client,
    None,
}

impl AnswerGroup {
    fn of(result: &str) -> Self {
        match result {
            "2xx" => Self::Good,
            "429" => Self::Busy,
            "5xx" => Self::Server,
            "1xx" | "3xx" | "4xx" => Self::Client,
            _ => Self::None,
        }
    }
}

fn results(sum: &FigureSum, answer: AnswerGroup) -> u64 {
    sum.by_result.iter().filter(|(result, _)| AnswerGroup::of(result) == answer).map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_is_counted_once() {
        let counted = [("2xx", 5), ("429", 1), ("5xx", 2), ("4xx", 3), ("3xx", 1), ("timeout", 4), ("dns", 1)];
        let by_result = counted.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let mut sum = FigureSum::default();
        sum.by_result = by_result;
        let all = [AnswerGroup::Good, AnswerGroup::Busy, AnswerGroup::Server, AnswerGroup::Client, AnswerGroup::None];
        assert_eq!(all.map(|answer| results(&sum, answer)), [5, 1, 2, 4, 5]);
    }

    #[test]
    fn a_range_is_chosen_by_its_name() {
        assert_eq!(
            ["1h", "24h", "7d", "", "x"].map(ChartRange::named),
            [ChartRange::Hour, ChartRange::Day, ChartRange::Week, ChartRange::Day, ChartRange::Day]
        );
    }
}
