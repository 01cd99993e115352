//! Uploads: through pinned buffers in turn, so that the host fills one (reading a memory map) while the device empties another.
//!
//! The driver would do that by itself for memory that is not pinned, but reads pinned memory later, and the owner of a slice
//! may write to it as soon as the call has returned. Nothing says of a slice which it is.

use std::sync::{Arc, Mutex, PoisonError};
use std::{slice, thread};

use cudarc::driver::result;

use super::{Core, Event};
use crate::error::Result;

/// Buffers of one size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// For the inputs of a step: so many may be under way before one is waited for.
pub(super) const SMALL: Sizes = Sizes { count: 16, bytes: 64 << 10 };

/// For weights: 0.3 ms of PCIe 5, which hides what a copy costs to issue.
pub(super) const LARGE: Sizes = Sizes { count: 2, bytes: 16 << 20 };

/// Threads that copy to a large buffer: one alone is slower than the bus, above all where the map must be read first. Threads of
/// our own: those of a pool may be waiting for the device, which is the caller's meanwhile.
const THREADS: usize = 4;

/// What one of them copies at a time.
const PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Staging {
    buffers: Vec<Pinned>,
    /// The one that was used longest ago.
    next: usize,
}

impl Staging {
    pub(super) fn new(core: &Arc<Core>, Sizes { count, bytes }: Sizes) -> Result<Self> {
        let buffers = (0..count).map(|_| Pinned::new(core, bytes)).collect::<Result<_>>()?;
        Ok(Staging { buffers, next: 0 })
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
        while done < from.len() {
            let count = self.buffers.len();
            let buffer = &mut self.buffers[self.next];
            self.next = (self.next + 1) % count;
            let chunk = &from[done..][..buffer.len.min(from.len() - done)];
            let pinned = &mut buffer.bytes()?[..chunk.len()];
            copy(pinned, chunk);
            // SAFETY: the caller's promise; the chunk begins `done` bytes into the range.
            unsafe { buffer.send(to + done as u64, chunk.len()) }?;
            done += chunk.len();
            progress(done);
        }
        Ok(())
    }
}

/// `to = from`, on several threads if it is large. Whatever threads the system gives take pieces until none is left.
fn copy(to: &mut [u8], from: &[u8]) {
    let pieces = Mutex::new(to.chunks_mut(PIECE).zip(from.chunks(PIECE)));
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    thread::scope(|scope| {
        for _ in 1..THREADS.min(from.len().div_ceil(PIECE)) {
            _ = thread::Builder::new().spawn_scoped(scope, take);
        }
        take();
    });
}

/// Host memory that the device reads by itself.
#[derive(Debug)]
struct Pinned {
    bytes: *mut u8,
    len: usize,
    /// When the device has read it.
    sent: Event,
    core: Arc<Core>,
}

// SAFETY: owned memory.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(core: &Arc<Core>, len: usize) -> Result<Self> {
        let sent = Event::new(core)?;
        // SAFETY: written before it is read: zeroed here, since it is lent as a slice.
        let bytes = core.call("pinned memory", || unsafe { result::malloc_host(len, 0) })?.cast::<u8>();
        // SAFETY: just allocated with this size.
        unsafe { bytes.write_bytes(0, len) };
        Ok(Pinned { bytes, len, sent, core: core.clone() })
    }

    /// Its bytes, once the device has read what was last sent from it.
    fn bytes(&mut self) -> Result<&mut [u8]> {
        self.sent.wait()?;
        // SAFETY: allocated with this size, initialized, borrowed from `self`, and the device does not read it now.
        Ok(unsafe { slice::from_raw_parts_mut(self.bytes, self.len) })
    }

    /// Issues the copy of the first `n` bytes to `to`.
    ///
    /// # Safety
    /// `n` bytes at `to` lie within one live allocation, and `n` is at most `self.len`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_size_are_whole() {
        for n in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5, 9 * PIECE] {
            let from: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
            let mut to = vec![0xff; n];
            copy(&mut to, &from);
            assert!(to == from, "{n} bytes");
        }
    }
}
