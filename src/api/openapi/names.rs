//! Gives the schemas the names that users of generated clients see.
//!
//! `EndpointView` here is `Endpoint` there, and a page of them `EndpointPage`.

use serde_json::{Map, Value};

const SCHEMAS: &str = "#/components/schemas/";
/// Names that say more than the type's own without `View`.
const CHOSEN: &[(&str, &str)] = &[
    ("AuditView", "AuditEntry"),
    ("ChangeNote", "Note"),
    ("FoundView", "FoundResource"),
    ("MatchView", "EndpointMatch"),
    ("ReadyView", "Readiness"),
    ("RotatedView", "RotatedSecret"),
    ("StatusView", "Liveness"),
];

/// Renames the schemas and every reference to them.
pub fn rename_schemas(document: &mut Value) {
    let schemas = std::mem::take(&mut document["components"]["schemas"]);
    let Value::Object(schemas) = schemas else { return };
    let mut renamed = Map::new();
    for (name, schema) in schemas {
        let before = renamed.insert(public_name(&name), schema);
        assert!(before.is_none(), "two schemas are called {}", public_name(&name));
    }
    document["components"]["schemas"] = renamed.into();
    rename_references(document);
}

fn public_name(name: &str) -> String {
    if let Some(item) = name.strip_prefix("Page_") {
        return format!("{}Page", public_name(item));
    }
    let chosen = CHOSEN.iter().find(|(known, _)| *known == name).map(|(_, chosen)| *chosen);
    chosen.unwrap_or_else(|| name.strip_suffix("View").unwrap_or(name)).to_owned()
}

fn rename_references(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(rename_references),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(target) if name == "$ref" => {
                        if let Some(schema) = target.strip_prefix(SCHEMAS) {
                            *target = format!("{SCHEMAS}{}", public_name(schema));
                        }
                    }
                    _ => rename_references(field),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
