//! Where the library is built with `std` (panics that unwind, tests), the functions that the
//! compiler calls are libc's from the start.

/// Nothing is to be taken.
pub(crate) fn take_from_libc() {}

/// Nothing was taken.
#[cfg(target_arch = "x86_64")]
pub(crate) fn use_plain_ones() {}
