//! Signal handlers do not run while their thread holds a lock of the library.
//!
//! A handler may call `close`, `send` or `siglongjmp`. If it ran in the middle of a locked section,
//! it would wait for its own thread, or leave the lock held for ever. The kernel has no such
//! problem, because handlers run only after a system call. The library does the same: it installs
//! its own handler in place of each handler of the program. Outside of locked sections that handler
//! calls the program's handler at once. Inside a locked section it blocks all signals, queues the
//! signal again for this thread, and returns. The end of the section restores the mask, and the
//! kernel delivers the signal again.
//!
//! ```text
//!   enter ─► lock ─► …  signal: block all, queue again …
//!         ─► unlock ─► leave: restore the mask ─► handler
//! ```
//!
//! The kernel removes a handler for one signal (`SA_RESETHAND`) when it calls it. If that signal is
//! queued again, the handler is put back first.
//!
//! Not deferred: faults (`SIGSEGV` and its kin), which belong to the instruction that caused them
//! ([`crate::system::faults`]); handlers installed by number.
//!
//! A section never sleeps, except for a lock that another thread holds ([`crate::lock::mutex`]). A
//! table of fixed size has the state of each thread, found by its thread pointer: there is no
//! thread-local storage and no heap.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};

use crate::process;
use crate::system::{errno, faults, real, sys};

/// The state of one thread.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The thread's pointer; 0 is a free place. A thread that ends leaves its place to the next one
    /// with this pointer, or to one that finds no free place ([`take_from_ended`]).
    pointer: AtomicUsize,
    /// Written only by the thread: its process in the upper half, the depth of its sections in the
    /// lower half. With another process (before a fork) the depth counts as 0.
    sections: AtomicU64,
    /// 1 when a signal waits for the end of the section.
    waits: AtomicU32,
    /// Counts the program's handlers that have run, and those that end a waiting call.
    handled: AtomicU16,
    ended: AtomicU16,
    /// The mask to restore then.
    mask: AtomicU64,
}

/// The most threads that have a place. For further threads handlers are not deferred.
const THREADS_MAX: usize = 4096;
/// The most places that are tried.
const PROBES: usize = 8;
static THREADS: [Thread; THREADS_MAX] = [const {
    Thread {
        pointer: AtomicUsize::new(0),
        sections: AtomicU64::new(0),
        waits: AtomicU32::new(0),
        handled: AtomicU16::new(0),
        ended: AtomicU16::new(0),
        mask: AtomicU64::new(0),
    }
}; THREADS_MAX];

/// Some thread has no place.
static HAS_OTHERS: AtomicBool = AtomicBool::new(false);

#[inline]
fn places(pointer: usize) -> impl Iterator<Item = &'static Thread> {
    // Fibonacci hashing: control blocks lie whole pages apart.
    let first = (pointer as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    (0..PROBES).map(move |probe| &THREADS[(first as usize + probe) % THREADS_MAX])
}

/// This thread's place, made if need be.
#[inline]
fn this_thread() -> Option<&'static Thread> {
    place_of(errno::thread())
}

#[inline(always)]
fn place_of(pointer: usize) -> Option<&'static Thread> {
    let first = places(pointer).next()?;
    // Relaxed, here and below: a place is its thread's own, and handlers run on that thread.
    if first.pointer.load(Ordering::Relaxed) == pointer {
        return Some(first);
    }
    search(pointer)
}

#[cold]
fn search(pointer: usize) -> Option<&'static Thread> {
    let has = |thread: &&Thread| {
        let at = &thread.pointer;
        at.load(Ordering::Relaxed) == pointer
            || at
                .compare_exchange(0, pointer, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    };
    let found = places(pointer)
        .find(has)
        .or_else(|| take_from_ended(pointer));
    if found.is_none() {
        // Relaxed: as the words of a place, see `is_one_inside`.
        HAS_OTHERS.store(true, Ordering::Relaxed);
    }
    found
}

/// The time between two looks for ended threads, if the first look has found none: a thread without
/// a place looks at each of its sections.
const BETWEEN_LOOKS_NS: u64 = 1_000_000;
/// When a look last found none.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);

/// Takes the place of a thread that has ended. Programs that begin and end many threads need this,
/// because libc maps most of them at new addresses.
#[cold]
fn take_from_ended(pointer: usize) -> Option<&'static Thread> {
    let now = sys::now_ns();
    if now.saturating_sub(LOOKED_NS.load(Ordering::Relaxed)) < BETWEEN_LOOKS_NS {
        return None;
    }
    let takes = |thread: &&Thread| {
        let before = thread.pointer.load(Ordering::Relaxed);
        before != GIVEN_UP && has_ended(before) && thread.change_hands(before, pointer)
    };
    let taken = places(pointer).find(takes);
    if taken.is_none() {
        LOOKED_NS.store(now, Ordering::Relaxed);
        return None;
    }
    // A handler that ran meanwhile may have found a place for this thread, too. All sections of the
    // thread count in the first of its places.
    places(pointer).find(|thread| thread.pointer.load(Ordering::Relaxed) == pointer)
}

/// Instead of a pointer: nobody's place any more.
const GIVEN_UP: usize = 1;

/// True when there is surely no thread with this pointer. On x86-64 the word at the thread pointer
/// is the thread pointer itself (ELF Handling for Thread-Local Storage, 3.4.6). While libc keeps
/// the memory of an ended thread for its next one, the thread seems alive.
fn has_ended(pointer: usize) -> bool {
    cfg!(target_arch = "x86_64") && errno::is_of_libc() && !sys::may_hold(pointer, pointer as u32)
}

impl Thread {
    /// The thread `before` has ended, and its place becomes that of the calling thread, `pointer`.
    /// False when another thread has the place now.
    fn change_hands(&self, before: usize, pointer: usize) -> bool {
        let is_taken = self
            .pointer
            .compare_exchange(before, pointer, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if is_taken && !has_ended(before) {
            // A new thread has got the pointer of the ended one since, and may be in a section
            // here: neither thread can have the place.
            self.pointer.store(GIVEN_UP, Ordering::Relaxed);
            return false;
        }
        if is_taken {
            // The former thread may have ended inside a section.
            self.sections.store(0, Ordering::Relaxed);
            self.waits.store(0, Ordering::Relaxed);
        }
        is_taken
    }

    /// Sections that the thread is in.
    fn depth(&self) -> u32 {
        let word = self.sections.load(Ordering::Relaxed);
        if (word >> 32) as u32 == process::pid() {
            word as u32
        } else {
            0
        }
    }

    #[inline]
    fn enter(&self) {
        let word = self.sections.load(Ordering::Relaxed);
        let none = u64::from(process::pid()) << 32;
        // The words of the parent's threads do not count in a child.
        let word = if (word ^ none) >> 32 == 0 { word } else { none };
        self.sections.store(word + 1, Ordering::Relaxed);
    }

    /// True when the thread is in no section. No process forks inside a section, so the word is
    /// this process's.
    #[inline]
    fn leave(&self) -> bool {
        let word = self.sections.load(Ordering::Relaxed).wrapping_sub(1);
        self.sections.store(word, Ordering::Relaxed);
        word as u32 == 0
    }
}

/// A snapshot of how many handlers of the program have run on this thread. The kernel notices
/// signals while a thread sleeps in a system call; a thread that spins has to notice them by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handlers {
    all: u16,
    ending: u16,
}

/// The current snapshot of this thread.
pub(crate) fn handlers() -> Handlers {
    this_thread().map_or(Handlers { all: 0, ending: 0 }, |thread| Handlers {
        all: thread.handled.load(Ordering::Relaxed),
        ending: thread.ended.load(Ordering::Relaxed),
    })
}

impl Handlers {
    /// True when a handler without `SA_RESTART` has run since: it ends a `recv` or `send`.
    pub(crate) fn end_a_transfer(self) -> bool {
        handlers().ending != self.ending
    }

    /// True when any handler has run since: each of them ends a call that waits for readiness
    /// (signal(7)).
    pub(crate) fn end_a_wait(self) -> bool {
        handlers().all != self.all
    }
}

/// True when this thread is surely in no section, so that it holds no lock. False also when it has
/// no place.
pub(crate) fn is_outside() -> bool {
    this_thread().is_some_and(|thread| thread.depth() == 0)
}

/// True when a thread of this process whose number `is_wanted` is in a section. True also when some
/// thread has no place, because it is unknown whether that one is.
#[cold]
pub(crate) fn is_one_inside(is_wanted: impl Fn(usize) -> bool) -> bool {
    // Relaxed, here and below: the caller has seen what the other thread did in its section, by an
    // Acquire load.
    HAS_OTHERS.load(Ordering::Relaxed)
        || THREADS.iter().any(|thread| {
            let pointer = thread.pointer.load(Ordering::Relaxed);
            pointer != 0 && is_wanted(pointer) && thread.depth() > 0
        })
}

/// A section in which no handler of the program runs; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Section(Option<&'static Thread>);

impl Section {
    /// Moves the section out of its guard, which then ends no section.
    pub(crate) fn take(&mut self) -> Section {
        Section(self.0.take())
    }
}

/// Begins a section.
#[inline]
pub(crate) fn enter() -> Section {
    enter_as(errno::thread())
}

/// Begins a section of this thread, which is known by `pointer`.
#[inline(always)]
pub(crate) fn enter_as(pointer: usize) -> Section {
    let thread = place_of(pointer);
    if let Some(thread) = thread {
        thread.enter();
    }
    // Pairs with the look at the depth in `handle`, which runs on this thread.
    compiler_fence(Ordering::SeqCst);
    Section(thread)
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        // Pairs with the look at the depth in `handle`, which runs on this thread.
        compiler_fence(Ordering::SeqCst);
        let Some(thread) = self.0 else { return };
        let is_outside = thread.leave();
        // Pairs with the store of `waits` in `postpone`, which runs on this thread.
        compiler_fence(Ordering::SeqCst);
        if is_outside && thread.waits.load(Ordering::Relaxed) != 0 {
            deliver(thread);
        }
    }
}

/// Restores the mask, so that signals that came during a section are delivered.
#[cold]
fn deliver(thread: &Thread) {
    thread.waits.store(0, Ordering::Relaxed);
    // The program's handlers run inside this call.
    sys::set_signal_mask(thread.mask.load(Ordering::Relaxed));
}

/// Signals of faults: they belong to the current instruction and cannot wait.
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];
const SIGNAL_MAX: c_int = 64;
/// For each signal: the program's handler, whether it takes three arguments, whether calls are
/// restarted after it, and whether the kernel removes it when it runs.
static HANDLERS: [AtomicU64; SIGNAL_MAX as usize + 1] =
    [const { AtomicU64::new(0) }; SIGNAL_MAX as usize + 1];
const TAKES_INFO: u64 = 1 << 63;
const RESTARTS: u64 = 1 << 62;
const RUNS_ONCE: u64 = 1 << 61;
const MARKS: u64 = TAKES_INFO | RESTARTS | RUNS_ONCE;

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The handler that the kernel knows.
unsafe extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let inside = this_thread().filter(|thread| thread.depth() > 0);
    // SAFETY: the kernel's arguments.
    if inside.is_some_and(|thread| unsafe { postpone(thread, signal, info, context) }) {
        return;
    }
    // Acquire pairs with the Release store in `exchange`: everything that the program prepared for
    // its handler is visible.
    let word = HANDLERS[signal as usize].load(Ordering::Acquire);
    let handler = (word & !MARKS) as usize;
    if let Some(thread) = this_thread() {
        // Counted before the handler, which may leave by a jump. Relaxed: used by this thread only.
        thread.handled.fetch_add(1, Ordering::Relaxed);
        if word & RESTARTS == 0 {
            thread.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
    // SAFETY: the program installed a handler of this form.
    unsafe {
        if word & TAKES_INFO != 0 {
            let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                core::mem::transmute(handler);
            handler(signal, info, context);
        } else if handler != 0 {
            let handler: unsafe extern "C" fn(c_int) = core::mem::transmute(handler);
            handler(signal);
        }
    }
}

/// Queues the signal again, so that it comes when this thread has left its section. False when the
/// kernel cannot queue it.
unsafe fn postpone(
    thread: &Thread,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) -> bool {
    let faults = FAULTS.iter().fold(0, |mask, &fault| mask | bit(fault));
    // Blocked first, because a second signal would come here, too, and take this handler's mask for
    // the program's.
    let during = sys::block_signals(!faults);
    // Acquire pairs with the Release store in `exchange`.
    let runs_once = HANDLERS[signal as usize].load(Ordering::Acquire) & RUNS_ONCE != 0;
    if runs_once {
        // Put back first, because the queued signal would meet the default action.
        replace(signal, libc::SIG_DFL, address());
    }
    if !sys::queue_signal_here(signal, info) {
        if runs_once {
            replace(signal, address(), libc::SIG_DFL);
        }
        sys::set_signal_mask(during);
        return false;
    }
    // SAFETY: the kernel's context, whose mask begins with the 64 bits that the kernel uses. It
    // takes the mask from there when the handler returns.
    unsafe {
        let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        thread.mask.store(*mask, Ordering::Relaxed);
        *mask |= !faults;
    }
    thread.waits.store(1, Ordering::Relaxed);
    true
}

/// Replaces the handler `from` of a signal with `to`. Its mask and flags stay: the kernel keeps
/// them, too, when it removes a handler (`get_signal` in kernel/signal.c).
#[cold]
fn replace(signal: c_int, from: usize, to: usize) {
    // SAFETY: zeroes are a valid action, and it is live. Handlers may call `sigaction`.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        if real::sigaction(signal, core::ptr::null(), &mut action) == 0
            && action.sa_sigaction == from
        {
            action.sa_sigaction = to;
            real::sigaction(signal, &action, core::ptr::null_mut());
        }
    }
}

fn address() -> usize {
    handle as *const () as usize
}

/// True when the library puts its own handler in front of the program's handlers of `signal`.
fn concerns(signal: c_int) -> bool {
    (1..=SIGNAL_MAX).contains(&signal)
        && !FAULTS.contains(&signal)
        && process::is_started()
        && !process::borrowed_memory()
}

/// `sigaction(2)`.
///
/// # Safety
/// As for the C function.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !concerns(signal) {
        // SAFETY: the caller's promise, here and below.
        return unsafe { faults::sigaction(signal, new, old) };
    }
    // SAFETY: as above.
    unsafe { exchange(signal, new, old) }
}

/// `sigaction(2)` of a signal before whose handlers the library puts its own.
///
/// # Safety
/// As for the C function.
unsafe fn exchange(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let place = &HANDLERS[signal as usize];
    // Relaxed: only the word itself is used.
    let before = place.load(Ordering::Relaxed);
    // SAFETY: `new` is null or readable.
    let wanted = unsafe { new.as_ref() }.copied();
    let is_ours = |action: &libc::sigaction| {
        action.sa_sigaction != libc::SIG_DFL
            && action.sa_sigaction != libc::SIG_IGN
            && action.sa_sigaction != address()
    };
    let result = match wanted.filter(is_ours) {
        Some(mut action) => {
            let mark = |flag, mark| match action.sa_flags & flag {
                0 => 0,
                _ => mark,
            };
            let marks = mark(libc::SA_SIGINFO, TAKES_INFO)
                | mark(libc::SA_RESTART, RESTARTS)
                | mark(libc::SA_RESETHAND, RUNS_ONCE);
            // Release pairs with the Acquire load in `handle`.
            place.store(action.sa_sigaction as u64 | marks, Ordering::Release);
            action.sa_sigaction = address();
            action.sa_flags |= libc::SA_SIGINFO;
            // SAFETY: as above; the action is live.
            let result = unsafe { real::sigaction(signal, &action, old) };
            if result != 0 {
                // Release pairs with the Acquire load in `handle`.
                place.store(before, Ordering::Release);
            }
            result
        }
        None => {
            // SAFETY: as above.
            let result = unsafe { real::sigaction(signal, new, old) };
            if wanted.is_some() && result == 0 {
                // The handler stays, for a thread that is about to call it. Relaxed: a mark.
                place.fetch_and(!RUNS_ONCE, Ordering::Relaxed);
            }
            result
        }
    };
    // SAFETY: `old` is null or writable.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| result == 0) {
        let is_installed = old.sa_sigaction == address();
        if is_installed {
            old.sa_sigaction = (before & !MARKS) as usize;
        }
        // A handler that has run its one time leaves its flags.
        if (is_installed || before & RUNS_ONCE != 0) && before & TAKES_INFO == 0 {
            old.sa_flags &= !libc::SA_SIGINFO;
        }
    }
    result
}

/// The simpler calls (`signal(2)`, `sigset(3)`): `call` is the function of libc, which knows the
/// flags for its name.
///
/// # Safety
/// As for the C functions.
pub unsafe fn signal(
    signal: c_int,
    handler: usize,
    call: unsafe fn(c_int, usize) -> usize,
) -> usize {
    if !concerns(signal) {
        // SAFETY: the caller's promise, here and below.
        return unsafe { faults::signal(signal, handler, call) };
    }
    // Relaxed: only the word itself is used.
    let before = HANDLERS[signal as usize].load(Ordering::Relaxed);
    // SAFETY: as above.
    let result = unsafe { call(signal, handler) };
    if result != libc::SIG_ERR {
        // SAFETY: zeroes are a valid action, and it is live.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            if real::sigaction(signal, core::ptr::null(), &mut action) == 0
                && action.sa_sigaction == handler
            {
                sigaction(signal, &action, core::ptr::null_mut());
            }
        }
    }
    if result == address() {
        (before & !MARKS) as usize
    } else {
        result
    }
}

/// `siginterrupt(3)`, which changes the flags of the handler that the kernel knows.
///
/// # Safety
/// As for the C function.
pub unsafe fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { real::siginterrupt(signal, interrupts) };
    if result == 0 && concerns(signal) {
        let place = &HANDLERS[signal as usize];
        match interrupts {
            // Relaxed: a mark, beside a handler that is there already.
            0 => place.fetch_or(RESTARTS, Ordering::Relaxed),
            _ => place.fetch_and(!RESTARTS, Ordering::Relaxed),
        };
    }
    result
}

/// Installs `handler` in a test's process as a program would, with the library in front.
#[cfg(test)]
pub(crate) fn stand_before(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: zeroes are a valid action, and it is live.
    let result = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags;
        exchange(signal, &action, core::ptr::null_mut())
    };
    assert_eq!(result, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The handler of a signal that the kernel knows, and its flags as a program is told them.
    fn told(signal: c_int) -> (usize, c_int) {
        /// Set by libc for itself.
        const SA_RESTORER: c_int = 0x0400_0000;
        // SAFETY: zeroes are a valid action, and it is live.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            assert_eq!(exchange(signal, core::ptr::null(), &mut action), 0);
            (action.sa_sigaction, action.sa_flags & !SA_RESTORER)
        }
    }

    #[test]
    fn a_handler_for_one_signal_runs_once_at_the_end_of_the_section() {
        const SIGNAL: c_int = libc::SIGUSR2;
        static RUNS: AtomicU32 = AtomicU32::new(0);
        extern "C" fn handler(_: c_int) {
            RUNS.fetch_add(1, Ordering::Relaxed);
        }
        let runs = || RUNS.load(Ordering::Relaxed);
        stand_before(SIGNAL, handler, libc::SA_RESETHAND);
        let installed = (handler as *const () as usize, libc::SA_RESETHAND);
        assert_eq!(told(SIGNAL), installed);
        let before = handlers();
        let section = enter();
        // SAFETY: no pointers.
        unsafe { libc::raise(SIGNAL) };
        assert_eq!(runs(), 0);
        assert_eq!(told(SIGNAL), installed);
        drop(section);
        assert_eq!(runs(), 1);
        assert!(before.end_a_transfer() && before.end_a_wait());
        assert_eq!(told(SIGNAL), (libc::SIG_DFL, libc::SA_RESETHAND));
    }

    /// Each thread has memory at an address of its own, which is gone when the thread has ended.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn threads_that_have_ended_leave_their_places_to_others() {
        const PAGE_BYTES: usize = 4096;
        const COUNT: usize = 5 * THREADS_MAX;
        // Finds out where libc has it.
        errno::get();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (nobody, nothing) = (core::ptr::null_mut(), libc::PROT_NONE);
        // SAFETY: a fresh mapping.
        let base = unsafe { libc::mmap(nobody, COUNT * PAGE_BYTES, nothing, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let protect = |page: *mut c_void, protection: c_int| {
            // SAFETY: a page of the mapping.
            assert_eq!(unsafe { libc::mprotect(page, PAGE_BYTES, protection) }, 0);
        };
        let without_a_place = (0..COUNT).filter(|n| {
            let page = base.wrapping_byte_add(n * PAGE_BYTES);
            protect(page, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: writable, by the call above.
            unsafe { page.cast::<usize>().write(page as usize) };
            let place = place_of(page as usize);
            if let Some(thread) = place {
                assert_eq!(thread.depth(), 0);
                // It ends inside a section.
                thread.enter();
            }
            protect(page, nothing);
            place.is_none()
        });
        assert_eq!(without_a_place.count(), 0);
    }
}
