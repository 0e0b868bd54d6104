//! A program without rings may read the carrier: a doorbell on it would be taken for data.

use super::explore;
use super::support::bytes_at;
use super::support::party::{Party, connect_upgraded};
use super::switch::receive_until;

/// Two calls of the program that send, and one that sends nothing. Each call follows the peer's
/// wish.
fn send_two(sender: &Party) {
    for position in 0..2 {
        sender.attend();
        sender.try_send(&bytes_at(position, 1)).unwrap();
    }
    sender.attend();
}

#[test]
fn a_carrier_that_is_lent_gets_no_doorbell() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        receiver.ask_for_doorbell();
        let thread = loom::thread::spawn(move || send_two(&sender));
        receiver.lend();
        let lent = receiver.carrier_in().receive(8, true);
        thread.join().unwrap();
        let later = receiver.carrier_in().receive(8, true);
        assert!(
            !lent.contains(&0) && !later.contains(&0),
            "{lent:?} {later:?}"
        );
        receive_until(&receiver, 2);
    });
}

#[test]
fn a_receiver_that_sleeps_on_a_lent_carrier_is_woken() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        receiver.ask_for_doorbell();
        let thread = loom::thread::spawn(move || send_two(&sender));
        receiver.lend();
        receive_until(&receiver, 2);
        thread.join().unwrap();
    });
}
