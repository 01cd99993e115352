//! A weight as it lies in the file: raw blocks of one type, a stack of matrices, shared without copying.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::GgmlType;
use crate::error::{Error, Result};

/// A range of bytes of a shared owner (a memory map, a buffer, a recipe for them). Cloning shares.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
    /// Whether they are there only once somebody has looked.
    made: bool,
}

/// Writes all bytes of a slice of zeros.
pub type Make = dyn Fn(&mut [u8]) + Send + Sync;

/// Bytes that are made when somebody looks at them first.
struct Made {
    len: usize,
    make: Arc<Make>,
    bytes: OnceLock<Vec<u8>>,
}

impl AsRef<[u8]> for Made {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get_or_init(|| {
            let mut bytes = vec![0; self.len];
            (self.make)(&mut bytes);
            bytes
        })
    }
}

impl SharedBytes {
    /// The whole of `owner`.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let range = 0..owner.as_ref().as_ref().len();
        SharedBytes { owner, range, made: false }
    }

    /// `len` bytes that `make` writes when somebody looks at them first; they are kept until the last that shares them is
    /// dropped. `make` must not wait for work of the pool of threads that looks: what it waits for may look, too.
    pub fn made(len: usize, make: Arc<Make>) -> Self {
        let owner = Arc::new(Made { len, make, bytes: OnceLock::new() });
        SharedBytes { owner, range: 0..len, made: true }
    }

    /// How many; does not look at them.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Has them made now rather than by who looks first. Bytes that are there already, such as those of a map, are not touched.
    pub fn ready(&self) {
        if self.made {
            _ = self.owner.as_ref().as_ref();
        }
    }

    /// A part of these bytes.
    ///
    /// # Errors
    /// [`Error::Shape`] if the range lies outside.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return Err(Error::shape(
                "slice",
                format!("a range within {}", self.range.len()),
                format!("{range:?}"),
            ));
        }
        let start = self.range.start + range.start;
        Ok(SharedBytes { owner: self.owner.clone(), range: start..start + range.len(), made: self.made })
    }
}

impl std::ops::Deref for SharedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.owner.as_ref().as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(v: Vec<u8>) -> Self {
        SharedBytes::new(Arc::new(v))
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}

/// A stack of `slabs` matrices `[rows, cols]`, row-major, each row whole blocks of `ty`. Plain matrices have one slab,
/// vectors one slab and one row. `y = W x` takes `cols` values to `rows` values.
#[derive(Debug, Clone)]
pub struct Weight {
    ty: GgmlType,
    slabs: usize,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: SharedBytes,
}

impl Weight {
    /// Wraps raw blocks.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `cols` is a whole number of blocks and `bytes` has exactly the size of the stack.
    pub fn new(ty: GgmlType, [slabs, rows, cols]: [usize; 3], bytes: SharedBytes) -> Result<Self> {
        let row_bytes = ty.row_bytes(cols as u64).and_then(|b| usize::try_from(b).ok());
        let total = row_bytes.and_then(|b| b.checked_mul(rows)?.checked_mul(slabs));
        match (row_bytes, total) {
            (Some(row_bytes), Some(total)) if total == bytes.len() => {
                Ok(Weight { ty, slabs, rows, cols, row_bytes, bytes })
            }
            (None, _) => Err(Error::shape(
                "weight",
                format!("cols in whole {ty} blocks of {}", ty.block_elems()),
                format!("{cols} cols"),
            )),
            (_, total) => Err(Error::shape(
                "weight",
                format!("{} bytes for {ty} [{slabs}, {rows}, {cols}]", total.unwrap_or(usize::MAX)),
                format!("{} bytes", bytes.len()),
            )),
        }
    }

    /// Block type.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Matrices in the stack.
    pub fn slabs(&self) -> usize {
        self.slabs
    }

    /// Rows of each matrix (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of each matrix (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// `[slabs, rows, cols]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.slabs, self.rows, self.cols]
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// All bytes, slab after slab.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Blocks of rows `rows` of matrix `slab`, contiguous. Indices are the caller's contract, as with a slice.
    pub fn rows_bytes(&self, slab: usize, rows: Range<usize>) -> &[u8] {
        let base = slab * self.rows;
        &self.bytes[(base + rows.start) * self.row_bytes..(base + rows.end) * self.row_bytes]
    }
}
