//! A member of a fork family is killed between any two of its steps, and another one goes on with
//! the connection: [`toehold_stream::takeover`].

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::explore;
use super::support::party::{Party, connect, connect_upgraded};
use toehold_channel::sync::kill;

/// Explores `model` with each number of steps after which its process is killed, until the process
/// outlives its steps. The model returns whether it did.
fn kill_after_each_step(
    preemptions: usize,
    model: impl Fn(u32) -> bool + Copy + Sync + Send + 'static,
) {
    static IS_KILLED: AtomicBool = AtomicBool::new(false);
    static TURNS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURNS.lock();
    for steps in 0.. {
        IS_KILLED.store(false, Relaxed);
        explore(preemptions, move || {
            if !model(steps) {
                IS_KILLED.store(true, Relaxed);
            }
        });
        if !IS_KILLED.load(Relaxed) {
            // A sanity check: even a send has some steps.
            assert!(steps > 5);
            return;
        }
    }
}

/// Receives until `last` has come, or the stream has ended.
fn receive_until(receiver: &Party, last: u8) -> Vec<u8> {
    let mut got: Vec<u8> = Vec::new();
    while got.last() != Some(&last) {
        let bytes = receiver.receive(8).unwrap();
        if bytes.is_empty() {
            return got;
        }
        got.extend(bytes);
    }
    got
}

/// Bytes of a stream in which each is greater than the one before it, and none is a doorbell.
fn assert_in_order(bytes: &[u8]) {
    assert!(bytes.windows(2).all(|two| two[0] < two[1]), "{bytes:?}");
    assert!(!bytes.contains(&0), "{bytes:?}");
}

#[test]
fn a_sender_goes_on_where_a_killed_one_stopped() {
    kill_after_each_step(1, |steps| {
        let [sender, receiver] = connect(8);
        let thread = loom::thread::spawn(move || {
            let got = receive_until(&receiver, 12);
            assert_in_order(&got);
            let (killed, survivor) = got.split_at(got.len() - 2);
            assert_eq!(survivor, [11, 12]);
            assert_eq!(killed, &[1, 2, 3][..killed.len()]);
        });
        let outlives = kill::outlives(steps, || {
            sender.try_send(&[1]).unwrap();
            sender.try_up().unwrap();
            sender.try_send(&[2]).unwrap();
            sender.go_down();
            sender.try_send(&[3]).unwrap();
        });
        sender.survive();
        sender.send(&[11]).unwrap();
        sender.try_up().unwrap();
        sender.send(&[12]).unwrap();
        thread.join().unwrap();
        outlives
    });
}

#[test]
fn a_receiver_goes_on_where_a_killed_one_stopped() {
    kill_after_each_step(1, |steps| {
        let [sender, receiver] = connect_upgraded(8);
        let thread = loom::thread::spawn(move || {
            for byte in 1..=4 {
                sender.send(&[byte]).unwrap();
            }
            sender.go_down();
            sender.send(&[5]).unwrap();
        });
        let mut got = Vec::new();
        let outlives = kill::outlives(steps, || {
            while got.last() < Some(&4) {
                got.extend(receiver.receive(1).unwrap());
            }
        });
        receiver.survive();
        let rest = receive_until(&receiver, 5);
        thread.join().unwrap();
        // The call that was killed may have consumed a byte.
        assert!(got.len() + rest.len() >= 4 && rest.last() == Some(&5));
        got.extend(rest);
        assert_in_order(&got);
        outlives
    });
}

#[test]
fn a_request_to_resend_outlives_a_receiver() {
    kill_after_each_step(2, |steps| {
        let [sender, receiver] = connect_upgraded(8);
        assert_eq!(sender.try_send(&[1, 2]), Ok(2));
        let thread = loom::thread::spawn(move || {
            sender.go_down();
            sender.send(&[3]).unwrap();
            sender.send(&[4]).unwrap();
        });
        let mut got = Vec::new();
        let outlives = kill::outlives(steps, || {
            got.extend(receiver.receive(1).unwrap());
            receiver.ask_to_resend();
            got.extend(receiver.receive(1).unwrap());
            got.extend(receiver.receive(1).unwrap());
        });
        receiver.survive();
        let rest = receive_until(&receiver, 4);
        thread.join().unwrap();
        assert!(got.len() + rest.len() >= 3 && rest.last() == Some(&4));
        got.extend(rest);
        assert_in_order(&got);
        outlives
    });
}

#[test]
fn unread_bytes_come_once_or_the_connection_ends() {
    kill_after_each_step(2, |steps| {
        let [sender, receiver] = connect_upgraded(8);
        assert_eq!(sender.try_send(&[1, 2]), Ok(2));
        let carrier = receiver.clone();
        let thread = loom::thread::spawn(move || {
            receiver.ask_to_resend();
            let got = receive_until(&receiver, 4);
            assert_in_order(&got);
            got
        });
        let outlives = kill::outlives(steps, || {
            sender.go_down();
            sender.try_send(&[3]).unwrap();
        });
        sender.survive();
        let is_reset = carrier.carrier_in().was_reset();
        if !is_reset {
            // Every send begins like this when the peer wants the direction down.
            sender.go_down();
            sender.send(&[4]).unwrap();
        }
        let got = thread.join().unwrap();
        assert!(
            is_reset || got == [1, 2, 3, 4] || got == [1, 2, 4],
            "{got:?}"
        );
        outlives
    });
}
