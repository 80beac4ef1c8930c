//! Keeps the gateways that the command line knows, in a file of the user.
//!
//! The file is `contexts.toml` in `$XDG_CONFIG_HOME/posthaste` or
//! `~/.config/posthaste`. A context is an address and the path of the file that
//! holds the token.
//!
//! Invariant: a token is never copied into it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::store::durable_file::{put_in_place, write_unnamed};

/// The contexts of a user, and which one is in use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextsFile {
    /// Name of the context in use.
    pub current: Option<String>,
    /// All contexts, by name.
    #[serde(default)]
    pub contexts: BTreeMap<String, GatewayContext>,
}

/// One gateway that the command line knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GatewayContext {
    /// Address of the gateway.
    pub server: String,
    /// File that holds the token.
    pub token_file: Option<PathBuf>,
    /// File of the certificates to trust; without it, those of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

/// A gateway that listens on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalGateway {
    /// Address that it listens on.
    pub address: SocketAddr,
    /// File of its certificate, if it takes https.
    pub certificate: Option<PathBuf>,
}

impl LocalGateway {
    /// Returns the URL at which this machine reaches it.
    pub fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", reachable_address(self.address))
    }
}

/// Parses the address of a gateway.
pub fn server_url(text: &str) -> Result<Url, String> {
    match text.parse::<Url>() {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(url),
        _ => Err("write http:// or https:// and an address, such as http://127.0.0.1:8400".to_owned()),
    }
}

impl ContextsFile {
    /// Returns where the file is, if the user has a home.
    pub fn path() -> Option<PathBuf> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
        Some(folder.join("posthaste/contexts.toml"))
    }

    /// Reads the file; without one there are no contexts.
    pub fn read() -> anyhow::Result<Self> {
        match Self::path() {
            Some(path) => Self::read_from(&path),
            None => Ok(Self::default()),
        }
    }

    fn read_from(path: &Path) -> anyhow::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // Somebody else's home, or none at all, is no reason to fail.
            Err(problem) if problem.kind() != std::io::ErrorKind::InvalidData => return Ok(Self::default()),
            Err(problem) => return Err(problem).with_context(|| format!("cannot read {}", path.display())),
        };
        let wrong = |why: &str| anyhow!("{} is wrong: {why}; mend it, or delete it", path.display());
        let file: Self = toml::from_str(&text).map_err(|problem| wrong(problem.message()))?;
        for (name, context) in &file.contexts {
            server_url(&context.server).map_err(|why| wrong(&format!("the server of {name}: {why}")))?;
        }
        Ok(file)
    }

    /// Writes the file for its owner alone, whole or not at all.
    pub fn write(&self) -> anyhow::Result<()> {
        let path = Self::path().context("there is no home to keep contexts in; set HOME or XDG_CONFIG_HOME")?;
        self.write_to(&path)
    }

    fn write_to(&self, path: &Path) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}", path.display());
        let folder = path.parent().with_context(failed)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(failed)?;
        let text = toml::to_string(self).with_context(failed)?;
        let file = write_unnamed(folder, ".contexts", &text).with_context(failed)?;
        put_in_place(file, path).with_context(failed)
    }

    /// Returns the context in use, with its name.
    pub fn in_use(&self) -> Option<(&str, &GatewayContext)> {
        let name = self.current.as_deref()?;
        Some((name, self.contexts.get(name)?))
    }

    /// Adds the gateway that runs here with this token, and puts it in use unless the
    /// user chose another one. Returns its name, if anything changed.
    pub fn remember(&mut self, gateway: &LocalGateway, token_file: &Path) -> Option<String> {
        let name = local_name(gateway.address);
        let before = self.clone();
        let context = GatewayContext {
            server: gateway.url(),
            token_file: Some(token_file.to_owned()),
            ca: gateway.certificate.clone(),
        };
        self.contexts.insert(name.clone(), context);
        if self.in_use().is_none_or(|(current, _)| is_local(current)) {
            self.current = Some(name.clone());
        }
        (*self != before).then_some(name)
    }
}

/// Remembers a gateway that was started on a terminal. Returns the name of its
/// context, if the file changed.
pub fn remember_gateway(gateway: &LocalGateway, data: &Path) -> anyhow::Result<Option<String>> {
    if ContextsFile::path().is_none() {
        return Ok(None);
    }
    let token_file = std::path::absolute(data.join("admin-token"))?;
    let certificate = gateway.certificate.as_deref().map(std::path::absolute).transpose()?;
    let mut file = ContextsFile::read()?;
    let name = file.remember(&LocalGateway { address: gateway.address, certificate }, &token_file);
    if name.is_some() {
        file.write()?;
    }
    Ok(name)
}

const LOCAL: &str = "local";

/// Returns the name of the context of a gateway on this machine: `local`, or with
/// its port where that is not the usual one.
fn local_name(address: SocketAddr) -> String {
    match address.port() {
        8400 => LOCAL.to_owned(),
        port => format!("{LOCAL}-{port}"),
    }
}

fn is_local(name: &str) -> bool {
    name == LOCAL || name.strip_prefix("local-").is_some_and(|port| port.parse::<u16>().is_ok())
}

/// Returns the address at which this machine reaches a listener.
pub fn reachable_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(address: &str) -> LocalGateway {
        LocalGateway { address: address.parse().unwrap(), certificate: None }
    }

    #[test]
    fn a_server_is_an_http_address() {
        assert!(server_url("http://127.0.0.1:8400").is_ok());
        assert!(server_url("https://hooks.example.com/gateway").is_ok());
        for text in ["localhost:8400", "127.0.0.1:8400", "ftp://x", ""] {
            assert!(server_url(text).unwrap_err().contains("such as http://"), "{text}");
        }
    }

    #[test]
    fn a_gateway_is_remembered_and_replaces_no_choice_of_the_user() {
        let token = Path::new("/srv/a/admin-token");
        let mut file = ContextsFile::default();
        assert_eq!(file.remember(&plain("0.0.0.0:8400"), token).as_deref(), Some("local"));
        assert_eq!(file.in_use().unwrap().1.server, "http://127.0.0.1:8400");
        assert_eq!(file.remember(&plain("0.0.0.0:8400"), token), None, "nothing changed");
        assert_eq!(file.remember(&plain("[::]:9000"), token).as_deref(), Some("local-9000"));
        assert_eq!(file.in_use().map(|(name, _)| name), Some("local-9000"), "the one started last");
        let server = "https://hooks.example.com".to_owned();
        file.contexts.insert("production".into(), GatewayContext { server, token_file: None, ca: None });
        file.current = Some("production".into());
        file.remember(&plain("127.0.0.1:8400"), Path::new("/srv/b/admin-token"));
        assert_eq!(file.in_use().map(|(name, _)| name), Some("production"));
    }

    #[test]
    fn the_file_reads_back_and_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("posthaste/contexts.toml");
        assert_eq!(ContextsFile::read_from(&path).unwrap(), ContextsFile::default());
        let mut file = ContextsFile::default();
        file.remember(&plain("127.0.0.1:8400"), Path::new("/srv/a/admin-token"));
        file.write_to(&path).unwrap();
        assert_eq!(ContextsFile::read_from(&path).unwrap(), file);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "current = 7").unwrap();
        assert!(ContextsFile::read_from(&path).unwrap_err().to_string().contains("contexts.toml is wrong"));
    }
}
