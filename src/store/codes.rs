//! How both stores write what has a name elsewhere: times, states, causes,
//! formats, and the numbers inside ids.

use jiff::Timestamp;

use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::endpoint::BodyFormat;
use crate::model::event::DataRemoval;
use crate::model::id::{DeliveryId, uuid_v7};

/// A time as stored.
pub fn millis(at: Timestamp) -> i64 {
    at.as_millisecond()
}

/// A stored time.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
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

/// Why data is no longer there, as stored: it was expunged on request.
pub const EXPUNGED: i64 = 1;
/// The same: no endpoint wanted it.
pub const UNMATCHED: i64 = 2;

/// Why an event's data is no longer there, if it is not. Older versions wrote
/// no code when it was expunged.
pub fn withheld_from(is_empty: bool, code: Option<i64>) -> Option<DataRemoval> {
    match code {
        Some(UNMATCHED) => Some(DataRemoval::Unmatched),
        Some(_) => Some(DataRemoval::Expunged),
        None => is_empty.then_some(DataRemoval::Expunged),
    }
}

/// A state as stored.
pub fn state_code(state: DeliveryState) -> i64 {
    match state {
        DeliveryState::Waiting => 0,
        DeliveryState::Delivered => 1,
        DeliveryState::Dead => 2,
        DeliveryState::Cancelled => 3,
    }
}

/// A stored state.
pub fn state_of(code: i64) -> DeliveryState {
    match code {
        0 => DeliveryState::Waiting,
        1 => DeliveryState::Delivered,
        2 => DeliveryState::Dead,
        _ => DeliveryState::Cancelled,
    }
}

/// A cause as stored.
pub fn cause_code(cause: DeadCause) -> i64 {
    match cause {
        DeadCause::Exhausted => 0,
        DeadCause::Expired => 1,
        DeadCause::Refused => 2,
        DeadCause::Gone => 3,
        DeadCause::Poisoned => 4,
        DeadCause::Damaged => 5,
    }
}

/// A stored cause.
pub fn cause_of(code: i64) -> DeadCause {
    match code {
        0 => DeadCause::Exhausted,
        1 => DeadCause::Expired,
        2 => DeadCause::Refused,
        3 => DeadCause::Gone,
        5 => DeadCause::Damaged,
        _ => DeadCause::Poisoned,
    }
}

/// A format as stored.
pub fn format_code(format: BodyFormat) -> i64 {
    match format {
        BodyFormat::Envelope => 0,
        BodyFormat::Raw => 1,
        BodyFormat::Thin => 2,
        BodyFormat::Cloudevents => 3,
    }
}

/// A stored format.
pub fn format_of(code: i64) -> BodyFormat {
    match code {
        0 => BodyFormat::Envelope,
        1 => BodyFormat::Raw,
        2 => BodyFormat::Thin,
        _ => BodyFormat::Cloudevents,
    }
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
