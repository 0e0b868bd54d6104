//! The facts of real sockets, where this kernel and this user have them.

use super::*;
use crate::listener::cookie_of;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;

fn witness() -> Option<Witness> {
    let loaded = Witness::load();
    loaded
        .map_err(|why| println!("SKIPPED: no proof by the kernel's facts: {why}"))
        .ok()
}

fn connections<const N: usize>(address: &str) -> [(TcpStream, TcpStream); N] {
    let listener = TcpListener::bind(address).expect("bound");
    let here = listener.local_addr().expect("bound");
    std::array::from_fn(|_| {
        let one = TcpStream::connect(here).expect("connected");
        (one, listener.accept().expect("accepted").0)
    })
}

fn cookie(socket: impl AsFd) -> u64 {
    cookie_of(socket.as_fd(), libc::SO_COOKIE).expect("a socket")
}

fn facts(witness: &Witness, socket: &TcpStream) -> Facts {
    let facts = witness.remember(socket.as_fd(), cookie(socket));
    facts.expect("established")
}

#[test]
fn only_the_two_ends_of_one_connection_are_proved() {
    let Some(witness) = witness() else { return };
    let mut all = Vec::new();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        all.extend(connections::<20>(address));
    }
    let facts: Vec<[Facts; 2]> = all
        .iter()
        .map(|(one, other)| [facts(&witness, one), facts(&witness, other)])
        .collect();
    for (n, [one, other]) in facts.iter().enumerate() {
        assert_eq!(one.verdict(other), Verdict::Proved);
        assert_eq!(other.verdict(one), Verdict::Proved);
        let partners = one.numbers.of_partner();
        assert!(partners.contains(&other.numbers));
        for (m, ends) in facts.iter().enumerate().filter(|(m, _)| *m != n) {
            for stranger in ends {
                assert_eq!(one.verdict(stranger), Verdict::Refuted, "{n} and {m}");
                assert_eq!(other.verdict(stranger), Verdict::Refuted, "{n} and {m}");
            }
        }
        assert_ne!(one.verdict(one), Verdict::Proved);
    }
}

#[test]
fn facts_are_found_again_after_the_descriptor_is_closed_and_while_bytes_pass() {
    let Some(witness) = witness() else { return };
    let [(mut one, mut other)] = connections("127.0.0.1:0");
    let before = {
        let copy = one.try_clone().expect("a descriptor");
        facts(&witness, &copy)
    };
    facts(&witness, &other);
    let (a, b) = (cookie(&one), cookie(&other));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2_000 {
                one.write_all(&[7; 10_000]).expect("sent");
            }
            one.shutdown(std::net::Shutdown::Write).expect("shut");
        });
        let mut proved = 0;
        let mut buffer = vec![0; 10_000];
        loop {
            if other.read(&mut buffer).expect("received") == 0 {
                break;
            }
            if let (Some(a), Some(b)) = (witness.facts(a), witness.facts(b)) {
                assert_eq!(a.numbers, before.numbers);
                proved += usize::from(a.verdict(&b) == Verdict::Proved);
            }
        }
        assert!(proved > 0);
    });
}

#[test]
fn what_is_another_socket_or_none_has_no_facts() {
    let Some(witness) = witness() else { return };
    let [(one, other)] = connections("127.0.0.1:0");
    let (a, b) = (cookie(&one), cookie(&other));
    assert!(witness.remember(one.as_fd(), b).is_none(), "not its cookie");
    assert!(witness.facts(a).is_none(), "never remembered");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
    assert!(witness.remember(udp.as_fd(), cookie(&udp)).is_none());
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let its = cookie(&listener);
    assert!(witness.remember(listener.as_fd(), its).is_none());
    let file = tempfile::tempfile().expect("a file");
    assert!(witness.remember(file.as_fd(), 0).is_none());
    facts(&witness, &one);
    assert!(witness.facts(a).is_some());
    witness.forget(a);
    assert!(witness.facts(a).is_none());
    facts(&witness, &one);
    drop(other);
    assert!(witness.facts(a).is_none(), "it is closing");
    assert!(witness.check().is_ok());
}

#[test]
fn both_directions_have_to_fit() {
    let numbers = |sent, received| Numbers { sent, received };
    let facts = |numbers, tx_hash, rx_hash| Facts {
        numbers,
        tx_hash,
        rx_hash,
    };
    let opened = facts(numbers(100, 900), 1, 2);
    let accepted = facts(numbers(900, 101), 2, 1);
    assert_eq!(opened.verdict(&accepted), Verdict::Proved);
    for (tx_hash, rx_hash) in [(2, 3), (3, 1), (0, 1), (2, 0), (0, 0), (1, 2)] {
        let other = facts(accepted.numbers, tx_hash, rx_hash);
        assert_eq!(opened.verdict(&other), Verdict::Doubtful);
    }
    for (sent, received) in [(900, 100), (901, 101), (900, 102), (899, 102), (101, 900)] {
        let other = facts(numbers(sent, received), 2, 1);
        assert_eq!(opened.verdict(&other), Verdict::Refuted);
    }
}
