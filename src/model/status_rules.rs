//! Tables that map statuses and failures to actions: three presets, and an
//! endpoint's own rules.
//!
//! Invariant: every preset has a row for every status and every failure. If two
//! rows match, the exact code beats its class.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::answer::FailureKind;

/// What a rule says is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[schema(as = StatusAction)]
pub enum StatusAction {
    /// The answer counts as delivered.
    Deliver,
    /// The delivery is attempted again.
    Retry,
    /// It is parked at once as a dead letter.
    Refuse,
    /// It is parked, and the endpoint is disabled.
    Disable,
}

/// The tables that have a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum StatusTable {
    /// Transient answers are retried, permanent ones are not.
    #[default]
    Default,
    /// Every 4xx but 408 and 429 ends it at once; every 5xx is retried.
    Strict,
    /// Only a 2xx ends it; everything else is retried until the budget ends.
    Lenient,
}

/// Whose rule judged an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleSource {
    /// The table `default`.
    #[default]
    Default,
    /// The table `strict`.
    Strict,
    /// The table `lenient`.
    Lenient,
    /// The endpoint's own `status_rules`.
    Endpoint,
    /// The receiver's own word, in its answer.
    Receiver,
}

impl From<StatusTable> for RuleSource {
    fn from(table: StatusTable) -> Self {
        match table {
            StatusTable::Default => Self::Default,
            StatusTable::Strict => Self::Strict,
            StatusTable::Lenient => Self::Lenient,
        }
    }
}

/// A smaller budget for answers that are retried, but not for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShortBudget {
    /// 404 answers: the endpoint may be misconfigured or removed.
    NotFound,
    /// The receiver's name does not exist.
    NoSuchName,
    /// The name points at an address that may not be called.
    ForbiddenTarget,
}

impl ShortBudget {
    /// Returns the number of such answers that ends the delivery.
    pub const fn answers_max(self) -> u32 {
        match self {
            Self::NotFound | Self::NoSuchName => 10,
            Self::ForbiddenTarget => 5,
        }
    }
}

/// One row of a table.
#[derive(Debug, Clone, Copy)]
pub struct StatusRule {
    /// Answers that the row matches.
    pub on: RuleCondition,
    /// Action for these answers.
    pub action: StatusAction,
    /// Short budget that these answers count against, if any.
    pub short_budget: Option<ShortBudget>,
    /// Reason in a few words.
    pub note: &'static str,
}

/// The answers that a row matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleCondition {
    /// Exactly this status.
    Status(u16),
    /// Every status that begins with this digit, 1 to 5.
    Class(u16),
    /// Every status from 600 on.
    Above,
    /// Exactly this failure.
    Failure(FailureKind),
}

impl fmt::Display for RuleCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Class(class) => write!(f, "{class}xx"),
            Self::Above => f.write_str(ABOVE),
            Self::Failure(kind) => f.write_str(kind.as_str()),
        }
    }
}

/// Name of [`RuleCondition::Above`].
const ABOVE: &str = "600 and above";

impl RuleCondition {
    /// Returns the condition with this name, as it is recorded with an attempt.
    pub fn named(name: &str) -> Option<Self> {
        if name == ABOVE {
            return Some(Self::Above);
        }
        match name.parse() {
            Ok(StatusCodes::Exact(status)) => Some(Self::Status(status)),
            Ok(StatusCodes::Class(class)) => Some(Self::Class(class)),
            Err(_) => FailureKind::ALL.iter().copied().find(|kind| kind.as_str() == name).map(Self::Failure),
        }
    }
}

const fn row(on: RuleCondition, action: StatusAction, note: &'static str) -> StatusRule {
    StatusRule { on, action, short_budget: None, note }
}

const fn short(on: RuleCondition, budget: ShortBudget, note: &'static str) -> StatusRule {
    StatusRule { on, action: StatusAction::Retry, short_budget: Some(budget), note }
}

use super::named_enum::NamedEnum;
use RuleCondition::{Above, Class, Failure, Status};
use StatusAction::{Deliver, Disable, Refuse, Retry};

const ARRIVED: StatusRule = row(Class(2), Deliver, "the receiver has it; the body is ignored");
const REDIRECT: StatusRule = row(Class(3), Refuse, "redirects are never followed");
const LATE: StatusRule = row(Status(408), Retry, "the receiver was too slow to read it");
const BUSY: StatusRule =
    row(Status(429), Retry, "the receiver is overloaded; without Retry-After it is left alone twice as long");
const GONE: StatusRule =
    row(Status(410), Disable, "the receiver asks never to be called again; its endpoint is disabled");
const INTERIM: StatusRule = row(Class(1), Retry, "an interim answer where a final one was due");
const UNKNOWN: StatusRule = row(Above, Retry, "not a status HTTP knows");
const FORBIDDEN: StatusRule = short(
    Failure(FailureKind::TargetForbidden),
    ShortBudget::ForbiddenTarget,
    "names can be repointed; 5 such answers, then refused",
);

static DEFAULT: &[StatusRule] = &[
    ARRIVED,
    REDIRECT,
    short(Status(404), ShortBudget::NotFound, "misconfigured or removed; 10 such answers, then exhausted"),
    LATE,
    row(Status(409), Retry, "the receiver is at odds with itself, for now"),
    GONE,
    row(Status(425), Retry, "too early, says the receiver"),
    BUSY,
    row(Class(4), Refuse, "the same request would be refused again"),
    row(Status(501), Refuse, "the receiver does not know how"),
    row(Class(5), Retry, "the receiver is in trouble"),
    INTERIM,
    UNKNOWN,
];

static STRICT: &[StatusRule] = &[
    ARRIVED,
    REDIRECT,
    LATE,
    GONE,
    BUSY,
    row(Class(4), Refuse, "whatever the receiver blames on us ends it"),
    row(Class(5), Retry, "the receiver is in trouble"),
    INTERIM,
    UNKNOWN,
];

static LENIENT: &[StatusRule] = &[
    ARRIVED,
    row(Class(3), Retry, "redirects are never followed"),
    BUSY,
    row(Class(4), Retry, "410 and 404 too"),
    row(Class(5), Retry, "501 too"),
    INTERIM,
    UNKNOWN,
];

/// Rows about failures, for all tables; [`StatusTable::adapt`] changes one for
/// the lenient table.
static FAILURES: &[StatusRule] = &[
    short(
        Failure(FailureKind::NoSuchName),
        ShortBudget::NoSuchName,
        "the name does not exist; 10 such answers, then exhausted",
    ),
    row(Failure(FailureKind::Dns), Retry, "the name servers failed"),
    row(Failure(FailureKind::ConnectionRefused), Retry, "nothing listens there"),
    row(Failure(FailureKind::Unreachable), Retry, "no way leads there"),
    row(Failure(FailureKind::Tls), Retry, "no secure connection could be agreed on"),
    row(Failure(FailureKind::Timeout), Retry, "the deadline passed"),
    row(Failure(FailureKind::ConnectionReset), Retry, "the connection was closed before a whole answer"),
    row(Failure(FailureKind::MalformedAnswer), Retry, "what came back is not HTTP"),
    row(Failure(FailureKind::OversizedHeaders), Retry, "the head of the answer is too large"),
    FORBIDDEN,
];

impl StatusTable {
    /// Returns the rows about statuses, then those about failures.
    pub fn rows(self) -> impl Iterator<Item = StatusRule> {
        let statuses = match self {
            Self::Default => DEFAULT,
            Self::Strict => STRICT,
            Self::Lenient => LENIENT,
        };
        statuses.iter().chain(FAILURES).map(move |row| self.adapt(*row))
    }

    /// Returns a row as it is in this table. The lenient table has no short budget
    /// for missing names, but keeps the one for addresses that the operator forbids.
    fn adapt(self, row: StatusRule) -> StatusRule {
        match (self, row.on) {
            (Self::Lenient, Failure(FailureKind::NoSuchName)) => {
                StatusRule { short_budget: None, note: "the name does not exist", ..row }
            }
            _ => row,
        }
    }

    /// Returns the row with this condition.
    pub fn find(self, condition: RuleCondition) -> Option<StatusRule> {
        self.rows().find(|row| row.on == condition)
    }
}

/// An endpoint's rules: a table, and what differs from it.
/// `{"preset":"strict","404":"retry","5xx":"refuse"}`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusRules {
    /// Table that applies where there is no override.
    pub preset: StatusTable,
    /// Actions that differ from the table; an exact code beats its class.
    pub overrides: BTreeMap<StatusCodes, StatusAction>,
}

/// The status codes that a rule of an endpoint matches: `404`, or `4xx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusCodes {
    /// A single code, 100 to 999.
    Exact(u16),
    /// A class of codes, 1 to 5.
    Class(u16),
}

impl FromStr for StatusCodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.as_bytes();
        let refusal = || {
            format!(
                "{text:?} is not a status; use an exact code such as 404, a class such as 5xx (1xx to 5xx), or preset"
            )
        };
        match digits {
            [class @ b'1'..=b'5', b'x', b'x'] => Ok(Self::Class(u16::from(class - b'0'))),
            [b'1'..=b'9', _, _] if digits.iter().all(u8::is_ascii_digit) => {
                text.parse().map(Self::Exact).map_err(|_| refusal())
            }
            _ => Err(refusal()),
        }
    }
}

impl fmt::Display for StatusCodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(code) => code.fmt(f),
            Self::Class(class) => write!(f, "{class}xx"),
        }
    }
}

/// The rule that matches an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchedRule {
    /// Name of the rule: `404`, `5xx`, `timeout`.
    pub rule: String,
    /// Source of the rule.
    pub source: RuleSource,
    /// Action of the rule.
    pub action: StatusAction,
    /// Short budget that the answer counts against, if any.
    pub short_budget: Option<ShortBudget>,
}

impl StatusRules {
    /// Returns the rule for a status.
    pub fn for_status(&self, status: u16) -> MatchedRule {
        let class = status / 100;
        for codes in [StatusCodes::Exact(status), StatusCodes::Class(class)] {
            if let Some(action) = self.overrides.get(&codes) {
                let rule = codes.to_string();
                return MatchedRule { rule, source: RuleSource::Endpoint, action: *action, short_budget: None };
            }
        }
        let group = if class < 6 { Class(class.max(1)) } else { Above };
        let row = self.preset.find(Status(status)).or_else(|| self.preset.find(group));
        self.matched_rule(row.expect("every table has a row for every class"))
    }

    /// Refuses rules by which no answer counts as delivered.
    pub fn check(&self) -> Result<(), String> {
        let is_delivered = |action: &StatusAction| *action == Deliver;
        match self.overrides.get(&StatusCodes::Class(2)) {
            Some(action) if !is_delivered(action) && !self.overrides.values().any(is_delivered) => Err(format!(
                "status_rules has 2xx as {}, so no answer would count as delivered; leave 2xx out, or name the codes \
                 that count, such as {{\"2xx\":\"{}\",\"204\":\"deliver\"}}",
                action.as_str(),
                action.as_str()
            )),
            _ => self.check_usual_success(),
        }
    }

    /// Refuses rules by which the usual success does not count, unless they say what
    /// does: most likely it is a mistake, and every event is sent again and again.
    fn check_usual_success(&self) -> Result<(), String> {
        let is_2xx = |codes: &StatusCodes| matches!(codes, StatusCodes::Exact(200..300) | StatusCodes::Class(2));
        let names_success = self.overrides.iter().any(|(codes, action)| is_2xx(codes) && *action == Deliver);
        match self.overrides.get(&StatusCodes::Exact(200)) {
            Some(action) if *action != Deliver && !names_success => Err(format!(
                "status_rules has 200 as {action}, so the usual success would not count as delivered; leave 200 out, \
                 or name the codes that count, such as {{\"200\":\"{action}\",\"204\":\"deliver\"}}",
                action = action.as_str()
            )),
            _ => Ok(()),
        }
    }

    /// Returns the rule for a failure.
    pub fn for_failure(&self, kind: FailureKind) -> MatchedRule {
        let row = self.preset.find(Failure(kind));
        // Only failures of the gateway itself have no row; they are put back and
        // never judged.
        self.matched_rule(row.unwrap_or(StatusRule { on: Failure(kind), action: Retry, short_budget: None, note: "" }))
    }

    fn matched_rule(&self, row: StatusRule) -> MatchedRule {
        MatchedRule {
            rule: row.on.to_string(),
            source: self.preset.into(),
            action: row.action,
            short_budget: row.short_budget,
        }
    }
}

impl Serialize for StatusRules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + self.overrides.len()))?;
        map.serialize_entry("preset", &self.preset)?;
        for (codes, action) in &self.overrides {
            map.serialize_entry(&codes.to_string(), action)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for StatusRules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StatusRulesVisitor;
        impl<'de> Visitor<'de> for StatusRulesVisitor {
            type Value = StatusRules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of rules such as {\"404\":\"retry\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StatusRules, A::Error> {
                let mut rules = StatusRules::default();
                let mut has_preset = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "preset" {
                        rules.preset = map.next_value()?;
                        if std::mem::replace(&mut has_preset, true) {
                            return Err(A::Error::duplicate_field("preset"));
                        }
                        continue;
                    }
                    let codes: StatusCodes =
                        name.parse().map_err(|wrong| A::Error::custom(format!("at /{name}: {wrong}")))?;
                    let action = map.next_value()?;
                    if rules.overrides.insert(codes, action).is_some() {
                        return Err(A::Error::custom(format!("at /{name}: {name} is given twice; keep one")));
                    }
                }
                Ok(rules)
            }
        }
        deserializer.deserialize_map(StatusRulesVisitor)
    }
}

impl PartialSchema for StatusRules {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .property("preset", Ref::from_schema_name("StatusTable"))
            .additional_properties(Some(AdditionalProperties::RefOr(Ref::from_schema_name("StatusAction").into())))
            .description(Some(
                "A table (`default`, `strict` or `lenient`) and what differs from it, by exact code or class: `{\"preset\":\"strict\",\"404\":\"retry\",\"5xx\":\"refuse\"}`. An exact code beats its class.",
            ))
            .into()
    }
}

impl ToSchema for StatusRules {
    fn name() -> std::borrow::Cow<'static, str> {
        "StatusRules".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("StatusTable".into(), StatusTable::schema()));
        schemas.push(("StatusAction".into(), StatusAction::schema()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_one_row_for_everything_and_no_row_twice() {
        for table in StatusTable::ALL {
            let rows: Vec<RuleCondition> = table.rows().map(|row| row.on).collect();
            for (n, on) in rows.iter().enumerate() {
                assert!(!rows[..n].contains(on), "{on} stands twice in {}", table.as_str());
            }
            for class in 1..=5 {
                assert!(rows.contains(&Class(class)), "{} has no row for {class}xx", table.as_str());
            }
            for kind in FailureKind::ALL.iter().copied().filter(|kind| *kind != FailureKind::Ours) {
                assert!(rows.contains(&Failure(kind)), "{} has no row for {}", table.as_str(), kind.as_str());
            }
        }
    }

    #[test]
    fn the_row_that_judged_an_attempt_is_found_by_its_recorded_name() {
        for row in StatusTable::ALL.iter().flat_map(|table| table.rows()) {
            assert_eq!(RuleCondition::named(&row.on.to_string()), Some(row.on));
        }
        assert_eq!(RuleCondition::named("webhook-delivery: abort"), None);
    }

    #[test]
    fn rules_are_shown_as_they_are_written() {
        for text in [r#"{"preset":"default"}"#, r#"{"preset":"strict","404":"retry","999":"refuse","5xx":"deliver"}"#] {
            let rules: StatusRules = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&rules).unwrap(), text);
        }
        assert_eq!(serde_json::from_str::<StatusRules>("{}").unwrap(), StatusRules::default());
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_refused_by_name() {
        for (text, wrong) in [
            (r#"{"40":"retry"}"#, "\"40\" is not a status"),
            (r#"{"099":"retry"}"#, "\"099\" is not a status"),
            (r#"{"1000":"retry"}"#, "\"1000\" is not a status"),
            (r#"{"6xx":"retry"}"#, "\"6xx\" is not a status"),
            (r#"{"4XX":"retry"}"#, "\"4XX\" is not a status"),
            (r#"{"+40":"retry"}"#, "\"+40\" is not a status"),
            (r#"{"timeout":"refuse"}"#, "\"timeout\" is not a status"),
            (r#"{"404":"ignore"}"#, "unknown variant `ignore`, expected one of `deliver`"),
            (r#"{"404":"retry","404":"refuse"}"#, "404 is given twice"),
            (r#"{"preset":"loose"}"#, "unknown variant `loose`"),
        ] {
            let error = serde_json::from_str::<StatusRules>(text).unwrap_err().to_string();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
