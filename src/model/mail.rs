//! Parses the URL of the mail server.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use url::Url;

use super::parse_fault::url_fault;

/// A mail server, written like `smtp://user@mail.example.com:587?tls=required`.
///
/// It never holds a password, because the URL is displayed and ends up in files
/// and in lists of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailServer {
    /// Name or address of the server, without brackets.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// User to log in as, if the server needs one.
    pub user: Option<String>,
    /// Encryption of the connection.
    pub encryption: MailEncryption,
    written: String,
}

/// The encryption of a connection to a mail server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailEncryption {
    /// The connection is not encrypted.
    Never,
    /// STARTTLS is used if the server offers it.
    IfOffered,
    /// STARTTLS is used; without it no mail is sent.
    Required,
    /// TLS is used from the first byte.
    FromTheStart,
}

const EXAMPLE: &str = "write it like smtp://user@mail.example.com:587 or smtps://user@mail.example.com";

impl FromStr for MailServer {
    type Err = String;

    /// Parses the URL. An error repeats only a part of the text that is wrong and
    /// cannot be a password.
    fn from_str(text: &str) -> Result<Self, String> {
        let url: Url = text.parse().map_err(|problem| format!("it is not a URL: {}; {EXAMPLE}", url_fault(problem)))?;
        if url.password().is_some() {
            return Err("it holds a password, which would be seen in lists of settings and of processes; \
                        write the password into a file and name that with smtp-password-file"
                .into());
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() || !matches!(url.path(), "" | "/") || url.fragment().is_some() {
            return Err(format!("it must be a host, with a port and a user where they are needed; {EXAMPLE}"));
        }
        let is_local = is_loopback(&host);
        let encryption = match (url.scheme(), tls_parameter(&url)?) {
            ("smtps", None) => MailEncryption::FromTheStart,
            ("smtps", Some(_)) => return Err("smtps is encrypted from the start; leave tls out, or use smtp".into()),
            ("smtp", Some(encryption)) => encryption,
            ("smtp", None) if is_local => MailEncryption::Never,
            ("smtp", None) => MailEncryption::Required,
            (other, _) => return Err(format!("{other:?} is not a way to send mail; {EXAMPLE}")),
        };
        let usual_port = match encryption {
            MailEncryption::FromTheStart => 465,
            _ if is_local => 25,
            _ => 587,
        };
        let user = match url.username() {
            "" => None,
            user => Some(percent_decode(user).ok_or("its user is not text; write special characters like %40")?),
        };
        Ok(Self { host, port: url.port().unwrap_or(usual_port), user, encryption, written: text.to_owned() })
    }
}

impl fmt::Display for MailServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// Returns the encryption that `?tls=` asks for, if it is given.
fn tls_parameter(url: &Url) -> Result<Option<MailEncryption>, String> {
    let mut encryption = None;
    for (name, value) in url.query_pairs() {
        let requested = match (&*name, &*value) {
            ("tls", "none") => MailEncryption::Never,
            ("tls", "opportunistic") => MailEncryption::IfOffered,
            ("tls", "required") => MailEncryption::Required,
            ("tls", other) => return Err(format!("tls is {other:?}; use none, opportunistic or required")),
            // The error does not repeat the name: it may be the end of a password
            // that contains a ?.
            (_, _) => return Err("after the ? there is only tls, such as ?tls=required".into()),
        };
        if encryption.replace(requested).is_some() {
            return Err("tls is there twice; say it once".into());
        }
    }
    Ok(encryption)
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>().ok();
    address.map_or_else(|| host.eq_ignore_ascii_case("localhost"), |address| address.to_canonical().is_loopback())
}

/// Returns the text with its percent-encoding decoded, unless the result is not
/// printable text.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let bytes = percent_encoding::percent_decode_str(text).collect();
    String::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> MailServer {
        text.parse().unwrap_or_else(|problem| panic!("{text}: {problem}"))
    }

    #[test]
    fn what_is_left_out_is_the_safe_thing() {
        for (text, host, port, encryption) in [
            ("smtp://mail.example.com", "mail.example.com", 587, MailEncryption::Required),
            ("smtp://mail.example.com:2525/", "mail.example.com", 2525, MailEncryption::Required),
            ("smtp://mail.example.com?tls=opportunistic", "mail.example.com", 587, MailEncryption::IfOffered),
            ("smtp://10.1.2.3:25?tls=none", "10.1.2.3", 25, MailEncryption::Never),
            ("smtps://mail.example.com", "mail.example.com", 465, MailEncryption::FromTheStart),
            ("smtp://127.0.0.1:2525", "127.0.0.1", 2525, MailEncryption::Never),
            ("smtp://127.0.0.1:2525?tls=required", "127.0.0.1", 2525, MailEncryption::Required),
            ("smtp://localhost", "localhost", 25, MailEncryption::Never),
            ("smtp://[::1]:2525", "::1", 2525, MailEncryption::Never),
            ("smtp://[2001:db8::1]", "2001:db8::1", 587, MailEncryption::Required),
            ("smtp://localhost.example.com", "localhost.example.com", 587, MailEncryption::Required),
        ] {
            let server = read(text);
            assert_eq!((&*server.host, server.port, server.encryption), (host, port, encryption), "{text}");
            assert_eq!(server.to_string(), text);
        }
    }

    #[test]
    fn a_user_may_be_a_mail_address() {
        let user = |text: &str| read(text).user;
        assert_eq!(user("smtp://mail.example.com"), None);
        assert_eq!(user("smtp://ops@mail.example.com").as_deref(), Some("ops"));
        assert_eq!(user("smtp://ops%40example.com@mail.example.com").as_deref(), Some("ops@example.com"));
        assert_eq!(user("smtp://ops@example.com@mail.example.com").as_deref(), Some("ops@example.com"));
    }

    #[test]
    fn a_wrong_one_is_refused_with_the_way_out_and_without_its_secrets() {
        for (text, way_out) in [
            ("mail.example.com", "smtp://user@mail"),
            ("smtp://", "smtp://user@mail"),
            ("http://mail.example.com", "smtps://user@mail"),
            ("smtp://ops:hush-hush@mail.example.com", "smtp-password-file"),
            ("smtps://:hush-hush@mail.example.com", "smtp-password-file"),
            ("smtp://ops:hush#hush@mail.example.com", "smtp://user@mail"),
            ("smtp://ops:hush/hush@mail.example.com", "smtp://user@mail"),
            ("smtp://mail.example.com/inbox", "smtp://user@mail"),
            ("smtp://mail.example.com?tls=maybe", "none, opportunistic or required"),
            ("smtp://mail.example.com?tls=none&tls=required", "once"),
            ("smtp://mail.example.com?starttls=no", "only tls"),
            ("smtp://ops:25?hush@mail.example.com", "only tls"),
            ("smtps://mail.example.com?tls=none", "leave tls out"),
            ("smtp://ops%0D%0A@mail.example.com", "%40"),
        ] {
            let problem = text.parse::<MailServer>().unwrap_err();
            assert!(problem.contains(way_out), "{text}: {problem}");
            assert!(!problem.contains("hush"), "{text}: {problem}");
        }
    }
}
