//! Prints results: a table, JSON, and a comparison with another run.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::result::{BenchResult, Quantiles};
use crate::cli::table::Table;

/// A whole run, as `--json` prints it and `--compare` reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchReport {
    /// Version of the program that was measured.
    pub version: String,
    /// Requests per second of a bare signing client against a bare receiver.
    pub bare_per_second: f64,
    /// One result for each row.
    pub results: Vec<BenchResult>,
}

impl BenchReport {
    /// Reads the report of another run.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not what `posthaste bench --json` prints", file.display()))
    }

    /// Returns the table of the results: a line for each figure, and a column for each
    /// row of the run.
    pub fn table(&self) -> Table {
        let mut titles = vec![""];
        titles.extend(self.results.iter().map(|row| row.name.as_str()));
        let line = |name: &str, value: &dyn Fn(&BenchResult) -> String| {
            std::iter::once(name.to_owned()).chain(self.results.iter().map(value)).collect()
        };
        let lines: Vec<Vec<String>> = vec![
            line("delivered/s", &|row| format!("{:.0}", row.delivered_per_second)),
            line("of a bare client", &|row| format!("{:.1} % of {:.0}", row.percent_of_bare, self.bare_per_second)),
            line("accept p50/p99/p99.9", &|row| quantiles(row.accept_ms)),
            line("arrival p50/p99/p99.9", &|row| quantiles(row.arrival_ms)),
            line("CPU per delivery", &|row| format!("{:.0} µs", row.cpu_micros)),
            line("commits per delivery", &|row| format!("{:.3}", row.commits)),
            line("written per delivery", &|row| format!("{:.1} KiB", row.written_bytes / 1_024.0)),
            line("memory", &|row| format!("{:.0} MiB", row.resident_bytes as f64 / 1_048_576.0)),
            line("waiting at the end", &|row| row.waiting.to_string()),
            line("answered 429 or 503", &|row| row.refused.to_string()),
        ];
        Table::new(&titles, lines)
    }

    /// Returns how the results differ from those of another run: for each row its
    /// figures then and now, and their ratio. Throughput is compared as a share of the
    /// bare client, since machines and minutes differ.
    pub fn comparison(&self, other: &Self) -> Vec<Table> {
        let tables = self.results.iter().map(|row| {
            let Some(before) = other.results.iter().find(|before| before.name == row.name) else {
                return Table::new(&[&row.name], vec![vec!["not in the other run".into()]]);
            };
            let p99 = |row: &BenchResult| row.arrival_ms.map_or(f64::NAN, |times| times.p99);
            let figures = [
                ("% of a bare client", before.percent_of_bare, row.percent_of_bare),
                ("µs of CPU per delivery", before.cpu_micros, row.cpu_micros),
                ("ms to arrival, p99", p99(before), p99(row)),
                ("bytes written per delivery", before.written_bytes, row.written_bytes),
                ("MiB of memory", mebibytes(before), mebibytes(row)),
            ];
            let lines = figures.into_iter().filter(|(_, before, now)| before.is_finite() && now.is_finite());
            let line = |(name, before, now): (&str, f64, f64)| {
                vec![name.to_owned(), short(before), short(now), format!("{:.2}", now / before)]
            };
            Table::new(&[&row.name, "before", "now", "ratio"], lines.map(line).collect())
        });
        tables.collect()
    }
}

fn mebibytes(row: &BenchResult) -> f64 {
    row.resident_bytes as f64 / 1_048_576.0
}

fn quantiles(times: Option<Quantiles>) -> String {
    times.map_or("-".into(), |at| format!("{} / {} / {} ms", short(at.p50), short(at.p99), short(at.p999)))
}

fn short(number: f64) -> String {
    if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::cli::screen::Screen;

    fn result(name: &str, percent_of_bare: f64, cpu_micros: f64) -> BenchResult {
        BenchResult {
            name: name.into(),
            delivered_per_second: 12_345.6,
            percent_of_bare,
            accepted: 1,
            deliveries: 1,
            waiting: 1_234_567,
            failed_attempts: 0,
            refused: 0,
            accept_ms: Some(Quantiles { p50: 5.04, p99: 1_234.5, p999: 12_345.6 }),
            arrival_ms: None,
            cpu_micros,
            resident_bytes: 200 << 20,
            commits: 0.05,
            written_bytes: 4_096.0,
            seconds: Vec::new(),
        }
    }

    fn report(results: Vec<BenchResult>) -> BenchReport {
        BenchReport { version: "1".into(), bare_per_second: 87_654.3, results }
    }

    #[test]
    fn the_table_has_a_line_for_each_figure_and_fits_a_terminal() {
        let shown = report(vec![result("64 producers", 12.3, 100.0), result("256 producers", 10.0, 120.0)]);
        let shown = shown.table().render(Screen::PLAIN);
        assert!(shown.lines().all(|line| line.width() <= 80), "{shown}");
        insta::assert_snapshot!(shown, @r"
                               64 PRODUCERS           256 PRODUCERS
        delivered/s            12346                  12346
        of a bare client       12.3 % of 87654        10.0 % of 87654
        accept p50/p99/p99.9   5.0 / 1234 / 12346 ms  5.0 / 1234 / 12346 ms
        arrival p50/p99/p99.9  -                      -
        CPU per delivery       100 µs                 120 µs
        commits per delivery   0.050                  0.050
        written per delivery   4.0 KiB                4.0 KiB
        memory                 200 MiB                200 MiB
        waiting at the end     1234567                1234567
        answered 429 or 503    0                      0
        ");
    }

    #[test]
    fn rows_are_compared_by_name_with_the_ratio_of_each_figure() {
        let now = report(vec![result("a", 15.0, 80.0), result("new", 1.0, 1.0)]);
        let tables = now.comparison(&report(vec![result("a", 10.0, 100.0)]));
        let shown: Vec<String> = tables.iter().map(|table| table.render(Screen::PLAIN)).collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        A                           BEFORE  NOW   RATIO
        % of a bare client          10      15    1.50
        µs of CPU per delivery      100     80    0.80
        bytes written per delivery  4096    4096  1.00
        MiB of memory               200     200   1.00
        NEW
        not in the other run
        ");
    }

    #[test]
    fn a_report_is_read_as_it_was_printed_and_anything_else_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.json");
        std::fs::write(&file, serde_json::to_string(&report(vec![result("a", 15.0, 80.0)])).unwrap()).unwrap();
        assert_eq!(BenchReport::read(&file).unwrap().results[0].name, "a");
        std::fs::write(&file, "{}").unwrap();
        let problem = BenchReport::read(&file).unwrap_err().to_string();
        assert!(problem.ends_with("report.json is not what `posthaste bench --json` prints"), "{problem}");
    }
}
