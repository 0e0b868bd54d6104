//! A tracked connection: its entry in the family's table, which is shared over fork, and this
//! process's own words beside it (mappings, sleepers).
//!
//! - [`tracking`], [`closing`], [`release`]: how the tracking of a connection begins, how it is
//!   duplicated and closed, and how it ends;
//! - [`carrier`], [`unix`]: TCP and Unix sockets as carriers, and how they differ;
//! - [`options`], [`settings`]: socket options;
//! - [`pending_errors`], [`resets`]: errors that are not yet reported; peer faults;
//! - [`counts`]: the kernel's count of a TCP connection's bytes beside our own;
//! - [`orderings`]: orderings of protocols in which several modules take part.

pub(crate) mod carrier;
pub(crate) mod closing;
pub(crate) mod counts;
pub(crate) mod options;
pub(crate) mod orderings;
pub(crate) mod pending_errors;
pub(crate) mod release;
pub(crate) mod resets;
pub(crate) mod settings;
pub(crate) mod tracking;
pub(crate) mod unix;

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use toehold_channel::table::{COMMAND_NONE, Entry, EntryState, FLAG_NONBLOCK, Reason};
use toehold_stream::attachment::{self, Attachment};
use toehold_stream::calls::Calls;
use toehold_stream::end::End;

use crate::connection::orderings::PIN_SEQ_CST;
use crate::express::carrier_words::Words;
use crate::lock;
use crate::memory::chunks::Chunks;
use crate::memory::pairs::Pair;
use crate::process::{self, descriptors, holders, table};
use crate::system::{errno, sys};
use crate::waiting::spin;

/// No descriptor: the kernel says `EBADF`, and `poll(2)` says `POLLNVAL`.
const NO_NUMBER: i32 = i32::MAX;

static LOCALS: Chunks<Local, { table::CHUNK_LOG2 }, { table::CHUNKS }> = Chunks::new();

/// This process's view of a connection. All zeroes is a fresh one.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Local {
    /// The mapped region, if there is one, and the threads that use it.
    pub(crate) attachment: Attachment,
    /// The state that the family shares, in the table; null while this process has held no
    /// connection here.
    entry: AtomicPtr<Entry>,
    /// The pair of processes the channel belongs to.
    pub(crate) pair: AtomicPtr<Pair>,
    /// An offer's region that could not be attached yet.
    pub(crate) offered: AtomicPtr<u8>,
    /// Address range of a region that was left, reserved for the next region.
    pub(crate) parked: AtomicPtr<u8>,
    /// The slab that its first region is in, by number; 0 for none.
    pub(crate) slab: AtomicU32,
    /// Whether the program has been seen waiting for it, see [`crate::waiting::seen_waits`]. In the
    /// first cache line, which each call on the host path reads.
    pub(crate) waits: AtomicU32,
    /// Kernel receives of this process on the carrier while no channel is attached.
    pub(crate) rx_in_flight: Calls,
    /// As `rx_in_flight`, of sends.
    pub(crate) tx_in_flight: Calls,
    /// Descriptors of this process that refer to it.
    pub(crate) descriptors: AtomicU32,
    /// Threads that are giving up this process's hold on a connection here. While there are any, no
    /// other connection begins here.
    pub(crate) leavers: AtomicU32,
    /// Since when the channel has been drained and refused, nanoseconds; 0 when it is not.
    pub(crate) over_since_ns: AtomicU64,
    /// The thread that is closing one of them, by its thread pointer, or 0.
    closer: AtomicUsize,
    /// The connection that this one replaces, as number and generation in one word, or 0. See
    /// [`Connection::continues`].
    continues: AtomicU64,
    /// First of its epoll registrations, 0 for none.
    pub(crate) registrations: AtomicU32,
    /// 1 if each read by the peer is an edge for one of them, see
    /// [`crate::epoll::news::sent_on_unix`].
    pub(crate) expects_room: AtomicU32,
    /// Held while the list of registrations, or the owner of one of them, changes.
    pub(crate) membership: lock::Private,
    /// The [`crate::adapter::epoch`] in which pairing was asked for.
    pub(crate) asked_epoch: AtomicU32,
    /// One more than the offers that were counted when the adapter was last shown the socket; 0
    /// when it was not. See [`crate::pairing::shown_socket`].
    pub(crate) shown_at: AtomicU32,
    /// The adapter's epoch in which its network namespace was shown, see
    /// [`crate::adapter::namespace`].
    pub(crate) shown_epoch: AtomicU32,
    /// The number of times that it was shown in that epoch.
    pub(crate) shows: AtomicU32,
    /// Recent success of spinning, see [`crate::waiting::spin`].
    pub(crate) spin: spin::SpinHistory,
    /// When the carrier was last looked at for an end of file, nanoseconds.
    pub(crate) carrier_seen_ns: AtomicU64,
    /// The carrier's part in [`crate::express`].
    pub(crate) express: Words,
}

const _: () = assert!(core::mem::offset_of!(Local, rx_in_flight) == 64);

impl Local {
    /// The state that the family shares. `None` when this process has held no connection here.
    #[inline(always)]
    fn entry(&self) -> Option<&'static Entry> {
        // Acquire pairs with the Release store in `hold_entry`.
        let entry = self.entry.load(Ordering::Acquire);
        // SAFETY: an entry of the table, which stays mapped as long as the process lives; all
        // atomics.
        unsafe { entry.as_ref() }
    }

    /// True in a thread that is closing a descriptor of the connection whose number is already
    /// forgotten.
    #[inline]
    fn is_closed_here(&self) -> bool {
        self.closer.load(Ordering::Relaxed) == errno::thread()
    }

    /// Calls `work` while this thread closes a number that the library has already forgotten.
    pub(crate) fn closing<T>(&self, work: impl FnOnce() -> T) -> T {
        // Relaxed: of interest to this thread alone.
        let me = errno::thread();
        let outer = self.closer.swap(me, Ordering::Relaxed);
        let out = work();
        // Another thread may be closing the next connection in this place by now. A signal handler
        // that closes may have interrupted its own thread's close.
        if outer != me {
            let closer = &self.closer;
            let _ = closer.compare_exchange(me, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        out
    }

    /// Another connection begins in this place.
    pub(crate) fn continue_nothing(&self) {
        self.continues.store(0, Ordering::Relaxed);
    }

    /// After fork: the threads that were inside calls are the parent's.
    pub(crate) fn forget_threads(&self) {
        self.attachment.forget_threads();
        if self.closer.load(Ordering::Relaxed) != 0 {
            self.closer.store(0, Ordering::Relaxed);
        }
        self.rx_in_flight.forget_threads();
        self.tx_in_flight.forget_threads();
        // The load avoids most stores, so most of the child's pages need no copy.
        if self.leavers.load(Ordering::Relaxed) != 0 {
            self.leavers.store(0, Ordering::Relaxed);
        }
    }
}

/// A tracked connection behind a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    /// The descriptor by which it was found: the carrier.
    pub(crate) fd: i32,
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// The state that the family shares.
    pub(crate) entry: &'static Entry,
    /// The state of this process.
    pub(crate) local: &'static Local,
}

impl Connection {
    /// A connection without a channel, whose memory stays for ever.
    #[cfg(test)]
    pub(crate) fn of_a_test(fd: i32) -> Connection {
        Connection {
            fd,
            index: 0,
            generation: 0,
            entry: Box::leak(Box::default()),
            local: Box::leak(Box::default()),
        }
    }

    /// Our end of its channel, if this process has attached it.
    #[inline(always)]
    pub(crate) fn end(&self) -> Option<End<'static>> {
        let region = self.local.attachment.region();
        (!region.is_null()).then(|| self.end_in(region))
    }

    #[inline]
    pub(crate) fn end_in(&self, region: *mut u8) -> End<'static> {
        let side = self.entry.side.load(Ordering::Relaxed).masked(1) as usize;
        // SAFETY: a region is given up only by `release::release` and `leaving::finish`, under both
        // direction locks and while nobody is inside. It stays mapped then, or its addresses do,
        // but may become another connection's: callers hold one of those locks or are
        // [`Connection::inside`] while they write.
        unsafe { End::at(self.entry, region, side) }
    }

    /// Our end of its channel. The region stays this connection's until the guard is dropped.
    #[inline(always)]
    pub(crate) fn inside(&self) -> Option<Inside> {
        let (region, inside) = self.local.attachment.enter()?;
        self.is_current().then(|| Inside {
            end: self.end_in(region),
            _inside: inside,
        })
    }

    /// The current descriptor of the carrier. While a thread slept, another connection may have got
    /// the number with which its call began (`dup2`), and the thread must not take or send bytes
    /// there. `None` when the connection has no descriptor any more.
    #[inline]
    pub(crate) fn carrier(&self) -> Option<i32> {
        match descriptors::connection_at(self.fd) {
            Some(named) if named == (self.index, self.generation) => Some(self.fd),
            None if self.local.express.high() == Some(self.fd) => Some(self.fd),
            // The number is forgotten before it is closed.
            None if self.local.is_closed_here() || !process::is_started() => Some(self.fd),
            _ => descriptors::descriptor_of_connection(self.index, self.generation),
        }
    }

    /// As [`Connection::carrier`], for a system call. A system call that moves bytes or changes the
    /// socket is made under a lock of the connection, unless it is the first one of the program's
    /// call: [`crate::connection::closing`] passes through these locks before a number can belong
    /// to another file.
    #[inline]
    pub(crate) fn number(&self) -> i32 {
        self.carrier().unwrap_or(NO_NUMBER)
    }

    /// True when the descriptor still names this connection.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        // Acquire pairs with the Release store in `tracking::track`.
        self.entry.generation.load(Ordering::Acquire) == self.generation
    }

    /// True when this connection and `before` are one connection for the program, because the
    /// library has replaced its socket ([`crate::express`]). Calls that began on `before` go on
    /// with this connection.
    pub(crate) fn continues(&self, before: &Connection) -> bool {
        // Acquire pairs with the Release store in `continue_from`.
        self.local.continues.load(Ordering::Acquire) == before.word()
    }

    /// From now on this connection continues `before`.
    pub(crate) fn continue_from(&self, before: &Connection) {
        // Release pairs with the Acquire load in `continues`.
        self.local.continues.store(before.word(), Ordering::Release);
    }

    /// Number and generation in one word. It is never 0, because an index has fewer bits.
    fn word(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(!self.index)
    }

    /// The generation of the connection's channel, as the adapter knows it.
    pub(crate) fn channel_generation(&self) -> u32 {
        self.entry.channel_generation.load(Ordering::Relaxed)
    }

    /// True when the program asked for non-blocking calls on it; known once there is a channel.
    #[inline]
    pub(crate) fn nonblocking(&self) -> bool {
        self.entry.flags.load(Ordering::Relaxed) & FLAG_NONBLOCK != 0
    }

    /// Finds out whether calls on the connection block. Afterwards our `fcntl` and `ioctl` record
    /// each change that the program makes.
    pub(crate) fn learn_nonblocking(&self) {
        let learn = |flags: u32| {
            // Asked again when another thread has changed the mode meanwhile: that thread may have
            // recorded its change before or after it told the kernel.
            Some(if sys::is_nonblocking(self.fd) {
                flags | FLAG_NONBLOCK
            } else {
                flags & !FLAG_NONBLOCK
            })
        };
        let flags = &self.entry.flags;
        let _ = flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learn);
    }

    /// True when another living process of the family holds the connection, too.
    pub(crate) fn is_shared(&self) -> bool {
        holders::are_others(self.entry)
    }

    /// Keeps the connection on the host path for good.
    pub(crate) fn pin(&self, reason: Reason) {
        self.entry
            .flags
            .fetch_or(toehold_channel::table::FLAG_PINNED, PIN_SEQ_CST);
        // Release pairs with the Acquire load in `switching::FormerReason::of`.
        self.entry.reason.store(reason as u32, Ordering::Release);
    }
}

/// A thread at work on a region outside the direction locks.
pub(crate) struct Inside {
    end: End<'static>,
    _inside: attachment::Inside<'static>,
}

impl core::ops::Deref for Inside {
    type Target = End<'static>;

    #[inline]
    fn deref(&self) -> &End<'static> {
        &self.end
    }
}

/// This process's words of connection `index`, if their memory exists.
#[inline]
pub(crate) fn local(index: u32) -> Option<&'static Local> {
    LOCALS.get(index as usize)
}

/// The state of connection `index`, which this process begins to hold. `None` without memory, and
/// while a thread of this process is still giving up the connection before: another member of the
/// family has freed its entry.
pub(crate) fn hold_entry(index: u32) -> Option<(&'static Entry, &'static Local)> {
    let entry = table::table()?.entry(index)?;
    let local = LOCALS.get_or_map(index as usize)?;
    let place = core::ptr::from_ref(entry).cast_mut();
    // Release pairs with the Acquire load in `Local::entry`.
    local.entry.store(place, Ordering::Release);
    // Acquire pairs with the Release by which `release` counts the thread out.
    (local.leavers.load(Ordering::Acquire) == 0).then_some((entry, local))
}

/// The connection behind `fd`, if it is tracked.
#[inline(always)]
pub(crate) fn at(fd: i32) -> Option<Connection> {
    let (index, generation) = descriptors::connection_at(fd)?;
    numbered(fd, index, generation)
}

/// Connection `index` of the given generation, with the descriptor `fd`.
#[inline(always)]
pub(crate) fn numbered(fd: i32, index: u32, generation: u32) -> Option<Connection> {
    let (entry, local) = words(index)?;
    Some(Connection {
        fd,
        index,
        generation,
        entry,
        local,
    })
}

/// The words of connection `index`, the family's and this process's. `None` when this process has
/// held no connection there.
#[inline(always)]
pub(crate) fn words(index: u32) -> Option<(&'static Entry, &'static Local)> {
    let local = local(index)?;
    Some((local.entry()?, local))
}

/// A connection that this process holds, by number.
pub(crate) fn held(index: u32, entry: &'static Entry, local: &'static Local) -> Connection {
    Connection {
        fd: entry.fd.load(Ordering::Relaxed) as i32,
        index,
        generation: entry.generation.load(Ordering::Relaxed),
        entry,
        local,
    }
}

/// Every connection that this process holds, by number.
pub(crate) fn each_held(mut each: impl FnMut(u32, &'static Entry, &'static Local)) {
    each_used(|index, entry, local| {
        if is_held(entry, local) {
            each(index, entry, local);
        }
    });
}

/// True when this process holds the connection.
pub(crate) fn is_held(entry: &Entry, local: &Local) -> bool {
    local.descriptors.load(Ordering::Relaxed) > 0
        && entry.state.load(Ordering::Relaxed) == EntryState::Live as u32
}

/// Visits every entry that this process may have held, by number.
pub(crate) fn each_used(mut each: impl FnMut(u32, &'static Entry, &'static Local)) {
    let Some(table) = table::table() else { return };
    for index in 0..table.entries_used() {
        // Entries without words in this process belong to other members of the family.
        if let Some((entry, local)) = words(index) {
            each(index, entry, local);
        }
    }
}

/// The carrier reported its end or an error: ask the kernel for the details.
pub(crate) const HINT_LOOK: u32 = 1;
/// The carrier's end of file was seen and the ring is drained.
pub(crate) const HINT_EOF: u32 = 2;
/// The carrier reported an urgent byte, which does not end the stream. Calls for urgent data ask
/// the kernel.
pub(crate) const HINT_URGENT: u32 = 4;

/// The hints for events of the carrier. An urgent byte alone is not an end.
pub(crate) fn hints_of(events: u32) -> u32 {
    const ENDS: i32 = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;
    let hint = |of: i32, hint| if events & of as u32 != 0 { hint } else { 0 };
    hint(ENDS, HINT_LOOK) | hint(libc::EPOLLPRI, HINT_URGENT)
}

/// True when there is a command of the operator or the adapter for this connection.
#[inline]
pub(crate) fn commanded(entry: &Entry) -> bool {
    entry.command.load(Ordering::Relaxed) != COMMAND_NONE
}
