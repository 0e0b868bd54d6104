//! io_uring requests, made by `syscall(2)` or by liburing, on connections that other calls have
//! used before.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Case;
use crate::descriptors::{second_process, send_descriptor_by, send_to_both};
use crate::role::{Pair, drain, receive_all, send_all, shown};
use crate::sys::{self, Fd, Ret};

pub(crate) const CASES: &[Case] = &[
    Case::pair("received_by_io_uring_are_the_bytes", |pair| {
        received(pair, 0, false);
    }),
    Case::pair("received_by_io_uring_from_registered_files", |pair| {
        received(pair, 0, true);
    }),
    Case::pair("received_by_a_ring_that_the_kernel_polls", |pair| {
        received(pair, SQPOLL, false);
    }),
    Case::pair(
        "unread_bytes_come_first_by_a_ring_that_the_kernel_polls",
        behind,
    ),
    Case::pair("polled_by_io_uring_is_told", polled),
    Case::pair("epoll_instance_polled_by_io_uring_is_told", epoll_polled),
    Case::pair("registered_with_epoll_by_io_uring_is_told", registered),
    Case::pair("sent_by_io_uring_stands_in_its_place", sent),
    Case::pair("closed_by_io_uring_is_an_end", closed),
    Case::pair("passed_by_io_uring_goes_on_in_another_program", passed),
    Case::pair("received_by_liburing_are_the_bytes", |pair| {
        received_by_liburing(pair, 0);
    }),
    Case::pair("received_by_liburing_whose_ring_the_kernel_polls", |pair| {
        received_by_liburing(pair, SQPOLL);
    }),
    Case::pair("polled_by_liburing_is_told", polled_by_liburing),
];

const SQPOLL: u32 = 2;
const POLL_ADD: u8 = 6;
const SENDMSG: u8 = 9;
const CLOSE: u8 = 19;
const SEND: u8 = 26;
const RECV: u8 = 27;
const EPOLL_CTL: u8 = 29;
const FIXED_FILE: u8 = 1;
const GETEVENTS: usize = 1;
const SQ_WAKEUP: usize = 2;
const REGISTER_FILES: usize = 2;

/// An io_uring instance with eight entries (include/uapi/linux/io_uring.h).
struct Requests {
    fd: Fd,
    parameters: [u32; 30],
    queue: *mut u8,
    entries: *mut u8,
}

impl Requests {
    fn new(flags: u32) -> Requests {
        let mut parameters = [0u32; 30];
        parameters[2] = flags;
        let map = |fd: Fd, len: usize, offset| {
            let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping of our own io_uring instance.
            let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, shared, fd, offset) };
            assert_ne!(base, libc::MAP_FAILED, "a ring can be mapped");
            base.cast::<u8>()
        };
        // SAFETY: the kernel fills the parameters.
        let fd = sys::ret(unsafe {
            libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr())
        });
        let fd = fd.fd();
        let array_end = parameters[16] + 4 * parameters[0];
        let completions_end = parameters[25] + 16 * parameters[1];
        Requests {
            fd,
            queue: map(fd, array_end.max(completions_end) as usize, 0),
            entries: map(fd, 64 * parameters[0] as usize, 0x1000_0000),
            parameters,
        }
    }

    fn word(&self, parameter: usize, more: u32) -> &AtomicU32 {
        // SAFETY: inside the mapped queue, as the kernel said.
        unsafe {
            &*self
                .queue
                .add((self.parameters[parameter] + more) as usize)
                .cast()
        }
    }

    fn enter(&self, wanted: usize, complete: usize, flags: usize) -> Ret {
        let number = libc::SYS_io_uring_enter;
        // SAFETY: the call uses no memory except the instance's own.
        sys::ret(unsafe { libc::syscall(number, self.fd, wanted, complete, flags, 0, 0) })
    }

    /// Submits one request with its `flags`, descriptor, offset, address, length and poll mask.
    fn submit(&self, operation: (u8, u8), fd: Fd, offset: u64, at: u64, len: u32, mask: u32) {
        let tail = self.word(11, 0).load(Ordering::Relaxed);
        let place = tail % self.parameters[0];
        // SAFETY: one of the mapped entries, which the kernel does not read before the tail moves.
        unsafe {
            let entry = self.entries.add(64 * place as usize);
            entry.write_bytes(0, 64);
            entry.write(operation.0);
            entry.add(1).write(operation.1);
            entry.add(4).cast::<i32>().write(fd);
            entry.add(8).cast::<u64>().write(offset);
            entry.add(16).cast::<u64>().write(at);
            entry.add(24).cast::<u32>().write(len);
            entry.add(28).cast::<u32>().write(mask);
        }
        self.word(16, 4 * place).store(place, Ordering::Relaxed);
        self.word(11, 0)
            .store(tail.wrapping_add(1), Ordering::Release);
        let is_polled = self.parameters[2] & SQPOLL != 0;
        let (wanted, flags) = if is_polled { (0, SQ_WAKEUP) } else { (1, 0) };
        self.enter(wanted, 0, flags).value();
    }

    /// The result of the next request to complete.
    fn result(&self) -> i32 {
        let (head, tail) = (self.word(20, 0), self.word(21, 0));
        let at = head.load(Ordering::Relaxed);
        while tail.load(Ordering::Acquire) == at {
            assert!(
                !self.enter(0, 1, GETEVENTS).is(libc::EBADF),
                "the ring is there"
            );
        }
        let place = at & self.word(22, 0).load(Ordering::Relaxed);
        let result = self.word(25, 16 * place + 8).load(Ordering::Relaxed);
        head.store(at.wrapping_add(1), Ordering::Release);
        result.cast_signed()
    }
}

/// Both ends continue with the usual calls after the io_uring requests.
fn goes_on(pair: &Pair) {
    let mut bytes = [0; 6];
    if pair.server() {
        send_all(pair.fd, b"onward");
        receive_all(pair.fd, &mut bytes);
    } else {
        receive_all(pair.fd, &mut bytes);
        send_all(pair.fd, b"onward");
    }
    pair.say("goes on", shown(&bytes));
}

fn received(pair: &Pair, flags: u32, is_registered: bool) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"for the ring");
        pair.step();
    } else {
        let ring = Requests::new(flags);
        let mut bytes = [0u8; 12];
        let (file, place) = if is_registered {
            let (number, what) = (libc::SYS_io_uring_register, REGISTER_FILES);
            // SAFETY: one live descriptor.
            let done = unsafe { libc::syscall(number, ring.fd, what, &raw const pair.fd, 1) };
            sys::ret(done).value();
            (FIXED_FILE, 0)
        } else {
            (0, pair.fd)
        };
        ring.submit((RECV, file), place, 0, bytes.as_mut_ptr() as u64, 12, 0);
        pair.step();
        pair.say("result", ring.result());
        pair.say("bytes", shown(&bytes));
        sys::close(ring.fd).value();
        pair.step();
    }
    goes_on(pair);
}

/// Bytes are unread when the ring is made.
fn behind(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"unread, ");
        pair.step();
        send_all(pair.fd, b"and more");
        pair.step();
    } else {
        pair.arrived(pair.fd, 8);
        let ring = Requests::new(SQPOLL);
        pair.step();
        let mut bytes = [0u8; 16];
        for half in bytes.chunks_mut(8) {
            ring.submit((RECV, 0), pair.fd, 0, half.as_mut_ptr() as u64, 8, 0);
            pair.say("result", ring.result());
        }
        pair.say("bytes", shown(&bytes));
        sys::close(ring.fd).value();
        pair.step();
    }
    goes_on(pair);
}

fn polled(pair: &Pair) {
    if pair.server() {
        send_when_watched(pair);
    } else {
        let ring = Requests::new(0);
        ring.submit((POLL_ADD, 0), pair.fd, 0, 0, 0, libc::POLLIN as u32);
        pair.step();
        pair.say("result", ring.result());
        take_what_came(pair);
    }
    goes_on(pair);
}

/// The server sends after the client has asked for events.
fn send_when_watched(pair: &Pair) {
    pair.step();
    send_all(pair.fd, b"something");
    pair.step();
}

/// The client receives the server's bytes.
fn take_what_came(pair: &Pair) {
    let mut bytes = [0; 9];
    receive_all(pair.fd, &mut bytes);
    pair.say("bytes", shown(&bytes));
    pair.step();
}

fn epoll_polled(pair: &Pair) {
    if pair.server() {
        send_when_watched(pair);
    } else {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 7).value();
        let ring = Requests::new(0);
        ring.submit((POLL_ADD, 0), epoll, 0, 0, 0, libc::POLLIN as u32);
        pair.step();
        pair.say("result", ring.result());
        pair.say("then", format!("{:?}", sys::epoll_wait(epoll, 4, 5000).1));
        take_what_came(pair);
    }
    goes_on(pair);
}

fn registered(pair: &Pair) {
    if pair.server() {
        send_when_watched(pair);
    } else {
        let epoll = sys::epoll_create();
        let ring = Requests::new(0);
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 9,
        };
        let (event, add) = (&raw mut event as u64, libc::EPOLL_CTL_ADD as u32);
        ring.submit((EPOLL_CTL, 0), epoll, pair.fd as u64, event, add, 0);
        pair.say("result", ring.result());
        pair.step();
        pair.say("then", format!("{:?}", sys::epoll_wait(epoll, 4, 5000).1));
        take_what_came(pair);
    }
    goes_on(pair);
}

fn sent(pair: &Pair) {
    let mut bytes = [0; 24];
    if pair.server() {
        send_all(pair.fd, b"unread until later");
        pair.step();
        receive_all(pair.fd, &mut bytes);
        pair.say("bytes", shown(&bytes));
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 18);
        send_all(pair.fd, b"first, ");
        let ring = Requests::new(0);
        let words = b"by the ring, ";
        ring.submit((SEND, 0), pair.fd, 0, words.as_ptr() as u64, 13, 0);
        pair.say("result", ring.result());
        send_all(pair.fd, b"last");
        pair.step();
        receive_all(pair.fd, &mut bytes[..18]);
        pair.say("unread", shown(&bytes[..18]));
    }
    goes_on(pair);
}

/// A request sends the connection to a process that never had it under its own number.
fn passed(pair: &Pair) {
    if pair.server() {
        send_to_both(pair);
        pair.step();
        return;
    }
    receive_all(pair.fd, &mut [0; 13]);
    let (ours, child) = second_process(pair);
    let ring = Requests::new(0);
    let sent = send_descriptor_by(ours, pair.fd, |over, header| {
        ring.submit((SENDMSG, 0), over, 0, ptr::from_ref(header) as u64, 1, 0);
        sys::ret(ring.result())
    });
    pair.say("sent", sent);
    pair.step();
    pair.say("the child ended with", sys::wait_for(child));
    pair.step();
}

fn closed(pair: &Pair) {
    if pair.server() {
        pair.say("until the end", drain(pair.fd));
        pair.step();
    } else {
        send_all(pair.fd, b"last words");
        let ring = Requests::new(0);
        ring.submit((CLOSE, 0), pair.fd, 0, 0, 0, 0);
        pair.say("result", ring.result());
        pair.step();
        // The number now stands for another file.
        let (read, write) = sys::pipe();
        pair.say("reused", [read, write].contains(&pair.fd));
        sys::write(write, b"piped").value();
        let mut bytes = [0; 5];
        pair.say("read", sys::read(read, &mut bytes));
    }
}

/// An io_uring instance that liburing has made: `struct io_uring`, with room for fields that later
/// versions may add.
#[repr(C)]
struct Liburing([usize; 64]);

impl Liburing {
    /// Calls liburing's function `name`, like a program that is linked with liburing.
    fn call(name: &std::ffi::CStr, arguments: [usize; 5]) -> isize {
        type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> isize;
        const FILE: &std::ffi::CStr = c"liburing.so.2";
        let [a, b, c, d, e] = arguments;
        // SAFETY: strings end in NUL; the function belongs to liburing and gets its arguments.
        unsafe {
            let library = libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            assert!(!library.is_null(), "scripts/deps.sh installs liburing2");
            let function = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            assert!(
                !function.is_null(),
                "liburing has {}",
                name.to_string_lossy()
            );
            std::mem::transmute::<*mut libc::c_void, Function>(function)(a, b, c, d, e)
        }
    }

    fn new(flags: u32) -> Box<Liburing> {
        let mut ring = Box::new(Liburing([0; 64]));
        let at = (&raw mut *ring) as usize;
        let made = Liburing::call(c"io_uring_queue_init", [8, at, flags as usize, 0, 0]);
        assert_eq!(made as i32, 0, "a ring can be made");
        ring
    }

    fn at(&self) -> usize {
        (&raw const *self) as usize
    }

    /// Submits one request.
    fn submit(&self, opcode: u8, fd: Fd, at: u64, len: u32, mask: u32) {
        let entry = Liburing::call(c"io_uring_get_sqe", [self.at(), 0, 0, 0, 0]) as *mut u8;
        // SAFETY: an entry of the ring, which is ours until it is submitted.
        unsafe {
            entry.write_bytes(0, 64);
            entry.write(opcode);
            entry.add(4).cast::<i32>().write(fd);
            entry.add(16).cast::<u64>().write(at);
            entry.add(24).cast::<u32>().write(len);
            entry.add(28).cast::<u32>().write(mask);
        }
        let submitted = Liburing::call(c"io_uring_submit", [self.at(), 0, 0, 0, 0]);
        assert_eq!(submitted as i32, 1, "one request");
    }

    /// The result of the next request to complete.
    fn result(&self) -> i32 {
        let mut entry: *const i32 = ptr::null();
        let place = (&raw mut entry) as usize;
        let found = Liburing::call(c"__io_uring_get_cqe", [self.at(), place, 0, 1, 0]);
        assert_eq!(found as i32, 0, "a request completes");
        // SAFETY: the completion that was found; its result follows after eight bytes.
        unsafe { entry.add(2).read() }
    }
}

fn received_by_liburing(pair: &Pair, flags: u32) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"for the ring");
        pair.step();
    } else {
        let ring = Liburing::new(flags);
        let mut bytes = [0u8; 12];
        ring.submit(RECV, pair.fd, bytes.as_mut_ptr() as u64, 12, 0);
        pair.step();
        pair.say("result", ring.result());
        pair.say("bytes", shown(&bytes));
        Liburing::call(c"io_uring_queue_exit", [ring.at(), 0, 0, 0, 0]);
        pair.step();
    }
    goes_on(pair);
}

fn polled_by_liburing(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"something");
        pair.step();
    } else {
        let ring = Liburing::new(0);
        ring.submit(POLL_ADD, pair.fd, 0, 0, libc::POLLIN as u32);
        pair.step();
        pair.say("result", ring.result());
        let mut bytes = [0; 9];
        receive_all(pair.fd, &mut bytes);
        pair.say("bytes", shown(&bytes));
        pair.step();
    }
    goes_on(pair);
}
