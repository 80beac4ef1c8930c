//! The portal on a host of its own: it has the portal's pages, and nothing else of the gateway
//! for anybody.

use posthaste::dashboard::page_table;
use posthaste::model::sign_in::Site;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Answer, Client, Gateway, Options};

const HOST: &str = "webhooks.example.com";
const ORIGIN: &str = "https://webhooks.example.com";

/// Asks the portal's host in the name of somebody.
async fn ask(client: &Client, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Answer {
    let own = [("host", HOST), ("origin", ORIGIN), ("accept", "text/html")];
    client.send(method, path, &[&own, headers].concat(), body).await.unwrap()
}

/// Returns the cookie that a sign-in sets on the portal's host.
async fn signed_in(client: &Client, path: &str, form: String) -> String {
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let answer = ask(client, "POST", path, &kind, form).await;
    assert_eq!(answer.status, 303, "{}", String::from_utf8_lossy(&answer.body));
    answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_portals_host_has_the_portal_and_nothing_else_whoever_asks() {
    let gateway = Gateway::start_with(Options::flags(&["--portal-url", ORIGIN])).await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    let stranger = Client::new(gateway.address, "none");
    // A link leads there, and its code works there.
    let link = json!({"rights": ["manage"]});
    let made = gateway.client.post_json("/v1/tenants/default/portal-links", &link).await.expect(201);
    let (page, code) = made["url"].as_str().unwrap().split_once('#').unwrap();
    assert_eq!(page, format!("{ORIGIN}/portal/enter"));
    let cookie = signed_in(&stranger, "/portal/enter", format!("code={code}")).await;
    assert!(cookie.starts_with("__Host-posthaste-portal=phs_"), "{cookie}");
    // A link of an operator leads to the gateway's own host.
    let made = gateway.client.post("/v1/sign-in-links", "").await.expect(201);
    assert!(made["url"].as_str().unwrap().starts_with(&format!("http://{}/enter#", gateway.address)), "{made}");

    let document = posthaste::api::openapi::document();
    let id = endpoint["id"].as_str().unwrap();
    let filled = |path: &str| path.replace("{tenant}", "default").replace("{endpoint}", id);
    let (mut open, mut closed) = (0, 0);
    for page in page_table::pages(&document).unwrap().into_iter().filter(|page| !page.path.ends_with("/stream")) {
        let path = filled(&page.path);
        let answer = ask(&stranger, page.method.as_str(), &path, &[("cookie", &cookie)], String::new()).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        match page.site {
            Site::Operator if path == "/" => assert_eq!(answer.headers["location"], "/portal", "{path}"),
            Site::Operator => {
                assert!(answer.status == 404 && text == "There is nothing here.\n", "{} {path}: {text}", page.method);
                closed += 1;
            }
            Site::Portal if page.method == "GET" && !path.contains('{') => {
                assert!(![401, 404].contains(&answer.status), "{path}: {} {text}", answer.status);
                open += 1;
            }
            Site::Portal => assert_ne!(text, "There is nothing here.\n", "{path}"),
        }
    }
    assert!(open > 10 && closed > 50, "{open} {closed}");
    // The API is not there, not even for the admin token.
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let answer = ask(&gateway.client, &method.to_uppercase(), &filled(path), &[], String::new()).await;
            assert_eq!(answer.status, 404, "{method} {path}");
        }
    }
    let event = json!({"type": "a.b", "data": {}}).to_string();
    let json = [("content-type", "application/json")];
    let events = "/v1/tenants/default/events";
    assert_eq!(ask(&gateway.client, "POST", events, &json, event.clone()).await.status, 404);
    // Nor as the first request of a connection, or under a whole address before another host.
    for (address, host) in [
        (events.to_owned(), HOST.to_owned()),
        (events.to_owned(), format!("{HOST}:1")),
        (format!("http://{HOST}{events}"), "hooks.example.com".to_owned()),
    ] {
        let request = format!(
            "POST {address} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{event}",
            gateway.token(),
            event.len(),
        );
        let mut connection = TcpStream::connect(gateway.address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        connection.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 404", "{address} {host}");
    }
    for path in ["/healthz", "/readyz", "/metrics", "/sign-in", "/enter", "/data/x", "/portal/../v1/tenants"] {
        assert_eq!(ask(&gateway.client, "GET", path, &[], String::new()).await.status, 404, "{path}");
    }
    // On every other host all is as before.
    let sent = gateway.client.send("POST", "/v1/tenants/default/events", &json, event).await.unwrap();
    assert_eq!(sent.status, 202);
    assert_eq!(stranger.get("/portal/sign-in").await.status, 200);
}
