//! A gateway that explains itself: over the API, on the command line, and
//! before anything has happened.

use serde_json::{Value, json};

use crate::cli::{NO_HOME, asked, cli_output, failed, posthaste, succeeded, to_gateway};
use crate::support::{
    Client, DnsAnswer, Gateway, MailServer, MailServerBehaviour, NameServer, Options, Receiver, Reply, eager_retry,
    eventually, path_of,
};

for_every_store! {
    a_delivery_tells_its_story_the_same_to_programs_and_to_people,
    what_is_advised_works_when_pasted_in_every_tenant,
    what_waits_behind_a_dead_letter_names_it_and_the_way_out,
    what_is_held_too_long_or_over_ends_and_says_why,
    which_address_was_refused_is_told_to_the_operator_alone,
}

async fn explained(gateway: &Gateway, delivery: &Value) -> Value {
    let id = delivery["id"].as_str().unwrap();
    gateway.client.get(&format!("/v1/tenants/default/deliveries/{id}/explain")).await.expect(200)
}

fn sentences(explanation: &Value) -> String {
    let sentences = explanation["sentences"].as_array().unwrap().iter().map(|sentence| sentence.as_str().unwrap());
    sentences.collect::<Vec<_>>().join("\n")
}

async fn a_delivery_tells_its_story_the_same_to_programs_and_to_people() {
    let gateway = Gateway::start().await;
    let replies = vec![Reply::Status(503), Reply::With(429, "retry-after", "3600".into()), Reply::Status(200)];
    let receiver = Receiver::scripted(replies).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(5)})).await;
    gateway.send(json!({"id":"e","type":"invoice.paid","data":1})).await;
    let delivery = eventually("two attempts", || async {
        let delivery = gateway.delivery_of("e").await;
        if delivery["attempts"] == 2 { Ok(delivery) } else { Err(delivery.to_string()) }
    })
    .await;
    let explanation = explained(&gateway, &delivery).await;
    let summary = explanation["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("Waiting: attempt 3 starts at 20")
            && (summary.contains(", in 59m ") || summary.ends_with(", in 1h.")),
        "{summary}"
    );
    let all = sentences(&explanation);
    for part in [
        "Event e (invoice.paid) was accepted at 20",
        "and was answered 429 Too Many Requests after",
        "Rule 429 of the default table says retry",
        "After failure 2 of this budget the endpoint's own policy waits 10ms.",
        "Retry-After counts: 1h is more than the 10ms drawn.",
        "So the next attempt was planned for 20",
        "3 of 5 attempts are left.",
    ] {
        assert!(all.contains(part), "{part:?} is missing in:\n{all}");
    }
    let attempts = explanation["attempts"].as_array().unwrap();
    let shown: Vec<_> = attempts.iter().map(|attempt| (&attempt["number"], &attempt["status"])).collect();
    assert_eq!(shown, [(&json!(1), &json!(503)), (&json!(2), &json!(429))]);
    assert!(sentences(&attempts[0]).contains("answered 503 Service Unavailable"));

    // On the command line the same words, broken into lines.
    let id = delivery["id"].as_str().unwrap();
    let printed = cli_output(&gateway, &["explain", id]).await;
    let flat = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in all.lines().filter(|sentence| !sentence.contains(" in ")) {
        assert!(flat.contains(sentence), "{sentence:?} is missing in:\n{printed}");
    }
    assert!(printed.lines().all(|line| line.chars().count() <= 80 || !line.trim().contains(' ')), "{printed}");
    assert!(cli_output(&gateway, &["explain", id, "--attempts"]).await.contains("Attempt 1\n"));
    assert_eq!(asked(&gateway, &["explain", id]).await["attempts"], explanation["attempts"]);
    // An event's id stands for its deliveries.
    let of_event = asked(&gateway, &["explain", "e"]).await;
    assert_eq!(of_event["deliveries"][0]["attempts"], explanation["attempts"]);
    assert_eq!(of_event["deliveries"][0]["delivery_id"], delivery["id"]);
    let said = failed(&["explain"], &to_gateway(&gateway, &["explain", "nothing"]).output().await.unwrap());
    assert!(said.contains("there is no delivery and no event nothing"), "{said}");

    // What the explanation offers works.
    assert!(all.contains(&format!("`posthaste deliveries retry {id}`")), "{all}");
    cli_output(&gateway, &["deliveries", "retry", id]).await;
    gateway.wait_for_state("e", "delivered").await;
    let explanation = explained(&gateway, &delivery).await;
    assert!(explanation["summary"].as_str().unwrap().starts_with("Delivered on attempt 3 at 20"), "{explanation}");
    let missing = gateway.client.get("/v1/tenants/default/deliveries/dlv_00000000000000000000000000/explain").await;
    missing.problem(404, "not_found");
}

/// Commands in backticks of what was printed, without its line breaks.
fn advised(printed: &str) -> Vec<String> {
    let flat = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    flat.split('`').skip(1).step_by(2).filter(|part| part.starts_with("posthaste ")).map(str::to_owned).collect()
}

/// Pastes a command into a shell that finds `posthaste` on its PATH.
async fn pasted(gateway: &Gateway, command: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_posthaste"), folder.path().join("posthaste")).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).env("HOME", NO_HOME).env("XDG_CONFIG_HOME", NO_HOME);
    shell.env("POSTHASTE_SERVER", format!("http://{}", gateway.address));
    shell.env("POSTHASTE_TOKEN_FILE", gateway.folder().join("admin-token"));
    succeeded(&[command], &shell.kill_on_drop(true).output().await.unwrap())
}

#[tokio::test]
async fn what_is_advised_names_the_gateway_and_the_tenant_that_it_was_advised_for() {
    let (gateway, folder) = (Gateway::start().await, tempfile::tempdir().unwrap());
    asked(&gateway, &["endpoints", "create", "http://127.0.0.1:1/"]).await;
    asked(&gateway, &["send", "a.b", "--id", "one"]).await;
    let (server, file) = (format!("http://{}", gateway.address), gateway.folder().join("admin-token"));
    let named = ["--server", &server, "--token-file", file.to_str().unwrap()];
    let mut command = posthaste(&[&["explain", "one", "--tenant", "default"], &named[..]].concat());
    command.env("POSTHASTE_TENANT", "shop-eu").current_dir(folder.path());
    let printed = succeeded(&["explain"], &command.output().await.unwrap());
    let commands = advised(&printed);
    assert!(!commands.is_empty(), "{printed}");
    for command in commands {
        // Pasted where nothing else names the gateway.
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let mut pasted = posthaste(&words);
        pasted.env("POSTHASTE_TENANT", "shop-eu").current_dir(folder.path());
        let output = pasted.output().await.unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
}

async fn what_is_advised_works_when_pasted_in_every_tenant() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(400)).await;
    asked(&gateway, &["tenants", "create", "acme"]).await;
    let unwanted = cli_output(&gateway, &["send", "a.b", "--id=-odd", "--tenant", "acme"]).await;
    let commands = advised(&unwanted);
    assert_eq!(commands, ["posthaste events matches --tenant acme -- -odd"], "{unwanted}");
    pasted(&gateway, &commands[0]).await;
    let none = to_gateway(&gateway, &["explain", "--tenant", "acme", "--", "-odd"]).output().await.unwrap();
    pasted(&gateway, &advised(&failed(&["explain"], &none))[0]).await;

    let url = receiver.url();
    asked(&gateway, &["endpoints", "create", &url, "--tenant", "acme"]).await;
    for id in ["head", "next"] {
        asked(&gateway, &["send", "a.b", "--id", id, "--key", "k", "--tenant", "acme"]).await;
    }
    let explained = async |event: &str, begins: &str| {
        eventually(begins, || async {
            let printed = cli_output(&gateway, &["explain", event, "--tenant", "acme"]).await;
            if printed.starts_with(begins) { Ok(printed) } else { Err(printed) }
        })
        .await
    };
    explained("head", "Dead (refused)").await;
    let behind = explained("next", "Waiting: its lane stands behind").await;
    receiver.answer_with(|_| Reply::Status(200));
    let commands = advised(&behind);
    assert!(commands.len() == 2 && commands[0].starts_with("posthaste dead-letters replay "), "{commands:?}");
    pasted(&gateway, &commands[0]).await;
    explained("next", "Delivered").await;
    let delivered = explained("head", "Delivered").await;
    for command in advised(&delivered) {
        pasted(&gateway, &command).await;
    }
}

async fn what_waits_behind_a_dead_letter_names_it_and_the_way_out() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(400), Reply::Status(200)]).await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id":"head","type":"a","key":"k","data":1})).await;
    let head = gateway.wait_for_state("head", "dead").await;
    gateway.send(json!({"id":"next","type":"a","key":"k","data":2})).await;
    let next = gateway.delivery_of("next").await;
    let head_id = head["id"].as_str().unwrap();
    let explanation = explained(&gateway, &next).await;
    assert_eq!(explanation["summary"], format!("Waiting: its lane stands behind the dead letter {head_id}."));
    assert!(sentences(&explanation).contains(&format!("posthaste dead-letters discard {head_id}")));
    let dead = explained(&gateway, &head).await;
    let summary = dead["summary"].as_str().unwrap();
    assert!(summary.ends_with("after 1 attempt, which was answered 400 Bad Request."), "{summary}");
    cli_output(&gateway, &["dead-letters", "discard", head_id]).await;
    gateway.wait_for_state("next", "delivered").await;
    let discarded = explained(&gateway, &head).await;
    assert!(discarded["summary"].as_str().unwrap().contains("it had died (refused)"), "{discarded}");
}

async fn what_is_held_too_long_or_over_ends_and_says_why() {
    let gateway = Gateway::start_with(Options::flags(&["--hold-max", "1s"])).await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    let shown = cli_output(&gateway, &["send", "a.b", "--id", "over", "--expires-at", "200ms"]).await;
    assert!(shown.contains("over"), "{shown}");
    gateway.send(json!({"id":"past","type":"a","expires_at":"2020-01-01T00:00:00+01:00","data":1})).await;
    gateway.send(json!({"id":"held","type":"a","data":1})).await;
    let held = gateway.delivery_of("held").await;
    assert!(held["give_up_at"].is_string() && held["expires_at"].is_null(), "{held}");
    for (id, why) in [("over", "expires_at"), ("past", "expires_at"), ("held", "--hold-max allows (1s)")] {
        let dead = gateway.wait_for_state(id, "dead").await;
        assert_eq!((&dead["cause"], &dead["attempts"]), (&json!("expired"), &json!(0)), "{id}");
        let explanation = explained(&gateway, &dead).await;
        assert!(sentences(&explanation).contains(why), "{id}: {explanation}");
    }
    assert_eq!(receiver.count(), 0);
    let event = gateway.client.get("/v1/tenants/default/events/past").await.expect(200);
    assert_eq!(event["expires_at"], "2019-12-31T23:00:00Z");
    // The same event again is a repeat; another expiry is other content.
    let again = json!({"id":"past","type":"a","expires_at":"2020-01-01T00:00:00+01:00","data":1});
    assert_eq!(gateway.send(again).await["duplicate"], true);
    let other = json!({"id":"past","type":"a","expires_at":"2021-01-01T00:00:00Z","data":1});
    gateway.client.post_json("/v1/tenants/default/events", &other).await.problem(409, "id_conflict");
    let none = json!({"id":"past","type":"a","data":1});
    gateway.client.post_json("/v1/tenants/default/events", &none).await.problem(409, "id_conflict");
    for far in ["9999-12-31T23:59:59Z", "2199-01-01T00:00:00.123456789123Z"] {
        gateway.send(json!({"type":"a","expires_at": far, "data":1})).await;
    }
    for wrong in [json!("tomorrow"), json!("2026-01-31T12:00:00"), json!("2026-01-31"), json!("")] {
        let event = json!({"type":"a","expires_at": wrong, "data":1});
        let problem =
            gateway.client.post_json("/v1/tenants/default/events", &event).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], "/expires_at", "{problem}");
    }
}

#[tokio::test]
async fn a_policy_is_previewed_alike_over_the_api_and_on_the_command_line() {
    let gateway = Gateway::start().await;
    let stepped = gateway.client.post_json("/v1/policies/preview", &json!({"preset":"stepped"})).await.expect(200);
    let times = |name: &str| -> Vec<Value> {
        stepped["attempts"].as_array().unwrap().iter().map(|attempt| attempt[name].clone()).collect()
    };
    assert_eq!(json!(times("number")), json!([1, 2, 3, 4, 5]));
    assert_eq!(json!(times("expected")), json!(["0s", "30s", "150s", "750s", "4350s"]));
    assert_eq!(json!(times("earliest")), json!(["0s", "24s", "2m", "10m", "58m"]));
    assert_eq!(json!(times("latest")), json!(["0s", "36s", "3m", "15m", "87m"]));
    assert_eq!(stepped["span"], "87m");
    let preview = |args: &[&str]| posthaste(&[&["policy", "preview"], args].concat()).output();
    let args = ["--preset", "stepped", "-o", "json"];
    let printed: Value = serde_json::from_str(&succeeded(&args, &preview(&args).await.unwrap())).unwrap();
    assert_eq!(printed, stepped);
    let path = "/v1/policies/preview?outage=6h";
    let long = gateway.client.post_json(path, &json!({"preset":"long"})).await.expect(200);
    assert_eq!(long["survival"], json!([{"outage": "6h", "odds": 1.0}]));
    assert_eq!(long["recovery"]["outage"], "6h");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"schedule":["1h"],"max_age":"1m"}"#).unwrap();
    let args = ["--file", file.path().to_str().unwrap()];
    let said = failed(&args, &preview(&args).await.unwrap());
    assert!(said.contains("/max_age") && said.contains("raise max_age"), "{said}");
    for (policy, code, pointer) in [
        (json!({"backoff":{"base":"2h","max":"1h"}}), "invalid_field", "/backoff/max"),
        (json!({"max_attempts":0}), "invalid_field", "/max_attempts"),
        (json!({"schedule":["-5s"]}), "invalid_field", "/schedule/0"),
        (json!({"schedule":["1h"],"max_age":"1m"}), "invalid_field", "/max_age"),
        (json!({"jitter":{"percent":0}}), "invalid_field", "/jitter/percent"),
        (json!({"jitter":"some"}), "invalid_field", "/jitter"),
        (json!({"preset":"swift"}), "invalid_field", "/preset"),
        (json!({"attempts":3}), "unknown_field", "/attempts"),
        (json!(["quick"]), "invalid_field", ""),
    ] {
        let problem = gateway.client.post_json("/v1/policies/preview", &policy).await.problem(422, code);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let wrong = gateway.client.post_json("/v1/policies/preview?outage=long", &json!({})).await;
    assert_eq!(wrong.problem(422, "invalid_field")["errors"][0]["pointer"], "?outage");
}

#[tokio::test]
async fn an_endpoint_takes_every_policy_that_has_a_name() {
    let gateway = Gateway::start().await;
    for preset in ["standard", "quick", "hourly", "stepped", "patient", "long"] {
        let made = asked(
            &gateway,
            &["endpoints", "create", "http://127.0.0.1:9/", "--retry", preset, "--status-rules", "strict"],
        )
        .await;
        assert_eq!((&made["retry"], &made["status_rules"]), (&json!({"preset": preset}), &json!({"preset": "strict"})));
        // What is named takes the place of what was there.
        let id = made["id"].as_str().unwrap();
        for (rules, expected) in [
            (r#"{"404":"retry","5xx":"refuse"}"#, json!({"preset": "default", "404": "retry", "5xx": "refuse"})),
            (r#"{"preset":"lenient","418":"deliver"}"#, json!({"preset": "lenient", "418": "deliver"})),
            ("strict", json!({"preset": "strict"})),
        ] {
            let changed = asked(&gateway, &["endpoints", "update", id, "--status-rules", rules]).await;
            assert_eq!(changed["status_rules"], expected);
        }
    }
    let args = ["endpoints", "create", "http://127.0.0.1:9/", "--retry", "swift"];
    let output = to_gateway(&gateway, &args).output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("write one of standard, quick, hourly, stepped, patient, long, or JSON"), "{said}");
    let defaults = r#"{"retry":{"preset":"hourly"},"status_rules":{"preset":"strict"}}"#;
    let acme = asked(&gateway, &["tenants", "create", "acme", "--defaults", defaults]).await;
    assert_eq!(acme["defaults"]["retry"], json!({"preset": "hourly"}), "{acme}");
    let made = asked(&gateway, &["endpoints", "create", "http://127.0.0.1:9/", "--tenant", "acme"]).await;
    assert_eq!((&made["retry"], &made["status_rules"]), (&json!({"preset": "hourly"}), &json!({"preset": "strict"})));
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    for jitter in [json!({"percent": 20.0}), json!({"add": "1s"}), json!("full"), json!({"percent": 5.0})] {
        let patched = gateway.client.patch_json(&path, &json!({"retry": {"jitter": jitter}})).await.expect(200);
        assert_eq!(patched["retry"]["jitter"], jitter);
    }
    let patch = json!({"retry": {"jitter": {"percent": 0}, "retry_after_max": "40d"}});
    let problem = gateway.client.patch_json(&path, &patch).await.problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "/retry/jitter/percent", "{problem}");
}

async fn which_address_was_refused_is_told_to_the_operator_alone() {
    let names = NameServer::answering(|_| DnsAnswer::addresses(&["127.0.0.1"])).await;
    let mails = MailServer::start(MailServerBehaviour::default()).await;
    let dns = names.address.to_string();
    let flags = ["--dns", &dns, "--smtp", &mails.url("")];
    let gateway = Gateway::start_with(Options::flags(&flags)).await;
    let ear = Receiver::start().await;
    let listener = json!({"url": ear.url(), "event_types": ["*"]});
    gateway.client.post_json("/v1/tenants/_system/endpoints", &listener).await.expect(201);
    let settings =
        json!({"url": "http://mixed.example:8443/hook", "retry": eager_retry(3), "owner_email": "owner@example.com"});
    let endpoint = gateway.create_endpoint(settings).await;
    names.answer_with(|_| DnsAnswer::addresses(&["127.0.0.1", "10.99.88.77"]));
    gateway.send(json!({"id": "e", "type": "t", "data": 1})).await;
    let dead = gateway.wait_for_state("e", "dead").await;
    assert_eq!((&dead["cause"], &dead["last_error"]["kind"]), (&json!("exhausted"), &json!("target_forbidden")));

    let id = dead["id"].as_str().unwrap();
    let explain = format!("/v1/tenants/default/deliveries/{id}/explain");
    let reason = "For the operator alone: mixed.example is not called: 10.99.88.77 is loopback, private, link-local or \
                  otherwise not public; --allow-egress 10.99.88.77/32 opens it.";
    let operator = gateway.client.get(&explain).await.expect(200);
    assert!(sentences(&operator).contains(reason), "{operator:#}");
    for attempt in operator["attempts"].as_array().unwrap() {
        assert!(attempt["sentences"].to_string().contains("10.99.88.77"), "{attempt}");
    }
    assert!(cli_output(&gateway, &["explain", id]).await.contains("10.99.88.77"));

    // Nobody else: by whatever route, told by events or by mail.
    let mut seen = String::new();
    for rights in [json!(["read"]), json!(["manage"]), json!(["publish", "manage", "read"])] {
        let new = json!({"tenant": "default", "rights": rights});
        let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
        let tenant = Client::new(gateway.address, made["token"].as_str().unwrap());
        for path in [
            explain.clone(),
            format!("/v1/tenants/default/deliveries/{id}"),
            format!("/v1/tenants/default/deliveries/{id}/attempts"),
            "/v1/tenants/default/deliveries".to_owned(),
            "/v1/tenants/default/dead-letters".to_owned(),
            "/v1/tenants/default/events/e".to_owned(),
            "/v1/tenants/default/events/e/deliveries".to_owned(),
            path_of(&endpoint),
            format!("{}/history", path_of(&endpoint)),
        ] {
            let answer = tenant.get(&path).await.expect(200);
            assert!(answer.to_string().len() > 20, "{path}");
            seen += &answer.to_string();
        }
    }
    let notices = eventually("its mail and its operational events", || async {
        let types: Vec<Value> = ear.seen().iter().map(|seen| seen.json()["type"].clone()).collect();
        let has = |kind: &str| types.iter().any(|found| found == kind);
        let mails = mails.mails();
        if has("delivery.dead") && !mails.is_empty() {
            Ok(mails.iter().map(|mail| mail.message.clone()).collect::<String>())
        } else {
            Err(format!("{types:?} and {} mails", mails.len()))
        }
    })
    .await;
    seen += &notices;
    seen.extend(ear.seen().iter().map(|seen| seen.json().to_string()));
    assert!(seen.contains("where this gateway may not call"), "{seen}");
    assert!(!seen.contains("10.99.88.77") && !seen.contains("For the operator"), "{seen}");
}
