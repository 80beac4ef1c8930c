//! The twenty questions of an operator: every command of the table in
//! docs/recovering.md is run after a bad night, and has the words of its answer.

use std::path::Path;

use serde_json::json;

use crate::cli::{asked, cli_output};
use crate::support::{Gateway, Receiver, Reply, eventually};

for_every_store! {
    each_question_of_an_operator_is_answered_by_one_command,
}

/// A row of the table.
struct OperatorQuestion {
    text: String,
    command: String,
    /// Words that the answer has.
    words: Vec<String>,
}

/// Returns what stands in backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn questions() -> Vec<OperatorQuestion> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recovering.md");
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, table) = page.split_once("## Twenty questions of an operator").expect("the table is there");
    let rows = table.lines().filter(|line| line.contains("`posthaste "));
    let questions = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [text, command, answer] = cells[..] else { panic!("{row} has not three cells") };
        let command = quoted(command).remove(0);
        OperatorQuestion { text: text.to_owned(), command, words: quoted(answer) }
    });
    questions.collect()
}

async fn each_question_of_an_operator_is_answered_by_one_command() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    receiver.answer_with(|_| Reply::Status(400));
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "ordering": "key"})).await;
    gateway.post_to_endpoint(&endpoint, "breaker/open", r#"{"note":"a test"}"#).await;
    gateway.post_to_endpoint(&endpoint, "breaker/close", "{}").await;
    for n in 0..3 {
        gateway.send(json!({"id": format!("e{n}"), "type": "order.paid", "key": format!("k{n}"), "data": n})).await;
    }
    for n in 0..3 {
        gateway.wait_for_state(&format!("e{n}"), "dead").await;
    }
    // It waits behind the dead head of its lane.
    gateway.send(json!({"id": "behind", "type": "order.paid", "key": "k1", "data": 9})).await;
    let none = json!({"kind": "replay", "filter": {"cause": "expired"}});
    gateway.client.post_json("/v1/tenants/default/jobs", &none).await.expect(202);
    eventually("the dead letters to be told", || async {
        let attention = gateway.client.get("/v1/attention").await.expect(200).to_string();
        if attention.contains("3 dead letters since") { Ok(()) } else { Err(attention) }
    })
    .await;

    let delivery = gateway.delivery_of("e1").await["id"].as_str().unwrap().to_owned();
    let endpoint = endpoint["id"].as_str().unwrap().to_owned();
    let event = gateway.client.get("/v1/tenants/default/events/e1").await.expect(200);
    let day = event["accepted_at"].as_str().unwrap()[..10].to_owned();
    let questions = questions();
    assert_eq!(questions.len(), 20, "there are twenty of them");
    for OperatorQuestion { text, command, words } in questions {
        let real = |word: &str| match word {
            "ENDPOINT" => endpoint.clone(),
            "DELIVERY" => delivery.clone(),
            "EVENT" => "e1".to_owned(),
            "DAY" => day.clone(),
            word => word.to_owned(),
        };
        let args: Vec<String> = command.split(' ').skip(1).map(real).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = cli_output(&gateway, &args).await;
        assert!(!words.is_empty(), "{text}: no word of the answer is named");
        for word in words {
            assert!(said.contains(&word), "{text} {command} does not say {word}:\n{said}");
        }
    }
    check_figures(&gateway, &endpoint, &day).await;
    let status = asked(&gateway, &["status", "--endpoint", &endpoint]).await;
    let told = status["attention"]["data"].as_array().unwrap();
    let dead = told.iter().find(|item| item["kind"] == "dead_growing").expect("dead letters are told");
    let command: Vec<&str> = dead["command"].as_str().unwrap().split(' ').skip(1).collect();
    let said = cli_output(&gateway, &command).await;
    assert!(said.contains("replay would take 3 deliveries"), "{command:?}: {said}");
}

/// The new commands say the same to programs, and what they say is right.
async fn check_figures(gateway: &Gateway, endpoint: &str, day: &str) {
    for whose in [&["--endpoint", endpoint][..], &["--tenant", "default"], &["--all"], &[]] {
        let figures = asked(gateway, &[&["figures", "--step", "1d"][..], whose].concat()).await;
        let points = figures["data"].as_array().unwrap();
        let sum = |pointer: &str| points.iter().filter_map(|point| point.pointer(pointer)?.as_u64()).sum::<u64>();
        assert_eq!((sum("/accepted"), sum("/ended/dead/refused")), (4, 3), "{whose:?}: {figures}");
    }
    let types = asked(gateway, &["figures", "--types"]).await;
    assert_eq!((&types["data"][0]["type"], &types["data"][0]["dead"]), (&json!("order.paid"), &json!(3)), "{types}");
    let usage = asked(gateway, &["usage", "--day", day]).await;
    // The day may end between two of the four.
    assert!(usage["tenant"] == "default" && usage["events"].as_u64().unwrap() > 0, "{usage}");
    let usage = cli_output(gateway, &["usage", "--day", "2020-01-01"]).await;
    assert_eq!(usage.trim(), "nothing was used on 2020-01-01");
    let status = asked(gateway, &["status", "--endpoint", endpoint]).await;
    let told = status["attention"]["data"].as_array().unwrap();
    assert!(!told.is_empty() && told.iter().all(|item| item["endpoint"] == endpoint), "{status}");
    assert_eq!(status["health_table"]["top_endpoints"], json!([]), "it is that of one endpoint: {status}");
}
