//! The engine against this machine's kernel, over a TAP device in a network namespace of its own:
//! the kernel's TCP is the oracle. Skips, loudly, where that cannot be made.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration as RealDuration, Instant as Clock};

use toehold_link::{Tap, TapOptions, VnetHeader};
use toehold_tcp::{
    Config, ConnectionId, Engine, Event, Instant, InterfaceAddress, MacAddress, Medium, Memory,
    NoRoom, Offload, Options, Random, ReceiveOffload,
};

const BYTES: usize = 3_000_000;
const RING_BYTES: usize = 1 << 22;

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
fn isolated(offloads: bool) -> Option<Tap> {
    // SAFETY: `unshare` changes only which network this thread sees.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        eprintln!("SKIPPED: cannot make a network namespace (CAP_SYS_ADMIN is needed)");
        return None;
    }
    let options = TapOptions {
        multi_queue: false,
        receive_checksum: offloads,
        receive_large: offloads,
    };
    let tap = match Tap::open("toe0", options) {
        Ok(tap) => tap,
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            return None;
        }
    };
    for command in ["addr add 10.9.0.1/24 dev toe0", "link set toe0 up"] {
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
fn drive(tap: &Tap, offloads: bool, connect_to: Option<SocketAddr>, is_over: &dyn Fn() -> bool) {
    let mac = MacAddress([2, 0, 0, 0, 9, 2]);
    let address = InterfaceAddress {
        address: [10, 9, 0, 2].into(),
        prefix_bits: 24,
    };
    let mut config = Config::new(Medium::Ethernet { mac, resolve: true }, 1_500, address);
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
    let local: SocketAddr = ([10, 9, 0, 2], 7).into();
    let listener = engine.listen(local, 4, Options::default()).unwrap();
    let mut frame = vec![0; 70_000];
    let mut active = connect_to.map(|remote| {
        engine
            .connect(clock(), None, remote, Options::default())
            .unwrap()
    });
    while !is_over() {
        while let Some((length, header)) = tap.receive(&mut frame).unwrap() {
            let offload = if offloads {
                header.receive_offload()
            } else {
                ReceiveOffload::default()
            };
            engine.handle_frame(clock(), &frame[..length], offload, &mut streams);
        }
        engine.handle_timeout(clock());
        while let Some(event) = engine.poll_event() {
            match event {
                Event::Acceptable(_) => {
                    let _accepted = engine.accept(listener);
                }
                Event::Connected(id) => {
                    engine.publish(id, BYTES as u64).unwrap();
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
                    active = active.filter(|&id| id != connection);
                }
                _ => {}
            }
        }
        while let Some((length, offload)) = engine.poll_frame(clock(), &mut streams, &mut frame) {
            tap.send(VnetHeader::for_transmit(&offload), &[&frame[..length]])
                .unwrap();
        }
        engine.assert_invariants();
        thread::sleep(RealDuration::from_micros(50));
    }
    assert!(
        streams
            .received
            .iter()
            .enumerate()
            .all(|(offset, &byte)| byte == byte_at(offset)),
        "what arrived at the engine is not what the kernel was given"
    );
    assert_eq!(
        engine.counters().malformed_total(),
        0,
        "{:?}",
        engine.counters()
    );
}

/// Writes the stream, reads it back, and ends in order.
fn exchange(mut stream: TcpStream) {
    let data: Vec<u8> = (0..BYTES).map(byte_at).collect();
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
        "{} of {BYTES} bytes came back, or others",
        back.len()
    );
}

/// The kernel connects; the engine echoes.
fn kernel_connects(offloads: bool) {
    let Some(tap) = isolated(offloads) else {
        return;
    };
    let client = thread::spawn(|| {
        exchange(TcpStream::connect(("10.9.0.2", 7)).unwrap());
    });
    drive(&tap, offloads, None, &|| client.is_finished());
    client.join().unwrap();
}

/// The engine connects, and sends; the kernel sends the same.
fn engine_connects(offloads: bool) {
    let Some(tap) = isolated(offloads) else {
        return;
    };
    let listener = TcpListener::bind(("10.9.0.1", 0)).unwrap();
    let remote = listener.local_addr().unwrap();
    let server = thread::spawn(move || exchange(listener.accept().unwrap().0));
    drive(&tap, offloads, Some(remote), &|| server.is_finished());
    server.join().unwrap();
}

/// Each in a thread of its own, because the namespace belongs to the thread.
#[test]
fn kernel_connects_segment_by_segment() {
    thread::spawn(|| kernel_connects(false)).join().unwrap();
}

#[test]
fn kernel_connects_with_offloads() {
    thread::spawn(|| kernel_connects(true)).join().unwrap();
}

#[test]
fn engine_connects_segment_by_segment() {
    thread::spawn(|| engine_connects(false)).join().unwrap();
}

#[test]
fn engine_connects_with_offloads() {
    thread::spawn(|| engine_connects(true)).join().unwrap();
}
