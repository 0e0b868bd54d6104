//! A call of the kernel's in the midst of a program's call.
//!
//! The program's call has slept, or has moved bytes, and its connection is on the host path by now.
//! Until the kernel has looked the number up, another thread may close it, and the next connection
//! may get it: the bytes would be that one's. So the kernel is called with a duplicate, of which is
//! known that it is the connection's.

use crate::connection::Connection;
use crate::process::descriptors;
use crate::system::{cancellation, errno};

/// The kernel's part of a call on `connection`: by its number when that is the first thing of the
/// program's call, else by a duplicate.
#[inline]
pub(crate) fn by_kernel(
    connection: &Connection,
    has_begun: bool,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    match has_begun {
        false => kernel(connection.fd),
        true => by_duplicate(connection, kernel),
    }
}

#[cold]
fn by_duplicate(connection: &Connection, kernel: impl Fn(i32) -> isize) -> isize {
    let Some(number) = connection.carrier() else {
        return errno::result(Err(libc::EBADF));
    };
    let Some(duplicate) = errno::keep(|| descriptors::duplicate_for_us(number)) else {
        // The program has as many descriptors as it may have.
        return kernel(number);
    };
    let end = || errno::keep(|| descriptors::disown(duplicate));
    // Still the connection's, so it was the connection's when it was duplicated.
    if connection.carrier() != Some(number) {
        end();
        return errno::result(Err(libc::EBADF));
    }
    let result = cancellation::sleeping(end, || kernel(duplicate));
    end();
    result
}
