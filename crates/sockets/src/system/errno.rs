//! The program's `errno`: set when we fail, untouched when we do not.

/// Not an errno: the connection has left its channel during the call, so the kernel must make the
/// call.
pub(crate) const LEFT_CHANNEL: i32 = i32::MAX;

pub(crate) use toehold_freestanding::errno::{get, is_of_libc, set, thread};

/// Not an errno: the connection will never be accepted, so it goes back to the kernel
/// ([`crate::express`]).
pub(crate) const GOES_BACK: i32 = i32::MAX - 1;

/// Runs `work` and leaves errno as it was before.
#[inline]
pub(crate) fn keep<T>(work: impl FnOnce() -> T) -> T {
    let before = get();
    let out = work();
    set(before);
    out
}

/// The result of a call that cannot go on: the count of bytes if it has moved any, so that the
/// program does not move them again; otherwise `error`.
#[inline]
pub(crate) fn unless_moved(done: usize, error: i32) -> Result<usize, i32> {
    match done {
        0 => Err(error),
        _ => Ok(done),
    }
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

/// As [`result`], for a bad pointer of the program: the call has done nothing.
#[cold]
pub(crate) fn bad_pointer() -> isize {
    result(Err(libc::EFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_is_said_whatever_stops_the_call() {
        assert_eq!(unless_moved(7, libc::EAGAIN), Ok(7));
        assert_eq!(unless_moved(0, LEFT_CHANNEL), Err(LEFT_CHANNEL));
    }
}
