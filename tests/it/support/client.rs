//! An HTTP client of the gateway's API.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::{PATIENCE, api_description};

/// One kept-alive connection to a gateway.
pub struct Client {
    address: SocketAddr,
    token: String,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Returns the JSON body; panics if the status is another one.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Checks that this is a problem with this status and code, and returns it.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.expect(status);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        assert!(problem["request_id"].as_str().is_some_and(|id| id.starts_with("req_")), "{problem}");
        problem
    }
}

impl Client {
    pub fn new(address: SocketAddr, token: &str) -> Self {
        Self { address, token: token.to_owned(), connection: Mutex::new(None) }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Bytes::new()).await.expect("the gateway answers")
    }

    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send("POST", path, &[], body).await.expect("the gateway answers")
    }

    pub async fn post_json(&self, path: &str, body: &Value) -> Answer {
        self.post(path, body.to_string()).await
    }

    pub async fn patch_json(&self, path: &str, body: &Value) -> Answer {
        self.send("PATCH", path, &[], Bytes::from(body.to_string())).await.expect("the gateway answers")
    }

    /// Sends a request; an error means that no whole answer came.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, String> {
        let answering = self.ask(method, path, headers, body.into());
        let answer = tokio::time::timeout(PATIENCE, answering).await;
        answer.unwrap_or_else(|_| Err(format!("{method} {path} was not answered")))
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Answer, String> {
        let mut slot = self.connection.lock().await;
        if slot.as_ref().is_none_or(SendRequest::is_closed) {
            *slot = Some(self.connect().await?);
        }
        let mut request = hyper::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.address.to_string());
        }
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        let connection = slot.as_mut().expect("just opened");
        connection.ready().await.map_err(|problem| problem.to_string())?;
        let response = connection.send_request(request).await.map_err(|problem| problem.to_string())?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|problem| problem.to_string())?.to_bytes();
        let answer = Answer { status: head.status.as_u16(), headers: head.headers, body };
        api_description::check(method, path, &answer);
        Ok(answer)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(self.address).await.map_err(|problem| problem.to_string())?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|problem| problem.to_string())?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
