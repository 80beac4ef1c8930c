//! Figures by event type, for the busiest types of a tenant or of the gateway.
//!
//! Invariant: the number of types is bounded, whatever producers send; what is
//! left out is in `other`, so that the sums stay right.

use super::event::EventType;
use super::figure_codec::{DecodeError, put_varint, take_varint};
use super::id_map::IdMap;

/// Most types that are counted at a time.
const COUNTED_MAX: usize = 200;
/// Most types that are stored of a window or an hour.
const STORED_MAX: usize = 50;
/// Version of the encoding.
const VERSION: u8 = 1;

/// What happened to the deliveries of one event type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TypeCounts {
    /// Attempts that were made.
    pub attempts: u64,
    /// Deliveries that were delivered.
    pub delivered: u64,
    /// Deliveries that died.
    pub dead: u64,
}

impl TypeCounts {
    fn add(&mut self, other: Self) {
        self.attempts = self.attempts.saturating_add(other.attempts);
        self.delivered = self.delivered.saturating_add(other.delivered);
        self.dead = self.dead.saturating_add(other.dead);
    }

    fn minus(self, other: Self) -> Self {
        Self {
            attempts: self.attempts.saturating_sub(other.attempts),
            delivered: self.delivered.saturating_sub(other.delivered),
            dead: self.dead.saturating_sub(other.dead),
        }
    }
}

/// What happened, by event type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeFigures {
    /// The types that are counted each.
    pub by_type: IdMap<EventType, TypeCounts>,
    /// All other types together.
    pub other: TypeCounts,
}

impl TypeFigures {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.other == TypeCounts::default()
    }

    /// Adds to a type.
    pub fn count(&mut self, event_type: &EventType, more: TypeCounts) {
        if let Some(counts) = self.by_type.get_mut(event_type) {
            counts.add(more);
        } else if self.by_type.len() < COUNTED_MAX {
            self.by_type.insert(event_type.clone(), more);
        } else {
            self.other.add(more);
        }
    }

    /// Adds other figures.
    pub fn add(&mut self, other: &Self) {
        for (event_type, counts) in other.busiest(usize::MAX) {
            self.count(&event_type, counts);
        }
        self.other.add(other.other);
    }

    /// Takes the names of a purged tenant out of a sum that it is part of. Its counts go to
    /// the others; a type that others have used, too, keeps theirs.
    pub fn forget(&mut self, theirs: &Self) {
        for (name, counts) in &theirs.by_type {
            let Some(kept) = self.by_type.get_mut(name) else { continue };
            let left = kept.minus(*counts);
            self.other.add(kept.minus(left));
            *kept = left;
            if left == TypeCounts::default() {
                self.by_type.remove(name);
            }
        }
        // Of what is not listed it cannot be told whose it is.
        if theirs.other != TypeCounts::default() || theirs.by_type.len() >= STORED_MAX {
            self.forget_names();
        }
    }

    /// Counts every type among the others.
    pub fn forget_names(&mut self) {
        for (_, counts) in std::mem::take(&mut self.by_type) {
            self.other.add(counts);
        }
    }

    /// Returns the types with the most attempts, the busiest first.
    pub fn busiest(&self, most: usize) -> Vec<(EventType, TypeCounts)> {
        let mut types: Vec<_> = self.by_type.iter().map(|(name, counts)| (name.clone(), *counts)).collect();
        types.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.attempts.cmp(&of_a.attempts).then_with(|| a.cmp(b)));
        types.truncate(most);
        types
    }

    /// Returns the busiest types as bytes; the rest goes to the others.
    pub fn encode(&self) -> Vec<u8> {
        let (busiest, mut other) = (self.busiest(usize::MAX), self.other);
        let stored = busiest.len().min(STORED_MAX);
        busiest[stored..].iter().for_each(|(_, counts)| other.add(*counts));
        let mut bytes = vec![VERSION];
        put_counts(&mut bytes, other);
        for (name, counts) in &busiest[..stored] {
            put_varint(&mut bytes, name.as_str().len() as u64);
            bytes.extend_from_slice(name.as_str().as_bytes());
            put_counts(&mut bytes, *counts);
        }
        bytes
    }

    /// Reads figures from bytes.
    ///
    /// # Errors
    /// If they were written by a newer version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, mut rest) = bytes.split_first().ok_or(DecodeError::Damaged)?;
        if *version != VERSION {
            return Err(DecodeError::UnknownVersion(*version));
        }
        let mut figures = Self { other: take_counts(&mut rest)?, ..Self::default() };
        while !rest.is_empty() {
            let length = usize::try_from(take_varint(&mut rest)?).map_err(|_| DecodeError::Damaged)?;
            let (name, after) = rest.split_at_checked(length).ok_or(DecodeError::Damaged)?;
            let name = std::str::from_utf8(name).map_err(|_| DecodeError::Damaged)?;
            rest = after;
            let counts = take_counts(&mut rest)?;
            figures.count(&name.parse().map_err(|_| DecodeError::Damaged)?, counts);
        }
        Ok(figures)
    }
}

fn put_counts(bytes: &mut Vec<u8>, counts: TypeCounts) {
    [counts.attempts, counts.delivered, counts.dead].into_iter().for_each(|count| put_varint(bytes, count));
}

fn take_counts(bytes: &mut &[u8]) -> Result<TypeCounts, DecodeError> {
    Ok(TypeCounts { attempts: take_varint(bytes)?, delivered: take_varint(bytes)?, dead: take_varint(bytes)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(types: u64) -> TypeFigures {
        let mut figures = TypeFigures::default();
        for n in 0..types {
            let event_type: EventType = format!("type.t{n}").parse().unwrap();
            for _ in 0..=n {
                figures.count(&event_type, TypeCounts { attempts: 1, delivered: 1, dead: 0 });
            }
        }
        figures
    }

    #[test]
    fn however_many_types_there_are_their_number_is_bounded_and_the_sum_is_kept() {
        let figures = counted(300);
        assert_eq!(figures.by_type.len(), COUNTED_MAX);
        let read = TypeFigures::decode(&figures.encode()).unwrap();
        assert_eq!(read.by_type.len(), STORED_MAX);
        let sum = |figures: &TypeFigures| {
            figures.by_type.values().map(|counts| counts.attempts).sum::<u64>() + figures.other.attempts
        };
        assert_eq!((sum(&figures), sum(&read)), (300 * 301 / 2, 300 * 301 / 2));
        assert_eq!(read.busiest(1)[0].0.as_str(), "type.t199");
    }

    #[test]
    fn what_is_forgotten_of_a_sum_keeps_its_counts_and_the_names_that_others_used() {
        let of = |name: &str, attempts| {
            let mut figures = TypeFigures::default();
            figures.count(&name.parse().unwrap(), TypeCounts { attempts, delivered: 1, dead: 0 });
            figures
        };
        let mut theirs = of("shared", 3);
        theirs.add(&of("secret", 2));
        let mut all = of("shared", 4);
        all.add(&theirs);
        all.forget(&theirs);
        assert_eq!(all.by_type.len(), 1);
        assert_eq!(
            all.by_type[&"shared".parse::<EventType>().unwrap()],
            TypeCounts { attempts: 4, delivered: 1, dead: 0 }
        );
        assert_eq!(all.other, TypeCounts { attempts: 5, delivered: 2, dead: 0 });
        // A list that may have been cut off says not all.
        let mut all = of("shared", 4);
        all.forget(&counted(STORED_MAX as u64));
        assert_eq!((all.by_type.len(), all.other.attempts), (0, 4));
    }

    #[test]
    fn what_is_encoded_is_read_again_and_what_is_damaged_is_refused() {
        let figures = counted(20);
        let bytes = figures.encode();
        assert_eq!(TypeFigures::decode(&bytes).unwrap(), figures);
        for end in 0..bytes.len() {
            let _ = TypeFigures::decode(&bytes[..end]);
        }
        assert_eq!(TypeFigures::decode(&[9]), Err(DecodeError::UnknownVersion(9)));
        assert_eq!(TypeFigures::decode(&bytes[..bytes.len() - 1]), Err(DecodeError::Damaged));
    }
}
