//! Programs without a dynamic linker that this one executes: a helper patches them.
//!
//! Before a program executes one that the library cannot be preloaded into, it makes a process as
//! a helper, which traces the calling thread until the exec has happened, patches the new program,
//! and ends. The work is that of `toehold-patcher`.
//!
//! ```text
//! this program                          helper
//!   makes the helper   ───────────────▶
//!   thread, event      ───────────────▶  traces the thread
//!                      ◀──── an errno ──
//!   exec: the socket closes              patches the new program, ends
//!   exec has failed ──────── a byte ──▶  lets go
//!                      ◀────── a byte ──
//! ```
//!
//! The helper is this process's child, which the program does not meet: no signal tells its end,
//! and only `__WALL` waits for it. It is waited for here, or in the new program before its first
//! instruction (`toehold-patcher`). An orphan would be met by a process that does not know it: any
//! ancestor may be the one to which orphans go (`PR_SET_CHILD_SUBREAPER`), and so may the first
//! process of a PID namespace. The helper uses this program's memory, which so stays until the
//! helper has ended: to make a copy, or to execute a program, would take longer than its work. Of
//! that memory it writes its arena alone, and it gives that back. It has no descriptor of the
//! program's and runs none of its signal handlers. Whatever goes wrong before the exec, the exec
//! happens without the helper.
//!
//! All of this is done by system calls and with stacks of its own, because a `vfork` child may be
//! the caller.

#[cfg(target_arch = "x86_64")]
mod work;

use core::ffi::{c_char, c_int};

use toehold_freestanding::call;

use crate::program::{Buffer, Scratch, Target, is_to_be_patched};

/// The event after which a program without a loader runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Event {
    /// The calling thread executes it.
    Exec = 0,
    /// The calling thread makes a process that executes it.
    Spawn = 1,
}

/// Whether somebody follows.
#[derive(Debug)]
pub(crate) enum Followed {
    /// The program is none that is to be patched.
    NotWanted,
    /// A helper does.
    By(Helper),
    /// Nobody can, for this reason.
    Refused(&'static core::ffi::CStr),
}

/// There is no helper, or one that does not answer.
const NOT_STARTED: Followed =
    Followed::Refused(c"its system calls cannot be patched: no process could be made for that");

/// The kernel does not allow it.
fn not_traced() -> Followed {
    Followed::Refused(match toehold_sockets::is_traced() {
        true => TRACED,
        false => {
            c"its system calls cannot be patched, because the kernel does not let \
            it be traced; a debugger, Yama or a filter for system calls may be the reason"
        }
    })
}

/// A process has one tracer at most.
const TRACED: &core::ffi::CStr = c"its system calls cannot be patched, because another process \
    traces it, as debuggers, strace and proot do";

/// A helper that traces this thread.
#[derive(Debug)]
pub(crate) struct Helper {
    socket: c_int,
    /// It is waited for when it is wanted no more.
    child: Option<work::Child>,
}

/// Has a helper patch the program `target`, if it has no loader and `environment` asks for that.
///
/// # Safety
/// What `target` names and `environment` are as `execve(2)` wants them.
pub(crate) unsafe fn follow(
    target: Target,
    environment: *const *const c_char,
    event: Event,
    scratch: &mut Scratch,
) -> Followed {
    // SAFETY: the caller's promise.
    if !unsafe { is_to_be_patched(target, environment, scratch) } {
        return Followed::NotWanted;
    }
    if !children_are_in_this_namespace() {
        // proot, which traces all its programs, shows them no namespaces.
        return Followed::Refused(match toehold_sockets::is_traced() {
            true => TRACED,
            false => {
                c"its system calls cannot be patched: its children would be \
            in another PID namespace, or it has no /proc"
            }
        });
    }
    // SAFETY: no memory is involved.
    let thread = unsafe { call!(SYS_gettid) } as c_int;
    let mask = Blocked::new();
    let followed = Helper::start(&scratch.library, &scratch.path);
    let followed = followed.map(|helper| helper.converse(thread, event));
    drop(mask);
    followed.unwrap_or(NOT_STARTED)
}

/// Whether a helper will be in this process's PID namespace. In another one it would trace a
/// stranger, and a namespace whose first process has ended makes no others.
fn children_are_in_this_namespace() -> bool {
    let number = |path: &core::ffi::CStr| {
        let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
        let directory = libc::AT_FDCWD;
        // SAFETY: `stat` is writable for its size, and zeroes were a value already.
        unsafe {
            let result = call!(
                SYS_newfstatat,
                directory,
                path.as_ptr(),
                stat.as_mut_ptr(),
                0
            );
            (result == 0).then(|| stat.assume_init().st_ino)
        }
    };
    let own = number(c"/proc/self/ns/pid");
    own.is_some() && own == number(c"/proc/self/ns/pid_for_children")
}

impl Helper {
    /// The helper is told the library's path and the program's.
    fn start(library: &Buffer, path: &Buffer) -> Option<Helper> {
        let mut ends: [c_int; 2] = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: two descriptors are written.
        if unsafe { call!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return None;
        }
        let mut helper = Helper {
            socket: ends[0],
            child: None,
        };
        helper.limit_waiting();
        helper.child = work::start(ends[1], library, path);
        // SAFETY: made above.
        unsafe { call!(SYS_close, ends[1]) };
        // Where nobody was started, the first read meets the end.
        Some(helper)
    }

    /// A helper that does not answer must not keep the program.
    fn limit_waiting(&self) {
        const SECONDS_MAX: i64 = 5;
        let limit = [SECONDS_MAX, 0i64];
        let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
        let (at, len) = (limit.as_ptr(), size_of_val(&limit));
        // SAFETY: a `timeval`.
        unsafe { call!(SYS_setsockopt, self.socket, level, option, at, len) };
    }

    fn converse(mut self, thread: c_int, event: Event) -> Followed {
        let request = [thread, event as c_int];
        let mut named = None;
        let followed = loop {
            self.send((&raw const request).cast(), size_of_val(&request));
            match self.receive() {
                None => break self.without_answer(),
                Some(0) => break Followed::By(self),
                // Yama lets only ancestors trace, and one whom the process names.
                Some(libc::EPERM) if named.is_none() => {
                    named = self.child.as_ref().and_then(work::Child::name);
                    if named.is_none() {
                        break not_traced();
                    }
                }
                Some(_) => break not_traced(),
            }
        };
        // Yama asks when tracing begins, and lets a tracer do the rest.
        drop(named);
        followed
    }

    /// It has ended, or it does not answer. To wait for it might take for ever.
    fn without_answer(&mut self) -> Followed {
        if let Some(child) = self.child.take() {
            child.forget();
        }
        NOT_STARTED
    }

    /// The exec has failed: nobody traces this thread any more when this returns.
    pub(crate) fn dismiss(self) {
        let mask = Blocked::new();
        self.send([0u8].as_ptr(), 1);
        let mut byte = 0u8;
        // SAFETY: one byte is written.
        unsafe { call!(SYS_read, self.socket, &raw mut byte, 1) };
        drop(mask);
    }

    fn send(&self, bytes: *const u8, len: usize) {
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: `len` bytes are readable. A failure is seen by the answer that is missing.
        unsafe { call!(SYS_sendto, self.socket, bytes, len, flags, 0, 0) };
    }

    fn receive(&self) -> Option<c_int> {
        let mut number: c_int = 0;
        let len = size_of_val(&number);
        let flags = libc::MSG_WAITALL;
        // SAFETY: the number is writable.
        let got = unsafe { call!(SYS_recvfrom, self.socket, &raw mut number, len, flags, 0, 0) };
        (got == len as isize).then_some(number)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // SAFETY: ours. A helper that was not sent away goes on until the new program runs.
        unsafe { call!(SYS_close, self.socket) };
        if let Some(child) = self.child.take() {
            child.wait();
        }
    }
}

/// Other machines have no patches.
#[cfg(not(target_arch = "x86_64"))]
mod work {
    use crate::program::Buffer;
    use crate::tracer::Named;

    #[derive(Debug)]
    pub(super) enum Child {}

    impl Child {
        pub(super) fn forget(self) {}

        pub(super) fn name(&self) -> Option<Named> {
            None
        }

        pub(super) fn wait(self) {}
    }

    pub(super) fn start(_: core::ffi::c_int, _: &Buffer, _: &Buffer) -> Option<Child> {
        None
    }
}

/// While it lives no handler runs in this thread.
struct Blocked {
    before: u64,
}

impl Blocked {
    fn new() -> Blocked {
        let (all, mut before) = (u64::MAX, 0u64);
        let (from, to) = (&raw const all, &raw mut before);
        // SAFETY: two masks of eight bytes.
        unsafe { call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, from, to, 8) };
        Blocked { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let before = &raw const self.before;
        // SAFETY: a mask of eight bytes.
        unsafe { call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, before, 0, 8) };
    }
}
