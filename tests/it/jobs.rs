//! Jobs: a lost night is found, previewed and sent again with one command.

use serde_json::{Value, json};

use crate::cli::{asked, cli_output, to_gateway};
use crate::support::{Gateway, Receiver, Reply, eager_retry, eventually, unlimited};

for_every_store! {
    a_lost_night_is_grouped_previewed_and_replayed_with_one_command,
    a_job_goes_on_after_kill_nine_and_takes_each_delivery_once,
    a_replay_goes_in_the_order_of_its_lanes_and_leaves_out_what_they_have_passed,
    a_busy_key_keeps_no_other_lane_waiting,
    a_job_over_all_tenants_takes_what_is_dead_in_each,
    a_new_endpoint_gets_past_events_with_one_command,
    a_job_knows_from_its_beginning_how_many_match,
    a_held_endpoint_is_said_before_and_while_a_job_waits_for_it,
    waiting_deliveries_are_retried_with_one_command,
    waiting_deliveries_are_cancelled_with_one_command,
    a_job_is_paused_resumed_cancelled_and_limited,
    a_job_says_of_each_delivery_that_it_names_what_became_of_it,
    what_is_asked_of_a_job_is_checked,
    dead_letters_of_a_deleted_endpoint_are_chosen_by_its_id,
}

const JOBS: &str = "/v1/tenants/default/jobs";
const DEAD: &str = "/v1/tenants/default/dead-letters";

/// Lets this many events die at a receiver that refuses them.
async fn lost(gateway: &Gateway, receiver: &Receiver, count: usize) -> Value {
    receiver.answer_with(|_| Reply::Status(400));
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "max_in_flight": 5});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("lost", "a.x", count, |_| None).await;
    wait_for_dead(gateway, count).await;
    endpoint
}

async fn wait_for_dead(gateway: &Gateway, count: usize) {
    eventually("dead letters", || async {
        let groups = gateway.client.get(&format!("{DEAD}/groups")).await.expect(200);
        if groups["total"]["count"] == count { Ok(()) } else { Err(groups["total"].to_string()) }
    })
    .await;
}

async fn wait_for_job(gateway: &Gateway, job: &Value, is_so: impl Fn(&Value) -> bool) -> Value {
    let path = format!("{JOBS}/{}", job["id"].as_str().unwrap());
    eventually("the job to come so far", || async {
        let job = gateway.client.get(&path).await.expect(200);
        if is_so(&job) { Ok(job) } else { Err(job.to_string()) }
    })
    .await
}

fn is_finished(job: &Value) -> bool {
    job["state"] == "finished"
}

async fn a_lost_night_is_grouped_previewed_and_replayed_with_one_command() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = lost(&gateway, &receiver, 60).await;
    let groups = asked(&gateway, &["dead-letters", "groups", "--by", "endpoint,cause,status"]).await;
    let group = &groups["data"][0];
    assert_eq!(
        (&group["endpoint"], &group["cause"], &group["answer"]),
        (&endpoint["id"], &json!("refused"), &json!("400"))
    );
    assert_eq!((&group["count"], &groups["total"]["count"], &group["day"]), (&json!(60), &json!(60), &Value::Null));
    for (class, count) in [("4xx", 60), ("5xx", 0)] {
        let found = asked(&gateway, &["dead-letters", "groups", "--answer", class]).await;
        assert_eq!(found["total"]["count"], count, "{class}");
    }
    let all = asked(&gateway, &["dead-letters", "groups", "--all"]).await;
    assert_eq!(all["data"][0]["tenant"], "default");
    receiver.answer_with(|_| Reply::Status(200));

    let replay = ["dead-letters", "replay", "--since", "2h", "--cause", "refused", "--answer", "4xx"];
    let preview = asked(&gateway, &[&replay[..], &["--dry-run"]].concat()).await;
    assert_eq!((&preview["matches"], &preview["is_exact"]), (&json!(60), &json!(true)));
    assert_eq!(preview["endpoints"][0]["endpoint"], endpoint["id"]);
    assert_eq!(receiver.count(), 60, "a preview sends nothing");

    let job = asked(&gateway, &replay).await;
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["matched"], &job["done"], &job["left_out"]), (&json!(60), &json!(60), &json!([])));
    assert_eq!(job["outcome"], json!({"delivered": 60, "dead": 0, "waiting": 0}));
    assert_eq!((&job["endpoints"][0]["done"], &job["endpoints"][0]["left_out"]), (&json!(60), &json!([])));
    assert!(receiver.times_by_id().values().all(|times| *times == 2), "once refused and once delivered");
    wait_for_dead(&gateway, 0).await;
    let audit = gateway.list("/v1/tenants/default/audit").await;
    let about: Vec<&Value> = audit.iter().filter(|entry| entry["resource"] == job["id"]).collect();
    assert_eq!((about.len(), &about[0]["action"]), (1, &json!("job.started")));
}

async fn a_job_goes_on_after_kill_nine_and_takes_each_delivery_once() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    lost(&gateway, &receiver, 60).await;
    receiver.answer_with(|_| Reply::Status(200));
    let new = json!({"kind": "replay", "filter": {"all": true}, "per_second": 20, "note": "the night of the outage"});
    let job = gateway.client.post_json(JOBS, &new).await.expect(202);
    receiver.wait_for(70).await;
    let gateway = gateway.killed_and_restarted().await;
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!(
        (&job["done"], &job["outcome"]["delivered"], &job["note"]),
        (&json!(60), &json!(60), &json!("the night of the outage"))
    );
    let deliveries = gateway.list("/v1/tenants/default/deliveries").await;
    assert!(deliveries.iter().all(|delivery| delivery["state"] == "delivered"), "{deliveries:?}");
    // Only what was on the wire when it was killed may have come once more.
    let times = receiver.times_by_id();
    assert!(times.values().all(|times| (2..=3).contains(times)), "{times:?}");
    assert!(times.values().filter(|times| **times == 3).count() <= 5, "{times:?}");
}

async fn a_replay_goes_in_the_order_of_its_lanes_and_leaves_out_what_they_have_passed() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(400)]).await;
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "retry": eager_retry(2)});
    let blocking = gateway.create_endpoint(settings).await;
    gateway.send_many("k", "a.x", 12, |n| Some(format!("key{}", n % 3))).await;
    wait_for_dead(&gateway, 3).await;
    receiver.answer_with(|_| Reply::Status(200));
    let filter = json!({"endpoints": [blocking["id"]]});
    let preview = json!({"kind": "replay", "filter": filter, "dry_run": true});
    let preview = gateway.client.post_json(JOBS, &preview).await.expect(200);
    assert_eq!(
        (&preview["matches"], &preview["unblocks"]),
        (&json!(3), &json!({"waiting": 9, "lanes": 3, "is_exact": true}))
    );
    let job = gateway.client.post_json(JOBS, &json!({"kind": "replay", "filter": filter})).await.expect(202);
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!(job["done"], 3, "the heads; the rest follows");
    let seen = receiver.wait_for(15).await;
    for key in ["key0", "key1", "key2"] {
        let seqs: Vec<&str> =
            seen.iter().filter(|one| one.header("x-key") == key).map(|one| one.header("x-seq")).collect();
        assert_eq!(seqs, ["1", "1", "2", "3", "4"]);
    }
    // What arrived has been passed: to send it again is to send an older state.
    gateway.drained(&blocking).await;
    let again = json!({"kind": "replay", "filter": {"state": "delivered", "endpoints": [blocking["id"]]}});
    let job = gateway.client.post_json(JOBS, &again).await.expect(202);
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["done"], &job["left_out"]), (&json!(0), &json!([{"why": "overtaken", "count": 12}])));
    assert_eq!(job["endpoints"][0]["left_out"], job["left_out"], "all of it is there");
    assert_eq!(receiver.count(), 15);
}

async fn a_busy_key_keeps_no_other_lane_waiting() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(400)]).await;
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "on_dead": "skip", "max_in_flight": 4});
    gateway.create_endpoint(settings).await;
    // Ten of one key, and behind them ten of other keys.
    gateway.send_many("n", "a.x", 20, |n| Some(if n < 10 { "busy".to_owned() } else { format!("key{n}") })).await;
    wait_for_dead(&gateway, 20).await;
    let busy = |one: &crate::support::ReceivedRequest| one.header("x-key") == "busy";
    receiver.answer_with(|one| if one.header("x-key") == "busy" { Reply::Hold(200) } else { Reply::Status(200) });
    let new = json!({"kind": "replay", "filter": {"all": true}, "even_overtaken": true});
    let job = gateway.client.post_json(JOBS, &new).await.expect(202);
    let job = wait_for_job(&gateway, &job, |job| job["outcome"]["delivered"] == 10).await;
    assert_eq!((&job["done"], &job["outcome"]["waiting"], &job["state"]), (&json!(11), &json!(1), &json!("running")));
    assert_eq!(receiver.seen().iter().filter(|one| busy(one)).count(), 11, "one of the busy key is under way");
    receiver.answer_with(|_| Reply::Status(200));
    receiver.release();
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["done"], &job["outcome"]["delivered"]), (&json!(20), &json!(20)));
    let seqs: Vec<u32> = receiver
        .seen()
        .iter()
        .filter(|one| busy(one))
        .skip(10)
        .map(|one| one.header("x-seq").parse().unwrap())
        .collect();
    assert!(seqs.is_sorted() && seqs.len() >= 10, "{seqs:?}");
}

async fn a_job_over_all_tenants_takes_what_is_dead_in_each() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    lost(&gateway, &receiver, 5).await;
    gateway.client.send("PUT", "/v1/tenants/other", &[], "{}").await.unwrap().expect(201);
    let settings = json!({"url": receiver.url(), "rate": unlimited()});
    gateway.client.post_json("/v1/tenants/other/endpoints", &settings).await.expect(201);
    gateway.client.post_json("/v1/tenants/other/events", &json!({"type": "a.x", "data": 1})).await.expect(202);
    eventually("the other tenant's dead letter", || async {
        let groups = gateway.client.get("/v1/dead-letters/groups").await.expect(200);
        if groups["total"]["count"] == 6 { Ok(()) } else { Err(groups["total"].to_string()) }
    })
    .await;
    receiver.answer_with(|_| Reply::Status(200));
    let replay = ["dead-letters", "replay", "--all", "--everything"];
    let preview = asked(&gateway, &[&replay[..], &["--dry-run"]].concat()).await;
    assert_eq!(
        (&preview["matches"], &preview["is_exact"], &preview["looked_at"]),
        (&json!(6), &json!(true), &Value::Null)
    );
    let job = asked(&gateway, &replay).await;
    assert_eq!(job["tenant"], "_system");
    let path = format!("/v1/tenants/_system/jobs/{}", job["id"].as_str().unwrap());
    let job = eventually("the job to be finished", || async {
        let job = gateway.client.get(&path).await.expect(200);
        if is_finished(&job) { Ok(job) } else { Err(job.to_string()) }
    })
    .await;
    assert_eq!((&job["done"], &job["outcome"]["delivered"]), (&json!(6), &json!(6)));
}

async fn a_new_endpoint_gets_past_events_with_one_command() {
    let gateway = Gateway::start().await;
    let (first, second) = (Receiver::start().await, Receiver::start().await);
    let settings = |receiver: &Receiver| json!({"url": receiver.url(), "rate": unlimited(), "event_types": ["a.*"]});
    let old = gateway.create_endpoint(settings(&first)).await;
    gateway.send_many("past", "a.x", 30, |n| Some(format!("key{}", n % 3))).await;
    gateway.send_many("other", "b.x", 3, |_| None).await;
    gateway.drained(&old).await;
    let new = gateway.create_endpoint(settings(&second)).await;
    gateway.send_many("fresh", "a.x", 1, |_| Some("key0".into())).await;
    second.wait_for(1).await;
    let backfill = ["endpoints", "backfill", new["id"].as_str().unwrap(), "--since", "1h"];
    let preview = asked(&gateway, &[&backfill[..], &["--dry-run"]].concat()).await;
    let overtaken = json!([{"why": "overtaken", "count": 10}, {"why": "already_got", "count": 1}]);
    assert_eq!((&preview["matches"], &preview["left_out"]), (&json!(20), &overtaken));
    let job = asked(&gateway, &backfill).await;
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["done"], &job["outcome"]["delivered"], &job["left_out"]), (&json!(20), &json!(20), &overtaken));
    let seen = second.seen();
    assert_eq!((seen.len(), first.count()), (21, 31));
    for key in ["key1", "key2"] {
        let ids: Vec<String> =
            seen.iter().filter(|one| one.header("x-key") == key).map(|one| one.id().to_owned()).collect();
        let numbers: Vec<usize> = ids.iter().map(|id| id.rsplit(['-', '_']).next().unwrap().parse().unwrap()).collect();
        assert!(numbers.is_sorted() && numbers.len() == 10, "{ids:?}");
    }
    let again = asked(&gateway, &backfill).await;
    let again = wait_for_job(&gateway, &again, is_finished).await;
    assert_eq!((&again["done"], second.count()), (&json!(0), 21), "each event once");
    let wrong = json!({"kind": "backfill", "filter": {"endpoints": [new["id"]], "cause": "refused"}});
    gateway.client.post_json(JOBS, &wrong).await.problem(422, "invalid_field");
}

async fn a_job_knows_from_its_beginning_how_many_match() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    lost(&gateway, &receiver, 20).await;
    let slow = json!({"kind": "replay", "filter": {"finished_since": "2020-01-01T00:00:00Z"}, "per_second": 0.001});
    let job = gateway.client.post_json(JOBS, &slow).await.expect(202);
    assert_eq!(
        (&job["matched"], &job["is_exact"], &job["endpoints"][0]["matched"]),
        (&json!(20), &json!(false), &json!(20))
    );
    let job = wait_for_job(&gateway, &job, |job| job["done"] == 1).await;
    assert_eq!((&job["matched"], &job["is_exact"]), (&json!(20), &json!(false)));
}

async fn a_held_endpoint_is_said_before_and_while_a_job_waits_for_it() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = lost(&gateway, &receiver, 3).await;
    receiver.answer_with(|_| Reply::Status(200));
    let id = endpoint["id"].as_str().unwrap();
    let replay = ["dead-letters", "replay", "--everything"];
    let free = asked(&gateway, &[&replay[..], &["--dry-run"]].concat()).await;
    assert_eq!(free["endpoints"][0]["held_by"], Value::Null);
    assert!(free["done_at"].is_string(), "{free}");
    asked(&gateway, &["endpoints", "open-breaker", id]).await;
    let held = asked(&gateway, &[&replay[..], &["--dry-run"]].concat()).await;
    assert_eq!((&held["endpoints"][0]["held_by"], &held["done_at"]), (&json!("breaker"), &Value::Null));
    asked(&gateway, &["endpoints", "pause", id]).await;
    let held = asked(&gateway, &[&replay[..], &["--dry-run"]].concat()).await;
    assert_eq!((&held["endpoints"][0]["held_by"], &held["done_at"]), (&json!("pause"), &Value::Null));
    let said = cli_output(&gateway, &[&replay[..], &["--dry-run"]].concat()).await;
    assert!(said.contains("is paused: nothing is sent to it until it is resumed"), "{said}");
    assert!(said.contains(&format!("endpoints resume {id}")), "{said}");
    let job = asked(&gateway, &replay).await;
    assert_eq!((&job["endpoints"][0]["held_by"], &job["eta_at"]), (&json!("pause"), &Value::Null));
    asked(&gateway, &["endpoints", "resume", id]).await;
    asked(&gateway, &["endpoints", "close-breaker", id]).await;
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["outcome"]["delivered"], &job["endpoints"][0]["held_by"]), (&json!(3), &Value::Null));
}

/// Lets this many deliveries wait for an hour, after one failure each.
async fn waiting(gateway: &Gateway, receiver: &Receiver, count: usize) -> Value {
    receiver.answer_with(|_| Reply::Status(503));
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "event_types": ["a.*"],
        "retry": {"schedule": ["1h"], "max_attempts": 9}, "breaker": {"enabled": false}});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("late", "a.x", count, |_| None).await;
    eventually("every first attempt", || async {
        let listed = gateway.list("/v1/tenants/default/deliveries").await;
        let tried = listed.iter().filter(|one| one["attempts"] == 1 && one["in_flight"] == false).count();
        if tried == count { Ok(()) } else { Err(format!("{tried} were tried")) }
    })
    .await;
    endpoint
}

async fn waiting_deliveries_are_retried_with_one_command() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = waiting(&gateway, &receiver, 6).await;
    receiver.answer_with(|_| Reply::Status(200));
    let retry = ["deliveries", "retry", "--endpoint", endpoint["id"].as_str().unwrap(), "--since", "1h"];
    let preview = asked(&gateway, &[&retry[..], &["--dry-run"]].concat()).await;
    assert_eq!((&preview["matches"], &preview["is_exact"]), (&json!(6), &json!(true)));
    assert_eq!(receiver.count(), 6, "a preview sends nothing");
    let job = asked(&gateway, &retry).await;
    assert_eq!(job["kind"], "retry");
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["matched"], &job["done"], &job["outcome"]["delivered"]), (&json!(6), &json!(6), &json!(6)));
    let none = asked(&gateway, &["deliveries", "replay", "--everything", "--dry-run"]).await;
    assert_eq!(none["matches"], 0, "dead ones are meant");
    let replay = ["deliveries", "replay", "--state", "delivered", "--finished-since", "1h"];
    let job = asked(&gateway, &replay).await;
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["kind"], &job["outcome"]["delivered"]), (&json!("replay"), &json!(6)));
    assert_eq!(receiver.count(), 18);
}

async fn waiting_deliveries_are_cancelled_with_one_command() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    waiting(&gateway, &receiver, 6).await;
    let cancel = ["deliveries", "cancel", "--event-type", "a.*", "--answer", "5xx"];
    let preview = asked(&gateway, &[&cancel[..], &["--dry-run"]].concat()).await;
    assert_eq!((&preview["matches"], &preview["done_at"]), (&json!(6), &Value::Null));
    let job = asked(&gateway, &cancel).await;
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["kind"], &job["done"]), (&json!("cancel"), &json!(6)));
    let listed = gateway.list("/v1/tenants/default/deliveries").await;
    assert!(listed.iter().all(|one| one["state"] == "cancelled"), "{listed:?}");
    assert_eq!(receiver.count(), 6);
}

async fn a_job_is_paused_resumed_cancelled_and_limited() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    lost(&gateway, &receiver, 20).await;
    let slow = json!({"kind": "replay", "filter": {"all": true}, "per_second": 0.001});
    let first = gateway.client.post_json(JOBS, &slow).await.expect(202);
    let path = format!("{JOBS}/{}", first["id"].as_str().unwrap());
    assert_eq!(gateway.client.post(&format!("{path}/pause"), "").await.expect(200)["state"], "paused");
    let second = gateway.client.post_json(JOBS, &slow).await.expect(202);
    assert!(second["eta_at"].as_str().is_some_and(|eta| eta > second["started_at"].as_str().unwrap()), "{second}");
    let resumed = asked(&gateway, &["jobs", "resume", first["id"].as_str().unwrap()]).await;
    assert_eq!(resumed["state"], "running");
    let third = gateway.client.post_json(JOBS, &slow).await.expect(202);
    assert_eq!(third["state"], "queued", "a tenant has two that run");
    assert_eq!(gateway.client.get("/v1/tenants/default").await.expect(200)["usage"]["jobs_running"], 2);
    let found = asked(&gateway, &["find", third["id"].as_str().unwrap()]).await;
    assert_eq!(found["data"][0]["kind"], "job");
    assert_eq!(gateway.client.post(&format!("{path}/cancel"), "").await.expect(200)["state"], "cancelled");
    gateway.client.post(&format!("{path}/resume"), "").await.problem(409, "wrong_state");
    wait_for_job(&gateway, &third, |job| job["state"] == "running").await;
    for job in [&second, &third] {
        asked(&gateway, &["jobs", "cancel", job["id"].as_str().unwrap()]).await;
    }
    let discard = json!({"kind": "discard", "filter": {"event_types": ["a.*"], "answers": ["400"]}});
    let job = gateway.client.post_json(JOBS, &discard).await.expect(202);
    wait_for_job(&gateway, &job, is_finished).await;
    wait_for_dead(&gateway, 0).await;
    let listed = asked(&gateway, &["jobs", "list", "--all"]).await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 4);
    assert_eq!(listed["data"][0]["id"], job["id"]);
}

/// Id of an endpoint that was never created.
const NO_ENDPOINT: &str = "ep_01k9zzzzzzzzzzzzzzzzzzzzzz";

async fn a_job_says_of_each_delivery_that_it_names_what_became_of_it() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    lost(&gateway, &receiver, 3).await;
    receiver.answer_with(|_| Reply::Status(200));
    let mut ids: Vec<Value> = gateway.list(DEAD).await.iter().map(|one| one["id"].clone()).collect();
    let path = format!("/v1/tenants/default/deliveries/{}/replay", ids[1].as_str().unwrap());
    gateway.client.post(&path, "").await.expect(202);
    wait_for_dead(&gateway, 2).await;
    let unknown = json!("dlv_00000000000000000000000000");
    ids.extend([unknown.clone(), ids[0].clone()]);
    let left_out = json!([{"why": "wrong_state", "count": 2}]);
    let ask = |ids: &[Value], is_dry| json!({"kind": "replay", "filter": {"ids": ids}, "dry_run": is_dry});
    let preview = gateway.client.post_json(JOBS, &ask(&ids, true)).await.expect(200);
    assert_eq!((&preview["matches"], &preview["is_exact"]), (&json!(2), &json!(true)));
    assert_eq!(preview["left_out"], left_out, "one is no longer dead, and one is not there");
    let job = gateway.client.post_json(JOBS, &ask(&ids, false)).await.expect(202);
    let job = wait_for_job(&gateway, &job, is_finished).await;
    assert_eq!((&job["matched"], &job["done"], &job["left_out"]), (&json!(4), &json!(2), &left_out));
    let left_out = json!([{"why": "wrong_state", "count": 1}]);
    let preview = gateway.client.post_json(JOBS, &ask(std::slice::from_ref(&unknown), true)).await.expect(200);
    assert_eq!((&preview["matches"], &preview["left_out"]), (&json!(0), &left_out));
    let job = gateway.client.post_json(JOBS, &ask(&[unknown], false)).await.expect(202);
    assert_eq!((&job["state"], &job["matched"], &job["left_out"]), (&json!("finished"), &json!(1), &left_out));
}

async fn what_is_asked_of_a_job_is_checked() {
    let gateway = Gateway::start().await;
    for (body, pointer) in [
        (json!({"kind": "replay", "filter": {}}), "/filter"),
        (json!({"kind": "replay"}), "/filter"),
        (json!({"kind": "retry", "filter": {"state": "dead"}}), "/filter/state"),
        (json!({"kind": "replay", "filter": {"all": true}, "per_second": 0}), "/per_second"),
        (json!({"kind": "send", "filter": {"all": true}}), "/kind"),
        (json!({"kind": "replay", "filter": {"answers": ["503", "50x"]}}), "/filter/answers/1"),
        (json!({"kind": "discard", "filter": {"answers": ["timeuot"]}}), "/filter/answers/0"),
        (json!({"kind": "retry", "filter": {"event_types": ["order-*"]}}), "/filter/event_types/0"),
        (json!({"kind": "replay", "filter": {"cause": "exausted"}}), "/filter/cause"),
        (json!({"kind": "replay", "filter": {"endpoints": [NO_ENDPOINT]}}), "/filter/endpoints/0"),
        (json!({"kind": "backfill", "filter": {"endpoints": [NO_ENDPOINT], "all": true}}), "/filter/endpoints/0"),
    ] {
        let refused = gateway.client.post_json(JOBS, &body).await.problem(422, "invalid_field");
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{refused}");
    }
    gateway
        .client
        .post_json(JOBS, &json!({"kind": "replay", "filter": {"alles": 1}}))
        .await
        .problem(422, "unknown_field");
    gateway.client.get(&format!("{JOBS}/job_00000000000000000000000000")).await.problem(404, "not_found");
    let job = gateway.client.post_json(JOBS, &json!({"kind": "replay", "filter": {"all": true}})).await.expect(202);
    assert_eq!(job["state"], "finished", "there was nothing to do");
    for wrong in [["--answer", "50x"], ["--event-type", "order-*"], ["--cause", "exausted"]] {
        let output = to_gateway(&gateway, &[&["dead-letters", "replay"][..], &wrong].concat()).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    let unknown = ["dead-letters", "replay", "--endpoint", NO_ENDPOINT];
    let unknown = to_gateway(&gateway, &unknown).output().await.unwrap();
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && said.contains("does not exist"), "{said}");
}

async fn dead_letters_of_a_deleted_endpoint_are_chosen_by_its_id() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = lost(&gateway, &receiver, 2).await;
    let id = endpoint["id"].as_str().unwrap();
    gateway.client.send("DELETE", &format!("/v1/tenants/default/endpoints/{id}"), &[], "").await.unwrap().expect(204);
    let discard = json!({"kind": "discard", "filter": {"endpoints": [id]}});
    let job = gateway.client.post_json(JOBS, &discard).await.expect(202);
    assert_eq!(wait_for_job(&gateway, &job, is_finished).await["done"], 2);
    let refused = gateway.client.post_json(JOBS, &discard).await.problem(422, "invalid_field");
    assert_eq!(refused["errors"][0]["pointer"], "/filter/endpoints/0", "nothing of it is left");
}
