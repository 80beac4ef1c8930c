//! `posthaste bench` with a load so small that only its counts matter: every event
//! that was accepted has arrived, at every endpoint that it is for.

use std::path::Path;

use serde_json::Value;

use crate::cli::{posthaste, succeeded};
use crate::servers::postgres::Server;

/// Runs a benchmark of one second in this folder; returns what it prints.
async fn bench_in(folder: &Path, args: &[&str]) -> String {
    let args = [&["bench"], args, &["--seconds", "1"]].concat();
    let output = posthaste(&args).current_dir(folder).output().await.expect("it runs");
    succeeded(&args, &output)
}

/// Runs a benchmark of one second; returns its report.
async fn bench(args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let out = bench_in(folder.path(), &[args, &["--json"]].concat()).await;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{args:?} left files behind");
    serde_json::from_str(&out).unwrap_or_else(|problem| panic!("{args:?} printed no JSON ({problem}): {out}"))
}

/// Runs a benchmark whose report has one row, of which everything has arrived; returns
/// the row. Each event makes so many deliveries.
async fn row(args: &[&str], deliveries_per_event: u64) -> Value {
    let report = bench(args).await;
    assert!(report["bare_per_second"].as_f64().unwrap() > 0.0, "{report}");
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{report}");
    let row = rows[0].clone();
    assert!(number(&row, "accepted") > 0, "{row}");
    assert_eq!(number(&row, "deliveries"), number(&row, "accepted") * deliveries_per_event, "{row}");
    for figure in ["delivered_per_second", "percent_of_bare", "cpu_micros", "resident_bytes", "commits"] {
        assert!(row[figure].as_f64().unwrap() > 0.0, "{figure} in {row}");
    }
    row
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("{name} is no number in {row}"))
}

#[tokio::test]
async fn single_has_a_row_for_each_number_of_producers() {
    let report = bench(&["--producers", "1,2"]).await;
    let names: Vec<&str> =
        report["results"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["1 producers", "2 producers"]);
    let row = row(&["single", "--producers", "2"], 1).await;
    for times in ["accept_ms", "arrival_ms"] {
        let at = |quantile: &str| row[times][quantile].as_f64().unwrap();
        assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("p999"), "{row}");
    }
}

#[tokio::test]
async fn batch_counts_every_event_of_a_request() {
    let row = row(&["batch", "--batch", "7", "--producers", "2"], 1).await;
    assert_eq!(number(&row, "accepted") % 7, 0, "{row}");
}

#[tokio::test]
async fn fanout_counts_every_endpoint() {
    row(&["fanout", "--endpoints", "3", "--producers", "2"], 3).await;
}

#[tokio::test]
async fn lanes_deliver_all_keys() {
    row(&["lanes", "--lanes", "3", "--producers", "2"], 1).await;
}

#[tokio::test]
async fn events_with_random_ids_arrive_and_are_timed() {
    let row = row(&["single", "--producers", "2", "--random-ids"], 1).await;
    assert!(row["arrival_ms"]["p50"].as_f64().unwrap() > 0.0, "{row}");
}

#[tokio::test]
async fn endpoints_get_one_event_each_in_turn() {
    row(&["endpoints", "--endpoints", "20", "--producers", "2"], 1).await;
}

#[tokio::test]
async fn backlog_drains_exactly_what_waits() {
    let row = row(&["backlog", "--waiting", "501"], 1).await;
    assert_eq!(number(&row, "deliveries"), 501);
    assert!(row["accept_ms"].is_null() && row["arrival_ms"].is_null(), "nothing was accepted meanwhile: {row}");
}

#[tokio::test]
async fn flaky_delivers_what_failed_first() {
    let row = row(&["flaky", "--failing", "50", "--producers", "2"], 1).await;
    let failed = number(&row, "failed_attempts");
    // On a machine that stalls there may be a single event, and the first one always fails first.
    assert!(0 < failed && failed <= number(&row, "deliveries"), "{row}");
}

#[tokio::test]
async fn paced_hands_in_at_its_pace() {
    let row = row(&["paced", "--per-second", "50"], 1).await;
    assert_eq!(number(&row, "accepted"), 50, "what was late was handed in all the same: {row}");
}

#[tokio::test]
async fn saturate_samples_every_second() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["bench", "saturate", "--producers", "4", "--seconds", "4"];
    let output = posthaste(&args).current_dir(folder.path()).output().await.expect("it runs");
    let out = succeeded(&args, &output);
    for line in ["delivered/s ", "of a bare client ", "saturated by 4 producers, ", "  arrival p99 ", "  files "] {
        assert!(out.contains(line), "{line} is missing in {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[tokio::test]
async fn backup_measures_events_without_and_with_backups() {
    for pace in [&["--producers", "2"][..], &["--per-second", "20"]] {
        let figures = bench(&[&["backup", "--fill-seconds", "1", "--pairs", "2"], pace].concat()).await;
        let pairs = figures["pairs"].as_array().unwrap();
        let first: Vec<&Value> = pairs.iter().map(|pair| &pair["first"]).collect();
        assert_eq!(first, ["without", "with"], "what comes later has the larger store: {figures}");
        for pair in pairs {
            assert!(pair["with"]["accepted_per_second"].as_f64().unwrap() > 0.0, "{figures}");
            let backups = pair["backups"].as_array().unwrap();
            assert!(!backups.is_empty() && backups.iter().all(|backup| number(backup, "bytes") > 0), "{figures}");
        }
        assert!(figures["ratios"]["accepted"].as_f64().unwrap() > 0.0, "{figures}");
    }
}

#[tokio::test]
async fn neighbour_measures_a_quiet_tenant_alone_and_beside_a_loud_one() {
    for (noise, pairs) in [("backlog", "2"), ("hanging", "1"), ("flooding", "2")] {
        let loud = ["--noise", noise, "--waiting", "50", "--endpoints", "2", "--producers", "2"];
        let figures = bench(&[&["neighbour", "--per-second", "20", "--pairs", pairs], &loud[..]].concat()).await;
        assert_eq!(figures["pairs"].as_array().unwrap().len().to_string(), pairs, "{figures}");
        for times in [&figures["pairs"][0]["alone_ms"], &figures["pairs"][0]["beside_ms"], &figures["ratio"]] {
            assert!(times["p99"].as_f64().unwrap() > 0.0, "{figures}");
        }
    }
}

#[tokio::test]
async fn replay_measures_new_events_alone_and_beside_the_replay() {
    let size = ["--dead", "6000", "--endpoints", "2", "--max-in-flight", "5", "--producers", "2", "--pairs", "1"];
    let figures = bench(&[&["replay", "--to-end"], &size[..]].concat()).await;
    let replayed = |half: &str| figures["pairs"][0][half]["replayed_per_second"].as_f64().unwrap();
    assert_eq!(replayed("alone"), 0.0, "nothing is sent of a replay that is paused: {figures}");
    assert!(replayed("beside").is_finite(), "{figures}");
    assert!(figures["kept"]["delivered"].as_f64().unwrap() > 0.0, "{figures}");
    // Some more in between, and no dead letter is left, or it says so.
    let without = number(&figures["alone"], "replayed") + number(&figures["rest"], "replayed");
    assert!(0 < without && without < 6_000, "{figures}");
    let most = number(&figures["rest"], "resident_bytes");
    assert!(number(&figures, "resident_bytes") > 0 && most > 0, "{figures}");
}

#[tokio::test]
async fn figures_measures_the_row_of_each_endpoint() {
    let database = Server::shared(&[]).await.database().await;
    for store in [&[][..], &["--database-url", database.url()]] {
        let folder = tempfile::tempdir().unwrap();
        let args = [&["bench", "figures", "--endpoints", "20", "--json"], store].concat();
        let output = posthaste(&args).current_dir(folder.path()).output().await.expect("it runs");
        let report: Value = serde_json::from_str(&succeeded(&args, &output)).unwrap();
        assert_eq!(number(&report, "delivered"), 20, "{report}");
        assert!(report["row"]["gateway_micros"].is_number(), "{report}");
        // A server that the tests did not start may be on another machine.
        let has_database = report["row"]["database_micros"].is_number();
        assert!(store.is_empty() != has_database || std::env::var_os("POSTHASTE_TEST_DATABASE_URL").is_some());
    }
}

/// Looks at the pages of a store that is nearly empty; returns the report. Whether pages
/// are slow depends on the machine, and what is said about it does not.
async fn dashboard(more: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let size = ["--endpoints", "30", "--finished", "300", "--dead", "90", "--waiting", "20"];
    let people = ["--viewers", "3", "--pairs", "0", "--seconds", "1", "--json"];
    let args = [&["bench", "dashboard"], &size[..], &people, more].concat();
    let output = posthaste(&args).current_dir(folder.path()).output().await.expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|problem| panic!("{problem}: {out} {err}"));
    let over = report["over_limits"].as_array().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!over.is_empty())), "{over:?} {err}");
    assert_eq!(over.is_empty(), !err.contains("over their limits"), "{over:?} {err}");
    report
}

/// Every page was opened, and those about dead letters and figures have something to show.
fn has_pages(report: &Value) {
    let pages = report["pages"].as_array().unwrap();
    let bytes = |name: &str| {
        let page = pages.iter().find(|page| page["page"] == name).unwrap_or_else(|| panic!("no {name} in {report}"));
        number(page, "bytes")
    };
    assert!(pages.len() > 35, "{report}");
    assert!(pages.iter().all(|page| number(page, "bytes") > 500), "{report}");
    assert!(bytes("/dead-letters/list") > 15_000, "fifty rows: {report}");
    assert!(bytes("/dead-letters") > bytes("/jobs") + 2_000, "groups: {report}");
    for name in ["/search?q=bench-nothing", "/simulator?tenant={tenant}&endpoint={endpoint}", "/portal/dead-letters"] {
        assert!(bytes(name) > 1_000, "{report}");
    }
    // Null on a machine without gzip.
    let assets = report["assets_compressed_bytes"].as_u64();
    assert!(assets.is_none_or(|bytes| (8_000..40_000).contains(&bytes)), "{report}");
    let asked: u64 = pages.iter().map(|page| number(page, "asked")).sum();
    assert!(asked >= 3, "each of the people has seen a page: {report}");
}

#[tokio::test]
async fn dashboard_opens_every_page_of_a_seeded_store() {
    has_pages(&dashboard(&[]).await);
    let database = Server::shared(&[]).await.database().await;
    has_pages(&dashboard(&["--database-url", database.url()]).await);
}

#[tokio::test]
async fn several_nodes_on_one_database_deliver_everything() {
    let database = Server::shared(&[]).await.database().await;
    let args = ["batch", "--batch", "5", "--producers", "2", "--nodes", "2", "--database-url", database.url()];
    let row = row(&args, 1).await;
    assert!(row["written_bytes"].as_f64().unwrap() > 500.0, "each event is logged with its data: {row}");
}

#[tokio::test]
async fn an_earlier_report_is_compared_row_by_row() {
    let folder = tempfile::tempdir().unwrap();
    let report = bench_in(folder.path(), &["--producers", "2", "--json"]).await;
    std::fs::write(folder.path().join("before.json"), report).unwrap();
    let out = bench_in(folder.path(), &["--producers", "2,3", "--compare", "before.json"]).await;
    assert!(out.contains("2 PRODUCERS                 BEFORE"), "{out}");
    assert!(out.contains("3 PRODUCERS\nnot in the other run"), "{out}");
}

#[tokio::test]
async fn what_cannot_be_measured_is_refused_by_name_and_at_once() {
    for (args, said) in [
        (&["nonsense"][..], "unrecognized subcommand 'nonsense'"),
        (&["--producers", "0"], "use a whole number from 1 to 10000000"),
        (&["flaky", "--failing", "51"], "51 is not in 1..=50"),
        (&["--seconds", "0"], "0 is not in 1..=3600"),
        (&["--nodes", "2"], "--nodes 2 needs --database-url: an embedded store has one node"),
        (&["--compare", "/nonexistent.json"], "cannot read /nonexistent.json"),
    ] {
        let args = [&["bench"], args].concat();
        let output = posthaste(&args).output().await.expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(said), "{args:?}: {stderr}");
    }
}
