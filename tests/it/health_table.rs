//! The health table: what was measured, against its thresholds, wherever one asks.

use serde_json::{Value, json};

use crate::support::{Gateway, Options, Receiver, Reply, path_of};

for_every_store! {
    the_table_shows_the_last_hour_of_an_endpoint_its_tenant_and_the_gateway,
    the_goal_is_the_one_that_was_set,
}

async fn the_table_shows_the_last_hour_of_an_endpoint_its_tenant_and_the_gateway() {
    let mut gateway = Gateway::start().await;
    let receiver = Receiver::answering(|seen| match seen.id() {
        "e0" | "e1" => Reply::Status(400),
        _ => Reply::Status(200),
    })
    .await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "breaker": {"enabled": false}})).await;
    for n in 0..12 {
        gateway.send(json!({"id": format!("e{n}"), "type": "a.b", "data": n})).await;
    }
    gateway.drained(&endpoint).await;
    // What is counted of an open window is written at a stop.
    gateway.terminate().await;
    let gateway = gateway.restart().await;
    let paths = [
        format!("{}/health-table", path_of(&endpoint)),
        "/v1/tenants/default/health-table".to_owned(),
        "/v1/health-table".to_owned(),
    ];
    for path in paths {
        let table = gateway.client.get(&path).await.expect(200);
        let row = |name: &str| table["rows"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        let measured = |name: &str| -> (Value, Value, Value) {
            (row(name)["value"].clone(), row(name)["state"].clone(), row(name)["n"].clone())
        };
        assert_eq!(measured("success_rate"), (json!(0.833333), json!("alert"), json!(12)), "{path}: {table}");
        assert_eq!(measured("dead_letter_rate"), (json!(0.166667), json!("alert"), json!(12)), "{path}");
        assert_eq!(measured("retry_rate"), (json!(0.0), json!("ok"), json!(10)), "{path}");
        assert_eq!(measured("attempts_to_success"), (json!(1.0), json!("ok"), json!(10)), "{path}");
        assert_eq!(measured("second_attempt_success"), (Value::Null, json!("unknown"), json!(0)), "{path}");
        assert_eq!(measured("dead_letters").0, json!(2.0), "{path}");
        assert_eq!(measured("backlog").0, json!(0.0), "{path}");
        assert_eq!(measured("in_retry_over_24h").0, json!(0.0), "{path}");
        assert!(row("oldest_dead_letter")["value"].as_f64().is_some_and(|age| age < 600.0), "{path}: {table}");
        let slo = &table["slo"];
        assert_eq!((&slo["good"], &slo["total"], &slo["burn_1h"]), (&json!(10), &json!(10), &json!(0.0)), "{path}");
        assert_eq!(table["window"], "1h");
        let delay = measured("first_attempt_delay_p99");
        assert!(delay.2 == json!(12) && delay.0.as_f64().is_some_and(|delay| delay < 600.0), "{path}: {delay:?}");
        assert_eq!(table["top_failures"], json!([{"result": "400", "attempts": 2}]), "{path}");
        let worst = json!([{"tenant": "default", "endpoint": endpoint["id"], "failed_attempts": 2}]);
        let is_one = path.contains("endpoints");
        assert_eq!(table["top_endpoints"], if is_one { json!([]) } else { worst }, "{path}");
        let types = json!([{"type": "a.b", "attempts": 12, "delivered": 10, "dead": 2, "success_rate": 0.833333}]);
        assert_eq!(table["top_types"], if is_one { json!([]) } else { types }, "{path}");
    }
}

async fn the_goal_is_the_one_that_was_set() {
    let gateway = Gateway::start_with(Options::flags(&["--slo-target", "99%"])).await;
    let endpoint = json!({"url": "http://127.0.0.1:1/", "retry": {"max_attempts": 1}, "breaker": {"enabled": false}});
    gateway.create_endpoint(endpoint).await;
    gateway.send(json!({"id": "late", "type": "a.b", "data": 1})).await;
    gateway.wait_for_state("late", "dead").await;
    let table = gateway.client.get("/v1/tenants/default/health-table").await.expect(200);
    let slo = &table["slo"];
    assert_eq!((&slo["target"], &slo["within"]), (&json!(0.99), &json!("10m")));
    assert_eq!((&slo["total"], &slo["burn_1h"]), (&json!(1), &json!(100.0)), "one of one, of a hundredth: {table}");
    let metrics = gateway.client.get("/metrics").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("\nposthaste_slo_target_ratio 0.99\n"));
}
