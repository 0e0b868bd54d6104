//! One registration against a naive model of the kernel's epoll: whatever a program does with it,
//! each wait tells what the kernel would tell.
//!
//! The connection has bytes to read or none, and there is always room. The naive model follows
//! fs/eventpoll.c in its own words: a member is put on the ready list by news, ADD and MOD; a wait
//! takes it off, tells what holds of the interest, and puts a level-triggered one back.

#![cfg(not(loom))]

use proptest::prelude::*;
use toehold_stream::interest::bits::{EDGE, IN, ONESHOT, OUT, READINESS};
use toehold_stream::interest::{Interest, State, armed};

/// What the program, its peer and the socket layer do.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u32),
    Modify(u32),
    Delete,
    /// The peer sends.
    Publish,
    /// The program reads one byte, or all.
    Read {
        all: bool,
    },
    Wait,
    /// A nested instance looks, and changes nothing.
    Peek,
    /// The connection goes back to its carrier, and up again.
    GoDownAndUp,
}

fn interests() -> impl Strategy<Value = u32> {
    let readiness = prop_oneof![Just(IN), Just(OUT), Just(IN | OUT), Just(0)];
    let way = prop_oneof![Just(0), Just(EDGE), Just(ONESHOT), Just(EDGE | ONESHOT)];
    (readiness, way).prop_map(|(readiness, way)| readiness | way)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => interests().prop_map(Step::Add),
        2 => interests().prop_map(Step::Modify),
        1 => Just(Step::Delete),
        4 => Just(Step::Publish),
        3 => any::<bool>().prop_map(|all| Step::Read { all }),
        6 => Just(Step::Wait),
        1 => Just(Step::Peek),
        1 => Just(Step::GoDownAndUp),
    ];
    proptest::collection::vec(step, 0..60)
}

/// The kernel's, of one member.
#[derive(Default)]
struct Naive {
    /// Events and data; `None` when it is no member.
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

/// The library's: the core, and as little as the socket layer has around it.
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
            // The kernel would tell now of what holds; then the ring has news, or none.
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
        let told = self.interest.report(&look, consume, || Some(tail))?;
        self.is_on_list = told.stays;
        Some((told.events, told.data))
    }
}

proptest! {
    #[test]
    fn each_wait_tells_what_the_kernel_would(steps in steps()) {
        let (mut naive, mut ours) = (Naive::default(), Ours::default());
        let (mut unread, mut tail, mut data) = (0u64, 0u64, 0u64);
        for step in steps {
            let ready = OUT | if unread > 0 { IN } else { 0 };
            data += 1;
            match step {
                Step::Add(events) => {
                    prop_assert_eq!(ours.add(events, data), naive.add(events, data));
                }
                Step::Modify(events) => {
                    prop_assert_eq!(ours.modify(events, data), naive.modify(events, data));
                }
                Step::Delete => prop_assert_eq!(ours.delete(), naive.delete()),
                Step::Publish => {
                    (unread, tail) = (unread + 3, tail + 3);
                    naive.is_on_list = naive.member.is_some();
                    ours.is_on_list = ours.interest.state() != State::Gone;
                }
                Step::Read { all: true } => unread = 0,
                Step::Read { all: false } => unread = unread.saturating_sub(1),
                Step::Wait => prop_assert_eq!(ours.wait(ready, tail, true), naive.wait(ready)),
                Step::Peek => {
                    let list = ours.is_on_list;
                    ours.wait(ready, tail, false);
                    ours.is_on_list = list;
                }
                Step::GoDownAndUp => ours.go_down_and_up(),
            }
        }
    }

    #[test]
    fn one_shot_in_the_kernel_is_told_once(
        // Arm anew; or the kernel tells of an arming, this one or an older one.
        steps in proptest::collection::vec(prop_oneof![Just(None), (0..3u32).prop_map(Some)], 0..40)
    ) {
        const ARMINGS_MAX: u32 = 7;
        let interest = Interest::default();
        let mut told = 0;
        let mut armed_now = 0;
        for step in steps {
            match step {
                None => {
                    interest.set(armed(IN | ONESHOT), 0);
                    armed_now = interest.arm_once(ARMINGS_MAX);
                    prop_assert!((1..=ARMINGS_MAX).contains(&armed_now));
                    told = 0;
                }
                Some(0) => {
                    told += u32::from(interest.tell_once(armed_now));
                    prop_assert!(told <= 1, "twice of one arming");
                    prop_assert!(interest.is_spent() || armed_now == 0);
                }
                // One that was on its way when the program armed anew leaves the new one armed.
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
fn only_drawn_steps_lead_from_state_to_state() {
    use State::{Early, Gone, Held, InBitmap, Once, Parked, Plain, Polled};
    let ours = [InBitmap, Polled];
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
        // What the kernel has of these is the library's, so no one answers before the engine.
        assert!(!ours.iter().any(|&to| from == Held && from.leads_to(to)));
        assert!(!(from.is_kernels() && from.is_ours()));
    }
    assert!(Parked.leads_to(InBitmap) && Parked.leads_to(Polled) && !Parked.leads_to(Plain));
    assert!(!Polled.leads_to(InBitmap), "several instances stay several");
    assert!(Once.leads_to(Held) && Held.leads_to(Once));
}
