//! Who is signed in, the event types to choose from, pages below a path, and pages
//! that stay the same while nothing happens.

use posthaste::dashboard::page_table;
use posthaste::model::sign_in::Site;
use serde_json::{Value, json};

use crate::cli::{asked, cli_output};
use crate::support::{Client, Gateway, Options, PageClient, ParsedPage, Receiver, Reply, eager_retry, eventually};

for_every_store! {
    operators_who_are_signed_in_are_listed_and_signed_out,
    whoever_manages_all_tenants_works_on_the_pages_of_each,
    an_operator_ends_sessions_and_links_of_a_portal_and_sets_its_look,
}

/// A PNG of one pixel, as base64.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

async fn token(gateway: &Gateway, document: Value) -> String {
    let made = gateway.client.post_json("/v1/tokens", &document).await.expect(201);
    made["token"].as_str().unwrap().to_owned()
}

async fn delete(gateway: &Gateway, path: &str) -> crate::support::Answer {
    gateway.client.send("DELETE", path, &[], "").await.unwrap()
}

async fn operators_who_are_signed_in_are_listed_and_signed_out() {
    let gateway = Gateway::start().await;
    let watcher = token(&gateway, json!({"rights": ["admin_read"], "name": "watcher"})).await;
    let tenant = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let operator = PageClient::operator(&gateway).await;
    let watching = PageClient::operator_with(&gateway, &watcher).await;
    let portal = PageClient::portal(&gateway, &tenant).await;
    // Newest first, and nobody of a portal among them. Both may have signed in within a millisecond.
    let mut listed = gateway.list("/v1/sessions").await;
    let signed_in_at = |n: usize| listed[n]["signed_in_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(signed_in_at(0) >= signed_in_at(1), "{listed:?}");
    listed.sort_by_key(|session| session["name"] == "session of admin");
    let names: Vec<&str> = listed.iter().map(|session| session["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["session of watcher", "session of admin"]);
    assert_eq!((&listed[1]["by"], &listed[1]["rights"]), (&json!("admin"), &json!(["admin"])));
    let (watchers, own) = (listed[0]["id"].as_str().unwrap(), listed[1]["id"].as_str().unwrap());
    // Whoever only reads sees them and ends none; a tenant does not even see them.
    Client::new(gateway.address, &watcher).get("/v1/sessions").await.expect(200);
    let by_reader = Client::new(gateway.address, &watcher).send("DELETE", "/v1/sessions", &[], "").await.unwrap();
    by_reader.problem(403, "missing_right");
    assert_eq!(Client::new(gateway.address, &tenant).get("/v1/sessions").await.status, 403);
    let (_, shown) = watching.get("/tokens").await;
    assert!(shown.contains("session of admin") && !shown.contains("/revoke\" method"), "{shown}");
    assert!(!shown.contains("Sign everybody out"), "{shown}");
    // One is signed out on a page; the others stay.
    let (_, shown) = operator.get("/tokens").await;
    assert!(shown.contains("Signed in to the dashboard") && shown.contains(watchers), "{shown}");
    let (status, location, _) = operator.post(&format!("/sessions/{watchers}/revoke"), &[]).await;
    assert_eq!((status.as_u16(), location.as_deref()), (303, Some("../../tokens?done=signed_out")));
    assert_eq!(watching.get("/tenants").await.0, 401);
    assert_eq!(operator.get("/").await.0, 200);
    delete(&gateway, &format!("/v1/sessions/{watchers}")).await.problem(404, "not_found");
    // A session of a portal is none of these.
    let theirs = gateway.list("/v1/tenants/default/portal-sessions").await;
    let theirs = theirs[0]["id"].as_str().unwrap();
    delete(&gateway, &format!("/v1/sessions/{theirs}")).await.problem(404, "not_found");
    // By command, one and all; the page asks first and says how many.
    let printed = asked(&gateway, &["dashboard", "sessions"]).await;
    assert_eq!(printed["data"][0]["id"], own);
    assert!(cli_output(&gateway, &["dashboard", "revoke", own]).await.contains("revoked"));
    assert_eq!(operator.get("/").await.0, 401);
    let again = PageClient::operator(&gateway).await;
    let (_, question) = again.get("/sessions/revoke-all").await;
    assert!(question.contains("One person is signed in to the dashboard"), "{question}");
    let (status, location, _) = again.post("/sessions/revoke-all", &[]).await;
    assert_eq!((status.as_u16(), location.as_deref()), (303, Some("../sign-in")));
    assert_eq!(again.get("/").await.0, 401);
    assert!(cli_output(&gateway, &["dashboard", "revoke-all"]).await.contains("everybody is signed out"));
    assert_eq!(portal.get("/portal").await.0, 200, "the portal is another site");
    let actions: Vec<Value> =
        gateway.list("/v1/audit").await.into_iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions.iter().filter(|action| **action == "session.revoked").count(), 3, "{actions:?}");
}

async fn whoever_manages_all_tenants_works_on_the_pages_of_each() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    gateway.client.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap();
    let wanted = json!({"url": receiver.url(), "description": "the till of acme"});
    let endpoint = gateway.client.post_json("/v1/tenants/acme/endpoints", &wanted).await.expect(201);
    let endpoint = endpoint["id"].as_str().unwrap();
    let operator = token(&gateway, json!({"rights": ["tenants"], "name": "support"})).await;
    let page = PageClient::operator_with(&gateway, &operator).await;
    // There is no page of the whole gateway for them: the sign-in leads to the tenants.
    let first = page.open("/").await;
    assert_eq!((first.status, first.headers["location"].to_str().unwrap()), (303, "./tenants"));
    let (_, shown) = page.get("/tenants").await;
    assert!(shown.contains(">Endpoints</a>") && !shown.contains(">Cluster</a>") && !shown.contains(">Settings</a>"));
    // Lists ask for the tenant, and keep the rest of the address.
    let (status, shown) = page.get("/endpoints?q=till").await;
    assert_eq!(status, 200);
    assert!(shown.contains("endpoints?q=till&#38;tenant=acme\">acme</a>"), "{shown}");
    let (_, shown) = page.get("/endpoints?q=till&tenant=acme").await;
    assert!(shown.contains("the till of acme"), "{shown}");
    for path in ["/deliveries", "/dead-letters", "/dead-letters/list", "/jobs", "/events", "/event-types", "/live"] {
        let (status, shown) = page.get(&format!("{path}?tenant=acme")).await;
        assert_eq!(status, 200, "{path}: {shown}");
    }
    let found = page.open(&format!("/search?tenant=acme&q={endpoint}")).await;
    let location = found.headers.get("location").map(|to| to.to_str().unwrap().to_owned());
    assert_eq!(location, Some(format!("./endpoints/acme/{endpoint}")));
    // They change what is in a tenant, and read there what was changed.
    let (status, _, shown) = page.post(&format!("/endpoints/acme/{endpoint}/pause"), &[("confirm", "yes")]).await;
    assert_eq!(status, 303, "{shown}");
    let (_, trail) = page.get("/audit?tenant=acme").await;
    assert!(trail.contains("endpoint paused"), "{trail}");
    assert_eq!(page.get("/cluster").await.0, 403);
}

async fn an_operator_ends_sessions_and_links_of_a_portal_and_sets_its_look() {
    let gateway = Gateway::start().await;
    let operator = PageClient::operator(&gateway).await;
    let theirs = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let (first, second) = (PageClient::portal(&gateway, &theirs).await, PageClient::portal(&gateway, &theirs).await);
    let links = "/v1/tenants/default/portal-links";
    let link = gateway.client.post_json(links, &json!({"rights": ["read"]})).await.expect(201);
    let link = link["id"].as_str().unwrap();
    let (_, shown) = operator.get("/tenants/default").await;
    assert!(shown.contains("tenants/default/portal\">Portal</a>"), "{shown}");

    // The look: what cannot be is said beside its field, and what was typed stays.
    let page = "/tenants/default/portal";
    let (status, _, shown) = operator.post(page, &[("name", "Acme"), ("accent", "green")]).await;
    assert!(status == 200 && shown.contains("class=\"fault\"") && shown.contains("value=\"green\""), "{shown}");
    let look = [("name", "Acme"), ("accent", "#0b6bcb"), ("mode", "dark"), ("start_page", "")];
    let (status, location, shown) = operator.post(page, &look).await;
    assert_eq!(
        (status.as_u16(), location.as_deref()),
        (303, Some("../../tenants/default/portal?done=saved")),
        "{shown}"
    );
    let set = gateway.client.get("/v1/tenants/default/portal").await.expect(200);
    assert_eq!(set["theme"], json!({"name": "Acme", "accent": "#0b6bcb", "mode": "dark"}));
    let (_, _, shown) = operator.post(&format!("{page}/logo"), &[("logo", "bm8gcG5n")]).await;
    assert!(shown.contains("role=\"alert\"") && shown.contains("no logo"), "{shown}");
    let logo = format!("data:image/png;base64,{PIXEL}");
    let (status, _, shown) = operator.post(&format!("{page}/logo"), &[("logo", &logo)]).await;
    assert_eq!(status, 303, "{shown}");
    assert_eq!(gateway.client.get("/v1/tenants/default/portal").await.expect(200)["has_logo"], true);
    assert_eq!(operator.post(&format!("{page}/logo/remove"), &[]).await.0, 303);
    assert_eq!(gateway.client.get("/v1/tenants/default/portal").await.expect(200)["has_logo"], false);

    // One link, one session, then everybody.
    let (_, shown) = operator.get(page).await;
    assert!(shown.contains(link) && shown.contains("value=\"Acme\""), "{shown}");
    assert_eq!(operator.post(&format!("{page}/links/{link}/revoke"), &[]).await.0, 303);
    assert_eq!(gateway.list(links).await, Vec::<Value>::new());
    let sessions = gateway.list("/v1/tenants/default/portal-sessions").await;
    let one = sessions[0]["id"].as_str().unwrap();
    assert_eq!(operator.post(&format!("{page}/sessions/{one}/revoke"), &[]).await.0, 303);
    let open = async || {
        let answers = [first.get("/portal/endpoints").await.0, second.get("/portal/endpoints").await.0];
        answers.into_iter().filter(|status| *status == 200).count()
    };
    assert_eq!(open().await, 1);
    let (_, question) = operator.get(&format!("{page}/revoke-all")).await;
    assert!(question.contains("One person is signed in"), "{question}");
    assert_eq!(operator.post(&format!("{page}/revoke-all"), &[]).await.0, 303);
    assert_eq!(open().await, 0);
    assert_eq!(operator.get("/").await.0, 200, "the operator is signed in elsewhere");
}

#[tokio::test]
async fn a_portal_names_nobody_of_the_operators() {
    let gateway = Gateway::start_with(Options::flags(&["--trusted-proxies", "127.0.0.1/32"])).await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let endpoint = endpoint["id"].as_str().unwrap();
    let ours = token(&gateway, json!({"rights": ["tenants"], "name": "night-shift"})).await;
    let theirs = token(&gateway, json!({"tenant": "default", "rights": ["manage"], "name": "the shop"})).await;
    let path = format!("/v1/tenants/default/endpoints/{endpoint}");
    // The operator, from one address, pauses with a note; the customer, from another, resumes with one.
    let call = async |token: &str, from: &str, path: &str, document: Value| {
        let client = Client::new(gateway.address, token);
        let headers = [("x-forwarded-for", from), ("x-request-id", "req-of-a-call")];
        let answer = client.send("POST", path, &headers, document.to_string()).await.unwrap();
        assert!(answer.status < 300, "{path}: {answer:?}");
    };
    let job = json!({"kind": "replay", "filter": {"all": true}, "note": "because of the disk"});
    call(&ours, "203.0.113.77", &format!("{path}/pause"), json!({"note": "their invoice is open"})).await;
    call(&ours, "203.0.113.77", "/v1/tenants/default/jobs", job.clone()).await;
    call(gateway.token(), "203.0.113.78", "/v1/tenants/default/jobs", job).await;
    call(&theirs, "198.51.100.9", &format!("{path}/resume"), json!({"note": "we have paid"})).await;
    let job = json!({"kind": "replay", "filter": {"all": true}, "note": "after the deployment"});
    call(&theirs, "198.51.100.9", "/v1/tenants/default/jobs", job).await;

    let portal = PageClient::portal(&gateway, &theirs).await;
    let jobs = gateway.list("/v1/tenants/default/jobs").await;
    let job_pages = jobs.iter().map(|job| format!("/portal/jobs/{}", job["id"].as_str().unwrap()));
    let pages = ["/portal/access".to_owned(), "/portal/jobs".to_owned(), format!("/portal/endpoints/{endpoint}")];
    let mut shown = String::new();
    for path in pages.into_iter().chain(job_pages) {
        let (status, html) = portal.get(&path).await;
        assert_eq!(status, 200, "{path}: {html}");
        for inside in ["203.0.113.", "night-shift", "req-of-a-call", "invoice", "disk", "by admin", ">admin<"] {
            assert!(!html.contains(inside), "{path} shows {inside}: {html}");
        }
        shown += &html;
    }
    // Nor does it tell whoever came by a link who has made it.
    let link = Client::new(gateway.address, &ours);
    let link = link.post_json("/v1/tenants/default/portal-links", &json!({"rights": ["manage"]})).await.expect(201);
    let code = link["url"].as_str().unwrap().split_once('#').unwrap().1.to_owned();
    let guest = PageClient::portal_by_code(&gateway, &code).await;
    for path in ["/portal", "/portal/access"] {
        let (_, html) = guest.get(path).await;
        assert!(html.contains("a portal link") && !html.contains("night-shift"), "{path}: {html}");
    }
    // What the customer did has its name, its address and its note.
    for own in ["your provider", "(the shop)", "198.51.100.9", "we have paid", "after the deployment"] {
        assert!(shown.contains(own), "{own}: {shown}");
    }
    // The operator's pages name everybody.
    let operator = PageClient::operator(&gateway).await;
    let (_, trail) = operator.get("/audit?tenant=default").await;
    assert!(trail.contains("night-shift") && trail.contains("203.0.113.77") && trail.contains("req-of-a-call"));
    let (_, shown) = operator.get(&format!("/endpoints/default/{endpoint}")).await;
    assert!(shown.contains("their invoice is open") && shown.contains("night-shift"), "{shown}");
}

#[tokio::test]
async fn a_portal_that_may_be_in_a_frame_asks_before_it_holds_or_ends_something() {
    let framed = Gateway::start_with(Options::flags(&["--portal-origins", "https://app.example.com"])).await;
    let alone = Gateway::start().await;
    for (gateway, asks) in [(framed, true), (alone, false)] {
        let receiver = Receiver::start().await;
        let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
        let endpoint = endpoint["id"].as_str().unwrap();
        let theirs = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
        let portal = PageClient::portal(&gateway, &theirs).await;
        let page = format!("/portal/endpoints/{endpoint}");
        for (action, title) in [
            ("pause", "Pause this endpoint?"),
            ("breaker/open", "Open the breaker of this endpoint?"),
            ("rotate", "Give this endpoint a new secret?"),
        ] {
            let path = format!("{page}/{action}");
            let before = gateway.list("/v1/audit").await.len();
            let (_, _, shown) = portal.post(&path, &[("note", "a \"note\""), ("overlap", "1h")]).await;
            let is_done = gateway.list("/v1/audit").await.len() > before;
            assert_eq!((shown.contains(title), is_done), (asks, !asks), "{path}: {shown}");
            if asks {
                // The question keeps what was typed, and its button does it.
                assert!(shown.contains("name=\"note\" value=\"a &#34;note&#34;\""), "{shown}");
                let (status, _, shown) = portal.post(&path, &[("overlap", "1h"), ("confirm", "yes")]).await;
                assert!(status == 303 || shown.contains("whsec_"), "{path}: {status} {shown}");
                assert!(gateway.list("/v1/audit").await.len() > before, "{path}");
            }
        }
        let operator = PageClient::operator(&gateway).await;
        let (status, _, shown) = operator.post(&format!("/endpoints/default/{endpoint}/rotate"), &[]).await;
        assert!(status == 200 && shown.contains("whsec_"), "the operator's pages are in no frame: {shown}");
    }
}

#[tokio::test]
async fn customers_sign_each_other_out() {
    let gateway = Gateway::start().await;
    let manager = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let reader = token(&gateway, json!({"tenant": "default", "rights": ["read"]})).await;
    let portal = PageClient::portal(&gateway, &manager).await;
    let other = PageClient::portal(&gateway, &reader).await;
    let listed = gateway.list("/v1/tenants/default/portal-sessions").await;
    let readers = listed.iter().find(|session| session["rights"] == json!(["read"])).unwrap();
    let (_, shown) = portal.get("/portal/access").await;
    let signed_in_at = readers["signed_in_at"].as_str().unwrap();
    assert!(shown.contains(&signed_in_at[..10]) && shown.contains("Sign everybody out"), "{shown}");
    let (status, ..) = portal.post(&format!("/portal/sessions/{}/revoke", readers["id"].as_str().unwrap()), &[]).await;
    assert_eq!(status, 303);
    assert_eq!((other.get("/portal/endpoints").await.0, portal.get("/portal/endpoints").await.0).0, 401);
    let (_, question) = portal.get("/portal/sessions/revoke-all").await;
    assert!(question.contains("One person is signed in to the portal"), "{question}");
    portal.post("/portal/sessions/revoke-all", &[]).await;
    assert_eq!(portal.get("/portal/endpoints").await.0, 401);
}

#[tokio::test]
async fn event_types_are_chosen_from_those_seen() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let hostile = "order.paid";
    gateway.send(json!({"id": "e1", "type": hostile, "data": {}})).await;
    gateway.send(json!({"id": "e2", "type": "user.created", "data": {}})).await;
    gateway.client.send("PUT", "/v1/tenants/other", &[], "{}").await.unwrap();
    let foreign = json!({"id": "e3", "type": "foreign.type", "data": {}});
    gateway.client.post_json("/v1/tenants/other/events", &foreign).await.expect(202);
    let manager = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let reader = token(&gateway, json!({"tenant": "default", "rights": ["read"]})).await;
    let (portal, reading) = (PageClient::portal(&gateway, &manager).await, PageClient::portal(&gateway, &reader).await);
    // Nobody wanted them, and they are listed all the same; those of others are not.
    let (_, types) = portal.get("/portal/event-types").await;
    assert!(types.contains("<code>order.paid</code>") && types.contains("<code>user.created</code>"), "{types}");
    assert!(types.contains("endpoints/new?event_types=order.paid") && !types.contains("foreign"), "{types}");
    for link in ["href=\"./event-types\" aria-current=\"page\"", "href=\"./live\""] {
        assert!(types.contains(link), "{link} in {types}");
    }
    let (status, types) = reading.get("/portal/event-types").await;
    assert!(status == 200 && !types.contains("New endpoint for it"), "{types}");
    assert_eq!(reading.get("/portal/live").await.0, 200);
    let operator = PageClient::operator(&gateway).await;
    let (_, types) = operator.get("/event-types?tenant=other").await;
    assert!(types.contains("foreign.type") && !types.contains("order.paid"), "{types}");
    assert_eq!(operator.get("/event-types").await.0, 200);
    // In the form they stand below the field; a type that is typed is not offered.
    let (_, form) = portal.get("/portal/endpoints/new?event_types=order.paid").await;
    assert!(form.contains("id=\"seen-types\" open>"), "{form}");
    assert!(form.contains("name=\"seen_type\" value=\"user.created\""), "{form}");
    assert!(!form.contains("name=\"seen_type\" value=\"order.paid\""), "{form}");
    let url = receiver.url();
    let typed =
        [("url", url.as_str()), ("event_types", "order.*"), ("seen_type", "user.created"), ("seen_type", "a.b")];
    let (status, _, html) = portal.post("/portal/endpoints/new", &typed).await;
    assert_eq!(status, 200, "{html}");
    let made = gateway.list("/v1/tenants/default/endpoints").await;
    assert_eq!(made[0]["event_types"], json!(["order.*", "user.created", "a.b"]));
}

#[tokio::test]
async fn the_choice_of_light_or_dark_leads_back_to_the_page() {
    let gateway = Gateway::start().await;
    let manager = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let (operator, portal) = (PageClient::operator(&gateway).await, PageClient::portal(&gateway, &manager).await);
    for (client, site, page) in [
        (&operator, "", "/"),
        (&operator, "", "/deliveries"),
        (&portal, "/portal", "/portal"),
        (&portal, "/portal", "/portal/deliveries?state=dead&q=a%26b"),
        (&operator, "", "/deliveries?state=dead&endpoint=ep_1"),
    ] {
        // What was done is said once.
        let joint = if page.contains('?') { '&' } else { '?' };
        let (_, html) = client.get(&format!("{page}{joint}done=saved")).await;
        let next = html.split("name=\"next\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let next = next.replace("&#38;", "&");
        let (status, location, _) = client.post(&format!("{site}/look"), &[("look", "dark"), ("next", &next)]).await;
        assert_eq!(status, 303, "{page}");
        let from = url::Url::parse(&format!("http://gateway{site}/look")).unwrap();
        let led_to = from.join(&location.unwrap()).unwrap();
        assert_eq!(&led_to[url::Position::BeforePath..], page);
    }
    // Typed by hand, the portal's home may have a slash at its end.
    let slash = portal.open("/portal/").await;
    assert_eq!((slash.status, slash.headers["location"].to_str().unwrap()), (303, "../portal"));
}

#[tokio::test]
async fn people_with_the_same_rights_share_a_page_and_none_sees_the_name_of_another() {
    let gateway = Gateway::start().await;
    let names = ["anna", "b<i>&\"ert"];
    let mut tags = Vec::new();
    for name in names {
        let token = token(&gateway, json!({"tenant": "default", "rights": ["manage"], "name": name})).await;
        let portal = PageClient::portal(&gateway, &token).await;
        let answer = portal.open("/portal/endpoints").await;
        let html = text(&answer.body);
        let page = ParsedPage::of(&html);
        let said = ("title".to_owned(), format!("Signed in as session of {name}"));
        assert!(page.elements.iter().any(|element| element.attributes.contains(&said)), "{html}");
        assert_eq!(html.matches("session of").count(), 1, "{html}");
        tags.push(answer.headers["etag"].clone());
    }
    assert_eq!(tags[0], tags[1], "one rendering is for both");
}

#[tokio::test]
async fn pages_and_routes_are_served_below_the_path_of_the_public_url() {
    let gateway = Gateway::start_with(Options::flags(&["--public-url", "https://example.com/web/hooks"])).await;
    let stranger = Client::new(gateway.address, "none");
    let folder = stranger.send("GET", "/web/hooks", &[], "").await.unwrap();
    assert_eq!((folder.status, folder.headers["location"].to_str().unwrap()), (307, "hooks/"));
    assert_eq!(stranger.get("/web/hooks/").await.status, 401);
    let below = PageClient::operator_below(&gateway, "/web/hooks/sign-in", "/web/hooks/").await;
    let at_root = PageClient::operator(&gateway).await;
    for path in ["", "endpoints", "tenants/default", "deliveries?state=dead"] {
        let ((status, here), (_, there)) =
            (below.get(&format!("/web/hooks/{path}")).await, at_root.get(&format!("/{path}")).await);
        assert_eq!(status, 200, "{path}: {here}");
        let navigation =
            |html: &str| html.split("<nav class=\"main\"").nth(1).unwrap().split("</nav>").next().unwrap().to_owned();
        assert_eq!(navigation(&here), navigation(&there), "every address is relative");
    }
    let (status, location, _) =
        below.post("/web/hooks/endpoints/default/new", &[("url", "https://example.com/")]).await;
    assert_eq!((status.as_u16(), location), (200, None));
    // The API, links and assets are there, too, and what is neither is not.
    gateway.client.get("/web/hooks/v1/tenants").await.expect(200);
    let made = gateway.client.post("/web/hooks/v1/sign-in-links", "").await.expect(201);
    assert!(made["url"].as_str().unwrap().starts_with("https://example.com/web/hooks/enter#"), "{made}");
    let accepted =
        gateway.client.post_json("/web/hooks/v1/tenants/default/events", &json!({"type": "a.b", "data": 1})).await;
    accepted.expect(202);
    let (_, home) = below.get("/web/hooks/").await;
    let style = home.split("rel=\"stylesheet\" href=\"./").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert_eq!(stranger.get(&format!("/web/hooks/{style}")).await.status, 200);
    for other in ["/web/hooksaw/", "/web/", "/hooks/"] {
        assert_eq!(stranger.get(other).await.status, 404, "{other}");
    }
}

#[tokio::test]
async fn pages_stay_the_same_while_nothing_happens() {
    let gateway = Gateway::start_with(Options::flags(&["--self-test", "off"])).await;
    let receiver = Receiver::start().await;
    receiver.answer_with(|_| Reply::Status(400));
    let endpoint = json!({"url": receiver.url(), "description": "orders", "retry": eager_retry(1)});
    let endpoint = gateway.create_endpoint(endpoint).await["id"].as_str().unwrap().to_owned();
    for number in 0..12 {
        gateway.send(json!({"id": format!("e{number}"), "type": "order.paid", "data": {}})).await;
    }
    let said = "are neither replayed nor discarded; they grow: the last died less than a minute ago";
    eventually("deaths that need attention", || async {
        let attention = gateway.client.get("/v1/attention").await.expect(200).to_string();
        if attention.contains("12 dead letters since") && attention.contains(said) { Ok(()) } else { Err(attention) }
    })
    .await;
    let delivery = gateway.list("/v1/dead-letters").await[0]["id"].as_str().unwrap().to_owned();
    let manager = token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let (operator, portal) = (PageClient::operator(&gateway).await, PageClient::portal(&gateway, &manager).await);
    let ids = [("{tenant}", "default"), ("{endpoint}", &endpoint), ("{delivery}", &delivery), ("{event}", "e1")];
    // A window of the figures may end meanwhile, which pages show; it does not end again and again.
    let mut changed = Vec::new();
    for _ in 0..3 {
        changed = changed_pages(&operator, &portal, &ids).await;
        if changed.is_empty() {
            break;
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

/// Opens every page of these ids, and again two seconds later; returns those that differ.
async fn changed_pages(operator: &PageClient, portal: &PageClient, ids: &[(&str, &str)]) -> Vec<String> {
    let pages = page_table::pages(&posthaste::api::openapi::document()).unwrap();
    let mut seen = Vec::new();
    for page in pages.iter().filter(|page| page.method == "GET") {
        let path = ids.iter().fold(page.path.clone(), |path, (name, id)| path.replace(name, id));
        if path.contains('{') || path.ends_with("/stream") {
            continue;
        }
        let client = if page.site == Site::Operator { operator } else { portal };
        let first = client.open(&path).await;
        let Some(etag) = first.headers.get("etag") else { continue };
        seen.push((client, path, etag.to_str().unwrap().to_owned(), first));
    }
    assert!(seen.len() > 30, "{}", seen.len());
    // Rendered pages are kept for a second, so each is asked for again after two.
    let mut changed = Vec::new();
    for (client, path, etag, first) in seen {
        let since: i64 = first.headers["x-server-time"].to_str().unwrap().parse().unwrap();
        let again = eventually("two seconds", || async {
            let again = client.open_with(&path, &[("if-none-match", etag.as_str())]).await;
            let now: i64 = again.headers["x-server-time"].to_str().unwrap().parse().unwrap();
            if now >= since + 2_000 { Ok(again) } else { Err(format!("{} ms", now - since)) }
        })
        .await;
        if again.status != 304 {
            let (old, new) = (text(&first.body), text(&again.body));
            let differs = old
                .lines()
                .zip(new.lines())
                .find(|(old, new)| old != new && !old.contains("form_token") && !old.contains("data-now"));
            changed.push(format!("{path}: {differs:?}"));
        }
    }
    changed
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}
