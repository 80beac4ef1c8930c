//! The tour and the README, as a reader follows them: every command that a page
//! shows is run against a real gateway, and what it prints is compared with the page.
//!
//! Commands stand after `$ ` in blocks marked `console`, and what they print
//! below them. A block without a command is what the process started last
//! prints. A sentence that says to stop the receiver stops it. Ids, secrets,
//! times and durations are compared by their kind; an id or a secret of the
//! page stands for the same real one everywhere.
//!
//! Each page has a loopback address of its own, so the ports it names are free.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::support::{CapturedOutput, PATIENCE, eventually};

#[tokio::test]
async fn the_commands_of_the_tour_print_what_its_page_shows() {
    let steps = follow("docs/tour.md", 101).await;
    assert!(steps > 30, "the whole tour is there: {steps} steps");
}

#[tokio::test]
async fn the_commands_of_the_readme_print_what_it_shows() {
    let steps = follow("README.md", 102).await;
    assert!(steps >= 4, "its commands are there: {steps} steps");
}

/// Does what a page says, step by step; returns how many steps there were.
async fn follow(page: &str, second_byte: u8) -> usize {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).expect("a page");
    let mut reader = Reader::new(second_byte);
    let steps = steps(&text);
    for step in &steps {
        let place = format!("{page}:{}", step.line);
        match &step.kind {
            StepKind::StopReceiver => reader.stop_receiver().await,
            StepKind::Run { command, prints } => reader.run(&place, command, prints).await,
            StepKind::Look { prints } => reader.look(&place, prints).await,
        }
    }
    steps.len()
}

/// One thing a page asks of its reader.
struct Step {
    line: usize,
    kind: StepKind,
}

enum StepKind {
    /// Ctrl-C in the receiver's terminal.
    StopReceiver,
    /// A command, and what it prints; nothing, if the page does not show it.
    Run { command: String, prints: String },
    /// StepKind the process that was started last prints.
    Look { prints: String },
}

/// StepKind a page asks for, from its first line to its last.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut block, mut is_first, mut prose) = (None, false, String::new());
    for (line, text) in page.lines().enumerate().map(|(at, text)| (at + 1, text)) {
        let step = |kind| Step { line, kind };
        match (block, text.strip_prefix("```")) {
            (None, Some(kind)) => (block, is_first) = (Some(kind), true),
            (Some(_), Some(_)) => block = None,
            (None, None) if text.is_empty() => prose.clear(),
            (None, None) => {
                prose.push_str(text);
                prose.push(' ');
                let says_so = |words: &str| prose.contains(words);
                if says_so("Stop the ") && says_so("receiver") && says_so("Ctrl-C") {
                    steps.push(step(StepKind::StopReceiver));
                    prose.clear();
                }
            }
            (Some("sh"), None) if text.starts_with("cargo run ") => {
                steps.push(step(StepKind::Run { command: text.into(), prints: String::new() }));
            }
            // The shell's own words about its jobs.
            (Some("console"), None) if text == "^Z" || text.starts_with("[1]+") => {}
            (Some("console"), None) => {
                let last = steps.last_mut().map(|step| &mut step.kind);
                match (text.strip_prefix("$ "), last) {
                    (Some(command), _) => {
                        steps.push(step(StepKind::Run { command: command.into(), prints: String::new() }));
                    }
                    (None, Some(StepKind::Run { prints, .. } | StepKind::Look { prints })) if !is_first => {
                        prints.push_str(text);
                        prints.push('\n');
                    }
                    (None, _) => steps.push(step(StepKind::Look { prints: format!("{text}\n") })),
                }
                is_first = false;
            }
            (Some(_), None) => {}
        }
    }
    steps
}

/// Somebody who follows a page: a folder to be in, and terminals.
struct Reader {
    folder: TempDir,
    /// Stands for the page's 127.0.0.1.
    address: Ipv4Addr,
    gateway: Option<Child>,
    /// The one started last at the end.
    receivers: Vec<Child>,
    /// StepKind the process started last has printed.
    printed: CapturedOutput,
    /// The real one for each id and secret of the page.
    known: HashMap<String, String>,
    /// StepKind was assigned to variables of the shell.
    variables: String,
}

impl Reader {
    fn new(second_byte: u8) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let built = folder.path().join("target/release");
        std::fs::create_dir_all(&built).expect("a folder");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_posthaste"), built.join("posthaste")).expect("a link");
        let [.., high, low] = std::process::id().to_be_bytes();
        Self {
            folder,
            address: Ipv4Addr::new(127, second_byte, high, low.clamp(1, 254)),
            gateway: None,
            receivers: Vec::new(),
            printed: CapturedOutput::default(),
            known: HashMap::new(),
            variables: String::new(),
        }
    }

    async fn run(&mut self, place: &str, command: &str, prints: &str) {
        let real = self.known.iter().fold(command.to_owned(), |text, (page, real)| text.replace(page, real));
        let real = real.replace("127.0.0.1", &self.address.to_string());
        let real = real.replace("cargo run --release --", "./target/release/posthaste");
        if real.contains("posthaste serve") {
            self.start_gateway(&real).await;
            self.look(place, prints).await;
        } else if real.contains("posthaste listen") {
            self.start_receiver(&real).await;
            self.look(place, prints).await;
        } else if real == "kill -9 %1" {
            self.kill_gateway().await;
        } else if real.starts_with("TOKEN=") {
            self.variables.push_str(&format!("{real}\n"));
        } else {
            self.compare(place, &real, prints).await;
        }
    }

    /// Runs a command, if it only reads until it prints what the page shows.
    async fn compare(&mut self, place: &str, command: &str, prints: &str) {
        let only_reads = [" list", " get ", " explain ", " attempts ", " events deliveries ", " history "];
        let until = Instant::now() + PATIENCE;
        let wanted = NormalizedText::of(prints);
        loop {
            let found = NormalizedText::of(&self.output(place, command).await);
            if prints.is_empty() {
                return;
            }
            if found.text == wanted.text {
                return self.learn(place, wanted, found);
            }
            let may_change = only_reads.iter().any(|verb| command.contains(verb)) && Instant::now() < until;
            assert!(
                may_change,
                "{place}: {command}\n\nthe page shows\n{}\n\nit printed\n{}\n",
                wanted.text, found.text
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn output(&self, place: &str, command: &str) -> String {
        let output = self.command("sh").args(["-c", &format!("{}{command}", self.variables)]).output();
        let output = output.await.expect("there is a shell");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: {command}\n{said}");
        String::from_utf8(output.stdout).expect("text").replace(&self.address.to_string(), "127.0.0.1")
    }

    /// Ids and secrets of the page stand for the real ones, each for one.
    fn learn(&mut self, place: &str, page: NormalizedText, real: NormalizedText) {
        for (page, real) in page.names.into_iter().zip(real.names) {
            let known = self.known.entry(page.clone()).or_insert_with(|| real.clone());
            assert_eq!(*known, real, "{place}: {page} of the page is two different things");
        }
    }

    /// The process started last prints this sooner or later.
    async fn look(&self, place: &str, prints: &str) {
        let wanted = NormalizedText::of(prints).text;
        eventually(&format!("{place} to be printed:\n{wanted}\n"), async || {
            let found = NormalizedText::of(&self.printed.text().replace(&self.address.to_string(), "127.0.0.1")).text;
            if found.contains(&wanted) { Ok(()) } else { Err(format!("it printed\n{found}\n")) }
        })
        .await;
    }

    /// Starts the gateway in a terminal, which is where it shows its token.
    async fn start_gateway(&mut self, command: &str) {
        let inside = format!("echo $$ > gateway-pid; exec {command}");
        let mut terminal = self.command("script");
        terminal.args(["--quiet", "--flush", "--return", "--command", &inside, "/dev/null"]);
        let terminal = self.watch(&mut terminal);
        self.gateway = Some(terminal);
        self.look("the gateway", "INFO serving").await;
    }

    /// SIGKILL, and its end.
    async fn kill_gateway(&mut self) {
        let id = std::fs::read_to_string(self.folder.path().join("gateway-pid")).expect("it was started");
        signal(id.trim().parse().expect("a process id"), Signal::KILL);
        let mut terminal = self.gateway.take().expect("the page started a gateway");
        terminal.wait().await.expect("it ends");
    }

    async fn start_receiver(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        let (program, arguments) = words.split_first().expect("a command");
        let mut receiver = self.command(program);
        receiver.args(arguments);
        if !arguments.contains(&"--listen") {
            receiver.args(["--listen", &format!("{}:9000", self.address)]);
        }
        let receiver = self.watch(&mut receiver);
        self.receivers.push(receiver);
        self.look("the receiver", "listening on ").await;
    }

    async fn stop_receiver(&mut self) {
        let mut receiver = self.receivers.pop().expect("the page started a receiver");
        signal(receiver.id().expect("it runs") as i32, Signal::INT);
        receiver.wait().await.expect("it ends");
    }

    /// Starts a process and keeps what it prints from now on.
    fn watch(&mut self, command: &mut Command) -> Child {
        let mut process =
            command.stdout(Stdio::piped()).spawn().unwrap_or_else(|problem| panic!("{command:?}: {problem}"));
        self.printed = CapturedOutput::default();
        self.printed.clone().listen(process.stdout.take().expect("piped"));
        process
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command
            .current_dir(self.folder.path())
            .env("POSTHASTE_LISTEN", format!("{}:8400", self.address))
            .env("POSTHASTE_SERVER", format!("http://{}:8400", self.address))
            .env("NO_PROXY", "*")
            .env("HOME", self.folder.path())
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

impl Drop for Reader {
    /// Ends the gateway, which outlives the terminal that it was started in.
    fn drop(&mut self) {
        if self.gateway.is_some()
            && let Ok(id) = std::fs::read_to_string(self.folder.path().join("gateway-pid"))
            && let Some(id) = id.trim().parse().ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

fn signal(id: i32, signal: Signal) {
    kill_process(Pid::from_raw(id).expect("a process id"), signal).expect("it can be signalled");
}

/// A text without what differs from run to run.
struct NormalizedText {
    /// Names and times as their kind; any white space as one space.
    text: String,
    /// The ids and secrets in it, in order.
    names: Vec<String>,
}

impl NormalizedText {
    fn of(text: &str) -> Self {
        let (mut shape, mut names) = (String::new(), Vec::new());
        let mut rest = text.trim();
        while let Some(first) = rest.chars().next() {
            let is_inside_word = shape.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let (kind, length) = if is_inside_word { None } else { variable(rest, &shape) }.unwrap_or(("", 0));
            match kind {
                "" if first == '\x1b' => {
                    // Colours of the terminal.
                    rest = rest.split_once('m').map_or("", |(_, rest)| rest);
                }
                "" if first.is_whitespace() => {
                    rest = rest.trim_start();
                    shape.push(' ');
                }
                "" => {
                    rest = &rest[first.len_utf8()..];
                    shape.push(first);
                }
                _ => {
                    if !["time", "span", "count"].contains(&kind) {
                        names.push(rest[..length].to_owned());
                    }
                    rest = &rest[length..];
                    shape.push_str(&format!("<{kind}>"));
                }
            }
        }
        let text = shape.replace("<span> <span>", "<span>").replace("less than <span>", "<span>");
        let text =
            text.replace("(<span> ago)", "(<when>)").replace("(in <span>)", "(<when>)").replace("(now)", "(<when>)");
        // Colours are beside spaces that lines without them have as one.
        Self { text: text.split_whitespace().collect::<Vec<_>>().join(" "), names }
    }
}

/// StepKind at the beginning of a text differs from run to run: its kind and length.
fn variable(text: &str, before: &str) -> Option<(&'static str, usize)> {
    let run = |text: &str, is_part: fn(char) -> bool| text.find(|c| !is_part(c)).unwrap_or(text.len());
    let in_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let in_secret = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
    for (kind, prefix) in [("ep", "ep_"), ("dlv", "dlv_"), ("evt", "evt_")] {
        if let Some(rest) = text.strip_prefix(prefix).filter(|rest| run(rest, in_name) == 26) {
            return Some((kind, text.len() - rest.len() + 26));
        }
    }
    for (kind, prefix) in [("secret", "whsec_"), ("token", "pha_")] {
        if let Some(rest) = text.strip_prefix(prefix).filter(|rest| run(rest, in_secret) >= 32) {
            return Some((kind, text.len() - rest.len() + run(rest, in_secret)));
        }
    }
    let digits = run(text, |c| c.is_ascii_digit());
    if digits == 0 {
        return None;
    }
    // Requests that were open when a breaker opened may still fail.
    if before.ends_with("health.max_in_flight_now 1 health.consecutive_failures ") {
        return Some(("count", digits));
    }
    let length = run(text, |c| c.is_ascii_digit() || "-T:.Z".contains(c));
    if text[..length].parse::<jiff::Timestamp>().is_ok() {
        return Some(("time", length));
    }
    // A duration in quotes is a setting, unless it is an age.
    if before.ends_with('"') && !before.ends_with("age\":\"") {
        return None;
    }
    let number = run(text, |c| c.is_ascii_digit() || c == '.');
    let unit = text[number..].strip_prefix(' ').filter(|unit| unit.starts_with("ms")).unwrap_or(&text[number..]);
    let unit_length = run(unit, |c| c.is_alphanumeric());
    let length = text.len() - unit.len() + unit_length;
    ["ms", "s", "m", "h", "d"].contains(&&unit[..unit_length]).then_some(("span", length))
}

#[test]
fn a_shape_keeps_everything_but_names_and_times() {
    let shape = |text: &str| NormalizedText::of(text).text;
    assert_eq!(shape("dlv_01m7fwhwhbe008000000000003  customer-7 #3\n  dead"), "<dlv> customer-7 #3 dead");
    assert_eq!(shape("1  2026-11-15T15:17:24Z (6s ago)  7.829 ms  503"), "1 <time> (<when>) <span> 503");
    assert_eq!(shape("at 2026-11-15T15:17:24.069Z, in 1m 30s, 5 of 5"), "at <time>, in <span>, 5 of 5");
    assert_eq!(shape(r#"{"cooldown":"10s","oldest_due_age":"0s"}"#), r#"{"cooldown":"10s","oldest_due_age":"<span>"}"#);
    assert_eq!(shape("\x1b[2m2026-11-15T15:17:21.965353Z\x1b[0m \x1b[32m INFO\x1b[0m serving"), "<time> INFO serving");
    assert_eq!(
        NormalizedText::of("ep_01m7fwhnace5k82wmjdeyknevn whsec_56+O9HZrlT/6KvGCL6rvGBchNvgPNc95").names.len(),
        2
    );
}
