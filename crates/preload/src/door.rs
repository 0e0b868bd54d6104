//! The door by number: system calls of programs that do not call libc. They come from sites that a
//! launcher (the *caller*) has patched, or from its signal handler.
//!
//! The door is part of this object, and the object may have been mapped into the program without a
//! dynamic linker. Then [`toehold_enter`], the object's ELF entry, does the dynamic linker's work:
//! it relocates the object. After that
//!
//! ```text
//!   toehold_call(number, arguments) ─► an answer           the program has it
//!                                   ─► KERNEL              make the call as it was made
//!                                   ─► KERNEL_THEN_TELL    make it, then in parent and child:
//!                                      toehold_tell(number, arguments, answer)
//! ```
//!
//! # The caller's part
//!
//! - *Registers.* These are C functions (System V AMD64 ABI). A system call keeps all registers but
//!   rax, rcx and r11, so the caller saves rdi, rsi, rdx, r8, r9, r10, the flags, and xmm0 to
//!   xmm15. No code here uses the upper halves of vector registers, x87 or MMX, as long as there is
//!   no libc. In a process that has one, its `memcpy` may use them: the caller saves the whole
//!   vector state there. Where the library was started by [`toehold_enter`], [`PLAIN_COPIES`] makes
//!   it use none of libc's copies.
//! - *Stack.* 64 KiB below the stack pointer, which is as the ABI wants it (16 bytes aligned before
//!   the call). The stack must not move during the call. It may be the program's own (with 128
//!   bytes left out for the red zone) or one of the caller's.
//! - *Thread.* No thread-local storage and no FS or GS are used where there is no libc.
//!   [`Settings::words`] gives each thread its own `i32`, at a fixed address for the thread's life;
//!   the address identifies the thread. With libc in the process, FS must be the thread pointer
//!   that libc has set, and `words` is not called.
//! - *Signals.* A call may be interrupted by a signal whose handler comes here again, on another
//!   piece of stack. Handlers that were installed by number are not deferred
//!   ([`toehold_sockets::system::deferral`]). A handler must return. It may leave a call by
//!   `longjmp` only where libc allows that.
//! - *Blocking.* A call on descriptors that the library does not serve is [`KERNEL`], so it blocks
//!   at its own site. A call on a connection blocks here, as long as the system call would; so do
//!   `accept`, `connect`, `poll` and `select`.
//! - *Forks.* `fork`, and `clone` without shared memory, are [`KERNEL_THEN_TELL`]. `vfork` and
//!   `clone` with shared memory are [`KERNEL`]. `execve` returns only when it has failed.

use core::ffi::{c_char, c_int, c_long, c_ulong};

use toehold_freestanding::{environment as variables, errno, objects};
use toehold_sockets::system::{faults, real};
use toehold_sockets::{after_fork_in_child, after_fork_in_parent, api, before_fork, ending};

use crate::by_number::{self, Clone3};
use crate::confinement::before_namespaces;
use crate::start;

/// The answer of [`toehold_call`]: the program's system call must be made unchanged.
pub(crate) const KERNEL: isize = isize::MIN;
/// As [`KERNEL`]; afterwards [`toehold_tell`] must be called with the answer, in parent and child.
pub(crate) const KERNEL_THEN_TELL: isize = isize::MIN + 1;

/// In [`Settings::flags`]: copies use only general registers and xmm0 to xmm15, even in a process
/// with libc.
const PLAIN_COPIES: u64 = 1;

/// The arguments of [`toehold_enter`].
#[repr(C)]
struct Settings {
    /// Bytes of this structure: `size_of::<Settings>()`.
    bytes: u64,
    /// [`PLAIN_COPIES`].
    flags: u64,
    /// The program's environment, as the kernel put it on the stack: the array ends with a null
    /// pointer, and the auxiliary vector follows it.
    environment: *const *const c_char,
    /// Returns the address of a thread's word, in a process without libc. It is called on the stack
    /// of the call, and may change only the registers that a C function may change.
    words: Option<errno::Words>,
}

/// Starts the library in a process whose dynamic linker has not done so. One thread runs, and no
/// call has been made through the door. The answer is 1 when the library serves the process; 0 when
/// the environment does not ask for it, or it is not permitted; a negative number when `settings`
/// is invalid.
///
/// # Safety
/// All segments are mapped as the object's program headers say, and writable where they say so
/// (`PT_GNU_RELRO` not yet applied). `settings` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn toehold_enter(settings: *const Settings) -> c_int {
    // SAFETY: the caller's promise. Nothing before this needs a relocation.
    unsafe { relocate() };
    // SAFETY: the caller's promise.
    let settings = match unsafe { settings.as_ref() } {
        Some(settings) if settings.bytes as usize >= size_of::<Settings>() => settings,
        _ => return -libc::EINVAL,
    };
    // SAFETY: as above.
    unsafe {
        if !settings.environment.is_null() {
            let mut end = settings.environment;
            while !(*end).is_null() {
                end = end.add(1);
            }
            objects::learn_auxiliary(end.add(1).cast());
            variables::learn(settings.environment);
        }
    }
    real::find_all();
    match (real::has_libc(), settings.words) {
        (true, _) => {
            if settings.flags & PLAIN_COPIES == 0 {
                crate::routines::take_from_libc();
            }
        }
        (false, Some(words)) => errno::use_words(words),
        (false, None) => return -libc::EINVAL,
    }
    let before = errno::get();
    let has_started = !objects::is_secure() && start::begin();
    errno::set(before);
    c_int::from(has_started)
}

/// A system call of the program: its answer as the kernel gives it, or [`KERNEL`] or
/// [`KERNEL_THEN_TELL`]. It changes no `errno`.
///
/// # Safety
/// As for the system call, and as the module says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn toehold_call(number: c_long, arguments: &[usize; 6]) -> isize {
    let &[a, b, c, d, e, f] = arguments;
    if !toehold_sockets::is_started() && !api::has_kept_bytes() {
        return KERNEL;
    }
    match way_of(number, arguments) {
        Way::Kernel => return KERNEL,
        Way::Fork(flags) => {
            before_namespaces(flags);
            before_fork();
            return KERNEL_THEN_TELL;
        }
        Way::Exit => {
            ending();
            return KERNEL;
        }
        Way::Here => {}
    }
    let before = errno::get();
    // SAFETY: the caller's promise.
    let result = unsafe { by_number::call(number, a, b, c, d, e, f) } as isize;
    if result != -1 {
        // A call that succeeds leaves `errno` unchanged.
        return result;
    }
    let error = errno::get();
    errno::set(before);
    -(error as isize)
}

/// The answer of a call that was [`KERNEL_THEN_TELL`]: called once in the parent and once (with 0)
/// in the child, before either makes another call.
///
/// # Safety
/// As for [`toehold_call`], with the arguments of that call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn toehold_tell(
    _number: c_long,
    _arguments: &[usize; 6],
    answer: isize,
) {
    match answer {
        0 => after_fork_in_child(),
        _ => after_fork_in_parent(answer as i64),
    }
}

/// The way in which a call is made.
enum Way {
    /// The program makes the call; the library need not know.
    Kernel,
    /// The program makes the call, which makes a process with these flags.
    Fork(c_int),
    /// The program makes the call, which ends the process.
    Exit,
    /// The library answers, or makes the call itself.
    Here,
}

fn way_of(number: c_long, arguments: &[usize; 6]) -> Way {
    let fd = arguments[0] as c_int;
    let is_private = |flags: usize| flags & libc::CLONE_VM as usize == 0;
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_recvfrom
        | libc::SYS_sendto
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendmmsg
        | libc::SYS_getsockopt
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
            if api::is_kernels(fd) =>
        {
            Way::Kernel
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait if api::is_kernels(fd) => Way::Kernel,
        libc::SYS_ioctl if api::is_kernels(fd) && !api::takes_socket(arguments[1] as c_ulong) => {
            Way::Kernel
        }
        libc::SYS_rt_sigaction if !faults::is_concerned(fd) => Way::Kernel,
        libc::SYS_clone if is_private(arguments[0]) => Way::Fork(arguments[0] as c_int),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Way::Fork(0),
        libc::SYS_clone3 => match Clone3::of(arguments[0], arguments[1]) {
            Some(Clone3 { flags, .. }) if is_private(flags as usize) => Way::Fork(flags as c_int),
            _ => Way::Kernel,
        },
        libc::SYS_exit_group => Way::Exit,
        _ if by_number::is_of_interest(number) => Way::Here,
        _ => Way::Kernel,
    }
}

/// Relocates the object, unless a dynamic linker has already done it. This function must not use
/// anything that it relocates: no static that contains an address, and no call through a table.
///
/// # Safety
/// As for [`toehold_enter`].
#[cfg(target_arch = "x86_64")]
unsafe fn relocate() {
    const DT_RELA: usize = 7;
    const DT_RELASZ: usize = 8;
    const DT_SYMTAB: usize = 6;
    const R_64: u32 = 1;
    const R_GLOB_DAT: u32 = 6;
    const R_JUMP_SLOT: u32 = 7;
    const R_RELATIVE: u32 = 8;
    let (base, mut dynamic, witness): (usize, *const [usize; 2], *const usize);
    // SAFETY: addresses of this object, which the linker defines; the witness is a word that holds
    // its own address once it is relocated.
    unsafe {
        core::arch::asm!(
            ".weak _DYNAMIC",
            ".hidden _DYNAMIC",
            ".weak __ehdr_start",
            ".hidden __ehdr_start",
            ".pushsection .data.toehold_witness, \"aw\", @progbits",
            ".balign 8",
            "99: .quad 99b",
            ".popsection",
            "lea {}, [rip + __ehdr_start]",
            "lea {}, [rip + _DYNAMIC]",
            "lea {}, [rip + 99b]",
            out(reg) base,
            out(reg) dynamic,
            out(reg) witness,
            options(nomem, nostack, preserves_flags)
        );
    }
    // SAFETY: the caller's promise: the object's own tables.
    unsafe {
        if witness.read_volatile() == witness as usize {
            return;
        }
        let (mut table, mut bytes, mut symbols) = (0, 0, 0);
        while (*dynamic)[0] != 0 {
            match (*dynamic)[0] {
                DT_RELA => table = (*dynamic)[1],
                DT_RELASZ => bytes = (*dynamic)[1],
                DT_SYMTAB => symbols = (*dynamic)[1],
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
        let mut at = base.wrapping_add(table) as *const [usize; 3];
        let end = at.byte_add(bytes);
        while at < end {
            let [offset, info, addend] = at.read_volatile();
            let place = base.wrapping_add(offset) as *mut usize;
            match info as u32 {
                R_RELATIVE => place.write_volatile(base.wrapping_add(addend)),
                // A symbol of this object: it uses no others.
                R_64 | R_GLOB_DAT | R_JUMP_SLOT => {
                    let symbol = base + symbols + (info >> 32) * 24 + 8;
                    let value = (symbol as *const usize).read_volatile();
                    let addend = if info as u32 == R_64 { addend } else { 0 };
                    place.write_volatile(base.wrapping_add(value).wrapping_add(addend));
                }
                _ => {}
            }
            at = at.add(1);
        }
    }
}

/// Other machines have no door yet: a dynamic linker has relocated the object.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn relocate() {}
