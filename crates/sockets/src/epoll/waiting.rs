//! `epoll_wait`.

use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::epoll_event;
use toehold_channel::sync::fence;

use crate::adapter::requests;
use crate::epoll::instance::{BATCH, Epoll, Instance};
use crate::epoll::nested::ReportedInstances;
use crate::epoll::sleeping::{OutOfMemory, Watch};
use crate::epoll::two_looks::{Parts, once_each, with_members_of_carriers};
use crate::express;
use crate::process::pair_doorbells::{self, Cause, Claim, PairSleep, SLEEP_MAX_NS};
use crate::system::deferral::Handlers;
use crate::system::{cancellation, deferral, errno, sys};
use crate::waiting::spin::{self, ENDLESS_NS};

/// While shared memory keeps us busy, the kernel's own members are asked this often.
const KERNEL_MEMBERS_NS: u64 = 50_000;
/// Ordinary members with news this recently come before the rings: see [`kernel_comes_first`].
const KERNEL_FIRST_NS: u64 = 10_000_000;
/// In `Epoll::kernel_news_ns`: rings had events for every place when the kernel was to be asked for
/// ordinary members, so they come first in the next call.
const KERNEL_OWED: u64 = 1;

/// Room for the kernel's answer to one call.
pub(crate) type Room = [MaybeUninit<epoll_event>];

/// The kernel's last answer, in the library's own memory, because it also contains events for the
/// library. The program's buffer must not change beyond the returned events, as after the kernel's
/// call: a program may look there after an EINTR.
struct KernelEvents {
    events: [MaybeUninit<epoll_event>; BATCH],
}

impl KernelEvents {
    fn new() -> KernelEvents {
        KernelEvents {
            events: [const { MaybeUninit::uninit() }; BATCH],
        }
    }

    /// Room for as many events as the program has `places` for, limited to the size of the buffer.
    fn room(&mut self, places: usize) -> &mut Room {
        &mut self.events[..places.min(BATCH)]
    }

    /// The first `n`, which the kernel has written.
    fn first(&mut self, n: usize) -> &mut [epoll_event] {
        let written = &mut self.events[..n];
        // SAFETY: the caller's word; an event and its place in memory look the same.
        unsafe { &mut *(written as *mut Room as *mut [epoll_event]) }
    }
}

/// The kernel's part of a wait.
#[derive(Clone, Copy)]
pub(crate) struct Sleep<'c> {
    /// In nanoseconds; `None` for no limit.
    pub(crate) limit_ns: Option<u64>,
    /// The doorbells that end the wait, too. The kernel's part takes their events.
    pub(crate) doorbells: Option<&'c Claim>,
}

impl Sleep<'static> {
    /// A look that does not wait.
    const LOOK: Sleep<'static> = Sleep {
        limit_ns: Some(0),
        doorbells: None,
    };
}

/// `epoll_wait` on an instance with accelerated members. `kernel` waits on the kernel's side: it
/// gets room for events and says what `epoll_wait` does.
///
/// When another thread closes the instance, the call ends with EBADF. (The kernel's call would go
/// on sleeping, on an instance that nobody can change any more.)
pub(crate) fn wait(
    instance: Instance,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mut kernel: impl FnMut(&mut Room, Sleep<'_>) -> i32,
) -> i32 {
    let Instance {
        epoll, generation, ..
    } = instance;
    let is_look = timeout_ns == Some(0);
    let mut said = KernelEvents::new();
    let mut call = Call {
        instance,
        timeout_ns,
        kernel: &mut kernel,
        said: &mut said,
        handlers: None,
        since_ns: 0,
        pair_sleep: PairSleep::None,
    };
    loop {
        if !instance.is_open() {
            return closed();
        }
        let (mut found, mut told) = (0, ReportedInstances::NONE);
        let mut moves = None;
        if !kernel_comes_first(epoll, events.len(), is_look) {
            moves = Some(epoll.moves());
            found = epoll.sweep_and_harvest_all(generation, events, &mut told);
        } else if let ControlFlow::Break(result) =
            look_at_kernel_first(instance, events, &mut told, call.said, call.kernel)
        {
            return result;
        }
        if found > 0 || is_look {
            let found = Found {
                count: found,
                told: &told,
                moves,
            };
            return with_kernel_members(instance, events, found, is_look, call.said, call.kernel);
        }
        let now = sys::now_ns();
        let left = call.left_ns(now);
        let went = match call.spin(events, left) {
            ControlFlow::Continue(true) => continue,
            ControlFlow::Continue(false) => call.sleep(events, now, left),
            ControlFlow::Break(result) => return result,
        };
        if let ControlFlow::Break(result) = went {
            return result;
        }
    }
}

/// The state of one call of `epoll_wait`. Its address is never taken, so it can stay in registers.
struct Call<'c, K> {
    instance: Instance,
    timeout_ns: Option<u64>,
    /// Waits on the kernel's side, as [`wait`] says.
    kernel: &'c mut K,
    said: &'c mut KernelEvents,
    /// Signal handlers that ran before the call first found nothing. They count as if they had run
    /// before the call.
    handlers: Option<Handlers>,
    /// When it first found nothing; 0 before.
    since_ns: u64,
    pair_sleep: PairSleep,
}

/// The steps of [`wait`], which is their only caller.
impl<K: FnMut(&mut Room, Sleep<'_>) -> i32> Call<'_, K> {
    /// The rest of the time-out. `now` is when the call has found nothing.
    #[inline(always)]
    fn left_ns(&mut self, now: u64) -> Option<u64> {
        if self.since_ns == 0 {
            self.since_ns = now;
        }
        self.timeout_ns
            .map(|limit| limit.saturating_sub(now - self.since_ns))
    }

    /// Looks at shared memory for as long as that pays. True when the call must look at everything
    /// again, false when it must sleep. `Break` has the result of the program's call.
    #[inline(always)]
    fn spin(&mut self, events: &mut [epoll_event], left: Option<u64>) -> ControlFlow<i32, bool> {
        let epoll = self.instance.epoll;
        let handlers = *self.handlers.get_or_insert_with(deferral::handlers);
        // Between two sleeps of the call.
        if self.pair_sleep != PairSleep::None && handlers.end_a_wait() {
            errno::keep(|| epoll.share());
            errno::set(libc::EINTR);
            return ControlFlow::Break(-1);
        }
        let budget = spin::budget_ns(&epoll.spin);
        let slice = spin::slice_ns(budget).min(left.unwrap_or(u64::MAX));
        if slice == 0 {
            return ControlFlow::Continue(false);
        }
        let processor = epoll.last_peer_processor.load(Ordering::Relaxed);
        let give_away = || epoll.give_away();
        if spin::spin_yielding(&epoll.spin, slice, processor, || epoll.sweep(), give_away) {
            return ControlFlow::Continue(true);
        }
        if handlers.end_a_wait() {
            errno::keep(|| epoll.share());
            errno::set(libc::EINTR);
            return ControlFlow::Break(-1);
        }
        if budget != ENDLESS_NS {
            return ControlFlow::Continue(false);
        }
        requests::follow();
        self.look_at_kernel(events)?;
        ControlFlow::Continue(true)
    }

    /// Asks the kernel for events of ordinary members, without a wait. `Break` has the result of
    /// the program's call.
    fn look_at_kernel(&mut self, events: &mut [epoll_event]) -> ControlFlow<i32> {
        let epoll = self.instance.epoll;
        let n = (self.kernel)(self.said.room(events.len()), Sleep::LOOK);
        if n != 0 {
            let said = self.said.first(n.max(0) as usize);
            let kept = sort_looked(epoll, said, events, &ReportedInstances::NONE);
            if n < 0 || kept > 0 {
                errno::keep(|| epoll.share());
                return ControlFlow::Break(if n < 0 { n } else { kept as i32 });
            }
        }
        ControlFlow::Continue(())
    }

    /// Between two slices of work for the adapter, instead of a sleep: looks for the program's own
    /// events. `Break` has the result of the program's call.
    #[cold]
    fn look_meanwhile(&mut self, events: &mut [epoll_event]) -> ControlFlow<i32> {
        self.look_at_kernel(events)?;
        let epoll = self.instance.epoll;
        if self.handlers.is_some_and(|handlers| handlers.end_a_wait()) {
            errno::keep(|| epoll.share());
            errno::set(libc::EINTR);
            return ControlFlow::Break(-1);
        }
        self.end_if_over(events)
    }

    /// Ends the call with what there is, if its time-out has passed.
    fn end_if_over(&mut self, events: &mut [epoll_event]) -> ControlFlow<i32> {
        let Instance {
            epoll, generation, ..
        } = self.instance;
        let is_over = |limit| sys::now_ns() - self.since_ns >= limit;
        if !self.timeout_ns.is_some_and(is_over) {
            return ControlFlow::Continue(());
        }
        let found =
            epoll.sweep_and_harvest_all(generation, events, &mut { ReportedInstances::NONE });
        ControlFlow::Break(found as i32)
    }

    /// The doorbells of pairs, if this call may sleep on them. News of ordinary members costs one
    /// system call more then, so there must have been none for a while, or rings must end enough of
    /// the sleeps. Then news of a member with `EPOLLEXCLUSIVE`, which would wake this thread in
    /// vain, must be impossible.
    #[inline(always)]
    fn claim_doorbells(&self, now: u64) -> Option<Claim> {
        let epoll = self.instance.epoll;
        let news = epoll.kernel_news_ns.load(Ordering::Relaxed);
        let is_quiet =
            news == 0 || news != KERNEL_OWED && now.saturating_sub(news) > KERNEL_FIRST_NS;
        let is_worthwhile = || {
            let passed_over = epoll.passed_over_ns.load(Ordering::Relaxed);
            epoll.wake_balance.favours_pairs()
                && epoll.has_exclusive.load(Ordering::Relaxed) == 0
                && (passed_over == 0 || now.saturating_sub(passed_over) > KERNEL_FIRST_NS)
        };
        if epoll.pair_count.load(Ordering::Relaxed) == 0 || !(is_quiet || is_worthwhile()) {
            return None;
        }
        self.pair_sleep.claim_next(Some(self.instance.number))
    }

    /// Sleeps in the kernel, from `now` on. `Break` has the result of the program's call; otherwise
    /// the call must look again.
    #[inline(always)]
    fn sleep(
        &mut self,
        events: &mut [epoll_event],
        now: u64,
        left: Option<u64>,
    ) -> ControlFlow<i32> {
        let Instance {
            epoll, generation, ..
        } = self.instance;
        if requests::follow_before_sleep() {
            return self.look_meanwhile(events);
        }
        let doorbells = self.claim_doorbells(now);
        let room = self.said.room(events.len());
        let moves = epoll.moves();
        let (n, pair_sleep) = sleep(self.instance, room, left, doorbells, self.kernel);
        self.pair_sleep = pair_sleep;
        if n < 0 {
            epoll.spin.slept(sys::now_ns() - now);
            // Connections marked meanwhile are on the list, and this thread has other work.
            errno::keep(|| epoll.share());
            return ControlFlow::Break(n);
        }
        let kept = sort(
            epoll,
            self.said.first(n as usize),
            events,
            &ReportedInstances::NONE,
        );
        let woken = sys::now_ns();
        epoll.kernel_seen_ns.store(woken, Ordering::Relaxed);
        epoll.runs_since_ns.store(woken, Ordering::Relaxed);
        match kept {
            0 => epoll.spin.slept(woken - now),
            _ => epoll.spin.slept_for_kernel(),
        }
        if kept > 0 || pair_sleep == PairSleep::PassedOver {
            epoll.kernel_news_ns.store(woken, Ordering::Relaxed);
        }
        if pair_sleep == PairSleep::PassedOver {
            epoll.passed_over_ns.store(woken, Ordering::Relaxed);
        }
        // The kernel's other events are doorbells on carriers.
        let is_by_ring = n as usize > kept || pair_sleep == PairSleep::Rung;
        if is_by_ring || kept > 0 {
            epoll.wake_balance.note(is_by_ring);
        }
        if kept > 0 {
            let more = epoll.sweep_and_harvest(generation, &mut events[kept..]);
            let parts = Parts::between(epoll, kept, kept + more, Some(moves));
            return ControlFlow::Break(once_each(epoll, events, parts));
        }
        self.end_if_over(events)
    }
}

/// The answer of a call whose instance another thread has closed.
#[cold]
pub(crate) fn closed() -> i32 {
    errno::set(libc::EBADF);
    -1
}

/// True when the kernel is asked for ordinary members before the rings are.
///
/// The kernel reports members in the order in which they got their news, and programs that write on
/// one connection after another see that order. News of a ring is seen first here. So while
/// ordinary members have news now and then, and whenever they are to be asked anyway (`always`),
/// theirs is put before what the rings have.
#[inline]
fn kernel_comes_first(epoll: &Epoll, places: usize, always: bool) -> bool {
    let news = epoll.kernel_news_ns.load(Ordering::Relaxed);
    if news == KERNEL_OWED {
        epoll.kernel_news_ns.store(0, Ordering::Relaxed);
        return true;
    }
    if places < 2 || always || news == 0 {
        return places >= 2 && always;
    }
    let is_recent = sys::now_ns() - news <= KERNEL_FIRST_NS;
    if !is_recent {
        epoll.kernel_news_ns.store(0, Ordering::Relaxed);
    }
    is_recent
}

/// Looks for events of rings, and puts events of ordinary members before them. `Break` has the
/// result of the program's call, if there are events. If the rings have no event, the kernel is not
/// asked here. If the program has one place, an event of the kernel takes it; otherwise an event of
/// a ring does.
#[inline(always)]
fn look_at_kernel_first(
    instance: Instance,
    events: &mut [epoll_event],
    told: &mut ReportedInstances,
    said: &mut KernelEvents,
    kernel: &mut impl FnMut(&mut Room, Sleep<'_>) -> i32,
) -> ControlFlow<i32> {
    let Instance {
        epoll, generation, ..
    } = instance;
    let is_only_place = events.len() == 1;
    if is_only_place && put_kernel_first(epoll, events, 0, told, said, kernel).kept > 0 {
        return ControlFlow::Break(1);
    }
    let moves = epoll.moves();
    let places = events.len() - events.len() / 2;
    let found = epoll.sweep_and_harvest_all(generation, &mut events[..places], told);
    if found == 0 {
        // The list had only members that were reported before and have no new events.
        return ControlFlow::Continue(());
    }
    let looked = match is_only_place {
        true => Looked::NOTHING,
        false => put_kernel_first(epoll, events, found, told, said, kernel),
    };
    let kept = looked.kept;
    let parts = Parts::between(epoll, kept, kept + found, Some(moves));
    let mut told = once_each(epoll, events, parts);
    if looked.has_ours {
        told = with_members_of_carriers(instance, events, told, true);
    }
    // Last, as in `with_kernel_members`.
    errno::keep(requests::follow);
    ControlFlow::Break(told)
}

/// The result of a look at the kernel beside events of rings.
struct Looked {
    /// The number of events for the program.
    kept: usize,
    /// There were events for the library, too, so members may be on the ready list.
    has_ours: bool,
}

impl Looked {
    const NOTHING: Looked = Looked {
        kept: 0,
        has_ours: false,
    };
}

/// Asks the kernel for events of ordinary members, puts them before the `found` events of rings,
/// and tells how many they are. The marks were taken before, so the kernel's answer includes
/// every event that came before one of the marks. Ordinary members get at most half of the places,
/// so that they cannot starve the rings; a single place may be theirs.
fn put_kernel_first(
    epoll: &Epoll,
    events: &mut [epoll_event],
    found: usize,
    told: &ReportedInstances,
    said: &mut KernelEvents,
    kernel: &mut impl FnMut(&mut Room, Sleep<'_>) -> i32,
) -> Looked {
    let now = sys::now_ns();
    let places = (events.len() / 2).max(1);
    let n = kernel(said.room(places), Sleep::LOOK);
    epoll.kernel_seen_ns.store(now, Ordering::Relaxed);
    let Ok(n @ 1..) = usize::try_from(n) else {
        // The error will come again when the rings have no events.
        return Looked::NOTHING;
    };
    let said = said.first(n);
    let kept = own_of_looked(epoll, said, told);
    events.copy_within(..found, kept);
    events[..kept].copy_from_slice(&said[..kept]);
    if kept < n {
        epoll.share();
    }
    if kept > 0 {
        epoll.kernel_news_ns.store(now, Ordering::Relaxed);
    }
    Looked {
        kept,
        has_ours: kept < n,
    }
}

/// Adds events of ordinary members from time to time, so that busy rings do not starve them. When
/// rings fill all places, ordinary members come first in the next call.
fn with_kernel_members(
    instance: Instance,
    events: &mut [epoll_event],
    found: Found,
    always: bool,
    said: &mut KernelEvents,
    kernel: &mut impl FnMut(&mut Room, Sleep<'_>) -> i32,
) -> i32 {
    let (epoll, now) = (instance.epoll, sys::now_ns());
    let is_full = found.count == events.len();
    if !(is_kernel_due(epoll, events.len(), now) || always && !is_full) {
        return found.count as i32;
    }
    epoll.kernel_seen_ns.store(now, Ordering::Relaxed);
    epoll.yield_to_peers(now);
    let told = match is_full {
        true => {
            epoll.kernel_news_ns.store(KERNEL_OWED, Ordering::Relaxed);
            found.count as i32
        }
        false => add_kernel_members(instance, events, found, said, kernel, now),
    };
    // A program that always finds something never sleeps. This comes last: a member that goes back
    // to the kernel here is reported by the next call, not a second time by this one.
    errno::keep(requests::follow);
    told
}

/// Whether the kernel must be asked for ordinary members although rings have events. If there is
/// only one place, ordinary members with news and rings take turns.
fn is_kernel_due(epoll: &Epoll, places: usize, now: u64) -> bool {
    // Another thread may have looked since `now` was read.
    let since = |word: &AtomicU64| now.saturating_sub(word.load(Ordering::Relaxed));
    since(&epoll.kernel_seen_ns) >= KERNEL_MEMBERS_NS
        || places == 1 && since(&epoll.kernel_news_ns) <= KERNEL_FIRST_NS
}

/// As [`with_kernel_members`]: the kernel is asked.
fn add_kernel_members(
    instance: Instance,
    events: &mut [epoll_event],
    Found {
        count: found,
        told,
        moves,
    }: Found,
    said: &mut KernelEvents,
    kernel: &mut impl FnMut(&mut Room, Sleep<'_>) -> i32,
    now: u64,
) -> i32 {
    let epoll = instance.epoll;
    let n = kernel(said.room(events.len() - found), Sleep::LOOK);
    if n <= 0 {
        return if found > 0 { found as i32 } else { n };
    }
    let kept = sort_looked(epoll, said.first(n as usize), &mut events[found..], told);
    if kept > 0 {
        // Members that stay ready are reported every time, as the kernel would.
        epoll.kernel_seen_ns.store(0, Ordering::Relaxed);
        epoll.kernel_news_ns.store(now, Ordering::Relaxed);
    }
    let total = found + kept;
    let told = once_each(epoll, events, Parts::between(epoll, found, total, moves));
    if kept < n as usize {
        return with_members_of_carriers(instance, events, told, found > 0);
    }
    epoll.share();
    told
}

/// Events that a call has found in shared memory.
struct Found<'t> {
    count: usize,
    /// The reported nested instances.
    told: &'t ReportedInstances,
    /// The value of [`Epoll::moves`] before the rings were looked at, if they were.
    moves: Option<u32>,
}

/// Sorts the kernel's events, and copies the program's events to `events`. Returns how many these
/// are.
fn sort(
    epoll: &Epoll,
    said: &mut [epoll_event],
    events: &mut [epoll_event],
    told: &ReportedInstances,
) -> usize {
    let kept = epoll.sort_kernel_events(said, told);
    events[..kept].copy_from_slice(&said[..kept]);
    kept
}

/// [`sort`] after a look that does not wait.
fn sort_looked(
    epoll: &Epoll,
    said: &mut [epoll_event],
    events: &mut [epoll_event],
    told: &ReportedInstances,
) -> usize {
    let kept = own_of_looked(epoll, said, told);
    events[..kept].copy_from_slice(&said[..kept]);
    kept
}

/// Moves the program's own events to the front of the kernel's answer to a look with a time-out of
/// 0. Returns how many they are. The other events may have been meant to wake another thread.
fn own_of_looked(epoll: &Epoll, said: &mut [epoll_event], told: &ReportedInstances) -> usize {
    let kept = epoll.sort_kernel_events(said, told);
    if kept < said.len() {
        epoll.sleep_on();
    }
    kept
}

fn sleep(
    instance: Instance,
    room: &mut Room,
    left: Option<u64>,
    doorbells: Option<Claim>,
    kernel: &mut impl FnMut(&mut Room, Sleep<'_>) -> i32,
) -> (i32, PairSleep) {
    let epoll = instance.epoll;
    let mut watch = Watch::new();
    let (counted, is_on_pairs) = match doorbells {
        Some(_) => epoll.begin_sleep_on_pairs(),
        None => (epoll.begin_sleep(), false),
    };
    let doorbells = pair_doorbells::kept_if(doorbells, is_on_pairs);
    let watches = watch.begin_inside(epoll);
    // We have announced that we sleep; now look again. Pairs with the notifier's exchange in
    // `doorbell::mark` and with the fence in `show_to_sleepers`.
    fence(Ordering::SeqCst);
    let news = epoll.sweep() || epoll.has_nested_ready();
    let is_express = express::is_on();
    if is_express && !news && left != Some(0) {
        errno::keep(express::begin_sleep);
    }
    let mut limit_ns = match (news, is_express) {
        (true, _) => Some(0),
        (false, true) => express::limit(left),
        (false, false) => left,
    };
    let mut longest = None;
    if is_on_pairs && limit_ns.is_none_or(|limit| limit > SLEEP_MAX_NS) {
        longest = Some(SLEEP_MAX_NS);
        limit_ns = longest;
    }
    let mut end = || {
        watch.end();
        epoll.end_sleep(counted);
    };
    let undo = || {
        end();
        if let Some(claim) = &doorbells {
            claim.release_for_ended();
        }
    };
    let result = cancellation::sleeping(undo, || match (watches, instance.is_open()) {
        (Err(OutOfMemory), _) => {
            errno::set(libc::ENOMEM);
            -1
        }
        (Ok(()), true) => {
            let sleep = Sleep {
                limit_ns,
                doorbells: doorbells.as_ref(),
            };
            kernel(room, sleep)
        }
        (Ok(()), false) => closed(),
    });
    end();
    let cause = doorbells.as_ref().map(Claim::cause);
    drop(doorbells);
    let pair_sleep = match (cause, result, longest) {
        (Some(Cause::Doorbell), ..) => PairSleep::Rung,
        (Some(Cause::Instance), 0, _) => PairSleep::PassedOver,
        (Some(Cause::Nothing), 0, Some(_)) => PairSleep::TooLong,
        _ => PairSleep::None,
    };
    if is_express {
        errno::keep(express::look_after);
    }
    (result, pair_sleep)
}

#[cfg(test)]
mod tests {
    use crate::epoll::instance::EPOLLS;
    use crate::epoll::lists::push_ready;
    use crate::epoll::registration::{State, allocate_registration, registration};

    use super::*;

    #[test]
    fn member_that_is_listed_without_an_event_is_no_reason_to_ask_the_kernel() {
        const NUMBER: u32 = 7;
        let epoll = EPOLLS.get_or_map(NUMBER as usize).expect("memory");
        epoll.number.store(NUMBER, Ordering::Relaxed);
        let member = allocate_registration().expect("room");
        let one = registration(member).expect("allocated");
        one.epoll.store(NUMBER, Ordering::Relaxed);
        one.set(libc::EPOLLIN as u32, 1);
        one.become_state(State::Listener);
        push_ready(epoll, member);
        let mut events = [epoll_event { events: 0, u64: 0 }; 8];
        let instance = Instance::numbered(NUMBER).expect("mapped");
        let mut said = KernelEvents::new();
        let mut kernel = |_: &mut Room, _: Sleep<'_>| -> i32 { panic!("asked") };
        let looked = look_at_kernel_first(
            instance,
            &mut events,
            &mut { ReportedInstances::NONE },
            &mut said,
            &mut kernel,
        );
        assert_eq!(looked, ControlFlow::Continue(()));
        assert_eq!(
            epoll.ready_head.load(Ordering::Relaxed),
            0,
            "it was looked at"
        );
    }

    #[test]
    fn events_of_the_kernel_come_before_those_of_rings() {
        let epoll = EPOLLS.get_or_map(0).expect("memory");
        let event = |u64| epoll_event { events: 1, u64 };
        for kernels in 0..=4 {
            let mut events = [
                event(11),
                event(12),
                event(13),
                event(0),
                event(0),
                event(0),
            ];
            let mut said = KernelEvents::new();
            let mut kernel = |room: &mut Room, sleep: Sleep<'_>| {
                assert_eq!(
                    (room.len(), sleep.limit_ns),
                    (3, Some(0)),
                    "half of the places"
                );
                let count = kernels.min(room.len());
                for (place, data) in room[..count].iter_mut().zip(1..) {
                    place.write(event(data));
                }
                count as i32
            };
            let Looked { kept, has_ours } = put_kernel_first(
                epoll,
                &mut events,
                3,
                &ReportedInstances::NONE,
                &mut said,
                &mut kernel,
            );
            assert!(!has_ours);
            let told = events.map(|one| one.u64);
            let expected = [
                [11, 12, 13, 0, 0, 0],
                [1, 11, 12, 13, 0, 0],
                [1, 2, 11, 12, 13, 0],
            ];
            let expected = *expected.get(kernels).unwrap_or(&[1, 2, 3, 11, 12, 13]);
            assert_eq!((kept, told), (kernels.min(3), expected));
        }
    }
}
