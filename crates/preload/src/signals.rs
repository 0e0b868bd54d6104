//! The calls that install signal handlers: no handler of the program runs while its thread holds a
//! lock of the library ([`toehold_sockets::system::deferral`]).

use core::ffi::c_int;

use toehold_sockets::system::{deferral, real};

/// `sigaction(2)`.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: passed on with the caller's promises, here and below.
    unsafe { deferral::sigaction(signal, new, old) }
}

/// `siginterrupt(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { deferral::siginterrupt(signal, interrupts) }
}

macro_rules! simple {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(signal: c_int, handler: usize) -> usize {
            // SAFETY: as above.
            unsafe { deferral::signal(signal, handler, real::$name) }
        }
    )*};
}

simple! { signal bsd_signal ssignal sysv_signal __sysv_signal sigset }
