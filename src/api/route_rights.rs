//! What each route asks for, read from the API's own description.
//!
//! An operation says in its `security` who may use it: `publish`, `manage` or
//! `read` for those who have that right, `tenants` for what is done to tenants
//! as such, `admin` for the gateway itself, an empty requirement for everybody.
//! One that shows secrets says so, too (`x-shows-secrets`): whoever may only
//! read is shown none. There is no other list to keep in step, and a route that
//! says nothing is not served.

use std::collections::HashMap;

use http::Method;
use serde_json::Value;

use crate::model::token::{RequiredRight, Right};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteAccess {
    /// Who may ask.
    pub need: RequiredRight,
    /// Whether it changes nothing and shows no secrets.
    pub is_reading: bool,
}

/// Every route, with what it asks for.
#[derive(Debug, Default)]
pub struct RouteRights(HashMap<String, Vec<RouteOperation>>);

#[derive(Debug)]
struct RouteOperation {
    method: Method,
    asked: RouteAccess,
    takes_query: bool,
}

impl RouteRights {
    /// As described; or the operations that do not say who may use them.
    pub fn of(document: &Value) -> Result<Self, Vec<String>> {
        let (mut rights, mut silent) = (Self::default(), Vec::new());
        for (path, methods) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                let Ok(method) = method.to_uppercase().parse::<Method>() else { continue };
                let mut parameters = operation["parameters"].as_array().into_iter().flatten();
                let takes_query = parameters.any(|parameter| parameter["in"] == "query");
                match need_of(&operation["security"]) {
                    Some(need) => {
                        let is_secret = operation["x-shows-secrets"] == true;
                        let is_reading =
                            need == RequiredRight::Right(Right::Read) || method == Method::GET && !is_secret;
                        let asked = RouteAccess { need, is_reading };
                        rights.0.entry(path.clone()).or_default().push(RouteOperation { method, asked, takes_query });
                    }
                    None => silent.push(format!("{method} {path}")),
                }
            }
        }
        if silent.is_empty() { Ok(rights) } else { Err(silent) }
    }

    /// What a route asks for; nothing, where it does not know the method. A
    /// route that is not described is the admin's.
    pub fn access_of(&self, route: &str, method: &Method) -> Option<RouteAccess> {
        if !self.0.contains_key(route) {
            return Some(RouteAccess { need: RequiredRight::Admin, is_reading: false });
        }
        self.operation(route, method).map(|operation| operation.asked)
    }

    /// Whether a route knows any query parameters.
    pub fn takes_query(&self, route: &str, method: &Method) -> bool {
        self.operation(route, method).is_none_or(|operation| operation.takes_query)
    }

    fn operation(&self, route: &str, method: &Method) -> Option<&RouteOperation> {
        let asked = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(route)?.iter().find(|operation| operation.method == *asked)
    }

    /// The methods that a route knows, as the header `Allow` lists them.
    pub fn allowed(&self, route: &str) -> String {
        let methods = self.0.get(route).into_iter().flatten().map(|operation| operation.method.as_str());
        let mut names: Vec<&str> =
            methods.flat_map(|name| [name].into_iter().chain((name == "GET").then_some("HEAD"))).collect();
        names.sort_unstable();
        names.join(",")
    }
}

/// One requirement with one word, or an empty one for everybody.
fn need_of(security: &Value) -> Option<RequiredRight> {
    let [requirement] = security.as_array()?.as_slice() else { return None };
    let requirement = requirement.as_object()?;
    if requirement.is_empty() {
        return Some(RequiredRight::Nothing);
    }
    match requirement.get("token")?.as_array()?.as_slice() {
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
            .filter(|(_, operations)| operations.iter().any(|operation| operation.asked.need == RequiredRight::Nothing))
            .map(|(path, _)| path.as_str())
            .collect();
        assert!(public.iter().all(|path| !path.starts_with("/v1/")), "{public:?}");
    }

    #[test]
    fn a_route_that_says_nothing_or_something_unknown_is_refused() {
        for security in [
            json!(null),
            json!([]),
            json!([{"token": []}]),
            json!([{"token": ["write"]}]),
            json!([{"token": ["read", "manage"]}]),
            json!([{"token": ["read"]}, {}]),
            json!([{"other": ["read"]}]),
        ] {
            assert_eq!(need_of(&security), None, "{security}");
        }
        assert_eq!(need_of(&json!([{"token": ["read"]}])), Some(RequiredRight::Right(Right::Read)));
        assert_eq!(need_of(&json!([{}])), Some(RequiredRight::Nothing));
        let mut document = crate::api::openapi::document();
        document["paths"]["/v1/tenants"]["get"]["security"].take();
        assert_eq!(RouteRights::of(&document).unwrap_err().len(), 1);
    }

    #[test]
    fn what_is_not_described_is_the_admins_and_head_is_get() {
        let rights = RouteRights::of(&crate::api::openapi::document()).unwrap();
        let asked = |need, is_reading| Some(RouteAccess { need, is_reading });
        assert_eq!(rights.access_of("/v1/hidden", &Method::GET), asked(RequiredRight::Admin, false));
        let events = "/v1/tenants/{tenant}/events";
        assert_eq!(rights.access_of(events, &Method::HEAD), asked(RequiredRight::Right(Right::Read), true));
        assert_eq!(rights.access_of(events, &Method::POST), asked(RequiredRight::Right(Right::Publish), false));
        assert_eq!(rights.access_of(events, &Method::DELETE), None);
        let secrets = "/v1/tenants/{tenant}/endpoints/{endpoint}/secrets";
        assert_eq!(
            rights.access_of(secrets, &Method::GET),
            asked(RequiredRight::Right(Right::Manage), false),
            "it shows secrets"
        );
        assert_eq!(rights.access_of("/v1/cluster", &Method::GET), asked(RequiredRight::Admin, true));
        assert_eq!(rights.allowed(events), "GET,HEAD,POST");
        assert!(rights.takes_query(events, &Method::GET) && !rights.takes_query(events, &Method::POST));
    }
}
