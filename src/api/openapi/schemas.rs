//! Completes the schemas: patches, pages, and the defaults of settings.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::tenants::TenantSettings;
use crate::model::endpoint::EndpointSettings;

/// Schemas that are both request bodies and parts of larger response schemas.
const SHARED: &[&str] = &["EndpointSettings", "TenantSettings"];
/// Names of the schemas for patches of these settings.
pub const PATCHES: &[(&str, &str)] = &[("EndpointSettings", "EndpointPatch"), ("TenantSettings", "TenantPatch")];

/// Completes the schemas.
pub fn complete_schemas(schemas: &mut Value) {
    for (name, schema) in schemas.as_object_mut().into_iter().flatten() {
        if let Some(item) = name.strip_prefix("Page_") {
            schema["properties"]["data"]["items"] = json!({"$ref": format!("#/components/schemas/{item}")});
        }
        finish_fields(schema);
    }
    note_defaults(schemas);
    for (settings, patch) in PATCHES {
        schemas[patch] = patch_of(&schemas[settings]);
    }
    // Responses have these settings beside other fields, so the schema must not
    // forbid further fields.
    for name in SHARED {
        if let Some(schema) = schemas[name].as_object_mut() {
            schema.remove("additionalProperties");
        }
    }
}

fn finish_fields(schema: &mut Value) {
    for part in schema.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
        finish_fields(part);
    }
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flatten().filter_map(|(_, field)| field.as_object_mut()) {
        // Generated clients send what is described as the default, and so would
        // reset what a patch leaves out.
        field.remove("default");
        // A field describes itself, and not the type of its value.
        let kinds = field.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten();
        let described = kinds.filter_map(Value::as_object_mut).find_map(|kind| kind.remove("description"));
        if let Some(description) = described {
            field.insert("description".to_owned(), description);
        }
    }
}

/// Writes the defaults of settings as `x-default`.
fn note_defaults(schemas: &mut Value) {
    let endpoint = defaults::<EndpointSettings>(json!({"url": ""}));
    let tenant = defaults::<TenantSettings>(json!({}));
    for (name, values) in [
        ("EndpointSettings", &endpoint),
        ("AttemptTimeouts", &endpoint["timeout"]),
        ("BreakerSettings", &endpoint["breaker"]),
        ("EndpointTls", &endpoint["tls"]),
        ("TenantSettings", &tenant),
        ("TenantLimits", &tenant["limits"]),
        ("EndpointCeiling", &tenant["limits"]["endpoint"]),
    ] {
        for (field, value) in values.as_object().into_iter().flatten().filter(|(field, _)| *field != "url") {
            schemas[name]["properties"][field]["x-default"] = value.clone();
        }
    }
}

/// Returns what settings are if only these fields are given.
fn defaults<T: Serialize + DeserializeOwned>(given: Value) -> Value {
    let settings: T = serde_json::from_value(given).expect("the other settings have defaults");
    serde_json::to_value(settings).expect("settings are plain data")
}

/// Returns the schema of a patch: every field is optional, and null resets it to
/// its default.
fn patch_of(settings: &Value) -> Value {
    let mut patch = settings.clone();
    for field in patch["properties"].as_object_mut().into_iter().flatten().map(|(_, field)| field) {
        let description = field["description"].take();
        let default = field["x-default"].take();
        *field = json!({"anyOf": [field, {"type": "null"}], "description": description, "x-default": default});
        drop_nulls(field);
        drop_nulls(&mut field["anyOf"][0]);
    }
    if let Some(patch) = patch.as_object_mut() {
        patch.remove("required");
    }
    patch
}

fn drop_nulls(object: &mut Value) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|_, value| !value.is_null());
    }
}
