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
        await_sleep(id, &thread);
        Sleeper(thread)
    }

    /// The result of the call.
    pub(crate) fn result(self) -> T {
        self.0.join().expect("no panic")
    }
}

/// A thread that only waits for a processor is not asleep, however long that takes.
fn await_sleep<T>(id: i32, thread: &JoinHandle<T>) {
    const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
    // A thread on its way to the call may sleep for a moment, too: for a lock, or for memory.
    const LOOKS: u32 = 20;
    let mut seen_asleep = 0;
    while seen_asleep < LOOKS && !thread.is_finished() {
        let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
        let is_asleep = stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S'));
        seen_asleep = if is_asleep { seen_asleep + 1 } else { 0 };
        thread::sleep(BETWEEN_LOOKS);
    }
}
