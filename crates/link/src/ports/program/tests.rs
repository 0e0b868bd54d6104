use super::super::{PortTable, PortUse};
use super::*;
use crate::bpf::{Map, MapKind, Program, ProgramKind};
use std::os::fd::AsRawFd;

const OURS_V4: [u8; 4] = [192, 0, 2, 2];
const OURS_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const REMOTE_V4: [u8; 4] = [192, 0, 2, 1];
const REMOTE_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const LISTENS: u16 = 80;
const HAS_CONNECTIONS: u16 = 61_000;
const ACK: u8 = 0x10;
const SYN_ALONE: u8 = 0x02;

/// The program at each hook. The network namespace has neither address, so the lookup finds no
/// socket.
struct Bench {
    ingress: Program,
    xdp: Program,
    _table: PortTable,
    _maps: [Map; 2],
}

/// `None`, with a printed message, if the privilege is missing.
fn bench() -> Option<Bench> {
    let table = match PortTable::new() {
        Ok(table) => table,
        Err(error) => {
            println!(
                "SKIPPED: ports by the kernel's own run of the program: {error} (CAP_BPF and \
                CAP_NET_ADMIN are needed)"
            );
            return None;
        }
    };
    for ip in [OURS_V4.into(), OURS_V6.into()] {
        let set = |port, how| table.set(0, (ip, port), Some(how)).expect("an entry");
        set(LISTENS, PortUse::Listening);
        set(HAS_CONNECTIONS, PortUse::Connected);
    }
    table.record_heartbeat(0).expect("noted");
    let sockets = Map::new(MapKind::Xsk, 4, 4, 4).expect("a map of sockets");
    let drops = Map::new(MapKind::PerCpuArray, 4, 8, 1).expect("a map of counters");
    let load = |hook, way| {
        let program = Program::load(hook, "toehold_test", &steering(table.maps(), way));
        program.expect("the verifier takes the program")
    };
    let way = Way::Xdp {
        sockets: sockets.as_raw_fd(),
        drops: drops.as_raw_fd(),
    };
    Some(Bench {
        ingress: load(ProgramKind::Ingress, Way::Ingress),
        xdp: load(ProgramKind::Xdp, way),
        _table: table,
        _maps: [sockets, drops],
    })
}

impl Bench {
    /// Whether the hooks, ingress and XDP, take a frame for the engine's.
    fn taken(&self, frame: &[u8]) -> (bool, bool) {
        let verdict = |program: &Program| program.try_out(frame).expect("a run").cast_signed();
        let ingress = match verdict(&self.ingress) {
            TCX_PASS => true,
            TCX_NEXT => false,
            other => panic!("verdict {other}"),
        };
        // The queue has no socket, so the frame is dropped.
        let xdp = match verdict(&self.xdp) {
            1 => true,
            XDP_PASS => false,
            other => panic!("verdict {other}"),
        };
        (ingress, xdp)
    }
}

fn segment(from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes[..2].copy_from_slice(&from.to_be_bytes());
    bytes[2..4].copy_from_slice(&to.to_be_bytes());
    (bytes[12], bytes[13]) = (0x50, flags);
    bytes
}

fn packet_v4(ends: [[u8; 4]; 2], protocol: u8, options: usize, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 20 + options];
    (packet[0], packet[9]) = (0x45 + (options / 4) as u8, protocol);
    packet[12..16].copy_from_slice(&ends[0]);
    packet[16..20].copy_from_slice(&ends[1]);
    packet.extend(payload);
    packet
}

fn packet_v6(ends: [[u8; 16]; 2], next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 8];
    (packet[0], packet[6]) = (0x60, next_header);
    packet.extend(ends.concat());
    packet.extend(payload);
    packet
}

fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
    // Destined to loopback: the kernel's test run uses this interface.
    let mut frame = vec![0; 12];
    frame.extend(kind.to_be_bytes());
    frame.extend(packet);
    frame
}

fn v4(to: u16, flags: u8) -> Vec<u8> {
    let ends = [REMOTE_V4, OURS_V4];
    frame(TYPE_IPV4, &packet_v4(ends, 6, 0, &segment(4000, to, flags)))
}

fn v6(to: u16, flags: u8) -> Vec<u8> {
    let ends = [REMOTE_V6, OURS_V6];
    frame(TYPE_IPV6, &packet_v6(ends, 6, &segment(4000, to, flags)))
}

/// An ICMP error of this type about a segment that was sent from this port.
fn error_v4(kind: u8, from: u16) -> Vec<u8> {
    let quoted = packet_v4([OURS_V4, REMOTE_V4], 6, 0, &segment(from, 4000, ACK)[..8]);
    let message = [&[kind, 4, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
    frame(TYPE_IPV4, &packet_v4([REMOTE_V4, OURS_V4], 1, 0, &message))
}

fn error_v6(kind: u8, from: u16) -> Vec<u8> {
    let quoted = packet_v6([OURS_V6, REMOTE_V6], 6, &segment(from, 4000, ACK)[..8]);
    let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
    frame(TYPE_IPV6, &packet_v6([REMOTE_V6, OURS_V6], 58, &message))
}

#[test]
fn segments_of_the_engines_ports_are_taken() {
    let Some(bench) = bench() else { return };
    for one in [v4, v6] {
        for flags in [SYN_ALONE, ACK, ACK | SYN_ALONE, 0x04] {
            assert_eq!(bench.taken(&one(LISTENS, flags)), (true, true), "{flags}");
        }
        assert_eq!(bench.taken(&one(HAS_CONNECTIONS, ACK)), (true, true));
    }
    let with_options = packet_v4([REMOTE_V4, OURS_V4], 6, 40, &segment(1, LISTENS, ACK));
    assert_eq!(bench.taken(&frame(TYPE_IPV4, &with_options)), (true, true));
    let mut first_fragment = v4(LISTENS, ACK);
    first_fragment[20] = 0x20;
    assert_eq!(bench.taken(&first_fragment), (true, true));
}

#[test]
fn all_else_of_the_address_is_left_to_the_kernel() {
    let Some(bench) = bench() else { return };
    let mut later_fragment = v4(LISTENS, ACK);
    later_fragment[21] = 1;
    let ends = [REMOTE_V4, OURS_V4];
    let udp = packet_v4(ends, 17, 0, &segment(1, LISTENS, ACK));
    let elsewhere = packet_v4([REMOTE_V4, [192, 0, 2, 3]], 6, 0, &segment(1, LISTENS, ACK));
    let echo = packet_v4(ends, 1, 0, &[8; 64]);
    let others = [
        v4(81, SYN_ALONE),
        v6(81, ACK),
        // The engine accepts no new connections on this port.
        v4(HAS_CONNECTIONS, SYN_ALONE),
        v6(HAS_CONNECTIONS, SYN_ALONE),
        later_fragment,
        frame(TYPE_IPV4, &udp),
        frame(TYPE_IPV4, &elsewhere),
        frame(TYPE_IPV4, &echo),
        frame(0x0806, &[0; 60]),
        frame(0x8100, &[0; 80]),
    ];
    for (at, one) in others.iter().enumerate() {
        assert_eq!(bench.taken(one), (false, false), "frame {at}");
    }
}

#[test]
fn errors_are_taken_by_the_port_that_they_quote() {
    let Some(bench) = bench() else { return };
    for kind in [3, 11, 12] {
        assert!(bench.taken(&error_v4(kind, LISTENS)).1, "{kind}");
        assert!(bench.taken(&error_v4(kind, HAS_CONNECTIONS)).1, "{kind}");
        assert!(!bench.taken(&error_v4(kind, 81)).1, "{kind}");
    }
    for kind in 1..=4 {
        assert!(bench.taken(&error_v6(kind, LISTENS)).1, "{kind}");
    }
    for not_for_us in [
        error_v4(8, LISTENS),
        error_v6(0, LISTENS),
        error_v6(128, LISTENS),
        error_v6(2, 81),
    ] {
        assert_eq!(bench.taken(&not_for_us), (false, false));
    }
    // With a packet socket both the kernel and the engine get errors: the socket's own filter
    // accepts them.
    assert!(!bench.taken(&error_v4(3, LISTENS)).0);
}

#[test]
fn frames_cut_short_anywhere_are_left_to_the_kernel() {
    let Some(bench) = bench() else { return };
    // The kernel's test run takes no frame that is shorter than the headers of Ethernet and IP.
    for (whole, shortest) in [(v4(LISTENS, ACK), 34), (v6(LISTENS, ACK), 54)] {
        for length in shortest..whole.len() {
            assert_eq!(bench.taken(&whole[..length]), (false, false), "{length}");
        }
        assert_eq!(bench.taken(&whole), (true, true));
    }
    for (whole, shortest) in [(error_v4(3, LISTENS), 34), (error_v6(2, LISTENS), 54)] {
        for length in shortest..whole.len() {
            assert!(!bench.taken(&whole[..length]).1, "{length}");
        }
    }
}

#[test]
fn port_is_the_kernels_when_no_thread_uses_it_any_more() {
    let Some(bench) = bench() else { return };
    let table = &bench._table;
    let end = (OURS_V4.into(), LISTENS);
    table.set(1, end, Some(PortUse::Connected)).expect("set");
    table.set(0, end, None).expect("set");
    assert_eq!(bench.taken(&v4(LISTENS, ACK)), (true, true));
    assert_eq!(bench.taken(&v4(LISTENS, SYN_ALONE)), (false, false));
    table.set(1, end, None).expect("set");
    table.set(1, end, None).expect("set");
    assert_eq!(bench.taken(&v4(LISTENS, ACK)), (false, false));
}

#[test]
fn ports_to_go_out_from_are_the_engines_but_for_requests() {
    let Some(bench) = bench() else { return };
    let table = &bench._table;
    let outgoing = |ports: &[u16]| {
        let ends = ports.iter().map(|port| (OURS_V4.into(), *port)).collect();
        table.set_outgoing(0, &ends).expect("set");
    };
    let answers = |ports: [u16; 3]| ports.map(|port| bench.taken(&v4(port, ACK)).0);
    outgoing(&[61_001, 61_002, LISTENS]);
    assert_eq!(answers([61_001, 61_002, 61_003]), [true, true, false]);
    assert_eq!(bench.taken(&v4(61_001, SYN_ALONE)), (false, false));
    // A port that also has another use keeps that use.
    assert_eq!(bench.taken(&v4(LISTENS, SYN_ALONE)), (true, true));
    outgoing(&[61_002, 61_003]);
    assert_eq!(answers([61_001, 61_002, 61_003]), [false, true, true]);
    assert_eq!(bench.taken(&v4(LISTENS, SYN_ALONE)), (true, true));
    table.set(0, (OURS_V4.into(), 61_002), None).expect("set");
    assert_eq!(answers([61_001, 61_002, 61_003]), [false, true, true]);
    outgoing(&[]);
    assert_eq!(answers([61_001, 61_002, 61_003]), [false; 3]);
}

#[test]
fn requests_are_the_kernels_while_a_thread_is_silent() {
    let Some(bench) = bench() else { return };
    let requests = || [v4, v6].map(|one| bench.taken(&one(LISTENS, SYN_ALONE)));
    assert_eq!(requests(), [(true, true); 2]);
    std::thread::sleep(super::super::SILENCE_MAX);
    // One awake thread does not stand in for another thread.
    bench._table.record_heartbeat(1).expect("noted");
    assert_eq!(requests(), [(false, false); 2]);
    for one in [v4, v6] {
        assert_eq!(bench.taken(&one(LISTENS, ACK)), (true, true));
    }
    bench._table.record_heartbeat(0).expect("noted");
    assert_eq!(requests(), [(true, true); 2]);
}
