//! Libraries of Go (`-buildmode=c-shared`) in a program with libc: linked with it, or opened by it
//! (`dlopen`). They make system calls themselves, which are patched like those of a program
//! ([`super::within`]).
//!
//! A patch must not be written while a thread is at its instructions. Go's runtime begins with a
//! thread that the library's constructor makes with `pthread_create(3)`. That call is the right
//! moment for patching: the library is mapped and relocated, and none of its system calls is
//! running. The dynamic linker may run that constructor before ours; then our library starts here.
//!
//! A library that a program opens with `RTLD_DEEPBIND`, or in a separate namespace (`dlmopen`),
//! calls libc's `pthread_create` directly. It stays on the kernel, and `toehold status` says why.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use toehold_sockets::system::real;
use toehold_sockets::{is_confined, is_started};

use super::object::Object;
use super::refusal::Refusal;
use super::within;
use crate::constructor;

/// `pthread_create(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    begin: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    if within::is_wanted() {
        look_at(begin as usize);
    }
    // SAFETY: passed on with the caller's promises.
    unsafe { real::pthread_create(thread, attributes, begin, argument) }
}

/// Address ranges (first byte, end) of the libraries that were looked at. A library is patched
/// before its first thread begins, or never. Places are taken in order, and never freed.
static LOOKED_AT: [[AtomicUsize; 2]; LIBRARIES_MAX] =
    [const { [const { AtomicUsize::new(0) }; 2] }; LIBRARIES_MAX];
/// Each library has its own runtime with threads, so few processes have two. Of the unused places
/// only the first page uses memory.
const LIBRARIES_MAX: usize = 1024;

/// A thread is about to begin at `code`.
fn look_at(code: usize) {
    let is_program = |span: Range<usize>| span.contains(&code);
    if Object::program().span().is_some_and(is_program) || was_looked_at(code) {
        return;
    }
    let Some(library) = Object::library_of_go(code) else {
        return;
    };
    let is_noted = note(library);
    if !is_noted && OVERFLOW_IS_TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let is_first = constructor::run();
    let is_served = is_started() && real::has_libc() && !is_confined();
    let result = match (is_noted, is_served) {
        (false, _) => Err(Refusal::TooMany),
        (_, false) => Err(Refusal::NotServed),
        _ => within::patch_library(library),
    };
    if let Err(refusal) = result
        && crate::start::is_asked_for()
    {
        refusal.tell_of_library(library.name(), is_first);
    }
}

/// The reason is reported once for all libraries without a place, because each of their threads
/// comes here. Relaxed: the first thread that sets it reports.
static OVERFLOW_IS_TOLD: AtomicBool = AtomicBool::new(false);

fn was_looked_at(code: usize) -> bool {
    // Relaxed: a place that was taken stays so, and those before it are.
    let mut taken = LOOKED_AT
        .iter()
        .take_while(|[start, _]| start.load(Ordering::Relaxed) != 0);
    taken.any(|[start, end]| {
        // Acquire pairs with the Release in `note`: the start is there when the end is.
        let end = end.load(Ordering::Acquire);
        // Relaxed: behind that load.
        (start.load(Ordering::Relaxed)..end).contains(&code)
    })
}

/// False when no place is left: then the library stays on the kernel.
fn note(library: Object) -> bool {
    let Some(span) = library.span() else {
        return false;
    };
    // Relaxed: the exchange only takes the place.
    let mut places = LOOKED_AT.iter();
    let place = places.find(|[start, _]| {
        let taken = start.compare_exchange(0, span.start, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok()
    });
    if let Some([_, end]) = place {
        // Release pairs with the Acquire in `was_looked_at`.
        end.store(span.end, Ordering::Release);
    }
    place.is_some()
}
