//! A mail server that keeps the mails it accepts, and misbehaves on request.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A mail as it was received.
#[derive(Debug, Clone)]
pub struct ReceivedMail {
    pub from: String,
    pub to: Vec<String>,
    /// Head and body with CRLF line ends, without SMTP's dot stuffing.
    pub message: String,
    pub is_encrypted: bool,
    pub signed_in: Option<String>,
}

impl ReceivedMail {
    pub fn head(&self) -> &str {
        self.message.split_once("\r\n\r\n").expect("a head and a body").0
    }

    pub fn body(&self) -> &str {
        self.message.split_once("\r\n\r\n").expect("a head and a body").1
    }
}

/// A fault instead of the usual reply.
#[derive(Debug, Clone)]
pub enum Mood {
    /// Answers with this line.
    Say(&'static str),
    /// Never answers.
    Hang,
    /// Closes the connection.
    Close,
}

/// How a mail server behaves. Commands are matched by their beginning; the end
/// of a message counts as the command `.`, the start of a connection as `HELLO`.
#[derive(Default, Clone)]
pub struct Manner {
    /// Faults at the first times of a command; afterwards it replies as usual.
    pub moods: HashMap<&'static str, Vec<Mood>>,
    /// User and password that it requires.
    pub login: Option<(&'static str, &'static str)>,
    /// Whether it knows only AUTH LOGIN, which asks for user and password one
    /// by one.
    pub asks_for_each: bool,
    /// Whether it offers STARTTLS.
    pub offers_tls: bool,
    /// Whether it speaks TLS from the first byte.
    pub is_wrapped: bool,
}

impl Manner {
    pub fn moody(command: &'static str, moods: &[Mood]) -> Self {
        Self { moods: HashMap::from([(command, moods.to_vec())]), ..Self::default() }
    }
}

/// A mail server on a free port of this machine.
pub struct MailServer {
    pub address: SocketAddr,
    /// Self-signed certificate that it shows.
    pub certificate: String,
    book: Arc<Book>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for MailServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

struct Book {
    manner: Manner,
    tls: TlsAcceptor,
    mails: Mutex<Vec<ReceivedMail>>,
    commands: Mutex<Vec<String>>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}
type Line = BufReader<Box<dyn Stream>>;

impl MailServer {
    pub async fn start(manner: Manner) -> Self {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("a certificate and its key");
        let tls = TlsAcceptor::from(Arc::new(config));
        let book = Arc::new(Book { manner, tls, mails: Mutex::default(), commands: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = book.clone();
        let accepting = tokio::spawn(async move {
            let mut lines = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let book = shared.clone();
                lines.spawn(async move {
                    // A client that closes the connection ends the dialogue.
                    let _ = book.serve(Box::new(stream)).await;
                });
            }
        });
        Self { address, certificate: cert.pem(), book, accepting }
    }

    pub fn url(&self, more: &str) -> String {
        format!("smtp://{}{more}", self.address)
    }

    /// Returns the mails it has accepted so far.
    pub fn mails(&self) -> Vec<ReceivedMail> {
        self.book.mails.lock().expect("nothing panics while it is held").clone()
    }

    /// Returns the commands it has received that begin with `begin`.
    pub fn heard(&self, begin: &str) -> Vec<String> {
        let commands = self.book.commands.lock().expect("nothing panics while it is held");
        commands.iter().filter(|command| command.starts_with(begin)).cloned().collect()
    }
}

impl Book {
    async fn serve(&self, stream: Box<dyn Stream>) -> std::io::Result<()> {
        let mut line: Line = if self.manner.is_wrapped {
            BufReader::new(Box::new(self.tls.accept(stream).await?))
        } else {
            BufReader::new(stream)
        };
        let mut is_encrypted = self.manner.is_wrapped;
        if self.reply(&mut line, "HELLO", "220 mail.test").await?.is_none() {
            return Ok(());
        }
        while self.talk(&mut line, is_encrypted).await? {
            line = BufReader::new(Box::new(self.tls.accept(line.into_inner()).await?));
            is_encrypted = true;
        }
        Ok(())
    }

    /// Serves commands until the end of the dialogue; returns whether it ended
    /// with STARTTLS.
    async fn talk(&self, line: &mut Line, is_encrypted: bool) -> std::io::Result<bool> {
        let mut signed_in = None;
        let (mut from, mut to) = (String::new(), Vec::new());
        while let Some(command) = hear(line).await? {
            let may_send = self.manner.login.is_none() || signed_in.is_some();
            let duty = match command.split([' ', ':']).next().unwrap_or_default() {
                "EHLO" => self.greeting(is_encrypted),
                "STARTTLS" => "220 go ahead".into(),
                "AUTH" => match self.sign_in(line, &command).await? {
                    Some(user) => {
                        signed_in = Some(user);
                        "235 welcome".into()
                    }
                    None => "535 5.7.8 who are you".into(),
                },
                "MAIL" | "RCPT" | "DATA" if !may_send => "530 5.7.0 sign in first".into(),
                "MAIL" => {
                    (from, to) = (address_in(&command), Vec::new());
                    "250 ok".into()
                }
                "RCPT" => "250 ok".into(),
                "DATA" => "354 go on".into(),
                "QUIT" => "221 bye".into(),
                _ => "500 pardon".into(),
            };
            let Some(said) = self.reply(line, &command, &duty).await? else { return Ok(false) };
            match &*said {
                "220 go ahead" => return Ok(true),
                "221 bye" => return Ok(false),
                "354 go on" => {
                    let Some(message) = hear_message(line).await? else { return Ok(false) };
                    let (from, to) = (from.clone(), to.clone());
                    let mail = ReceivedMail { from, to, message, is_encrypted, signed_in: signed_in.clone() };
                    // An accepted mail is recorded before the client is told.
                    let mood = self.mood(".");
                    if mood.is_none() {
                        self.mails.lock().expect("nothing panics while it is held").push(mail);
                    }
                    if self.act(line, mood, "250 accepted").await?.is_none() {
                        return Ok(false);
                    }
                }
                "250 ok" if command.starts_with("RCPT") => to.push(address_in(&command)),
                _ => {}
            }
        }
        Ok(false)
    }

    fn greeting(&self, is_encrypted: bool) -> String {
        let mut words = vec!["mail.test", "8BITMIME"];
        if self.manner.offers_tls && !is_encrypted {
            words.push("STARTTLS");
        }
        if self.manner.login.is_some() {
            words.push(if self.manner.asks_for_each { "AUTH LOGIN" } else { "AUTH PLAIN LOGIN" });
        }
        let last = words.pop().expect("it has a name");
        words.iter().map(|word| format!("250-{word}\r\n")).chain([format!("250 {last}")]).collect()
    }

    /// Reads a login by AUTH PLAIN or AUTH LOGIN; returns the user if it is right.
    async fn sign_in(&self, line: &mut Line, command: &str) -> std::io::Result<Option<String>> {
        let given = match command.strip_prefix("AUTH PLAIN ") {
            Some(token) => {
                let token = decoded(token);
                let parts: Vec<&str> = token.split('\0').collect();
                (parts.get(1).copied().unwrap_or("").to_owned(), parts.get(2).copied().unwrap_or("").to_owned())
            }
            None => {
                let mut answers = Vec::new();
                for question in ["Username:", "Password:"] {
                    say(line, &format!("334 {}", BASE64_STANDARD.encode(question))).await?;
                    answers.push(decoded(&hear(line).await?.unwrap_or_default()));
                }
                (answers[0].clone(), answers[1].clone())
            }
        };
        let wanted = self.manner.login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        Ok((Some(&given) == wanted.as_ref()).then_some(given.0))
    }

    /// Replies as usual or with a fault; returns the reply, if there was one.
    async fn reply(&self, line: &mut Line, command: &str, duty: &str) -> std::io::Result<Option<String>> {
        let mood = self.mood(command);
        self.act(line, mood, duty).await
    }

    async fn act(&self, line: &mut Line, mood: Option<Mood>, duty: &str) -> std::io::Result<Option<String>> {
        let said = match mood {
            None => duty,
            Some(Mood::Say(words)) => words,
            Some(Mood::Hang) => std::future::pending().await,
            Some(Mood::Close) => return Ok(None),
        };
        say(line, said).await?;
        Ok(Some(said.to_owned()))
    }

    /// Records a command; returns the fault for it, if there is one.
    fn mood(&self, command: &str) -> Option<Mood> {
        let mut commands = self.commands.lock().expect("nothing panics while it is held");
        commands.push(command.to_owned());
        let (begin, moods) = self.manner.moods.iter().find(|(begin, _)| command.starts_with(**begin))?;
        let times = commands.iter().filter(|command| command.starts_with(begin)).count();
        moods.get(times - 1).cloned()
    }
}

async fn hear(line: &mut Line) -> std::io::Result<Option<String>> {
    let mut command = String::new();
    let count = line.read_line(&mut command).await?;
    Ok((count > 0).then(|| command.trim_end().to_owned()))
}

async fn hear_message(line: &mut Line) -> std::io::Result<Option<String>> {
    let mut message = String::new();
    loop {
        let mut next = String::new();
        if line.read_line(&mut next).await? == 0 {
            return Ok(None);
        }
        if next == ".\r\n" {
            return Ok(Some(message));
        }
        message.push_str(next.strip_prefix('.').unwrap_or(&next));
    }
}

async fn say(line: &mut Line, words: &str) -> std::io::Result<()> {
    line.get_mut().write_all(format!("{words}\r\n").as_bytes()).await?;
    line.get_mut().flush().await
}

fn address_in(command: &str) -> String {
    let inside = command.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    inside.map(|(address, _)| address.to_owned()).unwrap_or_default()
}

fn decoded(text: &str) -> String {
    String::from_utf8(BASE64_STANDARD.decode(text).unwrap_or_default()).unwrap_or_default()
}
