//! Makes calls to one gateway, over connections that are kept open.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::Url;

use crate::error::{Error, Problem};
use crate::retry::RetryPolicy;
use crate::transport::{Connection, exchange_on, open};
use crate::trust::Trust;

/// Time that one call may take, unless it is set.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Most connections that are kept open between calls.
const IDLE_MAX: usize = 32;

/// A client of one gateway. Its copies share their connections.
#[derive(Clone)]
pub struct Client {
    server: Url,
    authorization: HeaderValue,
    user_agent: HeaderValue,
    timeout: Duration,
    retry: RetryPolicy,
    trust: Trust,
    idle: Arc<Mutex<Vec<Connection>>>,
}

/// Prints no token.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.server)
    }
}

/// An answer of the gateway, whatever its status.
#[derive(Debug, Clone)]
pub struct ApiResponse {
    /// Status of the answer.
    pub status: StatusCode,
    /// Time that `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// Body of the answer.
    pub body: String,
}

impl Client {
    /// Makes a client of the gateway at this URL, with this token.
    pub fn new(server: &str, token: &str) -> Result<Self, Error> {
        let url = Url::parse(server).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let server = url.ok_or_else(|| {
            Error::InvalidArgument(format!(
                "server {server:?} is not an http:// or https:// address; write one such as https://hooks.example.com"
            ))
        })?;
        let authorization = HeaderValue::try_from(format!("Bearer {}", token.trim()));
        let mut authorization = authorization.map_err(|_| {
            Error::InvalidArgument("the token has characters no header can carry; copy it again".into())
        })?;
        authorization.set_sensitive(true);
        let user_agent = HeaderValue::from_static(concat!("posthaste-client/", env!("CARGO_PKG_VERSION")));
        let (timeout, retry) = (CALL_TIMEOUT, RetryPolicy::default());
        Ok(Self { server, authorization, user_agent, timeout, retry, trust: Trust::default(), idle: Arc::default() })
    }

    /// Sets the time that one call may take; a minute otherwise.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets how often calls are repeated.
    #[must_use]
    pub fn retry(self, retry: RetryPolicy) -> Self {
        Self { retry, ..self }
    }

    /// Sets which certificates of the gateway are trusted; those that the machine trusts
    /// otherwise.
    #[must_use]
    pub fn trust(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Sets the `User-Agent` that calls carry.
    #[must_use]
    pub fn user_agent(self, name: HeaderValue) -> Self {
        Self { user_agent: name, ..self }
    }

    /// Returns the URL of the gateway.
    pub fn server(&self) -> &Url {
        &self.server
    }

    /// Returns the URL of a path below `/v1`.
    pub fn url(&self, path: &[&str]) -> Result<Url, Error> {
        // The URL standard removes these segments from a path, and the call would go elsewhere.
        if let Some(segment) = path.iter().find(|part| matches!(**part, "" | "." | "..")) {
            return Err(Error::InvalidArgument(format!("{segment:?} is not an id; copy one from a list")));
        }
        let mut url = self.server.clone();
        let no_path =
            |()| Error::InvalidArgument(format!("server {} has no path; use an http:// address", self.server));
        url.path_segments_mut().map_err(no_path)?.pop_if_empty().push("v1").extend(path);
        Ok(url)
    }

    /// Makes one call, once; returns the answer whatever its status. The body is JSON.
    pub async fn call(&self, method: Method, url: &Url, body: Option<Vec<u8>>) -> Result<ApiResponse, Error> {
        let late = |_| Error::Timeout { server: self.server.clone(), timeout: self.timeout };
        let response = tokio::time::timeout(self.timeout, self.exchange(method, url, body)).await.map_err(late)??;
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Ok(ApiResponse {
            status: response.status(),
            retry_after: seconds.map(Duration::from_secs),
            body: String::from_utf8_lossy(response.body()).into_owned(),
        })
    }

    async fn exchange(&self, method: Method, url: &Url, body: Option<Vec<u8>>) -> Result<Response<Bytes>, Error> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = method;
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, self.authorization.clone());
        headers.insert(USER_AGENT, self.user_agent.clone());
        if let Some(body) = body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *request.body_mut() = Full::from(body);
        }
        let mut connection = self.connection().await?;
        let response = exchange_on(&mut connection, url, request).await?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(response)
    }

    /// Returns an idle connection that is still open, else a new one.
    async fn connection(&self) -> Result<Connection, Error> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut connection) = idle else { return open(&self.server, &self.trust).await };
            if connection.ready().await.is_ok() {
                return Ok(connection);
            }
        }
    }

    /// Makes one call, once, and reads the answer.
    pub async fn call_typed<T: DeserializeOwned>(
        &self,
        method: Method,
        url: &Url,
        body: Option<Vec<u8>>,
    ) -> Result<T, Error> {
        let response = self.call(method, url, body).await?;
        if !response.status.is_success() {
            return Err(self.refusal(&response));
        }
        serde_json::from_str(&response.body)
            .map_err(|source| Error::UnreadableAnswer { server: self.server.clone(), source })
    }

    /// Makes a call that has the same effect however often it is made, and repeats it
    /// while that may help.
    pub async fn call_repeated<T: DeserializeOwned>(
        &self,
        method: Method,
        url: &Url,
        body: Option<Vec<u8>>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let mut tries = 0;
        loop {
            let error = match self.call_typed(method.clone(), url, body.clone()).await {
                Err(error) if error.is_temporary() => error,
                ended => return ended,
            };
            tries += 1;
            match self.retry.delay(tries, began.elapsed(), error.retry_after(), rand::random()) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(error),
            }
        }
    }

    fn refusal(&self, response: &ApiResponse) -> Error {
        let (status, retry_after) = (response.status, response.retry_after);
        match serde_json::from_str::<Problem>(&response.body) {
            Ok(problem) => Error::Problem(Box::new(Problem { status: status.as_u16(), retry_after, ..problem })),
            Err(_) => Error::NoProblem { server: self.server.clone(), status, retry_after },
        }
    }
}
