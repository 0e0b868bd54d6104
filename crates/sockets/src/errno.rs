//! The program's `errno`: set when we fail, untouched when we do not.

/// Not an errno: the connection has left its channel while the call was on its way, and is the kernel's again.
pub(crate) const LEFT_CHANNEL: i32 = i32::MAX;

/// Its value.
#[inline]
pub(crate) fn get() -> i32 {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
#[inline]
pub(crate) fn set(value: i32) {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

/// Runs `work` and leaves errno as it was before.
#[inline]
pub(crate) fn keep<T>(work: impl FnOnce() -> T) -> T {
    let before = get();
    let out = work();
    set(before);
    out
}

/// A result as a C function gives it: the count, or -1 with errno set.
#[inline]
pub(crate) fn result(result: Result<usize, i32>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(error) => {
            set(error);
            -1
        }
    }
}
