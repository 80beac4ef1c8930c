//! People who look at the pages of the dashboard and the portal: which pages there are,
//! and how long each takes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::header::{CONTENT_TYPE, COOKIE, ETAG, HOST, HeaderValue, IF_NONE_MATCH, ORIGIN, SET_COOKIE};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::gateway::{ApiConnection, GatewayGroup};
use super::load;

/// How often a page that is seen asks for itself again, as the pages' script has it.
const REFRESH: Duration = Duration::from_secs(3);

/// Most sessions: so many sign-ins are let in at once.
const SESSIONS_MAX: usize = 100;
/// Most tokens of the tenant.
const TOKENS_MAX: usize = 100_000;

/// How many parts of a list are read for its first row.
const PARTS_MAX: usize = 100;

/// A page that is looked at.
#[derive(Debug, Clone)]
pub struct BenchPage {
    /// Name of the page, without ids.
    pub name: String,
    path: String,
    is_of_portal: bool,
}

/// The cookies of one person, for both sites.
#[derive(Debug, Clone)]
pub struct BenchSession {
    operator: Arc<str>,
    portal: Arc<str>,
}

/// What was measured of one page.
#[derive(Debug)]
pub struct PageTimes {
    /// How long its answers took.
    pub micros: Histogram<u64>,
    /// Size of its largest answer.
    pub bytes: usize,
    /// Number of answers that said that nothing has changed.
    pub unchanged: u64,
}

impl PageTimes {
    /// Returns the times of a page that nobody has seen yet.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { micros: Histogram::new(3)?, bytes: 0, unchanged: 0 })
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.micros.add(&other.micros)?;
        self.bytes = self.bytes.max(other.bytes);
        self.unchanged += other.unchanged;
        Ok(())
    }
}

/// Signs in with a token; returns the cookie.
async fn sign_in(group: &GatewayGroup, path: &str, token: &str) -> anyhow::Result<Arc<str>> {
    let node = group.node(0);
    let request = hyper::Request::post(path)
        .header(HOST, node.address().to_string())
        .header(ORIGIN, format!("http://{}", node.address()))
        .header("sec-fetch-site", "same-origin")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Full::new(Bytes::from(format!("token={token}"))))?;
    let response = node.connect().await?.send_request(request).await?;
    let cookie = response.headers().get(SET_COOKIE).and_then(|cookie| cookie.to_str().ok()?.split(';').next());
    Ok(cookie.with_context(|| format!("signing in was answered {}", response.status()))?.into())
}

/// Signs people in to both sites, each with tokens of their own: nobody shares more with
/// another than the gateway lets them. Beyond [`SESSIONS_MAX`] they share sessions.
pub async fn sign_in_all(group: &GatewayGroup, count: usize) -> anyhow::Result<Vec<BenchSession>> {
    let tenant = group.tenant();
    // A store that is kept gets tokens with each run.
    let limits = json!({"limits": {"tokens": TOKENS_MAX}}).to_string();
    group.call(Method::PATCH, &format!("/v1/tenants/{tenant}"), &limits).await?;
    let token = async |document: Value| {
        let made: Value = serde_json::from_str(&group.call(Method::POST, "/v1/tokens", &document.to_string()).await?)?;
        anyhow::Ok(made["token"].as_str().context("a token was made")?.to_owned())
    };
    let mut sessions = Vec::new();
    for number in 0..count.clamp(1, SESSIONS_MAX) {
        let name = format!("bench-{number}");
        let operator = token(json!({"rights": ["admin"], "name": name})).await?;
        let customer = token(json!({"tenant": tenant, "rights": ["manage", "read"], "name": name})).await?;
        let operator = sign_in(group, "/sign-in", &operator).await?;
        let portal = sign_in(group, "/portal/sign-in", &customer).await?;
        sessions.push(BenchSession { operator, portal });
    }
    Ok(sessions)
}

/// Returns the pages that are looked at, one of each kind. The overview is the first.
pub async fn pages(group: &GatewayGroup) -> anyhow::Result<Vec<BenchPage>> {
    let tenant = group.tenant();
    let call = async |method: Method, path: &str, body: &str| {
        let answer = group.call(method, path, body).await?;
        anyhow::Ok(serde_json::from_str::<Value>(&answer)?)
    };
    // A list looks back a part of the history at a time.
    let first = async |list: &str| {
        let mut next = String::new();
        for _ in 0..PARTS_MAX {
            let answer = call(Method::GET, &format!("/v1/tenants/{tenant}/{list}{next}"), "").await?;
            if let Some(id) = answer["data"][0]["id"].as_str() {
                return anyhow::Ok(id.to_owned());
            }
            match answer["next"].as_str() {
                Some(cursor) => next = format!("&cursor={cursor}"),
                None => break,
            }
        }
        bail!("there is nothing in {list}")
    };
    let nothing = json!({"kind": "replay", "filter": {"key": "bench-nothing"}}).to_string();
    let job = call(Method::POST, &format!("/v1/tenants/{tenant}/jobs"), &nothing).await?;
    let ids = [
        ("{tenant}", tenant.to_owned()),
        ("{endpoint}", first("endpoints?limit=1").await?),
        ("{event}", first("events?limit=1").await?),
        ("{delivered}", first("deliveries?state=delivered&limit=1").await?),
        ("{waiting}", first("deliveries?state=waiting&limit=1").await?),
        ("{dead}", first("dead-letters?limit=1").await?),
        ("{job}", job["id"].as_str().context("a job has an id")?.to_owned()),
    ];
    let page = |name: &&str, is_of_portal: bool| BenchPage {
        name: (*name).to_owned(),
        path: ids.iter().fold((*name).to_owned(), |path, (name, id)| path.replace(name, id)),
        is_of_portal,
    };
    let operator = OPERATOR_PAGES.iter().map(|name| page(name, false));
    Ok(operator.chain(PORTAL_PAGES.iter().map(|name| page(name, true))).collect())
}

const OPERATOR_PAGES: [&str; 28] = [
    "/",
    "/endpoints",
    "/endpoints?sort=attention",
    "/endpoints/{tenant}/{endpoint}",
    "/deliveries",
    "/deliveries?state=waiting",
    "/deliveries/{tenant}/{delivered}",
    "/deliveries/{tenant}/{waiting}",
    "/deliveries/{tenant}/{dead}",
    "/events?tenant={tenant}",
    "/events/{tenant}/{event}",
    "/event-types?tenant={tenant}",
    "/search?q=bench-nothing",
    "/live",
    "/dead-letters",
    "/dead-letters/list",
    "/dead-letters/recover?tenant={tenant}&kind=replay&preview=yes",
    "/jobs",
    "/jobs/{tenant}/{job}",
    "/simulator?tenant={tenant}&endpoint={endpoint}",
    "/debugger?tenant={tenant}",
    "/tenants",
    "/tenants/{tenant}",
    "/cluster",
    "/audit",
    "/tokens",
    "/settings",
    "/endpoints/{tenant}/{endpoint}/edit",
];

const PORTAL_PAGES: [&str; 10] = [
    "/portal",
    "/portal/endpoints",
    "/portal/endpoints/{endpoint}",
    "/portal/deliveries",
    "/portal/deliveries/{dead}",
    "/portal/events",
    "/portal/event-types",
    "/portal/dead-letters",
    "/portal/dead-letters/list",
    "/portal/access",
];

/// What each page took, by its name.
pub type TimesByPage = BTreeMap<String, PageTimes>;
/// People who look at pages at the same time.
pub type Viewers = JoinSet<anyhow::Result<TimesByPage>>;

/// Opens every page once, so that each is known to work and how large it is; the time
/// is not counted, since nothing is in memory yet.
pub async fn open_all(
    group: &GatewayGroup,
    pages: &[BenchPage],
    session: &BenchSession,
) -> anyhow::Result<TimesByPage> {
    let address = group.node(0).address();
    let mut connection = load::connect(address).await?;
    let mut seen = TimesByPage::new();
    for page in pages {
        let answer = page.ask(&mut connection, address, session, None).await?;
        let times = PageTimes { bytes: answer.bytes, ..PageTimes::new()? };
        seen.insert(page.name.clone(), times);
    }
    Ok(seen)
}

/// Lets these people look until they are done, and adds how long each page took.
pub async fn view_pages(mut viewers: Viewers, all: &mut TimesByPage) -> anyhow::Result<()> {
    while let Some(seen) = viewers.join_next().await {
        for (name, times) in seen?? {
            match all.get_mut(&name) {
                None => drop(all.insert(name, times)),
                Some(sum) => sum.add(&times)?,
            }
        }
    }
    Ok(())
}

/// Starts people who each look at one page after the other, and stay at each for two
/// refreshes.
pub fn start(
    group: &GatewayGroup,
    pages: &[BenchPage],
    sessions: &[BenchSession],
    count: usize,
    duration: Duration,
) -> Viewers {
    let mut viewers = JoinSet::new();
    let until = Instant::now() + duration;
    for number in 0..count {
        let (address, pages) = (group.node(number).address(), pages.to_vec());
        let session = sessions[number % sessions.len()].clone();
        viewers.spawn(async move { view_in_turn(address, &pages, &session, number, until).await });
    }
    viewers
}

async fn view_in_turn(
    address: SocketAddr,
    pages: &[BenchPage],
    session: &BenchSession,
    number: usize,
    until: Instant,
) -> anyhow::Result<TimesByPage> {
    let mut connection = load::connect(address).await?;
    let mut seen = TimesByPage::new();
    // Not all in the same moment.
    tokio::time::sleep(REFRESH.mul_f64((number as f64 / 50.0).fract())).await;
    for visit in 0.. {
        let page = &pages[page_of_visit(number, visit, pages.len())];
        let mut etag = None;
        for _ in 0..2 {
            let began = Instant::now();
            if began >= until {
                return Ok(seen);
            }
            let answer = page.ask(&mut connection, address, session, etag.take()).await?;
            let took = u64::try_from(began.elapsed().as_micros())?;
            if !seen.contains_key(&page.name) {
                seen.insert(page.name.clone(), PageTimes::new()?);
            }
            let Some(times) = seen.get_mut(&page.name) else { continue };
            times.micros.record(took)?;
            times.bytes = times.bytes.max(answer.bytes);
            times.unchanged += u64::from(answer.status == StatusCode::NOT_MODIFIED);
            etag = answer.etag;
            tokio::time::sleep_until(began + REFRESH).await;
        }
    }
    Ok(seen)
}

/// Returns which page somebody opens next. At any time half of the people look at the overview, the
/// first page, and the others at as many different pages as there are, so that even in a short run
/// each is looked at.
fn page_of_visit(person: usize, visit: usize, pages: usize) -> usize {
    if (person + visit).is_multiple_of(2) || pages < 2 { 0 } else { 1 + (person + visit / 2) % (pages - 1) }
}

struct PageBytes {
    status: StatusCode,
    etag: Option<HeaderValue>,
    bytes: usize,
}

impl BenchPage {
    async fn ask(
        &self,
        connection: &mut ApiConnection,
        address: SocketAddr,
        session: &BenchSession,
        etag: Option<HeaderValue>,
    ) -> anyhow::Result<PageBytes> {
        let cookie = if self.is_of_portal { &session.portal } else { &session.operator };
        let mut request = hyper::Request::get(self.path.as_str())
            .header(HOST, address.to_string())
            .header(COOKIE, &**cookie)
            .header("sec-fetch-site", "same-origin");
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        connection.ready().await?;
        let response = connection.send_request(request.body(Full::new(Bytes::new()))?).await?;
        let (status, etag) = (response.status(), response.headers().get(ETAG).cloned());
        let body = response.into_body().collect().await?.to_bytes();
        if !(status.is_success() || status == StatusCode::NOT_MODIFIED) {
            bail!("{} was answered {status}: {}", self.path, String::from_utf8_lossy(&body));
        }
        Ok(PageBytes { status, etag, bytes: body.len() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn in_a_minute_people_look_at_every_page_and_half_of_them_at_the_overview() {
        let pages = OPERATOR_PAGES.len() + PORTAL_PAGES.len();
        let mut seen = BTreeSet::new();
        // Two refreshes of three seconds for each visit.
        for visit in 0..10 {
            let opened: Vec<usize> = (0..50).map(|person| page_of_visit(person, visit, pages)).collect();
            assert_eq!(opened.iter().filter(|page| **page == 0).count(), 25, "in visit {visit}");
            seen.extend(opened);
        }
        assert_eq!(seen, (0..pages).collect());
    }
}
