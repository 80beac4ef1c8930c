//! The URL of the PostgreSQL database that nodes share.
//!
//! It is displayed without its password.

use std::fmt;
use std::str::FromStr;

/// A PostgreSQL URL, written like `postgres://user:password@db.example.com:5432/posthaste?sslmode=verify-full`.
///
/// `Display` and `Debug` leave the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    written: String,
    /// URL without the password.
    shown: String,
    /// Host, port, database and user in words.
    description: String,
    params: Vec<(String, String)>,
}

const EXAMPLE: &str = "write it like postgres://user:password@db.example.com:5432/posthaste";

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

impl DatabaseUrl {
    /// Returns the URL as written, with the password: for connecting, never for display.
    pub fn reveal(&self) -> &str {
        &self.written
    }

    /// Returns host, port, database and user in words.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the value of a parameter after the `?`.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the URL as written, with the password, but without these parameters.
    pub fn reveal_without(&self, names: &[&str]) -> String {
        let (base, query) = self.written.split_once('?').unwrap_or((&self.written, ""));
        let is_left = |pair: &&str| !names.contains(&pair.split('=').next().unwrap_or_default());
        let pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).filter(is_left).collect();
        if pairs.is_empty() { base.to_owned() } else { format!("{base}?{}", pairs.join("&")) }
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    /// Parses the URL. An error repeats nothing of the text that could be part of
    /// a password.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme));
        let scheme = scheme.ok_or_else(|| format!("it is not a postgres URL; {EXAMPLE}"))?;
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("there is a blank in it; write special characters like %20".into());
        }
        let rest = &text[scheme.len()..];
        let (before, query) = rest.split_once('?').map_or((rest, None), |(before, query)| (before, Some(query)));
        let (authority, database) = before.split_once('/').unwrap_or((before, ""));
        // One of these characters inside a password would move the rest of it
        // into another part, such as the host name, where it would be shown.
        let is_ambiguous = authority.matches('@').count() > 1
            || database.contains(['@', '/'])
            || query.is_some_and(|query| query.contains(['@', '?']));
        if is_ambiguous {
            return Err(
                "it has a /, ? or @ in an odd place; write such characters in a password like %2F, %3F and %40".into(),
            );
        }
        let (credentials, hosts) = authority.split_once('@').unwrap_or(("", authority));
        let user = credentials.split(':').next().unwrap_or_default();
        for host in hosts.split(',') {
            check_port(host)?;
        }
        let params = params(query.unwrap_or_default())?;
        let given = |name: &str| params.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let hosts = Some(hosts).filter(|hosts| !hosts.is_empty()).or(given("host")).or(given("hostaddr"));
        let hosts = hosts.ok_or_else(|| format!("it names no host; {EXAMPLE}"))?;
        let user = Some(user).filter(|user| !user.is_empty()).or(given("user"));
        let database = Some(database).filter(|name| !name.is_empty()).or(given("dbname")).or(user);
        let description = format!(
            "{}, database {}, user {}",
            with_ports(hosts, given("port")),
            database.unwrap_or("(the user's)"),
            user.unwrap_or("(of this process)")
        );
        let hidden = |pair: &&str| !matches!(pair.split('=').next(), Some("password" | "sslpassword"));
        let shown_query: Vec<&str> = query.unwrap_or_default().split('&').filter(hidden).collect();
        let shown_query = Some(shown_query.join("&")).filter(|query| !query.is_empty());
        let at = if credentials.is_empty() { "" } else { "@" };
        let shown_user = credentials.split(':').next().unwrap_or_default();
        let (_, tail) = before.split_at(credentials.len() + at.len());
        let mut shown = format!("{scheme}{shown_user}{at}{tail}");
        if let Some(query) = shown_query {
            shown.push('?');
            shown.push_str(&query);
        }
        Ok(Self { written: text.to_owned(), shown, description, params })
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({:?})", self.shown)
    }
}

/// Refuses what is not a port after a host. The error does not repeat it: it may
/// be a password whose `@` is missing.
fn check_port(host: &str) -> Result<(), String> {
    let after = match host.rsplit_once(']') {
        Some((_, after)) => after,
        None => host.find(':').map_or("", |at| &host[at..]),
    };
    let is_fine = after.is_empty() || after.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if is_fine { Ok(()) } else { Err(format!("what stands after its host is not a port; {EXAMPLE}")) }
}

/// Returns the hosts, each with its port or the given or usual one.
fn with_ports(hosts: &str, port: Option<&str>) -> String {
    let with_port = |host: &str| {
        let has_port = host.rsplit(']').next().unwrap_or_default().contains(':') && !host.starts_with('/');
        let is_path = host.starts_with('/') || host.starts_with("%2F") || host.starts_with("%2f");
        if has_port || is_path { host.to_owned() } else { format!("{host}:{}", port.unwrap_or("5432")) }
    };
    hosts.split(',').map(with_port).collect::<Vec<_>>().join(",")
}

fn params(query: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or("after the ? there are pairs like sslmode=verify-full")?;
            let value = super::mail::percent_decode(value).ok_or("a value after the ? is not text")?;
            Ok((name.to_owned(), value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> DatabaseUrl {
        text.parse().unwrap_or_else(|problem| panic!("{text}: {problem}"))
    }

    #[test]
    fn a_url_is_shown_without_its_password_and_placed_in_words() {
        for (text, shown, description) in [
            (
                "postgres://ops:hush@db.example.com:6432/app?sslmode=require",
                "postgres://ops@db.example.com:6432/app?sslmode=require",
                "db.example.com:6432, database app, user ops",
            ),
            ("postgresql://ops@db", "postgresql://ops@db", "db:5432, database ops, user ops"),
            (
                "postgres://ops:hu%40sh@a,b:7000/app",
                "postgres://ops@a,b:7000/app",
                "a:5432,b:7000, database app, user ops",
            ),
            (
                "postgres://db/app?user=ops&password=hush",
                "postgres://db/app?user=ops",
                "db:5432, database app, user ops",
            ),
            ("postgres://db/app?password=hush", "postgres://db/app", "db:5432, database app, user (of this process)"),
            (
                "postgres://ops:hush@[::1]:7000/app",
                "postgres://ops@[::1]:7000/app",
                "[::1]:7000, database app, user ops",
            ),
            ("postgres://ops:hush@[::1]/app", "postgres://ops@[::1]/app", "[::1]:5432, database app, user ops"),
            (
                "postgres:///app?host=/run/pg&user=o",
                "postgres:///app?host=/run/pg&user=o",
                "/run/pg, database app, user o",
            ),
        ] {
            let url = read(text);
            assert_eq!((url.to_string(), url.description()), (shown.to_owned(), description), "{text}");
            assert_eq!(format!("{url:?}"), format!("DatabaseUrl({shown:?})"));
            assert!(!format!("{url} {url:?} {}", url.description()).contains("hush"));
            assert_eq!(url.reveal(), text);
        }
    }

    #[test]
    fn parameters_can_be_looked_up_and_taken_out() {
        let url = read("postgres://o:p@h/d?sslmode=verify-ca&connect_timeout=3&sslrootcert=/etc/a%20b.pem");
        assert_eq!(url.param("sslrootcert"), Some("/etc/a b.pem"));
        assert_eq!(url.param("sslcert"), None);
        assert_eq!(url.reveal_without(&["sslmode", "sslrootcert"]), "postgres://o:p@h/d?connect_timeout=3");
        assert_eq!(url.reveal_without(&["sslmode", "sslrootcert", "connect_timeout"]), "postgres://o:p@h/d");
        assert_eq!(read("postgres://o:p@h/d").reveal_without(&["sslmode"]), "postgres://o:p@h/d");
    }

    #[test]
    fn what_cannot_be_a_url_is_refused_and_no_part_of_a_password_is_told() {
        for (text, word) in [
            ("mysql://o:hush@h/d", "postgres://user"),
            ("host=h password=hush", "postgres://user"),
            ("postgres://o:hu sh@h/d", "blank"),
            ("postgres://o:hu@sh@h/d", "%40"),
            ("postgres://o:hu/sh@h/d", "%40"),
            ("postgres://o:hu?sh@h/d", "%40"),
            ("postgres://o:hush", "not a port"),
            ("postgres://o:hush/d", "not a port"),
            ("postgres://o:hush@h:70000/d", "not a port"),
            ("postgres://o:hush@/d", "names no host"),
            ("postgres://o:hush@h/d?sslmode", "sslmode="),
        ] {
            let why = text.parse::<DatabaseUrl>().unwrap_err();
            assert!(why.contains(word) && !why.contains("hush") && !why.contains("sh@"), "{text}: {why}");
        }
    }
}
