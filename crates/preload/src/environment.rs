//! The environment of a program about to be executed, with one variable more.

use core::ffi::c_char;

use toehold_freestanding::memory;

use crate::program::preloads_library;

/// Names the descriptor of what the former program left (`toehold_sockets::take_over_from`).
pub(crate) const HANDOVER: &core::ffi::CStr = c"TOEHOLD_HANDOVER";

/// A copy of an environment, outside the heap: exec may be called where there is none to be used.
pub(crate) struct Environment {
    base: *mut u8,
    len: usize,
    variables: usize,
}

impl Environment {
    /// Copies the pointers of `environment`; `None` when there is no memory.
    ///
    /// # Safety
    /// `environment` is as `execve(2)` wants it.
    pub(crate) unsafe fn copy(environment: *const *const c_char) -> Option<Environment> {
        if environment.is_null() {
            return None;
        }
        let mut count = 0;
        // SAFETY: the array ends with a null pointer, by the caller's promise.
        while !unsafe { *environment.add(count) }.is_null() {
            count += 1;
        }
        let pointers = (count + 2) * size_of::<*const c_char>();
        let len = pointers + VARIABLE_BYTES_MAX;
        let base = memory::anonymous(len, false);
        if base.is_null() {
            return None;
        }
        let mut longer = Environment {
            base,
            len,
            variables: 0,
        };
        for n in 0..count {
            // SAFETY: below the null pointer.
            let variable = unsafe { *environment.add(n) };
            // One that is left over from an exec before this one means nothing any more.
            // SAFETY: variables are NUL-terminated strings.
            let bytes = unsafe { core::ffi::CStr::from_ptr(variable) }.to_bytes();
            let name = bytes.split(|&byte| byte == b'=').next();
            if name != Some(HANDOVER.to_bytes()) {
                longer.push(variable);
            }
        }
        Some(longer)
    }

    /// A copy without `LD_PRELOAD`, for a program that breaks on it: what else is listed there is
    /// for this C library, too.
    ///
    /// # Safety
    /// As [`Environment::copy`].
    pub(crate) unsafe fn without_library(environment: *const *const c_char) -> Option<Environment> {
        // SAFETY: the caller's promise.
        let mut copy = unsafe { Environment::copy(environment) }?;
        let (count, pointers) = (copy.variables, copy.base.cast::<*const c_char>());
        copy.variables = 0;
        for n in 0..count {
            // SAFETY: one of those that `copy` pushed; what is pushed below comes no later in the
            // array.
            let variable = unsafe { *pointers.add(n) };
            // SAFETY: variables are NUL-terminated strings.
            if !preloads_library(unsafe { core::ffi::CStr::from_ptr(variable) }.to_bytes()) {
                copy.push(variable);
            }
        }
        copy.push(core::ptr::null());
        Some(copy)
    }

    /// The copy as it is.
    pub(crate) fn as_ptr(&self) -> *const *const c_char {
        self.base.cast()
    }

    /// The copy, with the number of a hand-over's descriptor in it.
    pub(crate) fn with_handover(&mut self, descriptor: i32) -> *const *const c_char {
        let name = HANDOVER.to_bytes();
        let digits = {
            let mut digits = [0u8; 10];
            let mut rest = descriptor.max(0) as u32;
            let mut at = digits.len();
            loop {
                at -= 1;
                digits[at] = b'0' + (rest % 10) as u8;
                rest /= 10;
                if rest == 0 || at == 0 {
                    break;
                }
            }
            (digits, at)
        };
        let text = name.iter().chain(b"=").chain(&digits.0[digits.1..]);
        // SAFETY: the last VARIABLE_BYTES_MAX bytes of the mapping are for this; it was zeroed, so
        // the text ends with NUL.
        let variable = unsafe { self.base.add(self.len - VARIABLE_BYTES_MAX) };
        for (n, &byte) in text.take(VARIABLE_BYTES_MAX - 1).enumerate() {
            // SAFETY: `n` is below VARIABLE_BYTES_MAX.
            unsafe { variable.add(n).write(byte) };
        }
        self.push(variable.cast());
        self.base.cast()
    }

    /// Room was made for all of the original's variables, one more, and the null pointer.
    fn push(&mut self, variable: *const c_char) {
        // SAFETY: within that room.
        unsafe {
            self.base
                .cast::<*const c_char>()
                .add(self.variables)
                .write(variable)
        };
        self.variables += 1;
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // SAFETY: mapped by `copy` with this length; the exec that was given it has failed.
        unsafe { memory::unmap(self.base, self.len) };
    }
}

/// Room for the variable: name, `=`, ten digits, NUL.
const VARIABLE_BYTES_MAX: usize = 32;
const _: () = assert!(HANDOVER.to_bytes().len() + 12 <= VARIABLE_BYTES_MAX);
