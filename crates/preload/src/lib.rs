//! The preload library: libc's socket calls, exported over the socket layer.
//!
//! `LD_PRELOAD=libtoehold.so` puts these definitions in front of libc's. Each does one thing: hand
//! its arguments to [`toehold_sockets::api`], which decides and, for descriptors that are not ours,
//! calls the next definition. The library starts only when `TOEHOLD_PATH` asks for it
//! (`toehold run` sets it); otherwise every call passes through.
//!
//! - `calls`, `aliases`: the calls programs make by name, and second names of the same calls.
//! - `aio`: POSIX asynchronous I/O, whose reads and writes libc makes in threads of its own.
//! - `fortified`: the `_chk` variants that `_FORTIFY_SOURCE` compiles in.
//! - `by_number`: `syscall(2)`.
//! - `liburing`: requests that liburing hands over past `syscall(2)`.
//! - `stdio`: `fdopen` and `dprintf`, whose reads and writes libc makes inside itself.
//! - `signals`: handlers wait while their thread holds a lock of the library.
//! - `confinement`: programs that allow themselves only some system calls.
//! - `process`: exit and exec; fork is followed by `pthread_atfork` handlers.
//! - `program`, `environment`: whether a program to be executed will have us in it, and what it is
//!   told then.

mod aio;
mod aliases;
mod by_number;
mod calls;
mod confinement;
mod environment;
mod fork;
mod fortified;
mod liburing;
mod process;
mod program;
mod signals;
mod stdio;

use core::ffi::{CStr, c_char};

use toehold_channel::table::WaitMode;

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let Some(path) = environment_variable(c"TOEHOLD_PATH") else {
        return;
    };
    if !is_started_by(path) {
        return;
    }
    let filters = environment_variable(c"TOEHOLD_FILTERS").and_then(number);
    if !toehold_sockets::is_allowed(filters.unwrap_or(0)) {
        return;
    }
    match path {
        b"offload" => toehold_sockets::want_offload(),
        b"auto" => toehold_sockets::want_offload_by_rule(),
        _ => {}
    }
    let wait = match environment_variable(c"TOEHOLD_WAIT") {
        Some(b"poll") => WaitMode::Poll,
        Some(b"event") => WaitMode::Event,
        _ => WaitMode::Adaptive,
    };
    let calls = environment_variable(c"TOEHOLD_PAIR_AFTER").and_then(number);
    if let Some(calls) = calls {
        toehold_sockets::set_calls_before_pairing(calls);
    }
    if let Some(directory) = environment_variable(c"TOEHOLD_RUNTIME_DIR") {
        toehold_sockets::set_runtime_directory(directory);
    }
    toehold_sockets::start(wait);
    process::follow_exit();
    if let Some(handover) = environment_variable(environment::HANDOVER) {
        if let Some(descriptor) = number(handover) {
            toehold_sockets::take_over_from(descriptor);
        }
        // SAFETY: no other thread runs before `main`. The variable was meant for this process
        // alone.
        unsafe { libc::unsetenv(environment::HANDOVER.as_ptr()) };
    }
}

/// True when this value of `TOEHOLD_PATH` has the library start.
fn is_started_by(path: &[u8]) -> bool {
    matches!(path, b"auto" | b"direct" | b"offload")
}

/// A variable's value that is a number.
fn number<T: core::str::FromStr>(value: &[u8]) -> Option<T> {
    core::str::from_utf8(value).ok()?.parse().ok()
}

/// An environment variable's bytes.
fn environment_variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` is NUL-terminated; no other thread changes the environment before `main`.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: environment strings are NUL-terminated and the constructor keeps no reference past
    // its return.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}
