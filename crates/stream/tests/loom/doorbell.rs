//! The sleep protocol: a lost wake-up shows as a deadlock.

use std::sync::Arc;

use super::explore;
use super::support::carrier::Carrier;
use super::support::party::connect_upgraded;
use super::support::{bytes_at, check_bytes};
use super::switch::receive_until;
use toehold_channel::doorbell::{
    Doorbell, SLEEPS_NOT, SLEEPS_ON_CARRIER, SLEEPS_ON_PAIR, WakeWord, due, mark, must_ring,
};
use toehold_channel::layout::{ReadyBitmap, Wake};
use toehold_channel::sync::{AtomicU64, Ordering, fence};

#[test]
fn a_receiver_that_sleeps_for_bytes_is_always_woken() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        let thread = loom::thread::spawn(move || {
            sender.try_send(&bytes_at(0, 1)).unwrap();
            sender.try_send(&bytes_at(1, 1)).unwrap();
        });
        receive_until(&receiver, 2);
        thread.join().unwrap();
    });
}

#[test]
fn a_sender_that_sleeps_for_credit_is_always_woken() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        let thread = loom::thread::spawn(move || {
            for position in 0..3 {
                sender.send(&bytes_at(position, 1)).unwrap();
            }
            assert_eq!(sender.end().entry.downgrades.load(Ordering::Relaxed), 0);
        });
        let mut got = 0;
        while got < 3 {
            let bytes = receiver.receive(1).unwrap();
            check_bytes(got, &bytes);
            got += 1;
        }
        thread.join().unwrap();
    });
}

#[test]
fn of_two_notifiers_exactly_one_rings_a_doorbell() {
    explore(3, || {
        let wake = Arc::new(Wake::default());
        wake.wake.store(WakeWord::Bell.to_word(), Ordering::SeqCst);
        let other = wake.clone();
        let thread = loom::thread::spawn(move || must_ring(&other, |_| None).unwrap());
        let here = must_ring(&wake, |_| None).unwrap();
        let there = thread.join().unwrap();
        assert!(here ^ there, "rung here: {here}, there: {there}");
    });
}

#[test]
fn doorbells_that_another_waiter_has_taken_are_not_taken_again() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        sender.ring_once();
        let thread = loom::thread::spawn(move || {
            sender.go_down();
            sender.try_send(&bytes_at(0, 1)).unwrap();
        });
        // Two threads have peeked at one doorbell; each thread takes the doorbell under the lock.
        let seen = 1;
        receiver.take_seen(seen);
        receiver.take_seen(seen);
        check_bytes(0, &receiver.receive(8).unwrap());
        thread.join().unwrap();
    });
}

/// Two connections of one epoll instance: the position that each has published, the ready bitmap
/// that both mark, and the sleep that any doorbell ends.
struct Instance {
    /// The sleep word during a sleep.
    sleeping: u32,
    bitmap: ReadyBitmap,
    wakes: [Wake; 2],
    published: [AtomicU64; 2],
    /// The carrier, or the pair's `eventfd`.
    bells: Carrier,
}

const BITS: [u32; 2] = [3, 40];

impl Instance {
    fn new(sleeping: u32) -> Arc<Instance> {
        let instance = Instance {
            sleeping,
            bitmap: ReadyBitmap::default(),
            wakes: [Wake::default(), Wake::default()],
            published: [AtomicU64::new(0), AtomicU64::new(0)],
            bells: Carrier::new(8),
        };
        for (wake, bit) in instance.wakes.iter().zip(BITS) {
            let word = WakeWord::Bitmap { bitmap: 0, bit };
            wake.wake.store(word.to_word(), Ordering::SeqCst);
        }
        Arc::new(instance)
    }

    /// Sends as a sender does: publish, pass a barrier, check whether to ring.
    fn publish(&self, connection: usize, position: u64) {
        self.published[connection].store(position, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(doorbell) = due(&self.wakes[connection], |_| Some(&self.bitmap)).unwrap() {
            let is_pair = self.sleeping == SLEEPS_ON_PAIR;
            assert_eq!(
                doorbell == Doorbell::Pair,
                is_pair,
                "the sleeper has said which"
            );
            self.bells.send(&[0]);
        }
    }

    /// Waits as `epoll_wait` does, until both connections have published `until`.
    fn wait_until(&self, until: [u64; 2]) {
        let mut seen = [0; 2];
        loop {
            if self.sweep(&mut seen) {
                if seen == until {
                    return;
                }
                continue;
            }
            self.bitmap.sleeping.store(self.sleeping, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !self.sweep(&mut seen) {
                self.bells.wait_for_byte();
                if self.sleeping == SLEEPS_ON_PAIR {
                    // Those of an earlier sleep as well.
                    self.bells.receive(8, false);
                }
            }
            self.bitmap.sleeping.store(SLEEPS_NOT, Ordering::SeqCst);
            if self.sleeping == SLEEPS_ON_CARRIER {
                self.bells.receive(8, false);
            }
            if seen == until {
                return;
            }
        }
    }

    /// Takes the bits and checks the connections that they stand for. True when there were any
    /// bits.
    fn sweep(&self, seen: &mut [u64; 2]) -> bool {
        let word = &self.bitmap.bits[0];
        if word.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let bits = word.swap(0, Ordering::SeqCst);
        for connection in 0..2 {
            if bits.has(1 << BITS[connection]) {
                seen[connection] = self.published[connection].load(Ordering::Acquire);
            }
        }
        true
    }
}

/// A thread that slept for a doorbell wakes by itself. It sees the news and puts the ready bitmap's
/// word back, while the notifier is about to ring.
#[test]
fn a_bitmap_hears_of_news_that_a_sleeper_beside_it_has_seen() {
    explore(3, || {
        let instance = Instance::new(SLEEPS_ON_CARRIER);
        let word = &instance.wakes[0].wake;
        let bitmap = word.swap(WakeWord::Bell.to_word(), Ordering::SeqCst);
        let notifier = instance.clone();
        let thread = loom::thread::spawn(move || notifier.publish(0, 1));
        if instance.wakes[0].wake.swap(bitmap, Ordering::SeqCst) == WakeWord::None.to_word() {
            mark(&instance.bitmap, BITS[0]);
        }
        thread.join().unwrap();
        let mut seen = [0; 2];
        assert!(instance.sweep(&mut seen), "nobody has marked the bitmap");
        assert_eq!(seen, [1, 0]);
    });
}

#[test]
fn an_epoll_instance_that_sleeps_on_a_bitmap_is_always_woken() {
    for sleeping in [SLEEPS_ON_CARRIER, SLEEPS_ON_PAIR] {
        explore(3, move || {
            let instance = Instance::new(sleeping);
            let other = instance.clone();
            let thread = loom::thread::spawn(move || {
                other.publish(0, 1);
                other.publish(0, 2);
            });
            instance.wait_until([2, 0]);
            thread.join().unwrap();
        });
    }
}

#[test]
fn two_connections_wake_one_bitmap_and_both_are_found() {
    for sleeping in [SLEEPS_ON_CARRIER, SLEEPS_ON_PAIR] {
        explore(2, move || {
            let instance = Instance::new(sleeping);
            let threads = [0, 1].map(|connection| {
                let other = instance.clone();
                loom::thread::spawn(move || other.publish(connection, 1))
            });
            instance.wait_until([1, 1]);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}
