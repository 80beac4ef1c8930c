//! Hands rows of one tenant in, and finds out which of them are refused.
//!
//! Rows go in batches of which one refusal refuses all, so that no row passes
//! an earlier one of its key. A refused batch is handed in again without the
//! rows at fault and those behind them; then each row at fault goes alone, and
//! what is refused alone can never be accepted as it is. Where there is no room
//! for a batch, there may be for its first rows: it is halved until it fits.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;

use super::event_json::event_json;
use super::{EventRoute, EventSink, SinkResponse};
use crate::model::id::TenantId;
use crate::store::MissingResource;
use crate::store::outbox::claim::{OutboxRow, RefusedRow};

/// Most events of one batch.
const BATCH_ROWS_MAX: usize = 500;
/// Most bytes of one batch of several events; the API takes 8 MiB.
const BATCH_BYTES_MAX: usize = 4 * 1_024 * 1_024;
/// Longest reason that is stored with a refused row, in characters.
const REASON_MAX: usize = 500;

/// Codes of the API after which the same event is refused again. `not_found`
/// is the tenant, if the answer says so, `wrong_state` the tenant `_system`.
const FINAL_CODES: [&str; 8] = [
    "invalid_json",
    "unknown_field",
    "invalid_field",
    "id_conflict",
    "not_found",
    "payload_too_large",
    "fanout_limit",
    "wrong_state",
];
/// Codes that are about the tenant, and so about all its rows.
const UNUSABLE_TENANT: [&str; 2] = ["not_found", "wrong_state"];
/// Codes that stop the rows of one tenant for a while, and no others.
const TENANT_CODES: [&str; 4] = ["rate_limited", "backlog_full", "quota_full", "missing_right"];

/// Those of them that say that a tenant has no room for a request as it is; a
/// smaller one may have.
const NO_ROOM_CODES: [&str; 2] = ["backlog_full", "quota_full"];

/// What became of the rows of one tenant.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HandInResult {
    /// Rows that were accepted, now or before.
    pub accepted: Vec<i64>,
    /// Rows that can never be accepted as they are.
    pub refused: Vec<RefusedRow>,
    /// Why the other rows were not handed in, if they are to be later.
    pub pause: Option<Pause>,
}

/// A wait that the gateway asks for, or that its absence imposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Code of the answer, or `unreachable` if none came.
    pub code: String,
    /// Time that the gateway named.
    pub retry_after: Option<Duration>,
    /// Reason for people.
    pub reason: String,
    /// Whether it is about one tenant alone.
    pub is_of_tenant: bool,
}

/// A row with its event as JSON.
struct PreparedRow {
    id: i64,
    key: Option<String>,
    json: Vec<u8>,
}

/// What an answer means for the rows of its request.
enum HandInAnswer {
    /// All were accepted.
    Accepted,
    /// None was accepted; these items are at fault, if it is known which.
    Refused { code: String, reason: String, at_fault: HashSet<usize> },
    /// None was accepted, and all may be later.
    Later(Pause),
}

/// Hands in rows of one tenant, in order.
///
/// No request begins after the deadline: the rows that are left go another time.
pub async fn hand_in(
    sink: &dyn EventSink,
    install_id: &str,
    tenant: &str,
    rows: Vec<OutboxRow>,
    deadline: Instant,
) -> HandInResult {
    let mut result = HandInResult::default();
    let Ok(tenant) = tenant.parse::<TenantId>() else {
        let reason = shortened(format!("{tenant:?} is not the id of a tenant"));
        result.refused = rows.iter().map(|row| refused_row(row.id, "not_found", &reason)).collect();
        return result;
    };
    let mut blocked = HashSet::new();
    let mut requests = split(prepare(install_id, rows, &mut result, &mut blocked));
    while let Some(mut rows) = requests.pop_front() {
        if Instant::now() > deadline {
            break;
        }
        rows.retain(|row| row.key.as_ref().is_none_or(|key| !blocked.contains(key)));
        if rows.is_empty() {
            continue;
        }
        match submit(sink, &tenant, &rows).await {
            HandInAnswer::Accepted => result.accepted.extend(rows.iter().map(|row| row.id)),
            HandInAnswer::Later(pause) if rows.len() > 1 && NO_ROOM_CODES.contains(&pause.code.as_str()) => {
                hand_in_first(&mut requests, halved(rows));
            }
            HandInAnswer::Later(pause) => {
                result.pause = Some(pause);
                break;
            }
            HandInAnswer::Refused { code, reason, .. } if UNUSABLE_TENANT.contains(&code.as_str()) => {
                let rows = std::iter::once(rows).chain(requests.drain(..)).flatten();
                result.refused.extend(rows.map(|row| refused_row(row.id, &code, &shortened(reason.clone()))));
            }
            HandInAnswer::Refused { code, reason, .. } if rows.len() == 1 => {
                blocked.extend(rows[0].key.clone());
                result.refused.push(refused_row(rows[0].id, &code, &shortened(reason)));
            }
            HandInAnswer::Refused { code, at_fault, .. } => {
                hand_in_first(&mut requests, smaller(rows, &code, &at_fault));
            }
        }
    }
    result
}

/// Puts requests before all others, in their order.
fn hand_in_first(requests: &mut VecDeque<Vec<PreparedRow>>, first: Vec<Vec<PreparedRow>>) {
    for request in first.into_iter().rev() {
        requests.push_front(request);
    }
}

fn refused_row(id: i64, code: &str, reason: &str) -> RefusedRow {
    RefusedRow { id, code: code.to_owned(), reason: reason.to_owned() }
}

/// Writes the events of rows. A row that no gateway would accept blocks its key.
fn prepare(
    install_id: &str,
    rows: Vec<OutboxRow>,
    result: &mut HandInResult,
    blocked: &mut HashSet<String>,
) -> Vec<PreparedRow> {
    let mut prepared = Vec::with_capacity(rows.len());
    for row in rows {
        match event_json(install_id, &row) {
            Ok(json) => prepared.push(PreparedRow { id: row.id, key: row.key, json }),
            Err(refused) => {
                blocked.extend(row.key);
                result.refused.push(RefusedRow { reason: shortened(refused.reason), ..refused });
            }
        }
    }
    prepared
}

/// Splits rows into requests.
fn split(rows: Vec<PreparedRow>) -> VecDeque<Vec<PreparedRow>> {
    let mut requests: VecDeque<Vec<PreparedRow>> = VecDeque::new();
    let mut bytes = 0;
    for row in rows {
        bytes += row.json.len() + 1;
        match requests.back_mut() {
            Some(last) if last.len() < BATCH_ROWS_MAX && bytes < BATCH_BYTES_MAX => last.push(row),
            _ => {
                bytes = row.json.len() + 1;
                requests.push_back(vec![row]);
            }
        }
    }
    requests
}

/// Splits a refused request into smaller ones. Too many deliveries may be the
/// fault of the rows together, and so may what names no item: then it is
/// halved. Otherwise the rows that are not at fault go first, and of each key
/// the first one at fault alone; those behind it stay where they are.
fn smaller(rows: Vec<PreparedRow>, code: &str, at_fault: &HashSet<usize>) -> Vec<Vec<PreparedRow>> {
    if at_fault.is_empty() || code == "fanout_limit" {
        return halved(rows);
    }
    let (mut good, mut alone, mut faulty_keys) = (Vec::new(), Vec::new(), HashSet::new());
    for (n, row) in rows.into_iter().enumerate() {
        if row.key.as_ref().is_some_and(|key| faulty_keys.contains(key)) {
            continue;
        }
        if at_fault.contains(&n) {
            faulty_keys.extend(row.key.clone());
            alone.push(vec![row]);
        } else {
            good.push(row);
        }
    }
    std::iter::once(good).filter(|good| !good.is_empty()).chain(alone).collect()
}

/// Splits a request of several rows in two, in their order.
fn halved(mut rows: Vec<PreparedRow>) -> Vec<Vec<PreparedRow>> {
    let second = rows.split_off(rows.len() / 2);
    vec![rows, second]
}

async fn submit(sink: &dyn EventSink, tenant: &TenantId, rows: &[PreparedRow]) -> HandInAnswer {
    let (route, body) = match rows {
        [one] => (EventRoute::One, one.json.clone()),
        many => (EventRoute::Batch, batch_body(many)),
    };
    match sink.post(tenant, route, Bytes::from(body)).await {
        Ok(response) => judge(&response),
        Err(reason) => {
            HandInAnswer::Later(Pause { code: "unreachable".into(), retry_after: None, reason, is_of_tenant: false })
        }
    }
}

/// Joins events to the array that the API takes.
fn batch_body(rows: &[PreparedRow]) -> Vec<u8> {
    let mut body = Vec::with_capacity(rows.iter().map(|row| row.json.len() + 1).sum::<usize>() + 1);
    for row in rows {
        body.push(if body.is_empty() { b'[' } else { b',' });
        body.extend_from_slice(&row.json);
    }
    body.push(b']');
    body
}

/// A problem of the API, as far as it is read here.
#[derive(Deserialize)]
struct ProblemDocument {
    code: String,
    detail: String,
    missing: Option<String>,
    #[serde(default)]
    errors: Vec<FaultPointer>,
}

#[derive(Deserialize)]
struct FaultPointer {
    pointer: String,
}

/// Decides what an answer means. Only a problem of the API with a code that is
/// known to be final refuses a row; whatever else comes back is tried again.
fn judge(response: &SinkResponse) -> HandInAnswer {
    if response.status == 202 {
        return HandInAnswer::Accepted;
    }
    let Ok(problem) = serde_json::from_slice::<ProblemDocument>(&response.body) else {
        if response.status == 413 {
            // A proxy before the gateway takes less than the gateway does.
            let reason = "the request is too large for what stands before the gateway, which answered 413 without an \
                explanation";
            return HandInAnswer::Refused {
                code: "payload_too_large".into(),
                reason: reason.into(),
                at_fault: HashSet::new(),
            };
        }
        let reason = format!("the gateway answered {} without an explanation; check --server", response.status);
        return HandInAnswer::Later(Pause {
            code: "unexplained".into(),
            retry_after: response.retry_after,
            reason,
            is_of_tenant: false,
        });
    };
    let ProblemDocument { code, detail, missing, errors } = problem;
    if code == "not_found" && missing.as_deref() != Some(MissingResource::Tenant.into()) {
        // The route: no tenant is at fault, and no row.
        let reason = format!("the gateway has no such route ({detail}); check the path of --server");
        return HandInAnswer::Later(Pause { code, retry_after: response.retry_after, reason, is_of_tenant: false });
    }
    if FINAL_CODES.contains(&code.as_str()) {
        let item = |field: FaultPointer| field.pointer.strip_prefix('/')?.split('/').next()?.parse().ok();
        return HandInAnswer::Refused { code, reason: detail, at_fault: errors.into_iter().filter_map(item).collect() };
    }
    let is_of_tenant = TENANT_CODES.contains(&code.as_str());
    let reason = format!("the gateway answered {} ({code}): {detail}", response.status);
    HandInAnswer::Later(Pause { code, retry_after: response.retry_after, reason, is_of_tenant })
}

/// Returns a reason that is not too long to be stored and shown.
fn shortened(reason: String) -> String {
    match reason.char_indices().nth(REASON_MAX) {
        Some((end, _)) => format!("{}…", &reason[..end]),
        None => reason,
    }
}

#[cfg(test)]
mod tests;
