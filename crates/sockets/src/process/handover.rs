//! exec: a new program replaces the old one in a process, and its connections go on.
//!
//! exec discards the memory in which the library keeps its state. The state that the family shares
//! (positions, modes, counts) survives in the table's memfd. The rest (the entry of each
//! descriptor, and the place of its region) is written into another memfd, the *hand-over*, whose
//! descriptor number is passed in the environment. The adapter sends the slab and pair descriptors
//! again ([`Kind::Resume`](toehold_channel::rendezvous::Kind::Resume)), before the exec. If it does
//! not answer, the connections go back to their carriers, as for a new program without the library.
//!
//! ```text
//!   before exec, for each descriptor that stays open
//!     successor has the library ─► keep both locks, ask for its descriptors
//!                                  ─► in the new program, before `main`: map, enter, unlock
//!     it has not, or uses stdio ─► both directions to the carrier (switching::quiesce), for good
//!     a forked child's leak     ─► both directions to the carrier (switching::lend): parent and
//!                                  program share it
//! ```
//!
//! If no other member of the family holds the connection, its locks stay taken during the exec. So
//! no thread of this process can be in the middle of a change to the state that is handed over.
//! Signal handlers run as before: the new program must not begin with signals blocked, and after an
//! exec that fails this program goes on.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use toehold_freestanding::fd::{BorrowedFd, OwnedFd};

use toehold_channel::doorbell::WakeWord;
use toehold_channel::layout::READY_BITS;
use toehold_channel::memfd;
use toehold_channel::rendezvous::{Kind as Said, Message};
use toehold_channel::table::{Entry, EntryState, FLAG_INHERITED, FLAG_PINNED, Reason};

use crate::adapter::{self, offers};
use crate::connection::orderings::STATE_ACQUIRE;
use crate::connection::{self, Connection};
use crate::direction::{switching, takeover};
use crate::epoll::membership;
use crate::express;
use crate::lock::{self, UNLOCK_RELEASE};
use crate::memory::{pairs, slabs};
use crate::offload::{active_open, awaiting};
use crate::process::descriptors::{self, Kind, Recipient};
use crate::process::{self, family, holders, table};
use crate::system::{faults, sys};
use crate::waiting::sleepers;

/// The most connections of a process whose channels are handed over. Further connections go back to
/// their carriers.
const RESUMED_MAX: u32 = 1024;
/// The time that the adapter may take for its answers to all of them.
const ANSWERS_NS: u64 = 500_000_000;
/// First word of a hand-over: "TOEHOLDE".
const MAGIC: u64 = u64::from_le_bytes(*b"TOEHOLDE");

/// First words of a hand-over.
#[repr(C)]
struct Header {
    magic: u64,
    /// The process for which it is meant. In another process that has inherited the environment,
    /// the descriptor number means nothing.
    pid: u32,
    table_fd: i32,
    /// Records that follow.
    count: u32,
    _pad: u32,
}

const _: () =
    assert!(size_of::<Header>().is_multiple_of(8) && size_of::<Record>().is_multiple_of(8));

/// One descriptor that stays open.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    fd: i32,
    entry: u32,
    generation: u32,
    /// [`LOCKED`], [`OFFERED`].
    flags: u32,
    /// Slab and pair, -1 for none.
    slab_fd: i32,
    pair_fd: i32,
    slot: u32,
    side: u32,
    pair: u64,
}

/// Both direction locks are held for the new program.
const LOCKED: u32 = 1;
/// The region is an offer that was not attached yet.
const OFFERED: u32 = 2;

/// The preparations for an exec, which must be undone when it fails.
#[must_use]
pub struct Departure {
    /// The hand-over: its descriptor and its mapping. A `vfork` child has given the mapping up: the
    /// memory is its parent's, and the exec does not unmap it.
    handover: Option<(OwnedFd, Option<Handover>)>,
    /// This is a `vfork` child: its parent keeps everything that the child gives up.
    borrowed: bool,
    /// Nothing was held, so nothing was done.
    idle: bool,
}

impl Departure {
    const IDLE: Departure = Departure {
        handover: None,
        borrowed: false,
        idle: true,
    };

    /// The descriptor that the new program passes to [`take_over_from`].
    pub fn descriptor(&self) -> Option<i32> {
        self.handover.as_ref().map(|(fd, _)| fd.as_raw_fd())
    }
}

/// A mapped hand-over.
struct Handover {
    base: NonNull<u8>,
    capacity: usize,
}

impl Handover {
    const fn bytes(capacity: usize) -> usize {
        size_of::<Header>() + capacity * size_of::<Record>()
    }

    fn create(capacity: usize) -> Option<(OwnedFd, Handover)> {
        let fd = memfd::create(c"toehold-handover", Handover::bytes(capacity)).ok()?;
        let base = memfd::map(fd.as_fd(), Handover::bytes(capacity)).ok()?;
        Some((fd, Handover { base, capacity }))
    }

    /// Maps the hand-over behind `fd`, if it is one and is meant for this process.
    fn open(fd: BorrowedFd<'_>) -> Option<Handover> {
        let mut capacity = 0;
        let stat = memfd::status(fd).ok()?;
        let rest = (stat.st_size as usize).checked_sub(size_of::<Header>())?;
        if rest.is_multiple_of(size_of::<Record>()) {
            capacity = rest / size_of::<Record>();
        }
        let base = memfd::map(fd, Handover::bytes(capacity)).ok()?;
        let handover = Handover { base, capacity };
        let header = handover.header();
        let ours = header.magic == MAGIC
            && header.pid == sys::getpid()
            && header.count as usize <= capacity;
        ours.then_some(handover)
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped, page-aligned, long enough; only this thread uses it.
        unsafe { self.base.cast().as_ref() }
    }

    fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as in `header`.
        unsafe { self.base.cast().as_mut() }
    }

    fn records(&self) -> &[Record] {
        let count = (self.header().count as usize).min(self.capacity);
        // SAFETY: they follow the header inside the mapping; only this thread uses it.
        unsafe {
            let first = self.base.as_ptr().add(size_of::<Header>());
            core::slice::from_raw_parts(first.cast::<Record>(), count)
        }
    }

    /// False when as many records were added as there were descriptors at first: other threads may
    /// have made further connections since.
    fn has_room(&self) -> bool {
        (self.header().count as usize) < self.capacity
    }

    /// Adds one; false when there is no more room.
    fn add(&mut self, record: Record) -> bool {
        let count = self.header().count as usize;
        if !self.has_room() {
            return false;
        }
        // SAFETY: inside the mapping by the check above, and aligned: both sizes are multiples of
        // eight.
        unsafe {
            let first = self.base.as_ptr().add(size_of::<Header>());
            first.cast::<Record>().add(count).write(record);
        }
        self.header_mut().count += 1;
        true
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        // SAFETY: mapped by `create` or `open` with this length; used through `self` only.
        unsafe { memfd::unmap(self.base, Handover::bytes(self.capacity)) };
    }
}

/// True when this process has connections that an exec would end or hand on.
pub fn holds_connections() -> bool {
    let mut any = false;
    if process::is_started() {
        connection::each_held(|_, _, _| any = true);
    }
    any
}

/// A program is about to be executed. If a child that shares our memory executes it, the program
/// will have sockets that we may connect later.
pub fn share_sockets() {
    if process::borrowed_memory() {
        descriptors::share_fresh(Recipient::Program);
    }
}

/// The process is about to execute a new program. Close-on-exec descriptors end; the others are
/// handed over if the new program `follows`, which means that it will have the library.
pub fn before_exec(follows: bool) -> Departure {
    if !process::is_started() || table::table().is_none() {
        return Departure::IDLE;
    }
    let borrowed = process::borrowed_memory();
    if !borrowed {
        express::stop();
    }
    // A `vfork` child closes what it likes, our descriptors included.
    let follows = follows && !is_closed(table::fd());
    if !borrowed {
        membership::leaving_program();
    }
    let mut handover = if follows { create_handover() } else { None };
    if borrowed && handover.is_none() {
        before_spawn();
        return Departure::IDLE;
    }
    each_survivor(|connection, is_first| {
        if is_first {
            active_open::settle_before_exec(connection);
        }
    });
    let mut resumer = Resumer::new();
    each_survivor(|connection, is_first| match is_first {
        true => hand_on_or_share(connection, handover.as_mut(), &mut resumer, borrowed),
        false => hand_on_duplicate(connection, handover.as_mut()),
    });
    let any_survives = !borrowed && leave_holds_to_successor();
    let handover = handover.filter(|(_, handover)| handover.header().count > 0);
    match &handover {
        Some((fd, handed_on)) => {
            set_close_on_exec(table::fd(), false);
            set_close_on_exec(fd.as_raw_fd(), false);
            if borrowed {
                let place = table::table().and_then(|table| holders::join(&table, sys::getpid()));
                each_handed_on(handed_on, |entry| holders::name(entry, place));
            }
        }
        // If connections survive without the library, the new program holds them until it ends, so
        // this process stays in the family's list.
        None if !borrowed && !any_survives => holders::leave_family(sys::getpid()),
        None => {}
    }
    Departure {
        handover: handover.map(|(fd, handed_on)| (fd, Some(handed_on).filter(|_| !borrowed))),
        borrowed,
        idle: false,
    }
}

/// A connection stays open in the new program. With a `handover` its rings go on; otherwise both
/// directions go to the kernel. With `borrowed` memory the caller's program goes on, too.
fn hand_on_or_share(
    connection: &Connection,
    handover: Option<&mut (OwnedFd, Handover)>,
    resumer: &mut Resumer,
    borrowed: bool,
) {
    let entry = connection.entry;
    // Counts the new program as a holder; the present program's hold ends later.
    let shared = borrowed || holders::are_others(entry);
    holders::enter(entry, None);
    let is_handed_on = handover
        .filter(|_| !is_standard(connection))
        .is_some_and(|(_, handover)| hand_on(connection, handover, resumer, shared));
    if is_handed_on {
        return;
    }
    if borrowed {
        share_with_program(connection);
        holders::count_out(entry, None);
        return;
    }
    // Other connections of a forked child are probably leaked rather than meant for the new
    // program: the parent goes on with them, and must not lose bytes that the child writes.
    let is_gift = !shared || entry.flags.load(Ordering::Relaxed) & FLAG_INHERITED != 0;
    if is_gift || is_standard(connection) {
        switching::quiesce(connection, Reason::Passed);
    } else {
        switching::keep_on_carrier(connection);
    }
}

/// Ends the present program's holds, and gives the new program's holds the place of this process.
/// True when there are any.
fn leave_holds_to_successor() -> bool {
    connection::each_held(|_, entry, _| {
        holders::count_out(entry, holders::place());
    });
    let mut any_survives = false;
    each_survivor(|connection, is_first| {
        any_survives = true;
        if is_first {
            holders::name(connection.entry, holders::place());
        }
    });
    any_survives
}

/// A child is about to execute a program, and the library does not see that. Connections that stay
/// open there are lent.
pub fn before_spawn() {
    before_child(share_with_program);
}

/// As [`before_spawn`], for a child whose own calls come to the library. Only when it executes the
/// program is it known which connections are its standard streams. Until then connections stay in
/// their rings, because a peer can be asked for unread bytes only while its direction is a ring.
pub fn before_vfork() {
    before_child(|connection| {
        if !is_standard(connection) {
            switching::keep_on_carrier(connection);
        }
    });
}

fn before_child(each: impl Fn(&Connection)) {
    descriptors::share_fresh(Recipient::Program);
    if !process::is_started() || table::table().is_none() {
        return;
    }
    each_survivor(|connection, is_first| {
        if is_first {
            active_open::settle_before_exec(connection);
            each(connection);
        }
    });
}

/// A program without the library gets the connection, too. Unread bytes of a standard stream are
/// for that program.
fn share_with_program(connection: &Connection) {
    match is_standard(connection) {
        true => switching::quiesce(connection, Reason::Passed),
        false => switching::keep_on_carrier(connection),
    }
}

/// The exec that [`before_exec`] has announced failed: the program stays.
pub fn exec_failed(departure: Departure) {
    if departure.idle {
        return;
    }
    if let Some((fd, handover)) = departure.handover {
        set_close_on_exec(table::fd(), true);
        let handover = handover.or_else(|| Handover::open(fd.as_fd()));
        for record in handover.iter().flat_map(Handover::records) {
            close_all([record.slab_fd, record.pair_fd]);
            if record.flags & LOCKED != 0 {
                if let Some(entry) = table::entry(record.entry) {
                    entry.rx_lock.store(0, UNLOCK_RELEASE);
                    entry.tx_lock.store(0, UNLOCK_RELEASE);
                }
            }
        }
        lock::keeps_none();
        if departure.borrowed {
            let place = table::table().and_then(|table| holders::join(&table, sys::getpid()));
            if let Some(handover) = &handover {
                each_handed_on(handover, |entry| {
                    holders::count_out(entry, place);
                });
            }
            holders::leave_family(sys::getpid());
        }
    }
    if !departure.borrowed {
        if let Some(table) = table::table() {
            holders::join_self(&table);
        }
        connection::each_held(|_, entry, _| {
            holders::enter(entry, holders::place());
        });
        if holders::place().is_none() {
            // The new program's holds were counted, too.
            each_survivor(|connection, is_first| {
                if is_first {
                    holders::count_out(connection.entry, None);
                }
            });
        }
    }
}

/// Takes over the former program's hand-over at `handover_fd`, before `main` of the new program.
/// Called once, after [`crate::start`].
pub fn take_over_from(handover_fd: i32) {
    if handover_fd < 0 || sys::fcntl(handover_fd, libc::F_GETFD, 0) < 0 {
        return;
    }
    // SAFETY: open, by the look above; closed below only when it proves to be a hand-over.
    let Some(handover) = Handover::open(unsafe { BorrowedFd::borrow_raw(handover_fd) }) else {
        return;
    };
    sys::close(handover_fd);
    let table_fd = handover.header().table_fd;
    faults::arm();
    let known = process::is_started() && family::adopt_table(table_fd);
    for record in handover.records() {
        let taken = known && take_over(record);
        close_all([record.slab_fd, record.pair_fd]);
        if !taken && record.slab_fd >= 0 {
            // The connection's position in its stream is unknown, so it is shut down: no stream is
            // better than a wrong one. SAFETY: plain system call.
            unsafe {
                sys::raw(
                    libc::SYS_shutdown,
                    record.fd as usize,
                    libc::SHUT_RDWR as usize,
                    0,
                    0,
                    0,
                    0,
                )
            };
        }
    }
    if known {
        adapter::send_hello_once();
    }
}

/// Enters one descriptor of the former program.
fn take_over(record: &Record) -> bool {
    let Some((entry, local)) = connection::hold_entry(record.entry) else {
        return false;
    };
    if entry.state.load(STATE_ACQUIRE) != EntryState::Live as u32
        || entry.generation.load(Ordering::Relaxed) != record.generation
    {
        return false;
    }
    let is_first = local.descriptors.fetch_add(1, Ordering::Relaxed) == 0;
    descriptors::note_connection(record.fd, record.entry, record.generation);
    if !is_first {
        return true;
    }
    local.spin.reset();
    entry.flags.fetch_and(!FLAG_INHERITED, Ordering::Relaxed);
    let connection = Connection {
        fd: record.fd,
        index: record.entry,
        generation: record.generation,
        entry,
        local,
    };
    if record.flags & LOCKED != 0 {
        entry.pid.store(process::pid(), Ordering::Relaxed);
        entry.fd.store(record.fd as u32, Ordering::Relaxed);
    }
    awaiting::take_over(&connection);
    let mapped = record.slab_fd < 0 || map(&connection, record);
    if record.flags & LOCKED != 0 {
        entry.rx_lock.store(0, UNLOCK_RELEASE);
        entry.tx_lock.store(0, UNLOCK_RELEASE);
    }
    if !mapped {
        connection.pin(Reason::NoResources);
    }
    mapped
}

fn map(connection: &Connection, record: &Record) -> bool {
    if record.pair_fd < 0 {
        return false;
    }
    let local = connection.local;
    let side = (record.side & 1) as usize;
    // SAFETY: the former program left both descriptors open for us; our caller closes them.
    let (slab_fd, pair_fd) = unsafe {
        (
            BorrowedFd::borrow_raw(record.slab_fd),
            BorrowedFd::borrow_raw(record.pair_fd),
        )
    };
    let _held = adapter::lock();
    let pair = pairs::find_pair(record.pair, side)
        .or_else(|| pairs::map_pair(record.pair, side, pair_fd, offers::forget_pair));
    let slot = record.slot.min(READY_BITS as u32 - 1);
    let found = pair.and_then(|pair| Some((pair, slabs::find(pair, slot, Some(slab_fd))?)));
    let Some((pair, (slab, region))) = found.filter(|(_, (_, region))| slabs::is_region(*region))
    else {
        return false;
    };
    slabs::enter(local, slab);
    pair.channels.fetch_add(1, Ordering::Relaxed);
    pair.slots_used.fetch_max(slot + 1, Ordering::Relaxed);
    let pair = core::ptr::from_ref(pair).cast_mut();
    local.pair.store(pair, Ordering::Relaxed);
    local.offered.store(region.as_ptr(), Ordering::Relaxed);
    if record.flags & OFFERED == 0 {
        local.attachment.put(region.as_ptr());
        // The former program's threads have ended in their sleep, and its epoll instances are not
        // known here.
        sleepers::part(connection);
        if let Some(end) = connection.end() {
            // The peer rings until it is known how this program waits.
            connection.entry.asker.store(0, Ordering::Relaxed);
            sleepers::set_wake(&end, WakeWord::Bell);
        }
    }
    true
}

fn create_handover() -> Option<(OwnedFd, Handover)> {
    let mut count = 0;
    each_survivor(|_, _| count += 1);
    if count == 0 {
        return None;
    }
    let (fd, mut handover) = Handover::create(count)?;
    *handover.header_mut() = Header {
        magic: MAGIC,
        pid: sys::getpid(),
        table_fd: table::fd(),
        count: 0,
        _pad: 0,
    };
    Some((fd, handover))
}

/// Calls `each` with every connection's descriptors that stay open over an exec, and whether it is
/// the connection's first.
fn each_survivor(mut each: impl FnMut(&Connection, bool)) {
    // A `vfork` child may have another file at that number.
    let is_sure = !process::borrowed_memory();
    descriptors::for_each(0, u32::MAX, |fd, kind| {
        if kind != Kind::Connection || closes_on_exec(fd) || !(is_sure || is_socket(fd)) {
            return;
        }
        let Some(connection) = connection::at(fd) else {
            return;
        };
        let is_same = |other: i32| {
            !closes_on_exec(other)
                && connection::at(other).is_some_and(|other| other.index == connection.index)
        };
        let is_first =
            connection.local.descriptors.load(Ordering::Relaxed) <= 1 || !(0..fd).any(is_same);
        each(&connection, is_first);
    });
}

fn is_closed(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0) < 0
}

/// True when it is closed by exec, or not open at all.
fn closes_on_exec(fd: i32) -> bool {
    let flags = sys::fcntl(fd, libc::F_GETFD, 0);
    flags < 0 || flags as i32 & libc::FD_CLOEXEC != 0
}

fn is_socket(fd: i32) -> bool {
    // SAFETY: open, by the callers' looks.
    let status = memfd::status(unsafe { BorrowedFd::borrow_raw(fd) });
    status.is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

/// True when standard input, output or error is this connection: stdio inside libc reads and writes
/// them past us.
fn is_standard(connection: &Connection) -> bool {
    let is_sure = !process::borrowed_memory();
    (0..3).any(|fd| {
        !closes_on_exec(fd)
            && (is_sure || is_socket(fd))
            && connection::at(fd).is_some_and(|known| known.index == connection.index)
    })
}

/// Writes a connection into the hand-over; false when it cannot go on in the new program.
fn hand_on(
    connection: &Connection,
    handover: &mut Handover,
    resumer: &mut Resumer,
    shared: bool,
) -> bool {
    let (entry, local) = (connection.entry, connection.local);
    if !handover.has_room() {
        return false;
    }
    let mut record = record_of(connection);
    let attached = local.attachment.has_region();
    let offered = !local.offered.load(Ordering::Relaxed).is_null();
    if (attached || offered) && !awaiting::is_without_channel(connection) {
        let pinned = entry.flags.load(Ordering::Relaxed) & FLAG_PINNED != 0;
        if pinned
            || membership::outlives_exec(connection)
            || !resumer.resume(connection, &mut record)
        {
            return false;
        }
        if !attached {
            record.flags |= OFFERED;
        }
    }
    if !shared {
        // Released by the successor, or when the exec fails.
        let rx = takeover::lock_receiving(connection);
        let tx = takeover::lock_sending(connection);
        if let (Some(rx), Some(tx)) = (rx, tx) {
            rx.keep();
            tx.keep();
            record.flags |= LOCKED;
        } else {
            close_all([record.slab_fd, record.pair_fd]);
            return false;
        }
    }
    for fd in [record.slab_fd, record.pair_fd] {
        if fd >= 0 {
            set_close_on_exec(fd, false);
        }
    }
    handover.add(record)
}

/// Hands over a further descriptor of a connection, in the way that was chosen for its first
/// descriptor.
fn hand_on_duplicate(connection: &Connection, handover: Option<&mut (OwnedFd, Handover)>) {
    let Some((_, handover)) = handover else {
        return;
    };
    let is_handed_on = handover
        .records()
        .iter()
        .any(|record| record.entry == connection.index);
    if is_handed_on {
        handover.add(record_of(connection));
    }
}

fn record_of(connection: &Connection) -> Record {
    Record {
        fd: connection.fd,
        entry: connection.index,
        generation: connection.generation,
        flags: 0,
        slab_fd: -1,
        pair_fd: -1,
        slot: 0,
        side: 0,
        pair: 0,
    }
}

/// Calls `each` with the entry of every connection that is handed on.
fn each_handed_on(handover: &Handover, mut each: impl FnMut(&Entry)) {
    let all = handover.records();
    for (n, record) in all.iter().enumerate() {
        let is_first = !all[..n].iter().any(|other| other.entry == record.entry);
        if let Some(entry) = table::entry(record.entry).filter(|_| is_first) {
            each(entry);
        }
    }
}

/// Gets descriptors of channels back from the adapter, within a time for all of them.
struct Resumer {
    deadline_ns: u64,
    resumed: u32,
}

impl Resumer {
    fn new() -> Resumer {
        Resumer {
            deadline_ns: 0,
            resumed: 0,
        }
    }

    /// Asks for one connection's region and pair, and waits for them.
    fn resume(&mut self, connection: &Connection, record: &mut Record) -> bool {
        if self.resumed >= RESUMED_MAX {
            return false;
        }
        self.resumed += 1;
        if self.deadline_ns == 0 {
            self.deadline_ns = sys::now_ns() + ANSWERS_NS;
        }
        let _held = adapter::lock();
        if process::borrowed_memory() && adapter::connected().is_none_or(is_closed) {
            // A `vfork` child must not change the memory: the parent goes on with it.
            return false;
        }
        let Some(adapter) = adapter::connect_if_needed() else {
            return false;
        };
        let mut request = Message::new(Said::Resume);
        request.entry = connection.index;
        request.generation = connection.channel_generation();
        // A forked process that has changed its user must show the socket for which it asks.
        if !adapter::send(adapter, &request, Some(connection.fd)) {
            return false;
        }
        loop {
            match adapter::try_receive(adapter) {
                Some((answer, kind, attached)) => {
                    let is_ours = answer.entry == connection.index
                        && answer.generation == connection.channel_generation();
                    if !is_ours {
                        offers::handle_message(&answer, kind, attached);
                        continue;
                    }
                    match (kind, attached.files) {
                        (Said::Offer, [Some(slab), Some(pair), ..]) => {
                            record.slab_fd = slab.into_raw_fd();
                            record.pair_fd = pair.into_raw_fd();
                            record.slot = answer.slot;
                            record.side = answer.side;
                            record.pair = answer.pair;
                            return true;
                        }
                        (Said::Offer | Said::Answer, _) => return false,
                        _ => {}
                    }
                }
                None => {
                    if adapter::connected().is_none() || !self.wait_for(adapter) {
                        return false;
                    }
                }
            }
        }
    }

    /// Sleeps until a message from the adapter comes; false when time is up.
    fn wait_for(&self, adapter: i32) -> bool {
        let left = self.deadline_ns.saturating_sub(sys::now_ns());
        left > 0 && sys::poll_for(adapter, libc::POLLIN, left) != 0
    }
}

fn set_close_on_exec(fd: i32, on: bool) {
    let flags = if on { libc::FD_CLOEXEC } else { 0 };
    sys::fcntl(fd, libc::F_SETFD, flags as usize);
}

fn close_all(descriptors: [i32; 2]) {
    for fd in descriptors {
        if fd >= 0 {
            sys::close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_for_which_there_is_no_room_is_not_locked() {
        let (_file, mut handover) = Handover::create(0).expect("memory");
        let connection = Connection::of_a_test(-1);
        let is_handed_on = hand_on(&connection, &mut handover, &mut Resumer::new(), false);
        let entry = connection.entry;
        let locks = [&entry.rx_lock, &entry.tx_lock].map(|word| word.load(Ordering::Relaxed));
        assert_eq!((is_handed_on, locks), (false, [0, 0]));
    }
}
