//! The answers that a gateway gets, through the service, the layer, the
//! extractor and the example.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::FromRef;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use posthaste_receiver::{
    Answer, Event, Handler, HandlerError, InboxSettings, MemoryInbox, Place, Receiver, RequestReader, VerifyLayer,
};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt};

use crate::example::service;
use crate::signed::{OTHER_SECRET, SECRET, envelope, reader, request, seconds_now, standard};

/// Applies what it is told to by the data.
struct ByData;

impl Handler for ByData {
    async fn apply(&self, event: &Event, _: &Place) -> Result<(), HandlerError> {
        match event.data() {
            Some(r#""fail""#) => Err("a database that says too much: hush".into()),
            Some(r#""refuse""#) => Err(HandlerError::Refuse("hush".into())),
            _ => Ok(()),
        }
    }
}

fn receiver(reader: RequestReader) -> Receiver {
    Receiver::new(reader, MemoryInbox::new(ByData, InboxSettings::default()))
}

async fn answer(receiver: &Receiver, request: Request<Full<Bytes>>) -> (u16, String) {
    let response: Response<Full<Bytes>> = receiver.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test]
async fn every_answer_is_the_agreed_one() {
    let receiver = receiver(reader().body_bytes_max(1_000));
    let good = envelope("a", None, "1");
    assert_eq!(answer(&receiver, request("a", &good)).await, (202, "applied\n".to_owned()));
    assert_eq!(answer(&receiver, request("a", &good)).await.0, 200);
    assert_eq!(answer(&receiver, request("e", &envelope("e", Some(("k", 2)), "1"))).await.0, 202);
    assert_eq!(answer(&receiver, request("b", "{}")).await.0, 422);
    assert_eq!(answer(&receiver, request("c", &envelope("c", None, r#""refuse""#))).await.0, 422);
    let failed = answer(&receiver, request("d", &envelope("d", None, r#""fail""#))).await;
    assert_eq!(failed, (503, "the event could not be applied\n".to_owned()), "what a handler says stays inside");
    assert_eq!(answer(&receiver, request("f", &envelope("f", None, &"1".repeat(1_000)))).await.0, 413);
    let mut forged = request("g", &good);
    *forged.headers_mut() = standard(OTHER_SECRET, "g", seconds_now(), &good);
    let (status, text) = answer(&receiver, forged).await;
    assert!(status == 400 && text.contains("no signature in webhook-signature fits"), "{status} {text}");
    let counted = receiver.counters();
    assert_eq!((counted.applied, counted.duplicates, counted.stored), (1, 1, 1));
    assert_eq!((counted.bad_signatures, counted.malformed, counted.refused), (1, 2, 1));
    assert!(counted.named().contains(&("handler_failures", 1)));
}

#[tokio::test]
async fn a_bad_signature_is_answered_401_on_request() {
    let receiver = receiver(reader().unauthorized());
    let mut unsigned = request("a", "{}");
    unsigned.headers_mut().clear();
    assert_eq!(answer(&receiver, unsigned).await.0, 401);
}

#[tokio::test]
async fn too_many_at_once_are_asked_to_come_later() {
    let receiver = receiver(reader()).in_flight_max(0);
    let response = receiver.clone().oneshot(request("a", &envelope("a", None, "1"))).await.unwrap();
    assert_eq!(
        (response.status(), response.headers()["retry-after"].to_str().unwrap()),
        (StatusCode::TOO_MANY_REQUESTS, "2")
    );
    assert_eq!(receiver.counters().overloaded, 1);
    let receiver = receiver.in_flight_max(1);
    for id in ["a", "b"] {
        assert_eq!(answer(&receiver, request(id, &envelope(id, None, "1"))).await.0, 202, "places are given back");
    }
}

#[tokio::test]
async fn the_layer_lets_only_verified_requests_through_with_their_event() {
    let seen: Arc<Mutex<Vec<(String, Bytes)>>> = Arc::default();
    let keep = seen.clone();
    let inner = tower::service_fn(move |request: Request<Full<Bytes>>| {
        let keep = keep.clone();
        async move {
            let id = request.extensions().get::<Event>().unwrap().id.clone();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            keep.lock().unwrap().push((id, body));
            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("done")))
        }
    });
    let service = VerifyLayer::new(reader()).layer(inner);
    let body = envelope("a", None, "1");
    assert_eq!(service.clone().oneshot(request("a", &body)).await.unwrap().status(), StatusCode::OK);
    let mut unsigned = request("b", &body);
    unsigned.headers_mut().remove("webhook-signature");
    assert_eq!(service.oneshot(unsigned).await.unwrap().status(), StatusCode::BAD_REQUEST);
    assert_eq!(*seen.lock().unwrap(), [("a".to_owned(), Bytes::from(body))]);
}

#[tokio::test]
async fn the_layer_lets_no_more_through_at_once_than_it_may() {
    let (is_held, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (held, wait) = (is_held.clone(), go_on.clone());
    let inner = tower::service_fn(move |_: Request<Full<Bytes>>| {
        let (held, wait) = (held.clone(), wait.clone());
        async move {
            held.notify_one();
            wait.notified().await;
            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("done")))
        }
    });
    let reader = reader().in_flight_max(1);
    let service = VerifyLayer::new(reader.clone()).layer(inner);
    let call = |id: &str| service.clone().oneshot(request(id, &envelope(id, None, "1")));
    let first = tokio::spawn(call("a"));
    is_held.notified().await;
    let second = call("b").await.unwrap();
    assert_eq!((second.status().as_u16(), second.headers()["retry-after"].to_str().unwrap()), (429, "2"));
    go_on.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::OK);
    go_on.notify_one();
    assert_eq!(call("b").await.unwrap().status(), StatusCode::OK, "the place is given back");
    assert_eq!(reader.refused().overloaded(), 1);
}

#[derive(Clone)]
struct App {
    reader: RequestReader,
    receiver: Receiver,
}

impl FromRef<App> for RequestReader {
    fn from_ref(app: &App) -> Self {
        app.reader.clone()
    }
}

#[tokio::test]
async fn the_extractor_hands_a_verified_event_to_an_axum_handler() {
    async fn hook(axum::extract::State(app): axum::extract::State<App>, event: Event) -> Answer {
        app.receiver.hand_over(event).await
    }
    let state = App { reader: reader(), receiver: receiver(reader()) };
    let router: Router = Router::new().route("/hook", post(hook)).with_state(state);
    let body = envelope("a", None, "1");
    for (secret, status) in [(SECRET, 202), (SECRET, 200), (OTHER_SECRET, 400)] {
        let mut request = request("a", &body).map(axum::body::Body::new);
        *request.headers_mut() = standard(secret, "a", seconds_now(), &body);
        assert_eq!(router.clone().oneshot(request).await.unwrap().status().as_u16(), status);
    }
    // Too many are told so, whether they are read or being applied.
    let none_read = App { reader: reader().in_flight_max(0), receiver: receiver(reader()) };
    let none_applied = App { reader: reader(), receiver: receiver(reader()).in_flight_max(0) };
    for app in [none_read, none_applied] {
        let router: Router = Router::new().route("/hook", post(hook)).with_state(app.clone());
        let response =
            router.oneshot(request("b", &envelope("b", None, "1")).map(axum::body::Body::new)).await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "2"));
        assert_eq!(app.reader.refused().overloaded() + app.receiver.counters().overloaded, 1);
    }
}

#[tokio::test]
async fn the_example_books_each_payment_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bookings.db");
    let (router, receiver) = service(rusqlite::Connection::open(&file).unwrap(), &[SECRET]).unwrap();
    let running = tokio::spawn(async move { receiver.run().await });
    for (id, seq, status) in [("b", 2, 202), ("b", 2, 200), ("a", 1, 202), ("a", 1, 200)] {
        let body = envelope(id, Some(("account-7", seq)), &format!(r#"{{"cents": {seq}00}}"#));
        let body = body.replace("a.b", "payment.received");
        let response = router.clone().oneshot(request(id, &body).map(axum::body::Body::new)).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{id}");
    }
    let database = rusqlite::Connection::open(&file).unwrap();
    let bookings = || {
        let mut query = database.prepare("SELECT account || ' ' || cents FROM booking ORDER BY rowid").unwrap();
        let found = query.query_map([], |row| row.get::<_, String>(0)).unwrap();
        found.map(Result::unwrap).collect::<Vec<_>>()
    };
    // The stored one is applied by the task soon after the first, and counted after that.
    let counted = async || {
        let ask = Request::get("/counters").body(axum::body::Body::empty()).unwrap();
        let counters = router.clone().oneshot(ask).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(counters.to_vec()).unwrap()
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(90);
    while !counted().await.contains("applied 2\nduplicates 2\n") {
        assert!(std::time::Instant::now() < until, "{:?} {}", bookings(), counted().await);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(bookings(), ["account-7 100", "account-7 200"]);
    running.abort();
}
