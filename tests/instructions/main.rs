//! Counts the instructions of the hot parts, and fails when one has grown.
//!
//! Times depend on what else the machine does; instructions hardly do. Each
//! part runs twice under `valgrind --tool=callgrind`, a few times and many
//! times, and the difference is what one more takes. `baseline.txt` has the
//! counts that were taken last, and the compiler that they were taken with:
//! another compiler makes other code, so with another one the counts are
//! printed and nothing fails. So are those of a debug build.
//!
//! `POSTHASTE_INSTRUCTIONS=write cargo test --release --test instructions`
//! writes the baseline anew.

#![allow(clippy::print_stdout, reason = "this is a program of its own")]

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};

mod parts;

use parts::PARTS;

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/instructions/baseline.txt");
/// How often each part runs: the second count minus the first is measured.
const TIMES: (u64, u64) = (64, 448);
/// Growth that fails, in percent.
const GROWTH_MAX: u64 = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [run, name, times] = &arguments[..]
        && run == "--run-part"
    {
        let (_, part) = PARTS.iter().find(|(known, _)| known == name).expect("a part of this name");
        part(times.parse().expect("a count"));
        return ExitCode::SUCCESS;
    }
    // Tests were chosen by name, and these are none of them.
    if arguments.iter().any(|argument| !argument.starts_with('-') && !"instructions".contains(argument.as_str())) {
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("valgrind is missing, so no instructions can be counted; `./check` installs it");
        return ExitCode::FAILURE;
    }
    compare(counted())
}

/// Counts the instructions of each part.
fn counted() -> Vec<(&'static str, u64)> {
    let count = |name, times: u64| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().expect("this program has a path"))
            .args(["--run-part", name, &times.to_string()])
            .output()
            .expect("valgrind runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} failed: {said}");
        let total = said.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse::<u64>().ok());
        total.unwrap_or_else(|| panic!("callgrind printed no count: {said}"))
    };
    let each = |(name, _): &parts::Part| {
        let (few, many) = (count(*name, TIMES.0), count(*name, TIMES.1));
        (*name, many.saturating_sub(few) / (TIMES.1 - TIMES.0))
    };
    PARTS.iter().map(each).collect()
}

/// Prints the counts beside the baseline. Fails if a part has grown, and the
/// baseline is from the same compiler.
fn compare(counted: Vec<(&str, u64)>) -> ExitCode {
    let compiler = compiler();
    if std::env::var_os("POSTHASTE_INSTRUCTIONS").is_some_and(|wish| wish == "write") {
        let lines: Vec<String> = counted.iter().map(|(name, count)| format!("{name}: {count}\n")).collect();
        std::fs::write(BASELINE, format!("compiler: {compiler}\n{}", lines.concat())).expect("it is written");
    }
    let text = std::fs::read_to_string(BASELINE).unwrap_or_default();
    let baseline: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(": ")).collect();
    let is_same_compiler = baseline.get("compiler") == Some(&compiler.as_str()) && !cfg!(debug_assertions);
    let mut grown = Vec::new();
    println!("{:<22} {:>12} {:>12}", "instructions for one", "baseline", "now");
    for (name, count) in counted {
        let before: Option<u64> = baseline.get(name).and_then(|before| before.parse().ok());
        println!("{name:<22} {:>12} {count:>12}", before.map_or("none".to_owned(), |before| before.to_string()));
        if before.is_none_or(|before| has_grown(before, count)) {
            grown.push(name);
        }
    }
    if grown.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("more than {GROWTH_MAX} % above the baseline, or not in it: {}", grown.join(", "));
    if !is_same_compiler {
        println!("the baseline is of another compiler or build, so nothing fails; this one is {compiler}");
        return ExitCode::SUCCESS;
    }
    println!("make it smaller, or say in the commit why it is worth it, and write the baseline anew:");
    println!("POSTHASTE_INSTRUCTIONS=write cargo test --release --test instructions");
    ExitCode::FAILURE
}

fn has_grown(before: u64, now: u64) -> bool {
    now * 100 > before * (100 + GROWTH_MAX)
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output().expect("rustc runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
