//! Names of enum variants. They are derived from the variants, once for the API,
//! the command line, logs and metrics.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use strum::VariantArray;

/// An enum whose variants have names: it derives `strum::IntoStaticStr` and
/// `strum::VariantArray`.
pub trait NamedEnum: Copy + Into<&'static str> + VariantArray {
    /// All variants, in the order of their definition.
    const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name of the variant, as it is written everywhere.
    fn as_str(self) -> &'static str {
        self.into()
    }
}

impl<T: Copy + Into<&'static str> + VariantArray> NamedEnum for T {}

/// Returns a parser for an option of the command line that takes one of the names.
pub fn parser<T: NamedEnum + Send + Sync>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::ALL.iter().map(|value| value.as_str())).map(|name| {
        let value = T::ALL.iter().find(|value| value.as_str() == name);
        *value.expect("only the names of variants are possible")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::answer::FailureKind;
    use crate::model::attention::AttentionKind;
    use crate::model::audit::AuditAction;
    use crate::model::delivery::{BodyFormat, DeadCause, DeliveryState, WaitingFor};
    use crate::model::endpoint::{EndpointState, OnDead, Ordering};
    use crate::model::endpoint_event::{Actor, EndpointEventKind};
    use crate::model::health::BreakerState;
    use crate::model::job::{JobKind, JobState, LeftOut};
    use crate::model::preset::Preset;
    use crate::model::setting_in_force::SettingOrigin;
    use crate::model::signing::{SignatureProfile, Signing};
    use crate::model::status_rules::{StatusAction, StatusTable};
    use crate::model::tls::TlsVersion;
    use crate::model::token::Right;
    use crate::model::verdict::Verdict;

    fn in_json<T: NamedEnum + serde::Serialize>() -> Vec<(String, &'static str)> {
        let json = |value: &T| serde_json::to_value(value).unwrap().as_str().unwrap().to_owned();
        T::ALL.iter().map(|value| (json(value), value.as_str())).collect()
    }

    #[test]
    fn a_variant_has_one_name_in_json_and_elsewhere() {
        let names = [
            in_json::<Actor>(),
            in_json::<AttentionKind>(),
            in_json::<AuditAction>(),
            in_json::<BodyFormat>(),
            in_json::<BreakerState>(),
            in_json::<DeadCause>(),
            in_json::<DeliveryState>(),
            in_json::<EndpointEventKind>(),
            in_json::<EndpointState>(),
            in_json::<FailureKind>(),
            in_json::<JobKind>(),
            in_json::<JobState>(),
            in_json::<LeftOut>(),
            in_json::<OnDead>(),
            in_json::<Ordering>(),
            in_json::<Preset>(),
            in_json::<Right>(),
            in_json::<SettingOrigin>(),
            in_json::<SignatureProfile>(),
            in_json::<Signing>(),
            in_json::<StatusAction>(),
            in_json::<StatusTable>(),
            in_json::<TlsVersion>(),
            in_json::<Verdict>(),
            in_json::<WaitingFor>(),
        ];
        for (json, name) in names.into_iter().flatten() {
            assert_eq!(json, name);
        }
    }
}
