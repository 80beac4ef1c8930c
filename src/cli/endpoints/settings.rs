//! The arguments that an endpoint's settings and keys are given with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::cli::request::{JsonBody, parse_json, parse_rate};
use crate::model::delivery::BodyFormat;
use crate::model::endpoint::{ListensTo, OnDead, Ordering};
use crate::model::named_enum::{NamedEnum, parser};
use crate::model::preset::Preset;
use crate::model::signing::{SignatureProfile, Signing};
use crate::model::span::Span;
use crate::model::status_rules::StatusTable;
use crate::model::tls::TlsVersion;

/// What is signed with, where it is not to be made. Read from files, since
/// others can see the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KeyArgs {
    /// The file with a secret to sign with, whsec_ and 24 to 64 bytes in base64; one is made when left out.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The file with an Ed25519 key to sign with, whsk_ and 64 bytes in base64; one is made when left out.
    #[arg(long, value_name = "FILE")]
    private_key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// Adds the keys that were given to a body.
    pub fn add_to(&self, body: JsonBody) -> anyhow::Result<JsonBody> {
        let (secret, key) = (read_file(self.secret_file.as_deref())?, read_file(self.private_key_file.as_deref())?);
        Ok(body.field("secret", secret.as_ref()).field("private_key", key.as_ref()))
    }
}

/// The text of a file, if one is named.
fn read_file(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Some(text.trim().to_owned()))
}

/// How its connections are encrypted, where that is special. Certificates and
/// keys are read from files.
#[derive(Debug, Clone, Default, clap::Args)]
struct TlsArgs {
    /// The file with the authorities that may vouch for the receiver, in PEM; none for those this machine trusts.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// The file with the certificate to show to the receiver, in PEM; none for none.
    #[arg(long, value_name = "FILE")]
    tls_client_certificate: Option<PathBuf>,
    /// The file with the private key that belongs to it, in PEM; none for none.
    #[arg(long, value_name = "FILE")]
    tls_client_key: Option<PathBuf>,
    /// The oldest version of TLS that is allowed.
    #[arg(long, value_parser = parser::<TlsVersion>())]
    tls_min_version: Option<TlsVersion>,
}

impl TlsArgs {
    /// As a patch, if anything was given: what is null is taken away.
    fn as_patch(&self) -> anyhow::Result<Option<Value>> {
        let mut fields = serde_json::Map::new();
        for (name, file) in [
            ("ca", &self.tls_ca),
            ("client_certificate", &self.tls_client_certificate),
            ("client_key", &self.tls_client_key),
        ] {
            let Some(file) = file else { continue };
            let text = read_file(Some(file.as_path()).filter(|file| *file != Path::new("none")))?;
            fields.insert(name.to_owned(), text.into());
        }
        if let Some(version) = self.tls_min_version {
            fields.insert("min_version".to_owned(), version.as_str().into());
        }
        Ok((!fields.is_empty()).then_some(Value::Object(fields)))
    }
}

/// What an endpoint's owner decides, as far as it was given.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct EndpointSettingsArgs {
    /// A pattern of event types it wants, such as invoice.*; every type when left out.
    #[arg(long = "event-type", value_name = "PATTERN", value_delimiter = ',')]
    event_types: Vec<String>,
    /// Which events it gets: those of producers, or the operational events about its own tenant.
    #[arg(long, value_parser = parser::<ListensTo>())]
    listens_to: Option<ListensTo>,
    /// Settings that follow the tenant's defaults: retry, status_rules, max_in_flight, timeout; none for none.
    #[arg(long, value_name = "SETTING", value_delimiter = ',')]
    inherits: Vec<String>,
    /// What people call it.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What is delivered in order.
    #[arg(long, value_parser = parser::<Ordering>())]
    ordering: Option<Ordering>,
    /// What a lane does behind a dead letter.
    #[arg(long, value_parser = parser::<OnDead>())]
    on_dead: Option<OnDead>,
    /// What the body looks like.
    #[arg(long, value_parser = parser::<BodyFormat>())]
    format: Option<BodyFormat>,
    /// Send events thin whose data is larger than this, such as 256KiB; none for none.
    #[arg(long, value_name = "SIZE")]
    thin_above: Option<String>,
    /// What signs webhook-signature: hmac, or ed25519 for both.
    #[arg(long, value_parser = parser::<Signing>())]
    signing: Option<Signing>,
    /// A further way to sign, besides the standard one.
    #[arg(long = "signature", value_name = "PROFILE", value_delimiter = ',',
          value_parser = parser::<SignatureProfile>())]
    signatures: Vec<SignatureProfile>,
    /// How many requests may be open at once, 1 to 1,000.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// How often it may be called: per second and at once, such as 500/50; none for the default.
    #[arg(long, value_name = "N/BURST", value_parser = parse_rate)]
    rate: Option<String>,
    /// Mail address to notify when it fails for long; none for nobody.
    #[arg(long, value_name = "ADDRESS")]
    owner_email: Option<String>,
    /// When its breaker opens: off, on, or JSON such as '{"consecutive_failures":5,"cooldown":"30s"}'.
    #[arg(long, value_name = "on|off|JSON", value_parser = parse_breaker)]
    breaker: Option<String>,
    /// A header to send along, such as X-Team=billing.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// Metadata, such as team=billing.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_metadata)]
    metadata: Vec<(String, String)>,
    /// The retry policy: a preset (standard, quick, hourly, stepped, patient, long), or JSON such as '{"schedule":["30s","2m"],"max_attempts":5}'.
    #[arg(long, value_name = "PRESET|JSON", value_parser = parse_retry)]
    retry: Option<String>,
    /// What answers mean here: a table (default, strict, lenient), or JSON such as '{"404":"refuse","5xx":"retry"}'.
    #[arg(long, value_name = "TABLE|JSON", value_parser = status_rules)]
    status_rules: Option<String>,
    /// Rules on the data, such as '{"path":"/amount","gt":100}'; null for none.
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    filter: Option<String>,
    /// The deadline of an attempt, such as 10s; one below 5s is also the deadline for connecting.
    #[arg(long, value_name = "SPAN")]
    timeout: Option<Span>,
    /// The deadline for connecting, such as 2s.
    #[arg(long, value_name = "SPAN")]
    connect_timeout: Option<Span>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// A policy or filter takes the place of the one before it; left to a merge
/// patch, fields of the old one that the new one does not have would stay.
const RETRY_FIELDS: &[&str] =
    &["preset", "backoff", "schedule", "jitter", "max_attempts", "max_age", "retry_after_max"];
const FILTER_FIELDS: &[&str] = &["all", "any", "not", "path", "equals", "in", "exists", "gt", "lt", "prefix"];

fn replace_whole(json: &str, fields: &[&str]) -> String {
    let Ok(Value::Object(mut object)) = serde_json::from_str(json) else { return json.to_owned() };
    for field in fields {
        object.entry(*field).or_insert(Value::Null);
    }
    Value::Object(object).to_string()
}

impl EndpointSettingsArgs {
    /// Returns these settings in a form in which a merge patch replaces whole
    /// objects.
    pub fn replacing(&self) -> Self {
        Self {
            retry: self.retry.as_deref().map(|json| replace_whole(json, RETRY_FIELDS)),
            filter: self.filter.as_deref().map(|json| replace_whole(json, FILTER_FIELDS)),
            ..self.clone()
        }
    }

    /// Whether rules for answers were given.
    pub fn has_status_rules(&self) -> bool {
        self.status_rules.is_some()
    }

    /// Returns these settings in a form in which the rules for answers replace
    /// all known ones.
    pub fn replacing_status_rules(&self, known: &Value) -> Self {
        let codes: Vec<&str> = known.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str)).collect();
        Self { status_rules: self.status_rules.as_deref().map(|json| replace_whole(json, &codes)), ..self.clone() }
    }

    /// Whether deliveries are signed with Ed25519, so that there is a public key
    /// to show.
    pub fn signs_with_ed25519(&self) -> bool {
        self.signing == Some(Signing::Ed25519)
    }

    /// Returns these settings for a new endpoint: it has the defaults already, so
    /// a setting that would go back to its default is left out.
    pub fn for_new_endpoint(&self) -> Self {
        Self { rate: self.rate.clone().filter(|json| json != "null"), ..self.clone() }
    }

    /// Returns the deadlines that were given. If the total is shorter than the
    /// default for connecting, it limits connecting as well.
    fn deadlines(&self) -> Option<Value> {
        let connect = self.connect_timeout.or(self.timeout.filter(|total| *total < Span::secs(5)));
        let given = [("connect", connect), ("total", self.timeout)];
        let given: BTreeMap<&str, Span> = given.into_iter().filter_map(|(name, span)| Some((name, span?))).collect();
        (!given.is_empty()).then(|| serde_json::json!(given))
    }

    /// Returns the names of inherited settings that were given; the word `none`
    /// stands for an empty list.
    fn inherited_fields(&self) -> Option<Vec<&str>> {
        let names: Vec<&str> = self.inherits.iter().map(String::as_str).collect();
        match names[..] {
            [] => None,
            ["none"] => Some(Vec::new()),
            _ => Some(names),
        }
    }

    /// Adds the settings that were given to a body.
    pub fn add_to(&self, body: JsonBody) -> anyhow::Result<JsonBody> {
        let (headers, metadata) = (object_of_pairs(&self.headers), object_of_pairs(&self.metadata));
        let body = body
            .field("event_types", Some(&self.event_types).filter(|types| !types.is_empty()))
            .field("listens_to", self.listens_to.as_ref())
            .field("inherits", self.inherited_fields().as_ref())
            .field("description", self.description.as_ref())
            .field("ordering", self.ordering.as_ref())
            .field("on_dead", self.on_dead.as_ref())
            .field("format", self.format.as_ref())
            .field("thin_above", self.thin_above.as_deref().map(none_is_null).as_ref())
            .field("signing", self.signing.as_ref())
            .field("signatures", Some(&self.signatures).filter(|profiles| !profiles.is_empty()))
            .field("max_in_flight", self.max_in_flight.as_ref())
            .json_field("rate", self.rate.as_deref().map(str::as_bytes))
            .field("owner_email", self.owner_email.as_deref().map(none_is_null).as_ref())
            .json_field("breaker", self.breaker.as_deref().map(str::as_bytes))
            .field("headers", Some(&headers).filter(|headers| !headers.is_empty()))
            .field("metadata", Some(&metadata).filter(|metadata| !metadata.is_empty()))
            .json_field("retry", self.retry.as_deref().map(str::as_bytes))
            .json_field("status_rules", self.status_rules.as_deref().map(str::as_bytes))
            .json_field("filter", self.filter.as_deref().map(str::as_bytes))
            .field("timeout", self.deadlines().as_ref())
            .field("tls", self.tls.as_patch()?.as_ref());
        Ok(body)
    }
}

/// Turns the word `none` into JSON's null.
fn none_is_null(text: &str) -> Option<&str> {
    Some(text).filter(|text| *text != "none")
}

/// Reads a breaker: `on`, `off`, or JSON.
fn parse_breaker(text: &str) -> Result<String, String> {
    match text {
        "off" => Ok(r#"{"enabled":false}"#.to_owned()),
        "on" => Ok(r#"{"enabled":true}"#.to_owned()),
        text if text.trim_start().starts_with('{') => parse_json(text),
        _ => Err("write off, on, or JSON in braces such as '{\"consecutive_failures\":5}'".to_owned()),
    }
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    parse_pair(text, "X-Team=billing")
}

fn parse_metadata(text: &str) -> Result<(String, String), String> {
    parse_pair(text, "team=billing")
}

fn parse_pair(text: &str, example: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.trim().to_owned())),
        _ => Err(format!("write a name, = and a value, such as {example}")),
    }
}

fn object_of_pairs(pairs: &[(String, String)]) -> BTreeMap<&str, &str> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Reads a retry policy: the name of a preset, or JSON.
fn parse_retry(text: &str) -> Result<String, String> {
    let names: Vec<&str> = Preset::ALL.iter().map(|preset| preset.as_str()).collect();
    parse_name_or_json(text, &names)
}

/// Reads rules for answers: the name of a table, or JSON.
fn status_rules(text: &str) -> Result<String, String> {
    let names: Vec<&str> = StatusTable::ALL.iter().map(|table| table.as_str()).collect();
    parse_name_or_json(text, &names)
}

fn parse_name_or_json(text: &str, names: &[&str]) -> Result<String, String> {
    if names.contains(&text) {
        return Ok(serde_json::json!({ "preset": text }).to_string());
    }
    if text.trim_start().starts_with('{') {
        return parse_json(text);
    }
    Err(format!("there is none of that name; write one of {}, or JSON in braces", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(settings: &EndpointSettingsArgs) -> String {
        String::from_utf8(settings.add_to(JsonBody::default()).unwrap().finish()).unwrap()
    }

    #[test]
    fn a_header_is_split_at_its_first_equals_sign() {
        assert_eq!(parse_header("X-Team=billing"), Ok(("X-Team".into(), "billing".into())));
        assert_eq!(parse_header("Authorization=Basic YTpi=="), Ok(("Authorization".into(), "Basic YTpi==".into())));
        assert_eq!(parse_header("X-Empty="), Ok(("X-Empty".into(), String::new())));
        for text in ["", "X-Team", "=billing", " =x"] {
            assert!(parse_header(text).unwrap_err().contains("such as X-Team=billing"), "{text}");
        }
    }

    #[test]
    fn only_what_was_given_is_sent() {
        assert_eq!(sent(&EndpointSettingsArgs::default()), "{}");
        let settings = EndpointSettingsArgs {
            event_types: vec!["a.*".into()],
            headers: vec![("X-A".into(), "1".into())],
            filter: Some("null".into()),
            ..EndpointSettingsArgs::default()
        };
        assert_eq!(sent(&settings), r#"{"event_types":["a.*"],"headers":{"X-A":"1"},"filter":null}"#);
    }

    #[test]
    fn a_breaker_has_words_for_the_usual_and_nobody_is_nobody() {
        let settings = EndpointSettingsArgs {
            rate: Some(parse_rate("100/20").unwrap()),
            owner_email: Some("none".into()),
            breaker: Some(parse_breaker("off").unwrap()),
            ..EndpointSettingsArgs::default()
        };
        let expected = r#"{"rate":{"burst":20,"per_second":100.0},"owner_email":null,"breaker":{"enabled":false}}"#;
        assert_eq!(sent(&settings), expected);
        let usual = EndpointSettingsArgs { rate: Some(parse_rate("none").unwrap()), ..EndpointSettingsArgs::default() };
        assert_eq!((sent(&usual), sent(&usual.for_new_endpoint())), (r#"{"rate":null}"#.into(), "{}".into()));
        assert!(parse_breaker("never").unwrap_err().contains("in braces"));
    }

    #[test]
    fn a_short_timeout_shortens_connecting_too() {
        let with = |timeout| EndpointSettingsArgs { timeout: Some(timeout), ..EndpointSettingsArgs::default() };
        assert_eq!(sent(&with(Span::secs(10))), r#"{"timeout":{"total":"10s"}}"#);
        assert_eq!(sent(&with(Span::secs(2))), r#"{"timeout":{"connect":"2s","total":"2s"}}"#);
        let apart = EndpointSettingsArgs { connect_timeout: Some(Span::secs(1)), ..with(Span::secs(2)) };
        assert_eq!(sent(&apart), r#"{"timeout":{"connect":"1s","total":"2s"}}"#);
        let alone = EndpointSettingsArgs { timeout: None, ..apart };
        assert_eq!(sent(&alone), r#"{"timeout":{"connect":"1s"}}"#);
    }

    #[test]
    fn certificates_are_read_from_files_and_taken_away_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, "-----BEGIN\n").unwrap();
        let (tls_client_key, tls_min_version) = (Some("none".into()), Some(TlsVersion::V13));
        let tls = TlsArgs { tls_ca: Some(file), tls_client_key, tls_min_version, ..TlsArgs::default() };
        let body = sent(&EndpointSettingsArgs { tls, ..EndpointSettingsArgs::default() });
        assert_eq!(body, r#"{"tls":{"ca":"-----BEGIN","client_key":null,"min_version":"1.3"}}"#);
        let missing = TlsArgs { tls_ca: Some(folder.path().join("gone.pem")), ..TlsArgs::default() };
        assert!(missing.as_patch().unwrap_err().to_string().contains("gone.pem"));
    }
}
