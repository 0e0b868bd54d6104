//! The clock and the number of the processor, as the kernel answers them without being entered
//! (vdso(7)).

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::call;
use crate::elf::{Name, Symbols};
use crate::objects;

/// A function that was looked for once. The address of this library's own `MISSING` says that there
/// is none.
struct Found {
    place: AtomicPtr<c_void>,
    name: Name,
}

static MISSING: u8 = 0;

impl Found {
    const fn new(name: Name) -> Found {
        Found {
            place: AtomicPtr::new(core::ptr::null_mut()),
            name,
        }
    }

    #[inline]
    fn get(&self) -> Option<*mut c_void> {
        // Relaxed: every search finds the same address.
        let mut found = self.place.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.search();
        }
        (found != missing()).then_some(found)
    }

    #[cold]
    fn search(&self) -> *mut c_void {
        let header = objects::vdso() as *const u8;
        // SAFETY: the kernel's object, if there is one.
        let symbols = (!header.is_null()).then(|| unsafe { Symbols::at_header(header) });
        let found = symbols.flatten().and_then(|all| all.find(&self.name));
        let found = found.unwrap_or(missing());
        self.place.store(found, Ordering::Relaxed);
        found
    }
}

fn missing() -> *mut c_void {
    (&raw const MISSING).cast_mut().cast()
}

/// `clock_gettime(2)` of the monotonic clock.
#[inline]
pub fn monotonic() -> libc::timespec {
    static CLOCK: Found = Found::new(Name::new(if cfg!(target_arch = "aarch64") {
        c"__kernel_clock_gettime"
    } else {
        c"__vdso_clock_gettime"
    }));
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let clock = libc::CLOCK_MONOTONIC;
    let answer = CLOCK.get().map_or(-1, |function| {
        // SAFETY: the kernel's function of that name has this signature.
        unsafe {
            core::mem::transmute::<*mut c_void, extern "C" fn(i32, *mut libc::timespec) -> i32>(
                function,
            )(clock, &mut time)
        }
    });
    if answer != 0 {
        // SAFETY: `time` is writable.
        unsafe { call!(SYS_clock_gettime, clock, &raw mut time) };
    }
    time
}

/// `getcpu(2)`: the processor that this thread runs on.
#[inline]
pub fn processor() -> u32 {
    static GETCPU: Found = Found::new(Name::new(c"__vdso_getcpu"));
    let mut processor = 0u32;
    let none = core::ptr::null_mut::<c_void>();
    match GETCPU.get() {
        Some(function) => {
            type GetCpu = extern "C" fn(*mut u32, *mut u32, *mut c_void) -> i32;
            // SAFETY: the kernel's function of that name has this signature.
            unsafe {
                core::mem::transmute::<*mut c_void, GetCpu>(function)(
                    &mut processor,
                    core::ptr::null_mut(),
                    none,
                )
            };
        }
        // SAFETY: `processor` is writable; the rest is not asked for.
        None => unsafe {
            call!(SYS_getcpu, &raw mut processor, 0, 0);
        },
    }
    processor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_libc_s() {
        let nanoseconds = |time: libc::timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
        let mut libc_s = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let before = monotonic();
        // SAFETY: `libc_s` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut libc_s) };
        let after = monotonic();
        assert!(nanoseconds(before) <= nanoseconds(libc_s));
        assert!(nanoseconds(libc_s) <= nanoseconds(after));
    }
}
