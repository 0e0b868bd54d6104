//! The ways to wait: which of them sleep, the timeout that the engine gets, and the effect of a
//! deadline.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use toehold_copy::{
    Backend, Channel, Cookie, Operation, Outcome, Refused, Status, TimedOut, Waiting, Worker,
    WorkerOptions,
};

const DONE: Result<Status, TimedOut> = Ok(Status::Done { crc32c: 0 });

/// The time at which a [`Sleeper`] ends its operation.
#[derive(Clone, Copy)]
enum Ends {
    AtPoll(u32),
    AtPark(u32),
}

/// More parks than fit into a brief wait; a dropped channel gets through them.
const MANY_PARKS: u32 = 100_000;

/// An engine that ends one operation at the given time and touches no memory. It records the
/// timeout of each park.
struct Sleeper {
    ends: Ends,
    can_wake: bool,
    begun: Option<Cookie>,
    polls: u32,
    timeouts: Arc<Mutex<Vec<u64>>>,
}

// SAFETY: touches no memory.
unsafe impl Backend for Sleeper {
    fn name(&self) -> &'static str {
        "sleeper"
    }

    unsafe fn submit(&mut self, cookie: Cookie, _: &Operation) -> Result<(), Refused> {
        self.begun = Some(cookie);
        Ok(())
    }

    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        self.polls += 1;
        let parks = self.timeouts.lock().unwrap().len() as u32;
        let is_over = match self.ends {
            Ends::AtPoll(poll) => self.polls >= poll,
            Ends::AtPark(park) => parks >= park,
        };
        if is_over && let Some(cookie) = self.begun.take() {
            report(cookie, Outcome::DONE);
        }
    }

    fn park(&mut self, timeout_ns: u64) -> bool {
        self.timeouts.lock().unwrap().push(timeout_ns);
        self.can_wake
    }

    fn forget_after_fork(&mut self) {
        self.begun = None;
    }
}

/// A copy of the record. The lock is released at once: a failing test must still drop its channel.
fn copied(timeouts: &Mutex<Vec<u64>>) -> Vec<u64> {
    timeouts.lock().unwrap().clone()
}

/// A channel to a sleeper with one operation in flight, and the timeout of each of its parks.
fn asleep(ends: Ends, can_wake: bool) -> (Channel, Cookie, Arc<Mutex<Vec<u64>>>) {
    let timeouts = Arc::default();
    let sleeper = Sleeper {
        ends,
        can_wake,
        begun: None,
        polls: 0,
        timeouts: Arc::clone(&timeouts),
    };
    let mut channel = Channel::new(sleeper, 2);
    // Two addresses that no code reads or writes.
    let source = [0u8; 2].as_ptr();
    let operation = Operation::copy(source, source.wrapping_add(1).cast_mut(), 1);
    // SAFETY: the sleeper touches nothing.
    let cookie = unsafe { channel.submit(operation) }.unwrap();
    (channel, cookie, timeouts)
}

#[test]
fn spinning_and_yielding_never_sleep() {
    for waiting in [Waiting::SPIN, Waiting::YIELD] {
        for waiting in [waiting, waiting.with_spins(0), waiting.with_spins(3)] {
            let (mut channel, cookie, timeouts) = asleep(Ends::AtPoll(2000), true);
            assert_eq!(channel.wait(cookie, waiting), DONE);
            assert_eq!(channel.counters().parks, 0);
            assert_eq!(copied(&timeouts), []);
        }
    }
}

#[test]
fn parking_sleeps_once_its_spins_are_used_up() {
    let (mut channel, cookie, timeouts) = asleep(Ends::AtPark(3), true);
    assert_eq!(channel.wait(cookie, Waiting::PARK), DONE);
    assert_eq!(channel.counters().parks, 3);
    // Without a deadline the sleep has no limit.
    assert_eq!(copied(&timeouts), [u64::MAX; 3]);

    let (mut channel, cookie, _) = asleep(Ends::AtPoll(100), true);
    assert_eq!(channel.wait(cookie, Waiting::PARK.with_spins(200)), DONE);
    assert_eq!(channel.counters().parks, 0);
}

#[test]
fn an_engine_that_wakes_nobody_is_looked_at_between_yields() {
    let (mut channel, cookie, timeouts) = asleep(Ends::AtPark(5), false);
    assert_eq!(channel.wait(cookie, Waiting::PARK.with_spins(0)), DONE);
    assert_eq!(copied(&timeouts).len(), 5);
    assert_eq!(channel.counters().parks, 0);
}

#[test]
fn a_sleeper_gets_a_time_limit() {
    let (mut channel, cookie, timeouts) = asleep(Ends::AtPark(2), true);
    let hour = Duration::from_secs(3600);
    let waiting = Waiting::PARK.with_spins(0).at_most(hour);
    assert_eq!(channel.wait(cookie, waiting), DONE);
    let timeouts = copied(&timeouts);
    assert_eq!(timeouts.len(), 2);
    let hour_ns = hour.as_nanos() as u64;
    assert!(timeouts.iter().all(|&timeout| timeout <= hour_ns));
    assert!(timeouts[1] <= timeouts[0]);
}

#[test]
fn a_deadline_ends_every_way_of_waiting() {
    for waiting in [Waiting::SPIN, Waiting::YIELD, Waiting::PARK] {
        let (mut channel, cookie, _) = asleep(Ends::AtPark(MANY_PARKS), true);
        let brief = waiting.at_most(Duration::from_micros(100));
        let deadline = Instant::now() + Duration::from_micros(100);
        assert_eq!(channel.wait(cookie, waiting.until(deadline)), Err(TimedOut));
        assert!(Instant::now() >= deadline, "not before");
        assert_eq!(channel.wait_through(cookie, brief), Err(TimedOut));
        assert_eq!(channel.status(cookie), Status::Pending { bytes: 0 });
    }
}

#[test]
fn what_is_over_is_over_whatever_the_deadline() {
    for waiting in [Waiting::SPIN, Waiting::YIELD, Waiting::PARK] {
        let (mut channel, cookie, _) = asleep(Ends::AtPoll(1), true);
        let long_past = waiting.with_spins(0).until(Instant::now());
        assert_eq!(channel.wait(cookie, long_past), DONE);
        assert_eq!(channel.wait_through(cookie, long_past), Ok(()));
    }
}

#[test]
fn every_way_of_waiting_ends_with_the_worker_and_the_bytes_are_there() {
    let worker = Worker::start(WorkerOptions::default()).unwrap();
    let mut channel = Channel::new(worker, 4);
    let source: Vec<u8> = (0..1_000_000u32).map(|i| ((i * 7) >> 4) as u8).collect();
    let hour = Duration::from_secs(3600);
    for waiting in [Waiting::SPIN, Waiting::YIELD, Waiting::PARK] {
        for waiting in [
            waiting,
            waiting.with_spins(0),
            waiting.at_most(hour),
            waiting.with_spins(0).at_most(hour),
        ] {
            let mut target = vec![0; source.len()];
            let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), source.len());
            // SAFETY: both live until the wait has ended, and nobody looks before.
            let cookie = unsafe { channel.submit(operation) }.unwrap();
            assert_eq!(channel.wait(cookie, waiting), DONE);
            assert!(target == source);
        }
    }
}

#[test]
fn who_parks_is_woken_by_the_worker() {
    let worker = Worker::start(WorkerOptions::default()).unwrap();
    let mut channel = Channel::new(worker, 4);
    let source = vec![7u8; 8 << 20];
    let mut target = vec![0; source.len()];
    // The waiter parks nearly always at the first attempt. A copy may be over before its waiter
    // looks.
    while channel.counters().parks == 0 {
        target.fill(0);
        let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), source.len());
        // SAFETY: both live until the wait has ended, and nobody looks before.
        let cookie = unsafe { channel.submit(operation) }.unwrap();
        assert_eq!(channel.wait(cookie, Waiting::PARK.with_spins(0)), DONE);
        assert!(target == source);
    }
}

#[test]
fn a_parked_waiter_wakes_at_its_deadline_and_the_copy_goes_on() {
    let worker = Worker::start(WorkerOptions::default()).unwrap();
    let mut channel = Channel::new(worker, 4);
    let source = vec![9u8; 32 << 20];
    let mut timed_out = false;
    // The deadline comes first, unless this thread was delayed for longer than a copy of 32 MB
    // takes.
    while !timed_out {
        let mut target = vec![0; source.len()];
        let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), source.len());
        // SAFETY: both live until the last wait has ended, and nobody looks before.
        let cookie = unsafe { channel.submit(operation) }.unwrap();
        let brief = Waiting::PARK
            .with_spins(0)
            .at_most(Duration::from_micros(50));
        timed_out = channel.wait(cookie, brief) == Err(TimedOut);
        assert_eq!(channel.wait(cookie, Waiting::PARK), DONE);
        assert!(target == source);
    }
}
