//! Parked carriers and the queue of carriers that wait for `accept`. Of two ends that want one
//! carrier, one end gets it. No connection is left without an end that has it.

use std::sync::Arc;

use super::explore;
use super::support::carrier::Carrier as Bells;
use toehold_channel::doorbell::{WakeWord, must_ring};
use toehold_channel::express::{AcceptQueue, REQUEST_BYTES, Turns};
use toehold_channel::layout::{ReadyBitmap, Wake};
use toehold_channel::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_hint};
use toehold_stream::express::{Carrier, Popper, Push, Pusher, Queued, Turn, Unclaimed};

const CONNECTING: usize = 0;
const ACCEPTING: usize = 1;
const SLOT: u32 = 5;

/// A carrier, the queue of its pair, and what one connection left in the ring for the other end.
#[derive(Default)]
struct Shared {
    turns: Turns,
    queue: AcceptQueue,
    pushed: AtomicU32,
    popped: AtomicU32,
    /// Stands for bytes of a ring: `Relaxed`, so that only the protocol orders them.
    bytes: AtomicU64,
    /// Stands for the position up to which the accepting end has read the bytes.
    read: AtomicU64,
}

impl Shared {
    fn parked() -> Arc<Shared> {
        let shared = Arc::new(Shared::default());
        shared.carrier(CONNECTING).end(Turn::FIRST);
        shared.carrier(ACCEPTING).end(Turn::FIRST);
        shared
    }

    fn carrier(&self, side: usize) -> Carrier<'_> {
        Carrier::new(&self.turns, side)
    }

    fn pusher(&self) -> Pusher<'_> {
        Pusher {
            words: &self.queue,
            pushed: &self.pushed,
        }
    }

    fn popper(&self) -> Popper<'_> {
        Popper {
            words: &self.queue,
            popped: &self.popped,
        }
    }

    /// Claims the carrier and queues it; returns the turn, if the connection may still be accepted.
    fn connect(&self, after: Turn) -> Option<Turn> {
        let turn = self.carrier(CONNECTING).try_claim(after).ok()?;
        let slot = SLOT;
        let push = self.pusher().push(Queued { slot, turn }).unwrap();
        let is_kept = match push {
            Push::Queued => true,
            Push::Full | Push::Closed | Push::ClosedMeanwhile => {
                !self.carrier(CONNECTING).give_up(turn)
            }
        };
        is_kept.then_some(turn)
    }
}

#[test]
fn a_claim_and_a_retirement_do_not_both_have_the_carrier() {
    explore(3, || {
        let shared = Shared::parked();
        let other = shared.clone();
        let claiming =
            loom::thread::spawn(move || other.carrier(CONNECTING).try_claim(Turn::FIRST).ok());
        let left = shared.carrier(ACCEPTING).retire(Turn::FIRST);
        let claimed = claiming.join().unwrap();
        // The retiring end learns of the connection that came first, and of no other.
        assert_eq!(claimed, left);
        assert!(
            !shared
                .carrier(CONNECTING)
                .is_parked(Turn::numbered(1).unwrap())
        );
    });
}

#[test]
fn two_threads_do_not_claim_one_carrier() {
    explore(3, || {
        let shared = Shared::parked();
        let other = shared.clone();
        let claim = |shared: &Shared| shared.carrier(CONNECTING).try_claim(Turn::FIRST).is_ok();
        let there = loom::thread::spawn(move || claim(&other));
        let here = claim(&shared);
        assert!(here ^ there.join().unwrap());
    });
}

/// Both ends have closed the carrier. The accepting end closed it long before it had sent on all
/// its bytes.
#[test]
fn a_freed_carrier_is_claimed_when_all_was_sent_on_and_says_where_it_leads() {
    explore(3, || {
        let shared = Shared::parked();
        shared.queue.places.store(1, Ordering::Relaxed);
        let other = shared.clone();
        let program = loom::thread::spawn(move || {
            let carrier = other.carrier(CONNECTING);
            if !carrier.is_freed_by_peer(Turn::FIRST) {
                return;
            }
            assert_eq!(other.read.load(Ordering::Relaxed), 1, "all was sent on");
            let turn = carrier
                .try_claim(Turn::FIRST)
                .expect("nobody else claims it");
            carrier.request(&[7; REQUEST_BYTES]);
            let queued = Queued { slot: SLOT, turn };
            assert_eq!(other.pusher().push(queued), Ok(Push::Queued));
        });
        shared.read.store(1, Ordering::Relaxed);
        let carrier = shared.carrier(ACCEPTING);
        carrier.free(Turn::FIRST);
        if let Some(queued) = shared.popper().pop().unwrap() {
            assert!(carrier.accept(queued.turn));
            assert_eq!(carrier.requested(), [7; REQUEST_BYTES]);
        }
        program.join().unwrap();
    });
}

#[test]
fn a_carrier_is_claimed_only_when_the_other_end_has_read_and_closed() {
    explore(3, || {
        let shared = Arc::new(Shared::default());
        shared.queue.places.store(1, Ordering::Relaxed);
        let other = shared.clone();
        shared.carrier(CONNECTING).end(Turn::FIRST);
        let accepting = loom::thread::spawn(move || {
            // The last of the first connection's bytes is read, then the accepting end closes the
            // carrier.
            other.read.store(1, Ordering::Relaxed);
            other.carrier(ACCEPTING).end(Turn::FIRST);
            let queued = loop {
                match other.popper().pop().unwrap() {
                    Some(queued) => break queued,
                    None => spin_hint(),
                }
            };
            assert_eq!(queued.slot, SLOT);
            assert!(other.carrier(ACCEPTING).accept(queued.turn));
            assert_eq!(
                other.bytes.load(Ordering::Relaxed),
                7,
                "published before the push"
            );
            other.carrier(ACCEPTING).end(queued.turn);
        });
        let turn = loop {
            match shared.carrier(CONNECTING).try_claim(Turn::FIRST) {
                Ok(turn) => break turn,
                Err(unclaimed) => assert_eq!(unclaimed, Unclaimed::InUse),
            }
            spin_hint();
        };
        assert_eq!(
            shared.read.load(Ordering::Relaxed),
            1,
            "all was read before"
        );
        shared.bytes.store(7, Ordering::Relaxed);
        let slot = SLOT;
        let push = shared.pusher().push(Queued { slot, turn });
        assert_eq!(push, Ok(Push::Queued));
        while !shared.carrier(CONNECTING).is_ended_by_peer(turn) {
            spin_hint();
        }
        accepting.join().unwrap();
        assert!(!shared.carrier(CONNECTING).is_waiting(turn));
        assert!(
            !shared.carrier(CONNECTING).is_parked(turn),
            "we have not closed it"
        );
        shared.carrier(CONNECTING).end(turn);
        assert!(shared.carrier(CONNECTING).is_parked(turn));
    });
}

#[test]
fn a_listener_that_closes_leaves_no_connection_waiting() {
    explore(3, || {
        let shared = Shared::parked();
        shared.popper().open(2);
        let other = shared.clone();
        let connecting = loom::thread::spawn(move || other.connect(Turn::FIRST));
        shared.popper().close();
        let mut refused = 0;
        while let Some(queued) = shared.popper().pop().unwrap() {
            refused += u32::from(shared.carrier(ACCEPTING).give_up(queued.turn));
        }
        // If the connecting end goes on, then with a connection that was refused: it sees a reset.
        // It never waits for an accept that does not come.
        let turn = connecting.join().unwrap();
        assert!(refused <= 1);
        assert!(turn.is_none() || refused == 1);
        let next = Turn::numbered(1).unwrap();
        assert!(
            !shared.carrier(CONNECTING).is_waiting(next),
            "somebody has decided"
        );
    });
}

#[test]
fn an_accept_and_a_withdrawal_do_not_both_succeed() {
    explore(3, || {
        let shared = Shared::parked();
        let turn = shared.carrier(CONNECTING).try_claim(Turn::FIRST).unwrap();
        let other = shared.clone();
        let accepting = loom::thread::spawn(move || other.carrier(ACCEPTING).accept(turn));
        let withdrawn = shared.carrier(CONNECTING).give_up(turn);
        assert!(withdrawn ^ accepting.join().unwrap());
    });
}

#[test]
fn connections_are_accepted_in_the_order_in_which_they_were_made() {
    explore(3, || {
        let shared = Arc::new(Shared::default());
        shared.popper().open(2);
        let other = shared.clone();
        let turn = Turn::FIRST;
        let connecting = loom::thread::spawn(move || {
            let mut slot = 0;
            while slot < 3 {
                match other.pusher().push(Queued { slot, turn }).unwrap() {
                    Push::Queued => slot += 1,
                    Push::Full => spin_hint(),
                    closed => panic!("{closed:?}"),
                }
            }
        });
        let mut slot = 0;
        while slot < 3 {
            match shared.popper().pop().unwrap() {
                Some(queued) => {
                    assert_eq!(queued, Queued { slot, turn });
                    slot += 1;
                }
                None => spin_hint(),
            }
        }
        connecting.join().unwrap();
    });
}

/// The server sleeps in `epoll_wait`, as `sockets::epoll::waiting` does; the client notifies the
/// server as any sender would.
#[test]
fn a_server_that_sleeps_is_always_woken_for_a_connection() {
    explore(3, || {
        let shared = Shared::parked();
        shared.popper().open(2);
        let (bitmap, wake) = (ReadyBitmap::default(), Wake::default());
        let word = WakeWord::Bitmap {
            bitmap: 0,
            bit: SLOT,
        };
        wake.wake.store(word.to_word(), Ordering::SeqCst);
        let beside = Arc::new((bitmap, wake, Bells::new(8)));
        let (other, theirs) = (shared.clone(), beside.clone());
        let connecting = loom::thread::spawn(move || {
            let turn = other.connect(Turn::FIRST).unwrap();
            let (bitmap, wake, bells) = &*theirs;
            if must_ring(wake, |_| Some(bitmap)).unwrap() {
                bells.send(&[0]);
            }
            turn
        });
        let (bitmap, _, bells) = &*beside;
        let queued = loop {
            if let Some(queued) = shared.popper().pop().unwrap() {
                break queued;
            }
            bitmap.sleeping.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if shared.popper().waiting() == Ok(0) && bitmap.bits[0].load(Ordering::SeqCst) == 0 {
                bells.wait_for_byte();
            }
            bitmap.sleeping.store(0, Ordering::SeqCst);
            bells.receive(8, false);
        };
        assert!(shared.carrier(ACCEPTING).accept(queued.turn));
        assert_eq!(connecting.join().unwrap(), queued.turn);
    });
}

#[test]
fn a_reader_that_sleeps_is_always_woken_by_the_end_of_a_turn() {
    explore(3, || {
        let shared = Arc::new(Shared::default());
        let beside = Arc::new((Wake::default(), Bells::new(8)));
        let (other, theirs) = (shared.clone(), beside.clone());
        let closing = loom::thread::spawn(move || {
            other.bytes.store(7, Ordering::Relaxed);
            other.carrier(ACCEPTING).end(Turn::FIRST);
            let (wake, bells) = &*theirs;
            if must_ring(wake, |_| None).unwrap() {
                bells.send(&[0]);
            }
        });
        let (wake, bells) = &*beside;
        let has_ended = || shared.carrier(CONNECTING).is_ended_by_peer(Turn::FIRST);
        if !has_ended() {
            (wake.wake).store(WakeWord::Bell.to_word(), Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !has_ended() {
                bells.wait_for_byte();
            }
        }
        assert!(has_ended());
        let bytes = shared.bytes.load(Ordering::Relaxed);
        assert_eq!(bytes, 7, "sent before the end");
        closing.join().unwrap();
    });
}

/// Plays the connecting end, step by step; it is killed before step `dies_at`.
fn connect_and_die(shared: &Shared, dies_at: u32) {
    if dies_at == 0 {
        return;
    }
    let Ok(turn) = shared.carrier(CONNECTING).try_claim(Turn::FIRST) else {
        return;
    };
    if dies_at == 1 {
        return;
    }
    let slot = SLOT;
    shared.pusher().push(Queued { slot, turn }).unwrap();
    if dies_at == 2 {
        return;
    }
    shared.carrier(CONNECTING).end(turn);
}

#[test]
fn a_client_killed_at_any_step_leaves_a_carrier_that_can_be_closed() {
    for dies_at in 0..4 {
        explore(2, move || {
            let shared = Shared::parked();
            shared.popper().open(2);
            let other = shared.clone();
            let client = loom::thread::spawn(move || connect_and_die(&other, dies_at));
            // A connection that the client queued while it lived may be accepted at any time.
            let mut accepted = 0;
            let mut accept = || {
                while let Some(queued) = shared.popper().pop().unwrap() {
                    assert!(shared.carrier(ACCEPTING).accept(queued.turn));
                    accepted += 1;
                }
            };
            accept();
            client.join().unwrap();
            // The carrier has ended. A connection in the queue is still accepted: the kernel, too,
            // returns a connection that was closed before `accept`.
            let is_queued = shared.popper().has(SLOT).unwrap();
            accept();
            assert!(!is_queued || accepted == 1);
            assert_eq!(accepted == 1, dies_at >= 2);
            if accepted == 0 {
                match shared.carrier(ACCEPTING).retire(Turn::FIRST) {
                    None => assert_eq!(dies_at, 0),
                    Some(turn) => assert!(shared.carrier(ACCEPTING).give_up(turn)),
                }
            }
        });
    }
}

#[test]
fn a_server_killed_at_any_step_is_distinguished_from_one_that_accepted() {
    for dies_at in 0..3 {
        explore(2, move || {
            let shared = Shared::parked();
            shared.popper().open(2);
            let other = shared.clone();
            let server = loom::thread::spawn(move || {
                if dies_at == 0 {
                    return;
                }
                let Some(queued) = other.popper().pop().unwrap() else {
                    return;
                };
                if dies_at == 2 {
                    assert!(other.carrier(ACCEPTING).accept(queued.turn));
                }
            });
            let turn = shared.connect(Turn::FIRST).unwrap();
            server.join().unwrap();
            // The carrier has ended. A connection that was accepted has ended in order. A
            // connection that was refused is reported to the client as a reset. Either way the
            // carrier is retired.
            if shared.carrier(CONNECTING).is_waiting(turn) {
                assert!(shared.carrier(CONNECTING).give_up(turn));
            } else {
                assert_eq!(dies_at, 2);
                shared.carrier(CONNECTING).end(turn);
                assert_eq!(shared.carrier(CONNECTING).retire(turn), None);
            }
            assert!(shared.carrier(CONNECTING).try_claim(turn).is_err());
        });
    }
}
