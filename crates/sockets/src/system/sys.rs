//! System calls that the library makes for itself. There is no libc function in between: so none of
//! the library's hooks is called, there is no cancellation point, and `errno` does not change. Each
//! returns the kernel's result, which is a negated errno when it is below zero.

use core::sync::atomic::AtomicU32;

use toehold_freestanding::call;
pub(crate) use toehold_freestanding::syscall::{answer, raw};
use toehold_freestanding::{memory, vdso};

use crate::system::real;

/// `recv(2)`.
///
/// # Safety
/// `buffer` is writable for `len` bytes.
pub(crate) unsafe fn recv(fd: i32, buffer: *mut u8, len: usize, flags: i32) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_recvfrom, fd, buffer, len, flags, 0, 0) }
}

/// `recvmsg(2)` without waiting, into the given buffers.
///
/// # Safety
/// `message` and all it points to are valid as for `recvmsg`.
pub(crate) unsafe fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_recvmsg, fd, message, flags) }
}

/// `sendmsg(2)`.
///
/// # Safety
/// `message` and all it points to are valid as for `sendmsg`.
pub(crate) unsafe fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_sendmsg, fd, message, flags) }
}

/// Sends `bytes` without waiting and without a signal.
pub(crate) fn send_now(fd: i32, bytes: &[u8]) -> isize {
    // SAFETY: `bytes` is readable for its length.
    unsafe { send_shared_now(fd, bytes.as_ptr(), bytes.len()) }
}

/// As [`send_now`], of memory that others may write.
///
/// # Safety
/// `len` bytes at `from` are readable.
pub(crate) unsafe fn send_shared_now(fd: i32, from: *const u8, len: usize) -> isize {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_sendto, fd, from, len, flags, 0, 0) }
}

/// As [`send_now`]; of TCP, the kernel may keep the bytes for a while, to send more with them.
pub(crate) fn send_late(fd: i32, bytes: &[u8]) -> isize {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
    // SAFETY: `bytes` is readable for its length.
    unsafe { call!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0) }
}

/// `close(2)`.
pub(crate) fn close(fd: i32) {
    // SAFETY: closing a descriptor touches no memory.
    unsafe { call!(SYS_close, fd) };
}

/// Bytes waiting in a socket's receive queue (`SIOCINQ`), or an error.
pub(crate) fn bytes_waiting(fd: i32) -> isize {
    let mut waiting: libc::c_int = 0;
    // SAFETY: `waiting` is writable for an int.
    let result = unsafe {
        call!(
            SYS_ioctl,
            fd,
            libc::FIONREAD,
            &mut waiting as *mut libc::c_int
        )
    };
    if result < 0 { result } else { waiting as isize }
}

/// True when the next byte to be read follows an urgent byte (`SIOCATMARK`).
pub(crate) fn is_at_mark(fd: i32) -> bool {
    /// include/uapi/asm-generic/sockios.h.
    const SIOCATMARK: usize = 0x8905;
    let mut at_mark: libc::c_int = 0;
    // SAFETY: `at_mark` is writable for an int.
    let result = unsafe { call!(SYS_ioctl, fd, SIOCATMARK, &mut at_mark as *mut libc::c_int) };
    result == 0 && at_mark != 0
}

/// Bytes in a socket's send queue that the other end has not acknowledged (`SIOCOUTQ`), or an
/// error.
pub(crate) fn bytes_unacknowledged(fd: i32) -> isize {
    let mut waiting: libc::c_int = 0;
    // SAFETY: `waiting` is writable for an int.
    let result = unsafe {
        call!(
            SYS_ioctl,
            fd,
            libc::TIOCOUTQ,
            &mut waiting as *mut libc::c_int
        )
    };
    if result < 0 { result } else { waiting as isize }
}

/// Bytes in a TCP socket's send queue that the kernel has not sent yet (`SIOCOUTQNSD`), or an
/// error.
pub(crate) fn bytes_unsent(fd: i32) -> isize {
    /// include/uapi/linux/sockios.h.
    const SIOCOUTQNSD: usize = 0x894b;
    let mut unsent: libc::c_int = 0;
    // SAFETY: `unsent` is writable for an int.
    let result = unsafe { call!(SYS_ioctl, fd, SIOCOUTQNSD, &mut unsent as *mut libc::c_int) };
    if result < 0 { result } else { unsent as isize }
}

/// `poll(2)` of one descriptor without waiting: its events, 0 when none or on an error.
pub(crate) fn poll_now(fd: i32, events: i16) -> i16 {
    poll_for(fd, events, 0)
}

/// `poll(2)` of one descriptor for at most `limit_ns`: its events, 0 when none or on an error.
pub(crate) fn poll_for(fd: i32, events: i16, limit_ns: u64) -> i16 {
    poll_one(fd, events, limit_ns).unwrap_or(0)
}

/// Waits until one of `events` holds on a descriptor, or something is wrong with it; false when
/// `limit_ns` pass without. Signals do not end it.
pub(crate) fn wait_for(fd: i32, events: i16, limit_ns: u64) -> bool {
    let start = now_ns();
    loop {
        let left = limit_ns.saturating_sub(now_ns() - start);
        let seen = poll_one(fd, events, left);
        if seen != Err(libc::EINTR) || left == 0 {
            return seen.is_ok_and(|seen| seen != 0);
        }
    }
}

/// `ppoll(2)` of one descriptor: its events, 0 when `limit_ns` pass without.
fn poll_one(fd: i32, events: i16, limit_ns: u64) -> Result<i16, i32> {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let limit = timespec(limit_ns);
    // SAFETY: one `pollfd` and one `timespec`, both valid; no signal mask.
    let result = unsafe {
        call!(
            SYS_ppoll,
            &mut one as *mut libc::pollfd,
            1,
            &limit as *const libc::timespec,
            0,
            8
        )
    };
    match result {
        0.. => Ok(one.revents),
        error => Err(-error as i32),
    }
}

/// A length of time as the kernel spells it.
pub(crate) fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// True when a filter is attached to the socket. For a classic BPF filter the kernel returns the
/// length (`sk_get_filter` in net/core/filter.c); for an eBPF filter it returns an error.
pub(crate) fn has_filter(fd: i32) -> bool {
    let mut len: libc::socklen_t = 0;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_GET_FILTER);
    // SAFETY: with a length of 0 the kernel writes nothing but `len`.
    let result = unsafe {
        let (nowhere, len) = (
            core::ptr::null_mut::<u8>(),
            &mut len as *mut libc::socklen_t,
        );
        call!(SYS_getsockopt, fd, level, name, nowhere, len)
    };
    match answer(result) {
        Ok(_) => len != 0,
        Err(error) => error == libc::EACCES,
    }
}

/// `getsockopt(2)` into a plain value.
pub(crate) fn getsockopt<T: Copy + Default>(fd: i32, level: i32, name: i32) -> Result<T, i32> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` and `len` are writable; the kernel writes at most `len` bytes.
    let result = unsafe {
        call!(
            SYS_getsockopt,
            fd,
            level,
            name,
            &mut value as *mut T,
            &mut len as *mut libc::socklen_t
        )
    };
    answer(result).map(|_| value)
}

/// `setsockopt(2)` of an int.
pub(crate) fn setsockopt_int(fd: i32, level: i32, name: i32, value: i32) -> isize {
    // SAFETY: `value` is readable for an int.
    unsafe { call!(SYS_setsockopt, fd, level, name, &value as *const i32, 4) }
}

/// Sets a time-out of a socket, in seconds and microseconds.
pub(crate) fn setsockopt_time(fd: i32, name: i32, time: [i64; 2]) -> isize {
    let (level, len) = (libc::SOL_SOCKET, size_of::<[i64; 2]>());
    // SAFETY: two readable words, which are a `timeval`.
    unsafe { call!(SYS_setsockopt, fd, level, name, time.as_ptr(), len) }
}

/// Sets `SO_LINGER`: whether, and for how many seconds.
pub(crate) fn set_linger(fd: i32, linger: [i32; 2]) -> isize {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: two readable ints, which are a `linger`.
    unsafe {
        call!(
            SYS_setsockopt,
            fd,
            level,
            name,
            linger.as_ptr(),
            size_of::<[i32; 2]>()
        )
    }
}

/// Resets a connection and drops its received bytes (connect(2), `AF_UNSPEC`): the next call
/// returns `ECONNRESET`, and later calls `ENOTCONN` (tcp_disconnect). A Unix socket cannot be
/// reset: both its directions end.
pub(crate) fn disconnect(fd: i32) {
    // SAFETY: zeroes are a valid `sockaddr`, of the family `AF_UNSPEC`.
    let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
    let len = size_of::<libc::sockaddr>();
    // SAFETY: `nobody` is readable for its length.
    let result = unsafe { call!(SYS_connect, fd, &raw const nobody, len) };
    if result < 0 {
        shutdown(fd, libc::SHUT_RDWR);
    }
}

/// As [`disconnect`], but no later call reports the reset: the socket returns to its unconnected
/// state.
pub(crate) fn disconnect_unreported(fd: i32) {
    disconnect(fd);
    let _ = getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
}

/// `bind(2)` to the first `len` bytes of a name.
pub(crate) fn bind(fd: i32, name: &libc::sockaddr_storage, len: libc::socklen_t) -> isize {
    // SAFETY: a whole `sockaddr_storage` is readable, and the kernel refuses to read more.
    unsafe { call!(SYS_bind, fd, name as *const libc::sockaddr_storage, len) }
}

/// `shutdown(2)`.
pub(crate) fn shutdown(fd: i32, how: i32) -> isize {
    // SAFETY: no memory is involved.
    unsafe { call!(SYS_shutdown, fd, how) }
}

/// `getsockname(2)` or `getpeername(2)`.
pub(crate) fn socket_address(fd: i32, peer: bool) -> Result<libc::sockaddr_storage, i32> {
    // SAFETY: zeroes are a valid `sockaddr_storage`.
    let mut address: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let number = if peer {
        libc::SYS_getpeername
    } else {
        libc::SYS_getsockname
    };
    let (a, l) = (&raw mut address, &raw mut len);
    // SAFETY: both are writable; the kernel writes at most `len` bytes.
    let result = unsafe { raw(number, fd as usize, a as usize, l as usize, 0, 0, 0) };
    answer(result).map(|_| address)
}

/// `fcntl(2)`.
pub(crate) fn fcntl(fd: i32, command: i32, argument: usize) -> isize {
    // SAFETY: used with commands that take integers only.
    unsafe { call!(SYS_fcntl, fd, command, argument) }
}

/// `socket(2)`.
pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> Option<i32> {
    // SAFETY: plain system call.
    let fd = unsafe { call!(SYS_socket, domain, kind, protocol) };
    (fd >= 0).then_some(fd as i32)
}

/// `connect(2)`.
///
/// # Safety
/// `address` is readable for `len` bytes.
pub(crate) unsafe fn connect(fd: i32, address: *const libc::sockaddr, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_connect, fd, address, len) }
}

/// `dup3(2)`.
pub(crate) fn dup3(from: i32, to: i32, flags: i32) -> isize {
    // SAFETY: plain system call.
    unsafe { call!(SYS_dup3, from, to, flags) }
}

/// Moves a file's position, and returns the new position.
pub(crate) fn seek_from_here(fd: i32, bytes: isize) -> isize {
    // SAFETY: moves a file position, no memory.
    unsafe { call!(SYS_lseek, fd, bytes, libc::SEEK_CUR) }
}

/// `splice(2)` from or to a pipe; does not wait for the pipe.
pub(crate) fn splice(from: i32, to: i32, len: usize, flags: u32) -> isize {
    let flags = flags | libc::SPLICE_F_NONBLOCK;
    // SAFETY: no offsets, so no memory.
    unsafe { call!(SYS_splice, from, 0, to, 0, len, flags) }
}

/// Reads from a pipe without waiting: `EAGAIN` when it is empty.
///
/// # Safety
/// `parts` are writable.
pub(crate) unsafe fn read_now(pipe: i32, parts: &[libc::iovec]) -> isize {
    // The position in two halves: -1 means the current position.
    let here = usize::MAX;
    let (base, count, flags) = (parts.as_ptr() as usize, parts.len(), libc::RWF_NOWAIT);
    // SAFETY: the caller's promise.
    let read = unsafe {
        raw(
            libc::SYS_preadv2,
            pipe as usize,
            base,
            count,
            here,
            0,
            flags as usize,
        )
    };
    if read != -(libc::EOPNOTSUPP as isize) {
        return read;
    }
    // Pipes know the flag since Linux 6.4.
    if bytes_waiting(pipe) == 0 {
        return -(libc::EAGAIN as isize);
    }
    // SAFETY: as above.
    unsafe { raw(libc::SYS_readv, pipe as usize, base, count, 0, 0, 0) }
}

/// `epoll_ctl(2)`.
pub(crate) fn epoll_ctl(epoll: i32, operation: i32, fd: i32, events: u32, data: u64) -> isize {
    let event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` is readable.
    unsafe {
        call!(
            SYS_epoll_ctl,
            epoll,
            operation,
            fd,
            &event as *const libc::epoll_event
        )
    }
}

/// Makes an epoll instance.
pub(crate) fn epoll_create() -> Option<i32> {
    // SAFETY: plain system call.
    let made = unsafe { call!(SYS_epoll_create1, libc::EPOLL_CLOEXEC) };
    i32::try_from(made).ok().filter(|&fd| fd >= 0)
}

/// Adds one to an `eventfd` (eventfd(2)): 8, or the negative error.
pub(crate) fn ring(eventfd: i32) -> isize {
    let one = 1u64;
    // SAFETY: `one` is readable for its eight bytes.
    unsafe { call!(SYS_write, eventfd, &raw const one, size_of::<u64>()) }
}

/// `epoll_wait(2)` that does not wait: how many events were written.
pub(crate) fn epoll_look(epoll: i32, events: &mut [libc::epoll_event]) -> usize {
    // SAFETY: `events` is writable for its length; no time-out and no mask.
    let count = unsafe {
        call!(
            SYS_epoll_pwait,
            epoll,
            events.as_mut_ptr(),
            events.len(),
            0,
            core::ptr::null::<u8>(),
            0
        )
    };
    usize::try_from(count).unwrap_or(0)
}

/// A socket that asks the kernel about sockets of this thread's network namespace (sock_diag(7)).
pub(crate) fn open_diag() -> Option<i32> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: only numbers.
    let fd = unsafe { call!(SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
    i32::try_from(fd).ok().filter(|&fd| fd >= 0)
}

/// Sends the kernel one request about sockets of this thread's network namespace, and returns the
/// length of the answer. It never waits, because the answer is there before the sending call
/// returns (netlink_rcv_skb).
pub(crate) fn ask_diag(question: &[u8], answer: &mut [u8]) -> Option<usize> {
    let diag = open_diag()?;
    // SAFETY: readable for its length; without an address it goes to the kernel.
    unsafe {
        call!(
            SYS_sendto,
            diag,
            question.as_ptr(),
            question.len(),
            libc::MSG_DONTWAIT,
            0,
            0
        )
    };
    // SAFETY: zeroes are a valid `sockaddr_nl`.
    let mut sender: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
    let mut sender_len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: all three are writable for their lengths.
    let len = unsafe {
        call!(
            SYS_recvfrom,
            diag,
            answer.as_mut_ptr(),
            answer.len(),
            libc::MSG_DONTWAIT,
            &raw mut sender,
            &raw mut sender_len
        )
    };
    close(diag);
    let is_kernel = sender.nl_pid == 0;
    usize::try_from(len).ok().filter(|_| is_kernel)
}

/// True when calls on `fd` do not block.
pub(crate) fn is_nonblocking(fd: i32) -> bool {
    fcntl(fd, libc::F_GETFL, 0) as i32 & libc::O_NONBLOCK != 0
}

/// True when the kernel sends a signal for news on `fd`.
pub(crate) fn is_signalling(fd: i32) -> bool {
    fcntl(fd, libc::F_GETFL, 0) as i32 & libc::O_ASYNC != 0
}

/// `getpid(2)`, never cached: a `vfork` child shares our memory but not our number.
pub(crate) fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call!(SYS_getpid) as u32 }
}

/// The effective user of this thread (geteuid(2)).
pub(crate) fn effective_user() -> u32 {
    // SAFETY: no arguments.
    unsafe { call!(SYS_geteuid) as u32 }
}

/// True when process `pid` is alive. A child of this process that has ended but was not reaped is
/// not alive.
pub(crate) fn process_exists(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { call!(SYS_kill, pid, 0) };
    result != -(libc::ESRCH as isize) && !is_zombie_child(pid)
}

/// True when `pid` is a child of this process that has ended; looks without reaping.
fn is_zombie_child(pid: u32) -> bool {
    // SAFETY: zeroes are a valid `siginfo_t`.
    let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is writable; nothing is reaped.
    let result = unsafe {
        call!(
            SYS_waitid,
            libc::P_PID,
            pid,
            &mut info as *mut libc::siginfo_t,
            options,
            0
        )
    };
    // SAFETY: `si_pid` is what waitid fills in, 0 when nothing has ended.
    result == 0 && unsafe { info.si_pid() } as u32 == pid
}

/// This process's parent; 0 when that is outside of its pid namespace (getppid(2)).
pub(crate) fn parent() -> u32 {
    // SAFETY: no arguments.
    unsafe { call!(SYS_getppid) as u32 }
}

/// `sched_yield(2)`.
pub(crate) fn yield_now() {
    // SAFETY: no arguments.
    unsafe { call!(SYS_sched_yield) };
}

/// Random bytes; zero when the kernel gives none.
pub(crate) fn random_u32() -> u32 {
    let mut value = 0u32;
    // SAFETY: `value` is writable for four bytes.
    unsafe {
        call!(
            SYS_getrandom,
            &mut value as *mut u32,
            4,
            libc::GRND_NONBLOCK
        )
    };
    value
}

/// Nanoseconds on the monotonic clock.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let time = vdso::monotonic();
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The processor this thread runs on.
#[inline]
pub(crate) fn processor() -> u32 {
    // glibc reads it from the thread's restartable-sequences area, which costs one load.
    real::processor().unwrap_or_else(vdso::processor)
}

/// The families whose stream sockets carry connections.
const CARRIED: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];

/// True for a stream socket of the internet or a Unix stream socket that does not listen: the kind
/// that can become a connection.
pub(crate) fn may_connect(fd: i32) -> bool {
    let option = |name| getsockopt::<i32>(fd, libc::SOL_SOCKET, name);
    option(libc::SO_TYPE) == Ok(libc::SOCK_STREAM)
        && option(libc::SO_DOMAIN).is_ok_and(|family| CARRIED.contains(&family))
        && option(libc::SO_ACCEPTCONN) == Ok(0)
}

/// True when the kernel can read the byte at `address`. `rt_sigprocmask` reads the mask before it
/// refuses what is to be done with it (kernel/signal.c).
pub(crate) fn kernel_can_read(address: *const u8) -> bool {
    const NOTHING: i32 = -1;
    let mask = address as usize & !7;
    // SAFETY: the kernel looks at the address and changes nothing.
    unsafe { call!(SYS_rt_sigprocmask, NOTHING, mask, 0, 8) != -(libc::EFAULT as isize) }
}

/// The four bytes at an address, compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    Equal,
    Different,
    /// There is no memory, or this thread must not read it (pkeys(7)).
    NoMemory,
    /// The kernel does not compare.
    Unknown,
}

/// Compares the four bytes at `address`, which is aligned to them, with `value`. The kernel
/// compares them (futex(2)), so no thread faults.
pub(crate) fn compare(address: usize, value: u32) -> Compared {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let at_once = timespec(0);
    // SAFETY: the kernel looks at the address and changes nothing; the time is alive.
    let result = unsafe { call!(SYS_futex, address, operation, value, &raw const at_once) };
    match -result as i32 {
        0 | libc::ETIMEDOUT | libc::EINTR => Compared::Equal,
        libc::EAGAIN => Compared::Different,
        libc::EFAULT => Compared::NoMemory,
        _ => Compared::Unknown,
    }
}

/// False when the four bytes at `address` are surely not `value`: they are others, or there is no
/// memory.
pub(crate) fn may_hold(address: usize, value: u32) -> bool {
    !matches!(
        compare(address, value),
        Compared::Different | Compared::NoMemory
    )
}

/// True when the four bytes at `address` are surely `value`.
pub(crate) fn holds(address: usize, value: u32) -> bool {
    compare(address, value) == Compared::Equal
}

/// `rt_sigprocmask(2)`: sets this thread's mask.
pub(crate) fn set_signal_mask(mask: u64) {
    // SAFETY: `mask` is readable for the eight bytes that the kernel's masks have.
    unsafe { call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// `rt_sigprocmask(2)`: blocks `mask` as well, and returns the former mask.
pub(crate) fn block_signals(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask, &raw mut before);
    // SAFETY: both are eight bytes.
    unsafe { call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, new, old, 8) };
    before
}

/// Calls `each` with every byte of a file. False when it cannot be read.
pub(crate) fn each_byte(path: &core::ffi::CStr, mut each: impl FnMut(u8)) -> bool {
    let Some(file) = open_to_read(path) else {
        return false;
    };
    let mut buffer = [0u8; 2048];
    let mut last;
    loop {
        last = read(file, &mut buffer);
        let Some(read) = usize::try_from(last).ok().filter(|&read| read > 0) else {
            break;
        };
        buffer[..read].iter().copied().for_each(&mut each);
    }
    close(file);
    last == 0
}

/// The kernel's number of this thread: the process's for its first.
pub(crate) fn gettid() -> u32 {
    // SAFETY: it only returns a number.
    unsafe { call!(SYS_gettid) as u32 }
}

/// False when process `pid` has no thread of this number.
pub(crate) fn thread_exists(pid: u32, thread: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { call!(SYS_tgkill, pid, thread, 0) };
    result != -(libc::ESRCH as isize)
}

/// The address of the word that the kernel clears when this thread ends (set_tid_address(2)).
pub(crate) fn cleared_at_end() -> Option<usize> {
    const PR_GET_TID_ADDRESS: i32 = 40;
    let mut word = 0usize;
    // SAFETY: `word` is writable.
    let result = unsafe { call!(SYS_prctl, PR_GET_TID_ADDRESS, &raw mut word) };
    (result == 0 && word != 0 && word.is_multiple_of(4)).then_some(word)
}

/// The name of this thread, NUL-terminated where it is shorter.
pub(crate) fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes with a NUL.
    unsafe { call!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Sends a signal with its original information to this thread; false when the kernel refuses.
pub(crate) fn queue_signal_here(signal: i32, info: *const libc::siginfo_t) -> bool {
    // SAFETY: `info` is what the kernel gave to a handler. A process may send itself any (`si_code`
    // of the kernel's included, rt_tgsigqueueinfo(2)).
    unsafe {
        let (process, thread) = (call!(SYS_getpid), gettid());
        call!(SYS_rt_tgsigqueueinfo, process, thread, signal, info) == 0
    }
}

/// `clock_nanosleep(2)` for `ns`; a signal may end it early.
pub(crate) fn sleep(ns: u64) {
    let time = timespec(ns);
    let clock = libc::CLOCK_MONOTONIC;
    // SAFETY: `time` is readable; the rest is not asked for.
    unsafe { call!(SYS_clock_nanosleep, clock, 0, &raw const time, 0) };
}

/// Sleeps while `word` has that value, until it is woken (futex(2)); a signal may end it early.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is a live, aligned word of this process; no time-out.
    unsafe { call!(SYS_futex, core::ptr::from_ref(word), operation, value, 0) };
}

/// Wakes one of those that sleep on `word`.
pub(crate) fn wake_one(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel takes the address as a name only.
    unsafe { call!(SYS_futex, core::ptr::from_ref(word), operation, 1) };
}

/// `len` zero bytes, pages on demand; null when there are none.
pub(crate) fn map_memory(len: usize) -> *mut u8 {
    memory::anonymous(len, false)
}

/// As [`map_memory`]; children share it.
pub(crate) fn map_shared_memory(len: usize) -> *mut u8 {
    memory::anonymous(len, true)
}

/// A limit of this process (getrlimit(2)).
pub(crate) fn limit(kind: u32) -> Option<usize> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable; nothing is set.
    let result = unsafe { call!(SYS_prlimit64, 0, kind, 0, &raw mut limit) };
    (result == 0).then(|| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

/// `RLIMIT_MEMLOCK`, in bytes.
pub(crate) fn memory_lock_limit() -> usize {
    limit(libc::RLIMIT_MEMLOCK).unwrap_or(0)
}

/// A right of a thread (capabilities(7)).
#[derive(Clone, Copy)]
pub(crate) enum Right {
    /// To lock memory beyond the limit (`CAP_IPC_LOCK`).
    LockMemory = 14,
    /// `CAP_SYS_ADMIN`.
    Administer = 21,
}

/// True when this thread has `right` in its user namespace.
pub(crate) fn has_right(right: Right) -> bool {
    /// include/uapi/linux/capability.h.
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    // Effective, permitted, inheritable; the lower 32 capabilities, then the others.
    let mut sets = [0u32; 6];
    // SAFETY: a header of this version, about ourselves, and room for what belongs to it.
    let result = unsafe { call!(SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    result == 0 && sets[0] & 1 << right as u32 != 0
}

/// `mlock2(2)`.
pub(crate) fn lock_memory(address: usize, len: usize, mode: usize) {
    // SAFETY: changes no contents; what is not there fails.
    unsafe { call!(SYS_mlock2, address, len, mode) };
}

/// Opens a file for reading.
pub(crate) fn open_to_read(path: &core::ffi::CStr) -> Option<i32> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path.
    let file = unsafe { call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    i32::try_from(file).ok().filter(|&file| file >= 0)
}

/// `read(2)`.
pub(crate) fn read(fd: i32, buffer: &mut [u8]) -> isize {
    // SAFETY: `buffer` is writable for its length.
    unsafe { call!(SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) }
}

/// The number of a socket's network namespace; `None` when the kernel does not report it (before
/// Linux 5.14).
pub(crate) fn namespace_of(fd: i32) -> Option<u64> {
    getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).ok()
}
