//! The ends of a program's connections, as its table has them: for moments that are too short for
//! `toehold status`.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use toehold_channel::table::{COMMAND_YIELD, Entry, EntryState, Mode, TABLE_BYTES, Table};

/// The table of a program's family, mapped.
pub struct Ends {
    table: Table,
}

/// A claim about an end.
pub type Claim = fn(&Entry) -> bool;

impl Ends {
    /// Those of the process `pid`.
    ///
    /// # Panics
    /// When it has no connections under Toehold, or they are not ours to see.
    pub fn of(pid: u32) -> Ends {
        let file = table_of(pid).expect("a process with a table");
        // SAFETY: a new mapping of a sealed file of this length, which is never unmapped.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
            libc::mmap(null_mut(), TABLE_BYTES, protection, flags, fd, 0)
        };
        assert_ne!(
            base,
            libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
        // SAFETY: mapped above, for as long as this process runs.
        let table = unsafe { Table::at(base.cast()) };
        assert!(table.is_valid(), "the table is of another version");
        Ends { table }
    }

    /// Those of which `claim` is not true, of all that live now.
    pub fn without(&self, claim: Claim) -> Waiting<'_> {
        Waiting {
            ends: self.live().filter(|end| !claim(end)).collect(),
            claim,
        }
    }

    /// The number of times that each that lives now has rung.
    pub fn doorbells(&self) -> Vec<u32> {
        self.live()
            .map(|end| end.doorbells.load(Ordering::Relaxed))
            .collect()
    }

    fn live(&self) -> impl Iterator<Item = &Entry> {
        let used = self.table.header().entries_used.load(Ordering::Relaxed);
        let all = (0..used.shown()).filter_map(|index| self.table.entry(index));
        let live = EntryState::Live as u32;
        // Acquire pairs with the library's Release store in `tracking::track`.
        all.filter(move |end| end.state.load(Ordering::Acquire) == live)
    }
}

/// Ends of which a claim is to become true.
pub struct Waiting<'a> {
    ends: Vec<&'a Entry>,
    claim: Claim,
}

impl Waiting<'_> {
    /// At least how many are left. An end is looked at until it is so, and then no more.
    pub fn count(&mut self) -> usize {
        while let Some(end) = self.ends.last() {
            if !(self.claim)(end) {
                break;
            }
            self.ends.pop();
        }
        self.ends.len()
    }
}

/// The end was told to go by the kernel.
pub fn is_told(end: &Entry) -> bool {
    end.command.load(Ordering::Relaxed) == COMMAND_YIELD
}

/// The next byte that its program sends goes by the kernel.
pub fn sends_by_kernel(end: &Entry) -> bool {
    end.tx_mode.load(Ordering::Relaxed).is(Mode::Carrier as u32)
}

/// The next byte that its program sends goes by a ring.
pub fn sends_by_ring(end: &Entry) -> bool {
    end.tx_mode.load(Ordering::Relaxed).is(Mode::Ring as u32)
}

fn table_of(pid: u32) -> Option<File> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut paths = descriptors.filter_map(|entry| Some(entry.ok()?.path()));
    let path = paths.find(|path| {
        let name = fs::read_link(path).unwrap_or_default();
        name.to_string_lossy().starts_with("/memfd:toehold-table")
    })?;
    OpenOptions::new().read(true).write(true).open(path).ok()
}
