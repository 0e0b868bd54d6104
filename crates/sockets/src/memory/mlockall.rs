//! `mlockall(2)` of a program that has rings.
//!
//! The kernel would make every mapped page resident: for a slab about 64 MB, of which the program
//! uses some KB; for the routing page 12 MB, for a pair 430 KB. It also compares the size of all
//! mappings with the user's limit (mm/mlock.c: `total_vm` under `RLIMIT_MEMLOCK`). So these large
//! mappings are left out: each other mapping is locked separately, and the library's pages are
//! locked when they are touched. Without such mappings the call goes to the kernel unchanged.

use core::ffi::c_int;

use toehold_channel::memfd;

use crate::memory::{pairs, slabs};
use crate::offload::routing;
use crate::system::{real, sys};
use crate::{adapter, process};

/// `mlockall(2)`.
///
/// # Safety
/// As for the C function.
pub unsafe fn mlockall(flags: c_int) -> c_int {
    if !process::is_started() || process::borrowed_memory() {
        // SAFETY: the caller's promise, here and below.
        return unsafe { real::mlockall(flags) };
    }
    let later = flags & libc::MCL_FUTURE != 0;
    // Set before the kernel's call, so that a mapping that another thread makes meanwhile does not
    // become resident as a whole.
    let before = memfd::lock_on_fault(later);
    // While this lock is held, no slab is mapped or unmapped.
    let held = adapter::lock();
    let result = if flags & libc::MCL_CURRENT == 0 || large().next().is_none() {
        None
    } else {
        // SAFETY: as above.
        unsafe { lock_others(flags) }
    };
    drop(held);
    // SAFETY: as above.
    let result = result.unwrap_or_else(|| unsafe { real::mlockall(flags) });
    if result != 0 {
        memfd::lock_on_fault(before);
    }
    result
}

/// `munlockall(2)`.
///
/// # Safety
/// As for the C function.
pub unsafe fn munlockall() -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { real::munlockall() };
    if result == 0 {
        forked();
    }
    result
}

/// A child does not inherit memory locks (mlock(2)).
pub(crate) fn forked() {
    memfd::lock_on_fault(false);
}

/// Our mappings that are mostly untouched: address and length of each.
fn large() -> impl Iterator<Item = (usize, usize)> {
    slabs::mapped()
        .chain(pairs::mapped())
        .chain(routing::mapped())
}

/// Locks all but our large mappings as `mlockall` would. `None` when the kernel has to refuse the
/// call, or when there is no `/proc`.
unsafe fn lock_others(flags: c_int) -> Option<c_int> {
    const PAGE: usize = 4096;
    let ours: usize = large().map(|(_, len)| len).sum();
    let theirs = mapped_bytes()?.saturating_sub(ours);
    let limit = sys::memory_lock_limit();
    let has_room = theirs / PAGE <= limit / PAGE && limit != 0;
    if !has_room && !sys::has_right(sys::Right::LockMemory) {
        return None;
    }
    let on_fault = flags & libc::MCL_ONFAULT;
    // This sets what happens to later mappings. It changes none of those that there are.
    // SAFETY: the program asked for it.
    let result = unsafe {
        match flags & libc::MCL_FUTURE {
            0 => real::munlockall(),
            future => real::mlockall(future | on_fault),
        }
    };
    if result != 0 {
        return Some(result);
    }
    let mode = match on_fault {
        0 => 0,
        _ => libc::MLOCK_ONFAULT as usize,
    };
    let known = each_mapping(|begins, ends| {
        let is_ours = |&(base, len): &(usize, usize)| begins < base + len && base < ends;
        match large().find(is_ours) {
            // Like `mlockall`, goes on after an error.
            None => sys::lock_memory(begins, ends - begins, mode),
            Some(_) => sys::lock_memory(begins, ends - begins, libc::MLOCK_ONFAULT as usize),
        }
    });
    known.then_some(0)
}

/// Bytes of address space that this process has.
fn mapped_bytes() -> Option<usize> {
    let mut pages = 0usize;
    let mut done = false;
    let read = sys::each_byte(c"/proc/self/statm", |byte| match byte {
        b'0'..=b'9' if !done => pages = pages * 10 + usize::from(byte - b'0'),
        _ => done = true,
    });
    (read && pages != 0).then_some(pages * 4096)
}

/// Calls `each` with the first address of each mapping and the address behind its last. False when
/// the mappings cannot be read.
fn each_mapping(mut each: impl FnMut(usize, usize)) -> bool {
    // A line begins "7f0012345000-7f0012346000 ".
    let (mut addresses, mut at) = ([0usize; 2], Some(0));
    sys::each_byte(c"/proc/self/maps", |byte| {
        let digit = (byte as char).to_digit(16).map(|digit| digit as usize);
        (addresses, at) = match (at, byte, digit) {
            (_, b'\n', _) => ([0; 2], Some(0)),
            (Some(n), _, Some(digit)) => {
                addresses[n] = addresses[n] << 4 | digit;
                (addresses, at)
            }
            (Some(0), b'-', _) => (addresses, Some(1)),
            (Some(_), ..) => {
                each(addresses[0], addresses[1]);
                (addresses, None)
            }
            (None, ..) => (addresses, None),
        };
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pairs::tests::pair_with_file;

    /// Bytes of this process that are in memory.
    fn resident_bytes() -> usize {
        let (mut field, mut pages) = (0, 0);
        sys::each_byte(c"/proc/self/statm", |byte| match byte {
            b'0'..=b'9' if field == 1 => pages = pages * 10 + usize::from(byte - b'0'),
            b' ' => field += 1,
            _ => {}
        });
        pages * 4096
    }

    /// The program has many peers, and locks its memory before and after it meets them.
    #[test]
    fn pairs_with_many_peers_are_locked_as_they_are_touched() {
        const PEERS: u64 = 100;
        // SAFETY: the child works on memory of its own, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let works = || {
                let before = resident_bytes();
                for id in 0..PEERS / 2 {
                    pair_with_file(id)?;
                }
                // SAFETY: memory of this process.
                let locked = unsafe { lock_others(libc::MCL_CURRENT) };
                if locked.is_none() {
                    // The kernel has to refuse the call.
                    return Some(!sys::has_right(sys::Right::LockMemory));
                }
                let after_current = resident_bytes();
                memfd::lock_on_fault(true);
                // SAFETY: as above.
                if locked != Some(0) || unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
                    return None;
                }
                for id in PEERS / 2..PEERS {
                    pair_with_file(id)?;
                }
                // All pages of the pairs would be 43 MB. Locking also makes other pages resident:
                // programs, stacks.
                let pairs = resident_bytes().saturating_sub(after_current);
                Some(pairs < 4 << 20 && each_pair_is_sparse() && before != 0)
            };
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(works() != Some(true))) };
        }
        let mut status = -1;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    /// True when of each mapping of the pairs few pages are in memory.
    fn each_pair_is_sparse() -> bool {
        pairs::mapped().all(|(base, len)| {
            let mut present = [0u8; 256];
            // SAFETY: one byte for each page of a mapping, none of which has more than 256.
            let asked = unsafe { libc::mincore(base as *mut _, len, present.as_mut_ptr()) };
            let count = present.iter().filter(|page| **page & 1 != 0).count();
            asked == 0 && count <= 4
        })
    }

    #[test]
    fn mappings_are_those_of_the_kernels_list() {
        let text = std::fs::read_to_string("/proc/self/maps").expect("readable");
        let local = &raw const text as usize;
        let (mut count, mut has_stack) = (0, false);
        assert!(each_mapping(|begins, ends| {
            assert!(begins < ends && begins % 4096 == 0 && ends % 4096 == 0);
            has_stack |= (begins..ends).contains(&local);
            count += 1;
        }));
        assert!(has_stack);
        // The list changes between the two looks, but not much.
        assert!(count + 8 > text.lines().count() && count < text.lines().count() + 8);
        assert!(mapped_bytes().expect("known") > 1 << 20);
    }
}
