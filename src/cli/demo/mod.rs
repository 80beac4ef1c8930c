//! `posthaste demo`: a gateway with receivers that misbehave, live traffic, and a list of
//! things to look at, in one process and a temporary folder.
//!
//! Invariant: nothing leaves the machine. The gateway listens on loopback and may call
//! nothing else.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use posthaste_client::Client;
use tokio::task::JoinHandle;

use self::guide::Guide;
use self::receivers::DEMO_RECEIVERS;
use super::end_signals::EndSignals;
use super::failure::CommandFailure;
use super::output::print;
use crate::app::{App, StartOptions};
use crate::config::{DirectoryPath, ListenAddress, PartialSettings, Settings};
use crate::model::span::Span;

mod guide;
mod receivers;
mod traffic;

/// Everything but 127.0.0.0/8.
const NOT_THIS_MACHINE: &str =
    "0.0.0.0/2,64.0.0.0/3,96.0.0.0/4,112.0.0.0/5,120.0.0.0/6,124.0.0.0/7,126.0.0.0/8,128.0.0.0/1,::/0";

/// Where the demo runs, and for how long.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Stop after this time; otherwise on Ctrl-C.
    #[arg(long = "for", value_name = "SPAN")]
    lasts: Option<Span>,
    /// The address that the gateway listens on, of this machine alone; a free port when left out.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", hide_default_value = true)]
    listen: ListenAddress,
}

/// Runs the demo until it is stopped or its time is over, then removes its folder.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    if !args.listen.0.ip().is_loopback() {
        bail!(CommandFailure::usage(format!(
            "--listen {} is not an address of this machine alone; the demo takes 127.0.0.1 and a port",
            args.listen.0
        )));
    }
    let mut signals = EndSignals::catch()?;
    let folder = tempfile::Builder::new().prefix("posthaste-demo-").tempdir().context("cannot make a folder")?;
    let settings = settings(folder.path(), &args)?;
    let app = App::start(&settings, StartOptions::default()).await?;
    let over = async {
        match args.lasts {
            Some(span) => tokio::time::sleep(span.0).await,
            None => std::future::pending().await,
        }
    };
    let sent = Arc::new(AtomicU64::new(0));
    let running = DemoTasks::default();
    let story = async {
        run_demo(&app, folder.path(), &args, &running, &sent).await?;
        std::future::pending::<anyhow::Result<()>>().await
    };
    let ended = tokio::select! {
        failed = story => failed,
        () = over => Ok(()),
        _ = signals.received() => Ok(()),
    };
    drop(running);
    app.stop().await;
    let path = folder.path().display().to_string();
    folder.close().with_context(|| format!("cannot remove {path}"))?;
    ended?;
    let sent = sent.load(Ordering::Relaxed);
    print(&format!("stopped after {sent} events; {path} is removed"))
}

/// Creates the tenants and their endpoints, starts traffic, and prints the guide.
async fn run_demo(
    app: &App,
    folder: &Path,
    args: &DemoArgs,
    running: &DemoTasks,
    sent: &Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let token_file = folder.join("admin-token");
    let token = std::fs::read_to_string(&token_file)?;
    let client = Client::new(&format!("http://{}", app.address), &token)?;
    let mut receivers = Vec::new();
    for receiver in DEMO_RECEIVERS {
        let tenant = client.url(&["tenants", receiver.tenant])?;
        client.call_repeated::<serde_json::Value>(Method::PUT, &tenant, Some(b"{}".to_vec())).await?;
        let (endpoint, serving) = receiver.start(&client).await?;
        running.add(serving);
        receivers.push((receiver, endpoint));
    }
    for tenant in traffic::TENANTS {
        running.add(tokio::spawn(traffic::send(client.tenant(*tenant), sent.clone())));
    }
    let guide = Guide { address: app.address, token_file, lasts: args.lasts, receivers: &receivers };
    print(&guide.render(&client).await?)
}

/// The tasks of a demo, which end with it.
#[derive(Default)]
struct DemoTasks(parking_lot::Mutex<Vec<JoinHandle<()>>>);

impl DemoTasks {
    fn add(&self, task: JoinHandle<()>) {
        self.0.lock().push(task);
    }
}

impl Drop for DemoTasks {
    fn drop(&mut self) {
        self.0.lock().iter().for_each(JoinHandle::abort);
    }
}

/// Returns the settings of the gateway. Neither variables nor a settings file change them.
fn settings(folder: &Path, args: &DemoArgs) -> anyhow::Result<Settings> {
    let first = PartialSettings {
        data: Some(DirectoryPath(folder.to_owned())),
        listen: Some(args.listen),
        allow_egress: Some("127.0.0.0/8".parse().expect("a network")),
        deny_egress: Some(NOT_THIS_MACHINE.parse().expect("networks")),
        // No receiver takes longer than three seconds.
        stop_timeout: Some(Span(Duration::from_secs(5))),
        ..PartialSettings::default()
    };
    let settings = Settings::resolve(first, PartialSettings::default());
    settings.check()?;
    Ok(settings)
}
