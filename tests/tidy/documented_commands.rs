//! Whoever follows a page is not refused: every command that one shows is one that the
//! program takes.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::ErrorKind;
use posthaste::cli::{Cli, command_first};

use crate::source::{expect_none, read, root};

/// What stands before the name of the program where a command begins.
const STARTS: &[&str] = &["$ ", "sudo -u posthaste ", "sudo "];
const PROGRAMS: &[&str] = &["posthaste ", "./target/release/posthaste ", "target/release/posthaste "];
/// Blanks before a remark that is no part of the command.
const GAP: usize = 3;

/// A command that a page shows.
struct ShownCommand {
    place: String,
    text: String,
    /// Whether it stands in a line of its own, to be copied. What stands in a sentence may
    /// leave out what the command needs.
    is_whole: bool,
}

/// The pages that people follow.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).into();
    for folder in ["docs", "docs/runbooks"] {
        let entries = std::fs::read_dir(root().join(folder)).expect("the folder can be read");
        let names = entries.map(|entry| entry.expect("it can be read").file_name().into_string().expect("text"));
        pages.extend(names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")));
    }
    pages.sort();
    pages
}

/// The commands in a page: in examples, and between backticks.
fn shown_commands(page: &str, text: &str) -> Vec<ShownCommand> {
    let (mut found, mut is_example) = (Vec::new(), false);
    for (n, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", n + 1);
        if line.trim_start().starts_with("```") {
            is_example = !is_example;
        } else if is_example || line.starts_with("    ") {
            let mut command = line.trim_start();
            while let Some(rest) = STARTS.iter().find_map(|start| command.strip_prefix(start)) {
                command = rest;
            }
            found.push(ShownCommand { place: place.clone(), text: command.to_owned(), is_whole: true });
        }
        if !is_example {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.map(|span| ShownCommand {
                place: place.clone(),
                text: span.to_owned(),
                is_whole: false,
            }));
        }
    }
    let program = |text: &str| PROGRAMS.iter().any(|program| text.starts_with(program));
    found.retain(|command| program(&command.text));
    found
}

/// The words of a command as a shell reads them, up to a pipe, a redirection or a remark.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut blanks) = (Vec::new(), None::<String>, None, 0);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, ' ') => {
                words.extend(word.take());
                blanks += 1;
                if blanks == GAP {
                    break;
                }
                continue;
            }
            (None, '|' | '>' | '<' | ';' | '&') => break,
            (None, '#') if word.is_none() => break,
            (_, letter) => word.get_or_insert_default().push(letter),
        }
        blanks = 0;
    }
    words.extend(word);
    words
}

/// Why the program would not take a command.
fn refusal(command: &ShownCommand) -> Option<String> {
    // What may be left out stands in brackets, and an ellipsis for what else is needed.
    let is_cut = command.text.contains('…');
    let words = words(&command.text).into_iter();
    let words = words.map(|word| match word.strip_prefix('[') {
        Some(inside) if inside.starts_with('-') => inside.to_owned(),
        _ if word.ends_with(']') && !word.contains(['[', '{']) => word.trim_end_matches(']').to_owned(),
        _ => word,
    });
    let words = words.filter(|word| word != "…");
    let words = command_first(words.map(OsString::from).collect());
    let refused = Cli::command().try_get_matches_from(words).err()?;
    let is_wrong = match refused.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
        // A name in capitals stands for a value.
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => false,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => command.is_whole && !is_cut,
        _ => true,
    };
    let why = refused.to_string();
    is_wrong.then(|| format!("{}: {}: {}", command.place, command.text, why.lines().next().unwrap_or_default()))
}

#[test]
fn every_command_that_a_page_shows_is_taken() {
    let commands: Vec<ShownCommand> = pages().iter().flat_map(|page| shown_commands(page, &read(page))).collect();
    assert!(commands.iter().filter(|command| command.is_whole).count() > 100, "pages show commands");
    expect_none("commands that the program would refuse", commands.iter().filter_map(refusal).collect());
}

#[test]
fn a_command_that_nobody_can_run_is_found() {
    assert_eq!(words(r#"posthaste send a '{"b": 1}' "c\"d" | jq"#), ["posthaste", "send", "a", r#"{"b": 1}"#, "c\"d"]);
    assert_eq!(words("posthaste egress   one per line"), ["posthaste", "egress"]);
    let page = "Use `posthaste keys rotat` or `posthaste endpoints`.\n\n    sudo posthaste restore --from monday   # as root\n    \
                posthaste restore\n    posthaste doctor [--ca FILE] …\n\n```console\n$ posthaste backup monday --dir /b\nposthaste is here\n```\n";
    let found: Vec<String> = shown_commands("page", page).iter().filter_map(refusal).collect();
    let places: Vec<&str> = found.iter().filter_map(|found| found.split(": ").next()).collect();
    assert_eq!(places, ["page:1", "page:3", "page:4", "page:8", "page:9"], "{found:#?}");
}
