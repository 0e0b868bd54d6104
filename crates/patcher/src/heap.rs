//! Memory for helpers in programs that may have no C library, or none that can be called.
//!
//! A helper runs in the memory of a program, and must not use the program's heap. So each helper
//! has an [`Arena`]: a piece of memory from which it allocates, and which it gives back as a whole
//! when it ends. The helper's stack is in the arena, so the stack pointer identifies the arena.
//!
//! ```text
//! arena: what the helper has taken ──▶        ◀── its stack
//! ```
//!
//! An arena's address is a multiple of its size, so two arenas that are used at different times are
//! at one address or do not overlap. A child of fork(2) does not inherit the arena.
//!
//! Large allocations, and those outside of helpers, are mapped by the kernel.
//!
//! A helper that is killed gives nothing back. Each arena has a slot with a word that the kernel
//! clears when the helper has ended, for whatever reason (`CLONE_CHILD_CLEARTID`). The maker of the
//! next arena frees the memory of dead helpers:
//!
//! ```text
//! arena 0          nobody's slot
//! arena, alive 1   its helper runs, or is about to
//! arena, alive 0   its helper was killed: the arena and what it has noted are to be unmapped
//! GIVEN, alive 1   its helper has given it back, and ends
//! GIVEN, alive 0   the slot is nobody's
//! ```
//!
//! The slots change under a lock, except for `GIVEN`. If the maker of an arena finds the lock
//! taken, the arena gets no slot.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use toehold_freestanding::memory;

/// The most helpers of one process that have arenas at a time. Others get memory from the kernel.
const ARENAS_MAX: usize = 16;
/// Sizes of an arena and of the stack in it.
const ARENA_BYTES: usize = 512 << 10;
const STACK_BYTES: usize = 256 << 10;
/// Larger allocations are mapped by the kernel, and unmapped one by one.
const BYTES_MAX: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;

/// The most mappings of a helper that are noted. Others remain if the helper is killed.
const NOTES_MAX: usize = 16;

/// The slot of one arena.
#[derive(Debug)]
struct Slot {
    /// The arena's address, [`GIVEN`] or 0. Relaxed: a helper looks for its own arena; all others
    /// hold the lock.
    arena: AtomicUsize,
    /// Acquire pairs with the kernel's write at the helper's end.
    alive: AtomicI32,
}

/// The helper has given the arena back.
const GIVEN: usize = 1;

/// A page that the kernel clears in a child of fork(2), because the child does not have the arenas.
#[derive(Debug)]
struct Slots {
    is_locked: AtomicBool,
    all: [Slot; ARENAS_MAX],
}

const _: () = assert!(size_of::<Slots>() <= PAGE_BYTES);

/// Null until the first arena is made. Acquire and Release: a thread that sees the pointer sees a
/// page of zeroes.
static SLOTS: AtomicPtr<Slots> = AtomicPtr::new(core::ptr::null_mut());

impl Slots {
    /// The slots; `None` if there are none, or none yet.
    fn get() -> Option<&'static Slots> {
        // SAFETY: mapped for good, and zeroes are a value.
        unsafe { SLOTS.load(Acquire).as_ref() }
    }

    /// The slots, made if necessary; `None` if there is no memory, or if a child would inherit
    /// them.
    fn made() -> Option<&'static Slots> {
        if Slots::get().is_none() {
            let page = memory::anonymous(PAGE_BYTES, false);
            if page.is_null() {
                return None;
            }
            // SAFETY: a fresh page. It is unmapped if nobody knows it.
            unsafe {
                let is_wiped = memory::advise(page, PAGE_BYTES, libc::MADV_WIPEONFORK);
                let nobody = core::ptr::null_mut();
                if !is_wiped
                    || SLOTS
                        .compare_exchange(nobody, page.cast(), Release, Relaxed)
                        .is_err()
                {
                    memory::unmap(page, PAGE_BYTES);
                }
            }
        }
        Slots::get()
    }

    /// Runs `work` under the lock; `None` while another thread has the lock.
    fn locked<T>(&self, work: impl FnOnce(&Slots) -> T) -> Option<T> {
        if self.is_locked.swap(true, Acquire) {
            return None;
        }
        let result = work(self);
        self.is_locked.store(false, Release);
        Some(result)
    }

    /// Unmaps the memory of helpers that were killed. The caller has the lock.
    fn take_back(&self) {
        for slot in &self.all {
            if slot.alive.load(Acquire) != 0 {
                continue;
            }
            match slot.arena.load(Relaxed) {
                0 => continue,
                GIVEN => {}
                at => {
                    let at = at as *mut u8;
                    // SAFETY: its helper has ended, and nobody else has used it.
                    unsafe {
                        for note in &(*at.cast::<Header>()).notes {
                            note.unmap();
                        }
                        memory::unmap(at, ARENA_BYTES);
                    }
                }
            }
            slot.arena.store(0, Relaxed);
        }
    }

    /// A slot for an arena whose helper is about to be made. The caller has the lock.
    fn claim(&self, at: *mut u8) -> Option<&Slot> {
        let slot = self.all.iter().find(|slot| slot.arena.load(Relaxed) == 0)?;
        slot.alive.store(1, Relaxed);
        slot.arena.store(at as usize, Relaxed);
        Some(slot)
    }
}

/// Unmaps the memory of helpers that were killed.
pub fn take_back() {
    if let Some(slots) = Slots::get() {
        let _ = slots.locked(Slots::take_back);
    }
}

/// The beginning of an arena. Only its helper reads and writes it while the helper runs.
#[derive(Debug)]
struct Header {
    /// Bytes allocated from the arena, including this header.
    taken: usize,
    notes: [Note; NOTES_MAX],
}

/// A mapping that the helper has made outside the arena. Valid while `len` is not 0.
#[derive(Debug)]
struct Note {
    at: AtomicUsize,
    /// Release: the address is written before.
    len: AtomicUsize,
}

impl Note {
    /// # Safety
    /// Nobody uses it any more.
    unsafe fn unmap(&self) {
        let len = self.len.load(Acquire);
        if len != 0 {
            // SAFETY: the caller's promise.
            unsafe { memory::unmap(self.at.load(Relaxed) as *mut u8, len) };
        }
    }
}

/// Notes a mapping that the calling helper has made.
pub(crate) fn note(at: *mut u8, len: usize) {
    if at.is_null() {
        return;
    }
    let notes = Arena::current().map(Arena::notes);
    let free = notes.and_then(|notes| notes.iter().find(|note| note.len.load(Relaxed) == 0));
    if let Some(note) = free {
        note.at.store(at as usize, Relaxed);
        note.len.store(len, Release);
    }
}

/// Forgets a mapping that the calling helper is about to unmap.
pub(crate) fn forget(at: *mut u8) {
    let notes = Arena::current().map_or(&[][..], Arena::notes);
    for note in notes {
        if note.at.load(Relaxed) == at as usize {
            note.len.store(0, Release);
        }
    }
}

/// A helper's memory.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    at: *mut u8,
    slot: Option<&'static Slot>,
}

impl Arena {
    /// Makes an arena; `None` if there is no memory. It stays mapped until [`Arena::end`] or
    /// [`Arena::discard`], or until its helper was killed and another arena is made.
    #[must_use]
    pub fn new() -> Option<Arena> {
        let from = memory::anonymous(2 * ARENA_BYTES, false);
        if from.is_null() {
            return None;
        }
        let before = from.align_offset(ARENA_BYTES);
        let at = from.wrapping_add(before);
        // SAFETY: unused parts of the fresh mapping, before the arena and after it.
        unsafe {
            if before > 0 {
                memory::unmap(from, before);
            }
            memory::unmap(at.wrapping_add(ARENA_BYTES), ARENA_BYTES - before);
            // A child that another thread makes meanwhile does not need the arena.
            memory::advise(at, ARENA_BYTES, libc::MADV_DONTFORK);
            (*at.cast::<Header>()).taken = size_of::<Header>();
        }
        let slots = Slots::made();
        let slot = slots.and_then(|slots| {
            let claim = |slots: &'static Slots| {
                slots.take_back();
                slots.claim(at)
            };
            slots.locked(|_| claim(slots)).flatten()
        });
        Some(Arena { at, slot })
    }

    /// The word that the kernel clears when the helper has ended (`CLONE_CHILD_CLEARTID`); null if
    /// there is none.
    #[must_use]
    pub fn alive(self) -> *mut c_int {
        self.slot
            .map_or(core::ptr::null_mut(), |slot| slot.alive.as_ptr())
    }

    /// The end of the helper's stack.
    #[must_use]
    pub fn stack(self) -> *mut u8 {
        self.at.wrapping_add(ARENA_BYTES)
    }

    /// Gives the arena back without having had a helper.
    pub fn discard(self) {
        self.leave();
        // SAFETY: mapped by `new`, and used by nobody.
        unsafe { memory::unmap(self.at, ARENA_BYTES) };
        if let Some(slot) = self.slot {
            slot.alive.store(0, Release);
        }
    }

    /// Gives the arena back, and ends the calling process, which runs in it.
    pub fn end(self) -> ! {
        self.leave();
        // SAFETY: without its stack the process makes two calls, and needs none for them. It has
        // no other thread.
        unsafe {
            core::arch::asm!(
                "syscall",
                "xor edi, edi",
                "mov eax, {exit}",
                "syscall",
                "ud2",
                exit = const libc::SYS_exit as i32,
                in("rax") libc::SYS_munmap,
                in("rdi") self.at,
                in("rsi") ARENA_BYTES,
                options(noreturn, nostack),
            );
        }
    }

    /// From here on, other threads do not take this arena for that of a dead helper.
    fn leave(self) {
        if let Some(slot) = self.slot {
            slot.arena.store(GIVEN, Relaxed);
        }
    }

    /// The arena on whose stack this thread runs.
    fn current() -> Option<Arena> {
        let stack: usize;
        // SAFETY: reads a register.
        unsafe { core::arch::asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack)) };
        Slots::get()?.all.iter().find_map(|slot| {
            let at = slot.arena.load(Relaxed);
            let is_it = at > GIVEN && stack.wrapping_sub(at) < ARENA_BYTES;
            is_it.then_some(Arena {
                at: at as *mut u8,
                slot: Some(slot),
            })
        })
    }

    fn notes<'a>(self) -> &'a [Note] {
        // SAFETY: written by `new`, and mapped as long as the calling helper runs.
        unsafe { &(*self.at.cast::<Header>()).notes }
    }

    /// Allocates; null if the arena has no room.
    fn take(self, layout: Layout) -> *mut u8 {
        // SAFETY: only the calling thread uses it, and `new` has written it.
        let taken = unsafe { &raw mut (*self.at.cast::<Header>()).taken };
        // SAFETY: as above.
        let from = unsafe { *taken }.next_multiple_of(layout.align());
        let to = from + layout.size();
        if to > ARENA_BYTES - STACK_BYTES {
            return core::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { *taken = to };
        self.at.wrapping_add(from)
    }

    fn has(self, at: *mut u8) -> bool {
        (at as usize).wrapping_sub(self.at as usize) < ARENA_BYTES
    }
}

/// For the library's `#[global_allocator]`. Only helpers allocate memory.
#[derive(Debug)]
pub struct Heap;

// SAFETY: pieces do not overlap: one thread takes those of an arena one after the other, and the
// kernel maps the others. Each stays until it is given back, or until its helper ends and no code
// uses it any more.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_BYTES {
            return core::ptr::null_mut();
        }
        let arena = Arena::current().filter(|_| layout.size() <= BYTES_MAX);
        match arena.map(|arena| arena.take(layout)) {
            Some(at) if !at.is_null() => at,
            _ => {
                let at = memory::anonymous(layout.size(), false);
                note(at, layout.size());
                at
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The kernel's pages are zero, and no piece of an arena is used twice.
        // SAFETY: the caller's promise.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !Arena::current().is_some_and(|arena| arena.has(at)) {
            forget(at);
            // SAFETY: mapped by `alloc` with this size; the caller uses it no more.
            unsafe { memory::unmap(at, layout.size()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use toehold_freestanding::call;

    use super::*;

    /// All tests share the few slots, so they run one at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a layout")
    }

    #[test]
    fn pieces_of_an_arena_are_aligned_and_apart_until_it_is_full() {
        let _alone = alone();
        let arena = Arena::new().expect("memory");
        let mut end = arena.at as usize + size_of::<Header>();
        for (size, align) in [(1, 1), (24, 8), (3, 2), (100, 64), (5000, 16)].repeat(20) {
            let at = arena.take(layout(size, align));
            assert!(at as usize >= end && (at as usize).is_multiple_of(align));
            assert!(arena.has(at));
            end = at as usize + size;
        }
        assert!(arena.take(layout(ARENA_BYTES - STACK_BYTES, 1)).is_null());
        // This thread does not run in the arena, so it gets memory of its own.
        assert!(Arena::current().is_none());
        for size in [16, BYTES_MAX + 1] {
            let layout = layout(size, 16);
            // SAFETY: used within its size, and given back once.
            unsafe {
                let at = Heap.alloc(layout);
                assert!(!arena.has(at));
                at.add(size - 1).write(1);
                Heap.dealloc(at, layout);
            }
        }
        arena.discard();
    }

    const MARK: u64 = 0x7365_7261_6574_6f68;

    /// Whether each place has the mark; other tests may map pages where one was unmapped.
    fn are_marked<const N: usize>(places: [*mut u8; N]) -> [bool; N] {
        places.map(|at| {
            let mut found = 0u64;
            let bytes = size_of_val(&found);
            let to = [(&raw mut found) as usize, bytes];
            let from = [at as usize, bytes];
            // SAFETY: `found` has room, and the kernel checks whether the memory is readable.
            let read = unsafe {
                let own = call!(SYS_getpid);
                let (to, from) = (&raw const to, &raw const from);
                call!(SYS_process_vm_readv, own, to, 1, from, 1, 0)
            };
            read == bytes as isize && found == MARK
        })
    }

    #[test]
    fn memory_that_a_helper_has_left_is_unmapped_when_the_helper_has_ended() {
        let _alone = alone();
        let arena = Arena::new().expect("memory");
        let slot = arena.slot.expect("a slot");
        let [kept, forgotten] = [0; 2].map(|_| memory::anonymous(PAGE_BYTES, false));
        for (note, at) in arena.notes().iter().zip([forgotten, kept]) {
            note.at.store(at as usize, Relaxed);
            note.len.store(PAGE_BYTES, Relaxed);
        }
        arena.notes()[0].len.store(0, Relaxed);
        // The end of the arena's memory is not used.
        let last = arena.at.wrapping_add(ARENA_BYTES - PAGE_BYTES);
        let places = [last, kept, forgotten];
        for at in places {
            // SAFETY: mapped above.
            unsafe { at.cast::<u64>().write(MARK) };
        }
        take_back();
        assert_eq!(are_marked(places), [true; 3], "its helper is alive");
        slot.alive.store(0, Relaxed);
        take_back();
        assert_eq!(are_marked(places), [false, false, true]);
        // SAFETY: mapped above.
        unsafe { memory::unmap(forgotten, PAGE_BYTES) };
    }

    #[test]
    fn an_arena_without_a_slot_is_an_arena_and_slots_come_back() {
        let _alone = alone();
        for _ in 0..3 {
            let all: Vec<Arena> = (0..=ARENAS_MAX).map_while(|_| Arena::new()).collect();
            assert_eq!(all.len(), ARENAS_MAX + 1);
            assert!(all.iter().any(|arena| arena.alive().is_null()));
            for arena in all {
                arena.discard();
            }
        }
        take_back();
        assert!(Arena::new().is_some_and(|arena| {
            arena.discard();
            !arena.alive().is_null()
        }));
    }

    #[test]
    fn an_arena_is_at_a_multiple_of_its_size_and_no_child_gets_it() {
        let _alone = alone();
        // Other mappings between the arenas, so that their addresses are not multiples by chance.
        for pages in [1, 3, 7] {
            let between = memory::anonymous(pages * PAGE_BYTES, false);
            let arena = Arena::new().expect("memory");
            assert!((arena.at as usize).is_multiple_of(ARENA_BYTES));
            let smaps = std::fs::read_to_string("/proc/self/smaps").expect("text");
            let mut is_of_arena = false;
            let flags = smaps.lines().find_map(|line| {
                let range = line
                    .split(' ')
                    .next()
                    .and_then(|range| range.split_once('-'));
                let number = |text| usize::from_str_radix(text, 16).ok();
                if let Some((from, to)) = range.and_then(|(a, b)| number(a).zip(number(b))) {
                    is_of_arena = (from..to).contains(&(arena.at as usize));
                }
                line.strip_prefix("VmFlags:").filter(|_| is_of_arena)
            });
            let flags = flags.expect("mapped");
            assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
            arena.discard();
            // SAFETY: mapped above.
            unsafe { memory::unmap(between, pages * PAGE_BYTES) };
        }
    }
}
