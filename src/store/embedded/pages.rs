//! Finds the bytes of a page of SQLite's file that hold nothing, and zeroes them.
//!
//! SQLite copies rows when it splits or joins pages, and what it leaves behind stays in
//! the unused part of a page until something is written over it. `PRAGMA
//! secure_delete` overwrites deleted rows, and not such copies. The layout of pages is
//! that of SQLite's file format, which does not change.

/// Sizes of the pages of a file.
#[derive(Debug, Clone, Copy)]
pub struct PageSizes {
    /// Bytes of a page that SQLite uses.
    pub usable: usize,
}

/// A row that goes on in other pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowChain {
    /// The first of these pages.
    pub first: u32,
    /// Bytes of the row that are in them.
    pub bytes: usize,
}

/// Bytes of a page in which the list of free pages begins.
pub const FREE_LIST_AT: usize = 32;

const INTERIOR_INDEX: u8 = 2;
const INTERIOR_TABLE: u8 = 5;
const LEAF_INDEX: u8 = 10;
const LEAF_TABLE: u8 = 13;

/// A page of a table or an index.
pub struct TreePage<'a> {
    number: u32,
    data: &'a mut [u8],
    sizes: PageSizes,
}

impl<'a> TreePage<'a> {
    /// Reads a page; nothing if it is none of a table or an index.
    pub fn of(number: u32, data: &'a mut [u8], sizes: PageSizes) -> Option<Self> {
        let page = Self { number, data, sizes };
        let is_known = matches!(page.kind(), INTERIOR_INDEX | INTERIOR_TABLE | LEAF_INDEX | LEAF_TABLE);
        (is_known && page.pointers_end() <= page.content()).then_some(page)
    }

    /// Whether other pages of the tree are below it.
    pub fn is_interior(&self) -> bool {
        matches!(self.kind(), INTERIOR_INDEX | INTERIOR_TABLE)
    }

    fn header(&self) -> usize {
        // The first page begins with the header of the file.
        if self.number == 1 { 100 } else { 0 }
    }

    fn kind(&self) -> u8 {
        self.data[self.header()]
    }

    fn cells(&self) -> usize {
        usize::from(u16_at(self.data, self.header() + 3))
    }

    /// Returns the offset of the first pointer to a cell.
    fn pointers(&self) -> usize {
        self.header() + if self.is_interior() { 12 } else { 8 }
    }

    fn pointers_end(&self) -> usize {
        self.pointers() + 2 * self.cells()
    }

    /// Returns the offset of the first cell.
    fn content(&self) -> usize {
        match u16_at(self.data, self.header() + 5) {
            0 => 65_536,
            at => usize::from(at),
        }
    }

    fn cell_starts(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.cells()).map(|n| usize::from(u16_at(self.data, self.pointers() + 2 * n)))
    }

    /// Returns the pages below it.
    pub fn children(&self) -> Vec<u32> {
        if !self.is_interior() {
            return Vec::new();
        }
        let cells = self.cell_starts().filter(|at| at + 4 <= self.sizes.usable).map(|at| u32_at(self.data, at));
        cells.chain([u32_at(self.data, self.header() + 8)]).collect()
    }

    /// Returns the rows that go on in other pages.
    pub fn overflow_chains(&self) -> Vec<OverflowChain> {
        if self.kind() == INTERIOR_TABLE {
            return Vec::new();
        }
        self.cell_starts().filter_map(|at| self.overflow_of(at)).collect()
    }

    fn overflow_of(&self, cell: usize) -> Option<OverflowChain> {
        let mut at = cell + if self.kind() == INTERIOR_INDEX { 4 } else { 0 };
        let (payload, size) = varint(self.data.get(at..)?)?;
        at += size;
        if self.kind() == LEAF_TABLE {
            at += varint(self.data.get(at..)?)?.1;
        }
        let (usable, payload) = (self.sizes.usable, usize::try_from(payload).ok()?);
        let most = if self.kind() == LEAF_TABLE { usable - 35 } else { (usable - 12) * 64 / 255 - 23 };
        if payload <= most {
            return None;
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let fitting = least + (payload - least) % (usable - 4);
        let local = if fitting <= most { fitting } else { least };
        let first = self.data.get(at + local..at + local + 4).map(|bytes| u32_at(bytes, 0))?;
        Some(OverflowChain { first, bytes: payload - local })
    }

    /// Zeroes the bytes that hold nothing. Returns whether any of them was not zero.
    pub fn zero_unused(&mut self) -> bool {
        let (gap, end) = (self.pointers_end(), self.content().min(self.sizes.usable));
        let mut changed = zero(&mut self.data[gap..end]);
        let mut free = usize::from(u16_at(self.data, self.header() + 1));
        // A list of free blocks goes up, so it ends.
        while free != 0 && free + 4 <= self.sizes.usable {
            let (next, size) = (usize::from(u16_at(self.data, free)), usize::from(u16_at(self.data, free + 2)));
            if free + size > self.sizes.usable || size < 4 {
                break;
            }
            changed |= zero(&mut self.data[free + 4..free + size]);
            if next <= free {
                break;
            }
            free = next;
        }
        changed
    }
}

/// Zeroes bytes. Returns whether any of them was not zero.
pub fn zero(bytes: &mut [u8]) -> bool {
    let is_dirty = bytes.iter().any(|byte| *byte != 0);
    if is_dirty {
        bytes.fill(0);
    }
    is_dirty
}

/// Reads two bytes as a number.
pub fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

/// Reads four bytes as a number.
pub fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// Reads a number of one to nine bytes. Returns it with its size.
fn varint(data: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (n, byte) in data.iter().take(9).enumerate() {
        if n == 8 {
            return Some(((value << 8) | u64::from(*byte), 9));
        }
        value = (value << 7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, n + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_sizes_are_read() {
        assert_eq!(varint(&[0x7f]), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00]), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9]), Some((u64::MAX, 9)));
        assert_eq!(varint(&[0x80]), None);
    }

    #[test]
    fn only_what_holds_nothing_is_zeroed() {
        let mut page = vec![0xaa_u8; 512];
        // A leaf of a table: one cell at 500, a free block of 20 bytes at 400.
        page[..8].copy_from_slice(&[LEAF_TABLE, 1, 144, 0, 1, 1, 144, 0]);
        page[8..10].copy_from_slice(&500_u16.to_be_bytes());
        page[400..404].copy_from_slice(&[0, 0, 0, 20]);
        let before = page.clone();
        let mut read = TreePage::of(2, &mut page, PageSizes { usable: 512 }).unwrap();
        assert!(read.zero_unused() && !read.zero_unused());
        assert!(page[10..400].iter().chain(&page[404..420]).all(|byte| *byte == 0));
        assert_eq!((&page[..10], &page[400..404], &page[420..]), (&before[..10], &before[400..404], &before[420..]));
        assert!(TreePage::of(2, &mut [7; 512], PageSizes { usable: 512 }).is_none());
    }
}
