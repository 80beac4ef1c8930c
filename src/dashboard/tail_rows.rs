//! Turns the stream of attempts that the API sends into rows that the live page's
//! script adds to its table.

use serde::Deserialize;
use serde_json::{Value, json};

use super::api_caller::segment;
use super::shown_delivery::state_mark;
use super::words;
use crate::model::delivery::DeliveryState;
use crate::model::named_enum::NamedEnum;
use crate::model::sign_in::Site;

/// Longest event of the API, in bytes; what is longer is no row.
const EVENT_BYTES_MAX: usize = 64 * 1024;

/// An attempt that was settled, as the API tells it.
#[derive(Debug, Deserialize)]
struct TailedAttempt {
    at: jiff::Timestamp,
    tenant: String,
    endpoint: String,
    delivery: String,
    event_type: String,
    attempt: u32,
    status: Option<u16>,
    error: Option<String>,
    verdict: String,
    duration_ms: f64,
    state: DeliveryState,
    cause: Option<String>,
}

/// The node whose attempts are streamed.
#[derive(Debug, Deserialize)]
struct TailedNode {
    node: Option<String>,
    nodes: usize,
}

/// Reads server-sent events as they come, in parts of any size, and writes others.
pub struct PageTailRows {
    site: Site,
    unread: Vec<u8>,
}

impl PageTailRows {
    /// Begins a stream for the live page of a site.
    pub fn of(site: Site) -> Self {
        Self { site, unread: Vec::new() }
    }

    /// Takes a part of the API's stream; returns what the page is sent.
    pub fn translate(&mut self, part: &[u8]) -> String {
        self.unread.extend_from_slice(part);
        let mut written = String::new();
        while let Some(end) = self.unread.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.unread.drain(..end + 2).collect();
            written.push_str(&self.translate_event(&String::from_utf8_lossy(&event)));
        }
        if self.unread.len() > EVENT_BYTES_MAX {
            self.unread.clear();
        }
        written
    }

    fn translate_event(&self, event: &str) -> String {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
        let data = field("data:").unwrap_or_default();
        match field("event:") {
            Some("attempt") => match serde_json::from_str::<TailedAttempt>(data) {
                Ok(attempt) => format!("event: row\ndata: {}\n\n", row(self.site, &attempt)),
                Err(_) => String::new(),
            },
            Some("skipped") => {
                let skipped = serde_json::from_str::<Value>(data).ok().and_then(|data| data["skipped"].as_u64());
                skipped.map(|skipped| format!("event: skipped\ndata: {skipped}\n\n")).unwrap_or_default()
            }
            Some("node") => match serde_json::from_str::<TailedNode>(data) {
                Ok(told) => format!("event: note\ndata: {}\n\n", json!(note(self.site, &told))),
                Err(_) => String::new(),
            },
            // A comment keeps the connection open.
            None => ": still here\n\n".to_owned(),
            Some(_) => String::new(),
        }
    }
}

/// Says whose attempts are shown, and whose are missing. Customers do not learn what the
/// nodes are called.
fn note(site: Site, told: &TailedNode) -> String {
    let node = told.node.as_deref().unwrap_or("this node");
    match (site, told.nodes.saturating_sub(1)) {
        (Site::Portal, 0) => "Connected.".to_owned(),
        (Site::Portal, _) => "Connected. Some attempts are missing here: several machines send, and this page shows \
                              what one of them does. The list of deliveries has all."
            .to_owned(),
        (Site::Operator, 0) => format!("Connected to {node}."),
        (Site::Operator, 1) => format!("Connected to {node}. The attempts of the other node are not shown here."),
        (Site::Operator, others) => {
            format!("Connected to {node}. The attempts of the {others} other nodes are not shown here.")
        }
    }
}

/// Returns a row of the table. Addresses are relative to the live page.
fn row(site: Site, attempt: &TailedAttempt) -> Value {
    let address = |list: &str, id: &str| match site {
        Site::Operator => format!("{list}/{}/{}", segment(&attempt.tenant), segment(id)),
        Site::Portal => format!("{list}/{}", segment(id)),
    };
    let answer = attempt.status.map(|status| status.to_string()).or_else(|| attempt.error.clone());
    let state = match &attempt.cause {
        Some(cause) => format!("{} ({cause})", attempt.state.as_str()),
        None => attempt.state.as_str().to_owned(),
    };
    // What waits after an attempt waits for another one.
    let mark = if attempt.state == DeliveryState::Waiting { "mark-watch" } else { state_mark(attempt.state) };
    let mut cells = vec![
        ("Time", attempt.at.strftime("%H:%M:%S%.3f").to_string()),
        ("Delivery", words::short_id(&attempt.delivery)),
        ("Event type", words::short_type(&attempt.event_type)),
        ("Endpoint", words::short_id(&attempt.endpoint)),
    ];
    if site == Site::Operator {
        cells.push(("Tenant", attempt.tenant.clone()));
    }
    cells.extend([
        ("Attempt", attempt.attempt.to_string()),
        ("Answer", answer.unwrap_or_else(|| "no answer".to_owned()).replace('_', " ")),
        ("Verdict", attempt.verdict.clone()),
        ("State", state),
        // Ten characters would be cut off.
        ("Took", words::span(attempt.duration_ms / 1_000.0).replace("under ", "<")),
    ]);
    let links = json!({
        "Delivery": address("deliveries", &attempt.delivery),
        "Endpoint": address("endpoints", &attempt.endpoint),
    });
    json!({ "cells": cells, "links": links, "marks": { "State": mark } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: &str = "event: attempt\ndata: {\"at\":\"2026-11-15T10:00:00.5Z\",\"tenant\":\"a b\",\"endpoint\":\"ep_1\",\
        \"delivery\":\"dlv_1\",\"event\":\"e\",\"event_type\":\"order.paid\",\"attempt\":2,\"status\":null,\"error\":\"timeout\",\
        \"verdict\":\"retry\",\"duration_ms\":12.0,\"state\":\"waiting\",\"cause\":null}\n\n";

    #[test]
    fn an_attempt_becomes_a_row_however_the_stream_is_cut() {
        for size in [1, 7, ATTEMPT.len()] {
            let mut rows = PageTailRows::of(Site::Operator);
            let written: String = ATTEMPT.as_bytes().chunks(size).map(|part| rows.translate(part)).collect();
            let data = written.strip_prefix("event: row\ndata: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
            let row: Value = serde_json::from_str(data).unwrap();
            assert_eq!(row["cells"][0], json!(["Time", "10:00:00.500"]));
            assert_eq!(row["cells"][6], json!(["Answer", "timeout"]));
            assert_eq!(row["links"]["Delivery"], "deliveries/a%20b/dlv_1");
            assert_eq!((&row["cells"][8][1], &row["marks"]["State"]), (&json!("waiting"), &json!("mark-watch")));
        }
        let dead = ATTEMPT.replace("\"waiting\",\"cause\":null", "\"dead\",\"cause\":\"refused\"");
        let written = PageTailRows::of(Site::Operator).translate(dead.as_bytes());
        assert!(written.contains("dead (refused)") && written.contains("\"State\":\"mark-bad\""), "{written}");
    }

    #[test]
    fn the_portal_is_told_of_no_tenant() {
        let written = PageTailRows::of(Site::Portal).translate(ATTEMPT.as_bytes());
        assert!(!written.contains("a b") && !written.contains("Tenant"), "{written}");
        assert!(written.contains("\"deliveries/dlv_1\""), "{written}");
    }

    #[test]
    fn what_was_skipped_is_told_and_the_rest_is_left_out() {
        let mut rows = PageTailRows::of(Site::Operator);
        assert_eq!(rows.translate(b"event: skipped\ndata: {\"skipped\":312}\n\n"), "event: skipped\ndata: 312\n\n");
        assert_eq!(rows.translate(b": still here\n\n"), ": still here\n\n");
        assert_eq!(rows.translate(b"event: other\ndata: {}\n\n"), "");
        assert_eq!(rows.translate(b"event: attempt\ndata: nonsense\n\n"), "");
    }

    #[test]
    fn a_page_says_whose_attempts_it_lacks_and_to_customers_no_names() {
        let told = |site, nodes: usize| {
            let event = format!("event: node\ndata: {{\"node\":\"n1\",\"nodes\":{nodes}}}\n\n");
            PageTailRows::of(site).translate(event.as_bytes())
        };
        assert_eq!(told(Site::Operator, 1), "event: note\ndata: \"Connected to n1.\"\n\n");
        let many = told(Site::Operator, 3);
        assert!(many.contains("Connected to n1. The attempts of the 2 other nodes are not shown"), "{many}");
        assert_eq!(told(Site::Portal, 1), "event: note\ndata: \"Connected.\"\n\n");
        let many = told(Site::Portal, 3);
        assert!(many.contains("Some attempts are missing") && !many.contains("n1"), "{many}");
    }
}
