//! `posthaste context`: shows and chooses the gateways that commands connect to.

use anyhow::ensure;
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::ClientArgs;
use super::contexts_file::{ContextsFile, GatewayContext};
use super::failure::CommandFailure;
use super::output::{self, Column, OutputFormat};

/// What to do with contexts.
#[derive(Debug, clap::Args)]
pub struct ContextArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: Option<ContextAction>,
}

#[derive(Debug, Subcommand)]
enum ContextAction {
    /// Show which gateway commands connect to here, and why.
    Show,
    /// List the contexts.
    List,
    /// Put a context in use.
    Use {
        /// The context's name.
        name: String,
    },
    /// Keep the gateway of --server, with the files of --token-file and --ca, under a name, and put it in use.
    Set {
        /// The context's name.
        name: String,
    },
    /// Remove a context; its gateway and its token file stay.
    Remove {
        /// The context's name.
        name: String,
    },
}

const COLUMNS: &[Column] = &[
    ("in use", |row, _| if row["in_use"] == true { "*".to_owned() } else { String::new() }),
    ("name", |row, _| output::text_cell(row, "name")),
    ("server", |row, _| output::text_cell(row, "server")),
    ("token file", |row, _| output::text_cell(row, "token_file")),
];

/// Shows or changes the contexts.
pub async fn run(args: ContextArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("a context is a gateway; POSTHASTE_TENANT chooses a tenant for all commands")?;
    let format = args.access.output;
    let mut file = ContextsFile::read()?;
    match args.action {
        None | Some(ContextAction::Show) => return show(&args.access),
        Some(ContextAction::List) => {
            let body = json!({"data": list(&file), "next": null});
            return output::print_list(format, &body.to_string(), "contexts", COLUMNS);
        }
        Some(ContextAction::Use { name }) => {
            ensure!(file.contexts.contains_key(&name), CommandFailure::usage(unknown_context(&file, &name)));
            file.current = Some(name);
        }
        Some(ContextAction::Set { name }) => {
            let usage = |sentence: &str| CommandFailure::usage(sentence.to_owned());
            ensure!(!name.is_empty(), usage("a context needs a name, such as production"));
            let server = args.access.server.as_ref().ok_or_else(|| usage("name the gateway with --server URL"))?;
            let no_token =
                "a context keeps no token; write it into a file for you alone, and name that with --token-file";
            ensure!(args.access.token.is_none(), usage(no_token));
            let token_file = args.access.token_file.as_deref().map(std::path::absolute).transpose()?;
            let ca = args.access.ca.as_deref().map(std::path::absolute).transpose()?;
            let server = server.as_str().trim_end_matches('/').to_owned();
            file.contexts.insert(name.clone(), GatewayContext { server, token_file, ca });
            file.current = Some(name);
        }
        Some(ContextAction::Remove { name }) => {
            ensure!(file.contexts.remove(&name).is_some(), CommandFailure::usage(unknown_context(&file, &name)));
            file.current = file.current.filter(|current| *current != name);
        }
    }
    file.write()?;
    let in_use = file.in_use().map_or("none".to_owned(), |(name, context)| format!("{name} ({})", context.server));
    match format {
        OutputFormat::Json => {
            output::print(&output::format_json(&json!({ "data": list(&file), "next": null }).to_string()))
        }
        OutputFormat::Table => output::print(&format!("context in use: {in_use}")),
    }
}

fn show(access: &ClientArgs) -> anyhow::Result<()> {
    let gateway = access.gateway()?;
    let token_from = if access.token.is_some() {
        "--token or POSTHASTE_TOKEN".to_owned()
    } else {
        gateway.token_file.display().to_string()
    };
    let body = json!({
        "server": gateway.server.as_str().trim_end_matches('/'),
        "because_of": gateway.from.description(),
        "token_from": token_from,
        "ca": gateway.ca,
        "contexts_file": ContextsFile::path().map(|path| path.display().to_string()),
    });
    output::print_record(access.output, &body.to_string())
}

fn list(file: &ContextsFile) -> Vec<Value> {
    let row = |(name, context): (&String, &GatewayContext)| {
        let is_in_use = file.current.as_ref() == Some(name);
        json!({"name": name, "in_use": is_in_use, "server": context.server, "token_file": context.token_file, "ca": context.ca})
    };
    file.contexts.iter().map(row).collect()
}

fn unknown_context(file: &ContextsFile, name: &str) -> String {
    let names: Vec<&str> = file.contexts.keys().map(String::as_str).collect();
    match names.as_slice() {
        [] => {
            format!("there is no context {name:?}, nor any other; `posthaste context set NAME --server URL` makes one")
        }
        names => format!("there is no context {name:?}; there are {}", names.join(", ")),
    }
}
