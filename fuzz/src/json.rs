//! JSON by the letter of RFC 8259, and nothing else: the judge of what other
//! parsers take.

/// Whether the bytes are one JSON value, with nothing but space around it.
pub fn is_json(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let mut reader = Reader { rest: text.as_bytes(), open: Vec::new() };
    reader.document().is_some()
}

/// How deep lists and objects nest in a text that is JSON.
pub fn depth(bytes: &[u8]) -> usize {
    let (mut now, mut most, mut is_text, mut is_escaped) = (0usize, 0usize, false, false);
    for byte in bytes {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (false, b'[' | b'{') => now += 1,
            (false, b']' | b'}') => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

struct Reader<'a> {
    rest: &'a [u8],
    /// What has to be closed, innermost last.
    open: Vec<u8>,
}

impl Reader<'_> {
    /// Without recursion, since nesting has no limit here.
    fn document(&mut self) -> Option<()> {
        loop {
            self.space();
            // Either a value begins, or a list or object is opened.
            match self.rest.first()? {
                b'[' => {
                    self.skip(1);
                    self.space();
                    if self.rest.first() != Some(&b']') {
                        self.open.push(b']');
                        continue;
                    }
                    self.skip(1);
                }
                b'{' => {
                    self.skip(1);
                    self.space();
                    if self.rest.first() != Some(&b'}') {
                        self.open.push(b'}');
                        self.name()?;
                        continue;
                    }
                    self.skip(1);
                }
                b'"' => self.text()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                _ => self.number()?,
            }
            // A value has ended; whatever it was the last of ends with it.
            loop {
                self.space();
                match (self.rest.first(), self.open.last()) {
                    (None, None) => return Some(()),
                    (Some(b','), Some(close)) => {
                        let is_object = *close == b'}';
                        self.skip(1);
                        if is_object {
                            self.space();
                            self.name()?;
                        }
                        break;
                    }
                    (Some(byte), Some(close)) if byte == close => {
                        self.skip(1);
                        self.open.pop();
                    }
                    _ => return None,
                }
            }
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    fn space(&mut self) {
        let length = self.rest.iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
        self.skip(length);
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    fn name(&mut self) -> Option<()> {
        self.text()?;
        self.space();
        self.word(b":")
    }

    fn text(&mut self) -> Option<()> {
        self.word(b"\"")?;
        loop {
            match self.rest {
                [b'"', ..] => {
                    self.skip(1);
                    return Some(());
                }
                [b'\\', b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|digit| digit.is_ascii_hexdigit()) => {
                    self.skip(6);
                }
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => self.skip(2),
                [b'\\', ..] | [..0x20, ..] | [] => return None,
                _ => self.skip(1),
            }
        }
    }

    fn digits(&mut self) -> Option<()> {
        let length = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.skip(length);
        (length > 0).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        if self.rest.first() == Some(&b'-') {
            self.skip(1);
        }
        match self.rest.first()? {
            b'0' => self.skip(1),
            _ => self.digits()?,
        }
        if self.rest.first() == Some(&b'.') {
            self.skip(1);
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.rest.first() {
            self.skip(1);
            if let Some(b'+' | b'-') = self.rest.first() {
                self.skip(1);
            }
            self.digits()?;
        }
        Some(())
    }
}
