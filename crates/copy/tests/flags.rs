//! Tests of an operation's flags.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use toehold_copy::{
    Auto, Backend, Calibration, Channel, Cookie, Copybreak, Flags, Operation, Outcome, Refused,
    Status, Waiting, Worker, WorkerOptions,
};

const LEN: usize = 20_000;
/// An operation that takes longer will never be done.
const HANG: Duration = Duration::from_secs(60);

fn source() -> Vec<u8> {
    (0..LEN as u32).map(|i| ((i * 13) >> 3) as u8).collect()
}

/// A call that reached an engine: an operation's length and flags, or a doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Operation(usize, Flags),
    Doorbell,
}

/// An engine that copies nothing. It records the requests, and at the next poll reports that all of
/// them are done.
#[derive(Default)]
struct Recorder {
    seen: Arc<Mutex<Vec<Seen>>>,
    begun: Vec<Cookie>,
}

impl Recorder {
    fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }
}

// SAFETY: touches no memory.
unsafe impl Backend for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        self.note(Seen::Operation(operation.len(), operation.flags()));
        self.begun.push(cookie);
        Ok(())
    }

    fn flush(&mut self) {
        self.note(Seen::Doorbell);
    }

    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        for cookie in self.begun.drain(..) {
            report(cookie, Outcome::DONE);
        }
    }

    fn forget_after_fork(&mut self) {
        self.begun.clear();
    }
}

/// A channel to a recorder, and its record.
fn recorded() -> (Channel, Arc<Mutex<Vec<Seen>>>) {
    let recorder = Recorder::default();
    let seen = Arc::clone(&recorder.seen);
    (Channel::new(recorder, 16), seen)
}

/// A copy of the record. The lock is released at once: a failing test must still drop its channel.
fn copied(seen: &Mutex<Vec<Seen>>) -> Vec<Seen> {
    seen.lock().unwrap().clone()
}

/// The `auto` engine with these limits, and a worker of its own.
fn auto(copybreak_in: Copybreak, copybreak_out: Copybreak) -> Auto {
    let calibration = Calibration {
        copybreak_in,
        copybreak_out,
        ..Calibration::measure()
    };
    let worker = Worker::start(WorkerOptions::default()).unwrap();
    Auto::new(&calibration, Some(worker))
}

/// The worker gets every copy, whether it is asleep or not.
const ALWAYS: Copybreak = Copybreak {
    awake: 1,
    hot: 1,
    asleep: 1,
};

/// Whether `auto` copies by hand: then the copy is over before any doorbell. Waits for the end, and
/// checks the bytes.
fn is_by_hand(auto: &mut Auto, number: u64, flags: Flags) -> bool {
    let (source, mut target) = (source(), vec![0; LEN]);
    let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), LEN).with(flags);
    // SAFETY: both live until the outcome was reported, below.
    unsafe { auto.submit(Cookie::new(number), &operation) }.unwrap();
    let mut ended = None;
    auto.poll(&mut |cookie, outcome| ended = Some((cookie, outcome)));
    let by_hand = ended.is_some();
    auto.flush();
    while ended.is_none() {
        std::thread::yield_now();
        auto.poll(&mut |cookie, outcome| ended = Some((cookie, outcome)));
    }
    assert_eq!(ended, Some((Cookie::new(number), Outcome::DONE)));
    assert_eq!(target, source);
    by_hand
}

#[test]
fn urgent_copies_are_made_by_hand() {
    let mut auto = auto(ALWAYS, ALWAYS);
    assert!(!is_by_hand(&mut auto, 1, Flags::NONE));
    assert!(is_by_hand(&mut auto, 2, Flags::URGENT));
    assert!(is_by_hand(&mut auto, 3, Flags::URGENT | Flags::CACHE));
    assert!(!is_by_hand(&mut auto, 4, Flags::CACHE));
}

#[test]
fn the_cache_hint_chooses_the_copybreak_of_its_direction() {
    let mut inward = auto(ALWAYS, Copybreak::NEVER);
    assert!(!is_by_hand(&mut inward, 1, Flags::CACHE));
    assert!(is_by_hand(&mut inward, 2, Flags::NONE));
    let mut outward = auto(Copybreak::NEVER, ALWAYS);
    assert!(is_by_hand(&mut outward, 1, Flags::CACHE));
    assert!(!is_by_hand(&mut outward, 2, Flags::NONE));
}

#[test]
fn the_engine_is_told_every_wish() {
    let (mut channel, seen) = recorded();
    let (source, mut target) = (source(), vec![0; LEN]);
    for bits in 0..16 {
        let flags = Flags::from_bits_truncate(bits);
        let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), LEN).with(flags);
        // SAFETY: the recorder touches nothing.
        unsafe { channel.submit(operation) }.unwrap();
        // The channel holds a fenced operation until the operation before it is over.
        channel.drain();
        assert!(copied(&seen).contains(&Seen::Operation(LEN, flags)));
    }
}

#[test]
fn submissions_gather_until_one_rings() {
    let (mut channel, seen) = recorded();
    let (source, mut target) = (source(), vec![0; LEN]);
    for (len, flags) in [(1, Flags::NONE), (2, Flags::NONE), (3, Flags::SUBMIT_NOW)] {
        let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), len).with(flags);
        // SAFETY: the recorder touches nothing.
        unsafe { channel.submit(operation) }.unwrap();
    }
    let expected = [
        Seen::Operation(1, Flags::NONE),
        Seen::Operation(2, Flags::NONE),
        Seen::Operation(3, Flags::SUBMIT_NOW),
        Seen::Doorbell,
    ];
    assert_eq!(copied(&seen), expected);
    // No operation is new, so no doorbell is rung.
    channel.flush();
    assert_eq!(channel.counters().doorbells, 1);
}

#[test]
fn a_list_rings_once_and_is_fenced_as_a_whole() {
    let (mut channel, seen) = recorded();
    let (source, mut target) = (source(), vec![0; LEN]);
    let (from, to) = (source.as_ptr(), target.as_mut_ptr());
    let sources = [(from, 10), (from.wrapping_add(100), 20)];
    let targets = [(to, 5), (to.wrapping_add(100), 25)];
    let flags = Flags::FENCE | Flags::CACHE | Flags::SUBMIT_NOW;
    // SAFETY: the recorder touches nothing.
    unsafe { channel.copy_vectored(&sources, &targets, flags) }.unwrap();
    let expected = [
        Seen::Operation(5, Flags::FENCE | Flags::CACHE),
        Seen::Operation(5, Flags::CACHE),
        Seen::Operation(20, Flags::CACHE),
        Seen::Doorbell,
    ];
    assert_eq!(copied(&seen), expected);
}

#[test]
fn what_is_submitted_now_begins_without_another_call() {
    let worker = Worker::start(WorkerOptions::default()).unwrap();
    let mut channel = Channel::new(worker, 4);
    let (source, mut target) = (source(), vec![0; LEN]);
    let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), LEN);
    // SAFETY: both live until the wait.
    let cookie = unsafe { channel.submit(operation.with(Flags::SUBMIT_NOW)) }.unwrap();
    // `progress` neither asks the engine to begin nor collects its outcomes. An engine that waits
    // for a request to begin fails here instead of hanging.
    let submitted = Instant::now();
    while channel.progress(cookie) < LEN {
        assert!(submitted.elapsed() < HANG, "nobody has begun it");
        std::thread::yield_now();
    }
    assert_eq!(channel.counters().doorbells, 1);
    assert_eq!(
        channel.wait(cookie, Waiting::SPIN),
        Ok(Status::Done { crc32c: 0 })
    );
    assert_eq!(target, source);
}
