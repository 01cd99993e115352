//! Ctrl-C: the first press asks the program to stop, the second ends it at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::failure::{Failure, INTERRUPTED, Result};

static PRESSED: AtomicUsize = AtomicUsize::new(0);

/// Takes Ctrl-C over; `first` runs (on another thread) at each first press. To be called after standard input has been
/// read, unless reading goes on: a program that waits for input should end at the first press.
pub fn install(first: impl Fn() + Send + 'static) -> Result<()> {
    let handler = move || match PRESSED.fetch_add(1, Ordering::SeqCst) {
        0 => first(),
        _ => std::process::exit(i32::from(INTERRUPTED)),
    };
    ctrlc::set_handler(handler).map_err(|e| Failure::Run(format!("cannot handle Ctrl-C: {e}")))
}

/// Whether Ctrl-C was pressed since the start or the last [`clear`].
pub fn requested() -> bool {
    PRESSED.load(Ordering::Relaxed) > 0
}

/// Forgets a press that has been dealt with.
pub fn clear() {
    PRESSED.store(0, Ordering::SeqCst);
}
