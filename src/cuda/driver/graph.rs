//! CUDA graphs: recorded by capturing the stream, run as one launch, changed in place where that is possible.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags};

use super::Core;
use crate::cuda::runtime::Recorded;
use crate::error::Result;

/// An executable graph.
#[derive(Debug)]
struct Executable {
    graph: sys::CUgraphExec,
    core: Arc<Core>,
}

// SAFETY: executable graphs may be used from any thread, by one at a time: `launch` takes `&mut`.
unsafe impl Send for Executable {}

pub(super) fn end_capture(core: &Arc<Core>, reuse: Option<Box<dyn Recorded>>) -> Result<Box<dyn Recorded>> {
    // SAFETY: the stream is ours.
    let graph = core.call("end capture", || unsafe { result::stream::end_capture(core.stream) })?;
    let made = executable(core, graph, reuse);
    // SAFETY: an executable graph does not need what it was made from.
    let destroyed = core.call("end capture", || unsafe { result::graph::destroy(graph) });
    let made = made?;
    destroyed?;
    Ok(Box::new(made))
}

fn executable(core: &Arc<Core>, graph: sys::CUgraph, reuse: Option<Box<dyn Recorded>>) -> Result<Executable> {
    if let Some(old) = reuse {
        let old: Box<dyn Any> = old;
        if let Ok(old) = old.downcast::<Executable>()
            && old.update(graph)?
        {
            return Ok(*old);
        }
    }
    // SAFETY: the graph was just captured.
    let graph =
        core.call("graph", || unsafe { result::graph::instantiate(graph, CUgraphInstantiate_flags(0)) })?;
    Ok(Executable { graph, core: core.clone() })
}

impl Executable {
    /// Takes over params and addresses of another graph; `false` if it differs in more than that.
    fn update(&self, graph: sys::CUgraph) -> Result<bool> {
        let mut info = sys::CUgraphExecUpdateResultInfo_st {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: std::ptr::null_mut(),
            errorFromNode: std::ptr::null_mut(),
        };
        self.core.call("graph update", || {
            // SAFETY: both graphs live; `info` is written only.
            match unsafe { sys::cuGraphExecUpdate_v2(self.graph, graph, &mut info) } {
                sys::CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => Ok(false),
                other => other.result().map(|()| true),
            }
        })
    }
}

impl Recorded for Executable {
    unsafe fn launch(&mut self) -> Result<()> {
        // SAFETY: the graph lives; memory is the caller's promise.
        self.core.call("launch of a graph", || unsafe { result::graph::launch(self.graph, self.core.stream) })
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: ours, and not used after this; runs under way go on.
        _ = self.core.call("graph", || unsafe { result::graph::exec_destroy(self.graph) });
    }
}
