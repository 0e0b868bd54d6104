//! Control messages that come with the carrier's bytes, and those that a program sends. A ring has
//! none; the library itself tells what is left in a ring.

use libc::{cmsghdr, iovec, msghdr};

use crate::system::real::Door;
use crate::system::{faults, sys};

/// The control messages of a message that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// None, or none that has an effect.
    Nothing,
    /// Descriptors or credentials. They keep their position in the stream.
    Rights,
    /// Other messages, which the kernel either serves or refuses.
    Other,
    /// A list that the kernel refuses before it looks at the bytes.
    IllFormed,
}

/// A longer list goes to the kernel, which may refuse it (`net.core.optmem_max`, 20 KiB and more).
const LIST_BYTES_MAX: usize = 16 << 10;

/// The control messages of `header`. Stream sockets only regard `SOL_SOCKET` (`sock_cmsg_send` in
/// net/core/sock.c, `__scm_send` in net/core/scm.c). Rights have no effect on TCP.
///
/// # Safety
/// The message's control buffer is readable.
#[inline]
pub(crate) unsafe fn sent(door: Door, header: &msghdr) -> Sent {
    match door.length(header.msg_controllen) {
        0 => Sent::Nothing,
        1..=LIST_BYTES_MAX => {
            let mut sent = Sent::Nothing;
            let each = |one: &cmsghdr, _: *const u8, _| {
                let is_rights = matches!(one.cmsg_type, libc::SCM_RIGHTS | libc::SCM_CREDENTIALS);
                sent = match (one.cmsg_level, sent) {
                    (libc::SOL_SOCKET, Sent::Nothing) if is_rights => Sent::Rights,
                    (libc::SOL_SOCKET, _) if !is_rights => Sent::Other,
                    (_, so_far) => so_far,
                };
            };
            // SAFETY: the caller's promise.
            match unsafe { each_sent(door, header, each) } {
                Ok(()) => sent,
                Err(IllFormed) => Sent::IllFormed,
            }
        }
        _ => Sent::Other,
    }
}

/// A list of control messages that the kernel refuses (`EINVAL`).
#[derive(Debug)]
pub(crate) struct IllFormed;

/// Calls `each` with the header of every control message that is to be sent, the place of its data,
/// and how many bytes they are. It goes through the list as the kernel does (`for_each_cmsghdr` and
/// `CMSG_OK` in include/linux/socket.h): libc's macros end before a message that is too long.
///
/// # Errors
/// The list is ill-formed from some message on.
///
/// # Safety
/// The message's control buffer is readable.
pub(crate) unsafe fn each_sent(
    door: Door,
    header: &msghdr,
    mut each: impl FnMut(&cmsghdr, *const u8, usize),
) -> Result<(), IllFormed> {
    const HEADER_BYTES: usize = size_of::<cmsghdr>();
    const _: () = assert!(HEADER_BYTES.is_multiple_of(size_of::<usize>()));
    let base = header.msg_control.cast::<u8>().cast_const();
    let mut rest = door.length(header.msg_controllen);
    let mut at = base;
    // A rest that is shorter than a header is ignored.
    while rest >= HEADER_BYTES && !base.is_null() {
        // SAFETY: within the buffer, which is readable; the program may have put it anywhere.
        let one = unsafe { at.cast::<cmsghdr>().read_unaligned() };
        // musl's is a word of 32 bits with padding, as in `msghdr`.
        let len = door.length(one.cmsg_len);
        if !(HEADER_BYTES..=rest).contains(&len) {
            return Err(IllFormed);
        }
        each(&one, at.wrapping_add(HEADER_BYTES), len - HEADER_BYTES);
        let step = len.next_multiple_of(size_of::<usize>());
        at = at.wrapping_add(step);
        rest = rest.saturating_sub(step);
    }
    Ok(())
}

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

    /// True when control messages came, even if there was no room for them. Then the receive ends,
    /// because the kernel does not go on past descriptors in one call.
    pub(crate) fn ends_receive(&self) -> bool {
        self.filled != 0 || self.flags & libc::MSG_CTRUNC != 0
    }

    /// Receives the carrier's bytes into `parts` with a system call, and their control messages
    /// into this buffer.
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

    /// Adds a message with a number behind those that have come, as the kernel does (`put_cmsg` in
    /// net/core/scm.c): a message that has too little room is cut.
    ///
    /// # Safety
    /// The buffer is the call's, if it is there.
    pub(crate) unsafe fn add(&mut self, level: i32, kind: i32, number: i32) {
        /// A control message as the kernel writes it. The padding at its end is not written.
        #[repr(C)]
        struct Numbered {
            len: usize,
            level: i32,
            kind: i32,
            number: i32,
        }
        const BYTES: usize = size_of::<cmsghdr>() + size_of::<i32>();
        const _: () = assert!(core::mem::offset_of!(Numbered, number) == size_of::<cmsghdr>());
        let room = self.len.saturating_sub(self.filled);
        if self.buffer.is_null() || room < BYTES {
            self.flags |= libc::MSG_CTRUNC;
        }
        if self.buffer.is_null() || room < size_of::<cmsghdr>() {
            return;
        }
        let len = BYTES.min(room);
        let message = Numbered {
            len,
            level,
            kind,
            number,
        };
        let target = self.buffer.cast::<u8>().wrapping_add(self.filled);
        // SAFETY: the first `len` bytes are those of the fields; the target is the call's, by the
        // caller's promise.
        if unsafe { faults::give((&raw const message).cast(), target, len) }.is_ok() {
            self.filled += size_of::<Numbered>().min(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of messages, each with its length, level and type, and what follows in the buffer.
    fn list(messages: &[(usize, i32, i32)], tail: usize) -> Vec<usize> {
        let mut words = Vec::new();
        for &(len, level, kind) in messages {
            words.push(len);
            words.push(level as u32 as usize | (kind as u32 as usize) << 32);
            let data = len.saturating_sub(16).min(64).div_ceil(8);
            words.extend(core::iter::repeat_n(0, data));
        }
        words.extend(core::iter::repeat_n(0, tail / 8));
        words
    }

    fn kind_of(words: &mut [usize], len: usize) -> Sent {
        // SAFETY: zeroes are a valid `msghdr`.
        let mut header: msghdr = unsafe { core::mem::zeroed() };
        header.msg_control = words.as_mut_ptr().cast();
        header.msg_controllen = len as _;
        // SAFETY: `len` is within `words`.
        unsafe { sent(Door::Name, &header) }
    }

    /// The bytes that `add` leaves in a buffer of `len` bytes, of which `filled` are in use; the
    /// new length; and whether a message was cut.
    fn added(len: usize, filled: usize) -> ([u8; 48], usize, bool) {
        let mut bytes = [0x5a; 48];
        let mut control = Control {
            buffer: bytes.as_mut_ptr().cast(),
            len,
            filled,
            flags: 0,
        };
        // SAFETY: `len` is within `bytes`.
        unsafe { control.add(6, 36, 0x0102_0304) };
        (bytes, control.filled, control.flags == libc::MSG_CTRUNC)
    }

    #[test]
    fn number_is_added_behind_other_messages() {
        let (bytes, filled, is_cut) = added(48, 24);
        assert_eq!((filled, is_cut), (48, false));
        assert_eq!(bytes[..24], [0x5a; 24]);
        assert_eq!(bytes[24..32], 20_usize.to_ne_bytes());
        assert_eq!(bytes[32..36], 6_i32.to_ne_bytes());
        assert_eq!(bytes[36..40], 36_i32.to_ne_bytes());
        assert_eq!(bytes[40..44], 0x0102_0304_i32.to_ne_bytes());
        assert_eq!(bytes[44..], [0x5a; 4], "padding is not written");
    }

    #[test]
    fn number_without_enough_room_is_cut() {
        for (room, filled, len) in [(0, 0, None), (15, 0, None), (16, 16, Some(16_usize))] {
            let (bytes, now, is_cut) = added(room, 0);
            assert_eq!((now, is_cut), (filled, true), "{room}");
            let told = len.map_or([0x5a; 8], usize::to_ne_bytes);
            assert_eq!(bytes[..8], told, "{room}");
        }
        let (bytes, filled, is_cut) = added(18, 0);
        assert_eq!((filled, is_cut), (18, true));
        assert_eq!(bytes[16..18], 0x0102_0304_i32.to_ne_bytes()[..2]);
        assert_eq!(bytes[18..], [0x5a; 30]);
        let (_, filled, is_cut) = added(20, 0);
        assert_eq!(
            (filled, is_cut),
            (20, false),
            "there is no room for padding"
        );
    }

    #[test]
    fn lists_are_what_the_kernel_calls_them() {
        const RIGHTS: (usize, i32, i32) = (20, libc::SOL_SOCKET, libc::SCM_RIGHTS);
        const MARK: (usize, i32, i32) = (20, libc::SOL_SOCKET, libc::SO_MARK);
        const NONE: (usize, i32, i32) = (20, libc::IPPROTO_TCP, 1);
        for (messages, len, kind) in [
            (&[NONE][..], 20, Sent::Nothing),
            (&[NONE, NONE], 48, Sent::Nothing),
            (&[RIGHTS], 24, Sent::Rights),
            (&[NONE, RIGHTS], 48, Sent::Rights),
            (&[RIGHTS, MARK], 48, Sent::Other),
            (&[MARK, RIGHTS], 48, Sent::Other),
            (&[MARK], 20, Sent::Other),
            // Without room for a header there is nothing.
            (&[RIGHTS], 15, Sent::Nothing),
            (&[NONE, RIGHTS], 39, Sent::Nothing),
            (&[RIGHTS], 19, Sent::IllFormed),
            (&[NONE, RIGHTS], 40, Sent::IllFormed),
            (&[(0, libc::SOL_SOCKET, 1)], 24, Sent::IllFormed),
            (&[(15, libc::IPPROTO_TCP, 1)], 24, Sent::IllFormed),
            (&[(usize::MAX, libc::IPPROTO_TCP, 1)], 24, Sent::IllFormed),
            (
                &[(usize::MAX - 6, libc::SOL_SOCKET, 1)],
                24,
                Sent::IllFormed,
            ),
        ] {
            let mut words = list(messages, 64);
            assert_eq!(kind_of(&mut words, len), kind, "{messages:?}, {len}");
        }
    }
}
