//! An instance that is watched from outside: registered in another instance, or among the
//! descriptors of a `poll`.
//!
//! The kernel reports an instance as readable when it has any event for it, even if that is only an
//! event for the library. In that case the events are taken and sorted: the library's go to the
//! ready list; the events of ordinary members come again from the kernel when the program asks. But
//! an event that the kernel reports only once ([`Epoll::may_have_reported_once`]) must not be taken
//! from the program. For such an instance the doorbells are taken off their carriers instead, and
//! the kernel is asked again. It may still report the instance as readable once without cause, for
//! an event that is not a doorbell.
//!
//! A nested instance is registered with a tag of the library. A kernel event for it is checked here
//! ([`Epoll::judge_nested`]), and becomes the program's event if it holds. News that the kernel
//! does not see is found in the table ([`Epoll::nested_events`]). Both together are one answer: an
//! edge-triggered registration is reported when there is news since the last report, and a one-shot
//! once.

use core::sync::atomic::Ordering;

use libc::epoll_event;
use toehold_channel::table::Mode;

use crate::direction::{doorbells, takeover};
use crate::epoll::instance::{BATCH, EPOLLS_MAX, Epoll, NESTED_MAX, Nested, epoll, needs_library};
use crate::epoll::registration::{EDGE, ONESHOT, READABLE, tag_nested, untag_nested};
use crate::process::{self, descriptors};
use crate::system::sys;

/// The most members whose doorbells one look from outside takes off.
const TIDIED_MAX: usize = BATCH;

/// `epoll_ctl` on `epoll`, which is at `epoll_fd`, for the instance at `fd`.
pub(super) fn control_nested(
    epoll: &Epoll,
    epoll_fd: i32,
    operation: i32,
    fd: i32,
    event: Option<epoll_event>,
) -> Option<Result<(), i32>> {
    let child = descriptors::epoll_number(fd)?;
    let given = match operation {
        libc::EPOLL_CTL_DEL => epoll_event { events: 0, u64: 0 },
        _ => event?,
    };
    let _held = epoll.lock.lock();
    let count = epoll.nested_count.load(Ordering::Relaxed);
    let place = epoll.known_nested().position(|one| {
        one.number.load(Ordering::Relaxed) == child && one.fd.load(Ordering::Relaxed) == fd
    });
    let known = match (operation, place) {
        // A wait on `epoll` would sleep beside news of an instance that is not known here.
        (libc::EPOLL_CTL_ADD, None) => match epoll.nested.get_or_map(count as usize) {
            Some(new) => Some((new, free_id(epoll))),
            None => return Some(Err(libc::ENOMEM)),
        },
        (libc::EPOLL_CTL_MOD, Some(place)) => epoll
            .nested
            .get(place)
            .map(|one| (one, one.id.load(Ordering::Relaxed))),
        _ => None,
    };
    let data = known.map_or(given.u64, |(_, id)| epoll.kernels_data(id, given.u64));
    // The kernel is called first, because it refuses cycles; our own walk does not check for them.
    let result = sys::epoll_ctl(epoll_fd, operation, fd, given.events, data);
    if let Err(error) = sys::answer(result) {
        return Some(Err(error));
    }
    if let Some((one, id)) = known {
        if place.is_none() {
            one.number.store(child, Ordering::Relaxed);
            one.fd.store(fd, Ordering::Relaxed);
            one.id.store(id, Ordering::Relaxed);
        }
        one.arm(&given);
        if place.is_none() {
            epoll.nested_count.store(count + 1, Ordering::Relaxed);
        }
    } else if let (libc::EPOLL_CTL_DEL, Some(place)) = (operation, place) {
        remove(epoll, place);
    }
    Some(Ok(()))
}

/// An id that no instance inside `epoll` has. The caller holds the lock.
fn free_id(epoll: &Epoll) -> u32 {
    let mut taken = ReportedInstances::NONE;
    for one in epoll.known_nested() {
        taken.add(one.id.load(Ordering::Relaxed));
    }
    let is_free = |id: &u32| !taken.has(*id);
    // There are as many ids as places, and one place is free.
    (1..=NESTED_MAX as u32).find(is_free).unwrap_or(0)
}

impl Nested {
    /// Stores the program's events and data. Everything that holds counts as news.
    fn arm(&self, given: &epoll_event) {
        self.events.store(given.events, Ordering::Relaxed);
        self.data.store(given.u64, Ordering::Relaxed);
        self.forks.store(process::forks(), Ordering::Relaxed);
        self.told
            .store(self.news().wrapping_sub(1), Ordering::Relaxed);
    }

    /// Becomes what `other` is.
    fn copy(&self, other: &Nested) {
        let both = [
            (&self.number, &other.number),
            (&self.events, &other.events),
            (&self.id, &other.id),
            (&self.told, &other.told),
            (&self.forks, &other.forks),
        ];
        for (to, from) in both {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.fd
            .store(other.fd.load(Ordering::Relaxed), Ordering::Relaxed);
        self.data
            .store(other.data.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The kernel gets the program's own data for all instances inside `epoll` that no other process
/// may have.
pub(super) fn give_nested(epoll: &Epoll) {
    replace_nested(epoll, |one| one.data.load(Ordering::Relaxed));
}

/// The program waits on `epoll` through us from now on: instances inside get their tags.
pub(super) fn take_nested(epoll: &Epoll) {
    let _held = epoll.lock.lock();
    replace_nested(epoll, |one| {
        let data = one.data.load(Ordering::Relaxed);
        epoll.kernels_data(one.id.load(Ordering::Relaxed), data)
    });
}

/// The kernel gets this data for all instances inside `epoll` that no other process may have.
fn replace_nested(epoll: &Epoll, data: impl Fn(&Nested) -> u64) {
    let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
    let is_own = |one: &&Nested| one.forks.load(Ordering::Relaxed) == process::forks();
    for one in epoll.known_nested().filter(is_own) {
        let events = one.events.load(Ordering::Relaxed);
        let fd = one.fd.load(Ordering::Relaxed);
        sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_MOD, fd, events, data(one));
    }
}

/// Takes a place off the list; the caller holds the instance's lock.
fn remove(epoll: &Epoll, place: usize) {
    let last = epoll.nested_count.load(Ordering::Relaxed) - 1;
    if let (Some(gone), Some(other)) = (epoll.nested.get(place), epoll.nested.get(last as usize)) {
        gone.copy(other);
        epoll.nested_count.store(last, Ordering::Relaxed);
    }
}

/// Instance `number` is gone, and the kernel has taken it out of all others.
pub(super) fn forget_nested(number: u32) {
    for outer in (0..EPOLLS_MAX as u32).map_while(epoll) {
        if outer.nested_count.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let _held = outer.lock.lock();
        let is_gone = |one: &Nested| one.number.load(Ordering::Relaxed) == number;
        while let Some(place) = outer.known_nested().position(is_gone) {
            remove(outer, place);
        }
    }
}

/// True when a wait on instance `number` would return at once because of accelerated members, here
/// or further inside; changes nothing.
pub(crate) fn has_ready(number: u32) -> bool {
    let Some(epoll) = epoll(number) else {
        return false;
    };
    let mut one = [epoll_event { events: 0, u64: 0 }; 1];
    for _ in 0..BATCH {
        if !epoll.sweep() {
            break;
        }
        if epoll.harvest(epoll.generation(), &mut one, false) > 0 {
            return true;
        }
    }
    epoll.has_nested_ready()
}

/// True when a wait on instance `number` would return at once.
pub(crate) fn has_news(number: u32) -> bool {
    let news = news_of(number);
    news.is_programs || news.is_ours
}

/// The kinds of events for which a wait on instance `number` would return at once. Stops at the
/// first kind that is found. No lock is held.
fn news_of(number: u32) -> News {
    let none = News {
        is_programs: false,
        is_ours: false,
    };
    if has_ready(number) {
        let is_ours = true;
        return News { is_ours, ..none };
    }
    let Some(epoll) = epoll(number) else {
        return none;
    };
    let kernels = epoll.kernel_news(needs_library(number));
    if kernels.took_ours {
        // The events that were taken may have woken a sleeping thread that has not looked yet.
        epoll.sleep_on();
    }
    // Sorting may have made a member ready. Members that are not ready are off the kernel's list
    // now.
    let is_ours = has_ready(number);
    if is_ours && kernels.took_ours {
        epoll.share();
    }
    News {
        is_programs: kernels.has_programs,
        is_ours,
    }
}

/// The kind of event that an instance has.
struct News {
    /// Events of ordinary members.
    is_programs: bool,
    /// Events of accelerated members, here or in nested instances.
    is_ours: bool,
}

/// The events that the kernel has for an instance.
struct KernelNews {
    /// Events for the program, which stay in the kernel.
    has_programs: bool,
    /// Events for the library, which were taken.
    took_ours: bool,
}

impl Epoll {
    /// The data with which the kernel has the nested instance `id`; `data` is the program's.
    fn kernels_data(&self, id: u32, data: u64) -> u64 {
        let tag = self.is_waited_on().then(|| tag_nested(id)).flatten();
        tag.unwrap_or(data)
    }

    fn kernel_news(&self, has_ours: bool) -> KernelNews {
        let fd = self.fd.load(Ordering::Relaxed) - 1;
        let mut news = KernelNews {
            has_programs: false,
            took_ours: false,
        };
        let is_readable = || sys::poll_now(fd, libc::POLLIN) != 0;
        if !has_ours {
            news.has_programs = is_readable();
            return news;
        }
        if self.reported_once.load(Ordering::Relaxed) != 0 && !is_readable() {
            return news;
        }
        loop {
            let mut events = [epoll_event { events: 0, u64: 0 }; BATCH];
            let look = || sys::epoll_look(fd, &mut events);
            let Some(count) = self.unless_reported_once(look) else {
                // A poll takes members off the kernel's list that are not ready any more.
                news.has_programs |= !self.takes_doorbells_off() || is_readable();
                return news;
            };
            let programs = self.sort_kernel_events(&mut events[..count], &ReportedInstances::NONE);
            news.took_ours |= count > programs;
            news.has_programs |= programs > 0;
            // The library's registrations are edge-triggered, so each look finds fewer.
            if news.has_programs || count < BATCH {
                return news;
            }
        }
    }

    /// The result of `look`, which takes events. `None`, without a look, when an event that the
    /// kernel reports only once may be among them. No thread arms such an event meanwhile
    /// ([`Epoll::end_kernel_calls`]).
    fn unless_reported_once(&self, look: impl FnOnce() -> usize) -> Option<usize> {
        let _held = self.kernel_calls.lock();
        (!self.may_have_reported_once()).then(look)
    }

    /// Doorbells of members are taken off their carriers, unless a sleeper needs them. True when
    /// there were some.
    fn takes_doorbells_off(&self) -> bool {
        let mut any = false;
        let ours = self.registrations().filter(|(_, one)| one.is_ours());
        for (_, one) in ours.take(TIDIED_MAX) {
            let Some(connection) = one.behind() else {
                continue;
            };
            let end = connection.inside();
            if let Some(end) = end.filter(|end| end.rx_mode() == Mode::Ring)
                && let Some(_held) = takeover::lock_receiving(&connection)
            {
                any |= doorbells::drain(&connection, &end);
            }
        }
        any
    }

    /// Checks the kernel's `events`. An event of a nested instance becomes the program's, if it
    /// holds and the instance is not among `told`; otherwise it keeps the library's tag and is
    /// dropped. No lock is held.
    pub(super) fn judge_nested(&self, events: &mut [epoll_event], told: &ReportedInstances) {
        if self.nested_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for event in events {
            let id = untag_nested(event.u64);
            if let Some(data) = id.and_then(|id| self.judge(id, told)) {
                event.u64 = data;
            }
        }
    }

    /// The program's data for the nested instance `id`, if it is to be reported.
    fn judge(&self, id: u32, told: &ReportedInstances) -> Option<u64> {
        let (inner, events) = {
            let _held = self.lock.lock();
            let one = self.nested_by(id)?;
            let events = one.events.load(Ordering::Relaxed);
            (one.number.load(Ordering::Relaxed), events)
        };
        if events & READABLE == 0 || told.has(id) {
            return None;
        }
        let news = news_of(inner);
        let is_due = || {
            let _held = self.lock.lock();
            self.nested_by(id)
                .is_some_and(|one| events & EDGE == 0 || one.news() != one.told())
        };
        if news.is_programs || news.is_ours && is_due() {
            return self.claim(id);
        }
        if events & ONESHOT != 0 {
            // The kernel has reported a one-shot.
            let _held = self.lock.lock();
            let one = self.nested_by(id)?;
            let (events, fd) = (&one.events, &one.fd);
            sys::epoll_ctl(
                self.fd.load(Ordering::Relaxed) - 1,
                libc::EPOLL_CTL_MOD,
                fd.load(Ordering::Relaxed),
                events.load(Ordering::Relaxed),
                tag_nested(id)?,
            );
        }
        None
    }

    /// The instance known by `id`. The caller holds the lock.
    fn nested_by(&self, id: u32) -> Option<&Nested> {
        let is_it = |one: &&Nested| one.id.load(Ordering::Relaxed) == id;
        self.known_nested().find(is_it)
    }

    /// The program's data for the nested instance `id`, which counts as reported now; `None` when
    /// another thread has already reported it.
    fn claim(&self, id: u32) -> Option<u64> {
        let _held = self.lock.lock();
        let one = self.nested_by(id)?;
        let events = one.events.load(Ordering::Relaxed);
        if events & READABLE == 0 {
            return None;
        }
        if events & ONESHOT != 0 {
            one.events.store(events & !READABLE, Ordering::Relaxed);
        }
        one.told.store(one.news(), Ordering::Relaxed);
        Some(one.data.load(Ordering::Relaxed))
    }

    /// True when a wait would report a nested instance.
    pub(super) fn has_nested_ready(&self) -> bool {
        self.known_nested().any(Nested::is_due)
    }

    /// [`Epoll::sweep_and_harvest_all`] where there are nested instances. They get half of the
    /// places first, or each second turn where there is one place. So neither they nor the rings
    /// starve the others.
    #[cold]
    pub(super) fn harvest_beside_nested(
        &self,
        generation: u32,
        out: &mut [epoll_event],
        told: &mut ReportedInstances,
    ) -> usize {
        let share = match out.len() {
            1 => self.nested_turn.fetch_xor(1, Ordering::Relaxed) as usize,
            places => places / 2,
        };
        let mut found = self.nested_events(&mut out[..share], told);
        found += self.sweep_and_harvest(generation, &mut out[found..]);
        found + self.nested_events(&mut out[found..], told)
    }

    /// Writes the events of nested instances that are not among `told`, and records them there.
    /// The next look begins behind the last instance that was reported.
    fn nested_events(&self, out: &mut [epoll_event], told: &mut ReportedInstances) -> usize {
        let count = self.nested_count.load(Ordering::Relaxed) as usize;
        let first = self.nested_first.load(Ordering::Relaxed) as usize;
        let mut written = 0;
        for place in (first..first + count).map(|place| place % count) {
            if written == out.len() {
                break;
            }
            let Some(one) = self.nested.get(place) else {
                continue;
            };
            let id = one.id.load(Ordering::Relaxed);
            let events = one.events.load(Ordering::Relaxed) & READABLE;
            if !told.has(id)
                && one.is_due()
                && let Some(data) = self.claim(id)
            {
                out[written] = epoll_event { events, u64: data };
                told.add(id);
                written += 1;
                self.nested_first.store(place as u32 + 1, Ordering::Relaxed);
            }
        }
        written
    }
}

impl Nested {
    /// True when it has news of accelerated members that must be reported.
    fn is_due(&self) -> bool {
        let events = self.events.load(Ordering::Relaxed);
        events & READABLE != 0
            && has_ready(self.number.load(Ordering::Relaxed))
            && (events & EDGE == 0 || self.news() != self.told())
    }

    /// The amount of news that the instance has had.
    fn news(&self) -> u32 {
        epoll(self.number.load(Ordering::Relaxed))
            .map_or(0, |inner| inner.news.load(Ordering::Relaxed))
    }

    fn told(&self) -> u32 {
        self.told.load(Ordering::Relaxed)
    }
}

/// The nested instances that one call has reported. The kernel may report them as well. Most calls
/// report none.
pub(super) struct ReportedInstances(Option<[u64; IDS_WORDS]>);

const IDS_WORDS: usize = NESTED_MAX / 64 + 1;

impl ReportedInstances {
    pub(super) const NONE: ReportedInstances = ReportedInstances(None);

    #[inline]
    fn has(&self, id: u32) -> bool {
        (self.0.as_ref()).is_some_and(|ids| ids[id as usize / 64] & 1 << (id % 64) != 0)
    }

    fn add(&mut self, id: u32) {
        self.0.get_or_insert([0; IDS_WORDS])[id as usize / 64] |= 1 << (id % 64);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::connection::Connection;
    use crate::epoll::control::InKernel;
    use crate::epoll::instance::{ONCE_KNOWN, ONCE_ORDINARY};
    use crate::epoll::kernel_registrations::tests::{prepared, run_until_it_waits};
    use crate::epoll::kernel_registrations::{kernel_has_programs, modify_kernels};
    use crate::epoll::registration::{Registration, State, allocate_registration, registration};

    use super::*;

    /// A thread looks at instance `number` from outside, and has found nothing that is reported
    /// once. Before it takes the kernel's events, `arm` runs in another thread and registers an
    /// edge that holds. The edge has to be left for the program.
    fn look_leaves_edge(number: u32, arm: impl Fn() + Sync) {
        let epoll = epoll(number).expect("prepared");
        let at = epoll.fd.load(Ordering::Relaxed) - 1;
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        thread::scope(|scope| {
            let taken = epoll.unless_reported_once(|| {
                run_until_it_waits(scope, &arm);
                let is_known = epoll.reported_once.load(Ordering::Relaxed) == ONCE_KNOWN;
                assert!(
                    !is_known || epoll.may_have_reported_once(),
                    "for the next look"
                );
                sys::epoll_look(at, &mut events)
            });
            assert_eq!(taken, Some(0));
        });
        assert_eq!(sys::epoll_look(at, &mut events), 1);
        let (told, programs) = (events[0].u64, event().u64);
        assert_eq!(told, programs);
    }

    /// Registration of a readable file with `epoll`, for bytes.
    fn member(epoll: &Epoll) -> (u32, &'static Registration) {
        let n = allocate_registration().expect("room");
        let one = registration(n).expect("allocated");
        let file = readable();
        one.fd.store(file, Ordering::Relaxed);
        let number = epoll.number.load(Ordering::Relaxed);
        one.epoll.store(number, Ordering::Relaxed);
        one.become_state(State::Plain);
        let at = epoll.fd.load(Ordering::Relaxed) - 1;
        sys::epoll_ctl(at, libc::EPOLL_CTL_ADD, file, 0, 0);
        epoll.reported_once.store(ONCE_KNOWN, Ordering::Relaxed);
        (n, one)
    }

    fn event() -> epoll_event {
        epoll_event {
            events: EDGE | libc::EPOLLIN as u32,
            u64: 77,
        }
    }

    fn readable() -> i32 {
        // SAFETY: plain system call.
        unsafe { libc::eventfd(1, 0) }
    }

    #[test]
    fn edge_of_an_ordinary_file_is_left_to_the_program() {
        let epoll = prepared(15);
        look_leaves_edge(15, || {
            let (events, file) = (event().events, readable());
            epoll.note_ordinary(events, ONCE_ORDINARY, || true);
            let at = epoll.fd.load(Ordering::Relaxed) - 1;
            sys::epoll_ctl(at, libc::EPOLL_CTL_ADD, file, events, event().u64);
        });
    }

    #[test]
    fn edge_of_a_connection_that_is_being_registered_is_left_to_the_program() {
        let epoll = prepared(16);
        epoll.reported_once.store(ONCE_KNOWN, Ordering::Relaxed);
        let connection = Connection::of_a_test(readable());
        look_leaves_edge(16, || {
            let _members = connection.local.membership.lock();
            let in_kernel = InKernel {
                epoll,
                number: 16,
                epoll_fd: epoll.fd.load(Ordering::Relaxed) - 1,
            };
            let added = in_kernel.add_new(&connection, &event());
            assert_eq!(added, Some(Ok(())));
        });
    }

    #[test]
    fn edge_that_the_program_makes_of_a_level_is_left_to_the_program() {
        let epoll = prepared(17);
        let (n, _) = member(epoll);
        look_leaves_edge(17, || {
            let at = epoll.fd.load(Ordering::Relaxed) - 1;
            let modified = modify_kernels(epoll, at, n, &event());
            assert_eq!(modified, Ok(()));
        });
    }

    #[test]
    fn edge_of_a_member_that_goes_to_the_kernel_is_left_to_the_program() {
        let epoll = prepared(18);
        let (n, one) = member(epoll);
        one.set(event().events, event().u64);
        one.become_state(State::InBitmap);
        look_leaves_edge(18, || {
            assert!(one.moves(State::InBitmap, State::Plain));
            kernel_has_programs(epoll, one, n);
        });
    }
}
