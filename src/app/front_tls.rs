//! Reads the certificate of the API's address, and reads it again when its files
//! change.
//!
//! Certificate and key are two files, and whoever replaces them writes one after the
//! other. So changed files are read once they have stayed the same between two looks.
//! Files that cannot be used are logged once, and the certificate before them stays.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use crate::api::server::Listener;
use crate::api::server_tls::{ServerCertificate, ServerTls};
use crate::clock::Clock;
use crate::config::Settings;
use crate::lifecycle::Gateway;
use crate::metrics::Metrics;

/// Interval at which the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A certificate that ends within this time is warned of.
const END_WARNING: Duration = Duration::from_secs(14 * 86_400);

/// The files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
}

/// What tells one state of the files from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FilesVersion([Option<(u64, u64, u64, i64, i64, i64, i64)>; 2]);

impl CertificateFiles {
    /// Returns the files that the settings name, if the API is served as https.
    pub fn of(settings: &Settings) -> Option<Self> {
        let (certificate, key) = settings.tls_files()?;
        Some(Self { certificate: certificate.to_owned(), key: key.to_owned() })
    }

    /// Reads both files.
    pub fn read(&self) -> anyhow::Result<ServerCertificate> {
        let text = |name: &str, file: &Path| {
            std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {name} {}; name a file that exists", file.display()))
        };
        let (chain, key) = (text("tls-certificate", &self.certificate)?, text("tls-key", &self.key)?);
        ServerCertificate::from_pem(&chain, &key).map_err(|why| {
            anyhow!("tls-certificate {} and tls-key {}: {why}", self.certificate.display(), self.key.display())
        })
    }

    fn version(&self) -> FilesVersion {
        let of = |file: &Path| {
            let about = std::fs::metadata(file).ok()?;
            let (modified, changed) = ((about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec()));
            Some((about.dev(), about.ino(), about.size(), modified.0, modified.1, changed.0, changed.1))
        };
        FilesVersion([of(&self.certificate), of(&self.key)])
    }
}

/// Prepares the TLS of the API's address, if the settings name a certificate.
pub fn prepare_tls(
    settings: &Settings,
    clock: &dyn Clock,
    metrics: &Metrics,
) -> anyhow::Result<Option<Arc<ServerTls>>> {
    let Some(files) = CertificateFiles::of(settings) else { return Ok(None) };
    let certificate = files.read()?;
    warn_of_end(certificate.ends_at, clock.wall());
    metrics.set_server_certificate_end(certificate.ends_at);
    Ok(Some(Arc::new(ServerTls::new(certificate).context("cannot prepare TLS")?)))
}

/// Starts to watch the files of a listener that takes https.
pub fn start_watching(settings: &Settings, listener: &Listener, gateway: &Gateway) -> Option<JoinHandle<()>> {
    let (tls, files) = listener.tls.clone().zip(CertificateFiles::of(settings))?;
    Some(tokio::spawn(watch_files(tls, files, (gateway.clock.clone(), gateway.metrics.clone()))))
}

/// Puts a certificate in force whenever the files have changed, for ever.
async fn watch_files(tls: Arc<ServerTls>, files: CertificateFiles, (clock, metrics): (Arc<dyn Clock>, Arc<Metrics>)) {
    let mut watched = WatchedFiles::of(files.version());
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let files = files.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let is_due = watched.is_due(files.version());
            (watched, is_due.then(|| files.read()))
        });
        let Ok((after, read)) = looked.await else { return };
        watched = after;
        match read {
            None => {}
            Some(Ok(certificate)) => {
                let ends_at = certificate.ends_at;
                warn_of_end(ends_at, clock.wall());
                tls.replace(certificate);
                metrics.set_server_certificate_end(ends_at);
                let until = ends_at.map(|at| format!(", which ends at {at:.0}")).unwrap_or_default();
                info!("the API is served with the new certificate of --tls-certificate{until}");
            }
            Some(Err(problem)) => {
                error!("the changed certificate is not used, and the one before it stays in force: {problem:#}");
            }
        }
    }
}

/// Decides when changed files are read.
#[derive(Debug)]
struct WatchedFiles {
    /// Version that was read last.
    read: FilesVersion,
    /// Version of the last look.
    seen: FilesVersion,
}

impl WatchedFiles {
    fn of(version: FilesVersion) -> Self {
        Self { read: version.clone(), seen: version }
    }

    /// Whether the files are to be read now: they have changed since they were read,
    /// and not since the last look.
    fn is_due(&mut self, version: FilesVersion) -> bool {
        let is_due = version != self.read && version == self.seen;
        if is_due {
            self.read = version.clone();
        }
        self.seen = version;
        is_due
    }
}

fn warn_of_end(ends_at: Option<Timestamp>, now: Timestamp) {
    let Some(ends_at) = ends_at else { return };
    let left = ends_at.duration_since(now);
    if left.is_negative() {
        warn!("the certificate of --tls-certificate has ended at {ends_at:.0}, and clients refuse it; renew it");
    } else if left.unsigned_abs() < END_WARNING {
        warn!("the certificate of --tls-certificate ends at {ends_at:.0}; renew it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(n: u64) -> FilesVersion {
        FilesVersion([Some((1, 1, n, 0, 0, 0, 0)), None])
    }

    #[test]
    fn changed_files_are_read_once_they_are_left_alone() {
        let mut watched = WatchedFiles::of(version(1));
        let looks = [1, 1, 2, 3, 3, 3, 1, 1].map(|n| watched.is_due(version(n)));
        assert_eq!(looks, [false, false, false, false, true, false, false, true]);
    }
}
