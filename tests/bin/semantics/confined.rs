//! Programs that lock their memory.

use crate::Case;
use crate::role::{Pair, Role, receive_all, send_all, shown};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("child_locks_its_memory_without_privilege", |pair| {
        locks(pair, false);
    }),
    Case::pair("child_locks_its_memory_with_privilege", |pair| {
        locks(pair, true);
    }),
    Case::pair("program_locks_what_it_maps_later", locks_while_connected),
    Case::roles(
        "program_that_locked_its_memory_connects",
        connects_when_locked,
    ),
];

/// What a user gets on most systems (`RLIMIT_MEMLOCK`, since Linux 5.16).
const LIMIT: u64 = 8 << 20;

/// Takes the right to lock more than [`LIMIT`] away from this process: root has no more rights
/// than others then.
fn become_ordinary() {
    /// include/uapi/linux/capability.h.
    const VERSION: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: LIMIT,
    };
    let header = [VERSION, 0];
    let mut sets = [0u32; 6];
    // SAFETY: a header of this version, about this thread, and room for what belongs to it.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
        let (header, sets) = (header.as_ptr(), sets.as_mut_ptr());
        assert_eq!(libc::syscall(libc::SYS_capget, header, sets), 0);
        for set in 0..3 {
            *sets.add(set) &= !(1 << CAP_IPC_LOCK);
        }
        assert_eq!(libc::syscall(libc::SYS_capset, header, sets), 0);
    }
}

fn lock_all(flags: i32) -> String {
    // SAFETY: no memory is handed over.
    sys::ret(unsafe { libc::mlockall(flags) }).to_string()
}

/// True when this process has less than 16 MiB of memory.
fn is_resident_small() -> bool {
    let text = std::fs::read_to_string("/proc/self/statm").expect("proc");
    let pages = text.split_whitespace().nth(1).expect("a field");
    pages.parse::<u64>().expect("a number") * 4096 < 16 << 20
}

fn exchange(role: &Role, fd: Fd) {
    let mut bytes = [0; 5];
    if role.server() {
        send_all(fd, b"hello");
        receive_all(fd, &mut bytes);
    } else {
        receive_all(fd, &mut bytes);
        send_all(fd, b"hello");
    }
    role.say("received", shown(&bytes));
}

/// A child has its parent's connection, with all that belongs to it, and locks that.
fn locks(pair: &Pair, privileged: bool) {
    let child = sys::fork();
    if child == 0 {
        if !privileged {
            become_ordinary();
        }
        let all = libc::MCL_CURRENT | libc::MCL_FUTURE;
        pair.say("mlockall", lock_all(libc::MCL_CURRENT));
        pair.say("resident", is_resident_small());
        exchange(pair, pair.fd);
        pair.say("mlockall", lock_all(all));
        exchange(pair, pair.fd);
        pair.say("resident", is_resident_small());
        // SAFETY: no memory is handed over.
        pair.say("munlockall", sys::ret(unsafe { libc::munlockall() }));
        exchange(pair, pair.fd);
        sys::exit_now(0);
    }
    pair.say("child", sys::wait_for(child));
    pair.step();
}

fn locks_while_connected(pair: &Pair) {
    pair.say("mlockall", lock_all(libc::MCL_FUTURE));
    // As many bytes as make rings grow.
    const LEN: usize = 1 << 20;
    let sample = crate::role::sample(LEN);
    if pair.server() {
        send_all(pair.fd, &sample);
    } else {
        let mut bytes = vec![0; LEN];
        receive_all(pair.fd, &mut bytes);
        pair.say("right", bytes == sample);
    }
    exchange(pair, pair.fd);
    pair.step();
}

/// What it would need for rings is more than it may lock.
fn connects_when_locked(role: &Role) {
    become_ordinary();
    role.say("mlockall", lock_all(libc::MCL_CURRENT | libc::MCL_FUTURE));
    let fd = role.meet();
    for _ in 0..200 {
        exchange(role, fd);
    }
    role.say("resident", is_resident_small());
    role.step();
}
