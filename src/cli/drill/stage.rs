//! Sets up the test tenant of a drill, watches it, and removes it again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cli::client::Client;
use crate::cli::failure::{CommandFailure, ExitReason};
use crate::cli::output::parse;
use crate::cli::request::JsonBody;
use crate::config::NetworkList;

/// Settings of an endpoint that decide how it is called.
const COPIED: &[&str] = &["retry", "status_rules", "max_in_flight", "rate", "timeout", "breaker"];
/// Interval at which the test tenant is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The test tenant of a drill.
pub struct DrillStage {
    client: Client,
    /// Id of the test tenant.
    pub tenant: String,
    /// Id of the endpoint that is tested.
    pub endpoint: String,
    /// Whether the gateway has a mail server.
    pub has_mail_server: bool,
}

impl DrillStage {
    /// Checks that the gateway may call the receiver, and makes the tenant with a copy of
    /// the endpoint, and one that gets the operational events.
    pub async fn set_up(
        mut client: Client,
        source: &Value,
        url: &str,
        receiver: SocketAddr,
        alerts: SocketAddr,
        mail_to: Option<&str>,
    ) -> anyhow::Result<Self> {
        let cluster = parse(&client.get(client.url(&["cluster"])?).await?)?;
        check_nodes(client.is_on_this_machine(), cluster["nodes"].as_array().map_or(1, Vec::len))?;
        let settings = parse(&client.get(client.url(&["settings"])?).await?)?;
        check_egress(&settings, receiver, url)?;
        let tenant = format!("drill-{:08x}", rand::random::<u32>());
        client.call(Method::PUT, client.url(&["tenants", &tenant])?, Some(JsonBody::default())).await?;
        let has_mail_server = setting(&settings, "smtp").is_some_and(|value| !value.is_empty());
        let mut stage = Self { client, tenant, endpoint: String::new(), has_mail_server };
        if let Err(problem) = stage.create_endpoints(source, url, alerts, mail_to).await {
            stage.remove().await?;
            return Err(problem);
        }
        Ok(stage)
    }

    async fn create_endpoints(
        &mut self,
        source: &Value,
        url: &str,
        alerts: SocketAddr,
        mail_to: Option<&str>,
    ) -> anyhow::Result<()> {
        let mut copy = json!({"url": url, "description": "a drill"});
        for name in COPIED {
            copy[*name] = source[*name].clone();
        }
        if let Some(address) = mail_to {
            copy["owner_email"] = json!(address);
        }
        let created = self.post(&["endpoints"], &copy).await?;
        self.endpoint = created["id"].as_str().context("an endpoint has an id")?.to_owned();
        let listener = json!({"url": format!("http://{alerts}/"), "listens_to": "operations", "description": "alerts"});
        self.post(&["endpoints"], &listener).await?;
        Ok(())
    }

    /// Hands in this many events without a key, in one batch.
    pub async fn send(&mut self, count: u64) -> anyhow::Result<()> {
        let events = (1..=count).map(|n| json!({"id": format!("drill-{n}"), "type": "drill.event", "data": {"n": n}}));
        let body = serde_json::to_vec(&events.collect::<Vec<_>>())?;
        self.client.post_raw(self.url(&["events", "batch"])?, body).await?;
        Ok(())
    }

    /// Points the endpoint at another URL.
    pub async fn repair(&mut self, url: &str) -> anyhow::Result<()> {
        let body = JsonBody::default().field("url", Some(url));
        let path = self.url(&["endpoints", &self.endpoint])?;
        self.client.call(Method::PATCH, path, Some(body)).await?;
        Ok(())
    }

    /// Waits until the breaker is open; whether it is, within this time.
    pub async fn wait_for_breaker(&mut self, within: Duration) -> anyhow::Result<bool> {
        let began = Instant::now();
        while began.elapsed() < within {
            let endpoint = self.endpoint().await?;
            if endpoint["health"]["breaker"] != "closed" {
                return Ok(true);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(false)
    }

    /// Waits until nothing waits any more, or this time is over; returns the deliveries.
    pub async fn wait_for_end(&mut self, within: Duration) -> anyhow::Result<Vec<Value>> {
        let began = Instant::now();
        loop {
            let deliveries =
                self.list(&["deliveries"], &[("endpoint", &self.endpoint.clone()), ("limit", "500")]).await?;
            let is_over = deliveries.iter().all(|delivery| delivery["state"] != "waiting");
            if is_over || began.elapsed() >= within {
                return Ok(deliveries);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Returns the endpoint as it is now.
    pub async fn endpoint(&mut self) -> anyhow::Result<Value> {
        self.get(&["endpoints", &self.endpoint.clone()]).await
    }

    /// Returns what happened to the endpoint, oldest first.
    pub async fn history(&mut self) -> anyhow::Result<Vec<Value>> {
        let mut history = self.list(&["endpoints", &self.endpoint.clone(), "history"], &[]).await?;
        history.reverse();
        Ok(history)
    }

    /// Returns the attempts of a delivery, in their order.
    pub async fn attempts(&mut self, delivery: &Value) -> anyhow::Result<Vec<Value>> {
        let id = delivery["id"].as_str().unwrap_or_default();
        let mut attempts = self.list(&["deliveries", id, "attempts"], &[]).await?;
        attempts.sort_by_key(|attempt| attempt["number"].as_u64());
        Ok(attempts)
    }

    /// Returns the kinds of what needs attention.
    pub async fn attention(&mut self) -> anyhow::Result<BTreeSet<String>> {
        let items = self.list(&["attention"], &[]).await?;
        Ok(items.iter().filter_map(|item| item["kind"].as_str()).map(str::to_owned).collect())
    }

    /// Whether the owner was mailed. A mail that is due may take a moment.
    pub async fn is_mailed(&mut self, is_due: bool) -> anyhow::Result<bool> {
        const LOOKS: usize = 50;
        for _ in 0..LOOKS {
            if !self.endpoint().await?["mailed_at"].is_null() {
                return Ok(true);
            }
            if !is_due {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(false)
    }

    /// Deletes the test tenant with all that it has.
    pub async fn remove(&mut self) -> anyhow::Result<()> {
        let url = self.client.url(&["tenants", &self.tenant])?;
        let removed = self.client.call(Method::DELETE, url, None).await;
        removed.with_context(|| {
            format!("tenant {} of the drill is left; delete it with `posthaste tenants delete`", self.tenant)
        })?;
        Ok(())
    }

    fn url(&self, path: &[&str]) -> anyhow::Result<url::Url> {
        self.client.url(&[&["tenants", self.tenant.as_str()], path].concat())
    }

    async fn get(&mut self, path: &[&str]) -> anyhow::Result<Value> {
        parse(&self.client.get(self.url(path)?).await?)
    }

    async fn post(&mut self, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        parse(&self.client.post_raw(self.url(path)?, serde_json::to_vec(body)?).await?)
    }

    async fn list(&mut self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Vec<Value>> {
        let mut url = self.url(path)?;
        for (name, value) in query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let page = parse(&self.client.get(url).await?)?;
        Ok(page["data"].as_array().cloned().unwrap_or_default())
    }
}

fn setting<'a>(settings: &'a Value, name: &str) -> Option<&'a str> {
    let all = settings["data"].as_array()?;
    all.iter().find(|setting| setting["name"] == name)?["value"].as_str()
}

/// Refuses a gateway that may be on another machine than the receiver.
fn check_nodes(is_on_this_machine: bool, nodes: usize) -> anyhow::Result<()> {
    let why = if !is_on_this_machine {
        "the gateway is named by an address that others can reach; run the drill on its machine, with --server http://127.0.0.1:PORT".to_owned()
    } else if nodes > 1 {
        format!(
            "the gateway has {nodes} nodes, and the receiver of a drill is reached from this machine alone; use a gateway with one node"
        )
    } else {
        return Ok(());
    };
    bail!(CommandFailure::new(ExitReason::Refused, why))
}

/// Refuses a drill whose receiver the gateway may not call, or whose name somebody else
/// would be asked for.
fn check_egress(settings: &Value, receiver: SocketAddr, url: &str) -> anyhow::Result<()> {
    let networks: NetworkList =
        setting(settings, "allow-egress").unwrap_or_default().parse().unwrap_or(NetworkList(Vec::new()));
    if !networks.0.iter().any(|network| network.contains(&receiver.ip())) {
        bail!(CommandFailure::new(
            ExitReason::Refused,
            format!(
                "the gateway may not call {0}, where the receiver of the drill listens; start it with --allow-egress {0}/{1}",
                receiver.ip(),
                if receiver.is_ipv4() { 32 } else { 128 }
            )
        ));
    }
    if url.contains(".invalid:") && setting(settings, "dns") == Some("system") {
        bail!(CommandFailure::new(
            ExitReason::Refused,
            "the gateway looks names up with the machine's resolver (--dns system), which may ask others for the name of the drill; start it with --dns own"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(egress: &str, dns: &str) -> Value {
        json!({"data": [{"name": "allow-egress", "value": egress}, {"name": "dns", "value": dns}]})
    }

    #[test]
    fn a_drill_stays_on_one_machine() {
        assert!(check_nodes(true, 1).is_ok());
        assert!(check_nodes(false, 1).unwrap_err().to_string().contains("run the drill on its machine"));
        assert!(check_nodes(true, 3).unwrap_err().to_string().contains("has 3 nodes"));
    }

    #[test]
    fn a_drill_says_which_egress_it_needs() {
        let receiver = "127.0.0.1:9000".parse().unwrap();
        let said = |settings: &Value, url: &str| check_egress(settings, receiver, url).map_err(|no| no.to_string());
        let refused = said(&settings("10.0.0.0/8", "own"), "http://127.0.0.1/").unwrap_err();
        assert!(refused.ends_with("--allow-egress 127.0.0.1/32"), "{refused}");
        assert_eq!(said(&settings("10.0.0.0/8,127.0.0.0/8", "own"), "https://a.invalid:1/"), Ok(()));
        let refused = said(&settings("127.0.0.1/32", "system"), "https://a.invalid:1/").unwrap_err();
        assert!(refused.ends_with("--dns own"), "{refused}");
    }
}
