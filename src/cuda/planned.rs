//! [`planned`]: a GPU that only counts. Whatever runs on it takes the memory and makes the launches that it would on a real one, which need
//! not be there; nothing is computed, and what comes back is zeros.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Gpu;
use super::runtime::{Launch, Memory, Properties, Recorded, Runtime};
use crate::error::Result;
use crate::kernels::Entry;

/// What memory of a device is given out in.
const GRAIN: u64 = 512;

/// Bytes that are in use and that were at most.
#[derive(Debug, Default)]
struct Counted {
    next: u64,
    live: HashMap<u64, u64>,
    now: u64,
    peak: u64,
}

/// Looks into a planned GPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counter(Arc<Mutex<Counted>>);

impl Counter {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes in use.
    pub fn now(&self) -> u64 {
        self.counted().now
    }

    /// Most bytes that were in use at a time.
    pub fn peak(&self) -> u64 {
        self.counted().peak
    }
}

/// A GPU with these properties, and its counter. It never runs out of memory.
pub(crate) fn planned(properties: Properties) -> (Gpu, Counter) {
    let counter = Counter::default();
    (Gpu::new(Box::new(Planned { properties, counter: counter.clone() })), counter)
}

#[derive(Debug)]
struct Planned {
    properties: Properties,
    counter: Counter,
}

/// Nothing to run.
#[derive(Debug)]
struct Nothing;

impl Recorded for Nothing {
    unsafe fn launch(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Runtime for Planned {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory(&self) -> Result<Memory> {
        let total = self.properties.memory;
        Ok(Memory { free: total.saturating_sub(self.counter.now()), total })
    }

    fn alloc(&self, bytes: usize, _: &'static str) -> Result<u64> {
        let mut counted = self.counter.counted();
        let bytes = (bytes as u64).next_multiple_of(GRAIN);
        counted.next += bytes;
        let address = counted.next; // never null, and no two overlap
        counted.live.insert(address, bytes);
        counted.now += bytes;
        counted.peak = counted.peak.max(counted.now);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        let mut counted = self.counter.counted();
        let bytes = counted.live.remove(&address).unwrap_or(0);
        counted.now -= bytes;
        Ok(())
    }

    fn wants_contents(&self) -> bool {
        false
    }

    unsafe fn upload(&self, _: u64, from: &[u8], progress: &mut dyn FnMut(usize)) -> Result<()> {
        progress(from.len());
        Ok(())
    }

    unsafe fn download(&self, _: u64, to: &mut [u8]) -> Result<()> {
        to.fill(0);
        Ok(())
    }

    unsafe fn copy(&self, _: u64, _: u64, _: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn fill(&self, _: u64, _: u8, _: usize) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, _: Entry) -> Result<()> {
        Ok(())
    }

    unsafe fn launch(&self, _: &Launch<'_>) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        work().map(|()| Duration::ZERO)
    }

    fn begin_capture(&self) -> Result<()> {
        Ok(())
    }

    fn end_capture(&self, _: Option<Box<dyn Recorded>>) -> Result<Box<dyn Recorded>> {
        Ok(Box::new(Nothing))
    }
}
