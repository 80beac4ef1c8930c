//! Splits the head of a plain HTTP/1.1 message into its lines.
//!
//! What is read here is what every sender writes. A message that needs more than
//! this is not plain, and is left to the HTTP library: nothing is refused here.

/// Splits off the first line, which ends in CR LF; nothing, if there is none.
pub fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = bytes[..end].strip_suffix(b"\r")?;
    Some((line, &bytes[end + 1..]))
}

/// Splits a line into the name of a header and its value; nothing, if either has a
/// character that needs a closer look.
pub fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_name = !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    let is_value = value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    (is_name && is_value).then(|| (name, value.trim_ascii()))
}

/// Reads a length; nothing, if it is not made of digits alone or is too large.
pub fn read_length(value: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Adds a header to a head.
pub fn add_field(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// Writes a number in decimal digits.
pub fn decimal(number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_as_everybody_writes_them_are_split() {
        assert_eq!(split_line(b"a: b\r\nc"), Some((b"a: b".as_slice(), b"c".as_slice())));
        for bytes in [b"a: b".as_slice(), b"a: b\n", b"a: b\r", b""] {
            assert_eq!(split_line(bytes), None, "{}", bytes.escape_ascii());
        }
        assert_eq!(split_field(b"X-a: \t b c \t"), Some((b"X-a".as_slice(), b"b c".as_slice())));
        assert_eq!(split_field(b"a:"), Some((b"a".as_slice(), b"".as_slice())));
        for line in
            ["", "a", ": b", " a: b", "a : b", "a_b: c", "a: \u{7f}", "a: b\r", "a: \u{c}", "a: \u{fc}", "\u{fc}: a"]
        {
            assert_eq!(split_field(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(read_length(b"0120"), Some(120));
        for value in ["", "+2", "-2", "2, 2", "0x2", " 2", "99999999999999999999999"] {
            assert_eq!(read_length(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn a_length_is_written_in_digits() {
        for number in [0, 7, 10, 4_096, usize::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
