//! Whom the gateway calls, and whom nobody can make it call: by names that
//! change their minds, through proxies, and past the words it tells.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    Client, DnsAnswer, Gateway, NameServer, Options, Proxy, ProxyBehaviour, RawReceiver, RawStep, Receiver,
    eager_retry, eventually, path_of,
};
use crate::tls::{Authority, TlsReceiver};

const ENDPOINTS: &str = "/v1/tenants/default/endpoints";

/// A gateway that asks this name server, and may call these networks.
fn asking(names: &NameServer, allowed: &str, more: &[&str]) -> Options {
    let dns = names.address.to_string();
    let flags = [&["--dns", &dns, "--allow-egress", allowed][..], more].concat();
    Options::flags(&flags)
}

/// A receiver that nobody is to reach.
async fn canary() -> RawReceiver {
    RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Write("HTTP/1.1 200 OK\r\n\r\n".into())]).await
}

fn connections(receiver: &RawReceiver) -> usize {
    receiver.connections_opened.load(Ordering::SeqCst)
}

/// A problem without the name of its request.
fn without_id(mut problem: Value) -> Value {
    problem.as_object_mut().unwrap().remove("request_id");
    problem
}

/// Sends one event to an endpoint and waits until it is over.
async fn ended(gateway: &Gateway, id: &str, endpoint: &Value) -> Value {
    gateway.send(json!({"id": id, "type": "t", "endpoints": [endpoint["id"]], "data": 1})).await;
    eventually(&format!("event {id} to end"), || async {
        let delivery = gateway.delivery_of(id).await;
        if delivery["state"] == "waiting" { Err(delivery.to_string()) } else { Ok(delivery) }
    })
    .await
}

#[tokio::test]
async fn a_name_is_accepted_by_what_it_points_at_when_an_endpoint_is_made() {
    let names = NameServer::answering(|name| match name {
        "good.example" => DnsAnswer::addresses(&["127.0.0.2", "127.0.0.3"]),
        "public.example" => DnsAnswer::addresses(&["93.184.216.34", "2606:2800::1"]),
        "inside.example" => DnsAnswer::addresses(&["10.0.0.1"]),
        "metadata.example" => DnsAnswer::addresses(&["169.254.169.254"]),
        "mixed.example" => DnsAnswer::addresses(&["93.184.216.34", "192.168.0.1"]),
        "mixed6.example" => DnsAnswer::addresses(&["93.184.216.34", "fd00::1"]),
        "only6.example" => DnsAnswer::addresses(&["::ffff:127.0.0.1"]),
        "nat64.example" => DnsAnswer::addresses(&["64:ff9b::7f00:1"]),
        "alias.example" => DnsAnswer::Alias("elsewhere.example", vec!["10.0.0.1".parse().unwrap()]),
        "many.example" => {
            DnsAnswer::Addresses((0..40_u8).map(|n| [93, 184, 216, n].into()).chain([[127, 0, 0, 1].into()]).collect())
        }
        "broken.example" => DnsAnswer::Failure,
        "silent.example" => DnsAnswer::Silence,
        "cluster.local" => DnsAnswer::addresses(&["93.184.216.34"]),
        "opened.local" => DnsAnswer::addresses(&["127.0.0.2"]),
        _ => DnsAnswer::Nothing,
    })
    .await;
    let gateway = Gateway::start_with(asking(&names, "127.0.0.2/31", &[])).await;
    let mut told = BTreeSet::new();
    for host in [
        "inside.example",
        "INSIDE.example.",
        "metadata.example",
        "mixed.example",
        "mixed6.example",
        "only6.example",
        "nat64.example",
        "alias.example",
        "many.example",
        "cluster.local",
        "unknown.internal",
        "localhost",
        "127.0.0.1",
        "10.0.0.1:8443",
        "[::1]",
        "[fd00::1]:8443",
    ] {
        let refused = gateway.client.post_json(ENDPOINTS, &json!({"url": format!("https://{host}/")})).await;
        told.insert(without_id(refused.problem(422, "target_forbidden")).to_string());
    }
    assert_eq!(told.len(), 1, "every one of them reads the same: {told:#?}");
    let mut told = BTreeSet::new();
    for host in ["good.example:22", "public.example:22", "inside.example:22", "10.0.0.1:22", "localhost:22"] {
        let refused = gateway.client.post_json(ENDPOINTS, &json!({"url": format!("https://{host}/")})).await;
        told.insert(without_id(refused.problem(422, "target_forbidden")).to_string());
    }
    assert_eq!(told.len(), 1, "a port is refused alike, wherever it is: {told:#?}");
    assert!(told.iter().all(|problem| problem.contains("--allow-port 22")), "{told:#?}");
    for host in ["good.example", "public.example", "unknown.example", "broken.example", "opened.local"] {
        let endpoint = gateway.create_endpoint(json!({"url": format!("https://{host}./hook")})).await;
        assert_eq!(endpoint["url"], format!("https://{host}/hook"));
        gateway
            .client
            .patch_json(&path_of(&endpoint), &json!({"url": "https://inside.example/"}))
            .await
            .problem(422, "target_forbidden");
        let kept = gateway.patch(&endpoint, json!({"description": "still here"})).await;
        assert_eq!(kept["url"], format!("https://{host}/hook"));
    }
    let began = Instant::now();
    gateway.create_endpoint(json!({"url": "https://silent.example/"})).await;
    assert!(began.elapsed() < Duration::from_secs(4), "nobody waits for a name server: {:?}", began.elapsed());
    assert!(!names.asked().iter().any(|name| name.ends_with("localhost")), "this machine is not asked for");
}

#[tokio::test]
async fn a_network_closed_in_its_ipv6_form_and_the_unspecified_address_are_not_called() {
    let canary = canary().await;
    let port = canary.address.port();
    let names = NameServer::answering(|name| match name {
        "zero.example" => DnsAnswer::addresses(&["0.0.0.0"]),
        "zero6.example" => DnsAnswer::addresses(&["::"]),
        _ => DnsAnswer::addresses(&["127.0.0.1"]),
    })
    .await;
    let closed = asking(&names, "0.0.0.0/0,::/0", &["--allow-http", "--deny-egress", "::ffff:127.0.0.0/104"]);
    let gateway = Gateway::start_with(closed).await;
    for host in
        ["127.0.0.1", "[::ffff:127.0.0.1]", "near.example", "0.0.0.0", "0", "[::]", "zero.example", "zero6.example"]
    {
        let url = json!({"url": format!("http://{host}:{port}/")});
        gateway.client.post_json(ENDPOINTS, &url).await.problem(422, "target_forbidden");
    }
    assert_eq!(connections(&canary), 0, "not even a connection was opened");
}

#[tokio::test]
async fn a_name_that_points_inside_after_its_endpoint_was_made_is_not_called() {
    let canary = canary().await;
    let names = NameServer::answering(|_| DnsAnswer::addresses(&["127.0.0.2"])).await;
    let gateway = Gateway::start_with(asking(&names, "127.0.0.2/32", &[])).await;
    let url = format!("http://rebound.example:{}/hook", canary.address.port());
    let endpoint = gateway.create_endpoint(json!({"url": url, "retry": eager_retry(8)})).await;
    names.answer_with(|_| DnsAnswer::addresses(&["127.0.0.1"]));
    let dead = ended(&gateway, "rebound", &endpoint).await;
    assert_eq!((&dead["state"], &dead["cause"], &dead["attempts"]), (&json!("dead"), &json!("refused"), &json!(5)));
    // Whichever it says at a time, and whichever comes first.
    let mut n = 0;
    names.answer_with(move |_| {
        n += 1;
        match n % 3 {
            0 => DnsAnswer::addresses(&["127.0.0.1"]),
            1 => DnsAnswer::addresses(&["127.0.0.2", "127.0.0.1"]),
            _ => DnsAnswer::addresses(&["127.0.0.1", "127.0.0.2"]),
        }
    });
    let dead = ended(&gateway, "torn", &endpoint).await;
    for attempt in gateway.attempts_of(&dead).await {
        assert_eq!(attempt["error"]["kind"], "target_forbidden", "{attempt}");
    }
    assert_eq!(connections(&canary), 0, "not even a connection was opened");
}

#[tokio::test]
async fn an_address_that_was_judged_is_the_one_that_is_called() {
    // Each question is answered with the next address; whoever asked twice
    // would call the wrong one.
    let receiver = Receiver::start().await;
    let mut n = 0_u8;
    let names = NameServer::answering(move |_| {
        n = n.wrapping_add(1);
        if n % 2 == 1 { DnsAnswer::addresses(&["127.0.0.1"]) } else { DnsAnswer::Nothing }
    })
    .await;
    let gateway = Gateway::start_with(asking(&names, "127.0.0.1/32", &[])).await;
    let url = format!("http://Hooks.example.:{}/hook", receiver.address.port());
    let endpoint = gateway.create_endpoint(json!({"url": url, "retry": eager_retry(20)})).await;
    assert_eq!(ended(&gateway, "called", &endpoint).await["state"], "delivered");
    let seen = receiver.seen();
    assert_eq!(seen[0].header("host"), format!("hooks.example:{}", receiver.address.port()), "under its own name");
}

#[tokio::test]
async fn an_attempt_tells_its_owner_nothing_about_what_is_there_and_the_log_tells_all() {
    let (open, closed) = (canary().await, { canary().await.address.port() });
    let names = NameServer::answering(|_| DnsAnswer::Failure).await;
    let log = tempfile::NamedTempFile::new().unwrap();
    let options = Options { log: Some(log.path().to_owned()), ..asking(&names, "127.0.0.9/32", &["--allow-http"]) };
    let gateway = Gateway::start_with(options).await;
    let cases = [
        ("open.example", open.address.port()),
        ("closed.example", closed),
        ("filtered.example", 9),
        ("metadata.example", 80),
        ("six.example", 443),
    ];
    let mut endpoints = Vec::new();
    for (host, port) in cases {
        let settings = json!({"url": format!("http://{host}:{port}/"), "retry": {"max_attempts": 1}});
        endpoints.push(gateway.create_endpoint(settings).await);
    }
    names.answer_with(|name| match name {
        "filtered.example" => DnsAnswer::addresses(&["10.255.255.1"]),
        "metadata.example" => DnsAnswer::addresses(&["169.254.169.254"]),
        "six.example" => DnsAnswer::addresses(&["fd00:ec2::254"]),
        _ => DnsAnswer::addresses(&["127.0.0.1"]),
    });
    let new = json!({"tenant": "default", "rights": ["manage"]});
    let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
    let reader = Client::new(gateway.address, made["token"].as_str().unwrap());
    let mut told = BTreeSet::new();
    for (n, endpoint) in endpoints.iter().enumerate() {
        let dead = ended(&gateway, &format!("to-{n}"), endpoint).await;
        let attempts = gateway.attempts_of(&dead).await;
        assert_eq!(attempts[0]["error"]["kind"], "target_forbidden", "{}", attempts[0]);
        assert_eq!(attempts[0]["timings"], json!({"total": 0.0}), "{}", attempts[0]);
        assert_eq!(attempts[0]["duration_ms"], 0.0);
        told.insert(attempts[0]["error"]["message"].as_str().unwrap().to_owned());
        let path = format!("/v1/tenants/default/deliveries/{}/explain", dead["id"].as_str().unwrap());
        let explained = reader.get(&path).await.expect(200).to_string();
        for inside in ["127.0.0.1", "10.255", "169.254", "fd00"] {
            assert!(!explained.contains(inside), "{explained}");
            assert!(!dead.to_string().contains(inside), "{dead}");
        }
    }
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(connections(&open), 0);
    let log = std::fs::read_to_string(log.path()).unwrap();
    for words in ["127.0.0.1", "10.255.255.1", "169.254.169.254", "fd00:ec2::254", "--allow-egress 10.255.255.1/32"] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[tokio::test]
async fn a_test_is_judged_like_everything_else_and_not_made_often() {
    let names = NameServer::answering(|_| DnsAnswer::Failure).await;
    let gateway = Gateway::start_with(asking(&names, "127.0.0.0/8", &[])).await;
    let receiver = Receiver::start().await;
    let good = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let moved = gateway.create_endpoint(json!({"url": "https://moved.example/"})).await;
    names.answer_with(|_| DnsAnswer::addresses(&["10.0.0.1"]));
    let test = |endpoint: &Value| {
        let path = format!("{}/test", path_of(endpoint));
        let client = gateway.another_client();
        async move { client.post(&path, "").await }
    };
    test(&moved).await.problem(422, "target_forbidden");
    let limited = loop {
        let answer = test(&good).await;
        if answer.status != 202 {
            break answer;
        }
    };
    let problem = limited.problem(429, "rate_limited");
    assert!(problem["detail"].as_str().unwrap().contains("ten times a minute"), "{problem}");
    let wait: u64 = limited.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=7).contains(&wait), "{wait}");
    receiver.wait_for(9).await;
    assert_eq!(receiver.count(), 9, "the one that was refused counts, too");
    // Another tenant has its own ten.
    gateway.client.send("PUT", "/v1/tenants/other", &[], r#"{"name":"Other"}"#).await.unwrap().expect(201);
    let theirs =
        gateway.client.post_json("/v1/tenants/other/endpoints", &json!({"url": receiver.url()})).await.expect(201);
    assert_eq!(test(&theirs).await.status, 202);
}

#[tokio::test]
async fn others_than_this_machine_are_called_with_https_unless_http_is_allowed() {
    let names = NameServer::answering(|name| match name {
        "near.example" => DnsAnswer::addresses(&["127.0.0.1"]),
        "far.example" => DnsAnswer::addresses(&["10.0.0.1"]),
        _ => DnsAnswer::Nothing,
    })
    .await;
    let hosts = ["10.0.0.1", "far.example", "unknown.example"];
    let gateway = Gateway::start_with(asking(&names, "127.0.0.0/8,10.0.0.0/8", &[])).await;
    for host in hosts {
        let refused = gateway.client.post_json(ENDPOINTS, &json!({"url": format!("http://{host}/")})).await;
        let problem = refused.problem(422, "invalid_field");
        assert!(problem["detail"].as_str().unwrap().contains("--allow-http"), "{problem}");
        gateway.create_endpoint(json!({"url": format!("https://{host}/")})).await;
    }
    let receiver = Receiver::start().await;
    let port = receiver.address.port();
    for (n, host) in ["127.0.0.1", "localhost", "near.example"].iter().enumerate() {
        let endpoint = gateway.create_endpoint(json!({"url": format!("http://{host}:{port}/")})).await;
        assert_eq!(ended(&gateway, &format!("near-{n}"), &endpoint).await["state"], "delivered", "{host}");
    }
    let open = Gateway::start_with(asking(&names, "127.0.0.0/8,10.0.0.0/8", &["--allow-http"])).await;
    for host in hosts {
        open.create_endpoint(json!({"url": format!("http://{host}/")})).await;
    }
}

#[tokio::test]
async fn what_the_operator_closes_stays_closed_and_what_is_opened_is_open() {
    let flags = [
        "--allow-egress",
        "127.0.0.0/8,10.0.0.0/8",
        "--deny-egress",
        "10.9.0.0/16,127.0.0.3",
        "--allow-port",
        "6379,25",
    ];
    let gateway = Gateway::start_with(Options::flags(&flags)).await;
    let own = gateway.address.to_string();
    for host in
        ["10.9.1.2", "127.0.0.3", "[::ffff:10.9.1.2]", "10.0.0.1:5432", &own, &own.replace("127.0.0.1", "localhost")]
    {
        let refused = gateway.client.post_json(ENDPOINTS, &json!({"url": format!("https://{host}/")})).await;
        refused.problem(422, "target_forbidden");
    }
    for host in ["10.8.1.2", "127.0.0.4", "10.0.0.1:6379", "10.0.0.1:25"] {
        gateway.create_endpoint(json!({"url": format!("https://{host}/")})).await;
    }
}

#[tokio::test]
async fn through_a_proxy_the_name_is_judged_here_and_the_proxy_is_given_the_address() {
    let authority = Authority::named("ours");
    let receiver = TlsReceiver::start(authority.server(&["hooks.example"])).await;
    let names = NameServer::answering(|name| match name {
        "hooks.example" => DnsAnswer::addresses(&["127.0.0.1"]),
        "other.example" => DnsAnswer::addresses(&["127.0.0.1"]),
        "inside.example" => DnsAnswer::addresses(&["127.0.0.1", "10.0.0.1"]),
        _ => DnsAnswer::Nothing,
    })
    .await;
    let port = receiver.address.port();
    for (speaks, scheme, login, who) in [
        (ProxyBehaviour::Connect, "http", "", "nobody"),
        (ProxyBehaviour::Connect, "http", "me:p%40ss@", "Basic bWU6cEBzcw=="),
        (ProxyBehaviour::Socks5, "socks5", "", "nobody"),
        (ProxyBehaviour::Socks5WithLogin, "socks5", "me:p%40ss@", "me:p@ss"),
    ] {
        let proxy = Proxy::behaving(speaks).await;
        let through = format!("{scheme}://{login}{}", proxy.address);
        let options = asking(&names, "127.0.0.1/32", &["--egress-proxy", &through]);
        let gateway = authority.trusting_gateway_with(options).await;
        let settings = |host: &str| json!({"url": receiver.url(host), "retry": eager_retry(1)});
        let endpoint = gateway.create_endpoint(settings("hooks.example")).await;
        assert_eq!(ended(&gateway, "through", &endpoint).await["state"], "delivered", "{through}");
        assert_eq!(proxy.asked(), [format!("127.0.0.1:{port} for {who}")], "an address and not a name");
        // The certificate is still looked at, under the name in the URL.
        let other = gateway.create_endpoint(settings("other.example")).await;
        let dead = ended(&gateway, "other", &other).await;
        assert_eq!(dead["last_error"]["message"], "the certificate is for hooks.example, not for other.example");
        // What may not be called does not get as far as the proxy.
        let asked = proxy.asked().len();
        for host in ["inside.example", "10.0.0.1", "localhost.localdomain"] {
            let refused = gateway.client.post_json(ENDPOINTS, &settings(host)).await;
            refused.problem(422, "target_forbidden");
        }
        assert_eq!(proxy.asked().len(), asked);
    }
}

#[tokio::test]
async fn what_a_proxy_says_is_told_apart_and_its_own_trouble_costs_no_attempt() {
    let receiver = Receiver::start().await;
    let port = receiver.address.port();
    for (speaks, kind) in [
        (ProxyBehaviour::ConnectAnswering("HTTP/1.1 403 Forbidden"), "target_forbidden"),
        (ProxyBehaviour::ConnectAnswering("HTTP/1.1 502 Bad Gateway"), "unreachable"),
        (ProxyBehaviour::Socks5Answering(2), "target_forbidden"),
        (ProxyBehaviour::Socks5Answering(4), "unreachable"),
        (ProxyBehaviour::Socks5Answering(5), "connection_refused"),
    ] {
        let proxy = Proxy::behaving(speaks).await;
        let scheme = if matches!(speaks, ProxyBehaviour::Socks5Answering(_)) { "socks5" } else { "http" };
        let through = format!("{scheme}://{}", proxy.address);
        let flags = ["--allow-egress", "127.0.0.0/8", "--egress-proxy", &through];
        let gateway = Gateway::start_with(Options::flags(&flags)).await;
        let settings = json!({"url": receiver.url(), "retry": {"max_attempts": 1}});
        let endpoint = gateway.create_endpoint(settings).await;
        let dead = ended(&gateway, "told", &endpoint).await;
        assert_eq!(dead["last_error"]["kind"], kind, "{speaks:?}: {dead}");
        assert_eq!(proxy.asked(), [format!("127.0.0.1:{port} for nobody")]);
    }
    let closed = { canary().await.address };
    let picky = Proxy::behaving(ProxyBehaviour::ConnectAnswering("HTTP/1.1 407 Who are you")).await;
    let mute = RawReceiver::running(vec![RawStep::Read]).await;
    let endless =
        RawReceiver::running(vec![RawStep::Read, RawStep::Flood(bytes::Bytes::from(vec![b'x'; 65_536]))]).await;
    for at in [closed, picky.address, mute.address, endless.address] {
        let through = format!("http://{at}");
        let flags = ["--allow-egress", "127.0.0.0/8", "--egress-proxy", &through];
        let log = tempfile::NamedTempFile::new().unwrap();
        let options = Options { log: Some(log.path().to_owned()), ..Options::flags(&flags) };
        let gateway = Gateway::start_with(options).await;
        let settings = json!({"url": receiver.url(), "retry": {"max_attempts": 1}});
        let endpoint = gateway.create_endpoint(settings).await;
        gateway.send(json!({"id": "later", "type": "t", "endpoints": [endpoint["id"]], "data": 1})).await;
        eventually("it to be put back", || async {
            let log = std::fs::read_to_string(log.path()).unwrap();
            if log.contains("not counted, tried again later") { Ok(()) } else { Err(log) }
        })
        .await;
        let delivery = gateway.delivery_of("later").await;
        assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("waiting"), &json!(0)), "{delivery}");
    }
    assert_eq!(receiver.count(), 0);
}

#[tokio::test]
async fn proxies_of_the_environment_mean_nothing() {
    let proxy = Proxy::behaving(ProxyBehaviour::Connect).await;
    let through = format!("http://{}", proxy.address);
    let variables = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let env = variables.map(|name| (name.to_owned(), through.clone())).into();
    let gateway = Gateway::start_with(Options { env, ..Options::default() }).await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    assert_eq!(ended(&gateway, "direct", &endpoint).await["state"], "delivered");
    assert!(proxy.asked().is_empty());
}

#[tokio::test]
async fn the_machines_own_resolver_may_be_asked_instead() {
    let flags = ["--dns", "system", "--allow-egress", "127.0.0.0/8"];
    let gateway = Gateway::start_with(Options::flags(&flags)).await;
    let settings = json!({"url": "https://no-such-name.invalid/", "retry": {"max_attempts": 1}});
    let endpoint = gateway.create_endpoint(settings).await;
    let dead = ended(&gateway, "nowhere", &endpoint).await;
    let kind = dead["last_error"]["kind"].as_str().unwrap();
    assert!(matches!(kind, "no_such_name" | "dns"), "{dead}");
}
