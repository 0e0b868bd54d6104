//! If the library is built with `std` (unwinding panics, tests), the compiler calls libc's
//! functions from the start.

/// Nothing to do: libc's functions are already used.
pub(crate) fn take_from_libc() {}

/// Nothing to do: the plain functions do not exist here.
#[cfg(target_arch = "x86_64")]
pub(crate) fn use_plain_ones() {}
