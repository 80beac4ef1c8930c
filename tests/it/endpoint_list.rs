//! The list of all endpoints: of every tenant, by their state and health, and in
//! the order in which somebody should look at them.

use serde_json::{Value, json};

use crate::support::{Client, Gateway, Receiver, Reply, eventually, path_of};

for_every_store! {
    endpoints_of_all_tenants_are_found_by_state_and_health_and_sorted_by_what_ails_them,
}

async fn endpoints_of_all_tenants_are_found_by_state_and_health_and_sorted_by_what_ails_them() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    client.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().expect(201);
    let receiver = Receiver::answering(|seen| Reply::Status(if seen.path == "/refuses" { 400 } else { 503 })).await;
    let create = async |tenant: &str, name: &str| {
        let settings = json!({
            "url": format!("http://{}/{name}", receiver.address), "event_types": [name], "description": name,
            "metadata": {"team": format!("of {name}")}, "retry": {"schedule": ["1h"]},
        });
        client.post_json(&format!("/v1/tenants/{tenant}/endpoints"), &settings).await.expect(201)
    };
    create("default", "well").await;
    create("default", "refuses").await;
    let held = create("acme", "held").await;
    let paused = create("acme", "paused").await;
    create("acme", "fails").await;
    client.post(&format!("{}/breaker/open", path_of(&held)), "{}").await.expect(200);
    client.post(&format!("{}/pause", path_of(&paused)), "{}").await.expect(200);
    let send = async |tenant: &str, name: &str, count: usize| {
        for n in 0..count {
            let event = json!({"id": format!("{name}-{n}"), "type": name, "data": n});
            client.post_json(&format!("/v1/tenants/{tenant}/events"), &event).await.expect(202);
        }
    };
    send("default", "refuses", 3).await;
    send("acme", "held", 4).await;
    send("acme", "paused", 2).await;
    send("acme", "fails", 1).await;

    let names = async |query: &str| -> Vec<String> {
        let page = client.get(&format!("/v1/endpoints{query}")).await.expect(200);
        let name =
            |row: &Value| format!("{}/{}", row["tenant"].as_str().unwrap(), row["description"].as_str().unwrap());
        page["data"].as_array().unwrap().iter().map(name).collect()
    };
    let until = async |query: &str, expected: &[&str]| {
        eventually(query, || async {
            let found = names(query).await;
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    };
    until("", &["acme/fails", "acme/paused", "acme/held", "default/refuses", "default/well"]).await;
    until("?state=paused", &["acme/paused"]).await;
    until("?breaker=open", &["acme/held"]).await;
    until("?failing=true", &["acme/fails", "default/refuses"]).await;
    until("?failing=true&q=ACME", &["acme/fails"]).await;
    until("?q=refus", &["default/refuses"]).await;
    until("?q=Of+Held", &["acme/held"]).await;
    until("?sort=attention", &["acme/held", "acme/fails", "default/refuses", "acme/paused", "default/well"]).await;
    until("?failing=false&breaker=closed", &["acme/paused", "default/well"]).await;
    until("?sort=failures&failing=true", &["default/refuses", "acme/fails"]).await;
    let waiting = ["acme/held", "acme/paused", "acme/fails", "default/refuses", "default/well"];
    until("?sort=waiting", &waiting).await;
    let mut sorted = names("?sort=failures").await;
    sorted.truncate(2);
    assert_eq!(sorted, ["default/refuses", "acme/fails"], "three in a row before one");

    // By pages it is the same.
    let mut cursor = String::new();
    for expected in waiting {
        let page = client.get(&format!("/v1/endpoints?sort=waiting&limit=1{cursor}")).await.expect(200);
        assert_eq!(page["data"][0]["description"], expected.split('/').nth(1).unwrap());
        cursor = page["next"].as_str().map(|next| format!("&cursor={next}")).unwrap_or_default();
    }
    assert_eq!(cursor, "", "there is no sixth");

    // It is the operator's.
    let made = client.post_json("/v1/tokens", &json!({"tenant": "acme", "rights": ["manage"]})).await.expect(201);
    let tenant = Client::new(gateway.address, made["token"].as_str().unwrap());
    tenant.get("/v1/endpoints").await.problem(403, "missing_right");
}
