//! `posthaste demo` as a real process: what it promises to show is there to see.

use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::PATIENCE;

/// A demo in a process of its own, and what it has printed.
struct Demo {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    printed: Vec<String>,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let mut process = command().arg("demo").args(args).stdout(Stdio::piped()).spawn().expect("the demo starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines, printed: Vec::new() }
    }

    /// Reads on until a line says this, or to the end.
    async fn read_until(&mut self, words: &str) {
        let reading = async {
            while let Some(line) = self.lines.next_line().await.expect("readable output") {
                let is_it = line.contains(words);
                self.printed.push(line);
                if is_it {
                    break;
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("it never said {words:?}"));
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.process.id().expect("it runs") as i32).expect("a process id");
        kill_process(id, signal).expect("it can be signalled");
    }

    /// Reads to the end; it must succeed. The folder that it says it has removed.
    async fn end(mut self) -> PathBuf {
        self.read_until("a line that is not there").await;
        assert!(self.process.wait().await.expect("it ends").success(), "{:#?}", self.printed);
        let last = self.printed.last().expect("it has printed");
        let folder = last.split("events; ").nth(1).and_then(|rest| rest.strip_suffix(" is removed"));
        folder.unwrap_or_else(|| panic!("the last line is {last:?}")).into()
    }
}

fn command() -> Command {
    let mut command = Command::new("env");
    // Whatever ignores hangups around the tests, as `nohup` does.
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_posthaste")]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"POSTHASTE_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn every_command_that_the_demo_suggests_works_when_pasted() {
    let mut demo = Demo::start(&[]);
    demo.read_until("--id mine-1").await;
    let text = demo.printed.join("\n");
    for words in ["fine", "flaky", "slow", "rate-limiting", "dying", "refusing", "It stops on Ctrl-C, and leaves"] {
        assert!(text.contains(words), "{words} is missing: {text}");
    }
    let export = demo.printed.iter().find(|line| line.starts_with("  export ")).expect("the environment").clone();
    let program = env!("CARGO_BIN_EXE_posthaste");
    let suggested: Vec<String> = demo.printed.iter().filter(|line| line.contains(program)).cloned().collect();
    assert_eq!(suggested.len(), 11, "{text}");
    let mut shown = String::new();
    for line in &suggested {
        let script = format!("set -e\n{export}\n{line} < /dev/null");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env_remove("POSTHASTE_TENANT").kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, shell.output()).await.expect("it ends").expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        shown += &said;
    }
    for words in ["answered 400", "customer-", "order.placed", "mine-1"] {
        assert!(shown.contains(words), "{words} is not shown: {shown}");
    }

    let folder = export.split("POSTHASTE_TOKEN_FILE=").nth(1).expect("a file").trim_matches('\'');
    let folder = PathBuf::from(folder).parent().expect("a folder").to_owned();
    assert!(folder.is_dir());
    demo.signal(Signal::INT);
    assert_eq!(demo.end().await, folder);
    assert!(!folder.exists(), "{} is left", folder.display());
}

#[tokio::test]
async fn a_demo_that_is_told_to_end_or_loses_its_terminal_removes_its_folder() {
    for signal in [Signal::TERM, Signal::HUP] {
        let mut demo = Demo::start(&[]);
        demo.read_until("--id mine-1").await;
        demo.signal(signal);
        let folder = demo.end().await;
        assert!(!folder.exists(), "{} is left after {signal:?}", folder.display());
    }
}

#[tokio::test]
async fn a_demo_ends_by_itself_when_its_time_is_over() {
    let folder = Demo::start(&["--for", "1s"]).end().await;
    assert!(!folder.exists(), "{} is left", folder.display());
}

#[tokio::test]
async fn a_demo_listens_on_this_machine_alone() {
    let mut refused = command();
    refused.args(["demo", "--listen", "0.0.0.0:0"]);
    let output = tokio::time::timeout(PATIENCE, refused.output()).await.expect("it ends").expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not an address of this machine alone"));
}
