//! Tests of leaving: the two ends' wishes about a channel, and the check whether a reset answers
//! nothing but a doorbell.

#![cfg(not(loom))]

mod support;

use support::bytes_at;
use support::party::{Party, Received, connect_upgraded};
use toehold_channel::layout::{CLOSED_ALL, CLOSED_CLEAN, CLOSED_TURN, CLOSED_TX, EVICT, REFUSE};
use toehold_channel::ring::Fault;
use toehold_channel::sync::Ordering;
use toehold_stream::end::End;
use toehold_stream::express::Turn;
use toehold_stream::leaving::Refusal;

/// Both ends of a channel on which `us` has sent four bytes, which the peer has not read.
fn sent() -> [Party; 2] {
    let [us, peer] = connect_upgraded(64);
    assert_eq!(us.try_send(&bytes_at(0, 4)), Ok(4));
    [us, peer]
}

fn read(peer: &Party) {
    assert!(matches!(peer.try_receive(4, false), Ok(Received::Bytes(_))));
}

#[test]
fn reset_after_a_clean_close_is_an_end_when_all_was_read() {
    let [us, peer] = sent();
    peer.end().close(true);
    assert!(
        !us.end().is_reset_by_doorbell(true),
        "four bytes are unread"
    );
    let [us, peer] = sent();
    read(&peer);
    peer.end().close(true);
    assert!(us.end().is_reset_by_doorbell(false));
    // Our direction came down because the peer has closed, and we have sent nothing since.
    us.go_down();
    assert!(us.end().is_reset_by_doorbell(false));
    us.try_send(&bytes_at(4, 1)).unwrap();
    assert!(!us.end().is_reset_by_doorbell(false), "a byte is lost");
}

#[test]
fn turn_that_the_peer_ends_leaves_the_carrier_open() {
    let [us, peer] = sent();
    read(&peer);
    assert!(!us.end().has_closed_carrier());
    // The peer is about to store the number of the turn that it has ended.
    let closed = &peer.end().ours().wake.closed;
    closed.store(CLOSED_ALL | CLOSED_CLEAN | CLOSED_TURN, Ordering::Release);
    assert!(!us.end().has_closed_carrier());
    peer.end().end_turn(Turn::FIRST);
    assert!(!us.end().has_closed_carrier());
    for words in [CLOSED_TX, CLOSED_ALL, CLOSED_ALL | CLOSED_CLEAN] {
        closed.store(words, Ordering::Release);
        assert!(us.end().has_closed_carrier(), "{words}");
    }
}

#[test]
fn reset_after_another_close_is_a_reset() {
    let [us, peer] = sent();
    read(&peer);
    peer.end().close(false);
    assert!(!us.end().is_reset_by_doorbell(true));
}

#[test]
fn reset_of_a_peer_that_was_killed_is_an_end_unless_it_wanted_a_reset() {
    let idle = || {
        let [us, peer] = sent();
        read(&peer);
        [us, peer]
    };
    let [us, peer] = idle();
    assert!(us.end().is_reset_by_doorbell(true));
    assert!(!us.end().is_reset_by_doorbell(false), "an engine");
    peer.end()
        .ours()
        .wake
        .closed
        .store(CLOSED_TX, Ordering::Relaxed);
    assert!(
        us.end().is_reset_by_doorbell(true),
        "its own direction only"
    );
    let words: [fn(&End<'_>); 3] = [
        |end| end.ours().wake.resets.store(1, Ordering::Relaxed),
        |end| end.ours().wake.abandoned.store(1, Ordering::Relaxed),
        |end| end.refuse(Refusal::Paused),
    ];
    for word in words {
        let [us, peer] = idle();
        word(&peer.end());
        assert!(!us.end().is_reset_by_doorbell(true));
    }
}

#[test]
fn bytes_on_the_carrier_that_a_killed_peer_has_not_read_are_lost() {
    let [us, peer] = connect_upgraded(64);
    us.go_down();
    assert_eq!(peer.try_receive(1, false), Ok(Received::Nothing));
    assert_eq!(us.try_send(&bytes_at(0, 3)), Ok(3), "on the carrier");
    assert_eq!(us.try_up(), Ok(true));
    assert!(!us.end().is_reset_by_doorbell(true));
    read(&peer);
    assert_eq!(peer.try_receive(1, false), Ok(Received::Nothing));
    assert!(
        us.end().is_reset_by_doorbell(true),
        "it has read up to the ring"
    );
}

#[test]
fn stronger_wish_of_the_two_ends_holds() {
    let [us, peer] = connect_upgraded(64);
    assert_eq!(us.end().refusal(), Refusal::None);
    assert!(us.end().is_welcome() && !us.end().is_wanted_down());
    us.end().refuse(Refusal::Paused);
    assert_eq!(peer.end().refusal(), Refusal::Paused);
    assert!(peer.end().is_wanted_down() && !us.end().is_wanted_down());
    peer.end().refuse(Refusal::Over);
    assert_eq!(us.end().refusal(), Refusal::Over);
    peer.end().refuse(Refusal::None);
    us.end().refuse(Refusal::None);
    assert_eq!(
        us.end().refusal(),
        Refusal::None,
        "both have thought better of it"
    );
    // Any other number from a hostile peer counts as a wish to stay on the carrier.
    let refuse = &peer.end().ours().wake.refuse;
    for word in [REFUSE, EVICT + 1, u32::MAX] {
        refuse.store(word, Ordering::Relaxed);
        assert_eq!(us.end().refusal(), Refusal::Paused);
    }
}

#[test]
fn channel_is_left_when_both_directions_are_down_and_both_ends_know() {
    let [us, peer] = sent();
    assert_eq!(us.try_leave(), Ok(false), "both directions are rings");
    us.go_down();
    peer.go_down();
    assert_eq!(us.try_receive(1, false), Ok(Received::Nothing));
    assert_eq!(us.try_leave(), Ok(false), "the peer has not read the ring");
    read(&peer);
    assert_eq!(us.try_leave(), Ok(false), "nor carried out our record");
    assert_eq!(peer.try_receive(1, false), Ok(Received::Nothing));
    assert_eq!(us.try_leave(), Ok(true));
    assert!(us.end().has_left() && !us.end().has_peer_left());
    assert!(peer.end().has_peer_left());
    assert_eq!(peer.try_leave(), Ok(true));
    assert_eq!(us.try_up(), Ok(false), "for good");
}

#[test]
fn peer_that_acknowledges_too_much_is_at_fault() {
    let [us, peer] = connect_upgraded(64);
    us.go_down();
    peer.go_down();
    assert_eq!(us.try_receive(1, false), Ok(Received::Nothing));
    let acknowledged = &peer.end().ours().consume.acknowledged;
    acknowledged.store(77, Ordering::Relaxed);
    assert_eq!(us.try_leave(), Err(Fault::Record));
}
