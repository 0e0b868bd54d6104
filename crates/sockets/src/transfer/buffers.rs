//! The program's buffers: what `iovec`s name, from a given byte on.

use core::ffi::c_void;

use libc::iovec;
use toehold_channel::ring::Stretches;
use toehold_freestanding::guarded::{self, Fault};

use crate::system::faults;

/// Most parts a call may name (`UIO_MAXIOV`).
pub(crate) const PARTS_MAX: usize = 1024;

/// Total length of `parts`, or `None` when it exceeds what a call can return.
pub(crate) fn total(parts: &[iovec]) -> Option<usize> {
    parts.iter().try_fold(0usize, |sum, part| {
        sum.checked_add(part.iov_len)
            .filter(|&total| total <= isize::MAX as usize)
    })
}

/// Calls `each` with the stretches of program memory that bytes `skip..skip + len` of `parts`
/// occupy.
#[inline]
fn each_piece(
    parts: &[iovec],
    mut skip: usize,
    mut len: usize,
    mut each: impl FnMut(*mut u8, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    for part in parts {
        if len == 0 {
            return Ok(());
        }
        if skip >= part.iov_len {
            skip -= part.iov_len;
            continue;
        }
        let piece = (part.iov_len - skip).min(len);
        each(part.iov_base.cast::<u8>().wrapping_add(skip), piece)?;
        len -= piece;
        skip = 0;
    }
    Ok(())
}

/// Copies ring bytes into the program's buffers, from its byte `skip` on.
///
/// # Errors
/// When a buffer cannot be written. Some bytes may have been.
///
/// # Safety
/// `ring` maps the stretches; `parts` name at least `skip` plus the stretches' length in total, and
/// nobody else uses these bytes.
#[inline]
pub(crate) unsafe fn scatter(
    ring: *mut u8,
    stretches: Stretches,
    parts: &[iovec],
    skip: usize,
) -> Result<(), Fault> {
    let mut at = skip;
    for (offset, len) in stretches {
        let mut source = ring.wrapping_add(offset);
        each_piece(parts, at, len, |target, piece| {
            // SAFETY: the caller's promise; `each_piece` stays within `len` and within each part.
            unsafe { guarded::try_from_shared(source, target, piece) }?;
            source = source.wrapping_add(piece);
            Ok(())
        })?;
        at += len;
    }
    Ok(())
}

/// Copies the program's bytes, from `skip` on, into ring memory.
///
/// # Errors
/// When a buffer cannot be read. Some bytes may be in the ring.
///
/// # Safety
/// `ring` maps the stretches; `parts` name at least `skip` plus the stretches' length in total, and
/// nobody writes these bytes.
#[inline]
pub(crate) unsafe fn gather(
    ring: *mut u8,
    stretches: Stretches,
    parts: &[iovec],
    skip: usize,
) -> Result<(), Fault> {
    let mut at = skip;
    for (offset, len) in stretches {
        let mut target = ring.wrapping_add(offset);
        each_piece(parts, at, len, |source, piece| {
            // SAFETY: as for `scatter`.
            unsafe { guarded::try_to_shared(source, target, piece) }?;
            target = target.wrapping_add(piece);
            Ok(())
        })?;
        at += len;
    }
    Ok(())
}

/// Up to 16 parts that name bytes `skip..skip + len` of `parts`, for a kernel call; returns them
/// and how many there are.
pub(crate) fn window(parts: &[iovec], skip: usize, len: usize) -> ([iovec; 16], usize) {
    let mut out = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 16];
    let mut count = 0;
    let whole = each_piece(parts, skip, len, |base, len| {
        if let Some(place) = out.get_mut(count) {
            *place = iovec {
                iov_base: base.cast(),
                iov_len: len,
            };
            count += 1;
        }
        Ok(())
    });
    debug_assert!(whole.is_ok());
    (out, count)
}

/// One part.
#[inline]
pub(crate) fn part(base: *const c_void, len: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut(),
        iov_len: len,
    }
}

/// The parts an array names, or nothing when the kernel would refuse them.
///
/// # Safety
/// Nobody changes `count` elements at `iov`. The array may be bad once there is a connection;
/// before that nobody looks into it.
#[inline]
pub(crate) unsafe fn parts<'a>(iov: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count == 0 {
        return Some(&[]);
    }
    if iov.is_null() || count > PARTS_MAX || !faults::can_read(iov, count) {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { core::slice::from_raw_parts(iov, count) })
}
