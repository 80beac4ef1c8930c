//! Keeps the house tidy: imports go one way, every file says what it is for,
//! and the documents say what the code does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste::api::openapi::document;
use posthaste::api::problem::ProblemCode;
use posthaste::lifecycle::dispatch::lag::BLOCKERS;
use posthaste::metrics::{BreakerCounts, Gauges, Metrics};
use posthaste::model::audit::AuditAction;
use posthaste::model::preset::Preset;
use posthaste::model::status_rules::StatusTable;

mod api_tables;
mod documented_commands;
mod migrations;
mod names;
mod source;
mod versions;

use posthaste::model::named_enum::NamedEnum;
use source::{Source, expect_none, read, root, sources};

/// What each module may import, besides itself. `main` imports `cli` alone;
/// tests may import anything.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("cli", &["app", "api", "lifecycle", "store", "model", "clock", "config", "telemetry"]),
    ("app", &["api", "dashboard", "lifecycle", "store", "metrics", "model", "clock", "config", "telemetry"]),
    ("dashboard", &["api", "model"]),
    ("api", &["lifecycle", "store", "metrics", "model", "clock"]),
    ("lifecycle", &["store", "metrics", "model", "clock"]),
    ("store", &["metrics", "model", "clock"]),
    ("metrics", &["model"]),
    ("model", &[]),
    ("clock", &["model"]),
    ("config", &["model"]),
    ("telemetry", &["clock", "config"]),
];

const FIRST_PAGE_LINES_MAX: usize = 150;

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The names that follow a path like `crate::`, alone or in braces.
fn names_after(code: &str, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(path) {
        if code[..at].ends_with(|c: char| is_word(c) || c == ':') {
            continue;
        }
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(names_in_group(group)),
            None => names.push(rest.chars().take_while(|c| is_word(*c)).collect()),
        }
    }
    names
}

/// The first names in `a::b, c::{d, e}, f}`: a, c and f.
fn names_in_group(group: &str) -> Vec<String> {
    let (mut depth, mut members) = (1, vec![String::new()]);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => members.push(String::new()),
            c if depth == 1 => members.last_mut().expect("one is open").push(c),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    let first = |member: String| member.trim().chars().take_while(|c| is_word(*c)).collect::<String>();
    members.into_iter().map(first).filter(|name| !name.is_empty()).collect()
}

/// The modules of the crate that a file imports, by whatever path.
fn imports(source: &Source) -> BTreeSet<String> {
    let code = source.code();
    let mut found: BTreeSet<String> = names_after(&code, "crate::").into_iter().collect();
    // Enough `super`s reach the root as well; a test module needs one more.
    for depth in [source.depth(), source.depth() + 1] {
        let to_root = "super::".repeat(depth);
        let modules = names_after(&code, &to_root).into_iter();
        found.extend(modules.filter(|name| MAY_IMPORT.iter().any(|(module, _)| module == name)));
    }
    found.remove(source.module());
    found
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for source in sources(&["src"]).iter().filter(|source| !matches!(source.module(), "main" | "lib")) {
        let module = source.module();
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(known, _)| *known == module) else {
            wrong.push(format!("{}: say in MAY_IMPORT what {module} may import", source.path));
            continue;
        };
        for import in imports(source) {
            if !allowed.contains(&import.as_str()) {
                wrong.push(format!("{}: {module} may not import crate::{import}", source.path));
            }
        }
    }
    expect_none("imports against the direction main → cli → app → dashboard → api → lifecycle → store → model", wrong);
}

#[test]
fn main_imports_the_command_line_alone() {
    let main = Source { path: "src/main.rs".into(), text: read("src/main.rs") };
    assert_eq!(names_after(&main.code(), "posthaste::"), ["cli"]);
}

#[test]
fn only_the_app_names_a_concrete_store() {
    let is_free = |path: &str| ["src/app.rs", "src/app/", "src/store/"].iter().any(|free| path.starts_with(free));
    let stores = ["embedded::", "store::embedded", "store::postgres"];
    let names = |source: &Source| stores.iter().any(|store| source.code().contains(store));
    let wrong = sources(&["src"])
        .into_iter()
        .filter(|source| !is_free(&source.path) && names(source))
        .map(|source| format!("{}: take `Arc<dyn Store>`, or let src/app open the store", source.path));
    expect_none("files that name a concrete store", wrong.collect());
}

/// What the gateway does by itself is not recorded in the audit log.
#[test]
fn no_request_changes_anything_in_the_gateways_own_name() {
    let wrong = sources(&["src/api"])
        .into_iter()
        .filter(|source| source.code().contains("Initiator::Gateway"))
        .map(|source| format!("{}: take the `Initiator` of the request", source.path));
    expect_none("requests that no audit entry would name", wrong.collect());
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    let says =
        |text: &str| text.lines().next().and_then(|line| line.strip_prefix("//! ")).is_some_and(|it| it.len() > 8);
    let wrong = sources(&["src", "tests", "client", "receiver", "fuzz/src", "fuzz/fuzz_targets"]);
    let wrong = wrong.into_iter().filter(|source| !says(&source.text)).map(|source| source.path);
    expect_none("files without a `//!` purpose in their first line", wrong.collect());
}

#[test]
fn only_the_clock_asks_the_machine_for_the_time() {
    // Put together here, so that this file does not find itself.
    let asks = [concat!("Timestamp", "::now"), concat!("SystemTime", "::now")];
    let clocks = ["src/clock.rs", "receiver/src/clock.rs"];
    let wrong = sources(&["src", "tests", "client", "receiver"])
        .into_iter()
        .filter(|source| !clocks.contains(&source.path.as_str()))
        .filter(|source| asks.iter().any(|ask| source.code().contains(ask)))
        .map(|source| format!("{}: take `now` as an argument", source.path));
    expect_none("files that read the clock", wrong.collect());
}

/// A name that is not synced is gone after a power cut, and what it stood for
/// with it.
#[test]
fn files_get_their_names_in_one_place_that_syncs_them() {
    let renames = [".persist(", ".persist_noclobber(", "fs::rename"];
    let wrong = sources(&["src"])
        .into_iter()
        .filter(|source| source.path != "src/store/durable_file.rs")
        .filter(|source| renames.iter().any(|rename| source.code().contains(rename)))
        .map(|source| format!("{}: use store::durable_file", source.path));
    expect_none("files that are renamed and not synced", wrong.collect());
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("todo", "!"),
        concat!("unimplemented", "!"),
    ];
    let mut wrong = Vec::new();
    for source in sources(&["src", "tests", "client", "receiver", "fuzz/src"]) {
        for (n, line) in source.text.lines().enumerate() {
            if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
                wrong.push(format!("{}:{}: {mark}", source.path, n + 1));
            }
        }
    }
    expect_none("things left for later; do them, or open an issue", wrong);
}

/// What opens a socket to somewhere, or asks where something is.
const OPENS_SOCKETS: &[&str] = &[
    "TcpStream::connect",
    "TcpSocket::",
    "UdpSocket::",
    "UnixStream::connect",
    "UnixDatagram::",
    "lookup_host",
    "to_socket_addrs",
    "TokioResolver::",
    "SmtpConnection::connect",
    "SmtpTransport",
    "Manager::from_config",
    "tokio_postgres::connect",
    ".connect_raw(",
    "HttpConnector",
    "Client::builder(",
    "client::conn::",
    "socket2::",
    "rustix::net",
    "reqwest",
];

/// Who may do which of it, and why that goes nowhere a stranger has chosen.
const MAY_OPEN_SOCKETS: &[(&str, &[&str], &str)] = &[
    (
        "src/lifecycle/deliver/connect.rs",
        &["TcpStream::connect", "TcpSocket::"],
        "to what the guard has passed, or to the proxy",
    ),
    ("src/lifecycle/deliver/http_connection.rs", &["client::conn::"], "over a stream of the guarded connector"),
    ("src/lifecycle/deliver/self_test_receiver.rs", &["client::conn::"], "a pipe inside the process, without a socket"),
    ("src/lifecycle/egress/resolver.rs", &["TokioResolver::", "lookup_host"], "the operator's name servers"),
    ("src/lifecycle/egress/guard.rs", &["UdpSocket::"], "bound to an address to see whether it is ours; sends nothing"),
    ("src/lifecycle/mail/smtp.rs", &["SmtpConnection::connect"], "the operator's mail server"),
    ("src/store/postgres/connect.rs", &["Manager::from_config"], "the operator's database"),
    (
        "client/src/transport.rs",
        &["TcpStream::connect", "client::conn::"],
        "the caller's own gateway, and what it names; the operator's collector of traces",
    ),
    ("src/cli/bench/gateway.rs", &["TcpStream::connect", "client::conn::"], "a gateway of the benchmark's own"),
    ("src/cli/bench/load.rs", &["TcpStream::connect", "client::conn::"], "a gateway of the benchmark's own"),
    ("src/cli/bench/seed.rs", &["tokio_postgres::connect"], "the database that the benchmark was given"),
    ("src/cli/bench/database.rs", &["tokio_postgres::connect"], "the database that the benchmark was given"),
];

#[test]
fn every_place_that_opens_a_socket_is_known() {
    let mut wrong = Vec::new();
    let mut needed = BTreeSet::new();
    for source in sources(&["src", "client/src", "receiver/src"]) {
        let code = source.code();
        // What tests do there is their own affair.
        let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for way in OPENS_SOCKETS.iter().filter(|way| code.contains(**way)) {
            let known = MAY_OPEN_SOCKETS.iter().find(|(path, ways, _)| *path == source.path && ways.contains(way));
            match known {
                Some((path, _, _)) => drop(needed.insert((*path, *way))),
                None => wrong.push(format!("{}: {way}; go through lifecycle/egress, or say here why not", source.path)),
            }
        }
    }
    for (path, ways, _) in MAY_OPEN_SOCKETS {
        let idle = ways.iter().filter(|way| !needed.contains(&(*path, **way)));
        wrong.extend(idle.map(|way| format!("{path}: may use {way} and does not; take it off the list")));
    }
    expect_none("sockets that the egress guard does not know of", wrong);
}

#[test]
fn every_setting_is_documented() {
    let page = read("docs/settings.md");
    assert!(
        page == posthaste::cli::config::reference_page(),
        "docs/settings.md is not what the settings say; run `posthaste config --reference > docs/settings.md`"
    );
}

#[test]
fn the_api_description_is_the_one_that_was_agreed_on() {
    let written = read("docs/openapi.json");
    let mut now = serde_json::to_string_pretty(&document()).expect("the description can be written");
    now.push('\n');
    assert!(
        written == now,
        "docs/openapi.json is not what the routes say; if the change is meant, run `posthaste openapi > docs/openapi.json`"
    );
}

/// Every route there is, as `METHOD /path`.
fn routes() -> BTreeSet<String> {
    let document = document();
    let paths = document["paths"].as_object().expect("there are paths");
    let routes = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("a path has methods");
        methods.keys().map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    routes.filter(|route| is_route(route)).collect()
}

fn is_route(text: &str) -> bool {
    let methods = ["GET", "PUT", "POST", "PATCH", "DELETE"];
    text.split_once(' ').is_some_and(|(method, path)| methods.contains(&method) && path.starts_with('/'))
}

/// What stands between backticks on a page, outside its examples.
fn code_spans(page: &str) -> BTreeSet<String> {
    let mut is_example = false;
    let mut spans = BTreeSet::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_example = !is_example;
        } else if !is_example {
            spans.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    spans
}

#[test]
fn every_route_is_documented_and_every_documented_route_exists() {
    let routes = routes();
    assert!(routes.len() > 20, "there are routes: {routes:?}");
    let told: BTreeSet<String> = code_spans(&read("docs/api.md")).into_iter().filter(|span| is_route(span)).collect();
    let missing = routes.difference(&told).map(|route| format!("`{route}` is not in docs/api.md"));
    let invented = told.difference(&routes).map(|route| format!("`{route}` is in docs/api.md and nowhere else"));
    expect_none("routes and their page differ", missing.chain(invented).collect());
}

#[test]
fn every_route_is_documented_with_the_right_it_takes() {
    let document = document();
    let page = read("docs/api.md");
    let mut wrong = Vec::new();
    for route in routes() {
        let (method, path) = route.split_once(' ').expect("a method and a path");
        let security = &document["paths"][path][method.to_lowercase()]["security"][0]["token"];
        let without = if security.is_array() { "any" } else { "none" };
        let right = security[0].as_str().map_or(without.to_owned(), |right| format!("`{right}`"));
        let row = page.lines().find(|line| line.starts_with(&format!("| `{route}` |"))).unwrap_or_default();
        if !row.contains(&format!(" | {right} | ")) {
            wrong.push(format!("{route} takes {right}: {row}"));
        }
    }
    expect_none("routes whose row in docs/api.md names another right", wrong);
}

#[test]
fn everything_that_is_recorded_is_documented() {
    let told = code_spans(&read("docs/api.md"));
    let actions = AuditAction::ALL.iter().map(|action| action.as_str());
    let missing = actions.filter(|action| !told.contains(*action)).map(|action| format!("`{action}`"));
    expect_none("actions of the audit log that docs/api.md does not name", missing.collect());
}

#[test]
fn every_operation_has_a_name_of_its_own() {
    let document = document();
    let mut known = BTreeSet::new();
    let paths = document["paths"].as_object().expect("there are paths").values();
    let names = paths.flat_map(|methods| methods.as_object().expect("a path has methods").values());
    let names = names.filter_map(|operation| operation["operationId"].as_str());
    let twice = names.filter(|name| !known.insert(*name)).map(str::to_owned);
    expect_none("operation ids that are there twice, on which client generators stumble", twice.collect());
}

#[test]
fn the_published_tables_are_the_ones_that_judge() {
    let page = read("docs/retries.md");
    for table in StatusTable::ALL {
        let rows: String =
            table.rows().map(|row| format!("| `{}` | {} | {} |\n", row.on, row.action.as_str(), row.note)).collect();
        let written = format!("### The table `{}`\n", table.as_str());
        let section = page.split_once(&written).map(|(_, rest)| rest.split("\n#").next().unwrap_or_default());
        let section = section.unwrap_or_else(|| panic!("docs/retries.md has no heading {written:?}"));
        let found: String =
            section.lines().filter(|line| line.starts_with("| `")).map(|line| format!("{line}\n")).collect();
        assert_eq!(found, rows, "docs/retries.md does not say what the table {} does", table.as_str());
    }
}

#[test]
fn the_pictures_of_the_presets_are_drawn_by_the_command() {
    let page = read("docs/retries.md");
    for preset in Preset::ALL {
        let command = ["policy", "preview", "--preset", preset.as_str()];
        let drawn =
            std::process::Command::new(env!("CARGO_BIN_EXE_posthaste")).args(command).output().expect("it runs");
        let drawn = String::from_utf8(drawn.stdout).expect("text");
        let picture = format!("```console\n$ posthaste {}\n{drawn}```\n", command.join(" "));
        assert!(page.contains(&picture), "docs/retries.md does not show this:\n{picture}");
    }
}

#[test]
fn every_error_code_is_documented() {
    let told = code_spans(&read("docs/api.md"));
    let codes = ProblemCode::ALL.iter().map(|code| code.as_str());
    let missing = codes.filter(|code| !told.contains(*code)).map(|code| format!("`{code}`"));
    expect_none("codes that docs/api.md does not explain", missing.collect());
}

/// Everything that `/metrics` can show, as text.
fn metrics() -> String {
    let gauges = Gauges {
        waiting: Some(0),
        slo_target: Some(0.999),
        oldest_due: Some(Duration::ZERO),
        held: BLOCKERS.iter().map(|blocker| (blocker.as_str(), Duration::ZERO)).collect(),
        disk_free: Some(0),
        disk_reserve: Some(0),
        dead_letters: Some(0),
        oldest_dead_letter: Some(Duration::ZERO),
        in_retry_over_24h: Some(0),
        jobs: vec![("running", 0), ("paused", 0), ("queued", 0)],
        certificate_end: Some(Duration::ZERO),
        server_certificate_end: Some(Duration::ZERO),
        secret_end: Some(Duration::ZERO),
        self_test_age: Some(Duration::ZERO),
        breakers: Some(BreakerCounts::default()),
        lease_remaining: Some(Duration::ZERO),
        ..Gauges::default()
    };
    let metrics = Metrics::new(jiff::Timestamp::UNIX_EPOCH);
    for outbox in metrics.create_outbox_figures(1) {
        outbox.record_measurement(true, None, 0);
    }
    metrics.encode(&gauges)
}

/// The labels of a family with all their values, as they stand in the table.
fn labels_of(text: &str, family: &str, kind: &str) -> String {
    let mut labels: Vec<(&str, Vec<&str>)> = Vec::new();
    let samples = text.lines().filter_map(|line| line.strip_prefix(family)?.split_once('{')?.1.split_once('}'));
    let samples = samples.map(|(labels, _)| labels.split(','));
    for (label, value) in samples.flatten().filter_map(|pair| pair.split_once('=')).filter(|(label, _)| *label != "le")
    {
        let value = value.trim_matches('"');
        match labels.iter_mut().find(|(known, _)| *known == label) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => labels.push((label, vec![value])),
        }
    }
    let shown = labels.iter().map(|(label, values)| match kind {
        // Its value is another one in every version.
        "info" => format!("`{label}`"),
        _ => format!("`{label}`: `{}`", values.join("`, `")),
    });
    shown.collect::<Vec<_>>().join("; ")
}

#[test]
fn every_metric_is_documented_with_all_its_labels() {
    let (text, page) = (metrics(), read("docs/metrics.md"));
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let rows = helps.zip(kinds).map(|((family, help), (_, kind))| {
        let name = match kind {
            "counter" => format!("{family}_total"),
            "info" => format!("{family}_info"),
            _ => family.to_owned(),
        };
        let labels = labels_of(&text, &name, kind);
        format!("| `{name}` | {kind} | {labels} | {help} |\n")
    });
    let rows: String = rows.collect();
    assert!(rows.lines().count() > 30, "there are metrics: {rows}");
    let told: String =
        page.lines().filter(|line| line.starts_with("| `posthaste_")).map(|line| format!("{line}\n")).collect();
    assert!(told == rows, "docs/metrics.md does not list what is measured; its rows should be:\n{rows}");
}

#[test]
fn every_code_that_can_refuse_an_event_is_counted_by_its_name() {
    // What no request to take events is answered with.
    let elsewhere = [
        "malformed_request",
        "wrong_state",
        "target_forbidden",
        "limit_exceeded",
        "invalid_cursor",
        "method_not_allowed",
        "data_expunged",
        "data_damaged",
        "link_invalid",
        "link_expired",
    ];
    let text = metrics();
    let is_counted = |code: &str| text.contains(&format!("posthaste_ingest_refused_total{{code=\"{code}\"}} 0\n"));
    let codes = ProblemCode::ALL.iter().map(|code| code.as_str());
    let missing = codes.filter(|code| !elsewhere.contains(code) && !is_counted(code)).map(str::to_owned);
    expect_none("codes that src/metrics/labels.rs does not know", missing.collect());
}

#[test]
fn every_metric_that_a_query_names_exists() {
    let text = metrics();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let known: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    let page = read("docs/metrics.md");
    let queries = page.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let named = queries.flat_map(|query| query.split(|c| !is_word(c))).filter(|word| word.starts_with("posthaste_"));
    let named: BTreeSet<&str> = named.collect();
    assert!(named.len() > 8, "there are queries: {named:?}");
    let invented = named.difference(&known).map(|name| format!("`{name}`"));
    expect_none("metrics in the queries of docs/metrics.md that nothing shows", invented.collect());
}

/// Every page for people, by its path from the root of the repository.
fn pages() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/runbooks", "fuzz"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap_or_else(|problem| panic!("{folder}: {problem}"));
        let names = entries.map(|entry| entry.expect("a folder can be read").file_name());
        let names = names.map(|name| name.into_string().expect("names are text")).filter(|name| name.ends_with(".md"));
        found.extend(names.map(|name| if folder.is_empty() { name } else { format!("{folder}/{name}") }));
    }
    found.sort();
    found
}

/// The text of a page without its examples.
fn prose(page: &str) -> String {
    let text = read(page);
    let parts = text.split("\n```").step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// Where the relative links of a page lead: a path from the root, and the name
/// of a heading or nothing.
fn links(page: &str) -> Vec<(String, String)> {
    let folder = Path::new(page).parent().expect("a page is in a folder");
    let text = prose(page);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let own = targets.filter(|target| !target.contains("://"));
    own.map(|target| {
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let mut parts: Vec<String> = Vec::new();
        let whole = if path.is_empty() { PathBuf::from(page) } else { folder.join(path) };
        for part in whole.iter().map(|part| part.to_string_lossy().into_owned()) {
            if part == ".." { drop(parts.pop()) } else { parts.push(part) }
        }
        (parts.join("/"), heading.to_owned())
    })
    .collect()
}

/// A heading as links name it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    heading.chars().filter(|c| is_word(*c) || *c == '-').collect()
}

#[test]
fn no_link_between_pages_is_dead() {
    let mut wrong = Vec::new();
    for page in pages() {
        for (path, heading) in links(&page) {
            let is_there = root().join(&path).exists();
            let has_heading = || prose(&path).lines().any(|line| line.starts_with('#') && anchor(line) == heading);
            if !is_there || !heading.is_empty() && !has_heading() {
                wrong.push(format!("{page}: {path}#{heading}"));
            }
        }
    }
    expect_none("links that lead nowhere", wrong);
}

#[test]
fn every_page_is_in_the_index() {
    let index: BTreeSet<String> = links("docs/README.md").into_iter().map(|(path, _)| path).collect();
    let elsewhere = ["README.md", "docs/README.md"];
    let missing = pages().into_iter().filter(|page| !elsewhere.contains(&page.as_str()) && !index.contains(page));
    expect_none("pages without a line in docs/README.md", missing.collect());
}

#[test]
fn every_source_file_that_a_page_names_exists() {
    let known: Vec<String> = sources(&["src", "tests", "client", "receiver", "fuzz"])
        .into_iter()
        .map(|source| format!("/{}", source.path))
        .collect();
    let mut wrong = Vec::new();
    for page in pages() {
        let spans = code_spans(&read(&page)).into_iter();
        let named = spans.filter(|span| span.ends_with(".rs") && span.chars().all(|c| is_word(c) || "./".contains(c)));
        let missing = named.filter(|name| !known.iter().any(|path| path.ends_with(&format!("/{name}"))));
        wrong.extend(missing.map(|name| format!("{page}: `{name}`")));
    }
    expect_none("files that pages name and nobody has", wrong);
}

#[test]
fn the_first_pages_are_short() {
    let wrong = ["README.md", "ARCHITECTURE.md"].map(|page| (page, read(page).lines().count()));
    let wrong = wrong.into_iter().filter(|(_, lines)| *lines > FIRST_PAGE_LINES_MAX);
    let wrong = wrong.map(|(page, lines)| format!("{page}: {lines} lines; what is more goes into docs/"));
    expect_none(&format!("first pages longer than {FIRST_PAGE_LINES_MAX} lines"), wrong.collect());
}

#[test]
fn imports_are_found_however_they_are_written() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let found = |path: &str, text: &str| imports(&source(path, text)).into_iter().collect::<Vec<_>>();
    assert_eq!(found("src/model/id.rs", "use crate::store::Error;"), ["store"]);
    assert_eq!(found("src/model/id.rs", "use crate::{api::page, cli::{self, app}, model};"), ["api", "cli"]);
    assert_eq!(found("src/model/id.rs", "fn f() -> crate::app::App { x }"), ["app"]);
    assert_eq!(found("src/model/id.rs", "use super::super::store::Error;"), ["store"]);
    assert_eq!(found("src/model/mod.rs", "use super::store::Error;"), ["store"]);
    assert!(found("src/model/id.rs", "// see crate::store\nuse super::span; use some_crate::store;").is_empty());
}
