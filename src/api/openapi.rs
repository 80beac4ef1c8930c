//! The API's own description, made from the routes themselves.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Posthaste",
        description = "A webhook delivery gateway. Every error is an RFC 9457 problem with a stable `code`; unknown fields are refused by name; times are RFC 3339, durations like `30s` or `72h`; lists are newest first, with `?limit=&cursor=`."
    ),
    modifiers(&Bearer),
    security(("token" = [])),
    tags(
        (name = "events", description = "What happened"),
        (name = "endpoints", description = "Who wants to hear of it"),
        (name = "deliveries", description = "One event on its way to one endpoint"),
        (name = "dead letters", description = "Deliveries that could not be made"),
        (name = "policies", description = "When to try again, and when to stop"),
        (name = "tenants", description = "Whose events these are"),
        (name = "tokens", description = "What lets programs use the API, and how far"),
        (name = "audit", description = "Who changed what, when, and from where"),
        (name = "status", description = "The gateway itself"),
    )
)]
struct Described;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", scheme);
    }
}

/// What the routes are added to.
pub fn base() -> utoipa::openapi::OpenApi {
    Described::openapi()
}

/// The whole document.
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = super::routes().into_openapi();
    let schemas = document.components.iter_mut().flat_map(|components| components.schemas.iter_mut());
    for (name, schema) in schemas {
        // Answers hold these settings beside other fields, so their schema
        // cannot say that there are none.
        if let (true, RefOr::T(Schema::Object(object))) = (SHARED.contains(&name.as_str()), schema) {
            object.additional_properties = None;
        }
    }
    document
}

/// Settings that are both taken in and shown as part of something larger.
const SHARED: &[&str] = &["Settings", "TenantSettings"];
