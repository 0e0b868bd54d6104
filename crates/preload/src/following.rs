//! Executing a program without a dynamic linker: a helper patches it.
//!
//! The library cannot be preloaded into a program without a dynamic linker. So before such a
//! program is executed, the library makes a helper process. The helper traces the calling thread
//! until the exec has happened, patches the new program, and ends. `toehold-patcher` does the
//! patching.
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
//! The helper is a child of this process, but the program does not notice it: no signal announces
//! its end, and only a wait with `__WALL` finds it. It is waited for here, or in the new program
//! before its first instruction (`toehold-patcher`). If it were left as an orphan, a process that
//! does not know it would get it: an ancestor that adopts orphans (`PR_SET_CHILD_SUBREAPER`), or
//! the first process of a PID namespace. The helper uses this program's memory, so this memory
//! stays until the helper has ended; copying the memory, or executing another program, would take
//! longer than the helper's work. The helper writes only to its own arena in that memory, and gives
//! the arena back. It has none of the program's descriptors and runs none of its signal handlers.
//! If anything fails before the exec, the exec happens without the helper.
//!
//! All of this uses system calls and separate stacks, because a `vfork` child may be the caller.

#[cfg(target_arch = "x86_64")]
mod work;

use core::ffi::{c_char, c_int};

use toehold_freestanding::call;

use crate::program::{Buffer, Scratch, Target, is_to_be_patched};

/// The call that starts a program without a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Event {
    /// The calling thread executes the program.
    Exec = 0,
    /// The calling thread makes a process that executes the program.
    Spawn = 1,
}

/// Whether a helper follows the program's start.
#[derive(Debug)]
pub(crate) enum Followed {
    /// The program need not be patched.
    NotWanted,
    /// A helper follows.
    By(Helper),
    /// No helper can follow, for this reason.
    Refused(&'static core::ffi::CStr),
}

/// There is no helper, or it does not answer.
const NOT_STARTED: Followed =
    Followed::Refused(c"its system calls cannot be patched: no process could be made for that");

/// The kernel does not allow the helper to trace this process.
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
    /// The helper's process, which is waited for when it is no longer needed.
    child: Option<work::Child>,
}

/// Makes a helper that patches the program `target`, if the program has no loader and `environment`
/// asks for patches.
///
/// # Safety
/// `target` and `environment` are valid as for `execve(2)`.
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
        // Programs under proot, which traces them all, do not see their namespaces.
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

/// Whether a helper would be in this process's PID namespace. In another namespace the process
/// number would mean a different process, and a namespace whose first process has ended makes no
/// new ones.
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
    /// Starts the helper with the paths of the library and the program.
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
        // If no helper was started, the first read finds the end of the stream.
        Some(helper)
    }

    /// Limits the waiting, because a helper that does not answer must not block the program.
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
                // Yama lets only ancestors trace, and one process that the traced process names.
                Some(libc::EPERM) if named.is_none() => {
                    named = self.child.as_ref().and_then(work::Child::name);
                    if named.is_none() {
                        break not_traced();
                    }
                }
                Some(_) => break not_traced(),
            }
        };
        // Yama checks only when tracing begins.
        drop(named);
        followed
    }

    /// The helper has ended, or does not answer. It is not waited for, because that might take for
    /// ever.
    fn without_answer(&mut self) -> Followed {
        if let Some(child) = self.child.take() {
            child.forget();
        }
        NOT_STARTED
    }

    /// The exec has failed: ends the helper. When this returns, this thread is not traced any more.
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

/// On other machines there are no patches.
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

/// Blocks all signals of this thread until it is dropped.
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
