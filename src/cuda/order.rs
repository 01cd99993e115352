//! [`Order`]: which kernels may still run when the next one begins.
//!
//! A kernel with programmatic dependent launch may begin before those in front of it have ended. It waits for them before it
//! reads what they write, but its prologue, before that wait, reads memory that it takes for constant. So what a kernel wrote
//! may be read there only behind a point where all kernels had ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Changed only by the thread whose turn it is.
#[derive(Debug)]
pub(super) struct Order {
    /// How many points of the stream there were behind which no earlier kernel runs, counted from 1.
    point: AtomicU64,
    /// The next launch must begin behind the end of all before it.
    waits: AtomicBool,
    /// Launches ever.
    issued: AtomicU64,
}

impl Default for Order {
    fn default() -> Self {
        Order { point: AtomicU64::new(1), waits: AtomicBool::new(false), issued: AtomicU64::new(0) }
    }
}

impl Order {
    /// For [`Order::passed`].
    pub(super) fn issued(&self) -> u64 {
        self.issued.load(Ordering::Relaxed)
    }

    /// What was issued in front of a copy, a fill or a wait of the host ends before what is issued behind it begins. `issued` is
    /// of before that call, which may have called back.
    pub(super) fn passed(&self, issued: u64) {
        self.point.fetch_add(1, Ordering::Relaxed);
        self.waits.store(issued != self.issued(), Ordering::Relaxed);
    }

    /// A recording or a graph ends here. What it wrote is not known; it will have ended before the next launch begins.
    pub(super) fn graph_ended(&self) {
        self.launched();
        self.point.fetch_add(1, Ordering::Relaxed);
        self.waits.store(true, Ordering::Relaxed);
    }

    /// The next launch may not begin early.
    pub(super) fn next_waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Whether the launch that comes now may begin early.
    pub(super) fn may_overlap(&self) -> bool {
        !self.waits.load(Ordering::Relaxed)
    }

    /// It was issued.
    pub(super) fn launched(&self) {
        self.issued.fetch_add(1, Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
    }
}

/// When memory was last handed out to be written by a kernel.
#[derive(Debug, Default)]
pub(super) struct Written(AtomicU64);

impl Written {
    pub(super) fn mark(&self, order: &Order) {
        self.0.store(order.point.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether a kernel that writes to it may still run.
    pub(super) fn perhaps_now(&self, order: &Order) -> bool {
        self.0.load(Ordering::Relaxed) == order.point.load(Ordering::Relaxed)
    }
}
