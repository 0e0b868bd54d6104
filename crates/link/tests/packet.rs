//! Packet sockets at both ends of a virtual Ethernet in a network namespace of its own.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use toehold_link::{
    Group, PacketError, PacketOptions, PacketSocket, PortError, PortSteering, PortUse, VnetHeader,
};
use toehold_network::Namespace;
use toehold_tcp::{ChecksumWork, Random, Share, TransmitOffload};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// Runs `test` in a network namespace of its own, with `v0` and `v1` joined there. Prints a message
/// where namespaces are not possible.
fn with_veth(test: impl FnOnce() + Send) {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let joined = namespace.add_veth("v0", &namespace, "v1", "");
    joined.expect("a veth can be made in a namespace of ours");
    namespace.within(|| {
        for name in ["v0", "v1"] {
            assert!(ip(&format!("link set {name} addrgenmode none")));
            assert!(ip(&format!("link set {name} up")));
        }
        test();
    });
}

/// Runs `ip` in this thread's namespace; true when it succeeded.
fn ip(words: &str) -> bool {
    toehold_network::ip(words).is_ok()
}

/// Waits for a frame: a busy kernel may keep the frame for a while.
fn await_frame(socket: &PacketSocket) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while socket.peek().is_none() {
        assert!(Instant::now() < deadline, "no frame arrives");
        thread::yield_now();
    }
}

fn open(end: usize) -> PacketSocket {
    let options = PacketOptions {
        mac: Some(MACS[end]),
        group: None,
    };
    PacketSocket::open(["v0", "v1"][end], options).expect("the interface is there")
}

/// A frame from end 0 to end 1 that carries its number.
fn frame(number: usize, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[..6].copy_from_slice(&MACS[1]);
    frame[6..12].copy_from_slice(&MACS[0]);
    // An Ethernet type for experiments (IEEE 802).
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    for (at, byte) in frame[14..].iter_mut().enumerate() {
        *byte = (number + at * 7) as u8;
    }
    frame
}

fn send(socket: &PacketSocket, frame: &[u8]) -> bool {
    let mut buffer = vec![0; VnetHeader::BYTES];
    buffer.extend(frame);
    socket
        .send_behind_header(VnetHeader::default(), &mut buffer)
        .expect("the interface is up")
}

#[test]
fn frames_of_all_sizes_arrive_as_they_were_sent_and_in_order() {
    with_veth(|| {
        let (from, mut to) = (open(0), open(1));
        // More frames in total than the ring has slots.
        for number in 0..10_000 {
            let length = 60 + number * 13 % 1_455;
            let sent = frame(number, length);
            assert!(send(&from, &sent));
            await_frame(&to);
            let arrival = to.peek().expect("it is there");
            assert_eq!((arrival.length, arrival.bytes), (length, &sent[..]));
            to.release();
            assert!(to.peek().is_none());
        }
        assert_eq!(to.take_lost(), 0);
    });
}

#[test]
fn frames_in_several_parts_and_larger_than_a_slot_are_read_into_several() {
    with_veth(|| {
        assert!(ip("link set v0 mtu 9000") && ip("link set v1 mtu 9000"));
        let from = open(0);
        // The slots have the size of the MTU at the time of opening.
        assert!(ip("link set v1 mtu 1500"));
        let mut to = open(1);
        assert!(ip("link set v1 mtu 9000"));
        let sent = frame(3, 9_014);
        let (headers, payload) = sent.split_at(66);
        let parts = [(headers.as_ptr(), 66), (payload.as_ptr(), payload.len())];
        // SAFETY: both parts are borrowed from `sent`.
        let taken = unsafe { from.send_raw(VnetHeader::default(), &parts) };
        assert!(taken.expect("the interface is up"));
        assert!(send(&from, &frame(4, 100)));
        await_frame(&to);
        let arrival = to.peek().expect("it is there");
        assert!(arrival.is_kept && arrival.bytes.len() < arrival.length);
        assert_eq!(arrival.bytes, &sent[..arrival.bytes.len()]);
        // Events of the interface come in between; the frame is not lost because of them.
        assert!(ip("link set v1 down") && ip("link set v1 up"));
        let mut got = vec![0u8; 9_100];
        let (first, rest) = got.split_at_mut(66);
        let parts = [(first.as_mut_ptr(), 66), (rest.as_mut_ptr(), rest.len())];
        // SAFETY: both parts are ours.
        assert_eq!(unsafe { to.receive_raw(&parts) }, Some(9_014));
        assert_eq!(got[..9_014], sent);
        // The next frame is in one slot again.
        await_frame(&to);
        assert_eq!(to.peek().expect("it is there").bytes, frame(4, 100));
        to.release();
        // A frame that is longer than all parts together is not taken for a shorter one.
        assert_eq!(to.take_lost(), 0);
        assert!(send(&from, &frame(5, 9_014)) && send(&from, &frame(6, 100)));
        await_frame(&to);
        let parts = [(got.as_mut_ptr(), 9_013)];
        // SAFETY: the part is ours.
        assert_eq!(unsafe { to.receive_raw(&parts) }, None);
        assert_eq!(to.take_lost(), 1);
        await_frame(&to);
        assert_eq!(to.peek().expect("it is there").bytes, frame(6, 100));
    });
}

#[test]
fn large_segments_are_cut_where_the_other_end_wants_them_cut() {
    with_veth(|| {
        let off = "-K v0 tso off gso on";
        let cut = Command::new("ethtool").args(off.split(' ')).output();
        if !cut.is_ok_and(|output| output.status.success()) {
            return eprintln!("SKIPPED: ethtool is not installed");
        }
        let (from, mut to) = (open(0), open(1));
        let (sent, header) = large_segment();
        let parts = [(sent.as_ptr(), sent.len())];
        // SAFETY: borrowed.
        assert!(unsafe { from.send_raw(header, &parts) }.expect("the interface is up"));
        let mut payload = Vec::new();
        while payload.len() < 20_000 {
            await_frame(&to);
            let arrival = to.peek().expect("it is there");
            assert!(arrival.length <= 1_514 && arrival.bytes.len() == arrival.length);
            payload.extend_from_slice(&arrival.bytes[HEADERS_BYTES..]);
            to.release();
        }
        assert_eq!(payload, sent[HEADERS_BYTES..]);
    });
}

const HEADERS_BYTES: usize = 54;

/// 20,000 bytes of TCP over IPv4, to be cut into segments of 1,460 bytes. The link computes their
/// checksums.
fn large_segment() -> (Vec<u8>, VnetHeader) {
    let mut sent = frame(9, HEADERS_BYTES + 20_000);
    sent[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    let ip = &mut sent[14..34];
    ip.copy_from_slice(&[
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    ip[2..4].copy_from_slice(&20_040u16.to_be_bytes());
    let tcp = &mut sent[34..HEADERS_BYTES];
    tcp.copy_from_slice(&[
        0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
    ]);
    let header = VnetHeader::for_transmit(&TransmitOffload {
        checksum: ChecksumWork::Link { start: 34, at: 16 },
        segment_bytes: 1_460,
        header_bytes: HEADERS_BYTES as u16,
        is_v6: false,
        has_cwr: false,
    });
    (sent, header)
}

#[test]
fn what_a_full_ring_cannot_take_is_counted() {
    with_veth(|| {
        let (from, mut to) = (open(0), open(1));
        for number in 0..5_000 {
            assert!(send(&from, &frame(number, 100)));
        }
        let (mut kept, mut lost) = (0, to.take_lost());
        while kept as u64 + lost < 5_000 {
            await_frame(&to);
            let arrival = to.peek().expect("it is there");
            assert_eq!(arrival.bytes, frame(kept, 100), "the first ones are kept");
            to.release();
            kept += 1;
            lost += to.take_lost();
        }
        assert!(lost > 0 && to.peek().is_none());
        assert_eq!(to.take_lost(), 0, "said once");
        assert!(send(&from, &frame(7, 100)));
        await_frame(&to);
    });
}

#[test]
fn what_the_kernel_has_no_memory_for_is_counted() {
    with_veth(|| {
        const COUNT: u64 = 2_000;
        let (from, mut to) = (open(0), open(1));
        let (sent, header) = large_segment();
        let parts = [(sent.as_ptr(), sent.len())];
        for _ in 0..COUNT {
            // SAFETY: borrowed.
            assert!(unsafe { from.send_raw(header, &parts) }.expect("the interface is up"));
        }
        let (mut whole, mut lost) = (0, to.take_lost());
        let mut got = vec![0u8; sent.len()];
        while whole + lost < COUNT {
            await_frame(&to);
            if to.peek().expect("it is there").is_kept {
                let room = [(got.as_mut_ptr(), got.len())];
                // SAFETY: ours.
                assert_eq!(unsafe { to.receive_raw(&room) }, Some(sent.len()));
                whole += 1;
            } else {
                to.release_lost();
            }
            lost += to.take_lost();
        }
        assert!(whole > 0 && lost > 0, "{whole} and {lost}");
        assert!(to.peek().is_none());
    });
}

#[test]
fn frames_for_others_are_not_seen_and_interfaces_come_and_go() {
    with_veth(|| {
        let (from, to) = (open(0), open(1));
        let mut other = frame(1, 100);
        other[5] = 9;
        assert!(send(&from, &other));
        assert!(to.peek().is_none() && from.peek().is_none());
        assert!(ip("link set v1 down"));
        to.clear_error();
        assert!(ip("link set v1 up"));
        // The socket still accepts the address, and still watches the interface.
        let arrived = (0..100).any(|number| {
            thread::sleep(Duration::from_millis(10));
            send(&from, &frame(number, 100)) && to.peek().is_some()
        });
        assert!(arrived);
        let missing = PacketSocket::open(
            "nosuch0",
            PacketOptions {
                mac: Some(MACS[0]),
                group: None,
            },
        );
        assert!(
            matches!(missing, Err(PacketError::Interface(..))),
            "{missing:?}"
        );
        let loopback = PacketSocket::open(
            "lo",
            PacketOptions {
                mac: Some(MACS[0]),
                group: None,
            },
        );
        assert!(
            matches!(loopback, Err(PacketError::Medium(_))),
            "{loopback:?}"
        );
    });
}

/// The frame with the tag of a virtual LAN (IEEE 802.1Q, section 9). Number 0 means no virtual LAN.
fn tagged(frame: &[u8], lan: u16) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    let priority = 5 << 13;
    let tag = [0x8100u16, priority | lan].map(u16::to_be_bytes).concat();
    [addresses, &tag, rest].concat()
}

#[test]
fn frames_of_a_virtual_lan_are_not_the_interfaces() {
    with_veth(|| {
        let (from, mut to) = (open(0), open(1));
        for number in 0..100 {
            // The kernel removes tags before any socket sees the frame (`skb_vlan_untag`).
            assert!(send(&from, &tagged(&frame(number, 100), 5)));
            assert!(send(&from, &frame(number, 200)));
            await_frame(&to);
            let arrival = to.peek().expect("it is there");
            assert_eq!(arrival.bytes, frame(number, 200), "not the one with a tag");
            to.release();
        }
        assert!(to.peek().is_none());
        assert!(send(&from, &tagged(&frame(1, 100), 0)));
        await_frame(&to);
        let arrival = to.peek().expect("a priority is no virtual LAN");
        assert_eq!(arrival.bytes, frame(1, 100));
    });
}

/// A TCP segment from the remote at end 0 to the engines at end 1, which share this Ethernet
/// address.
fn segment(mac: [u8; 6], local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let ports = [remote.port(), local.port()].map(u16::to_be_bytes).concat();
    let (ether_type, header) = match (local.ip(), remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let mut header = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0];
            header.extend(remote.octets().iter().chain(&local.octets()));
            (0x0800u16, header)
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 40, 6, 64];
            header.extend(remote.octets().iter().chain(&local.octets()));
            (0x86dd, header)
        }
        _ => unreachable!("both ends have addresses of one version"),
    };
    let mut frame = [
        &mac[..],
        &MACS[0],
        &ether_type.to_be_bytes(),
        &header,
        &ports,
    ]
    .concat();
    frame.resize(frame.len() + 36, 0);
    frame
}

fn end(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

const LOCALS: [&str; 2] = ["10.0.0.1", "fd00::1"];
const REMOTES: [&str; 2] = ["10.9.8.7", "fd12:3456:789a::7"];

/// The program at end 1, where the engine has connections at port 80 of both addresses; `None`,
/// with a message, where the program is not possible.
fn steering() -> Option<PortSteering> {
    let steering = match PortSteering::attach("v1") {
        Ok(steering) => steering,
        Err(error) => {
            println!("SKIPPED: {error}");
            return None;
        }
    };
    for ip in LOCALS {
        let set = (steering.ports()).set(0, (end(ip, 0).ip(), 80), Some(PortUse::Connected));
        set.expect("the port is set");
    }
    Some(steering)
}

/// Each engine's socket gets the frames of that engine's connections, and no others.
fn members_are_given_their_own_connections(mac: Option<[u8; 6]>) {
    let from = open(0);
    let shares = Share::among(3, &mut Random::new(5));
    let member = |share: &Share| {
        let group = Group {
            number: 77,
            spread: share.spread(),
        };
        let group = Some(group);
        PacketSocket::open("v1", PacketOptions { mac, group }).expect("the interface is there")
    };
    let mut members: Vec<PacketSocket> = shares.iter().map(member).collect();
    let mut counts = [0; 3];
    for number in 0..300u16 {
        let version = usize::from(number % 2);
        let (local, remote) = (LOCALS[version], REMOTES[version]);
        let (local, remote) = (end(local, 80), end(remote, 1_000 + number));
        let owner = shares[0].owner(local, remote);
        assert!(send(&from, &segment(members[0].mac(), local, remote)));
        await_frame_of_either(&mut members[owner]);
        members[owner].release();
        counts[owner] += 1;
    }
    for member in &mut members {
        member.take_turns();
        assert!(member.peek().is_none());
    }
    assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
    if mac.is_some() {
        // A frame of no connection goes to one of the members.
        assert!(send(&from, &frame(1, 100)));
        await_frame(&members[0]);
    }
}

#[test]
fn members_of_a_group_are_given_their_own_connections() {
    with_veth(|| members_are_given_their_own_connections(Some(MACS[1])));
}

#[test]
fn members_of_a_group_that_shares_an_address_are_given_their_own_connections() {
    with_veth(|| {
        let Some(_steering) = steering() else { return };
        members_are_given_their_own_connections(None);
    });
}

/// As [`await_frame`], for either version of IP.
fn await_frame_of_either(socket: &mut PacketSocket) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while socket.peek().is_none() {
        assert!(Instant::now() < deadline, "no frame arrives");
        thread::yield_now();
        socket.take_turns();
    }
}

#[test]
fn neither_version_of_ip_waits_for_the_other_where_an_address_is_shared() {
    with_veth(|| {
        let Some(_steering) = steering() else { return };
        let (mac, group) = (None, None);
        let opened = PacketSocket::open("v1", PacketOptions { mac, group });
        let (from, mut to) = (open(0), opened.expect("the interface is there"));
        assert_eq!(to.queues().count(), 2);
        let [v4, v6] = [0, 1].map(|version| {
            let (local, remote) = (end(LOCALS[version], 80), end(REMOTES[version], 1_000));
            segment(to.mac(), local, remote)
        });
        for _ in 0..100 {
            assert!(send(&from, &v4));
        }
        for taken in 0..100 {
            // The frame becomes visible while frames of the other version wait before it.
            assert!(send(&from, &v6));
            let deadline = Instant::now() + Duration::from_secs(10);
            while to.peek().is_none_or(|arrival| arrival.bytes != v6) {
                assert!(Instant::now() < deadline, "after {taken}");
                thread::yield_now();
                to.take_turns();
            }
            to.release();
            // The frames of the other version have their turn, too.
            to.take_turns();
            assert_eq!(to.peek().expect("it waits").bytes, v4, "after {taken}");
            to.release();
        }
        to.take_turns();
        assert!(to.peek().is_none() && to.take_lost() == 0);
        // The kernel answers nothing: it has dropped the frames.
        assert!(from.peek().is_none());
    });
}

/// A packet link needs only CAP_NET_RAW; a link that shares an address needs more.
#[test]
fn capabilities_for_a_shared_address_are_named() {
    with_veth(|| {
        toehold_network::keep_net_raw_alone();
        open(0);
        let error = PortSteering::attach("v0").expect_err("it is refused");
        assert!(matches!(error, PortError::Privilege), "{error}");
        let said = error.to_string();
        assert!(said.contains("CAP_BPF and CAP_NET_ADMIN"), "{said}");
    });
}
