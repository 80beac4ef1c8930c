//! Builds the OpenAPI description of the API from the routes.

use axum::Json;
use serde_json::{Value, json};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::accept::BATCH_EVENTS_MAX;
use super::problem::{OverloadProblems, ProblemBody, PublicProblems};

mod names;
mod responses;
mod schemas;
mod text;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Posthaste",
        description = "A webhook delivery gateway. Every error is an RFC 9457 problem with a stable `code`; unknown fields are refused by name; times are RFC 3339, durations like `30s` or `72h`; lists are newest first, with `?limit=&cursor=`."
    ),
    modifiers(&BearerScheme),
    components(schemas(ProblemBody<'static>)),
    servers(
        (url = "/", description = "The gateway that serves this document"),
        (url = "http://127.0.0.1:8400", description = "A gateway on this machine, as it listens by default"),
    ),
    security(("token" = [])),
    tags(
        (name = "events", description = "What happened"),
        (name = "endpoints", description = "URLs that receive events"),
        (name = "deliveries", description = "One event on its way to one endpoint"),
        (name = "dead letters", description = "Deliveries that could not be made"),
        (name = "jobs", description = "The same change of many deliveries"),
        (name = "figures", description = "How many of what happened"),
        (name = "policies", description = "When to try again, and when to stop"),
        (name = "tenants", description = "Whose events these are"),
        (name = "tokens", description = "Credentials of programs, and their rights"),
        (name = "portal", description = "The pages of one tenant, and who may enter"),
        (name = "receivers", description = "What receivers of thin events fetch"),
        (name = "audit", description = "Who changed what, when, and from where"),
        (name = "backups", description = "Copies of the store"),
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
pub fn base_document() -> utoipa::openapi::OpenApi {
    ApiDescription::openapi()
}

/// Shows the description of this API.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", summary = "This document", tag = "status",
    responses((status = 200, body = Object), PublicProblems, OverloadProblems),
    security(()),
)]
pub async fn show() -> Json<Value> {
    Json(document())
}

/// Returns the whole description: the routes' own parts, and what is the same for
/// all of them.
pub fn document() -> Value {
    let mut document = linked_document();
    text::drop_links(&mut document);
    document
}

/// Returns the whole description, its sentences with their links to the pages in
/// `docs`, where their tables are printed.
pub fn linked_document() -> Value {
    let mut document = serde_json::to_value(super::routes().into_openapi()).expect("the description is plain data");
    schemas::complete_schemas(&mut document["components"]["schemas"]);
    document["components"]["headers"] = responses::common_headers();
    document["components"]["responses"] = responses::problem_responses();
    for (path, methods) in document["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            finish_parameters(operation);
            finish_body(path, method, operation);
            responses::complete_operation(path, method, operation);
        }
    }
    names::rename_schemas(&mut document);
    document
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
    if let Some(image) = body["content"].get_mut("image/png") {
        image["schema"] = json!({"type": "string", "format": "binary"});
        return;
    }
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
        let patch = schemas::PATCHES.iter().find(|(settings, _)| schema["$ref"] == reference(settings));
        *schema = json!({"$ref": patch.map(|(_, patch)| reference(patch))});
    }
    if path.ends_with("/events/batch") {
        schema["minItems"] = 1.into();
        schema["maxItems"] = BATCH_EVENTS_MAX.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::problem::ProblemCode;
    use crate::model::audit;
    use crate::model::named_enum::NamedEnum;

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

    /// Calls `visit` with every operation and what names it.
    fn for_each_operation(document: &Value, mut visit: impl FnMut(&str, &Value)) {
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                visit(&format!("{method} {path}"), operation);
            }
        }
    }

    /// Returns what a reference leads to, or the value itself.
    fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
        let target = value["$ref"].as_str().and_then(|target| document.pointer(target.strip_prefix('#')?));
        target.unwrap_or(value)
    }

    #[test]
    fn what_is_the_same_for_all_is_said_of_all() {
        let document = document();
        for_each_operation(&document, |route, operation| {
            assert!(operation.get("parameters").is_none_or(Value::is_array), "{route}");
            for (status, answer) in operation["responses"].as_object().unwrap() {
                assert!(answer["description"].is_string(), "{route} {status}");
                let answer = resolved(&document, answer);
                assert!(answer["headers"].get("x-request-id").is_some(), "{route} {status}");
                let is_later = matches!(status.as_str(), "429" | "503" | "507") && answer["content"] != Value::Null;
                let is_problem = answer["content"].get("application/problem+json").is_some();
                assert_eq!(answer["headers"].get("Retry-After").is_some(), is_later && is_problem, "{route} {status}");
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert!(body.get("oneOf").is_none(), "{route} takes null");
        });
    }

    #[test]
    fn every_problem_is_of_one_type_and_its_codes_are_listed() {
        let document = document();
        let problem = json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
        for answer in document["components"]["responses"].as_object().unwrap().values() {
            assert_eq!(answer["content"], problem);
        }
        for_each_operation(&document, |route, operation| {
            let mut described = Vec::new();
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let is_problem = answer["$ref"].is_string();
                assert!(is_problem || !answer.to_string().contains("problem+json"), "{route} {status} has a copy");
                if is_problem {
                    let text = answer["description"].as_str().unwrap();
                    described.extend(text.split('`').skip(1).step_by(2).map(|code| (code.to_owned(), status.clone())));
                }
            }
            let listed: Vec<&str> = operation["x-codes"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
            for code in ProblemCode::ALL {
                let pair = (code.as_str().to_owned(), code.status().as_u16().to_string());
                assert_eq!(listed.contains(&code.as_str()), described.contains(&pair), "{route} {code:?}");
            }
            assert_eq!(listed.len(), described.len(), "{route}: {listed:?} {described:?}");
        });
    }

    #[test]
    fn an_operation_lists_the_codes_that_its_input_can_lead_to() {
        let document = document();
        let codes = |path: &str, method: &str| document["paths"][path][method]["x-codes"].to_string();
        let events = "/v1/tenants/{tenant}/events";
        let (listing, accepting) = (codes(events, "get"), codes(events, "post"));
        assert!(listing.contains("invalid_cursor") && !listing.contains("invalid_json"), "{listing}");
        assert!(accepting.contains("invalid_json") && !accepting.contains("invalid_cursor"), "{accepting}");
        assert!(accepting.contains("id_conflict") && accepting.contains("storage_full"), "{accepting}");
        let preview = codes("/v1/policies/preview", "post");
        assert!(preview.contains("payload_too_large") && !preview.contains("storage_full"), "{preview}");
        assert!(codes("/v1/tenants/{tenant}", "delete").contains("storage_full"));
    }

    #[test]
    fn every_page_has_a_name_and_its_items_are_a_reference() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let pages: Vec<_> = schemas.iter().filter(|(_, schema)| schema["properties"].get("next").is_some()).collect();
        assert!(pages.len() > 8, "{pages:?}");
        for (name, page) in pages {
            let item = name.strip_suffix("Page").expect("a page is named after its items");
            let item = item.strip_suffix("OfAll").unwrap_or(item);
            assert_eq!(page["properties"]["data"]["items"], json!({"$ref": format!("#/components/schemas/{item}")}));
            assert!(schemas.contains_key(item), "{item}");
        }
        assert!(schemas.contains_key("Endpoint") && schemas.contains_key("EndpointPage"));
    }

    #[test]
    fn no_client_is_told_to_send_a_default() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        let with_default: Vec<&String> = schemas
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, schema)| schema.to_string().contains("\"default\":"))
            .map(|(name, _)| name)
            .collect();
        assert!(with_default.is_empty(), "generated clients would send the defaults of {with_default:?} with a patch");
        let settings = &schemas["EndpointSettings"]["properties"];
        assert_eq!(settings["max_in_flight"]["x-default"], json!(10));
        assert_eq!(settings["retry"]["x-default"], json!({"preset": "standard"}));
        assert_eq!(schemas["BreakerSettings"]["properties"]["cooldown"]["x-default"], json!("10s"));
        assert_eq!(schemas["TenantLimits"]["properties"]["tokens"]["x-default"], json!(100));
    }
}
