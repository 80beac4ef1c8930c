//! Every page in the browser, and what a person does on them.

use std::path::Path;

use posthaste::model::sign_in::Site;
use serde_json::{Value, json};

use crate::by_hand::enter_on;
use crate::driver::{Browser, Driver};
use crate::stage::{Filling, Stage, sign_in};

/// One way to look at pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Viewing {
    filling: Filling,
    is_dark: bool,
    is_narrow: bool,
    has_script: bool,
}

/// Ways that have every pair of filling, look, width and script.
fn viewings() -> Vec<Viewing> {
    use Filling::{Empty, Full, Hostile};
    let all = std::env::var("PAGES_ALL").is_ok();
    let mut viewings = Vec::new();
    for filling in [Empty, Full, Hostile] {
        for (is_dark, is_narrow, has_script) in [
            (false, false, true),
            (true, true, false),
            (false, true, true),
            (true, false, false),
            (false, false, false),
            (true, true, true),
            (false, true, false),
            (true, false, true),
        ] {
            viewings.push(Viewing { filling, is_dark, is_narrow, has_script });
        }
    }
    let pairwise = [
        (Empty, false, false, true),
        (Empty, true, true, false),
        (Full, false, true, true),
        (Full, true, false, false),
        (Hostile, false, false, false),
        (Hostile, true, true, true),
    ];
    let is_chosen = |viewing: &Viewing| {
        pairwise.contains(&(viewing.filling, viewing.is_dark, viewing.is_narrow, viewing.has_script))
    };
    viewings.into_iter().filter(|viewing| all || is_chosen(viewing)).collect()
}

/// The accessibility checker, as `./check` installs it.
fn axe() -> String {
    let target =
        std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/target").into());
    let path = Path::new(&target).join("conformance/node/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&path).unwrap_or_else(|problem| {
        panic!("{} cannot be read ({problem}); tests/conformance/install installs it", path.display())
    })
}

async fn view(browser: &Browser, viewing: Viewing) {
    let (width, height) = if viewing.is_narrow { (375, 800) } else { (1280, 900) };
    let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": viewing.is_narrow});
    browser.cdp("Emulation.setDeviceMetricsOverride", metrics).await;
    let scheme = if viewing.is_dark { "dark" } else { "light" };
    let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
    browser.cdp("Emulation.setEmulatedMedia", media).await;
}

async fn allow_script(browser: &Browser, is_allowed: bool) {
    browser.cdp("Emulation.setScriptExecutionDisabled", json!({"value": !is_allowed})).await;
}

/// Looks at one page and returns what is wrong with it.
async fn faults(browser: &Browser, stage: &Stage, path: &str, viewing: Viewing, axe: &str) -> Vec<String> {
    let mut faults = Vec::new();
    browser.open(&format!("{}{path}", stage.url())).await;
    if browser.has_dialog().await {
        return vec!["a dialog is open: a text of a stranger was run".to_owned()];
    }
    let seen = browser.run(LOOK).await;
    for (name, wanted) in [
        ("headings", json!(1)),
        ("scripts", json!(1)),
        ("handlers", json!(0)),
        ("foreign", json!(0)),
        ("inline", json!(0)),
        ("unlabelled", json!(0)),
        ("unreachable", json!([])),
    ] {
        if seen[name] != wanted {
            faults.push(format!("{name} is {} instead of {wanted}", seen[name]));
        }
    }
    if seen["wide"].as_i64() > Some(0) {
        faults.push(format!("the page is {} pixels wider than the screen: {}", seen["wide"], seen["widest"]));
    }
    if seen["title"].as_str().is_none_or(|title| title.starts_with("Something went wrong") || title.starts_with("Not "))
    {
        faults.push(format!("it is an error: {} {}", seen["title"], seen["text"]));
    }
    if seen["bytes"].as_i64() > Some(60_000) {
        faults.push(format!("the page has {} bytes", seen["bytes"]));
    }
    // The checker is a script, too; the page has been loaded without its own by now.
    allow_script(browser, true).await;
    let script = format!("{axe};\nconst done = arguments[arguments.length - 1];\n{RUN_AXE}");
    let found = browser.run_async(&script, &[]).await;
    for violation in found.as_array().into_iter().flatten() {
        faults.push(format!("axe: {violation}"));
    }
    for line in browser.log("browser").await {
        faults.push(format!("console: {}", line["message"]));
    }
    faults.extend(foreign_requests(browser, stage).await);
    allow_script(browser, viewing.has_script).await;
    faults
}

/// Reads the shape of a page. Texts of strangers must not become elements.
const LOOK: &str = r#"
const all = (s) => Array.from(document.querySelectorAll(s));
const handlers = all('*').filter((e) => e.getAttributeNames().some((n) => n.startsWith('on'))).length;
const foreign = all('iframe, object, embed, base, meta[http-equiv], img:not([alt=""])').length;
const inline = all('[style], style, script:not([src])').length;
const fields = all('input:not([type=hidden]), select, textarea');
const unlabelled = fields.filter((f) => !(f.labels && f.labels.length) && !f.getAttribute('aria-label') && !f.getAttribute('aria-labelledby')).length;
const seen = (e) => e.checkVisibility() && !e.disabled && !e.closest('details:not([open]) > :not(summary)');
const unreachable = all('a[href], button, input:not([type=hidden]), select, textarea, summary').filter(seen)
  .filter((e) => { e.focus(); return document.activeElement !== e; }).map((e) => e.outerHTML.slice(0, 120));
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const widest = wide > 0 ? all('main *').filter((e) => e.getBoundingClientRect().right > innerWidth && !e.closest('.scroll, pre, svg')).map((e) => e.outerHTML.slice(0, 100)).slice(0, 3).join(' ') : '';
return {
  headings: all('h1').length, scripts: all('script').length, handlers, foreign, inline, unlabelled, unreachable, wide, widest,
  title: document.title, text: document.querySelector('main').innerText.slice(0, 200),
  bytes: new Blob([document.documentElement.outerHTML]).size,
};
"#;

const RUN_AXE: &str = r#"
axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations.map((v) =>
  v.id + ': ' + v.help + ' at ' + v.nodes.slice(0, 3).map((n) => n.target.join(' ') + ' ' + n.any.concat(n.all).map((c) => c.message).join('; ')).join(' | ')
)), (e) => done(['axe failed: ' + e]));
"#;

/// Returns the requests that left the gateway's origin.
async fn foreign_requests(browser: &Browser, stage: &Stage) -> Vec<String> {
    let own = stage.url();
    let mut foreign = Vec::new();
    for entry in browser.log("performance").await {
        let message: Value = serde_json::from_str(entry["message"].as_str().unwrap_or("{}")).unwrap_or_default();
        if message["message"]["method"] != "Network.requestWillBeSent" {
            continue;
        }
        let url = message["message"]["params"]["request"]["url"].as_str().unwrap_or_default();
        if !url.starts_with(&own) && !url.starts_with("data:") {
            foreign.push(format!("a request went to {url}"));
        }
    }
    foreign
}

// One test for each filling: together they would be what everything else waits for.
#[tokio::test]
async fn every_page_of_an_empty_gateway_is_sound_in_every_look() {
    every_page_is_sound(Filling::Empty).await;
}

#[tokio::test]
async fn every_page_of_a_full_gateway_is_sound_in_every_look() {
    every_page_is_sound(Filling::Full).await;
}

#[tokio::test]
async fn every_page_with_the_texts_of_strangers_is_sound_in_every_look() {
    every_page_is_sound(Filling::Hostile).await;
}

async fn every_page_is_sound(filling: Filling) {
    let (axe, driver, stage) = (axe(), Driver::start().await, Stage::set(filling).await);
    let mut wrong = Vec::new();
    for viewing in viewings().into_iter().filter(|viewing| viewing.filling == filling) {
        for site in [Site::Operator, Site::Portal] {
            let browser = driver.browser(&[]).await;
            view(&browser, viewing).await;
            allow_script(&browser, viewing.has_script).await;
            sign_in(&browser, &stage, site).await;
            browser.log("browser").await;
            browser.log("performance").await;
            let paths = stage.paths(site);
            assert!(paths.len() > 8, "{paths:?}");
            for path in paths.into_iter().chain(stage.paths_of_states(site)) {
                for fault in faults(&browser, &stage, &path, viewing, &axe).await {
                    wrong.push(format!("{path} ({viewing:?}): {fault}"));
                }
                keep_picture(&browser, &path, viewing).await;
            }
            browser.close().await;
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

/// Keeps a picture for the eyes where that was asked for: of every page in a folder,
/// or the pictures of the docs.
async fn keep_picture(browser: &Browser, path: &str, viewing: Viewing) {
    let Ok(folder) = std::env::var("PAGES_PICTURES") else { return };
    let look = if viewing.is_dark { "dark" } else { "light" };
    let width = if viewing.is_narrow { "narrow" } else { "wide" };
    let name = path.trim_matches('/').replace(['/', '?', '&', '='], "_");
    let name = if name.is_empty() { "overview".to_owned() } else { name };
    let file = Path::new(&folder).join(format!("{name}-{:?}-{look}-{width}.png", viewing.filling));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(file, browser.whole_picture().await).unwrap();
}

/// Makes a portal link for a tenant; returns its address.
async fn portal_link(stage: &Stage) -> String {
    let link = json!({"rights": ["manage"], "session_for": "1h"});
    let made = stage.gateway.client.post_json("/v1/tenants/default/portal-links", &link).await.expect(201);
    made["url"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_link_to_the_portal_works_once_and_leaves_the_address() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[]).await;
    let link = portal_link(&stage).await;
    assert!(link.contains("/portal/enter#phc_"), "{link}");
    browser.open(&link).await;
    browser
        .wait_until(
            "the portal is open",
            "return document.querySelector('nav.main') !== null && document.readyState === 'complete'",
        )
        .await;
    let address = browser.address().await;
    assert!(!address.contains("phc_") && address.contains("/portal"), "{address}");
    let cookies = browser.cookies().await;
    let session = cookies.iter().find(|cookie| cookie["name"].as_str().unwrap().contains("portal")).expect("a session");
    assert_eq!(session["httpOnly"], true, "{session}");
    assert!(browser.text("h1").await.len() > 10);
    let second = driver.browser(&[]).await;
    second.open(&link).await;
    second.wait_until("it is refused", "return document.querySelector('.problem') !== null").await;
    assert!(second.run("return document.querySelector('nav.main') === null").await == json!(true));
    second.close().await;
    browser.close().await;
}

#[tokio::test]
async fn keys_lead_to_pages_and_a_delivery_is_replayed_by_keyboard_alone() {
    let (driver, stage) = (Driver::start().await, Stage::set(Filling::Full).await);
    let browser = driver.browser(&[]).await;
    sign_in(&browser, &stage, Site::Operator).await;
    browser.press("gd").await;
    browser
        .wait_until(
            "the deliveries are shown",
            "return location.pathname.endsWith('/deliveries') && document.readyState === 'complete'",
        )
        .await;
    browser.press("/").await;
    browser.wait_until("the search has the focus", "return document.activeElement.id === 'search'").await;
    let path = stage.paths(Site::Operator).into_iter().find(|path| path.starts_with("/deliveries/default/dlv_"));
    enter_on(&browser, &stage, &path.unwrap(), "form[action$=\"/replay\"] button").await;
    browser
        .wait_until(
            "it waits again",
            "return location.search.includes('done=replayed') && document.readyState === 'complete'",
        )
        .await;
    assert!(browser.text(".done").await.contains("waits again"));
    browser.close().await;
}
