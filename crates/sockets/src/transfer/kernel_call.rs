//! A system call in the middle of a program's call.
//!
//! The program's call has slept, or has moved bytes, and its connection is on the host path by now.
//! Before the kernel looks the descriptor up, another thread may close it, and another connection
//! may get its number: then the call would move bytes of that connection. So the system call is
//! made with a duplicate that certainly belongs to the connection.

use crate::connection::Connection;
use crate::process::descriptors;
use crate::system::{cancellation, errno};

/// Makes the system call of a call on `connection`: with its descriptor if the program's call has
/// done nothing yet, otherwise with a duplicate.
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
        // The program has reached its limit of descriptors.
        return kernel(number);
    };
    let end = || errno::keep(|| descriptors::close_own(duplicate));
    // If the number still belongs to the connection, it did so when it was duplicated.
    if connection.carrier() != Some(number) {
        end();
        return errno::result(Err(libc::EBADF));
    }
    let result = cancellation::sleeping(end, || kernel(duplicate));
    end();
    result
}
