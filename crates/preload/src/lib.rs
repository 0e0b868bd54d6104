//! The preload library: libc's socket calls, exported over the socket layer.
//!
//! `LD_PRELOAD=libtoehold.so` puts these definitions in front of libc's. Each does one thing: hand
//! its arguments to [`toehold_sockets::api`], which decides and, for descriptors that are not ours,
//! calls the next definition. The library starts only when `TOEHOLD_PATH` asks for it
//! (`toehold run` sets it); otherwise every call passes through.
//!
//! - `calls`, `aliases`: the calls programs make by name, and second names of the same calls.
//! - `aio`: POSIX asynchronous I/O, whose reads and writes libc makes in its own threads.
//! - `fortified`: the `_chk` variants that `_FORTIFY_SOURCE` compiles in.
//! - `by_number`: `syscall(2)`; `bpf`: maps that take over sockets.
//! - `liburing`: requests that liburing submits past `syscall(2)`.
//! - `stdio`: `fdopen` and `dprintf`, whose reads and writes libc makes internally.
//! - `signals`: handlers wait while their thread holds a lock of the library.
//! - `patched`: programs that make their system calls themselves, patched by `toehold run`; dynamic
//!   ones of Go and Rust, and libraries of Go, are patched by this library.
//! - `points`: `pthread_cancel(3)`, and calls that are cancellation points.
//! - `confinement`: programs that restrict their own system calls.
//! - `process`: exit and exec; `fork`: forks, by name and by number.
//! - `readable`: whether the kernel can read the arguments of a call that executes a program.
//! - `program`, `environment`: whether a program to be executed will have the library, and the
//!   environment that it gets.
//! - `following`: a helper patches executed programs without a loader; `tracer`: the process that
//!   may trace this one.
//! - `constructor`: the library's work before `main`.
//! - `start`: starts the library if the environment asks for it, with or without a dynamic linker.
//! - `door`: system calls by number, from programs that do not call libc.
//! - `routines`: `memcpy` and the others that the compiler calls.
//!
//! The library depends on no other library: it needs no other library to be loaded, no symbol and
//! no thread-local storage. It has no heap either; only the helpers of `following` allocate, from
//! mappings. It finds libc's functions in memory when it starts, and makes system calls where there
//! is no libc.

#![cfg_attr(all(panic = "abort", not(test)), no_std)]

mod aio;
mod aliases;
mod bpf;
mod by_number;
mod calls;
mod confinement;
mod constructor;
mod door;
mod environment;
mod following;
mod fork;
mod fortified;
mod liburing;
#[cfg(target_arch = "x86_64")]
mod patched;
mod points;
mod process;
mod program;
mod readable;
#[cfg_attr(
    not(all(panic = "abort", not(test), target_arch = "x86_64")),
    path = "routines/of_std.rs"
)]
mod routines;
mod signals;
mod start;
mod stdio;
mod tracer;

use toehold_freestanding::call;

/// Only helpers (`following`) allocate.
#[cfg(all(not(test), target_arch = "x86_64"))]
#[global_allocator]
static HEAP: toehold_patcher::heap::Heap = toehold_patcher::heap::Heap;

/// True when this value of `TOEHOLD_PATH` starts the library.
fn is_started_by(path: &[u8]) -> bool {
    matches!(path, b"auto" | b"direct" | b"offload")
}

/// Ends the process as `abort(3)` does.
#[cold]
fn abort() -> ! {
    let signal = libc::SIGABRT;
    let mask = 1u64 << (signal - 1);
    // SAFETY: this process, this thread, and eight bytes of a signal mask.
    unsafe {
        let (process, thread) = (call!(SYS_getpid), call!(SYS_gettid));
        call!(SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, 0, 8);
        call!(SYS_tgkill, process, thread, signal);
        // The program's handler for the signal has returned.
        let standard = [0usize; 4];
        call!(SYS_rt_sigaction, signal, &raw const standard, 0, 8);
        call!(SYS_tgkill, process, thread, signal);
        loop {
            call!(SYS_exit_group, 127);
        }
    }
}

/// If an invariant of the library is broken, the process ends, because no panic may unwind through
/// the program's frames.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panicked(panic: &core::panic::PanicInfo<'_>) -> ! {
    let mut line = [b'0'; 10];
    let mut parts: [&[u8]; 5] = [
        b"libtoehold.so: internal error at ",
        b"?",
        b":",
        b"?",
        b"\n",
    ];
    if let Some(place) = panic.location() {
        let (mut rest, mut at) = (place.line(), line.len());
        while rest > 0 && at > 0 {
            at -= 1;
            line[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        parts[1] = place.file().as_bytes();
        parts[3] = &line[at..];
    }
    for part in parts {
        // SAFETY: `part` is readable for its length.
        unsafe { call!(SYS_write, 2, part.as_ptr(), part.len()) };
    }
    abort()
}
