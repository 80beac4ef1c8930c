//! Says which deliveries a list shows: one filter for the API's query, the
//! command line's options and the stores.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::delivery::{DeadCause, DeliveryState};
use super::id::EndpointId;
use super::named_enum::parser;
use super::wall_offset::WallOffset;

/// Which deliveries to list. Every field that is set must match.
///
/// A list goes by creation, the newest delivery first. With `finished_since` or
/// `finished_until` it goes by finish, the latest first: so it reads the
/// deliveries of that time alone, however long ago they were created.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::IntoParams, clap::Args)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeliveryFilter {
    /// In this state. Dead letters are all `dead`.
    #[arg(long, value_parser = parser::<DeliveryState>())]
    pub state: Option<DeliveryState>,
    /// Dead for this cause, also where it was discarded since.
    #[arg(long, value_parser = parser::<DeadCause>())]
    pub cause: Option<DeadCause>,
    /// To this endpoint.
    #[arg(long, value_name = "ID")]
    #[param(value_type = Option<String>)]
    pub endpoint: Option<EndpointId>,
    /// Of this event type.
    #[arg(long, value_name = "TYPE")]
    pub event_type: Option<String>,
    /// With this key.
    #[arg(long)]
    pub key: Option<String>,
    /// Created at this time or later.
    #[arg(long, value_name = "TIME")]
    #[param(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
    /// Created before this time.
    #[arg(long, value_name = "TIME")]
    #[param(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// Delivered, dead or cancelled at this time or later. The list is then ordered by that time, the latest first.
    #[arg(long, value_name = "TIME")]
    #[param(value_type = Option<String>, format = DateTime)]
    pub finished_since: Option<Timestamp>,
    /// Delivered, dead or cancelled before this time. The list is then ordered by that time, the latest first.
    #[arg(long, value_name = "TIME")]
    #[param(value_type = Option<String>, format = DateTime)]
    pub finished_until: Option<Timestamp>,
}

impl DeliveryFilter {
    /// Names of the fields, which queries, forms and options share.
    pub const NAMES: [&str; 9] =
        ["state", "cause", "endpoint", "event_type", "key", "since", "until", "finished_since", "finished_until"];

    /// Whether the list goes by time of finish, instead of creation.
    pub fn is_by_finish(&self) -> bool {
        self.finished_since.is_some() || self.finished_until.is_some()
    }

    /// Returns the same filter with its times converted to engine time.
    pub fn to_engine_time(self, offset: WallOffset) -> Self {
        let engine = |at: Option<Timestamp>| at.map(|at| offset.engine(at));
        Self {
            since: engine(self.since),
            until: engine(self.until),
            finished_since: engine(self.finished_since),
            finished_until: engine(self.finished_until),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_forms_and_options_have_the_same_names() {
        let in_json = serde_json::to_value(DeliveryFilter::default()).unwrap();
        let mut names: Vec<&str> = in_json.as_object().unwrap().keys().map(String::as_str).collect();
        let command = <DeliveryFilter as clap::Args>::augment_args(clap::Command::new("list"));
        let options = command.get_arguments().map(|option| option.get_long().unwrap().replace('-', "_"));
        assert_eq!(options.collect::<Vec<_>>(), DeliveryFilter::NAMES);
        names.sort_by_key(|name| DeliveryFilter::NAMES.iter().position(|known| known == name));
        assert_eq!(names, DeliveryFilter::NAMES);
    }
}
