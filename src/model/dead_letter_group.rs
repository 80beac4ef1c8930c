//! Groups of dead letters: how many died where, of what, and on which day.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::answer_choice::AnswerChoice;
use super::delivery::DeadCause;
use super::id::{EndpointId, TenantId};
use super::named_enum::{NamedEnum, parser};
use super::wall_offset::WallOffset;

/// Milliseconds of a day.
pub const DAY_MS: i64 = 86_400_000;

/// What dead letters can be grouped by.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum GroupField {
    /// The tenant they belong to.
    Tenant,
    /// The endpoint they were for.
    Endpoint,
    /// The cause of their death.
    Cause,
    /// The last answer: a status, or the kind of a failure.
    Status,
    /// The UTC day of their death.
    Day,
}

/// What dead letters are grouped by: names with commas between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupBy(Vec<GroupField>);

impl GroupBy {
    /// Returns the grouping by these fields.
    pub fn of(fields: &[GroupField]) -> Self {
        Self(fields.to_vec())
    }

    /// Whether each group has one value of this field.
    pub fn has(&self, field: GroupField) -> bool {
        self.0.contains(&field)
    }

    /// Returns whether groups have one tenant, endpoint, cause, answer and day.
    pub fn flags(&self) -> [bool; 5] {
        [GroupField::Tenant, GroupField::Endpoint, GroupField::Cause, GroupField::Status, GroupField::Day]
            .map(|field| self.has(field))
    }

    /// Returns the same grouping with the tenant.
    pub fn with_tenant(mut self) -> Self {
        if !self.has(GroupField::Tenant) {
            self.0.push(GroupField::Tenant);
        }
        self
    }
}

/// Everything but the tenant.
impl Default for GroupBy {
    fn default() -> Self {
        Self::of(&[GroupField::Endpoint, GroupField::Cause, GroupField::Status, GroupField::Day])
    }
}

impl FromStr for GroupBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let field = |name: &str| {
            let known = GroupField::ALL.iter().find(|field| field.as_str() == name);
            known.copied().ok_or_else(|| {
                let names: Vec<&str> = GroupField::ALL.iter().map(|field| field.as_str()).collect();
                format!("dead letters are not grouped by {name:?}; use one or more of {}", names.join(", "))
            })
        };
        text.split(',').map(|name| field(name.trim())).collect::<Result<_, _>>().map(Self)
    }
}

impl TryFrom<String> for GroupBy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for GroupBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|field| field.as_str()).collect();
        f.write_str(&names.join(","))
    }
}

impl From<GroupBy> for String {
    fn from(by: GroupBy) -> Self {
        by.to_string()
    }
}

/// Which dead letters are grouped, and by what. Every field that is set must match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::IntoParams, clap::Args)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GroupFilter {
    /// What to group by, with commas between: `tenant`, `endpoint`, `cause`, `status` and `day`. All but the tenant, if not said.
    #[arg(long, value_name = "FIELDS")]
    #[param(value_type = Option<String>, example = "endpoint,cause")]
    pub by: Option<GroupBy>,
    /// Dead for this cause.
    #[arg(long, value_parser = parser::<DeadCause>())]
    pub cause: Option<DeadCause>,
    /// To this endpoint.
    #[arg(long, value_name = "ID")]
    #[param(value_type = Option<String>)]
    pub endpoint: Option<EndpointId>,
    /// With this last answer: a status such as `503`, a class such as `4xx`, or the kind of a failure such as `timeout`.
    #[arg(long)]
    #[param(value_type = Option<String>)]
    pub answer: Option<AnswerChoice>,
    /// Dead on the UTC day of this time, or later.
    #[arg(skip)]
    #[param(value_type = Option<String>, format = DateTime)]
    pub finished_since: Option<Timestamp>,
    /// Dead before this time, or later on its UTC day. At midnight that day does not count.
    #[arg(skip)]
    #[param(value_type = Option<String>, format = DateTime)]
    pub finished_until: Option<Timestamp>,
}

impl GroupFilter {
    /// Returns the same filter with its times converted to engine time.
    pub fn to_engine_time(self, offset: WallOffset) -> Self {
        let engine = |at: Option<Timestamp>| at.map(|at| offset.engine(at));
        Self { finished_since: engine(self.finished_since), finished_until: engine(self.finished_until), ..self }
    }

    /// Returns the last answer and the pattern of a class of statuses, for stores. What is
    /// chosen has one or the other.
    pub fn answer_and_class(&self) -> (Option<String>, Option<String>) {
        let class = self.answer.and_then(AnswerChoice::class_pattern);
        (self.answer.map(|answer| answer.to_string()), class)
    }

    /// Returns the first and the last day that count, in days since 1970.
    pub fn days(&self) -> (i64, i64) {
        let first = self.finished_since.map_or(i64::MIN, |since| since.as_millisecond().div_euclid(DAY_MS));
        let last = self.finished_until.map_or(i64::MAX, |until| (until.as_millisecond() - 1).div_euclid(DAY_MS));
        (first, last)
    }
}

/// Dead letters that have the fields in common by which they are grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterGroup {
    /// Tenant they belong to, if they are grouped by it.
    pub tenant: Option<TenantId>,
    /// Endpoint they were for, if they are grouped by it.
    pub endpoint: Option<EndpointId>,
    /// Cause of their death, if they are grouped by it and this version knows it.
    pub cause: Option<DeadCause>,
    /// Their last answer, if they are grouped by it and had one.
    pub answer: Option<String>,
    /// UTC day of their death, if they are grouped by it.
    pub day: Option<Date>,
    /// Number of dead letters.
    pub count: u64,
    /// Time of the first death.
    pub oldest_at: Timestamp,
    /// Time of the last death.
    pub newest_at: Timestamp,
}

/// Dead letters of one endpoint, cause and answer that died in a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterSpan {
    /// Tenant they belong to.
    pub tenant: TenantId,
    /// Endpoint they were for.
    pub endpoint: EndpointId,
    /// Cause of their death.
    pub cause: DeadCause,
    /// Their last answer, if they had one.
    pub answer: Option<String>,
    /// Time of the first death that counts.
    pub since: Timestamp,
    /// Time of the first death that no longer counts.
    pub until: Timestamp,
}

/// The largest groups of dead letters, and the sum of all groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterGroups {
    /// The largest groups, largest first.
    pub data: Vec<DeadLetterGroup>,
    /// Number of dead letters in all groups.
    pub count: u64,
    /// Number of groups.
    pub groups: u64,
    /// Time of the first death of all.
    pub oldest_at: Option<Timestamp>,
}

/// Returns the day with this number, counted since 1970.
pub fn day_of_number(days: i64) -> Option<Date> {
    let at = Timestamp::from_millisecond(days.checked_mul(DAY_MS)?).ok()?;
    Some(jiff::tz::Offset::UTC.to_datetime(at).date())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_group_by_is_read_as_it_is_written() {
        let by: GroupBy = "cause, day".parse().unwrap();
        assert!(by.has(GroupField::Cause) && by.has(GroupField::Day) && !by.has(GroupField::Endpoint));
        assert_eq!(by.to_string(), "cause,day");
        assert_eq!(by.with_tenant().to_string(), "cause,day,tenant");
        let refused = "cause,type".parse::<GroupBy>().unwrap_err();
        assert!(refused.contains("\"type\"") && refused.contains("endpoint, cause, status, day"), "{refused}");
    }

    #[test]
    fn whole_days_count_and_midnight_ends_the_day_before() {
        let at = |millis| Some(Timestamp::from_millisecond(millis).unwrap());
        let filter =
            GroupFilter { finished_since: at(DAY_MS + 5), finished_until: at(3 * DAY_MS), ..Default::default() };
        assert_eq!(filter.days(), (1, 2));
        let filter = GroupFilter { finished_until: at(3 * DAY_MS + 1), ..Default::default() };
        assert_eq!(filter.days(), (i64::MIN, 3));
        assert_eq!(day_of_number(1).unwrap().to_string(), "1970-01-02");
    }
}
