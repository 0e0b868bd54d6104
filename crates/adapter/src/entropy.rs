//! The kernel's random bits.

use std::io;

/// 256 of them.
pub(crate) fn bits() -> io::Result<[u64; 4]> {
    let mut bits = [0u64; 4];
    // SAFETY: `bits` is writable for its size.
    let got = unsafe { libc::getrandom(bits.as_mut_ptr().cast(), size_of_val(&bits), 0) };
    if got == size_of_val(&bits) as isize {
        Ok(bits)
    } else {
        Err(io::Error::last_os_error())
    }
}
