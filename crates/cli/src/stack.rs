//! Room on the stack: `ulimit -s` may leave a process 64 KiB, and parsing a command line needs
//! more.

use std::{panic, thread};

use rustix::process::{Resource, getrlimit};

/// Runs `work`, on another thread's stack if this process's own may be too small.
pub(crate) fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= ROOM_BYTES as u64) {
        return work();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(ROOM_BYTES);
        let done = thread.spawn_scoped(scope, work);
        let done = done.expect("without a thread there is no room");
        done.join()
            .unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

/// A fraction of the usual 8 MiB, and several times the need of any command.
const ROOM_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_gives_its_value_on_either_stack() {
        assert_eq!(with_room(|| 7), 7);
    }
}
