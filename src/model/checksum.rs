//! Computes a checksum that detects damage to stored bytes.
//!
//! It protects against damage, not against people: 64 bits, no key. Every step
//! is invertible, so a change within any eight bytes always changes the sum.

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;

/// A checksum that is being computed.
#[derive(Debug, Clone, Copy)]
pub struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(SEED)
    }
}

impl Checksum {
    /// Adds a number.
    pub fn number(self, number: u64) -> Self {
        Self((self.0 ^ number).wrapping_mul(FACTOR).rotate_left(29))
    }

    /// Adds bytes after their length, so that neighbouring parts cannot shift bytes
    /// between them.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let sum = self.number(bytes.len() as u64);
        let sum = words.iter().fold(sum, |sum, word| sum.number(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        sum.number(u64::from_le_bytes(last))
    }

    /// Adds an optional text. An absent and an empty one differ.
    pub fn text(self, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.bytes(text.as_bytes()),
            None => self.number(u64::MAX),
        }
    }

    /// Returns the sum as a signed number, as stores keep it.
    pub fn finish(self) -> i64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(FACTOR).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_changes_the_sum() {
        let data: Vec<u8> = (0..203).map(|n| (n * 7) as u8).collect();
        let sum = Checksum::default().bytes(&data).finish();
        for bit in 0..data.len() * 8 {
            let mut flipped = data.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Checksum::default().bytes(&flipped).finish(), sum, "bit {bit}");
        }
    }

    #[test]
    fn parts_do_not_run_together() {
        let sum = |one: &[u8], two: &[u8]| Checksum::default().bytes(one).bytes(two).finish();
        assert_ne!(sum(b"ab", b"c"), sum(b"a", b"bc"));
        assert_ne!(sum(b"", b"\0"), sum(b"\0", b""));
        assert_ne!(Checksum::default().text(None).finish(), Checksum::default().text(Some("")).finish());
    }

    #[test]
    fn sums_are_the_same_in_every_version() {
        // Stores hold them: another sum would call everything damaged.
        let sum = Checksum::default().text(Some("invoice.paid")).number(7).bytes(br#"{"a":1}"#).finish();
        assert_eq!(sum, 6_290_747_906_268_296_476);
    }
}
