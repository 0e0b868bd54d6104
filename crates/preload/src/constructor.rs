//! The library's constructor, which the dynamic linker runs before `main`.

use core::ffi::{c_char, c_int};

use toehold_freestanding::{environment as variables, objects};
use toehold_sockets::real;

#[cfg(target_arch = "x86_64")]
use crate::patched::within;
use crate::start::begin;

/// Runs before `main`. glibc passes the program's arguments and environment, musl passes nothing.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) =
    constructor;

#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn constructor(
    argc: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) {
    // SAFETY: when these look like a program's arguments, they are.
    unsafe {
        if objects::learn(argc, argv, envp) {
            variables::learn(envp);
        }
    }
    real::find_all();
    let (has_libc, is_secure) = (real::has_libc(), objects::is_secure());
    #[cfg(target_arch = "x86_64")]
    if !is_secure && within::is_wanted() && within::prepare(has_libc) {
        // libc's copies use the upper halves of vector registers, which a patched call must keep.
        if !(begin() && within::patch(has_libc)) {
            crate::routines::take_from_libc();
        }
        return;
    }
    crate::routines::take_from_libc();
    if has_libc && !is_secure {
        begin();
    }
}
