//! The files of `deploy` that nothing here can run: the image, the compose files and the
//! Kubernetes manifests. Their form is checked, and what they say to the program is
//! held against the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use posthaste::api::server_limits::{HEAD_BYTES_MAX, ServerLimits};
use posthaste::config;
use posthaste::model::span::Span;
use serde_json::Value;

/// Variables that are no settings: the command line reads them.
const OF_THE_COMMAND_LINE: &[&str] = &["POSTHASTE_TOKEN_FILE"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// Every file below a folder of `deploy`.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![deploy().join(folder)];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
}

/// The documents of a YAML file.
fn documents(path: &Path) -> Vec<Value> {
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = Command::new("python3").args(["-c", script]).arg(path).output().expect("python3 runs");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} is not read (Debian's python3-yaml, which ./check installs, is needed): {why}",
        path.display()
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn document(path: &str) -> Value {
    let mut all = documents(&deploy().join(path));
    assert_eq!(all.len(), 1, "{path}");
    all.remove(0)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is a text"))
}

fn default_of(setting: &str) -> String {
    config::reference().into_iter().find(|known| known.name == setting).unwrap().default
}

/// Checks that the program starts with these variables, as far as it can be told without a start.
fn check_variables(of: &str, variables: &BTreeMap<String, String>) {
    for name in variables.keys().filter(|name| name.starts_with("POSTHASTE_")) {
        let is_setting = config::reference().iter().any(|setting| setting.env == name);
        assert!(is_setting || OF_THE_COMMAND_LINE.contains(&name.as_str()), "{of}: {name} is no setting");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    let output = command.arg("config").env_clear().envs(variables).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{of}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_was_never_run_says_so_at_its_top() {
    let all = [vec![deploy().join("Dockerfile")], files("compose"), files("kubernetes")].concat();
    assert!(all.len() > 10);
    for path in all {
        let top: Vec<String> = text(&path).lines().take(4).map(str::to_owned).collect();
        assert!(top.iter().any(|line| line.starts_with("# Not run")), "{}", path.display());
    }
}

/// The instructions of a Dockerfile, each with its arguments on one line.
fn instructions() -> Vec<(String, String)> {
    let joined = text(&deploy().join("Dockerfile")).replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_once(' ').unwrap()).map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
}

#[test]
fn the_image_is_small_closed_and_checks_itself() {
    let all = instructions();
    let stages: Vec<usize> = all.iter().enumerate().filter(|(_, (name, _))| name == "FROM").map(|(n, _)| n).collect();
    assert_eq!(stages.len(), 2);
    let rust = text(&deploy().join("../Cargo.toml"));
    let rust = rust.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(all[stages[0]].1.starts_with(&format!("rust:{rust}-")), "it is built with the version of Cargo.toml");
    let last = &all[stages[1]..];
    let of = |name: &str| last.iter().filter(|(of, _)| of == name).map(|(_, rest)| rest.as_str()).collect::<Vec<_>>();
    assert!(of("RUN").is_empty(), "the last stage has no shell to run anything with");
    let [user] = of("USER")[..] else { panic!("one user") };
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().expect("a number, which Kubernetes can check")).collect();
    assert!(ids.iter().all(|id| *id > 10_000), "{user}");
    for (name, program) in [("ENTRYPOINT", 0), ("CMD", 0), ("HEALTHCHECK", 0)] {
        let rest = of(name)[program];
        let list = &rest[rest.find('[').unwrap_or_else(|| panic!("{name} needs a shell"))..];
        let words: Vec<String> = serde_json::from_str(list).unwrap();
        assert!(!words.is_empty());
    }
    let mut variables = BTreeMap::new();
    for (name, value) in of("ENV").into_iter().flat_map(str::split_whitespace).filter_map(|pair| pair.split_once('=')) {
        variables.insert(name.to_owned(), value.to_owned());
    }
    check_variables("Dockerfile", &variables);
    assert_eq!(of("VOLUME"), [variables["POSTHASTE_DATA"].as_str()]);
    let ports = of("EXPOSE")[0];
    for name in ["POSTHASTE_LISTEN", "POSTHASTE_HEALTH_LISTEN"] {
        assert!(ports.split(' ').any(|port| variables[name].ends_with(&format!(":{port}"))), "{name}");
    }
    for source in of("COPY").iter().flat_map(|rest| rest.split(' ')).filter_map(|word| word.strip_prefix("/source/")) {
        let is_there = deploy().join("..").join(source).exists() || source.starts_with("target/");
        assert!(is_there, "{source}");
    }
}

#[test]
fn the_compose_files_run_a_closed_image_with_settings_that_there_are() {
    let mut gateways = 0;
    for path in files("compose") {
        let (of, file) = (path.display().to_string(), documents(&path).remove(0));
        for (name, service) in file["services"].as_object().expect("services") {
            for mount in list(&service["volumes"]).iter().filter_map(|mount| word(mount).split_once(':')) {
                let is_file = mount.0.starts_with('.');
                let is_there = if is_file {
                    path.parent().unwrap().join(mount.0).exists()
                } else {
                    file["volumes"].as_object().is_some_and(|volumes| volumes.contains_key(mount.0))
                };
                assert!(is_there, "{of}: {name} mounts {}", mount.0);
            }
            for secret in list(&service["secrets"]) {
                assert!(file["secrets"][word(secret)]["file"].is_string(), "{of}: {name} has no secret {secret}");
            }
            for port in list(&service["ports"]) {
                assert!(word(port).starts_with("127.0.0.1:"), "{of}: {name} is open to others at {port}");
            }
            if service["image"] != "posthaste" {
                continue;
            }
            gateways += 1;
            assert_eq!(service["read_only"], true, "{of}: {name}");
            assert_eq!(list(&service["cap_drop"]), ["ALL"], "{of}: {name}");
            let stop: Span = word(&service["stop_grace_period"]).parse().unwrap();
            assert!(stop > default_of("stop_timeout").parse::<Span>().unwrap(), "{of}: {name}");
            let variables = service["environment"].as_object().unwrap().iter();
            check_variables(&of, &variables.map(|(name, value)| (name.clone(), word(value).to_owned())).collect());
        }
    }
    assert_eq!(gateways, 4, "one alone, and three on PostgreSQL");
    let watched = document("compose/watched.yml");
    let scraped = word(&watched["configs"]["prometheus"]["content"]);
    assert!(scraped.contains("posthaste:8401") && scraped.contains("/etc/prometheus/alerts.yml"));
}

/// The pod of a workload must be closed, and must stop in its own time.
fn check_pod(of: &str, workload: &Value) {
    let labels = &workload["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&workload["spec"]["selector"]["matchLabels"], labels, "{of}");
    let pod = &workload["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > default_of("stop_timeout").parse::<Span>().unwrap().0.as_secs(), "{of}");
    let security = &pod["securityContext"];
    assert_eq!((&security["runAsNonRoot"], &security["runAsUser"]), (&true.into(), &10_001.into()), "{of}");
    assert_eq!(security["fsGroup"], security["runAsGroup"], "{of}");
    assert_eq!(pod["automountServiceAccountToken"], false, "{of}");
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true, "{of}");
    assert_eq!(security["allowPrivilegeEscalation"], false, "{of}");
    assert_eq!(list(&security["capabilities"]["drop"]), ["ALL"], "{of}");
    assert_eq!(list(&container["args"]), ["serve"], "{of}");
    let ports: BTreeMap<&str, &Value> =
        list(&container["ports"]).iter().map(|port| (word(&port["name"]), &port["containerPort"])).collect();
    assert_eq!(ports, BTreeMap::from([("api", &8_400.into()), ("health", &8_401.into())]), "{of}");
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let get = &container[probe]["httpGet"];
        assert_eq!((word(&get["path"]), word(&get["port"])), (path, "health"), "{of}");
    }
    let variables = list(&container["env"]).iter();
    let variables: BTreeMap<String, String> =
        variables.map(|one| (word(&one["name"]).to_owned(), word(&one["value"]).to_owned())).collect();
    check_variables(of, &variables);
    let mounts: Vec<&str> = list(&container["volumeMounts"]).iter().map(|mount| word(&mount["mountPath"])).collect();
    for (name, path) in variables.iter().filter(|(_, value)| value.starts_with('/')) {
        assert!(mounts.iter().any(|mount| path.starts_with(mount)), "{of}: {name} is {path}, which is not mounted");
    }
}

#[test]
fn the_manifests_fit_together_and_fit_the_program() {
    for variant in ["embedded", "postgres"] {
        let kustomization = document(&format!("kubernetes/{variant}/kustomization.yaml"));
        let mut resources = Vec::new();
        for resource in list(&kustomization["resources"]).iter().map(word) {
            let path = deploy().join("kubernetes").join(variant).join(resource);
            assert!(path.exists(), "{variant}: {resource}");
            if path.is_file() {
                resources.extend(documents(&path));
            }
        }
        let common = document("kubernetes/common/kustomization.yaml");
        let files = list(&common["resources"]).iter().map(word);
        resources.extend(files.flat_map(|file| documents(&deploy().join("kubernetes/common").join(file))));
        let of_kind = |kind: &str| resources.iter().filter(|one| one["kind"] == kind).collect::<Vec<_>>();
        let workload = if variant == "embedded" { of_kind("StatefulSet") } else { of_kind("Deployment") };
        check_pod(variant, workload[0]);
        let labels = &workload[0]["spec"]["template"]["metadata"]["labels"];
        assert_eq!(&of_kind("Service")[0]["spec"]["selector"], labels);
        for policy in of_kind("NetworkPolicy") {
            assert_eq!(&policy["spec"]["podSelector"]["matchLabels"], labels);
            for target in list(&policy["spec"]["egress"]).iter().flat_map(|rule| list(&rule["to"])) {
                let block = &target["ipBlock"];
                let metadata = if block["cidr"] == "0.0.0.0/0" { "169.254.169.254/32" } else { "fd00:ec2::254/128" };
                assert!(block.is_null() || list(&block["except"]) == [metadata], "{target}");
            }
        }
        match variant {
            "embedded" => assert_eq!(workload[0]["spec"]["replicas"], 1, "one process may use a data directory"),
            _ => {
                let budget = of_kind("PodDisruptionBudget")[0];
                assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
                let volumes = list(&workload[0]["spec"]["template"]["spec"]["volumes"]);
                let secret = volumes.iter().find(|volume| volume["secret"].is_object()).unwrap();
                // YAML reads 0440 as 288: the group may read the key, and others may not.
                assert_eq!(secret["secret"]["defaultMode"], 0o440);
            }
        }
        assert_eq!(kustomization["images"][0]["newTag"], env!("CARGO_PKG_VERSION"), "{variant}");
    }
}

/// A volume of Kubernetes that is made for a pod may be written to by everybody, and the
/// gateway refuses that as its data directory.
#[test]
fn a_node_without_a_volume_of_its_own_has_a_directory_inside_the_shared_one() {
    let deployment = document("kubernetes/postgres/deployment.yaml");
    let pod = &deployment["spec"]["template"]["spec"];
    let volume = list(&pod["volumes"]).iter().find(|volume| volume["emptyDir"].is_object()).unwrap();
    let container = &pod["containers"][0];
    let mount = list(&container["volumeMounts"]).iter().find(|mount| mount["name"] == volume["name"]).unwrap();
    let data = list(&container["env"]).iter().find(|one| one["name"] == "POSTHASTE_DATA").unwrap();
    let (data, mount) = (word(&data["value"]), word(&mount["mountPath"]));
    assert!(data.starts_with(&format!("{mount}/")), "{data} is inside {mount}");
}

#[test]
fn the_settings_that_the_proxies_ask_for_are_settings() {
    for path in ["nginx/posthaste.conf", "caddy/Caddyfile", "haproxy/posthaste.cfg"] {
        let text = text(&deploy().join(path));
        let settings: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("#   ")).filter(|line| line.contains(" = ")).collect();
        assert!(settings.len() >= 3, "{path}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("posthaste.toml");
        std::fs::write(&file, settings.join("\n")).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_posthaste")).args(["config", "--config"]).arg(&file).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_limits_of_the_proxies_are_those_of_the_gateway() {
    let limits = ServerLimits::of(1);
    let (head_kib, head_s) = (HEAD_BYTES_MAX / 1_024, limits.head.as_secs());
    let (body, body_mib) = (limits.body_bytes_max, limits.body_bytes_max / (1_024 * 1_024));
    let expected = [
        (
            "nginx/posthaste.conf",
            [
                format!("client_max_body_size {body_mib}m;"),
                format!("large_client_header_buffers 4 {}k;", head_kib / 4),
                format!("client_header_timeout {head_s}s;"),
            ],
        ),
        (
            "caddy/Caddyfile",
            [
                format!("max_size {body_mib}MiB"),
                format!("max_header_size {head_kib}KiB"),
                format!("read_header {head_s}s"),
            ],
        ),
        (
            "haproxy/posthaste.cfg",
            [
                format!("req.body_size gt {body} "),
                format!("tune.bufsize {HEAD_BYTES_MAX}\n"),
                format!("timeout http-request {head_s}s"),
            ],
        ),
    ];
    for (path, lines) in expected {
        let text = text(&deploy().join(path));
        for line in lines {
            assert!(text.contains(&line), "{path} has no {line:?}");
        }
    }
}
