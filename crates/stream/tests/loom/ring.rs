//! A ring by itself: both ends spin.

use super::explore;
use super::support::party::{Received, connect_upgraded};
use super::support::{bytes_at, check_bytes};

/// Sends `writes[i]` bytes at a time and receives up to `read` at a time, until all bytes have
/// arrived.
fn pass(writes: &'static [usize], read: usize) {
    let [sender, receiver] = connect_upgraded(8);
    let total: usize = writes.iter().sum();
    let thread = loom::thread::spawn(move || {
        let mut sent = 0;
        for &len in writes {
            let mut left = len;
            while left > 0 {
                let moved = sender.try_send(&bytes_at(sent, left)).unwrap();
                sent += moved as u64;
                left -= moved;
                if moved == 0 {
                    loom::thread::yield_now();
                }
            }
        }
        sender.end().entry.tx_capacity_log2.own()
    });
    let mut got = 0;
    while got < total {
        match receiver.try_receive(read, false).unwrap() {
            Received::Bytes(bytes) => {
                check_bytes(got as u64, &bytes);
                got += bytes.len();
            }
            Received::Nothing => loom::thread::yield_now(),
            Received::End => panic!("nobody ended the stream"),
        }
    }
    thread.join().unwrap();
}

#[test]
fn bytes_are_there_when_their_position_is_and_stay_until_consumed() {
    explore(3, || pass(&[1, 2, 1], 1));
}

#[test]
fn bytes_that_wrap_are_there_too() {
    explore(3, || pass(&[1, 2, 2], 2));
}

#[test]
fn a_ring_that_grows_keeps_its_bytes_in_order() {
    explore(2, || pass(&[2, 3, 4], 8));
}
