//! The fast CPU path: a thread pool, run-time SIMD, kernels. No policy: shapes were checked by [`crate::ops`].

mod simd;

use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};

/// Threads, the SIMD level found at run time, and scratch memory that is reused from call to call.
#[derive(Clone)]
pub struct Cpu(Arc<Inner>);

struct Inner {
    pool: rayon::ThreadPool,
    arch: pulp::Arch,
    scratch: Mutex<Vec<Vec<f32>>>,
}

impl Cpu {
    /// A pool of `threads` threads (`None`: as many as the machine has).
    ///
    /// # Errors
    /// [`Error::Argument`] for zero or more than 1024, [`Error::Unsupported`] if the system gives no threads.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let threads = match threads {
            Some(n @ 1..=1024) => n,
            Some(n) => return Err(Error::argument("threads", "1 to 1024", n)),
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("glm5-{i}"))
            .build()
            .map_err(|e| Error::unsupported(format!("a pool of {threads} threads"), e))?;
        Ok(Cpu(Arc::new(Inner { pool, arch: pulp::Arch::new(), scratch: Mutex::new(Vec::new()) })))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.0.pool.current_num_threads()
    }

    /// Short name for reports: threads and SIMD level.
    pub fn name(&self) -> String {
        let n = self.threads();
        format!("cpu ({n} thread{}, {})", if n == 1 { "" } else { "s" }, simd::level(self.0.arch))
    }

    /// Runs `f` on a thread of the pool. Loops that call many operations run inside one `install`: each call then starts
    /// where it is, without a hand-over between threads (and without the small queue allocations of one).
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.0.pool.install(f)
    }
}
