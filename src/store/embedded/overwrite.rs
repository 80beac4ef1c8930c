//! Overwrites the space in the store's file that holds nothing, a step at a time.
//!
//! A purge calls this after its rows are deleted: first pages of the list of free
//! pages, then the unused bytes of every page of every table and index, then the free
//! pages once more, then the log is emptied. A reader finds the pages of a tree; the
//! writer checks the way from the root to each of them again before it changes it, so
//! that a page which was used otherwise meanwhile is left alone. Whatever is freed
//! during a purge is overwritten by SQLite (`secure_delete`), and rows of others are
//! only ever copied to bytes in use, so one visit of each page is enough.

use std::collections::{BinaryHeap, HashSet};

use rusqlite::{Connection, params};

use super::EmbeddedStore;
use super::pages::{FREE_LIST_AT, OverflowChain, PageSizes, TreePage, u32_at, zero};
use crate::model::id::JobId;
use crate::store::Result;

/// Pages that one step of the writer changes, at most.
const PAGES: usize = 64;
/// Pages of a tree that are found by one read.
const FOUND: usize = 16_384;
/// How often pages are looked for whose place in their tree has changed.
const ROUNDS_MAX: usize = 50;

/// How far the overwriting of freed space has come.
#[derive(Debug, PartialEq, Eq)]
pub enum OverwriteProgress {
    /// There is more to do.
    Unfinished,
    /// All is overwritten, and the log is empty.
    Finished,
}

/// The part of the file that is overwritten next.
#[derive(Debug, Clone)]
enum Phase {
    FreePages { done: HashSet<u32>, is_last: bool },
    Trees(TreeWalk),
    Log { ticket: u64 },
}

/// The state of one overwriting, which begins anew after a restart.
#[derive(Debug, Clone)]
pub struct Overwriting(Phase);

impl Overwriting {
    fn new() -> Self {
        Self(Phase::FreePages { done: HashSet::new(), is_last: false })
    }
}

/// A walk over the pages of all trees.
#[derive(Debug, Clone, Default)]
struct TreeWalk {
    /// Roots of the trees to come; none before they were read.
    roots: Option<Vec<u32>>,
    /// Pages below this number are done in the present tree.
    after: u32,
    /// Ways to the pages that come next, the last first.
    found: Vec<PagePath>,
    /// Pages whose place has changed, to be looked for again.
    missed: HashSet<u32>,
    rounds: usize,
}

/// The pages from the root of a tree to one of its pages.
type PagePath = Vec<u32>;

impl EmbeddedStore {
    /// Overwrites some of the space that holds nothing.
    pub(super) async fn overwrite_some(&self, job: JobId) -> Result<OverwriteProgress> {
        let state = self.overwriting.lock().remove(&job).unwrap_or_else(Overwriting::new);
        let next = match state.0 {
            Phase::FreePages { done, is_last } => {
                let (done, is_end) = self.writer.write_later(move |tx| zero_free_pages(tx.db, done)).await?;
                match (is_end, is_last) {
                    (false, _) => Phase::FreePages { done, is_last },
                    (true, false) => Phase::Trees(TreeWalk::default()),
                    (true, true) => Phase::Log { ticket: self.checkpointer.empty_log() },
                }
            }
            Phase::Trees(walk) => match self.walk_trees(walk).await? {
                Some(walk) => Phase::Trees(walk),
                None => Phase::FreePages { done: HashSet::new(), is_last: true },
            },
            Phase::Log { ticket } if self.checkpointer.is_emptied(ticket) => return Ok(OverwriteProgress::Finished),
            Phase::Log { ticket } => Phase::Log { ticket },
        };
        self.overwriting.lock().insert(job, Overwriting(next));
        Ok(OverwriteProgress::Unfinished)
    }

    /// Makes a step of the walk. Returns nothing at its end.
    async fn walk_trees(&self, mut walk: TreeWalk) -> Result<Option<TreeWalk>> {
        let Some(roots) = &mut walk.roots else {
            walk.roots = Some(self.read(tree_roots).await?);
            return Ok(Some(walk));
        };
        if let Some(from) = walk.found.len().checked_sub(PAGES).or((!walk.found.is_empty()).then_some(0)) {
            let some = walk.found.split_off(from);
            let missed = self.writer.write_later(move |tx| zero_unused(tx.db, &some)).await?;
            walk.missed.extend(missed);
            return Ok(Some(walk));
        }
        let Some(root) = roots.last().copied() else { return Ok(None) };
        let (after, missed) = (walk.after, std::mem::take(&mut walk.missed));
        if !missed.is_empty() && walk.rounds < ROUNDS_MAX {
            walk.rounds += 1;
            // A page that is no longer in the tree was overwritten when it was freed.
            walk.found = self.read(move |db| find_pages(db, root, 0, |page| missed.contains(&page))).await?;
            return Ok(Some(walk));
        }
        walk.found = self.read(move |db| find_pages(db, root, after, |_| true)).await?;
        walk.found.reverse();
        match walk.found.first().and_then(|path| path.last()) {
            Some(last) => (walk.after, walk.rounds) = (*last, 0),
            None => {
                roots.pop();
                (walk.after, walk.rounds) = (0, 0);
            }
        }
        Ok(Some(walk))
    }
}

fn page_sizes(db: &Connection) -> rusqlite::Result<PageSizes> {
    let size: usize = db.query_row("PRAGMA page_size", [], |row| row.get::<_, i64>(0)).map(|size| size as usize)?;
    let reserved = read_page(db, 1)?[20];
    Ok(PageSizes { usable: size - usize::from(reserved) })
}

fn read_page(db: &Connection, number: u32) -> rusqlite::Result<Vec<u8>> {
    db.prepare_cached("SELECT data FROM sqlite_dbpage WHERE pgno = ?")?.query_row([number], |row| row.get(0))
}

fn write_page(db: &Connection, number: u32, data: &[u8]) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE sqlite_dbpage SET data = ? WHERE pgno = ?")?.execute(params![data, number]).map(drop)
}

/// Returns the roots of all tables and indexes. That of the schema has no rows of
/// tenants.
fn tree_roots(db: &Connection) -> rusqlite::Result<Vec<u32>> {
    let sql = "SELECT rootpage FROM sqlite_schema WHERE rootpage > 1 ORDER BY rootpage";
    db.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}

/// Zeroes pages of the first part of the list of free pages that is not known to be
/// zero. Returns what is known then, and whether that is all of the list.
fn zero_free_pages(db: &Connection, mut done: HashSet<u32>) -> rusqlite::Result<(HashSet<u32>, bool)> {
    let sizes = page_sizes(db)?;
    let mut trunk = u32_at(&read_page(db, 1)?, FREE_LIST_AT);
    while trunk != 0 {
        let mut page = read_page(db, trunk)?;
        let next = u32_at(&page, 0);
        if !done.contains(&trunk) {
            let leaves = (u32_at(&page, 4) as usize).min(sizes.usable / 4 - 2);
            let numbers: Vec<u32> = (0..leaves).map(|n| u32_at(&page, 8 + 4 * n)).collect();
            if zero(&mut page[8 + 4 * leaves..]) {
                write_page(db, trunk, &page)?;
            }
            let mut zeroed = 0;
            for number in numbers {
                let mut leaf = read_page(db, number)?;
                if zero(&mut leaf) {
                    write_page(db, number, &leaf)?;
                    zeroed += 1;
                }
                if zeroed >= PAGES {
                    return Ok((done, false));
                }
            }
            done.insert(trunk);
            return Ok((done, false));
        }
        trunk = next;
    }
    Ok((done, true))
}

/// Finds pages of a tree that are wanted, with numbers above `after`: those with the
/// lowest numbers, in their order.
fn find_pages(
    db: &Connection,
    root: u32,
    after: u32,
    is_wanted: impl Fn(u32) -> bool,
) -> rusqlite::Result<Vec<PagePath>> {
    // All reads see one state of the tree.
    let snapshot = db.unchecked_transaction()?;
    let sizes = page_sizes(db)?;
    let depth = depth_of(db, root, sizes)?;
    // The highest number is on top, and goes when there are too many.
    let mut found: BinaryHeap<(u32, PagePath)> = BinaryHeap::new();
    let mut open: Vec<PagePath> = vec![vec![root]];
    while let Some(path) = open.pop() {
        let number = *path.last().expect("a way has a root");
        if path.len() < depth {
            let mut data = read_page(db, number)?;
            let below = TreePage::of(number, &mut data, sizes).map(|page| page.children()).unwrap_or_default();
            open.extend(below.into_iter().map(|child| path.iter().copied().chain([child]).collect()));
        }
        if number > after && is_wanted(number) {
            found.push((number, path));
            if found.len() > FOUND {
                found.pop();
            }
        }
    }
    snapshot.commit()?;
    Ok(found.into_sorted_vec().into_iter().map(|(_, path)| path).collect())
}

/// Returns how many pages a way from the root to a leaf has: equally many for all.
fn depth_of(db: &Connection, root: u32, sizes: PageSizes) -> rusqlite::Result<usize> {
    let (mut depth, mut number) = (1, root);
    loop {
        let mut data = read_page(db, number)?;
        let below = TreePage::of(number, &mut data, sizes).map(|page| page.children()).unwrap_or_default();
        let Some(first) = below.first() else { return Ok(depth) };
        (depth, number) = (depth + 1, *first);
    }
}

/// Zeroes the unused bytes of these pages and of the pages in which their rows end.
/// Returns those that have another place now.
fn zero_unused(db: &Connection, paths: &[PagePath]) -> rusqlite::Result<Vec<u32>> {
    let sizes = page_sizes(db)?;
    let mut missed = Vec::new();
    for path in paths {
        let number = *path.last().expect("a way has a root");
        if !is_in_place(db, path, sizes)? {
            missed.push(number);
            continue;
        }
        let mut data = read_page(db, number)?;
        let Some(mut page) = TreePage::of(number, &mut data, sizes) else { continue };
        let (is_changed, chains) = (page.zero_unused(), page.overflow_chains());
        if is_changed {
            write_page(db, number, &data)?;
        }
        for chain in chains {
            zero_end(db, chain, sizes)?;
        }
    }
    Ok(missed)
}

/// Whether the way from the root still leads to its last page.
fn is_in_place(db: &Connection, path: &PagePath, sizes: PageSizes) -> rusqlite::Result<bool> {
    for pair in path.windows(2) {
        let mut data = read_page(db, pair[0])?;
        let leads_there =
            TreePage::of(pair[0], &mut data, sizes).is_some_and(|page| page.children().contains(&pair[1]));
        if !leads_there {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Zeroes what is behind the end of a row in the last of its pages.
fn zero_end(db: &Connection, chain: OverflowChain, sizes: PageSizes) -> rusqlite::Result<()> {
    let (mut number, mut bytes) = (chain.first, chain.bytes);
    let per_page = sizes.usable - 4;
    while bytes > per_page {
        number = u32_at(&read_page(db, number)?, 0);
        bytes -= per_page;
    }
    let mut data = read_page(db, number)?;
    if zero(&mut data[4 + bytes..sizes.usable]) {
        write_page(db, number, &data)?;
    }
    Ok(())
}
