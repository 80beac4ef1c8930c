//! How both stores write what has a name elsewhere: times, states, causes,
//! formats, and the numbers inside ids.

use jiff::Timestamp;

use crate::model::delivery::{Cause, State};
use crate::model::endpoint::Format;
use crate::model::event::Withheld;
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
pub fn withheld_from(is_empty: bool, code: Option<i64>) -> Option<Withheld> {
    match code {
        Some(UNMATCHED) => Some(Withheld::Unmatched),
        Some(_) => Some(Withheld::Expunged),
        None => is_empty.then_some(Withheld::Expunged),
    }
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
        Cause::Damaged => 5,
    }
}

/// A stored cause.
pub fn cause_of(code: i64) -> Cause {
    match code {
        0 => Cause::Exhausted,
        1 => Cause::Expired,
        2 => Cause::Refused,
        3 => Cause::Gone,
        5 => Cause::Damaged,
        _ => Cause::Poisoned,
    }
}

/// A format as stored.
pub fn format_code(format: Format) -> i64 {
    match format {
        Format::Envelope => 0,
        Format::Raw => 1,
        Format::Thin => 2,
        Format::Cloudevents => 3,
    }
}

/// A stored format.
pub fn format_of(code: i64) -> Format {
    match code {
        0 => Format::Envelope,
        1 => Format::Raw,
        2 => Format::Thin,
        _ => Format::Cloudevents,
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
