//! Pages at their edges: addresses that are too long or are no page, sessions that are over,
//! visitors from other sites, and what operators noted.

use posthaste::dashboard::page_table;
use posthaste::model::sign_in::Site;
use serde_json::{Value, json};

use crate::portal::PNG;
use crate::support::{Answer, Client, Gateway, PageClient, Receiver, eventually};

const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

async fn token(gateway: &Gateway, document: Value) -> String {
    let made = gateway.client.post_json("/v1/tokens", &document).await.expect(201);
    made["token"].as_str().unwrap().to_owned()
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[tokio::test]
async fn an_address_that_is_too_long_or_names_too_many_deliveries_makes_no_large_page() {
    let gateway = Gateway::start().await;
    let theirs = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let portal = PageClient::portal(&gateway, &theirs).await;
    // As many as a page of the list has.
    let some = "&id=dlv_01k9zzzzzzzzzzzzzzzzzzzzzz".repeat(200);
    let (status, _) = portal.get(&format!("/portal/dead-letters/recover?kind=replay{some}")).await;
    assert_eq!(status, 200);
    let (status, html) =
        portal.get(&format!("/portal/dead-letters/recover?kind=replay{}", "&id=a".repeat(5_000))).await;
    assert_eq!(status, 414, "{html}");
    assert!(html.contains("longer than 16 KiB") && html.contains("<nav class=\"main\""), "{html}");
    // A form may be longer, but names no more deliveries than a job takes.
    let chosen = vec![("id", "a"); 5_001];
    let (status, _, html) = portal.post("/portal/dead-letters/recover", &chosen).await;
    assert_eq!(status, 422);
    assert!(html.contains("choose at most 5,000") && html.len() < 20_000, "{} bytes", html.len());
}

#[tokio::test]
async fn browsers_get_pages_where_there_is_none_and_programs_get_problems() {
    let gateway = Gateway::start().await;
    let theirs = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    let endpoint = endpoint["id"].as_str().unwrap();
    let (operator, portal) = (PageClient::operator(&gateway).await, PageClient::portal(&gateway, &theirs).await);
    for (client, path, led) in [
        (&operator, "/endpoints/", "../endpoints"),
        (&operator, "/tenants/default/?done=saved", "../default?done=saved"),
        (&portal, "/portal/", "../portal"),
        (&portal, "/portal/deliveries/?state=dead", "../deliveries?state=dead"),
    ] {
        let answer = client.open(path).await;
        assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (303, led), "{path}");
    }
    for (client, path) in [(&operator, "/endpont"), (&portal, "/portal/a/b/c"), (&portal, "/portal/tenants")] {
        let (status, html) = client.get(path).await;
        assert_eq!(status, 404, "{path}");
        assert!(html.contains("there is no such page") && html.contains("<nav class=\"main\""), "{path}: {html}");
    }
    for (client, path, page) in [
        (
            &operator,
            format!("/endpoints/default/{endpoint}/breaker/open"),
            format!("../../../../endpoints/default/{endpoint}"),
        ),
        (&portal, format!("/portal/endpoints/{endpoint}/pause"), format!("../../endpoints/{endpoint}")),
        (&operator, "/tenants/default/portal-link".to_owned(), "../../tenants/default".to_owned()),
        (&operator, "/sign-out".to_owned(), "./".to_owned()),
    ] {
        let answer = client.open(&path).await;
        let html = text(&answer);
        assert_eq!(answer.status, 405, "{path}");
        assert!(html.contains(&format!("href=\"{page}\">Go to the page")), "{path}: {html}");
        let from = url::Url::parse(&format!("http://gateway{path}")).unwrap();
        let led = from.join(&page).unwrap();
        assert_eq!(client.open(led.path()).await.status, 200, "{path} leads to {led}");
    }
    // Nobody who is not signed in sees the frame; programs and the API stay as they are.
    let stranger = Client::new(gateway.address, "none");
    let answer = stranger.send("GET", "/endpont", &[BROWSER], "").await.unwrap();
    assert_eq!(answer.status, 404);
    assert!(text(&answer).contains("Go to the first page") && !text(&answer).contains("<nav"), "{}", text(&answer));
    for (path, headers) in [("/endpont", &[][..]), ("/v1/endpont", &[BROWSER][..]), ("/endpoints/", &[][..])] {
        let answer = stranger.send("GET", path, headers, "").await.unwrap();
        assert!(text(&answer).starts_with('{'), "{path}: {}", text(&answer));
    }
    assert_eq!(stranger.send("GET", "/sign-out", &[], "").await.unwrap().status, 405);
}

#[tokio::test]
async fn a_page_that_answers_an_action_says_where_it_can_be_asked_for() {
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    let endpoint = endpoint["id"].as_str().unwrap();
    let operator = PageClient::operator(&gateway).await;
    // A refused action answers with the endpoint's page, at the address of the action.
    let page = format!("/endpoints/default/{endpoint}");
    let note = "x".repeat(600);
    let (_, _, html) = operator.post(&format!("{page}/pause"), &[("note", &note)]).await;
    assert!(
        html.contains("data-live") && html.contains(&format!("data-page=\"../../../endpoints/default/{endpoint}\"")),
        "{html}"
    );
    let (_, _, html) = operator.post("/tenants/default/portal-link", &[("rights", "read")]).await;
    assert!(html.contains("data-page=\"../../tenants/default\""), "{html}");
    assert!(html.contains(&format!("http://{}/portal/enter#", gateway.address)), "{html}");
    let (_, html) = operator.get(&page).await;
    assert!(!html.contains("data-page"), "{html}");
}

#[tokio::test]
async fn whoever_comes_from_another_site_is_led_in_once_and_then_asked_to_sign_in() {
    let gateway = Gateway::start().await;
    let stranger = Client::new(gateway.address, "none");
    let link = [BROWSER, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    let answer = stranger.send("GET", "/endpoints?q=a%26b", &link, "").await.unwrap();
    let html = text(&answer);
    let address = html.split("content=\"0; url=").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert_eq!((answer.status, address), (401, "./sign-in?next=endpoints%3Fq%3Da%2526b"), "{html}");
    // A stranger is shown the form there, wherever they come from, and it leads to the page.
    let way = format!("/{}", address.trim_start_matches("./"));
    let html = text(&stranger.send("GET", &way, &link, "").await.unwrap());
    assert!(html.contains("id=\"token\"") && html.contains("value=\"endpoints?q=a%26b\""), "{html}");
    assert!(!html.contains("http-equiv=\"refresh\""), "nothing goes round: {html}");
    // Whoever is signed in is led to the page, and to pages of ours alone.
    let operator = PageClient::operator(&gateway).await;
    for (next, led) in [
        ("endpoints%3Fq%3Da%2526b", "./endpoints?q=a%26b"),
        ("", "./"),
        ("%2F%2Fevil.example.com", "./"),
        ("https%3A%2F%2Fevil.example.com", "./"),
        ("..%2F..%2Fx", "./"),
    ] {
        let answer = operator.open(&format!("/sign-in?next={next}")).await;
        assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (303, led), "{next}");
    }
    assert_eq!(operator.open("/sign-in").await.status, 200);
    // Nobody else is led anywhere: our own pages, frames and scripts of others, the portal.
    for (path, site, mode) in [
        ("/endpoints", "same-origin", "navigate"),
        ("/endpoints", "none", "navigate"),
        ("/endpoints", "cross-site", "no-cors"),
        ("/portal/endpoints", "cross-site", "navigate"),
    ] {
        let headers = [("sec-fetch-site", site), ("sec-fetch-mode", mode)];
        let html = text(&stranger.send("GET", path, &headers, "").await.unwrap());
        assert!(html.contains("id=\"token\""), "{path} {site} {mode}: {html}");
    }
}

#[tokio::test]
async fn a_session_that_is_over_leads_back_to_where_the_customer_came_from() {
    let gateway = Gateway::start().await;
    let look = json!({"name": "Acme Shop", "mode": "dark", "accent": "#0b6b57"}).to_string();
    gateway.client.send("PUT", "/v1/tenants/default/portal", &[], look).await.unwrap().expect(200);
    gateway.client.send("PUT", "/v1/tenants/default/portal/logo", &[], PNG).await.unwrap().expect(204);
    let link = json!({"rights": ["manage"], "return_url": "https://app.example.com/settings?a=1&b=2"});
    let made = gateway.client.post_json("/v1/tenants/default/portal-links", &link).await.expect(201);
    let code = made["url"].as_str().unwrap().split_once('#').unwrap().1.to_owned();
    let browser = Client::new(gateway.address, "none");
    let origin = format!("http://{}", gateway.address);
    let form = [("origin", origin.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let entered = browser.send("POST", "/portal/enter", &form, format!("code={code}")).await.unwrap();
    let cookies: Vec<String> =
        entered.headers.get_all("set-cookie").iter().map(|line| line.to_str().unwrap().to_owned()).collect();
    assert!(cookies.len() == 2 && cookies.iter().all(|cookie| cookie.contains("; HttpOnly")), "{cookies:?}");
    let pair = |cookie: &str| cookie.split(';').next().unwrap().to_owned();
    let both = format!("{}; {}", pair(&cookies[0]), pair(&cookies[1]));
    let open = async |cookie: &str, path: &str| {
        let answer = browser.send("GET", path, &[("cookie", cookie)], "").await.unwrap();
        (answer.status, text(&answer))
    };
    assert_eq!(open(&both, "/portal/endpoints").await.0, 200);
    gateway.client.send("DELETE", "/v1/tenants/default/portal-sessions", &[], "").await.unwrap();
    let (status, html) = open(&both, "/portal/endpoints").await;
    assert!(status == 401 && html.contains("This session is over"), "{html}");
    let back = "href=\"https://app.example.com/settings?a=1&#38;b=2\" rel=\"noreferrer\" target=\"_top\"";
    assert!(html.contains(back) && html.contains("Acme Shop") && html.contains("data-look=\"dark\""), "{html}");
    assert!(!html.contains("id=\"token\"") && !html.contains("<nav"), "{html}");
    // It looks as before: its stylesheet and its logo are still there, for this browser alone.
    let theme = html.split("href=\"./theme/").nth(1).and_then(|rest| rest.split('"').next()).expect("a stylesheet");
    let theme = format!("/portal/theme/{theme}");
    let (status, style) = open(&both, &theme).await;
    assert!(status == 200 && style.contains("--accent: light-dark(#0b6b57"), "{status}: {style}");
    let logo = style.split("url(..").nth(1).and_then(|rest| rest.split(')').next()).expect("a logo");
    let logo = format!("/portal/theme{logo}");
    let shown = browser.send("GET", &logo, &[("cookie", both.as_str())], "").await.unwrap();
    assert!(shown.status == 200 && shown.headers["content-type"] == "image/png" && &shown.body[..] == PNG, "{shown:?}");
    let headers = [("cookie", both.as_str()), ("origin", origin.as_str())];
    let refused = browser.send("POST", "/portal/debugger", &headers, "").await.unwrap();
    assert!(refused.status == 401 && text(&refused).contains("Nothing was changed"), "{}", text(&refused));
    // Without the cookie of that very session nothing is told.
    let swapped = format!("{}; {}", pair(&cookies[0]).replace("=phs_", "=phs_x"), pair(&cookies[1]));
    for cookie in [pair(&cookies[1]), pair(&cookies[0]), swapped, String::new()] {
        let (status, html) = open(&cookie, "/portal/endpoints").await;
        assert!(status == 401 && html.contains("id=\"token\"") && !html.contains("Acme"), "{cookie}: {html}");
        for path in [&theme, &logo] {
            assert_eq!(open(&cookie, path).await.0, 401, "{cookie} at {path}");
        }
    }
    assert!(open(&both, "/endpoints").await.1.contains("id=\"token\""), "the operator's pages are another site");
}

#[tokio::test]
async fn what_operators_noted_is_on_no_page_of_the_portal() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let theirs = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let (operator, portal) = (PageClient::operator(&gateway).await, PageClient::portal(&gateway, &theirs).await);
    // All is noted before a page of the portal is opened: a page is made once a second.
    let mut held = Vec::new();
    for (act, number) in [("pause", 0), ("breaker/open", 1), ("breaker/open", 2)] {
        let endpoint =
            gateway.create_endpoint(json!({"url": receiver.url(), "event_types": [format!("t{number}")]})).await;
        let endpoint = endpoint["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/tenants/default/endpoints/{endpoint}/{act}");
        let mut document = json!({"note": "they owe us money"});
        if number == 2 {
            document["for"] = json!("1h");
        }
        gateway.client.post_json(&path, &document).await.expect(200);
        // It is held from the start.
        let event = format!("e{number}");
        gateway.send(json!({"id": event, "type": format!("t{number}"), "data": {}})).await;
        let of_endpoint = format!("/v1/tenants/default/deliveries?endpoint={endpoint}");
        let delivery = gateway.list(&of_endpoint).await[0]["id"].as_str().unwrap().to_owned();
        eventually("the operator reads the note", || async {
            let (_, html) = operator.get(&format!("/deliveries/default/{delivery}")).await;
            if html.contains("they owe us money") { Ok(()) } else { Err(html) }
        })
        .await;
        held.push((act, endpoint, delivery, event));
    }
    for (act, endpoint, delivery, event) in &held {
        let ids = [("{endpoint}", endpoint), ("{delivery}", delivery), ("{event}", event)];
        let pages = page_table::pages(&posthaste::api::openapi::document()).unwrap();
        let mut opened = 0;
        for page in pages.iter().filter(|page| page.site == Site::Portal && page.method == "GET") {
            let path = ids.iter().fold(page.path.clone(), |path, (name, id)| path.replace(name, id));
            if path.contains('{') || path.ends_with("/stream") {
                continue;
            }
            let html = text(&portal.open(&path).await);
            assert!(!html.contains("owe us"), "{act}: {path} shows the note: {html}");
            opened += 1;
        }
        assert!(opened > 15, "{opened}");
        let (_, html) = portal.get(&format!("/portal/deliveries/{delivery}")).await;
        assert!(html.contains("person"), "{act}: {html}");
    }
    let (_, html) = portal.get("/portal/endpoints").await;
    assert!(html.contains("a person opened its breaker"), "{html}");
    let (_, html) = portal.get("/portal").await;
    assert!(html.contains("a person opened its breaker"), "{html}");
    let (_, html) = operator.get("/endpoints").await;
    assert!(html.contains("they owe us money"), "{html}");
}

#[tokio::test]
async fn tenants_show_what_they_used_within_the_last_hour() {
    let gateway = Gateway::start().await;
    // No attempt is made again while the page is looked at.
    let retry = json!({"schedule": ["1h"], "jitter": "none"});
    gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/", "retry": retry})).await;
    for number in 0..3 {
        gateway.send(json!({"id": format!("e{number}"), "type": "a.b", "data": {}})).await;
    }
    let operator = PageClient::operator(&gateway).await;
    eventually("the events are counted", || async {
        let (_, html) = operator.get("/tenants").await;
        let has = |name: &str, count: &str| {
            html.contains(&format!("data-label=\"{name}, last hour\" class=\"number\">{count}<"))
        };
        if has("Accepted", "3") && has("Attempts", "3") { Ok(()) } else { Err(html) }
    })
    .await;
}
