//! Whatever strangers write stays text: a list of hostile texts goes through every field
//! that they fill, and no page gets an element, an attribute or an address from it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Client, Gateway, Options, PageClient, ParsedPage, Receiver, Reply, eager_retry, hostile_texts};

for_every_store! {
    no_text_of_a_stranger_becomes_more_than_text_on_any_page,
}

/// What the pages of a gateway with harmless texts are made of.
#[derive(Default)]
struct TemplateShape {
    /// Elements, and attributes of elements.
    parts: BTreeSet<String>,
    /// Addresses of other sites.
    elsewhere: BTreeSet<String>,
}

/// Looks at pages: learns what they are made of, or compares.
struct Inspector {
    shape: TemplateShape,
    is_learning: bool,
}

impl Inspector {
    fn look(&mut self, what: &str, html: &str) {
        let page = ParsedPage::of(html);
        let elsewhere = page.addresses().filter(|address| has_scheme_or_host(address)).map(str::to_owned);
        if self.is_learning {
            self.shape.elsewhere.extend(elsewhere);
            self.shape.parts.extend(page.shape());
            return;
        }
        let foreign: Vec<String> = elsewhere.filter(|address| !self.shape.elsewhere.contains(address)).collect();
        assert!(foreign.is_empty(), "{what} leads to {foreign:?}: {html}");
        let added: Vec<String> = page.shape().difference(&self.shape.parts).cloned().collect();
        assert!(added.is_empty(), "{what} has {added:?}, which no template made: {html}");
        assert_eq!(page.comments, 0, "{what} has a comment: {html}");
        assert!(!html.contains("data-evil") || !page.shape().iter().any(|part| part.contains("evil")), "{what}");
    }
}

/// Whether an address leads away from these pages, or is none.
fn has_scheme_or_host(address: &str) -> bool {
    let plain: String = address.chars().filter(|c| !c.is_control() && !c.is_whitespace()).collect();
    plain.starts_with("//")
        || plain.starts_with("\\")
        || plain.split(['/', '?', '#']).next().is_some_and(|start| start.contains(':'))
}

/// One text in every field that takes it.
struct PlantedText {
    text: String,
    endpoint: String,
    delivery: String,
    events: Vec<String>,
    job: Option<String>,
    /// Fields that took it.
    taken: Vec<&'static str>,
    _receiver: Receiver,
}

impl PlantedText {
    async fn plant(gateway: &Gateway, number: usize, text: &str) -> Self {
        let receiver = answering(text).await;
        let event_type = format!("t.n{number}");
        let settings = json!({"url": receiver.url(), "event_types": [event_type], "retry": eager_retry(2)});
        let endpoint = gateway.create_endpoint(settings).await;
        let path = format!("/v1/tenants/default/endpoints/{}", id_of(&endpoint));
        let mut taken = Vec::new();
        let url = format!("{}?x={text}", receiver.url());
        for (field, change) in [
            ("url", json!({"url": url})),
            ("description", json!({"description": text})),
            ("metadata", json!({"metadata": {"note": text}})),
            ("metadata name", json!({"metadata": {text: "x"}})),
            ("header", json!({"headers": {"x-note": text}})),
            ("owner", json!({"owner_email": text})),
        ] {
            let answer = gateway.client.patch_json(&path, &change).await;
            assert!(answer.status < 500, "{field}: {answer:?}");
            taken.extend((answer.status == 200).then_some(field));
        }
        let mut events = Vec::new();
        for (field, event) in [
            ("event id", json!({"id": text, "type": "a.b", "data": 1})),
            ("event type", json!({"id": format!("typed{number}"), "type": text, "data": 1})),
            ("key", json!({"id": format!("e{number}"), "type": event_type, "key": text, "data": {text: text}})),
            ("payload", json!({"id": format!("e{number}"), "type": event_type, "data": {text: text}})),
        ] {
            let answer = gateway.client.post_json("/v1/tenants/default/events", &event).await;
            assert!(answer.status < 500, "{field}: {answer:?}");
            if answer.status == 202 {
                taken.push(field);
                events.push(event["id"].as_str().unwrap().to_owned());
            }
        }
        let delivery = gateway.wait_for_state(&format!("e{number}"), "dead").await;
        for (field, verb) in [("pause", "pause"), ("resume", "resume"), ("breaker", "breaker/open")] {
            let answer = gateway.client.post_json(&format!("{path}/{verb}"), &json!({"note": text})).await;
            taken.extend((answer.status == 200).then_some(field));
        }
        let job = json!({"kind": "replay", "filter": {"endpoints": [endpoint["id"]]}, "note": text});
        let job = gateway.client.post_json("/v1/tenants/default/jobs", &job).await;
        let job = (job.status == 202).then(|| id_of(&job.json()).to_owned());
        taken.extend(job.is_some().then_some("job"));
        if let Some(job) = &job {
            gateway.client.post(&format!("/v1/tenants/default/jobs/{job}/cancel"), "").await;
        }
        let token = json!({"tenant": "default", "rights": ["read"], "name": text});
        taken.extend((gateway.client.post_json("/v1/tokens", &token).await.status == 201).then_some("token"));
        let (endpoint, delivery) = (id_of(&endpoint).to_owned(), id_of(&delivery).to_owned());
        Self { text: text.to_owned(), endpoint, delivery, events, job, taken, _receiver: receiver }
    }

    /// Returns the pages about it, below the root of a site.
    fn pages(&self, tenant: &str) -> Vec<String> {
        let (endpoint, delivery) = (&self.endpoint, &self.delivery);
        let mut pages = vec![
            format!("/endpoints{tenant}/{endpoint}"),
            format!("/endpoints{tenant}/{endpoint}/edit"),
            format!("/endpoints{tenant}/{endpoint}/delete"),
            format!("/deliveries{tenant}/{delivery}"),
            format!("/deliveries{tenant}/{delivery}/discard"),
        ];
        for event in &self.events {
            let event = typed(event);
            pages.extend(["", "?view=pretty", "/expunge"].map(|page| format!("/events{tenant}/{event}{page}")));
        }
        pages.extend(self.job.iter().map(|job| format!("/jobs{tenant}/{job}")));
        pages
    }

    /// Returns pages whose address has it in every field of their form.
    fn filtered(&self) -> Vec<String> {
        let (q, endpoint) = (typed(&self.text), &self.endpoint);
        vec![
            format!("/?done={q}"),
            format!("/search?q={q}"),
            format!("/endpoints?q={q}&tenant={q}&state={q}&sort={q}&cursor={q}"),
            format!("/endpoints/new?event_types={q}&url={q}"),
            format!("/deliveries?key={q}&event_type={q}&since={q}&endpoint={q}&cursor={q}"),
            format!("/deliveries?tenant={q}&state={q}&cause={q}&until={q}"),
            format!("/events?tenant=default&type={q}&key={q}&since={q}"),
            format!("/event-types?tenant={q}"),
            format!("/live?event_type={q}&verdict={q}&endpoint={q}"),
            format!("/dead-letters?tenant={q}&endpoint={q}&cause={q}&answer={q}&since={q}&until={q}"),
            format!("/dead-letters/list?key={q}&event_type={q}&answer={q}&since={q}&cursor={q}"),
            format!("/dead-letters/recover?tenant=default&kind=replay&preview=yes&endpoint={endpoint}&note={q}"),
            format!("/dead-letters/recover?kind={q}&preview=yes&id={q}&endpoint={q}&key={q}&per_second={q}&state={q}"),
            format!("/simulator?tenant={q}&endpoint={q}&preset={q}&max_attempts={q}&max_age={q}&schedule={q}"),
            format!("/simulator?json={q}"),
            format!("/debugger?tenant={q}&endpoint={q}"),
            format!("/audit?resource={q}&action={q}&since={q}&cursor={q}"),
            format!("/tokens?tenant={q}"),
            format!("/settings?q={q}"),
            format!("/no-such-page/{q}"),
            format!("/deliveries/{q}/{q}"),
        ]
    }

    /// Returns forms that have it in every field: path and fields.
    fn forms(&self) -> Vec<(String, Vec<(&'static str, &str)>)> {
        let (text, endpoint) = (self.text.as_str(), format!("/endpoints/default/{}", self.endpoint));
        let fill = |names: &[&'static str]| names.iter().map(|name| (*name, text)).collect::<Vec<_>>();
        let settings = ["url", "description", "owner_email", "event_types", "max_in_flight", "more", "seen_type"];
        vec![
            ("/endpoints/default/new".into(), fill(&settings)),
            (format!("{endpoint}/edit"), fill(&["description", "owner_email", "more", "seen"])),
            (format!("{endpoint}/delete"), fill(&["id"])),
            (format!("{endpoint}/rotate"), fill(&["overlap"])),
            (format!("{endpoint}/pause"), fill(&["note"])),
            (format!("{endpoint}/breaker/open"), fill(&["note", "for"])),
            (format!("/deliveries/default/{text}/retry"), fill(&["x"])),
            ("/tenants".into(), fill(&["id", "name"])),
            ("/tenants/default".into(), fill(&["name", "weight", "rate", "rest"])),
            ("/tenants/default/delete".into(), fill(&["typed"])),
            ("/tenants/default/portal-link".into(), fill(&["session_for", "name", "return_url"])),
            ("/tokens".into(), fill(&["name", "tenant", "expires_at"])),
            ("/debugger".into(), fill(&["tenant", "endpoint", "headers", "body", "secret"])),
            ("/dead-letters/recover".into(), fill(&["tenant", "kind", "key", "note", "per_second"])),
        ]
    }
}

/// A receiver that answers with a text in a header, where that is possible, and then in
/// the body.
async fn answering(text: &str) -> Receiver {
    let header = http::HeaderValue::try_from(text).is_ok();
    let (text, mut is_first) = (text.to_owned(), true);
    Receiver::answering(move |_| match std::mem::take(&mut is_first) && header {
        true => Reply::With(503, "x-answer", text.clone()),
        false => Reply::Body(400, text.clone().into()),
    })
    .await
}

fn id_of(value: &Value) -> &str {
    value["id"].as_str().unwrap_or_else(|| panic!("no id in {value}"))
}

/// Writes a text into an address.
fn typed(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Opens a page; whatever it answers, it is small, and no failure of ours.
async fn open(inspector: &mut Inspector, client: &PageClient, site: &str, path: &str) -> String {
    let (status, html) = client.get(path).await;
    assert!(!status.is_server_error(), "{path}: {html}");
    // Whoever asks with a long address gets it back in every field of the form.
    assert!(html.len() < 60_000 || path.len() > 2_000, "{path} has {} bytes", html.len());
    inspector.look(&format!("{site}{path}"), &html);
    html
}

const LISTS: [&str; 15] = [
    "/",
    "/endpoints",
    "/deliveries",
    "/events?tenant=default",
    "/event-types?tenant=default",
    "/live",
    "/dead-letters",
    "/dead-letters?tenant=default",
    "/dead-letters/list",
    "/jobs",
    "/tenants",
    "/tenants/default",
    "/audit",
    "/tokens",
    "/debugger?tenant=default",
];

const PORTAL_LISTS: [&str; 9] = [
    "/portal",
    "/portal/endpoints",
    "/portal/deliveries",
    "/portal/events",
    "/portal/event-types",
    "/portal/dead-letters",
    "/portal/dead-letters/list",
    "/portal/jobs",
    "/portal/access",
];

/// Plants texts in a gateway, and lets the inspector see every page; returns which fields
/// took how many of them.
async fn show(inspector: &mut Inspector, texts: &[String]) -> Vec<(&'static str, usize)> {
    let gateway = Gateway::start_with(Options::flags(&["--self-test", "off"])).await;
    let operator = PageClient::operator(&gateway).await;
    let token = json!({"tenant": "default", "rights": ["manage", "read"], "name": "customer"});
    let token = gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    let portal = PageClient::portal(&gateway, token["token"].as_str().unwrap()).await;
    let mut fields: Vec<(&'static str, usize)> = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let planted = PlantedText::plant(&gateway, number, text).await;
        let name = gateway.client.patch_json("/v1/tenants/default", &json!({"name": text})).await;
        for field in planted.taken.iter().copied().chain((name.status == 200).then_some("tenant")) {
            match fields.iter_mut().find(|(known, _)| *known == field) {
                Some((_, count)) => *count += 1,
                None => fields.push((field, 1)),
            }
        }
        for page in planted.pages("/default").iter().chain(&planted.filtered()) {
            open(inspector, &operator, "", page).await;
        }
        for page in planted.pages("").iter().map(|page| format!("/portal{page}")) {
            open(inspector, &portal, "", &page).await;
        }
        for page in ["/tenants", "/tenants/default", "/tenants/default/delete", "/"] {
            open(inspector, &operator, "", page).await;
        }
        open(inspector, &portal, "", "/portal").await;
        for (path, form) in planted.forms() {
            let path = path.split('/').map(typed).collect::<Vec<_>>().join("/").replace("%2D", "-");
            let (status, _, html) = operator.post(&path, &form).await;
            assert!(!status.is_server_error(), "{path}: {html}");
            inspector.look(&format!("POST {path}"), &html);
        }
        is_shown_as_text(&operator, number, text).await;
        is_refused_as_text(inspector, &gateway, text).await;
    }
    for page in LISTS {
        open(inspector, &operator, "", page).await;
    }
    for page in PORTAL_LISTS {
        open(inspector, &portal, "", page).await;
    }
    fields
}

/// The beginning of a text can be read on the page of its event.
async fn is_shown_as_text(operator: &PageClient, number: usize, text: &str) {
    let (_, html) = operator.get(&format!("/events/default/e{number}?view=pretty")).await;
    let is_plain = |c: &char| (c.is_ascii_graphic() || *c == ' ') && *c != '"' && *c != '\\';
    let start: String = text.chars().take_while(is_plain).take(20).collect();
    assert!(ParsedPage::of(&html).text.contains(&start), "{start:?} is not to be read: {html}");
}

/// A refused sign-in repeats nothing as markup, neither the token nor the code nor the
/// page to go to, also when there were too many.
async fn is_refused_as_text(inspector: &mut Inspector, gateway: &Gateway, text: &str) {
    let stranger = Client::new(gateway.address, "none");
    let origin = format!("http://{}", gateway.address);
    let headers =
        [("origin", origin.as_str()), ("content-type", "application/x-www-form-urlencoded"), ("authorization", "")];
    let q = typed(text);
    for (path, form) in [
        ("/sign-in", format!("token={q}&next={q}")),
        ("/portal/sign-in", format!("token={q}&next={q}")),
        ("/enter", format!("code={q}")),
        ("/portal/enter", format!("code={q}")),
    ] {
        let answer = stranger.send("POST", path, &headers, form).await.unwrap();
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
        assert!(answer.headers.get("set-cookie").is_none(), "{path}: {answer:?}");
        inspector.look(&format!("POST {path}"), &String::from_utf8_lossy(&answer.body));
    }
    let asked = stranger.send("GET", &format!("/deliveries?key={q}"), &headers, "").await.unwrap();
    assert_eq!(asked.status, 401);
    inspector.look("the page that asks to sign in", &String::from_utf8_lossy(&asked.body));
}

async fn no_text_of_a_stranger_becomes_more_than_text_on_any_page() {
    let mut inspector = Inspector { shape: TemplateShape::default(), is_learning: true };
    // Harmless texts, also some that are hidden, numbers or JSON: pages say more about those.
    let harmless = ["plain", "two words", "\u{202e}turned", "7", "{\"preset\":\"quick\"}", "\u{7}bell"];
    show(&mut inspector, &harmless.map(str::to_owned)).await;
    inspector.is_learning = false;
    let texts = hostile_texts();
    let fields = show(&mut inspector, &texts).await;
    let taken = |field: &str| fields.iter().find(|(name, _)| *name == field).map_or(0, |(_, count)| *count);
    for field in ["description", "metadata", "header", "key", "pause", "job", "token", "tenant"] {
        assert!(taken(field) >= texts.len() / 2, "{field} took too few of {} texts: {fields:?}", texts.len());
    }
    // Most of them are no part of a URL.
    assert!(taken("url") >= 5 && taken("key") + taken("payload") == texts.len(), "{fields:?}");
}

#[test]
fn a_page_is_taken_apart_as_a_browser_does() {
    let page = ParsedPage::of(
        "<!doctype html><p class=\"a\" ID='b' hidden>x &#60;b&#62; &lt;i> < 1<textarea><b>no</b></textarea><br/>\
         <a href=java&#115;cript:1 onclick=\"x>y\">z</a><!-- <u> --><img/onerror=1>",
    );
    let shape: Vec<String> = page.shape().into_iter().collect();
    let expected =
        ["a", "a[href]", "a[onclick]", "br", "img", "img[onerror]", "p", "p[class]", "p[hidden]", "p[id]", "textarea"];
    assert_eq!(shape, expected);
    assert_eq!((page.comments, page.text.as_str()), (1, "x <b> <i> < 1<b>no</b>z"));
    assert!(page.addresses().eq(["javascript:1"]) && has_scheme_or_host("java\tscript:1"));
    assert!(has_scheme_or_host("//x") && !has_scheme_or_host("../a?b=c:d") && !has_scheme_or_host("./x"));
}
