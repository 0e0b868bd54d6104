//! Programs that lock their memory, and programs that restrict themselves to some system calls.

use crate::Case;
use crate::role::{
    Checksum, Pair, Role, is_upgraded_where_expected, receive_all, sample, send_all, shown,
};
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
    Case::pair("program_that_confines_itself_goes_on", |pair| {
        confines(pair, by_prctl);
    }),
    Case::pair("program_that_confines_itself_by_number_goes_on", |pair| {
        confines(pair, by_number);
    }),
    Case::pair("program_without_further_descriptors_goes_on", |pair| {
        limits_descriptors(pair, 0);
    }),
    Case::pair("program_with_one_descriptor_goes_on", |pair| {
        limits_descriptors(pair, 1);
    }),
    Case::pair("questions_about_filters_set_none", asks_about_filters),
    Case::pair("child_that_confines_itself_goes_on", confined_child),
    Case::pair(
        "confined_program_closes_unread_bytes_in_a_range",
        closes_a_range,
    ),
    Case::pair(
        "vfork_child_of_a_confined_program_leaves_unread_bytes_to_its_parent",
        guest_closes,
    ),
    Case::pair(
        "confined_program_with_unread_bytes_executes_another",
        executes_with_unread_bytes,
    ),
    Case::roles(
        "program_that_begins_confined_serves_itself",
        begins_confined,
    ),
];

/// The limit of an ordinary user on most systems (`RLIMIT_MEMLOCK`, since Linux 5.16).
const LIMIT: u64 = 8 << 20;

/// Takes the right to lock more than [`LIMIT`] away from this process. Root then has no more rights
/// than an ordinary user.
fn become_ordinary() {
    const CAP_IPC_LOCK: u32 = 14;
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: LIMIT,
    };
    // SAFETY: a live limit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
    assert_eq!(set, 0);
    give_up(CAP_IPC_LOCK);
}

/// Removes one right from this thread.
fn give_up(right: u32) {
    /// include/uapi/linux/capability.h.
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    let mut sets = [0u32; 6];
    // SAFETY: a header of this version, about this thread, and room for what belongs to it.
    unsafe {
        let (header, sets) = (header.as_ptr(), sets.as_mut_ptr());
        assert_eq!(libc::syscall(libc::SYS_capget, header, sets), 0);
        for set in 0..3 {
            *sets.add(set) &= !(1 << right);
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

/// A child inherits its parent's connection, with all memory that belongs to the connection, and
/// locks that memory.
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
    // Enough bytes to make rings grow.
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

/// The process may lock less memory than rings need.
fn connects_when_locked(role: &Role) {
    become_ordinary();
    role.say("mlockall", lock_all(libc::MCL_CURRENT | libc::MCL_FUTURE));
    // No connection becomes a carrier, because there is no memory for its rings.
    let fd = role.meet_by_kernel();
    for _ in 0..200 {
        exchange(role, fd);
    }
    role.say("resident", is_resident_small());
    role.step();
}

/// The calls that these programs make after they have set the filter, and the calls of an
/// allocator.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_exit_group,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
];

/// Sets a seccomp filter on this process.
type Confine = fn(*const libc::sock_fprog);

fn by_prctl(filter: *const libc::sock_fprog) {
    // SAFETY: the filter is live.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, filter) };
    assert_eq!(set, 0);
}

fn by_number(filter: *const libc::sock_fprog) {
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the filter is live.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, filter) };
    assert_eq!(set, 0);
}

/// Sets a filter that kills the process for calls that are not in [`ALLOWED`].
fn confine(how: Confine) {
    let (allow, kill) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS);
    set_filter(how, ALLOWED, allow, kill);
}

/// Sets a filter that allows all calls.
pub(crate) fn confine_nothing() {
    let allow = libc::SECCOMP_RET_ALLOW;
    set_filter(by_prctl, &[], allow, allow);
}

/// Sets a filter with the action `answer` for `calls`, and with the action `others` for all other
/// calls.
fn set_filter(how: Confine, calls: &[libc::c_long], answer: u32, others: u32) {
    // SAFETY: arithmetic on numbers.
    let statement = |code: u32, value: u32| unsafe { libc::BPF_STMT(code as u16, value) };
    let is = |number: libc::c_long| {
        // SAFETY: as above.
        unsafe {
            let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
            libc::BPF_JUMP(code as u16, number as u32, 0, 1)
        }
    };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &number in calls {
        filter.push(is(number));
        filter.push(statement(libc::BPF_RET, answer));
    }
    filter.push(statement(libc::BPF_RET, others));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // An ordinary user needs this to set a filter. SAFETY: plain system call.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    how(&program);
}

/// The client sets a filter while bytes are unread in both directions.
fn confines(pair: &Pair, how: Confine) {
    const LEN: usize = 90_000;
    let bytes = sample(LEN);
    let mut half = vec![0; LEN / 2];
    send_all(pair.fd, &bytes);
    pair.step();
    if pair.server() {
        pair.step();
        let mut all = vec![0; LEN];
        receive_all(pair.fd, &mut all);
        pair.say("right", all == bytes);
    } else {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 7).value();
        pair.arrived(pair.fd, LEN);
        confine(how);
        pair.step();
        pair.say("poll", sys::poll(&[(pair.fd, libc::POLLIN)], -1).1[0]);
        pair.say("epoll", format!("{:?}", sys::epoll_wait(epoll, 4, -1).1));
        let mut ahead = [0; 9];
        let seen = sys::recv(pair.fd, &mut ahead, libc::MSG_PEEK);
        pair.say("ahead", format!("{seen} {}", ahead == bytes[..9]));
        receive_all(pair.fd, &mut half);
        pair.say("first half", Checksum::of(&half));
        receive_all(pair.fd, &mut half);
        pair.say("second half", Checksum::of(&half));
    }
    for _ in 0..100 {
        exchange(pair, pair.fd);
    }
    pair.say("close", sys::close(pair.fd));
    pair.step();
    sys::exit_now(0);
}

/// The client may have no number of a descriptor from `limit` on, while bytes are unread in both
/// directions. (The kernel counts the places of `poll`, too.)
fn limits_descriptors(pair: &Pair, limit: u64) {
    const LEN: usize = 90_000;
    let bytes = sample(LEN);
    let mut all = vec![0; LEN];
    send_all(pair.fd, &bytes);
    pair.step();
    if !pair.server() {
        pair.arrived(pair.fd, LEN);
        let limit = libc::rlimit {
            rlim_cur: limit,
            rlim_max: limit,
        };
        // SAFETY: a live limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        pair.say("limit", sys::ret(set));
    }
    receive_all(pair.fd, &mut all);
    pair.say("right", all == bytes);
    for round in 0..100 {
        if pair.server() && round > 95 {
            // The other end sleeps by now.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        exchange(pair, pair.fd);
    }
    if !pair.server() {
        let time = [0i64, 10_000];
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time).value();
        pair.say("nothing", sys::recv(pair.fd, &mut [0; 9], 0));
    }
    pair.step();
    pair.say("close", sys::close(pair.fd));
    pair.step();
    sys::exit_now(0);
}

/// Asks the kernel which filter features it has, as libseccomp does, and makes requests that the
/// kernel must refuse. An accelerated connection stays accelerated.
fn asks_about_filters(pair: &Pair) {
    const NOTHING: *const libc::sock_fprog = std::ptr::null();
    let answer = |result: libc::c_long| sys::ret(result as i32).to_string();
    // SAFETY: the kernel reads one number, or a null pointer, which it refuses.
    unsafe {
        let prctl = |option, mode: u32| answer(libc::prctl(option, mode, NOTHING).into());
        pair.say("mode", prctl(libc::PR_GET_SECCOMP, 0));
        let filter = libc::SECCOMP_MODE_FILTER;
        pair.say("no filter", prctl(libc::PR_SET_SECCOMP, filter));
        let seccomp = |operation: u32, flags: u64, argument: *const u32| {
            answer(libc::syscall(libc::SYS_seccomp, operation, flags, argument))
        };
        let is_there = libc::SECCOMP_GET_ACTION_AVAIL;
        pair.say(
            "kills",
            seccomp(is_there, 0, &libc::SECCOMP_RET_KILL_PROCESS),
        );
        pair.say("unknown action", seccomp(is_there, 0, &0x1234_0000));
        let filter = libc::SECCOMP_SET_MODE_FILTER;
        for flags in [
            0,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            libc::SECCOMP_FILTER_FLAG_LOG,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
        ] {
            let seen = seccomp(filter, flags, NOTHING.cast());
            pair.say(&format!("no filter, flags {flags:#x}"), seen);
        }
        let allow = libc::BPF_STMT(
            (libc::BPF_RET | libc::BPF_K) as u16,
            libc::SECCOMP_RET_ALLOW,
        );
        let load = libc::BPF_STMT((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0);
        let mut list = [load, allow];
        let list = list.as_mut_ptr();
        let program = |len| libc::sock_fprog { len, filter: list };
        for (name, len) in [("empty", 0), ("without an end", 1), ("too long", 5000)] {
            let program = program(len);
            let mode = libc::SECCOMP_MODE_FILTER;
            let set = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program);
            pair.say(&format!("a filter that is {name}"), answer(set.into()));
            let seen = seccomp(filter, 0, (&raw const program).cast());
            pair.say(&format!("by number, one that is {name}"), seen);
        }
        let good = program(2);
        let child = sys::fork();
        if child == 0 {
            const CAP_SYS_ADMIN: u32 = 21;
            give_up(CAP_SYS_ADMIN);
            let mode = libc::SECCOMP_MODE_FILTER;
            let set = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const good);
            pair.say("a filter without the right", answer(set.into()));
            let seen = seccomp(filter, 0, (&raw const good).cast());
            pair.say("by number, without the right", seen);
            pair.say("still upgraded", is_upgraded_where_expected(pair.fd));
            sys::exit_now(0);
        }
        pair.say("child", sys::wait_for(child));
        pair.say("no mode", prctl(libc::PR_SET_SECCOMP, 7));
        let strict = libc::SECCOMP_SET_MODE_STRICT;
        pair.say("strict with a flag", seccomp(strict, 1, NOTHING.cast()));
        pair.say("strict of something", seccomp(strict, 0, &0));
        pair.say("mode", prctl(libc::PR_GET_SECCOMP, 0));
    }
    for _ in 0..100 {
        exchange(pair, pair.fd);
    }
    pair.step();
    pair.say("still upgraded", is_upgraded_where_expected(pair.fd));
    pair.step();
}

/// Closing a descriptor discards its unread bytes, for every call that closes.
fn closes_a_range(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"never read");
        pair.step();
    } else {
        pair.arrived(pair.fd, 10);
        confine(by_prctl);
        let fd = pair.fd as u32;
        // SAFETY: plain system call.
        pair.say("close", sys::ret(unsafe { libc::close_range(fd, fd, 0) }));
        pair.say("closed", sys::recv(pair.fd, &mut [0; 10], 0));
        pair.step();
    }
    sys::exit_now(0);
}

/// A child that shares the program's memory closes its own numbers. The filter forbids it to ask
/// who it is.
fn guest_closes(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"never lost");
        pair.step();
    } else {
        pair.arrived(pair.fd, 10);
        let calls = [ALLOWED, &[libc::SYS_vfork, libc::SYS_wait4]].concat();
        let (allow, kill) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS);
        set_filter(by_prctl, &calls, allow, kill);
        // SAFETY: the child makes plain system calls, and ends by _exit.
        #[expect(deprecated, reason = "what is tested is vfork itself")]
        let child = unsafe {
            let child = libc::vfork();
            if child == 0 {
                libc::close(pair.fd);
                libc::close_range(3, 500, 0);
                libc::_exit(0);
            }
            child
        };
        pair.say("child", sys::wait_for(child));
        let mut bytes = [0; 10];
        receive_all(pair.fd, &mut bytes);
        pair.say("bytes", shown(&bytes));
        pair.say("close", sys::close(pair.fd));
        pair.say("closed", sys::recv(pair.fd, &mut bytes, 0));
        pair.step();
    }
    sys::exit_now(0);
}

/// The filter kills for calls that neither the program makes nor the one that it executes. The exec
/// closes the connection.
fn executes_with_unread_bytes(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"never read");
        pair.step();
        sys::exit_now(0);
    }
    pair.arrived(pair.fd, 10);
    sys::fcntl(pair.fd, libc::F_SETFD, libc::FD_CLOEXEC).value();
    pair.step();
    let (kill, allow) = (libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW);
    set_filter(by_prctl, &[libc::SYS_getpid, libc::SYS_fcntl], kill, allow);
    let program = c"/bin/true".as_ptr();
    let arguments = [program, std::ptr::null()];
    // SAFETY: a live text, and a list that ends with null.
    unsafe { libc::execv(program, arguments.as_ptr()) };
    panic!("exec failed: {}", std::io::Error::last_os_error());
}

/// A child's filter does not affect other processes.
fn confined_child(pair: &Pair) {
    if !pair.server() {
        let child = sys::fork();
        if child == 0 {
            confine(by_prctl);
            exchange(pair, pair.fd);
            sys::exit_now(0);
        }
        pair.say("child", sys::wait_for(child));
    } else {
        exchange(pair, pair.fd);
    }
    exchange(pair, pair.fd);
    pair.say("close", sys::close(pair.fd));
    pair.step();
}

/// Executes a program under a filter. The filter kills for calls that no program of this suite
/// makes, but that the library would make for its first connection.
fn begins_confined(role: &Role) {
    let calls = [
        libc::SYS_memfd_create,
        libc::SYS_sendmsg,
        libc::SYS_socketpair,
    ];
    let (kill, allow) = (libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW);
    let child = sys::fork();
    if child == 0 {
        set_filter(by_prctl, &calls, kill, allow);
        crate::exec::execute(&["alone"]);
    }
    role.say("child", sys::wait_for(child));
    role.step();
}

/// One process holds both ends of a connection.
pub(crate) fn alone() {
    let listener = sys::socket(libc::AF_INET, 0);
    // No engine serves a loopback address here, so the library leaves this connection to the
    // kernel.
    sys::bind(listener, sys::loopback(libc::AF_INET, 0)).value();
    sys::listen(listener, 1).value();
    let port = sys::name(listener, false).expect("bound").2;
    let one = sys::socket(libc::AF_INET, 0);
    let (address, len) = sys::spelled(sys::loopback(libc::AF_INET, port));
    // SAFETY: the address is live for its length.
    let connected = unsafe { libc::connect(one, (&raw const address).cast(), len) };
    assert_eq!(connected, 0);
    let other = sys::accept(listener).fd();
    let mut bytes = [0; 4];
    for _ in 0..300 {
        send_all(one, b"ping");
        receive_all(other, &mut bytes);
        send_all(other, b"pong");
        receive_all(one, &mut bytes);
    }
    println!("alone -> {}", shown(&bytes));
}
