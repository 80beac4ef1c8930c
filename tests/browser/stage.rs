//! Gateways for the browser to look at: empty, full, and full of hostile texts.

use std::collections::HashMap;

use posthaste::dashboard::page_table::{self, PageRoute};
use posthaste::model::sign_in::Site;
use serde_json::{Value, json};

use crate::driver::Browser;
use crate::support::{Gateway, HOSTILE, Options, Receiver, Reply, eager_retry, eventually};

/// What a gateway has been filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filling {
    /// Nothing was ever sent.
    Empty,
    /// Endpoints in all states, events, dead letters, a job.
    Full,
    /// The same with texts of strangers in every field.
    Hostile,
}

/// A gateway on the stage, with values for the parameters of paths.
pub struct Stage {
    pub gateway: Gateway,
    pub tenant_token: String,
    params: HashMap<&'static str, String>,
    /// Paths of pages in further states, below the tenant: an endpoint that is paused, a
    /// delivery that waits.
    states: Vec<(&'static str, String)>,
    _receiver: Receiver,
}

impl Stage {
    /// Starts a gateway and fills it.
    pub async fn set(filling: Filling) -> Self {
        let gateway = Gateway::start_with(Options::flags(&["--self-test", "off"])).await;
        let receiver = Receiver::start().await;
        let mut params = HashMap::from([("tenant", "default".to_owned())]);
        let mut states = Vec::new();
        if filling != Filling::Empty {
            fill(&gateway, &receiver, filling, &mut params).await;
            states = in_more_states(&gateway, &receiver, filling).await;
        }
        let token = json!({"tenant": "default", "rights": ["manage", "read"], "name": "customer"});
        let token = gateway.client.post_json("/v1/tokens", &token).await.expect(201);
        let tenant_token = token["token"].as_str().unwrap().to_owned();
        Self { gateway, tenant_token, params, states, _receiver: receiver }
    }

    /// Returns the address of the gateway's root.
    pub fn url(&self) -> String {
        format!("http://{}", self.gateway.address)
    }

    /// Returns the paths of all pages of a site that this gateway can show.
    pub fn paths(&self, site: Site) -> Vec<String> {
        let pages = page_table::pages(&posthaste::api::openapi::document()).expect("every page names its right");
        let shown = pages.iter().filter(|page| page.site == site && page.method == "GET");
        shown.filter_map(|page| self.path(page)).collect()
    }

    /// Returns the paths of pages that differ much from those of [`Self::paths`]: with other
    /// states, with a filter, with a preview.
    pub fn paths_of_states(&self, site: Site) -> Vec<String> {
        if self.states.is_empty() {
            return Vec::new();
        }
        let (root, tenant, query) = match site {
            Site::Operator => ("", "/default", "tenant=default&"),
            Site::Portal => ("/portal", "", ""),
        };
        let things = self.states.iter().map(|(kind, id)| format!("{root}/{kind}{tenant}/{id}"));
        let pages = [
            "/endpoints?q=nothing-is-called-so",
            "/deliveries?state=waiting",
            "/deliveries?state=dead",
            "/deliveries?key=nobody-has-this-key",
            "/dead-letters?by_day=yes",
            "/dead-letters?cause=expired",
            "/dead-letters/recover?kind=replay&preview=yes&since=2h",
            "/dead-letters/recover?kind=discard&preview=yes&since=2h",
            "/dead-letters/recover?kind=replay&preview=yes&since=when-it-rained",
            "/simulator?preset=long&max_age=240h",
            "/simulator?preset=standard&json=nonsense",
            "/search?q=nothing-has-this-id",
        ];
        let pages = pages.iter().map(|page| format!("{root}{}", page.replace('?', &format!("?{query}"))));
        let endpoint = &self.states[0].1;
        let compared = format!("{root}/simulator?{query}endpoint={endpoint}&preset=quick");
        let week = format!("{root}/endpoints{tenant}/{endpoint}?range=7d");
        things.chain(pages).chain([compared, week]).collect()
    }

    /// Returns a delivery that waits and that no lane holds.
    pub async fn waiting_delivery(&self) -> String {
        let path = format!("/v1/tenants/default/deliveries?state=waiting&endpoint={}", self.params["away"]);
        id(&self.gateway.list(&path).await[0])
    }

    fn path(&self, page: &PageRoute) -> Option<String> {
        let path = &page.path;
        // Not pages: a stylesheet, a picture, a stream, files to keep.
        let leaf = path.rsplit('/').next().unwrap_or_default();
        if ["stream", "export", "download", "data", "body"].contains(&leaf) || leaf.contains('.') {
            return None;
        }
        let mut filled = String::new();
        for part in path.split('/').skip(1) {
            filled.push('/');
            match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(name) => filled.push_str(self.params.get(name)?),
                None => filled.push_str(part),
            }
        }
        Some(filled)
    }
}

/// Fills a gateway: a receiver that answers, one that refuses, one that is away.
async fn fill(gateway: &Gateway, receiver: &Receiver, filling: Filling, params: &mut HashMap<&'static str, String>) {
    let text = |plain: &str| match filling {
        Filling::Hostile => format!("{plain} {HOSTILE}"),
        Filling::Empty | Filling::Full => plain.to_owned(),
    };
    let (is_hostile, body) = (filling == Filling::Hostile, text("no"));
    receiver.answer_with(move |request| {
        let is_refused = is_hostile || request.path.ends_with("/refusing");
        if is_refused { Reply::Body(400, body.clone().into()) } else { Reply::Status(200) }
    });
    let endpoint = gateway
        .create_endpoint(json!({
            "url": receiver.url(),
            "description": text("orders"),
            "metadata": {"team": text("shop")},
            "retry": eager_retry(2),
        }))
        .await;
    let away = json!({"url": "http://127.0.0.1:9/hook", "description": text("away"), "event_types": ["order.*"]});
    let away = gateway.create_endpoint(away).await;
    for number in 0..12 {
        let key = text(&format!("k{}", number % 3));
        let key: String = key.chars().filter(|c| !c.is_control()).take(60).collect();
        let event = json!({"id": format!("e{number}"), "type": "order.paid", "key": key, "data": {"note": text("paid"), "n": number}});
        gateway.send(event).await;
    }
    let state = if filling == Filling::Hostile { "dead" } else { "delivered" };
    let path = format!("/v1/tenants/default/deliveries?endpoint={}", endpoint["id"].as_str().unwrap());
    let delivery = eventually("an event is through", || async {
        let list = gateway.list(&path).await;
        list.into_iter().find(|delivery| delivery["state"] == state).ok_or_else(|| "none is".to_owned())
    })
    .await;
    let filter = json!({"kind": "retry", "filter": {"endpoints": [away["id"]]}, "note": text("again")});
    let job = gateway.client.post_json("/v1/tenants/default/jobs", &filter).await.expect(202);
    params.insert("endpoint", id(&endpoint));
    params.insert("away", id(&away));
    params.insert("delivery", id(&delivery));
    params.insert("event", delivery["event_id"].as_str().unwrap().to_owned());
    params.insert("job", id(&job));
    let tenant = json!({"name": text("Acme")});
    gateway.client.patch_json("/v1/tenants/default", &tenant).await.expect(200);
    let tokens = gateway.client.get("/v1/tokens").await.expect(200);
    if let Some(token) = tokens["data"].get(0) {
        params.insert("token", id(token));
    }
}

/// Makes an endpoint that refuses and blocks a lane, one whose breaker a person opened, one that
/// is paused; returns them, and a delivery in each state.
async fn in_more_states(gateway: &Gateway, receiver: &Receiver, filling: Filling) -> Vec<(&'static str, String)> {
    let note = if filling == Filling::Hostile { HOSTILE } else { "their server moves" };
    let note = json!({"note": note}).to_string();
    let made = async |name: &str, act: &str| {
        let settings = json!({"url": format!("{}/{name}", receiver.url()), "description": name,
            "event_types": [format!("{name}.*")]});
        let endpoint = id(&gateway.create_endpoint(settings).await);
        if !act.is_empty() {
            let path = format!("/v1/tenants/default/endpoints/{endpoint}/{act}");
            gateway.client.send("POST", &path, &[], note.clone()).await.unwrap().expect(200);
        }
        for number in 0..3 {
            let event =
                json!({"id": format!("{name}-{number}"), "type": format!("{name}.sent"), "key": "k", "data": {}});
            gateway.send(event).await;
        }
        endpoint
    };
    let refusing = made("refusing", "").await;
    let held = made("held", "breaker/open").await;
    let paused = made("paused", "pause").await;
    let first = async |endpoint: &str, state: &str| {
        let path = format!("/v1/tenants/default/deliveries?state={state}&endpoint={endpoint}");
        let found = eventually(&format!("one of {endpoint} is {state}"), || async {
            gateway.list(&path).await.first().cloned().ok_or_else(|| "none is".to_owned())
        })
        .await;
        id(&found)
    };
    let (dead, behind) = (first(&refusing, "dead").await, first(&refusing, "waiting").await);
    let (by_breaker, by_pause) = (first(&held, "waiting").await, first(&paused, "waiting").await);
    [("endpoints", refusing), ("endpoints", held), ("endpoints", paused), ("deliveries", dead), ("deliveries", behind)]
        .into_iter()
        .chain([("deliveries", by_breaker), ("deliveries", by_pause)])
        .collect()
}

fn id(of: &Value) -> String {
    of["id"].as_str().unwrap_or_else(|| panic!("no id in {of}")).to_owned()
}

/// Signs in with a token, as a person does. Works without script, too.
pub async fn sign_in(browser: &Browser, stage: &Stage, site: Site) {
    let (path, token) = match site {
        Site::Operator => ("/sign-in", stage.gateway.token()),
        Site::Portal => ("/portal/sign-in", stage.tenant_token.as_str()),
    };
    browser.open(&format!("{}{path}", stage.url())).await;
    browser.type_into("#token", token).await;
    browser.click("button.primary").await;
    browser
        .wait_until(
            "the sign-in is through",
            "return document.querySelector('nav.main') !== null && document.readyState === 'complete'",
        )
        .await;
}
