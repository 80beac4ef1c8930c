//! Draws a run over time, as lines of bars in the terminal.

use super::result::{BenchResult, Sample};

/// Bars in a line: longer runs share a bar between seconds.
const BARS_MAX: usize = 48;
/// Bars from nothing to the most.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns a chart of a run: a line for each figure, from the first second to the last.
pub fn chart(result: &BenchResult) -> String {
    let line = |name: &str, unit: &str, value: fn(&Sample) -> f64| {
        let values: Vec<f64> = result.seconds.iter().map(value).collect();
        let per_bar = values.len().div_ceil(BARS_MAX).max(1);
        let means: Vec<f64> = values.chunks(per_bar).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
        let most = means.iter().copied().fold(0.0, f64::max);
        let bars: String = means.iter().map(|value| bar(*value, most)).collect();
        format!("  {name:<11} {bars} 0–{most:.0} {unit}")
    };
    [
        format!("{}, {} seconds:", result.name, result.seconds.len()),
        line("accepted", "/s", |second| second.accepted as f64),
        line("delivered", "/s", |second| second.delivered as f64),
        line("waiting", "", |second| second.waiting as f64),
        line("arrival p99", "ms", |second| second.arrival_p99_ms),
        line("memory", "MiB", |second| second.resident_bytes as f64 / 1_048_576.0),
        line("files", "MiB", |second| second.store_bytes as f64 / 1_048_576.0),
    ]
    .map(|line| line.trim_end().to_owned())
    .join("\n")
}

fn bar(value: f64, most: f64) -> char {
    let step = if most > 0.0 { value / most * (BARS.len() - 1) as f64 } else { 0.0 };
    BARS[(step.round() as usize).min(BARS.len() - 1)]
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;

    fn run_of(seconds: usize, delivered: impl Fn(usize) -> u64) -> BenchResult {
        let second = |n| Sample {
            accepted: 10,
            delivered: delivered(n),
            waiting: 0,
            arrival_p99_ms: 123_456.0,
            resident_bytes: 1 << 40,
            store_bytes: 1 << 40,
        };
        BenchResult {
            name: "row".into(),
            delivered_per_second: 1.0,
            percent_of_bare: 1.0,
            accepted: 1,
            deliveries: 1,
            waiting: 0,
            failed_attempts: 0,
            refused: 0,
            accept_ms: None,
            arrival_ms: None,
            cpu_micros: 1.0,
            resident_bytes: 0,
            commits: 0.0,
            written_bytes: 0.0,
            seconds: (0..seconds).map(second).collect(),
        }
    }

    #[test]
    fn a_chart_shows_each_second_from_nothing_to_the_most() {
        let chart = chart(&run_of(3, |n| 4 * n as u64));
        assert!(chart.contains("  delivered   ▁▅█ 0–8 /s"), "{chart}");
        assert!(chart.contains("  accepted    ███ 0–10 /s"), "{chart}");
    }

    #[test]
    fn a_long_run_shares_bars_and_fits_a_terminal() {
        // The second half has nothing.
        let chart = chart(&run_of(480, |n| if n < 240 { 9_999_999 } else { 0 }));
        assert!(chart.lines().all(|line| line.width() <= 80), "{chart}");
        let delivered = chart.lines().nth(2).unwrap();
        assert!(delivered.contains(&format!("{}{} ", "█".repeat(24), "▁".repeat(24))), "{chart}");
    }
}
