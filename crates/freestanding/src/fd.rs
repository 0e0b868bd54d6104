//! Descriptors, owned and borrowed: the types of `std::os::fd` for code that does without `std`.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;

use crate::call;

/// A descriptor that is closed when this value goes.
#[derive(Debug)]
#[repr(transparent)]
pub struct OwnedFd(i32);

/// A descriptor that somebody else owns.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct BorrowedFd<'a>(i32, PhantomData<&'a OwnedFd>);

impl OwnedFd {
    /// Takes the ownership of `fd`.
    ///
    /// # Safety
    /// `fd` is open, and nobody else closes it.
    pub unsafe fn from_raw_fd(fd: i32) -> OwnedFd {
        OwnedFd(fd)
    }

    /// Its number; it stays open.
    pub fn into_raw_fd(self) -> i32 {
        ManuallyDrop::new(self).0
    }

    /// Its number.
    pub fn as_raw_fd(&self) -> i32 {
        self.0
    }

    /// Lends it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        BorrowedFd(self.0, PhantomData)
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        // SAFETY: ours, and open.
        unsafe { call!(SYS_close, self.0) };
    }
}

impl BorrowedFd<'_> {
    /// Borrows `fd`.
    ///
    /// # Safety
    /// `fd` stays open for the life of this value.
    pub unsafe fn borrow_raw(fd: i32) -> BorrowedFd<'static> {
        BorrowedFd(fd, PhantomData)
    }

    /// Its number.
    pub fn as_raw_fd(&self) -> i32 {
        self.0
    }
}
