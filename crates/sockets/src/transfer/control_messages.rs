//! Control messages that come with bytes of the carrier: a ring has none.

use libc::iovec;

use crate::system::sys;

/// Room for the control messages that come with bytes of the carrier.
pub(crate) struct Control {
    /// The program's buffer: its address, and its length before and after the call.
    pub(crate) buffer: *mut core::ffi::c_void,
    pub(crate) len: usize,
    pub(crate) filled: usize,
    /// `msg_flags` of the kernel's answer.
    pub(crate) flags: i32,
}

impl Control {
    /// For calls that have no room for any.
    pub(crate) const fn none() -> Control {
        Control {
            buffer: core::ptr::null_mut(),
            len: 0,
            filled: 0,
            flags: 0,
        }
    }

    /// True when control messages came, even if there was no room for them: the kernel receives
    /// nothing from behind descriptors in the same call.
    pub(crate) fn ends_receive(&self) -> bool {
        self.filled != 0 || self.flags & libc::MSG_CTRUNC != 0
    }

    /// The kernel's own receive, of bytes of the carrier, into `parts`. It leaves their control
    /// messages here.
    ///
    /// # Safety
    /// `parts` and the buffer are writable.
    pub(crate) unsafe fn receive(&mut self, fd: i32, parts: &mut [iovec], flags: i32) -> isize {
        // SAFETY: zeroes are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = self.buffer;
        message.msg_controllen = self.len as _;
        // SAFETY: the caller's promise.
        let result = unsafe { sys::recvmsg(fd, &mut message, flags) };
        if result > 0 {
            self.filled = message.msg_controllen as usize;
            self.flags = message.msg_flags & libc::MSG_CTRUNC;
        }
        result
    }
}
