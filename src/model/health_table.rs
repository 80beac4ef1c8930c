//! The health table: the figures of an hour held against their thresholds.
//!
//! Pure: the figures are handed in. A row without anything to measure is
//! unknown, and never well.

use std::time::Duration;

use super::event::EventType;
use super::figures::{SloCounts, TIME_TO_DELIVER_MS, WindowFigures};
use super::result_class::ResultClass;
use super::slo_target::SloTarget;
use super::type_figures::{TypeCounts, TypeFigures};

/// What is measured of an endpoint, a tenant or the gateway.
#[derive(Debug, Clone, Default)]
pub struct HealthMeasures {
    /// Figures of the last hour.
    pub hour: WindowFigures,
    /// Deliveries of the last five minutes that the goal speaks of.
    pub slo_5m: SloCounts,
    /// Deliveries of the last six hours that the goal speaks of.
    pub slo_6h: SloCounts,
    /// Deliveries that wait now.
    pub waiting: Option<u64>,
    /// Time for which the oldest delivery that could go has not gone.
    pub oldest_due: Option<Duration>,
    /// Deliveries that have been in retry for over a day.
    pub in_retry_over_24h: Option<u64>,
    /// Number of dead letters.
    pub dead_letters: Option<u64>,
    /// Time since the oldest of them died; nothing if there is none.
    pub oldest_dead_letter: Option<Duration>,
}

/// How a row stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, strum::IntoStaticStr, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RowState {
    /// The value is healthy, or has no threshold.
    Ok,
    /// The value is between healthy and alarming.
    Watch,
    /// Somebody should look.
    Alert,
    /// There was nothing to measure.
    Unknown,
}

/// What the value of a row is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowUnit {
    /// A part of a whole, 0 to 1.
    Ratio,
    /// A plain number.
    Count,
    /// Time in seconds.
    Seconds,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct HealthRow {
    /// What is measured.
    pub name: &'static str,
    /// Its value; null where there was nothing to measure.
    pub value: Option<f64>,
    /// What it is measured in.
    pub unit: RowUnit,
    /// From here on it is healthy; null where no threshold is known.
    pub healthy: Option<f64>,
    /// From here on somebody should look; null where no threshold is known. Below `healthy` if more is better.
    pub alert: Option<f64>,
    /// How it stands.
    pub state: RowState,
    /// Of how many it was measured; null for what is so at this moment.
    pub n: Option<u64>,
}

/// The service-level goal, and how fast its allowance is used up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct SloStatus {
    /// The part of the deliveries that is to meet the goal.
    pub target: f64,
    /// The time from acceptance within which a delivery must succeed.
    #[schema(example = "10m")]
    pub within: &'static str,
    /// Deliveries of the last hour that met the goal.
    pub good: u64,
    /// Deliveries of the last hour that the goal speaks of: without those that were refused, cancelled or replayed.
    pub total: u64,
    /// Burn rate of the error budget over five minutes: 1 uses the budget up exactly; null without deliveries.
    pub burn_5m: Option<f64>,
    /// The burn rate over an hour.
    pub burn_1h: Option<f64>,
    /// The burn rate over six hours.
    pub burn_6h: Option<f64>,
}

/// Returns the goal's status.
pub fn slo_status(measures: &HealthMeasures, target: SloTarget) -> SloStatus {
    let hour = measures.hour.slo;
    let burn = |counts| burn_rate(counts, target);
    SloStatus {
        target: target.ratio(),
        within: "10m",
        good: hour.good,
        total: hour.total,
        burn_5m: burn(measures.slo_5m),
        burn_1h: burn(hour),
        burn_6h: burn(measures.slo_6h),
    }
}

fn burn_rate(counts: SloCounts, target: SloTarget) -> Option<f64> {
    let missed = counts.total.saturating_sub(counts.good);
    let ratio = ratio(missed, counts.total)?;
    Some(round_for_display(ratio / target.allowance()))
}

/// Returns the rows of the table, in the order in which they are shown.
pub fn rows(measures: &HealthMeasures) -> Vec<HealthRow> {
    let hour = &measures.hour;
    let dead: u64 = hour.dead.iter().sum();
    let finished = hour.delivered + dead;
    let retried = hour.delivered.saturating_sub(hour.attempts_to_success[0]);
    let mean = (hour.delivered > 0).then(|| hour.attempts_to_success_sum as f64 / hour.delivered as f64);
    let timed: u64 = hour.time_to_deliver.iter().sum();
    let started: u64 = hour.first_delay.iter().sum();
    let (ratios, count, seconds) = (RowUnit::Ratio, RowUnit::Count, RowUnit::Seconds);
    vec![
        row("success_rate", ratios, ratio(hour.delivered, finished), Some((0.99, 0.95)), Some(finished)),
        row("retry_rate", ratios, ratio(retried, hour.delivered), Some((0.05, 0.10)), Some(hour.delivered)),
        row("dead_letter_rate", ratios, ratio(dead, finished), Some((0.005, 0.01)), Some(finished)),
        row("attempts_to_success", count, mean, Some((1.3, 2.0)), Some(hour.delivered)),
        row(
            "second_attempt_success",
            ratios,
            ratio(hour.second.delivered, hour.second.n),
            Some((0.8, 0.6)),
            Some(hour.second.n),
        ),
        row("in_retry_over_24h", count, measures.in_retry_over_24h.map(as_float), Some((10.0, 100.0)), None),
        row("first_attempt_delay_p50", seconds, quantile(&hour.first_delay, 0.5), None, Some(started)),
        row("first_attempt_delay_p99", seconds, quantile(&hour.first_delay, 0.99), None, Some(started)),
        row("time_to_deliver_p50", seconds, quantile(&hour.time_to_deliver, 0.5), None, Some(timed)),
        row("time_to_deliver_p99", seconds, quantile(&hour.time_to_deliver, 0.99), None, Some(timed)),
        row("backlog", count, measures.waiting.map(as_float), None, None),
        row("oldest_due", seconds, measures.oldest_due.map(|age| age.as_secs_f64()), Some((10.0, 60.0)), None),
        row("dead_letters", count, measures.dead_letters.map(as_float), None, None),
        row("dead_letter_growth", count, Some(as_float(dead)), Some((10.0, 100.0)), Some(finished)),
        row("oldest_dead_letter", seconds, measures.oldest_dead_letter.map(|age| age.as_secs_f64()), None, None),
    ]
}

/// Most results of failed attempts that are shown.
const FAILURES_SHOWN: usize = 10;

/// How often attempts failed with one result.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct FailureCount {
    /// The status that came back, or the kind of failure, named as in `/metrics`.
    #[schema(example = "503")]
    pub result: String,
    /// How many attempts it was.
    pub attempts: u64,
}

/// Returns what failed attempts of an hour came back with, the most frequent
/// first: exact statuses, and kinds of failure where none came back.
pub fn top_failures(hour: &WindowFigures) -> Vec<FailureCount> {
    let named = |status: Option<u16>| status.map_or("other".to_owned(), |status| status.to_string());
    let statuses = hour.statuses.iter().map(|(status, attempts)| FailureCount { result: named(status), attempts });
    let kinds = ResultClass::all().filter(|class| class.is_failure_kind());
    let kinds = kinds.map(|class| (class.name().to_owned(), hour.by_result[class.index()]));
    let kinds = kinds.map(|(result, attempts)| FailureCount { result, attempts });
    let mut found: Vec<FailureCount> = statuses.chain(kinds).filter(|found| found.attempts > 0).collect();
    found.sort_by(|a, b| b.attempts.cmp(&a.attempts).then_with(|| a.result.cmp(&b.result)));
    found.truncate(FAILURES_SHOWN);
    found
}

/// Most event types that are shown.
const TYPES_SHOWN: usize = 10;

/// What happened in an hour to the deliveries of one event type.
#[derive(Debug, Clone, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct TypeHealth {
    /// The event type.
    #[serde(rename = "type")]
    #[schema(example = "invoice.paid")]
    pub event_type: String,
    /// Attempts that were made.
    pub attempts: u64,
    /// Deliveries that were delivered.
    pub delivered: u64,
    /// Deliveries that died.
    pub dead: u64,
    /// The part of its finished deliveries that was delivered; null where none was finished.
    pub success_rate: Option<f64>,
}

/// Returns the types of an hour with the most attempts, the busiest first.
pub fn top_types(types: &TypeFigures) -> Vec<TypeHealth> {
    let shown = |(event_type, TypeCounts { attempts, delivered, dead }): (EventType, TypeCounts)| {
        let success_rate = ratio(delivered, delivered + dead).map(round_for_display);
        TypeHealth { event_type: event_type.to_string(), attempts, delivered, dead, success_rate }
    };
    types.busiest(TYPES_SHOWN).into_iter().map(shown).collect()
}

fn row(
    name: &'static str,
    unit: RowUnit,
    value: Option<f64>,
    thresholds: Option<(f64, f64)>,
    n: Option<u64>,
) -> HealthRow {
    let state = match (value, thresholds) {
        (None, _) => RowState::Unknown,
        (Some(_), None) => RowState::Ok,
        (Some(value), Some((healthy, alert))) => row_state(value, healthy, alert),
    };
    let value = value.map(round_for_display);
    HealthRow {
        name,
        value,
        unit,
        healthy: thresholds.map(|(healthy, _)| healthy),
        alert: thresholds.map(|(_, alert)| alert),
        state,
        n,
    }
}

/// Returns how a value stands. More is better where the healthy one is above the
/// alarming one.
fn row_state(value: f64, healthy: f64, alert: f64) -> RowState {
    let is_better_high = healthy > alert;
    let (value, healthy, alert) = if is_better_high { (-value, -healthy, -alert) } else { (value, healthy, alert) };
    if value > alert {
        RowState::Alert
    } else if value > healthy {
        RowState::Watch
    } else {
        RowState::Ok
    }
}

/// Returns the state of the worst row that is known.
pub fn worst_state(rows: &[HealthRow]) -> RowState {
    let known = rows.iter().map(|row| row.state).filter(|state| *state != RowState::Unknown);
    known.max().unwrap_or(RowState::Unknown)
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn as_float(count: u64) -> f64 {
    count as f64
}

/// Returns a value with as many digits as anybody needs.
fn round_for_display(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Estimates a quantile of times in seconds, on a straight line within its bucket.
/// What is above all bounds counts as the largest bound.
fn quantile(buckets: &[u64], part: f64) -> Option<f64> {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = part * total as f64;
    let (mut below, mut lower) = (0.0, 0.0);
    for (count, bound) in buckets.iter().zip(TIME_TO_DELIVER_MS) {
        let (count, upper) = (*count as f64, bound as f64);
        if count > 0.0 && below + count >= rank {
            return Some((lower + (upper - lower) * (rank - below) / count) / 1e3);
        }
        below += count;
        lower = upper;
    }
    Some(lower / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::figures::EarlyAttempts;

    fn of(hour: WindowFigures) -> HealthMeasures {
        HealthMeasures { hour, ..HealthMeasures::default() }
    }

    #[track_caller]
    fn found(measures: &HealthMeasures, name: &str) -> (Option<f64>, RowState) {
        let rows = rows(measures);
        let row = rows.iter().find(|row| row.name == name).unwrap();
        (row.value, row.state)
    }

    fn finished(delivered: u64, dead: u64) -> HealthMeasures {
        let mut hour = WindowFigures { delivered, ..WindowFigures::default() };
        hour.dead[0] = dead;
        hour.attempts_to_success[0] = delivered;
        hour.attempts_to_success_sum = delivered;
        of(hour)
    }

    #[test]
    fn thresholds_are_those_that_were_agreed_on() {
        for (delivered, dead, success, deaths) in [
            (1_000, 0, RowState::Ok, RowState::Ok),
            (995, 5, RowState::Ok, RowState::Ok),
            (991, 9, RowState::Ok, RowState::Watch),
            (980, 20, RowState::Watch, RowState::Alert),
            (949, 51, RowState::Alert, RowState::Alert),
        ] {
            let measures = finished(delivered, dead);
            assert_eq!(found(&measures, "success_rate").1, success, "{dead} of 1000 died");
            assert_eq!(found(&measures, "dead_letter_rate").1, deaths, "{dead} of 1000 died");
        }
        for (retried, state) in [(50, RowState::Ok), (51, RowState::Watch), (101, RowState::Alert)] {
            let mut measures = finished(1_000, 0);
            measures.hour.attempts_to_success[0] -= retried;
            assert_eq!(found(&measures, "retry_rate").1, state, "{retried}");
        }
        for (sum, state) in [(1_300, RowState::Ok), (1_301, RowState::Watch), (2_001, RowState::Alert)] {
            let mut measures = finished(1_000, 0);
            measures.hour.attempts_to_success_sum = sum;
            assert_eq!(found(&measures, "attempts_to_success").1, state, "{sum}");
        }
        for (delivered, state) in [(80, RowState::Ok), (79, RowState::Watch), (59, RowState::Alert)] {
            let second = EarlyAttempts { n: 100, delivered };
            let measures = of(WindowFigures { second, ..WindowFigures::default() });
            assert_eq!(found(&measures, "second_attempt_success").1, state, "{delivered}");
        }
        for (count, state) in [(10, RowState::Ok), (11, RowState::Watch), (101, RowState::Alert)] {
            let measures = HealthMeasures { in_retry_over_24h: Some(count), ..HealthMeasures::default() };
            assert_eq!(found(&measures, "in_retry_over_24h").1, state, "{count}");
        }
        for (seconds, state) in [(10, RowState::Ok), (11, RowState::Watch), (61, RowState::Alert)] {
            let oldest_due = Some(Duration::from_secs(seconds));
            assert_eq!(found(&HealthMeasures { oldest_due, ..HealthMeasures::default() }, "oldest_due").1, state);
        }
    }

    #[test]
    fn nothing_measured_is_unknown_and_not_well() {
        let rows = rows(&HealthMeasures::default());
        let known: Vec<&str> = rows.iter().filter(|row| row.state != RowState::Unknown).map(|row| row.name).collect();
        assert_eq!(known, ["dead_letter_growth"], "that none died is known");
        let slo = slo_status(&HealthMeasures::default(), SloTarget::default());
        assert_eq!((slo.burn_5m, slo.burn_1h, slo.burn_6h), (None, None, None));
    }

    #[test]
    fn burning_at_one_uses_the_allowance_just_up() {
        let hour = WindowFigures { slo: SloCounts { good: 999, total: 1_000 }, ..WindowFigures::default() };
        let measures = HealthMeasures {
            slo_5m: SloCounts { good: 0, total: 10 },
            slo_6h: SloCounts { good: 10, total: 10 },
            ..of(hour)
        };
        let usual = slo_status(&measures, SloTarget::default());
        assert_eq!((usual.target, usual.good, usual.total, usual.burn_1h), (0.999, 999, 1_000, Some(1.0)));
        assert_eq!((usual.burn_5m, usual.burn_6h), (Some(1_000.0), Some(0.0)));
        let modest = slo_status(&measures, "99%".parse().unwrap());
        assert_eq!((modest.target, modest.burn_1h, modest.burn_5m), (0.99, Some(0.1), Some(100.0)));
    }

    #[test]
    fn the_most_frequent_failures_come_first_with_their_exact_status() {
        let mut hour = WindowFigures::default();
        let timeout = ResultClass::all().find(|class| class.name() == "timeout").unwrap();
        hour.by_result[timeout.index()] = 3;
        hour.by_result[4] = 7;
        hour.statuses.set(503, 5);
        hour.statuses.set(500, 2);
        let found = top_failures(&hour);
        let found: Vec<(&str, u64)> = found.iter().map(|found| (found.result.as_str(), found.attempts)).collect();
        assert_eq!(found, [("503", 5), ("timeout", 3), ("500", 2)]);
    }

    #[test]
    fn quantiles_are_found_within_their_buckets() {
        let mut hour = WindowFigures::default();
        hour.time_to_deliver[0] = 50;
        hour.time_to_deliver[4] = 50;
        let measures = of(hour);
        assert_eq!(found(&measures, "time_to_deliver_p50").0, Some(0.05));
        assert_eq!(found(&measures, "time_to_deliver_p99").0, Some(0.99));
        let mut late = WindowFigures::default();
        late.time_to_deliver[12] = 1;
        assert_eq!(found(&of(late), "time_to_deliver_p99").0, Some(86_400.0));
    }
}
