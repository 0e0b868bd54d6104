//! Registrations of one connection against a naive model of the kernel's epoll. Whatever a program
//! does with its registrations and descriptors, each wait reports the events that the kernel would
//! report.
//!
//! The connection has bytes to read or none, and there is always room to send. The naive model
//! follows fs/eventpoll.c. News, ADD and MOD put a member on the ready list. A wait takes the
//! member off, reports the events of its interest that hold, and puts a level-triggered member
//! back. A member is identified by its open file and the number that it was added by. It ends when
//! the file ends, not when the number is closed.

#![cfg(not(loom))]

use proptest::prelude::*;
use toehold_stream::interest::bits::{EDGE, IN, ONESHOT, OUT, READINESS};
use toehold_stream::interest::{Interest, State, armed};

/// A step of the program, of its peer or of the socket layer.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize, u32),
    Modify(usize, u32),
    Delete(usize),
    /// Gives the open file another number.
    Duplicate(usize),
    Close(usize),
    /// The peer sends bytes.
    Publish,
    /// The program reads one byte, or all bytes.
    Read {
        all: bool,
    },
    Wait,
    /// A nested instance looks for events, and changes nothing.
    Peek,
    /// The connection goes back to its carrier, and up again.
    GoDownAndUp,
}

fn interests() -> impl Strategy<Value = u32> {
    let readiness = prop_oneof![Just(IN), Just(OUT), Just(IN | OUT), Just(0)];
    let way = prop_oneof![Just(0), Just(EDGE), Just(ONESHOT), Just(EDGE | ONESHOT)];
    (readiness, way).prop_map(|(readiness, way)| readiness | way)
}

/// Numbers that a descriptor of the open file can have.
const NUMBERS: usize = 3;

fn numbers() -> std::ops::Range<usize> {
    0..NUMBERS
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (numbers(), interests()).prop_map(|(number, events)| Step::Add(number, events)),
        2 => (numbers(), interests()).prop_map(|(number, events)| Step::Modify(number, events)),
        1 => numbers().prop_map(Step::Delete),
        1 => numbers().prop_map(Step::Duplicate),
        1 => numbers().prop_map(Step::Close),
        4 => Just(Step::Publish),
        3 => any::<bool>().prop_map(|all| Step::Read { all }),
        6 => Just(Step::Wait),
        1 => Just(Step::Peek),
        1 => Just(Step::GoDownAndUp),
    ];
    proptest::collection::vec(step, 0..60)
}

/// The kernel's instance: its members, all of one open file, by number; and the open descriptors.
#[derive(Default)]
struct NaiveInstance {
    open: [bool; NUMBERS],
    members: [Naive; NUMBERS],
}

impl NaiveInstance {
    fn close(&mut self, number: usize) {
        self.open[number] = false;
        if !self.open.contains(&true) {
            // `eventpoll_release`: the file is gone, and its items are removed.
            self.members = Default::default();
        }
    }
}

/// The kernel's state of one member.
#[derive(Default)]
struct Naive {
    /// Events and data; `None` when the number is no member.
    member: Option<(u32, u64)>,
    is_on_list: bool,
}

impl Naive {
    fn add(&mut self, events: u32, data: u64) -> bool {
        if self.member.is_some() {
            return false;
        }
        (self.member, self.is_on_list) = (Some((events, data)), true);
        true
    }

    fn modify(&mut self, events: u32, data: u64) -> bool {
        if self.member.is_none() {
            return false;
        }
        (self.member, self.is_on_list) = (Some((events, data)), true);
        true
    }

    fn delete(&mut self) -> bool {
        self.is_on_list = false;
        self.member.take().is_some()
    }

    fn wait(&mut self, ready: u32) -> Option<(u32, u64)> {
        let (events, data) = self.member?;
        if !core::mem::take(&mut self.is_on_list) || events & ready & READINESS == 0 {
            return None;
        }
        if events & ONESHOT != 0 {
            self.member = Some((events & !READINESS, data));
        } else {
            self.is_on_list = events & EDGE == 0;
        }
        Some((events & ready & READINESS, data))
    }
}

/// The library's instance: registrations of one connection, by number.
#[derive(Default)]
struct OurInstance {
    open: [bool; NUMBERS],
    members: [Ours; NUMBERS],
}

impl OurInstance {
    /// As `orphans::descriptor_closing` does.
    fn close(&mut self, number: usize) {
        self.open[number] = false;
        let last = !self.open.contains(&true);
        for (at, member) in self.members.iter_mut().enumerate() {
            let ends = last || at == number && !member.interest.state().outlives_descriptor(last);
            if ends && member.interest.state() != State::Gone {
                member.interest.become_state(State::Gone);
                member.is_on_list = false;
            }
        }
    }
}

/// The library's state of one registration: the core, and a minimum of the socket layer around it.
#[derive(Default)]
struct Ours {
    interest: Interest,
    is_on_list: bool,
}

impl Ours {
    fn add(&mut self, events: u32, data: u64) -> bool {
        match self.interest.state() {
            State::Gone | State::Parked => {}
            _ => return false,
        }
        self.interest.set(armed(events), data);
        self.interest.rearm();
        if self.interest.state() == State::Gone {
            self.interest.become_state(State::Plain);
        }
        self.interest.become_state(State::InBitmap);
        self.is_on_list = true;
        true
    }

    fn modify(&mut self, events: u32, data: u64) -> bool {
        if !self.interest.state().is_ours() {
            return false;
        }
        self.interest.set(armed(events), data);
        self.interest.rearm();
        self.is_on_list = true;
        true
    }

    fn delete(&mut self) -> bool {
        self.interest.state() == State::InBitmap
            && self.interest.moves(State::InBitmap, State::Parked)
    }

    fn go_down_and_up(&mut self) {
        if self.interest.moves(State::InBitmap, State::Plain) {
            // The kernel would report now the events that hold; then the ring has news, or none.
            self.interest.become_state(State::InBitmap);
            self.is_on_list = true;
        } else if self.interest.state() == State::Parked {
            self.interest.become_state(State::Gone);
        }
    }

    fn wait(&mut self, ready: u32, tail: u64, consume: bool) -> Option<(u32, u64)> {
        if !core::mem::take(&mut self.is_on_list) {
            return None;
        }
        let look = self.interest.look(|interest| Some(ready & interest))?;
        let report = self.interest.report(&look, consume, || Some(tail))?;
        self.is_on_list = report.stays;
        Some((report.events, report.data))
    }
}

proptest! {
    #[test]
    fn each_wait_returns_what_the_kernel_would(steps in steps()) {
        let (mut naive, mut ours) = (NaiveInstance::default(), OurInstance::default());
        (naive.open[0], ours.open[0]) = (true, true);
        let (mut unread, mut tail, mut data) = (0u64, 0u64, 0u64);
        for step in steps {
            let ready = OUT | if unread > 0 { IN } else { 0 };
            data += 1;
            match step {
                // The kernel returns EBADF for a number that is closed, even if a registration with
                // it exists.
                Step::Add(at, _) | Step::Modify(at, _) | Step::Delete(at)
                    if !naive.open[at] => {}
                Step::Add(at, events) => {
                    let added = ours.members[at].add(events, data);
                    prop_assert_eq!(added, naive.members[at].add(events, data));
                }
                Step::Modify(at, events) => {
                    let modified = ours.members[at].modify(events, data);
                    prop_assert_eq!(modified, naive.members[at].modify(events, data));
                }
                Step::Delete(at) => {
                    prop_assert_eq!(ours.members[at].delete(), naive.members[at].delete());
                }
                Step::Duplicate(at) => {
                    let is_open = naive.open.contains(&true);
                    (naive.open[at], ours.open[at]) = (is_open, is_open);
                }
                Step::Close(at) => {
                    naive.close(at);
                    ours.close(at);
                }
                Step::Publish => {
                    (unread, tail) = (unread + 3, tail + 3);
                    for member in &mut naive.members {
                        member.is_on_list = member.member.is_some();
                    }
                    for member in &mut ours.members {
                        member.is_on_list = member.interest.state() != State::Gone;
                    }
                }
                Step::Read { all: true } => unread = 0,
                Step::Read { all: false } => unread = unread.saturating_sub(1),
                Step::Wait => {
                    let reports = ours.members.each_mut().map(|one| one.wait(ready, tail, true));
                    prop_assert_eq!(reports, naive.members.each_mut().map(|one| one.wait(ready)));
                }
                Step::Peek => {
                    for member in &mut ours.members {
                        let list = member.is_on_list;
                        member.wait(ready, tail, false);
                        member.is_on_list = list;
                    }
                }
                Step::GoDownAndUp => {
                    ours.members.iter_mut().for_each(Ours::go_down_and_up);
                }
            }
        }
    }

    #[test]
    fn one_shot_in_the_kernel_is_reported_once(
        // Either the program arms again, or the kernel reports an arming: the latest or an older
        // one.
        steps in proptest::collection::vec(prop_oneof![Just(None), (0..3u32).prop_map(Some)], 0..40)
    ) {
        const ARMINGS_MAX: u32 = 7;
        let interest = Interest::default();
        let mut reports = 0;
        let mut armed_now = 0;
        for step in steps {
            match step {
                None => {
                    interest.set(armed(IN | ONESHOT), 0);
                    armed_now = interest.arm_once(ARMINGS_MAX);
                    prop_assert!((1..=ARMINGS_MAX).contains(&armed_now));
                    reports = 0;
                }
                Some(0) => {
                    reports += u32::from(interest.tell_once(armed_now));
                    prop_assert!(reports <= 1, "twice of one arming");
                    prop_assert!(interest.is_spent() || armed_now == 0);
                }
                // A report of an older arming was in flight when the program armed again: the new
                // arming stays.
                Some(age) if age < armed_now => {
                    let before = interest.events();
                    prop_assert!(interest.tell_once(armed_now - age));
                    prop_assert_eq!(interest.events(), before);
                }
                Some(_) => prop_assert!(!interest.tell_once(0)),
            }
        }
    }
}

#[test]
fn room_is_awaited_by_level_and_after_a_refusal_by_edge() {
    let awaits = |events, is_told: bool, is_refused: bool| {
        let one = Interest::default();
        one.set(events, 0);
        if is_told {
            assert!(one.is_new_edge(IN | OUT, 0, true));
        }
        if is_refused {
            one.forget_room();
        }
        one.awaits_room()
    };
    for (is_told, is_refused) in [(false, false), (true, false), (true, true)] {
        assert!(!awaits(IN, is_told, is_refused));
        assert!(!awaits(IN | EDGE, is_told, is_refused));
        assert!(awaits(IN | OUT, is_told, is_refused));
        let is_due = !is_told || is_refused;
        assert_eq!(awaits(IN | OUT | EDGE, is_told, is_refused), is_due);
    }
}

#[test]
fn only_drawn_steps_lead_from_state_to_state() {
    use State::{Early, Gone, Held, InBitmap, Once, Parked, Plain, Polled, Quiet};
    let ours = [InBitmap, Polled, Quiet];
    for from in State::ALL {
        assert!(from.leads_to(Gone), "everything ends");
        assert!(
            !from.leads_to(Early) || [Gone, Early].contains(&from),
            "nothing becomes unconnected"
        );
        assert_eq!(
            from.leads_to(Parked),
            [InBitmap, Parked].contains(&from),
            "{from:?}"
        );
        // No state of the library follows `Held`: the engine has to answer first.
        assert!(!ours.iter().any(|&to| from == Held && from.leads_to(to)));
        assert!(!(from.is_kernels() && from.is_ours()));
        assert_eq!(
            from.leads_to(Quiet),
            [Polled, Quiet].contains(&from),
            "a doorbell of a ready bitmap wakes a thread for other members, too"
        );
    }
    assert!(Parked.leads_to(InBitmap) && Parked.leads_to(Polled) && !Parked.leads_to(Plain));
    assert!(!Polled.leads_to(InBitmap), "several instances stay several");
    assert!(Once.leads_to(Held) && Held.leads_to(Once));
}
