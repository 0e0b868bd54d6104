//! The family's connection table, as this process maps it: the first page, and the chunks with
//! entries that this process has used.
//!
//! The file has room for the most connections that a family can have. The mapping grows with the
//! actual number of connections ([`crate::memory::chunks`]).

use core::ptr::NonNull;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use toehold_freestanding::fd::BorrowedFd;

use toehold_channel::memfd;
use toehold_channel::table::{ENTRIES, ENTRIES_OFFSET, Entry, Header, TABLE_BYTES};

use crate::memory::chunks::Chunks;

/// 256 entries, 24 pages.
pub(crate) const CHUNK_LOG2: u32 = 8;
/// Chunks of all entries.
pub(crate) const CHUNKS: usize = ENTRIES >> CHUNK_LOG2;
type Mapped = Chunks<Entry, CHUNK_LOG2, CHUNKS>;

const _: () = assert!(ENTRIES_OFFSET.is_multiple_of(4096));
const _: () = assert!(Mapped::CHUNK_BYTES.is_multiple_of(4096));

static HEADER: AtomicPtr<Header> = AtomicPtr::new(null_mut());
static FD: AtomicI32 = AtomicI32::new(-1);
static MAPPED: Mapped = Chunks::new();

/// The table of this process's family.
#[derive(Clone, Copy)]
pub(crate) struct Table(&'static Header);

impl Table {
    /// The first page.
    pub(crate) fn header(&self) -> &'static Header {
        self.0
    }

    /// Entry `index`, mapped if need be. `None` when there is no such entry, or no memory.
    pub(crate) fn entry(&self, index: u32) -> Option<&'static Entry> {
        let map = |chunk: usize| {
            let fd = fd();
            if fd < 0 {
                return null_mut();
            }
            // SAFETY: a descriptor of our own. One that the program closed past us maps nothing.
            let file = unsafe { BorrowedFd::borrow_raw(fd) };
            let begins = ENTRIES_OFFSET + chunk * Mapped::CHUNK_BYTES;
            let part = begins..begins + Mapped::CHUNK_BYTES;
            memfd::map_part(file, TABLE_BYTES, part).map_or(null_mut(), NonNull::as_ptr)
        };
        // SAFETY: mapped from a file whose length is sealed; entries are atomics, for which all
        // values are valid.
        unsafe { MAPPED.get_or_map_with(index as usize, map) }
    }

    /// Claims a free entry, see [`Header::allocate`].
    pub(crate) fn allocate(
        &self,
        hint: u32,
        gone: impl Fn(u32) -> bool,
        ends: impl Fn(&Entry) -> bool,
    ) -> Option<u32> {
        self.0.allocate(|index| self.entry(index), hint, gone, ends)
    }

    /// Makes the table the family's.
    pub(crate) fn publish(&self) {
        // Release pairs with the Acquire load in `table`.
        HEADER.store(core::ptr::from_ref(self.0).cast_mut(), Ordering::Release);
    }

    /// One more than the highest entry that was ever used.
    pub(crate) fn entries_used(&self) -> u32 {
        let used = self.0.entries_used.load(Ordering::Relaxed);
        used.capped(ENTRIES as u32)
    }
}

/// The table, when one exists already.
#[inline]
pub(crate) fn table() -> Option<Table> {
    // Acquire pairs with the Release store in `Table::publish`.
    let header = HEADER.load(Ordering::Acquire);
    // SAFETY: mapped by `map_header`, and never unmapped once published; all atomics.
    unsafe { header.as_ref() }.map(Table)
}

/// The number of the adapter's last request to the family, or 0.
pub(crate) fn request() -> u32 {
    // Acquire pairs with the adapter's Release in `Tables::call_attention`.
    table().map_or(0, |table| table.header().attention.load(Ordering::Acquire))
}

/// Entry `index`, if its chunk is mapped.
#[inline]
pub(crate) fn entry(index: u32) -> Option<&'static Entry> {
    MAPPED.get(index as usize)
}

/// The table's descriptor, for the adapter; -1 for none.
pub(crate) fn fd() -> i32 {
    FD.load(Ordering::Relaxed)
}

/// The table's descriptor is about to get another number; -1 for none.
pub(crate) fn moved(from: i32, to: i32) {
    let _ = FD.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
}

/// Maps the first page of a table's file, for [`open`] or [`unmap_header`].
pub(crate) fn map_header(file: BorrowedFd<'_>) -> Option<&'static Header> {
    let base = memfd::map_part(file, TABLE_BYTES, 0..ENTRIES_OFFSET).ok()?;
    // SAFETY: a whole page of a file whose length is sealed; all atomics.
    Some(unsafe { base.cast::<Header>().as_ref() })
}

/// Unmaps a header that is not used as the family's table.
///
/// # Safety
/// It is from [`map_header`], and nothing uses it any more.
pub(crate) unsafe fn unmap_header(header: &'static Header) {
    // SAFETY: the caller's promise.
    unsafe { memfd::unmap(NonNull::from(header).cast(), ENTRIES_OFFSET) };
}

/// Opens the table behind `fd`, a descriptor of the library. It becomes the family's by
/// [`Table::publish`]. Called once, by one thread.
pub(crate) fn open(header: &'static Header, fd: i32) -> Table {
    FD.store(fd, Ordering::Relaxed);
    Table(header)
}
