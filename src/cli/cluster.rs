//! `posthaste cluster`: shows the nodes that share a store, and how the shards are
//! divided over them.

use serde_json::Value;

use super::client::ClientArgs;
use super::output::{self, OutputFormat};
use super::screen::Screen;
use super::table::Table;

/// Which gateway to ask.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(flatten)]
    access: ClientArgs,
}

/// Gets the cluster's state from one node, which knows all of them, and prints it.
pub async fn run(args: ClusterArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("all tenants share the nodes; leave it out")?;
    let mut client = args.access.client().await?;
    let url = client.url(&["cluster"])?;
    let body = client.get(url).await?;
    match client.format {
        OutputFormat::Json => output::print(&output::format_json(&body)),
        OutputFormat::Table => output::print(&render(&output::parse(&body)?, Screen::of_stdout())),
    }
}

/// Renders the nodes as a table and the 256 shards as a summary.
fn render(cluster: &Value, screen: Screen) -> String {
    let list = |field: &str| cluster[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let (nodes, shards) = (list("nodes"), list("shards"));
    let shards_of =
        |node: &Value| shards.iter().filter(|shard| shard["node"] == node["id"]).cloned().collect::<Vec<_>>();
    let lag_of = |node: &Value| shards_of(node).iter().filter_map(|shard| shard["lag_ms"].as_u64()).max().unwrap_or(0);
    let held_of = |node: &Value| longest_held(&shards_of(node)).map_or(0, |(_, millis)| millis);
    let row = |node: &Value| {
        let lease = match node["lease_ms"].as_i64() {
            None => "-".to_owned(),
            Some(left) if left < 0 => "ended".to_owned(),
            Some(left) => render_seconds(left.unsigned_abs()),
        };
        let name = match node["self"].as_bool() {
            Some(true) => format!("{} (this one)", output::text_cell(node, "name")),
            _ => output::text_cell(node, "name"),
        };
        vec![
            output::text_cell(node, "id"),
            name,
            output::text_cell(node, "shards"),
            lease,
            render_seconds(lag_of(node)),
            render_seconds(held_of(node)),
        ]
    };
    let rows: Vec<Vec<String>> = nodes.iter().map(row).collect();
    let table = Table::new(&["node", "name", "shards", "lease", "lag", "held"], rows).render(screen);
    let summary = summary(nodes.len(), shards);
    let lines: Vec<String> = match screen.width {
        Some(_) => summary.lines().map(|line| output::wrap_text(line, "")).collect(),
        None => vec![summary],
    };
    format!("{table}\n\n{}", lines.join("\n"))
}

fn summary(nodes: usize, shards: &[Value]) -> String {
    let unowned: Vec<&Value> = shards.iter().filter(|shard| shard["node"].is_null()).collect();
    let epoch = shards.iter().filter_map(|shard| shard["epoch"].as_u64()).max().unwrap_or(0);
    let max_lag = |shards: &mut dyn Iterator<Item = &Value>| shards.filter_map(|shard| shard["lag_ms"].as_u64()).max();
    let late = render_seconds(max_lag(&mut shards.iter()).unwrap_or(0));
    let mut text = format!(
        "{} shards on {nodes} {}, epoch {epoch} at most; the oldest that could go has waited for {late}.",
        shards.len(),
        if nodes == 1 { "node" } else { "nodes" },
    );
    if let Some((by, held)) = longest_held(shards) {
        text.push_str(&format!("\nWhat is held back has been due for up to {} ({by}).", render_seconds(held)));
    }
    if !unowned.is_empty() {
        let late = render_seconds(max_lag(&mut unowned.iter().copied()).unwrap_or(0));
        text.push_str(&format!(
            "\n{} {} nobody's, and what is due there waits ({late}): a node takes it within a moment, or once the lease of its last owner has ended.",
            unowned.len(),
            if unowned.len() == 1 { "shard is" } else { "shards are" },
        ));
    }
    text
}

/// Returns what has held back a delivery the longest, and for how many milliseconds.
fn longest_held(shards: &[Value]) -> Option<(String, u64)> {
    let held = shards.iter().filter_map(|shard| shard["held_ms"].as_object()).flatten();
    let held = held.filter_map(|(by, millis)| Some((by.clone(), millis.as_u64()?)));
    held.filter(|(_, millis)| *millis > 0).max_by_key(|(_, millis)| *millis)
}

fn render_seconds(millis: u64) -> String {
    match millis {
        0..10_000 => format!("{}.{}s", millis / 1_000, millis % 1_000 / 100),
        _ => format!("{}s", millis / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_are_a_table_and_shards_a_summary() {
        let cluster = json!({
            "nodes": [
                {"id": "3", "name": "a:17", "shards": 2, "lease_ms": 12_345, "self": true},
                {"id": "4", "name": "b:18", "shards": 1, "lease_ms": -20, "self": false},
            ],
            "shards": [
                {"shard": 0, "node": "3", "epoch": 2, "lag_ms": 0},
                {"shard": 1, "node": "3", "epoch": 7, "lag_ms": 1_250, "held_ms": {"breaker": 90_000, "pause": 0}},
                {"shard": 2, "node": "4", "epoch": 1, "lag_ms": 40},
                {"shard": 3, "node": null, "epoch": 1, "lag_ms": 60_000},
            ],
        });
        insta::assert_snapshot!(render(&cluster, Screen::PLAIN), @r"
        NODE  NAME             SHARDS  LEASE  LAG   HELD
        3     a:17 (this one)  2       12s    1.2s  90s
        4     b:18             1       ended  0.0s  0.0s

        4 shards on 2 nodes, epoch 7 at most; the oldest that could go has waited for 60s.
        What is held back has been due for up to 90s (breaker).
        1 shard is nobody's, and what is due there waits (60s): a node takes it within a moment, or once the lease of its last owner has ended.
        ");
    }

    #[test]
    fn one_process_is_a_cluster_of_one() {
        let cluster = json!({
            "nodes": [{"id": "1", "name": "embedded", "shards": 256, "lease_ms": null, "self": true}],
            "shards": (0..256).map(|n| json!({"shard": n, "node": "1", "epoch": 1, "lag_ms": 0})).collect::<Vec<_>>(),
        });
        insta::assert_snapshot!(render(&cluster, Screen::PLAIN), @r"
        NODE  NAME                 SHARDS  LEASE  LAG   HELD
        1     embedded (this one)  256     -      0.0s  0.0s

        256 shards on 1 node, epoch 1 at most; the oldest that could go has waited for 0.0s.
        ");
    }
}
