//! The field tables of the documents are printed from the API's description.
//!
//! `<!-- fields: NewEvent -->` in a page stands before the table of that schema's
//! own fields. The rows stay in the order that the page has; a new field is put
//! last. `<!-- codes -->` stands before the table of error codes, `<!-- filters -->`
//! before that of what lists can be filtered by.

use std::collections::{BTreeMap, BTreeSet};

use posthaste::api::openapi::linked_document;
use posthaste::api::problem::ProblemCode;
use posthaste::model::named_enum::NamedEnum;
use serde_json::Value;

use super::source::{read, root};

/// The variable that makes the test write the tables instead of comparing them.
const WRITE: &str = "POSTHASTE_WRITE_TABLES";
const PAGES: [&str; 2] = ["docs/api.md", "docs/gentle.md"];
/// Longest default that is shown, in bytes.
const LONG_DEFAULT: usize = 160;
/// Query parameters that every list has.
const OF_PAGES: [&str; 2] = ["limit", "cursor"];

/// A table: its head, and its rows by the text of their first cell.
struct Table {
    head: &'static [&'static str],
    rows: BTreeMap<String, Vec<String>>,
}

impl Table {
    /// Prints the table with its rows in this order, the others last.
    fn print(&self, order: &[String]) -> String {
        let known = order.iter().filter(|first| self.rows.contains_key(*first));
        let new = self.rows.keys().filter(|first| !order.contains(first));
        let mut lines = vec![self.head.join(" | "), vec!["---"; self.head.len()].join("|")];
        lines.extend(known.chain(new).map(|first| format!("{first} | {}", self.rows[first].join(" | "))));
        lines[0] = format!("| {} |", lines[0]);
        lines[1] = format!("|{}|", lines[1]);
        lines[2..].iter_mut().for_each(|line| *line = format!("| {line} |"));
        lines.join("\n") + "\n"
    }
}

/// The name of the schema that a value refers to, also where it may be null or
/// is a list.
fn referred(value: &Value) -> Option<&str> {
    let of_kinds = || value["oneOf"].as_array()?.iter().find_map(|kind| kind["$ref"].as_str());
    let target = value["$ref"].as_str().or_else(of_kinds).or_else(|| value["items"]["$ref"].as_str())?;
    target.strip_prefix("#/components/schemas/")
}

/// The values that a field may have, where its sentence does not say them.
fn values(schemas: &Value, field: &Value, said: &str) -> String {
    let values = referred(field).and_then(|name| schemas[name]["enum"].as_array());
    let values: Vec<String> =
        values.into_iter().flatten().filter_map(Value::as_str).map(|v| format!("`{v}`")).collect();
    let is_said = values.iter().all(|value| said.contains(value.as_str()));
    let choice = if field["items"].is_null() { "One" } else { "Any" };
    if is_said { String::new() } else { format!(" {choice} of {}.", values.join(", ")) }
}

/// Whether a schema is that of a request body.
fn is_request(document: &Value, name: &str) -> bool {
    let paths = document["paths"].as_object().into_iter().flatten();
    let mut operations = paths.flat_map(|(_, methods)| methods.as_object().into_iter().flatten());
    operations.any(|(_, operation)| {
        referred(&operation["requestBody"]["content"]["application/json"]["schema"]) == Some(name)
    })
}

/// A default in its cell. A long one is told by the table of its own fields.
fn default_cell(value: &Value) -> String {
    let text = value.to_string();
    if text.len() > LONG_DEFAULT { "see below".to_owned() } else { format!("`{text}`") }
}

/// The table of a schema's own fields, without those that it has from another.
fn fields(document: &Value, name: &str) -> Table {
    let schemas = &document["components"]["schemas"];
    let schema = &schemas[name];
    let own = schema["allOf"].as_array().and_then(|parts| parts.iter().find(|part| part.get("$ref").is_none()));
    let own = own.unwrap_or(schema);
    let properties = own["properties"].as_object().unwrap_or_else(|| panic!("there is no schema {name} with fields"));
    let has_defaults = properties.values().any(|field| field.get("x-default").is_some());
    let is_input = is_request(document, name);
    let required: BTreeSet<&str> = own["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let rows = properties.iter().map(|(field, described)| {
        let said = described["description"].as_str().unwrap_or_default().replace('\n', " ");
        let means = format!("{said}{}", values(schemas, described, &said)).replace('|', "\\|");
        let cells = match (has_defaults, required.contains(field.as_str())) {
            (true, true) => vec!["required".to_owned(), means],
            (true, false) => vec![default_cell(&described["x-default"]), means],
            (false, true) if is_input => vec![format!("Required. {means}")],
            (false, _) => vec![means],
        };
        (format!("`{field}`"), cells)
    });
    let head: &[&str] = if has_defaults { &["Field", "Default", "Means"] } else { &["Field", "Means"] };
    Table { head, rows: rows.collect() }
}

/// The table of error codes.
fn codes() -> Table {
    let row = |code: &ProblemCode| vec![code.status().as_u16().to_string(), code.explanation().to_owned()];
    let rows = ProblemCode::ALL.iter().map(|code| (format!("`{}`", code.as_str()), row(code)));
    Table { head: &["Code", "Status", "Means"], rows: rows.collect() }
}

/// The table of what each list can be filtered by.
fn filters(document: &Value) -> Table {
    let paths = document["paths"].as_object().expect("there are paths");
    let rows = paths.iter().filter_map(|(path, methods)| {
        let parameters = methods["get"]["parameters"].as_array()?.iter().filter(|one| one["in"] == "query");
        let names = parameters.filter_map(|one| one["name"].as_str());
        let (of_pages, own): (Vec<&str>, Vec<&str>) = names.partition(|name| OF_PAGES.contains(name));
        if of_pages.is_empty() || own.is_empty() {
            return None;
        }
        let own: Vec<String> = own.iter().map(|name| format!("`{name}`")).collect();
        Some((format!("`{}`", path.replace("/v1/tenants/{tenant}/", "…/")), vec![own.join(", ")]))
    });
    Table { head: &["List", "Filters"], rows: rows.collect() }
}

/// The page with every table that a mark stands before printed anew.
fn filled(page: &str, document: &Value) -> String {
    let (mut text, mut lines) = (String::new(), page.lines().peekable());
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let Some(mark) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) else { continue };
        let table = match (mark, mark.strip_prefix("fields: ")) {
            (_, Some(name)) => fields(document, name),
            ("codes", None) => codes(),
            ("filters", None) => filters(document),
            _ => panic!("`{line}` is no mark of a table"),
        };
        let mut order = Vec::new();
        while let Some(row) = lines.next_if(|line| line.is_empty() && order.is_empty() || line.starts_with('|')) {
            order.extend(row.split(" | ").next().and_then(|cell| cell.strip_prefix("| ")).map(str::to_owned));
        }
        text.push('\n');
        text.push_str(&table.print(&order));
        if order.is_empty() {
            text.push('\n');
        }
    }
    text
}

#[test]
fn the_field_tables_are_printed_from_the_description() {
    let document = linked_document();
    for path in PAGES {
        let page = read(path);
        assert!(page.contains("<!-- fields: "), "{path} has no tables to print");
        let printed = filled(&page, &document);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(root().join(path), &printed).expect("the page can be written");
        } else if page != printed {
            let differs = page.lines().zip(printed.lines()).find(|(page, printed)| page != printed);
            panic!(
                "the tables of {path} are not what the description says; run `{WRITE}=1 cargo test --test tidy \
                 field_tables`, and change the doc comments of the fields, not the tables. First difference: {differs:?}"
            );
        }
    }
}
