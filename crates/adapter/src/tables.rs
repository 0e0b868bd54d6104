//! The connection tables of the clients. Each is mapped once, however many processes of its family
//! introduce themselves.
//!
//! A client can write every word of its table at any time: each value is bounded before use, and
//! nothing else depends on its being true.

use crate::memfd::{self, MapError};
use crate::printable::printable;
use crate::registry::{End, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use toehold_channel::express;
use toehold_channel::rendezvous::meeting_of;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_EVICT, COMMAND_NONE, COMMAND_PEER_GONE, COMMAND_SPARE, COMMAND_YIELD,
    ENTRIES, ENTRIES_OFFSET, Entry, EntryState, FAMILY_BIRTH, FAMILY_ORPHAN, FAMILY_PID,
    FLAG_ACCEPTED, PROGRAM_BYTES, Reason, TABLE_BYTES, Table, WaitMode,
};

/// The mapped tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Whether the file of each table stays open, so that its populated pages can be found: see
    /// [`MappedTable::live`].
    keeps_files: bool,
    mapped: BTreeMap<TableId, (MappedTable, FileKey)>,
    by_file: BTreeMap<FileKey, TableId>,
    next: u64,
}

/// The key of a table's file, equal for all processes of a family. Not reused while the file is
/// mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileKey {
    /// The device it is on.
    pub(crate) device: u64,
    /// Its inode there.
    pub(crate) inode: u64,
}

/// The reason why a table was refused.
#[derive(Debug)]
pub(crate) enum TableError {
    /// It cannot be mapped.
    Map(MapError),
    /// It is in huge pages. If there are no free huge pages, reading it would kill this process.
    HugePages,
    /// It is not a table, or is of another version.
    Header,
    /// It is not the table of the family that vouched for its sender.
    OfAnother,
}

impl fmt::Display for TableError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::Map(MapError::NotSealed) => write!(out, "it is not sealed"),
            TableError::Map(MapError::Length(length)) => write!(
                out,
                "its length is wrong \
            ({length})"
            ),
            TableError::Map(MapError::Os(error)) => error.fmt(out),
            TableError::HugePages => write!(out, "it is in huge pages"),
            TableError::Header => write!(out, "it is not a table of this version"),
            TableError::OfAnother => write!(out, "it is the table of another family"),
        }
    }
}

impl Tables {
    /// For tables of other users.
    pub(crate) fn of_strangers() -> Tables {
        Tables {
            keeps_files: true,
            ..Tables::default()
        }
    }

    /// Whether they are tables of other users.
    pub(crate) fn are_of_strangers(&self) -> bool {
        self.keeps_files
    }

    /// Opens the table behind a descriptor: maps and verifies it, or finds it already mapped.
    /// Counts one more user of the table.
    pub(crate) fn open(&mut self, file: OwnedFd) -> Result<TableId, TableError> {
        let file = File::from(file);
        let key = key_of(&file)?;
        if let Some(&id) = self.by_file.get(&key) {
            self.mapped.get_mut(&id).expect("both maps agree").0.users += 1;
            return Ok(id);
        }
        let mut table = MappedTable::map(file.into())?;
        if !self.keeps_files {
            table.file = None;
        }
        let id = TableId(self.next);
        self.next += 1;
        self.mapped.insert(id, (table, key));
        self.by_file.insert(key, id);
        Ok(id)
    }

    /// The table behind a descriptor, if it is the expected one, which this user already has.
    pub(crate) fn recognise(
        &self,
        expected: TableId,
        file: OwnedFd,
    ) -> Result<TableId, TableError> {
        let key = key_of(&File::from(file))?;
        if self.file(expected) == Some(key) {
            Ok(expected)
        } else {
            Err(TableError::OfAnother)
        }
    }

    /// Counts one more user of a mapped table.
    pub(crate) fn keep(&mut self, id: TableId) {
        let (table, _) = self.mapped.get_mut(&id).expect("kept by another user");
        table.users += 1;
    }

    /// Counts one user less; the last user unmaps the table.
    pub(crate) fn close(&mut self, id: TableId) {
        let (table, key) = self.mapped.get_mut(&id).expect("closed once per open");
        table.users -= 1;
        if table.users == 0 {
            let key = *key;
            self.by_file.remove(&key);
            self.mapped.remove(&id);
        }
    }

    /// A mapped table.
    pub(crate) fn get(&self, id: TableId) -> Option<&MappedTable> {
        self.mapped.get(&id).map(|(table, _)| table)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TableId, &MappedTable)> {
        self.mapped.iter().map(|(&id, (table, _))| (id, table))
    }

    /// The file behind a table.
    pub(crate) fn file(&self, id: TableId) -> Option<FileKey> {
        self.mapped.get(&id).map(|&(_, key)| key)
    }

    /// The entry of an end, if it still describes that end.
    pub(crate) fn current(&self, end: End) -> Option<&Entry> {
        self.get(end.table)?.current(end.entry, end.generation)
    }

    /// Tells the library why an end has no channel.
    pub(crate) fn set_verdict(&self, end: End, reason: Reason) {
        if let Some(entry) = self.current(end) {
            entry.refusal.store(reason as u32, Ordering::Relaxed);
        }
    }

    /// Tells the library that an offer was sent for an end.
    pub(crate) fn bump_offer(&self, end: End) {
        if let Some(entry) = self.current(end) {
            entry.refusal.store(Reason::None as u32, Ordering::Relaxed);
            // Release pairs with the library's Acquire load in `offers::offer_waits`: the message
            // is in its socket before the count moves.
            entry.offer.fetch_add(1, Ordering::Release);
        }
    }

    /// Tells the library that the process at the other end is gone. Overrides every other command,
    /// because commands like detach concern only connections that go on.
    pub(crate) fn set_peer_gone(&self, end: End) {
        if let Some(entry) = self.current(end) {
            // Release pairs with the library's Acquire load in `switching::attend_slowly`.
            entry.command.store(COMMAND_PEER_GONE, Ordering::Release);
        }
    }

    /// Tells the library to give the channels of ends up, except those of ends that already have a
    /// command that brings them down for longer than a packet capture.
    pub(crate) fn set_evict(&self, ends: impl Iterator<Item = End>) {
        self.want_back(ends, |entry| {
            swap_command(entry, COMMAND_SPARE, COMMAND_EVICT)
                || swap_command(entry, COMMAND_NONE, COMMAND_EVICT)
                || swap_command(entry, COMMAND_YIELD, COMMAND_EVICT)
        });
    }

    /// As [`Tables::set_evict`], but ends that are in use again keep their channels. One that a
    /// packet capture has on its carrier is not.
    pub(crate) fn set_spare(&self, ends: impl Iterator<Item = End>) {
        self.want_back(ends, |entry| {
            swap_command(entry, COMMAND_NONE, COMMAND_SPARE)
                || swap_command(entry, COMMAND_YIELD, COMMAND_EVICT)
        });
    }

    fn want_back(&self, ends: impl Iterator<Item = End>, told: impl Fn(&Entry) -> bool) {
        let evicted = ends.filter(|&end| self.current(end).is_some_and(&told));
        let tables: BTreeSet<TableId> = evicted.map(|end| end.table).collect();
        for table in tables {
            self.call_attention(table);
        }
    }

    /// Whether an end is under a command.
    pub(crate) fn is_commanded(&self, end: End) -> bool {
        let command = |entry: &Entry| entry.command.load(Ordering::Relaxed);
        self.current(end).map_or(COMMAND_NONE, command) != COMMAND_NONE
    }

    /// Makes the processes of a family look at their entries before they next sleep.
    pub(crate) fn call_attention(&self, id: TableId) {
        if let Some(table) = self.get(id) {
            // Release pairs with the library's Acquire load in `requests::follow`: it finds what
            // was changed before.
            table.header().attention.fetch_add(1, Ordering::Release);
        }
    }

    /// Clears the evict command, because it was carried out.
    pub(crate) fn clear_evict(&self, end: End) {
        if let Some(entry) = self.current(end) {
            let _ = swap_command(entry, COMMAND_EVICT, COMMAND_NONE)
                || swap_command(entry, COMMAND_SPARE, COMMAND_NONE);
        }
    }
}

/// One mapped table.
#[derive(Debug)]
pub(crate) struct MappedTable {
    base: NonNull<u8>,
    users: usize,
    file: Option<OwnedFd>,
}

impl MappedTable {
    fn map(file: OwnedFd) -> Result<MappedTable, TableError> {
        if !is_in_ordinary_pages(&file).map_err(|error| TableError::Map(MapError::Os(error)))? {
            return Err(TableError::HugePages);
        }
        let base = memfd::map(file.as_fd(), TABLE_BYTES).map_err(TableError::Map)?;
        let mapped = MappedTable {
            base,
            users: 1,
            file: Some(file),
        };
        if mapped.table().is_valid() {
            Ok(mapped)
        } else {
            Err(TableError::Header)
        }
    }

    /// An entry while it is live and in the given use.
    pub(crate) fn current(&self, index: u32, generation: u32) -> Option<&Entry> {
        let entry = self.entry(index)?;
        // Acquire pairs with the library's Release stores in `tracking::track`, here and below: the
        // entry is filled in.
        let is_current = entry.state.load(Ordering::Acquire) == EntryState::Live as u32
            && entry.channel_generation.load(Ordering::Acquire) == generation;
        is_current.then_some(entry)
    }

    /// Whether an entry says that it accepted its connection.
    pub(crate) fn is_accepted(&self, index: u32) -> bool {
        self.entry(index)
            .is_some_and(|entry| entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED != 0)
    }

    /// The number of entries that were used so far: no live one lies beyond.
    pub(crate) fn entries_used(&self) -> usize {
        let used = self.header().entries_used.load(Ordering::Relaxed);
        used.capped(ENTRIES as u32) as usize
    }

    /// Every live entry, by index. Reading a part of the file without pages would allocate them: 29
    /// MB for an empty table that claims to have used all entries. So in another user's table only
    /// the parts with pages are read.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let used = self.entries_used() as u32;
        let with_pages = match &self.file {
            None => iter::once(0..used).collect(),
            Some(file) => with_pages(file, used),
        };
        with_pages.into_iter().flatten().filter_map(|index| {
            let entry = self.entry(index)?;
            // Acquire pairs with the library's Release store in `tracking::track`.
            let live = entry.state.load(Ordering::Acquire) == EntryState::Live as u32;
            live.then_some((index, entry))
        })
    }

    /// Frees a live entry whose holders are gone without having freed it. A late message cannot be
    /// taken for one about the next use of the entry, which has another generation.
    pub(crate) fn reap(&self, index: u32) {
        if let Some(entry) = self.entry(index) {
            let (live, free) = (EntryState::Live as u32, EntryState::Free as u32);
            // If the family takes the entry over at this moment, it is no longer live. AcqRel pairs
            // with the compare-exchange in `Header::allocate`.
            let _ = entry
                .state
                .compare_exchange(live, free, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Process numbers in the family's list, including dead members and invented numbers.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> {
        let places = self.header().family.iter();
        // The place of a child that is being forked contains its parent's number, or none.
        let orphan = FAMILY_BIRTH | FAMILY_ORPHAN;
        let members = places.map(|place| place.load(Ordering::Relaxed));
        let members = members.filter(move |member| member & orphan != orphan);
        members
            .map(|member| member & FAMILY_PID)
            .filter(|&pid| pid != 0)
    }

    /// The printable part of the program's name.
    pub(crate) fn program(&self) -> String {
        let words = self.header().program.iter();
        let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let name: Vec<u8> = bytes.take(PROGRAM_BYTES).take_while(|&b| b != 0).collect();
        printable(&String::from_utf8_lossy(&name))
    }

    /// Stores a rule's wait mode for the family. Without a rule each of its processes uses the mode
    /// with which it was started.
    pub(crate) fn set_wait_by_rule(&self, mode: Option<WaitMode>) {
        // Relaxed: the Release of `Tables::call_attention` comes after it.
        let word = &self.header().wait_by_rule;
        word.store(WaitMode::ruled(mode), Ordering::Relaxed);
    }

    /// Stores the rules' setting for the family's short connections.
    pub(crate) fn set_express_by_rule(&self, setting: Option<bool>) {
        // Relaxed: as in `set_wait_by_rule`.
        let word = &self.header().express_by_rule;
        word.store(express::Rule::of(setting) as u32, Ordering::Relaxed);
    }

    /// The family's wait mode from its table: by a rule, otherwise the mode from its start.
    pub(crate) fn wait_mode(&self) -> Option<WaitMode> {
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let header = self.header();
        let told = WaitMode::from_word(load(&header.wait_mode));
        WaitMode::from_ruled(load(&header.wait_by_rule)).or(told)
    }

    /// Whether the family uses this runtime directory, according to its table.
    pub(crate) fn meets_in(&self, runtime_dir: &Path) -> bool {
        let meeting = self.header().meeting.load(Ordering::Relaxed);
        meeting == meeting_of(runtime_dir.as_os_str().as_bytes())
    }

    /// The first page.
    pub(crate) fn header(&self) -> &toehold_channel::table::Header {
        // SAFETY: a `Header` lies at the start of the mapping, which lives as long as `self`; it is
        // atomics all through, so it may change under the reference.
        unsafe { self.base.cast().as_ref() }
    }

    fn entry(&self, index: u32) -> Option<&Entry> {
        let table = self.table();
        let entry: *const Entry = table.entry(index)?;
        // SAFETY: `table.entry` checked the bounds; the mapping lives as long as `self`; an `Entry`
        // is atomics all through.
        Some(unsafe { &*entry })
    }

    fn table(&self) -> Table {
        // SAFETY: `base` is a mapping of `TABLE_BYTES`, ended only by `drop`; references do not
        // outlive `self`.
        unsafe { Table::at(self.base.as_ptr()) }
    }
}

impl Drop for MappedTable {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; every reference into it borrows from `self`.
        unsafe { memfd::unmap(self.base, TABLE_BYTES) };
    }
}

/// Ranges of the first `used` entries that begin in parts of the table's file that are not empty.
/// `pread` makes no pages, and takes no lock of the file. (`lseek` would find holes faster, but it
/// takes `inode_lock`, which a `write` of the file's owner may hold for ever.)
fn with_pages(file: &OwnedFd, used: u32) -> Vec<Range<u32>> {
    const START: usize = ENTRIES_OFFSET;
    const PART_BYTES: usize = 64 << 10;
    let index = |place: usize| {
        let index = (place.max(START) - START).div_ceil(size_of::<Entry>());
        u32::try_from(index).unwrap_or(used).min(used)
    };
    let (mut found, mut part) = (Vec::<Range<u32>>::new(), vec![0; PART_BYTES]);
    let end = START + used as usize * size_of::<Entry>();
    for from in (START..end).step_by(PART_BYTES) {
        let wanted = &mut part[..PART_BYTES.min(end - from)];
        let Ok(read) = rustix::io::pread(file, &mut *wanted, from as u64) else {
            break;
        };
        for (number, page) in wanted[..read].chunks(PAGE_BYTES).enumerate() {
            let place = from + number * PAGE_BYTES;
            let entries = index(place)..index(place + page.len());
            match found.last_mut() {
                _ if page == &NOTHING[..page.len()] => {}
                Some(last) if last.end == entries.start => last.end = entries.end,
                _ => found.push(entries),
            }
        }
    }
    found
}

/// The kernel makes all of a page or nothing.
const PAGE_BYTES: usize = 4096;
const NOTHING: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
const _: () = assert!(ENTRIES_OFFSET.is_multiple_of(PAGE_BYTES));

/// Whether a memfd is in tmpfs. A memfd that was made with `MFD_HUGETLB` can have the same seals.
fn is_in_ordinary_pages(file: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type != libc::HUGETLBFS_MAGIC)
}

fn key_of(file: &File) -> Result<FileKey, TableError> {
    let metadata = file
        .metadata()
        .map_err(|error| TableError::Map(MapError::Os(error)))?;
    Ok(FileKey {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

/// Sets the detach command of an entry, unless the entry already has a command. The operator's
/// command outlasts a packet capture.
pub(crate) fn detach(entry: &Entry) -> bool {
    swap_command(entry, COMMAND_SPARE, COMMAND_DETACH)
        || swap_command(entry, COMMAND_NONE, COMMAND_DETACH)
        || swap_command(entry, COMMAND_YIELD, COMMAND_DETACH)
}

/// Clears the detach command; any other command stays.
pub(crate) fn attach(entry: &Entry) -> bool {
    swap_command(entry, COMMAND_DETACH, COMMAND_NONE)
}

/// Keeps an entry on its carrier while it is `captured`; one that is to give its region up does so
/// in any case. True when that changes its command.
pub(crate) fn yield_to_capture(entry: &Entry, captured: bool) -> bool {
    match captured {
        true => {
            swap_command(entry, COMMAND_SPARE, COMMAND_EVICT)
                || swap_command(entry, COMMAND_NONE, COMMAND_YIELD)
        }
        false => swap_command(entry, COMMAND_YIELD, COMMAND_NONE),
    }
}

/// Replaces one command by another; false, without a change, when the entry has another command.
///
/// A library may withdraw [`COMMAND_SPARE`] at any moment, and no other command. So a caller that
/// replaces several commands tries `COMMAND_SPARE` first, and `COMMAND_NONE` after it: in the other
/// order an entry whose command is withdrawn between the two would get no command.
fn swap_command(entry: &Entry, from: u32, to: u32) -> bool {
    // Release pairs with the library's Acquire load in `switching::attend_slowly`.
    entry
        .command
        .compare_exchange(from, to, Ordering::Release, Ordering::Relaxed)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    /// A table of zeroes, and its file.
    fn table_in_a_file() -> (OwnedFd, Table) {
        let file = memfd::create(c"table", TABLE_BYTES).expect("memfd");
        let base = memfd::map(file.as_fd(), TABLE_BYTES).expect("mapped");
        // SAFETY: a mapping of the whole table, which is never ended.
        let table = unsafe { Table::at(base.as_ptr()) };
        (file, table)
    }

    fn entry_of(table: &Table, index: u32) -> &Entry {
        let entry: *const Entry = table.entry(index).expect("in range");
        // SAFETY: in the mapping, and all atomics.
        unsafe { &*entry }
    }

    #[test]
    fn no_command_is_lost_to_a_library_that_withdraws_an_idle_connection_s() {
        const ROUNDS: usize = 20_000;
        let (_file, table) = table_in_a_file();
        let entry = entry_of(&table, 0);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    swap_command(entry, COMMAND_SPARE, COMMAND_NONE);
                }
            });
            let mut lost = 0;
            for round in 0..ROUNDS {
                entry.command.store(COMMAND_SPARE, Ordering::Release);
                let expected: &[u32] = match round % 2 {
                    0 => {
                        detach(entry);
                        &[COMMAND_DETACH]
                    }
                    _ => {
                        yield_to_capture(entry, true);
                        &[COMMAND_YIELD, COMMAND_EVICT]
                    }
                };
                let is_there = expected.contains(&entry.command.load(Ordering::Relaxed));
                lost += usize::from(!is_there);
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(lost, 0);
        });
    }

    #[test]
    fn looking_for_live_entries_makes_no_pages() {
        let blocks = |file: &OwnedFd| rustix::fs::fstat(file).expect("open").st_blocks;
        let (file, table) = table_in_a_file();
        table.initialise(1, WaitMode::Event, b"sparse");
        let used = &table.header().entries_used;
        used.store(ENTRIES as u32, Ordering::Relaxed);
        let wanted = [0, 9, 4711, ENTRIES as u32 - 1];
        for index in wanted {
            let state = &entry_of(&table, index).state;
            state.store(EntryState::Live as u32, Ordering::Relaxed);
        }
        let before = blocks(&file);
        let mut tables = Tables::of_strangers();
        let copy = file.try_clone().expect("a descriptor");
        let id = tables.open(copy).expect("a table");
        let opened = tables.get(id).expect("opened");
        let live: Vec<u32> = opened.live().map(|(index, _)| index).collect();
        assert_eq!(live, wanted);
        used.store(100, Ordering::Relaxed);
        assert_eq!(opened.live().count(), 2);
        used.store(0, Ordering::Relaxed);
        assert_eq!(opened.live().count(), 0);
        assert_eq!(blocks(&file), before);
    }

    /// Sealed and long enough for a table, but a fault in it can be fatal.
    #[test]
    fn a_table_in_huge_pages_is_refused_before_it_is_mapped() {
        /// A whole number of the largest usual pages, and not the length of a table.
        const BYTES: libc::off_t = 1 << 30;
        // SAFETY: the name is NUL-terminated; the descriptor is ours.
        let file = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
            let fd = libc::memfd_create(c"huge".as_ptr(), flags);
            assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
            let file = OwnedFd::from_raw_fd(fd);
            assert_eq!(libc::ftruncate(fd, BYTES), 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, memfd::SEALS), 0);
            file
        };
        let refused = MappedTable::map(file).expect_err("huge pages");
        assert!(matches!(refused, TableError::HugePages), "{refused}");
    }
}
