//! The listener whose connections may come by carriers: one in each process, the first that the
//! program registers with an epoll instance in a way that we can answer (level-triggered,
//! non-blocking, in one instance).
//!
//! Each peer process has a queue of its own with us, in the memory of the pair. The listener is
//! readable while one of them has a connection. When the listener is closed, duplicated or polled,
//! the queues are closed and waiting connections are given up. The connecting end then takes them
//! back to the kernel ([`super::returning`]), where another process may listen at that address.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, epoll_event};
use toehold_stream::express::{Queued, Turn};

use super::carriers::{self, Role};
use super::published::{
    self, BACKLOG, COUNT, FD, INSTANCE, IS_OVER, KEPT, LAST_PARKED, PAIRS, REGISTRATION, ROUND,
    is_announced, is_served, pairs,
};
use super::{LOCK, evidence, may_act};
use crate::connection::Connection;
use crate::epoll::parked;
use crate::memory::pairs::Pair;
use crate::system::sys;

/// A listener that is known.
struct Known {
    /// Plus one; 0 for none.
    number: AtomicI32,
    backlog: AtomicU32,
    /// In how many known epoll instances it is; or [`UNANSWERABLE`].
    waits: AtomicU32,
}

/// The listener has another descriptor, with which the program may wait in a way that the library
/// cannot answer.
const UNANSWERABLE: u32 = u32::MAX;
const KNOWN_MAX: usize = 16;
static KNOWN: [Known; KNOWN_MAX] = [const {
    Known {
        number: AtomicI32::new(0),
        backlog: AtomicU32::new(0),
        waits: AtomicU32::new(0),
    }
}; KNOWN_MAX];

impl Known {
    fn is(&self, fd: i32) -> bool {
        self.number.load(Ordering::Relaxed) == fd + 1
    }

    fn at(fd: i32) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.is(fd))
    }

    /// The listener was added to one more instance. True when it was in none before.
    fn is_first_wait(&self) -> bool {
        let waits = self.waits.load(Ordering::Relaxed);
        let more = waits.saturating_add(1);
        self.waits.store(more, Ordering::Relaxed);
        waits == 0
    }

    /// The listener has left an instance.
    fn wait_ends(&self) {
        let waits = self.waits.load(Ordering::Relaxed);
        if waits != UNANSWERABLE {
            let less = waits.saturating_sub(1);
            self.waits.store(less, Ordering::Relaxed);
        }
    }
}

/// The program listens at `fd`.
pub(crate) fn listening(fd: i32, backlog: i32) {
    if !may_act() {
        return;
    }
    let domain = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    if !matches!(domain, Ok(libc::AF_INET | libc::AF_INET6)) {
        return;
    }
    let _held = LOCK.lock();
    if !super::is_on() {
        return;
    }
    let is_free = |known: &&Known| known.number.load(Ordering::Relaxed) == 0;
    let place = Known::at(fd).or_else(|| {
        let free = KNOWN.iter().find(is_free)?;
        free.waits.store(0, Ordering::Relaxed);
        Some(free)
    });
    if let Some(known) = place {
        // A negative backlog is the kernel's largest (`__sys_listen` compares without a sign).
        let backlog = backlog.unsigned_abs().max(1);
        known.backlog.store(backlog, Ordering::Relaxed);
        known.number.store(fd + 1, Ordering::Relaxed);
        if is_served(fd) {
            // It listened before, with another backlog.
            BACKLOG.store(backlog, Ordering::Relaxed);
            if PAUSED_NS.load(Ordering::Relaxed) != WITHDRAWN {
                each_pair(|pair| pair.acceptable().open(backlog));
            }
        }
    }
}

/// In a forked child: the parent's epoll registrations do not count for the child.
pub(super) fn forked() {
    for known in &KNOWN {
        if known.waits.load(Ordering::Relaxed) != UNANSWERABLE {
            known.waits.store(0, Ordering::Relaxed);
        }
    }
}

/// `epoll_ctl` with instance `number` has succeeded on a descriptor that may be a listener.
pub(crate) fn controlled(number: u32, operation: i32, fd: i32, event: Option<&epoll_event>) {
    let Some(known) = Known::at(fd) else {
        return;
    };
    if !may_act() {
        return;
    }
    let _held = LOCK.lock();
    if !super::is_on() {
        // A rule has ended it meanwhile.
        return;
    }
    let registration = REGISTRATION.load(Ordering::Relaxed);
    let nothing = epoll_event { events: 0, u64: 0 };
    match (operation, event) {
        // The kernel ignores the event argument here.
        (libc::EPOLL_CTL_DEL, _) => {
            known.wait_ends();
            if is_served(fd) {
                parked::change(registration, &nothing);
                pause();
            }
        }
        (_, Some(event)) if is_served(fd) => {
            let is_here = INSTANCE.load(Ordering::Relaxed) == number;
            match is_here && is_answerable(event) {
                true => {
                    if operation == libc::EPOLL_CTL_ADD {
                        known.is_first_wait();
                    }
                    parked::change(registration, event);
                    go_on();
                }
                false => give_up(),
            }
        }
        (libc::EPOLL_CTL_ADD, Some(event))
            if known.is_first_wait()
                && FD.load(Ordering::Relaxed) == 0
                && !IS_OVER.load(Ordering::Relaxed)
                && is_answerable(event)
                && sys::is_nonblocking(fd) =>
        {
            if let Some(registration) = parked::listen(number, fd, event) {
                evidence::begin_listener();
                REGISTRATION.store(registration, Ordering::Relaxed);
                INSTANCE.store(number, Ordering::Relaxed);
                let backlog = known.backlog.load(Ordering::Relaxed);
                BACKLOG.store(backlog, Ordering::Relaxed);
                FD.store(fd + 1, Ordering::Relaxed);
            }
        }
        _ => {}
    }
}

fn is_answerable(event: &epoll_event) -> bool {
    event.events & (EPOLLET | EPOLLONESHOT) as u32 == 0 && event.events & EPOLLIN as u32 != 0
}

/// The epoll instance that parked carriers wake.
pub(super) fn instance() -> Option<u32> {
    (FD.load(Ordering::Relaxed) != 0).then(|| INSTANCE.load(Ordering::Relaxed))
}

/// A carrier that we accepted is being parked: the listener has its news, and its peer a queue.
pub(super) fn serve(connection: &Connection) -> bool {
    let Some(pair) = carriers::pair_of(connection.local) else {
        return false;
    };
    if !is_announced(pair) && !announce(pair) {
        return false;
    }
    let slot = carriers::slot_of(connection.entry);
    let n = REGISTRATION.load(Ordering::Relaxed);
    let Some(place) = pair.carrier(slot) else {
        return false;
    };
    if !parked::lead_to_listener(connection, n) {
        return false;
    }
    place.store(connection.index + 1, Ordering::Relaxed);
    LAST_PARKED.store(parked::of_carrier(connection), Ordering::Relaxed);
    true
}

fn announce(pair: &Pair) -> bool {
    let count = COUNT.load(Ordering::Relaxed) as usize;
    let Some(place) = PAIRS.get(count) else {
        return false;
    };
    place.store(core::ptr::from_ref(pair).cast_mut(), Ordering::Relaxed);
    COUNT.store(count as u32 + 1, Ordering::Relaxed);
    if PAUSED_NS.load(Ordering::Relaxed) != WITHDRAWN {
        pair.acceptable().open(BACKLOG.load(Ordering::Relaxed));
    }
    true
}

/// When the program removed the listener from its instance; 0 while it is registered, and
/// [`WITHDRAWN`] after the waiting connections were given up.
static PAUSED_NS: AtomicU64 = AtomicU64::new(0);
const WITHDRAWN: u64 = u64::MAX;
/// The time that the listener may be removed while connections still come to its queues. nginx
/// removes its listener and adds it again at once, with every 16th connection. (When the queues
/// were closed meanwhile, a client that had just claimed a carrier lost it: most carriers of two
/// workers ended so.)
const PAUSE_NS: u64 = 1_000_000;

/// The program stops waiting for connections, perhaps only for a moment, or because it has enough
/// of them. The caller holds the lock.
fn pause() {
    PAUSED_NS.store(sys::now_ns(), Ordering::Relaxed);
}

/// The program waits for connections again. The caller holds the lock.
fn go_on() {
    if PAUSED_NS.swap(0, Ordering::Relaxed) == WITHDRAWN {
        let backlog = BACKLOG.load(Ordering::Relaxed);
        each_pair(|pair| pair.acceptable().open(backlog));
    }
}

/// The number of times that the program has set options of a listener that is served.
static OPTIONS_SET: AtomicU32 = AtomicU32::new(0);

/// Identifies the set of listener options with which a connection was accepted.
pub(super) fn options() -> u32 {
    OPTIONS_SET.load(Ordering::Relaxed)
}

/// The program has set an option of `fd`. New connections inherit the listener's current options,
/// but carriers have the options of earlier connections.
pub(crate) fn option_set(fd: i32) {
    if is_served(fd) && may_act() {
        let _held = LOCK.lock();
        OPTIONS_SET.fetch_add(1, Ordering::Relaxed);
        carriers::retire_unclaimed(Role::Accepting);
    }
}

/// True while a later [`withdraw`] is needed.
#[inline]
pub(super) fn is_paused() -> bool {
    !matches!(PAUSED_NS.load(Ordering::Relaxed), 0 | WITHDRAWN)
}

/// When [`withdraw`] is due, in nanoseconds from now.
pub(super) fn due_in_ns() -> Option<u64> {
    let since = PAUSED_NS.load(Ordering::Relaxed);
    let due = || (since.saturating_add(PAUSE_NS)).saturating_sub(sys::now_ns());
    is_paused().then(due)
}

/// Gives up waiting connections when the program does not come back to its listener: other
/// processes that share the listener must get these and later connections. The caller holds the
/// lock.
pub(super) fn withdraw() {
    if due_in_ns() == Some(0) {
        PAUSED_NS.store(WITHDRAWN, Ordering::Relaxed);
        give_up_waiting();
    }
}

fn each_pair(each: impl Fn(&Pair)) {
    for pair in pairs() {
        // SAFETY: as in `has_any`.
        if let Some(pair) = unsafe { pair.load(Ordering::Relaxed).as_ref() } {
            each(pair);
        }
    }
}

/// Closes the queues, and gives up waiting connections, which then go to the kernel. The caller
/// holds the lock.
fn give_up_waiting() {
    // From now on a claim finds no room.
    each_pair(|pair| pair.acceptable().close());
    carriers::retire_role(Role::Accepting);
    // A peer that still queues a connection withdraws it, or loses it.
    let waiting = (0..published::WAITING_MAX).map_while(|_| next());
    waiting.for_each(drop);
}

/// Takes the next waiting connection, from each peer in turn. The caller holds the lock.
pub(super) fn next() -> Option<(&'static Pair, Queued)> {
    let kept = KEPT.0.swap(null_mut(), Ordering::Relaxed);
    // SAFETY: as in `has_any`; `forget_pair` takes it out of here, too.
    if let Some(pair) = unsafe { kept.as_ref() } {
        let word = KEPT.1.load(Ordering::Relaxed);
        let turn = Turn::numbered(word as u32)?;
        let slot = (word >> 32) as u32;
        return Some((pair, Queued { slot, turn }));
    }
    let pairs = pairs();
    let round = ROUND.fetch_add(1, Ordering::Relaxed) as usize;
    for n in 0..pairs.len() {
        // SAFETY: as in `has_any`.
        let pair = unsafe {
            pairs[(round + n) % pairs.len()]
                .load(Ordering::Relaxed)
                .as_ref()
        };
        let Some(pair) = pair else { continue };
        match pair.acceptable().pop() {
            Ok(Some(queued)) => return Some((pair, queued)),
            Ok(None) => {}
            Err(_) => {
                // A peer that has written an invalid word loses its queue.
                pair.acceptable().close();
                published::forget_pair(pair);
                return None;
            }
        }
    }
    None
}

/// Keeps a connection for the next `accept`. The caller holds the lock.
pub(super) fn keep(pair: &'static Pair, queued: Queued) {
    let word = u64::from(queued.slot) << 32 | u64::from(queued.turn.number());
    KEPT.1.store(word, Ordering::Relaxed);
    KEPT.0
        .store(core::ptr::from_ref(pair).cast_mut(), Ordering::Relaxed);
}

/// `fd` is about to be closed, or another file is about to take its number. Most descriptors are no
/// listeners, and take no lock: a program that listens and closes in two threads has no order of
/// the two.
pub(crate) fn closing(fd: i32) {
    let is_listener = Known::at(fd).is_some() || is_served(fd);
    if !is_listener || !may_act() {
        return;
    }
    let _held = LOCK.lock();
    if let Some(known) = Known::at(fd) {
        known.number.store(0, Ordering::Relaxed);
    }
    if is_served(fd) {
        stop();
    }
}

/// As [`closing`], of all from `first` to `last`.
pub(crate) fn closing_range(first: u32, last: u32) {
    for known in &KNOWN {
        let fd = known.number.load(Ordering::Relaxed) - 1;
        if u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd)) {
            closing(fd);
        }
    }
}

/// Forgets all current listeners of the program: none of them is served later. The caller holds the
/// lock.
pub(super) fn forget_all() {
    for known in &KNOWN {
        known.number.store(0, Ordering::Relaxed);
    }
}

/// True when any listener is known.
#[inline]
pub(crate) fn are_any() -> bool {
    super::is_on()
        && KNOWN
            .iter()
            .any(|known| known.number.load(Ordering::Relaxed) != 0)
}

/// An epoll instance is being closed.
pub(crate) fn instance_closing(number: u32) {
    if FD.load(Ordering::Relaxed) != 0 && INSTANCE.load(Ordering::Relaxed) == number {
        let _held = LOCK.lock();
        if let Some(known) = Known::at(FD.load(Ordering::Relaxed) - 1) {
            known.wait_ends();
        }
        stop();
    }
}

/// The program uses the listener at `fd` in a way that the library cannot answer: with `poll`, or
/// by a duplicate.
#[cold]
pub(crate) fn used_otherwise(fd: i32) {
    if is_served(fd) && may_act() {
        let _held = LOCK.lock();
        give_up();
    }
}

/// `fd` has a duplicate now, with which the program may wait for connections.
pub(crate) fn duplicated(fd: i32) {
    if let Some(known) = Known::at(fd).filter(|_| may_act()) {
        let _held = LOCK.lock();
        known.waits.store(UNANSWERABLE, Ordering::Relaxed);
        if is_served(fd) {
            give_up();
        }
    }
}

/// Stops serving the listener, for good. The caller holds the lock.
fn give_up() {
    IS_OVER.store(true, Ordering::Relaxed);
    stop();
}

/// Stops serving the listener. The caller holds the lock.
pub(super) fn stop() {
    if FD.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    give_up_waiting();
    PAUSED_NS.store(0, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
    parked::unlisten(REGISTRATION.swap(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use toehold_channel::table::WaitMode;

    use crate::process;

    use super::*;

    /// Runs `work` in a forked child that the library serves; true when it returns. A signal ends
    /// the child if it waits for ever.
    fn returns_in_a_child(work: impl FnOnce()) -> bool {
        // SAFETY: the child makes system calls and uses atomics only, and is awaited below.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                LOCK.reset();
                process::begin(WaitMode::Adaptive);
                process::enable();
                crate::express::want_express(false);
                work();
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            status == 0
        }
    }

    #[test]
    fn close_of_another_descriptor_does_not_wait_for_a_thread_that_connects() {
        const LISTENER: i32 = 5003;
        assert!(returns_in_a_child(|| {
            KNOWN[0].number.store(LISTENER + 1, Ordering::Relaxed);
            let held = LOCK.lock();
            closing(LISTENER + 1);
            drop(held);
            closing(LISTENER);
            assert!(Known::at(LISTENER).is_none());
        }));
    }
}
