//! Defines the types of setting values: how each is parsed and displayed.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use super::collector_url::OptionalCollector;
use super::dashboard_place::DashboardPlace;
use super::outbox_list::OutboxList;
use crate::model::database::DatabaseUrl;
use crate::model::egress::{DnsResolver, ProxyUrl, read_network};
use crate::model::logged_attempts::LoggedAttempts;
use crate::model::mail::MailServer;
use crate::model::named_enum::NamedEnum;
use crate::model::page_address::{FrameOrigin, PortalUrl};
use crate::model::slo_target::SloTarget;
use crate::model::source_address::SourceAddresses;
use crate::model::span::Span;
use crate::model::trace::TraceSampling;

/// An IP address and port to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

impl FromStr for ListenAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refusal =
            || format!("{text:?} is not an address with a port; write it like 127.0.0.1:8400 or 0.0.0.0:8400");
        text.parse().map(Self).map_err(|_| refusal())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address to listen on, or none, which is written as an empty text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalListenAddress(pub Option<ListenAddress>);

impl FromStr for OptionalListenAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Some(text).filter(|text| !text.is_empty()).map(str::parse).transpose().map(Self)
    }
}

impl fmt::Display for OptionalListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |address| address.fmt(f))
    }
}

/// A path to a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryPath(pub PathBuf);

/// A path to a file, or none, which is written as an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionalFilePath(pub Option<PathBuf>);

/// The mail server, or none, which is written as an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionalMailServer {
    /// No mail server is set, so no mails are sent.
    None,
    /// The server that mails are sent through.
    Server(MailServer),
    /// Why the value cannot be used. [`Settings::check`](super::Settings::check)
    /// reports it instead of the parser, because clap prints the whole text that
    /// its parser refuses, and there may be a password in it.
    Wrong(String),
}

/// The database, or none, which is written as an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionalDatabase {
    /// No database is set; everything is in the data directory.
    None,
    /// The database that holds everything.
    Url(DatabaseUrl),
    /// Why the value cannot be used; reported as in [`OptionalMailServer::Wrong`].
    Wrong(String),
}

/// The proxy to receivers, or none, which is written as an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionalProxy {
    /// Receivers are called directly.
    None,
    /// The proxy that receivers are called through.
    Url(ProxyUrl),
    /// Why the value cannot be used; reported as in [`OptionalMailServer::Wrong`].
    Wrong(String),
}

/// A mail address, with a display name if one is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox(pub lettre::message::Mailbox);

/// A list of networks, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkList(pub Vec<IpNet>);

/// Origins, written with commas between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginList(pub Vec<FrameOrigin>);

/// A list of ports, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortList(pub Vec<u16>);

/// A boolean, written as true, yes, on or 1, or as false, no, off or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct YesNo(pub bool);

/// The URL at which receivers reach the API, without a slash at its end, or
/// none, which is written as an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionalPublicUrl(pub Option<String>);

/// The address of the portal on a host of its own, or none, which is written as an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionalPortalUrl(pub Option<PortalUrl>);

/// A retention time, or none, which means that `--retention` applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalRetention(pub Option<Span>);

/// A whole number without a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub usize);

/// A filter for log lines, in the syntax of `tracing_subscriber`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(pub String);

/// Parts of the program that a log filter can name.
const PARTS: &[&str] =
    &["api", "app", "cli", "clock", "config", "dashboard", "lifecycle", "metrics", "model", "store", "telemetry"];

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum LogFormat {
    /// Human-readable on a terminal, JSON otherwise.
    Auto,
    /// Human-readable text lines.
    Human,
    /// One JSON object per line.
    Json,
}

impl FromStr for DirectoryPath {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("the path is empty; name a directory".into()) } else { Ok(Self(text.into())) }
    }
}

impl fmt::Display for DirectoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl FromStr for OptionalFilePath {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(Some(text).filter(|text| !text.is_empty()).map(PathBuf::from)))
    }
}

impl fmt::Display for OptionalFilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_deref().unwrap_or(Path::new("")).display().fmt(f)
    }
}

impl FromStr for OptionalMailServer {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text.is_empty() { Self::None } else { text.parse().map_or_else(Self::Wrong, Self::Server) })
    }
}

impl fmt::Display for OptionalMailServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None | Self::Wrong(_) => Ok(()),
            Self::Server(server) => server.fmt(f),
        }
    }
}

impl FromStr for OptionalDatabase {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text.is_empty() { Self::None } else { text.parse().map_or_else(Self::Wrong, Self::Url) })
    }
}

impl fmt::Display for OptionalDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None | Self::Wrong(_) => Ok(()),
            Self::Url(url) => url.fmt(f),
        }
    }
}

impl FromStr for OptionalProxy {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text.is_empty() { Self::None } else { text.parse().map_or_else(Self::Wrong, Self::Url) })
    }
}

impl fmt::Display for OptionalProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None | Self::Wrong(_) => Ok(()),
            Self::Url(url) => url.fmt(f),
        }
    }
}

impl FromStr for Mailbox {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refusal = || format!("{text:?} is not a mailbox; write it like Posthaste <posthaste@example.com>");
        if text.chars().any(char::is_control) {
            return Err(refusal());
        }
        text.parse().map(Self).map_err(|_| refusal())
    }
}

impl fmt::Display for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the default sender of mails.
pub(super) fn default_sender() -> lettre::message::Mailbox {
    let address = lettre::Address::new("posthaste", "localhost").expect("posthaste@localhost is a mail address");
    lettre::message::Mailbox::new(Some("Posthaste".into()), address)
}

impl FromStr for NetworkList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(read_network).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for NetworkList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(IpNet::to_string).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for OriginList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for OriginList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = self.0.iter().map(FrameOrigin::as_str).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for PortList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |part: &str| {
            let port = part.parse().ok().filter(|port| *port > 0);
            port.ok_or_else(|| format!("{part:?} is not a port; use 1 to 65535, with commas between them"))
        };
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for PortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u16::to_string).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for YesNo {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "true" | "yes" | "on" | "1" => Ok(Self(true)),
            "false" | "no" | "off" | "0" | "" => Ok(Self(false)),
            other => Err(format!("{other:?} is neither true nor false")),
        }
    }
}

impl fmt::Display for YesNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OptionalPublicUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let refusal = || format!("{text:?} is not a public URL; write it like https://hooks.example.com");
        let url: url::Url = text.parse().map_err(|_| refusal())?;
        let is_plain = matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && !text.chars().any(|c| c.is_control() || c.is_whitespace());
        if !is_plain {
            return Err(refusal());
        }
        Ok(Self(Some(url.as_str().trim_end_matches('/').to_owned())))
    }
}

impl fmt::Display for OptionalPublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or_default())
    }
}

impl FromStr for OptionalPortalUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(Self(None)) } else { text.parse().map(|url| Self(Some(url))) }
    }
}

impl fmt::Display for OptionalPortalUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("", PortalUrl::as_str))
    }
}

impl FromStr for OptionalRetention {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" | "retention" => Ok(Self(None)),
            text => text.parse().map(|span| Self(Some(span))).map_err(|problem| format!("{problem}")),
        }
    }
}

impl fmt::Display for OptionalRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(span) => span.fmt(f),
            None => f.write_str("retention"),
        }
    }
}

impl FromStr for Count {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("{text:?} is not a whole number"))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LogFilter {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self("info".into()));
        }
        let refusal = |why: &str| {
            format!(
                "{text:?} is not a log filter: {why}; write off, error, warn, info, debug or trace, \
                 or add to it for a part of posthaste, such as info,posthaste::lifecycle=debug"
            )
        };
        text.parse::<tracing_subscriber::EnvFilter>().map_err(|problem| refusal(&problem.to_string()))?;
        // The parser takes a word that is no level for a target, and nothing else would be logged.
        let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let is_level = |part: &str| part.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
        if let Some(word) = parts().find(|part| !part.contains(['=', '[']) && !is_level(part)) {
            return Err(refusal(&format!("{word:?} is not a level")));
        }
        let unknown = parts().find_map(|part| {
            let module = part.split(['=', '[']).next()?.strip_prefix("posthaste::")?.split("::").next()?;
            (!PARTS.contains(&module)).then_some(module)
        });
        if let Some(module) = unknown {
            return Err(refusal(&format!("posthaste has no part {module:?}; it has {}", PARTS.join(", "))));
        }
        if !parts().any(|part| is_level(part) || part.contains('[') || part.starts_with("posthaste")) {
            return Err(refusal("nothing of posthaste itself would be logged"));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LogFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let format = Self::ALL.iter().copied().find(|format| format.as_str() == text);
        format.ok_or_else(|| format!("{text:?} is not a log format; use auto, human or json"))
    }
}

/// Kinds of values that the settings file has, as its parser tells them.
pub const FILE_VALUE: &str = "a text, a whole number, true or false";

/// A value in the settings file: a text, a whole number, or a boolean.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, a whole number, true or false")]
enum FileValue {
    Bool(bool),
    Number(u64),
    Text(String),
}

macro_rules! deserialize_from_text {
    ($($name:ty),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = match FileValue::deserialize(deserializer)? {
                    FileValue::Bool(value) => value.to_string(),
                    FileValue::Number(number) => number.to_string(),
                    FileValue::Text(text) => text,
                };
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
deserialize_from_text!(
    ListenAddress,
    OptionalListenAddress,
    OptionalDatabase,
    OutboxList,
    DirectoryPath,
    OptionalFilePath,
    OptionalMailServer,
    Mailbox,
    NetworkList,
    OriginList,
    PortList,
    YesNo,
    DnsResolver,
    SourceAddresses,
    OptionalProxy,
    OptionalPublicUrl,
    OptionalPortalUrl,
    OptionalRetention,
    Count,
    DashboardPlace,
    LogFormat,
    LogFilter,
    LoggedAttempts,
    SloTarget,
    OptionalCollector,
    TraceSampling
);
