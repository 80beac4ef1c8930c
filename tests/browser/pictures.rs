//! The pictures of the docs: pages of a shop after a bad night.
//!
//! `PAGES_PICTURES=docs/pictures cargo test --test browser pictures` keeps them.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use posthaste::model::delivery::DeadCause;
use posthaste::model::figure_time::{WINDOW_MS, span_beginning};
use posthaste::model::figures::{CountedAttempt, CountedEnd, WindowFigures};
use posthaste::model::result_class::ResultClass;
use posthaste::model::verdict::Verdict;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::figures::{FigureRow, FigureScope, FigureStore, FigureWriter};
use serde_json::json;

use crate::driver::{Browser, Driver};
use crate::support::{Gateway, Options, Receiver, Reply, eventually, time};

/// The shop: its gateway, with what a picture needs to be found.
struct Shop {
    gateway: Gateway,
    billing: String,
    dead: String,
    _receivers: [Receiver; 3],
}

/// Deliveries to one endpoint in a window of the night.
struct WindowOfNight {
    scope: FigureScope,
    delivered: u64,
    failed: u64,
    dead: u64,
}

async fn endpoint(gateway: &Gateway, receiver: &Receiver, name: &str, more: serde_json::Value) -> String {
    let mut settings = json!({"url": receiver.url(), "description": name});
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    gateway.create_endpoint(settings).await["id"].as_str().unwrap().to_owned()
}

/// Starts the shop's gateway: one receiver is well, one was down, one refuses.
async fn shop() -> Shop {
    let gateway = Gateway::start_with(Options::flags(&["--self-test", "off"])).await;
    let receivers = [Receiver::start().await, Receiver::start().await, Receiver::start().await];
    receivers[1].answer_with(|_| Reply::Body(503, "{\"error\":\"database is restarting\"}".into()));
    receivers[2].answer_with(|_| Reply::Status(401));
    let theme = json!({"name": "Acme Shop", "accent": "#0b6b57"}).to_string();
    gateway.client.send("PUT", "/v1/tenants/default/portal", &[], theme).await.unwrap().expect(200);
    let orders = endpoint(&gateway, &receivers[0], "Orders to the warehouse", json!({})).await;
    let retry = json!({"event_types": ["order.*"], "ordering": "none", "retry": {"schedule": ["300ms", "700ms"], "jitter": "none", "max_attempts": 3}, "breaker": {"enabled": false}});
    let billing = endpoint(&gateway, &receivers[1], "Billing", retry).await;
    let crm = endpoint(&gateway, &receivers[2], "Customer database", json!({"event_types": ["customer.*"]})).await;
    for number in 0..14 {
        let kind = ["order.paid", "order.shipped", "customer.updated"][number % 3];
        let key = format!("order-{}", 4_100 + number / 2);
        let data = json!({"order": 4_100 + number / 2, "total": "59.90", "currency": "EUR"});
        gateway.send(json!({"id": format!("evt-{number}"), "type": kind, "key": key, "data": data})).await;
    }
    let path = format!("/v1/tenants/default/dead-letters?endpoint={billing}");
    let dead = eventually("the night is over", || async {
        let dead = gateway.list(&path).await;
        let is_over = dead.len() == 10;
        dead.first().filter(|_| is_over).cloned().ok_or_else(|| format!("{} are dead", dead.len()))
    })
    .await;
    let gateway = with_history(gateway, [&orders, &billing, &crm], time(&dead["created_at"])).await;
    Shop { gateway, billing, dead: dead["id"].as_str().unwrap().to_owned(), _receivers: receivers }
}

/// Stops the gateway, writes the figures of the day until now into its store, and starts
/// it again.
async fn with_history(mut gateway: Gateway, endpoints: [&str; 3], now: Timestamp) -> Gateway {
    gateway.terminate().await;
    let store = EmbeddedStore::open(&gateway.folder(), Durability::Unsynced).unwrap();
    let writer = FigureWriter(7);
    store.begin_figures(writer, now).await.unwrap();
    for back in 0..288_i64 {
        let at = span_beginning(now - SignedDuration::from_millis(back * WINDOW_MS), WINDOW_MS);
        // The window that is open has begun a while ago.
        let share = (now.duration_since(at).as_millis() as f64 / WINDOW_MS as f64).min(1.0);
        // Busier by day than by night, and two hours of trouble.
        let busy = (400.0 + 300.0 * (back as f64 / 45.0).sin()) as u64 + (back as u64 * 7) % 31;
        let busy = (busy as f64 * share) as u64;
        let is_down = (30..54).contains(&back);
        let default = || "default".parse().unwrap();
        let id = |number: usize| FigureScope::Endpoint(default(), endpoints[number].parse().unwrap());
        let windows = [
            WindowOfNight { scope: id(0), delivered: busy, failed: busy / 30, dead: 0 },
            WindowOfNight {
                scope: id(1),
                delivered: if is_down { 0 } else { busy / 2 },
                failed: if is_down { busy } else { busy / 25 },
                // Most of what fails arrives later.
                dead: u64::from(is_down && back % 8 == 0),
            },
            WindowOfNight { scope: id(2), delivered: busy / 5, failed: 0, dead: u64::from(back % 40 == 0) },
        ];
        let mut sum = WindowFigures::default();
        for window in windows {
            let figures = counted(&window);
            sum = sum.merged_with(&figures);
            write(&store, writer, at, window.scope, figures).await;
        }
        write(&store, writer, at, FigureScope::Tenant(default()), sum.clone()).await;
        write(&store, writer, at, FigureScope::Gateway, sum).await;
    }
    store.figures_written(writer, None, None).await.unwrap();
    store.close().await;
    gateway.restart().await
}

async fn write(store: &EmbeddedStore, writer: FigureWriter, at: Timestamp, scope: FigureScope, figures: WindowFigures) {
    let part = scope.part();
    let row = FigureRow { scope, figures, types: Default::default(), failing: Default::default() };
    store.write_figures(writer, part, at, vec![row]).await.unwrap();
}

fn counted(window: &WindowOfNight) -> WindowFigures {
    let mut figures = WindowFigures { accepted: window.delivered + window.dead, ..Default::default() };
    figures.accepted_bytes = figures.accepted * 640;
    for number in 0..window.delivered + window.failed {
        let is_fine = number < window.delivered;
        figures.count_attempt(&CountedAttempt {
            verdict: if is_fine { Verdict::Delivered } else { Verdict::Retry },
            result: class(if is_fine { "2xx" } else { "5xx" }),
            latency_ms: 35.0 + (number * 13 % 60) as f64,
            used: 1,
            status: Some(if is_fine { 200 } else { 503 }),
            delay_ms: Some(4),
        });
        if is_fine {
            figures.count_end(&CountedEnd::Delivered { used: 1, took_ms: 60, is_in_slo: true });
        }
    }
    for _ in 0..window.dead {
        figures.count_end(&CountedEnd::Dead { cause: DeadCause::Exhausted, is_in_slo: true });
    }
    figures
}

fn class(name: &str) -> ResultClass {
    ResultClass::all().find(|class| class.name() == name).unwrap()
}

async fn shown_at(browser: &Browser, width: u32, height: u32) {
    let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
    browser.cdp("Emulation.setDeviceMetricsOverride", metrics).await;
    let media = json!({"features": [{"name": "prefers-color-scheme", "value": "light"}]});
    browser.cdp("Emulation.setEmulatedMedia", media).await;
}

async fn sign_in(browser: &Browser, gateway: &Gateway, path: &str, token: &str) {
    browser.open(&format!("http://{}{path}", gateway.address)).await;
    browser.type_into("#token", token).await;
    browser.click("button.primary").await;
    browser.wait_until("the sign-in is through", "return document.querySelector('nav.main') !== null").await;
}

#[tokio::test]
async fn the_pictures_of_the_docs_show_what_they_are_for() {
    let (driver, shop) = (Driver::start().await, shop().await);
    let browser = driver.browser(&[]).await;
    sign_in(&browser, &shop.gateway, "/sign-in", shop.gateway.token()).await;
    let (billing, dead) = (&shop.billing, &shop.dead);
    let recover = format!("/dead-letters/recover?tenant=default&endpoint={billing}&kind=replay&preview=yes");
    let pages = [
        ("overview", "/".to_owned(), (1_280, 940), &["Needs attention", "Billing"][..]),
        ("endpoint", format!("/endpoints/default/{billing}"), (1_120, 900), &["Billing", "503"]),
        (
            "delivery",
            format!("/deliveries/default/{dead}"),
            (1_120, 820),
            &["exhausted", "503", "database is restarting"],
        ),
        ("recover", recover, (1_120, 480), &["Nothing has been done yet", "10 deliveries"]),
    ];
    for (name, path, (width, height), texts) in pages {
        shown_at(&browser, width, height).await;
        keep(&browser, &shop.gateway, name, &path, texts).await;
    }
    let token = json!({"tenant": "default", "rights": ["manage"], "name": "customer"});
    let token = shop.gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    sign_in(&browser, &shop.gateway, "/portal/sign-in", token["token"].as_str().unwrap()).await;
    shown_at(&browser, 1_120, 780).await;
    keep(&browser, &shop.gateway, "portal", "/portal", &["Acme Shop", "will not come by themselves"]).await;
    browser.close().await;
}

/// Opens a page, looks for what it is shown for, and keeps its picture where that was
/// asked for.
async fn keep(browser: &Browser, gateway: &Gateway, name: &str, path: &str, texts: &[&str]) {
    browser.open(&format!("http://{}{path}", gateway.address)).await;
    let seen = browser.text("body").await;
    for text in texts {
        assert!(seen.contains(text), "{name} does not say {text:?}: {seen}");
    }
    let picture = browser.picture().await;
    assert!(picture.starts_with(b"\x89PNG"), "{name}");
    let Ok(folder) = std::env::var("PAGES_PICTURES") else { return };
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(Path::new(&folder).join(format!("{name}.png")), picture).unwrap();
}
