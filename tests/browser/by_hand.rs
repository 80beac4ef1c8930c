//! What a hand does: every action by Tab and Enter alone, and pages that do not move
//! under it while they refresh themselves.

use posthaste::model::sign_in::Site;
use serde_json::{Value, json};

use crate::driver::{Browser, Driver};
use crate::stage::{Filling, Stage, sign_in};
use crate::support::{eager_retry, eventually};

/// A window in which the menu is open.
const WIDE: &str = "--window-size=1280,900";
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const BACKSPACE: &str = "\u{e003}";

/// Notes what gets the focus; returns how many presses of Tab go through the page.
const WATCH_FOCUS: &str = "
window.tabbed = [];
document.addEventListener('focusin', ({target}) => { if (target.tabIndex >= 0) window.tabbed.push(target); }, true);
return document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]').length + 5;";

/// Returns what can be seen and used, and never had the focus.
const NOT_REACHED: &str = r#"
const seen = (e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0 && !e.closest('details:not([open]) > :not(summary)');
// Of boxes of which one is chosen, Tab reaches one, and arrows the others.
const isMet = (e) => window.tabbed.includes(e)
  || e.type === 'radio' && window.tabbed.some((other) => other.name === e.name && other.form === e.form);
return Array.from(document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary'))
  .filter(seen).filter((e) => !isMet(e)).map((e) => e.outerHTML.slice(0, 150));"#;

/// Begins at the top also where a field has the focus from the start.
const START_AT_TOP: &str = "
const top = document.createElement('span');
top.tabIndex = -1;
document.body.prepend(top);
top.focus();";

/// Goes through a page by Tab, from its top.
async fn tab_through(browser: &Browser, stage: &Stage, path: &str) {
    browser.open(&format!("{}{path}", stage.url())).await;
    browser.run(START_AT_TOP).await;
    let presses = browser.run(WATCH_FOCUS).await.as_u64().unwrap() as usize;
    browser.press(&TAB.repeat(presses)).await;
}

/// Opens a page, goes by Tab to an element of it, and presses Enter there.
pub async fn enter_on(browser: &Browser, stage: &Stage, path: &str, selector: &str) {
    eventually(&format!("{selector} on {path}"), || async {
        // A page may be a second old.
        browser.open(&format!("{}{path}", stage.url())).await;
        let is_there = browser.run(&format!("return document.querySelector({}) !== null", json!(selector))).await;
        if is_there == json!(true) { Ok(()) } else { Err(browser.text("main").await) }
    })
    .await;
    browser.run(START_AT_TOP).await;
    let mut left = browser.run(WATCH_FOCUS).await.as_u64().unwrap();
    let is_there = format!("return document.activeElement.matches({})", json!(selector));
    while browser.run(&is_there).await != json!(true) {
        assert!(left > 0, "Tab does not reach {selector} on {path}");
        left -= 1;
        browser.press(TAB).await;
    }
    browser.run("window.stays = true").await;
    browser.press(ENTER).await;
}

/// Lets pages stand still, so that what has the focus stays the same element.
async fn stop_refreshing(browser: &Browser) {
    browser.run("sessionStorage.setItem('refresh', 'off')").await;
}

#[tokio::test]
async fn tab_reaches_everything_on_every_page() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let mut missed = Vec::new();
    for site in [Site::Operator, Site::Portal] {
        let browser = driver.browser(&[WIDE.to_owned()]).await;
        sign_in(&browser, &stage, site).await;
        stop_refreshing(&browser).await;
        for path in stage.paths(site) {
            tab_through(&browser, &stage, &path).await;
            let not_reached = browser.run(NOT_REACHED).await;
            let reached = browser.run("return new Set(window.tabbed).size").await;
            assert!(reached.as_i64() > Some(5), "Tab does nothing on {path}");
            missed.extend(not_reached.as_array().unwrap().iter().map(|element| format!("{path}: {element}")));
        }
        browser.close().await;
    }
    assert!(missed.is_empty(), "{} elements are not reached:\n{}", missed.len(), missed.join("\n"));
}

/// Returns the first page of the operator whose path begins and ends so.
fn page_of(stage: &Stage, start: &str, end: &str) -> String {
    let mut paths = stage.paths(Site::Operator).into_iter();
    paths.find(|path| path.starts_with(start) && path.ends_with(end)).unwrap_or_else(|| panic!("no {start}…{end}"))
}

#[tokio::test]
async fn every_action_is_done_by_tab_and_enter() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[WIDE.to_owned()]).await;
    sign_in(&browser, &stage, Site::Operator).await;
    stop_refreshing(&browser).await;
    let edit = page_of(&stage, "/endpoints/default/ep_", "/edit");
    let endpoint = edit.trim_end_matches("/edit").to_owned();
    let waiting = format!("/deliveries/default/{}", stage.waiting_delivery().await);
    let delivered = page_of(&stage, "/deliveries/default/dlv_", "");
    let state = async || {
        let path = endpoint.replace("/endpoints/default/", "/v1/tenants/default/endpoints/");
        stage.gateway.client.get(&path).await.expect(200)
    };
    for (path, selector, field, value) in [
        (&endpoint, "form[action$=\"/test\"] button", "", Value::Null),
        (&endpoint, "form[action$=\"/pause\"] button", "/state", json!("paused")),
        (&endpoint, "form[action$=\"/resume\"] button", "/state", json!("active")),
        (&endpoint, "form[action$=\"/breaker/open\"] button", "/health/breaker", json!("open")),
        (&endpoint, "form[action$=\"/breaker/close\"] button", "", Value::Null),
        (&endpoint, "form[action$=\"/secrets\"] button", "", Value::Null),
        (&endpoint, "form[action$=\"/rotate\"] button", "", Value::Null),
        (&endpoint, "a[href$=\"/edit\"]", "", Value::Null),
        (&edit, "main form[method=post] button.primary", "", Value::Null),
        (&delivered, "form[action$=\"/replay\"] button", "", Value::Null),
        (&waiting, "form[action$=\"/retry\"] button", "", Value::Null),
        (&format!("{waiting}/cancel"), "form[action$=\"/cancel\"] button", "", Value::Null),
        (&"/dead-letters/recover".to_owned(), "form.recover button.primary", "", Value::Null),
        (&"/".to_owned(), "form[action$=\"sign-out\"] button", "", Value::Null),
    ] {
        enter_on(&browser, &stage, path, selector).await;
        let is_done = "return window.stays === undefined && document.readyState === 'complete'";
        browser.wait_until(&format!("{selector} on {path} leads on"), is_done).await;
        let refused = browser.run("return document.querySelector('.problem, .fault')?.innerText ?? ''").await;
        // What was not filled in is refused, and said.
        let is_refused = path == &edit;
        assert_eq!(refused != json!(""), is_refused, "{selector} on {path}: {refused}");
        if !field.is_empty() {
            let state = state().await;
            assert_eq!(state.pointer(field), Some(&value), "{selector}: {state}");
        }
    }
    browser.wait_until("the sign-in is shown", "return document.getElementById('token') !== null").await;
    browser.close().await;
}

/// Marks every region, and counts what is asked of the gateway and how often the page
/// could have asked. It is long due: the clock goes an hour ahead.
const MARK_REGIONS: &str = "
for (const region of document.querySelectorAll('[data-live]')) region.dataset.seen = 'old';
const [ask, real] = [window.fetch, Date.now];
window.asked = 0;
window.fetch = (...given) => { window.asked += 1; return ask(...given); };
Date.now = () => real() + 3600e3;
window.beats = 0;
setInterval(() => { window.beats += 1; }, 500);";
const FIVE_BEATS: &str = "const had = window.had ??= window.beats; return window.beats >= had + 5";
const ALL_FRESH: &str = "return document.querySelector('[data-seen=old]') === null";
const ALL_OLD: &str = "return document.querySelectorAll('[data-live]:not([data-seen=old])').length === 0";

#[tokio::test]
async fn the_focus_stays_on_the_same_link_when_a_page_is_refreshed() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[WIDE.to_owned()]).await;
    sign_in(&browser, &stage, Site::Operator).await;
    browser.open(&format!("{}/deliveries", stage.url())).await;
    // The second of two links to the same endpoint, without an id of its own.
    let focus = "
        const links = Array.from(document.querySelectorAll('[data-live] tbody a[href*=\"endpoints/\"]'));
        const link = links.filter((other) => other.getAttribute('href') === links[0].getAttribute('href'))[1];
        link.focus();
        window.before = link;
        return [link.getAttribute('href'), link.id, document.activeElement === link];";
    let focused = browser.run(focus).await;
    assert_eq!((&focused[1], &focused[2]), (&json!(""), &json!(true)), "{focused}");
    browser.run(MARK_REGIONS).await;
    browser.wait_until("every region is fresh", ALL_FRESH).await;
    let after = "
        const active = document.activeElement;
        const alike = Array.from(document.querySelectorAll('[data-live] a[href]'))
          .filter((other) => other.getAttribute('href') === active.getAttribute('href'));
        return [active.getAttribute('href'), alike.indexOf(active), active === window.before];";
    assert_eq!(browser.run(after).await, json!([focused[0], 1, false]));
    browser.close().await;
}

#[tokio::test]
async fn a_tab_that_nobody_sees_does_not_ask() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[WIDE.to_owned()]).await;
    sign_in(&browser, &stage, Site::Operator).await;
    browser.open(&format!("{}/deliveries", stage.url())).await;
    browser.run("Object.defineProperty(document, 'hidden', {get: () => window.isSeen !== true})").await;
    browser.run(MARK_REGIONS).await;
    browser.wait_until("it could have asked", FIVE_BEATS).await;
    assert_eq!(browser.run("return window.asked").await, json!(0));
    browser.run("window.isSeen = true").await;
    browser.wait_until("it asks when it is seen", "return window.asked > 0").await;
    browser.wait_until("every region is fresh", ALL_FRESH).await;
    browser.close().await;
}

#[tokio::test]
async fn nothing_moves_under_a_hand_that_types_or_presses() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[WIDE.to_owned()]).await;
    sign_in(&browser, &stage, Site::Operator).await;
    let endpoint = page_of(&stage, "/endpoints/default/ep_", "/edit").replace("/edit", "");
    browser.open(&format!("{}{endpoint}", stage.url())).await;
    browser.type_into("#pause-note", "x").await;
    browser.run(MARK_REGIONS).await;
    browser.wait_until("it could have been refreshed", FIVE_BEATS).await;
    assert_eq!(browser.run(ALL_OLD).await, json!(true), "somebody is typing");
    browser.press(BACKSPACE).await;
    // What has a field with the focus stays, until the hand is elsewhere.
    let others = "return document.querySelector('[data-seen=old]:not(#acts)') === null";
    browser.wait_until("nothing is typed any more", others).await;
    assert_eq!(browser.run("return document.activeElement.id").await, json!("pause-note"));
    browser.run("document.activeElement.blur()").await;
    browser.wait_until("nothing has the focus any more", ALL_FRESH).await;
    // A pointer that is down holds everything back until it is up.
    browser.open(&format!("{}/deliveries", stage.url())).await;
    browser.run("document.querySelector('h1').dispatchEvent(new PointerEvent('pointerdown', {bubbles: true}))").await;
    browser.run(MARK_REGIONS).await;
    browser.wait_until("it could have been refreshed", FIVE_BEATS).await;
    assert_eq!(browser.run(ALL_OLD).await, json!(true), "somebody is pressing");
    browser.run("document.querySelector('h1').dispatchEvent(new PointerEvent('pointerup', {bubbles: true}))").await;
    browser.wait_until("nothing is pressed any more", ALL_FRESH).await;
    browser.close().await;
}

#[tokio::test]
async fn what_comes_and_what_goes_is_seen_without_a_reload() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[WIDE.to_owned()]).await;
    sign_in(&browser, &stage, Site::Operator).await;
    let client = &stage.gateway.client;
    // Another person pauses the endpoint: what can be done about it now is another thing.
    let endpoint = page_of(&stage, "/endpoints/default/ep_", "/edit").replace("/edit", "");
    browser.open(&format!("{}{endpoint}", stage.url())).await;
    browser.run("window.stays = true").await;
    let has = |selector: &str| format!("return window.stays && document.querySelector({}) !== null", json!(selector));
    browser.wait_until("it can be paused", &has("form[action$=\"/pause\"]")).await;
    let path = endpoint.replace("/endpoints/default/", "/v1/tenants/default/endpoints/");
    client.post_json(&format!("{path}/pause"), &json!({})).await.expect(200);
    browser.wait_until("it can be resumed", &has("form[action$=\"/resume\"]")).await;
    assert_eq!(browser.run(&has("form[action$=\"/pause\"]")).await, json!(false));
    // The first dead letter brings a chart, and the last one takes it away.
    let away = json!({"url": "http://127.0.0.1:9/", "event_types": ["late.*"], "retry": eager_retry(1)});
    let away = stage.gateway.create_endpoint(away).await["id"].as_str().unwrap().to_owned();
    browser.open(&format!("{}/dead-letters?endpoint={away}", stage.url())).await;
    browser.run("window.stays = true").await;
    assert_eq!(browser.run(&has("#days[hidden]")).await, json!(true));
    stage.gateway.send(json!({"id": "late", "type": "late.one", "data": {}})).await;
    browser.wait_until("the chart comes", &has("#days:not([hidden]) svg")).await;
    let dead =
        stage.gateway.list(&format!("/v1/dead-letters?endpoint={away}")).await[0]["id"].as_str().unwrap().to_owned();
    client.post(&format!("/v1/tenants/default/dead-letters/{dead}/discard"), "").await.expect(202);
    browser.wait_until("the chart goes", &has("#days[hidden]")).await;
    browser.close().await;
}

#[tokio::test]
async fn a_live_page_whose_session_is_over_is_the_sign_in() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[WIDE.to_owned()]).await;
    sign_in(&browser, &stage, Site::Operator).await;
    browser.open(&format!("{}/live", stage.url())).await;
    let connected = "return document.querySelector('[data-tail-note]').textContent.startsWith('Connected to ')";
    browser.wait_until("the stream is open", connected).await;
    stage.gateway.client.send("DELETE", "/v1/sessions", &[], "").await.unwrap();
    browser.wait_until("the sign-in is shown", "return document.getElementById('token') !== null").await;
    browser.close().await;
}
