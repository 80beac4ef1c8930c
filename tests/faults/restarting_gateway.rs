//! Runs one gateway on its own store, with endpoints, producers and a ledger.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::MutexGuard;

use crate::audit::{Findings, Rules};
use crate::ledger::{Ledger, TIMEOUT};
use crate::load::{AcknowledgedEvents, Load, NodeAddresses, RecordingPosition};
use crate::nodes::{CAP, EXCLUSIVE, settings};
use crate::report::{Faults, Report};
use crate::support::{Client, Gateway, Options, eventually};

/// Number of endpoints: enough for many lanes, few enough for each to be busy.
const ENDPOINTS: usize = 8;

/// Rules that every ledger of a single gateway is checked against.
pub const RULES: Rules = Rules { cap: CAP, timeout: TIMEOUT };

/// A gateway that is started again whenever it has ended, in the same folder
/// and at the same address.
pub struct RestartingGateway {
    pub ledger: Ledger,
    pub endpoints: Vec<Value>,
    pub folder: Arc<TempDir>,
    pub mark: RecordingPosition,
    options: Options,
    gateway: Option<Gateway>,
    addresses: NodeAddresses,
    _turn: MutexGuard<'static, ()>,
}

impl RestartingGateway {
    /// Starts a gateway in an empty folder with these options.
    pub async fn start(ledger: Ledger, options: Options) -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().expect("a folder")), ledger, options, Arc::new(|| 0)).await
    }

    pub async fn start_in(folder: Arc<TempDir>, ledger: Ledger, options: Options, mark: RecordingPosition) -> Self {
        let turn = EXCLUSIVE.lock().await;
        let gateway = Gateway::start_in(folder.clone(), options.clone()).await;
        let addresses = NodeAddresses::default();
        addresses.write().expect("nothing panics while it is held").push(gateway.address);
        let endpoints = Vec::new();
        Self { ledger, endpoints, folder, mark, options, gateway: Some(gateway), addresses, _turn: turn }
    }

    /// Creates endpoints `e0` and so on, with these settings over the usual ones.
    pub async fn create_endpoints(&mut self, count: usize, changes: &Value) {
        for n in self.endpoints.len()..self.endpoints.len() + count {
            let mut settings = settings(&format!("e{n}"), &self.ledger);
            let changes = changes.as_object().expect("settings").clone();
            settings.as_object_mut().expect("settings").extend(changes);
            self.endpoints.push(self.gateway().create_endpoint(settings).await);
        }
    }

    /// Creates the usual number of endpoints.
    pub async fn with_endpoints(mut self) -> Self {
        self.create_endpoints(ENDPOINTS, &json!({})).await;
        self
    }

    pub fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().expect("it was started")
    }

    pub fn gateway_mut(&mut self) -> &mut Gateway {
        self.gateway.as_mut().expect("it was started")
    }

    pub fn client(&self) -> &Client {
        &self.gateway().client
    }

    /// Starts producers that record what was acknowledged.
    pub fn load(&self, name: &str) -> Load {
        Load::marked(name, &self.addresses, self.gateway().token(), self.endpoints.len(), self.mark.clone())
    }

    /// Restarts it; if it has not ended, it is killed.
    pub async fn restart(&mut self) {
        let gateway = self.gateway.take().expect("it was started").restart_with(self.options.clone()).await;
        self.gateway = Some(gateway);
    }

    /// Waits until no delivery waits.
    pub async fn drained(&self) {
        drained(self.client()).await;
    }

    /// Waits until everything has arrived, and reports the findings of the ledger.
    pub async fn check(&self, acknowledged: &AcknowledgedEvents, faults: &Faults, report: &mut Report) {
        self.drained().await;
        let dead = self.client().get("/v1/tenants/default/dead-letters").await.expect(200);
        report.expect(dead["data"] == json!([]), || format!("no fault of ours kills a delivery: {dead}"));
        report.add(&Findings::of(&self.ledger.entries(), acknowledged, &RULES), faults);
    }
}

/// Waits until no delivery waits.
pub async fn drained(client: &Client) {
    eventually("everything to arrive", || async {
        if is_drained(client).await? { Ok(()) } else { Err("some wait".into()) }
    })
    .await;
}

/// Whether no delivery waits.
pub async fn is_drained(client: &Client) -> Result<bool, String> {
    let path = "/v1/tenants/default/deliveries?state=waiting&limit=1";
    let asked = tokio::time::timeout(Duration::from_secs(5), client.send("GET", path, &[], ""));
    let page = asked.await.map_err(|_| "no answer".to_owned())??;
    if page.status != 200 {
        return Err(String::from_utf8_lossy(&page.body).into_owned());
    }
    Ok(page.json()["data"] == json!([]))
}
