//! Caches as large as contexts, of which few pages are drawn: the others repeat them.

use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows};

pub struct Repeated {
    pub rows: PagedRows,
    /// Rows of the pages that differ, as they were given.
    pub keys: Vec<f32>,
    /// Pages that differ; page `p` is number `p % differ` of those.
    differ: usize,
    pages: usize,
}

impl Repeated {
    /// At least `pages` pages. `keys` are whole pages of rows, best a prime number of them: pages mixed up by a power of two show.
    pub fn new(d: &Device, ty: CacheType, width: usize, keys: Vec<f32>, pages: usize) -> Self {
        let differ = keys.len() / (PAGE_ROWS * width);
        let pages = pages.max(differ);
        let mut rows = PagedRows::from_values(d, pages, width, ty, &keys).unwrap();
        for page in differ..pages {
            rows.copy_page((page % differ) as u32, page as u32).unwrap();
        }
        Repeated { rows, keys, differ, pages }
    }

    /// Tables of `sequences` sequences of `pages` pages each: those of set `number`, so that sets lie apart where there is room.
    pub fn tables(&self, number: usize, sequences: usize, pages: usize) -> Vec<Vec<u32>> {
        let first = number * sequences * pages;
        let table = |i: usize| (0..pages).map(move |page| ((first + i * pages + page) % self.pages) as u32);
        (0..sequences).map(|i| table(i).collect()).collect()
    }

    /// Which of the rows that differ a position of a sequence is.
    pub fn row_of(&self, table: &[u32], position: usize) -> usize {
        table[position / PAGE_ROWS] as usize % self.differ * PAGE_ROWS + position % PAGE_ROWS
    }
}
