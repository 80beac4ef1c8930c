//! Turns rows into things and back.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Row;
use uuid::Uuid;

use crate::model::delivery::{Cause, Progress, State, Tally};
use crate::model::endpoint::Format;
use crate::model::id::{DeliveryId, uuid_v7};
use crate::model::span::Span;

/// A time as stored.
pub fn millis(at: Timestamp) -> i64 {
    at.as_millisecond()
}

/// A stored time.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
}

/// An id's bytes.
pub fn id_bytes(id: Uuid) -> [u8; 16] {
    *id.as_bytes()
}

/// The id with these bytes.
pub fn uuid_of(bytes: [u8; 16]) -> Uuid {
    Uuid::from_bytes(bytes)
}

/// A delivery's id holds its number, so that finding it needs no index: the
/// low 62 bits of a UUIDv7 are free for it.
pub fn delivery_id(no: i64, created_at: i64) -> DeliveryId {
    let no = u128::try_from(no).expect("numbers count up from 1");
    DeliveryId(uuid_v7(at(created_at), no))
}

/// The number inside a delivery's id. Only a row whose creation time gives
/// the same id again is that delivery.
pub fn delivery_no(id: DeliveryId) -> i64 {
    (id.0.as_u128() & 0x3fff_ffff_ffff_ffff) as i64
}

/// An attempt's row number.
pub fn attempt_no(delivery: i64, number: u32) -> i64 {
    (delivery << 20) | i64::from(number & 0xf_ffff)
}

/// A state as stored.
pub fn state_code(state: State) -> i64 {
    match state {
        State::Waiting => 0,
        State::Delivered => 1,
        State::Dead => 2,
        State::Cancelled => 3,
    }
}

/// A stored state.
pub fn state_of(code: i64) -> State {
    match code {
        0 => State::Waiting,
        1 => State::Delivered,
        2 => State::Dead,
        _ => State::Cancelled,
    }
}

/// A cause as stored.
pub fn cause_code(cause: Cause) -> i64 {
    match cause {
        Cause::Exhausted => 0,
        Cause::Expired => 1,
        Cause::Refused => 2,
        Cause::Gone => 3,
        Cause::Poisoned => 4,
    }
}

/// A stored cause.
pub fn cause_of(code: i64) -> Cause {
    match code {
        0 => Cause::Exhausted,
        1 => Cause::Expired,
        2 => Cause::Refused,
        3 => Cause::Gone,
        _ => Cause::Poisoned,
    }
}

/// A format as stored.
pub fn format_code(format: Format) -> i64 {
    match format {
        Format::Envelope => 0,
        Format::Raw => 1,
    }
}

/// A stored format.
pub fn format_of(code: i64) -> Format {
    match code {
        0 => Format::Envelope,
        _ => Format::Raw,
    }
}

/// The columns [`progress_from`] reads, of a table called `d`.
pub const PROGRESS: &str = "d.attempts, d.attempts_before, d.age_from, d.held_before,
    d.not_found, d.no_such_name, d.forbidden_target, coalesce(d.replayed_at, d.created_at), d.last_delay, d.max_age";

/// A budget, from ten columns beginning at `first`.
pub fn progress_from(row: &Row<'_>, first: usize) -> rusqlite::Result<Progress> {
    Ok(Progress {
        attempts: row.get(first)?,
        attempts_before: row.get(first + 1)?,
        age_from: row.get::<_, Option<i64>>(first + 2)?.map(at),
        held_before: Duration::from_millis(row.get::<_, i64>(first + 3)?.max(0) as u64),
        tally: Tally {
            not_found: row.get(first + 4)?,
            no_such_name: row.get(first + 5)?,
            forbidden_target: row.get(first + 6)?,
        },
        begun_at: Some(at(row.get(first + 7)?)),
        max_age: row.get::<_, Option<i64>>(first + 9)?.map(|millis| Span::millis(millis.max(0) as u64)),
        last_delay: row.get::<_, Option<i64>>(first + 8)?.map(|micros| Duration::from_micros(micros.max(0) as u64)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_id_gives_its_number_back() {
        for no in [1, 4_095, 1 << 40] {
            assert_eq!(delivery_no(delivery_id(no, 1_700_000_000_000)), no);
        }
    }
}
