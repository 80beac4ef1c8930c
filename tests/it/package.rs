//! The Debian package: built from the binary under test, checked by lintian, installed,
//! started, upgraded, removed and purged in a root of its own.
//!
//! dpkg runs the package's scripts without a chroot and tells them the root
//! (`DPKG_ROOT`), so neither a Debian tree nor a service manager is needed. Users other
//! than root get the owners of files from fakeroot.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use posthaste::config;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::servers::guard::free_port;
use crate::support::{Client, Receiver, eventually};

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(tree().join(path)).unwrap_or_else(|problem| panic!("{path}: {problem}"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command to its end; it must succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|problem| {
        panic!("{:?} cannot be run ({problem}): run ./check, which installs it", command.get_program())
    });
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Builds the package of the binary under test; returns its path.
fn build(revision: &str) -> String {
    let mut command = Command::new(tree().join("deploy/deb/build"));
    command.args(["--binary", env!("CARGO_BIN_EXE_posthaste"), "--revision", revision, "--compression", "gzip"]);
    run(command.args(["--to", concat!(env!("CARGO_TARGET_TMPDIR"), "/deb")])).trim().to_owned()
}

/// The package of the binary under test, which is built once.
fn package() -> &'static str {
    static PACKAGE: OnceLock<String> = OnceLock::new();
    PACKAGE.get_or_init(|| build("1"))
}

/// A root that packages are installed into, with nothing else in it.
struct ScratchRoot {
    folder: tempfile::TempDir,
}

impl ScratchRoot {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The package's own user must be able to go through it.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for path in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        std::fs::write(folder.path().join("var/lib/dpkg/status"), "").unwrap();
        Self { folder }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path.trim_start_matches('/'))
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_else(|problem| panic!("{path}: {problem}"))
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    fn dpkg(&self, args: &[&str]) -> String {
        let mut command = Command::new(if is_root() { "dpkg" } else { "fakeroot" });
        if !is_root() {
            command.arg("dpkg");
        }
        command.arg(format!("--root={}", self.folder.path().display()));
        command.arg(format!("--log={}", self.path("dpkg.log").display()));
        // What it depends on is on this machine, and not in the root.
        command.args(["--force-script-chrootless", "--force-depends", "--force-not-root", "--force-confold"]);
        let path = std::env::var("PATH").unwrap_or_default();
        run(command.args(args).env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null()))
    }

    /// The numbers of the user that the package has made.
    fn user(&self) -> (u32, u32) {
        let users = self.text("etc/passwd");
        let line = users.lines().find(|line| line.starts_with("posthaste:")).expect("the package makes a user");
        let fields: Vec<&str> = line.split(':').collect();
        (fields[2].parse().unwrap(), fields[3].parse().unwrap())
    }
}

/// The installed gateway, started as its unit says.
struct Installed {
    process: tokio::process::Child,
    client: Client,
}

impl Installed {
    async fn start(root: &ScratchRoot) -> Self {
        let unit = root.text("usr/lib/systemd/system/posthaste.service");
        let of_unit = |name: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            line.unwrap_or_else(|| panic!("the unit has no {name}")).to_owned()
        };
        let words: Vec<String> = of_unit("ExecStart").split(' ').map(str::to_owned).collect();
        let in_root =
            |word: &String| if word.starts_with('/') { root.path(word).display().to_string() } else { word.clone() };
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", &format!("umask {} && exec \"$@\"", of_unit("UMask")), "unit"]);
        if is_root() {
            let (user, group) = root.user();
            let drop = ["setpriv", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"];
            command.args(drop).args([format!("--reuid={user}"), format!("--regid={group}")]);
        }
        command.args(words.iter().map(in_root)).env_clear();
        let variables = root.text(of_unit("EnvironmentFile").trim_start_matches('-'));
        let variables = variables.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        command.envs(variables);
        // Where the scratch root is, and ports that are free, are the test's to say.
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        command
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .env("POSTHASTE_DATA", root.path("var/lib/posthaste"))
            .env("POSTHASTE_BACKUP_DIR", root.path("var/backups/posthaste"))
            .env("POSTHASTE_LISTEN", listen.to_string())
            .env("POSTHASTE_HEALTH_LISTEN", format!("127.0.0.1:{}", free_port()))
            .env("POSTHASTE_ALLOW_EGRESS", "127.0.0.0/8")
            .current_dir(root.path(&of_unit("WorkingDirectory")));
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        loop {
            let line = lines.next_line().await.unwrap().expect("it serves before it ends; see its log above");
            if line.contains("serves http://") {
                break;
            }
        }
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let client = Client::new(listen, root.text("var/lib/posthaste/admin-token").trim());
        Self { process, client }
    }

    async fn stop(mut self) {
        let id = rustix::process::Pid::from_raw(self.process.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        assert!(self.process.wait().await.unwrap().success());
    }
}

#[test]
fn lintian_finds_nothing_in_the_package() {
    let mut lintian = Command::new("lintian");
    // The package is not meant for Debian's own archive, where a first upload closes a wish.
    lintian.args(["--suppress-tags", "initial-upload-closes-no-bugs", "--fail-on", "error,warning"]);
    let found = run(lintian.arg(package()));
    let found: Vec<&str> = found.lines().filter(|line| !line.starts_with("N:")).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[tokio::test]
async fn the_package_is_installed_started_upgraded_and_purged() {
    let root = ScratchRoot::new();
    let receiver = Receiver::start().await;

    root.dpkg(&["--install", package()]);
    assert!(root.has("etc/systemd/system/multi-user.target.wants/posthaste.service"), "it is enabled");
    let data = root.path("var/lib/posthaste").metadata().unwrap();
    assert_eq!(data.mode() & 0o777, 0o700);
    assert_eq!(root.path("etc/posthaste").metadata().unwrap().mode() & 0o777, 0o750);
    let backups = root.path("var/backups/posthaste").metadata().unwrap();
    assert_eq!(backups.mode() & 0o777, 0o700);
    if is_root() {
        assert_eq!((data.uid(), data.gid()), root.user());
        assert_eq!((backups.uid(), backups.gid()), root.user());
    }

    let gateway = Installed::start(&root).await;
    let endpoint = json!({"url": receiver.url()});
    gateway.client.post_json("/v1/tenants/default/endpoints", &endpoint).await.expect(201);
    let event = json!({"id": "before", "type": "t", "data": 1});
    gateway.client.post_json("/v1/tenants/default/events", &event).await.expect(202);
    receiver.wait_for(1).await;
    gateway.client.post_json("/v1/backups", &json!({"name": "first"})).await.expect(202);
    eventually("the backup to be made", || async {
        let backup = gateway.client.get("/v1/backups/first").await.expect(200);
        if backup["state"] == "finished" { Ok(()) } else { Err(backup.to_string()) }
    })
    .await;
    gateway.stop().await;

    // An upgrade keeps what was accepted, and what the operator has changed.
    let settings = root.path("etc/posthaste/posthaste.toml");
    let edited = std::fs::read_to_string(&settings).unwrap().replace("#retention = ", "retention = \"7d\" # ");
    std::fs::write(&settings, &edited).unwrap();
    root.dpkg(&["--install", &build("2")]);
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), edited);
    assert!(root.text("var/lib/dpkg/status").contains("Version: ") && root.dpkg(&["--list"]).contains("-2 "));
    let gateway = Installed::start(&root).await;
    gateway.client.get("/v1/tenants/default/events/before").await.expect(200);
    let in_force = gateway.client.get("/v1/settings").await.expect(200);
    let retention = in_force["data"].as_array().unwrap().iter().find(|setting| setting["name"] == "retention").unwrap();
    assert_eq!((&retention["value"], &retention["origin"]), (&json!("7d"), &json!("file")));
    eventually("the delivery to be settled", || async {
        let page = gateway.client.get("/v1/tenants/default/events/before/deliveries").await.expect(200);
        if page["data"][0]["state"] == "delivered" { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    gateway.stop().await;
    assert_eq!(receiver.count(), 1, "an upgrade repeats nothing");

    root.dpkg(&["--remove", "posthaste"]);
    assert!(!root.has("usr/bin/posthaste") && root.has("etc/posthaste/posthaste.toml"));
    let told = root.dpkg(&["--purge", "posthaste"]);
    assert!(!root.has("etc/posthaste") && !root.has("etc/default/posthaste"));
    assert!(!root.has("etc/systemd/system/multi-user.target.wants/posthaste.service"));
    assert!(root.has("var/lib/posthaste/master-key"), "nobody has another copy of the key");
    assert!(root.has("var/backups/posthaste/first/manifest.json"), "backups are the operator's to remove");
    assert!(told.contains("has events and keys and is kept") && told.contains("has backups and is kept"), "{told}");
}

#[test]
fn a_package_that_never_ran_leaves_nothing_behind() {
    let root = ScratchRoot::new();
    root.dpkg(&["--install", package()]);
    root.dpkg(&["--purge", "posthaste"]);
    let left = run(Command::new("find").arg(root.folder.path()).args(["-name", "*posthaste*"]));
    assert_eq!(left, "", "the package is purged");
}

#[test]
fn the_package_has_what_the_binary_prints() {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new("dpkg-deb").args(["--extract", package()]).arg(folder.path()));
    let there = |path: &str| folder.path().join(path);
    let binary = there("usr/bin/posthaste");
    let help = run(Command::new(&binary).arg("--help"));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A description that is too long for its line goes on further to the right.
    let commands = commands.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let commands: Vec<&str> = commands.filter_map(|line| line.split(' ').next()).collect();
    assert!(commands.contains(&"serve") && commands.len() > 20, "{help}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        assert!(there(&format!("usr/share/man/man1/posthaste-{command}.1.gz")).is_file(), "{command} has a page");
    }
    let printed = run(Command::new(&binary).args(["completions", "bash"]));
    let shipped = std::fs::read_to_string(there("usr/share/bash-completion/completions/posthaste")).unwrap();
    assert_eq!(shipped, printed);
    // What is linked in has its licences in the package.
    let crates = run(Command::new("zcat").arg(there("usr/share/doc/posthaste/crates.gz")));
    for name in ["\ntokio-1.", "\nrusqlite-0.", "\nring-", "\nclap-4."] {
        assert_eq!(crates.contains(name), name != "\nring-", "{name}");
    }
    assert!(crates.contains("Permission is hereby granted"), "with their texts");
    let settings =
        Command::new(&binary).args(["config", "--config"]).arg(there("etc/posthaste/posthaste.toml")).output();
    let settings = said(&settings.unwrap());
    assert!(settings.contains("data = \"/var/lib/posthaste\"  # file"), "{settings}");
    // What the settings file names can be written under the unit, and is made by the package.
    assert!(settings.contains("backup-dir = \"/var/backups/posthaste\"  # file"), "{settings}");
    assert_eq!(unit()["ReadWritePaths"], ["-/var/backups/posthaste"]);
}

/// The settings of a unit, by name.
fn unit() -> BTreeMap<String, Vec<String>> {
    let mut settings = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in read("deploy/systemd/posthaste.service").lines().filter_map(|line| line.split_once('=')) {
        settings.entry(name.to_owned()).or_default().push(value.to_owned());
    }
    settings
}

#[test]
fn the_unit_is_sound_and_as_hard_as_the_docs_say() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("posthaste.service");
    let text = read("deploy/systemd/posthaste.service");
    std::fs::write(&file, text.replace("/usr/bin/posthaste", env!("CARGO_BIN_EXE_posthaste"))).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let verified = verify.args(["verify", "--man=no"]).arg(&file).output().expect("systemd is installed");
    assert!(verified.status.success() && said(&verified).is_empty(), "{}", said(&verified));
    let mut security = Command::new("systemd-analyze");
    let told = run(security.args(["--no-pager", "security", "--offline=true"]).arg(&file));
    let score = told.lines().find_map(|line| line.split_once("posthaste.service: ")).expect("a score").1;
    let score: f64 = score.split(' ').next().unwrap().parse().unwrap();
    // Other versions of systemd weigh some lines differently.
    let page = read("docs/install.md");
    let documented =
        page.split("exposure of ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a score in the docs");
    let documented: f64 = documented.parse().unwrap();
    assert!((score - documented).abs() < 0.5, "the unit scores {score}, and the docs say {documented}");
}

#[test]
fn the_unit_leaves_the_gateway_what_it_needs() {
    let unit = unit();
    let default = |name: &str| config::reference().into_iter().find(|setting| setting.name == name).unwrap().default;
    assert!(!unit.contains_key("ProcSubset"), "it reads /proc/pressure/cpu");
    let stop: u64 = unit["TimeoutStopSec"][0].trim_end_matches('s').parse().unwrap();
    let own: posthaste::model::span::Span = default("stop_timeout").parse().unwrap();
    assert!(stop >= own.0.as_secs() + 10, "a stop may take {own}");
    let files: usize = unit["LimitNOFILE"][0].parse().unwrap();
    let [connections, requests] =
        ["max_connections", "max_in_flight"].map(|name| default(name).parse::<usize>().unwrap());
    assert!(files >= connections + 2 * requests + 500);
    for family in ["AF_INET", "AF_INET6", "AF_UNIX"] {
        assert!(unit["RestrictAddressFamilies"][0].split(' ').any(|named| named == family), "{family}");
    }
}
