//! Examines files and settings: permissions, master key, certificate, proxies and
//! mail.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::ends_soon;
use crate::api::doctor::SeenProxy;
use crate::app::front_tls::CertificateFiles;
use crate::app::permissions;
use crate::clock::Clock;
use crate::config::{OptionalMailServer, Settings};
use crate::lifecycle::mail::smtp::{SmtpMailer, read_password};
use crate::model::finding::DoctorFinding;
use crate::store::seal::{MASTER_KEY_FILE, Seal};

/// Longest wait for the mail server.
const MAIL_TIMEOUT: Duration = Duration::from_secs(5);

/// Judges the owners of the data directory's files, and the modes of files with secrets.
pub fn permissions(settings: &Settings) -> DoctorFinding {
    let (foreign, user) = permissions::files_of_others(settings);
    if let Some(first) = foreign.first() {
        let (count, data) = (foreign.len(), &settings.data);
        let detail = format!(
            "{count} files in {data} belong to another user than the gateway's (number {user}), which cannot open them; \
             the first is {}",
            first.display()
        );
        return DoctorFinding::problem("permissions", detail, format!("chown -R --reference={data} {data}, as root"));
    }
    match permissions::readable_by_others(settings) {
        Err(problem) => DoctorFinding::of_failure("permissions", &format!("{problem:#}")),
        Ok(readable) if readable.is_empty() => {
            DoctorFinding::ok("permissions", "others can neither read secrets nor write the store")
        }
        Ok(readable) => {
            let paths: Vec<String> = readable.iter().map(|path| path.display().to_string()).collect();
            let paths = paths.join(" ");
            let detail = format!("every user of this machine can read {paths}");
            DoctorFinding::warning("permissions", detail, format!("chmod o-rwx {paths}"))
        }
    }
}

/// Reads the master key, and judges it by the check text of the store. Returns the key
/// if it fits.
pub fn master_key(settings: &Settings, check: Option<&str>) -> (DoctorFinding, Option<Seal>) {
    let file = settings.master_key_file.0.clone().unwrap_or_else(|| settings.data.0.join(MASTER_KEY_FILE));
    let shown = file.display();
    if !file.exists() {
        let finding = match check {
            None => DoctorFinding::ok("master_key", format!("there is none yet; the first start makes {shown}")),
            Some(_) => DoctorFinding::problem(
                "master_key",
                format!("there is no master key in {shown}, and the store is sealed under one"),
                "restore the master-key file that the store was first used with, or name it with --master-key-file",
            ),
        };
        return (finding, None);
    }
    let seal = match Seal::read(&file) {
        Ok(seal) => seal,
        Err(problem) => return (DoctorFinding::of_failure("master_key", &format!("{problem:#}")), None),
    };
    let seal = match check.map(|check| seal.for_store(check)) {
        Some(Err(problem)) => return (DoctorFinding::of_failure("master_key", &problem.to_string()), None),
        Some(Ok(seal)) => seal,
        None => seal,
    };
    let finding = if seal.is_rotating() {
        DoctorFinding::warning(
            "master_key",
            format!("a rotation of the key in {shown} is unfinished"),
            "finish it with `posthaste keys rotate`",
        )
    } else {
        DoctorFinding::ok("master_key", format!("{shown} fits the store; keep a copy apart from the store's backups"))
    };
    (finding, Some(seal))
}

/// The way out of a certificate that ends.
const RENEW: &str =
    "renew it, and replace the files of --tls-certificate and --tls-key; they are read again within seconds";

/// Judges how clients reach the API: encrypted, or from this machine alone.
pub fn listening(settings: &Settings, now: Timestamp) -> DoctorFinding {
    let Some(files) = CertificateFiles::of(settings) else {
        return if settings.listen.0.ip().is_loopback() {
            DoctorFinding::ok("tls", format!("plain http on {}, for this machine alone", settings.listen))
        } else {
            DoctorFinding::warning(
                "tls",
                format!("tokens and events cross the network unencrypted to {}", settings.listen),
                "set --tls-certificate and --tls-key, or let nothing but a proxy with TLS reach the port",
            )
        };
    };
    match files.read() {
        Err(problem) => DoctorFinding::of_failure("tls", &format!("{problem:#}")),
        Ok(certificate) => match certificate.ends_at {
            Some(end) if end <= now => {
                DoctorFinding::problem("tls", format!("the certificate has ended at {end:.0}"), RENEW)
            }
            Some(end) if ends_soon(end, now) => {
                DoctorFinding::warning("tls", format!("the certificate ends at {end:.0}"), RENEW)
            }
            Some(end) => DoctorFinding::ok("tls", format!("https on {}, until {end:.0}", settings.listen)),
            None => DoctorFinding::ok("tls", format!("https on {}", settings.listen)),
        },
    }
}

/// Judges the trusted proxies, and the way that this very request came.
pub fn proxies(settings: &Settings, seen: Option<SeenProxy>) -> DoctorFinding {
    let trusted = &settings.trusted_proxies;
    if let Some(network) = trusted.0.iter().find(|network| network.prefix_len() == 0) {
        return DoctorFinding::problem(
            "proxy_headers",
            format!("--trusted-proxies has {network}: whoever connects can claim any address"),
            "name the addresses of your proxies alone",
        );
    }
    let is_trusted = |peer: &IpAddr| trusted.0.iter().any(|network| network.contains(peer));
    match seen.and_then(|seen| seen.forwarded_by) {
        Some(peer) if !is_trusted(&peer) => DoctorFinding::warning(
            "proxy_headers",
            format!(
                "this request came through a proxy at {peer}, whose X-Forwarded-For is not trusted: all its clients count as one address"
            ),
            format!("start with --trusted-proxies {peer}/{}", if peer.is_ipv4() { 32 } else { 128 }),
        ),
        Some(peer) => DoctorFinding::ok("proxy_headers", format!("the proxy at {peer} is trusted")),
        None if trusted.0.is_empty() => DoctorFinding::ok("proxy_headers", "no proxy is trusted, and none was seen"),
        None => DoctorFinding::ok("proxy_headers", format!("the proxies in {trusted} are trusted")),
    }
}

/// Connects to the mail server, if there is one.
pub async fn mail(settings: &Settings, clock: Arc<dyn Clock>) -> DoctorFinding {
    let OptionalMailServer::Server(server) = &settings.smtp else {
        return DoctorFinding::ok("mail", "no mail server is set (--smtp), so no mails are sent");
    };
    let password = match settings.smtp_password_file.0.as_deref().map(read_password).transpose() {
        Ok(password) => password,
        Err(problem) => return DoctorFinding::of_failure("mail", &format!("{problem:#}")),
    };
    let mailer = SmtpMailer::new(server.clone(), password, settings.mail_from.0.clone(), clock);
    let checked = match mailer {
        Ok(mailer) => mailer.within(MAIL_TIMEOUT).sign_in().await,
        Err(problem) => Err(format!("{problem:#}")),
    };
    match checked {
        Ok(()) => DoctorFinding::ok("mail", format!("{server} takes mails")),
        Err(why) => DoctorFinding::problem(
            "mail",
            format!("{server} cannot be used: {why}"),
            "mend --smtp and --smtp-password-file, or the mail server",
        ),
    }
}
