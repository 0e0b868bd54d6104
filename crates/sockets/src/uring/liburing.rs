//! Rings that liburing makes.
//!
//! liburing writes its requests into the ring's memory and has its own tail. It moves the kernel's
//! tail only when it submits them. So before that the requests are read through liburing's
//! structure. The structure is part of liburing's interface (liburing.h): its library keeps the
//! fields in their places, from version 2.0 on.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{
    Control, SETUP_IOPOLL, SETUP_SQE128, hand_over, is_served, leave_all_to_kernel, replace_at,
    request_at,
};

/// The beginning of `struct io_uring`; `sq` is its first member.
#[repr(C)]
pub(crate) struct Ring {
    head: *const AtomicU32,
    tail: *const AtomicU32,
    mask: *const u32,
    _sq_words: [usize; 4],
    entries: *mut u8,
    _sqe_head: u32,
    sqe_tail: u32,
    _sq_rest: [usize; 4],
    _cq: [usize; 11],
    flags: u32,
    fd: i32,
}

const _: () = assert!(core::mem::offset_of!(Ring, entries) == 56);
const _: () = assert!(core::mem::offset_of!(Ring, sqe_tail) == 68);
const _: () = assert!(core::mem::offset_of!(Ring, flags) == 192);
const _: () = assert!(core::mem::offset_of!(Ring, fd) == 196);

/// `IORING_SETUP_SQPOLL`.
const SETUP_SQPOLL: u32 = 1 << 1;

/// liburing has made `ring`.
///
/// # Safety
/// `ring` is a structure that liburing has filled.
pub(crate) unsafe fn made(ring: *const Ring) {
    // SAFETY: the caller's promise.
    if is_served() && unsafe { &*ring }.flags & SETUP_SQPOLL != 0 {
        // A kernel thread takes the requests.
        leave_all_to_kernel();
    }
}

/// liburing is about to submit the requests in `ring`.
///
/// # Safety
/// As for [`made`]; the caller alone uses the ring, as liburing wants it.
pub(crate) unsafe fn submits(ring: *const Ring, control: Control) {
    if !is_served() {
        return;
    }
    // SAFETY: the caller's promise. The pointers are into the ring's memory, which liburing has
    // mapped.
    let (ring, (Some(head), Some(mask))) = (unsafe {
        let ring = &*ring;
        (ring, (ring.head.as_ref(), ring.mask.as_ref()))
    }) else {
        return;
    };
    // Pairs with the kernel's store in `io_commit_sqring`: what stands before it was taken.
    let head = head.load(Ordering::Acquire);
    let entry_bytes = match ring.flags & SETUP_SQE128 {
        0 => 64,
        _ => 128,
    };
    let waiting = ring.sqe_tail.wrapping_sub(head);
    if waiting > mask.saturating_add(1) {
        return;
    }
    let mut are_first = ring.flags & SETUP_IOPOLL == 0;
    for n in 0..waiting {
        // liburing gives its requests out in order, so the index of a request is its place.
        let index = (head.wrapping_add(n) & mask) as usize;
        // SAFETY: entry `index` is one of those that liburing has mapped.
        let (entry, request) = unsafe {
            let entry = ring.entries.add(index * entry_bytes);
            (entry, request_at(entry))
        };
        are_first &= request.only_registers();
        // SAFETY: as above.
        let replace = |from, to| unsafe { replace_at(entry, from, to) };
        if !(are_first && request.is_carried_out(control, replace)) {
            hand_over(&request);
        }
    }
}

/// liburing is about to close `ring`.
///
/// # Safety
/// As for [`made`].
pub(crate) unsafe fn ends(ring: *const Ring) {
    // SAFETY: the caller's promise.
    super::closing(unsafe { &*ring }.fd);
}
