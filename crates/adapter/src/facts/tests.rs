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
    let seen = witness.remember(socket.as_fd(), cookie(socket));
    seen.and_then(|seen| seen.facts).expect("established")
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
    let seen = witness.remember(one.as_fd(), b);
    assert!(seen.is_none(), "not its cookie");
    assert!(witness.facts(a).is_none(), "never remembered");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    for other in [udp.as_fd(), listener.as_fd()] {
        let its = cookie(other);
        let nothing = Seen {
            ends: None,
            facts: None,
        };
        assert_eq!(witness.remember(other, its), Some(nothing));
        assert!(witness.facts(its).is_none(), "it is not remembered");
    }
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

/// The addresses are those that the kernel reports, in both families and for IPv4 on a socket of
/// IPv6.
#[test]
fn the_addresses_of_a_socket_are_read_without_its_lock() {
    let Some(witness) = witness() else { return };
    let listener = TcpListener::bind("[::]:0").expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let one = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let mixed = (one, listener.accept().expect("accepted").0);
    let [v4] = connections("127.0.0.1:0");
    let [v6] = connections("[::1]:0");
    for (one, other) in [&mixed, &v4, &v6] {
        for socket in [one, other] {
            let seen = witness.remember(socket.as_fd(), cookie(socket));
            let ends = seen.and_then(|seen| seen.ends).expect("established");
            let known = [socket.local_addr(), socket.peer_addr()];
            let known = known.map(|address| Address::from(address.expect("connected")));
            assert_eq!(ends, known);
        }
    }
}

/// A process that may change sequence numbers could use up all places with sockets that have no
/// facts, because only a socket with facts is forgotten with its claim.
#[test]
fn a_socket_without_facts_takes_no_place() {
    let Some(witness) = witness() else { return };
    let [(one, _other)] = connections("127.0.0.1:0");
    let repair = |on: libc::c_int| {
        use std::os::fd::AsRawFd;
        let length = size_of_val(&on) as libc::socklen_t;
        let value = (&raw const on).cast();
        // SAFETY: `on` is valid for its length.
        let set = unsafe {
            let fd = one.as_raw_fd();
            libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, value, length)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    };
    repair(1);
    let seen = witness
        .remember(one.as_fd(), cookie(&one))
        .expect("it is one");
    assert!(seen.ends.is_some() && seen.facts.is_none());
    repair(0);
    assert!(
        witness.facts(cookie(&one)).is_none(),
        "it is not remembered"
    );
    facts(&witness, &one);
}

#[test]
fn a_file_is_ours_alone_when_its_last_other_descriptor_is_closed() {
    let Some(witness) = witness() else { return };
    let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert!(witness.is_ours_alone(one.as_fd()));
    let copy = one.try_clone().expect("a descriptor");
    assert!(!witness.is_ours_alone(one.as_fd()));
    assert!(!witness.is_ours_alone(copy.as_fd()));
    drop(one);
    assert!(witness.is_ours_alone(copy.as_fd()) && witness.is_ours_alone(other.as_fd()));
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
