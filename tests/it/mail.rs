//! Mails to the owners of endpoints, through a real mail server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste::clock::{Clock, SystemClock};
use posthaste::lifecycle::mail::smtp::{SmtpMailer, read_password};
use posthaste::lifecycle::mail::text::{MailFacts, MailReason, subject_and_text};
use posthaste::lifecycle::mail::{Mail, MailError, MailQueue, MailRetry, Mailer};
use serde_json::json;

use crate::support::{
    Gateway, MailServer, MailServerBehaviour, Options, PATIENCE, ReceivedMail, SmtpFault, eventually,
};

/// Retries come soon, so that stories do not wait for them.
const EAGER: MailRetry =
    MailRetry { first: Duration::from_millis(5), max: Duration::from_millis(50), give_up: PATIENCE };

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

fn post(url: &str, password: Option<&str>) -> SmtpMailer {
    let from = "Posthaste <posthaste@gateway.example>".parse().unwrap();
    SmtpMailer::new(url.parse().unwrap(), password.map(str::to_owned), from, clock()).unwrap()
}

fn letter(to: &str) -> Mail {
    Mail { to: to.into(), subject: "Webhooks are failing".into(), text: "Please look at the receiver.\n".into() }
}

/// A running mail queue, and how often it reported that a mail was sent.
struct MailFixture {
    mail_queue: MailQueue,
    sent_callbacks: Arc<AtomicUsize>,
    running: tokio::task::JoinHandle<()>,
}

impl Drop for MailFixture {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl MailFixture {
    fn of(post: SmtpMailer) -> Self {
        let mail_queue = MailQueue::with_retry(Some(Arc::new(post)), clock(), EAGER);
        let queue = mail_queue.clone();
        let running = tokio::spawn(async move { queue.run().await });
        Self { mail_queue, sent_callbacks: Arc::default(), running }
    }

    fn post(&self, letter: Mail) {
        let sent_callbacks = self.sent_callbacks.clone();
        self.mail_queue.enqueue(letter, move || _ = sent_callbacks.fetch_add(1, Ordering::SeqCst));
    }

    async fn until(&self, sent: usize, failed: u64) {
        eventually("letters to be seen to", async || {
            let counts = (self.sent_callbacks.load(Ordering::SeqCst), self.mail_queue.failed_count());
            if counts == (sent, failed) { Ok(()) } else { Err(format!("{counts:?}, not {:?}", (sent, failed))) }
        })
        .await;
        assert_eq!(self.mail_queue.sent_count(), sent as u64);
    }
}

#[tokio::test]
async fn a_letter_arrives_once_and_as_it_was_written() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let fixture = MailFixture::of(post(&server.url(""), None));
    let text = "Hello,\n.a line that begins with a dot\n.\nMAIL FROM:<x@example.com>\n";
    fixture.post(Mail { text: text.into(), ..letter("ops@example.com") });
    fixture.until(1, 0).await;
    let mails = server.mails();
    let [mail] = &mails[..] else { panic!("one mail: {mails:?}") };
    assert_eq!((&*mail.from, &mail.to), ("posthaste@gateway.example", &vec!["ops@example.com".to_owned()]));
    assert_eq!(mail.body().trim_end(), text.replace('\n', "\r\n").trim_end());
    let head = mail.head();
    for line in [
        "From: Posthaste <posthaste@gateway.example>",
        "To: ops@example.com",
        "Subject: Webhooks are failing",
        "Auto-Submitted: auto-generated",
        "Content-Type: text/plain; charset=utf-8",
    ] {
        assert!(head.lines().any(|found| found == line), "{line:?} is not in\n{head}");
    }
    assert!(head.contains("\r\nDate: ") && head.contains("@gateway.example>\r\n"), "{head}");
}

#[tokio::test]
async fn no_subject_can_begin_a_header_of_its_own() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let fixture = MailFixture::of(post(&server.url(""), None));
    for subject in [
        "Trouble\r\nBcc: everybody@example.com\r\n\r\n",
        "Störung\r\nBcc: everybody@example.com",
        "Störung\nBcc: everybody@example.com",
        "Trouble\rBcc: everybody@example.com",
    ] {
        fixture.post(Mail { subject: subject.into(), ..letter("ops@example.com") });
    }
    fixture.until(4, 0).await;
    let plain = |mail: &ReceivedMail| mail.head().contains("Subject: Trouble Bcc: everybody@example.com");
    assert_eq!(server.mails().iter().filter(|mail| plain(mail)).count(), 2, "line ends are gone: {:?}", server.mails());
    for mail in server.mails() {
        assert_eq!(mail.to, ["ops@example.com"]);
        assert!(mail.message.is_ascii(), "{}", mail.message);
        assert!(!mail.head().split(['\r', '\n']).any(|line| line.starts_with("Bcc")), "{}", mail.head());
        assert_eq!(mail.body().trim_end(), "Please look at the receiver.");
    }
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_before_anybody_is_asked() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let fixture = MailFixture::of(post(&server.url(""), None));
    for to in ["nobody", "a@b>\r\nRCPT TO:<everybody@example.com", "a@example.com, b@example.com"] {
        fixture.post(letter(to));
    }
    fixture.until(0, 3).await;
    assert!(server.commands_starting_with("").is_empty(), "{:?}", server.commands_starting_with(""));
}

#[tokio::test]
async fn a_server_that_says_later_gets_the_letter_later_and_once() {
    for (command, faults) in [
        ("RCPT", vec![SmtpFault::Reply("451 4.7.1 greylisted"), SmtpFault::Reply("450 4.2.0 still")]),
        (".", vec![SmtpFault::Reply("452 4.3.1 no room")]),
        ("HELLO", vec![SmtpFault::Reply("421 too busy"), SmtpFault::Close]),
        ("DATA", vec![SmtpFault::Close]),
    ] {
        let server = MailServer::start(MailServerBehaviour::failing_at(command, &faults)).await;
        let fixture = MailFixture::of(post(&server.url(""), None));
        fixture.post(letter("ops@example.com"));
        fixture.until(1, 0).await;
        assert_eq!(server.mails().len(), 1, "{command}");
        assert_eq!(
            server.commands_starting_with(command).len(),
            faults.len() + 1,
            "{command}: {:?}",
            server.commands_starting_with("")
        );
        assert_eq!(fixture.mail_queue.close(), 0, "{command}: nothing is left to be sent");
    }
}

#[tokio::test]
async fn a_letter_that_is_sent_again_can_be_recognised() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let post = post(&server.url(""), None);
    for to in ["ops@example.com", "ops@example.com", "dev@example.com"] {
        post.send(&letter(to)).await.unwrap();
    }
    let id = |n: usize| {
        let mails = server.mails();
        mails[n].head().lines().find(|line| line.starts_with("Message-ID: ")).unwrap().to_owned()
    };
    assert_eq!(id(0), id(1));
    assert_ne!(id(0), id(2));
}

#[tokio::test]
async fn a_server_that_says_never_is_not_asked_again() {
    for (command, answer) in [
        ("RCPT TO:<gone@", "550 5.1.1 <gone@example.com> unknown"),
        (".", "554 5.7.1 spam"),
        ("MAIL", "553 not from you"),
    ] {
        let server = MailServer::start(MailServerBehaviour::failing_at(command, &[SmtpFault::Reply(answer)])).await;
        let fixture = MailFixture::of(post(&server.url(""), None));
        fixture.post(letter("gone@example.com"));
        fixture.until(0, 1).await;
        assert_eq!(fixture.mail_queue.close(), 0, "{command}: nothing is left to be sent");
        assert_eq!((server.commands_starting_with(command).len(), server.mails().len()), (1, 0), "{command}");
    }
}

#[tokio::test]
async fn the_reason_is_told_without_the_address() {
    let answer = "550 5.1.1 <gone@example.com>: gone is unknown here";
    let server = MailServer::start(MailServerBehaviour::failing_at("RCPT", &[SmtpFault::Reply(answer)])).await;
    match post(&server.url(""), None).send(&letter("gone@example.com")).await {
        Err(MailError::Permanent(why)) => {
            assert!(why.contains("550") && why.contains("unknown here") && why.contains("127.0.0.1"), "{why}");
            assert!(!why.contains("gone"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_hangs_holds_up_nobody_elses_letter() {
    let server = MailServer::start(MailServerBehaviour::failing_at("RCPT TO:<slow@", &[SmtpFault::Hang])).await;
    let fixture = MailFixture::of(post(&server.url(""), None));
    fixture.post(letter("slow@example.com"));
    eventually("the server to hang", async || match server.commands_starting_with("RCPT").len() {
        1 => Ok(()),
        n => Err(n.to_string()),
    })
    .await;
    for n in 0..20 {
        fixture.post(letter(&format!("ops{n}@example.com")));
    }
    fixture.until(20, 0).await;
    assert!(server.mails().iter().all(|mail| mail.to[0] != "slow@example.com"));
}

#[tokio::test]
async fn a_server_that_hangs_is_left_and_asked_again() {
    for command in ["HELLO", "EHLO", "RCPT", "."] {
        let server = MailServer::start(MailServerBehaviour::failing_at(command, &[SmtpFault::Hang])).await;
        let fixture = MailFixture::of(post(&server.url(""), None).within(Duration::from_millis(200)));
        fixture.post(letter("ops@example.com"));
        fixture.until(1, 0).await;
        assert_eq!(server.mails().len(), 1, "{command}");
    }
}

#[tokio::test]
async fn a_goodbye_that_never_comes_makes_no_second_mail() {
    let server = MailServer::start(MailServerBehaviour::failing_at("QUIT", &[SmtpFault::Hang])).await;
    let fixture = MailFixture::of(post(&server.url(""), None).within(Duration::from_millis(500)));
    fixture.post(letter("ops@example.com"));
    fixture.until(1, 0).await;
    assert_eq!((server.mails().len(), server.commands_starting_with("MAIL").len()), (1, 1));
}

#[tokio::test]
async fn a_server_that_is_down_is_temporary_trouble() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let url = server.url("");
    drop(server);
    let problem = post(&url, None).send(&letter("ops@example.com")).await.unwrap_err();
    assert!(matches!(problem, MailError::Temporary(_)), "{problem:?}");
}

#[tokio::test]
async fn the_password_comes_from_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hush-hush ü\n").unwrap();
    let password = read_password(file.path()).unwrap();
    let login = Some(("ops@example.com", "hush-hush ü"));
    for has_auth_login_only in [false, true] {
        let server =
            MailServer::start(MailServerBehaviour { login, has_auth_login_only, ..MailServerBehaviour::default() })
                .await;
        let url = format!("smtp://ops%40example.com@{}", server.address);
        post(&url, Some(&password)).send(&letter("a@example.com")).await.unwrap();
        assert_eq!(server.mails()[0].signed_in.as_deref(), Some("ops@example.com"));

        let refused = post(&url, Some("guess")).send(&letter("b@example.com")).await.unwrap_err();
        assert!(matches!(&refused, MailError::Permanent(why) if why.contains("535")), "{refused:?}");
        let refused = post(&server.url(""), None).send(&letter("b@example.com")).await.unwrap_err();
        assert!(matches!(&refused, MailError::Permanent(why) if why.contains("530")), "{refused:?}");
        assert_eq!(server.mails().len(), 1);
    }
}

#[tokio::test]
async fn starttls_comes_before_the_password_and_the_letter() {
    let login = Some(("ops", "hush"));
    for more in ["?tls=required", "?tls=opportunistic"] {
        let server =
            MailServer::start(MailServerBehaviour { login, offers_tls: true, ..MailServerBehaviour::default() }).await;
        let url = format!("smtp://ops@{}{more}", server.address);
        let post = post(&url, Some("hush")).trusting(&server.certificate).unwrap();
        post.send(&letter("ops@example.com")).await.unwrap();
        assert!(server.mails()[0].is_encrypted, "{more}");
        let commands = server.commands_starting_with("");
        let place = |begin: &str| commands.iter().position(|command| command.starts_with(begin)).unwrap();
        assert!(place("STARTTLS") < place("AUTH"), "{commands:?}");
    }
}

#[tokio::test]
async fn smtps_is_encrypted_from_the_first_byte() {
    let server = MailServer::start(MailServerBehaviour { is_wrapped: true, ..MailServerBehaviour::default() }).await;
    let post = post(&format!("smtps://{}", server.address), None).trusting(&server.certificate).unwrap();
    post.send(&letter("ops@example.com")).await.unwrap();
    assert!(server.mails()[0].is_encrypted);
}

#[tokio::test]
async fn without_the_encryption_that_was_asked_for_nothing_is_told() {
    // Not offered: somebody in between may have taken the offer out.
    let login = Some(("ops", "hush"));
    let plain = MailServer::start(MailServerBehaviour { login, ..MailServerBehaviour::default() }).await;
    let url = format!("smtp://ops@{}?tls=required", plain.address);
    let refused = post(&url, Some("hush")).send(&letter("ops@example.com")).await.unwrap_err();
    assert!(matches!(&refused, MailError::Permanent(why) if why.contains("STARTTLS")), "{refused:?}");
    // Offered by somebody nobody trusts.
    let stranger =
        MailServer::start(MailServerBehaviour { login, offers_tls: true, ..MailServerBehaviour::default() }).await;
    let url = format!("smtp://ops@{}?tls=required", stranger.address);
    let refused = post(&url, Some("hush")).send(&letter("ops@example.com")).await.unwrap_err();
    assert!(matches!(&refused, MailError::Temporary(why) if why.contains("certificate")), "{refused:?}");
    for server in [plain, stranger] {
        assert!(
            server.commands_starting_with("AUTH").is_empty() && server.commands_starting_with("MAIL").is_empty(),
            "{:?}",
            server.commands_starting_with("")
        );
    }
}

/// What `posthaste serve` says when it does not start with these settings.
async fn refused(flags: &[&str], env: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path().join("data"))
        .args(flags)
        .envs(env.iter().copied())
        .current_dir(folder.path())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("it does not start").unwrap();
    assert!(!output.status.success());
    assert!(!folder.path().join("data").exists(), "a start that is refused leaves nothing behind");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn the_gateway_does_not_start_with_mail_settings_that_cannot_work() {
    let message = refused(&["--smtp", "mail.example.com"], &[]).await;
    assert!(message.contains("smtp is wrong") && message.contains("smtp://user@mail.example.com"), "{message}");
    let message = refused(&["--smtp", "smtp://ops@127.0.0.1", "--smtp-password-file", "/nonexistent/pw"], &[]).await;
    assert!(message.contains("smtp-password-file /nonexistent/pw"), "{message}");
    let message = refused(&["--smtp", "smtp://ops@127.0.0.1"], &[]).await;
    assert!(message.contains("smtp-password-file"), "{message}");
    let message = refused(&[], &[("POSTHASTE_MAIL_FROM", "somebody")]).await;
    assert!(
        message.contains("POSTHASTE_MAIL_FROM in the environment") && message.contains("<posthaste@example.com>"),
        "{message}"
    );
}

#[tokio::test]
async fn a_password_in_the_url_is_refused_and_not_repeated() {
    for url in ["smtp://ops:hush@mail.example.com", "smtp://ops:hush#1@mail.example.com"] {
        for message in [refused(&["--smtp", url], &[]).await, refused(&[], &[("POSTHASTE_SMTP", url)]).await] {
            assert!(message.contains("smtp is wrong") && !message.contains("hush"), "{message}");
        }
    }
    let message = refused(&["--smtp", "smtp://ops:hush@mail.example.com"], &[]).await;
    assert!(message.contains("smtp-password-file"), "{message}");
}

#[tokio::test]
async fn the_gateway_starts_and_stops_whether_its_mail_server_is_there_or_not() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hush\n").unwrap();
    let mut options = Options::flags(&["--smtp", "smtp://ops@mail.invalid", "--mail-from", "Ops <ops@example.com>"]);
    options.env = vec![("POSTHASTE_SMTP_PASSWORD_FILE".into(), file.path().display().to_string())];
    let mut gateway = Gateway::start_with(options).await;
    assert!(gateway.terminate().await.success());
}

/// The lines of a letter that somebody may copy.
fn remedies(gateway: &Gateway, endpoint: &str, what: MailReason) -> (Vec<String>, String) {
    let facts = MailFacts {
        endpoint: endpoint.into(),
        tenant: "default".into(),
        url: "http://127.0.0.1/".into(),
        description: String::new(),
        reason: "tests".into(),
        since: clock().now(),
        waiting: Some(0),
        next_probe_at: None,
        reason_kind: what,
    };
    let (_, text) = subject_and_text(&facts);
    let line = |begin: &str| text.lines().find_map(|line| line.trim().strip_prefix(begin)).unwrap().to_owned();
    let mut command: Vec<String> = line("posthaste ").split(' ').map(str::to_owned).collect();
    command.extend(["--server".into(), format!("http://{}", gateway.address)]);
    command.extend(["--token".into(), gateway.token().into()]);
    let route =
        if what == MailReason::Dead { format!("GET {}", line("GET ")) } else { format!("POST {}", line("POST ")) };
    (command, route)
}

#[tokio::test]
async fn what_a_letter_tells_its_reader_to_do_works() {
    let gateway = Gateway::start().await;
    let endpoint =
        gateway.client.post_json("/v1/tenants/default/endpoints", &json!({"url": "http://127.0.0.1:9/"})).await;
    let endpoint = endpoint.json()["id"].as_str().unwrap().to_owned();
    for (what, state) in [
        (MailReason::BreakerOpened, "paused"),
        (MailReason::Paused, "active"),
        (MailReason::BreakerOpened, "paused"),
        (MailReason::Disabled, "active"),
        (MailReason::Dead, "active"),
    ] {
        let (command, route) = remedies(&gateway, &endpoint, what);
        let program = Path::new(env!("CARGO_BIN_EXE_posthaste"));
        let output = tokio::process::Command::new(program).args(&command).output().await.unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        let found = gateway.client.get(&format!("/v1/tenants/default/endpoints/{endpoint}")).await.json();
        assert_eq!(found["state"], state, "{what:?}");
        let answer = match route.split_once(' ').unwrap() {
            ("GET", path) => gateway.client.get(path).await,
            (_, path) => gateway.client.post_json(path, &json!({})).await,
        };
        assert!(answer.status < 300, "{route}: {}", answer.status);
    }
}
