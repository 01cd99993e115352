//! Large uploads: through two pinned buffers in turn, so that the host fills one (reading a memory map) while the device
//! empties the other.

use std::slice;
use std::sync::Arc;

use cudarc::driver::result;
use rayon::prelude::*;

use super::{Core, Event};
use crate::error::Result;

/// Up to here the driver's own staging is as good.
pub(super) const DIRECT: usize = 1 << 20;

/// Bytes of each buffer: 0.3 ms of PCIe 5, which hides what a copy costs to issue.
const CHUNK: usize = 16 << 20;

/// What one thread copies at a time. One alone is slower than the bus, above all where the map must be read first.
const PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Staging {
    buffers: [Pinned; 2],
}

impl Staging {
    pub(super) fn new(core: &Arc<Core>) -> Result<Self> {
        Ok(Staging { buffers: [Pinned::new(core)?, Pinned::new(core)?] })
    }

    /// Issues the copy of `from` to `to`.
    ///
    /// # Safety
    /// `from.len()` bytes at `to` lie within one live allocation.
    pub(super) unsafe fn upload(
        &mut self,
        to: u64,
        from: &[u8],
        progress: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let mut done = 0;
        for (i, chunk) in from.chunks(CHUNK).enumerate() {
            let buffer = &mut self.buffers[i % 2];
            let pinned = &mut buffer.bytes()?[..chunk.len()];
            pinned
                .par_chunks_mut(PIECE)
                .zip(chunk.par_chunks(PIECE))
                .for_each(|(to, from)| to.copy_from_slice(from));
            // SAFETY: the caller's promise; the chunk begins `done` bytes into the range.
            unsafe { buffer.send(to + done as u64, chunk.len()) }?;
            done += chunk.len();
            progress(done);
        }
        Ok(())
    }
}

/// Host memory that the device reads by itself.
#[derive(Debug)]
struct Pinned {
    bytes: *mut u8,
    /// When the device has read it.
    sent: Event,
    core: Arc<Core>,
}

// SAFETY: owned memory.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(core: &Arc<Core>) -> Result<Self> {
        let sent = Event::new(core)?;
        // SAFETY: written before it is read: zeroed here, since it is lent as a slice.
        let bytes = core.call("pinned memory", || unsafe { result::malloc_host(CHUNK, 0) })?.cast::<u8>();
        // SAFETY: just allocated with this size.
        unsafe { bytes.write_bytes(0, CHUNK) };
        Ok(Pinned { bytes, sent, core: core.clone() })
    }

    /// Its bytes, once the device has read what was last sent from it.
    fn bytes(&mut self) -> Result<&mut [u8]> {
        self.sent.wait()?;
        // SAFETY: allocated with this size, initialized, borrowed from `self`, and the device does not read it now.
        Ok(unsafe { slice::from_raw_parts_mut(self.bytes, CHUNK) })
    }

    /// Issues the copy of the first `n` bytes to `to`.
    ///
    /// # Safety
    /// `n` bytes at `to` lie within one live allocation, and `n` is at most [`CHUNK`].
    unsafe fn send(&mut self, to: u64, n: usize) -> Result<()> {
        // SAFETY: allocated with at least this size. No one writes to it before `sent` has happened: `bytes` waits.
        let from = unsafe { slice::from_raw_parts(self.bytes.cast_const(), n) };
        // SAFETY: the caller's promise.
        self.core.call("upload", || unsafe { result::memcpy_htod_async(to, from, self.core.stream) })?;
        self.sent.record()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        _ = self.sent.wait();
        // SAFETY: from `malloc_host`, and no longer read.
        _ = self.core.call("pinned memory", || unsafe { result::free_host(self.bytes.cast()) });
    }
}
