//! Calls that libc and the kernel offer under other names, and calls that libc makes internally on
//! behalf of a program.

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::Case;
use crate::role::{Pair, drain, receive_all, send_all, shown};
use crate::sys::{self, Fd, Ret};

pub(crate) const CASES: &[Case] = &[
    Case::pair("preadv2_and_pwritev2_without_an_offset_move_bytes", vectors),
    Case::pair("pwritev2_takes_flags_of_files", flags_of_files),
    Case::pair("vectors_by_number_move_bytes", vectors_by_number),
    Case::pair("names_of_libcs_own_do_as_the_others", second_names),
    Case::pair("asynchronous_reads_and_writes_move_bytes", asynchronous),
    Case::pair("asynchronous_read_of_what_has_arrived", asynchronous_ready),
    Case::pair("lists_of_asynchronous_requests_move_bytes", listed),
    Case::pair(
        "descriptor_passed_by_sendmmsg_keeps_the_stream",
        passed_by_sendmmsg,
    ),
    Case::pair(
        "child_of_fork_without_handlers_shares_the_stream",
        bare_fork,
    ),
    Case::pair("child_of_clone_shares_the_stream", cloned),
];

unsafe extern "C" {
    fn __poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn __select(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int;
    fn __dup2(from: c_int, to: c_int) -> c_int;
    fn _Fork() -> libc::pid_t;
    pub(crate) fn aio_read(request: *mut libc::aiocb) -> c_int;
    fn aio_write(request: *mut libc::aiocb) -> c_int;
    fn aio_error(request: *const libc::aiocb) -> c_int;
    fn aio_return(request: *mut libc::aiocb) -> isize;
    fn aio_suspend(
        list: *const *const libc::aiocb,
        count: c_int,
        timeout: *const libc::timespec,
    ) -> c_int;
    fn lio_listio(
        mode: c_int,
        list: *const *mut libc::aiocb,
        count: c_int,
        event: *mut c_void,
    ) -> c_int;
}

fn part(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

pub(crate) fn preadv2(fd: Fd, bytes: &mut [u8], offset: i64, flags: c_int) -> Ret {
    let part = part(bytes);
    // SAFETY: one live part.
    sys::ret(unsafe { libc::preadv2(fd, &part, 1, offset, flags) } as i64)
}

fn pwritev2(fd: Fd, bytes: &[u8], offset: i64, flags: c_int) -> Ret {
    let mut bytes = bytes.to_vec();
    let part = part(&mut bytes);
    // SAFETY: one live part, only read.
    sys::ret(unsafe { libc::pwritev2(fd, &part, 1, offset, flags) } as i64)
}

fn vectors(pair: &Pair) {
    if pair.server() {
        pair.say("at the end", pwritev2(pair.fd, b"twelve bytes", -1, 0));
        pair.say("at 0", pwritev2(pair.fd, b"no place", 0, 0));
        pair.step();
        pair.step();
        send_all(pair.fd, b", and more");
        pair.step();
    } else {
        pair.step();
        let mut bytes = [0; 64];
        let got = preadv2(pair.fd, &mut bytes, -1, 0);
        pair.say("at the end", format!("{got} {}", shown(&bytes[..12])));
        pair.say("at 0", preadv2(pair.fd, &mut bytes, 0, 0));
        pair.say("without waiting", preadv2(pair.fd, &mut bytes, -1, 8));
        pair.say(
            "unknown flag",
            preadv2(pair.fd, &mut bytes, -1, 1 << 30).0.is_err(),
        );
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 10);
        let got = preadv2(pair.fd, &mut bytes, -1, 8);
        pair.say("then", format!("{got} {}", shown(&bytes[..10])));
    }
}

/// The flags that this kernel knows. The kernel refuses other flags, for a pipe as well.
fn flags_of_files(pair: &Pair) {
    const APPEND: c_int = 0x10;
    const NOAPPEND: c_int = 0x20;
    const NOSIGNAL: c_int = 0x100;
    if !pair.server() {
        pair.step();
        pair.say("received", drain(pair.fd));
        return;
    }
    let (_reading, writing) = std::io::pipe().expect("a pipe");
    let knows = |flag| !pwritev2(writing.as_raw_fd(), b"x", -1, flag).is(libc::EOPNOTSUPP);
    for flags in [NOAPPEND, NOSIGNAL, NOSIGNAL | APPEND, NOAPPEND | APPEND] {
        if knows(flags) {
            pair.say(
                &format!("{flags:x}"),
                pwritev2(pair.fd, b"bytes", -1, flags),
            );
        }
    }
    pair.step();
    sys::shutdown(pair.fd, libc::SHUT_WR).value();
    if knows(NOSIGNAL) {
        let late = pwritev2(pair.fd, b"late", -1, NOSIGNAL);
        pair.say("after shutdown", late);
    }
}

fn vectors_by_number(pair: &Pair) {
    let call = |number, bytes: &mut [u8]| {
        let part = part(bytes);
        // SAFETY: one live part; the offset is -1 in both halves.
        sys::ret(unsafe { libc::syscall(number, pair.fd, &raw const part, 1, -1_i64, -1_i64, 0) })
    };
    if pair.server() {
        pair.say(
            "pwritev2",
            call(libc::SYS_pwritev2, &mut b"by number".to_vec()),
        );
        pair.step();
    } else {
        pair.step();
        let mut bytes = [0; 9];
        let got = call(libc::SYS_preadv2, &mut bytes);
        pair.say("preadv2", format!("{got} {}", shown(&bytes)));
    }
}

fn second_names(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"something");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 9);
    let mut one = libc::pollfd {
        fd: pair.fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live pollfd.
    let result = sys::ret(unsafe { __poll(&mut one, 1, 5000) });
    pair.say("__poll", format!("{result} {}", one.revents));
    // SAFETY: zeroes are a valid set; both are live.
    let (result, is_set) = unsafe {
        let mut set: libc::fd_set = mem::zeroed();
        libc::FD_SET(pair.fd, &mut set);
        let mut time = libc::timeval {
            tv_sec: 5,
            tv_usec: 0,
        };
        let null = ptr::null_mut();
        let result = __select(pair.fd + 1, &mut set, null, null, &mut time);
        (sys::ret(result), libc::FD_ISSET(pair.fd, &set))
    };
    pair.say("__select", format!("{result} {is_set}"));
    // SAFETY: no memory is involved.
    let copy = unsafe { __dup2(pair.fd, 300) };
    pair.say("__dup2", copy);
    // SAFETY: as above.
    let other = sys::ret(unsafe { __fcntl(pair.fd, libc::F_DUPFD, 310) });
    pair.say("__fcntl", other);
    // SAFETY: as above.
    let flags = unsafe { __fcntl(pair.fd, libc::F_SETFL, libc::O_NONBLOCK) };
    pair.say("__fcntl", flags);
    let mut bytes = [0; 4];
    receive_all(copy, &mut bytes);
    pair.say("by the copy", shown(&bytes));
    let mut bytes = [0; 5];
    receive_all(other.fd(), &mut bytes);
    pair.say("by the other copy", shown(&bytes));
    pair.say("nothing more", sys::recv(pair.fd, &mut [0; 8], 0));
    pair.step();
}

/// An asynchronous request that moves these bytes on a socket.
pub(crate) fn request(fd: Fd, bytes: &mut [u8], opcode: c_int) -> libc::aiocb {
    // SAFETY: zeroes are a valid request.
    let mut request: libc::aiocb = unsafe { mem::zeroed() };
    request.aio_fildes = fd;
    request.aio_lio_opcode = opcode;
    request.aio_buf = bytes.as_mut_ptr().cast();
    request.aio_nbytes = bytes.len();
    request.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    request
}

/// Waits until a request is complete, and describes its result.
pub(crate) fn completion(request: &mut libc::aiocb) -> String {
    // SAFETY: the request is live until it is complete.
    unsafe {
        let list = [ptr::from_ref(request)];
        while aio_error(request) == libc::EINPROGRESS {
            aio_suspend(list.as_ptr(), 1, ptr::null());
        }
        let error = aio_error(request);
        format!("{} {}", aio_return(request), sys::errno_name(error))
    }
}

fn asynchronous(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"later on");
        let mut bytes = [0; 8];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        send_all(pair.fd, b"and on");
        pair.step();
    } else {
        let mut bytes = [0; 64];
        let mut read = request(pair.fd, &mut bytes, libc::LIO_READ);
        // SAFETY: request and buffer live until the request is complete.
        pair.say("aio_read", sys::ret(unsafe { aio_read(&mut read) }));
        pair.step();
        pair.say("is complete", completion(&mut read));
        pair.say("received", shown(&bytes[..8]));
        let mut sent = *b"answered";
        let mut write = request(pair.fd, &mut sent, libc::LIO_WRITE);
        // SAFETY: as above.
        pair.say("aio_write", sys::ret(unsafe { aio_write(&mut write) }));
        pair.say("is complete", completion(&mut write));
        let mut bytes = [0; 6];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        pair.step();
    }
}

/// The value that the notification of a completed request carried.
static NOTIFIED: AtomicI32 = AtomicI32::new(0);

extern "C" fn is_told(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a valid siginfo; the value of a queued signal is a pointer's size.
    let value = unsafe { (*info).si_value().sival_ptr } as usize;
    NOTIFIED.store(value as i32, Ordering::Relaxed);
}

fn asynchronous_ready(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"here already, with more behind");
        pair.step();
        pair.step();
        send_all(pair.fd, b"!");
        pair.step();
        return;
    }
    // SAFETY: zeroes are a valid action; the handler stores a number.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = is_told as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut());
    }
    pair.step();
    pair.arrived(pair.fd, 30);
    let mut bytes = [0; 12];
    let mut read = request(pair.fd, &mut bytes, libc::LIO_READ);
    read.aio_sigevent.sigev_notify = libc::SIGEV_SIGNAL;
    read.aio_sigevent.sigev_signo = libc::SIGUSR1;
    read.aio_sigevent.sigev_value.sival_ptr = ptr::without_provenance_mut(77);
    // SAFETY: request and buffer live until the request is complete.
    pair.say("aio_read", sys::ret(unsafe { aio_read(&mut read) }));
    pair.say("is complete", completion(&mut read));
    pair.say("received", shown(&bytes));
    while NOTIFIED.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    pair.say("told", NOTIFIED.load(Ordering::Relaxed));
    pair.step();
    let mut bytes = [0; 19];
    receive_all(pair.fd, &mut bytes);
    pair.say("received", shown(&bytes));
    pair.step();
}

fn listed(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"first");
        pair.step();
        let mut bytes = [0; 6];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 5);
        let (mut bytes, mut sent) = ([0; 16], *b"second");
        let mut read = request(pair.fd, &mut bytes, libc::LIO_READ);
        let mut write = request(pair.fd, &mut sent, libc::LIO_WRITE);
        let list = [&raw mut read, ptr::null_mut(), &raw mut write];
        // SAFETY: three pointers; requests and buffers live until they are complete.
        let result = unsafe { lio_listio(libc::LIO_WAIT, list.as_ptr(), 3, ptr::null_mut()) };
        pair.say("lio_listio", sys::ret(result));
        pair.say("read", completion(&mut read));
        pair.say("write", completion(&mut write));
        pair.say("received", shown(&bytes[..5]));
        pair.step();
    }
}

fn passed_by_sendmmsg(pair: &Pair) {
    if pair.server() {
        crate::descriptors::send_to_both(pair);
        pair.step();
        return;
    }
    let mut bytes = [0; 13];
    receive_all(pair.fd, &mut bytes);
    let (ours, child) = crate::descriptors::second_process(pair);
    pair.say(
        "sent",
        crate::descriptors::send_descriptor_by(ours, pair.fd, |over, header| {
            let mut message = libc::mmsghdr {
                msg_hdr: *header,
                msg_len: 0,
            };
            // SAFETY: one message, whose header is live.
            sys::ret(unsafe { libc::sendmmsg(over, &mut message, 1, 0) })
        }),
    );
    pair.step();
    pair.say("the child ended with", sys::wait_for(child));
    pair.step();
}

/// The child sends, then the parent sends. Both have used the connection before.
fn shares(pair: &Pair, fork: impl FnOnce(&Pair) -> libc::pid_t) {
    if pair.server() {
        let mut bytes = [0; 21];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        send_all(pair.fd, b"ok");
        pair.say("then", crate::role::drain(pair.fd));
        return;
    }
    let child = fork(pair);
    pair.say("the child ended with", sys::wait_for(child));
    send_all(pair.fd, b", the parent");
    receive_all(pair.fd, &mut [0; 2]);
    pair.say("close", sys::close(pair.fd));
}

fn child(pair: &Pair) -> ! {
    send_all(pair.fd, b"the child");
    sys::close(pair.fd).value();
    sys::exit_now(0)
}

fn bare_fork(pair: &Pair) {
    shares(pair, |pair| {
        // SAFETY: one thread; the child only sends and ends.
        match unsafe { _Fork() } {
            0 => child(pair),
            pid => pid,
        }
    });
}

fn cloned(pair: &Pair) {
    extern "C" fn begin(pair: *mut c_void) -> c_int {
        // SAFETY: the parent's pair, copied with its memory.
        child(unsafe { &*pair.cast::<Pair>() })
    }
    shares(pair, |pair| {
        let mut stack = vec![0_u128; 16 << 10];
        // SAFETY: the child runs on a copy of this stack, growing down from its end.
        unsafe {
            let top = stack.as_mut_ptr().add(stack.len()).cast();
            let pair = ptr::from_ref(pair).cast_mut().cast();
            libc::clone(begin, top, libc::SIGCHLD, pair)
        }
    });
}
