//! The environment variables of this process.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::elf::Name;
use crate::objects;

type Variables = *const *const c_char;

/// The environment at the start of the process; libc's variable has the current one.
static AT_START: AtomicPtr<*const c_char> = AtomicPtr::new(core::ptr::null_mut());
/// libc's `environ`; null until it is found.
static ENVIRON: AtomicPtr<Variables> = AtomicPtr::new(core::ptr::null_mut());

/// Stores the environment at the start of the process, for programs without libc.
///
/// # Safety
/// The array ends with a null pointer, and stays valid.
pub unsafe fn learn(variables: Variables) {
    AT_START.store(variables.cast_mut(), Ordering::Relaxed);
}

/// The environment: null, or an array that ends with a null pointer.
pub fn variables() -> Variables {
    // The program's own variable, if it has a copy of libc's (R_X86_64_COPY).
    const ENVIRON_NAME: Name = Name::new(c"environ");
    let mut place = ENVIRON.load(Ordering::Relaxed);
    if place.is_null() {
        place = objects::first(&ENVIRON_NAME).cast();
        ENVIRON.store(place, Ordering::Relaxed);
    }
    let at_start = AT_START.load(Ordering::Relaxed).cast_const();
    // SAFETY: libc's variable; a program that changes it meanwhile races with itself.
    let now = unsafe { place.as_ref() }.map_or(core::ptr::null(), |place| *place);
    // Older glibc versions set the variable after the first constructors have run.
    if now.is_null() { at_start } else { now }
}

/// The value of a variable.
///
/// # Safety
/// Nobody changes the environment while the value is used.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn variable(name: &CStr) -> Option<&'static [u8]> {
    let mut at = variables();
    if at.is_null() {
        return None;
    }
    // SAFETY: an array of NUL-terminated strings that ends with a null pointer.
    unsafe {
        while !(*at).is_null() {
            let value = CStr::from_ptr(*at).to_bytes().strip_prefix(name.to_bytes());
            if let Some(value) = value.and_then(|value| value.strip_prefix(b"=")) {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// Removes a variable from the environment, in place.
///
/// # Safety
/// No other thread uses the environment.
pub unsafe fn remove(name: &CStr) {
    let mut at = variables().cast_mut();
    if at.is_null() {
        return;
    }
    // SAFETY: as in `variable`; libc keeps the pointers in writable memory.
    unsafe {
        let mut kept = at;
        while !(*at).is_null() {
            let rest = CStr::from_ptr(*at).to_bytes().strip_prefix(name.to_bytes());
            if !rest.is_some_and(|rest| rest.starts_with(b"=")) {
                *kept = *at;
                kept = kept.add(1);
            }
            at = at.add(1);
        }
        *kept = core::ptr::null();
    }
}
