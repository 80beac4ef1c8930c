//! Runs the receivers of the demo: each behaves by a script of `posthaste listen`.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use posthaste_client::{Client, Endpoint};
use posthaste_receiver::{Profile, Verifier};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::cli::listen::ledger::RequestLedger;
use crate::cli::listen::receiver::ListenReceiver;
use crate::cli::listen::script::{AnswerScript, ScriptedReply};

/// A receiver of the demo.
#[derive(Debug, Clone, Copy)]
pub struct DemoReceiver {
    /// What it is like, in a word.
    pub name: &'static str,
    /// Tenant whose events it gets.
    pub tenant: &'static str,
    /// What it answers, as for `posthaste listen --respond`.
    pub script: &'static str,
}

/// Every receiver of the demo.
pub const DEMO_RECEIVERS: &[DemoReceiver] = &[
    DemoReceiver { name: "fine", tenant: "shop", script: "200" },
    DemoReceiver { name: "flaky", tenant: "shop", script: "200x3,503x2,repeat" },
    DemoReceiver { name: "slow", tenant: "bank", script: "200@3s" },
    DemoReceiver { name: "rate-limiting", tenant: "bank", script: "200x5,429:5s,repeat" },
    DemoReceiver { name: "dying", tenant: "press", script: "200x15s,dropx1m,repeat" },
    DemoReceiver { name: "refusing", tenant: "press", script: "400x1m,200" },
];

impl DemoReceiver {
    /// Listens on a free port, creates the endpoint, and starts to serve.
    pub async fn start(&self, client: &Client) -> anyhow::Result<(Endpoint, JoinHandle<()>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let settings = json!({
            "url": format!("http://{}/{}", listener.local_addr()?, self.name),
            "description": format!("{}: answers {}", self.name, self.answers()),
            "retry": {"preset": "patient"},
            "breaker": {"consecutive_failures": 5, "cooldown": "5s"},
        });
        let endpoint = client.tenant(self.tenant).create_endpoint(&settings).await?;
        let receiver = ListenReceiver {
            ledger: Mutex::new(RequestLedger::new(self.answers(), ScriptedReply::plain(StatusCode::OK))),
            verifier: Some(Verifier::new(Profile::Standard, endpoint.secret.iter())?),
            forwarder: None,
            recorder: None,
            latency: Duration::ZERO,
            drop_share: 0.0,
            prints: false,
            fetches: false,
        };
        Ok((endpoint, tokio::spawn(Arc::new(receiver).serve(listener))))
    }

    /// Returns the script that it answers by.
    pub fn answers(&self) -> AnswerScript {
        self.script.parse().expect("the scripts of the demo are right")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_of_the_demo_is_one_that_listen_takes() {
        for receiver in DEMO_RECEIVERS {
            assert!(!receiver.answers().to_string().is_empty() && !receiver.answers().passes(), "{receiver:?}");
        }
    }
}
