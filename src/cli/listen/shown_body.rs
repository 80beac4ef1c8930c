//! Renders a body in one line, for the terminal.

use crate::cli::output::escape_control_characters;

const BODY_BYTES_SHOWN: usize = 500;

/// Renders a body in one line, cut if it is long.
pub fn shown_body(body: &[u8]) -> String {
    if body.is_empty() {
        return "(empty)".to_owned();
    }
    if body.len() <= BODY_BYTES_SHOWN {
        return escape_control_characters(&String::from_utf8_lossy(body));
    }
    // The cut is at the beginning of a UTF-8 character.
    let starts = (BODY_BYTES_SHOWN - 3..=BODY_BYTES_SHOWN).rev();
    let cut = starts.into_iter().find(|n| body[*n] & 0xC0 != 0x80).unwrap_or(BODY_BYTES_SHOWN);
    let more = format!(" … ({} bytes in all)", body.len());
    format!("{}{more}", escape_control_characters(&String::from_utf8_lossy(&body[..cut])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_body_is_cut_between_characters() {
        let body = format!("x{}", "é".repeat(300));
        let shown = shown_body(body.as_bytes());
        assert_eq!(shown, format!("x{} … (601 bytes in all)", "é".repeat(249)));
        assert_eq!(shown_body(&[b'a'; 500]).len(), 500);
        assert_eq!(shown_body(b""), "(empty)");
    }
}
