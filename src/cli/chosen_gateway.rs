//! Chooses the gateway to connect to: a flag or the environment names it, else it
//! is the one whose data directory is in this folder, else the context in use. A data
//! directory has a file that says where its gateway listens.
//!
//! Invariant: the token of a context is shown to the server of that context alone,
//! and a folder never leads a token to another machine.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use url::Url;

use super::contexts_file::{ContextsFile, GatewayContext, LocalGateway, reachable_address, server_url};
use crate::store::durable_file::give_to_owner_of;

/// Address of a gateway when nothing names another.
const USUAL_SERVER: &str = "http://127.0.0.1:8400";
/// Admin token of a gateway that was started in a folder.
const TOKEN_HERE: &str = "./posthaste-data/admin-token";
/// File in a data directory that holds the address of its running gateway.
const ADDRESS_FILE: &str = "address";

/// The gateway that commands connect to.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenGateway {
    /// Address of the gateway.
    pub server: Url,
    /// File that holds the token.
    pub token_file: PathBuf,
    /// File of the certificates to trust; without it, those of the machine.
    pub ca: Option<PathBuf>,
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
    pub fn description(&self) -> String {
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
    /// `listen` is where the folder's settings file says that it listens.
    pub fn of(
        server: Option<&Url>,
        token_file: Option<&Path>,
        contexts: &ContextsFile,
        folder: &Path,
        listen: Option<LocalGateway>,
    ) -> Self {
        let listen = listen.filter(|listen| is_of_this_machine(&listen.address));
        let here = folder.join(TOKEN_HERE).exists().then(|| PathBuf::from(TOKEN_HERE));
        let ((server, ca), token_found, from) = match (server, &here, contexts.in_use()) {
            (Some(server), _, _) => {
                let known = contexts.contexts.values().find(|context| is_at(context, server));
                let ca = known.and_then(|known| known.ca.clone());
                let token = known.and_then(|known| known.token_file.clone());
                ((server.clone(), ca), token.or(here), GatewaySource::Named)
            }
            (None, Some(_), _) => (server_of_folder(contexts, folder, listen), here, GatewaySource::Folder),
            (None, None, Some((name, context))) => {
                let server = (parse_server(&context.server), context.ca.clone());
                (server, context.token_file.clone(), GatewaySource::Context(name.to_owned()))
            }
            (None, None, None) => match listen {
                Some(listen) => (server_and_ca(listen), None, GatewaySource::SettingsFile),
                None => ((parse_server(USUAL_SERVER), None), None, GatewaySource::Usual),
            },
        };
        let token_file = token_file.map(Path::to_owned).or(token_found).unwrap_or_else(|| TOKEN_HERE.into());
        Self { server, token_file, ca, from }
    }
}

/// The URL of a gateway, and the file of the certificates to trust.
type ServerAndCa = (Url, Option<PathBuf>);

/// Returns where the gateway listens whose data directory is in this folder: as it has
/// written itself, as the settings file says, or as it was remembered from a start.
fn server_of_folder(contexts: &ContextsFile, folder: &Path, listen: Option<LocalGateway>) -> ServerAndCa {
    let token = folder.join("posthaste-data/admin-token");
    let written = AddressFile::read(&folder.join("posthaste-data"));
    if let Some(gateway) = written.filter(|written| is_of_this_machine(&written.address)).or(listen) {
        return server_and_ca(gateway);
    }
    let is_its = |context: &&GatewayContext| context.token_file.as_ref() == Some(&token);
    match contexts.contexts.values().find(is_its) {
        Some(context) => (parse_server(&context.server), context.ca.clone()),
        None => (parse_server(USUAL_SERVER), None),
    }
}

/// Whether an address leads to this machine and nowhere else. A folder may come from
/// anybody, and the token that is sent may be the user's own; a gateway that listens on
/// another address is named by a flag or a context.
fn is_of_this_machine(address: &SocketAddr) -> bool {
    address.port() != 0 && reachable_address(*address).ip().is_loopback()
}

/// Returns how this machine reaches a gateway. Its own certificate is trusted, whatever
/// name that has: the address is one of this machine.
fn server_and_ca(gateway: LocalGateway) -> ServerAndCa {
    (parse_server(&gateway.url()), gateway.certificate)
}

/// The file in a data directory that says where its gateway listens, and in a second
/// line which file has its certificate, if it takes https. The gateway locks it for as long as it runs, so that nobody believes the file of one that was killed.
pub struct AddressFile {
    path: PathBuf,
    _locked: File,
}

impl AddressFile {
    /// Writes the file, if there is a data directory. Commands find the gateway without
    /// it, too, so a failure is none of the gateway.
    pub fn write(data: &Path, gateway: &LocalGateway) -> Option<Self> {
        let path = data.join(ADDRESS_FILE);
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).ok()?;
        give_to_owner_of(data, &file).ok()?;
        // The file of another node on the same directory stays.
        file.try_lock().ok()?;
        file.set_len(0).ok()?;
        let certificate = gateway.certificate.as_deref().map(std::path::absolute).transpose().ok()?;
        let certificate = certificate.map(|file| format!("{}\n", file.display())).unwrap_or_default();
        file.write_all(format!("{}\n{certificate}", reachable_address(gateway.address)).as_bytes()).ok()?;
        Some(Self { path, _locked: file })
    }

    /// Whether a gateway has written the file and not removed it: it runs, or was killed.
    pub fn exists(data: &Path) -> bool {
        data.join(ADDRESS_FILE).exists()
    }

    /// Returns the gateway that runs on this data directory.
    pub fn read(data: &Path) -> Option<LocalGateway> {
        let path = data.join(ADDRESS_FILE);
        match File::open(&path).ok()?.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {
                let text = std::fs::read_to_string(path).ok()?;
                let mut lines = text.lines();
                let address = lines.next()?.parse().ok()?;
                Some(LocalGateway { address, certificate: lines.next().map(PathBuf::from) })
            }
            // Nobody holds it: its gateway has been killed.
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // Still locked, so it is this gateway's own. A file that stays is not believed.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_at(context: &GatewayContext, server: &Url) -> bool {
    server_url(&context.server).as_ref() == Ok(server)
}

fn parse_server(server: &str) -> Url {
    server_url(server).expect("a context is read only if its server is an address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(address: &str) -> LocalGateway {
        LocalGateway { address: address.parse().unwrap(), certificate: None }
    }

    fn contexts() -> ContextsFile {
        let context = |server: &str, token: &str| GatewayContext {
            server: server.to_owned(),
            token_file: Some(PathBuf::from(token)),
            ca: None,
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
            let server = server.map(parse_server);
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
        moved.remember(&plain("127.0.0.1:9000"), &token);
        assert_eq!(chosen(None, &moved, folder.path()).0, "http://127.0.0.1:9000/", "where it was started");
    }

    #[test]
    fn a_folder_leads_to_its_running_gateway_and_never_to_another_machine() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("posthaste-data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("admin-token"), "pha_x").unwrap();
        let server = |listen: Option<&str>| {
            let listen = listen.map(plain);
            ChosenGateway::of(None, None, &ContextsFile::default(), folder.path(), listen).server.to_string()
        };
        let running = AddressFile::write(&data, &plain("127.0.0.1:18411")).unwrap();
        assert_eq!(server(None), "http://127.0.0.1:18411/");
        drop(running);
        let certificate = Some(PathBuf::from("/srv/tls.pem"));
        let encrypted = LocalGateway { certificate: certificate.clone(), ..plain("127.0.0.1:18411") };
        let running = AddressFile::write(&data, &encrypted).unwrap();
        let chosen = ChosenGateway::of(None, None, &ContextsFile::default(), folder.path(), None);
        assert_eq!((chosen.server.as_str(), chosen.ca), ("https://127.0.0.1:18411/", certificate));
        drop(running);
        // As after a kill: the file is there, and nobody holds it.
        std::fs::write(data.join(ADDRESS_FILE), "127.0.0.1:18411\n").unwrap();
        assert_eq!(server(None), "http://127.0.0.1:8400/");
        let _forged = AddressFile::write(&data, &plain("203.0.113.9:18411")).unwrap();
        assert_eq!(server(None), "http://127.0.0.1:8400/");
        assert_eq!(server(Some("203.0.113.9:18411")), "http://127.0.0.1:8400/");
        assert_eq!(server(Some("127.0.0.1:18412")), "http://127.0.0.1:18412/");
    }

    #[test]
    fn a_contexts_token_is_shown_to_its_own_server_alone() {
        let empty = tempfile::tempdir().unwrap();
        let token = |server: &str| {
            ChosenGateway::of(Some(&parse_server(server)), None, &contexts(), empty.path(), None)
                .token_file
                .display()
                .to_string()
        };
        assert_eq!(token("https://hooks.example.com"), "/secret/prod");
        assert_eq!(token("https://hooks.example.com.evil.example"), TOKEN_HERE);
        assert_eq!(token("http://hooks.example.com"), TOKEN_HERE);
    }
}
