//! The cluster: which node does what, and who did not answer.

use std::fmt::Write;

use askama::Template;
use serde::Deserialize;

use crate::dashboard::chart::{Svg, escape};
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;

#[derive(Deserialize)]
struct ClusterResponse {
    nodes: Vec<NodeResponse>,
    shards: Vec<ShardResponse>,
}

#[derive(Deserialize)]
struct NodeResponse {
    id: String,
    name: String,
    shards: usize,
    lease_ms: Option<i64>,
    #[serde(rename = "self")]
    is_self: bool,
}

#[derive(Deserialize)]
struct ShardResponse {
    shard: u16,
    node: Option<String>,
    epoch: u64,
    lag_ms: u64,
    held_ms: Option<HeldResponse>,
}

#[derive(Deserialize, Default)]
struct HeldResponse {
    breaker: u64,
    pause: u64,
    disabled: u64,
    backpressure: u64,
    rate: u64,
}

impl NodeResponse {
    /// Says whether its lease lasts, without the milliseconds that change with every look.
    fn lease(&self) -> (&'static str, &'static str) {
        match self.lease_ms {
            None => ("off", "none needed"),
            Some(..0) => ("bad", "ended"),
            Some(0..2_000) => ("watch", "ends within 2 s"),
            Some(_) => ("good", "in force"),
        }
    }

    fn lease_left(&self) -> String {
        self.lease_ms.filter(|left| *left >= 0).map(|left| format!("{} s left", left / 1_000)).unwrap_or_default()
    }
}

/// One row of the table of nodes.
struct NodeRow {
    node: NodeResponse,
    colour: usize,
    lag_ms: u64,
    did_answer: bool,
}

#[derive(Template)]
#[template(path = "cluster.html")]
struct ClusterPage {
    frame: Frame,
    summary: String,
    rows: Vec<NodeRow>,
    map: Svg,
    silent: Vec<String>,
    ownerless: usize,
    held: Vec<(&'static str, String)>,
    slowest: Vec<ShardResponse>,
    lag_ms: u64,
}

impl ClusterPage {
    fn lag(&self) -> String {
        lag_words(self.lag_ms)
    }
}

impl NodeRow {
    fn lag(&self) -> String {
        lag_words(self.lag_ms)
    }
}

impl ShardResponse {
    fn lag(&self) -> String {
        lag_words(self.lag_ms)
    }
}

/// Writes a lag; less than half a second is none.
fn lag_words(lag_ms: u64) -> String {
    if lag_ms < 500 { "0 s".to_owned() } else { words::span((lag_ms as f64 / 1_000.0).round()) }
}

/// Colours of the map: more nodes than these share them.
const COLOURS: usize = 6;

/// Shows the nodes and the shards.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let ClusterResponse { nodes, mut shards } = page.api.get("/v1/cluster").await?;
    let map = shard_map(&nodes, &shards);
    let ownerless = shards.iter().filter(|shard| shard.node.is_none()).count();
    let lag_ms = shards.iter().map(|shard| shard.lag_ms).max().unwrap_or(0);
    let held = held(&shards).into_iter().map(|(name, most)| (name, lag_words(most))).collect();
    let rows: Vec<NodeRow> = nodes.into_iter().enumerate().map(|(n, node)| row_of(n, node, &shards)).collect();
    let silent = rows.iter().filter(|row| !row.did_answer).map(|row| row.node.name.clone()).collect();
    let summary = summary(rows.len(), shards.len() - ownerless, shards.len());
    shards.retain(|shard| shard.lag_ms > 0);
    shards.sort_by_key(|shard| std::cmp::Reverse(shard.lag_ms));
    shards.truncate(10);
    let frame = page.frame;
    PageContext::render(&ClusterPage { frame, summary, rows, map, silent, ownerless, held, slowest: shards, lag_ms })
}

fn summary(nodes: usize, owned: usize, all: usize) -> String {
    let nodes = if nodes == 1 { "One node owns".to_owned() } else { format!("{nodes} nodes own") };
    if owned == all { format!("{nodes} all {all} shards.") } else { format!("{nodes} {owned} of {all} shards.") }
}

fn row_of(number: usize, node: NodeResponse, shards: &[ShardResponse]) -> NodeRow {
    let own: Vec<&ShardResponse> = shards.iter().filter(|shard| shard.node.as_deref() == Some(&*node.id)).collect();
    let lag_ms = own.iter().map(|shard| shard.lag_ms).max().unwrap_or(0);
    // An owner that does not answer in time leaves what is held of its shards unknown.
    let did_answer = own.iter().all(|shard| shard.held_ms.is_some());
    NodeRow { node, colour: number % COLOURS, lag_ms, did_answer }
}

/// Returns for how long the oldest held delivery has been due, by what holds it.
fn held(shards: &[ShardResponse]) -> Vec<(&'static str, u64)> {
    let most = |of: fn(&HeldResponse) -> u64| shards.iter().filter_map(|shard| shard.held_ms.as_ref()).map(of).max();
    let held = [
        ("breaker", most(|held| held.breaker)),
        ("pause", most(|held| held.pause)),
        ("disabled", most(|held| held.disabled)),
        ("backpressure", most(|held| held.backpressure)),
        ("rate", most(|held| held.rate)),
    ];
    held.into_iter().filter_map(|(name, most)| Some((name, most.filter(|most| *most > 0)?))).collect()
}

/// Draws the shards as a map of 16 × 16, coloured by their owner.
fn shard_map(nodes: &[NodeResponse], shards: &[ShardResponse]) -> Svg {
    let mut svg = String::from(
        "<svg class=\"chart shards\" viewBox=\"0 0 352 352\" role=\"img\" aria-label=\"Shards by their owner, 16 by 16\">",
    );
    for shard in shards {
        let (column, line) = (shard.shard % 16, shard.shard / 16);
        let owner = shard.node.as_ref().and_then(|id| nodes.iter().position(|node| node.id == *id));
        let class = owner.map_or("no-owner".to_owned(), |owner| format!("owner-{}", owner % COLOURS));
        let name = owner.map_or("nobody", |owner| nodes[owner].name.as_str());
        let class = if shard.lag_ms >= 10_000 { format!("{class} behind") } else { class };
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"20\" height=\"20\" rx=\"3\"><title>{}: {}</title></rect>",
            column * 22 + 1,
            line * 22 + 1,
            shard.shard,
            escape(name)
        );
        if shard.lag_ms >= 10_000 {
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">!</text>",
                column * 22 + 11,
                line * 22 + 15
            );
        }
    }
    svg.push_str("</svg>");
    Svg::of(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(shard: u16, node: Option<&str>, held: Option<u64>) -> ShardResponse {
        let held_ms = held.map(|breaker| HeldResponse { breaker, ..Default::default() });
        ShardResponse { shard, node: node.map(str::to_owned), epoch: 1, lag_ms: u64::from(shard) * 11_000, held_ms }
    }

    fn node(id: &str, lease_ms: Option<i64>) -> NodeResponse {
        NodeResponse { id: id.into(), name: format!("<{id}>"), shards: 1, lease_ms, is_self: false }
    }

    #[test]
    fn a_node_that_did_not_answer_is_named() {
        let shards = [shard(0, Some("a"), Some(5)), shard(1, Some("b"), None), shard(2, None, None)];
        assert!(row_of(0, node("a", None), &shards).did_answer);
        let silent = row_of(1, node("b", Some(-1)), &shards);
        assert_eq!((silent.did_answer, silent.lag_ms, silent.node.lease().1), (false, 11_000, "ended"));
        assert_eq!(held(&shards), [("breaker", 5)]);
        assert_eq!(
            (summary(1, 3, 3), summary(2, 2, 3)),
            ("One node owns all 3 shards.".into(), "2 nodes own 2 of 3 shards.".into())
        );
    }

    #[test]
    fn the_map_shows_owners_as_text() {
        let map = shard_map(&[node("a", None)], &[shard(0, Some("a"), None), shard(17, None, None)]).to_string();
        assert!(
            map.contains("<title>0: &lt;a&gt;</title>") && map.contains("class=\"no-owner behind\" x=\"23\" y=\"23\""),
            "{map}"
        );
    }
}
