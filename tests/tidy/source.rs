//! The source files of the repository, as checks look at them.

use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A source file, by its path from the root of the repository.
pub struct Source {
    pub path: String,
    pub text: String,
}

impl Source {
    /// The module of the crate this file belongs to: `src/api/page.rs` is of
    /// `api`, `src/app.rs` of `app`.
    pub fn module(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path);
        inside.split(['/', '.']).next().unwrap_or_default()
    }

    /// How many modules deep the file is: `src/app.rs` is 1.
    pub fn depth(&self) -> usize {
        let folders = self.path.matches('/').count();
        if self.path.ends_with("/mod.rs") { folders - 1 } else { folders }
    }

    /// The text without comments, so that a link in one is not an import.
    pub fn code(&self) -> String {
        self.text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }
}

pub fn sources(folders: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|problem| panic!("{}: {problem}", folder.display())) {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).expect("source is text");
                let path = path.strip_prefix(root()).expect("below the root").display().to_string();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "there is source to look at");
    found
}

pub fn read(path: &str) -> String {
    let file = root().join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|problem| panic!("{path} is missing or cannot be read: {problem}"))
}

/// Fails with one line for each thing found.
#[track_caller]
pub fn expect_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}
