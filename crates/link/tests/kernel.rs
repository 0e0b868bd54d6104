//! The engine against this machine's kernel, over a TAP device in a network namespace of its own:
//! the kernel's TCP is the oracle. Skips, loudly, where that cannot be made.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration as RealDuration, Instant as Clock};

use toehold_link::{Tap, TapOptions, VnetHeader};
use toehold_tcp::{
    Config, ConnectionId, Engine, Event, Instant, InterfaceAddress, MacAddress, Medium, Memory,
    NoRoom, Offload, Options, Random, ReceiveOffload,
};

const RING_BYTES: usize = 1 << 22;

/// One meeting of the engine and the kernel.
#[derive(Clone, Copy, Debug)]
struct Case {
    engine_connects: bool,
    is_v6: bool,
    mtu: u16,
    /// Segmentation and checksums are left to the other side, both ways.
    offloads: bool,
    trouble: Trouble,
    bytes: usize,
}

/// What happens to one in `every` frames, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    None,
    Loss { every: u64 },
    Duplication { every: u64 },
    Reordering { every: u64 },
    Corruption { every: u64 },
}

/// Frames on their way through a trouble.
struct Way {
    trouble: Trouble,
    random: Random,
    held: Option<(VnetHeader, Vec<u8>)>,
}

impl Way {
    fn new(trouble: Trouble, seed: u64) -> Self {
        Self {
            trouble,
            random: Random::new(seed),
            held: None,
        }
    }

    /// What arrives when this frame is sent.
    fn pass(&mut self, header: VnetHeader, frame: &[u8]) -> Vec<(VnetHeader, Vec<u8>)> {
        let mut strikes = |every: u64| self.random.below(every) == 0;
        let mut frame = frame.to_vec();
        let mut arriving = match self.trouble {
            Trouble::Loss { every } if strikes(every) => vec![],
            Trouble::Duplication { every } if strikes(every) => {
                vec![(header, frame.clone()), (header, frame)]
            }
            Trouble::Reordering { every } if self.held.is_none() && strikes(every) => {
                self.held = Some((header, frame));
                return vec![];
            }
            Trouble::Corruption { every } if frame.len() > 60 && strikes(every) => {
                // Behind the addresses and the IP header: what TCP's own checksum protects.
                let at = 54 + self.random.below(frame.len() as u64 - 54) as usize;
                frame[at] ^= 0x10;
                vec![(header, frame)]
            }
            _ => vec![(header, frame)],
        };
        arriving.extend(self.held.take());
        arriving
    }
}

/// Byte `offset` of every stream here.
fn byte_at(offset: usize) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8
}

/// Whole streams in memory.
#[derive(Default)]
struct Streams {
    received: Vec<u8>,
}

impl Memory for Streams {
    fn place(&mut self, _: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = offset as usize + bytes.len();
        if end > RING_BYTES {
            return Err(NoRoom);
        }
        self.received.resize(self.received.len().max(end), 0);
        self.received[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, offset: u64, target: &mut [u8]) {
        for (index, byte) in target.iter_mut().enumerate() {
            *byte = byte_at(offset as usize + index);
        }
    }
}

/// Moves this thread, and those it starts, into a namespace with a configured TAP device.
fn isolated(case: Case) -> Option<Tap> {
    // SAFETY: `unshare` changes only which network this thread sees.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        eprintln!("SKIPPED: cannot make a network namespace (CAP_SYS_ADMIN is needed)");
        return None;
    }
    let options = TapOptions {
        multi_queue: false,
        receive_checksum: case.offloads,
        receive_large: case.offloads,
    };
    let tap = match Tap::open("toe0", options) {
        Ok(tap) => tap,
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            return None;
        }
    };
    let commands = [
        format!("link set toe0 mtu {}", case.mtu),
        "addr add 10.9.0.1/24 dev toe0".to_owned(),
        if case.is_v6 {
            "addr add fd09::1/64 dev toe0 nodad"
        } else {
            "link set lo up"
        }
        .to_owned(),
        "link set toe0 up".to_owned(),
    ];
    for command in commands {
        let status = Command::new("ip").args(command.split(' ')).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: `ip {command}` failed");
            return None;
        }
    }
    Some(tap)
}

/// An engine at 10.9.0.2 that echoes what it is sent, or (active) sends and expects the same back,
/// until `is_over`.
fn drive(tap: &Tap, case: Case, connect_to: Option<SocketAddr>, is_over: &dyn Fn() -> bool) {
    let offloads = case.offloads;
    let mac = MacAddress([2, 0, 0, 0, 9, 2]);
    let address = InterfaceAddress {
        address: engine_address(case),
        prefix_bits: 24,
    };
    let medium = Medium::Ethernet { mac, resolve: true };
    let mut config = Config::new(medium, case.mtu, address);
    if offloads {
        config.offload = Offload {
            transmit_checksum: true,
            segmentation_bytes_max: 60_000,
        };
    }
    let began = Clock::now();
    let clock = || Instant::from_micros(began.elapsed().as_micros() as u64 + 1);
    let mut engine = Engine::new(config, Random::new(began.elapsed().subsec_nanos().into()));
    let mut streams = Streams::default();
    let local = SocketAddr::new(engine_address(case), 7);
    let listener = engine.listen(local, 4, Options::default()).unwrap();
    let mut frame = vec![0; 70_000];
    let mut active = connect_to.map(|remote| {
        engine
            .connect(clock(), None, remote, Options::default())
            .unwrap()
    });
    let mut way_in = Way::new(case.trouble, 1);
    let mut way_out = Way::new(case.trouble, 2);
    // The kernel's program may be done while its last bytes are still on their way.
    let mut is_closed = false;
    while !(is_over() && is_closed) {
        while let Some((length, header)) = tap.receive(&mut frame).unwrap() {
            for (header, frame) in way_in.pass(header, &frame[..length]) {
                let offload = if offloads {
                    header.receive_offload()
                } else {
                    ReceiveOffload::default()
                };
                engine.handle_frame(clock(), &frame, offload, &mut streams);
            }
        }
        engine.handle_timeout(clock());
        while let Some(event) = engine.poll_event() {
            match event {
                Event::Acceptable(_) => {
                    let _accepted = engine.accept(listener);
                }
                Event::Connected(id) => {
                    engine.publish(id, case.bytes as u64).unwrap();
                    engine.finish(clock(), id).unwrap();
                }
                Event::Progress {
                    connection,
                    received,
                    remote_finished,
                    ..
                } => {
                    engine.take(clock(), connection, received).unwrap();
                    if active != Some(connection) {
                        // Echo: the streams have the same bytes at the same places.
                        engine.publish(connection, received).unwrap();
                        if remote_finished {
                            engine.finish(clock(), connection).unwrap();
                        }
                    }
                }
                Event::Closed { connection, .. } => {
                    engine.release(clock(), connection).unwrap();
                    is_closed = true;
                    active = active.filter(|&id| id != connection);
                }
                _ => {}
            }
        }
        while let Some((length, offload)) = engine.poll_frame(clock(), &mut streams, &mut frame) {
            let header = VnetHeader::for_transmit(&offload);
            for (header, frame) in way_out.pass(header, &frame[..length]) {
                tap.send(header, &[&frame]).unwrap();
            }
        }
        engine.assert_invariants();
        thread::sleep(RealDuration::from_micros(50));
    }
    assert_eq!(streams.received.len(), case.bytes);
    assert!(
        streams
            .received
            .iter()
            .enumerate()
            .all(|(offset, &byte)| byte == byte_at(offset)),
        "what arrived at the engine is not what the kernel was given"
    );
    let malformed = engine.counters().malformed_total();
    let is_corrupting = matches!(case.trouble, Trouble::Corruption { .. });
    assert_eq!(malformed > 0, is_corrupting, "{:?}", engine.counters());
}

fn engine_address(case: Case) -> IpAddr {
    if case.is_v6 {
        [0xfd09, 0, 0, 0, 0, 0, 0, 2].into()
    } else {
        [10, 9, 0, 2].into()
    }
}

fn kernel_address(case: Case) -> IpAddr {
    if case.is_v6 {
        [0xfd09, 0, 0, 0, 0, 0, 0, 1].into()
    } else {
        [10, 9, 0, 1].into()
    }
}

/// Writes the stream, reads it back, and ends in order.
fn exchange(mut stream: TcpStream, bytes: usize) {
    let data: Vec<u8> = (0..bytes).map(byte_at).collect();
    let mut writer = stream.try_clone().unwrap();
    let expected = data.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&data).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    writing.join().unwrap();
    assert!(
        back == expected,
        "{} of {bytes} bytes came back, or others",
        back.len()
    );
}

/// Lets engine and kernel meet. In a thread of its own, because the namespace is the thread's.
fn meet(case: Case) {
    let meeting = thread::spawn(move || {
        let Some(tap) = isolated(case) else { return };
        let (kernel, connect_to) = if case.engine_connects {
            let listener = TcpListener::bind((kernel_address(case), 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let kernel = thread::spawn(move || exchange(listener.accept().unwrap().0, case.bytes));
            (kernel, Some(address))
        } else {
            let remote = (engine_address(case), 7);
            let connect = move || exchange(TcpStream::connect(remote).unwrap(), case.bytes);
            (thread::spawn(connect), None)
        };
        drive(&tap, case, connect_to, &|| kernel.is_finished());
        kernel.join().unwrap();
    });
    assert!(meeting.join().is_ok(), "{case:?}");
}

/// Every combination of role, family, MTU and offloads.
#[test]
fn engine_and_kernel_understand_each_other() {
    for mtu in [576, 1_280, 1_500, 9_000] {
        for (engine_connects, is_v6, offloads) in combinations() {
            if is_v6 && mtu < 1_280 {
                continue; // RFC 8200 section 5.
            }
            let trouble = Trouble::None;
            meet(Case {
                engine_connects,
                is_v6,
                mtu,
                offloads,
                trouble,
                bytes: 1_000_000,
            });
        }
    }
}

/// The same through links that lose, repeat, reorder and damage.
#[test]
fn engine_and_kernel_get_on_in_trouble() {
    let troubles = [
        Trouble::Loss { every: 100 },
        Trouble::Loss { every: 20 },
        Trouble::Duplication { every: 10 },
        Trouble::Reordering { every: 10 },
        Trouble::Corruption { every: 20 },
    ];
    for trouble in troubles {
        for (engine_connects, is_v6, offloads) in combinations() {
            if offloads && matches!(trouble, Trouble::Corruption { .. }) {
                continue; // There is no checksum that would notice.
            }
            meet(Case {
                engine_connects,
                is_v6,
                mtu: 1_500,
                offloads,
                trouble,
                bytes: 200_000,
            });
        }
    }
}

fn combinations() -> impl Iterator<Item = (bool, bool, bool)> {
    (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
}
