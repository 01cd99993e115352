//! [`Graph`]: work that is recorded once and issued many times at the cost of one launch.

use std::sync::Arc;

use super::buffer::Allocation;
use super::runtime::Recorded;
use super::{Gpu, Turn};
use crate::error::{Error, Result};

/// Recorded launches, copies and fills. It keeps the memory that they use, at the addresses of then: a buffer that was
/// replaced by a larger one afterwards asks for [`Graph::update`].
#[derive(Debug)]
pub struct Graph {
    gpu: Gpu,
    /// `None` only if an update failed.
    work: Option<Work>,
}

/// Fields are dropped in this order: first what uses the memory.
#[derive(Debug)]
struct Work {
    recorded: Box<dyn Recorded>,
    used: Vec<Arc<Allocation>>,
}

impl Gpu {
    /// Records what `work` issues on this device, without running it. Meanwhile allocations, uploads, downloads and waits
    /// are refused; calls of other threads wait for the end, so `work` must not wait for those.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Unsupported`] within another capture; [`Error::Driver`].
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        Ok(Graph { gpu: self.clone(), work: Some(self.record(None, work)?) })
    }

    fn record(&self, reuse: Option<Box<dyn Recorded>>, work: impl FnOnce() -> Result<()>) -> Result<Work> {
        let turn = self.turn();
        self.outside_capture("a capture", |runtime| runtime.begin_capture())?;
        self.start_capture();
        let started = Started { gpu: self, recording: true, _turn: turn };
        work()?; // `started` ends the recording if this fails
        started.finish(reuse)
    }
}

/// A capture that has begun. Dropped before its end, by an error or a panic, it is given up.
struct Started<'a> {
    gpu: &'a Gpu,
    recording: bool,
    _turn: Turn<'a>,
}

impl Started<'_> {
    fn finish(mut self, reuse: Option<Box<dyn Recorded>>) -> Result<Work> {
        self.recording = false;
        let recorded = self.gpu.call(|runtime| runtime.end_capture(reuse));
        let used = self.gpu.stop_capture();
        Ok(Work { recorded: recorded?, used })
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if self.recording {
            _ = self.gpu.call(|runtime| runtime.end_capture(None));
            self.gpu.stop_capture();
        }
    }
}

impl Graph {
    /// Issues the recorded work.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Unsupported`] while another graph is captured, or if an update has failed.
    pub fn launch(&mut self) -> Result<()> {
        let Some(Work { recorded, .. }) = &mut self.work else {
            return Err(Error::unsupported("a launch of this graph", "its update failed"));
        };
        let _turn = self.gpu.turn();
        // SAFETY: `used` holds all memory whose address was handed out while this was recorded.
        self.gpu.outside_capture("a launch of another graph", |_| unsafe { recorded.launch() })?;
        self.gpu.order().graph_ended();
        Ok(())
    }

    /// Replaces the recorded work by what `work` issues. If that differs in addresses, params and grids only, this is
    /// cheaper than a new graph.
    ///
    /// # Errors
    /// As [`Gpu::capture`]; the graph cannot be launched then.
    pub fn update(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let old = self.work.take();
        let (reuse, _used) = old.map(|old| (old.recorded, old.used)).unzip();
        self.work = Some(self.gpu.record(reuse, work)?);
        Ok(())
    }

    /// Number of buffers that it keeps.
    pub fn buffers(&self) -> usize {
        self.work.as_ref().map_or(0, |work| work.used.len())
    }
}
