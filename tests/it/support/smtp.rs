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
pub enum SmtpFault {
    /// Answers with this line.
    Reply(&'static str),
    /// Leaves the client without an answer.
    Hang,
    /// Closes the connection.
    Close,
}

/// How a mail server behaves. Commands are matched by their beginning; the end
/// of a message counts as the command `.`, the start of a connection as `HELLO`.
#[derive(Default, Clone)]
pub struct MailServerBehaviour {
    /// Faults at the first times of a command; afterwards it replies as usual.
    pub faults: HashMap<&'static str, Vec<SmtpFault>>,
    /// User and password that it requires.
    pub login: Option<(&'static str, &'static str)>,
    /// Whether it knows only AUTH LOGIN, which asks for user and password one
    /// by one.
    pub has_auth_login_only: bool,
    /// Whether it offers STARTTLS.
    pub offers_tls: bool,
    /// Whether it speaks TLS from the first byte.
    pub is_wrapped: bool,
}

impl MailServerBehaviour {
    pub fn failing_at(command: &'static str, faults: &[SmtpFault]) -> Self {
        Self { faults: HashMap::from([(command, faults.to_vec())]), ..Self::default() }
    }
}

/// A mail server on a free port of this machine.
pub struct MailServer {
    pub address: SocketAddr,
    /// Self-signed certificate that it shows.
    pub certificate: String,
    state: Arc<ServerState>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for MailServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

struct ServerState {
    behaviour: MailServerBehaviour,
    tls: TlsAcceptor,
    mails: Mutex<Vec<ReceivedMail>>,
    commands: Mutex<Vec<String>>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}
type Connection = BufReader<Box<dyn Stream>>;

impl MailServer {
    pub async fn start(behaviour: MailServerBehaviour) -> Self {
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
        let state = Arc::new(ServerState { behaviour, tls, mails: Mutex::default(), commands: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = state.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = shared.clone();
                connections.spawn(async move {
                    // A client that closes the connection ends the dialogue.
                    let _ = state.serve(Box::new(stream)).await;
                });
            }
        });
        Self { address, certificate: cert.pem(), state, accepting }
    }

    pub fn url(&self, more: &str) -> String {
        format!("smtp://{}{more}", self.address)
    }

    /// Returns the mails it has accepted so far.
    pub fn mails(&self) -> Vec<ReceivedMail> {
        self.state.mails.lock().expect("nothing panics while it is held").clone()
    }

    /// Returns the commands it has received that begin with `prefix`.
    pub fn commands_starting_with(&self, prefix: &str) -> Vec<String> {
        let commands = self.state.commands.lock().expect("nothing panics while it is held");
        commands.iter().filter(|command| command.starts_with(prefix)).cloned().collect()
    }
}

impl ServerState {
    async fn serve(&self, stream: Box<dyn Stream>) -> std::io::Result<()> {
        let mut connection: Connection = if self.behaviour.is_wrapped {
            BufReader::new(Box::new(self.tls.accept(stream).await?))
        } else {
            BufReader::new(stream)
        };
        let mut is_encrypted = self.behaviour.is_wrapped;
        if self.reply(&mut connection, "HELLO", "220 mail.test").await?.is_none() {
            return Ok(());
        }
        while self.serve_commands(&mut connection, is_encrypted).await? {
            connection = BufReader::new(Box::new(self.tls.accept(connection.into_inner()).await?));
            is_encrypted = true;
        }
        Ok(())
    }

    /// Serves commands until the end of the dialogue; returns whether it ended
    /// with STARTTLS.
    async fn serve_commands(&self, connection: &mut Connection, is_encrypted: bool) -> std::io::Result<bool> {
        let mut signed_in = None;
        let (mut from, mut to) = (String::new(), Vec::new());
        while let Some(command) = read_line(connection).await? {
            let may_send = self.behaviour.login.is_none() || signed_in.is_some();
            let usual_reply = match command.split([' ', ':']).next().unwrap_or_default() {
                "EHLO" => self.greeting(is_encrypted),
                "STARTTLS" => "220 go ahead".into(),
                "AUTH" => match self.sign_in(connection, &command).await? {
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
            let Some(reply) = self.reply(connection, &command, &usual_reply).await? else { return Ok(false) };
            match &*reply {
                "220 go ahead" => return Ok(true),
                "221 bye" => return Ok(false),
                "354 go on" => {
                    let Some(message) = read_message(connection).await? else { return Ok(false) };
                    let (from, to) = (from.clone(), to.clone());
                    let mail = ReceivedMail { from, to, message, is_encrypted, signed_in: signed_in.clone() };
                    // An accepted mail is recorded before the client is told.
                    let fault = self.fault(".");
                    if fault.is_none() {
                        self.mails.lock().expect("nothing panics while it is held").push(mail);
                    }
                    if self.answer(connection, fault, "250 accepted").await?.is_none() {
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
        if self.behaviour.offers_tls && !is_encrypted {
            words.push("STARTTLS");
        }
        if self.behaviour.login.is_some() {
            words.push(if self.behaviour.has_auth_login_only { "AUTH LOGIN" } else { "AUTH PLAIN LOGIN" });
        }
        let last = words.pop().expect("it has a name");
        words.iter().map(|word| format!("250-{word}\r\n")).chain([format!("250 {last}")]).collect()
    }

    /// Reads a login by AUTH PLAIN or AUTH LOGIN; returns the user if it is right.
    async fn sign_in(&self, connection: &mut Connection, command: &str) -> std::io::Result<Option<String>> {
        let login = match command.strip_prefix("AUTH PLAIN ") {
            Some(token) => {
                let token = decoded(token);
                let parts: Vec<&str> = token.split('\0').collect();
                (parts.get(1).copied().unwrap_or("").to_owned(), parts.get(2).copied().unwrap_or("").to_owned())
            }
            None => {
                let mut answers = Vec::new();
                for question in ["Username:", "Password:"] {
                    write_line(connection, &format!("334 {}", BASE64_STANDARD.encode(question))).await?;
                    answers.push(decoded(&read_line(connection).await?.unwrap_or_default()));
                }
                (answers[0].clone(), answers[1].clone())
            }
        };
        let wanted = self.behaviour.login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        Ok((Some(&login) == wanted.as_ref()).then_some(login.0))
    }

    /// Replies as usual or with a fault; returns the reply, if there was one.
    async fn reply(
        &self,
        connection: &mut Connection,
        command: &str,
        usual_reply: &str,
    ) -> std::io::Result<Option<String>> {
        let fault = self.fault(command);
        self.answer(connection, fault, usual_reply).await
    }

    async fn answer(
        &self,
        connection: &mut Connection,
        fault: Option<SmtpFault>,
        usual_reply: &str,
    ) -> std::io::Result<Option<String>> {
        let reply = match fault {
            None => usual_reply,
            Some(SmtpFault::Reply(words)) => words,
            Some(SmtpFault::Hang) => std::future::pending().await,
            Some(SmtpFault::Close) => return Ok(None),
        };
        write_line(connection, reply).await?;
        Ok(Some(reply.to_owned()))
    }

    /// Records a command; returns the fault for it, if there is one.
    fn fault(&self, command: &str) -> Option<SmtpFault> {
        let mut commands = self.commands.lock().expect("nothing panics while it is held");
        commands.push(command.to_owned());
        let (prefix, faults) = self.behaviour.faults.iter().find(|(prefix, _)| command.starts_with(**prefix))?;
        let times = commands.iter().filter(|command| command.starts_with(prefix)).count();
        faults.get(times - 1).cloned()
    }
}

async fn read_line(connection: &mut Connection) -> std::io::Result<Option<String>> {
    let mut command = String::new();
    let count = connection.read_line(&mut command).await?;
    Ok((count > 0).then(|| command.trim_end().to_owned()))
}

async fn read_message(connection: &mut Connection) -> std::io::Result<Option<String>> {
    let mut message = String::new();
    loop {
        let mut next = String::new();
        if connection.read_line(&mut next).await? == 0 {
            return Ok(None);
        }
        if next == ".\r\n" {
            return Ok(Some(message));
        }
        message.push_str(next.strip_prefix('.').unwrap_or(&next));
    }
}

async fn write_line(connection: &mut Connection, words: &str) -> std::io::Result<()> {
    connection.get_mut().write_all(format!("{words}\r\n").as_bytes()).await?;
    connection.get_mut().flush().await
}

fn address_in(command: &str) -> String {
    let inside = command.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    inside.map(|(address, _)| address.to_owned()).unwrap_or_default()
}

fn decoded(text: &str) -> String {
    String::from_utf8(BASE64_STANDARD.decode(text).unwrap_or_default()).unwrap_or_default()
}
