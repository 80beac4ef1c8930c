//! Prints the results of commands: tables and records for people, JSON for programs.
//!
//! Invariant: JSON is printed as the gateway sent it. Only space between tokens is
//! added, so order, duplicate keys and long numbers survive.

use std::fmt;
use std::io::{ErrorKind, Write};

use anyhow::Context;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::screen::Screen;
use super::table::Table;
pub use super::wrap::{WIDTH, wrap_text};
use crate::clock::{Clock, SystemClock};

/// The format in which a command prints the gateway's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// Plain columns, for people.
    Table,
    /// The gateway's own answer, for programs.
    Json,
}

/// A column of a list: its title, and the function that renders its cell of a row.
pub type Column = (&'static str, fn(&Value, Timestamp) -> String);

/// Prints a page of a list, how far back it looked where it says so, and how to
/// get the next one.
pub fn print_list(format: OutputFormat, body: &str, what: &str, columns: &[Column]) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json => print(&format_json(body)),
        OutputFormat::Table => {
            print(&render_page(body, what, columns, SystemClock.now(), Screen::of_stdout())?)?;
            match parse(body)?["looked_back_to"].as_str() {
                Some(at) => print_sentence(
                    format,
                    &format!("looked back to {}; the next page goes on there", escape_control_characters(at)),
                ),
                None => Ok(()),
            }
        }
    }
}

/// Prints one object, field by field.
pub fn print_record(format: OutputFormat, body: &str) -> anyhow::Result<()> {
    print_fields(format, body, &[])
}

/// Prints the chosen fields of one object; all fields as JSON, or if none is chosen.
pub fn print_fields(format: OutputFormat, body: &str, fields: &[&str]) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json => print(&format_json(body)),
        OutputFormat::Table => print(&record_table(body, fields, SystemClock.now())?.render(Screen::of_stdout())),
    }
}

/// Prints a sentence where there is nothing else to show.
pub fn print_sentence(format: OutputFormat, sentence: &str) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json => Ok(()),
        OutputFormat::Table => print(&Screen::of_stdout().break_lines(sentence)),
    }
}

/// Prints that a thing is deleted, and how many waiting deliveries were cancelled with
/// it, if that is known.
pub fn print_deleted(format: OutputFormat, id: &str, cancelled: Option<u64>, sentence: &str) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json => {
            print(&serde_json::to_string_pretty(&serde_json::json!({ "id": id, "cancelled": cancelled }))?)
        }
        OutputFormat::Table => print(sentence),
    }
}

/// Writes a text and a line end to standard output. A reader that closes the pipe,
/// such as `head`, is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    match written {
        Err(problem) if problem.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Returns the rows of a list as a table.
pub fn table(data: &[Value], columns: &[Column], now: Timestamp) -> Table {
    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let row = |row: &Value| columns.iter().map(|(_, show)| show(row, now)).collect();
    Table::new(&titles, data.iter().map(row).collect())
}

fn render_page(body: &str, what: &str, columns: &[Column], now: Timestamp, screen: Screen) -> anyhow::Result<String> {
    let value = parse(body)?;
    let data = items(&value);
    let mut out = if data.is_empty() { format!("no {what}") } else { table(data, columns, now).render(screen) };
    if let Some(next) = value["next"].as_str() {
        out.push_str(&format!("\nthere is more: repeat this with --cursor {}", escape_control_characters(next)));
    }
    Ok(out)
}

fn record_table(body: &str, only: &[&str], now: Timestamp) -> anyhow::Result<Table> {
    let Fields(fields) = serde_json::from_str(body).map_err(|_| unexpected_answer())?;
    let mut rows = Vec::new();
    for (name, raw) in fields.iter().filter(|(name, _)| only.is_empty() || only.contains(&name.as_str())) {
        // Both are JSON that somebody wrote, and are shown as such.
        if matches!(name.as_str(), "data" | "filter") {
            let json = if name == "filter" { with_spaces(raw.get()) } else { raw.get().to_owned() };
            rows.push(vec![escape_control_characters(name), scalar_cell(name, &json, now)]);
        } else {
            push_fields(&mut rows, &escape_control_characters(name), raw.get(), now);
        }
    }
    Ok(Table::new(&[], rows))
}

/// Adds a line for a value, or one for each value inside it, under names such as
/// `health.breaker`.
fn push_fields(rows: &mut Vec<Vec<String>>, name: &str, raw: &str, now: Timestamp) {
    let is_nested = |raw: &RawValue| raw.get().starts_with(['{', '[']);
    let inner: Vec<(String, Box<RawValue>)> = match raw.as_bytes().first() {
        Some(b'{') => serde_json::from_str(raw).map_or_else(|_| Vec::new(), |Fields(fields)| fields),
        Some(b'[') => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(raw).unwrap_or_default();
            if !items.iter().any(|item| is_nested(item)) {
                let cells: Vec<String> = items.iter().map(|item| scalar_cell(name, item.get(), now)).collect();
                return rows.push(vec![name.to_owned(), none_if_empty(cells.join(", "))]);
            }
            items.into_iter().enumerate().map(|(n, item)| (n.to_string(), item)).collect()
        }
        _ => return rows.push(vec![name.to_owned(), scalar_cell(name, raw, now)]),
    };
    if inner.is_empty() {
        rows.push(vec![name.to_owned(), none_if_empty(String::new())]);
    }
    for (inside, raw) in inner {
        push_fields(rows, &format!("{name}.{}", escape_control_characters(&inside)), raw.get(), now);
    }
}

fn none_if_empty(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

fn scalar_cell(name: &str, raw: &str, now: Timestamp) -> String {
    let value = || serde_json::from_str::<Value>(raw).unwrap_or(Value::Null);
    match raw.as_bytes().first() {
        Some(b'"') if is_time(name) => time_cell(&value(), now),
        Some(b'"') | Some(b'n') => cell(&value()),
        _ => raw.replace(['\r', '\t'], " "),
    }
}

fn is_time(name: &str) -> bool {
    name.ends_with("_at") || name.ends_with("_until") || name.ends_with("since") || name == "timestamp"
}

/// Parses the gateway's answer.
pub fn parse(body: &str) -> anyhow::Result<Value> {
    serde_json::from_str(body).map_err(|_| unexpected_answer())
}

fn unexpected_answer() -> anyhow::Error {
    anyhow::anyhow!("the server's answer is not the JSON expected; is it a posthaste gateway of this version?")
}

/// Returns the rows of a page.
pub fn items(page: &Value) -> &[Value] {
    page["data"].as_array().map_or(&[], Vec::as_slice)
}

/// Renders a field as a cell; `-` where it is null.
pub fn text_cell(row: &Value, field: &str) -> String {
    cell(&row[field])
}

/// Renders a field with a time as a cell; `-` where it is null.
pub fn instant_cell(row: &Value, field: &str, now: Timestamp) -> String {
    time_cell(&row[field], now)
}

/// Renders a field with a rate as a cell, `per second/burst`; `-` where it is null.
pub fn rate_cell(row: &Value, field: &str) -> String {
    match &row[field] {
        Value::Object(rate) => format!("{}/{}", cell(&rate["per_second"]), cell(&rate["burst"])),
        other => cell(other),
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => escape_control_characters(text),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn time_cell(value: &Value, now: Timestamp) -> String {
    match value.as_str().and_then(|text| text.parse().ok()) {
        Some(at) => render_moment(at, now),
        None => cell(value),
    }
}

/// Renders a time to the second, and how far away it is.
pub fn render_moment(at: Timestamp, now: Timestamp) -> String {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(at);
    format!("{whole} ({})", relative_time(at, now))
}

/// Renders how far away a time is: `in 4m 12s`, `3s ago`, `now`.
pub fn relative_time(at: Timestamp, now: Timestamp) -> String {
    let millis = at.as_millisecond() - now.as_millisecond();
    let length = render_length(round_to_units(millis.unsigned_abs()));
    match millis {
        1_000.. => format!("in {length}"),
        ..=-1_000 => format!("{length} ago"),
        _ => "now".to_owned(),
    }
}

/// Returns seconds, rounded to the smaller of the two units that are shown. A
/// span of 30 days is still one when its answer is shown, a moment later.
fn round_to_units(millis: u64) -> u64 {
    let unit = match millis {
        86_400_000.. => 3_600_000,
        3_600_000.. => 60_000,
        _ => 1_000,
    };
    (millis + unit / 2) / unit * unit / 1_000
}

/// Renders seconds in their two largest units that are not zero.
pub fn render_length(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let units = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds % 60, "s")];
    let first = units.iter().position(|(n, _)| *n > 0).unwrap_or(3);
    let largest = units[first..].iter().take(2).filter(|(n, _)| *n > 0);
    let words: Vec<String> = largest.map(|(n, unit)| format!("{n}{unit}")).collect();
    if words.is_empty() { "0s".to_owned() } else { words.join(" ") }
}

/// Escapes control characters. Texts of receivers and producers are printed on the
/// operator's terminal, and must not move the cursor or end the line.
pub fn escape_control_characters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Adds a space behind every comma and colon of JSON, where a line can end.
fn with_spaces(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut is_string, mut is_escaped) = (false, false);
    for c in json.chars().filter(|c| !matches!(c, '\n' | '\r' | '\t')) {
        let is_between = !is_string && c == ' ';
        if !is_between {
            out.push(c);
        }
        if !is_string && matches!(c, ',' | ':') {
            out.push(' ');
        }
        is_string ^= c == '"' && !is_escaped;
        is_escaped = is_string && c == '\\' && !is_escaped;
    }
    out
}

/// Formats JSON with a line per field; every token stays as it is.
pub fn format_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let new_line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let (mut depth, mut is_string, mut is_escaped, mut is_just_opened) = (0_usize, false, false, false);
    for c in json.chars() {
        if is_string {
            out.push(c);
            is_string = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        if c.is_ascii_whitespace() {
            continue;
        }
        let closes = c == '}' || c == ']';
        depth -= usize::from(closes && depth > 0);
        // An empty list or object stays on its line.
        if closes != is_just_opened {
            new_line(&mut out, depth);
        }
        is_just_opened = c == '{' || c == '[';
        depth += usize::from(is_just_opened);
        is_string = c == '"';
        out.push(c);
        match c {
            ',' => new_line(&mut out, depth),
            ':' => out.push(' '),
            _ => {}
        }
    }
    out
}

/// The fields of a JSON object in their order, each value as it was written.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CollectFields;
        impl<'de> Visitor<'de> for CollectFields {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(CollectFields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_moment_is_told_exactly_and_by_its_distance() {
        assert_eq!(render_moment(at(252), at(0)), "2023-11-14T22:17:32Z (in 4m 12s)");
        assert_eq!(render_moment(at(-3), at(0)), "2023-11-14T22:13:17Z (3s ago)");
        let nearly = Timestamp::from_millisecond(1_700_000_000_999).unwrap();
        assert_eq!(render_moment(nearly, at(0)), "2023-11-14T22:13:20Z (now)");
    }

    #[test]
    fn distances_use_two_units_at_most() {
        let cases =
            [(1, "in 1s"), (60, "in 1m"), (3_661, "in 1h 1m"), (3_605, "in 1h"), (86_400 * 3 + 7_200, "in 3d 2h")];
        for (seconds, expected) in cases {
            assert_eq!(relative_time(at(seconds), at(0)), expected);
        }
        assert_eq!(relative_time(at(-90), at(0)), "1m 30s ago");
        let late = Timestamp::from_millisecond(1_700_000_000_040).unwrap();
        assert_eq!(relative_time(at(30 * 86_400), late), "in 30d", "a moment after it was 30 days away");
        assert_eq!(relative_time(at(86_400), late), "in 1d");
        assert_eq!(relative_time(at(3_600), late), "in 1h");
    }

    #[test]
    fn a_filter_can_be_broken_between_its_parts() {
        let json = r#"{"all":[{"path":"/a, b:c\\","equals":"x \"y:z"},  {"path":"/b"}]}"#;
        assert_eq!(with_spaces(json), r#"{"all": [{"path": "/a, b:c\\", "equals": "x \"y:z"}, {"path": "/b"}]}"#);
    }

    #[test]
    fn pretty_json_keeps_every_token() {
        let json = r#"{"b":1,"a":12345678901234567890123450,"a":[],"c":{"d":["x,\"{y","\\"]},"e":{}}"#;
        let shown = format_json(json);
        assert_eq!(
            shown,
            "{\n  \"b\": 1,\n  \"a\": 12345678901234567890123450,\n  \"a\": [],\n  \"c\": {\n    \"d\": [\n      \"x,\\\"{y\",\n      \"\\\\\"\n    ]\n  },\n  \"e\": {}\n}"
        );
        assert_eq!(format_json(&shown), shown);
    }

    #[test]
    fn a_page_tells_how_to_get_the_next() {
        let columns: &[Column] = &[("id", |row, _| text_cell(row, "id")), ("key", |row, _| text_cell(row, "key"))];
        let shown = render_page(
            r#"{"data":[{"id":"a","key":null},{"id":"b","key":"x\u001b[2J"}],"next":"c1"}"#,
            "things",
            columns,
            at(0),
            Screen::PLAIN,
        )
        .unwrap();
        assert_eq!(shown, "ID  KEY\na   -\nb   x\\u{1b}[2J\nthere is more: repeat this with --cursor c1");
        assert_eq!(
            render_page(r#"{"data":[],"next":null}"#, "things", columns, at(0), Screen::PLAIN).unwrap(),
            "no things"
        );
    }

    #[test]
    fn a_record_keeps_order_and_long_numbers() {
        let shown = shown_record(r#"{"id":"e","accepted_at":"2023-11-14T22:13:17Z","data":{"n":1e400,"n":2}}"#);
        assert_eq!(
            shown,
            "id           e\naccepted_at  2023-11-14T22:13:17Z (3s ago)\ndata         {\"n\":1e400,\"n\":2}"
        );
    }

    #[test]
    fn what_is_nested_gets_plain_lines() {
        let shown = shown_record(
            r#"{"health":{"breaker":"open","since":"2023-11-14T22:13:17Z","reason":null},"event_types":["a.*","b"],
                "headers":{},"signatures":[],"retry":{"schedule":["1s"],"steps":[{"n":12345678901234567890}]}}"#,
        );
        insta::assert_snapshot!(shown, @r"
        health.breaker   open
        health.since     2023-11-14T22:13:17Z (3s ago)
        health.reason    -
        event_types      a.*, b
        headers          -
        signatures       -
        retry.schedule   1s
        retry.steps.0.n  12345678901234567890
        ");
    }

    fn shown_record(json: &str) -> String {
        record_table(json, &[], at(0)).unwrap().render(Screen::PLAIN)
    }
}
