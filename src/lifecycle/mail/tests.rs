//! Tests in simulated time that the mail queue waits, retries and gives up.

use std::collections::HashMap;

use super::*;
use crate::clock::TokioClock;

/// A mailer with a scripted answer per address, which records every try.
struct ScriptedMailer {
    clock: Arc<dyn Clock>,
    answers: HashMap<&'static str, ScriptedAnswer>,
    tries: Mutex<Vec<(String, Timestamp)>>,
}

#[derive(Clone, Copy)]
enum ScriptedAnswer {
    Busy,
    Refused,
    Never,
}

#[async_trait]
impl Mailer for ScriptedMailer {
    async fn send(&self, mail: &Mail) -> Result<(), MailError> {
        self.tries.lock().push((mail.to.clone(), self.clock.now()));
        match self.answers.get(&*mail.to) {
            None => Ok(()),
            Some(ScriptedAnswer::Busy) => Err(MailError::Temporary("later".into())),
            Some(ScriptedAnswer::Refused) => Err(MailError::Permanent("never".into())),
            Some(ScriptedAnswer::Never) => std::future::pending().await,
        }
    }
}

impl ScriptedMailer {
    /// Returns the times of all tries for this address, in seconds since the first.
    fn attempts_to(&self, to: &str) -> Vec<f64> {
        let tries = self.tries.lock();
        let times: Vec<_> = tries.iter().filter(|(who, _)| who == to).map(|(_, at)| at.as_millisecond()).collect();
        times.iter().map(|at| (at - times[0]) as f64 / 1_000.0).collect()
    }
}

/// A mail queue with its scripted mailer, and the addresses of the sent mails.
struct Fixture {
    mailer: Arc<ScriptedMailer>,
    mail_queue: MailQueue,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    fn with(answers: &[(&'static str, ScriptedAnswer)]) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at("2026-11-15T10:00:00Z".parse().unwrap()));
        let answers = answers.iter().copied().collect();
        let mailer = Arc::new(ScriptedMailer { clock: clock.clone(), answers, tries: Mutex::default() });
        let mail_queue = MailQueue::new(Some(mailer.clone()), clock);
        Self { mailer, mail_queue, sent: Arc::default() }
    }

    fn start(self) -> Self {
        let mail_queue = self.mail_queue.clone();
        tokio::spawn(async move { mail_queue.run().await });
        self
    }

    fn enqueue(&self, to: &str) {
        let (sent, address) = (self.sent.clone(), to.to_owned());
        self.mail_queue.enqueue(mail(to), move || sent.lock().push(address));
    }

    fn sent(&self) -> Vec<String> {
        self.sent.lock().clone()
    }
}

fn mail(to: &str) -> Mail {
    Mail { to: to.into(), subject: "Trouble".into(), text: "There is some.\n".into() }
}

async fn hours(hours: u64) {
    tokio::time::sleep(Duration::from_secs(hours * 3_600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_asked_less_and_less_often_and_given_up_after_six_hours() {
    let fixture = Fixture::with(&[("busy@example.com", ScriptedAnswer::Busy)]).start();
    fixture.enqueue("busy@example.com");
    hours(24).await;
    let tries = fixture.mailer.attempts_to("busy@example.com");
    let gaps: Vec<f64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (n, gap) in gaps.iter().enumerate() {
        let about = (5.0 * 2_f64.powi(n as i32)).min(600.0);
        assert!((about * 0.9..=about * 1.1 + 0.002).contains(gap), "gap {n} is {gap} s, not about {about} s");
    }
    let last = tries.last().unwrap() / 3_600.0;
    assert!((5.8..=6.0).contains(&last), "the last try is {last} hours after the first");
    assert!(gaps.iter().any(|gap| (gap / 600.0 - 1.0).abs() > 0.001), "nothing of ours falls into step: {gaps:?}");
    assert_eq!((fixture.mail_queue.sent_count(), fixture.mail_queue.failed_count()), (0, 1));
    assert!(fixture.sent().is_empty(), "what was given up does not count as sent");
    assert_eq!(fixture.mail_queue.close(), 0, "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn what_waits_hangs_or_is_refused_holds_up_nobody_else() {
    let answers = [
        ("busy@a", ScriptedAnswer::Busy),
        ("hanging@a", ScriptedAnswer::Never),
        ("refused@a", ScriptedAnswer::Refused),
    ];
    let fixture = Fixture::with(&answers).start();
    for to in ["hanging@a", "busy@a", "refused@a", "fine@a", "well@a"] {
        fixture.enqueue(to);
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(fixture.sent(), ["fine@a", "well@a"]);
    assert_eq!((fixture.mail_queue.sent_count(), fixture.mail_queue.failed_count()), (2, 1));
    hours(1).await;
    assert_eq!(fixture.mailer.attempts_to("refused@a").len(), 1, "a refusal is final");
    assert!(fixture.mailer.attempts_to("busy@a").len() > 5);
}

#[tokio::test(start_paused = true)]
async fn no_more_letters_wait_than_there_is_room_for() {
    let fixture = Fixture::with(&[]);
    for n in 0..MAILS_WAITING_MAX + 3 {
        fixture.enqueue(&format!("{n}@example.com"));
    }
    assert_eq!(fixture.mail_queue.failed_count(), 3);
    let fixture = fixture.start();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let expected: Vec<String> = (0..MAILS_WAITING_MAX).map(|n| format!("{n}@example.com")).collect();
    let mut sent = fixture.sent();
    sent.sort_by_key(|to| to.split('@').next().unwrap().parse::<usize>().unwrap());
    assert_eq!(sent, expected, "those that were there first are sent, each once");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_stumbles_over_the_news_stops_nothing() {
    let fixture = Fixture::with(&[]).start();
    fixture.mail_queue.enqueue(mail("first@a"), || panic!("as the test wants"));
    tokio::time::sleep(Duration::from_millis(1)).await;
    fixture.enqueue("second@a");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(fixture.sent(), ["second@a"]);
}

#[tokio::test(start_paused = true)]
async fn after_closing_nothing_is_kept_and_nothing_taken() {
    let fixture = Fixture::with(&[("busy@a", ScriptedAnswer::Busy)]).start();
    fixture.enqueue("busy@a");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(fixture.mail_queue.close(), 1);
    assert_eq!(Arc::strong_count(&fixture.sent), 1, "what a letter held on to is let go");
    fixture.enqueue("late@a");
    hours(1).await;
    assert!(fixture.sent().is_empty());
    assert_eq!(fixture.mailer.attempts_to("busy@a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_mail_server_letters_are_dropped_without_a_word() {
    let clock = TokioClock::starting_at("2026-11-15T10:00:00Z".parse().unwrap());
    let mail_queue = MailQueue::new(None, Arc::new(clock));
    mail_queue.enqueue(mail("a@a"), || panic!("nobody accepted it"));
    assert!(!mail_queue.is_open());
    assert_eq!(mail_queue.close(), 0);
    mail_queue.run().await;
}
