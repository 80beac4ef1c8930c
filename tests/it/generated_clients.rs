//! Clients are generated from the API's description without a warning, and work.
//!
//! The generators and Redocly's linter are those that `tests/conformance/install`
//! fetches; the programs that use what they make are beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::signatures::installed;
use crate::support::{Gateway, Receiver};

fn in_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a program to its end; panics with what it printed if it fails.
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|problem| panic!("{command:?} does not start: {problem}"));
    assert!(output.status.success(), "{command:?} failed:\n{}", printed(&output));
    output
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A program of a Node package.
fn node(program: &str) -> Command {
    let mut command = Command::new(installed("node", "package.json").join("node_modules/.bin").join(program));
    // Neither asks for newer versions nor tells anybody of the run.
    command.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
    command
}

#[test]
fn the_linter_has_nothing_to_say_about_the_description() {
    let folder = tempfile::tempdir().unwrap();
    let document = in_tree("docs/openapi.json");
    let output = run(node("redocly").args(["lint", "--format=json"]).arg(document).current_dir(folder.path()));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", printed(&output)));
    assert_eq!(found["totals"], json!({"errors": 0, "warnings": 0, "ignored": 0}), "{found:#}");
}

#[test]
fn a_typescript_client_is_generated_and_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let mut generator = node("openapi-typescript");
    generator.arg(in_tree("docs/openapi.json")).arg("--output").arg(folder.path().join("generated.ts"));
    let said = printed(&run(&mut generator)).to_lowercase();
    assert!(!said.contains("warn") && !said.contains('⚠'), "{said}");
    std::fs::copy(in_tree("tests/conformance/client.ts"), folder.path().join("client.ts")).unwrap();
    run(node("tsc").args(["--noEmit", "--strict", "client.ts"]).current_dir(folder.path()));
}

/// Runs Python with the installed packages and what is in a folder.
fn python(folder: &Path) -> Command {
    let packages = installed("python", "requirements.txt");
    let mut command = Command::new("python3");
    let joined = |first: PathBuf, rest: OsString| {
        std::env::join_paths(std::iter::once(first).chain(std::env::split_paths(&rest))).expect("plain paths")
    };
    // The generator formats what it wrote with a program that is installed with it.
    command.env("PATH", joined(packages.join("bin"), std::env::var_os("PATH").unwrap_or_default()));
    command.env("PYTHONPATH", joined(folder.to_owned(), packages.into_os_string()));
    command
}

#[tokio::test]
async fn a_python_client_is_generated_and_works() {
    let folder = tempfile::tempdir().unwrap();
    let mut generator = python(folder.path());
    // The generator takes lines of JSON for text, and a picture for bytes.
    let config = folder.path().join("config.json");
    let overrides = json!({"content_type_overrides": {"application/x-ndjson": "text/plain", "image/png": "application/octet-stream"}});
    std::fs::write(&config, overrides.to_string()).unwrap();
    generator.args(["-m", "openapi_python_client", "generate", "--config"]).arg(config);
    generator.args(["--meta", "none", "--fail-on-warning", "--path"]);
    generator.arg(in_tree("docs/openapi.json")).arg("--output-path").arg(folder.path().join("generated"));
    let said = printed(&run(&mut generator)).to_lowercase();
    assert!(!said.contains("warning"), "{said}");
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let mut user = python(folder.path());
    user.arg(in_tree("tests/conformance/client.py"));
    user.args([&format!("http://{}", gateway.address), gateway.token(), &receiver.url()]);
    tokio::task::spawn_blocking(move || run(&mut user)).await.unwrap();
    let seen = receiver.wait_for(1).await;
    assert_eq!(seen[0].id(), "order-7-shipped");
}
