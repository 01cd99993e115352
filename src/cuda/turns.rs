//! [`Turns`]: which thread may use a device now.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A lock that the thread which has it may take again.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// [`me`] of the thread that has it, or 0. A thread finds itself here only if it wrote that itself.
    owner: AtomicUsize,
    /// How often the owner has taken it; the owner alone looks.
    depth: AtomicU32,
    queue: Mutex<Queue>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    taken: bool,
    waiting: u32,
}

/// The turn of this thread, until it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    /// Stays on its thread.
    thread: PhantomData<*const ()>,
}

/// A number that no other living thread has.
fn me() -> usize {
    thread_local!(static ME: u8 = const { 0 });
    ME.with(|me| (&raw const *me).addr())
}

impl Turns {
    pub(super) fn take(&self) -> Turn<'_> {
        if self.mine() {
            self.depth.fetch_add(1, Ordering::Relaxed);
        } else {
            let mut queue = self.queue();
            queue.waiting += 1;
            while queue.taken {
                queue = self.free.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.waiting -= 1;
            queue.taken = true;
            self.owner.store(me(), Ordering::Relaxed);
            self.depth.store(1, Ordering::Relaxed);
        }
        Turn { turns: self, thread: PhantomData }
    }

    /// Whether this thread has it.
    pub(super) fn mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == me()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Turns { owner, depth, free, .. } = self.turns;
        if depth.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let mut queue = self.turns.queue();
        owner.store(0, Ordering::Relaxed);
        queue.taken = false;
        if queue.waiting > 0 {
            free.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time_as_often_as_it_likes() {
        let (turns, inside, entered) = (Turns::default(), AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..500 {
                        let (outer, inner) = (turns.take(), turns.take());
                        assert!(turns.mine() && !inside.swap(true, Ordering::Relaxed));
                        drop(outer); // the order does not matter
                        thread::yield_now();
                        assert!(turns.mine() && inside.swap(false, Ordering::Relaxed));
                        entered.fetch_add(1, Ordering::Relaxed);
                        drop(inner);
                        assert!(!turns.mine());
                    }
                });
            }
        });
        assert_eq!(entered.into_inner(), 2000);
    }
}
