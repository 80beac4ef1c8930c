//! The shipped alert rules and the Grafana board, run by a real Prometheus on the
//! scrape of a real gateway.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::servers::guard::free_port;
use crate::support::{Gateway, Options, Receiver, Reply, eager_retry, path_of};
use crate::tls::Authority;

const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus/alerts.yml");
const BOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/grafana/posthaste.json");
/// Metrics that a single node without outboxes and without TLS does not have.
const ELSEWHERE: [&str; 6] = [
    "posthaste_server_certificate_end_seconds",
    "posthaste_lease_remaining_seconds",
    "posthaste_outbox_rows_relayed_total",
    "posthaste_outbox_errors_total",
    "posthaste_outbox_lag_seconds",
    "posthaste_outbox_refused_rows",
];

/// A Prometheus on a folder of its own, which ends with the test.
struct Prometheus {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that scrapes this gateway every second and evaluates the rules.
    fn start(gateway: &Gateway) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [RULES],
            "scrape_configs": [
                {"job_name": "posthaste", "static_configs": [{"targets": [gateway.address.to_string()]}]},
            ],
        });
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .expect("there is no prometheus: install Debian's package prometheus, or run ./check, which does");
        Self { process, port, _folder: folder }
    }

    fn get(&self, path: &str, query: &str) -> Option<Value> {
        let output = Command::new("curl")
            .args(["-sG", "--max-time", "10", "--data-urlencode", &format!("query={query}")])
            .arg(format!("http://127.0.0.1:{}/api/v1/{path}", self.port))
            .output()
            .expect("curl runs");
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Asks until the answer is good.
    async fn eventually(&self, path: &str, query: &str, is_good: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.get(path, query);
            if let Some(answer) = answer.as_ref().filter(|answer| is_good(answer)) {
                return answer.clone();
            }
            assert!(Instant::now() < until, "{path} {query}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The expressions of the board, each with the title of its panel.
fn queries_of_the_board() -> Vec<(String, String)> {
    let board: Value = serde_json::from_slice(&std::fs::read(BOARD).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let queries = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let title = panel["title"].as_str().unwrap().to_owned();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    });
    queries.collect()
}

/// The metrics of ours that a text names.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("posthaste_")).map(str::to_owned).collect()
}

/// The series that a text asks for, each with the labels it must have.
fn selectors_in(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices("posthaste_").filter(|(at, _)| {
        let before = text[..*at].chars().next_back();
        before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
    });
    let selector = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let name = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        match rest[name..].strip_prefix('{').and_then(|labels| labels.find('}')) {
            Some(end) => rest[..name + end + 2].to_owned(),
            None => rest[..name].to_owned(),
        }
    };
    starts.map(selector).collect()
}

/// A gateway that has delivered and failed, with a client certificate and a replaced
/// secret that end.
async fn seeded(receiver: &Receiver) -> Gateway {
    let gateway = Gateway::start_with(Options::flags(&["--self-test", "on"])).await;
    let endpoint = json!({"url": receiver.url(), "event_types": ["a.*"], "retry": eager_retry(5)});
    let endpoint = gateway.create_endpoint(endpoint).await;
    gateway.client.post(&format!("{}/secrets/rotate", path_of(&endpoint)), r#"{"overlap":"1h"}"#).await.expect(201);
    let (certificate, key) = Authority::named("ours").identity_until(&["client"], 2090, 1, 1);
    let tls = json!({"client_certificate": certificate, "client_key": key});
    gateway.create_endpoint(json!({"url": "https://hooks.example.com/", "event_types": ["never"], "tls": tls})).await;
    for n in 0..5 {
        gateway.send(json!({"type": "a.b", "data": n})).await;
    }
    gateway
}

#[tokio::test]
async fn every_query_of_the_board_and_every_alert_runs_on_a_real_scrape() {
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(404)]).await;
    let gateway = seeded(&receiver).await;
    let prometheus = Prometheus::start(&gateway);
    let count = "count_over_time(posthaste_deliveries_finished_total{state=\"delivered\"}[1m])";
    let has_two_scrapes = |answer: &Value| {
        let value = answer["data"]["result"][0]["value"][1].as_str();
        value.and_then(|value| value.parse::<f64>().ok()).is_some_and(|scrapes| scrapes >= 3.0)
    };
    prometheus.eventually("query", count, has_two_scrapes).await;

    let names = prometheus.get("label/__name__/values", "").unwrap();
    let names: BTreeSet<&str> = names["data"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let is_known = |metric: &str| names.contains(metric) || ELSEWHERE.contains(&metric);
    let queries = queries_of_the_board();
    assert!(queries.len() > 40, "{}", queries.len());
    let is_elsewhere = |query: &str| metrics_in(query).iter().any(|metric| ELSEWHERE.contains(&metric.as_str()));
    let is_empty = |answer: &Value| answer["data"]["result"].as_array().is_none_or(Vec::is_empty);
    let mut empty = Vec::new();
    for (title, query) in &queries {
        let metrics = metrics_in(query);
        assert!(!metrics.is_empty(), "{title}: {query} asks for no metric of ours");
        for metric in metrics {
            assert!(is_known(&metric), "{title}: there is no {metric}");
        }
        let answer = prometheus.get("query", query).unwrap();
        assert_eq!(answer["status"], "success", "{title}: {query}: {answer}");
        if is_empty(&answer) && !is_elsewhere(query) {
            empty.push(format!("{title}: {query}"));
        }
    }

    // An alert that does not fire has no result, but everything that it looks at has.
    let rules = std::fs::read_to_string(RULES).unwrap();
    let rules: String = rules.lines().filter(|line| !line.trim().starts_with('#')).collect::<Vec<_>>().join("\n");
    for selector in selectors_in(&rules) {
        let metric = metrics_in(&selector).pop_first().unwrap();
        assert!(is_known(&metric), "alerts.yml: there is no {metric}");
        if is_empty(&prometheus.get("query", &selector).unwrap()) && !is_elsewhere(&selector) {
            empty.push(format!("alerts.yml: {selector}"));
        }
    }
    assert!(empty.is_empty(), "nothing was found for\n{}", empty.join("\n"));
    let is_evaluated = |answer: &Value| rules_of(answer).iter().all(|rule| rule["health"] != "unknown");
    let rules = prometheus.eventually("rules", "", is_evaluated).await;
    let rules = rules_of(&rules);
    assert!(rules.len() > 15, "{rules:?}");
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}

fn rules_of(answer: &Value) -> Vec<Value> {
    let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
    groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
}

#[test]
fn every_alert_is_tested_and_documented() {
    let folder = Path::new(RULES).parent().unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let tests = read(&folder.join("alerts.test.yml"));
    let docs = read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/watching.md")));
    let rules = read(Path::new(RULES));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 15);
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} is not tested");
        assert!(docs.contains(&format!("`{alert}`")), "{alert} is not in docs/watching.md");
    }
}
