//! Runs a server beside the tests, as a user other than root, and ends it with
//! them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A folder, and a server that works in it. Both are removed when the guard is
/// dropped, and also when the test process ends in any way.
pub struct Guard {
    folder: PathBuf,
    server_shell: Mutex<ServerShell>,
}

/// The shell that runs the server, and the pipes to it.
struct ServerShell {
    shell: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    server: Option<u32>,
}

impl Guard {
    /// Creates a guard of a server in this folder; it is not started yet.
    pub fn new(folder: PathBuf, server: &Command) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", include_str!("guard.sh"), "guard"]).arg(&folder);
        shell.arg(server.get_program()).args(server.get_args());
        // In a group of its own, so that Ctrl-C ends the tests first.
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut shell = shell.spawn().expect("there is a shell");
        let commands = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().expect("piped"));
        Self { folder, server_shell: Mutex::new(ServerShell { shell, commands, answers, server: None }) }
    }

    /// Starts the server; the caller checks whether it serves.
    pub async fn start(self: &Arc<Self>) {
        self.send_command("start").await;
    }

    /// Sends SIGINT to the server and waits for its end.
    pub async fn stop(self: &Arc<Self>) {
        self.send_command("stop").await;
    }

    /// Sends SIGKILL to the server and all its children.
    pub async fn kill(self: &Arc<Self>) {
        self.send_command("kill").await;
    }

    /// Whether the server was started and has ended by itself.
    pub fn has_ended(&self) -> bool {
        let Some(server) = self.server_shell.lock().expect("nothing panics while it is held").server else {
            return false;
        };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{server}/stat")) else { return true };
        // The state follows the name, which is in parentheses.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
    }

    /// Returns the last lines of the server's log.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    async fn send_command(self: &Arc<Self>, command: &'static str) {
        let guard = self.clone();
        let sending = tokio::task::spawn_blocking(move || {
            let mut server_shell = guard.server_shell.lock().expect("nothing panics while it is held");
            let commands = server_shell.commands.as_mut().expect("it is there until the guard is dropped");
            writeln!(commands, "{command}").expect("the guard listens");
            let mut answer = String::new();
            server_shell.answers.read_line(&mut answer).expect("the guard answers");
            server_shell.server = answer.trim().parse().ok();
        });
        sending.await.expect("it is said");
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let server_shell = self.server_shell.get_mut().expect("nothing panics while it is held");
        // The shell ends when its input does.
        server_shell.commands = None;
        let _ = server_shell.shell.wait();
    }
}

/// Returns a command that is not run as root, because servers refuse that.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
    command
}

/// Creates a folder that such a command may write to, with these files in it.
pub fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = tempfile::Builder::new().prefix(name).tempdir().expect("a folder").keep();
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a file of our own");
    }
    if is_root() {
        let owned = Command::new("chown").args(["-R", "postgres:"]).arg(&folder).status().expect("there is chown");
        assert!(owned.success(), "the user postgres is missing: install Debian's package postgresql, or run ./check");
    }
    folder
}

/// Returns a port that is free now, that neither another test nor an outgoing
/// connection takes while its server is stopped, and that no known service
/// uses.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = rand::random_range(12_000..27_000);
        let is_new = GIVEN.lock().expect("nothing panics while it is held").insert(port);
        if is_new && is_free(port) {
            return port;
        }
    }
}

/// Whether nobody listens on a port. The socket is bound and does not listen: a process
/// that is being started keeps a copy of it for a moment, which would keep the port.
fn is_free(port: u16) -> bool {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option");
    socket.bind((Ipv4Addr::LOCALHOST, port).into()).is_ok()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
