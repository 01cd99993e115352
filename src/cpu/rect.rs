//! A rectangle of a row-major matrix that can be cut into disjoint parts for parallel tasks, and the GEMM that fills one.
#![allow(unsafe_code)] // Columns of one matrix interleave in memory: slices alone cannot share them out.

use std::marker::PhantomData;
use std::ops::Range;

/// Exclusive access to `rows x cols` floats, rows `stride` apart. Cutting consumes the rectangle, so parts never overlap.
pub(crate) struct Rect<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: a Rect is an exclusive borrow of floats, like `&mut [f32]`, which is Send.
unsafe impl Send for Rect<'_> {}

impl<'a> Rect<'a> {
    /// All of `data` as rows of `cols`; a rest shorter than a row is left out.
    pub fn new(data: &'a mut [f32], cols: usize) -> Self {
        let rows = data.len().checked_div(cols).unwrap_or(0);
        Rect { ptr: data.as_mut_ptr(), rows, cols, stride: cols, owner: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns `..at` and `at..`.
    pub fn split_cols(self, at: usize) -> (Self, Self) {
        assert!(at <= self.cols);
        let offset = if self.rows == 0 { 0 } else { at };
        // SAFETY: `at <= cols <= stride`, so the pointer stays within the borrow, or one past the end of its last row.
        let ptr = unsafe { self.ptr.add(offset) };
        let right = Rect { ptr, cols: self.cols - at, ..self };
        (Rect { cols: at, ..self }, right)
    }

    /// Rows `..at` and `at..`.
    pub fn split_rows(self, at: usize) -> (Self, Self) {
        assert!(at <= self.rows);
        let offset = if at == self.rows { 0 } else { at * self.stride };
        // SAFETY: row `at` exists, or the lower part is empty and the pointer is not moved.
        let ptr = unsafe { self.ptr.add(offset) };
        let below = Rect { ptr, rows: self.rows - at, ..self };
        (Rect { rows: at, ..self }, below)
    }

    /// Only columns `range`.
    pub fn narrow(self, range: Range<usize>) -> Self {
        self.split_cols(range.end).0.split_cols(range.start).1
    }

    /// The same rectangle for a shorter while.
    pub fn reborrow(&mut self) -> Rect<'_> {
        Rect { owner: PhantomData, ..*self }
    }

    /// Row `r` of the rectangle.
    #[inline(always)]
    pub fn row(&mut self, r: usize) -> &mut [f32] {
        assert!(r < self.rows);
        // SAFETY: the row lies within the borrow, and `&mut self` keeps it exclusive among the parts' own columns.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(r * self.stride), self.cols) }
    }

    /// Runs `f(first row, first column, part)` on parts of at most `rows x cols`, in parallel on the current pool.
    pub fn for_tiles(self, rows: usize, cols: usize, f: &(impl Fn(usize, usize, Rect<'_>) + Sync)) {
        self.tiles(rows.max(1), cols.max(1), 0, 0, f);
    }

    fn tiles(
        self,
        rows: usize,
        cols: usize,
        r: usize,
        c: usize,
        f: &(impl Fn(usize, usize, Rect<'_>) + Sync),
    ) {
        if self.rows == 0 || self.cols == 0 {
            return;
        }
        // Cut at whole tiles, across whichever side has more of them.
        let (nr, nc) = (self.rows.div_ceil(rows), self.cols.div_ceil(cols));
        if nr == 1 && nc == 1 {
            f(r, c, self);
        } else if nr >= nc {
            let at = nr / 2 * rows;
            let (a, b) = self.split_rows(at);
            rayon::join(|| a.tiles(rows, cols, r, c, f), || b.tiles(rows, cols, r + at, c, f));
        } else {
            let at = nc / 2 * cols;
            let (a, b) = self.split_cols(at);
            rayon::join(|| a.tiles(rows, cols, r, c, f), || b.tiles(rows, cols, r, c + at, f));
        }
    }
}

/// `out[t][j] = sum_i x[t][i] w[i][j]`, or that much more with `add`: `x` holds `out.rows()` rows `x_stride` apart, of which
/// the first `k` columns count; `w` holds `k` rows `w_stride` apart, of which the first `out.cols()` columns count.
pub(crate) fn gemm(
    out: Rect<'_>,
    add: bool,
    x: &[f32],
    x_stride: usize,
    w: &[f32],
    w_stride: usize,
    k: usize,
) {
    let (m, n) = (out.rows, out.cols);
    if m == 0 || n == 0 {
        return;
    }
    assert!(k > 0 && x_stride >= k && x.len() >= (m - 1) * x_stride + k);
    assert!(w_stride >= n && w.len() >= (k - 1) * w_stride + n);
    // The crate is fast only if the destination and the left operand lie column by column, so it gets the transposed
    // product.
    // SAFETY: the asserts bound both inputs, `out` is an exclusive rectangle of m x n; strides are in elements and fit
    // isize because the slices exist. Without `add`, old contents are not read.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            n,
            m,
            k,
            out.ptr,
            out.stride as isize,
            1,
            add,
            w.as_ptr(),
            w_stride as isize,
            1,
            x.as_ptr(),
            x_stride as isize,
            1,
            if add { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn tiles_cover_every_element_once() {
        for (rows, cols, tr, tc) in [(1, 1, 1, 1), (7, 5, 2, 2), (3, 100, 8, 33), (64, 3, 1, 7), (0, 4, 1, 1)]
        {
            let mut data = vec![0f32; rows * cols];
            let count = AtomicUsize::new(0);
            Rect::new(&mut data, cols).for_tiles(tr, tc, &|r, c, mut part| {
                assert!(part.rows() <= tr && part.cols() <= tc);
                count.fetch_add(1, Ordering::Relaxed);
                for i in 0..part.rows() {
                    for (j, v) in part.row(i).iter_mut().enumerate() {
                        *v += ((r + i) * cols + c + j + 1) as f32;
                    }
                }
            });
            assert!(data.iter().enumerate().all(|(i, v)| *v == (i + 1) as f32), "{rows} x {cols}");
            assert_eq!(count.into_inner(), rows.div_ceil(tr) * cols.div_ceil(tc));
        }
    }

    #[test]
    fn gemm_is_x_times_w_on_a_part() {
        let (m, n, k) = (5, 3, 7);
        let x: Vec<f32> = (0..m * (k + 2)).map(|i| i as f32 * 0.5 - 3.0).collect();
        let w: Vec<f32> = (0..k * (n + 1)).map(|i| 1.0 - i as f32 * 0.25).collect();
        let mut y = vec![f32::NAN; m * 10];
        for times in [1.0, 2.0] {
            gemm(Rect::new(&mut y, 10).narrow(4..4 + n), times > 1.0, &x, k + 2, &w, n + 1, k);
            for t in 0..m {
                for j in 0..10 {
                    if !(4..4 + n).contains(&j) {
                        assert!(y[t * 10 + j].is_nan());
                        continue;
                    }
                    let want: f32 = (0..k).map(|i| x[t * (k + 2) + i] * w[i * (n + 1) + j - 4]).sum();
                    assert!((y[t * 10 + j] - times * want).abs() < 1e-4);
                }
            }
        }
    }
}
