//! The environment of a program that is about to be executed, with one more variable.

use core::ffi::c_char;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use toehold_freestanding::{call, errno, memory};

use crate::program::{Buffer, preloads_library};

/// Names the descriptor of the hand-over (`toehold_sockets::take_over_from`).
pub(crate) const HANDOVER: &core::ffi::CStr = c"TOEHOLD_HANDOVER";

/// A copy of an environment, not on the heap, because exec may be called where the heap must not be
/// used.
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
        while !unsafe { environment.add(count).read_unaligned() }.is_null() {
            count += 1;
        }
        let pointers = (count + 2) * size_of::<*const c_char>();
        let len = pointers + VARIABLE_BYTES_MAX;
        let base = memory::anonymous(len, false);
        if base.is_null() {
            return None;
        }
        Left::note(base, len);
        let mut longer = Environment {
            base,
            len,
            variables: 0,
        };
        for n in 0..count {
            // SAFETY: below the null pointer.
            let variable = unsafe { environment.add(n).read_unaligned() };
            // One that is left over from an exec before this one means nothing any more.
            // SAFETY: variables are NUL-terminated strings.
            let bytes = unsafe { core::ffi::CStr::from_ptr(variable) }.to_bytes();
            let name = bytes.split(|&byte| byte == b'=').next();
            let is_ours = name == Some(HANDOVER.to_bytes()) || bytes.starts_with(REFUSED);
            if !is_ours {
                longer.push(variable);
            }
        }
        Some(longer)
    }

    /// A copy without `LD_PRELOAD`, for a program that would not start with it. The other libraries
    /// listed there are for this C library, too.
    ///
    /// # Safety
    /// As [`Environment::copy`].
    pub(crate) unsafe fn without_library(
        environment: *const *const c_char,
        buffer: &mut Buffer,
    ) -> Option<Environment> {
        // SAFETY: the caller's promise.
        let mut copy = unsafe { Environment::copy(environment) }?;
        let (count, pointers) = (copy.variables, copy.base.cast::<*const c_char>());
        copy.variables = 0;
        for n in 0..count {
            // SAFETY: one of those that `copy` pushed; what is pushed below comes no later in the
            // array.
            let variable = unsafe { *pointers.add(n) };
            // SAFETY: variables are NUL-terminated strings.
            let bytes = unsafe { core::ffi::CStr::from_ptr(variable) }.to_bytes();
            if !preloads_library(bytes, buffer) {
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
        let digits = Digits::of(descriptor.max(0) as u32);
        self.with([HANDOVER.to_bytes(), b"=", digits.text(), b""])
    }

    /// The copy, with the reason why this process's next program runs without the library.
    pub(crate) fn with_refusal(&mut self, reason: &core::ffi::CStr) -> *const *const c_char {
        // SAFETY: no memory is involved.
        let digits = Digits::of(unsafe { call!(SYS_getpid) } as u32);
        self.with([REFUSED, digits.text(), b":", reason.to_bytes()])
    }

    /// The copy, with a variable of these parts.
    fn with(&mut self, parts: [&[u8]; 4]) -> *const *const c_char {
        let text = parts.into_iter().flatten();
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

    /// There is room for all original variables, one more, and the null pointer.
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
        Left::forget(self.base);
        // SAFETY: mapped by `copy` with this length; the exec that was given it has failed.
        unsafe { memory::unmap(self.base, self.len) };
    }
}

/// An environment that an exec has left behind, or may leave behind. The exec of a `vfork` child
/// does not end the memory, which is its parent's. The child has its parent's thread pointer, and
/// the parent's thread waits for the exec. So the next exec of that thread, or of its next child,
/// unmaps the memory.
struct Left {
    /// The thread, by its number; 0 for a free place.
    thread: AtomicUsize,
    base: AtomicPtr<u8>,
    len: AtomicUsize,
}

/// The most environments that are recorded. Further ones stay mapped in the parent.
const LEFT_MAX: usize = 64;
static LEFT: [Left; LEFT_MAX] = [const {
    Left {
        thread: AtomicUsize::new(0),
        base: AtomicPtr::new(core::ptr::null_mut()),
        len: AtomicUsize::new(0),
    }
}; LEFT_MAX];

// Relaxed everywhere: the words of a place are used by its thread only, and by children that have
// the thread's number while it waits.
impl Left {
    fn note(base: *mut u8, len: usize) {
        let me = errno::thread();
        let take = |place: &&Left| {
            (place.thread)
                .compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        if let Some(place) = LEFT.iter().find(take) {
            place.base.store(base, Ordering::Relaxed);
            place.len.store(len, Ordering::Relaxed);
        }
    }

    /// Those of this thread.
    fn ours() -> impl Iterator<Item = &'static Left> {
        let me = errno::thread();
        LEFT.iter()
            .filter(move |place| place.thread.load(Ordering::Relaxed) == me)
    }

    fn forget(base: *mut u8) {
        let mut ours = Left::ours();
        if let Some(place) = ours.find(|place| place.base.load(Ordering::Relaxed) == base) {
            place.thread.store(0, Ordering::Relaxed);
        }
    }
}

/// Unmaps the environments with which earlier `vfork` children of this thread have executed
/// programs. No exec of this thread is under way.
pub(crate) fn take_back_left() {
    for place in Left::ours() {
        let base = place.base.load(Ordering::Relaxed);
        let len = place.len.load(Ordering::Relaxed);
        // SAFETY: mapped by `Environment::copy` with this length, and not dropped since. The exec
        // that was given it is over.
        unsafe { memory::unmap(base, len) };
        place.thread.store(0, Ordering::Relaxed);
    }
}

/// A number in decimal digits.
struct Digits {
    digits: [u8; 10],
    at: usize,
}

impl Digits {
    fn of(mut rest: u32) -> Digits {
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 || at == 0 {
                return Digits { digits, at };
            }
        }
    }

    fn text(&self) -> &[u8] {
        &self.digits[self.at..]
    }
}

/// Tells `toehold status` why a program runs without the library (`toehold_adapter::unserved`).
const REFUSED: &[u8] = b"TOEHOLD_REFUSED=";
/// Room for the variable: name, number, and a sentence; NUL.
const VARIABLE_BYTES_MAX: usize = 256;
const _: () = assert!(HANDOVER.to_bytes().len() + 12 <= VARIABLE_BYTES_MAX);
