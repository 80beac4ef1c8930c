//! `posthaste egress`: shows the addresses that deliveries come from.

use super::client::ClientArgs;
use super::output::{self, OutputFormat};

/// Which gateway to ask.
#[derive(Debug, clap::Args)]
pub struct EgressArgs {
    #[command(flatten)]
    access: ClientArgs,
}

/// Gets the addresses over all nodes, and prints one per line.
pub async fn run(args: EgressArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("all tenants share the addresses; leave it out")?;
    let mut client = args.access.client().await?;
    let url = client.url(&["egress"])?;
    let body = client.get(url).await?;
    if client.format == OutputFormat::Json {
        return output::print(&output::format_json(&body));
    }
    let egress = output::parse(&body)?;
    for network in egress["networks"].as_array().into_iter().flatten() {
        output::print(&output::escape_control_characters(network.as_str().unwrap_or_default()))?;
    }
    match egress["complete"].as_bool() {
        Some(true) => Ok(()),
        _ => output::print_sentence(
            client.format,
            "This is not all: a node does not know the addresses that receivers see it call from, or did not answer. \
             Start every node with --egress-bind, or behind NAT and proxies with --egress-addresses.",
        ),
    }
}
