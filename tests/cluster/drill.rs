//! `posthaste drill` on many nodes: whichever is asked, and whichever owns the
//! endpoint that fails.

use serde_json::json;
use tokio::process::Command;

use crate::nodes::Cluster;
use crate::support::PATIENCE;

#[tokio::test]
async fn a_drill_ends_as_it_should_whichever_node_is_asked() {
    let mut cluster = Cluster::new().await;
    cluster.start(3).await;
    cluster.settled().await;
    let endpoint = json!({
        "url": "https://hooks.example.com/",
        "retry": {"backoff": {"base": "200ms", "factor": 2, "max": "1s"}, "max_attempts": 50},
        "breaker": {"consecutive_failures": 3, "cooldown": "300ms"},
        "timeout": {"connect": "2s", "total": "2s"},
        "max_in_flight": 4,
    });
    let endpoint = cluster.nodes[0].gateway().create_endpoint(endpoint).await;
    for (node, scenario) in ["black-hole", "429", "tls"].into_iter().enumerate() {
        let gateway = cluster.nodes[node].gateway();
        let server = format!("http://{}", gateway.address);
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(["drill", "--endpoint", endpoint["id"].as_str().unwrap(), "--scenario", scenario]);
        command.args(["--server", &server, "--token", gateway.token(), "--patience", "60s"]).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !printed.contains("wrong"), "{scenario}: {printed}");
        let is_open = printed.contains("the open breaker is listed in `posthaste status`");
        assert_eq!(is_open, scenario != "429", "{printed}");
    }
    let tenants = cluster.nodes[1].client().get("/v1/tenants").await.expect(200).to_string();
    assert!(!tenants.contains("\"drill-"), "{tenants}");
}
