//! Reads the right that each route needs from the OpenAPI description.
//!
//! The `security` of an operation names the right: `publish`, `manage` or `read`
//! within a tenant, `tenants` for changes of tenants themselves, `admin` for the
//! gateway itself, no scope for any valid token, an empty requirement for everybody. An operation that shows
//! secrets is marked with `x-shows-secrets`, and callers who may only read are
//! refused. One that is no `GET` and changes nothing of anybody else's is marked
//! with `x-open-to-readers`. There is no second list to keep in step, and the gateway does not
//! start if an operation names no right.

use std::collections::HashMap;

use http::Method;
use serde_json::Value;

use crate::model::token::{RequiredRight, Right};

/// The access that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteAccess {
    /// Right that the caller must have.
    pub need: RequiredRight,
    /// Whether the request changes nothing and shows no secrets.
    pub is_reading: bool,
}

/// Every route with the access that its operations need.
#[derive(Debug, Default)]
pub struct RouteRights(HashMap<String, Vec<RouteOperation>>);

#[derive(Debug)]
struct RouteOperation {
    method: Method,
    access: RouteAccess,
    takes_query: bool,
    takes_body: bool,
}

impl RouteRights {
    /// Reads the rights of every operation; fails with the operations that name
    /// none.
    pub fn of(document: &Value) -> Result<Self, Vec<String>> {
        let (mut rights, mut unmarked) = (Self::default(), Vec::new());
        for (path, methods) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                let Ok(method) = method.to_uppercase().parse::<Method>() else { continue };
                let mut parameters = operation["parameters"].as_array().into_iter().flatten();
                let takes_query = parameters.any(|parameter| parameter["in"] == "query");
                match need_of(&operation["security"]) {
                    Some(need) => {
                        let is_secret = operation["x-shows-secrets"] == true;
                        let is_reading = need == RequiredRight::Right(Right::Read)
                            || method == Method::GET && !is_secret
                            || operation["x-open-to-readers"] == true;
                        let access = RouteAccess { need, is_reading };
                        let takes_body = operation["requestBody"].is_object();
                        let operation = RouteOperation { method, access, takes_query, takes_body };
                        rights.0.entry(path.clone()).or_default().push(operation);
                    }
                    None => unmarked.push(format!("{method} {path}")),
                }
            }
        }
        if unmarked.is_empty() { Ok(rights) } else { Err(unmarked) }
    }

    /// Returns the access that a route needs; none if it has no such method. A
    /// route without a description needs the right `admin`.
    pub fn access_of(&self, route: &str, method: &Method) -> Option<RouteAccess> {
        if !self.0.contains_key(route) {
            return Some(RouteAccess { need: RequiredRight::Admin, is_reading: false });
        }
        self.operation(route, method).map(|operation| operation.access)
    }

    /// Whether a route has query parameters.
    pub fn takes_query(&self, route: &str, method: &Method) -> bool {
        self.operation(route, method).is_none_or(|operation| operation.takes_query)
    }

    /// Whether a route has a body.
    pub fn takes_body(&self, route: &str, method: &Method) -> bool {
        self.operation(route, method).is_none_or(|operation| operation.takes_body)
    }

    fn operation(&self, route: &str, method: &Method) -> Option<&RouteOperation> {
        let served_by = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(route)?.iter().find(|operation| operation.method == *served_by)
    }

    /// Returns the methods of a route as the value of the `Allow` header.
    pub fn allowed_methods(&self, route: &str) -> String {
        let methods = self.0.get(route).into_iter().flatten().map(|operation| operation.method.as_str());
        let mut names: Vec<&str> =
            methods.flat_map(|name| [name].into_iter().chain((name == "GET").then_some("HEAD"))).collect();
        names.sort_unstable();
        names.join(",")
    }
}

/// Reads the right from a `security` with one requirement of at most one scope, or an
/// empty requirement for everybody. Below `/v1/` a caller is always identified.
fn need_of(security: &Value) -> Option<RequiredRight> {
    let [requirement] = security.as_array()?.as_slice() else { return None };
    let requirement = requirement.as_object()?;
    if requirement.is_empty() {
        return Some(RequiredRight::Nothing);
    }
    match requirement.get("token")?.as_array()?.as_slice() {
        [] if requirement.len() == 1 => Some(RequiredRight::Nothing),
        [Value::String(name)] if requirement.len() == 1 => RequiredRight::named(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_route_says_who_may_use_it() {
        let rights = RouteRights::of(&crate::api::openapi::document()).unwrap();
        assert!(rights.0.len() > 30);
        let public: Vec<&str> = rights
            .0
            .iter()
            .filter(|(_, operations)| {
                operations.iter().any(|operation| operation.access.need == RequiredRight::Nothing)
            })
            .map(|(path, _)| path.as_str())
            .collect();
        // Below /v1/ there is always a caller. Any caller may learn who it is, and where deliveries come from.
        let is_for_all = |path: &&str| !path.starts_with("/v1/") || ["/v1/token", "/v1/egress"].contains(path);
        assert!(public.iter().all(is_for_all), "{public:?}");
    }

    #[test]
    fn a_route_that_says_nothing_or_something_unknown_is_refused() {
        for security in [
            json!(null),
            json!([]),
            json!([{"token": ["write"]}]),
            json!([{"token": ["read", "manage"]}]),
            json!([{"token": ["read"]}, {}]),
            json!([{"other": ["read"]}]),
        ] {
            assert_eq!(need_of(&security), None, "{security}");
        }
        assert_eq!(need_of(&json!([{"token": ["read"]}])), Some(RequiredRight::Right(Right::Read)));
        assert_eq!(need_of(&json!([{}])), Some(RequiredRight::Nothing));
        assert_eq!(need_of(&json!([{"token": []}])), Some(RequiredRight::Nothing), "any valid token will do");
        let mut document = crate::api::openapi::document();
        document["paths"]["/v1/tenants"]["get"]["security"].take();
        assert_eq!(RouteRights::of(&document).unwrap_err().len(), 1);
    }

    #[test]
    fn what_is_not_described_is_the_admins_and_head_is_get() {
        let rights = RouteRights::of(&crate::api::openapi::document()).unwrap();
        let access = |need, is_reading| Some(RouteAccess { need, is_reading });
        assert_eq!(rights.access_of("/v1/hidden", &Method::GET), access(RequiredRight::Admin, false));
        let events = "/v1/tenants/{tenant}/events";
        assert_eq!(rights.access_of(events, &Method::HEAD), access(RequiredRight::Right(Right::Read), true));
        assert_eq!(rights.access_of(events, &Method::POST), access(RequiredRight::Right(Right::Publish), false));
        assert_eq!(rights.access_of(events, &Method::DELETE), None);
        let secrets = "/v1/tenants/{tenant}/endpoints/{endpoint}/secrets";
        assert_eq!(
            rights.access_of(secrets, &Method::GET),
            access(RequiredRight::Right(Right::Manage), false),
            "it shows secrets"
        );
        assert_eq!(rights.access_of("/v1/cluster", &Method::GET), access(RequiredRight::Admin, true));
        assert_eq!(rights.allowed_methods(events), "GET,HEAD,POST");
        assert!(rights.takes_query(events, &Method::GET) && !rights.takes_query(events, &Method::POST));
        assert!(!rights.takes_body(events, &Method::GET) && rights.takes_body(events, &Method::POST));
    }
}
