//! A connection between a real engine and a program's real socket, with a remote that is another
//! engine.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use toehold_channel::table::{COMMAND_EVICT, Mode};
use toehold_tcp::{
    CloseReason, Config, ConnectionId, Duration, Event, InterfaceAddress, Medium, Memory, NoRoom,
    Options, Random, ReceiveOffload,
};

use super::*;
use crate::engine::advance::Next;
use crate::engine::endpoint::tests::{Program, channel};
use crate::engine::endpoint::{LONG_WINDOW_LOG2, WINDOW_LOG2};
use crate::engine::flow::Stage;
use crate::engine::tcp_config::RECEIVE_BYTES;
use crate::engine::{Holder, memory, rings, sys, tcp_config};
use crate::registry::{ClientId, TableId};

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
        for (at, target) in target.iter_mut().enumerate() {
            *target = byte(offset + at as u64);
        }
    }
}

fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(byte).collect()
}

/// How the connection behaves.
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
            flow: Flow::new(id, HOLDER, 1, Stage::Open, carrier),
            program,
            remote,
            rings: Rings::default(),
            remote_id: id,
            remote_reads: true,
            remote_seen: Vec::new(),
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
                let frame = &frame[..len];
                self.engine
                    .handle_frame(self.now, frame, offload, &mut self.streams);
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

    fn advance(&mut self) -> Next {
        self.note_events();
        self.note_readiness();
        let mut around = Around {
            now: self.now,
            engine: &mut self.engine,
            streams: &mut self.streams,
            channels: &mut self.channels,
            netns: 0,
            window_bytes_max: 16 << 20,
        };
        self.flow.advance(&mut around)
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

    /// What epoll would have said.
    fn note_readiness(&mut self) {
        let mut poll = libc::pollfd {
            fd: self.flow.carrier.as_raw_fd(),
            events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut poll, 1, 0) };
        // The numbers are epoll's as well.
        self.flow.note_carrier(poll.revents.cast_unsigned().into());
    }

    /// What the program reads while all goes on, until there is as much, or its end.
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
        let (first, largest) = tcp_config::first_and_largest_log2(info, self.flow.is_reader);
        self.with_rings(first, largest)
    }

    fn with_rings(&mut self, first: u32, largest: u32) -> Program {
        let (mut endpoint, program) = channel();
        endpoint.attach(0, first, largest);
        program.attach();
        self.streams.set_endpoint(self.flow.id, Some(endpoint));
        assert_eq!(self.turn(), Next::Wait);
        program.go_up(self.flow.carrier_got);
        assert_eq!(self.turn(), Next::Wait);
        let endpoint = self.streams.endpoint(self.flow.id).expect("just set");
        assert!(endpoint.is_up() && endpoint.end().rx_mode() == Mode::Ring);
        program
    }
}

fn pattern_from(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(byte).collect()
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

#[test]
fn bytes_go_both_ways_whole() {
    let mut bench = Bench::new();
    bench.remote_says(300_000);
    assert!(bench.read(300_000) == pattern(300_000));
    bench.write(&pattern(300_000));
    bench.pass(Duration::from_secs(1));
    assert!(bench.rings.0 == pattern(300_000));
}

#[test]
fn program_that_does_not_read_closes_the_window_and_loses_nothing() {
    let mut bench = Bench::new();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    let (taken, received) = (bench.flow.taken, bench.flow.received);
    assert!(taken > 0, "its socket takes some");
    assert!(received < MUCH as u64, "the window is closed");
    assert!(received - taken <= 1 << WINDOW_LOG2);
    assert!(!bench.flow.is_delivered);
    assert!(bench.read(MUCH) == pattern(MUCH));
    assert!(bench.flow.is_delivered);
}

/// What it has sent lies in the program's receive buffer, in the carrier and in our ring.
#[test]
fn remote_can_send_little_to_a_program_that_does_not_read() {
    let mut bench = Bench::new();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(60)), Next::Wait);
    let (received, taken) = (bench.flow.received, bench.flow.taken);
    assert!(
        received <= 256 << 10,
        "{received} bytes unread, {taken} in the carrier"
    );
    assert!(bench.read(MUCH) == pattern(MUCH));
    assert!(bench.flow.is_reader);
}

/// Another connection has used the budget up: segments are dropped until there is room again.
#[test]
fn bytes_without_memory_are_dropped_and_come_again() {
    let mut bench = Bench::new();
    bench.streams = Streams::new(8 << 10);
    bench.remote_says(100_000);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    assert_eq!(bench.flow.received, 0);
    assert!(bench.engine.counters().host_had_no_room > 0);
    assert!(bench.streams.rings().refused() > 0);
    bench.streams.rings().set_budget(1 << 20);
    assert_eq!(bench.pass(Duration::from_secs(10)), Next::Wait);
    assert!(bench.read(100_000) == pattern(100_000));
}

#[test]
fn rings_grow_and_keep_what_is_in_them() {
    let mut streams = Streams::new(1 << 30);
    let id = Bench::new().flow.id;
    let all = pattern(200_000);
    // Early bytes first, around the end of the first ring; then what is before them.
    let place = |streams: &mut Streams, from: usize, to: usize| {
        streams
            .place(id, from as u64, &all[from..to])
            .expect("within the budget");
    };
    place(&mut streams, 15_000, 16_000);
    place(&mut streams, 60_000, 61_000);
    place(&mut streams, 0, 15_000);
    streams.take(id, 10_000);
    place(&mut streams, 16_000, 60_000);
    place(&mut streams, 61_000, 200_000);
    let arrived = streams.arrived(id, 200_000).concat();
    assert!(arrived == all[10_000..]);
    assert_eq!(streams.rings().held_bytes(), 256 << 10);
    streams.forget(id);
    assert_eq!(streams.rings().held_bytes(), 0);
}

/// One byte in each page of the window occupies all of it; the remote sends again what it has to.
#[test]
fn early_bytes_that_were_discarded_come_again() {
    let mut bench = Bench::new();
    let remote_id = bench.remote_id;
    bench.remote.publish(remote_id, 60_000).expect("connected");
    let mut frames = Vec::new();
    let mut frame = vec![0; 70_000];
    while let Some((len, _)) = bench
        .remote
        .poll_frame(bench.now, &mut bench.rings, &mut frame)
    {
        frames.push(frame[..len].to_vec());
    }
    let (now, offload) = (bench.now, ReceiveOffload::default());
    for frame in &frames[1..] {
        bench
            .engine
            .handle_frame(now, frame, offload, &mut bench.streams);
    }
    let id = bench.flow.id;
    let early = bench.engine.early_bytes(id);
    assert!(early > 10_000, "{early}");
    assert!(bench.streams.receiving_bytes(id) > 0);
    bench.engine.discard_early(id).expect("connected");
    bench.streams.discard_early(id, 0);
    assert_eq!(bench.engine.early_bytes(id), 0);
    assert_eq!(bench.streams.rings().held_bytes(), 0);
    assert_eq!(bench.engine.counters().early_bytes_discarded, early);
    assert_eq!(bench.pass(Duration::from_secs(10)), Next::Wait);
    assert!(bench.read(60_000) == pattern(60_000));
}

#[test]
fn state_of_a_connection_is_counted_in_full() {
    let bench = Bench::new();
    let info = bench.engine.info(bench.flow.id).expect("connected");
    let ours = size_of::<Option<Flow>>() + memory::DUPLEX_BYTES;
    // The ranges of early bytes at their most, and a scoreboard that has grown.
    let heap = 2_048 + 512;
    assert!(info.memory_bytes + ours + heap <= rings::CONNECTION_BYTES);
}

#[test]
fn remote_that_does_not_read_fills_a_small_ring_and_no_more() {
    let mut bench = Bench::new();
    bench.remote_reads = false;
    let sent = bench.stuff();
    let flow = &bench.flow;
    let unacknowledged = flow.published - flow.acknowledged;
    assert!(unacknowledged <= 256 << 10, "{unacknowledged} bytes");
    assert!(
        sent as u64 > flow.published,
        "the rest is in the program's socket"
    );
    bench.remote_reads = true;
    bench.pass(Duration::from_secs(300));
    assert_eq!(bench.rings.0.len(), sent);
    assert!(bench.rings.0 == pattern(sent));
}

#[test]
fn program_that_finishes_first_still_hears() {
    let mut bench = Bench::new();
    bench.write(b"request");
    bench.program.shutdown(Shutdown::Write).expect("connected");
    bench.pass(Duration::from_millis(100));
    assert!(bench.remote_saw_end());
    bench.remote_says(100_000);
    assert!(bench.read(100_000) == pattern(100_000));
    bench.remote_finishes();
    assert_eq!(bench.read(1), b"");
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Over);
}

#[test]
fn remote_that_finishes_first_still_hears() {
    let mut bench = Bench::new();
    bench.remote_says(5);
    bench.remote_finishes();
    assert_eq!(bench.read(6), pattern(5));
    assert_eq!(bench.pass(Duration::from_secs(5)), Next::Wait);
    bench.write(&pattern(100_000));
    bench.program.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(bench.pass(Duration::from_secs(300)), Next::Over);
    assert!(bench.rings.0 == pattern(100_000) && bench.remote_saw_end());
}

#[test]
fn both_may_finish_at_once() {
    let mut bench = Bench::new();
    bench.remote_finishes();
    bench.program.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(bench.pass(Duration::from_secs(300)), Next::Over);
    assert!(bench.remote_saw_end());
}

#[test]
fn end_waits_for_what_comes_before_it() {
    let mut bench = Bench::new();
    bench.remote_says(MUCH as u64);
    bench.remote_finishes();
    bench.pass(Duration::from_secs(1));
    assert!(!bench.flow.program_told);
    assert!(bench.read(MUCH + 1) == pattern(MUCH));
    assert!(bench.flow.program_told);
}

#[test]
fn program_that_resets_resets_the_remote() {
    let mut bench = Bench::new();
    let program = std::mem::replace(&mut bench.program, sockets().0);
    crate::engine::sys::reset_when_closed(&program, true).expect("a socket");
    drop(program);
    assert_eq!(bench.turn(), Next::ProgramGone);
    bench.abort();
    assert!(bench.remote_saw_reset());
}

#[test]
fn program_that_closes_with_news_unread_is_gone() {
    let mut bench = Bench::new();
    bench.remote_says(1_000);
    bench.turn();
    // The kernel resets for a socket that is closed with bytes unread (RFC 2525 section 2.17).
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.turn(), Next::ProgramGone);
}

#[test]
fn reset_of_the_remote_s_comes_after_what_the_program_had_room_for() {
    let mut bench = Bench::new();
    bench.remote_says(1_000_000);
    bench.pass(Duration::from_millis(100));
    let arrived = bench.flow.received as usize;
    bench
        .remote
        .abort(bench.now, bench.remote_id)
        .expect("open");
    let mut next = bench.turn();
    let mut read = 0;
    while next == Next::Wait {
        read += bench.read(1).len();
        next = bench.turn();
    }
    assert_eq!(next, Next::RemoteGone);
    assert!(bench.flow.is_delivered && read <= arrived);
    assert_eq!(bench.flow.closed, Some(CloseReason::Reset));
}

#[test]
fn bytes_go_by_rings_both_ways() {
    let mut bench = Bench::new();
    bench.write(b"by the carrier ");
    let program = bench.with_channel();
    program.write(b"by the ring");
    assert_eq!(bench.turn(), Next::Wait);
    bench.remote_says(1_000);
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(bench.rings.0, b"by the carrier by the ring");
    let got = bench.flow.carrier_sent;
    assert!(program.read(2_000, got) == pattern(1_000));
    assert_eq!(bench.flow.carrier_sent, 0, "nothing by the carrier");
}

#[test]
fn window_of_a_channel_closes_and_opens_with_the_program_s_reading() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    // The window field counts in steps of 512 bytes.
    let unread = bench.flow.received - bench.flow.taken;
    assert!(((1 << WINDOW_LOG2) - 512..=1 << WINDOW_LOG2).contains(&unread));
    let endpoint = bench.streams.endpoint(bench.flow.id).expect("there");
    assert!(endpoint.is_up(), "the program can be rung for");
    let wants = &program.end().theirs().wake.want_credit;
    assert_eq!(wants.load(std::sync::atomic::Ordering::SeqCst), 1);
    let mut got = Vec::new();
    while got.len() < MUCH {
        got.extend(program.read(300_000, bench.flow.carrier_sent));
        assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    }
    assert!(got == pattern(MUCH));
}

/// A program has to show that it reads before the remote may send it more than into a carrier.
#[test]
fn ring_of_a_program_becomes_larger_once_it_has_read() {
    let mut bench = Bench::new();
    let program = bench.with_new_channel();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    let unread = bench.flow.received - bench.flow.taken;
    assert!(unread <= 64 << 10, "{unread} bytes");
    let mut got = Vec::new();
    while got.len() < MUCH {
        got.extend(program.read(MUCH, bench.flow.carrier_sent));
        assert_eq!(
            bench.turn(),
            Next::Wait,
            "no probe of a closed window is needed"
        );
    }
    assert!(got == pattern(MUCH));
    let endpoint = bench.streams.endpoint(bench.flow.id).expect("there");
    assert_eq!(endpoint.window_bytes(), 1 << WINDOW_LOG2);
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert_eq!(info.receive_limit, 1 << WINDOW_LOG2);
}

/// It never fills half of a large ring: nobody would say that there is room again.
#[test]
fn remote_without_window_scaling_goes_on_when_the_program_has_read() {
    let mut bench = Bench::with_remote(|config| config.window_scaling = false);
    let program = bench.with_new_channel();
    bench.remote_says(MUCH as u64);
    let mut got = Vec::new();
    while got.len() < MUCH {
        assert_eq!(bench.turn(), Next::Wait);
        let wants = &program.end().theirs().wake.want_credit;
        assert_eq!(wants.load(std::sync::atomic::Ordering::SeqCst), 1);
        let before = got.len();
        got.extend(program.read(MUCH, bench.flow.carrier_sent));
        assert!(got.len() > before, "the window does not stay closed");
    }
    assert!(got == pattern(MUCH));
}

const LONG_PATH: Duration = Duration::from_millis(50);

#[test]
fn windows_grow_with_the_length_of_the_path() {
    let mut bench = Bench::with_long_path();
    let much = 96 << 20;
    // A round trip is measured by what is sent.
    bench.program.write_all(b"x").expect("room");
    assert_eq!(bench.advance(), Next::Wait);
    for _ in 0..3 {
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
    }
    bench.rings = Rings::default();
    bench.remote_says(much);
    let mut buffer = vec![0; 1 << 20];
    let mut got = 0;
    while got < much {
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        while let Ok(count) = bench.program.read(&mut buffer) {
            assert!(
                count > 0
                    && buffer[..count]
                        .iter()
                        .zip(got..)
                        .all(|(b, at)| *b == byte(at))
            );
            got += count as u64;
            assert_eq!(bench.advance(), Next::Wait);
        }
    }
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert!(
        info.receive_limit >= 16 << 20,
        "{} bytes",
        info.receive_limit
    );
    let bytes = pattern_from(1, 32 << 20);
    let mut sent = 0;
    let mut in_flight = 0;
    while bench.flow.acknowledged <= bytes.len() as u64 {
        while let Ok(count @ 1..) = bench.program.write(&bytes[sent..]) {
            sent += count;
            assert_eq!(bench.advance(), Next::Wait);
        }
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        in_flight = in_flight.max(bench.engine.info(bench.flow.id).expect("open").in_flight);
    }
    assert!(in_flight > 6 << 20, "{in_flight} bytes");
    assert!(bench.rings.0[1..] == bytes);
}

/// The rings of a channel hold 4 MB: a connection that needs more is served by its carrier.
#[test]
fn connection_with_more_in_flight_than_rings_hold_leaves_its_channel() {
    let mut bench = Bench::with_long_path();
    let much: u64 = 96 << 20;
    let program = bench.with_rings(LONG_WINDOW_LOG2, LONG_WINDOW_LOG2);
    bench.remote_says(much);
    let mut buffer = vec![0; 1 << 20];
    let mut got = 0;
    let mut in_ring = true;
    while got < much {
        if in_ring {
            // A round trip is measured by what is sent.
            program.write(b"x");
        }
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        if in_ring {
            let bytes = program.read(MUCH, 0);
            assert!(bytes.iter().zip(got..).all(|(b, at)| *b == byte(at)));
            got += bytes.len() as u64;
        }
        while let Ok(count) = bench.program.read(&mut buffer) {
            got += count as u64;
        }
        if in_ring && bench.flow.outgrows_channel && program.end().rx_mode() == Mode::Carrier {
            in_ring = false;
            program.go_down();
            program.leave();
        }
        assert_eq!(bench.advance(), Next::Wait);
    }
    assert!(!in_ring && bench.streams.endpoint(bench.flow.id).is_none());
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert!(info.receive_limit > 4 << 20, "{} bytes", info.receive_limit);
}

/// Round trips of a short path are long while data waits in queues, or a processor is busy. A larger
/// window would not make that connection faster.
#[test]
fn connection_over_a_short_path_keeps_its_channel_whatever_waits() {
    let mut bench = Bench::new();
    let much: u64 = 32 << 20;
    let program = bench.with_rings(LONG_WINDOW_LOG2, LONG_WINDOW_LOG2);
    program.write(b"x");
    for _ in 0..2 {
        assert_eq!(bench.travel(Duration::from_micros(100)), Next::Wait);
    }
    bench.remote_says(much);
    let mut got = 0;
    while got < much {
        program.write(b"x");
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        got += program.read(MUCH, 0).len() as u64;
        assert!(!bench.flow.outgrows_channel, "after {got} bytes");
    }
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert!(info.round_trip.expect("measured") > Duration::from_millis(4));
    assert!(bench.streams.endpoint(bench.flow.id).is_some());
}

#[test]
fn evicted_channel_is_left_and_the_streams_go_on_by_the_carrier() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    program.write(b"ring ");
    bench.remote_says(10);
    assert_eq!(bench.turn(), Next::Wait);
    let endpoint = bench.streams.endpoint(bench.flow.id).expect("there");
    endpoint.command(COMMAND_EVICT);
    assert_eq!(bench.turn(), Next::Wait);
    bench.remote_says(20);
    assert_eq!(bench.turn(), Next::Wait);
    let endpoint = bench
        .streams
        .endpoint(bench.flow.id)
        .expect("until both have left");
    assert!(!endpoint.is_up());
    assert_eq!(program.read(100, 0), pattern(10));
    assert!(program.read(100, 0).is_empty());
    assert_eq!(program.end().rx_mode(), Mode::Carrier);
    program.go_down();
    assert_eq!(bench.turn(), Next::Wait);
    program.leave();
    assert_eq!(bench.turn(), Next::Wait);
    assert!(bench.streams.endpoint(bench.flow.id).is_none());
    assert_eq!(bench.read(10), pattern_from(10, 10));
    bench.write(b"carrier");
    assert_eq!(bench.rings.0, b"ring carrier");
}

#[test]
fn program_that_writes_nonsense_is_gone() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    let tail = &program.end().ours().publish.tail;
    tail.store(1 << 40, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(bench.turn(), Next::ProgramGone);
}

#[test]
fn program_that_has_closed_cleanly_is_heard_to_the_end() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    program.write(b"last words");
    program.close_cleanly();
    // A doorbell of ours that crossed with the close: the kernel resets the carrier.
    (&bench.flow.carrier).write_all(&[0]).expect("room");
    bench.flow.carrier_sent += 1;
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Departed);
    assert_eq!(bench.rings.0, b"last words");
    assert!(bench.remote_saw_end() && bench.flow.has_departed);
}

#[test]
fn remote_that_never_finishes_does_not_keep_a_program_that_is_gone() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    program.close_cleanly();
    bench.program.shutdown(Shutdown::Both).expect("connected");
    (&bench.flow.carrier).write_all(&[0]).expect("room");
    bench.flow.carrier_sent += 1;
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Departed);
    // What the runner does then.
    bench
        .engine
        .release(bench.now, bench.flow.id)
        .expect("known");
    assert!(bench.engine.holds_ring(bench.flow.id));
    bench.now += Duration::from_secs(300);
    bench.engine.handle_timeout(bench.now);
    assert!(!bench.engine.holds_ring(bench.flow.id), "nothing is left");
    assert!(!bench.remote_saw_reset());
}

#[test]
fn program_that_wants_the_kernel_alone_has_the_next_bytes_from_it() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    bench.remote_says(10);
    assert_eq!(bench.turn(), Next::Wait);
    // It is about to give its descriptor away: to somebody who knows nothing of a ring.
    let refuse = &program.end().ours().wake.refuse;
    refuse.store(1, std::sync::atomic::Ordering::SeqCst);
    bench.remote_says(30);
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(bench.read(20), pattern_from(10, 20));
    assert_eq!(program.read(100, 0), pattern(10));
}

#[test]
fn what_a_program_says_before_it_resets_goes_before_the_reset() {
    let mut bench = Bench::new();
    bench.program.write_all(b"last words").expect("room");
    sys::reset_when_closed(&bench.program, true).expect("a socket");
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.turn(), Next::ProgramGone);
    bench.abort();
    assert_eq!(bench.rings.0, b"last words");
    assert!(bench.remote_saw_reset() && !bench.remote_saw_end());
}

#[test]
fn program_that_departs_with_last_words_finishes_after_them() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    // As above, but its end is on the carrier as well.
    program.write(b"last words");
    program.close_cleanly();
    bench.program.shutdown(Shutdown::Write).expect("connected");
    (&bench.flow.carrier).write_all(&[0]).expect("room");
    bench.flow.carrier_sent += 1;
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Departed);
    assert_eq!(bench.rings.0, b"last words");
    assert!(bench.remote_saw_end());
}
