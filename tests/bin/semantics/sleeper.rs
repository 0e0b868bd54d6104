//! A thread in a call that sleeps.

use std::fs;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that sleeps in its call, while the rest of the case continues.
pub(crate) struct Sleeper<T>(JoinHandle<T>);

impl<T: Send + 'static> Sleeper<T> {
    /// Starts a thread that makes `call`. Returns when the thread sleeps in the call, or has
    /// returned from it.
    pub(crate) fn start(call: impl FnOnce() -> T + Send + 'static) -> Sleeper<T> {
        Sleeper::start_by(call, CAREFUL)
    }

    /// Like [`start`](Self::start), for a case whose transcript does not depend on whether the
    /// thread sleeps.
    pub(crate) fn start_soon(call: impl FnOnce() -> T + Send + 'static) -> Sleeper<T> {
        Sleeper::start_by(call, SOON)
    }

    fn start_by(call: impl FnOnce() -> T + Send + 'static, looks: Looks) -> Sleeper<T> {
        let (announce, announced) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            // SAFETY: no memory is involved.
            let id = unsafe { libc::gettid() };
            announce.send(id).expect("the starter waits for it");
            call()
        });
        let id = announced.recv().expect("the thread begins");
        await_sleep_by(&format!("self/task/{id}"), || thread.is_finished(), looks);
        Sleeper(thread)
    }

    /// Whether the call is over.
    pub(crate) fn has_returned(&self) -> bool {
        self.0.is_finished()
    }

    pub(crate) fn thread(&self) -> &JoinHandle<T> {
        &self.0
    }

    /// The result of the call.
    pub(crate) fn result(self) -> T {
        self.0.join().expect("no panic")
    }
}

/// The number of checks in a row that must see a thread asleep. Before the thread reaches its call,
/// it may sleep for a moment for a lock or for memory.
struct Looks {
    count: u32,
    between: Duration,
}

const CAREFUL: Looks = Looks {
    count: 20,
    between: Duration::from_millis(5),
};

const SOON: Looks = Looks {
    count: 3,
    between: Duration::from_millis(1),
};

/// Returns when the thread at `path` under /proc sleeps or has ended, or when `has_returned` is
/// true. A thread that waits for a processor is not asleep, however long it waits.
pub(crate) fn await_sleep(path: &str, has_returned: impl Fn() -> bool) {
    await_sleep_by(path, has_returned, CAREFUL);
}

fn await_sleep_by(path: &str, has_returned: impl Fn() -> bool, looks: Looks) {
    let mut seen_asleep = 0;
    while seen_asleep < looks.count && !has_returned() {
        let Ok(stat) = fs::read_to_string(format!("/proc/{path}/stat")) else {
            return;
        };
        let is_asleep = stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S'));
        seen_asleep = if is_asleep { seen_asleep + 1 } else { 0 };
        thread::sleep(looks.between);
    }
}
