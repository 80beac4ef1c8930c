//! Builds the OpenAPI description of the API from the routes.

use serde_json::{Value, json};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::accept::BATCH_EVENTS_MAX;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Posthaste",
        description = "A webhook delivery gateway. Every error is an RFC 9457 problem with a stable `code`; unknown fields are refused by name; times are RFC 3339, durations like `30s` or `72h`; lists are newest first, with `?limit=&cursor=`."
    ),
    modifiers(&BearerScheme),
    security(("token" = [])),
    tags(
        (name = "events", description = "What happened"),
        (name = "endpoints", description = "Who wants to hear of it"),
        (name = "deliveries", description = "One event on its way to one endpoint"),
        (name = "dead letters", description = "Deliveries that could not be made"),
        (name = "policies", description = "When to try again, and when to stop"),
        (name = "tenants", description = "Whose events these are"),
        (name = "tokens", description = "What lets programs use the API, and how far"),
        (name = "receivers", description = "What receivers of thin events fetch"),
        (name = "audit", description = "Who changed what, when, and from where"),
        (name = "status", description = "The gateway itself"),
    )
)]
struct ApiDescription;

struct BearerScheme;

impl Modify for BearerScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", scheme);
    }
}

/// Returns the description without any routes.
pub fn base() -> utoipa::openapi::OpenApi {
    ApiDescription::openapi()
}

/// Returns the whole description: the routes' own parts, and what is the same for
/// all of them.
pub fn document() -> Value {
    let mut document = serde_json::to_value(super::routes().into_openapi()).expect("the description is plain data");
    finish_schemas(&mut document["components"]["schemas"]);
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            finish_parameters(operation);
            finish_body(path, method, operation);
            finish_answers(path, method, operation);
        }
    }
    document
}

/// Schemas that are both request bodies and parts of larger response schemas.
const SHARED: &[&str] = &["EndpointSettings", "TenantSettings"];
/// Names of the schemas for patches of these settings.
const PATCHES: &[(&str, &str)] = &[("EndpointSettings", "EndpointPatch"), ("TenantSettings", "TenantPatch")];

fn finish_schemas(schemas: &mut Value) {
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

/// Returns the schema of a patch: every field is optional, and null resets it to
/// its default.
fn patch_of(settings: &Value) -> Value {
    let mut patch = settings.clone();
    for field in patch["properties"].as_object_mut().into_iter().flatten().map(|(_, field)| field) {
        let description = field["description"].take();
        *field = json!({"anyOf": [field, {"type": "null"}], "description": description});
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

fn finish_parameters(operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let is_query = parameter["in"] == "query";
        match parameter["name"].as_str() {
            Some("since" | "until") => parameter["schema"]["format"] = "date-time".into(),
            Some("endpoint") if is_query => parameter["schema"]["pattern"] = "^ep_[0-9a-z]{26}$".into(),
            _ => {}
        }
    }
}

fn finish_body(path: &str, method: &str, operation: &mut Value) {
    let Some(body) = operation.get_mut("requestBody") else { return };
    let schema = &mut body["content"]["application/json"]["schema"];
    // An optional body is left out, never null.
    let present = schema["oneOf"].as_array().and_then(|kinds| kinds.iter().find(|kind| kind["type"] != "null"));
    if let Some(present) = present.cloned() {
        *schema = present;
        body["required"] = false.into();
    }
    let schema = &mut body["content"]["application/json"]["schema"];
    if method == "patch" {
        let reference = |name: &str| Value::from(format!("#/components/schemas/{name}"));
        let patch = PATCHES.iter().find(|(settings, _)| schema["$ref"] == reference(settings));
        *schema = json!({"$ref": patch.map(|(_, patch)| reference(patch))});
    }
    if path.ends_with("/events/batch") {
        schema["minItems"] = 1.into();
        schema["maxItems"] = BATCH_EVENTS_MAX.into();
        let lines = json!({"type": "string", "description": "One event per line."});
        body["content"]["application/x-ndjson"] = json!({"schema": lines});
    }
}

/// Adds the headers of responses, and removes responses that cannot occur.
fn finish_answers(path: &str, method: &str, operation: &mut Value) {
    let Some(answers) = operation["responses"].as_object_mut() else { return };
    if method == "get" {
        // A request without a body cannot fail because of its body.
        answers.retain(|status, _| !matches!(status.as_str(), "408" | "413" | "415"));
    }
    let takes_events = method == "post" && (path.ends_with("/events") || path.ends_with("/events/batch"));
    for (status, answer) in answers {
        if answer.get("description").is_none() {
            answer["description"] = match status.as_str() {
                "201" => "It was made.".into(),
                "202" => "It was taken in, and is durable.".into(),
                "204" => "It was done; there is nothing to tell.".into(),
                _ => "What was asked for.".into(),
            };
        }
        let mut add_header = |name: &str, kind: &str, description: &str| {
            answer["headers"][name] = json!({"description": description, "schema": {"type": kind}});
        };
        add_header("x-request-id", "string", "Names this request in the gateway's log.");
        match status.as_str() {
            "401" => add_header("WWW-Authenticate", "string", "`Bearer`."),
            "429" | "503" | "507" => add_header("Retry-After", "integer", "In how many seconds to try again."),
            _ => {}
        }
        if takes_events && matches!(status.as_str(), "202" | "429") {
            add_header("RateLimit-Policy", "string", "What the tenant may hand in, where it has a rate of its own.");
            add_header("RateLimit", "string", "What is left of that.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::audit;

    #[test]
    fn no_two_kinds_of_things_share_a_name() {
        let schemas = &document()["components"]["schemas"];
        let texts: Vec<&str> = audit::AuditAction::ALL.iter().map(|action| action.as_str()).collect();
        assert_eq!(schemas["AuditAction"]["enum"], json!(texts));
        let rule = &schemas["StatusRules"]["additionalProperties"]["$ref"];
        assert_eq!(*rule, "#/components/schemas/StatusAction");
        let actions: Vec<&Value> = schemas["StatusAction"].as_object().unwrap().values().collect();
        assert!(actions.iter().any(|value| value.to_string().contains("deliver")), "{actions:?}");
    }

    #[test]
    fn a_patch_is_any_of_the_settings_or_null() {
        let document = document();
        let patch = &document["components"]["schemas"]["EndpointPatch"];
        assert_eq!((patch.get("required"), &patch["additionalProperties"]), (None, &json!(false)));
        assert_eq!(patch["properties"]["url"]["anyOf"][1], json!({"type": "null"}));
        for (path, name) in
            [("/v1/tenants/{tenant}/endpoints/{endpoint}", "EndpointPatch"), ("/v1/tenants/{tenant}", "TenantPatch")]
        {
            let body = &document["paths"][path]["patch"]["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(*body, json!({"$ref": format!("#/components/schemas/{name}")}));
        }
    }

    #[test]
    fn what_is_the_same_for_all_is_said_of_all() {
        let document = document();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation.get("parameters").is_none_or(Value::is_array), "{method} {path}");
                for (status, answer) in operation["responses"].as_object().unwrap() {
                    assert!(answer["description"].is_string(), "{method} {path} {status}");
                    assert!(answer["headers"].get("x-request-id").is_some(), "{method} {path} {status}");
                    let is_later = matches!(status.as_str(), "429" | "503" | "507");
                    assert_eq!(answer["headers"].get("Retry-After").is_some(), is_later, "{method} {path} {status}");
                }
                let body = &operation["requestBody"]["content"]["application/json"]["schema"];
                assert!(body.get("oneOf").is_none(), "{method} {path} takes null");
            }
        }
    }
}
