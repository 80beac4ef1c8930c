//! The endpoints at which the most attempts failed, of a tenant or of the gateway.
//!
//! Invariant: a limited number is kept, however many fail; those with the most
//! failures stay.

use std::collections::HashMap;

use super::figure_codec::{DecodeError, put_varint, take_varint};
use super::id::EndpointId;

/// Most endpoints that are stored of a window or an hour.
const STORED_MAX: usize = 20;

/// Failed attempts by endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailingEndpoints(HashMap<EndpointId, u64>);

impl FailingEndpoints {
    /// Whether no attempt failed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds failed attempts of an endpoint.
    pub fn count(&mut self, endpoint: EndpointId, failed: u64) {
        if failed > 0 {
            let counted = self.0.entry(endpoint).or_default();
            *counted = counted.saturating_add(failed);
        }
    }

    /// Adds those of another writer, tenant or window.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(endpoint, failed)| self.count(*endpoint, *failed));
    }

    /// Returns those at which the most attempts failed, the worst first.
    pub fn worst(&self, most: usize) -> Vec<(EndpointId, u64)> {
        let mut all: Vec<(EndpointId, u64)> = self.0.iter().map(|(endpoint, failed)| (*endpoint, *failed)).collect();
        all.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.0.cmp(&b.0)));
        all.truncate(most);
        all
    }

    /// Returns the endpoints, in no order.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.0.keys().copied()
    }

    /// Keeps some of the endpoints.
    pub fn keep(&mut self, is_kept: impl Fn(EndpointId) -> bool) {
        self.0.retain(|endpoint, _| is_kept(*endpoint));
    }

    /// Keeps those that are stored.
    pub fn truncate(&mut self) {
        if self.0.len() > STORED_MAX {
            self.0 = self.worst(STORED_MAX).into_iter().collect();
        }
    }

    /// Returns the worst as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (endpoint, failed) in self.worst(STORED_MAX) {
            bytes.extend_from_slice(endpoint.0.as_bytes());
            put_varint(&mut bytes, failed);
        }
        bytes
    }

    /// Reads what was encoded.
    ///
    /// # Errors
    /// If the bytes are damaged.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut failing = Self::default();
        while let Some((id, rest)) = bytes.split_first_chunk::<16>() {
            bytes = rest;
            failing.count(EndpointId(uuid::Uuid::from_bytes(*id)), take_varint(&mut bytes)?);
        }
        if bytes.is_empty() { Ok(failing) } else { Err(DecodeError::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: u128) -> EndpointId {
        EndpointId(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn the_worst_stay_however_many_fail() {
        let mut failing = FailingEndpoints::default();
        for number in 1..=1_000 {
            failing.count(endpoint(number), number as u64);
        }
        failing.count(endpoint(2_000), 0);
        let read = FailingEndpoints::decode(&failing.encode()).unwrap();
        assert_eq!(read.worst(2), [(endpoint(1_000), 1_000), (endpoint(999), 999)]);
        assert_eq!(read.worst(usize::MAX).len(), STORED_MAX);
        failing.truncate();
        assert_eq!(failing, read);
        assert_eq!(FailingEndpoints::decode(failing.encode().split_last().unwrap().1), Err(DecodeError::Damaged));
    }
}
