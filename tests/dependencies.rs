//! What the program is made of: licences, sources and versions of all crates,
//! asked of `cargo metadata` without a network; and the bill of materials that
//! `./check sbom` prints.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Licences that ask for nothing but their own text. Every crate must be
/// usable under these alone.
const LICENCES: [&str; 8] =
    ["0BSD", "Apache-2.0", "BSD-3-Clause", "CDLA-Permissive-2.0", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// The one place that crates come from.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates that are there in more than one version, because crates that we use
/// have not moved on yet. A further one needs a look first: can it be avoided?
const TWICE: [&str; 9] =
    ["base64", "bitflags", "const-oid", "fallible-iterator", "getrandom", "nom", "syn", "synstructure", "untrusted"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|problem| panic!("{path}: {problem}"))
}

/// Every crate that is built on this machine, tests included, and how they
/// depend on each other.
fn metadata() -> Value {
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc is there");
    let rustc = String::from_utf8(rustc.stdout).expect("it speaks text");
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).expect("it says for which machine it builds");
    // Crates of other platforms are not on this disk.
    let args = ["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host];
    let output = Command::new(env!("CARGO")).args(args).current_dir(root()).output().expect("cargo is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

fn packages(metadata: &Value) -> &[Value] {
    metadata["packages"].as_array().expect("packages")
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_else(|| panic!("{name} of {of}"))
}

/// Whether an SPDX expression can be met with the licences of the list. `AND`
/// binds closer than `OR`; old crates write `/` for it.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let is_allowed = any_of(&mut words);
    assert_eq!(words.next(), None, "{expression} can be read to its end");
    is_allowed
}

type LicenceTokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut LicenceTokens<'_>) -> bool {
    let mut is_allowed = all_of(words);
    while words.next_if_eq(&"OR").is_some() {
        is_allowed |= all_of(words);
    }
    is_allowed
}

fn all_of(words: &mut LicenceTokens<'_>) -> bool {
    let mut is_allowed = one(words);
    while words.next_if_eq(&"AND").is_some() {
        is_allowed &= one(words);
    }
    is_allowed
}

fn one(words: &mut LicenceTokens<'_>) -> bool {
    let word = words.next().expect("an expression does not end in the middle");
    if word == "(" {
        let is_allowed = any_of(words);
        assert_eq!(words.next(), Some(")"));
        return is_allowed;
    }
    // An exception would have to be read first.
    let has_exception = words.next_if_eq(&"WITH").is_some() && words.next().is_some();
    LICENCES.contains(&word) && !has_exception
}

#[test]
fn a_licence_expression_is_read_as_it_is_meant() {
    for allowed in [
        "MIT",
        "MIT OR GPL-3.0",
        "GPL-3.0/MIT",
        "(MIT OR GPL-3.0) AND ISC",
        "Apache-2.0 WITH LLVM-exception OR MIT",
        "GPL-3.0 AND MIT OR ISC",
    ] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in ["GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 AND (MIT OR ISC)", "Apache-2.0 WITH LLVM-exception", "mit"] {
        assert!(!is_allowed(refused), "{refused}");
    }
}

#[test]
fn every_crate_is_under_a_licence_of_the_list() {
    let metadata = metadata();
    let is_refused = |package: &&Value| !package["license"].as_str().is_some_and(is_allowed);
    let refused: Vec<String> = packages(&metadata)
        .iter()
        .filter(is_refused)
        .map(|package| format!("{} {}: {}", text(package, "name"), text(package, "version"), package["license"]))
        .collect();
    assert!(refused.is_empty(), "crates under other licences than those of the list: {refused:#?}");
    let words: BTreeSet<&str> = packages(&metadata)
        .iter()
        .filter_map(|package| package["license"].as_str())
        .flat_map(|licence| licence.split([' ', '/', '(', ')']))
        .collect();
    let unused: Vec<_> = LICENCES.iter().filter(|licence| !words.contains(**licence)).collect();
    assert!(unused.is_empty(), "licences of the list that no crate has: {unused:?}");
}

#[test]
fn every_crate_comes_from_crates_io() {
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let text = read(lock);
        let sources = text.lines().filter_map(|line| line.strip_prefix("source = "));
        let others: BTreeSet<&str> = sources.filter(|source| source.trim_matches('"') != CRATES_IO).collect();
        assert!(others.is_empty(), "{lock} has crates from elsewhere: {others:?}");
        assert!(text.matches("checksum = ").count() > 100, "{lock} says what each crate must be");
    }
    let metadata = metadata();
    let ours = |package: &&Value| package["source"].is_null();
    let ours: BTreeSet<&str> = packages(&metadata).iter().filter(ours).map(|package| text(package, "name")).collect();
    assert_eq!(
        ours,
        BTreeSet::from(["posthaste", "posthaste-client", "posthaste-receiver"]),
        "no other crate comes from a folder"
    );
}

#[test]
fn no_crate_is_there_twice_but_those_that_are_known() {
    let metadata = metadata();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages(&metadata) {
        versions.entry(text(package, "name")).or_default().push(text(package, "version"));
    }
    versions.retain(|_, versions| versions.len() > 1);
    let found: Vec<&str> = versions.keys().copied().collect();
    assert_eq!(found, TWICE, "what is there in several versions: {versions:#?}");
}

/// What the program is made of, as CycloneDX: what is built into it or builds
/// it, and nothing that only tests need. The same for the same `Cargo.lock`.
fn bill_of_materials(metadata: &Value, lock: &str) -> Value {
    let packages: HashMap<&str, &Value> =
        packages(metadata).iter().map(|package| (text(package, "id"), package)).collect();
    let nodes: HashMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("how they depend on each other")
        .iter()
        .map(|node| (text(node, "id"), node))
        .collect();
    let purl = |id: &str| format!("pkg:cargo/{}@{}", text(packages[id], "name"), text(packages[id], "version"));
    let needed = |id: &str| -> BTreeSet<&str> {
        let deps = nodes[id]["deps"].as_array().expect("dependencies").iter();
        let is_built_in =
            |dep: &&Value| dep["dep_kinds"].as_array().expect("kinds").iter().any(|kind| kind["kind"] != "dev");
        deps.filter(is_built_in).map(|dep| text(dep, "pkg")).collect()
    };
    let start = text(&metadata["resolve"], "root");
    let (mut reached, mut open) = (BTreeSet::from([start]), vec![start]);
    while let Some(id) = open.pop() {
        open.extend(needed(id).into_iter().filter(|next| reached.insert(next)));
    }
    let mut ids: Vec<&str> = reached.into_iter().collect();
    ids.sort_by_key(|id| purl(id));
    let component = |id: &str| {
        let (package, kind) = (packages[id], if id == start { "application" } else { "library" });
        let mut found = json!({
            "type": kind,
            "bom-ref": purl(id),
            "name": package["name"],
            "version": package["version"],
            "purl": purl(id),
            "licenses": [{"expression": text(package, "license").replace('/', " OR ")}],
        });
        let entry = format!("name = \"{}\"\nversion = \"{}\"\n", text(package, "name"), text(package, "version"));
        let entry = lock.split("[[package]]\n").find(|part| part.starts_with(&entry));
        let checksum = entry.and_then(|entry| entry.lines().find_map(|line| line.strip_prefix("checksum = ")));
        if let Some(checksum) = checksum {
            found["hashes"] = json!([{"alg": "SHA-256", "content": checksum.trim_matches('"')}]);
        }
        found
    };
    let dependencies: Vec<Value> = ids
        .iter()
        .map(|id| json!({"ref": purl(id), "dependsOn": needed(id).into_iter().map(purl).collect::<BTreeSet<_>>()}))
        .collect();
    let libraries: Vec<Value> = ids.iter().filter(|id| **id != start).map(|id| component(id)).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(start)},
        "components": libraries,
        "dependencies": dependencies,
    })
}

/// `./check sbom` names the file that it is then written to.
#[test]
fn the_bill_of_materials_names_everything_that_is_built_in() {
    let bill = bill_of_materials(&metadata(), &read("Cargo.lock"));
    assert_eq!((text(&bill, "bomFormat"), text(&bill, "specVersion")), ("CycloneDX", "1.5"));
    assert_eq!(bill["metadata"]["component"]["name"], "posthaste");
    let components = bill["components"].as_array().expect("components");
    let names: BTreeSet<&str> = components.iter().map(|component| text(component, "name")).collect();
    for built_in in ["tokio", "rusqlite", "libsqlite3-sys", "aws-lc-sys", "libmimalloc-sys", "cc"] {
        assert!(names.contains(built_in), "{built_in}");
    }
    for of_tests in ["insta", "proptest", "rcgen", "standardwebhooks"] {
        assert!(!names.contains(of_tests), "{of_tests} is not built in");
    }
    let mut known = BTreeSet::from([text(&bill["metadata"]["component"], "bom-ref")]);
    for component in components {
        let purl = text(component, "purl");
        assert!(known.insert(text(component, "bom-ref")), "{purl} is there once");
        let place = format!("pkg:cargo/{}@{}", text(component, "name"), text(component, "version"));
        assert_eq!((purl, text(component, "type")), (place.as_str(), "library"));
        // What is of this repository comes with it, and has no sum of its own.
        if !["posthaste-client", "posthaste-receiver"].contains(&text(component, "name")) {
            let hash = text(&component["hashes"][0], "content");
            assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{purl}: {hash}");
        }
        assert!(!text(&component["licenses"][0], "expression").contains('/'), "{purl}");
    }
    let dependencies = bill["dependencies"].as_array().expect("dependencies");
    assert_eq!(dependencies.len(), known.len(), "each says what it depends on");
    for dependency in dependencies {
        let named = dependency["dependsOn"].as_array().expect("a list").iter().chain([&dependency["ref"]]);
        let unknown: Vec<_> = named.filter(|one| !known.contains(one.as_str().expect("a name"))).collect();
        assert!(unknown.is_empty(), "{dependency} names what is not in the bill: {unknown:?}");
    }
    if let Some(file) = std::env::var_os("POSTHASTE_SBOM") {
        std::fs::write(file, format!("{bill:#}\n")).expect("the bill can be written");
    }
}

/// The name is in a program only if something in it is guarded, and Rust
/// guards nothing that way.
#[test]
fn the_c_that_is_built_in_guards_its_stack() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_posthaste")).expect("the program can be read");
    let name = b"__stack_chk_fail";
    assert!(
        program.windows(name.len()).any(|found| found == name),
        "SQLite and AWS-LC were built without -fstack-protector-strong; .cargo/config.toml sets it unless CFLAGS is set"
    );
}

/// A `cargo` that answers to `audit` as it is told, and to nothing else.
fn advisories(says: &str, code: i32) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = folder.path().join("cargo");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = audit ] || exit 9\n[ \"$2\" = --version ] && exit 0\necho \"{says}\" >&2\nexit {code}\n"
    );
    std::fs::write(&cargo, script).expect("a file");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("a file of our own");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let ran = Command::new("./check").arg("advisories").env("PATH", path).current_dir(root()).output();
    let output = ran.expect("bash is there");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn advisories_are_green_only_when_the_list_was_read_and_names_nothing() {
    let (is_green, said) = advisories("Scanning Cargo.lock for vulnerabilities", 0);
    assert!(is_green && said.contains("no advisory"), "{said}");
    let (is_green, said) = advisories("error: couldn't fetch advisory database: git operation failed", 1);
    assert!(!is_green && said.contains("the list of advisories could not be fetched"), "{said}");
    let (is_green, said) = advisories("error: 1 vulnerability found!", 1);
    assert!(!is_green && said.contains("1 vulnerability") && said.contains("concern crates of Cargo.lock"), "{said}");
}
