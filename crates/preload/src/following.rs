//! Programs without a dynamic linker that this one executes: a helper patches them.
//!
//! `toehold run` names itself in the environment (`TOEHOLD_PATCH_CALLS`). Before a program executes
//! one that the library cannot be preloaded into, it starts `toehold` as a helper, which traces the
//! calling thread until the exec has happened, patches the new program, and ends.
//!
//! ```text
//! this program                          helper: toehold follow-exec LIBRARY PROGRAM
//!   starts the helper  ───────────────▶
//!                      ◀── its number ──
//!   thread, event      ───────────────▶  traces the thread
//!                      ◀──── an errno ──
//!   exec: the socket closes              patches the new program, ends
//!   exec has failed ──────── a byte ──▶  lets go
//!                      ◀────── a byte ──
//! ```
//!
//! The helper is nobody's child whom this program could wait for: the process between them has no
//! signal for its end, and is waited for here. Nothing is written to the program's memory, and
//! nothing stays open. Whatever goes wrong before the exec, the exec happens without the helper.
//!
//! All of this is done by system calls and with a stack of its own, because a `vfork` child may be
//! the caller.

use core::ffi::{c_char, c_int, c_void};

use toehold_freestanding::{call, memory};
use toehold_sockets::is_confined;

use crate::program::{self, Target};
use crate::tracer::Named;

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
    Followed::Refused(c"its system calls cannot be patched: toehold could not be started for that");

/// The kernel does not allow it.
const NOT_TRACED: Followed = Followed::Refused(
    c"its system calls cannot be patched, because the kernel does not let \
    it be traced; a debugger, Yama or a filter for system calls may be the reason",
);

/// A helper that traces this thread.
#[derive(Debug)]
pub(crate) struct Helper {
    socket: c_int,
}

/// Has a helper patch the program `target`, if it has no loader and `environment` asks for that.
///
/// # Safety
/// What `target` names and `environment` are as `execve(2)` wants them.
pub(crate) unsafe fn follow(
    target: Target,
    environment: *const *const c_char,
    event: Event,
) -> Followed {
    if is_confined() {
        // These calls may not be allowed.
        return Followed::NotWanted;
    }
    let (mut library, mut path) = (program::Buffer::new(), program::Buffer::new());
    // SAFETY: the caller's promise.
    let launcher = unsafe { program::launcher(target, environment, &mut library, &mut path) };
    let Some(launcher) = launcher else {
        return Followed::NotWanted;
    };
    if !makes_processes_here() {
        return Followed::Refused(
            c"its system calls cannot be patched: its children would be \
            in another PID namespace, or it has no /proc",
        );
    }
    // SAFETY: no memory is involved.
    let thread = unsafe { call!(SYS_gettid) } as c_int;
    let mask = Blocked::new();
    let followed =
        Helper::start(launcher, [&library, &path]).map(|helper| helper.converse(thread, event));
    drop(mask);
    followed.unwrap_or(NOT_STARTED)
}

/// True when a helper will be in this process's PID namespace. In another one it would trace a
/// stranger, and a namespace whose first process has ended makes no others.
fn makes_processes_here() -> bool {
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
    fn start(launcher: *const c_char, paths: [&program::Buffer; 2]) -> Option<Helper> {
        const STACK_BYTES: usize = 32 << 10;
        let mut ends: [c_int; 2] = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: two descriptors are written.
        if unsafe { call!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return None;
        }
        let helper = Helper { socket: ends[0] };
        helper.limit_waiting();
        let stacks = memory::anonymous(2 * STACK_BYTES, false);
        let start = Start {
            launcher,
            arguments: [
                launcher,
                c"follow-exec".as_ptr(),
                paths[0].as_ptr(),
                paths[1].as_ptr(),
                core::ptr::null(),
            ],
            socket: ends[1],
            stack: stacks.wrapping_add(STACK_BYTES),
        };
        if !stacks.is_null() {
            let top = stacks.wrapping_add(2 * STACK_BYTES);
            let argument = (&raw const start).cast();
            // SAFETY: the stack is the child's alone; `start` lives until the child has ended. The
            // child is one that only this thread can wait for (`__WALL`), and it has ended by then.
            unsafe {
                let child = beside(top, between, argument);
                if child > 0 {
                    call!(SYS_wait4, child, 0, libc::__WALL, 0);
                }
                memory::unmap(stacks, 2 * STACK_BYTES);
            }
        }
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

    fn converse(self, thread: c_int, event: Event) -> Followed {
        let Some(number) = self.receive() else {
            return NOT_STARTED;
        };
        let request = [thread, event as c_int];
        let mut named = None;
        let followed = loop {
            self.send((&raw const request).cast(), size_of_val(&request));
            match self.receive() {
                None => break NOT_STARTED,
                Some(0) => break Followed::By(self),
                // Yama lets only ancestors trace, and one whom the process names.
                Some(libc::EPERM) if named.is_none() => {
                    named = Named::begin(number as usize);
                    if named.is_none() {
                        break NOT_TRACED;
                    }
                }
                Some(_) => break NOT_TRACED,
            }
        };
        // Yama asks when tracing begins, and lets a tracer do the rest.
        drop(named);
        followed
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
        // SAFETY: ours.
        unsafe { call!(SYS_close, self.socket) };
    }
}

/// For the processes that lead to the helper.
struct Start {
    launcher: *const c_char,
    arguments: [*const c_char; 5],
    /// The helper's end.
    socket: c_int,
    /// The end of the helper's stack, before it executes `toehold`.
    stack: *mut u8,
}

/// Stands between this process and the helper, so that the helper is no child of this one.
unsafe extern "C" fn between(start: *const c_void) -> ! {
    // SAFETY: the starter's argument, and a stack for one process.
    unsafe {
        beside(
            (*start.cast::<Start>()).stack,
            execute_launcher,
            start.cast(),
        );
        end()
    }
}

/// Becomes the helper: it has the socket as its standard input, and nothing else.
unsafe extern "C" fn execute_launcher(start: *const c_void) -> ! {
    let environment: [*const c_char; 1] = [core::ptr::null()];
    // SAFETY: the starter's argument; descriptors are this process's own.
    unsafe {
        let start = &*start.cast::<Start>();
        if start.socket == 0 {
            call!(SYS_fcntl, 0, libc::F_SETFD, 0);
        } else {
            call!(SYS_dup3, start.socket, 0, 0);
        }
        call!(SYS_close_range, 1, u32::MAX, 0);
        let (arguments, environment) = (start.arguments.as_ptr(), environment.as_ptr());
        call!(SYS_execve, start.launcher, arguments, environment);
        end()
    }
}

fn end() -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { call!(SYS_exit, 0) };
    }
}

/// Runs `function` in a process that uses this one's memory, on a stack that ends at `stack`, and
/// returns when that process has executed a program or ended: its number, or a negated errno. No
/// signal tells of its end.
///
/// # Safety
/// The stack is nobody's; `function` never returns, and uses no thread-local storage.
#[cfg(target_arch = "x86_64")]
unsafe fn beside(
    stack: *mut u8,
    function: unsafe extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> isize {
    let answer: isize;
    // SAFETY: the caller's promise. In the new process the stack pointer is `stack`, which is a
    // multiple of 16.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") libc::CLONE_VM | libc::CLONE_VFORK,
            in("rsi") stack,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r12") argument,
            in("r13") function,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// Other machines have no patches.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn beside(
    _: *mut u8,
    _: unsafe extern "C" fn(*const c_void) -> !,
    _: *const c_void,
) -> isize {
    -(libc::ENOSYS as isize)
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
