//! Pages: a bad night is found, previewed, replayed and watched in the browser; the
//! operator's tenants, tokens, audit, cluster and settings; the customer's access.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Client, Gateway, HOSTILE, PageClient, Receiver, Reply, eventually, unlimited};

for_every_store! {
    a_bad_night_is_recovered_in_the_browser,
    chosen_dead_letters_are_discarded,
    a_customer_recovers_what_died_and_sees_nobody_else,
    the_first_page_of_the_portal_leads_to_the_recovery_of_everything,
    a_recovery_that_is_refused_keeps_what_was_typed,
    a_tenant_is_made_changed_and_deleted_by_typing_its_id,
    a_token_is_shown_once_and_revoked_after_a_question,
    the_gateway_is_shown_as_it_is,
    what_strangers_wrote_stays_text,
}

const DEAD: &str = "/v1/tenants/default/dead-letters";
/// Lets this many events of a type die at a receiver that refuses them.
async fn lost(gateway: &Gateway, receiver: &Receiver, count: usize) -> Value {
    receiver.answer_with(|_| Reply::Status(400));
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "description": "the shop"});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("lost", "order.paid", count, |_| None).await;
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

/// Opens a page that must be there.
async fn read(pages: &PageClient, path: &str) -> String {
    let (status, html) = pages.get(path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {html}");
    assert!(html.len() < 60_000, "{path} has {} bytes", html.len());
    html
}

#[track_caller]
fn has(html: &str, texts: &[&str]) {
    for text in texts {
        assert!(html.contains(text), "{text:?} is not in {html}");
    }
}

/// Returns the fields of the form that starts the previewed job.
fn hidden_fields(html: &str) -> Vec<(String, String)> {
    let form = html
        .split("<form method=\"post\"")
        .skip(1)
        .find(|form| form.starts_with(" action=\"../dead-letters/recover\""));
    let form = form.and_then(|form| form.split("</form>").next()).unwrap_or_else(|| panic!("no form in {html}"));
    let inputs = form.split("<input type=\"hidden\" name=\"").skip(1).filter_map(|input| {
        let (name, rest) = input.split_once("\" value=\"")?;
        Some((name.to_owned(), rest.split('"').next()?.to_owned()))
    });
    inputs.filter(|(name, _)| name != "form_token").collect()
}

/// Starts the job that a page previews; returns it.
async fn start_previewed(gateway: &Gateway, pages: &PageClient, site: &str, html: &str) -> Value {
    let fields = hidden_fields(html);
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let (status, location, page) = pages.post(&format!("{site}/dead-letters/recover"), &fields).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{page}");
    let location = location.expect("the job's page");
    let path = location.trim_start_matches("../").split('?').next().expect("a path");
    let id = path.rsplit('/').next().expect("an id");
    let jobs = gateway.list("/v1/jobs").await;
    jobs.into_iter().find(|job| job["id"] == id).unwrap_or_else(|| panic!("no job {id}"))
}

async fn finished(gateway: &Gateway, job: &Value) -> Value {
    let (tenant, id) = (job["tenant"].as_str().unwrap(), job["id"].as_str().unwrap());
    let path = format!("/v1/tenants/{tenant}/jobs/{id}");
    eventually("the job to finish", || async {
        let job = gateway.client.get(&path).await.expect(200);
        if job["state"] == "finished" { Ok(job) } else { Err(job.to_string()) }
    })
    .await
}

async fn a_bad_night_is_recovered_in_the_browser() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = lost(&gateway, &receiver, 30).await;
    let endpoint = endpoint["id"].as_str().unwrap();
    let pages = PageClient::operator(&gateway).await;

    let groups = read(&pages, "/dead-letters").await;
    has(&groups, &["30 deliveries are dead in 1 group.", "the shop", "refused", "<code>400</code>", "Replay…"]);
    let by_day = read(&pages, "/dead-letters?by_day=yes&cause=refused&since=2h").await;
    // Of the days before and after midnight, if it was while they died.
    has(&by_day, &["30 deliveries are dead in ", "Day</th>"]);
    has(&read(&pages, "/dead-letters?cause=gone").await, &["Nothing is dead.", "No dead letters match this filter."]);
    let list = read(&pages, &format!("/dead-letters/list?endpoint={endpoint}&cause=refused&answer=400")).await;
    assert_eq!(list.matches("type=\"checkbox\" name=\"id\"").count(), 30);
    has(&read(&pages, "/dead-letters/list?answer=503").await, &["No dead letters match."]);

    receiver.answer_with(|_| Reply::Status(200));
    let asked =
        format!("/dead-letters/recover?endpoint={endpoint}&answer=400&since=2h&note=the+night&kind=replay&preview=yes");
    let preview = read(&pages, &asked).await;
    has(&preview, &["Nothing has been done yet", "30 deliveries would be sent again, to 1 endpoint.", "of its rate"]);
    assert_eq!(receiver.count(), 30, "a preview sends nothing");
    assert!(!hidden_fields(&preview).contains(&("since".into(), "2h".into())), "the time is fixed by the preview");

    let job = start_previewed(&gateway, &pages, "", &preview).await;
    assert_eq!(
        (&job["kind"], &job["note"], &job["tenant"]),
        (&json!("replay"), &json!("the night"), &json!("_system"))
    );
    let job = finished(&gateway, &job).await;
    assert_eq!(job["outcome"], json!({"delivered": 30, "dead": 0, "waiting": 0}));
    let page = read(&pages, &format!("/jobs/_system/{}", job["id"].as_str().unwrap())).await;
    has(
        &page,
        &["30 of 30 are through: 30 delivered, 0 dead again, 0 waiting now.", "the night", "finished", "the shop"],
    );
    has(&read(&pages, "/jobs").await, &["the night", "all tenants", "30 of 30 are through"]);
    // A page is shared by all who ask for it within a second, so another address is asked for.
    has(&read(&pages, "/dead-letters?since=3h").await, &["Nothing is dead."]);
}

async fn chosen_dead_letters_are_discarded() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    lost(&gateway, &receiver, 3).await;
    let pages = PageClient::operator(&gateway).await;
    let dead = gateway.list(DEAD).await;
    let (first, second) = (dead[0]["id"].as_str().unwrap(), dead[1]["id"].as_str().unwrap());
    let preview =
        read(&pages, &format!("/dead-letters/recover?tenant=default&kind=discard&preview=yes&id={first}&id={second}"))
            .await;
    has(
        &preview,
        &["2 deliveries of 1 endpoint would be given up for good.", "2 chosen dead letters", "Discard 2 deliveries"],
    );
    let job = start_previewed(&gateway, &pages, "", &preview).await;
    assert_eq!((&job["kind"], &job["tenant"]), (&json!("discard"), &json!("default")));
    finished(&gateway, &job).await;
    wait_for_dead(&gateway, 1).await;
    let left = gateway.list(DEAD).await;
    assert_eq!(left[0]["id"], dead[2]["id"]);

    let file = pages.open("/dead-letters/export?format=csv").await;
    assert_eq!((file.status, &file.headers["content-type"]), (200, &"text/csv; charset=utf-8".parse().unwrap()));
    has(file.headers["content-disposition"].to_str().unwrap(), &["attachment", "dead-letters.csv"]);
    let text = String::from_utf8(file.body.to_vec()).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    has(&text, &["\"last_status\"", left[0]["id"].as_str().unwrap(), "\"refused\"", "\"400\""]);
    let file = pages.open("/dead-letters/export?format=ndjson&answer=400").await;
    let row: Value = serde_json::from_slice(&file.body).unwrap();
    assert_eq!(row["id"], left[0]["id"]);
    assert!(pages.open("/dead-letters/export?answer=503").await.body.is_empty());
}

async fn a_customer_recovers_what_died_and_sees_nobody_else() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    lost(&gateway, &receiver, 5).await;
    gateway.client.send("PUT", "/v1/tenants/other", &[], "{}").await.unwrap().expect(201);
    let others =
        gateway.client.post_json("/v1/tenants/other/endpoints", &json!({"url": receiver.url()})).await.expect(201);
    let event = json!({"id": "secret-1", "type": "x.y", "data": 1});
    gateway.client.post_json("/v1/tenants/other/events", &event).await.expect(202);
    eventually("the other tenant's dead letter", || async {
        let dead = gateway.list("/v1/dead-letters").await;
        if dead.len() == 6 { Ok(()) } else { Err(dead.len().to_string()) }
    })
    .await;
    let made = async |rights: Value| {
        let wish = json!({"tenant": "default", "rights": rights, "name": "customer"});
        let made = gateway.client.post_json("/v1/tokens", &wish).await.expect(201);
        made["token"].as_str().unwrap().to_owned()
    };
    let pages = PageClient::portal(&gateway, &made(json!(["read", "manage"])).await).await;
    let groups = read(&pages, "/portal/dead-letters?tenant=other").await;
    has(&groups, &["5 deliveries are dead in 1 group."]);
    let list = read(&pages, "/portal/dead-letters/list?tenant=other").await;
    assert!(!list.contains("secret-1") && !list.contains(others["id"].as_str().unwrap()), "{list}");

    receiver.answer_with(|_| Reply::Status(200));
    let preview = read(&pages, "/portal/dead-letters/recover?tenant=other&kind=replay&since=2h&preview=yes").await;
    has(&preview, &["5 deliveries would be sent again, to 1 endpoint."]);
    let job = start_previewed(&gateway, &pages, "/portal", &preview).await;
    assert_eq!(job["tenant"], "default");
    finished(&gateway, &job).await;
    has(&read(&pages, "/portal/jobs").await, &["<h1>Recovery", "5 of 5 are through"]);
    has(&read(&pages, &format!("/portal/jobs/{}", job["id"].as_str().unwrap())).await, &["5 delivered"]);
    let dead = gateway.list("/v1/dead-letters").await;
    assert_eq!((dead.len(), &dead[0]["tenant"]), (1, &json!("other")));
    let access = read(&pages, "/portal/access").await;
    has(&access, &["customer", "job started", "Revoke…"]);
    assert!(!access.contains("other"), "{access}");

    let reader = PageClient::portal(&gateway, &made(json!(["read"])).await).await;
    let (status, _) = reader.get("/portal/dead-letters/recover?kind=replay&all=yes&preview=yes").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "a reader may not even preview");
    assert!(!read(&reader, "/portal/dead-letters").await.contains("Recover…"));
    has(&read(&reader, "/portal/access").await, &["Tokens are shown to sign-ins with the right manage."]);
}

/// Returns the path of the portal that a link with this text leads to.
fn portal_link(html: &str, text: &str) -> String {
    let before = html.split(&format!(">{text}</a>")).next().filter(|before| before.len() < html.len());
    let address = before.and_then(|before| before.rsplit("href=\"").next()).and_then(|rest| rest.split('"').next());
    let address = address.unwrap_or_else(|| panic!("no link {text:?} in {html}"));
    let below = address.trim_start_matches("../").trim_start_matches("./").trim_start_matches("portal/");
    format!("/portal/{}", below.replace("&#38;", "&").replace("&amp;", "&"))
}

async fn the_first_page_of_the_portal_leads_to_the_recovery_of_everything() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = lost(&gateway, &receiver, 3).await;
    let wish = json!({"tenant": "default", "rights": ["read", "manage"], "name": "customer"});
    let made = gateway.client.post_json("/v1/tokens", &wish).await.expect(201);
    let pages = PageClient::portal(&gateway, made["token"].as_str().unwrap()).await;
    let home = read(&pages, "/portal").await;
    has(&home, &["3 deliveries will not come by themselves"]);
    assert!(!home.contains("posthaste "), "a customer has no commands: {home}");
    receiver.answer_with(|_| Reply::Status(200));
    let preview = read(&pages, &portal_link(&home, "Recover what was missed")).await;
    has(&preview, &["Nothing has been done yet", "3 deliveries would be sent again, to 1 endpoint."]);
    has(&preview, &["Everything that failed since <input name=\"since\"", "<details id=\"choices\"><summary>"]);
    // The same from the dead letters, and from the endpoint in trouble.
    let groups = read(&pages, "/portal/dead-letters").await;
    has(&read(&pages, &portal_link(&groups, "Recover…")).await, &["3 deliveries would be sent again, to 1 endpoint."]);
    let shown = read(&pages, &format!("/portal/endpoints/{}", endpoint["id"].as_str().unwrap())).await;
    has(&shown, &[">3 dead letters</a>"]);
    has(
        &read(&pages, &portal_link(&shown, "Replay them…")).await,
        &["3 deliveries would be sent again, to 1 endpoint."],
    );
    // A bare form has a time in it.
    has(&read(&pages, "/portal/dead-letters/recover").await, &["name=\"since\" value=\"24h\""]);

    let job = start_previewed(&gateway, &pages, "/portal", &preview).await;
    assert_eq!(finished(&gateway, &job).await["outcome"], json!({"delivered": 3, "dead": 0, "waiting": 0}));
}

async fn a_recovery_that_is_refused_keeps_what_was_typed() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = lost(&gateway, &receiver, 2).await;
    let pages = PageClient::operator(&gateway).await;
    let empty = read(&pages, "/dead-letters/recover?kind=replay&preview=yes&note=keep+me").await;
    has(&empty, &["filter is empty", "value=\"keep me\"", "What should be recovered?"]);
    assert!(!empty.contains("Nothing has been done yet"));
    let wrong = read(&pages, "/dead-letters/recover?kind=replay&since=noon&per_second=fast&preview=yes").await;
    has(&wrong, &["&#34;noon&#34; is no time", "&#34;fast&#34; is no number", "value=\"noon\""]);
    let (status, location, page) = pages.post("/dead-letters/recover", &[("kind", "discard"), ("note", "typed")]).await;
    assert_eq!((status, location), (StatusCode::OK, None));
    has(&page, &["filter is empty", "value=\"typed\""]);
    wait_for_dead(&gateway, 2).await;
    assert!(gateway.list("/v1/jobs").await.is_empty());
    // A backfill goes by acceptance, and what the endpoint has had stays out.
    let id = endpoint["id"].as_str().unwrap();
    let backfill =
        read(&pages, &format!("/dead-letters/recover?kind=backfill&endpoint={id}&since=2h&preview=yes")).await;
    has(
        &backfill,
        &["Nothing would be changed", "2 deliveries would stay as they are: the endpoint has had the event."],
    );
    // A job at a slow pace is paused, resumed and cancelled.
    let preview = read(&pages, "/dead-letters/recover?kind=replay&all=yes&per_second=0.01&preview=yes").await;
    let job = start_previewed(&gateway, &pages, "", &preview).await;
    let path = format!("/jobs/_system/{}", job["id"].as_str().unwrap());
    for (verb, state) in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")] {
        let (status, location, page) = pages.post(&format!("{path}/{verb}"), &[]).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{page}");
        let location = location.expect("the job's page");
        let done = location.split('?').nth(1).expect("what was done");
        assert!(done.starts_with("done=job_"), "{location}");
        let api_path = format!("/v1/tenants{}", path.replace("/jobs/_system", "/_system/jobs"));
        assert_eq!(gateway.client.get(&api_path).await.expect(200)["state"], state);
        has(&read(&pages, &format!("{path}?{done}")).await, &[&format!(">{state}</span>"), "role=\"status\""]);
    }
}

async fn a_tenant_is_made_changed_and_deleted_by_typing_its_id() {
    let gateway = Gateway::start().await;
    let pages = PageClient::operator(&gateway).await;
    has(&read(&pages, "/tenants").await, &["<b>default</b>", "New tenant"]);
    let (_, _, refused) = pages.post("/tenants", &[("id", "no/slash"), ("name", "typed")]).await;
    has(&refused, &["role=\"alert\"", "value=\"no/slash\"", "value=\"typed\""]);
    let (status, location, _) = pages.post("/tenants", &[("id", "acme"), ("name", HOSTILE)]).await;
    assert_eq!((status, location.as_deref()), (StatusCode::SEE_OTHER, Some("./tenants/acme?done=created")));
    let (_, _, again) = pages.post("/tenants", &[("id", "acme"), ("name", "other")]).await;
    has(&again, &["there is a tenant &#34;acme&#34; already"]);
    let page = read(&pages, "/tenants/acme").await;
    has(&page, &["Used, against its limits", "Ends of deliveries", "<svg", "As a table", "&#60;script&#62;alert(1)"]);

    let fields: Vec<(String, String)> = page
        .split("<form class=\"panel\" method=\"post\" action=\"../tenants/acme\"")
        .nth(1)
        .expect("the form")
        .split("<input name=\"")
        .skip(1)
        .filter_map(|input| {
            let (name, rest) = input.split_once("\" value=\"")?;
            Some((name.to_owned(), rest.split('"').next()?.to_owned()))
        })
        .collect();
    assert_eq!(fields.len(), 14, "{fields:?}");
    let with = |changes: &[(&'static str, &'static str)]| -> Vec<(String, String)> {
        let changed =
            |name: &str| changes.iter().find(|(given, _)| *given == name).map(|(_, value)| (*value).to_owned());
        let typed = |name: &String, value: &String| if name == "name" { "Acme".to_owned() } else { value.clone() };
        fields.iter().map(|(name, value)| (name.clone(), changed(name).unwrap_or_else(|| typed(name, value)))).collect()
    };
    let post = async |form: Vec<(String, String)>| {
        let form: Vec<(&str, &str)> = form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        pages.post("/tenants/acme", &form).await
    };
    let (status, _, page) = post(with(&[("weight", "7"), ("rate", "20"), ("waiting", "5000")])).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{page}");
    let tenant = gateway.client.get("/v1/tenants/acme").await.expect(200);
    assert_eq!(
        (&tenant["weight"], &tenant["name"], &tenant["limits"]["waiting"]),
        (&json!(7), &json!("Acme"), &json!(5000))
    );
    assert_eq!(tenant["rate"]["per_second"], 20.0);
    let (status, _, page) = post(with(&[("weight", "5000"), ("endpoints", "77")])).await;
    assert_eq!(status, StatusCode::OK);
    has(&page, &["weight is 5000; use 1 to 1,000", "value=\"5000\"", "value=\"77\""]);
    assert_eq!(gateway.client.get("/v1/tenants/acme").await.expect(200)["weight"], 7);

    has(&read(&pages, "/tenants/acme/delete").await, &["It cannot be undone."]);
    let (status, _, page) = pages.post("/tenants/acme/delete", &[("typed", "acm")]).await;
    assert_eq!(status, StatusCode::OK);
    has(&page, &["is not the id of this tenant, and nothing was deleted"]);
    gateway.client.get("/v1/tenants/acme").await.expect(200);
    let (status, ..) = pages.post("/tenants/acme/delete", &[("typed", "acme")]).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    gateway.client.get("/v1/tenants/acme").await.problem(404, "not_found");
}

async fn a_token_is_shown_once_and_revoked_after_a_question() {
    let gateway = Gateway::start().await;
    let pages = PageClient::operator(&gateway).await;
    let (_, _, refused) = pages.post("/tokens", &[("tenant", "nobody"), ("rights", "read"), ("name", "typed")]).await;
    has(&refused, &["there is no tenant &#34;nobody&#34;", "value=\"typed\"", "value=\"read\" checked"]);
    let form = [("tenant", "default"), ("rights", "read"), ("rights", "manage"), ("name", "shop"), ("ends", "30d")];
    let (status, location, made) = pages.post("/tokens", &form).await;
    assert_eq!((status, location), (StatusCode::OK, None), "a secret is in no address");
    let token =
        made.split("id=\"made-token\">").nth(1).and_then(|rest| rest.split('<').next()).expect("the token").to_owned();
    let client = Client::new(gateway.address, &token);
    client.get("/v1/tenants/default").await.expect(200);
    let list = read(&pages, "/tokens").await;
    has(&list, &["shop", "read, manage", "Revoke…"]);
    assert!(!list.contains(&token));
    let id = gateway.list("/v1/tokens").await[0]["id"].as_str().unwrap().to_owned();
    has(&read(&pages, &format!("/tokens/{id}/revoke")).await, &["“shop”", "It cannot be undone."]);
    client.get("/v1/tenants/default").await.expect(200);
    let (status, ..) = pages.post(&format!("/tokens/{id}/revoke"), &[]).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    client.get("/v1/tenants/default").await.problem(401, "unauthenticated");
    let audit = read(&pages, &format!("/audit?resource={id}")).await;
    has(&audit, &["token created", "token revoked", "admin"]);
    has(&read(&pages, "/audit?since=noon").await, &["is no time"]);
    assert!(!read(&pages, "/audit?tenant=nobody").await.contains("token created"));
}

async fn the_gateway_is_shown_as_it_is() {
    let gateway = Gateway::start().await;
    let pages = PageClient::operator(&gateway).await;
    let cluster = read(&pages, "/cluster").await;
    has(&cluster, &["One node owns all 256 shards.", "answers this"]);
    assert_eq!(cluster.matches("<rect class=\"owner-0\" x=").count(), 256);
    let settings = read(&pages, "/settings?q=retention").await;
    has(&settings, &["retention", env!("CARGO_PKG_VERSION"), "default"]);
    assert!(!settings.contains("allow-egress"), "the search leaves out what does not match");
    has(&read(&pages, "/settings?changed=yes").await, &["flag"]);
    has(&read(&pages, "/jobs").await, &["There is no job."]);
    has(&read(&pages, "/tokens").await, &["There is no token besides the admin token."]);
    // A reader of the gateway sees everything and finds no way to change it.
    let reader = json!({"rights": ["admin_read"], "name": "watcher"});
    let token = gateway.client.post_json("/v1/tokens", &reader).await.expect(201);
    let reader = PageClient::operator_with(&gateway, token["token"].as_str().unwrap()).await;
    for path in ["/dead-letters", "/jobs", "/tenants", "/tenants/default", "/cluster", "/audit", "/tokens", "/settings"]
    {
        let html = read(&reader, path).await;
        let forms = html.matches("<form method=\"post\"").count()
            + html.matches("<form class=\"panel\" method=\"post\"").count();
        assert_eq!(forms, 2, "{path} has the forms of look and sign-out only: {html}");
    }
    assert_eq!(reader.get("/dead-letters/recover").await.0, StatusCode::FORBIDDEN);
    assert_eq!(reader.get("/tenants/default/delete").await.0, StatusCode::FORBIDDEN);
}

async fn what_strangers_wrote_stays_text() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    receiver.answer_with(|_| Reply::Status(400));
    let settings = json!({"url": receiver.url(), "description": HOSTILE, "rate": unlimited()});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send(json!({"id": "e1", "type": "a.b", "key": HOSTILE, "data": HOSTILE})).await;
    wait_for_dead(&gateway, 1).await;
    let token = json!({"tenant": "default", "rights": ["read", "manage"], "name": HOSTILE});
    let token = gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    gateway.client.patch_json("/v1/tenants/default", &json!({"name": HOSTILE})).await.expect(200);
    let job = json!({"kind": "replay", "filter": {"key": HOSTILE}, "note": HOSTILE, "per_second": 0.001});
    let job = gateway.client.post_json("/v1/tenants/default/jobs", &job).await.expect(202);
    gateway
        .client
        .post(&format!("/v1/tenants/default/jobs/{}/cancel", job["id"].as_str().unwrap()), "")
        .await
        .expect(200);
    gateway.send(json!({"id": "e2", "type": "a.b", "data": 1})).await;
    wait_for_dead_more(&gateway).await;
    let operator = PageClient::operator(&gateway).await;
    let portal = PageClient::portal(&gateway, token["token"].as_str().unwrap()).await;
    let typed: String = url::form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect();
    let (id, job) = (token["id"].as_str().unwrap(), job["id"].as_str().unwrap());
    let ep = endpoint["id"].as_str().unwrap();
    for path in [
        "/dead-letters".to_owned(),
        format!(
            "/dead-letters?tenant={typed}&endpoint={typed}&cause={typed}&answer={typed}&since={typed}&until={typed}"
        ),
        "/dead-letters/list".to_owned(),
        format!("/dead-letters/list?key={typed}&event_type={typed}&answer={typed}&since={typed}&cursor={typed}"),
        format!("/dead-letters/recover?kind=replay&preview=yes&endpoint={ep}&note={typed}"),
        format!(
            "/dead-letters/recover?kind={typed}&preview=yes&id={typed}&endpoint={typed}&answer={typed}&key={typed}&per_second={typed}&state={typed}"
        ),
        "/jobs".to_owned(),
        format!("/jobs/default/{job}"),
        "/tenants".to_owned(),
        "/tenants/default".to_owned(),
        "/tenants/default/delete".to_owned(),
        format!("/audit?resource={typed}"),
        "/audit".to_owned(),
        "/tokens".to_owned(),
        format!("/tokens?tenant={typed}"),
        format!("/tokens/{id}/revoke"),
        format!("/settings?q={typed}"),
        "/cluster".to_owned(),
    ] {
        is_text(&operator, &path).await;
        is_text(&portal, &format!("/portal{}", path.replace("/jobs/default", "/jobs"))).await;
    }
    is_text(&portal, "/portal/access").await;
    has(&read(&operator, &format!("/jobs/default/{job}")).await, &["&#60;script&#62;alert(1)&#60;/script&#62;"]);
    has(&read(&operator, "/dead-letters").await, &["&#60;script&#62;alert(1)&#60;/script&#62;"]);
}

/// Waits for the second dead letter: the first may be waiting behind its job.
async fn wait_for_dead_more(gateway: &Gateway) {
    gateway.wait_for_state("e2", "dead").await;
}

async fn is_text(pages: &PageClient, path: &str) {
    let (_, html) = pages.get(path).await;
    for markup in ["<script>", "<img src", "onerror=alert(1)>", " style=", "javascript:"] {
        assert!(!html.contains(markup), "{markup} on {path}: {html}");
    }
}
