//! `posthaste drill`: lets a receiver fail for a copy of an endpoint, and compares what the
//! gateway does with what it should do.
//!
//! The endpoint itself is not touched: a test tenant has an endpoint with the same
//! settings, and is deleted afterwards. Invariant: nothing but this machine is called,
//! and it listens on loopback unless another address was named.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use http::StatusCode;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::findings::{DrillRecord, Finding};
use self::scenario::{DrillScenario, TestedSettings};
use self::stage::DrillStage;
use super::client::ClientArgs;
use super::end_signals::EndSignals;
use super::failure::{CommandFailure, ExitReason};
use super::listen::ledger::RequestLedger;
use super::listen::receiver::ListenReceiver;
use super::listen::record::{ReceivedRequest, Recorder, read_recording};
use super::listen::script::ScriptedReply;
use super::output::{OutputFormat, format_json, parse, print};
use super::screen::Screen;
use super::table::Table;
use crate::config::ListenAddress;
use crate::model::endpoint_event::EndpointEventKind;
use crate::model::span::Span;

mod findings;
mod scenario;
mod stage;

/// Which endpoint to try, and how its receiver fails.
#[derive(Debug, clap::Args)]
pub struct DrillArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// The endpoint whose settings are tried; it is not touched.
    #[arg(long, value_name = "ID")]
    endpoint: String,
    /// How the receiver fails.
    #[arg(long, value_enum)]
    scenario: DrillScenario,
    /// Where the receiver of the drill listens, on this machine; all nodes must reach it and be allowed to call it.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", hide_default_value = true)]
    listen: ListenAddress,
    /// Whom to mail as the owner of the endpoint; nobody otherwise.
    #[arg(long, value_name = "ADDRESS")]
    mail_to: Option<String>,
    /// How long to wait for the breaker to open, and again for everything to arrive.
    #[arg(long, value_name = "SPAN", default_value = "3m")]
    patience: Span,
}

/// Runs the drill, prints what happened, and fails if it is not what should have.
pub async fn run(args: DrillArgs) -> anyhow::Result<()> {
    if args.listen.0.ip().is_unspecified() {
        bail!(CommandFailure::usage(format!(
            "--listen {} names no address that a gateway could call; name one of this machine's, such as 127.0.0.1:0",
            args.listen.0
        )));
    }
    // From here on, so that whoever ends the drill while it is set up leaves nothing behind.
    let mut signals = EndSignals::catch()?;
    let mut client = args.access.client().await?;
    let source = parse(&client.get(client.tenant_url(&["endpoints", &args.endpoint])?).await?)?;
    let format = client.format;
    let settings = tested_settings(&source)?;
    let folder = tempfile::tempdir().context("cannot make a folder for the recordings")?;
    let receiver = DrillReceiver::start(args.listen.0, &args.scenario.script(&settings), &folder, "requests").await?;
    let alerts = DrillReceiver::start(SocketAddr::new(args.listen.0.ip(), 0), "200", &folder, "alerts").await?;
    let url = args.scenario.url(receiver.address);
    let mail_to = args.mail_to.as_deref();
    let mut stage = DrillStage::set_up(client, &source, &url, receiver.address, alerts.address, mail_to).await?;
    let record = tokio::select! {
        record = run_drill(&mut stage, &args, settings, &receiver, &alerts) => record,
        why = signals.received() => Err(anyhow::anyhow!("the drill {why}; its tenant is deleted")),
    };
    stage.remove().await?;
    report(format, &args, &record?.findings())
}

/// Hands in events, waits for the outage to be noticed, repairs it, and collects what
/// happened.
async fn run_drill(
    stage: &mut DrillStage,
    args: &DrillArgs,
    settings: TestedSettings,
    receiver: &DrillReceiver,
    alerts: &DrillReceiver,
) -> anyhow::Result<DrillRecord> {
    let scenario = args.scenario;
    stage.send(scenario.events(&settings)).await?;
    let mut had_attention = None;
    if scenario.is_outage() {
        let is_awaited = scenario.opens_breaker(&settings) == Some(true);
        // Without a breaker the first failures are enough to see.
        let within = if is_awaited { args.patience.0 } else { settings.timeout + Duration::from_secs(1) };
        if stage.wait_for_breaker(within).await? {
            had_attention = Some(stage.has_attention("breaker_open").await?);
        }
        match scenario {
            DrillScenario::Tls | DrillScenario::Dns => stage.repair(&format!("http://{}/", receiver.address)).await?,
            _ => receiver.answer_with("200"),
        }
    }
    let ended = stage.wait_for_end(args.patience.0).await?;
    let mut deliveries = Vec::new();
    for delivery in ended {
        let attempts = stage.attempts(&delivery).await?;
        deliveries.push((delivery, attempts));
    }
    let history = stage.history().await?;
    let kinds: Vec<EndpointEventKind> =
        history.iter().filter_map(|event| EndpointEventKind::deserialize(&event["what"]).ok()).collect();
    let has_opened = kinds.contains(&EndpointEventKind::BreakerOpened);
    let turns = [EndpointEventKind::BreakerOpened, EndpointEventKind::BreakerClosed];
    let alerts = alerts.event_types(kinds.iter().filter(|kind| turns.contains(kind)).count()).await?;
    let is_mailed = match (&args.mail_to, stage.has_mail_server) {
        (Some(_), true) => Some(stage.is_mailed(has_opened).await?),
        _ => None,
    };
    let arrivals = receiver.requests()?.into_iter().map(|request| request.at).collect();
    let patience = args.patience.0;
    Ok(DrillRecord { scenario, settings, patience, deliveries, arrivals, history, had_attention, alerts, is_mailed })
}

fn tested_settings(endpoint: &Value) -> anyhow::Result<TestedSettings> {
    let breaker = &endpoint["breaker"];
    let timeout = endpoint["timeout"]["total"].as_str().and_then(|text| text.parse::<Span>().ok());
    Ok(TestedSettings {
        timeout: timeout.context("the endpoint has no timeout that can be read")?.0,
        max_in_flight: endpoint["max_in_flight"].as_u64().unwrap_or(1),
        opens_after: breaker["consecutive_failures"].as_u64().filter(|_| breaker["enabled"] == true),
        failure_ratio: breaker["failure_ratio"].as_f64().unwrap_or(1.0),
    })
}

/// Prints the comparisons, and fails if one is not as it should be.
fn report(format: OutputFormat, args: &DrillArgs, findings: &[Finding]) -> anyhow::Result<()> {
    let word = |finding: &Finding| match finding.is_right {
        Some(true) => "ok",
        Some(false) => "wrong",
        None => "not compared",
    };
    match format {
        OutputFormat::Json => {
            let rows: Vec<Value> = findings
                .iter()
                .map(|finding| {
                    json!({"part": finding.part, "should": finding.should, "did": finding.did, "is_right": finding.is_right})
                })
                .collect();
            let document = json!({"scenario": args.scenario.name(), "endpoint": args.endpoint, "findings": rows});
            print(&format_json(&document.to_string()))?;
        }
        OutputFormat::Table => {
            let row = |finding: &Finding| {
                vec![finding.part.to_owned(), finding.should.clone(), finding.did.clone(), word(finding).to_owned()]
            };
            let rows = findings.iter().map(row).collect();
            print(&Table::new(&["part", "should", "did", "result"], rows).render(Screen::of_stdout()))?;
        }
    }
    let wrong = findings.iter().filter(|finding| finding.is_right == Some(false)).count();
    if wrong > 0 {
        let sentence = format!("{wrong} of {} findings are not what they should be", findings.len());
        bail!(CommandFailure::new(ExitReason::Refused, sentence));
    }
    Ok(())
}

/// A receiver of the drill, which records what arrives.
struct DrillReceiver {
    address: SocketAddr,
    receiver: Arc<ListenReceiver>,
    recording: std::path::PathBuf,
    serving: JoinHandle<()>,
}

impl Drop for DrillReceiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl DrillReceiver {
    async fn start(address: SocketAddr, script: &str, folder: &TempDir, name: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}; choose another with --listen"))?;
        let (address, recording) = (listener.local_addr()?, folder.path().join(name));
        let script = script.parse().expect("the scripts of drills are right");
        let receiver = Arc::new(ListenReceiver {
            ledger: Mutex::new(RequestLedger::new(script, ScriptedReply::plain(StatusCode::OK))),
            verifier: None,
            forwarder: None,
            recorder: Some(Recorder::open(&recording)?),
            latency: Duration::ZERO,
            drop_share: 0.0,
            prints: false,
            fetches: false,
        });
        let serving = tokio::spawn(receiver.clone().serve(listener));
        Ok(Self { address, receiver, recording, serving })
    }

    fn answer_with(&self, script: &str) {
        self.receiver.ledger.lock().change_script(script.parse().expect("the scripts of drills are right"));
    }

    fn requests(&self) -> anyhow::Result<Vec<ReceivedRequest>> {
        read_recording(&self.recording)
    }

    /// Returns the types of what has arrived, once it is this many or they are overdue.
    async fn event_types(&self, count: usize) -> anyhow::Result<Vec<String>> {
        const LOOKS: usize = 50;
        let mut types = Vec::new();
        for _ in 0..LOOKS {
            let requests = self.requests()?;
            let types_of = requests.iter().filter_map(|request| request.headers.get("x-event-type")?.to_str().ok());
            types = types_of.map(str::to_owned).collect();
            if types.len() >= count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(types)
    }
}
