//! Writes received requests to a file, and reads them back.
//!
//! A recording has one JSON object per line. Invariant: what is read is byte for byte
//! what was received. A header's bytes are written as characters of the same number, and
//! a body that is no text as base64.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cli::failure::CommandFailure;

/// A request that the receiver got.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// Time of arrival.
    pub at: Timestamp,
    /// Method of the request.
    pub method: Method,
    /// Path and query of the URL.
    pub path: String,
    /// Headers of the request.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Bytes,
}

impl ReceivedRequest {
    /// Returns the id of the event.
    pub fn id(&self) -> Option<&str> {
        self.headers.get("webhook-id").and_then(|id| id.to_str().ok())
    }
}

/// A line of a recording.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedLine {
    at: Timestamp,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// A file that received requests are written to.
pub struct Recorder {
    file: Mutex<File>,
    name: String,
}

impl Recorder {
    /// Opens the file, which nobody else may read; what is in it stays.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().append(true).create(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("cannot record to {}", path.display()))?;
        Ok(Self { file: Mutex::new(file), name: path.display().to_string() })
    }

    /// Writes a request as one line. A failure is reported and changes no reply.
    pub fn record(&self, request: &ReceivedRequest) {
        let mut line = serde_json::to_vec(&RecordedLine::of(request)).expect("texts can be written as JSON");
        line.push(b'\n');
        if let Err(problem) = self.file.lock().write_all(&line) {
            let _ = writeln!(std::io::stderr(), "posthaste: a request was not recorded to {}: {problem}", self.name);
        }
    }
}

/// Reads the requests of a recording, in their order.
pub fn read_recording(path: &Path) -> anyhow::Result<Vec<ReceivedRequest>> {
    let file = File::open(path).with_context(|| format!("cannot read the recording {}", path.display()))?;
    let mut requests = Vec::new();
    for (n, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("cannot read the recording {}", path.display()))?;
        let request = serde_json::from_str::<RecordedLine>(&line).map_err(|problem| problem.to_string());
        requests.push(request.and_then(RecordedLine::into_request).map_err(|problem| {
            CommandFailure::usage(format!(
                "line {} of {} is no recorded request: {problem}; make a recording with `posthaste listen --record FILE`",
                n + 1,
                path.display()
            ))
        })?);
    }
    Ok(requests)
}

impl RecordedLine {
    fn of(request: &ReceivedRequest) -> Self {
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.as_bytes().iter().map(|byte| char::from(*byte)).collect())
        };
        let text = str::from_utf8(&request.body).ok().map(str::to_owned);
        Self {
            at: request.at,
            method: request.method.to_string(),
            path: request.path.clone(),
            headers: request.headers.iter().map(header).collect(),
            body_base64: text.is_none().then(|| STANDARD.encode(&request.body)),
            body: text,
        }
    }

    fn into_request(self) -> Result<ReceivedRequest, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
            let value = bytes.and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
            let pair = HeaderName::try_from(&name).ok().zip(value);
            let (name, value) = pair.ok_or_else(|| format!("its header {name:?} cannot be sent"))?;
            headers.append(name, value);
        }
        let body = match (self.body, self.body_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(encoded)) => STANDARD.decode(encoded).map_err(|_| "its body_base64 is no base64")?,
            _ => return Err("it has neither body nor body_base64, or both".to_owned()),
        };
        let method = self.method.parse().map_err(|_| format!("its method {:?} cannot be sent", self.method))?;
        Ok(ReceivedRequest { at: self.at, method, path: self.path, headers, body: body.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_byte_for_byte_what_was_received() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let bodies: [&'static [u8]; 3] = [b"{\"a\": 1,\n \"a\":2}", b"\xff\x00", b""];
        let recorder = Recorder::open(&path).unwrap();
        for body in bodies {
            let mut headers = HeaderMap::new();
            headers.append("x-a", HeaderValue::from_bytes(b"caf\xe9 \xc3\xa9").unwrap());
            headers.append("x-a", HeaderValue::from_static("2"));
            let (at, path) = (Timestamp::from_millisecond(1_700_000_000_123).unwrap(), "/a?b=c".to_owned());
            recorder.record(&ReceivedRequest { at, method: Method::POST, path, headers, body: body.into() });
        }
        let read = read_recording(&path).unwrap();
        assert_eq!(read.iter().map(|request| &request.body[..]).collect::<Vec<_>>(), bodies);
        let values: Vec<&[u8]> = read[1].headers.get_all("x-a").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(values, [&b"caf\xe9 \xc3\xa9"[..], b"2"]);
        assert_eq!((read[0].path.as_str(), read[0].at.as_millisecond()), ("/a?b=c", 1_700_000_000_123));
    }

    #[test]
    fn a_line_that_is_no_request_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        for line in
            ["", "{}", r#"{"at":"2026-11-15T08:00:00Z","method":"POST","path":"/","headers":[["a b","c"]],"body":""}"#]
        {
            std::fs::write(&path, format!("{line}\n")).unwrap();
            let said = read_recording(&path).unwrap_err().to_string();
            assert!(said.starts_with("line 1 of ") && said.contains("--record FILE"), "{line}: {said}");
        }
    }
}
