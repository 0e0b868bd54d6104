//! News that another call has shown to the program: a wait with a time-out of 0 must report them,
//! too.
//!
//! The sender may be between two of its steps at that moment. So the client lets the server's
//! thread run one instruction after another, until the call shows the news.

use std::thread;
use std::time::Duration;

use super::{ADD, now};
use crate::role::{Pair, receive_all, send_all};
use crate::sys::{self, Fd};

const BYTES: &[u8] = b"bytes";
/// A call that shows bytes: returns the number of bytes that it has taken, if there are any.
type Call = fn(Fd) -> Option<usize>;
const CALLS: [(&str, Call); 5] = [
    ("FIONREAD", |fd| {
        (sys::readable_bytes(fd).len() > 0).then_some(0)
    }),
    ("peek", |fd| {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        sys::recv(fd, &mut [0; 9], flags).0.ok().map(|_| 0)
    }),
    ("part", |fd| {
        let taken = sys::recv(fd, &mut [0; 2], libc::MSG_DONTWAIT);
        taken.0.ok().map(|_| taken.len())
    }),
    ("poll", |fd| {
        (sys::poll(&[(fd, libc::POLLIN)], 0).0.len() > 0).then_some(0)
    }),
    ("select", |fd| {
        let selected = sys::select(&[fd], &[], Some(0), false);
        (selected.result.len() > 0).then_some(0)
    }),
];

pub(super) fn of_a_slow_sender(pair: &Pair, events: i32) {
    if pair.server() {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler = nothing as extern "C" fn(libc::c_int);
        // The trap of the last instruction may come after the client has let this thread go.
        // SAFETY: the handler does nothing; the other call takes no pointers.
        unsafe {
            libc::signal(libc::SIGTRAP, handler as usize);
            libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        }
        // SAFETY: takes no pointers.
        pair.tell(unsafe { libc::gettid() }.cast_unsigned());
        for _ in CALLS {
            pair.hear();
            send_all(pair.fd, BYTES);
            pair.step();
        }
        pair.hear();
        sys::close(pair.fd).value();
        return pair.step();
    }
    let sender = pair.hear().cast_signed();
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, pair.fd, events | libc::EPOLLRDHUP, 7).value();
    pair.say("at first", now(epoll));
    for (name, call) in CALLS {
        let mut taken = 0;
        let sender = Traced::stop(sender);
        pair.tell(0);
        sender.run_until(|| {
            let shown = call(pair.fd);
            taken = shown.unwrap_or(0);
            shown.is_some()
        });
        pair.say(name, now(epoll));
        drop(sender);
        pair.step();
        receive_all(pair.fd, &mut BYTES.to_vec()[taken..]);
        pair.say("all is received", now(epoll));
    }
    let sender = Traced::stop(sender);
    pair.tell(0);
    sender.run_until(|| sys::recv(pair.fd, &mut [0; 1], libc::MSG_DONTWAIT).0 == Ok(0));
    pair.say("end", now(epoll));
    drop(sender);
    pair.step();
}

/// A thread of another process, which runs only when this process lets it.
struct Traced(libc::pid_t);

impl Traced {
    /// Stops a thread.
    fn stop(thread: libc::pid_t) -> Traced {
        let traced = Traced(thread);
        traced.request(libc::PTRACE_SEIZE);
        traced.request(libc::PTRACE_INTERRUPT);
        while !traced.has_stopped() {
            thread::sleep(PAUSE);
        }
        traced
    }

    /// Lets the thread run, one instruction after another, until `is_enough`.
    fn run_until(&self, mut is_enough: impl FnMut() -> bool) {
        while !is_enough() {
            self.request(libc::PTRACE_SINGLESTEP);
            let mut looks = 0;
            // The thread may sleep in a system call, and the news may still be on their way.
            while !self.has_stopped() {
                looks += 1;
                if looks > 100 {
                    if is_enough() {
                        self.request(libc::PTRACE_INTERRUPT);
                        while !self.has_stopped() {
                            thread::sleep(PAUSE);
                        }
                        return;
                    }
                    thread::sleep(PAUSE);
                }
                thread::yield_now();
            }
        }
    }

    fn has_stopped(&self) -> bool {
        let flags = libc::__WALL | libc::WNOHANG;
        // SAFETY: no status is asked for.
        sys::ret(unsafe { libc::waitpid(self.0, std::ptr::null_mut(), flags) }).value() != 0
    }

    fn request(&self, request: libc::c_uint) {
        // SAFETY: these requests take numbers only.
        let result = sys::ret(unsafe { libc::ptrace(request, self.0, 0usize, 0usize) });
        assert!(result.0.is_ok(), "ptrace({request:x}): {result}");
    }
}

impl Traced {
    /// True when the thread has a SIGTRAP that it has not got yet: of a step that ended when the
    /// thread was interrupted.
    fn has_trap(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0));
        let status = status.expect("the thread is there");
        let mut lines = status.lines();
        let pending = lines.find_map(|line| line.strip_prefix("SigPnd:"));
        let pending = u64::from_str_radix(pending.expect("a line of it").trim(), 16);
        pending.expect("a mask") & 1 << (libc::SIGTRAP - 1) != 0
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Without its tracer, the thread would be killed by that signal.
        if self.has_trap() {
            self.request(libc::PTRACE_CONT);
            while !self.has_stopped() {
                thread::sleep(PAUSE);
            }
        }
        self.request(libc::PTRACE_DETACH);
    }
}

const PAUSE: Duration = Duration::from_micros(50);
