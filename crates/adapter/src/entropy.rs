//! The kernel's random bits.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// 256 random bits.
pub(crate) fn bits() -> io::Result<[u64; 4]> {
    let mut bytes = [0u8; 32];
    // The kernel gives up to 256 bytes whole (getrandom(2)).
    let count = getrandom(&mut bytes, GetRandomFlags::empty())?;
    assert_eq!(count, bytes.len(), "the kernel gives so few at once");
    let (words, _) = bytes.as_chunks::<8>();
    Ok([0, 1, 2, 3].map(|at| u64::from_ne_bytes(words[at])))
}
