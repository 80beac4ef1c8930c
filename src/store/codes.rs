//! The numbers with which both stores write times, states, causes, formats and
//! ids.

use jiff::Timestamp;

use crate::model::delivery::{BodyFormat, DeadCause, DeliveryState};
use crate::model::event::DataRemoval;
use crate::model::id::{AttemptId, DeliveryId, TenantId, uuid_v7};
use crate::model::named_enum::NamedEnum;
use crate::model::token::TokenKind;

/// Returns a time as it is stored: in milliseconds.
pub fn millis(at: Timestamp) -> i64 {
    at.as_millisecond()
}

/// Returns the time that was stored.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
}

/// Returns the id of the delivery with this number. The id holds the number in
/// its low 62 bits, which a UUIDv7 leaves free, so that finding a delivery by
/// its id needs no index.
pub fn delivery_id(no: i64, created_at: i64) -> DeliveryId {
    let no = u128::try_from(no).expect("numbers count up from 1");
    DeliveryId(uuid_v7(at(created_at), no))
}

/// Returns the number inside a delivery's id. The row with that number is the
/// delivery only if its creation time gives the same id again.
pub fn delivery_no(id: DeliveryId) -> i64 {
    (id.0.as_u128() & 0x3fff_ffff_ffff_ffff) as i64
}

/// Returns the creation time inside a delivery's id, in milliseconds.
pub fn created_at_of(id: DeliveryId) -> i64 {
    (id.0.as_u128() >> 80) as i64
}

/// Returns the number of an attempt's delivery, which the attempt's id contains.
pub fn delivery_no_of_attempt(id: AttemptId) -> i64 {
    id.delivery_bits() as i64
}

/// Parses the id of a tenant from a row.
pub fn stored_tenant(text: &str) -> TenantId {
    text.parse().expect("stored tenant ids were checked")
}

/// Code for data that was expunged on request.
pub const EXPUNGED: i64 = 1;
/// Code for data that was removed because no endpoint wanted it.
pub const UNMATCHED: i64 = 2;

/// A stored code that this version does not know, because a newer version
/// wrote it. The row that holds it is left as it is: this version cannot know
/// whether it may end, send or replay it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{column} is {value}, which this version does not know; a newer version wrote it, so ask a node of that version"
)]
pub struct UnknownCode {
    /// Table and column of the code.
    pub column: &'static str,
    /// The stored code itself.
    pub value: i64,
}

/// Returns why an event's data was removed, if it was. Older versions wrote no
/// code for expunged data.
pub fn withheld_from(is_empty: bool, code: Option<i64>) -> Result<Option<DataRemoval>, UnknownCode> {
    match code {
        Some(EXPUNGED) => Ok(Some(DataRemoval::Expunged)),
        Some(UNMATCHED) => Ok(Some(DataRemoval::Unmatched)),
        Some(value) => Err(UnknownCode { column: "events.data_withheld", value }),
        None => Ok(is_empty.then_some(DataRemoval::Expunged)),
    }
}

/// Returns the code of a state.
pub fn state_code(state: DeliveryState) -> i64 {
    state as i64
}

/// Returns the state with this code.
pub fn state_of(code: i64) -> Result<DeliveryState, UnknownCode> {
    decode_code(code, DeliveryState::from_repr, "deliveries.state")
}

/// Returns the code of a cause.
pub fn cause_code(cause: DeadCause) -> i64 {
    cause as i64
}

/// Returns the cause with this code.
pub fn cause_of(code: i64) -> Result<DeadCause, UnknownCode> {
    decode_code(code, DeadCause::from_repr, "deliveries.cause")
}

/// Returns the code of a format.
pub fn format_code(format: BodyFormat) -> i64 {
    format as i64
}

/// Returns the format with this code.
pub fn format_of(code: i64) -> Result<BodyFormat, UnknownCode> {
    decode_code(code, BodyFormat::from_repr, "deliveries.format")
}

/// Returns the code of a kind of token. Only kinds that this version knows are
/// written.
pub fn token_kind_code(kind: TokenKind) -> i16 {
    kind as i16
}

/// Returns the kind of token with this code.
pub fn token_kind_of(code: i16) -> TokenKind {
    TokenKind::from_repr(code).unwrap_or(TokenKind::Unknown)
}

fn decode_code<T>(code: i64, from_repr: fn(u8) -> Option<T>, column: &'static str) -> Result<T, UnknownCode> {
    u8::try_from(code).ok().and_then(from_repr).ok_or(UnknownCode { column, value: code })
}

/// The highest code of a format that this version knows. Deliveries with a
/// higher code wait for a node that knows their format; this one neither sends
/// nor ends them.
pub const FORMAT_CODE_MAX: i16 = BodyFormat::ALL.len() as i16 - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_as_what_was_written_and_no_other_is_read() {
        // What stores hold for good: a code never changes its meaning.
        let states = ["waiting", "delivered", "dead", "cancelled"];
        let formats = ["envelope", "raw", "thin", "cloudevents", "slack", "teams", "discord", "mattermost"];
        for (code, name) in (0..).zip(states) {
            let state = state_of(code).unwrap();
            assert_eq!((state_code(state), state.as_str()), (code, name));
        }
        for cause in DeadCause::ALL {
            assert_eq!(cause_of(cause_code(*cause)).unwrap(), *cause);
        }
        for (code, name) in (0..).zip(formats) {
            assert_eq!(format_of(code).unwrap().as_str(), name);
        }
        for (code, format) in (0..=i64::from(FORMAT_CODE_MAX)).map(|code| (code, format_of(code).unwrap())) {
            assert_eq!(format_code(format), code);
        }
        for unknown in [state_of(4), state_of(-1), state_of(256)].map(Result::unwrap_err) {
            assert_eq!(unknown.column, "deliveries.state");
        }
        for unknown in
            [state_of(4).unwrap_err(), cause_of(DeadCause::ALL.len() as i64).unwrap_err(), format_of(8).unwrap_err()]
        {
            assert!(unknown.to_string().contains(&format!("is {}", unknown.value)), "{unknown}");
        }
        assert_eq!(format_of(i64::from(FORMAT_CODE_MAX) + 1).unwrap_err().column, "deliveries.format");
        for (code, kind) in (0..).zip([TokenKind::Api, TokenKind::Code, TokenKind::Session]) {
            assert_eq!((token_kind_of(code), token_kind_code(kind)), (kind, code));
        }
        assert_eq!((token_kind_of(3), token_kind_of(-1)), (TokenKind::Unknown, TokenKind::Unknown));
        assert_eq!(withheld_from(true, Some(3)).unwrap_err().column, "events.data_withheld");
    }

    #[test]
    fn the_ids_of_a_delivery_and_of_its_attempts_give_its_number_back() {
        for no in [1, 4_095, 1 << 40] {
            let delivery = delivery_id(no, 1_700_000_000_000);
            assert_eq!(delivery_no(delivery), no);
            for attempt in [1, 7, 0xfff] {
                assert_eq!(delivery_no_of_attempt(AttemptId::of(delivery, attempt, at(1_800_000_000_000))), no);
            }
        }
    }
}
