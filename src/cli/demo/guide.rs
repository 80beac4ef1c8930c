//! Renders the guide of the demo: what runs where, and commands to paste.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_client::{Client, Endpoint, ListQuery};

use super::receivers::DemoReceiver;
use crate::model::span::Span;
use crate::model::suggested_command::quote;

/// How often it is looked whether there is a dead letter to explain.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What the guide is about.
pub struct Guide<'a> {
    /// Address of the gateway.
    pub address: SocketAddr,
    /// File that has the admin token.
    pub token_file: PathBuf,
    /// Time after which the demo stops by itself.
    pub lasts: Option<Span>,
    /// Receivers with their endpoints.
    pub receivers: &'a [(&'a DemoReceiver, Endpoint)],
}

impl Guide<'_> {
    /// Waits until there is a dead letter to show, and renders the guide.
    pub async fn render(&self, client: &Client) -> anyhow::Result<String> {
        let dead = loop {
            let page = client.tenant("press").dead_letters(&ListQuery::new().limit(1)).await?;
            match page.data.into_iter().next() {
                Some(dead) => break dead.id,
                None => tokio::time::sleep(LOOK_INTERVAL).await,
            }
        };
        let mut text = self.introduction()?;
        let program = program();
        for (why, command) in self.commands(&dead) {
            writeln!(text, "\n{why}\n  {program} {command}")?;
        }
        Ok(text)
    }

    fn introduction(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        let end = self.lasts.map_or_else(String::new, |span| format!(" or after {span}"));
        writeln!(text, "Posthaste {} runs a demo at http://{}", env!("CARGO_PKG_VERSION"), self.address)?;
        writeln!(text, "It stops on Ctrl-C{end}, and leaves nothing behind.\n")?;
        writeln!(text, "Three tenants get two events a second each, for receivers that behave by a script:")?;
        for (receiver, _) in self.receivers {
            writeln!(text, "  {:<6} {:<14} answers {}", receiver.tenant, receiver.name, receiver.answers())?;
        }
        let file = quote(&self.token_file.display().to_string());
        writeln!(text, "\nPaste this into another terminal first, then whatever you like to look at:")?;
        writeln!(text, "  export POSTHASTE_SERVER=http://{} POSTHASTE_TOKEN_FILE={file}", self.address)?;
        Ok(text)
    }

    fn endpoint(&self, name: &str) -> &str {
        let found = self.receivers.iter().find(|(receiver, _)| receiver.name == name);
        found.map_or("", |(_, endpoint)| endpoint.id.as_str())
    }

    /// Returns what there is to see, and the command that shows it.
    fn commands(&self, dead: &str) -> Vec<(&'static str, String)> {
        let (flaky, slow, limiting) = (self.endpoint("flaky"), self.endpoint("slow"), self.endpoint("rate-limiting"));
        let (dying, refusing) = (self.endpoint("dying"), self.endpoint("refusing"));
        vec![
            (
                "The dashboard: open the address that this prints; it signs you in once, within two minutes:",
                "dashboard".to_owned(),
            ),
            ("How the gateway is doing, and what needs attention:", "status".to_owned()),
            (
                "Flaky: what was answered 503 waits; `next or finished` says when it is tried again:",
                format!("deliveries list --tenant shop --endpoint {flaky} --limit 10"),
            ),
            (
                "Slow: four customers, each in order; the head of each is on its way, and the rest waits behind it:",
                format!("endpoints lanes {slow} --tenant bank"),
            ),
            (
                "Rate-limiting: a 429 asked for five seconds; nothing is sent until `backpressure_until`, if that is set:",
                format!("endpoints get {limiting} --tenant bank"),
            ),
            (
                "Dying: after 15 seconds it drops every connection for a minute. Then `health.breaker` is open, and \
                 `health.waiting` grows:",
                format!("endpoints get {dying} --tenant press"),
            ),
            (
                "Refusing: a 400 is a dead letter at once. Why this one is dead:",
                format!("explain {dead} --tenant press"),
            ),
            (
                "What waits behind a dead letter, so that no customer's events arrive out of order:",
                format!("endpoints lanes {refusing} --blocked --tenant press"),
            ),
            ("How many died, where and why:", "dead-letters groups --tenant press".to_owned()),
            (
                "After a minute it is repaired (earlier, they die again): send its dead letters again, and what waited follows:",
                format!("dead-letters replay --endpoint {refusing} --tenant press"),
            ),
            (
                "Run this twice: the second time `duplicate` is true, and nothing is sent:",
                "send order.paid '{\"n\": 1}' --id mine-1 --tenant shop".to_owned(),
            ),
        ]
    }
}

/// Returns how this program is called from any folder: by its name if a search path has
/// found it, else by its path.
fn program() -> String {
    let typed = std::env::args().next().unwrap_or_else(|| "posthaste".to_owned());
    let path = std::env::current_exe().ok().filter(|_| typed.contains('/'));
    quote(&path.map_or(typed, |path| path.display().to_string()))
}
