//! Keeps names, sentences and files plain: one name for one thing, comments
//! that say something, files and functions that can be read in one go, and no
//! imports in a circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, expect_none, sources};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 60;
const DOC_WORDS_MIN: usize = 3;
/// Most columns of a query that may be read by their position.
const COLUMNS_BY_POSITION_MAX: usize = 3;
/// Most values of a statement that may be bound by their position.
const VALUES_BY_POSITION_MAX: usize = 6;
/// Files that call a stored function, whose parameters are named beside the call.
const CALLS_BY_POSITION: &[&str] = &["src/store/postgres/overdue.rs"];

/// Type names that every module may have for itself.
const COMMON_TYPES: &[&str] = &["Error", "Result"];

/// Functions that are tables, or are made by a macro from one.
const TABLES: &[(&str, &str)] = &[
    ("src/api/problem.rs", "explanation"),
    ("src/api/problem.rs", "status"),
    ("src/api/problem.rs", "title"),
    ("src/metrics/mod.rs", "new"),
    ("src/store/postgres/import_tables.rs", "all"),
];

/// Source files with their tests left out.
fn programs() -> Vec<Source> {
    let is_test = |path: &str| path.ends_with("tests.rs");
    let files = sources(&["src", "client/src", "receiver/src"]).into_iter().filter(|source| !is_test(&source.path));
    files
        .map(|source| {
            let text = without_tests(&source.text);
            Source { text, ..source }
        })
        .collect()
}

/// Files of tests, which are programs of their own.
fn tests() -> Vec<Source> {
    sources(&["tests", "client/tests", "receiver/tests"])
}

/// The crate that a file belongs to: a package, or a folder of tests. Each has words
/// of its own.
fn crate_of(path: &str) -> &str {
    match path.split_once("src/") {
        Some((package, _)) => package,
        None => path.rsplit_once("tests/").map_or(path, |(before, rest)| {
            let folder = rest.split('/').next().unwrap_or_default();
            &path[..before.len() + "tests/".len() + folder.len()]
        }),
    }
}

/// A file without its test modules: the line of one that is a file of its own, and
/// everything from one that stands in the file on, since tests come last.
fn without_tests(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let tested = lines.peek().filter(|_| line == "#[cfg(test)]").map(|next| next.trim_start_matches("pub "));
        match tested.filter(|item| item.starts_with("mod ")) {
            Some(module) if module.ends_with('{') => break,
            Some(_) => drop(lines.next()),
            None => kept.push(line),
        }
    }
    kept.join("\n")
}

/// The name of a type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub(super) ")).unwrap_or(line);
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|keyword| line.strip_prefix(keyword))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The names of types that a line inside `row!`, `insert!` or `batch!` declares:
/// a row, and in a batch also the struct of its rows.
fn types_in_macro(line: &str) -> Vec<&str> {
    let Some(line) = line.strip_prefix("    ") else { return Vec::new() };
    let line = line.trim_start().trim_start_matches("pub ");
    let (stores, is_row) = match line.split_once(' ') {
        Some(("sqlite" | "postgres" | "both", rest)) => (rest, true),
        _ => (line, false),
    };
    let Some(rest) = stores.strip_prefix("struct ") else { return Vec::new() };
    let words: Vec<&str> = rest.split_whitespace().collect();
    match words[..] {
        [name, ..] if is_row => vec![name],
        [name, "into", ..] => vec![name],
        [name, "of", _, "by", ..] => vec![name],
        [name, "of", "new", row, ..] => vec![name, row],
        [name, "of", ..] => vec![name],
        _ => Vec::new(),
    }
}

/// The names that a file gives to macros of its own which make types: what such a call
/// begins a line with.
fn types_by_macro(text: &str) -> Vec<&str> {
    let mut makers: Vec<&str> = Vec::new();
    let mut defined = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("macro_rules! ") {
            defined = rest.split([' ', '{', '(']).next();
        } else if line == "}" {
            defined = None;
        } else if ["struct $name", "enum $name"].iter().any(|made| line.contains(made)) {
            makers.extend(defined);
        }
    }
    let (mut names, mut is_call) = (Vec::new(), false);
    for line in text.lines() {
        let call = line.split_once('!').filter(|(name, _)| makers.contains(name)).map(|(_, rest)| rest);
        is_call = (is_call || call.is_some()) && !line.starts_with(['}', ')']);
        let argument = call.unwrap_or(line).trim_start_matches([' ', '(', '{']);
        if is_call && argument.starts_with(char::is_uppercase) {
            names.extend(argument.split(|c: char| !c.is_alphanumeric()).next());
        }
        is_call &= !line.ends_with(");");
    }
    names
}

#[test]
fn a_type_name_stands_for_one_thing() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in programs().into_iter().chain(tests()) {
        let by_line = |line| declared_type(line).into_iter().chain(types_in_macro(line));
        let names = source.text.lines().flat_map(by_line).chain(types_by_macro(&source.text));
        for name in names.filter(|name| !name.starts_with('$')) {
            places.entry(format!("{}: {name}", crate_of(&source.path))).or_default().push(source.path.clone());
        }
    }
    assert!(places.contains_key(": EndpointId") && places.contains_key("tests/it: Gateway"));
    assert!(places.len() > 300, "only {} types were found", places.len());
    let wrong = places
        .into_iter()
        .filter(|(name, places)| {
            places.len() > 1 && !COMMON_TYPES.iter().any(|common| name.ends_with(&format!(": {common}")))
        })
        .map(|(name, places)| format!("{name}: {}", places.join(", ")));
    expect_none("type names that stand for more than one thing", wrong.collect());
}

#[test]
fn a_doc_comment_says_something() {
    let mut wrong = Vec::new();
    for source in sources(&["src", "client", "receiver", "tests", "fuzz"]) {
        let mut words = 0;
        for (n, line) in source.text.lines().enumerate() {
            match line.trim_start().strip_prefix("///") {
                Some(text) => words += text.split_whitespace().count().max(1),
                None if (1..DOC_WORDS_MIN).contains(&words) => {
                    wrong.push(format!("{}:{n}", source.path));
                    words = 0;
                }
                None => words = 0,
            }
        }
    }
    expect_none(&format!("doc comments of fewer than {DOC_WORDS_MIN} words"), wrong);
}

#[test]
fn no_file_is_too_long_to_read() {
    let lines = |source: &Source| source.text.lines().count();
    let wrong = programs()
        .into_iter()
        .filter(|source| lines(source) > FILE_LINES_MAX)
        .map(|source| format!("{}: {} lines without its tests", source.path, lines(&source)));
    expect_none(&format!("files longer than {FILE_LINES_MAX} lines; find the second noun in them"), wrong.collect());
}

/// The functions of a file, with how many lines each has.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let is_function = before.split_whitespace().all(|word| {
            word.starts_with("pub") || ["async", "const", "unsafe", "extern", "super)", "crate)"].contains(&word)
        });
        if !is_function || code.ends_with(';') {
            continue;
        }
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let end = format!("{indent}}}");
        if let Some(length) = lines[n..].iter().position(|line| *line == end) {
            found.push((name, length + 1));
        }
    }
    found
}

#[test]
fn no_function_is_too_long_to_read() {
    let mut wrong = Vec::new();
    for source in programs() {
        for (name, length) in functions(&source.text) {
            let is_table = TABLES.contains(&(source.path.as_str(), name.as_str()));
            if length > FUNCTION_LINES_MAX && !is_table {
                wrong.push(format!("{}: {name} has {length} lines", source.path));
            }
        }
    }
    expect_none(&format!("functions longer than {FUNCTION_LINES_MAX} lines"), wrong);
}

/// The position that a line reads a column by, if it reads one by its position.
fn column_position(line: &str) -> Option<usize> {
    let (_, rest) = line.rsplit_once(".get(").or_else(|| line.rsplit_once(".get::<"))?;
    let rest = rest.split_once(">(").map_or(rest, |(_, rest)| rest);
    rest.split_once(')')?.0.parse().ok()
}

#[test]
fn a_column_behind_the_third_is_read_by_its_name() {
    let mut wrong = Vec::new();
    for source in sources(&["src/store"]) {
        let lines = source.text.lines().enumerate();
        let lines = lines.filter(|(_, line)| column_position(line).is_some_and(|n| n >= COLUMNS_BY_POSITION_MAX));
        wrong.extend(lines.map(|(n, _)| format!("{}:{}", source.path, n + 1)));
    }
    expect_none("columns read by their position; write row!, or get them by name", wrong);
    assert_eq!(column_position("    head: row.get(4),"), Some(4));
    assert_eq!(column_position("    let bytes = row.get::<_, i64>(12)?.cast_unsigned();"), Some(12));
    assert_eq!(column_position("    let key = row.get(\"key\");"), None);
}

/// The lists of values that a macro such as `bind!` binds by position in a text: the
/// place of each, and how many values it has.
fn bound_lists(text: &str, bind: &str) -> Vec<(usize, usize)> {
    let lists = text.match_indices(bind).map(|(start, _)| {
        let (mut depth, mut count, mut has_value) = (1, 0, false);
        for c in text[start + bind.len()..].chars() {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                ',' if depth == 1 => count += usize::from(std::mem::take(&mut has_value)),
                _ => has_value |= !c.is_whitespace(),
            }
            if depth == 0 {
                break;
            }
        }
        (start, count + usize::from(has_value))
    });
    lists.collect()
}

#[test]
fn a_statement_with_many_values_names_them() {
    let mut wrong = Vec::new();
    for source in sources(&["src/store"]).into_iter().filter(|source| !CALLS_BY_POSITION.contains(&&*source.path)) {
        let lists = ["bind![", "params!["].into_iter().flat_map(|bind| bound_lists(&source.text, bind));
        for (start, count) in lists.filter(|(_, count)| *count > VALUES_BY_POSITION_MAX) {
            let line = source.text[..start].lines().count();
            wrong.push(format!("{}:{line}: {count} values", source.path));
        }
    }
    expect_none("values bound by their position; write insert! or update!, or use by_name! or named_params!", wrong);
    assert_eq!(bound_lists("execute(bind![a, f(b, [c]),\n    d,\n]) bind![]", "bind!["), [(8, 3), (38, 0)]);
}

/// Whether a line is the arm of a match on a boolean.
fn is_boolean_arm(line: &str) -> bool {
    let line = line.trim_start();
    let rest = line.strip_prefix("true ").or_else(|| line.strip_prefix("false "));
    rest.is_some_and(|rest| rest.starts_with("=> ") || rest.starts_with("if "))
}

#[test]
fn a_boolean_is_asked_by_if() {
    let mut wrong = Vec::new();
    for source in sources(&["src", "client/src", "receiver/src"]) {
        let lines = source.text.lines().enumerate().filter(|(_, line)| is_boolean_arm(line));
        wrong.extend(lines.map(|(n, _)| format!("{}:{}", source.path, n + 1)));
    }
    expect_none("matches on a boolean; write if and else", wrong);
    assert!(is_boolean_arm("        false if text.is_empty() => 1,") && is_boolean_arm("true => 1,"));
    assert!(!is_boolean_arm("(true, _) => 1,"));
}

/// The modules of a folder: its files and its subfolders.
fn modules(folder: &str, files: &[Source]) -> BTreeSet<String> {
    let inside = |source: &Source| {
        let rest = source.path.strip_prefix(folder)?.strip_prefix('/')?;
        let name = rest.split('/').next()?.trim_end_matches(".rs");
        (name != "mod").then(|| name.to_owned())
    };
    files.iter().filter_map(inside).collect()
}

/// Which of these modules each of them imports, by whatever path.
fn imports(folder: &str, modules: &BTreeSet<String>, files: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let inside = folder.strip_prefix(crate_of(folder)).unwrap_or_default().trim_start_matches('/');
    let inside = inside.strip_prefix("src").unwrap_or(inside).trim_start_matches('/').replace('/', "::");
    let by_crate = if inside.is_empty() { "crate::".to_owned() } else { format!("crate::{inside}::") };
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in files {
        let Some(rest) = source.path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else { continue };
        let module = rest.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let up = rest.matches('/').count() + usize::from(!rest.ends_with("/mod.rs"));
        let code = source.code();
        for path in [by_crate.clone(), "super::".repeat(up)] {
            let names = crate::names_after(&code, &path).into_iter();
            let siblings = names.filter(|name| name != module && modules.contains(name));
            found.entry(module.to_owned()).or_default().extend(siblings);
        }
    }
    found.remove("mod");
    found
}

/// The modules that a module can be reached from again by following imports.
fn circle_of(module: &str, imports: &BTreeMap<String, BTreeSet<String>>) -> Option<BTreeSet<String>> {
    let reached_from = |start: &str| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![start.to_owned()]);
        while let Some(next) = open.pop() {
            for import in imports.get(&next).into_iter().flatten() {
                if reached.insert(import.clone()) {
                    open.push(import.clone());
                }
            }
        }
        reached
    };
    let reached = reached_from(module);
    reached.contains(module).then(|| reached.into_iter().filter(|other| reached_from(other).contains(module)).collect())
}

#[test]
fn no_modules_of_a_folder_import_each_other_in_a_circle() {
    // What a test shows of a module is no part of it, and `main.rs` holds the others.
    let files: Vec<Source> =
        programs().into_iter().chain(tests()).filter(|source| !source.path.ends_with("/main.rs")).collect();
    let mut folders: BTreeSet<String> = BTreeSet::new();
    for source in &files {
        let parts: Vec<&str> = source.path.split('/').collect();
        folders.extend((2..parts.len()).map(|depth| parts[..depth].join("/")));
    }
    assert!(folders.contains("src/store/postgres") && folders.contains("tests/it/support"), "{folders:?}");
    let mut wrong = BTreeSet::new();
    for folder in folders.iter().filter(|folder| !folder.ends_with("/tests") && *folder != "tests") {
        let modules = modules(folder, &files);
        let imports = imports(folder, &modules, &files);
        for circle in modules.iter().filter_map(|module| circle_of(module, &imports)) {
            wrong.insert(format!("{folder}: {}", circle.into_iter().collect::<Vec<_>>().join(", ")));
        }
    }
    expect_none("modules that import each other in a circle", wrong.into_iter().collect());
}

#[test]
fn circles_and_lengths_are_found() {
    let file = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let files = [
        file("src/a/one.rs", "use super::two::Two;"),
        file("src/a/two/mod.rs", "use crate::a::{three, other};"),
        file("src/a/three.rs", "fn f() { super::one::g() }"),
        file("src/a/four.rs", "use super::one::One;"),
    ];
    let imports = imports("src/a", &modules("src/a", &files), &files);
    let circle = circle_of("one", &imports).map(|circle| circle.into_iter().collect::<Vec<_>>());
    assert_eq!(circle, Some(vec!["one".to_owned(), "three".to_owned(), "two".to_owned()]));
    assert_eq!(circle_of("four", &imports), None, "it imports a circle and is not in it");
    let files = [file("tests/it/one.rs", "use crate::two::Two;"), file("tests/it/two.rs", "use crate::one::One;")];
    let imports = self::imports("tests/it", &modules("tests/it", &files), &files);
    assert_eq!(circle_of("one", &imports).map(|circle| circle.len()), Some(2));
    assert_eq!((crate_of("tests/it/support/dns.rs"), crate_of("client/src/lib.rs")), ("tests/it", "client/"));
    assert_eq!(crate_of("receiver/tests/kit/main.rs"), "receiver/tests/kit");
    let text = "macro_rules! made {\n    ($name:ident) => { pub struct $name; };\n}\nmade!(One);\nmade!(\n    /// The other.\n    Two, Three\n);\nFour!();\n";
    assert_eq!(types_by_macro(text), ["One", "Two"]);
    let text =
        "impl A {\n    pub(super) async fn long(\n        a: u8,\n    ) {\n        a\n    }\n}\nfn short() {\n}\n";
    assert_eq!(functions(text), [("long".to_owned(), 5), ("short".to_owned(), 2)]);
    assert_eq!(declared_type("pub(super) struct Lane<'a> {"), Some("Lane"));
    assert_eq!(declared_type("    struct Inside;"), None);
    assert_eq!(types_in_macro("    pub both struct LaneColumns {"), ["LaneColumns"]);
    assert_eq!(types_in_macro("    struct NewLane into \"lanes\" {"), ["NewLane"]);
    assert_eq!(types_in_macro("    pub struct Lanes of new LaneToAdd {"), ["Lanes", "LaneToAdd"]);
    let text = "mod a;\n\n#[cfg(test)]\nmod tests;\n\nstruct A;\n\n#[cfg(test)]\nmod others {\n    struct B;\n}\n";
    assert_eq!(without_tests(text), "mod a;\n\n\nstruct A;\n");
    assert!(types_in_macro("    struct Inside;").is_empty() && types_in_macro("struct Outside;").is_empty());
}
