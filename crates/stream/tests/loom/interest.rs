//! Two threads use one registration: which of them reports events, and the effect of a change in
//! between.

use std::sync::Arc;

use super::explore;
use loom::sync::Mutex;
use toehold_channel::doorbell::mark;
use toehold_channel::layout::ReadyBitmap;
use toehold_channel::sync::{AtomicU32, AtomicU64, Ordering};
use toehold_stream::interest::bits::{EDGE, IN, ONESHOT, OUT};
use toehold_stream::interest::{Interest, Report, State, armed};

/// A registration, the instance's lock with its ready list, and the counters.
struct Member {
    interest: Interest,
    /// True while the registration is on the ready list.
    list: Mutex<bool>,
    bitmap: ReadyBitmap,
    /// The peer's position.
    tail: AtomicU64,
    ours: AtomicU32,
}

const BIT: u32 = 5;

impl Member {
    fn new(events: u32) -> Arc<Member> {
        let member = Member {
            interest: Interest::default(),
            list: Mutex::new(true),
            bitmap: ReadyBitmap::default(),
            tail: AtomicU64::new(1),
            ours: AtomicU32::new(1),
        };
        member.interest.set(armed(events), 1);
        member.interest.rearm();
        member.interest.become_state(State::Plain);
        member.interest.become_state(State::InBitmap);
        Arc::new(member)
    }

    /// As `Epoll::sweep` does.
    fn sweep(&self) {
        let mut list = self.list.lock().unwrap();
        if self.bitmap.bits[0].swap(0, Ordering::SeqCst).has(1 << BIT) {
            *list = true;
        }
    }

    /// As `Epoll::harvest` does: it checks the connection without the lock.
    fn wait(&self) -> Option<Report> {
        self.sweep();
        if !core::mem::take(&mut *self.list.lock().unwrap()) {
            return None;
        }
        self.answer()
    }

    fn answer(&self) -> Option<Report> {
        let ready = |interest| {
            let has_bytes = self.tail.load(Ordering::Acquire) > 0;
            Some(interest & (OUT | if has_bytes { IN } else { 0 }))
        };
        let look = self.interest.look(ready)?;
        let mut list = self.list.lock().unwrap();
        let tail = || Some(self.tail.load(Ordering::Relaxed));
        let report = self.interest.report(&look, true, tail)?;
        *list |= report.stays;
        Some(report)
    }

    /// `EPOLL_CTL_DEL`, if the registration can be parked.
    fn park(&self) -> bool {
        let is_parked = self.interest.moves(State::InBitmap, State::Parked);
        if is_parked {
            self.ours.fetch_sub(1, Ordering::Relaxed);
        }
        is_parked
    }

    /// `EPOLL_CTL_MOD`.
    fn modify(&self, events: u32, data: u64) {
        let mut list = self.list.lock().unwrap();
        self.interest.set(armed(events), data);
        self.interest.rearm();
        *list = true;
    }
}

fn reported_to_one_of_two(events: u32) {
    explore(3, move || {
        let member = Member::new(events);
        let other = member.clone();
        // Both threads have the registration in their batch, as if news had put it on the list
        // again.
        let thread = loom::thread::spawn(move || other.answer().is_some());
        let here = member.answer().is_some();
        let there = thread.join().unwrap();
        assert!(here ^ there, "told here: {here}, there: {there}");
    });
}

#[test]
fn one_shot_is_reported_to_exactly_one_of_two_threads() {
    reported_to_one_of_two(IN | ONESHOT);
}

#[test]
fn edge_is_reported_to_exactly_one_of_two_threads() {
    reported_to_one_of_two(IN | EDGE);
}

#[test]
fn change_during_a_wait_is_reported_once_and_unmixed() {
    explore(3, || {
        let member = Member::new(IN | ONESHOT);
        let other = member.clone();
        let thread = loom::thread::spawn(move || other.wait());
        member.modify(OUT | ONESHOT, 2);
        let mut reports = vec![thread.join().unwrap(), member.wait(), member.wait()];
        reports.retain(Option::is_some);
        let reports: Vec<_> = reports
            .into_iter()
            .flatten()
            .map(|t| (t.events, t.data))
            .collect();
        assert!(
            reports == [(OUT, 2)] || reports == [(IN, 1), (OUT, 2)],
            "neither lost, nor told twice, nor half of each: {reports:?}"
        );
    });
}

#[test]
fn events_that_come_while_a_carrier_is_parked_are_reported_after_its_return() {
    explore(3, || {
        let member = Member::new(IN | EDGE);
        assert!(member.wait().is_some(), "what stood there before");
        let notifier = member.clone();
        let thread = loom::thread::spawn(move || {
            notifier.tail.store(2, Ordering::Release);
            mark(&notifier.bitmap, BIT);
        });
        // DEL, then a wait that may sweep the bit, and then ADD.
        assert!(member.interest.moves(State::InBitmap, State::Parked));
        assert!(member.wait().is_none(), "it is no member");
        {
            let mut list = member.list.lock().unwrap();
            member.interest.set(armed(IN | EDGE), 2);
            member.interest.rearm();
            member.interest.become_state(State::InBitmap);
            *list = true;
        }
        let first = member.wait();
        thread.join().unwrap();
        let second = member.wait();
        let is_second = |report: Option<Report>| report.is_some_and(|report| report.data == 2);
        assert!(is_second(first), "it is ready when it is added");
        // The news came before the change, or counts as a new edge.
        assert!(second.is_none() || is_second(second));
        assert!(member.wait().is_none());
    });
}

#[test]
fn parking_and_going_back_to_the_kernel_count_the_member_out_once() {
    explore(3, || {
        let member = Member::new(IN);
        let other = member.clone();
        let parks = loom::thread::spawn(move || other.park());
        // As `membership::give_to_kernel` does.
        let is_kernels = member.interest.moves(State::InBitmap, State::Plain);
        if is_kernels {
            member.ours.fetch_sub(1, Ordering::Relaxed);
        } else {
            member.interest.become_state(State::Gone);
        }
        let parked = parks.join().unwrap();
        assert!(parked ^ is_kernels);
        assert_eq!(member.ours.load(Ordering::Relaxed), 0);
        let left = member.interest.state();
        assert_eq!(
            left,
            if is_kernels {
                State::Plain
            } else {
                State::Gone
            }
        );
    });
}

#[test]
fn parking_and_closing_count_the_member_out_once() {
    explore(3, || {
        let member = Member::new(IN);
        let other = member.clone();
        let parks = loom::thread::spawn(move || other.park());
        // As `membership::leave` does.
        if member.interest.end().is_ours() {
            member.ours.fetch_sub(1, Ordering::Relaxed);
        }
        parks.join().unwrap();
        assert_eq!(member.ours.load(Ordering::Relaxed), 0);
        assert_eq!(member.interest.state(), State::Gone);
    });
}

/// One thread removes a registration that it has found without a lock. Meanwhile another thread
/// removes it, too, and the place is used again.
#[test]
fn registration_is_not_parked_for_the_one_before_in_its_place() {
    explore(3, || {
        let member = Member::new(IN);
        // The connection whose registration it is.
        let connection = Arc::new(AtomicU32::new(1));
        let (other, others) = (member.clone(), connection.clone());
        let thread = loom::thread::spawn(move || {
            let was = other.interest.end();
            others.store(0, Ordering::Relaxed);
            other.interest.become_state(State::Gone);
            others.store(2, Ordering::Relaxed);
            other.interest.become_state(State::Plain);
            other.interest.become_state(State::InBitmap);
            was
        });
        let is_it = || connection.load(Ordering::Relaxed) == 1;
        let is_parked = member
            .interest
            .moves_if(State::InBitmap, State::Parked, is_it);
        let was = thread.join().unwrap();
        let expected = if is_parked {
            State::Parked
        } else {
            State::InBitmap
        };
        assert_eq!(was, expected);
        assert_eq!(member.interest.state(), State::InBitmap, "of connection 2");
    });
}
