//! Leaving a channel for good. The end that frees the rings after both have left touches nothing
//! that the other end still uses. Ring bytes under the model checker report every unordered access.

use super::explore;
use super::support::bytes_at;
use super::support::party::{Party, Received, connect_upgraded};
use toehold_channel::sync::spin_hint;
use toehold_stream::leaving::Refusal;

/// Takes the bytes that come until the channel can be left, and leaves it; returns their number.
fn leave(party: &Party) -> usize {
    let mut got = 0;
    loop {
        if let Received::Bytes(bytes) = party.try_receive(8, false).unwrap() {
            got += bytes.len();
        }
        if party.try_leave().unwrap() {
            return got;
        }
        spin_hint();
    }
}

#[test]
fn no_end_uses_the_rings_once_both_have_left() {
    explore(2, || {
        let [ours, theirs] = connect_upgraded(8);
        let peer = loom::thread::spawn(move || {
            theirs.try_send(&bytes_at(0, 1)).unwrap();
            theirs.go_down();
            leave(&theirs)
        });
        ours.end().refuse(Refusal::Over);
        ours.go_down();
        assert_eq!(leave(&ours), 1, "what was published before comes before");
        while !ours.end().has_peer_left() {
            spin_hint();
        }
        ours.overwrite_rings();
        assert_eq!(peer.join().unwrap(), 0);
        assert_eq!(ours.try_up(), Ok(false), "for good");
    });
}
