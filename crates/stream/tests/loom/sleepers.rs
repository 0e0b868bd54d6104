//! Sleepers of several processes share one wake word and one carrier. In some tests one is killed.

use std::sync::Arc;

use super::explore;
use super::support::carrier::Carrier;
use loom::sync::Mutex;
use toehold_channel::doorbell::{Doorbell, WakeWord, due, must_ring};
use toehold_channel::layout::Wake;
use toehold_channel::sync::{AtomicU32, AtomicU64, Ordering, fence};
use toehold_channel::table::Entry;
use toehold_stream::attachment::Sleepers;
use toehold_stream::sleepers::{Family, FamilySleepers};

/// One side of a connection, which two processes hold.
struct Side {
    entry: Entry,
    threads: [Sleepers; 2],
    /// By process: 1 once it is known to be dead.
    dead: [AtomicU32; 2],
    wake: Wake,
    wake_lock: Mutex<()>,
    published: AtomicU64,
    bells: Carrier,
}

/// The number of a process.
fn pid(process: usize) -> u32 {
    process as u32 + 17
}

struct Seen<'a> {
    side: &'a Side,
    process: usize,
}

impl Family for Seen<'_> {
    fn me(&self) -> u32 {
        pid(self.process)
    }

    fn is_alive(&self, asked: u32) -> bool {
        self.side.dead[(asked - pid(0)) as usize].load(Ordering::Acquire) == 0
    }
}

impl Side {
    fn new() -> Arc<Side> {
        let side = Side {
            entry: Entry::default(),
            threads: Default::default(),
            dead: Default::default(),
            wake: Wake::default(),
            wake_lock: Mutex::new(()),
            published: AtomicU64::new(0),
            bells: Carrier::new(8),
        };
        side.entry.holders.store(2, Ordering::Relaxed);
        Arc::new(side)
    }

    fn sleepers(&self, process: usize) -> FamilySleepers<'_, Seen<'_>> {
        let seen = Seen {
            side: self,
            process,
        };
        FamilySleepers::new(&self.entry, &self.threads[process], seen)
    }

    /// Sends as the peer does: publish, pass a barrier, check whether to ring.
    fn publish(&self, position: u64) {
        self.published.store(position, Ordering::Release);
        fence(Ordering::SeqCst);
        if must_ring(&self.wake, |_| None).unwrap() {
            self.bells.send(&[0]);
        }
    }

    /// As `arming::arm` does.
    fn arm(&self, process: usize) {
        {
            let _held = self.wake_lock.lock().unwrap();
            self.sleepers(process).enter();
            let bell = WakeWord::Bell.to_word();
            self.wake.wake.store(bell, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// As `arming::disarm` does.
    fn disarm(&self, process: usize) {
        let _held = self.wake_lock.lock().unwrap();
        let sleepers = self.sleepers(process);
        let word = match sleepers.leave() {
            true => sleepers.resting(),
            false => WakeWord::Bell.to_word().into(),
        };
        self.wake.wake.swap(word, Ordering::SeqCst);
    }

    /// As `doorbells::drain` does.
    fn drain(&self, process: usize) {
        let waiting = self.bells.waiting();
        if waiting > 0 && !self.sleepers(process).are_there() {
            self.bells.receive(waiting, false);
        }
    }

    fn has_published(&self, position: u64) -> bool {
        self.published.load(Ordering::Acquire) >= position
    }

    /// As a blocking receive does.
    fn wait_for(&self, process: usize, position: u64) {
        while !self.has_published(position) {
            self.arm(process);
            if !self.has_published(position) {
                self.bells.wait_for_byte();
            }
            self.disarm(process);
            self.drain(process);
        }
        // The process that has seen the news takes the doorbells off that no sleeper needs.
        self.drain(process);
    }
}

#[test]
fn one_doorbell_wakes_the_sleepers_of_two_processes() {
    explore(2, || {
        let side = Side::new();
        let (other, peer) = (side.clone(), side.clone());
        let child = loom::thread::spawn(move || other.wait_for(1, 1));
        let peer = loom::thread::spawn(move || peer.publish(1));
        side.wait_for(0, 1);
        child.join().unwrap();
        peer.join().unwrap();
        side.drain(0);
        assert_eq!(side.bells.waiting(), 0, "nobody sleeps, so none is left");
        assert!(side.sleepers(0).own_resting().is(WakeWord::None.to_word()));
    });
}

/// A process takes doorbells off the carrier, because it has seen the news, while another process
/// begins to sleep for doorbells.
#[test]
fn doorbell_is_not_taken_from_a_process_that_is_about_to_sleep() {
    explore(3, || {
        let side = Side::new();
        // The first process has slept, and its doorbell is there.
        side.arm(0);
        side.publish(1);
        side.disarm(0);
        let other = side.clone();
        let child = loom::thread::spawn(move || other.wait_for(1, 1));
        assert!(side.has_published(1));
        side.drain(0);
        child.join().unwrap();
    });
}

/// A child goes to sleep and is killed at each step of that. Its sibling learns of the news, now
/// and later. No doorbell is left for the child once it is known to be dead.
#[test]
fn killed_sleeper_keeps_no_doorbell_and_stops_nobody() {
    for steps in 0..4 {
        explore(2, move || {
            let side = Side::new();
            let other = side.clone();
            let child = loom::thread::spawn(move || {
                if steps >= 1 {
                    // The lock of a dead process is recovered, so the child may die while it holds
                    // the lock.
                    let _held = other.wake_lock.lock().unwrap();
                    other.sleepers(1).enter();
                    if steps >= 2 {
                        let bell = WakeWord::Bell.to_word();
                        other.wake.wake.store(bell, Ordering::SeqCst);
                    }
                }
                if steps >= 3 {
                    fence(Ordering::SeqCst);
                    other.disarm(1);
                }
                other.dead[1].store(1, Ordering::Release);
            });
            let peer = side.clone();
            let peer = loom::thread::spawn(move || peer.publish(1));
            peer.join().unwrap();
            side.wait_for(0, 1);
            child.join().unwrap();
            side.drain(0);
            assert_eq!(side.bells.waiting(), 0, "the dead need none");
            let peer = side.clone();
            let peer = loom::thread::spawn(move || peer.publish(2));
            side.wait_for(0, 2);
            peer.join().unwrap();
        });
    }
}

/// A sleeper wakes by itself (a signal, a time-out) while a notifier that has seen its wake word is
/// about to ring. The late doorbell must not be missed, and must not end later sleeps in vain for
/// ever.
#[test]
fn late_notifier_does_not_spoil_the_next_sleep() {
    explore(3, || {
        let side = Side::new();
        side.entry.holders.store(1, Ordering::Relaxed);
        let peer = side.clone();
        let peer = loom::thread::spawn(move || {
            peer.publish(1);
            peer.publish(2);
        });
        side.arm(0);
        // The process has not slept.
        side.disarm(0);
        side.drain(0);
        side.wait_for(0, 2);
        peer.join().unwrap();
        side.drain(0);
        assert_eq!(side.bells.waiting(), 0);
    });
}

/// A wake word on which two threads sleep. The first takes the pair's doorbell where it may.
struct Mixed {
    wake: Wake,
    /// The wake lock, and the number of threads that sleep.
    asleep: Mutex<u32>,
    published: AtomicU64,
    /// By thread: the doorbells that wake it.
    bells: [Carrier; 2],
}

impl Mixed {
    fn new() -> Arc<Mixed> {
        Arc::new(Mixed {
            wake: Wake::default(),
            asleep: Mutex::new(0),
            published: AtomicU64::new(0),
            bells: [Carrier::new(8), Carrier::new(8)],
        })
    }

    /// As [`Side::publish`]. The carrier wakes both threads.
    fn publish(&self, position: u64) {
        self.published.store(position, Ordering::Release);
        fence(Ordering::SeqCst);
        let rung = match due(&self.wake, |_| None).unwrap() {
            Some(Doorbell::Carrier) => &self.bells[..],
            Some(Doorbell::Pair) => &self.bells[..1],
            None => &[],
        };
        for bells in rung {
            bells.send(&[0]);
        }
    }

    /// As `arming::arm_for` does.
    fn arm(&self, thread: usize) {
        {
            let mut asleep = self.asleep.lock().unwrap();
            let word = &self.wake.wake;
            let asks = !word.load(Ordering::Relaxed).is(WakeWord::None.to_word());
            let is_by_pair = thread == 0 && *asleep == 0 && !asks;
            let bell = match is_by_pair {
                true => WakeWord::PairBell,
                false => WakeWord::Bell,
            };
            *asleep += 1;
            word.store(bell.to_word(), Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// As `arming::disarm` does.
    fn disarm(&self) {
        let mut asleep = self.asleep.lock().unwrap();
        *asleep -= 1;
        let word = match *asleep {
            0 => WakeWord::None,
            _ => WakeWord::Bell,
        };
        self.wake.wake.swap(word.to_word(), Ordering::SeqCst);
    }

    fn has_published(&self, position: u64) -> bool {
        self.published.load(Ordering::Acquire) >= position
    }

    fn wait_for(&self, thread: usize, position: u64) {
        while !self.has_published(position) {
            self.arm(thread);
            if !self.has_published(position) {
                self.bells[thread].wait_for_byte();
            }
            self.disarm();
            self.bells[thread].receive(8, false);
        }
    }
}

#[test]
fn a_sleeper_that_takes_the_pairs_doorbell_is_always_woken() {
    explore(3, || {
        let mixed = Mixed::new();
        let peer = mixed.clone();
        let peer = loom::thread::spawn(move || {
            peer.publish(1);
            peer.publish(2);
        });
        mixed.wait_for(0, 1);
        mixed.wait_for(0, 2);
        peer.join().unwrap();
    });
}

/// The thread beside it does not take the pair's doorbell, so it must be woken by the carrier,
/// whoever sleeps first.
#[test]
fn sleeper_beside_one_that_takes_the_pairs_doorbell_is_woken_too() {
    explore(2, || {
        let mixed = Mixed::new();
        let (other, peer) = (mixed.clone(), mixed.clone());
        let other = loom::thread::spawn(move || other.wait_for(1, 1));
        let peer = loom::thread::spawn(move || peer.publish(1));
        mixed.wait_for(0, 1);
        other.join().unwrap();
        peer.join().unwrap();
    });
}
