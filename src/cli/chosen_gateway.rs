//! Chooses the gateway to speak to: a flag or the environment names it, else it
//! is the one whose data directory is in this folder, else the context in use. A data
//! directory has a file that says where its gateway listens.
//!
//! Invariant: the token of a context is shown to the server of that context alone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use url::Url;

use super::contexts_file::{ContextsFile, GatewayContext, reachable, server_url};

/// Address of a gateway when nothing names another.
const USUAL_SERVER: &str = "http://127.0.0.1:8400";
/// Admin token of a gateway that was started in a folder.
const TOKEN_HERE: &str = "./posthaste-data/admin-token";
/// File in a data directory that holds the address of its running gateway.
const ADDRESS_FILE: &str = "address";

/// The gateway that commands speak to.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenGateway {
    /// Address of the gateway.
    pub server: Url,
    /// File that holds the token.
    pub token_file: PathBuf,
    /// Why this gateway.
    pub from: GatewaySource,
}

/// Why a gateway was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewaySource {
    /// A flag or the environment names it.
    Named,
    /// Its data directory is in this folder.
    Folder,
    /// The context with this name is in use.
    Context(String),
    /// The settings file in this folder says where it listens.
    SettingsFile,
    /// Nothing names one, so it is at the usual address.
    Usual,
}

impl GatewaySource {
    /// Says why, for people.
    pub fn words(&self) -> String {
        match self {
            Self::Named => "--server or POSTHASTE_SERVER".to_owned(),
            Self::Folder => "./posthaste-data in this folder".to_owned(),
            Self::Context(name) => format!("context {name}"),
            Self::SettingsFile => "listen in ./posthaste.toml".to_owned(),
            Self::Usual => "the usual address".to_owned(),
        }
    }

    /// Returns the context's name as an addition to an address, if it is a context.
    pub fn in_parentheses(&self) -> String {
        match self {
            Self::Context(name) => format!(" (context {name})"),
            Self::Named | Self::Folder | Self::SettingsFile | Self::Usual => String::new(),
        }
    }
}

impl ChosenGateway {
    /// Chooses the gateway for what was given, in this folder.
    ///
    /// `listen` is the address in the folder's settings file.
    pub fn of(
        server: Option<&Url>,
        token_file: Option<&Path>,
        contexts: &ContextsFile,
        folder: &Path,
        listen: Option<SocketAddr>,
    ) -> Self {
        let here = folder.join(TOKEN_HERE).exists().then(|| PathBuf::from(TOKEN_HERE));
        let (server, token_found, from) = match (server, &here, contexts.in_use()) {
            (Some(server), _, _) => {
                let known = contexts.contexts.values().find(|context| is_at(context, server));
                (server.clone(), here.or(known.and_then(|known| known.token_file.clone())), GatewaySource::Named)
            }
            (None, Some(_), _) => (server_of_folder(contexts, folder, listen), here, GatewaySource::Folder),
            (None, None, Some((name, context))) => {
                (parsed(&context.server), context.token_file.clone(), GatewaySource::Context(name.to_owned()))
            }
            (None, None, None) => match listen {
                Some(listen) => (url_of(listen), None, GatewaySource::SettingsFile),
                None => (parsed(USUAL_SERVER), None, GatewaySource::Usual),
            },
        };
        let token_file = token_file.map(Path::to_owned).or(token_found).unwrap_or_else(|| TOKEN_HERE.into());
        Self { server, token_file, from }
    }
}

/// Returns where the gateway listens whose data directory is in this folder: as it has
/// written itself, as the settings file says, or as it was remembered from a start.
fn server_of_folder(contexts: &ContextsFile, folder: &Path, listen: Option<SocketAddr>) -> Url {
    let token = folder.join("posthaste-data/admin-token");
    let written = std::fs::read_to_string(folder.join("posthaste-data").join(ADDRESS_FILE)).ok();
    if let Some(url) = written.and_then(|text| server_url(text.trim()).ok()).or(listen.map(url_of)) {
        return url;
    }
    let is_its = |context: &&GatewayContext| context.token_file.as_ref() == Some(&token);
    parsed(contexts.contexts.values().find(is_its).map_or(USUAL_SERVER, |context| &context.server))
}

/// Returns the URL at which this machine reaches a gateway that listens there.
fn url_of(listen: SocketAddr) -> Url {
    parsed(&format!("http://{}", reachable(listen)))
}

/// The file in a data directory that says where its gateway listens, for as long as
/// the gateway runs.
pub struct AddressFile {
    path: PathBuf,
    text: String,
}

impl AddressFile {
    /// Writes the file, if there is a data directory. Commands find the gateway without
    /// it, too, so a failure is none of the gateway.
    pub fn write(data: &Path, address: SocketAddr) -> Option<Self> {
        let text = format!("{}\n", url_of(address).as_str().trim_end_matches('/'));
        let path = data.join(ADDRESS_FILE);
        std::fs::write(&path, &text).ok().map(|()| Self { path, text })
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // Another node may have been started on the same directory since. A file that
        // stays is replaced by the next start.
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_at(context: &GatewayContext, server: &Url) -> bool {
    server_url(&context.server).as_ref() == Ok(server)
}

fn parsed(server: &str) -> Url {
    server_url(server).expect("a context is read only if its server is an address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> ContextsFile {
        let context = |server: &str, token: &str| GatewayContext {
            server: server.to_owned(),
            token_file: Some(PathBuf::from(token)),
        };
        let all = [
            ("local".to_owned(), context("http://127.0.0.1:8400", "/srv/a/token")),
            ("prod".to_owned(), context("https://hooks.example.com", "/secret/prod")),
        ];
        ContextsFile { current: Some("prod".into()), contexts: all.into() }
    }

    #[test]
    fn a_flag_beats_the_folder_and_the_folder_beats_the_context() {
        let (empty, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.path().join("posthaste-data")).unwrap();
        std::fs::write(folder.path().join("posthaste-data/admin-token"), "pha_x").unwrap();
        let chosen = |server: Option<&str>, contexts: &ContextsFile, folder: &Path| {
            let server = server.map(parsed);
            let gateway = ChosenGateway::of(server.as_ref(), None, contexts, folder, None);
            (gateway.server.to_string(), gateway.token_file.display().to_string())
        };
        let pair = |server: &str, token: &str| (server.to_owned(), token.to_owned());
        let context = chosen(None, &contexts(), empty.path());
        assert_eq!(context, pair("https://hooks.example.com/", "/secret/prod"));
        assert_eq!(chosen(None, &contexts(), folder.path()), pair("http://127.0.0.1:8400/", TOKEN_HERE));
        assert_eq!(chosen(Some("http://a"), &contexts(), folder.path()), pair("http://a/", TOKEN_HERE));
        let none = ContextsFile::default();
        assert_eq!(chosen(None, &none, empty.path()), pair("http://127.0.0.1:8400/", TOKEN_HERE));
        let mut moved = contexts();
        let token = folder.path().join("posthaste-data/admin-token");
        moved.remember("127.0.0.1:9000".parse().unwrap(), &token);
        assert_eq!(chosen(None, &moved, folder.path()).0, "http://127.0.0.1:9000/", "where it was started");
    }

    #[test]
    fn a_contexts_token_is_shown_to_its_own_server_alone() {
        let empty = tempfile::tempdir().unwrap();
        let token = |server: &str| {
            ChosenGateway::of(Some(&parsed(server)), None, &contexts(), empty.path(), None)
                .token_file
                .display()
                .to_string()
        };
        assert_eq!(token("https://hooks.example.com"), "/secret/prod");
        assert_eq!(token("https://hooks.example.com.evil.example"), TOKEN_HERE);
        assert_eq!(token("http://hooks.example.com"), TOKEN_HERE);
    }
}
