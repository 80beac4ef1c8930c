//! A collector of traces that takes nothing but what OTLP's JSON allows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde::Deserialize;

use super::{ReceivedRequest, Receiver, Reply, eventually};

/// A span as it was exported.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    pub trace: String,
    pub id: String,
    pub parent: Option<String>,
    pub name: String,
    pub kind: u8,
    pub began: u64,
    pub ended: u64,
    pub attributes: BTreeMap<String, String>,
    /// Traces and spans that it links to.
    pub links: Vec<(String, String)>,
    pub is_failed: bool,
    /// Node that exported it.
    pub instance: String,
}

impl CollectedSpan {
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}

/// A collector on a free port of this machine.
pub struct Collector {
    receiver: Receiver,
    state: Arc<Mutex<Collected>>,
}

#[derive(Default)]
struct Collected {
    spans: Vec<CollectedSpan>,
    faults: Vec<String>,
}

impl Collector {
    pub async fn start() -> Self {
        let state = Arc::new(Mutex::new(Collected::default()));
        let shared = state.clone();
        let receiver = Receiver::answering(move |request| {
            let mut collected = shared.lock().expect("nothing panics while it is held");
            match read(request) {
                Ok(spans) => {
                    collected.spans.extend(spans);
                    Reply::Body(200, "{}".into())
                }
                Err(fault) => {
                    collected.faults.push(format!("{fault}: {}", String::from_utf8_lossy(&request.body)));
                    Reply::Status(400)
                }
            }
        })
        .await;
        Self { receiver, state }
    }

    pub fn address(&self) -> SocketAddr {
        self.receiver.address
    }

    /// Returns the URL that a gateway is told.
    pub fn url(&self) -> String {
        format!("http://{}", self.receiver.address)
    }

    /// Returns all spans until now; panics if something else was exported.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        let collected = self.state.lock().expect("nothing panics while it is held");
        assert!(collected.faults.is_empty(), "{:?}", collected.faults);
        collected.spans.clone()
    }

    /// Waits until there are this many spans of an event, and returns them in the order
    /// of their beginnings.
    pub async fn wait_for(&self, event: &str, count: usize) -> Vec<CollectedSpan> {
        eventually(&format!("{count} spans of {event}"), || async {
            let mut spans = self.spans();
            spans.retain(|span| span.attribute("posthaste.event.id") == event);
            spans.sort_by_key(|span| span.began);
            if spans.len() >= count { Ok(spans) } else { Err(format!("{spans:?}")) }
        })
        .await
    }

    /// Returns all bodies that were exported.
    pub fn exported_text(&self) -> String {
        self.receiver.seen().iter().map(|seen| String::from_utf8_lossy(&seen.body).into_owned()).collect()
    }
}

fn read(request: &ReceivedRequest) -> Result<Vec<CollectedSpan>, String> {
    let kind = request.header("content-type");
    if (request.method.as_str(), request.path.as_str(), kind) != ("POST", "/v1/traces", "application/json") {
        return Err(format!("{} {} as {kind}", request.method, request.path));
    }
    let exported: ExportedTraces = serde_json::from_slice(&request.body).map_err(|fault| fault.to_string())?;
    let mut spans = Vec::new();
    for group in exported.resource_spans {
        let resource = attributes(group.resource.attributes)?;
        let instance = resource.get("service.instance.id").ok_or("a resource without an instance")?;
        if resource.get("service.name").map(String::as_str) != Some("posthaste") {
            return Err("a resource without a name".into());
        }
        for scope in group.scope_spans {
            if scope.scope.name.is_empty() || scope.scope.version.is_empty() || scope.spans.is_empty() {
                return Err("a scope without a name, a version or spans".into());
            }
            for span in scope.spans {
                spans.push(span.checked(instance)?);
            }
        }
    }
    if spans.is_empty() { Err("no spans".into()) } else { Ok(spans) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExportedTraces {
    resource_spans: Vec<ExportedResourceSpans>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExportedResourceSpans {
    resource: ExportedResource,
    scope_spans: Vec<ExportedScopeSpans>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedResource {
    attributes: Vec<ExportedAttribute>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedScopeSpans {
    scope: ExportedScope,
    spans: Vec<ExportedSpan>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedScope {
    name: String,
    version: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExportedSpan {
    trace_id: String,
    span_id: String,
    parent_span_id: Option<String>,
    name: String,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<ExportedAttribute>,
    #[serde(default)]
    links: Vec<ExportedLink>,
    status: ExportedStatus,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExportedLink {
    trace_id: String,
    span_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedStatus {
    code: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedAttribute {
    key: String,
    value: ExportedValue,
}

/// One value: a text, or a number as a text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
enum ExportedValue {
    StringValue(String),
    IntValue(String),
}

impl ExportedSpan {
    fn checked(self, instance: &str) -> Result<CollectedSpan, String> {
        check_id(&self.trace_id, 32)?;
        check_id(&self.span_id, 16)?;
        self.parent_span_id.iter().try_for_each(|id| check_id(id, 16))?;
        for link in &self.links {
            check_id(&link.trace_id, 32)?;
            check_id(&link.span_id, 16)?;
        }
        let (began, ended) = (time(&self.start_time_unix_nano)?, time(&self.end_time_unix_nano)?);
        if ended < began || self.name.is_empty() || !(1..=5).contains(&self.kind) || self.status.code > 2 {
            return Err(format!("span {:?} of kind {} from {began} to {ended}", self.name, self.kind));
        }
        Ok(CollectedSpan {
            trace: self.trace_id,
            id: self.span_id,
            parent: self.parent_span_id,
            name: self.name,
            kind: self.kind,
            began,
            ended,
            attributes: attributes(self.attributes)?,
            links: self.links.into_iter().map(|link| (link.trace_id, link.span_id)).collect(),
            is_failed: self.status.code == 2,
            instance: instance.to_owned(),
        })
    }
}

fn check_id(id: &str, digits: usize) -> Result<(), String> {
    let is_hex = id.len() == digits && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex && id.bytes().any(|byte| byte != b'0') { Ok(()) } else { Err(format!("{id:?} is no id")) }
}

/// Reads a time, which lies in this century.
fn time(text: &str) -> Result<u64, String> {
    let nanos = text.parse().map_err(|_| format!("{text:?} is no time"))?;
    let century = 946_684_800_000_000_000..4_102_444_800_000_000_000;
    if century.contains(&nanos) { Ok(nanos) } else { Err(format!("{text} is in another century")) }
}

fn attributes(given: Vec<ExportedAttribute>) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for ExportedAttribute { key, value } in given {
        let value = match value {
            ExportedValue::StringValue(text) => text,
            ExportedValue::IntValue(number) => {
                number.parse::<i64>().map_err(|_| format!("{key} is {number:?}"))?;
                number
            }
        };
        if key.is_empty() || all.insert(key.clone(), value).is_some() {
            return Err(format!("attribute {key:?} is there twice, or has no name"));
        }
    }
    Ok(all)
}
