//! The limit of this machine: the same patterns between two bare threads that share memory, without
//! sockets, calls or sleep. A number against its limit means the same on every machine.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use toehold_copy::{Buffer, from_shared, to_shared};
use toehold_measure::cpus::{self, Kept};

use super::latency::Latencies;
use super::session::Totals;
use super::{Load, Outcome, Pattern, session, wire};

/// Runs a load between two threads of this process.
///
/// # Errors
///
/// A sentence: the pattern is not available between threads, there is no memory, or no operation
/// was measured.
pub fn run(load: &Load) -> Result<Outcome, String> {
    load.check()?;
    // Two threads on one core would measure the scheduler.
    let cores = cpus::allowed();
    let (last, _) = cores.split_last().ok_or("this process may use no core")?;
    let _kept = Kept::on(&[*last]);
    let other = cores[0];
    let totals = match load.pattern {
        Pattern::PingPong | Pattern::Requests => ping_pong(load, other),
        Pattern::ToServer | Pattern::ToClient | Pattern::Both => stream(load, other),
        Pattern::Connect | Pattern::Empty | Pattern::Newcomers => {
            return Err("connections have no limit between bare threads".to_owned());
        }
    };
    let totals = totals.map_err(|error| format!("no memory for the limit: {error}"))?;
    totals.outcome(load)
}

/// Memory that both threads use, and the positions that say which thread may access it.
struct Shared {
    memory: *mut u8,
    tail: Position,
    head: Position,
    is_over: AtomicBool,
}

/// A position on its own pair of cache lines.
#[repr(align(128))]
struct Position(AtomicU64);

// SAFETY: `memory` is valid as long as the threads' scope; each byte of it is written by one side
// and read by the other in turns, which the positions order (Release after a copy, Acquire before).
unsafe impl Sync for Shared {}

impl Shared {
    fn new(memory: *mut u8) -> Shared {
        Shared {
            memory,
            tail: Position(AtomicU64::new(0)),
            head: Position(AtomicU64::new(0)),
            is_over: AtomicBool::new(false),
        }
    }

    /// Waits until the position is past `old`; `None` when the run is over.
    fn await_beyond(&self, position: &Position, old: u64) -> Option<u64> {
        let mut turns = 0u32;
        loop {
            // Acquire pairs with the Release that published the position after a copy.
            let now = position.0.load(Ordering::Acquire);
            if now > old {
                return Some(now);
            }
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            turns += 1;
            if turns.is_multiple_of(TURNS_BEFORE_YIELD) {
                // On one core the other side would never run.
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// One slot in each direction; latency is half the round trip.
fn ping_pong(load: &Load, other: usize) -> io::Result<Totals> {
    let (there, back) = (load.message, load.response_bytes());
    let slot = there.max(back).next_multiple_of(128);
    let mut buffer = Buffer::new(2 * slot)?;
    let shared = Shared::new(buffer.as_mut_ptr());
    let (out, into) = (shared.memory as usize, shared.memory as usize + slot);
    thread::scope(|scope| {
        let shared = &shared;
        scope.spawn(move || {
            let _kept = Kept::on(&[other]);
            let (mut message, response) = (vec![0; there], vec![1; back]);
            let mut seen = 0;
            while let Some(tail) = shared.await_beyond(&shared.tail, seen) {
                seen = tail;
                // SAFETY: within the slots; the other side waits for `head` meanwhile.
                unsafe {
                    from_shared(out as *const u8, message.as_mut_ptr(), there);
                    to_shared(response.as_ptr(), into as *mut u8, back);
                }
                // Release pairs with the Acquire of the other side.
                shared.head.0.store(seen, Ordering::Release);
            }
        });
        let (mut message, mut response) = (vec![0; there], vec![0; back]);
        wire::fill(&mut message);
        let mut latencies = Latencies::new();
        let start = Instant::now();
        let (begin, end) = session::measured(load, start);
        let (mut before, mut turn) = (start, 0);
        while before < end {
            // SAFETY: within the slot; the other side waits for `tail` meanwhile.
            unsafe { to_shared(message.as_ptr(), out as *mut u8, there) };
            turn += 1;
            shared.tail.0.store(turn, Ordering::Release);
            if shared.await_beyond(&shared.head, turn - 1).is_none() {
                break;
            }
            // SAFETY: as above.
            unsafe { from_shared(into as *const u8, response.as_mut_ptr(), back) };
            let now = Instant::now();
            if before >= begin {
                latencies.add((now - before) / 2);
            }
            before = now;
        }
        shared.is_over.store(true, Ordering::Relaxed);
        let operations = latencies.count();
        Ok(Totals {
            seconds: load.seconds,
            operations,
            bytes: operations * (there + back) as u64,
            latencies: Some(latencies),
            ..Totals::default()
        })
    })
}

/// A ring from one thread to the other.
fn stream(load: &Load, other: usize) -> io::Result<Totals> {
    let len = load.message;
    let slots = (RING_BYTES / len).clamp(2, 4096);
    let mut buffer = Buffer::new(slots * len)?;
    let shared = Shared::new(buffer.as_mut_ptr());
    let memory = shared.memory as usize;
    let place = |turn: u64| memory + (turn % slots as u64) as usize * len;
    thread::scope(|scope| {
        let shared = &shared;
        let touch = load.touch;
        scope.spawn(move || {
            let _kept = Kept::on(&[other]);
            let mut message = vec![0; len];
            let mut done = 0;
            while let Some(tail) = shared.await_beyond(&shared.tail, done) {
                while done < tail {
                    // SAFETY: within the ring; the writer stays out of slots that are not taken.
                    unsafe { from_shared(place(done) as *const u8, message.as_mut_ptr(), len) };
                    if touch {
                        std::hint::black_box(wire::sum(&message));
                    }
                    done += 1;
                    shared.head.0.store(done, Ordering::Release);
                }
            }
        });
        let mut message = vec![0; len];
        wire::fill(&mut message);
        let start = Instant::now();
        let (warm, end) = session::measured(load, start);
        let (mut turn, mut head) = (0u64, 0u64);
        let (mut counted_from, mut begin) = (None, start);
        loop {
            if turn.is_multiple_of(CLOCK_EVERY) || len >= 4096 {
                let now = Instant::now();
                if counted_from.is_none() && now >= warm {
                    (counted_from, begin) = (Some(turn), now);
                }
                if now >= end {
                    break;
                }
            }
            while turn - head >= slots as u64 {
                head = shared.await_beyond(&shared.head, head).unwrap_or(turn);
            }
            if touch {
                wire::fill(&mut message);
            }
            // SAFETY: within the ring; the reader has taken this slot.
            unsafe { to_shared(message.as_ptr(), place(turn) as *mut u8, len) };
            turn += 1;
            shared.tail.0.store(turn, Ordering::Release);
        }
        while head < turn {
            head = shared.await_beyond(&shared.head, head).unwrap_or(turn);
        }
        let elapsed = begin.elapsed().as_secs_f64();
        shared.is_over.store(true, Ordering::Relaxed);
        let operations = turn - counted_from.unwrap_or(turn);
        Ok(Totals {
            seconds: elapsed,
            operations,
            bytes: operations * len as u64,
            ..Totals::default()
        })
    })
}

const TURNS_BEFORE_YIELD: u32 = 4096;
const CLOCK_EVERY: u64 = 64;

/// The size of the direct path's rings.
const RING_BYTES: usize = 4 << 20;
