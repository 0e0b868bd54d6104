//! One epoll registration without system calls: what the program registered with `epoll_ctl`, who
//! answers the registration, and which events were reported.
//!
//! Each registration has an owner that answers it. Either the kernel answers, with the program's
//! own events. Or the library answers, and the kernel has the library's events for the carrier.
//!
//! ```text
//!            ADD, not connected          connected
//!   Gone ───────────────────────► Early ──────────┐
//!    │                                            ▼       ring used
//!    ├── ADD ──────────────────────────► Plain, Once ───────────────► InBitmap ──► Polled
//!    │                                   ▲    ▲ │  ▲                    ▲ │ │        │
//!    │                          answered │    │ │  └── carrier again ───┼─┴─┼────────┤
//!    │                                   │    │ │ waits for the engine  │   │        │
//!    └── ADD, waits for the engine ──► Held ◄─┼─┘                  ADD  │   │ DEL    │
//!                                             │                         │   ▼        │
//!                                             └─── InBitmap, Polled ◄── Parked       │
//!                                                        ▲ │                         │
//!                                                    MOD │ ▼ one-shot reported       │
//!                                                       Quiet                        │
//!   every state ──── DEL, close, or given up while parked ────► Gone ◄───────────────┘
//! ```
//!
//! *Plain* and *Once* differ in the kernel's copy of the data. *Plain*: the program's data. *Once*:
//! a tag of the library, because a one-shot is reported once, and the next owner must know whether
//! the kernel has reported it. *InBitmap* and *Polled* differ in how the library hears of news.
//! *Quiet*: the one-shot was reported, and the kernel has no events for it, so that a doorbell for
//! another instance does not wake the threads of this one. *Parked*: the program has removed the
//! registration, but the kernel still has it with the library's events, because a program that
//! removes a registration often adds it again. *Listener* is not drawn: the program's own
//! registration stays in the kernel beside it; it begins and ends at *Gone*. When two threads try
//! to move a registration out of the same state, one succeeds ([`Interest::moves`]).
//!
//! An answer has two halves. [`Interest::look`] runs without a lock, because it may make system
//! calls. [`Interest::report`] runs under the epoll instance's lock and decides what is reported:
//! of two concurrent looks only one reports a one-shot or an edge, and a look at an interest that
//! has changed since reports nothing. MOD is [`Interest::set`], under that lock.

use toehold_channel::sync::{AtomicU32, AtomicU64, Ordering};

/// Bits of `epoll_event` (include/uapi/linux/eventpoll.h), which are those of `poll` below bit 16.
pub mod bits {
    /// Bytes, or the end, can be read.
    pub const IN: u32 = 0x001;
    /// Urgent data.
    pub const PRI: u32 = 0x002;
    /// There is room.
    pub const OUT: u32 = 0x004;
    /// An error: reported whether or not the program asks for it.
    pub const ERR: u32 = 0x008;
    /// Both directions ended: reported whether or not the program asks for it.
    pub const HUP: u32 = 0x010;
    /// Another name of [`IN`].
    pub const RDNORM: u32 = 0x040;
    /// Another name of [`OUT`].
    pub const WRNORM: u32 = 0x100;
    /// Another name of [`OUT`], of Unix sockets.
    pub const WRBAND: u32 = 0x200;
    /// The peer's direction ended.
    pub const RDHUP: u32 = 0x2000;
    /// Report once, then not until the registration is modified.
    pub const ONESHOT: u32 = 1 << 30;
    /// Report only changes.
    pub const EDGE: u32 = 1 << 31;
    /// All events that can be reported.
    pub const READINESS: u32 = READABLE | PRI | WRITABLE | ERR | HUP | RDHUP;
    /// All names of "bytes, or the end, can be read".
    pub const READABLE: u32 = IN | RDNORM;
    /// All names of "there is room".
    pub const WRITABLE: u32 = OUT | WRNORM | WRBAND;
}

use bits::{EDGE, ERR, HUP, ONESHOT, RDHUP, READINESS};

/// The owner of a registration: the kernel or the library. The numbers are stored in memory that is
/// initially zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// No owner: there is no registration, or it is being removed.
    Gone = 0,
    /// The kernel, with the program's events and data.
    Plain = 1,
    /// The library; a ready bitmap reports news.
    InBitmap = 2,
    /// The library; every wait looks at the connection.
    Polled = 3,
    /// No owner: the program removed the registration, and the kernel still has the library's
    /// events.
    Parked = 4,
    /// The kernel, once the engine has answered. Until then the kernel has the library's events.
    Held = 5,
    /// The kernel; the socket is not connected yet, so no connection lists the registration.
    Early = 6,
    /// The kernel, once, with the program's events and the library's tag.
    Once = 7,
    /// The library, beside the kernel: a listener, for connections that come by parked carriers.
    Listener = 8,
    /// The library: a one-shot that was reported. The kernel watches nothing for it until the
    /// program arms it again.
    Quiet = 9,
}

impl State {
    /// All of them.
    pub const ALL: [State; 10] = [
        State::Gone,
        State::Plain,
        State::InBitmap,
        State::Polled,
        State::Parked,
        State::Held,
        State::Early,
        State::Once,
        State::Listener,
        State::Quiet,
    ];

    #[inline]
    fn of(word: u32) -> State {
        match word {
            1 => State::Plain,
            2 => State::InBitmap,
            3 => State::Polled,
            4 => State::Parked,
            5 => State::Held,
            6 => State::Early,
            7 => State::Once,
            8 => State::Listener,
            9 => State::Quiet,
            _ => State::Gone,
        }
    }

    /// True when the kernel answers, as the program has registered it.
    #[inline]
    pub fn is_kernels(self) -> bool {
        matches!(self, State::Plain | State::Once)
    }

    /// True when the library answers.
    #[inline]
    pub fn is_ours(self) -> bool {
        use State::{InBitmap, Listener, Polled, Quiet};
        matches!(self, InBitmap | Polled | Listener | Quiet)
    }

    /// True when the registration stays after its descriptor was closed. A registration belongs to
    /// the open file, and the descriptor's number is only a name (epoll(7), questions 6 and 7): the
    /// registration ends with the `last` descriptor of that file. A registration that the program
    /// has removed ends with its descriptor.
    #[inline]
    pub fn outlives_descriptor(self, last: bool) -> bool {
        !last && !matches!(self, State::Gone | State::Parked)
    }

    /// True when the drawing has an arrow from this state to `to`, or both are the same state.
    pub fn leads_to(self, to: State) -> bool {
        use State::{Early, Gone, Held, InBitmap, Listener, Once, Parked, Plain, Polled, Quiet};
        match (self, to) {
            (from, to) if from == to => true,
            (_, Gone) => true,
            (Gone, Early | Plain | Once | Held | Listener) => true,
            (Early, Plain | Once) => true,
            (Plain | Once, Plain | Once | Held | InBitmap | Polled) => true,
            (Held, Plain | Once) => true,
            (InBitmap, Polled | Parked | Plain) => true,
            (Polled, Plain | Quiet) => true,
            (Quiet, Plain | Polled) => true,
            (Parked, InBitmap | Polled) => true,
            _ => false,
        }
    }
}

/// One registration. All zeroes means that there is none.
#[derive(Debug, Default)]
pub struct Interest {
    /// The program's events as [`armed`]; without any readiness when a one-shot has fired.
    events: AtomicU32,
    /// The program's data.
    data: AtomicU64,
    /// Changes whenever `events` and `data` are set, but not when a one-shot is reported. It is
    /// never reset, so that a look which began before such a change is recognised, even when the
    /// place holds another registration by now.
    version: AtomicU32,
    /// A [`State`], and above it the number of registrations that have ended in this place. So a
    /// thread that has found an earlier one does not move this one ([`Interest::moves_if`]).
    state: AtomicU32,
    /// Edge-triggered: what was reported last, and the peer's position then.
    edge_mask: AtomicU32,
    edge_tail: AtomicU64,
    /// Edge-triggered: report whatever holds at the next look (a new registration, a modified one,
    /// news from the kernel).
    rearmed: AtomicU32,
    /// One-shot: how often it was armed in the kernel, 0 for never.
    armings: AtomicU32,
}

/// The result of a look at a registration.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Of the registration, when the look began.
    version: u32,
    /// The events that the connection is ready for.
    all: u16,
    /// Those of them that the program asked for.
    ready: u16,
}

/// A report to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The events that the connection is ready for.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// The events may still hold at the next wait, so the registration stays on the ready list.
    pub stays: bool,
}

/// The events that `epoll_ctl` registers for the program's `events`: errors and hang-ups are always
/// included.
pub fn armed(events: u32) -> u32 {
    events | ERR | HUP
}

/// The bits of `Interest::state` that are the state.
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;
const STATE_BITS: u32 = 4;
const _: () = assert!(State::ALL.len() <= 1 << STATE_BITS);

/// The ordering with which `version` is stored, after events and data. Pairs with the load in
/// [`Interest::look`], which then loads the new events.
const VERSION_RELEASE: Ordering = Ordering::Release;
/// The ordering with which `version` is loaded, before events and data. Pairs with the store in
/// [`Interest::set`].
const VERSION_ACQUIRE: Ordering = Ordering::Acquire;

impl Interest {
    /// The owner of the registration.
    #[inline(always)]
    pub fn state(&self) -> State {
        State::of(self.state.load(Ordering::Relaxed) & STATE_MASK)
    }

    /// Moves the registration to the state `to`. The caller holds the instance's lock, or is the
    /// only one that knows the registration.
    pub fn become_state(&self, to: State) {
        let word = self.state.load(Ordering::Relaxed);
        let from = State::of(word & STATE_MASK);
        debug_assert!(from.leads_to(to), "{from:?} to {to:?}");
        let ended = u32::from(to == State::Gone) << STATE_BITS;
        // If another thread of the program parks the registration at this moment, this store
        // overwrites that. Release pairs with the Acquire load in `moves_if`: what the place's next
        // registration is comes before its state.
        self.state
            .store(with_state(word.wrapping_add(ended), to), Ordering::Release);
    }

    /// Ends the registration: the state in which it was. The caller holds the instance's lock. If
    /// another thread of the program parks the registration at this moment, that thread or the
    /// caller has moved it out of the former state, and not both.
    pub fn end(&self) -> State {
        let ended = |word: u32| Some(with_state(word, State::Gone));
        let before = (self.state).fetch_update(Ordering::Relaxed, Ordering::Relaxed, ended);
        State::of(before.unwrap_or(0) & STATE_MASK)
    }

    /// Moves the registration from state `from` to state `to`; false when it is in another state.
    /// When two threads try at the same time, one succeeds.
    pub fn moves(&self, from: State, to: State) -> bool {
        self.moves_if(from, to, || true)
    }

    /// As [`Interest::moves`], for a caller that has found the registration without a lock. `is_it`
    /// tells whether this is the one that the caller means. False when it is another one, or
    /// becomes another one meanwhile.
    #[inline]
    pub fn moves_if(&self, from: State, to: State, is_it: impl FnOnce() -> bool) -> bool {
        debug_assert!(from.leads_to(to), "{from:?} to {to:?}");
        // Acquire pairs with the Release store in `become_state`.
        let word = self.state.load(Ordering::Acquire);
        let moved = with_state(word, to);
        let exchange = || {
            // Relaxed: where the registration is another one by now, so is the count in the word.
            (self.state).compare_exchange(word, moved, Ordering::Relaxed, Ordering::Relaxed)
        };
        State::of(word & STATE_MASK) == from && is_it() && exchange().is_ok()
    }

    /// The program's events; without readiness when a one-shot was reported.
    #[inline]
    pub fn events(&self) -> u32 {
        self.events.load(Ordering::Relaxed)
    }

    /// The program's data.
    #[inline]
    pub fn data(&self) -> u64 {
        self.data.load(Ordering::Relaxed)
    }

    /// Stores the events and data that the program registered. A look that began before this
    /// reports nothing. Callers hold the instance's lock, or are the only ones that know the
    /// registration.
    pub fn set(&self, events: u32, data: u64) {
        self.events.store(events, Ordering::Relaxed);
        self.data.store(data, Ordering::Relaxed);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), VERSION_RELEASE);
    }

    /// Makes the next look report every event that holds.
    pub fn rearm(&self) {
        self.rearmed.store(1, Ordering::Relaxed);
    }

    /// Makes the next look report room, because the program has met a full ring.
    pub fn forget_room(&self) {
        self.edge_mask.fetch_and(!bits::WRITABLE, Ordering::Relaxed);
    }

    /// True when the program wants to hear of room: it asks for room and, if it is edge-triggered,
    /// it has met a full ring since room was last reported.
    pub fn awaits_room(&self) -> bool {
        let events = self.events();
        let is_told = || self.edge_mask.load(Ordering::Relaxed) & bits::WRITABLE != 0;
        events & bits::WRITABLE != 0 && (events & EDGE == 0 || !is_told())
    }

    /// True when a one-shot was reported and not modified since.
    #[inline]
    pub fn is_spent(&self) -> bool {
        is_spent(self.events())
    }

    /// The first half of an answer: the events that hold and that the program asked for, if any.
    /// `ready_for` gets the events of interest and returns those for which the connection is ready;
    /// `None` when the connection is another one by now.
    #[inline(always)]
    pub fn look(&self, ready_for: impl FnOnce(u32) -> Option<u32>) -> Option<Look> {
        let version = self.version.load(VERSION_ACQUIRE);
        let events = self.events();
        if !self.state().is_ours() || is_spent(events) {
            return None;
        }
        // The end of the stream is an edge even for a program that asked for bytes only, so `RDHUP`
        // is always looked at.
        let all = ready_for(events | RDHUP)?;
        let ready = all & (events | ERR | HUP);
        (ready != 0).then_some(Look {
            version,
            all: all as u16,
            ready: ready as u16,
        })
    }

    /// The second half of an answer: the report for `look`, unless another thread has reported it,
    /// or the registration has changed since. `tail` finds the peer's position. `consume` is false
    /// when nothing may change. The caller holds the instance's lock.
    #[inline(always)]
    pub fn report(
        &self,
        look: &Look,
        consume: bool,
        tail: impl FnOnce() -> Option<u64>,
    ) -> Option<Report> {
        // The thread that changed the registration has put it on the ready list again.
        if self.version.load(Ordering::Relaxed) != look.version || !self.state().is_ours() {
            return None;
        }
        let events = self.events();
        if is_spent(events) {
            return None;
        }
        if events & EDGE != 0 && !self.is_new_edge(look.all.into(), tail()?, consume) {
            return None;
        }
        let is_once = events & ONESHOT != 0;
        if consume && is_once {
            self.events.store(events & !READINESS, Ordering::Relaxed);
        }
        Some(Report {
            events: look.ready.into(),
            data: self.data(),
            stays: !consume || !is_once && events & EDGE == 0,
        })
    }

    /// Edge-triggered: whether `ready` has events that were not reported before, or new bytes came
    /// since. `consume` records `ready` as reported.
    pub fn is_new_edge(&self, ready: u32, tail: u64, consume: bool) -> bool {
        let is_new = self.rearmed.load(Ordering::Relaxed) != 0
            || ready & !self.edge_mask.load(Ordering::Relaxed) != 0
            || tail != self.edge_tail.load(Ordering::Relaxed);
        if consume {
            self.rearmed.store(0, Ordering::Relaxed);
            self.edge_mask.store(ready, Ordering::Relaxed);
            self.edge_tail.store(tail, Ordering::Relaxed);
        }
        is_new
    }

    /// A one-shot: number of the current arming in the kernel.
    pub fn armings(&self) -> u32 {
        self.armings.load(Ordering::Relaxed)
    }

    /// Restores the former value of [`Interest::armings`] after the kernel refused a new arming.
    pub fn set_armings(&self, armings: u32) {
        self.armings.store(armings, Ordering::Relaxed);
    }

    /// Counts one more arming in the kernel and returns its number, from 1 to `most`. The caller
    /// holds the instance's lock.
    pub fn arm_once(&self, most: u32) -> u32 {
        let armings = self.armings() % most + 1;
        self.set_armings(armings);
        armings
    }

    /// True when the kernel's event for `arming` has to be reported to the program. The caller
    /// holds the instance's lock.
    pub fn tell_once(&self, arming: u32) -> bool {
        if arming == 0 {
            // The event belongs to an earlier state, in which the library answered.
            return false;
        }
        // An event of an earlier arming may come after the program has armed again. It is reported,
        // and the new arming stays.
        if arming == self.armings() {
            let wanted = self.events();
            if wanted & READINESS == 0 {
                return false;
            }
            self.events.store(wanted & !READINESS, Ordering::Relaxed);
        }
        true
    }
}

/// A word of `Interest::state` with another state.
#[inline]
fn with_state(word: u32, state: State) -> u32 {
    word & !STATE_MASK | state as u32
}

fn is_spent(events: u32) -> bool {
    events & READINESS == 0 && events & ONESHOT != 0
}
