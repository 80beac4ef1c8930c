//! How both stores write what has a name elsewhere: times, states, causes,
//! formats, and the numbers inside ids.

use jiff::Timestamp;

use crate::model::delivery::{BodyFormat, DeadCause, DeliveryState};
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

/// A stored code that this version does not know, because a newer one wrote
/// it. Whatever holds it is left as it is: to take it for another code would
/// end, send or replay what the newer version meant otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{column} is {value}, which this version does not know; a newer version wrote it, so ask a node of that version"
)]
pub struct UnknownCode {
    /// The table and the column.
    pub column: &'static str,
    /// The code that is stored there.
    pub value: i64,
}

/// Why an event's data is no longer there, if it is not. Older versions wrote
/// no code when it was expunged.
pub fn withheld_from(is_empty: bool, code: Option<i64>) -> Result<Option<DataRemoval>, UnknownCode> {
    match code {
        Some(EXPUNGED) => Ok(Some(DataRemoval::Expunged)),
        Some(UNMATCHED) => Ok(Some(DataRemoval::Unmatched)),
        Some(value) => Err(UnknownCode { column: "events.withheld", value }),
        None => Ok(is_empty.then_some(DataRemoval::Expunged)),
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
pub fn state_of(code: i64) -> Result<DeliveryState, UnknownCode> {
    match code {
        0 => Ok(DeliveryState::Waiting),
        1 => Ok(DeliveryState::Delivered),
        2 => Ok(DeliveryState::Dead),
        3 => Ok(DeliveryState::Cancelled),
        value => Err(UnknownCode { column: "deliveries.state", value }),
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
pub fn cause_of(code: i64) -> Result<DeadCause, UnknownCode> {
    match code {
        0 => Ok(DeadCause::Exhausted),
        1 => Ok(DeadCause::Expired),
        2 => Ok(DeadCause::Refused),
        3 => Ok(DeadCause::Gone),
        4 => Ok(DeadCause::Poisoned),
        5 => Ok(DeadCause::Damaged),
        value => Err(UnknownCode { column: "deliveries.cause", value }),
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
pub fn format_of(code: i64) -> Result<BodyFormat, UnknownCode> {
    match code {
        0 => Ok(BodyFormat::Envelope),
        1 => Ok(BodyFormat::Raw),
        2 => Ok(BodyFormat::Thin),
        3 => Ok(BodyFormat::Cloudevents),
        value => Err(UnknownCode { column: "deliveries.format", value }),
    }
}

/// The highest code of a format that this version knows. Deliveries beyond it
/// wait for a node that knows theirs, so this one reads none of them to send
/// or to end.
pub const FORMAT_CODE_MAX: i16 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_as_what_was_written_and_no_other_is_read() {
        for (code, state) in [0, 1, 2, 3].map(|code| (code, state_of(code).unwrap())) {
            assert_eq!(state_code(state), code);
        }
        for (code, cause) in [0, 1, 2, 3, 4, 5].map(|code| (code, cause_of(code).unwrap())) {
            assert_eq!(cause_code(cause), code);
        }
        for (code, format) in (0..=i64::from(FORMAT_CODE_MAX)).map(|code| (code, format_of(code).unwrap())) {
            assert_eq!(format_code(format), code);
        }
        for unknown in [state_of(4).unwrap_err(), cause_of(6).unwrap_err(), format_of(4).unwrap_err()] {
            assert!(unknown.to_string().contains(&format!("is {}", unknown.value)), "{unknown}");
        }
        assert_eq!(format_of(i64::from(FORMAT_CODE_MAX) + 1).unwrap_err().column, "deliveries.format");
        assert_eq!(withheld_from(true, Some(3)).unwrap_err().column, "events.withheld");
    }

    #[test]
    fn a_delivery_id_gives_its_number_back() {
        for no in [1, 4_095, 1 << 40] {
            assert_eq!(delivery_no(delivery_id(no, 1_700_000_000_000)), no);
        }
    }
}
