//! Describes a setting that a running gateway has, and where it came from.

use serde::{Deserialize, Serialize};

/// A setting in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct SettingInForce {
    /// Name of the setting, as it is written in the file.
    #[schema(example = "retention")]
    pub name: String,
    /// Value of the setting; a URL is shown without its password.
    #[schema(example = "7d")]
    pub value: String,
    /// Where the value came from.
    pub origin: SettingOrigin,
}

/// Where the value of a setting came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum SettingOrigin {
    /// A flag of the command.
    Flag,
    /// A variable of the environment.
    Environment,
    /// The settings file.
    File,
    /// The default: no value was given.
    Default,
}
