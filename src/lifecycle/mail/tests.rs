//! How the postmaster waits, retries and gives up, in simulated time.

use std::collections::HashMap;

use super::*;
use crate::clock::TokioClock;

/// A post that does as it is told, and keeps book.
struct Scripted {
    clock: Arc<dyn Clock>,
    moods: HashMap<&'static str, Mood>,
    tries: Mutex<Vec<(String, Timestamp)>>,
}

#[derive(Clone, Copy)]
enum Mood {
    Busy,
    Refusing,
    Hanging,
}

#[async_trait]
impl Mailer for Scripted {
    async fn send(&self, mail: &Mail) -> Result<(), MailError> {
        self.tries.lock().push((mail.to.clone(), self.clock.now()));
        match self.moods.get(&*mail.to) {
            None => Ok(()),
            Some(Mood::Busy) => Err(MailError::Temporary("later".into())),
            Some(Mood::Refusing) => Err(MailError::Permanent("never".into())),
            Some(Mood::Hanging) => std::future::pending().await,
        }
    }
}

impl Scripted {
    /// When this address was tried, in seconds since the first time.
    fn tried(&self, to: &str) -> Vec<f64> {
        let tries = self.tries.lock();
        let times: Vec<_> = tries.iter().filter(|(who, _)| who == to).map(|(_, at)| at.as_millisecond()).collect();
        times.iter().map(|at| (at - times[0]) as f64 / 1_000.0).collect()
    }
}

struct House {
    post: Arc<Scripted>,
    mail_queue: MailQueue,
    sent: Arc<Mutex<Vec<String>>>,
}

impl House {
    fn with(moods: &[(&'static str, Mood)]) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at("2026-11-15T10:00:00Z".parse().unwrap()));
        let moods = moods.iter().copied().collect();
        let post = Arc::new(Scripted { clock: clock.clone(), moods, tries: Mutex::default() });
        let mail_queue = MailQueue::new(Some(post.clone()), clock);
        Self { post, mail_queue, sent: Arc::default() }
    }

    fn open(self) -> Self {
        let mail_queue = self.mail_queue.clone();
        tokio::spawn(async move { mail_queue.run().await });
        self
    }

    fn post(&self, to: &str) {
        let (sent, whom) = (self.sent.clone(), to.to_owned());
        self.mail_queue.enqueue(mail(to), move || sent.lock().push(whom));
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
    let house = House::with(&[("busy@example.com", Mood::Busy)]).open();
    house.post("busy@example.com");
    hours(24).await;
    let tried = house.post.tried("busy@example.com");
    let gaps: Vec<f64> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (n, gap) in gaps.iter().enumerate() {
        let about = (5.0 * 2_f64.powi(n as i32)).min(600.0);
        assert!((about * 0.9..=about * 1.1 + 0.002).contains(gap), "gap {n} is {gap} s, not about {about} s");
    }
    let last = tried.last().unwrap() / 3_600.0;
    assert!((5.8..=6.0).contains(&last), "the last try is {last} hours after the first");
    assert!(gaps.iter().any(|gap| (gap / 600.0 - 1.0).abs() > 0.001), "nothing of ours falls into step: {gaps:?}");
    assert_eq!((house.mail_queue.sent_count(), house.mail_queue.failed_count()), (0, 1));
    assert!(house.sent().is_empty(), "what was given up does not count as sent");
    assert_eq!(house.mail_queue.close(), 0, "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn what_waits_hangs_or_is_refused_holds_up_nobody_else() {
    let moods = [("busy@a", Mood::Busy), ("hanging@a", Mood::Hanging), ("refused@a", Mood::Refusing)];
    let house = House::with(&moods).open();
    for to in ["hanging@a", "busy@a", "refused@a", "fine@a", "well@a"] {
        house.post(to);
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(house.sent(), ["fine@a", "well@a"]);
    assert_eq!((house.mail_queue.sent_count(), house.mail_queue.failed_count()), (2, 1));
    hours(1).await;
    assert_eq!(house.post.tried("refused@a").len(), 1, "a refusal is final");
    assert!(house.post.tried("busy@a").len() > 5);
}

#[tokio::test(start_paused = true)]
async fn no_more_letters_wait_than_there_is_room_for() {
    let house = House::with(&[]);
    for n in 0..LETTERS_MAX + 3 {
        house.post(&format!("{n}@example.com"));
    }
    assert_eq!(house.mail_queue.failed_count(), 3);
    let house = house.open();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let expected: Vec<String> = (0..LETTERS_MAX).map(|n| format!("{n}@example.com")).collect();
    let mut sent = house.sent();
    sent.sort_by_key(|to| to.split('@').next().unwrap().parse::<usize>().unwrap());
    assert_eq!(sent, expected, "those that were there first are sent, each once");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_stumbles_over_the_news_stops_nothing() {
    let house = House::with(&[]).open();
    house.mail_queue.enqueue(mail("first@a"), || panic!("as the test wants"));
    tokio::time::sleep(Duration::from_millis(1)).await;
    house.post("second@a");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(house.sent(), ["second@a"]);
}

#[tokio::test(start_paused = true)]
async fn after_closing_nothing_is_kept_and_nothing_taken() {
    let house = House::with(&[("busy@a", Mood::Busy)]).open();
    house.post("busy@a");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(house.mail_queue.close(), 1);
    assert_eq!(Arc::strong_count(&house.sent), 1, "what a letter held on to is let go");
    house.post("late@a");
    hours(1).await;
    assert!(house.sent().is_empty());
    assert_eq!(house.post.tried("busy@a").len(), 1);
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
