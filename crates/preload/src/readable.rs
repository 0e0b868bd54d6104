//! Whether the arguments of a call that executes a program can be read.
//!
//! The library looks at the path and at the environment before the kernel does. The kernel must
//! refuse a bad pointer there, so the library first asks the kernel about each page, with a system
//! call that changes nothing. The library's SIGSEGV handler is not sufficient here: the caller may
//! be a `vfork` child or a thread that blocks the signal, and a process without connections does
//! not have that handler.

use core::ffi::c_char;

use toehold_sockets::system::faults;

use crate::program::Target;

/// True when the path and all of the environment can be read.
pub(crate) fn can_be_read(target: Target, environment: *const *const c_char) -> bool {
    let mut known = Known::default();
    let path = match target {
        Target::Path(path) | Target::Name(path) | Target::At(_, path, _) => path,
        Target::Descriptor(_) => core::ptr::null(),
    };
    (path.is_null() || known.is_string(path)) && known.is_list(environment)
}

/// The last readable pages: one of the list, and one of its strings.
#[derive(Default)]
struct Known {
    list: usize,
    strings: usize,
}

impl Known {
    /// A list of strings that ends with a null pointer, or no list.
    fn is_list(&mut self, list: *const *const c_char) -> bool {
        const WORD_BYTES: usize = size_of::<*const c_char>();
        if list.is_null() {
            return true;
        }
        let mut at = list as usize;
        loop {
            let ends = [at, at.wrapping_add(WORD_BYTES - 1)];
            if !ends.iter().all(|&end| is_known(&mut self.list, end)) {
                return false;
            }
            // SAFETY: the kernel has just read both ends. Programs may have it anywhere.
            let string = unsafe { (at as *const *const c_char).read_unaligned() };
            if string.is_null() {
                return true;
            }
            if !self.is_string(string) {
                return false;
            }
            at = at.wrapping_add(WORD_BYTES);
        }
    }

    /// A string that ends with a null byte.
    fn is_string(&mut self, string: *const c_char) -> bool {
        let mut at = string as usize;
        loop {
            if !is_known(&mut self.strings, at) {
                return false;
            }
            let left = PAGE_BYTES - at % PAGE_BYTES;
            // SAFETY: up to the end of a page that the kernel has just read.
            let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, left) };
            if bytes.contains(&0) {
                return true;
            }
            at = at.wrapping_add(left);
        }
    }
}

/// True when the page of an address can be read. `known` is the last page that could be read.
fn is_known(known: &mut usize, address: usize) -> bool {
    let page = address / PAGE_BYTES;
    let can_read = *known == page && page != 0 || faults::kernel_can_read(address);
    if can_read {
        *known = page;
    }
    can_read
}

const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_strings_end_before_the_first_page_that_is_not_there() {
        // SAFETY: fresh pages, of which the second one is protected.
        let edge = unsafe {
            let (all, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            let pages = libc::mmap(core::ptr::null_mut(), 2 * PAGE_BYTES, all, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let second = pages.cast::<u8>().add(PAGE_BYTES);
            libc::mprotect(second.cast(), PAGE_BYTES, libc::PROT_NONE);
            second
        };
        let last_word = edge.wrapping_sub(8).cast::<*const c_char>();
        let target = Target::Path(c"/bin/true".as_ptr());
        let good = [c"A=1".as_ptr(), core::ptr::null()];
        assert!(can_be_read(target, good.as_ptr()));
        assert!(can_be_read(target, core::ptr::null()));
        assert!(can_be_read(target, last_word));
        // SAFETY: the last word of the page.
        unsafe { last_word.write(c"A=1".as_ptr()) };
        assert!(!can_be_read(target, last_word));
        assert!(!can_be_read(target, last_word.wrapping_byte_add(4)));
        assert!(!can_be_read(target, core::ptr::without_provenance(8)));
        let bad = [edge.cast_const().cast(), core::ptr::null()];
        assert!(!can_be_read(target, bad.as_ptr()));
        // SAFETY: as above.
        unsafe { edge.wrapping_sub(3).copy_from(b"A=1".as_ptr(), 3) };
        let endless: *const c_char = edge.wrapping_sub(3).cast();
        assert!(!can_be_read(target, [endless, core::ptr::null()].as_ptr()));
        assert!(!can_be_read(Target::Name(endless), good.as_ptr()));
    }
}
