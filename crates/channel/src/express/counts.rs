//! Counts for the operator: how the connections of a family use express.

use crate::sync::{AtomicU64, Ordering};

/// An outcome of `connect`, `accept` or `close` that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// `connect` took a parked carrier.
    Connected = 0,
    /// `accept` took a connection that came by a parked carrier.
    Accepted = 1,
    /// `connect` went to the kernel: no carrier to that address was parked.
    NoneParked = 2,
    /// `connect` went to the kernel: the peer had not closed the last connection of any carrier.
    PeerBusy = 3,
    /// `connect` went to the kernel: the peer's queue had no place.
    QueueFull = 4,
    /// `connect` or `accept` waited for an ordinary connection to be paired.
    SeedsTried = 5,
    /// Such a connection was paired and became a carrier.
    SeedsMade = 6,
    /// Total time of those waits, in microseconds.
    SeedMicroseconds = 7,
    /// A connection ended that did not use a carrier of express.
    NotPaired = 8,
    /// A carrier was not parked: the program had set an option that the library does not reset.
    OddOption = 9,
    /// A carrier was not parked: this process has no listener that carriers can serve.
    NoListener = 10,
    /// A carrier was not parked: the limit of parked carriers was reached.
    NoRoom = 11,
    /// A carrier was not parked, or not used again: it was too old.
    TooOld = 12,
    /// A carrier was not parked: another thread, process or program uses it, or one direction was
    /// shut.
    InUse = 13,
    /// A carrier was not parked, or not used again: bytes or an error were left.
    Unread = 14,
    /// A carrier was not parked, or not used again: its channel had gone down to the carrier, or
    /// was told to.
    OnKernel = 15,
    /// A carrier was not parked, or not used again: the peer had ended it.
    PeerEnded = 16,
    /// A parked carrier was closed: it had not been used for too long.
    Idle = 17,
    /// A parked carrier was closed: a fork, an exec, the end of the listener, or no descriptors.
    Retired = 18,
    /// A carrier was not parked: the program was not seen waiting for its connection.
    Unseen = 19,
    /// A doorbell was rung for unread bytes, because the program had not been seen waiting for
    /// them.
    Rescued = 20,
    /// `connect` did not use a carrier of another user's program: the listener at that address is
    /// no longer that program's.
    OtherListener = 21,
}

impl Event {
    /// All of them, by number, as `toehold status --json` spells them.
    pub const NAMES: [&'static str; 22] = [
        "connected",
        "accepted",
        "none_parked",
        "peer_busy",
        "queue_full",
        "seeds_tried",
        "seeds_made",
        "seed_microseconds",
        "not_paired",
        "odd_option",
        "no_listener",
        "no_room",
        "too_old",
        "in_use",
        "unread",
        "on_kernel",
        "peer_ended",
        "idle",
        "retired",
        "unseen",
        "rescued",
        "other_listener",
    ];
}

/// The counts of a family: each process of it adds, and the adapter reads.
#[repr(C)]
pub struct Counts([AtomicU64; Event::NAMES.len()]);

impl Counts {
    /// Adds `count` to the count of `event`.
    #[inline]
    pub fn add(&self, event: Event, count: u64) {
        // Relaxed: a count orders nothing.
        self.0[event as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// The counts that are not 0, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let named = Event::NAMES.into_iter().zip(counts);
        named.filter(|&(_, count)| count != 0)
    }
}

const _: () = assert!(Event::OtherListener as usize + 1 == Event::NAMES.len());
