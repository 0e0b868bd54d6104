//! Meetings of the engine with this machine's kernel, over a TAP device in a network namespace of its
//! own. Both programs follow a pattern; what arrives is compared byte by byte.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration as RealDuration, Instant as Clock};

use toehold_link::{Tap, TapOptions, VnetHeader};
use toehold_tcp::{
    CloseReason, Config, ConnectionId, Engine, Event, Instant, InterfaceAddress, ListenerId,
    MacAddress, Medium, Memory, NoRoom, Offload, Options, Random, ReceiveOffload,
};

const RING_BYTES: usize = 1 << 22;

/// One meeting of the engine and the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) engine_connects: bool,
    pub(crate) is_v6: bool,
    pub(crate) mtu: u16,
    /// Segmentation and checksums are left to the other side, both ways.
    pub(crate) offloads: bool,
    pub(crate) trouble: Trouble,
    /// What each side sends on a connection.
    pub(crate) bytes: usize,
    pub(crate) pattern: Pattern,
}

/// How the two programs use their connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pattern {
    /// All there is, in both directions at once.
    Bulk,
    /// So many bytes, and the same back, again and again.
    Requests { each: usize },
    /// One connection after the other.
    Short { connections: usize },
    /// Who connects sends all and ends its direction; only then the other begins.
    HalfClose,
    /// As `Bulk`, but the kernel's program does not read for a while; its buffer is small.
    KernelRests,
    /// As `Bulk`, but the engine's program does not take for a while.
    EngineRests,
}

/// Longer than the first probes of a closed window take.
const REST: RealDuration = RealDuration::from_millis(1_200);

/// What happens to one in `every` frames, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
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
struct Streams(BTreeMap<ConnectionId, Vec<u8>>);

impl Memory for Streams {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = offset as usize + bytes.len();
        if end > RING_BYTES {
            return Err(NoRoom);
        }
        let received = self.0.entry(id).or_default();
        received.resize(received.len().max(end), 0);
        received[offset as usize..end].copy_from_slice(bytes);
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

/// The engine at 10.9.0.2, and its program.
struct Host<'a> {
    case: Case,
    clock: &'a dyn Fn() -> Instant,
    engine: Engine,
    streams: Streams,
    /// Where the engine's program connects, if it is that which does.
    remote: Option<SocketAddr>,
    /// Connections that are over, and those still to be opened.
    ended: usize,
    to_open: usize,
    /// Until when nothing is taken.
    rests_until: Option<Clock>,
    untaken: BTreeMap<ConnectionId, u64>,
}

impl Host<'_> {
    fn connections(&self) -> usize {
        match self.case.pattern {
            Pattern::Short { connections } => connections,
            _ => 1,
        }
    }

    fn open(&mut self) {
        if let Some(remote) = self.remote
            && self.to_open > 0
        {
            self.to_open -= 1;
            let now = (self.clock)();
            let opened = self.engine.connect(now, None, remote, Options::default());
            opened.expect("there is a route, and ports are left");
        }
    }

    /// What the program does when a connection got on: it is the first to send where it connects.
    fn progress(&mut self, id: ConnectionId, received: u64, remote_finished: bool) {
        if self.rests_until.is_some() {
            self.untaken.insert(id, received);
        } else {
            self.engine.take((self.clock)(), id, received).unwrap();
        }
        let all = self.case.bytes as u64;
        let begins = self.remote.is_some();
        let end = match self.case.pattern {
            Pattern::Requests { each } if begins => (received + each as u64).min(all),
            Pattern::HalfClose if begins => all,
            Pattern::HalfClose => {
                if remote_finished {
                    all
                } else {
                    0
                }
            }
            _ if begins => all,
            // Echo: the streams have the same bytes at the same places.
            _ => received,
        };
        self.engine.publish(id, end).unwrap();
        if end == all && (begins || remote_finished) {
            self.engine.finish((self.clock)(), id).unwrap();
        }
    }

    fn handle(&mut self, event: Event, listener: ListenerId) {
        match event {
            Event::Acceptable(_) => while self.engine.accept(listener).is_some() {},
            Event::Connected(id) => self.progress(id, 0, false),
            Event::Progress {
                connection,
                received,
                remote_finished,
                ..
            } => self.progress(connection, received, remote_finished),
            Event::Closed { connection, reason } => {
                assert_eq!(reason, CloseReason::Finished, "{:?}", self.case);
                self.ended += 1;
                self.check(connection);
                self.engine.release((self.clock)(), connection).unwrap();
                self.open();
            }
            _ => {}
        }
    }

    fn check(&mut self, id: ConnectionId) {
        let received = self.streams.0.remove(&id).unwrap_or_default();
        assert_eq!(received.len(), self.case.bytes);
        let mut bytes = received.iter().enumerate();
        assert!(
            bytes.all(|(offset, &byte)| byte == byte_at(offset)),
            "what arrived at the engine is not what the kernel was given"
        );
    }

    /// After a rest, everything is taken at once.
    fn wake(&mut self) {
        if self.rests_until.is_some_and(|until| Clock::now() >= until) {
            self.rests_until = None;
            for (id, received) in std::mem::take(&mut self.untaken) {
                self.engine.take((self.clock)(), id, received).unwrap();
            }
        }
    }
}

/// Runs the engine until its connections are over, and the kernel's program `is_over`.
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
    let engine = Engine::new(config, Random::new(began.elapsed().subsec_nanos().into()));
    let is_resting = case.pattern == Pattern::EngineRests;
    let mut host = Host {
        case,
        clock: &clock,
        engine,
        streams: Streams::default(),
        remote: connect_to,
        ended: 0,
        to_open: 0,
        rests_until: is_resting.then(|| Clock::now() + REST),
        untaken: BTreeMap::new(),
    };
    host.to_open = host.connections();
    let local = SocketAddr::new(engine_address(case), 7);
    let listener = host.engine.listen(local, 64, Options::default()).unwrap();
    let mut frame = vec![0; 70_000];
    host.open();
    let mut way_in = Way::new(case.trouble, 1);
    let mut way_out = Way::new(case.trouble, 2);
    // The kernel's program may be done while its last bytes are still on their way.
    while !(is_over() && host.ended >= host.connections()) {
        let mut is_idle = true;
        while let Some((length, header)) = tap.receive(&mut frame).unwrap() {
            is_idle = false;
            for (header, frame) in way_in.pass(header, &frame[..length]) {
                let offload = if offloads {
                    header.receive_offload()
                } else {
                    ReceiveOffload::default()
                };
                host.engine
                    .handle_frame(clock(), &frame, offload, &mut host.streams);
            }
        }
        host.engine.handle_timeout(clock());
        host.wake();
        while let Some(event) = host.engine.poll_event() {
            host.handle(event, listener);
        }
        while let Some((length, offload)) =
            host.engine
                .poll_frame(clock(), &mut host.streams, &mut frame)
        {
            let header = VnetHeader::for_transmit(&offload);
            for (header, frame) in way_out.pass(header, &frame[..length]) {
                tap.send(header, &[&frame]).unwrap();
            }
        }
        host.engine.assert_invariants();
        if is_idle {
            thread::sleep(RealDuration::from_micros(50));
        }
    }
    let malformed = host.engine.counters().malformed_total();
    let is_corrupting = matches!(case.trouble, Trouble::Corruption { .. });
    assert_eq!(malformed > 0, is_corrupting, "{:?}", host.engine.counters());
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

/// The kernel's program on one connection.
fn exchange(case: Case, mut stream: TcpStream) {
    let data: Vec<u8> = (0..case.bytes).map(byte_at).collect();
    let mut back = Vec::new();
    match case.pattern {
        Pattern::Requests { each } if case.engine_connects => {
            let mut request = vec![0; each];
            for part in data.chunks(each) {
                stream.read_exact(&mut request[..part.len()]).unwrap();
                back.extend_from_slice(&request[..part.len()]);
                stream.write_all(part).unwrap();
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut request).unwrap(), 0);
        }
        Pattern::Requests { each } => {
            let mut answer = vec![0; each];
            for part in data.chunks(each) {
                stream.write_all(part).unwrap();
                stream.read_exact(&mut answer[..part.len()]).unwrap();
                back.extend_from_slice(&answer[..part.len()]);
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut answer).unwrap(), 0);
        }
        Pattern::HalfClose if case.engine_connects => {
            stream.read_to_end(&mut back).unwrap();
            stream.write_all(&data).unwrap();
        }
        Pattern::HalfClose => {
            stream.write_all(&data).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream.read_to_end(&mut back).unwrap();
        }
        _ => {
            let mut writer = stream.try_clone().unwrap();
            let data = data.clone();
            let writing = thread::spawn(move || {
                writer.write_all(&data).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            if case.pattern == Pattern::KernelRests {
                thread::sleep(REST);
            }
            stream.read_to_end(&mut back).unwrap();
            writing.join().unwrap();
        }
    }
    let (came, expected) = (back.len(), case.bytes);
    assert!(
        back == data,
        "{came} of {expected} bytes came back, or others"
    );
}

/// Lets engine and kernel meet. In a thread of its own, because the namespace is the thread's.
pub(crate) fn meet(case: Case) {
    let meeting = thread::spawn(move || {
        let Some(tap) = isolated(case) else { return };
        let count = match case.pattern {
            Pattern::Short { connections } => connections,
            _ => 1,
        };
        let (kernel, connect_to) = if case.engine_connects {
            let listener = TcpListener::bind((kernel_address(case), 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let accept = move || {
                for _ in 0..count {
                    exchange(case, listener.accept().unwrap().0);
                }
            };
            (thread::spawn(accept), Some(address))
        } else {
            let remote = (engine_address(case), 7);
            let connect = move || {
                for _ in 0..count {
                    exchange(case, TcpStream::connect(remote).unwrap());
                }
            };
            (thread::spawn(connect), None)
        };
        drive(&tap, case, connect_to, &|| kernel.is_finished());
        kernel.join().unwrap();
    });
    assert!(meeting.join().is_ok(), "{case:?}");
}
