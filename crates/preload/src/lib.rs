//! The preload library: libc's socket calls, exported over the socket layer.
//!
//! `LD_PRELOAD=libtoehold.so` puts these definitions in front of libc's. Each does one thing: hand its arguments to
//! [`toehold_sockets::api`], which decides and, for descriptors that are not ours, calls the next definition.
//! The library starts only when `TOEHOLD_PATH` asks for it (`toehold run` sets it); otherwise every call passes through.
//!
//! - `calls`: the calls programs make by name.
//! - `fortified`: the `_chk` variants that `_FORTIFY_SOURCE` compiles in.
//! - `by_number`: `syscall(2)`.
//! - `stdio`: `fdopen` and `dprintf`, whose reads and writes libc makes inside itself.
//! - `process`: exit and exec; fork is followed by `pthread_atfork` handlers.

mod by_number;
mod calls;
mod fortified;
mod process;
mod stdio;

use core::ffi::{CStr, c_char};

use toehold_channel::table::WaitMode;

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let Some(path) = environment(c"TOEHOLD_PATH") else {
        return;
    };
    if path != b"auto" && path != b"direct" {
        return;
    }
    let wait = match environment(c"TOEHOLD_WAIT") {
        Some(b"poll") => WaitMode::Poll,
        Some(b"event") => WaitMode::Event,
        _ => WaitMode::Adaptive,
    };
    if let Some(directory) = environment(c"TOEHOLD_RUNTIME_DIR") {
        toehold_sockets::set_runtime_directory(directory);
    }
    toehold_sockets::start(wait);
    process::follow_exit();
}

/// An environment variable's bytes.
fn environment(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` is NUL-terminated; no other thread changes the environment before `main`.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: environment strings are NUL-terminated and the constructor keeps no reference past its return.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}
