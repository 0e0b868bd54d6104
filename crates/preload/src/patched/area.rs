//! Each thread's memory for calls from patched sites: a stack, and a few words below it.
//!
//! Go's stacks are small and move, so the library never uses them. The thread's area is found by
//! GS, which no program for Linux uses on x86-64: the launcher sets it for the first thread, and
//! each thread that a patched site makes gets an area before it begins. A thread that was made in
//! another way has inherited its maker's GS. The area contains the FS of its own thread, so such a
//! thread is recognised, and not served.
//!
//! ```text
//! area  words  guard: never reached, see `lowest`  …stack…  end
//!                                        ◀── frames, one for each nesting
//! ```

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use toehold_sockets::system::real;

use super::frame::Frame;
use super::{raw, words};

/// The words that the entry finds by GS. Their offsets are also used in [`super::entry`] and in the
/// launcher.
#[repr(C)]
pub(crate) struct Area {
    /// The end of the stack that is free.
    pub(crate) stack: u64,
    /// The FS of the thread that this area belongs to.
    pub(crate) thread_pointer: u64,
    /// No frame begins below this.
    lowest: u64,
    /// Where the area begins.
    itself: u64,
    /// The thread's number; [`UNUSED`] while it is not known.
    thread: AtomicU64,
    /// All areas are in one list.
    next: AtomicPtr<Area>,
    /// The thread's word for the door (`crate::door`).
    word: i32,
    /// A copy of the maker's frame, with which the new thread begins.
    pub(crate) first: Frame,
}

/// Size of an area in bytes. Only touched pages use memory.
pub(crate) const AREA_BYTES: usize = 512 << 10;
/// The part of an area that one call may use.
pub(crate) const STACK_BYTES: usize = 96 << 10;
/// The words, and guard pages that are never touched, so that a call which uses too much stack
/// cannot overwrite the words.
const RESERVED_BYTES: usize = 64 << 10;
/// The number of a thread that has not begun.
const UNUSED: u64 = u64::MAX;
/// No thread: the area may be taken.
const FREE: u64 = 0;

/// A thread that finds or takes an area in the list sees its words. Release pairs with Acquire in
/// `take_used` ([`AREA_ACQUIRE`]).
const AREA_RELEASE: Ordering = Ordering::Release;
/// Acquire pairs with the Release of [`AREA_RELEASE`] in `take`, `give_back` and `claim`.
const AREA_ACQUIRE: Ordering = Ordering::Acquire;

const _: () = assert!(AREA_BYTES >= RESERVED_BYTES + 4 * STACK_BYTES);
const _: () = assert!(size_of::<Area>() <= 4096);

/// The list of all areas but the first thread's. Areas stay for good and are used again.
static AREAS: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());
/// Where the last search began.
static CURSOR: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());
/// The most areas about which a search asks the kernel.
const ASKED_MAX: usize = 4;

/// Areas for threads that libc has made. Such a thread takes one at its first call from a patched
/// site, by instructions that need no stack ([`super::entry::beside_libc`]).
pub(super) static SPARES: [AtomicPtr<Area>; SPARES_COUNT] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SPARES_COUNT];
/// The entry has an instruction for each.
pub(super) const SPARES_COUNT: usize = 8;
/// Not 0 when there is no memory for areas, or none are needed.
pub(super) static HAS_NO_SPARES: AtomicU32 = AtomicU32::new(1);

/// The calling thread's area, for threads that have one: those in [`super::entry::private`]. For
/// other threads GS leads nowhere, or to another thread's area.
pub(crate) fn own() -> *mut Area {
    let area: *mut Area;
    // SAFETY: reads a register. The launcher has checked that processor and kernel allow it.
    unsafe { asm!("rdgsbase {}", out(reg) area, options(nomem, nostack, preserves_flags)) };
    area
}

/// The calling thread's word.
///
/// # Safety
/// Only for threads that have an area.
pub(crate) unsafe extern "C" fn word() -> *mut i32 {
    // SAFETY: this thread's area.
    unsafe { &raw mut (*own()).word }
}

/// An area for a thread that is about to be made; `None` without memory.
pub(crate) fn take() -> Option<*mut Area> {
    if let Some(area) = take_used() {
        return Some(area);
    }
    let area = raw::map(AREA_BYTES)? as *mut Area;
    // SAFETY: a fresh mapping, large enough.
    unsafe {
        (*area).thread = AtomicU64::new(UNUSED);
        prepare(area);
        let mut head = AREAS.load(Ordering::Relaxed); // The exchange below reads it again.
        loop {
            (*area).next.store(head, Ordering::Relaxed); // Published by the exchange.
            match AREAS.compare_exchange(head, area, AREA_RELEASE, Ordering::Relaxed) {
                Ok(_) => return Some(area),
                Err(other) => head = other,
            }
        }
    }
}

/// The area of a thread that has ended.
fn take_used() -> Option<*mut Area> {
    // The cursor is only a hint.
    let mut at = CURSOR.load(AREA_ACQUIRE);
    for _ in 0..ASKED_MAX {
        if at.is_null() {
            at = AREAS.load(AREA_ACQUIRE);
        }
        if at.is_null() {
            return None;
        }
        // SAFETY: areas are never unmapped.
        let area = unsafe { &*at };
        let next = area.next.load(AREA_ACQUIRE);
        // Relaxed: with an outdated number the exchange fails.
        let thread = area.thread.load(Ordering::Relaxed);
        if thread == FREE || thread != UNUSED && raw::is_gone(thread) {
            // If the exchange fails, another thread was first.
            let taken =
                area.thread
                    .compare_exchange(thread, UNUSED, AREA_ACQUIRE, Ordering::Relaxed);
            if taken.is_ok() {
                CURSOR.store(next, AREA_RELEASE);
                // SAFETY: it was taken for us alone.
                unsafe { prepare(at) };
                return Some(at);
            }
        }
        at = next;
    }
    CURSOR.store(at, AREA_RELEASE);
    None
}

/// # Safety
/// Nobody else uses the area.
unsafe fn prepare(area: *mut Area) {
    let begin = area as u64;
    // SAFETY: the caller's promise.
    unsafe {
        (*area).stack = begin + AREA_BYTES as u64;
        (*area).lowest = begin + RESERVED_BYTES as u64;
        (*area).itself = begin;
    }
}

/// Gives back an area that [`take`] returned and that no thread has begun with.
pub(crate) fn give_back(area: *mut Area) {
    // SAFETY: areas are never unmapped.
    unsafe { (*area).thread.store(FREE, AREA_RELEASE) };
}

/// Makes the calling thread the owner of its area.
pub(crate) fn claim() {
    // SAFETY: the area of this thread.
    unsafe { (*own()).thread.store(raw::thread(), AREA_RELEASE) };
}

/// Gives the calling thread an area: the first thread of a program that the library patches from
/// within. False without memory.
pub(super) fn begin() -> bool {
    let Some(area) = take() else { return false };
    // SAFETY: nobody else knows the area. Processor and kernel allow the instructions: that was
    // checked.
    unsafe {
        (*area).thread_pointer = words::pointer() as u64;
        asm!("wrgsbase {}", in(reg) area, options(nostack, preserves_flags));
    }
    claim();
    true
}

/// From now on libc's threads find spare areas, in forked processes, too.
pub(super) fn serve_threads_of_libc() {
    static FOLLOWS_FORKS: AtomicBool = AtomicBool::new(false);
    // Relaxed, here and below: the words guard no other memory.
    HAS_NO_SPARES.store(0, Ordering::Relaxed);
    fill_spares();
    if !FOLLOWS_FORKS.swap(true, Ordering::Relaxed) {
        follow_forks();
    }
}

/// Refills the spare areas that threads have taken.
fn fill_spares() {
    for spare in &SPARES {
        if !spare.load(Ordering::Relaxed).is_null() {
            continue;
        }
        let Some(area) = take() else {
            return HAS_NO_SPARES.store(1, Ordering::Relaxed);
        };
        let none = core::ptr::null_mut();
        // The entry's `xchg` sees what `take` has written.
        if spare
            .compare_exchange(none, area, AREA_RELEASE, Ordering::Relaxed)
            .is_err()
        {
            give_back(area);
        }
    }
}

/// Called when the calling thread may just have taken a spare area.
pub(super) fn settle() {
    // SAFETY: the area of this thread. Relaxed: its own word.
    let is_new = unsafe { (*own()).thread.load(Ordering::Relaxed) == UNUSED };
    if is_new {
        claim();
        fill_spares();
    }
}

/// Registers a fork handler with libc.
fn follow_forks() {
    // SAFETY: the handler has no state, and lives as long as the library: for ever.
    unsafe {
        let child = Some(forked as extern "C" fn());
        if real::__register_atfork(None, None, child, core::ptr::null_mut()) < 0 {
            real::pthread_atfork(None, None, child);
        }
    }
}

/// Called in a forked process. Its thread has a new number, and threads that were refilling spare
/// areas do not exist here.
pub(super) extern "C" fn forked() {
    let (area, pointer) = (own().cast_const(), words::pointer() as u64);
    // SAFETY: GS leads to an area or nowhere, and areas are never unmapped.
    if unsafe { area.as_ref() }.is_some_and(|area| area.thread_pointer == pointer) {
        claim();
    }
    if HAS_NO_SPARES.load(Ordering::Relaxed) == 0 {
        fill_spares();
    }
}
