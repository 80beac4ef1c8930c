//! Encodes numbers of which most are zero: a version, then for each other one
//! the distance from the place before it, and its value, as varints.

/// Version of the encoding.
const VERSION: u8 = 1;

/// Why bytes are not figures that this version can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A newer version of the gateway wrote them.
    #[error("the figures are of version {0}, and this gateway reads version {VERSION}; run the newer version")]
    UnknownVersion(u8),
    /// The figures have a number that this version does not know.
    #[error("the figures have a number at place {0}, which this gateway does not know; run the newer version")]
    UnknownSlot(u32),
    /// The figures end too early, or are no figures.
    #[error("the figures are damaged")]
    Damaged,
}

/// Encodes numbers with their places, in rising order of the places.
pub fn encode_slots(slots: impl Iterator<Item = (u32, u64)>) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    let mut next = 0;
    for (slot, value) in slots.filter(|(_, value)| *value != 0) {
        put_varint(&mut bytes, u64::from(slot - next));
        put_varint(&mut bytes, value);
        next = slot + 1;
    }
    bytes
}

/// Decodes numbers with their places.
///
/// # Errors
/// If the version is not known, or the bytes end too early.
pub fn decode_slots(bytes: &[u8]) -> Result<Vec<(u32, u64)>, DecodeError> {
    let (version, mut rest) = bytes.split_first().ok_or(DecodeError::Damaged)?;
    if *version != VERSION {
        return Err(DecodeError::UnknownVersion(*version));
    }
    let (mut slots, mut next) = (Vec::new(), 0_u32);
    while !rest.is_empty() {
        let distance = u32::try_from(take_varint(&mut rest)?).map_err(|_| DecodeError::Damaged)?;
        let slot = next.checked_add(distance).ok_or(DecodeError::Damaged)?;
        slots.push((slot, take_varint(&mut rest)?));
        next = slot.checked_add(1).ok_or(DecodeError::Damaged)?;
    }
    Ok(slots)
}

/// Appends a number, seven bits to a byte, the lowest first.
pub fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes a number from the beginning of the bytes.
///
/// # Errors
/// If they end within the number, or it has more than 64 bits.
pub fn take_varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(DecodeError::Damaged)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(DecodeError::Damaged);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Damaged)
}
