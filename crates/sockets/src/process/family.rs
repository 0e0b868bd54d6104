//! A process gets its family's table: it makes a table, or it takes over the table of the
//! program that ran in this process before.

use core::sync::atomic::Ordering;

use toehold_channel::memfd;
use toehold_channel::rendezvous::meeting_of;
use toehold_channel::table::TABLE_BYTES;
use toehold_freestanding::fd::BorrowedFd;

use crate::process::table::{self, Table};
use crate::process::{self, descriptors, holders};
use crate::system::sys;
use crate::{adapter, lock};

static TABLE_LOCK: lock::Private = lock::Private::new();

/// The family's table, made if need be.
pub(crate) fn table_or_new() -> Option<Table> {
    if let Some(table) = table::table() {
        return Some(table);
    }
    let _held = TABLE_LOCK.lock();
    if let Some(table) = table::table() {
        return Some(table);
    }
    let fd = memfd::create(c"toehold-table", TABLE_BYTES).ok()?;
    let header = table::map_header(fd.as_fd())?;
    let mut program = [0u8; 48];
    let len = program_name(&mut program);
    header.initialise(process::pid(), process::wait_mode(), &program[..len]);
    let meeting = meeting_of(adapter::runtime_directory());
    // Relaxed: a later adapter reads it, through the file.
    header.meeting.store(meeting, Ordering::Relaxed);
    let table = table::open(header, descriptors::own(fd.into_raw_fd()));
    holders::join_self(&table);
    table.publish();
    Some(table)
}

/// Takes over the table of the program that ran in this process before. False when `fd` is not a
/// table.
pub(crate) fn adopt_table(fd: i32) -> bool {
    if fd < 0 || table::table().is_some() {
        return false;
    }
    // SAFETY: the former program left it open for us; a number that is not open maps nothing.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(header) = table::map_header(file) else {
        return false;
    };
    if !header.is_valid() {
        // SAFETY: mapped above and shown to nobody.
        unsafe { table::unmap_header(header) };
        return false;
    }
    let table = table::open(header, descriptors::own(fd));
    table.publish();
    holders::join_self(&table);
    if !holders::family_alive() {
        // No other process depends on the program's name in the table, so it may be changed.
        let mut program = [0u8; 48];
        let len = program_name(&mut program);
        header.rename(&program[..len]);
    }
    true
}

/// True when this family has a table, so that the adapter must know the process.
pub(crate) fn has_table() -> bool {
    table_or_new().is_some()
}

/// Writes the program's name to `out` and returns its length. It is the name of the first thread,
/// because other threads often have their own names. If `/proc` cannot be read, it is this thread's
/// name.
fn program_name(out: &mut [u8]) -> usize {
    let is_first = sys::gettid() == process::pid();
    let mut len = 0;
    if !is_first {
        sys::each_byte(c"/proc/self/comm", |byte| {
            if let Some(place) = out.get_mut(len).filter(|_| byte != b'\n') {
                *place = byte;
                len += 1;
            }
        });
    }
    if len == 0 {
        let name = sys::thread_name();
        len = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        out[..len].copy_from_slice(&name[..len]);
    }
    len
}

/// Opens the lock in a forked child, whose only thread is not making a table.
pub(crate) fn forked() {
    TABLE_LOCK.reset();
}
