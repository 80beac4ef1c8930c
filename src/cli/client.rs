//! Calls the API of a running gateway.
//!
//! There is one connection, kept open between calls. The egress guard does not apply,
//! because the operator chose the address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::CommandFactory;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::{Position, Url};

use super::advice::given_option;
use super::chosen_gateway::{ChosenGateway, GatewaySource};
use super::contexts_file::{ContextsFile, server_url};
use super::failure::{CommandFailure, ExitReason};
use super::output::{OutputFormat, clean, parse};
use super::request::JsonBody;
use crate::lifecycle::deliver::tls::{self, CertificateRequested};
use crate::model::id::TenantId;
use crate::model::span::Span;
use crate::model::token::PREFIX;

const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Which gateway to speak to, as whom, and how to show its answers.
#[derive(Debug, Clone, clap::Args)]
pub struct ClientArgs {
    /// Where the gateway listens; that of the folder or of the context when left out, else http://127.0.0.1:8400 (see `posthaste context`).
    #[arg(long, global = true, help_heading = "Gateway", env = "POSTHASTE_SERVER", value_name = "URL", value_parser = server_url)]
    pub server: Option<Url>,
    /// The token to show; without it, the one in --token-file.
    #[arg(long, global = true, help_heading = "Gateway", env = "POSTHASTE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// A file that holds the token; ./posthaste-data/admin-token or that of the context when left out.
    #[arg(long, global = true, help_heading = "Gateway", env = "POSTHASTE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Whose events, endpoints and deliveries; when left out, the token's own tenant or `default`.
    #[arg(long, global = true, help_heading = "Gateway", env = "POSTHASTE_TENANT")]
    pub tenant: Option<String>,
    /// How to show the answer.
    #[arg(short, long, global = true, help_heading = "Gateway", value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}

impl ClientArgs {
    /// Returns a client for the chosen gateway, and for the tenant that was named, else
    /// the token's own.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let mut client = self.client_of_default()?;
        // The admin token is of no tenant, and any other tells whose it is.
        if !client.is_tenant_named && client.has_issued_token {
            client.enter_own_tenant().await?;
        }
        Ok(client)
    }

    fn client_of_default(&self) -> anyhow::Result<Client> {
        let gateway = self.gateway()?;
        let (token, token_from) = self.find_token(&gateway)?;
        let mut authorization = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| anyhow!("the token from {token_from} has characters no header can carry; copy it again"))?;
        authorization.set_sensitive(true);
        Ok(Client {
            format: self.output,
            server: gateway.server,
            server_from: gateway.from,
            tenant: self.tenant.clone().unwrap_or_else(|| TenantId::DEFAULT.to_owned()),
            is_tenant_named: self.tenant.is_some(),
            has_issued_token: token.starts_with(PREFIX),
            authorization,
            token_from,
            open: None,
        })
    }

    /// Refuses a tenant that was named where none means anything.
    pub fn refuse_tenant(&self, why: &str) -> anyhow::Result<()> {
        match given_option("tenant") {
            Some(tenant) => bail!(CommandFailure::usage(format!("--tenant {tenant} means nothing here: {why}"))),
            None => Ok(()),
        }
    }

    /// Chooses the gateway, without speaking to it.
    pub fn gateway(&self) -> anyhow::Result<ChosenGateway> {
        let contexts = ContextsFile::read()?;
        let (folder, listen) = (std::env::current_dir()?, crate::config::listen_in_file());
        Ok(ChosenGateway::of(self.server.as_ref(), self.token_file.as_deref(), &contexts, &folder, listen))
    }

    /// Returns the token and where it was found.
    fn find_token(&self, gateway: &ChosenGateway) -> anyhow::Result<(String, String)> {
        if let Some(token) = &self.token {
            return Ok((token.trim().to_owned(), "--token or POSTHASTE_TOKEN".to_owned()));
        }
        let file = gateway.token_file.display();
        let token = std::fs::read_to_string(&gateway.token_file).map_err(|problem| {
            CommandFailure::new(ExitReason::Unauthenticated, format!("no token: {file} cannot be read ({problem}); start `posthaste serve` here first, or give --token, POSTHASTE_TOKEN, --token-file or a `posthaste context`"))
        })?;
        Ok((token.trim().to_owned(), file.to_string()))
    }
}

/// A client of one gateway.
pub struct Client {
    /// Format in which answers are printed.
    pub format: OutputFormat,
    server: Url,
    server_from: GatewaySource,
    /// Tenant whose resources are called.
    pub tenant: String,
    /// Whether the tenant was named, by a flag or in the environment.
    pub is_tenant_named: bool,
    has_issued_token: bool,
    authorization: HeaderValue,
    token_from: String,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Returns the URL of a path below `/v1`.
    pub fn url(&self, path: &[&str]) -> anyhow::Result<Url> {
        // The URL standard removes these segments from a path, and the call would go elsewhere.
        if let Some(segment) = path.iter().find(|part| matches!(**part, "" | "." | "..")) {
            bail!(CommandFailure::usage(format!("{segment:?} is not an id; copy one from a list")));
        }
        let mut url = self.server.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow!("server {} has no path; use an http:// address", self.server))?
            .pop_if_empty()
            .push("v1")
            .extend(path);
        Ok(url)
    }

    /// Returns the URL of a path below the tenant.
    pub fn tenant_url(&self, path: &[&str]) -> anyhow::Result<Url> {
        self.url(&[&["tenants", self.tenant.as_str()], path].concat())
    }

    /// Turns to the tenant that the token is of, if it is of one.
    async fn enter_own_tenant(&mut self) -> anyhow::Result<()> {
        // A gateway of an older version does not tell.
        let Some(token) = self.find(self.url(&["token"])?).await? else { return Ok(()) };
        if let Some(tenant) = parse(&token)?["tenant"].as_str() {
            self.tenant = tenant.to_owned();
            self.is_tenant_named = true;
        }
        Ok(())
    }

    /// Makes a GET call.
    pub async fn get(&mut self, url: Url) -> anyhow::Result<String> {
        self.call(Method::GET, url, None).await
    }

    /// Makes a POST call.
    pub async fn post(&mut self, url: Url, body: Option<JsonBody>) -> anyhow::Result<String> {
        self.call(Method::POST, url, body).await
    }

    /// Makes a GET call; a 404 becomes none, unless it is the tenant that is missing.
    pub async fn find(&mut self, url: Url) -> anyhow::Result<Option<String>> {
        match self.answer(Method::GET, url.clone(), None).await? {
            (StatusCode::NOT_FOUND, text) if !self.is_tenant_missing(&text) => Ok(None),
            (status, text) if status.is_success() => Ok(Some(text)),
            (status, text) => Err(self.explain(&url, status, &text)),
        }
    }

    /// Makes a call; an answer other than 2xx becomes the error.
    pub async fn call(&mut self, method: Method, url: Url, body: Option<JsonBody>) -> anyhow::Result<String> {
        match self.answer(method, url.clone(), body).await? {
            (status, text) if status.is_success() => Ok(text),
            (status, text) => Err(self.explain(&url, status, &text)),
        }
    }

    async fn answer(
        &mut self,
        method: Method,
        url: Url,
        body: Option<JsonBody>,
    ) -> anyhow::Result<(StatusCode, String)> {
        let request = self.request(method, &url, body)?;
        let unreachable = |sentence| CommandFailure::new(ExitReason::Unreachable, sentence);
        match tokio::time::timeout(CALL_TIMEOUT, self.exchange(request)).await {
            Ok(Ok((status, bytes))) => Ok((status, String::from_utf8_lossy(&bytes).into_owned())),
            Ok(Err(problem)) => bail!(unreachable(format!("{problem:#}"))),
            Err(_) => {
                let span = Span(CALL_TIMEOUT);
                bail!(unreachable(format!("no answer from {} within {span}; see its logs", self.server)))
            }
        }
    }

    fn request(&self, method: Method, url: &Url, body: Option<JsonBody>) -> anyhow::Result<Request<Full<Bytes>>> {
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let mut request = Request::builder()
            .method(method)
            .uri(&url[Position::BeforePath..Position::AfterQuery])
            .header(HOST, host)
            .header(AUTHORIZATION, &self.authorization)
            .header(USER_AGENT, concat!("posthaste-cli/", env!("CARGO_PKG_VERSION")));
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(JsonBody::finish).unwrap_or_default();
        request.body(Full::from(body)).with_context(|| format!("{url} cannot be asked for"))
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut open = self.connection().await?;
        let closed = || format!("{} closed the connection before it had answered", self.server);
        let response = open.send_request(request).await.with_context(closed)?;
        let status = response.status();
        let bytes = response.into_body().collect().await.with_context(closed)?.to_bytes();
        self.open = Some(open);
        Ok((status, bytes))
    }

    async fn connection(&mut self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        if let Some(mut open) = self.open.take()
            && open.ready().await.is_ok()
        {
            return Ok(open);
        }
        self.connect().await
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let host = self.server.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.server.port_or_known_default().unwrap_or(80);
        let tcp = TcpStream::connect((host, port)).await.map_err(|problem| match problem.kind() {
            std::io::ErrorKind::ConnectionRefused => anyhow!(
                "nothing listens at {}{}; start it with `posthaste serve`, or name another with --server",
                self.server.as_str().trim_end_matches('/'),
                self.server_from.in_parentheses()
            ),
            _ => anyhow!("{} cannot be reached: {problem}; check --server", self.server),
        })?;
        // Requests are small, and Nagle's algorithm would delay them.
        let _ = tcp.set_nodelay(true);
        let stream: Box<dyn ClientStream> = match self.server.scheme() {
            "https" => Box::new(encrypt(host, tcp).await?),
            _ => Box::new(tcp),
        };
        let (open, connection) = handshake(TokioIo::new(stream)).await?;
        // The call that uses the connection reports its errors.
        tokio::spawn(async move { drop(connection.await) });
        Ok(open)
    }

    fn explain(&self, url: &Url, status: StatusCode, body: &str) -> anyhow::Error {
        let Ok(problem) = serde_json::from_str::<ProblemResponse>(body) else {
            // A proxy in front of the gateway says so when nothing is behind it.
            let reason = if matches!(status.as_u16(), 502..=504) { ExitReason::Unreachable } else { ExitReason::Other };
            let sentence =
                format!("{} answered {status} without an explanation; is it a posthaste gateway?", self.server);
            return CommandFailure::new(reason, sentence).into();
        };
        let mut sentence = problem.sentence();
        if status == StatusCode::UNAUTHORIZED {
            // The gateway speaks of headers, which nobody types here.
            let known = sentence.split(": send `Authorization").next().unwrap_or_default().to_owned();
            sentence = format!(
                "{known}; the one shown is from {}; name another with --token-file, --token or POSTHASTE_TOKEN",
                self.token_from
            );
        }
        let is_in_tenant = url.path().contains(&format!("/v1/tenants/{}/", self.tenant));
        if status == StatusCode::NOT_FOUND && is_in_tenant && !self.is_tenant_named {
            sentence.push_str("; --tenant names another tenant");
        } else if status == StatusCode::NOT_FOUND && self.is_tenant_missing(body) && !self.has_issued_token {
            sentence.push_str("; `posthaste tenants list` shows those there are");
        }
        CommandFailure::answered(status, sentence, body).into()
    }

    /// Whether an answer says that the tenant itself does not exist.
    fn is_tenant_missing(&self, body: &str) -> bool {
        let problem = serde_json::from_str::<ProblemResponse>(body);
        problem.is_ok_and(|problem| problem.detail == format!("there is no tenant {}", self.tenant))
    }
}

/// Fetches what a link leads to, without a token; an answer other than 200 is
/// an error.
pub async fn fetch(link: &str) -> anyhow::Result<Bytes> {
    const FETCHED_BYTES_MAX: usize = 16 * 1_024 * 1_024;
    let url = server_url(link).map_err(|problem| anyhow!("{link:?} is not a link: {problem}"))?;
    let exchange = async {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let tcp = TcpStream::connect((host, url.port_or_known_default().unwrap_or(80))).await?;
        let stream: Box<dyn ClientStream> = match url.scheme() {
            "https" => Box::new(encrypt(host, tcp).await?),
            _ => Box::new(tcp),
        };
        let (mut open, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(connection.await) });
        let request = Request::builder()
            .uri(&url[Position::BeforePath..Position::AfterQuery])
            .header(HOST, &url[Position::BeforeHost..Position::AfterPort])
            .body(Full::<Bytes>::default())?;
        let response = open.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), FETCHED_BYTES_MAX).collect().await;
        let body = body.map_err(|problem| anyhow!("the answer broke off, or is larger than 16 MiB: {problem}"))?;
        anyhow::Ok((status, body.to_bytes()))
    };
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, exchange).await;
    match fetched.map_err(|_| anyhow!("no answer within {}", Span(FETCH_TIMEOUT)))?? {
        (StatusCode::OK, body) => Ok(body),
        (status, body) => match serde_json::from_slice::<ProblemResponse>(&body) {
            Ok(problem) => bail!("{status}: {}", problem.sentence()),
            Err(_) => bail!("it was answered {status}"),
        },
    }
}

trait ClientStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ClientStream for T {}

async fn encrypt(host: &str, tcp: TcpStream) -> anyhow::Result<impl ClientStream + use<>> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned())
        .with_context(|| format!("{host:?} is not a name a certificate can be checked for"))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, tcp).await.map_err(|problem| {
        let told = tls::explain(&problem, CertificateRequested::No);
        let why = told.map_or_else(|| problem.to_string(), |failure| failure.message);
        let way_out = "if it is plain http, write http:// instead of https://";
        let why = why.replace("is it plain http?", way_out);
        anyhow!("no secure connection to {host} could be agreed on: {why}")
    })
}

/// The problem that the gateway answers with.
#[derive(Deserialize)]
struct ProblemResponse {
    detail: String,
    #[serde(default)]
    errors: Vec<ProblemField>,
}

/// A field at fault in a problem.
#[derive(Deserialize)]
struct ProblemField {
    #[serde(default)]
    pointer: String,
    detail: String,
}

impl ProblemResponse {
    /// Returns the detail, and the fields at fault that it does not contain already.
    fn sentence(&self) -> String {
        if let [field] = self.errors.as_slice()
            && field.detail == self.detail
        {
            let place = place(&field.pointer);
            let place = if place.is_empty() { place } else { format!(" (at {place})") };
            return clean(&format!("{}{place}", self.detail));
        }
        // The gateway joins the fields' sentences; here each gets a line of its own.
        let is_joined = self.errors.len() > 1 && self.errors.iter().all(|field| self.detail.contains(&field.detail));
        let mut sentence =
            if is_joined { format!("{} fields are refused:", self.errors.len()) } else { clean(&self.detail) };
        for field in &self.errors {
            let place = place(&field.pointer);
            let place = if place.is_empty() { place } else { format!("{place}: ") };
            sentence.push_str(&format!("\n  {}", clean(&format!("{place}{}", field.detail))));
        }
        sentence
    }
}

/// Returns where a fault is, in the words of the command line: `--retry, backoff.max`
/// for `/retry/backoff/max`. What has no option of its own is a word of the command.
fn place(pointer: &str) -> String {
    let Some(fields) = pointer.strip_prefix('/') else {
        return pointer.strip_prefix('?').map(|name| option_of(name).unwrap_or_default()).unwrap_or_default();
    };
    let mut parts = fields.splitn(2, '/');
    let name = parts.next().unwrap_or_default();
    // An option that is given several times has a number in the list.
    let rest = parts.next().filter(|rest| !rest.bytes().all(|byte| byte.is_ascii_digit()));
    match (option_of(name), rest) {
        (Some(option), Some(rest)) => format!("{option}, {}", rest.replace('/', ".")),
        (Some(option), None) => option,
        (None, _) if fields.contains('/') => fields.replace('/', "."),
        (None, _) => String::new(),
    }
}

/// Returns the option that gives a field of the API its value, if a command has one.
fn option_of(field: &str) -> Option<String> {
    let singular = field.strip_suffix('s').unwrap_or(field);
    let names = [field.replace('_', "-"), singular.replace('_', "-")];
    let has = |command: &clap::Command, name: &str| command.get_opts().any(|option| option.get_long() == Some(name));
    let cli = super::Cli::command();
    let commands: Vec<&clap::Command> = cli.get_subcommands().filter(|command| command.get_name() != "serve").collect();
    let mut all = commands.iter().flat_map(|command| command.get_subcommands().chain([*command]));
    let known = all.find_map(|command| names.iter().find(|name| has(command, name)).cloned());
    known.map(|name| format!("--{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_told_in_the_words_of_the_command_line() {
        for (pointer, told) in [
            ("/rights/1", "--rights"),
            ("/event_types/0", "--event-type"),
            ("/retry/backoff/max", "--retry, backoff.max"),
            ("/type", "--type"),
            ("/url", "--url"),
            ("/something", ""),
            ("?since", "--since"),
            ("", ""),
        ] {
            assert_eq!(place(pointer), told, "{pointer}");
        }
    }

    fn sentence(json: &str) -> String {
        serde_json::from_str::<ProblemResponse>(json).unwrap().sentence()
    }

    #[test]
    fn a_refusal_names_each_field_once() {
        assert_eq!(sentence(r#"{"detail":"there is no such event"}"#), "there is no such event");
        assert_eq!(
            sentence(r#"{"detail":"type is empty","errors":[{"pointer":"/type","detail":"type is empty"}]}"#),
            "type is empty (at --type)"
        );
        let two = r#"{"detail":"a is 1; b is 2","errors":[{"pointer":"/a","detail":"a is 1"},{"pointer":"/b","detail":"b is 2"}]}"#;
        assert_eq!(sentence(two), "2 fields are refused:\n  a is 1\n  b is 2");
        let apart = r#"{"detail":"refused","errors":[{"pointer":"/a","detail":"a is 1"}]}"#;
        assert_eq!(sentence(apart), "refused\n  a is 1");
    }
}
