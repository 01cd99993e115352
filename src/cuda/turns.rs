//! [`Turns`]: which thread may use a device now.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A lock that the thread which has it may take again. Threads get it in the order in which they asked, so none starves.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// [`me`] of the thread that has it, or 0. A thread finds itself here only if it wrote that itself.
    owner: AtomicUsize,
    /// How often the owner has taken it; the owner alone looks.
    depth: AtomicU32,
    queue: Mutex<Queue>,
    next: Condvar,
}

/// Tickets, counted from 0.
#[derive(Debug, Default)]
struct Queue {
    given: u64,
    /// The ticket whose turn it is, or will be.
    served: u64,
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
            let ticket = queue.given;
            queue.given += 1;
            while queue.served != ticket {
                queue = self.next.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
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
        let Turns { owner, depth, next, .. } = self.turns;
        if depth.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let mut queue = self.turns.queue();
        owner.store(0, Ordering::Relaxed);
        queue.served += 1;
        if queue.served != queue.given {
            next.notify_all();
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
