//! Checks that bytes are a PNG, and nothing else.
//!
//! Only the frame is read, never the pixels: the signature, the head, and every
//! chunk with its checksum up to the end. What is no PNG as a whole, or has
//! something behind it, is refused, so that nothing else is ever served as an image.

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Largest width and height, in pixels.
const SIDE_MAX: u32 = 2_048;

/// The size of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PngSize {
    /// Width of the image.
    pub width: u32,
    /// Height of the image.
    pub height: u32,
}

/// The reason why bytes are not a PNG.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the body is not a PNG: {0}")]
pub struct InvalidPng(String);

/// Returns the size of a PNG, or why these bytes are none.
pub fn check(bytes: &[u8]) -> Result<PngSize, InvalidPng> {
    let refused = |why: &str| InvalidPng(why.to_owned());
    let mut rest = bytes.strip_prefix(SIGNATURE).ok_or_else(|| refused("it does not begin with the PNG signature"))?;
    let (mut size, mut has_data) = (None, false);
    loop {
        let (chunk, behind) = next_chunk(rest).ok_or_else(|| refused("a chunk is cut off or damaged"))?;
        rest = behind;
        match (chunk.kind, size) {
            (b"IHDR", None) => size = Some(read_head(chunk.data)?),
            (_, None) => return Err(refused("its first chunk is not IHDR")),
            (b"IHDR", Some(_)) => return Err(refused("it has two heads")),
            (b"IDAT", Some(_)) => has_data = true,
            (b"IEND", Some(_)) if !has_data => return Err(refused("it has no picture")),
            (b"IEND", Some(size)) if rest.is_empty() && chunk.data.is_empty() => return Ok(size),
            (b"IEND", Some(_)) => return Err(refused("there is something behind its end")),
            (_, Some(_)) => {}
        }
    }
}

/// Reads the head of a PNG.
fn read_head(data: &[u8]) -> Result<PngSize, InvalidPng> {
    let [w0, w1, w2, w3, h0, h1, h2, h3, depth, colour, compression, filter, interlace] = *data else {
        return Err(InvalidPng("its head has another length than 13 bytes".to_owned()));
    };
    let size = PngSize { width: u32::from_be_bytes([w0, w1, w2, w3]), height: u32::from_be_bytes([h0, h1, h2, h3]) };
    let is_depth = match colour {
        0 => matches!(depth, 1 | 2 | 4 | 8 | 16),
        3 => matches!(depth, 1 | 2 | 4 | 8),
        2 | 4 | 6 => matches!(depth, 8 | 16),
        _ => false,
    };
    if !is_depth || compression != 0 || filter != 0 || interlace > 1 {
        return Err(InvalidPng("its head names a format that PNG does not have".to_owned()));
    }
    if !(1..=SIDE_MAX).contains(&size.width) || !(1..=SIDE_MAX).contains(&size.height) {
        let PngSize { width, height } = size;
        return Err(InvalidPng(format!("it is {width} by {height} pixels; use 1 to {SIDE_MAX} for each")));
    }
    Ok(size)
}

struct PngChunk<'a> {
    kind: &'a [u8; 4],
    data: &'a [u8],
}

/// Returns the next chunk and what is behind it, if its checksum is right.
fn next_chunk(bytes: &[u8]) -> Option<(PngChunk<'_>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (kind, _) = rest.split_first_chunk::<4>()?;
    let (covered, rest) = rest.split_at_checked(length.checked_add(4)?)?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let is_right = kind.iter().all(u8::is_ascii_alphabetic) && crc32(covered) == u32::from_be_bytes(*checksum);
    is_right.then_some((PngChunk { kind, data: &covered[4..] }, rest))
}

/// Returns the CRC-32 that PNG uses.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
        let covered = [kind.as_slice(), data].concat();
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        [length.as_slice(), &covered, &crc32(&covered).to_be_bytes()].concat()
    }

    fn png(width: u32, height: u32) -> Vec<u8> {
        let head = [width.to_be_bytes().as_slice(), &height.to_be_bytes(), &[8, 6, 0, 0, 0]].concat();
        [SIGNATURE, &chunk(b"IHDR", &head), &chunk(b"IDAT", b"x"), &chunk(b"IEND", b"")].concat()
    }

    #[test]
    fn a_png_is_told_by_its_whole_frame() {
        assert_eq!(crc32(b"IEND"), 0xae42_6082, "as every PNG ends");
        assert_eq!(check(&png(3, 5)), Ok(PngSize { width: 3, height: 5 }));
        let whole = png(3, 5);
        for length in 0..whole.len() {
            assert!(check(&whole[..length]).is_err(), "{length} bytes of it");
        }
        for n in 0..whole.len() {
            let mut changed = whole.clone();
            changed[n] ^= 1;
            assert!(check(&changed).is_err(), "byte {n} changed");
        }
    }

    #[test]
    fn what_is_more_than_an_image_or_too_large_is_refused() {
        let behind = check(&[png(1, 1), b"<script>".to_vec()].concat()).unwrap_err().to_string();
        assert!(behind.contains("behind its end"), "{behind}");
        for other in [b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>".as_slice(), b"GIF89a", b"\xff\xd8\xff", b"", b"{}"]
        {
            assert!(check(other).is_err());
        }
        for (width, height) in [(0, 1), (1, 0), (2_049, 1), (1, u32::MAX)] {
            assert!(check(&png(width, height)).unwrap_err().to_string().contains("pixels"), "{width} by {height}");
        }
        let empty = [SIGNATURE, &chunk(b"IHDR", &png(1, 1)[16..29]), &chunk(b"IEND", b"")].concat();
        assert!(check(&empty).unwrap_err().to_string().contains("no picture"));
    }
}
