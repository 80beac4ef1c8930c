//! The client against a server with scripted answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use posthaste_client::{Client, Error, ListQuery, NewEvent, RetryPolicy};
use tokio::net::TcpListener;

/// What the server answers: a status, a body and `Retry-After`; status 0 closes the connection.
type Answer = (u16, &'static str, Option<&'static str>);

const RECEIPT: &str = r#"{"id":"a","type":"t","accepted_at":"2026-11-15T08:00:00Z","deliveries":2,"duplicate":false}"#;
const BUSY: &str =
    r#"{"type":"about:blank","title":"x","status":503,"code":"unavailable","detail":"busy","request_id":"r"}"#;

const FULL: &str =
    r#"{"type":"about:blank","title":"x","status":507,"code":"storage_full","detail":"full","request_id":"r"}"#;

/// A request that the server got: method, path with query, token and body.
type Seen = Arc<Mutex<Vec<(Method, String, String, String)>>>;

async fn server(answers: Vec<Answer>) -> (Client, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (answers, seen) = (Arc::new(Mutex::new(VecDeque::from(answers))), Seen::default());
    let noted = seen.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answers, seen) = (answers.clone(), noted.clone());
            let service = service_fn(move |request| answer(request, answers.clone(), seen.clone()));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let quick = RetryPolicy { delay_first: Duration::from_millis(1), ..RetryPolicy::default() };
    (Client::new(&format!("http://{address}"), "token-1").unwrap().retry(quick), seen)
}

async fn answer(
    request: Request<Incoming>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    seen: Seen,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (head, body) = request.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let token = head.headers["authorization"].to_str().unwrap().to_owned();
    seen.lock().unwrap().push((head.method, head.uri.to_string(), token, body));
    let (status, body, retry_after) = answers.lock().unwrap().pop_front().expect("an answer for each request");
    if status == 0 {
        return Err(std::io::Error::other("closed, as the script says"));
    }
    let mut response = Response::builder().status(status);
    if let Some(seconds) = retry_after {
        response = response.header("retry-after", seconds);
    }
    Ok::<_, Infallible>(response.body(Full::from(body)).unwrap()).map_err(|never| match never {})
}

fn event() -> NewEvent {
    NewEvent::from_json("t", r#"{"a": 1}"#).unwrap()
}

#[tokio::test]
async fn an_event_is_repeated_under_its_id_until_it_is_accepted() {
    let (client, seen) = server(vec![
        (0, "", None),
        (503, BUSY, None),
        (429, BUSY, Some("0")),
        (502, "<html>", None),
        (507, FULL, Some("0")),
        (202, RECEIPT, None),
    ])
    .await;
    let receipt = client.tenant("shop").send(&event()).await.unwrap();
    assert_eq!((receipt.id.as_str(), receipt.deliveries, receipt.duplicate), ("a", 2, false));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 6);
    assert!(seen.iter().all(|request| *request == seen[0]), "each repeat is the same request: {seen:?}");
    let (method, path, token, body) = &seen[0];
    assert_eq!((method, path.as_str(), token.as_str()), (&Method::POST, "/v1/tenants/shop/events", "Bearer token-1"));
    assert!(body.starts_with(r#"{"id":""#) && body.ends_with(r#""data":{"a": 1}}"#), "{body}");
}

#[tokio::test]
async fn a_refusal_is_a_problem_and_is_not_repeated() {
    let refusal = r#"{"type":"about:blank","title":"x","status":422,"code":"invalid_field","detail":"type is empty",
        "errors":[{"pointer":"/type","detail":"type is empty"}],"request_id":"req_1"}"#;
    let (client, seen) = server(vec![(422, refusal, None)]).await;
    let error = client.tenant("shop").send(&event()).await.unwrap_err();
    let problem = error.problem().expect("a problem");
    assert_eq!(
        (problem.status, problem.code.as_str(), problem.errors[0].pointer.as_str()),
        (422, "invalid_field", "/type")
    );
    assert!(!error.is_temporary() && error.to_string().contains("type is empty"), "{error}");
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_asked_for_is_waited_for_and_no_longer_than_the_end() {
    let (client, seen) = server(vec![(429, BUSY, Some("3600"))]).await;
    let error = client.tenant("shop").send(&event()).await.unwrap_err();
    assert_eq!((error.retry_after(), seen.lock().unwrap().len()), (Some(Duration::from_secs(3_600)), 1));
}

#[tokio::test]
async fn what_is_not_safe_to_repeat_is_made_once() {
    let (client, seen) = server(vec![(503, BUSY, None)]).await;
    assert!(client.tenant("shop").replay("dlv_1").await.unwrap_err().is_temporary());
    assert_eq!(seen.lock().unwrap()[0].1, "/v1/tenants/shop/deliveries/dlv_1/replay");
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_batch_and_a_list_are_read() {
    let items = r#"{"data":[{"index":0,"status":202,"id":"a","deliveries":1,"duplicate":false},
        {"index":1,"status":409,"id":null,"error":{"code":"id_conflict","errors":[{"pointer":"/id","detail":"known"}]}}]}"#;
    let (client, seen) = server(vec![(202, items, None), (200, r#"{"data":[],"next":"c"}"#, None)]).await;
    let shop = client.tenant("shop");
    let items = shop.send_batch_partial(&[event(), event()]).await.unwrap();
    assert_eq!(items[1].error.as_ref().map(|error| error.code.as_str()), Some("id_conflict"));
    let query = ListQuery::new().filter("key", "a&b").cursor("1").cursor("2");
    assert_eq!(shop.deliveries(&query).await.unwrap().next.as_deref(), Some("c"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].1, "/v1/tenants/shop/events/batch?partial=true");
    assert_eq!(seen[1].1, "/v1/tenants/shop/deliveries?key=a%26b&cursor=2");
}

#[tokio::test]
async fn an_address_that_nobody_listens_on_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = Client::new(&server, "t").unwrap().retry(RetryPolicy::NEVER);
    let error = client.tenant("shop").event("a").await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }) && error.to_string().contains(&server), "{error}");
    assert!(matches!(client.url(&["a", ".."]), Err(Error::InvalidArgument(_))));
    assert!(Client::new("ftp://a", "t").is_err() && Client::new(&server, "a\nb").is_err());
}

/// A server that answers each connection with these bytes after it has read some,
/// and closes it; a server that reads nothing resets it instead.
async fn closing_server(is_read: bool, bytes: &'static [u8]) -> (Client, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            // The client speaks first; what is not read when it is closed makes TCP reset it.
            stream.readable().await.unwrap();
            if is_read {
                stream.try_read(&mut [0; 16_384]).unwrap();
                assert_eq!(stream.try_write(bytes).unwrap(), bytes.len());
            }
        }
    });
    let quick = RetryPolicy { tries_max: 3, delay_first: Duration::from_millis(1), ..RetryPolicy::default() };
    (Client::new(&format!("https://{address}"), "t").unwrap().retry(quick), connections)
}

#[tokio::test]
async fn a_connection_that_ends_before_tls_is_agreed_on_is_tried_again() {
    for is_read in [true, false] {
        let (client, connections) = closing_server(is_read, b"").await;
        let error = client.tenant("shop").send(&event()).await.unwrap_err();
        assert!(matches!(&error, Error::Unreachable { .. }) && error.is_temporary(), "{error:?}");
        assert_eq!(connections.load(Ordering::Relaxed), 3);
    }
    let (client, connections) = closing_server(true, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let error = client.tenant("shop").send(&event()).await.unwrap_err();
    assert!(matches!(&error, Error::Tls { .. }) && !error.is_temporary(), "a server without TLS stays one: {error:?}");
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}
