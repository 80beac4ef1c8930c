//! The setting that names the outboxes to relay.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};

use crate::model::database::DatabaseUrl;

/// The databases whose outboxes are relayed, with blanks between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxList {
    /// The URLs of the databases.
    Urls(Vec<DatabaseUrl>),
    /// Why the value cannot be used. [`Settings::check`](super::Settings::check)
    /// reports it instead of the parser, because clap prints the whole text that
    /// its parser refuses, and there may be a password in it.
    Wrong(String),
}

impl FromStr for OutboxList {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let urls: Result<Vec<DatabaseUrl>, String> = text.split_whitespace().map(str::parse).collect();
        Ok(urls.map_or_else(Self::Wrong, Self::Urls))
    }
}

impl fmt::Display for OutboxList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Urls(urls) = self else { return Ok(()) };
        f.write_str(&urls.iter().map(DatabaseUrl::to_string).collect::<Vec<_>>().join(" "))
    }
}

/// Returns the URLs of a setting and of a file that holds one per line.
pub(super) fn outbox_urls(given: &OutboxList, file: Option<&Path>) -> anyhow::Result<Vec<DatabaseUrl>> {
    let OutboxList::Urls(urls) = given else {
        let OutboxList::Wrong(why) = given else { return Ok(Vec::new()) };
        bail!("outbox is wrong: {why}");
    };
    let mut urls = urls.clone();
    if let Some(file) = file {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the URLs of outboxes from {}", file.display()))?;
        match text.parse::<OutboxList>().expect("a wrong list is a list") {
            OutboxList::Urls(read) => urls.extend(read),
            OutboxList::Wrong(why) => return Err(anyhow!("a URL in {} is wrong: {why}", file.display())),
        }
    }
    if let Some((n, twice)) = urls.iter().enumerate().find(|(n, url)| urls[..*n].contains(url)) {
        bail!("outbox {} is named twice: {twice}; name each database once", n + 1);
    }
    Ok(urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(text: &str) -> Result<Vec<String>, String> {
        let read = outbox_urls(&text.parse().unwrap(), None);
        read.map(|urls| urls.iter().map(DatabaseUrl::to_string).collect()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn several_outboxes_are_named_and_no_password_is_shown() {
        let text = "postgres://a:hush@db/one\n postgres://a:hush@x,y/two";
        assert_eq!(urls(text), Ok(vec!["postgres://a@db/one".into(), "postgres://a@x,y/two".into()]));
        let list: OutboxList = text.parse().unwrap();
        assert_eq!(list.to_string(), "postgres://a@db/one postgres://a@x,y/two");
        assert!(!format!("{list:?}").contains("hush"));
        assert_eq!(urls(""), Ok(vec![]));
    }

    #[test]
    fn what_cannot_be_relayed_is_refused_by_name() {
        let twice = urls("postgres://a:hush@db/one postgres://a:hush@db/one").unwrap_err();
        assert!(twice.contains("outbox 2 is named twice") && !twice.contains("hush"), "{twice}");
        let wrong = urls("postgres://a:hush@db/one mysql://a:hush@db").unwrap_err();
        assert!(wrong.contains("outbox is wrong: it is not a postgres URL") && !wrong.contains("hush"), "{wrong}");
    }

    #[test]
    fn a_file_adds_to_those_that_are_given() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "postgres://a:hush@db/two\n\npostgres://a:hush@db/three\n").unwrap();
        let all = outbox_urls(&"postgres://db/one".parse().unwrap(), Some(file.path())).unwrap();
        assert_eq!(all.len(), 3);
        let missing = outbox_urls(&"".parse().unwrap(), Some(Path::new("/no/such"))).unwrap_err().to_string();
        assert!(missing.contains("/no/such"), "{missing}");
    }
}
