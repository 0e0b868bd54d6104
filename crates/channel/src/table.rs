//! The *connection table*: what a fork family shares about its connections.
//!
//! A family is a process and everything it forks. Its table is one sealed memfd, mapped
//! `MAP_SHARED`, inherited by fork and shown to the adapter, never to a peer. The library keeps
//! counts, cursors and locks here, because a descriptor shared over fork has one stream position,
//! not two. The adapter reads it to answer `toehold status` and writes three words of an entry:
//! `command`, `offer` and `refusal`; and of the header `attention`, `wait_by_rule` and
//! `express_by_rule`.
//!
//! ```text
//!   page 0     Header
//!   page 1..   Entry 0 │ Entry 1 │ …          384 bytes each, untouched pages cost nothing
//!
//!   Entry      line 0   identity, flags, adapter's words     (cold)
//!              line 1   receiving: lock, counts, cursor      (this family's readers)
//!              line 2   sending: lock, counts, cursor        (this family's writers)
//!              line 3   counters for status                  (written under either lock)
//!              line 4   who sleeps, and how to wake them     (this family's sleepers)
//!              line 5   which members of the family hold it (a bit each)
//! ```
//!
//! Orderings: words guarded by a line's lock are `Relaxed`, the lock orders them; `generation`,
//! `command` and `offer` are stored with `Release` and loaded with `Acquire` (pairs:
//! allocate/lookup, adapter/library). Everything the adapter reads for status is a momentary value
//! and `Relaxed`.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::untrusted::{Word32, Word64};

/// First word of a table: "TOEHOLDT".
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"TOEHOLDT");
/// Changes whenever the meaning of any shared layout (table, region, ready bitmap, message)
/// changes.
pub const LAYOUT_VERSION: u32 = 24;
/// Entries in a table: the most connections one fork family can have tracked at a time.
pub const ENTRIES: usize = 65_536;
/// Where the first entry begins.
pub const ENTRIES_OFFSET: usize = 4096;
/// Length of a table's memfd.
pub const TABLE_BYTES: usize = ENTRIES_OFFSET + ENTRIES * size_of::<Entry>();
/// Bytes kept of a program's name, NUL-terminated.
pub const PROGRAM_BYTES: usize = 64;

/// The most processes of a family that have a place in the list. With more, the last close of a
/// connection may go unnoticed.
pub const FAMILY_MAX: usize = 512;

/// In a place of [`Header::family`]: the place is reserved for a child that is about to be forked.
/// [`FAMILY_PID`] has the parent's process number; the eight bits above it count the parent's
/// forks.
pub const FAMILY_BIRTH: u32 = 1 << 31;

/// With [`FAMILY_BIRTH`]: the parent is dead. The other bits are the time, in seconds, at which a
/// member first noticed that.
pub const FAMILY_ORPHAN: u32 = 1 << 30;

/// Process numbers are no greater (`PID_MAX_LIMIT`, include/linux/threads.h).
pub const FAMILY_PID: u32 = (1 << 22) - 1;

/// The most processes of a family that can sleep on one connection and be recorded. Another sleeper
/// is not recorded and may miss news that the recorded ones leave for it.
pub const ASLEEP_MAX: usize = 8;

/// The table's first page.
#[repr(C)]
pub struct Header {
    /// [`TABLE_MAGIC`].
    pub magic: AtomicU64,
    /// [`LAYOUT_VERSION`].
    pub version: AtomicU32,
    /// [`ENTRIES`].
    pub entries: AtomicU32,
    /// Process that created the table.
    pub pid: AtomicU32,
    /// The wait mode of its programs: a [`WaitMode`] as a number.
    pub wait_mode: AtomicU32,
    /// One more than the highest entry ever used; the adapter looks no further.
    pub entries_used: Word32,
    /// By the adapter: changes when it sets the `command` of an entry, or when the channel of an
    /// entry was given up.
    pub attention: AtomicU32,
    /// The program's name: bytes packed little-endian, NUL-padded.
    pub program: [AtomicU64; PROGRAM_BYTES / 8],
    /// Process numbers of the family's members, 0 for a free place. A dead member may stay listed
    /// until its place is needed. With [`FAMILY_BIRTH`] the place is reserved for a child that is
    /// being forked.
    pub family: [AtomicU32; FAMILY_MAX],
    /// Counts how the family's connections use express.
    pub express: crate::express::Counts,
    /// By the adapter: the wait mode that a rule of the operator sets, encoded by
    /// [`WaitMode::ruled`]. It overrides `wait_mode`.
    pub wait_by_rule: AtomicU32,
    /// The runtime directory of its adapter ([`crate::rendezvous::meeting_of`]). A new adapter that
    /// replaces the old one finds the family by this number.
    pub meeting: AtomicU64,
    /// Which connections become carriers of express, at the connecting and at the accepting end:
    /// with the value `n + 1`, the connections of one client port in `2^n`; 0 before the first
    /// choice. The whole family has one value, because a client may be served by any of several
    /// workers.
    pub seed_levels: [Word32; 2],
    /// By the adapter: the operator's rule about express, a [`crate::express::Rule`] as a number.
    /// It overrides the option with which a program was started.
    pub express_by_rule: AtomicU32,
}

/// One tracked connection.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Entry {
    /// [`EntryState`] as a number. Allocation is a compare-exchange from `Free`.
    pub state: AtomicU32,
    /// Counts the uses of this entry, so that a late descriptor of one connection is not taken for
    /// a descriptor of the next. It grows by one when a connection begins to be tracked, when its
    /// carrier is parked, and when a parked carrier begins to serve the next connection
    /// ([`crate::express`]).
    pub generation: AtomicU32,
    /// Number of processes that hold a descriptor of the connection and have no bit in `held_by`.
    pub holders: AtomicU32,
    /// The process that used the connection last.
    pub pid: AtomicU32,
    /// A descriptor of the connection in that process.
    pub fd: AtomicU32,
    /// `FLAG_*`, by the library.
    pub flags: AtomicU32,
    /// The reason why the connection is on the host path: a [`Reason`] as a number, by the library.
    pub reason: AtomicU32,
    /// `COMMAND_*`, by the adapter: what the library must do at its next call.
    pub command: AtomicU32,
    /// By the adapter: counts offers sent for this entry; the library receives one when it changes.
    pub offer: AtomicU32,
    /// By the adapter: why it made no offer, a [`Reason`] as a number.
    pub refusal: AtomicU32,
    /// Calls that moved bytes on the carrier. After enough of them the library asks for pairing.
    pub carrier_calls: AtomicU32,
    /// Offers the library has taken.
    pub offers_taken: AtomicU32,
    /// This end's place in the region: 0 or 1.
    pub side: Word32,
    /// Number of this channel in its pair of processes; its bit on the ready bitmaps.
    pub slot: Word32,
    /// For an offloaded connection: its true ports, the local one in the upper 16 bits.
    pub true_ports: AtomicU32,
    /// Key of the carrier's entry in the routing page: an `offload::CarrierKey` as a word, or 0.
    pub carrier_key: AtomicU32,

    /// Receiving: the lock of this line, the owner's thread id or 0.
    pub rx_lock: AtomicU32,
    /// The member of the family that was the last holder, and how often the entry was used: see
    /// `toehold_stream::holders`.
    pub ended_by: AtomicU32,
    /// Stream bytes taken from the carrier, doorbells included.
    pub rx_carrier: AtomicU64,
    /// Ring bytes consumed.
    pub rx_ring: Word64,
    /// Where the next received byte comes from: a [`Mode`] as a number.
    pub rx_mode: Word32,
    /// Switch records of the peer that this end has carried out.
    pub rx_records: Word32,
    /// Ring bytes consumed in channels that this connection has left.
    pub rx_ring_before: AtomicU64,
    /// Calls served by the ring.
    pub rx_calls: AtomicU64,
    /// Pending receive error or hint bits, `RX_*`.
    pub rx_hints: AtomicU32,
    /// Consecutive non-blocking receives that found nothing.
    pub rx_empty: AtomicU32,
    /// Ring bytes published in channels that this connection has left.
    pub tx_ring_before: AtomicU64,

    /// Sending: the lock of this line, the owner's thread id or 0.
    pub tx_lock: AtomicU32,
    /// The value of `generation` when the carrier began to be tracked: the adapter identifies the
    /// channel by it.
    pub channel_generation: AtomicU32,
    /// Stream bytes given to the carrier, doorbells included (the program's own are this less
    /// `doorbells`).
    pub tx_carrier: AtomicU64,
    /// Ring bytes published.
    pub tx_ring: Word64,
    /// Where the next sent byte goes: a [`Mode`] as a number.
    pub tx_mode: Word32,
    /// Switch records published.
    pub tx_records: Word32,
    /// Ring capacity in force, as a power of two.
    pub tx_capacity_log2: Word32,
    /// 1 when the ring was found full since it last grew.
    pub tx_was_full: AtomicU32,
    /// Calls served by the ring.
    pub tx_calls: AtomicU64,
    /// The receiver's `head` when it was last loaded.
    pub tx_head_seen: Word64,
    /// `SO_RCVLOWAT` as the program set it while a channel was attached; 0 when it was not set. The
    /// carrier's own value is 1 then, because a higher one would keep a doorbell from waking the
    /// receiver.
    pub rx_low_water: AtomicU32,
    /// `TX_*`: socket options as the program believes them to be.
    pub tx_options: AtomicU32,

    /// Directions moved to a ring.
    pub upgrades: AtomicU32,
    /// Directions moved back to the carrier.
    pub downgrades: AtomicU32,
    /// Doorbells rung that are bytes on the carrier.
    pub doorbells: AtomicU32,
    /// Publications that needed no doorbell.
    pub doorbells_suppressed: AtomicU32,
    /// Times a thread slept in the kernel for this connection and woke.
    pub wakeups: AtomicU32,
    /// Spins that found work.
    pub spins_paid: AtomicU32,
    /// Spins that ended in sleep.
    pub spins_failed: AtomicU32,
    /// Peer faults: words of the peer that failed their check.
    pub faults: AtomicU32,
    /// Of an offloaded connection: its true local address, IPv4 as IPv4-mapped IPv6, bytes in
    /// memory order.
    pub true_local: [AtomicU64; 2],
    /// Its true remote address, in the form of the local one.
    pub true_remote: [AtomicU64; 2],

    /// The lock of this line. It makes a change of this line and of the wake word one step.
    pub wake_lock: AtomicU32,
    /// The [`crate::doorbell::WakeWord`] to return to when no thread sleeps.
    pub resting_wake: Word32,
    /// Process whose epoll instance that word is about.
    pub resting_pid: AtomicU32,
    /// Processes with threads that sleep in the kernel for the connection, 0 for a free place. A
    /// dead process may stay listed.
    pub asleep: [AtomicU32; ASLEEP_MAX],
    /// Doorbells rung by the pair ([`crate::doorbell::Doorbell::Pair`]): no bytes on the carrier.
    pub pair_doorbells: AtomicU32,
    /// One more than the ring position at which the next `MSG_PEEK` begins (`SO_PEEK_OFF`), if the
    /// program set that option while a channel was attached; 0 when the option is off or the kernel
    /// keeps it. Under the receive lock.
    pub rx_peek: AtomicU64,
    /// The thread that has asked for a doorbell without sleeping, because it was unknown how it
    /// would wait; 0 for none, or for several. Says nothing once the doorbell was rung. Under the
    /// wake lock.
    pub asker: AtomicU64,

    /// One bit for each member of the family that holds a descriptor of the connection, indexed by
    /// the member's place in [`Header::family`].
    pub held_by: [AtomicU64; FAMILY_MAX / 64],
    /// The bits of those members that are giving the connection up.
    pub leaving: [AtomicU64; FAMILY_MAX / 64],
}

impl Entry {
    /// The number of connections of the program that the carrier has served before this one.
    /// `generation` grows by two from one to the next.
    #[inline]
    pub fn turn(&self) -> u32 {
        let generation = self.generation.load(Ordering::Relaxed);
        let first = self.channel_generation.load(Ordering::Relaxed);
        (generation.wrapping_sub(first) & ((1 << GENERATION_BITS) - 1)) / 2
    }

    /// The number of processes of the family that hold a descriptor of the connection.
    #[inline]
    pub fn holder_count(&self, order: Ordering) -> u32 {
        let marked = self
            .held_by
            .iter()
            .map(|word| word.load(order).count_ones());
        marked.fold(self.holders.load(order), u32::saturating_add)
    }

    /// Whether more than one process of the family holds a descriptor of the connection. Cheaper
    /// than [`Self::holder_count`].
    #[inline]
    pub fn has_several_holders(&self, order: Ordering) -> bool {
        let holders = self.holders.load(order);
        // No branch for each word, because nearly always all words are read.
        let (mut all, mut words) = (0, 0);
        for word in &self.held_by {
            let bits = word.load(order);
            all |= bits;
            words += u32::from(bits != 0);
        }
        // In a single word: is there a bit besides the lowest one?
        words + holders.min(2) > 1 || all & all.wrapping_sub(1) != 0
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() <= ENTRIES_OFFSET);
#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 448);
#[cfg(not(loom))]
const _: () = {
    assert!(core::mem::offset_of!(Entry, rx_lock) == 64);
    assert!(core::mem::offset_of!(Entry, tx_lock) == 128);
    assert!(core::mem::offset_of!(Entry, upgrades) == 192);
    assert!(core::mem::offset_of!(Entry, true_local) == 224);
    assert!(core::mem::offset_of!(Entry, wake_lock) == 256);
    assert!(core::mem::offset_of!(Entry, held_by) == 320);
};

/// Life of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EntryState {
    /// The entry is free.
    Free = 0,
    /// The entry is being filled in.
    Claimed = 1,
    /// The entry is a connection.
    Live = 2,
    /// Its last holder is ending; free once that process is gone.
    Ended = 3,
}

/// The path of a direction's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Through the kernel.
    Carrier = 0,
    /// Through the ring.
    Ring = 1,
    /// Receiving only: the ring is drained, the doorbells before the next data byte are being
    /// skipped.
    Skip = 2,
    /// Receiving only: the bytes that are unread in the ring will come on the carrier, once the
    /// sender has gone down. Until then there is nothing to receive.
    Resend = 3,
}

impl Mode {
    /// The mode behind a number, if it is one.
    #[inline]
    pub fn from_word(word: u32) -> Option<Mode> {
        match word {
            0 => Some(Mode::Carrier),
            1 => Some(Mode::Ring),
            2 => Some(Mode::Skip),
            3 => Some(Mode::Resend),
            _ => None,
        }
    }
}

/// The wait mode of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WaitMode {
    /// Spin while spinning has recently paid and a core is free, otherwise sleep.
    Adaptive = 0,
    /// Never sleep.
    Poll = 1,
    /// Never spin.
    Event = 2,
}

impl WaitMode {
    /// All of them, in the order of their numbers.
    pub const ALL: [WaitMode; 3] = [WaitMode::Adaptive, WaitMode::Poll, WaitMode::Event];

    /// The mode behind a number, if it is one.
    pub fn from_word(word: u32) -> Option<WaitMode> {
        WaitMode::ALL.get(word as usize).copied()
    }

    /// Encodes a rule's mode for [`Header::wait_by_rule`]. 0 stands for no rule.
    pub fn ruled(mode: Option<WaitMode>) -> u32 {
        mode.map_or(0, |mode| mode as u32 + 1)
    }

    /// Decodes [`Header::wait_by_rule`]; `None` without a rule.
    pub fn from_ruled(word: u32) -> Option<WaitMode> {
        WaitMode::from_word(word.checked_sub(1)?)
    }

    /// As `--wait` spells it.
    pub fn name(self) -> &'static str {
        match self {
            WaitMode::Adaptive => "adaptive",
            WaitMode::Poll => "poll",
            WaitMode::Event => "event",
        }
    }
}

/// The connection must stay on the host path; `reason` says why.
pub const FLAG_PINNED: u32 = 1 << 0;
/// The adapter was asked to pair it.
pub const FLAG_ASKED: u32 = 1 << 1;
/// A region is mapped in the process that took the offer.
pub const FLAG_ATTACHED: u32 = 1 << 2;
/// Accepted, not connected.
pub const FLAG_ACCEPTED: u32 = 1 << 3;
/// `O_NONBLOCK` is set on the description.
pub const FLAG_NONBLOCK: u32 = 1 << 4;
/// The program shut its sending side.
pub const FLAG_SHUT_TX: u32 = 1 << 5;
/// The program shut its receiving side.
pub const FLAG_SHUT_RX: u32 = 1 << 6;

/// The program cleared close-on-exec on a descriptor of the connection: it probably means to pass
/// it to another program.
pub const FLAG_INHERITED: u32 = 1 << 7;
/// The carrier leads to the adapter's TCP engine; the program's addresses are in `true_local` and
/// `true_remote`.
pub const FLAG_OFFLOAD: u32 = 1 << 8;
/// Offloaded, and the engine has not yet said whether the remote answers.
pub const FLAG_CONNECTING: u32 = 1 << 9;
/// Offloaded, and the engine could not connect; the error waits for the program in `rx_hints`.
pub const FLAG_REFUSED: u32 = 1 << 10;

/// Offloaded, and the program was told that its `connect` is in progress: the next `connect`
/// returns the result.
pub const FLAG_RESULT_UNREPORTED: u32 = 1 << 11;
/// The carrier is parked: at the moment it serves no connection of the program.
pub const FLAG_PARKED: u32 = 1 << 12;
/// The carrier is a Unix stream socket.
pub const FLAG_UNIX: u32 = 1 << 13;
/// A Unix carrier with a channel: the peer's count of sent bytes has not been compared with our
/// count of received bytes yet. Until then the peer must not move its direction to the ring.
pub const FLAG_UNCOMPARED: u32 = 1 << 14;
/// A Unix carrier: the program was told that the peer left bytes unread.
pub const FLAG_RESET_REPORTED: u32 = 1 << 15;
/// A non-blocking connection on a carrier of express whose program has not been seen waiting for it
/// yet. The program may wait in a way that the library does not see.
pub const FLAG_UNSEEN: u32 = 1 << 16;
/// With [`FLAG_CONNECTING`]: `connect` has returned success, and the SYN waits for the program's
/// first bytes (`TCP_FASTOPEN_CONNECT`).
pub const FLAG_DEFERRED: u32 = 1 << 17;

/// Number of bits of a generation.
pub const GENERATION_BITS: u32 = 30;

/// No command.
pub const COMMAND_NONE: u32 = 0;
/// Bring both directions back to the carrier and stay there until the command is withdrawn.
pub const COMMAND_DETACH: u32 = 1;
/// The peer's process is gone: move the sending direction back to the carrier, where the kernel
/// reports the end.
pub const COMMAND_PEER_GONE: u32 = 2;
/// As [`COMMAND_DETACH`], because regions are short: give the channel up at once. Ends when the
/// library withdraws the connection.
pub const COMMAND_EVICT: u32 = 3;
/// As [`COMMAND_DETACH`], because a packet capture would see the carrier's packets. Both ends keep
/// the channel: the command ends with the capture.
pub const COMMAND_YIELD: u32 = 4;
/// As [`COMMAND_EVICT`], if the connection is idle: a library that finds the connection in use
/// first withdraws the command, and the adapter chooses again.
pub const COMMAND_SPARE: u32 = 5;

/// True for the commands by which the region is wanted back at once.
#[must_use]
pub fn is_eviction(command: u32) -> bool {
    matches!(command, COMMAND_EVICT | COMMAND_SPARE)
}

/// The reason why a connection is on the host path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It is not on the host path.
    None = 0,
    /// Too little traffic so far to be worth pairing.
    FewBytes = 1,
    /// The adapter does not answer.
    NoAdapter = 2,
    /// The adapter was asked and knows no partner: the other end is not under Toehold, or on
    /// another host.
    NoPartner = 3,
    /// Both ends are known; the partner has not yet attached.
    PartnerNotAttached = 4,
    /// A rule of the operator forbids a channel: a rule of the adapter, or of its engine.
    Policy = 5,
    /// The other end belongs to another user.
    OtherUser = 6,
    /// Neither a TCP nor a Unix stream socket.
    NotTcp = 7,
    /// The library did not see all bytes: its counts disagree with the kernel's.
    CountsDisagree = 8,
    /// Detached by the operator.
    Detached = 9,
    /// The peer's process is gone.
    PeerGone = 10,
    /// A word of the peer failed its check.
    PeerFault = 11,
    /// The program uses it through stdio.
    Stdio = 12,
    /// The program uses something that rings cannot express (urgent data, TCP_ULP, zero-copy
    /// sends).
    Unsupported = 13,
    /// Its descriptor was passed to another program.
    Passed = 14,
    /// No memory or descriptors for a region.
    NoResources = 15,
    /// It is shared by several processes.
    Shared = 16,
    /// One of its directions has ended.
    Closing = 17,
    /// The library or the adapter is of another version.
    Version = 18,
    /// Carried by the adapter's engine. Between the program and the adapter the bytes go through
    /// the kernel.
    Relayed = 19,
    /// The program asked for the offload path, and the adapter has no engine that serves the
    /// destination.
    NoEngine = 20,
    /// The adapter's engine serves the destination, but the connection could not be handed to it.
    NoRelay = 21,
    /// Carried by the adapter's engine, and the program has sent urgent data. The data arrives in
    /// order, but is not marked as urgent.
    Unmarked = 22,
    /// The program waits for the connection in a way that the library does not see: with io_uring,
    /// or in an epoll instance that the library does not know.
    UnseenWaits = 23,
    /// A thread of the program is inside a kernel call on the connection, and an end attaches only
    /// between calls. So a thread that blocks in `recv` and receives nothing keeps the connection
    /// on the host path.
    InCall = 24,
    /// Its socket was duplicated before it was connected: the library knows only one of its
    /// descriptors.
    Duplicated = 25,
    /// Its socket is of another network namespace than the adapter, and the library has not shown
    /// that namespace (`Kind::Namespace`).
    OtherNamespace = 26,
    /// The adapter's kernel was built without `CONFIG_INET_DIAG`, which the adapter needs to prove
    /// connections.
    NoProof = 27,
    /// The program has restricted its own system calls (seccomp(2)).
    Confined = 28,
    /// Its user, or the user of the other end, has reached the limit of connections that the system
    /// adapter allows one user.
    OverQuota = 29,
    /// A packet capture, or a new firewall rule, is to see its bytes.
    Captured = 30,
    /// The program sends descriptors or credentials on it, which only the kernel can do.
    Descriptors = 31,
    /// A rule of the operator limits how many connections have channels, and the limit is reached.
    OverBudget = 32,
    /// The adapter's queue of requests is full. The library asks again when the connection is used.
    Crowded = 33,
    /// The program has no permission to reach the adapter, because it has changed its user since it
    /// was started.
    OutOfReach = 34,
}

impl Reason {
    /// The reason behind a number, if it is one.
    pub fn from_word(word: u32) -> Option<Reason> {
        use Reason::*;
        const ALL: [Reason; 35] = [
            None,
            FewBytes,
            NoAdapter,
            NoPartner,
            PartnerNotAttached,
            Policy,
            OtherUser,
            NotTcp,
            CountsDisagree,
            Detached,
            PeerGone,
            PeerFault,
            Stdio,
            Unsupported,
            Passed,
            NoResources,
            Shared,
            Closing,
            Version,
            Relayed,
            NoEngine,
            NoRelay,
            Unmarked,
            UnseenWaits,
            InCall,
            Duplicated,
            OtherNamespace,
            NoProof,
            Confined,
            OverQuota,
            Captured,
            Descriptors,
            OverBudget,
            Crowded,
            OutOfReach,
        ];
        ALL.get(word as usize).copied()
    }

    /// In words, for `toehold status`.
    pub fn words(self) -> &'static str {
        match self {
            Reason::None => "",
            Reason::FewBytes => "too little traffic so far",
            Reason::NoAdapter => "the adapter does not answer",
            Reason::NoPartner => {
                "the other end is not under Toehold on this host and network namespace"
            }
            Reason::PartnerNotAttached => "waiting for the other end to attach",
            Reason::Policy => "a rule keeps it on the kernel",
            Reason::OtherUser => "the other end belongs to another user",
            Reason::NotTcp => "neither TCP (which Multipath TCP is not) nor a Unix stream",
            Reason::CountsDisagree => "bytes moved that the library did not see",
            Reason::Detached => "detached by the operator",
            Reason::PeerGone => "the other end's process is gone",
            Reason::PeerFault => "the other end wrote invalid values into the shared region",
            Reason::Stdio => "used through stdio",
            Reason::Unsupported => "the program uses a feature that only the kernel has",
            Reason::Passed => "its descriptor was passed to another program",
            Reason::NoResources => "no memory or descriptors for a region",
            Reason::Shared => "shared by several processes",
            Reason::Closing => "one of its directions has ended",
            Reason::Version => "the adapter is of another version",
            Reason::Relayed => {
                "carried by the adapter's engine, relayed to the program by the kernel"
            }
            Reason::NoEngine => "the adapter has no engine for this destination",
            Reason::NoRelay => "could not be handed to the adapter's engine",
            Reason::Unmarked => "the adapter's engine carries its urgent data unmarked",
            Reason::UnseenWaits => "the program waits in a way that the library does not see",
            Reason::InCall => "a thread of the program is inside a call on it",
            Reason::Duplicated => "its descriptor was duplicated before it was connected",
            Reason::OtherNamespace => "its network namespace cannot be shown to the adapter",
            Reason::NoProof => {
                "this kernel cannot prove connections (CONFIG_INET_DIAG, CONFIG_UNIX_DIAG)"
            }
            Reason::Confined => "the program has confined itself to some system calls",
            Reason::OverQuota => "one of the two users has as many as the system adapter allows",
            Reason::Captured => {
                "a packet capture, new firewall rule or traffic control is to see it"
            }
            Reason::Descriptors => "the program sends descriptors or credentials on it",
            Reason::OverBudget => "as many connections are in memory as a rule allows",
            Reason::Crowded => "the adapter was busy; it is asked again when this is used",
            Reason::OutOfReach => {
                "the program has become another user, who may not reach the adapter"
            }
        }
    }
}

/// A mapped table. Does not own the mapping: the process keeps it until it ends.
#[derive(Clone, Copy)]
pub struct Table {
    base: *mut u8,
}

// SAFETY: the table is atomics all through; any thread may use them.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// A table at `base`.
    ///
    /// # Safety
    /// `base` is page-aligned, mapped readable and writable for [`TABLE_BYTES`], and stays so for
    /// as long as any reference given out by this table is used.
    pub unsafe fn at(base: *mut u8) -> Table {
        Table { base }
    }

    /// The first page.
    pub fn header(&self) -> &Header {
        // SAFETY: mapped and aligned by the promise of `at`; every field is an atomic.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// Entry `index`; `None` when there is no such entry.
    #[inline]
    pub fn entry(&self, index: u32) -> Option<&Entry> {
        if index as usize >= ENTRIES {
            return None;
        }
        // SAFETY: in bounds by the check above, mapped and aligned by the promise of `at`.
        Some(unsafe {
            &*self
                .base
                .add(ENTRIES_OFFSET)
                .cast::<Entry>()
                .add(index as usize)
        })
    }

    /// True when there is a table of this version here.
    pub fn is_valid(&self) -> bool {
        self.header().is_valid()
    }

    /// Writes the header of a fresh table.
    pub fn initialise(&self, pid: u32, wait: WaitMode, program: &[u8]) {
        self.header().initialise(pid, wait, program);
    }

    /// Claims a free entry, see [`Header::allocate`].
    pub fn allocate(&self, hint: u32, gone: impl Fn(u32) -> bool) -> Option<u32> {
        (self.header()).allocate(|index| self.entry(index), hint, gone, |_| false)
    }
}

impl Header {
    /// True when there is a table of this version here.
    pub fn is_valid(&self) -> bool {
        // Acquire pairs with the Release store of `magic` in `initialise`.
        self.magic.load(Ordering::Acquire) == TABLE_MAGIC
            && self.version.load(Ordering::Relaxed) == LAYOUT_VERSION
            && self.entries.load(Ordering::Relaxed) == ENTRIES as u32
    }

    /// Writes the program's name.
    pub fn rename(&self, program: &[u8]) {
        for word in &self.program {
            word.store(0, Ordering::Relaxed);
        }
        for (word, chunk) in self.program.iter().zip(program.chunks(8)) {
            let mut bytes = [0u8; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// Fills in a fresh one.
    pub fn initialise(&self, pid: u32, wait: WaitMode, program: &[u8]) {
        self.rename(program);
        self.pid.store(pid, Ordering::Relaxed);
        self.wait_mode.store(wait as u32, Ordering::Relaxed);
        self.entries.store(ENTRIES as u32, Ordering::Relaxed);
        self.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        // Release pairs with the Acquire load in `is_valid`.
        self.magic.store(TABLE_MAGIC, Ordering::Release);
    }

    /// Claims a free entry. `entry` finds an entry by its number; `hint` is tried first. `None`
    /// when the table is full. `gone` tells whether a process has ended. `ends` is asked about a
    /// live entry whose last user has ended: if no other process holds the connection, `ends` moves
    /// the entry to [`EntryState::Ended`] and returns true.
    pub fn allocate<'a>(
        &self,
        entry: impl Fn(u32) -> Option<&'a Entry>,
        hint: u32,
        gone: impl Fn(u32) -> bool,
        ends: impl Fn(&Entry) -> bool,
    ) -> Option<u32> {
        /// Entries looked at before giving up; a full table is not worth a walk of 65,536 lines.
        const PROBES_MAX: u32 = 1024;
        for probe in 0..PROBES_MAX {
            let index = hint.wrapping_add(probe.wrapping_mul(probe + 1) / 2) % ENTRIES as u32;
            let entry = entry(index)?;
            let (free, live) = (EntryState::Free as u32, EntryState::Live as u32);
            let ended = EntryState::Ended as u32;
            let is_orphaned = || gone(entry.pid.load(Ordering::Relaxed));
            let state = match entry.state.load(Ordering::Relaxed) {
                state if state == free => free,
                state if state == ended && is_orphaned() => ended,
                state if state == live && is_orphaned() && ends(entry) => ended,
                _ => continue,
            };
            // Acquire pairs with the Release store by which the entry was freed, or found without a
            // holder: `release`, `take_off_entry` in `toehold_stream::holders`.
            if entry
                .state
                .compare_exchange(
                    state,
                    EntryState::Claimed as u32,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
            {
                self.entries_used.fetch_max(index + 1, Ordering::Relaxed);
                return Some(index);
            }
        }
        None
    }
}
