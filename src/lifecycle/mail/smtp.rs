//! Sends mails to a mail server over SMTP.
//!
//! Each mail has a connection of its own. Mails are rare, and on a reused
//! connection that was left in the middle of a dialogue, the answer to the
//! last mail would be taken for the answer to the next.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use async_trait::async_trait;
use lettre::address::Address;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{
    AsyncSmtpConnection, Certificate, CertificateStore, TlsParameters, TlsParametersBuilder,
};
use lettre::transport::smtp::extension::ClientId;
use tokio::time::timeout;

use super::text::one_line;
use super::{Mail, MailError, Mailer};
use crate::clock::Clock;
use crate::model::mail::{MailEncryption, MailServer};
use crate::model::span::Span;

/// Longest time that sending one mail may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the answer to QUIT; the mail is accepted by then.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Most characters of a server's answer that go into an error.
const ANSWER_CHARS_MAX: usize = 300;

/// A mail server and the account to use there.
pub struct SmtpMailer {
    server: MailServer,
    credentials: Option<Credentials>,
    from: Mailbox,
    tls: TlsParameters,
    timeout: Duration,
    clock: Arc<dyn Clock>,
}

impl SmtpMailer {
    /// Creates a mailer for this server; `password` belongs to the server's user.
    pub fn new(
        server: MailServer,
        password: Option<String>,
        from: Mailbox,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        // The machine's trusted certificates, or the Mozilla set where there
        // are none, as for receivers.
        let has_native_roots = !rustls_native_certs::load_native_certs().certs.is_empty();
        let roots = if has_native_roots { CertificateStore::Default } else { CertificateStore::WebpkiRoots };
        let tls = TlsParametersBuilder::new(server.host.clone()).certificate_store(roots).build()?;
        let credentials = server.user.clone().zip(password).map(|(user, password)| Credentials::new(user, password));
        Ok(Self { server, credentials, from, tls, timeout: SEND_TIMEOUT, clock })
    }

    /// Replaces the trusted authorities by the one with this certificate.
    pub fn trusting(self, pem: &str) -> anyhow::Result<Self> {
        let tls = TlsParametersBuilder::new(self.server.host.clone())
            .certificate_store(CertificateStore::None)
            .add_root_certificate(Certificate::from_pem(pem.as_bytes())?)
            .build()?;
        Ok(Self { tls, ..self })
    }

    /// Sets the longest time that sending one mail may take.
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Connects, encrypts and signs in.
    async fn connect(&self) -> Result<AsyncSmtpConnection, SmtpError> {
        let name = ClientId::default();
        let tls = (self.server.encryption == MailEncryption::FromTheStart).then(|| self.tls.clone());
        let to = (&*self.server.host, self.server.port);
        let mut connection = AsyncSmtpConnection::connect_tokio1(to, Some(self.timeout), &name, tls, None).await?;
        let is_upgraded = match self.server.encryption {
            MailEncryption::Never | MailEncryption::FromTheStart => false,
            MailEncryption::IfOffered => connection.can_starttls(),
            MailEncryption::Required => true,
        };
        if is_upgraded {
            connection.starttls(self.tls.clone(), &name).await?;
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(DEFAULT_MECHANISMS, credentials).await?;
        }
        Ok(connection)
    }

    /// Connects, encrypts and signs in, and sends nothing; returns why that fails.
    pub async fn sign_in(&self) -> Result<(), String> {
        let mut connection = match timeout(self.timeout, self.connect()).await {
            Ok(connected) => connected.map_err(|problem| problem.to_string())?,
            Err(_) => return Err(format!("no answer within {}", Span(self.timeout))),
        };
        let _ = timeout(QUIT_TIMEOUT, connection.quit()).await;
        Ok(())
    }

    /// Connects and sends one message; returns the open connection.
    async fn transmit(&self, message: &Message) -> Result<AsyncSmtpConnection, SmtpError> {
        let mut connection = self.connect().await?;
        connection.send(message.envelope(), &message.formatted()).await?;
        Ok(connection)
    }

    fn compose(&self, mail: &Mail) -> Result<Message, MailError> {
        let refused = |reason: &str| MailError::Permanent(format!("the mail cannot be written: {reason}"));
        let to: Address = mail.to.parse().map_err(|_| refused("its address is not one"))?;
        let domain = self.from.email.domain();
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(one_line(&mail.subject))
            .date(SystemTime::from(self.clock.wall()))
            .message_id(Some(format!("<{}@{domain}>", fingerprint(mail))))
            // Keeps out-of-office replies away.
            .raw_header(HeaderValue::new(HeaderName::new_from_ascii_str("Auto-Submitted"), "auto-generated".into()))
            .header(ContentType::TEXT_PLAIN)
            .body(mail.text.clone())
            .map_err(|problem| refused(&problem.to_string()))
    }

    fn mail_error(&self, problem: &SmtpError, mail: &Mail) -> MailError {
        let (host, port) = (&self.server.host, self.server.port);
        let mut text = problem.to_string();
        let mut cause = std::error::Error::source(problem).and_then(std::error::Error::source);
        while let Some(deeper) = cause {
            text += &format!(": {deeper}");
            cause = deeper.source();
        }
        let text = without_address(&one_line(&text), &mail.to);
        let why = format!("{host}:{port}: {}", text.chars().take(ANSWER_CHARS_MAX).collect::<String>());
        if problem.is_permanent() || problem.is_client() {
            MailError::Permanent(why)
        } else {
            MailError::Temporary(why)
        }
    }
}

#[async_trait]
impl Mailer for SmtpMailer {
    async fn send(&self, mail: &Mail) -> Result<(), MailError> {
        let message = self.compose(mail)?;
        let mut connection = match timeout(self.timeout, self.transmit(&message)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(problem)) => return Err(self.mail_error(&problem, mail)),
            Err(_) => {
                let (host, port, within) = (&self.server.host, self.server.port, Span(self.timeout).words());
                return Err(MailError::Temporary(format!("{host}:{port}: the mail server took longer than {within}")));
            }
        };
        // The mail was accepted; whatever QUIT does, it is not sent again.
        let _ = timeout(QUIT_TIMEOUT, connection.quit()).await;
        Ok(())
    }
}

/// Reads a password from a file: its text without the line break at its end.
pub fn read_password(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| {
        format!("cannot read smtp-password-file {}; name a file this user may read", file.display())
    })?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.contains(char::is_control) {
        bail!("smtp-password-file {} does not hold a password; write it there as one line", file.display());
    }
    Ok(password.to_owned())
}

/// Returns an id that depends only on the mail's content: if a mail is sent
/// again because the server's answer was lost, mail programs know the copy.
fn fingerprint(mail: &Mail) -> String {
    let mut digest = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    for part in [&mail.to, &mail.subject, &mail.text] {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    digest.finish().as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Removes the recipient's address from a server's answer; logs show only the
/// domain.
fn without_address(text: &str, address: &str) -> String {
    let user = address.rsplit_once('@').map_or(address, |(user, _)| user);
    let is_end = |c: char| c.is_whitespace() || "<>()[]:;,'\"`".contains(c);
    let words = text.split_inclusive(is_end).map(|word| {
        let bare = word.trim_end_matches(is_end).trim_end_matches('.');
        if bare.eq_ignore_ascii_case(address) || bare.eq_ignore_ascii_case(user) {
            format!("…{}", &word[bare.len()..])
        } else {
            word.to_owned()
        }
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_without_the_address() {
        let masked = |text: &str| without_address(text, "Ops.Team@example.com");
        assert_eq!(masked("550 5.1.1 <ops.team@example.com>: unknown"), "550 5.1.1 <…>: unknown");
        assert_eq!(masked("no user ops.team here"), "no user … here");
        assert_eq!(masked("no mailbox OPS.TEAM@EXAMPLE.COM."), "no mailbox ….");
        assert_eq!(masked("relaying to example.com denied"), "relaying to example.com denied");
    }

    #[test]
    fn a_password_is_one_line_of_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, password) in [("hush\n", Some("hush")), (" a b \r\n", Some(" a b ")), ("\n", None), ("a\nb", None)] {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(read_password(file.path()).ok().as_deref(), password, "{text:?}");
        }
        let problem = format!("{:#}", read_password(Path::new("/nonexistent/pw")).unwrap_err());
        assert!(problem.contains("smtp-password-file /nonexistent/pw"), "{problem}");
    }

    #[test]
    fn the_same_letter_has_the_same_fingerprint_and_no_other_has() {
        let mail = |to: &str, subject: &str| Mail { to: to.into(), subject: subject.into(), text: "t".into() };
        assert_eq!(fingerprint(&mail("a", "bc")), fingerprint(&mail("a", "bc")));
        assert_ne!(fingerprint(&mail("a", "bc")), fingerprint(&mail("ab", "c")));
    }
}
