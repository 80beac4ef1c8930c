//! A receiver that keeps an exact ledger of what it was asked, by whom and
//! when, and checks it against what the gateway promises.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use crate::load::Handed;
use crate::sockets;
use crate::support::PATIENCE;

/// How long a request may be open before its sender has given it up: the
/// timeout of every endpoint here.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// One request.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What follows the `/` of its path: which endpoint was meant.
    pub endpoint: String,
    pub id: String,
    pub key: String,
    pub seq: u64,
    pub attempt: u32,
    /// Who asked, if that was still to be seen.
    pub node: Option<Arc<str>>,
    pub began: Instant,
    /// When it was answered, or its sender hung up.
    pub ended: Option<Instant>,
    /// The answer, if there was one.
    pub status: Option<u16>,
}

impl Entry {
    /// When it was over for its sender, at the latest. One that is frozen
    /// closes nothing, and yet it is over.
    fn over(&self) -> Instant {
        let given_up = self.began + TIMEOUT;
        self.ended.map_or(given_up, |ended| ended.min(given_up))
    }

    pub fn is_delivered(&self) -> bool {
        self.status.is_some_and(|status| status < 300)
    }

    pub fn is_of(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node)
    }
}

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Answer with this after a moment's work.
    Status(u16),
    /// Not before it is told to go on; then with this.
    Hold(u16),
}

/// Refuses one attempt in eight, always the same ones.
pub fn moody(entry: &Entry) -> Reply {
    let mut hasher = DefaultHasher::new();
    (&entry.id, entry.attempt).hash(&mut hasher);
    Reply::Status(if hasher.finish().is_multiple_of(8) { 503 } else { 200 })
}

type Choose = Box<dyn Fn(&Entry) -> Reply + Send>;

struct Book {
    entries: Mutex<Vec<Entry>>,
    choose: Mutex<Choose>,
    more: Notify,
    go_on: watch::Sender<bool>,
}

/// A receiver on a free port of this machine.
pub struct Ledger {
    pub address: SocketAddr,
    book: Arc<Book>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Ledger {
    pub async fn start(choose: impl Fn(&Entry) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (entries, choose) = (Mutex::default(), Mutex::new(Box::new(choose) as Choose));
        let book = Arc::new(Book { entries, choose, more: Notify::new(), go_on: watch::Sender::new(false) });
        let accepting = tokio::spawn(accept(listener, book.clone()));
        Self { address, book, accepting }
    }

    pub fn url(&self, endpoint: &str) -> String {
        format!("http://{}/{endpoint}", self.address)
    }

    /// Changes how it answers from now on.
    pub fn answer_with(&self, choose: impl Fn(&Entry) -> Reply + Send + 'static) {
        *self.book.choose.lock().expect("nothing panics while it is held") = Box::new(choose);
    }

    /// Lets held requests go on, these and later ones.
    pub fn go_on(&self) {
        self.book.go_on.send_replace(true);
    }

    /// Every request so far, in the order they began.
    pub fn entries(&self) -> Vec<Entry> {
        self.book.entries.lock().expect("nothing panics while it is held").clone()
    }

    pub fn count(&self) -> usize {
        self.book.entries.lock().expect("nothing panics while it is held").len()
    }

    /// Waits until the entries show this.
    pub async fn wait_until(&self, what: &str, is_so: impl Fn(&[Entry]) -> bool) {
        let waiting = async {
            loop {
                let more = self.book.more.notified();
                if is_so(&self.book.entries.lock().expect("nothing panics while it is held")) {
                    return;
                }
                // A word that comes between the look and the wait is no loss.
                let _ = tokio::time::timeout(Duration::from_millis(50), more).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let entries = self.entries();
            let last = &entries[entries.len().saturating_sub(3)..];
            panic!("waited in vain for {what}; {} requests came, the last: {last:#?}", entries.len());
        }
    }

    /// Waits until so many more requests have come.
    pub async fn wait_for_more(&self, count: usize) {
        let wanted = self.count() + count;
        self.wait_until(&format!("{count} more requests"), |entries| entries.len() >= wanted).await;
    }

    /// Checks everything that is promised, whatever has happened. `may_be_lost`
    /// tells of which answers the gateway may never have heard, or not kept:
    /// only those may be asked for again.
    pub fn check(&self, handed: &Handed, cap: usize, may_be_lost: impl Fn(&Entry) -> bool) -> Findings {
        let entries = self.entries();
        nothing_is_lost(&entries, handed);
        caps_are_kept(&entries, cap);
        lanes_are_kept(&entries);
        attempts_are_counted(&entries);
        places_follow_hand_in(&entries, handed);
        Findings { requests: entries.len(), acknowledged: handed.len(), repeats: repeats(&entries, may_be_lost) }
    }
}

/// What a check has found.
#[derive(Debug)]
pub struct Findings {
    pub requests: usize,
    pub acknowledged: usize,
    /// Requests made again though they were answered.
    pub repeats: usize,
}

fn nothing_is_lost(entries: &[Entry], handed: &Handed) {
    let arrived: HashSet<(&str, &str)> =
        entries.iter().filter(|entry| entry.is_delivered()).map(|entry| (&*entry.endpoint, &*entry.id)).collect();
    let lost: Vec<&String> = handed.ids().filter(|(id, to)| !arrived.contains(&(to, id))).map(|(id, _)| id).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged are lost: {lost:?}", lost.len(), handed.len());
}

fn caps_are_kept(entries: &[Entry], cap: usize) {
    for (endpoint, mut group) in grouped(entries, |entry| entry.endpoint.clone()) {
        group.sort_by_key(|entry| entry.began);
        for (n, entry) in group.iter().enumerate() {
            let recent = group[..=n].iter().rev().take_while(|other| other.began + TIMEOUT > entry.began);
            let open: Vec<_> = recent.filter(|other| other.over() > entry.began).collect();
            assert!(open.len() <= cap, "{endpoint} has {} open, {cap} are allowed: {open:#?}", open.len());
        }
    }
}

fn lanes_are_kept(entries: &[Entry]) {
    let keyed: Vec<Entry> = entries.iter().filter(|entry| !entry.key.is_empty()).cloned().collect();
    for (lane, mut group) in grouped(&keyed, |entry| (entry.endpoint.clone(), entry.key.clone())) {
        group.sort_by_key(|entry| entry.began);
        let mut last = group[0];
        assert_eq!(last.seq, 1, "a lane begins with its first: {last:?}");
        let (mut is_delivered, mut busy_until) = (last.is_delivered(), last.over());
        for entry in &group[1..] {
            assert!(entry.began >= busy_until, "two at once in {lane:?}: {last:#?}\n{entry:#?}");
            if entry.seq == last.seq {
                assert_eq!(entry.id, last.id, "one place, one event");
            } else {
                assert_eq!(entry.seq, last.seq + 1, "out of order in {lane:?}: {last:#?}\n{entry:#?}");
                assert!(is_delivered, "overtaken in {lane:?}: {last:#?}\n{entry:#?}");
                is_delivered = false;
            }
            is_delivered |= entry.is_delivered();
            busy_until = entry.over();
            last = entry;
        }
    }
}

/// Each delivery's attempts are numbered without a gap: none is charged that
/// the receiver has not seen.
fn attempts_are_counted(entries: &[Entry]) {
    for (delivery, group) in grouped(entries, |entry| (entry.endpoint.clone(), entry.id.clone())) {
        let numbers: BTreeSet<u32> = group.iter().map(|entry| entry.attempt).collect();
        let wanted: BTreeSet<u32> = (1..=numbers.len() as u32).collect();
        assert_eq!(numbers, wanted, "{delivery:?} was charged for what was never sent");
    }
}

/// Whoever waits for one receipt before handing in the next finds them in
/// that order, through whichever nodes.
fn places_follow_hand_in(entries: &[Entry], handed: &Handed) {
    let places: HashMap<(&str, &str), u64> =
        entries.iter().map(|entry| ((&*entry.endpoint, &*entry.id), entry.seq)).collect();
    for (producer, run) in handed.runs() {
        let places: Vec<u64> = run.iter().map(|(id, to)| places[&(&**to, &**id)]).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{producer:?} handed in {run:?}, their places are {places:?}");
    }
}

/// Requests made again under the same number after an answer.
fn repeats(entries: &[Entry], may_be_lost: impl Fn(&Entry) -> bool) -> usize {
    let mut count = 0;
    let attempt = |entry: &Entry| (entry.endpoint.clone(), entry.id.clone(), entry.attempt);
    for (_, mut group) in grouped(entries, attempt) {
        group.sort_by_key(|entry| entry.began);
        for pair in group.windows(2) {
            assert!(may_be_lost(pair[0]), "asked again for no reason: {:#?}\n{:#?}", pair[0], pair[1]);
            count += 1;
        }
    }
    count
}

fn grouped<K: Ord>(entries: &[Entry], by: impl Fn(&Entry) -> K) -> BTreeMap<K, Vec<&Entry>> {
    let mut groups: BTreeMap<K, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        groups.entry(by(entry)).or_default().push(entry);
    }
    groups
}

async fn accept(listener: TcpListener, book: Arc<Book>) {
    // Dropped with this task, so that a receiver that stops closes its connections.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, theirs)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let book = book.clone();
        let ours = stream.local_addr().expect("an address");
        connections.spawn(async move {
            let node = tokio::task::spawn_blocking(move || sockets::node_at(theirs, ours)).await.expect("it looks");
            let service = service_fn(move |request| answer(book.clone(), node.clone(), request));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    book: Arc<Book>,
    node: Option<Arc<str>>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    body.collect().await?;
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let entry = Entry {
        endpoint: head.uri.path().trim_start_matches('/').to_owned(),
        id: header("webhook-id").to_owned(),
        key: header("x-key").to_owned(),
        seq: header("x-seq").parse().unwrap_or(0),
        attempt: header("webhook-attempt").parse()?,
        node,
        began: Instant::now(),
        ended: None,
        status: None,
    };
    let reply = (book.choose.lock().expect("nothing panics while it is held"))(&entry);
    let mut open = Open::write_down(&book, entry);
    let (Reply::Status(status) | Reply::Hold(status)) = reply;
    match reply {
        Reply::Status(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        Reply::Hold(_) => {
            let _ = book.go_on.subscribe().wait_for(|go| *go).await;
        }
    }
    open.status = Some(status);
    Ok(hyper::Response::builder().status(status).body(Full::default())?)
}

/// An entry that is open. Dropped without an answer if the sender hangs up.
struct Open {
    book: Arc<Book>,
    place: usize,
    status: Option<u16>,
}

impl Open {
    fn write_down(book: &Arc<Book>, mut entry: Entry) -> Self {
        let mut entries = book.entries.lock().expect("nothing panics while it is held");
        // Taken under the lock, so that the book is in order.
        entry.began = Instant::now();
        entries.push(entry);
        book.more.notify_waiters();
        Self { book: book.clone(), place: entries.len() - 1, status: None }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut entries = self.book.entries.lock().expect("nothing panics while it is held");
        let entry = &mut entries[self.place];
        (entry.ended, entry.status) = (Some(Instant::now()), self.status);
        self.book.more.notify_waiters();
    }
}

mod tests {
    use super::*;

    /// A request for the event of this place in the lane `k`, open from one
    /// millisecond to another.
    fn entry(seq: u64, attempt: u32, from: u64, to: u64, status: u16) -> Entry {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        let at = |ms| *START + Duration::from_millis(ms);
        Entry {
            endpoint: "e0".into(),
            id: format!("evt-{seq}"),
            key: "k".into(),
            seq,
            attempt,
            node: None,
            began: at(from),
            ended: Some(at(to)),
            status: Some(status),
        }
    }

    fn is_refused(check: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(check).is_err()
    }

    #[test]
    fn what_is_in_order_is_found_in_order() {
        let entries = [entry(1, 1, 0, 5, 503), entry(1, 2, 6, 9, 200), entry(2, 1, 9, 12, 200)];
        lanes_are_kept(&entries);
        attempts_are_counted(&entries);
        caps_are_kept(&entries, 1);
        assert_eq!(repeats(&entries, |_| false), 0);
        // Cut off by a crash, and made again before the next.
        let crashed = [entry(1, 1, 0, 5, 200), entry(1, 1, 7, 9, 200), entry(2, 1, 9, 12, 200)];
        lanes_are_kept(&crashed);
        assert_eq!(repeats(&crashed, |entry| entry.seq == 1), 1);
    }

    #[test]
    fn whatever_is_out_of_order_is_found() {
        let first = || entry(1, 1, 0, 5, 200);
        for (what, entries) in [
            ("two at once", [first(), entry(2, 1, 4, 8, 200)]),
            ("a place left out", [first(), entry(3, 1, 6, 8, 200)]),
            ("one after its successor", [entry(2, 1, 0, 5, 200), entry(1, 1, 6, 8, 200)]),
            ("overtaken", [entry(1, 1, 0, 5, 503), entry(2, 1, 6, 8, 200)]),
        ] {
            assert!(is_refused(|| lanes_are_kept(&entries)), "{what}");
        }
        assert!(is_refused(|| caps_are_kept(&[first(), entry(2, 1, 4, 8, 200)], 1)));
        assert!(is_refused(|| attempts_are_counted(&[first(), entry(1, 3, 6, 8, 200)])));
        assert!(is_refused(|| {
            let _ = repeats(&[first(), entry(1, 1, 6, 8, 200)], |_| false);
        }));
        let frozen = Entry { ended: None, status: None, ..first() };
        caps_are_kept(&[frozen.clone(), entry(2, 1, 1_001, 1_005, 200)], 1);
        assert!(is_refused(move || caps_are_kept(&[frozen, entry(2, 1, 999, 1_005, 200)], 1)));
    }

    #[test]
    fn what_is_lost_or_in_another_order_than_it_was_handed_in_is_found() {
        let handed = || Handed::of(&[("evt-1", "e0", "k"), ("evt-2", "e0", "k")]);
        let both = [entry(1, 1, 0, 5, 200), entry(2, 1, 6, 8, 200)];
        nothing_is_lost(&both, &handed());
        places_follow_hand_in(&both, &handed());
        assert!(is_refused(|| nothing_is_lost(&both[..1], &handed())));
        assert!(is_refused(|| nothing_is_lost(&[entry(1, 1, 0, 5, 200), entry(2, 1, 6, 8, 503)], &handed())));
        let swapped = Handed::of(&[("evt-2", "e0", "k"), ("evt-1", "e0", "k")]);
        assert!(is_refused(|| places_follow_hand_in(&both, &swapped)));
    }
}
