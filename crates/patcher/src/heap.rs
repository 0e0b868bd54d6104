//! Memory for helpers in programs that may have no C library, or none that could be called.
//!
//! A helper runs in the memory of a program, whose own heap it leaves alone. So each helper has an
//! [`Arena`]: a piece of memory from which it takes what it needs, and which it gives back as a
//! whole when it ends. An arena is found by the stack pointer, because the helper's stack lies in
//! it.
//!
//! ```text
//! arena: what the helper has taken ──▶        ◀── its stack
//! ```
//!
//! An arena's address is a multiple of its size, so two that are in use at different times are at
//! one address or apart. A child of fork(2) does not get it.
//!
//! The kernel maps large pieces, and those that do not belong to a helper.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use toehold_freestanding::{call, memory};

/// Helpers of one process at a time that have arenas. Others have their memory from the kernel.
const ARENAS_MAX: usize = 16;
/// An arena and its stack.
const ARENA_BYTES: usize = 512 << 10;
const STACK_BYTES: usize = 256 << 10;
/// Larger ones are mapped by the kernel, and given back one by one.
const BYTES_MAX: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;

/// The address of each arena in use, or 0. A child of fork(2) keeps the addresses of helpers that
/// ran meanwhile, without their memory: a later arena has one of these addresses, or overlaps none.
/// Relaxed: only an arena's own thread finds it here, and it has put it here itself.
static ARENAS: [AtomicUsize; ARENAS_MAX] = [const { AtomicUsize::new(0) }; ARENAS_MAX];

/// A helper's memory.
#[derive(Clone, Copy, Debug)]
pub struct Arena(*mut u8);

impl Arena {
    /// `None` where there is no memory. It stays mapped until [`Arena::end`] or
    /// [`Arena::discard`].
    #[must_use]
    pub fn new() -> Option<Arena> {
        let from = memory::anonymous(2 * ARENA_BYTES, false);
        if from.is_null() {
            return None;
        }
        let before = from.align_offset(ARENA_BYTES);
        let at = from.wrapping_add(before);
        // SAFETY: parts of the fresh mapping that nobody uses, before the arena and behind it.
        unsafe {
            if before > 0 {
                memory::unmap(from, before);
            }
            memory::unmap(at.wrapping_add(ARENA_BYTES), ARENA_BYTES - before);
            // A child that another thread makes meanwhile has no use for it.
            call!(SYS_madvise, at, ARENA_BYTES, libc::MADV_DONTFORK);
        }
        Some(Arena(at))
    }

    /// The end of the helper's stack.
    #[must_use]
    pub fn stack(self) -> *mut u8 {
        self.0.wrapping_add(ARENA_BYTES)
    }

    /// From here on the calling thread takes its memory from it, on whose stack it runs.
    pub fn begin(self) {
        // SAFETY: its first word, which counts the bytes that were taken.
        unsafe { self.0.cast::<usize>().write(size_of::<usize>()) };
        for one in &ARENAS {
            let taken = one.compare_exchange(0, self.0 as usize, Relaxed, Relaxed);
            if taken.is_ok() {
                return;
            }
        }
    }

    /// Gives it back, without a helper in it.
    pub fn discard(self) {
        self.leave();
        // SAFETY: mapped by `new`, and used by nobody.
        unsafe { memory::unmap(self.0, ARENA_BYTES) };
    }

    /// Gives it back, and ends the calling process, which runs in it.
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
                in("rdi") self.0,
                in("rsi") ARENA_BYTES,
                options(noreturn, nostack),
            );
        }
    }

    /// It is not in use any more.
    fn leave(self) {
        for one in &ARENAS {
            let _ = one.compare_exchange(self.0 as usize, 0, Relaxed, Relaxed);
        }
    }

    /// The one on whose stack this thread runs.
    fn current() -> Option<Arena> {
        let stack: usize;
        // SAFETY: reads a register.
        unsafe { core::arch::asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack)) };
        ARENAS.iter().find_map(|one| {
            let at = one.load(Relaxed);
            (at != 0 && stack.wrapping_sub(at) < ARENA_BYTES).then_some(Arena(at as *mut u8))
        })
    }

    /// Null where it has no room.
    fn take(self, layout: Layout) -> *mut u8 {
        let taken: *mut usize = self.0.cast();
        // SAFETY: only the calling thread uses it, and `begin` has written it.
        let from = unsafe { *taken }.next_multiple_of(layout.align());
        let to = from + layout.size();
        if to > ARENA_BYTES - STACK_BYTES {
            return core::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { *taken = to };
        self.0.wrapping_add(from)
    }

    fn has(self, at: *mut u8) -> bool {
        (at as usize).wrapping_sub(self.0 as usize) < ARENA_BYTES
    }
}

/// For the library's `#[global_allocator]`. Only helpers allocate.
#[derive(Debug)]
pub struct Heap;

// SAFETY: pieces do not overlap: those of an arena are taken one after the other by one thread, and
// the kernel maps the others. Each stays until it is given back, or until its helper ends, after
// which nobody uses it.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_BYTES {
            return core::ptr::null_mut();
        }
        let arena = Arena::current().filter(|_| layout.size() <= BYTES_MAX);
        match arena.map(|arena| arena.take(layout)) {
            Some(at) if !at.is_null() => at,
            _ => memory::anonymous(layout.size(), false),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The kernel's pages are, and no piece of an arena is used twice.
        // SAFETY: the caller's promise.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !Arena::current().is_some_and(|arena| arena.has(at)) {
            // SAFETY: mapped by `alloc` with this size; the caller uses it no more.
            unsafe { memory::unmap(at, layout.size()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a layout")
    }

    #[test]
    fn pieces_of_an_arena_are_aligned_and_apart_until_it_is_full() {
        let arena = Arena::new().expect("memory");
        arena.begin();
        let mut end = arena.0 as usize + size_of::<usize>();
        for (size, align) in [(1, 1), (24, 8), (3, 2), (100, 64), (5000, 16)].repeat(20) {
            let at = arena.take(layout(size, align));
            assert!(at as usize >= end && (at as usize).is_multiple_of(align));
            assert!(arena.has(at));
            end = at as usize + size;
        }
        assert!(arena.take(layout(ARENA_BYTES - STACK_BYTES, 1)).is_null());
        // This thread does not run in it: it gets memory of its own.
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

    #[test]
    fn an_arena_is_at_a_multiple_of_its_size_and_no_child_gets_it() {
        // Memory between them, so that they are not at multiples by chance.
        for pages in [1, 3, 7] {
            let between = memory::anonymous(pages * PAGE_BYTES, false);
            let arena = Arena::new().expect("memory");
            assert!((arena.0 as usize).is_multiple_of(ARENA_BYTES));
            let smaps = std::fs::read_to_string("/proc/self/smaps").expect("text");
            let mut is_of_arena = false;
            let flags = smaps.lines().find_map(|line| {
                let range = line
                    .split(' ')
                    .next()
                    .and_then(|range| range.split_once('-'));
                let number = |text| usize::from_str_radix(text, 16).ok();
                if let Some((from, to)) = range.and_then(|(a, b)| number(a).zip(number(b))) {
                    is_of_arena = (from..to).contains(&(arena.0 as usize));
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
