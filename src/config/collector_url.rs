//! The URL of the collector that traces are exported to.

use std::fmt;
use std::str::FromStr;

use url::Url;

/// Path of the traces below a collector's URL.
const TRACES_PATH: &str = "v1/traces";

/// The collector of traces, or none, which is written as an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionalCollector {
    /// Traces are not exported.
    None,
    /// The URL that traces are sent to, with its path.
    Url(Url),
    /// Why the value cannot be used; reported as in
    /// [`OptionalMailServer::Wrong`](super::OptionalMailServer::Wrong).
    Wrong(String),
}

impl FromStr for OptionalCollector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::None);
        }
        let wrong = |why: &str| Ok(Self::Wrong(format!("{why}; write it like http://127.0.0.1:4318")));
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(mut url) = url else { return wrong("it is not an http or https URL") };
        if !url.username().is_empty() || url.password().is_some() {
            return wrong("it has a user or a password, which are not sent; have a collector of yours add them");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return wrong("it has a query or a fragment");
        }
        let path = url.path().trim_end_matches('/').to_owned();
        if !path.ends_with(TRACES_PATH) {
            url.set_path(&format!("{path}/{TRACES_PATH}"));
        }
        Ok(Self::Url(url))
    }
}

impl fmt::Display for OptionalCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None | Self::Wrong(_) => Ok(()),
            Self::Url(url) => f.write_str(url.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_go_below_the_url_of_a_collector() {
        for (text, shown) in [
            ("", ""),
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://otel.example.com/in/", "https://otel.example.com/in/v1/traces"),
            ("https://otel.example.com/v1/traces", "https://otel.example.com/v1/traces"),
        ] {
            let collector: OptionalCollector = text.parse().unwrap();
            assert_eq!(collector.to_string(), shown);
            assert_eq!(shown.parse(), Ok(collector), "what is shown can be given again");
        }
        for text in ["127.0.0.1:4318", "grpc://a:4317", "http://", "http://u:hush@a", "http://a/?hush", "http://a/#x"] {
            let Ok(OptionalCollector::Wrong(why)) = text.parse() else { panic!("{text} was taken") };
            assert!(why.contains("http://127.0.0.1:4318") && !why.contains("hush"), "{why}");
        }
    }
}
