//! The jobs that wait for the writer, by priority, and what a copy of the store
//! asks of it.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::copy_steps::CopyRequest;

/// Largest number of jobs in one transaction, so that the first of them does
/// not wait for a flood of others.
pub const JOBS_PER_COMMIT: usize = 1_024;
/// Largest number of low-priority jobs in one transaction. It is as large as
/// the number of the others: most are settlements, and if a transaction could
/// take fewer of them than events, deliveries would fall behind what is
/// accepted for as long as the load lasts.
pub const LATER_PER_COMMIT: usize = JOBS_PER_COMMIT;

/// Whether a caller waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePriority {
    /// Somebody waits for the job.
    First,
    /// Nobody waits; the job only has to be written.
    Later,
}

/// A message to the writer's thread.
pub enum WriterMessage<J> {
    /// A job for the next transaction.
    Job(WritePriority, J),
    /// A part of a copy, made between two transactions.
    Copy(CopyRequest),
}

/// Jobs that wait for the next transaction, by priority.
pub struct WriteQueue<J> {
    first: VecDeque<J>,
    later: VecDeque<J>,
    copies: VecDeque<CopyRequest>,
}

/// Number of jobs that a transaction may still take, by priority.
pub struct JobBudget {
    first: usize,
    later: usize,
}

impl JobBudget {
    /// Returns the budget of a whole transaction.
    pub fn of_transaction() -> Self {
        Self { first: JOBS_PER_COMMIT, later: LATER_PER_COMMIT }
    }
}

impl<J> Default for WriteQueue<J> {
    fn default() -> Self {
        Self { first: VecDeque::new(), later: VecDeque::new(), copies: VecDeque::new() }
    }
}

impl<J> WriteQueue<J> {
    /// Waits until there is something to do. Returns false when there will be
    /// nothing.
    pub fn wait(&mut self, waiting: &mut mpsc::Receiver<WriterMessage<J>>) -> bool {
        if !self.has_jobs() && self.copies.is_empty() {
            match waiting.blocking_recv() {
                Some(message) => self.push(message),
                None => return false,
            }
        }
        self.drain(waiting);
        true
    }

    /// Whether a job waits for the next transaction.
    pub fn has_jobs(&self) -> bool {
        !self.first.is_empty() || !self.later.is_empty()
    }

    /// Takes over what has arrived.
    pub fn drain(&mut self, waiting: &mut mpsc::Receiver<WriterMessage<J>>) {
        while self.first.len() < JOBS_PER_COMMIT
            && let Ok(message) = waiting.try_recv()
        {
            self.push(message);
        }
    }

    fn push(&mut self, message: WriterMessage<J>) {
        match message {
            WriterMessage::Job(WritePriority::First, job) => self.first.push_back(job),
            WriterMessage::Job(WritePriority::Later, job) => self.later.push_back(job),
            WriterMessage::Copy(request) => self.copies.push_back(request),
        }
    }

    /// Takes as many jobs as the budget of a transaction allows.
    pub fn take(&mut self, budget: &mut JobBudget) -> Vec<J> {
        let (first, later) = (self.first.len().min(budget.first), self.later.len().min(budget.later));
        budget.first -= first;
        budget.later -= later;
        self.first.drain(..first).chain(self.later.drain(..later)).collect()
    }

    /// Takes the next request of a copy.
    pub fn take_copy(&mut self) -> Option<CopyRequest> {
        self.copies.pop_front()
    }

    /// Puts a request of a copy back, as the next one.
    pub fn put_back_copy(&mut self, request: CopyRequest) {
        self.copies.push_front(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_waits_for_goes_before_what_only_has_to_be_kept() {
        const SENT: usize = 4_096;
        let (jobs, mut waiting) = mpsc::channel(SENT);
        for n in 0..SENT {
            let priority = if n % 100 == 99 { WritePriority::First } else { WritePriority::Later };
            jobs.try_send(WriterMessage::Job(priority, n)).ok().unwrap();
        }
        let mut queue = WriteQueue::default();
        assert!(queue.wait(&mut waiting));
        let first = SENT / 100;
        let mut budget = JobBudget::of_transaction();
        let taken = queue.take(&mut budget).len();
        assert_eq!(taken, first + LATER_PER_COMMIT, "all of the first, and as many others as fit");
        assert_eq!(queue.take(&mut budget).len(), 0, "the transaction has room for none of the rest");
        // No job is lost.
        drop(jobs);
        let mut left = 0;
        while queue.wait(&mut waiting) {
            left += queue.take(&mut JobBudget::of_transaction()).len();
        }
        assert_eq!(left, SENT - first - LATER_PER_COMMIT);
    }
}
