//! Calls the API of a running gateway, through `posthaste-client`.
//!
//! It knows which gateway was meant, and tells failures in the words of the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use bytes::Bytes;
use clap::CommandFactory;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use posthaste_client::transport::exchange;
use posthaste_client::{ApiResponse, Error, Problem, Trust};
use url::{Host, Url};

use super::advice::given_option;
use super::chosen_gateway::{AddressFile, ChosenGateway, GatewaySource};
use super::contexts_file::{ContextsFile, LocalGateway, server_url};
use super::failure::{CommandFailure, ExitReason};
use super::output::{OutputFormat, escape_control_characters, parse};
use super::request::JsonBody;
use crate::api::auth::HOW_TO_SEND;
use crate::lifecycle::deliver::tls::{self, TlsFault};
use crate::model::id::TenantId;
use crate::model::span::Span;
use crate::model::token::PREFIX;
use crate::store::MissingResource;

const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Which gateway to connect to, with which token, and how to show its answers.
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
    /// A file of certificates (PEM) to trust for https instead of this machine's: an authority's, or the gateway's own.
    #[arg(long, global = true, help_heading = "Gateway", env = "POSTHASTE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
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
        // The admin token belongs to no tenant; the gateway knows the tenant of any other token.
        if !client.is_tenant_named && client.has_issued_token {
            client.enter_own_tenant().await?;
        }
        Ok(client)
    }

    /// Returns a client for the chosen gateway without asking it anything; the tenant is
    /// the one that was named, or the default.
    pub fn client_of_default(&self) -> anyhow::Result<Client> {
        let gateway = self.gateway()?;
        let (token, token_from) = self.find_token(&gateway)?;
        let agent = HeaderValue::from_static(concat!("posthaste-cli/", env!("CARGO_PKG_VERSION")));
        let api = posthaste_client::Client::new(gateway.server.as_str(), &token)
            .map_err(|_| anyhow!("the token from {token_from} has characters no header can carry; copy it again"))?;
        Ok(Client {
            format: self.output,
            api: api.user_agent(agent).trust(read_trust(&gateway)?),
            server_from: gateway.from,
            tenant: self.tenant.clone().unwrap_or_else(|| TenantId::DEFAULT.to_owned()),
            is_tenant_named: self.tenant.is_some(),
            has_issued_token: token.starts_with(PREFIX),
            token_from,
        })
    }

    /// Names the gateway that runs on this data directory, with its admin token, unless
    /// a gateway was named.
    pub fn for_data_directory(&self, data: &Path) -> Self {
        let mut access = self.clone();
        if let (None, Some(gateway)) = (&access.server, AddressFile::read(data)) {
            access.server = server_url(&gateway.url()).ok();
            access.ca = access.ca.or(gateway.certificate);
            access.token_file = access.token_file.or_else(|| Some(data.join("admin-token")));
        }
        access
    }

    /// Refuses `--tenant` for a command that has no tenant.
    pub fn refuse_tenant(&self, why: &str) -> anyhow::Result<()> {
        match given_option("tenant") {
            Some(tenant) => bail!(CommandFailure::usage(format!("--tenant {tenant} means nothing here: {why}"))),
            None => Ok(()),
        }
    }

    /// Chooses the gateway, without connecting to it.
    pub fn gateway(&self) -> anyhow::Result<ChosenGateway> {
        let contexts = ContextsFile::read()?;
        let listen = crate::config::listen_in_file();
        let listen = listen.map(|(address, certificate)| LocalGateway { address, certificate });
        let folder = std::env::current_dir()?;
        let chosen = ChosenGateway::of(self.server.as_ref(), self.token_file.as_deref(), &contexts, &folder, listen);
        Ok(ChosenGateway { ca: self.ca.clone().or(chosen.ca), ..chosen })
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

/// Reads the certificates to trust for a gateway.
pub fn read_trust(gateway: &ChosenGateway) -> anyhow::Result<Trust> {
    let Some(file) = gateway.ca.as_deref().filter(|_| gateway.server.scheme() == "https") else {
        return Ok(Trust::default());
    };
    let wrong = |why: String| CommandFailure::usage(format!("ca is {}: {why}", file.display()));
    let pem = std::fs::read(file).map_err(|problem| wrong(format!("it cannot be read ({problem})")))?;
    Trust::only(&pem).map_err(|problem| wrong(problem.to_string()).into())
}

/// A client of one gateway.
pub struct Client {
    /// Format in which answers are printed.
    pub format: OutputFormat,
    api: posthaste_client::Client,
    server_from: GatewaySource,
    /// Tenant whose resources are called.
    pub tenant: String,
    /// Whether the tenant was named, by a flag or in the environment.
    pub is_tenant_named: bool,
    has_issued_token: bool,
    token_from: String,
}

impl Client {
    /// Returns the URL of a path below `/v1`.
    pub fn url(&self, path: &[&str]) -> anyhow::Result<Url> {
        self.api.url(path).map_err(|problem| CommandFailure::usage(problem.to_string()).into())
    }

    /// Returns the URL of a path below the tenant.
    pub fn tenant_url(&self, path: &[&str]) -> anyhow::Result<Url> {
        self.url(&[&["tenants", self.tenant.as_str()], path].concat())
    }

    /// Turns to the tenant that the token is of, if it is of one.
    async fn enter_own_tenant(&mut self) -> anyhow::Result<()> {
        // A gateway of an older version does not have this route.
        let Some(token) = self.get_if_found(self.url(&["token"])?).await? else { return Ok(()) };
        if let Some(tenant) = parse(&token)?["tenant"].as_str() {
            self.tenant = tenant.to_owned();
            self.is_tenant_named = true;
        }
        Ok(())
    }

    /// Whether the gateway listens on this machine alone.
    pub fn is_on_this_machine(&self) -> bool {
        match self.api.server().host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }

    /// Makes a GET call.
    pub async fn get(&mut self, url: Url) -> anyhow::Result<String> {
        self.call(Method::GET, url, None).await
    }

    /// Makes a POST call.
    pub async fn post(&mut self, url: Url, body: Option<JsonBody>) -> anyhow::Result<String> {
        self.call(Method::POST, url, body).await
    }

    /// Makes a POST call with a body that is JSON already.
    pub async fn post_raw(&mut self, url: Url, body: Vec<u8>) -> anyhow::Result<String> {
        match self.exchange(Method::POST, &url, Some(body)).await? {
            (status, text) if status.is_success() => Ok(text),
            (status, text) => Err(self.explain(&url, status, &text)),
        }
    }

    /// Makes a GET call; a 404 becomes none, unless something of the tenant was asked for and
    /// the tenant itself is missing.
    pub async fn get_if_found(&mut self, url: Url) -> anyhow::Result<Option<String>> {
        match self.answer(Method::GET, url.clone(), None).await? {
            (StatusCode::NOT_FOUND, text) if !self.is_in_tenant(&url) || !Self::is_tenant_missing(&text) => Ok(None),
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
        self.exchange(method, &url, body.map(JsonBody::finish)).await
    }

    async fn exchange(&self, method: Method, url: &Url, body: Option<Vec<u8>>) -> anyhow::Result<(StatusCode, String)> {
        match self.api.call(method, url, body).await {
            Ok(answer) => Ok((answer.status, answer.body)),
            Err(problem) => bail!(CommandFailure::new(ExitReason::Unreachable, self.describe_failure(problem))),
        }
    }

    /// Posts a JSON body as it is, once and within this time; returns the answer
    /// whatever its status.
    pub async fn post_once(&self, path: &[&str], body: Vec<u8>, timeout: Duration) -> anyhow::Result<ApiResponse> {
        let url = self.url(path)?;
        let late = || anyhow!("no answer from {} within {}", self.api.server(), Span(timeout));
        let answer = tokio::time::timeout(timeout, self.api.call(Method::POST, &url, Some(body))).await;
        answer.map_err(|_| late())?.map_err(|problem| anyhow!(self.describe_failure(problem)))
    }

    /// Says why there is no answer, and what can be done at the command line.
    fn describe_failure(&self, problem: Error) -> String {
        let server = self.api.server();
        match problem {
            Error::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::ConnectionRefused => format!(
                "nothing listens at {}{}; start it with `posthaste serve`, or name another with --server",
                server.as_str().trim_end_matches('/'),
                self.server_from.in_parentheses()
            ),
            Error::Unreachable { source, .. } => format!("{server} cannot be reached: {source}; check --server"),
            Error::Timeout { timeout, .. } => format!("no answer from {server} within {}; see its logs", Span(timeout)),
            other => describe_error(&other),
        }
    }

    fn explain(&self, url: &Url, status: StatusCode, body: &str) -> anyhow::Error {
        let Ok(problem) = serde_json::from_str::<Problem>(body) else {
            // A proxy in front of the gateway says so when nothing is behind it.
            let reason = if matches!(status.as_u16(), 502..=504) { ExitReason::Unreachable } else { ExitReason::Other };
            let sentence =
                format!("{} answered {status} without an explanation; is it a posthaste gateway?", self.api.server());
            return CommandFailure::new(reason, sentence).into();
        };
        let mut told = problem_sentence(&problem);
        if status == StatusCode::UNAUTHORIZED {
            // The gateway's message names headers, which nobody types here.
            let known = told.strip_suffix(HOW_TO_SEND).unwrap_or(&told);
            told = format!(
                "{known}; the one shown is from {}; name another with --token-file, --token or POSTHASTE_TOKEN",
                self.token_from
            );
        }
        if status == StatusCode::NOT_FOUND && self.is_in_tenant(url) && !self.is_tenant_named {
            told.push_str("; --tenant names another tenant");
        } else if status == StatusCode::NOT_FOUND && Self::is_tenant_missing(body) && !self.has_issued_token {
            told.push_str("; `posthaste tenants list` shows those there are");
        }
        CommandFailure::of_answer(status, told, body).into()
    }

    /// Whether a URL names something of the tenant, not the tenant itself.
    fn is_in_tenant(&self, url: &Url) -> bool {
        url.path().contains(&format!("/v1/tenants/{}/", self.tenant))
    }

    /// Whether an answer says that the tenant itself does not exist.
    fn is_tenant_missing(body: &str) -> bool {
        let missing = serde_json::from_str::<NotFoundProblem>(body).map(|problem| problem.missing);
        missing.is_ok_and(|missing| missing == MissingResource::Tenant)
    }
}

/// A problem that says what is missing.
#[derive(serde::Deserialize)]
struct NotFoundProblem {
    missing: MissingResource,
}

/// Says why a call failed; a failure of TLS in the words of an attempt's.
pub fn describe_error(problem: &Error) -> String {
    let Error::Tls { server, source } = problem else { return problem.to_string() };
    let why = match tls::tls_fault(source) {
        Some(TlsFault::NotTls(fault)) => format!("{fault}; if it is plain http, write http:// instead of https://"),
        Some(TlsFault::UnknownIssuer(fault)) => {
            format!("{fault}; name the certificate of the authority, or the gateway's own, with --ca")
        }
        Some(TlsFault::Other(fault)) => fault,
        None => source.to_string(),
    };
    format!("no secure connection to {} could be agreed on: {why}", server.host_str().unwrap_or_default())
}

/// Fetches what a link leads to, without a token; an answer other than 200 is
/// an error.
pub async fn fetch_link(link: &str) -> anyhow::Result<Bytes> {
    let url = server_url(link).map_err(|problem| anyhow!("{link:?} is not a link: {problem}"))?;
    let answer = exchange(&url, Request::new(Full::default()), FETCH_TIMEOUT).await;
    let answer = answer.map_err(|problem| anyhow!(describe_error(&problem)))?;
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        status => match serde_json::from_slice::<Problem>(answer.body()) {
            Ok(problem) => bail!("{status}: {}", problem_sentence(&problem)),
            Err(_) => bail!("it was answered {status}"),
        },
    }
}

/// Returns the detail of a problem, and the fields at fault that it does not contain
/// already.
fn problem_sentence(problem: &Problem) -> String {
    if let [field] = problem.errors.as_slice()
        && field.detail == problem.detail
    {
        let place = fault_location(&field.pointer);
        let place = if place.is_empty() { place } else { format!(" (at {place})") };
        return escape_control_characters(&format!("{}{place}", problem.detail));
    }
    // The gateway joins the fields' sentences; here each gets a line of its own.
    let is_joined =
        problem.errors.len() > 1 && problem.errors.iter().all(|field| problem.detail.contains(&field.detail));
    let mut sentence = if is_joined {
        format!("{} fields are refused:", problem.errors.len())
    } else {
        escape_control_characters(&problem.detail)
    };
    for field in &problem.errors {
        let place = fault_location(&field.pointer);
        let place = if place.is_empty() { place } else { format!("{place}: ") };
        sentence.push_str(&format!("\n  {}", escape_control_characters(&format!("{place}{}", field.detail))));
    }
    sentence
}

/// Returns where a fault is, in the words of the command line: `--retry, backoff.max`
/// for `/retry/backoff/max`. What has no option of its own is a word of the command.
fn fault_location(pointer: &str) -> String {
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
    fn a_missing_tenant_is_told_apart_from_what_it_has_not() {
        assert!(Client::is_tenant_missing(r#"{"detail": "there is none", "missing": "tenant"}"#));
        assert!(!Client::is_tenant_missing(r#"{"detail": "there is no tenant acme", "missing": "endpoint"}"#));
        assert!(!Client::is_tenant_missing(r#"{"detail": "there is no tenant acme"}"#));
    }

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
            assert_eq!(fault_location(pointer), told, "{pointer}");
        }
    }

    fn sentence_of(json: &str) -> String {
        problem_sentence(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_refusal_names_each_field_once() {
        assert_eq!(sentence_of(r#"{"detail":"there is no such event"}"#), "there is no such event");
        assert_eq!(
            sentence_of(r#"{"detail":"type is empty","errors":[{"pointer":"/type","detail":"type is empty"}]}"#),
            "type is empty (at --type)"
        );
        let two = r#"{"detail":"a is 1; b is 2","errors":[{"pointer":"/a","detail":"a is 1"},{"pointer":"/b","detail":"b is 2"}]}"#;
        assert_eq!(sentence_of(two), "2 fields are refused:\n  a is 1\n  b is 2");
        let apart = r#"{"detail":"refused","errors":[{"pointer":"/a","detail":"a is 1"}]}"#;
        assert_eq!(sentence_of(apart), "refused\n  a is 1");
    }
}
