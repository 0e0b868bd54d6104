//! The listener whose connections may come by carriers: one in each process, the first that the
//! program registers with an epoll instance in a way that we can answer (level-triggered,
//! non-blocking, in one instance).
//!
//! Each peer process has a queue of its own with us, in the memory of the pair. The listener is
//! readable while one of them has a connection. A listener that is closed, duplicated or polled
//! takes the places away, and gives up what waits: the connecting end takes it back to the kernel
//! ([`super::returning`]), where another process may listen at the same address.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, epoll_event};
use toehold_stream::express::{Queued, Turn};

use super::books::{
    self, BACKLOG, COUNT, FD, INSTANCE, IS_OVER, KEPT, LAST_PARKED, PAIRS, REGISTRATION, ROUND,
    is_announced, is_served, pairs,
};
use super::carriers::{self, Role};
use super::{LOCK, evidence, may_act};
use crate::connection::Connection;
use crate::epoll::parked;
use crate::pairs::Pair;
use crate::sys;

/// Listeners that are known, by number plus one, and their backlogs.
static KNOWN: [(AtomicI32, AtomicU32); KNOWN_MAX] =
    [const { (AtomicI32::new(0), AtomicU32::new(0)) }; KNOWN_MAX];
const KNOWN_MAX: usize = 16;

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
    let is_it = |known: &&(AtomicI32, AtomicU32)| known.0.load(Ordering::Relaxed) == fd + 1;
    let is_free = |known: &&(AtomicI32, AtomicU32)| known.0.load(Ordering::Relaxed) == 0;
    let place = KNOWN
        .iter()
        .find(is_it)
        .or_else(|| KNOWN.iter().find(is_free));
    if let Some((number, places)) = place {
        // A negative backlog is the kernel's largest (`__sys_listen` compares without a sign).
        places.store(backlog.unsigned_abs().max(1), Ordering::Relaxed);
        number.store(fd + 1, Ordering::Relaxed);
    }
}

fn backlog_of(fd: i32) -> Option<u32> {
    let known = KNOWN
        .iter()
        .find(|known| known.0.load(Ordering::Relaxed) == fd + 1)?;
    Some(known.1.load(Ordering::Relaxed))
}

/// `epoll_ctl` has succeeded on what may be a listener, with instance `number`.
pub(crate) fn controlled(number: u32, operation: i32, fd: i32, event: Option<&epoll_event>) {
    let Some(backlog) = backlog_of(fd) else {
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
        // The kernel looks at no event here, whatever the program passes.
        (libc::EPOLL_CTL_DEL, _) if is_served(fd) => parked::change(registration, &nothing),
        (_, Some(event)) if is_served(fd) => {
            let is_here = INSTANCE.load(Ordering::Relaxed) == number;
            match is_here && is_answerable(event) {
                true => parked::change(registration, event),
                false => give_up(),
            }
        }
        (libc::EPOLL_CTL_ADD, Some(event))
            if FD.load(Ordering::Relaxed) == 0
                && !IS_OVER.load(Ordering::Relaxed)
                && is_answerable(event)
                && sys::is_nonblocking(fd) =>
        {
            if let Some(registration) = parked::listen(number, fd, event) {
                evidence::begin_listener();
                REGISTRATION.store(registration, Ordering::Relaxed);
                INSTANCE.store(number, Ordering::Relaxed);
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
    pair.acceptable().open(BACKLOG.load(Ordering::Relaxed));
    true
}

/// The next connection that waits, of each peer in turn. The caller holds the lock.
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
                // A peer that writes nonsense has no queue any more.
                pair.acceptable().close();
                books::forget_pair(pair);
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

/// `fd` is about to be closed, or another file is about to take its number.
pub(crate) fn closing(fd: i32) {
    if !may_act() {
        return;
    }
    let _held = LOCK.lock();
    if let Some((number, _)) = KNOWN
        .iter()
        .find(|known| known.0.load(Ordering::Relaxed) == fd + 1)
    {
        number.store(0, Ordering::Relaxed);
    }
    if is_served(fd) {
        stop();
    }
}

/// As [`closing`], of all from `first` to `last`.
pub(crate) fn closing_range(first: u32, last: u32) {
    for (number, _) in &KNOWN {
        let fd = number.load(Ordering::Relaxed) - 1;
        if u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd)) {
            closing(fd);
        }
    }
}

/// No listener that the program has now is served later. The caller holds the lock.
pub(super) fn forget_all() {
    for (number, _) in &KNOWN {
        number.store(0, Ordering::Relaxed);
    }
}

/// True when anything is known to listen.
#[inline]
pub(crate) fn are_any() -> bool {
    super::is_on()
        && KNOWN
            .iter()
            .any(|known| known.0.load(Ordering::Relaxed) != 0)
}

/// An epoll instance is being closed.
pub(crate) fn instance_closing(number: u32) {
    if FD.load(Ordering::Relaxed) != 0 && INSTANCE.load(Ordering::Relaxed) == number {
        let _held = LOCK.lock();
        stop();
    }
}

/// The program uses the listener at `fd` in a way that we cannot answer: a `poll`, a duplicate.
#[cold]
pub(crate) fn used_otherwise(fd: i32) {
    if is_served(fd) && may_act() {
        let _held = LOCK.lock();
        give_up();
    }
}

/// For good. The caller holds the lock.
fn give_up() {
    IS_OVER.store(true, Ordering::Relaxed);
    stop();
}

/// Nobody listens any more: takes the places away, and gives up what waits. The caller holds the
/// lock.
pub(super) fn stop() {
    if FD.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    for pair in pairs() {
        // SAFETY: as in `has_any`.
        if let Some(pair) = unsafe { pair.load(Ordering::Relaxed).as_ref() } {
            pair.acceptable().close();
        }
    }
    // A claim from here on finds no place.
    carriers::retire_role(Role::Accepting);
    // A peer that queues all the same withdraws it, or has it lost.
    let waiting = (0..books::WAITING_MAX).map_while(|_| next());
    waiting.for_each(drop);
    COUNT.store(0, Ordering::Relaxed);
    parked::unlisten(REGISTRATION.swap(0, Ordering::Relaxed));
}
