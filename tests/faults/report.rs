//! Reports the findings of a scenario as one line, and fails if a promise is
//! broken.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::audit::Findings;
use crate::ledger::Entry;
use crate::run::Run;

/// Longest time from an answer to its commit, in which an attempt may be lost.
const MOMENT: Duration = Duration::from_secs(1);
/// Number of examples of each failure that are shown.
const EXAMPLES: usize = 3;

/// The faults of a run that may lose an outcome, so that the gateway repeats
/// the request.
#[derive(Default)]
pub struct Faults(Vec<Fault>);

struct Fault {
    reason: &'static str,
    /// Node it happened to; all nodes if none is named.
    node: Option<String>,
    from: Instant,
    until: Instant,
}

impl Faults {
    /// Records a fault of all nodes between `from` and now.
    pub fn note(&mut self, reason: &'static str, from: Instant) {
        self.0.push(Fault { reason, node: None, from, until: Instant::now() });
    }

    /// Records a fault of one node between `from` and now.
    pub fn note_at(&mut self, node: &str, reason: &'static str, from: Instant) {
        self.0.push(Fault { reason, node: Some(node.to_owned()), from, until: Instant::now() });
    }

    /// Returns why the outcome of this request may be unknown, if it may.
    fn explain(&self, entry: &Entry) -> Option<&'static str> {
        let is_cause = |fault: &&Fault| {
            let is_its_node = match (&fault.node, entry.node.as_deref()) {
                (Some(fault), Some(node)) => fault == node,
                _ => true,
            };
            is_its_node && entry.began < fault.until && entry.ended.is_none_or(|ended| ended + MOMENT > fault.from)
        };
        self.0.iter().find(is_cause).map(|fault| fault.reason)
    }
}

/// The findings of a scenario.
pub struct Report {
    name: &'static str,
    seed: u64,
    pub cycles: usize,
    acked: usize,
    requests: usize,
    counts: BTreeMap<&'static str, usize>,
    /// Number of repeated requests, by their cause.
    repeats: BTreeMap<&'static str, usize>,
    figures: Vec<String>,
    failures: Vec<String>,
}

impl Report {
    pub fn of(run: &Run) -> Self {
        let (counts, repeats) = (BTreeMap::new(), BTreeMap::new());
        let (figures, failures) = (Vec::new(), Vec::new());
        println!("{}: seed {}", run.name, run.seed);
        let (cycles, acked, requests) = (0, 0, 0);
        Self { name: run.name, seed: run.seed, cycles, acked, requests, counts, repeats, figures, failures }
    }

    /// Adds the findings of an audit. A broken promise is a failure, and so is a
    /// repeat that none of these faults explains.
    pub fn add(&mut self, findings: &Findings, faults: &Faults) {
        self.acked += findings.acknowledged;
        self.requests += findings.requests;
        for (kind, found) in findings.broken() {
            *self.counts.entry(kind).or_default() += found.len();
            self.failures.extend(found.iter().take(EXAMPLES).map(|one| format!("{kind}: {one}")));
        }
        let mut unexplained = 0;
        for (first, again) in &findings.repeats {
            match faults.explain(first) {
                Some(reason) => *self.repeats.entry(reason).or_default() += 1,
                None => {
                    unexplained += 1;
                    if unexplained <= EXAMPLES {
                        self.failures.push(format!("asked again for no reason: {first:?}, then {again:?}"));
                    }
                }
            }
        }
        if unexplained > 0 {
            *self.repeats.entry("unexplained").or_default() += unexplained;
        }
    }

    /// Adds a figure to the line.
    pub fn figure(&mut self, name: &str, value: impl Display) {
        self.figures.push(format!("{name} {value}"));
    }

    /// Records a failure unless the condition holds.
    pub fn expect(&mut self, is_so: bool, what: impl FnOnce() -> String) {
        if !is_so {
            self.failures.push(what());
        }
    }

    /// Prints the line; panics if there are failures.
    pub fn finish(self) {
        let count = |kind: &str| self.counts.get(kind).copied().unwrap_or(0);
        let repeats: usize = self.repeats.values().sum();
        let reason: Vec<String> = self.repeats.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let reason = if reason.is_empty() { String::new() } else { format!(" ({})", reason.join(", ")) };
        let mut line = format!(
            "{}: seed {}, cycles {}, acked {}, lost {}, overtakes {}, overlaps {}, duplicates {repeats}{reason}, altered {}",
            self.name,
            self.seed,
            self.cycles,
            self.acked,
            count("lost"),
            count("overtaken"),
            count("two at once in a lane"),
            count("altered"),
        );
        let named = ["lost", "overtaken", "two at once in a lane", "altered"];
        for (kind, count) in self.counts.iter().filter(|(kind, _)| !named.contains(kind)) {
            line.push_str(&format!(", {kind} {count}"));
        }
        line.push_str(&format!(", requests {}", self.requests));
        for figure in &self.figures {
            line.push_str(&format!(", {figure}"));
        }
        println!("FAULTS {line}");
        let shown = &self.failures[..self.failures.len().min(4 * EXAMPLES)];
        assert!(shown.is_empty(), "{line}\n{} failures:\n{}", self.failures.len(), shown.join("\n"));
    }
}
