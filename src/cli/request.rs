//! Builds requests to the API: JSON bodies, filters, pages and times.

use anyhow::bail;
use jiff::Timestamp;
use serde::Serialize;
use url::Url;

use super::failure::CommandFailure;
use crate::clock::{Clock, SystemClock};
use crate::model::parse_fault::json_fault;
use crate::model::span::Span;

/// A JSON object built as bytes, so that a producer's data stays byte for byte.
#[derive(Debug, Default)]
pub struct JsonBody(Vec<u8>);

impl JsonBody {
    /// Adds a field whose value is JSON already, byte for byte, if there is a value.
    pub fn json_field(mut self, name: &str, json: Option<&[u8]>) -> Self {
        if let Some(json) = json {
            self.0.push(if self.0.is_empty() { b'{' } else { b',' });
            self.0.extend(serde_json::to_vec(name).expect("text can be written as JSON"));
            self.0.push(b':');
            self.0.extend(json);
        }
        self
    }

    /// Adds a field, if there is a value.
    pub fn field<T: Serialize + ?Sized>(self, name: &str, value: Option<&T>) -> Self {
        let json =
            value.map(|value| serde_json::to_vec(value).expect("texts, numbers and lists can be written as JSON"));
        self.json_field(name, json.as_deref())
    }

    /// Whether the body has no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes to send.
    pub fn finish(mut self) -> Vec<u8> {
        if self.0.is_empty() {
            self.0.push(b'{');
        }
        self.0.push(b'}');
        self.0
    }
}

/// Which part of a list to show.
#[derive(Debug, clap::Args)]
pub struct TimeRangeArgs {
    /// From this time on: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    pub since: Option<Timestamp>,
    /// Before this time: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    pub until: Option<Timestamp>,
    /// Which page of the range.
    #[command(flatten)]
    pub page: PageArgs,
}

/// Which page of a list to show.
#[derive(Debug, clap::Args)]
pub struct PageArgs {
    /// At most so many, 1 to 500.
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// The `next` of the page before.
    #[arg(long)]
    cursor: Option<String>,
}

impl TimeRangeArgs {
    /// Adds the arguments to a list's URL.
    pub fn add_to_query(&self, url: &mut Url) -> anyhow::Result<()> {
        check_order("--since", self.since, "--until", self.until)?;
        let (since, until) = (self.since.map(|at| at.to_string()), self.until.map(|at| at.to_string()));
        add_filters(url, &[("since", since.as_deref()), ("until", until.as_deref())]);
        self.page.add_to_query(url);
        Ok(())
    }
}

/// Lets an option take a span before now where the API takes a time.
pub fn as_past_time(option: clap::Arg) -> clap::Arg {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let help = format!("{}: 2026-11-15T08:00:00Z, or 2h for two hours ago", help.trim_end_matches('.'));
    option.value_parser(past_time).help(help)
}

/// Refuses two times of which the first is after the second.
pub fn check_order(
    since_name: &str,
    since: Option<Timestamp>,
    until_name: &str,
    until: Option<Timestamp>,
) -> anyhow::Result<()> {
    match since.zip(until).filter(|(since, until)| since > until) {
        Some((since, until)) => bail!(CommandFailure::usage(format!(
            "{since_name} ({since:.0}) is after {until_name} ({until:.0}), so nothing can match; swap them"
        ))),
        None => Ok(()),
    }
}

impl PageArgs {
    /// Adds the arguments to a list's URL.
    pub fn add_to_query(&self, url: &mut Url) {
        let limit = self.limit.map(|limit| limit.to_string());
        add_filters(url, &[("limit", limit.as_deref()), ("cursor", self.cursor.as_deref())]);
    }
}

/// Adds the filters that were given to a list's URL.
pub fn add_filters(url: &mut Url, filters: &[(&str, Option<&str>)]) {
    for (name, value) in filters {
        if let Some(value) = value {
            url.query_pairs_mut().append_pair(name, value);
        }
    }
}

/// Adds the fields of a filter that are set to a list's URL.
pub fn ask_filter(url: &mut Url, filter: &impl Serialize) {
    let fields = serde_json::to_value(filter).expect("a filter is plain data");
    for (name, value) in fields.as_object().into_iter().flatten() {
        add_filters(url, &[(name, value.as_str())]);
    }
}

/// Checks that a text is JSON, and leaves it as it is.
pub fn parse_json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<&serde_json::value::RawValue>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(problem) => {
            Err(format!("not JSON: {}; write it like '{{\"name\": \"value\"}}'", json_fault(text.as_bytes(), &problem)))
        }
    }
}

/// Converts a rate such as 100/20, for 100 per second and 20 at once, to JSON; `none`
/// becomes null, which is the default.
pub fn parse_rate(text: &str) -> Result<String, String> {
    if text == "none" {
        return Ok("null".to_owned());
    }
    let (per_second, burst) = match text.split_once('/') {
        Some((per_second, burst)) => (per_second, Some(burst)),
        None => (text, None),
    };
    let per_second: Option<f64> = per_second.trim().parse().ok().filter(|number: &f64| number.is_finite());
    let burst: Option<Option<u32>> = burst.map(|burst| burst.trim().parse().ok());
    match (per_second, burst) {
        (Some(per_second), None) => Ok(serde_json::json!({ "per_second": per_second, "burst": null }).to_string()),
        (Some(per_second), Some(Some(burst))) => {
            Ok(serde_json::json!({ "per_second": per_second, "burst": burst }).to_string())
        }
        _ => Err("write how many per second and how many at once, such as 100/20, or none for the default".to_owned()),
    }
}

/// Parses a future time: a time, or a span from now.
pub fn future_time(text: &str) -> Result<String, String> {
    match (text.parse::<Span>(), text.parse::<Timestamp>()) {
        (Ok(span), _) => SystemClock
            .now()
            .checked_add(span.0)
            .map(|at| format!("{at:.3}"))
            .map_err(|_| format!("{text} reaches ahead too far")),
        (_, Ok(_)) => Ok(text.to_owned()),
        // It looks like a time that the parser here does not take; the gateway decides.
        _ if text.len() > 19 && text.as_bytes()[10].eq_ignore_ascii_case(&b't') => Ok(text.to_owned()),
        _ => {
            Err("write a time such as 2026-11-15T08:00:00Z, or a span such as 10m for ten minutes from now".to_owned())
        }
    }
}

/// Parses a past time: a time, or a span before now.
pub fn past_time(text: &str) -> Result<Timestamp, String> {
    match (text.parse::<Span>(), text.parse::<Timestamp>()) {
        (Ok(span), _) => SystemClock.now().checked_sub(span.0).map_err(|_| format!("{text} reaches back too far")),
        (_, Ok(at)) => Ok(at),
        _ => Err("write a time such as 2026-11-15T08:00:00Z, or a span such as 2h for two hours ago".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::delivery::DeliveryState;
    use crate::model::delivery_filter::DeliveryFilter;

    #[test]
    fn a_body_escapes_its_fields_and_leaves_raw_json_alone() {
        let body = JsonBody::default()
            .field("a", Some("x\"\n"))
            .field("b", None::<&str>)
            .json_field("c", Some(br#"{ "n":1, "n":2 }"#));
        assert_eq!(String::from_utf8(body.finish()).unwrap(), r#"{"a":"x\"\n","c":{ "n":1, "n":2 }}"#);
        assert_eq!(JsonBody::default().finish(), b"{}");
    }

    #[test]
    fn a_time_is_a_moment_or_a_span_ago() {
        assert_eq!(past_time("2026-11-15T08:00:00Z").unwrap().to_string(), "2026-11-15T08:00:00Z");
        let ago = past_time("2h").unwrap();
        assert!((7_200..7_210).contains(&(SystemClock.now().as_second() - ago.as_second())));
        assert!(past_time("yesterday").unwrap_err().contains("such as 2h"));
        assert_eq!(future_time("9999-12-31T23:59:59Z").unwrap(), "9999-12-31T23:59:59Z");
        assert!(future_time("tomorrow, or the day after").unwrap_err().contains("such as 10m"));
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_told_in_the_words_that_were_typed() {
        let at = |text: &str| Some(past_time(text).unwrap());
        let said = check_order("--since", at("1h"), "--until", at("2h")).unwrap_err().to_string();
        assert!(said.starts_with("--since (") && said.contains(" is after --until ("), "{said}");
        assert!(check_order("--since", at("2h"), "--until", at("1h")).is_ok());
        assert!(check_order("--since", at("2h"), "--until", None).is_ok());
    }

    #[test]
    fn a_rate_is_written_in_short() {
        assert_eq!(parse_rate("100/20").unwrap(), r#"{"burst":20,"per_second":100.0}"#);
        assert_eq!(parse_rate("0.5 / 1").unwrap(), r#"{"burst":1,"per_second":0.5}"#);
        assert_eq!(parse_rate("none").unwrap(), "null");
        for text in ["", "fast", "100/", "/20", "100/2.5", "inf/1", "NaN", "100/20/3"] {
            assert!(parse_rate(text).unwrap_err().contains("such as 100/20"), "{text}");
        }
        let alone: crate::model::rate::Rate = serde_json::from_str(&parse_rate("500").unwrap()).unwrap();
        assert_eq!((alone.per_second, alone.burst), (500.0, 50), "without a burst, a tenth of a second's worth");
    }

    #[test]
    fn a_filter_asks_for_what_is_set_and_for_nothing_else() {
        let filter = DeliveryFilter {
            state: Some(DeliveryState::Dead),
            key: Some("a&b".into()),
            finished_since: Some("2026-11-15T08:00:00Z".parse().unwrap()),
            ..DeliveryFilter::default()
        };
        let mut url: Url = "http://a/v1".parse().unwrap();
        ask_filter(&mut url, &filter);
        let asked: std::collections::BTreeMap<_, _> = url.query_pairs().into_owned().collect();
        let expected = [("finished_since", "2026-11-15T08:00:00Z"), ("key", "a&b"), ("state", "dead")];
        assert_eq!(asked, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn filters_are_written_so_that_nothing_can_slip_through() {
        let mut url: Url = "http://a/v1".parse().unwrap();
        add_filters(&mut url, &[("key", Some("a&b=c d")), ("type", None)]);
        assert_eq!(url.as_str(), "http://a/v1?key=a%26b%3Dc+d");
    }
}
