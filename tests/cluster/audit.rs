//! Checks a ledger against what the gateway promises, and lists every broken
//! promise.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::ledger::{Content, Entry, Ledger, TIMEOUT};
use crate::load::AcknowledgedEvents;

/// Limits of every endpoint of a ledger.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Most requests that may be open at once.
    pub cap: usize,
    /// Time after which a sender gives a request up.
    pub timeout: Duration,
}

/// The findings of an audit: one sentence for each broken promise.
#[derive(Debug, Default)]
pub struct Findings {
    pub requests: usize,
    pub acknowledged: usize,
    /// Acknowledged events that never arrived.
    pub lost: Vec<String>,
    /// Requests that came before their predecessor in the lane was delivered.
    pub overtakes: Vec<String>,
    /// Requests that began while another of their lane was open.
    pub overlaps: Vec<String>,
    /// Requests beyond the endpoint's cap.
    pub beyond_cap: Vec<String>,
    /// Deliveries that were charged for what was never sent.
    pub miscounted: Vec<String>,
    /// Events whose place in their lane is not the order of their receipts.
    pub misplaced: Vec<String>,
    /// Requests that differ from what was handed in, or from one another, or
    /// whose signature is wrong.
    pub altered: Vec<String>,
    /// Requests made again though they were answered: the one before, and the
    /// repeat.
    pub repeats: Vec<(Entry, Entry)>,
}

impl Ledger {
    /// Checks all promises that hold under any fault. `may_be_lost` says whose
    /// answers the gateway may not have received or stored: only those requests
    /// may be repeated.
    pub fn check(
        &self,
        acknowledged: &AcknowledgedEvents,
        cap: usize,
        may_be_lost: impl Fn(&Entry) -> bool,
    ) -> Findings {
        let findings = Findings::of(&self.entries(), acknowledged, &Rules { cap, timeout: TIMEOUT });
        findings.expect_none();
        for (first, again) in &findings.repeats {
            assert!(may_be_lost(first), "asked again for no reason: {first:?}, then {again:?}");
        }
        findings
    }
}

impl Findings {
    pub fn of(entries: &[Entry], acknowledged: &AcknowledgedEvents, rules: &Rules) -> Self {
        Self {
            requests: entries.len(),
            acknowledged: acknowledged.len(),
            lost: lost(entries, acknowledged),
            beyond_cap: beyond_cap(entries, rules),
            miscounted: miscounted(entries),
            misplaced: misplaced(entries, acknowledged),
            altered: altered(entries, acknowledged),
            repeats: repeats(entries),
            ..lanes(entries, rules)
        }
    }

    /// Returns every broken promise except repeats, which a fault may explain.
    pub fn broken(&self) -> Vec<(&'static str, &[String])> {
        let kinds: [(&str, &[String]); 7] = [
            ("lost", &self.lost),
            ("overtaken", &self.overtakes),
            ("two at once in a lane", &self.overlaps),
            ("beyond the cap", &self.beyond_cap),
            ("charged for what was never sent", &self.miscounted),
            ("not in the order of the receipts", &self.misplaced),
            ("altered", &self.altered),
        ];
        kinds.into_iter().filter(|(_, findings)| !findings.is_empty()).collect()
    }

    #[track_caller]
    pub fn expect_none(&self) {
        let broken = self.broken();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

/// Returns the spans in which more requests began than a rate allows. `slack`
/// allows for requests that were sent evenly and arrive closer together.
pub fn beyond_rate(began: &[Instant], per_second: f64, burst: f64, slack: f64) -> Vec<String> {
    let mut began = began.to_vec();
    began.sort_unstable();
    let mut findings = Vec::new();
    for (first, from) in began.iter().enumerate() {
        for (last, until) in began.iter().enumerate().skip(first) {
            let (count, span) = ((last - first + 1) as f64, (*until - *from).as_secs_f64());
            if count > burst + per_second * span + slack {
                findings
                    .push(format!("{count} requests in {span:.3} s, {burst} and {per_second} a second are allowed"));
                break;
            }
        }
    }
    findings
}

fn lost(entries: &[Entry], acknowledged: &AcknowledgedEvents) -> Vec<String> {
    let arrived: HashSet<(&str, &str)> =
        entries.iter().filter(|entry| entry.is_delivered()).map(|entry| (&*entry.endpoint, &*entry.id)).collect();
    acknowledged
        .ids()
        .filter(|(id, to)| !arrived.contains(&(to, id)))
        .map(|(id, to)| format!("{id} for {to}"))
        .collect()
}

fn beyond_cap(entries: &[Entry], rules: &Rules) -> Vec<String> {
    let mut findings = Vec::new();
    for (endpoint, mut group) in grouped(entries, |entry| entry.endpoint.clone()) {
        group.sort_by_key(|entry| entry.began);
        for (n, entry) in group.iter().enumerate() {
            let recent = group[..=n].iter().rev().take_while(|other| other.began + rules.timeout > entry.began);
            let open: Vec<_> = recent.filter(|other| other.over(rules.timeout) > entry.began).collect();
            if open.len() > rules.cap {
                findings.push(format!("{endpoint} has {} open, {} are allowed: {open:?}", open.len(), rules.cap));
            }
        }
    }
    findings
}

/// Returns the overtakes and overlaps in every lane.
fn lanes(entries: &[Entry], rules: &Rules) -> Findings {
    let mut findings = Findings::default();
    let keyed: Vec<Entry> = entries.iter().filter(|entry| !entry.key.is_empty()).cloned().collect();
    for (lane, mut group) in grouped(&keyed, |entry| (entry.endpoint.clone(), entry.key.clone())) {
        group.sort_by_key(|entry| entry.began);
        let mut last = group[0];
        if last.seq != 1 {
            findings.overtakes.push(format!("a lane does not begin with its first: {last:?}"));
        }
        let (mut is_delivered, mut busy_until) = (last.is_delivered(), last.over(rules.timeout));
        for entry in &group[1..] {
            if entry.began < busy_until {
                findings.overlaps.push(format!("two at once in {lane:?}: {last:?}, then {entry:?}"));
            }
            if entry.seq != last.seq {
                if entry.seq != last.seq + 1 || !is_delivered {
                    findings.overtakes.push(format!("out of order in {lane:?}: {last:?}, then {entry:?}"));
                }
                is_delivered = false;
            } else if entry.id != last.id {
                findings.overtakes.push(format!("two events have one place in {lane:?}: {last:?}, then {entry:?}"));
            }
            is_delivered |= entry.is_delivered();
            busy_until = entry.over(rules.timeout);
            last = entry;
        }
    }
    findings
}

/// Returns the deliveries whose attempt numbers have a gap: an attempt was
/// charged that the receiver has not seen.
fn miscounted(entries: &[Entry]) -> Vec<String> {
    let mut findings = Vec::new();
    for (delivery, group) in grouped(entries, |entry| (entry.endpoint.clone(), entry.id.clone())) {
        let numbers: BTreeSet<u32> = group.iter().map(|entry| entry.attempt).collect();
        if !numbers.iter().copied().eq(1..=numbers.len() as u32) {
            findings.push(format!("{delivery:?} has the attempts {numbers:?}"));
        }
    }
    findings
}

/// Returns the lanes that are not in the order of their receipts. A producer
/// that waits for each receipt keeps its order, through whichever nodes.
fn misplaced(entries: &[Entry], acknowledged: &AcknowledgedEvents) -> Vec<String> {
    let places: HashMap<(&str, &str), u64> =
        entries.iter().map(|entry| ((&*entry.endpoint, &*entry.id), entry.seq)).collect();
    let mut findings = Vec::new();
    for (producer, run) in acknowledged.runs() {
        // A lost event has no place; it is counted as lost.
        let places: Vec<u64> = run.iter().filter_map(|(id, to)| places.get(&(&**to, &**id)).copied()).collect();
        if !places.is_sorted_by(|a, b| a < b) {
            findings.push(format!("{producer:?} handed in {run:?}, their places are {places:?}"));
        }
    }
    findings
}

fn altered(entries: &[Entry], acknowledged: &AcknowledgedEvents) -> Vec<String> {
    let sent: HashMap<(&str, &str), u64> =
        acknowledged.contents().map(|(id, endpoint, data)| ((endpoint, id), data)).collect();
    let mut first: HashMap<(&str, &str), &Content> = HashMap::new();
    let mut findings = Vec::new();
    for entry in entries {
        let delivery = (&*entry.endpoint, &*entry.id);
        let before = first.entry(delivery).or_insert(&entry.content);
        let Content { body, data, kind, is_signed } = &entry.content;
        let is_as_sent = sent.get(&delivery).is_none_or(|sent| *data == Some(*sent) && *kind == entry.endpoint);
        if before.body != *body || !is_as_sent || !is_signed {
            findings.push(format!("{entry:?}, before: {before:?}"));
        }
    }
    findings
}

/// Returns requests made again with the same attempt number, or after a 2xx.
fn repeats(entries: &[Entry]) -> Vec<(Entry, Entry)> {
    let mut findings = Vec::new();
    for (_, mut group) in grouped(entries, |entry| (entry.endpoint.clone(), entry.id.clone())) {
        group.sort_by_key(|entry| entry.began);
        let is_repeat = |pair: &&[&Entry]| pair[0].attempt == pair[1].attempt || pair[0].is_delivered();
        findings.extend(group.windows(2).filter(is_repeat).map(|pair| (pair[0].clone(), pair[1].clone())));
    }
    findings
}

fn grouped<K: Ord>(entries: &[Entry], by: impl Fn(&Entry) -> K) -> BTreeMap<K, Vec<&Entry>> {
    let mut groups: BTreeMap<K, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        groups.entry(by(entry)).or_default().push(entry);
    }
    groups
}

mod tests {
    use super::*;

    const RULES: Rules = Rules { cap: 1, timeout: Duration::from_secs(1) };

    /// Returns a request for the event of this place in the lane `k`, open from
    /// one millisecond to another.
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
            content: Content { is_signed: true, ..Content::default() },
            marks: (0, 0),
        }
    }

    #[test]
    fn what_is_in_order_is_found_in_order() {
        let entries = [entry(1, 1, 0, 5, 503), entry(1, 2, 6, 9, 200), entry(2, 1, 9, 12, 200)];
        let findings = Findings::of(&entries, &AcknowledgedEvents::default(), &RULES);
        findings.expect_none();
        assert_eq!(findings.repeats.len(), 0);
        // Cut off by a crash, and made again before the next.
        let crashed = [entry(1, 1, 0, 5, 200), entry(1, 1, 7, 9, 200), entry(2, 1, 9, 12, 200)];
        let findings = Findings::of(&crashed, &AcknowledgedEvents::default(), &RULES);
        findings.expect_none();
        assert_eq!(findings.repeats.len(), 1);
    }

    #[test]
    fn whatever_is_out_of_order_is_found() {
        let first = || entry(1, 1, 0, 5, 200);
        assert_eq!(lanes(&[first(), entry(2, 1, 4, 8, 200)], &RULES).overlaps.len(), 1, "two at once");
        for (what, entries) in [
            ("a place left out", [first(), entry(3, 1, 6, 8, 200)]),
            ("one after its successor", [entry(2, 1, 0, 5, 200), entry(1, 1, 6, 8, 200)]),
            ("overtaken", [entry(1, 1, 0, 5, 503), entry(2, 1, 6, 8, 200)]),
        ] {
            assert!(!lanes(&entries, &RULES).overtakes.is_empty(), "{what}");
        }
        assert_eq!(beyond_cap(&[first(), entry(2, 1, 4, 8, 200)], &RULES).len(), 1);
        assert_eq!(miscounted(&[first(), entry(1, 3, 6, 8, 200)]).len(), 1);
        assert_eq!(repeats(&[first(), entry(1, 1, 6, 8, 200)]).len(), 1, "the same attempt again");
        assert_eq!(repeats(&[first(), entry(1, 2, 6, 8, 200)]).len(), 1, "delivered, and yet another attempt");
        let frozen = Entry { ended: None, status: None, ..first() };
        assert_eq!(beyond_cap(&[frozen.clone(), entry(2, 1, 1_001, 1_005, 200)], &RULES).len(), 0);
        assert_eq!(beyond_cap(&[frozen, entry(2, 1, 999, 1_005, 200)], &RULES).len(), 1);
    }

    #[test]
    fn what_is_lost_altered_or_in_another_order_than_it_was_handed_in_is_found() {
        let acknowledged = AcknowledgedEvents::of(&[("evt-1", "e0", "k"), ("evt-2", "e0", "k")]);
        let both = [entry(1, 1, 0, 5, 200), entry(2, 1, 6, 8, 200)];
        assert!(lost(&both, &acknowledged).is_empty() && misplaced(&both, &acknowledged).is_empty());
        assert_eq!(lost(&both[..1], &acknowledged).len(), 1);
        assert_eq!(lost(&[entry(1, 1, 0, 5, 200), entry(2, 1, 6, 8, 503)], &acknowledged).len(), 1);
        let swapped = AcknowledgedEvents::of(&[("evt-2", "e0", "k"), ("evt-1", "e0", "k")]);
        assert_eq!(misplaced(&both, &swapped).len(), 1);

        let as_sent = |mut entry: Entry| {
            let data = acknowledged.contents().find(|(id, ..)| *id == entry.id).map(|(_, _, data)| data);
            entry.content = Content { data, kind: "e0".into(), ..entry.content };
            entry
        };
        let [one, two] = both.map(as_sent);
        assert!(altered(&[one.clone(), two.clone()], &acknowledged).is_empty());
        let with = |content: Content| Entry { content, ..two.clone() };
        for content in [
            Content { data: Some(7), ..two.content.clone() },
            Content { data: None, ..two.content.clone() },
            Content { kind: "e1".into(), ..two.content.clone() },
            Content { is_signed: false, ..two.content.clone() },
        ] {
            assert_eq!(altered(&[one.clone(), with(content.clone())], &acknowledged).len(), 1, "{content:?}");
        }
        let other = with(Content { body: 7, ..two.content.clone() });
        assert_eq!(altered(&[one, two.clone(), other], &acknowledged).len(), 1, "another body than at first");
    }

    #[test]
    fn a_rate_that_is_exceeded_is_found() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let even: Vec<Instant> = (0..40).map(|n| at(n * 50)).collect();
        assert!(beyond_rate(&even, 20.0, 1.0, 0.5).is_empty());
        assert!(!beyond_rate(&even, 19.0, 1.0, 0.5).is_empty());
        let burst: Vec<Instant> = (0..7).map(at).collect();
        assert!(!beyond_rate(&burst, 20.0, 5.0, 1.0).is_empty());
    }
}
