//! The clock and the processor number, read from the kernel without a system call (vdso(7)).

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::call;
use crate::elf::{Name, Symbols};
use crate::objects;

/// `clock_gettime(2)`.
type Clock = extern "C" fn(i32, *mut libc::timespec) -> i32;
/// `getcpu(2)`.
type GetCpu = extern "C" fn(*mut u32, *mut u32, *mut c_void) -> i32;

// Each points first to a function that looks for the kernel's function and replaces the pointer
// with it, or with a function that makes the system call.
static CLOCK: AtomicPtr<c_void> = AtomicPtr::new(first_clock as *const () as *mut c_void);
static GETCPU: AtomicPtr<c_void> = AtomicPtr::new(first_getcpu as *const () as *mut c_void);

/// The kernel's function of this name; null if there is none.
fn find(name: &Name) -> *mut c_void {
    let header = objects::vdso() as *const u8;
    if header.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the kernel's object.
    let symbols = unsafe { Symbols::at_header(header) };
    let found = symbols.and_then(|all| all.find(name));
    found.unwrap_or(core::ptr::null_mut())
}

#[cold]
extern "C" fn first_clock(clock: i32, time: *mut libc::timespec) -> i32 {
    const NAME: Name = Name::new(if cfg!(target_arch = "aarch64") {
        c"__kernel_clock_gettime"
    } else {
        c"__vdso_clock_gettime"
    });
    let mut found = find(&NAME);
    if found.is_null() {
        found = clock_by_call as *const () as *mut c_void;
    }
    // Relaxed: every search finds the same address.
    CLOCK.store(found, Ordering::Relaxed);
    // SAFETY: a function of this type.
    unsafe { core::mem::transmute::<*mut c_void, Clock>(found)(clock, time) }
}

extern "C" fn clock_by_call(clock: i32, time: *mut libc::timespec) -> i32 {
    // SAFETY: the caller's time is writable.
    unsafe { call!(SYS_clock_gettime, clock, time) as i32 }
}

#[cold]
extern "C" fn first_getcpu(processor: *mut u32, node: *mut u32, cache: *mut c_void) -> i32 {
    const NAME: Name = Name::new(c"__vdso_getcpu");
    let mut found = find(&NAME);
    if found.is_null() {
        found = getcpu_by_call as *const () as *mut c_void;
    }
    // Relaxed: every search finds the same address.
    GETCPU.store(found, Ordering::Relaxed);
    // SAFETY: a function of this type.
    unsafe { core::mem::transmute::<*mut c_void, GetCpu>(found)(processor, node, cache) }
}

extern "C" fn getcpu_by_call(processor: *mut u32, _node: *mut u32, _cache: *mut c_void) -> i32 {
    // SAFETY: the caller's word is writable; the rest is not asked for.
    unsafe { call!(SYS_getcpu, processor, 0, 0) as i32 }
}

/// `clock_gettime(2)` of the monotonic clock.
#[inline]
pub fn monotonic() -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let clock = CLOCK.load(Ordering::Relaxed);
    // SAFETY: a function of this type.
    unsafe { core::mem::transmute::<*mut c_void, Clock>(clock)(libc::CLOCK_MONOTONIC, &mut time) };
    time
}

/// `getcpu(2)`: the processor that this thread runs on.
#[inline]
pub fn processor() -> u32 {
    let mut processor = 0;
    let none = core::ptr::null_mut();
    let getcpu = GETCPU.load(Ordering::Relaxed);
    // SAFETY: a function of this type.
    unsafe {
        core::mem::transmute::<*mut c_void, GetCpu>(getcpu)(&mut processor, none, none.cast())
    };
    processor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_agrees_with_libc() {
        let nanoseconds = |time: libc::timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
        let mut by_libc = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let before = monotonic();
        // SAFETY: `by_libc` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut by_libc) };
        let after = monotonic();
        assert!(nanoseconds(before) <= nanoseconds(by_libc));
        assert!(nanoseconds(by_libc) <= nanoseconds(after));
    }
}
