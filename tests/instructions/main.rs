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
const TIMES: (u64, u64) = (64, 8_256);
/// Most instructions that a part may take, whatever the baseline says. Figures may
/// cost 2 µs for each event: at the 2 instructions in a nanosecond that the slowest
/// machine in use makes, these are 4,000. Traces may cost 3 µs, while a tenth is
/// exported.
const LIMITS: &[(&str, u64)] = &[(parts::FIGURES, 4_000), (parts::TRACES, 6_000)];
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
    if !is_chosen(&arguments) {
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("valgrind is missing, so no instructions can be counted; `./check` installs it");
        return ExitCode::FAILURE;
    }
    compare(counted())
}

/// Whether the arguments of a test run choose these counts: those of other tests
/// name some, and `--skip` leaves some out.
fn is_chosen(arguments: &[String]) -> bool {
    let is_ours = |name: &str| "instructions".contains(name);
    let (mut names, mut arguments) = (Vec::new(), arguments.iter());
    while let Some(argument) = arguments.next() {
        if argument == "--skip" {
            if arguments.next().is_some_and(|left_out| is_ours(left_out)) {
                return false;
            }
        } else if !argument.starts_with('-') {
            names.push(argument);
        }
    }
    names.is_empty() || names.iter().any(|name| is_ours(name))
}

/// Counts the instructions of each part, all parts at once: what else the machine does
/// changes nothing.
fn counted() -> Vec<(&'static str, u64)> {
    let folder = tempfile::tempdir().expect("a folder");
    let count = |number: usize, times: u64| {
        let (name, profile) = (PARTS[number].0, folder.path().join(format!("profile-{number}")));
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
            .arg(format!("--callgrind-out-file={}", profile.display()))
            .arg(std::env::current_exe().expect("this program has a path"))
            .args(["--run-part", name, &times.to_string()])
            .output()
            .expect("valgrind runs");
        assert!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr));
        instructions(&std::fs::read_to_string(&profile).expect("callgrind wrote a profile"))
    };
    let each = |number: usize| {
        let (few, many) = (count(number, TIMES.0), count(number, TIMES.1));
        (PARTS[number].0, many.saturating_sub(few) / (TIMES.1 - TIMES.0))
    };
    std::thread::scope(|scope| {
        let counting: Vec<_> = (0..PARTS.len()).map(|number| scope.spawn(move || each(number))).collect();
        counting.into_iter().map(|one| one.join().expect("it was counted")).collect()
    })
}

/// Returns the instructions of a profile, without those that gather entropy from
/// the jitter of the clock: their number varies by a million from run to run.
fn instructions(profile: &str) -> u64 {
    let (mut total, mut is_jitter, mut is_of_callee) = (0, false, false);
    for line in profile.lines() {
        if line.starts_with("fl=") || line.starts_with("fi=") || line.starts_with("fe=") {
            is_jitter = line.contains("jitterentropy");
        } else if line.starts_with("calls=") {
            // The next line has what the function called took, which is counted there.
            is_of_callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost: u64 = line.rsplit(' ').next().and_then(|cost| cost.parse().ok()).expect("a line with a cost");
            if !std::mem::take(&mut is_of_callee) && !is_jitter {
                total += cost;
            }
        }
    }
    assert!(total > 0, "callgrind wrote a profile without costs");
    total
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
    let (mut grown, mut is_over) = (Vec::new(), false);
    println!("{:<22} {:>12} {:>12}", "instructions for one", "baseline", "now");
    for (name, count) in counted {
        if let Some((_, most)) = LIMITS.iter().find(|(limited, most)| *limited == name && count > *most) {
            println!("{name} takes {count} instructions, and at most {most} were promised");
            is_over = !cfg!(debug_assertions);
        }
        let before: Option<u64> = baseline.get(name).and_then(|before| before.parse().ok());
        println!("{name:<22} {:>12} {count:>12}", before.map_or("none".to_owned(), |before| before.to_string()));
        if before.is_none_or(|before| has_grown(before, count)) {
            grown.push(name);
        }
    }
    if is_over {
        return ExitCode::FAILURE;
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
