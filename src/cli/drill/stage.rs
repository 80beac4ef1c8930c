//! Sets up the test tenant of a drill, watches it, and removes it again.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::app::host_name;
use crate::cli::client::Client;
use crate::cli::failure::{CommandFailure, ExitReason};
use crate::cli::output::parse;
use crate::cli::request::JsonBody;
use crate::config::NetworkList;
use crate::lifecycle::egress::guard::{Guard, GuardRefusal};
use crate::lifecycle::egress::target::{Host, Target};

/// Settings of an endpoint that decide how it is called.
const COPIED: &[&str] = &["retry", "status_rules", "max_in_flight", "rate", "timeout", "breaker"];
/// Interval at which the test tenant is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is looked for what may take a moment.
const LOOKS_MAX: usize = 50;

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
        let nodes = cluster["nodes"].as_array().into_iter().flatten().filter_map(|node| node["name"].as_str());
        check_nodes(client.is_on_this_machine(), &host_name(), nodes, receiver.ip())?;
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

    /// Whether something of this kind needs attention. A node that is not the owner
    /// hears of it a moment later.
    pub async fn has_attention(&mut self, kind: &str) -> anyhow::Result<bool> {
        for _ in 0..LOOKS_MAX {
            if self.list(&["attention"], &[]).await?.iter().any(|item| item["kind"] == kind) {
                return Ok(true);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(false)
    }

    /// Whether the owner was mailed. A mail that is due may take a moment.
    pub async fn is_mailed(&mut self, is_due: bool) -> anyhow::Result<bool> {
        for _ in 0..LOOKS_MAX {
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

/// Refuses a receiver on loopback if a node may be on another machine.
fn check_nodes<'a>(
    is_called_here: bool,
    this_host: &str,
    nodes: impl Iterator<Item = &'a str>,
    receiver: IpAddr,
) -> anyhow::Result<()> {
    // The name of a node is its host and its process; an embedded store has one node without a host.
    let is_elsewhere = |name: &str| name.split_once('/').map_or(!is_called_here, |(host, _)| host != this_host);
    let mut elsewhere = nodes.filter(|name| is_elsewhere(name));
    let Some(node) = elsewhere.next().filter(|_| receiver.is_loopback()) else { return Ok(()) };
    bail!(CommandFailure::new(
        ExitReason::Refused,
        format!(
            "node {node} may run on another machine than this one ({this_host}), and {receiver} means another machine to \
             each; run the drill on its machine with --server http://127.0.0.1:PORT, or name with --listen an address of \
             this machine that every node reaches, such as --listen 10.0.0.5:0"
        )
    ))
}

/// Refuses a drill whose receiver the gateway may not call, or whose name somebody else
/// would be asked for.
fn check_egress(settings: &Value, receiver: SocketAddr, url: &str) -> anyhow::Result<()> {
    let refuse = |why: String| bail!(CommandFailure::new(ExitReason::Refused, why));
    let networks = |name: &str| {
        let list = setting(settings, name).unwrap_or_default().parse::<NetworkList>();
        list.map_or_else(|_| Vec::new(), |list| list.0)
    };
    let guard = Guard {
        allowed: networks("allow-egress"),
        denied: networks("deny-egress"),
        ports: vec![receiver.port()],
        is_http_allowed: setting(settings, "allow-http") == Some("true"),
        own: Vec::new(),
    };
    let target = Target { host: Host::Address(receiver.ip()), port: receiver.port(), is_tls: false };
    let way = match guard.check(&target) {
        Ok(()) => None,
        Err(GuardRefusal::NotPublic(address)) => {
            Some(format!("start it with --allow-egress {address}/{}", if address.is_ipv4() { 32 } else { 128 }))
        }
        Err(GuardRefusal::Plain) => Some("start it with --allow-http, since the receiver speaks no TLS".to_owned()),
        Err(other) => Some(other.to_string()),
    };
    if let Some(way) = way {
        return refuse(format!(
            "the gateway may not call {}, where the receiver of the drill listens; {way}",
            receiver.ip()
        ));
    }
    if url.contains(".invalid:") && setting(settings, "dns") == Some("system") {
        return refuse(
            "the gateway looks names up with the machine's resolver (--dns system), which may ask others for the name of \
             the drill; start it with --dns own"
                .to_owned(),
        );
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
    fn a_receiver_on_loopback_takes_nodes_on_the_same_machine() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let check = |is_called_here, nodes: &[&str], receiver| {
            check_nodes(is_called_here, "shop-1", nodes.iter().copied(), receiver).map_err(|no| no.to_string())
        };
        assert_eq!(check(true, &["embedded"], loopback), Ok(()));
        assert_eq!(check(false, &["shop-1/7", "shop-1/9"], loopback), Ok(()), "a balancer may stand before them");
        let refused = check(false, &["embedded"], loopback).unwrap_err();
        assert!(refused.contains("run the drill on its machine"), "{refused}");
        let refused = check(true, &["shop-1/7", "shop-2/9"], loopback).unwrap_err();
        assert!(refused.contains("node shop-2/9 may run on another machine"), "{refused}");
        assert_eq!(check(false, &["shop-2/9", "shop-3/9"], IpAddr::from([10, 0, 0, 5])), Ok(()));
    }

    #[test]
    fn a_receiver_at_another_address_takes_plain_requests_to_it() {
        let receiver = "10.0.0.5:9000".parse().unwrap();
        let open = json!({"name": "allow-egress", "value": "10.0.0.0/8"});
        let said = |settings: Value| {
            check_egress(&json!({"data": settings}), receiver, "http://10.0.0.5:9000/").map_err(|no| no.to_string())
        };
        assert!(said(json!([])).unwrap_err().ends_with("start it with --allow-egress 10.0.0.5/32"));
        assert!(said(json!([open])).unwrap_err().contains("start it with --allow-http"));
        assert_eq!(said(json!([open, {"name": "allow-http", "value": "true"}])), Ok(()));
        let closed = json!({"name": "deny-egress", "value": "10.0.0.0/24"});
        assert!(said(json!([open, closed])).unwrap_err().contains("--deny-egress closes"));
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
