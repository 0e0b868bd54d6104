//! A thread in a call that sleeps.

use std::fs;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that sleeps in its call; the rest of the case goes on beside it.
pub(crate) struct Sleeper<T>(JoinHandle<T>);

impl<T: Send + 'static> Sleeper<T> {
    /// Starts a thread with `call`. Returns when it sleeps there, or has returned.
    pub(crate) fn start(call: impl FnOnce() -> T + Send + 'static) -> Sleeper<T> {
        let (announce, announced) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            // SAFETY: no memory is involved.
            let id = unsafe { libc::gettid() };
            announce.send(id).expect("the starter waits for it");
            call()
        });
        let id = announced.recv().expect("the thread begins");
        await_sleep(&format!("self/task/{id}"), || thread.is_finished());
        Sleeper(thread)
    }

    /// The result of the call.
    pub(crate) fn result(self) -> T {
        self.0.join().expect("no panic")
    }
}

/// Returns when the thread at `path` under /proc sleeps, or is gone, or `has_returned` says so. A
/// thread that only waits for a processor is not asleep, however long that takes.
pub(crate) fn await_sleep(path: &str, has_returned: impl Fn() -> bool) {
    const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
    // A thread on its way to the call may sleep for a moment, too: for a lock, or for memory.
    const LOOKS: u32 = 20;
    let mut seen_asleep = 0;
    while seen_asleep < LOOKS && !has_returned() {
        let Ok(stat) = fs::read_to_string(format!("/proc/{path}/stat")) else {
            return;
        };
        let is_asleep = stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S'));
        seen_asleep = if is_asleep { seen_asleep + 1 } else { 0 };
        thread::sleep(BETWEEN_LOOKS);
    }
}
