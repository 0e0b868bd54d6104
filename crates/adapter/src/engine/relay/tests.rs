//! A connection between a real engine and a program's real socket, with a remote that is another
//! engine.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use toehold_channel::table::{COMMAND_EVICT, Mode};
use toehold_copy::Buffer;
use toehold_tcp::{
    CloseReason, Config, ConnectionId, Duration, Event, InterfaceAddress, Medium, Memory, NoRoom,
    Options, Random, ReceiveOffload,
};

use super::*;
use crate::engine::advance::Next;
use crate::engine::endpoint::tests::{self as endpoints, Program};
use crate::engine::endpoint::{LONG_WINDOW_LOG2, WINDOW_LOG2};
use crate::engine::flow::Stage;
use crate::engine::tcp_config::RECEIVE_BYTES;
use crate::engine::{Holder, sys, tcp_config};
use crate::registry::{ClientId, TableId};

mod carrier;
mod channel;
mod copies;
mod departure;
mod ends;
mod memory;
mod turns;

/// The remote's memory: what arrived, and a send stream whose byte n is `byte(n)`.
#[derive(Default)]
struct Rings(Vec<u8>);

impl Memory for Rings {
    fn place(&mut self, _: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = offset as usize + bytes.len();
        self.0.resize(self.0.len().max(end), 0);
        self.0[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, offset: u64, target: &mut [u8]) {
        target.copy_from_slice(&pattern_from(offset, target.len()));
    }
}

fn byte(at: u64) -> u8 {
    (at % PERIOD as u64) as u8
}

/// The bytes repeat, so that many are made and compared as a whole: this code is not optimized.
const PERIOD: usize = 251;

fn pattern(len: usize) -> Vec<u8> {
    pattern_from(0, len)
}

fn pattern_from(from: u64, len: usize) -> Vec<u8> {
    let period: Vec<u8> = (from..from + PERIOD as u64).map(byte).collect();
    let mut bytes = period.repeat(len.div_ceil(PERIOD));
    bytes.truncate(len);
    bytes
}

/// Whether these are the bytes of the pattern from a position on.
fn is_pattern_from(from: u64, bytes: &[u8]) -> bool {
    let (first, rest) = bytes.split_at(bytes.len().min(PERIOD));
    first == pattern_from(from, first.len()) && *rest == bytes[..rest.len()]
}

/// The settings of the connection.
fn options() -> Options {
    Options {
        nodelay: true,
        receive_bytes: RECEIVE_BYTES,
        receive_bytes_max: 16 << 20,
        ..Options::default()
    }
}

const HOLDER: Holder = Holder {
    client: ClientId(1),
    family: TableId(1),
};

struct Bench {
    now: Instant,
    engine: Engine,
    streams: Streams,
    channels: Channels,
    _daemon: OwnedFd,
    flow: Flow,
    program: TcpStream,
    remote: Engine,
    rings: Rings,
    remote_id: ConnectionId,
    remote_reads: bool,
    remote_seen: Vec<Event>,
    /// The frame that arrives.
    arriving: Buffer,
}

impl Bench {
    /// A program and its remote, connected.
    fn new() -> Bench {
        Bench::with_remote(|_| {})
    }

    /// Frames take [`LONG_PATH`] each way.
    fn with_long_path() -> Bench {
        Bench::connected(LONG_PATH, |_| {})
    }

    /// A program and a remote of this kind, connected.
    fn with_remote(change: impl Fn(&mut Config)) -> Bench {
        Bench::connected(Duration::ZERO, change)
    }

    fn connected(path: Duration, change: impl Fn(&mut Config)) -> Bench {
        let host = |seed: u64, last: u8| {
            let address = InterfaceAddress {
                address: [10, 0, 0, last].into(),
                prefix_bits: 24,
            };
            let mut config = Config::new(Medium::Ip, 1_500, address);
            if last == 2 {
                change(&mut config);
            }
            Engine::new(config, Random::new(seed))
        };
        let (mut engine, mut remote) = (host(1, 1), host(2, 2));
        let at = ([10, 0, 0, 2], 80).into();
        let options_of_remote = Options {
            receive_bytes_max: 64 << 20,
            ..Options::default()
        };
        let listener = remote.listen(at, 1, options_of_remote).expect("free");
        let now = Instant::from_micros(1_000_000);
        let id = engine.connect(now, None, at, options()).expect("reachable");
        let (program, carrier) = sockets();
        let (channels, daemon) = Channels::new().expect("a table");
        let mut bench = Bench {
            now,
            engine,
            streams: Streams::new(1 << 30),
            channels,
            _daemon: daemon,
            flow: Flow::on_own(id, HOLDER, Stage::Open, (carrier, 1), 16 << 20),
            program,
            remote,
            rings: Rings::default(),
            remote_id: id,
            remote_reads: true,
            remote_seen: Vec::new(),
            arriving: Buffer::new(70_000).expect("memory"),
        };
        if path > Duration::ZERO {
            for _ in 0..3 {
                assert_eq!(bench.travel(path), Next::Wait);
            }
        } else {
            assert_eq!(bench.turn(), Next::Wait);
        }
        bench.remote_id = bench.remote.accept(listener).expect("connected");
        let opened = bench.engine.bound_window(now, id, 0, RECEIVE_BYTES);
        opened.expect("connected");
        bench
    }

    /// As it goes on until nothing does.
    fn turn(&mut self) -> Next {
        loop {
            let moved = self.exchange();
            let before = (self.flow.published, self.flow.taken);
            let next = self.advance();
            let has_moved = moved || before != (self.flow.published, self.flow.taken);
            if next != Next::Wait {
                self.exchange();
                return next;
            }
            if !has_moved && !self.exchange() {
                return Next::Wait;
            }
        }
    }

    /// Time passes: delayed acknowledgements and probes are sent.
    fn pass(&mut self, span: Duration) -> Next {
        let until = self.now + span;
        loop {
            let next = self.turn();
            let due = [&self.engine, &self.remote].map(Engine::poll_timeout);
            let due = due.into_iter().flatten().min();
            match due.filter(|due| next == Next::Wait && *due <= until) {
                Some(due) => self.now = self.now.max(due),
                None => return next,
            }
            self.engine.handle_timeout(self.now);
            self.remote.handle_timeout(self.now);
        }
    }

    fn exchange(&mut self) -> bool {
        let mut frame = vec![0; 70_000];
        let mut moved = false;
        loop {
            let offload = ReceiveOffload::default();
            let there = self
                .engine
                .poll_frame(self.now, &mut self.streams, &mut frame);
            if let Some((len, _)) = there {
                let frame = &frame[..len];
                self.remote
                    .handle_frame(self.now, frame, offload, &mut self.rings);
            }
            self.remote_follows();
            let back = self
                .remote
                .poll_frame(self.now, &mut self.rings, &mut frame);
            if let Some((len, _)) = back {
                let arriving = &mut self.arriving[..len];
                arriving.copy_from_slice(&frame[..len]);
                self.streams.copying.offer_buffer();
                self.engine
                    .handle_frame(self.now, arriving, offload, &mut self.streams);
                self.streams.copying.take_buffer_back(&mut self.arriving);
            }
            if there.is_none() && back.is_none() {
                return moved;
            }
            moved = true;
        }
    }

    /// Frames travel for so long, once in each direction, and the connection has its turn.
    fn travel(&mut self, time: Duration) -> Next {
        let mut buffer = vec![0; 70_000];
        let mut frames = [Vec::new(), Vec::new()];
        while let Some((len, _)) =
            (self.engine).poll_frame(self.now, &mut self.streams, &mut buffer)
        {
            frames[0].push(buffer[..len].to_vec());
        }
        while let Some((len, _)) = (self.remote).poll_frame(self.now, &mut self.rings, &mut buffer)
        {
            frames[1].push(buffer[..len].to_vec());
        }
        self.now += time;
        let offload = ReceiveOffload::default();
        for frame in &frames[0] {
            self.remote
                .handle_frame(self.now, frame, offload, &mut self.rings);
        }
        for frame in &frames[1] {
            self.engine
                .handle_frame(self.now, frame, offload, &mut self.streams);
        }
        self.engine.handle_timeout(self.now);
        self.remote.handle_timeout(self.now);
        self.remote_follows();
        self.advance()
    }

    /// The remote sends up to `end` over a path, and the program reads all of it.
    fn stream(&mut self, path: Duration, end: u64) {
        self.remote_says(end);
        let mut buffer = vec![0; 1 << 20];
        while self.flow.taken < end {
            assert_eq!(self.travel(path), Next::Wait);
            while let Ok(1..) = self.program.read(&mut buffer) {
                assert_eq!(self.advance(), Next::Wait);
            }
        }
    }

    fn receive_limit(&self) -> u32 {
        self.engine.info(self.flow.id).expect("open").receive_limit
    }

    fn advance(&mut self) -> Next {
        self.note_events();
        self.streams.copying.settle(|_| {});
        self.note_readiness();
        let (engine, streams) = (&mut self.engine, &mut self.streams);
        let mut around = StepContext::new(self.now, engine, streams, &mut self.channels);
        self.flow.advance(&mut around)
    }

    fn look_for_program(&mut self, diag: &Diag) -> bool {
        let (engine, streams) = (&mut self.engine, &mut self.streams);
        let mut around = StepContext::new(self.now, engine, streams, &mut self.channels);
        self.flow.look_for_program(&mut around, diag)
    }

    fn remote_follows(&mut self) {
        while let Some(event) = self.remote.poll_event() {
            self.remote_seen.push(event);
        }
        let received = self
            .remote
            .info(self.remote_id)
            .map(|_| self.rings.0.len() as u64);
        if self.remote_reads
            && let Some(received) = received
        {
            let _ = self.remote.take(self.remote_id, received);
        }
    }

    fn note_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Progress {
                    received,
                    acknowledged,
                    remote_finished,
                    ..
                } => {
                    let flow = &mut self.flow;
                    flow.note_progress(received, acknowledged, remote_finished);
                }
                Event::Closed { reason, .. } => self.flow.note_closed(reason),
                _ => {}
            }
        }
    }

    /// Notes the readiness that epoll would report.
    fn note_readiness(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let wanted = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
        let mut entry = [PollFd::new(&self.flow.carrier.socket, wanted)];
        poll(&mut entry, Some(&Timespec::default())).expect("polled");
        let found = entry[0].revents().bits();
        // The numbers are epoll's as well.
        self.flow.carrier.note(found.into());
    }

    /// Reads for the program while all goes on, until there is as much, or its end.
    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut at = 0;
        while at < len {
            self.turn();
            match self.program.read(&mut bytes[at..]) {
                Ok(0) => break,
                Ok(count) => at += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        bytes.truncate(at);
        bytes
    }

    /// The bytes that the program finds on its carrier now.
    fn read_carrier(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; MUCH];
        let len = self.program.read(&mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes
    }

    /// Has the program write it all while all goes on.
    fn write(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match self.program.write(&bytes[at..]) {
                Ok(count) => at += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            self.pass(Duration::from_millis(50));
        }
    }

    /// Writes until nothing more is taken; how much was.
    fn stuff(&mut self) -> usize {
        let mut all = 0;
        let mut refused = 0;
        while refused < 3 {
            match self.program.write(&pattern_from(all as u64, 1 << 16)) {
                Ok(count) => (all, refused) = (all + count, 0),
                Err(_) => refused += 1,
            }
            self.pass(Duration::from_millis(50));
        }
        all
    }

    fn remote_says(&mut self, len: u64) {
        self.remote.publish(self.remote_id, len).expect("open");
    }

    fn remote_finishes(&mut self) {
        self.remote.finish(self.now, self.remote_id).expect("open");
    }

    fn remote_saw_end(&self) -> bool {
        let is_end = |event: &Event| {
            matches!(
                event,
                Event::Progress {
                    remote_finished: true,
                    ..
                }
            )
        };
        self.remote_seen.iter().any(is_end)
    }

    fn remote_saw_reset(&self) -> bool {
        let is_reset = |event: &Event| {
            matches!(
                event,
                Event::Closed {
                    reason: CloseReason::Reset,
                    ..
                }
            )
        };
        self.remote_seen.iter().any(is_reset)
    }

    /// As the runner does for a program that is gone.
    fn abort(&mut self) {
        let _ = self.engine.abort(self.now, self.flow.id);
        self.exchange();
        self.exchange();
    }

    /// Puts a channel beside the carrier, both directions of which are rings.
    fn with_channel(&mut self) -> Program {
        self.with_rings(WINDOW_LOG2, WINDOW_LOG2)
    }

    /// As the runner makes one.
    fn with_new_channel(&mut self) -> Program {
        let info = self.engine.info(self.flow.id);
        let (first, largest) =
            tcp_config::first_and_largest_log2(info, self.flow.window.is_of_reader());
        self.with_rings(first, largest)
    }

    fn with_rings(&mut self, first: u32, largest: u32) -> Program {
        let (mut endpoint, program) = endpoints::channel();
        endpoint.attach(0, first, largest);
        program.attach();
        self.streams.set_endpoint(self.flow.id, Some(endpoint));
        // A program that stays on its carrier cannot ring for half of a ring that it has read, so a
        // large flight would move back to the carrier.
        program.go_up(self.flow.carrier.got);
        assert_eq!(self.turn(), Next::Wait);
        let endpoint = self.streams.endpoint(self.flow.id).expect("just set");
        assert!(endpoint.is_up() && endpoint.end().rx_mode() == Mode::Ring);
        program
    }
}

/// A program's socket and its carrier.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let program = TcpStream::connect(listener.local_addr().expect("bound"));
    let program = program.expect("it listens");
    let (carrier, _) = listener.accept().expect("connected");
    for socket in [&program, &carrier] {
        socket.set_nonblocking(true).expect("a socket");
    }
    sys::prepare_carrier(&carrier).expect("a socket");
    (program, carrier)
}

const MUCH: usize = 8 << 20;
const LONG_PATH: Duration = Duration::from_millis(50);
