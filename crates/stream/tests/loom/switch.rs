//! Directions that move between carrier and ring while bytes flow: rules 1 to 4 of
//! `toehold_stream::end`.

use super::explore;
use super::support::party::{Party, connect, connect_upgraded};
use super::support::{bytes_at, check_bytes};
use toehold_channel::table::Mode;

/// Receives until `until` bytes have come, sleeping in between.
pub(super) fn receive_until(receiver: &Party, until: u64) {
    let mut got = 0;
    while got < until {
        let bytes = receiver.receive(8).unwrap();
        assert!(!bytes.is_empty(), "the stream ended at {got}");
        check_bytes(got, &bytes);
        got += bytes.len() as u64;
    }
}

/// Receives until the stream ends and returns the number of its bytes.
fn receive_to_end(receiver: &Party) -> u64 {
    let mut got = 0;
    loop {
        let bytes = receiver.receive(8).unwrap();
        if bytes.is_empty() {
            return got;
        }
        check_bytes(got, &bytes);
        got += bytes.len() as u64;
    }
}

#[test]
fn a_stream_that_goes_up_and_down_keeps_its_order() {
    explore(2, || {
        let [sender, receiver] = connect(8);
        let thread = loom::thread::spawn(move || {
            sender.try_send(&bytes_at(0, 1)).unwrap();
            assert_eq!(sender.try_up(), Ok(true));
            sender.try_send(&bytes_at(1, 1)).unwrap();
            sender.go_down();
            sender.try_send(&bytes_at(2, 1)).unwrap();
        });
        receive_until(&receiver, 3);
        thread.join().unwrap();
    });
}

#[test]
fn a_second_switch_up_waits_until_the_first_is_acknowledged() {
    explore(2, || {
        let [sender, receiver] = connect(8);
        let thread = loom::thread::spawn(move || {
            assert_eq!(sender.try_up(), Ok(true));
            sender.try_send(&bytes_at(0, 1)).unwrap();
            sender.go_down();
            // The receiver may or may not have carried out both records; in either case the byte
            // follows the other bytes.
            let again = sender.try_up().unwrap();
            sender.try_send(&bytes_at(1, 1)).unwrap();
            if again {
                sender.go_down();
                assert_eq!(sender.end().tx_mode(), Mode::Carrier);
            }
            sender.try_send(&bytes_at(2, 1)).unwrap();
        });
        receive_until(&receiver, 3);
        thread.join().unwrap();
    });
}

#[test]
fn a_sender_without_credit_survives_a_peer_that_goes_down() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        // The ring is full before the interesting part begins.
        assert_eq!(sender.try_send(&bytes_at(0, 2)), Ok(2));
        let thread = loom::thread::spawn(move || {
            sender.send(&bytes_at(2, 1)).unwrap();
        });
        receiver.go_down();
        receive_until(&receiver, 3);
        thread.join().unwrap();
    });
}

#[test]
fn a_sender_without_credit_survives_a_peer_that_goes_down_and_reads_no_more() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        assert_eq!(sender.try_send(&bytes_at(0, 2)), Ok(2));
        let thread = loom::thread::spawn(move || {
            // No thread makes room in the ring: only the kernel's buffer can take this byte.
            sender.send(&bytes_at(2, 1)).unwrap();
            sender.end().tx_mode()
        });
        receiver.go_down();
        assert_eq!(thread.join().unwrap(), Mode::Carrier);
    });
}

#[test]
fn a_sender_without_credit_survives_a_peer_that_half_closes() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        assert_eq!(sender.try_send(&bytes_at(0, 2)), Ok(2));
        let thread = loom::thread::spawn(move || sender.send(&bytes_at(2, 1)).unwrap());
        receiver.shut_down();
        receive_until(&receiver, 3);
        thread.join().unwrap();
    });
}

#[test]
fn two_senders_that_fill_both_rings_and_go_down_both_finish() {
    explore(2, || {
        let parties = connect_upgraded(8);
        for party in &parties {
            assert_eq!(party.try_send(&bytes_at(0, 2)), Ok(2));
        }
        let [one, other] = parties;
        let thread = loom::thread::spawn(move || {
            other.go_down();
            other.send(&bytes_at(2, 1)).unwrap();
            receive_until(&other, 3);
        });
        one.send(&bytes_at(2, 1)).unwrap();
        receive_until(&one, 3);
        thread.join().unwrap();
    });
}

#[test]
fn a_half_close_comes_after_every_byte_of_the_ring() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        let thread = loom::thread::spawn(move || {
            sender.try_send(&bytes_at(0, 1)).unwrap();
            sender.shut_down();
        });
        assert_eq!(receive_to_end(&receiver), 1);
        thread.join().unwrap();
    });
}

#[test]
fn bytes_that_a_process_published_before_it_died_are_received() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        let thread = loom::thread::spawn(move || {
            sender.try_send(&bytes_at(0, 1)).unwrap();
            sender.try_send(&bytes_at(1, 1)).unwrap();
            // The kernel closes the carrier of a process that was killed; no process publishes a
            // record.
            sender.carrier_out().end();
        });
        assert_eq!(receive_to_end(&receiver), 2);
        thread.join().unwrap();
    });
}

#[test]
fn bytes_that_a_reader_left_in_the_ring_come_by_the_carrier() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        assert_eq!(sender.try_send(&bytes_at(0, 1)), Ok(1));
        let thread = loom::thread::spawn(move || {
            sender.try_send(&bytes_at(1, 1)).unwrap();
            sender.go_down();
            sender.try_send(&bytes_at(2, 1)).unwrap();
        });
        if receiver.ask_to_resend() {
            assert_eq!(receiver.end().rx_mode(), Mode::Resend);
        }
        receive_until(&receiver, 3);
        thread.join().unwrap();
        assert_eq!(receiver.end().rx_mode(), Mode::Carrier);
    });
}

#[test]
fn a_direction_that_ends_in_its_ring_is_read_there_or_came_by_the_carrier() {
    explore(3, || {
        let [sender, receiver] = connect_upgraded(8);
        assert_eq!(sender.try_send(&bytes_at(0, 1)), Ok(1));
        let thread = loom::thread::spawn(move || {
            sender.try_send(&bytes_at(1, 1)).unwrap();
            sender.close();
            sender.end().tx_mode()
        });
        let asked = receiver.ask_to_resend();
        assert_eq!(receive_to_end(&receiver), 2);
        let expected = if asked { Mode::Carrier } else { Mode::Ring };
        assert_eq!(thread.join().unwrap(), expected);
    });
}

#[test]
fn a_stream_whose_reader_asked_can_go_up_again() {
    explore(2, || {
        let [sender, receiver] = connect_upgraded(8);
        assert_eq!(sender.try_send(&bytes_at(0, 2)), Ok(2));
        let thread = loom::thread::spawn(move || {
            sender.go_down();
            // The ring is full until the receiver has seen the record.
            if sender.try_up().unwrap() {
                assert_eq!(sender.try_send(&bytes_at(2, 1)), Ok(1));
                sender.go_down();
            } else {
                sender.try_send(&bytes_at(2, 1)).unwrap();
            }
        });
        receiver.ask_to_resend();
        receive_until(&receiver, 3);
        thread.join().unwrap();
    });
}
