//! `epoll_ctl`.

use core::sync::atomic::Ordering;

use libc::{
    EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLWAKEUP, epoll_event,
};
use toehold_channel::sync::fence;
use toehold_channel::table::{Mode, Reason};

use crate::connection::closing;
use crate::connection::{self, Connection};
use crate::epoll::early::control_early;
use crate::epoll::first_wait;
use crate::epoll::harvest::has_news;
use crate::epoll::instance::{Epoll, MEMBERS_SEQ_CST, ONCE_KNOWN, ONCE_ORDINARY, epoll};
use crate::epoll::kernel_registrations::modify_kernels;
use crate::epoll::lists::push_news;
use crate::epoll::membership::{answered, become_ours, end_quiet, leave, take_members_from_kernel};
use crate::epoll::nested::control_nested;
use crate::epoll::news;
use crate::epoll::registration::{
    ANSWER_EVENTS, CARRIER_EVENTS, LINK_RELEASE, Registration, State, TAG, WRITABLE,
    allocate_registration, armed, find, free_registration, registration, tag, untag,
};
use crate::lock::PrivateHeld;
use crate::offload::awaiting;
use crate::process::descriptors::{self, Kind};
use crate::system::sys;
use crate::waiting::seen_waits;

const EXCLUSIVE: u32 = EPOLLEXCLUSIVE as u32;
/// The kernel refuses an exclusive registration with other events than these
/// (`EPOLLEXCLUSIVE_OK_BITS` in fs/eventpoll.c).
const WITH_EXCLUSIVE: u32 =
    EXCLUSIVE | (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET) as u32;

/// The library's answer to a call; `None`: the call goes to the kernel unchanged.
pub(super) type Answer = Option<Result<(), i32>>;

/// `epoll_ctl` on a known instance.
pub(crate) fn control(
    number: u32,
    epoll_fd: i32,
    operation: i32,
    fd: i32,
    event: Option<epoll_event>,
) -> Answer {
    let epoll = epoll(number)?;
    let connection = connection::at(fd);
    if let (Some(event), libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) = (event, operation) {
        note(&event);
    }
    let events = event.map_or(0, |event| event.events);
    if events & EXCLUSIVE != 0 {
        epoll.has_exclusive.store(1, Ordering::Relaxed);
    }
    let Some(connection) = connection else {
        // The kernel refuses a number that is no descriptor.
        let is_member = || sys::fcntl(fd, libc::F_GETFD, 0) >= 0;
        epoll.note_ordinary(events, ONCE_ORDINARY, is_member);
        return match descriptors::kind(fd) {
            Kind::Epoll => {
                let answer = control_nested(epoll, epoll_fd, operation, fd, event);
                if epoll.is_waited_on() {
                    // A wait on this instance is also a wait on the instance inside.
                    first_wait::note_at(fd);
                }
                answer
            }
            Kind::Foreign => control_early(number, epoll_fd, operation, fd, event),
            Kind::Connection | Kind::Own => None,
        };
    };
    if matches!(operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) {
        news::note_interest(&connection, events);
    }
    let mut known = find(&connection, number, fd);
    if known.is_none() && operation != libc::EPOLL_CTL_ADD {
        known = find_locked(&connection, number, fd);
    }
    let in_kernel = || InKernel {
        epoll,
        number,
        epoll_fd,
    };
    match operation {
        libc::EPOLL_CTL_ADD => {
            let event = event?;
            if event.events & EXCLUSIVE != 0 && event.events & !WITH_EXCLUSIVE != 0 {
                return Some(Err(libc::EINVAL));
            }
            if let Some((n, one)) = known
                && one.state() == State::Parked
                && let Some(is_shown) = take_back(epoll, number, &connection, (n, one), &event)
            {
                if !is_shown {
                    show(epoll, &connection, one, n);
                }
                return Some(Ok(()));
            }
            in_kernel().add(&connection, &event)
        }
        libc::EPOLL_CTL_MOD => in_kernel().modify(&connection, known?, event?),
        libc::EPOLL_CTL_DEL => {
            let (_, one) = known?;
            if parks(number, &connection, one) {
                epoll.ours.fetch_sub(1, Ordering::Relaxed);
                return Some(Ok(()));
            }
            in_kernel().delete(&connection, one)
        }
        _ => None,
    }
}

/// As [`find`], but waits for another thread that has already put the registration into the kernel
/// and not yet into our table: its first event may have come.
#[cold]
fn find_locked(
    connection: &Connection,
    number: u32,
    fd: i32,
) -> Option<(u32, &'static Registration)> {
    let _members = connection.local.membership.lock();
    find(connection, number, fd)
}

/// Looks at what the program is about to register, or to change.
#[inline]
fn note(event: &epoll_event) {
    if untag(event.u64).is_some() {
        // This program's data looks like our tags (a chance of 1 in 2^32). Its instances stay with
        // the kernel.
        TAG.store(0, Ordering::Relaxed);
    }
}

/// An instance and the program's descriptor of it, for operations that may need the kernel.
pub(super) struct InKernel {
    pub(super) epoll: &'static Epoll,
    pub(super) number: u32,
    pub(super) epoll_fd: i32,
}

impl InKernel {
    /// `EPOLL_CTL_ADD` of a registration that is not parked.
    #[inline(never)]
    fn add(&self, connection: &Connection, event: &epoll_event) -> Answer {
        let members = connection.local.membership.lock();
        match find(connection, self.number, connection.fd) {
            Some((_, one)) => self.add_once_more(connection.fd, one.carrier(), members, event),
            None => self.add_new(connection, event),
        }
    }

    /// The program adds a registration that we already know. The kernel decides whether it is the
    /// same file.
    #[cold]
    fn add_once_more(
        &self,
        fd: i32,
        carrier: i32,
        members: PrivateHeld<'_>,
        event: &epoll_event,
    ) -> Answer {
        if carrier != fd {
            // The number was closed, its registration went to a duplicate in the kernel, and now
            // the number is the same file's again: the kernel would have kept the registration.
            return Some(Err(libc::EEXIST));
        }
        let add =
            || sys::answer(self.tell_kernel(libc::EPOLL_CTL_ADD, fd, event.events, event.u64));
        if let Err(error) = add() {
            return Some(Err(error));
        }
        // The descriptor was closed past the library, and its number was used again for a new one.
        drop(members);
        self.tell_kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
        closing::closed_before(fd);
        let operation = libc::EPOLL_CTL_ADD;
        control(self.number, self.epoll_fd, operation, fd, Some(*event))
            .or_else(|| Some(add().map(drop)))
    }

    /// The program adds a registration that we do not know yet. The caller holds the connection's
    /// `membership` lock.
    pub(super) fn add_new(&self, connection: &Connection, event: &epoll_event) -> Answer {
        let is_waited_on = self.epoll.is_waited_on();
        if is_waited_on {
            seen_waits::seen(connection);
        }
        let has_tags = TAG.load(Ordering::Relaxed) != 0;
        let is_held = awaiting::hides_carrier(connection) && has_tags && is_waited_on;
        let n = allocate_registration();
        let has_region = connection.local.attachment.has_region();
        let is_attached = has_region && has_tags && seen_waits::is_seen(connection.local);
        // The registration is entered in our table first, so that an event of a one-shot is not
        // reported twice.
        let armed = n.and_then(registration).zip(n).map(|(one, n)| {
            let event = epoll_event {
                events: armed(event.events),
                ..*event
            };
            let (data, state) = one.arm(n, &event, is_waited_on);
            one.become_state(if is_held { State::Held } else { state });
            one.fd.store(connection.fd, Ordering::Relaxed);
            one.epoll.store(self.number, Ordering::Relaxed);
            data
        });
        let (events, data) = match n {
            Some(n) if is_held => (ANSWER_EVENTS, tag(n)),
            // The library answers from the start. Otherwise a thread that sleeps on the instance
            // could report the member twice, for the kernel and for the library.
            Some(n) if is_attached => (CARRIER_EVENTS, tag(n)),
            _ => {
                let kind = n.map_or(ONCE_ORDINARY, |_| ONCE_KNOWN);
                self.epoll.note_ordinary(event.events, kind, || true);
                self.epoll.end_kernel_calls();
                (event.events, armed.unwrap_or(event.u64))
            }
        };
        let result = self.tell_kernel(libc::EPOLL_CTL_ADD, connection.fd, events, data);
        if let Err(error) = sys::answer(result) {
            if let Some(n) = n {
                free_registration(n);
            }
            return Some(Err(error));
        }
        let Some(n) = n else {
            connection.pin(Reason::NoResources);
            return Some(Ok(()));
        };
        self.link(connection, n, is_held)?;
        if !is_waited_on {
            // Another thread may have begun the first wait meanwhile.
            first_wait::added(self.epoll, connection, n);
        }
        if is_held && !awaiting::hides_carrier(connection) {
            // Another thread has received the engine's answer meanwhile.
            answered(connection);
        }
        if connection.local.attachment.has_region() {
            take_members_from_kernel(connection);
        }
        Some(Ok(()))
    }

    /// Puts a registration that the kernel has into the list of its connection.
    fn link(&self, connection: &Connection, n: u32, is_held: bool) -> Option<()> {
        let one = registration(n)?;
        one.generation
            .store(connection.generation, Ordering::Relaxed);
        one.on_ready.store(0, Ordering::Relaxed);
        one.rearm();
        news::note_interest(connection, one.events());
        if is_held {
            self.epoll.ours.fetch_add(1, Ordering::Relaxed);
        }
        let list = &connection.local.registrations;
        one.next
            .store(list.load(Ordering::Relaxed), Ordering::Relaxed);
        one.connection.store(connection.index + 1, LINK_RELEASE);
        list.store(n, LINK_RELEASE);
        Some(())
    }

    /// `EPOLL_CTL_MOD`.
    #[inline(never)]
    fn modify(
        &self,
        connection: &Connection,
        (n, one): (u32, &Registration),
        event: epoll_event,
    ) -> Answer {
        let epoll = self.epoll;
        let is_shown = loop {
            match one.state() {
                State::Parked => return Some(Err(libc::ENOENT)),
                State::Held => {
                    let _held = epoll.lock.lock();
                    if one.state() == State::Held && one.is_of(connection, self.number) {
                        one.set(armed(event.events), event.u64);
                        return Some(Ok(()));
                    }
                }
                state if state.is_kernels() => {
                    let _members = connection.local.membership.lock();
                    if one.is_kernels() && one.is_of(connection, self.number) {
                        return Some(modify_kernels(epoll, self.epoll_fd, n, &event));
                    }
                }
                state if state.is_ours() => {
                    // epoll_ctl(2): an exclusive registration cannot be modified, nor an ordinary
                    // one made exclusive.
                    if (event.events | one.events()) & EXCLUSIVE != 0 {
                        return Some(Err(libc::EINVAL));
                    }
                    let _held = epoll.lock.lock();
                    if one.is_ours() && one.is_of(connection, self.number) {
                        one.set(armed(event.events), event.u64);
                        one.rearm();
                        break show_if_awake(epoll, one, n);
                    }
                }
                _ => return None,
            }
            if !one.is_of(connection, self.number) {
                // Another thread has removed the registration, or closed the descriptor.
                return None;
            }
            // Another thread has changed the owner meanwhile.
        };
        end_quiet(epoll, connection, one, n);
        if !is_shown {
            show(epoll, connection, one, n);
        }
        Some(Ok(()))
    }

    /// `EPOLL_CTL_DEL` of a registration that is not to be parked.
    #[inline(never)]
    fn delete(&self, connection: &Connection, one: &Registration) -> Answer {
        if one.state() == State::Parked {
            return Some(Err(libc::ENOENT));
        }
        let _members = connection.local.membership.lock();
        let (n, _) = find(connection, self.number, connection.fd)?;
        let carrier = one.carrier();
        let is_orphan = carrier != connection.fd;
        if is_orphan {
            self.tell_kernel(libc::EPOLL_CTL_DEL, carrier, 0, 0);
        }
        leave(self.epoll, connection, n);
        is_orphan.then_some(Ok(()))
    }

    /// The kernel's own call.
    fn tell_kernel(&self, operation: i32, fd: i32, events: u32, data: u64) -> isize {
        sys::epoll_ctl(self.epoll_fd, operation, fd, events, data)
    }
}

/// The program removes `one`, which was found without a lock as that of `connection` with instance
/// `number`. True when it is parked now. False when it is in another state, or another
/// registration: another thread has removed it meanwhile, and its place was used again.
#[inline(always)]
fn parks(number: u32, connection: &Connection, one: &Registration) -> bool {
    let is_it = || one.is_of(connection, number);
    one.moves_if(State::InBitmap, State::Parked, is_it)
}

/// A parked registration is added again. `None` when it is on its way out of our table; false when
/// the caller has to [`show`] it.
///
/// While the registration was parked, another instance may have got the connection, or the process
/// may have forked. So the way in which it hears of news is chosen again.
#[inline(always)]
fn take_back(
    epoll: &Epoll,
    number: u32,
    connection: &Connection,
    (n, one): (u32, &Registration),
    event: &epoll_event,
) -> Option<bool> {
    let members = connection.local.membership.lock();
    let _held = epoll.lock.lock_within(&members);
    if one.state() != State::Parked || !one.is_of(connection, number) {
        return None;
    }
    seen_waits::seen(connection);
    one.set(armed(event.events), event.u64);
    one.rearm();
    epoll.ours.fetch_add(1, MEMBERS_SEQ_CST);
    become_ours(epoll, number, connection, one, n);
    Some(show_if_awake(epoll, one, n))
}

/// A member's interest changed. If no thread sleeps and nothing comes by the carrier, this is all
/// that [`show`] would do: the next wait looks at the member. False otherwise. The caller holds the
/// lock, which a thread takes before it sleeps.
fn show_if_awake(epoll: &Epoll, one: &Registration, n: u32) -> bool {
    let is_enough = !epoll.sleepers.any() && one.events() & WRITABLE == 0;
    if is_enough {
        push_news(epoll, n);
    }
    is_enough
}

/// A member's interest changed: the next wait looks at the member, and a thread that sleeps already
/// is woken. Not to be called with the lock held.
fn show(epoll: &Epoll, connection: &Connection, one: &Registration, n: u32) {
    // Pairs with the sleeper's steps in `waiting::sleep`, as in `Epoll::show_to_sleepers`.
    fence(Ordering::SeqCst);
    if epoll.sleepers.any() && is_marked(connection, one) && !has_news(one) {
        // The sleepers hear of later news by the ready bitmap.
        return;
    }
    {
        let _held = epoll.lock.lock();
        push_news(epoll, n);
    }
    let wants_room = one.events() & WRITABLE != 0;
    let end = wants_room.then(|| connection.end()).flatten();
    if end.is_some_and(|end| end.tx_mode() != Mode::Ring) {
        // The room is in the kernel's buffer, and the kernel reports it.
        epoll.kick(n);
    } else {
        epoll.show_to_sleepers(n);
    }
}

/// True when a ready bitmap tells of everything that the program waits for. Nothing of that comes
/// by the carrier, whose edges the kernel may have reported before.
fn is_marked(connection: &Connection, one: &Registration) -> bool {
    one.state() == State::InBitmap
        && connection.end().is_some_and(|end| {
            let wants_room = one.events() & WRITABLE != 0;
            end.rx_mode() == Mode::Ring && (!wants_room || end.tx_mode() == Mode::Ring)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registration of `connection` with instance `number`, which a ready bitmap reports.
    fn in_bitmap(number: u32, connection: &Connection) -> Registration {
        let one = Registration::default();
        begin(&one, number, connection);
        one
    }

    fn begin(one: &Registration, number: u32, connection: &Connection) {
        one.generation
            .store(connection.generation, Ordering::Relaxed);
        one.epoll.store(number, Ordering::Relaxed);
        one.connection.store(connection.index + 1, LINK_RELEASE);
        one.become_state(State::Plain);
        one.become_state(State::InBitmap);
    }

    #[test]
    fn registration_is_parked_by_the_program_that_removes_it() {
        let connection = Connection::of_a_test(-1);
        let one = in_bitmap(3, &connection);
        assert!(parks(3, &connection, &one));
        assert_eq!(one.state(), State::Parked);
        assert!(!parks(3, &connection, &one), "it is removed already");
    }

    /// A thread has found a registration to remove. Before it does so, another thread has removed
    /// that one, and its place is another connection's.
    #[test]
    fn registration_in_the_place_of_one_that_was_removed_is_not_parked() {
        let removed = Connection::of_a_test(-1);
        let next = Connection {
            index: 1,
            ..Connection::of_a_test(-1)
        };
        let one = in_bitmap(3, &removed);
        one.become_state(State::Gone);
        begin(&one, 3, &next);
        assert!(!parks(3, &removed, &one));
        assert_eq!(one.state(), State::InBitmap);
    }
}
