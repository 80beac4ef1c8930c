//! `posthaste health`: asks a gateway whether it is well, for probes that have no shell.

use std::path::PathBuf;

use anyhow::bail;
use http::{Request, StatusCode};
use http_body_util::Full;
use posthaste_client::transport::exchange_trusting;

use super::chosen_gateway::{AddressFile, ChosenGateway, GatewaySource};
use super::client::{self, ClientArgs};
use super::contexts_file::{LocalGateway, server_url};
use super::output;
use crate::config::{self, PartialSettings, Settings};
use crate::model::span::Span;

/// Where to ask, and what
#[derive(Debug, clap::Args)]
pub struct HealthArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// Ask whether it should get requests (/readyz), not only whether it lives (/healthz).
    #[arg(long)]
    ready: bool,
    /// How long to wait for the answer.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    timeout: Span,
    /// The settings file; posthaste.toml is read when it is there.
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: PartialSettings,
}

/// Asks once; anything but 200 in time is a failure.
pub async fn run(args: HealthArgs) -> anyhow::Result<()> {
    let settings = Settings::resolve(args.given, config::read_file(args.config.as_deref())?);
    let gateway = probed_gateway(&args.access, &settings)?;
    let trust = client::read_trust(&gateway)?;
    let mut url = gateway.server.clone();
    url.set_path(if args.ready { "/readyz" } else { "/healthz" });
    let answer = exchange_trusting(&trust, &url, Request::new(Full::default()), args.timeout.0).await;
    match answer {
        Ok(answer) if answer.status() == StatusCode::OK => {
            output::print_sentence(args.access.output, &format!("{url} is well"))
        }
        Ok(answer) => {
            let body: serde_json::Value = serde_json::from_slice(answer.body()).unwrap_or_default();
            let why = body["status"].as_str().or(body["detail"].as_str()).unwrap_or_default();
            bail!("{url} answered {}: {}", answer.status(), output::escape_control_characters(why))
        }
        Err(problem) => bail!("{}", client::describe_error(&problem)),
    }
}

/// Returns what is probed: the gateway that was named, else the probes' own address of the
/// settings, else where the gateway of the data directory listens, else where the
/// settings say.
fn probed_gateway(access: &ClientArgs, settings: &Settings) -> anyhow::Result<ChosenGateway> {
    if access.server.is_some() {
        return access.gateway();
    }
    let certificate = settings.tls_files().map(|(certificate, _)| certificate.to_owned());
    let gateway = match settings.health_listen.0 {
        Some(address) => LocalGateway { address: address.0, certificate: None },
        None => AddressFile::read(&settings.data.0).unwrap_or(LocalGateway { address: settings.listen.0, certificate }),
    };
    let server = server_url(&gateway.url()).map_err(anyhow::Error::msg)?;
    let ca = access.ca.clone().or(gateway.certificate);
    Ok(ChosenGateway { server, token_file: PathBuf::new(), ca, from: GatewaySource::Folder })
}
