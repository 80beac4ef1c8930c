//! The portal in a frame of another site, over TLS, with third-party cookies blocked.

use serde_json::json;

use crate::driver::{Browser, Driver};
use crate::support::{Gateway, Options, Receiver, Reply, eager_retry, eventually};
use crate::tls_front::{GATEWAY, HOST_SITE, OTHER_SITE, TlsFront};

const LOADED: &str = "return document.querySelector('nav.main') !== null && document.readyState === 'complete'";

/// Starts a gateway behind TLS that one other site may show in a frame.
async fn framed_gateway() -> (Gateway, TlsFront) {
    let (public, origin) = (format!("https://{GATEWAY}"), format!("https://{HOST_SITE}"));
    let flags = ["--self-test", "off", "--trusted-proxies", "127.0.0.1", "--public-url", &public];
    let flags = [&flags[..], &["--portal-origins", &origin]].concat();
    let gateway = Gateway::start_with(Options::flags(&flags)).await;
    let front = TlsFront::start(gateway.address).await;
    (gateway, front)
}

/// Makes a link to the portal of the default tenant.
async fn link(gateway: &Gateway) -> String {
    let link = json!({"rights": ["manage"], "return_url": format!("https://{HOST_SITE}/settings")});
    let made = gateway.client.post_json("/v1/tenants/default/portal-links", &link).await.expect(201);
    let url = made["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with(&format!("https://{GATEWAY}/portal/enter#phc_")), "{url}");
    url
}

/// Makes an endpoint whose server is down; waits until three events have died of it.
async fn failing_endpoint(gateway: &Gateway, receiver: &Receiver) -> String {
    receiver.answer_with(|_| Reply::Status(503));
    let endpoint = json!({"url": receiver.url(), "description": "orders of the shop", "retry": eager_retry(2)});
    let endpoint = gateway.create_endpoint(endpoint).await["id"].as_str().unwrap().to_owned();
    for number in 0..3 {
        let event = json!({"id": format!("e{number}"), "type": "order.paid", "data": {"n": number}});
        gateway.send(event).await;
    }
    eventually("three are dead", || async {
        let dead = gateway.list("/v1/tenants/default/dead-letters").await.len();
        if dead == 3 { Ok(()) } else { Err(format!("{dead} are")) }
    })
    .await;
    endpoint
}

/// Opens a browser without third-party cookies, to which all names are this machine.
async fn strict_browser(driver: &Driver, front: &TlsFront) -> Browser {
    let prefs = json!({"profile": {"block_third_party_cookies": true, "cookie_controls_mode": 1}});
    driver.browser_with(&front.flags(), prefs).await
}

#[tokio::test]
async fn a_customer_recovers_a_failing_endpoint_in_a_frame_without_third_party_cookies() {
    let (driver, (gateway, front)) = (Driver::start().await, framed_gateway().await);
    let receiver = Receiver::start().await;
    failing_endpoint(&gateway, &receiver).await;
    let browser = strict_browser(&driver, &front).await;
    front.show_in_frames(&link(&gateway).await);
    browser.open(&format!("https://{HOST_SITE}/settings")).await;
    browser.enter_frame("#portal").await;
    browser.wait_until("the portal is open in the frame", LOADED).await;
    let address = browser.run("return location.href").await;
    assert_eq!(address, format!("https://{GATEWAY}/portal"), "the code has left the address");
    let home = browser.text("main").await;
    assert!(home.contains("3 deliveries will not come by themselves"), "{home}");
    // The endpoint, and what its server answered.
    browser.click("nav.main a[href$='endpoints']").await;
    browser.wait_until("the endpoints are shown", "return document.title.startsWith('Endpoints')").await;
    browser.click("main tbody a[href*='endpoints/ep_']").await;
    browser.wait_until("the endpoint is shown", "return location.pathname.includes('/endpoints/ep_')").await;
    browser.wait_until("it is loaded", LOADED).await;
    let endpoint = browser.text("main").await;
    assert!(endpoint.contains("orders of the shop") && endpoint.contains("503"), "{endpoint}");
    // The server is well again: everything is sent once more, by buttons alone.
    receiver.answer_with(|_| Reply::Status(200));
    browser.click("nav.main a[href$='dead-letters']").await;
    browser.wait_until("the groups are shown", "return document.title.startsWith('Dead letters')").await;
    browser.click("main tbody a[href*='kind=replay']").await;
    browser.wait_until("the preview is shown", "return document.querySelector('.preview') !== null").await;
    browser.click(".preview button.primary").await;
    browser.wait_until("the job has begun", "return location.pathname.includes('/jobs/')").await;
    browser
        .wait_until(
            "the page says by itself that all three are delivered",
            "return document.querySelector('.tile b').textContent === '3'",
        )
        .await;
    assert!(gateway.list("/v1/tenants/default/dead-letters").await.is_empty());
    only_partitioned_cookies_went_into_the_frame(&front);
    // The way back leads out of the frame: the whole page is loaded again.
    browser.leave_frame().await;
    browser.run("window.isOld = true").await;
    browser.enter_frame("#portal").await;
    browser.click("form[action$='sign-out'] button").await;
    browser.wait_until("the session is over", "return document.title.startsWith('Signed out')").await;
    // By the page itself: the frame is gone before a driver's click has been answered.
    browser.run("setTimeout(() => document.querySelector('a.button').click())").await;
    browser.leave_frame().await;
    browser.wait_until("the host's page is there again", "return document.title === 'host' && !window.isOld").await;
    browser.close().await;
}

/// Pages in the frame were asked for with the session, and never with a cookie that
/// has no partition.
fn only_partitioned_cookies_went_into_the_frame(front: &TlsFront) {
    let seen = front.cookies_seen();
    let pages: Vec<_> = seen.iter().filter(|(path, _)| path.starts_with("/portal/jobs/")).collect();
    assert!(!pages.is_empty());
    for (path, cookies) in pages {
        assert!(cookies.contains("__Host-posthaste-portal="), "{path}: {cookies:?}");
    }
    let blocked = seen.iter().all(|(_, cookies)| !cookies.contains("unpartitioned"));
    assert!(blocked, "the browser does not block third-party cookies: {seen:?}");
    let set = front.cookies_set();
    let session = set.iter().find(|cookie| cookie.starts_with("__Host-posthaste-portal=phs_")).unwrap();
    assert!(session.ends_with("; Path=/; HttpOnly; Secure; SameSite=None; Partitioned"), "{session}");
}

#[tokio::test]
async fn a_framed_portal_tells_its_height_and_takes_all_of_it() {
    let (driver, (gateway, front)) = (Driver::start().await, framed_gateway().await);
    let browser = strict_browser(&driver, &front).await;
    front.show_in_frames(&link(&gateway).await);
    browser.open(&format!("https://{HOST_SITE}/")).await;
    browser.enter_frame("#portal").await;
    browser.wait_until("the portal is open in the frame", LOADED).await;
    let fits = "const page = document.documentElement; \
                return page.scrollHeight === page.clientHeight && page.clientHeight > 300";
    browser.wait_until("the frame has the height of the page", fits).await;
    let home = browser.run("return innerHeight").await;
    // Another page has another height: the frame follows, also when it is less.
    browser.click("nav.main a[href$='simulator']").await;
    browser.wait_until("the next page is shown", "return location.pathname.endsWith('/simulator')").await;
    browser.wait_until("the frame follows", &format!("return innerHeight !== {home} && innerHeight > 300")).await;
    browser.wait_until("the frame has the height of the next page", fits).await;
    browser.click("nav.main a[href$='portal']").await;
    browser.wait_until("the frame is as it was", &format!("return innerHeight === {home}")).await;
    browser.leave_frame().await;
    let heard = browser.run("return window.heard").await;
    assert_eq!(heard, json!({"origin": format!("https://{GATEWAY}"), "height": home}));
    browser.close().await;
}

#[tokio::test]
async fn a_site_that_is_not_listed_cannot_frame_the_portal() {
    let (driver, (gateway, front)) = (Driver::start().await, framed_gateway().await);
    let browser = strict_browser(&driver, &front).await;
    let link = link(&gateway).await;
    front.show_in_frames(&link);
    browser.open(&format!("https://{OTHER_SITE}/")).await;
    let refused = frame_refusals(&browser).await;
    assert!(refused.iter().any(|line| line.contains("frame-ancestors") && line.contains(HOST_SITE)), "{refused:?}");
    browser.enter_frame("#portal").await;
    let shown = browser.run("return [location.href, document.querySelector('form') === null]").await;
    assert_eq!(shown, json!(["chrome-error://chromewebdata/", true]));
    // Nothing was used up: the code still works where it should.
    browser.leave_frame().await;
    browser.open(&format!("https://{HOST_SITE}/")).await;
    browser.enter_frame("#portal").await;
    browser.wait_until("the portal is open in the frame", LOADED).await;
    // The operator's pages are framed by nobody.
    browser.leave_frame().await;
    front.show_in_frames(&format!("https://{GATEWAY}/sign-in"));
    browser.open(&format!("https://{HOST_SITE}/")).await;
    let refused = frame_refusals(&browser).await;
    assert!(refused.iter().any(|line| line.contains("frame-ancestors 'none'")), "{refused:?}");
    browser.close().await;
}

#[tokio::test]
async fn a_session_that_ends_in_a_frame_leads_back_to_the_page_around_it() {
    let (driver, (gateway, front)) = (Driver::start().await, framed_gateway().await);
    let browser = strict_browser(&driver, &front).await;
    front.show_in_frames(&link(&gateway).await);
    browser.open(&format!("https://{HOST_SITE}/settings")).await;
    browser.run("window.isOld = true").await;
    browser.enter_frame("#portal").await;
    browser.wait_until("the portal is open in the frame", LOADED).await;
    gateway.client.send("DELETE", "/v1/tenants/default/portal-sessions", &[], "").await.unwrap();
    browser.wait_until("the page says so by itself", "return document.title.startsWith('Session over')").await;
    let said = browser.text("main").await;
    assert!(said.contains("This session is over") && !said.contains("Token"), "{said}");
    // By the page itself: the frame is gone before a driver's click has been answered.
    browser.run("setTimeout(() => document.querySelector('a.button').click())").await;
    browser.leave_frame().await;
    browser.wait_until("the host's page is there again", "return document.title === 'host' && !window.isOld").await;
    browser.close().await;
}

#[tokio::test]
async fn an_operator_who_follows_a_link_from_elsewhere_is_still_signed_in() {
    let (driver, (gateway, front)) = (Driver::start().await, framed_gateway().await);
    let browser = strict_browser(&driver, &front).await;
    let from_elsewhere = async |path: &str, shown: &str| {
        browser.open(&format!("https://{OTHER_SITE}/chat")).await;
        browser.run(&format!("location.href = 'https://{GATEWAY}{path}'")).await;
        browser.wait_until(shown, &format!("return location.host === '{GATEWAY}' && {shown}")).await;
    };
    let is_form = "document.getElementById('token') !== null";
    from_elsewhere("/endpoints?q=shop", is_form).await;
    browser.type_into("#token", gateway.token()).await;
    browser.click("button.primary").await;
    let is_page = "document.title.startsWith('Endpoints') && document.readyState === 'complete'";
    browser.wait_until("the sign-in leads to the page", &format!("return {is_page}")).await;
    assert_eq!(browser.run("return location.search").await, "?q=shop");
    from_elsewhere("/endpoints?q=other", is_page).await;
    assert_eq!(browser.run("return location.search").await, "?q=other");
    // Nothing goes round and round: each link was asked for once without a session.
    let seen = front.cookies_seen();
    let strangers =
        seen.iter().filter(|(path, cookies)| path == "/endpoints" && !cookies.contains("__Host-posthaste="));
    assert_eq!(strangers.count(), 2, "{seen:?}");
    browser.close().await;
}

/// Waits for what the browser says about a frame that it does not show.
async fn frame_refusals(browser: &Browser) -> Vec<String> {
    eventually("a refusal in the console", || async {
        let lines = browser.log("browser").await;
        let lines: Vec<String> = lines.iter().filter_map(|line| line["message"].as_str()).map(str::to_owned).collect();
        if lines.iter().any(|line| line.contains("frame-ancestors")) { Ok(lines) } else { Err(format!("{lines:?}")) }
    })
    .await
}
