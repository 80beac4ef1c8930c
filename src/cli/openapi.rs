//! `posthaste openapi`: the API's description, as the gateway serves it.

use anyhow::Context;

use super::output::print;
use crate::api::openapi::document;

/// Nothing to choose.
#[derive(Debug, clap::Args)]
pub struct OpenapiArgs {}

/// Prints the description.
pub async fn run(_: OpenapiArgs) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(&document()).context("the description cannot be written as JSON")?)
}
