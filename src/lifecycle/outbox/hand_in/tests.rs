//! Tests that every row ends where it belongs, whatever the gateway refuses.

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

/// A gateway that refuses some rows, and notes what it accepted in order.
#[derive(Default)]
struct ScriptedSink {
    /// Numbers of rows that are refused with `invalid_field`.
    bad: Vec<i64>,
    /// Most events of a request before it has too many deliveries.
    fanout_max: Option<usize>,
    /// Events that the tenant has room for, and the answer when there is none.
    room: Option<(usize, SinkResponse)>,
    /// Whether there is no such tenant.
    is_tenant_missing: bool,
    /// Most bytes of a request before a proxy refuses it.
    proxy_bytes_max: Option<usize>,
    /// Answer to every request after this many.
    busy_after: Option<(usize, SinkResponse)>,
    accepted: Mutex<Vec<i64>>,
    requests: Mutex<usize>,
}

fn problem(status: u16, code: &str, errors: &[Value]) -> SinkResponse {
    let body = json!({"status": status, "code": code, "detail": "it is so", "errors": errors}).to_string();
    SinkResponse { status, retry_after: None, body: body.into() }
}

fn missing_tenant() -> SinkResponse {
    let body = json!({"status": 404, "code": "not_found", "detail": "there is no tenant t", "missing": "tenant"});
    SinkResponse { status: 404, retry_after: None, body: body.to_string().into() }
}

#[async_trait]
impl EventSink for ScriptedSink {
    async fn post(&self, _: &TenantId, route: EventRoute, body: Bytes) -> Result<SinkResponse, String> {
        *self.requests.lock() += 1;
        if let Some((_, answer)) = self.busy_after.as_ref().filter(|(count, _)| *self.requests.lock() > *count) {
            return Ok(answer.clone());
        }
        if self.is_tenant_missing {
            return Ok(missing_tenant());
        }
        if self.proxy_bytes_max.is_some_and(|most| body.len() > most) {
            return Ok(SinkResponse { status: 413, body: "<html>".into(), retry_after: None });
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        let events = if route == EventRoute::One { vec![body] } else { body.as_array().unwrap().clone() };
        assert!(route == EventRoute::One || events.len() > 1);
        let id = |event: &Value| event["id"].as_str().unwrap().rsplit('_').next().unwrap().parse::<i64>().unwrap();
        let ids: Vec<i64> = events.iter().map(id).collect();
        if self.fanout_max.is_some_and(|most| ids.len() > most) {
            return Ok(problem(422, "fanout_limit", &[json!({"pointer": format!("/{}", ids.len() - 1)})]));
        }
        let errors: Vec<Value> = ids
            .iter()
            .enumerate()
            .filter(|(_, id)| self.bad.contains(id))
            .map(|(n, _)| json!({"pointer": if route == EventRoute::One { "/type".into() } else { format!("/{n}/type") }}))
            .collect();
        if !errors.is_empty() {
            return Ok(problem(422, "invalid_field", &errors));
        }
        let mut accepted = self.accepted.lock();
        if let Some((_, answer)) = self.room.as_ref().filter(|(room, _)| accepted.len() + ids.len() > *room) {
            return Ok(answer.clone());
        }
        accepted.extend(ids);
        Ok(SinkResponse { status: 202, ..SinkResponse::default() })
    }
}

fn row(id: i64, key: Option<&str>) -> OutboxRow {
    OutboxRow {
        id,
        tenant: "t".into(),
        event_type: "a.b".into(),
        key: key.map(str::to_owned),
        schema_version: None,
        endpoints: None,
        timestamp: "2026-11-15T08:00:00.000000Z".into(),
        expires_at: None,
        data: Some("1".into()),
        fault: None,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

async fn handed_in(sink: &ScriptedSink, rows: Vec<OutboxRow>) -> HandInResult {
    hand_in(sink, "0a", "t", rows, soon()).await
}

#[tokio::test]
async fn rows_that_are_fine_go_in_one_request() {
    let sink = ScriptedSink::default();
    let result = handed_in(&sink, (1..=500).map(|id| row(id, Some("k"))).collect()).await;
    assert_eq!(result.accepted, (1..=500).collect::<Vec<_>>());
    assert_eq!((result.refused, result.pause, *sink.requests.lock()), (vec![], None, 1));
}

#[tokio::test]
async fn a_refused_row_blocks_its_key_and_nothing_else() {
    let sink = ScriptedSink { bad: vec![3, 4, 6], ..ScriptedSink::default() };
    let keys = [Some("a"), Some("b"), Some("a"), Some("a"), Some("b"), None, Some("a"), None];
    let rows = (1..).zip(keys).map(|(id, key)| row(id, key)).collect();
    let result = handed_in(&sink, rows).await;
    assert_eq!(result.accepted, [1, 2, 5, 8], "rows 4 and 7 stay behind row 3");
    assert_eq!(result.refused.iter().map(|row| row.id).collect::<Vec<_>>(), [3, 6]);
    assert_eq!(*sink.accepted.lock(), result.accepted, "nothing is accepted that is not reported");
    assert_eq!(result.refused[0].code, "invalid_field");
}

#[tokio::test]
async fn too_many_deliveries_together_are_no_fault_of_a_row() {
    let sink = ScriptedSink { fanout_max: Some(3), ..ScriptedSink::default() };
    let result = handed_in(&sink, (1..=20).map(|id| row(id, Some("k"))).collect()).await;
    assert_eq!(result.accepted, (1..=20).collect::<Vec<_>>(), "in order, in smaller batches");
    assert_eq!(result.refused, []);
    let sink = ScriptedSink { fanout_max: Some(0), ..ScriptedSink::default() };
    let result = handed_in(&sink, vec![row(1, Some("k")), row(2, Some("k"))]).await;
    assert_eq!(result.refused.iter().map(|row| (row.id, row.code.as_str())).collect::<Vec<_>>(), [(1, "fanout_limit")]);
    assert_eq!(result.accepted, [0; 0], "row 2 waits behind row 1");
}

#[tokio::test]
async fn a_full_gateway_refuses_no_row() {
    let busy = SinkResponse { retry_after: Some(Duration::from_secs(4)), ..problem(429, "rate_limited", &[]) };
    let sink = ScriptedSink { busy_after: Some((1, busy)), ..ScriptedSink::default() };
    let result = handed_in(&sink, (1..=700).map(|id| row(id, None)).collect()).await;
    assert_eq!(result.accepted.len(), 500, "what was accepted before counts");
    assert_eq!(result.refused, []);
    let pause = result.pause.unwrap();
    assert!(pause.is_of_tenant && pause.retry_after == Some(Duration::from_secs(4)), "{pause:?}");
}

#[tokio::test]
async fn the_rows_that_there_is_room_for_go_in_order_and_the_next_one_pauses_the_tenant() {
    for (status, code) in [(429, "backlog_full"), (507, "quota_full")] {
        let sink = ScriptedSink { room: Some((100, problem(status, code, &[]))), ..ScriptedSink::default() };
        let result = handed_in(&sink, (1..=101).map(|id| row(id, Some("k"))).collect()).await;
        assert_eq!(result.accepted, (1..=100).collect::<Vec<_>>());
        assert_eq!((*sink.accepted.lock()).clone(), result.accepted, "in order");
        let pause = result.pause.expect("row 101 waits");
        assert!(pause.code == code && pause.is_of_tenant && result.refused.is_empty(), "{pause:?}");
        assert!(*sink.requests.lock() < 20, "{} requests", sink.requests.lock());
    }
}

#[tokio::test]
async fn only_codes_that_are_known_to_be_final_refuse_a_row() {
    for (status, code, is_final) in [
        // Without `missing`, it is the route.
        (404, "not_found", false),
        (409, "id_conflict", true),
        (413, "payload_too_large", true),
        (401, "unauthenticated", false),
        (403, "missing_right", false),
        (503, "unavailable", false),
        (507, "storage_full", false),
        (422, "something_new", false),
    ] {
        let answer = judge(&problem(status, code, &[]));
        assert_eq!(matches!(answer, HandInAnswer::Refused { .. }), is_final, "{code}");
    }
    assert!(matches!(judge(&missing_tenant()), HandInAnswer::Refused { .. }));
    let HandInAnswer::Later(pause) = judge(&problem(404, "not_found", &[])) else { panic!("no row is at fault") };
    assert!(!pause.is_of_tenant && pause.reason.contains("check the path of --server"), "{pause:?}");
    let strange = SinkResponse { status: 404, body: "<html>".into(), retry_after: None };
    assert!(matches!(judge(&strange), HandInAnswer::Later(_)), "another server answers");
}

#[tokio::test]
async fn what_can_be_no_tenant_is_refused_without_a_request() {
    let sink = ScriptedSink::default();
    let result = hand_in(&sink, "0a", "../x", vec![row(1, None), row(2, None)], soon()).await;
    assert_eq!((result.refused.len(), *sink.requests.lock()), (2, 0));
    assert_eq!(shortened("é".repeat(600)).chars().count(), 501);
}

#[tokio::test]
async fn the_rows_of_an_unknown_tenant_are_refused_with_one_request() {
    let sink = ScriptedSink { is_tenant_missing: true, ..ScriptedSink::default() };
    let result = handed_in(&sink, (1..=700).map(|id| row(id, None)).collect()).await;
    assert_eq!((result.refused.len(), *sink.requests.lock()), (700, 1));
    assert!(result.refused.iter().all(|row| row.code == "not_found"));
}

#[tokio::test]
async fn what_is_too_large_for_a_proxy_goes_in_smaller_batches_and_alone_it_is_refused() {
    let sink = ScriptedSink { proxy_bytes_max: Some(1_000), ..ScriptedSink::default() };
    let large = OutboxRow { data: Some(format!("\"{}\"", "x".repeat(2_000))), ..row(8, Some("k")) };
    let rows = (1..=7).map(|id| row(id, Some("k"))).chain([large, row(9, Some("k")), row(10, None)]).collect();
    let result = handed_in(&sink, rows).await;
    assert_eq!(result.accepted, [1, 2, 3, 4, 5, 6, 7, 10], "row 9 stays behind row 8");
    let refused: Vec<(i64, &str)> = result.refused.iter().map(|row| (row.id, row.code.as_str())).collect();
    assert_eq!((refused, result.pause), (vec![(8, "payload_too_large")], None));
    assert!(result.refused[0].reason.contains("before the gateway"), "{}", result.refused[0].reason);
}

#[tokio::test]
async fn no_request_begins_after_the_deadline() {
    let sink = ScriptedSink::default();
    let past = Instant::now() - Duration::from_secs(1);
    let result = hand_in(&sink, "0a", "t", vec![row(1, None)], past).await;
    assert_eq!((result, *sink.requests.lock()), (HandInResult::default(), 0), "the row stays where it is");
}
