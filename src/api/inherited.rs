//! Keeps settings that an endpoint inherits from having values of their own.

use serde_json::{Map, Value};

use super::problem::{FieldError, Problem, ProblemCode};
use crate::model::endpoint::{EndpointSettings, InheritedSetting};
use crate::model::named_enum::NamedEnum;

/// Refuses a value of its own for a setting that is inherited. The value that is in
/// force may be repeated, as by a client that sends back what it has read.
pub fn refuse_own_values(
    given: &Map<String, Value>,
    settings: &EndpointSettings,
    current: Option<&EndpointSettings>,
) -> Result<(), Problem> {
    let current = current.map(|current| serde_json::to_value(current).expect("settings are plain data"));
    let is_own = |setting: &&InheritedSetting| {
        let value = given.get(setting.as_str()).filter(|value| !value.is_null());
        value.is_some_and(|value| current.as_ref().is_none_or(|current| current[setting.as_str()] != *value))
    };
    let errors: Vec<FieldError> = settings
        .inherits
        .iter()
        .filter(is_own)
        .map(|setting| {
            let name = setting.as_str();
            let detail = format!(
                "{name} is inherited from the tenant's defaults; leave it out, or take {name} out of inherits to give it a \
                 value of its own"
            );
            FieldError { pointer: format!("/{name}"), detail }
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(Problem::fields(ProblemCode::InvalidField, errors)) }
}
