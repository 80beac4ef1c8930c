//! `posthaste openapi`: prints the OpenAPI description that the gateway serves.

use anyhow::Context;

use super::output::print;
use crate::api::openapi::document;

/// The command has no arguments
#[derive(Debug, clap::Args)]
pub struct OpenapiArgs {}

/// Prints the description.
pub async fn run(_: OpenapiArgs) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(&document()).context("the description cannot be written as JSON")?)
}
