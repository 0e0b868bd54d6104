//! The program's buffers: the memory that `iovec`s name, from a given byte on.

use core::ffi::c_void;

use libc::iovec;
use toehold_channel::ring::Stretches;
use toehold_freestanding::guarded::{self, Fault};

use crate::system::faults;

/// Most parts a call may name (`UIO_MAXIOV`).
pub(crate) const PARTS_MAX: usize = 1024;

/// The kernel moves no more in one call (`MAX_RW_COUNT` in include/linux/fs.h).
pub(crate) const CALL_BYTES_MAX: usize = i32::MAX as usize & !0xfff;

/// One more than the highest address of a program (`TASK_SIZE_MAX` with four levels of pages).
#[cfg(target_arch = "x86_64")]
const ADDRESSES_END: usize = (1 << 47) - 4096;
/// As above, for kernels with addresses of up to 52 bits.
#[cfg(not(target_arch = "x86_64"))]
const ADDRESSES_END: usize = 1 << 52;

/// False for a buffer that ends beyond the highest address of a program: the kernel refuses it,
/// however few bytes are moved (`access_ok`).
#[inline]
pub(crate) fn is_possible(base: *const c_void, len: usize) -> bool {
    (base as usize)
        .checked_add(len)
        .is_some_and(|end| end <= ADDRESSES_END)
}

/// The most bytes that a call with `parts` moves (lib/iov_iter.c, `__import_iovec`).
///
/// # Errors
/// The errno with which the kernel refuses `parts`.
#[inline]
pub(crate) fn total(parts: &[iovec]) -> Result<usize, i32> {
    if let [only] = parts
        && only.iov_len <= CALL_BYTES_MAX
    {
        return Ok(only.iov_len);
    }
    let (mut sum, mut are_possible) = (0usize, true);
    for part in parts {
        if part.iov_len.cast_signed() < 0 {
            return Err(libc::EINVAL);
        }
        sum = sum.saturating_add(part.iov_len);
        are_possible &= is_possible(part.iov_base, part.iov_len);
    }
    // The kernel limits the length of a single part before it checks it.
    if parts.len() > 1 && !are_possible {
        return Err(libc::EFAULT);
    }
    Ok(sum.min(CALL_BYTES_MAX))
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

/// Most parts of a [`window`].
pub(crate) const WINDOW_MAX: usize = 16;

/// Up to [`WINDOW_MAX`] parts that name bytes `skip..skip + len` of `parts`, for a kernel call;
/// returns them and how many there are.
pub(crate) fn window(parts: &[iovec], skip: usize, len: usize) -> ([iovec; WINDOW_MAX], usize) {
    let mut out = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; WINDOW_MAX];
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

/// The parts in an array; `None` when the kernel would refuse them.
///
/// # Safety
/// Nobody changes `count` elements at `iov`. Once there is a connection, a bad array is allowed;
/// before that the array is not read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_cut_or_refused_as_by_the_kernel() {
        let at = |len: usize| part(core::ptr::without_provenance(4096), len);
        const LONGEST: usize = isize::MAX as usize;
        for (parts, answer) in [
            (&[][..], Ok(0)),
            (&[at(0)], Ok(0)),
            (&[at(7)], Ok(7)),
            (&[at(7), at(0), at(1)], Ok(8)),
            (&[at(LONGEST)], Ok(CALL_BYTES_MAX)),
            (&[at(usize::MAX)], Err(libc::EINVAL)),
            (&[at(1), at(LONGEST)], Err(libc::EFAULT)),
            (&[at(LONGEST), at(usize::MAX)], Err(libc::EINVAL)),
            (&[at(1 << 40), at(1 << 40)], Ok(CALL_BYTES_MAX)),
        ] {
            assert_eq!(total(parts), answer, "{:?}", parts.len());
        }
        assert!(is_possible(core::ptr::null(), 0));
        assert!(!is_possible(
            core::ptr::without_provenance(8),
            usize::MAX - 8
        ));
        assert!(!is_possible(core::ptr::without_provenance(8), LONGEST));
    }
}
