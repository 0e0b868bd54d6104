//! The limit of an *inline* engine: one thread is both the program and the TCP engine, without
//! sockets, rings or another process in between.
//!
//! ```text
//! inline engine INTERFACE ADDRESS PORT [SPIN_US]    over a packet socket, as 02:54:…
//! inline kernel PORT                                the same program on sockets, by epoll(7)
//! ```
//!
//! Both answer every command of the Redis protocol with three bytes, so redis-benchmark can measure
//! them: `redis-benchmark -t get`. ADDRESS must not be one of the kernel's. Before the engine
//! sleeps, it polls for SPIN_US microseconds for further frames. Docs: decision 29.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration as Span, Instant as Clock};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use toehold_link::{PacketOptions, PacketSocket, VnetHeader};
use toehold_tcp::{
    Config, ConnectionId, Engine, Event, HEADER_BUFFER_BYTES, Instant, InterfaceAddress,
    ListenerId, MacAddress, Medium, Memory, NoRoom, Offload, Options, Random,
};

const ANSWER: &[u8] = b"$3\r\nxyz\r\n";
const BACKLOG: u16 = 4_096;
const RING_BYTES: usize = 16 << 10;
/// Frames that the engine takes in a row.
const BATCH: usize = 64;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["kernel", port] => on_kernel(number(port)),
        ["engine", interface, address, port] => inline(interface, address, number(port), 0),
        ["engine", interface, address, port, spin_us] => {
            inline(interface, address, number(port), number(spin_us))
        }
        _ => {
            eprintln!("Usage: inline kernel PORT | inline engine INTERFACE ADDRESS PORT [SPIN_US]");
            std::process::exit(2)
        }
    }
}

fn number(text: &str) -> u16 {
    text.parse().expect("a number up to 65535")
}

/// The length of the first whole command in `input`: an array of strings.
fn command_bytes(input: &[u8]) -> Option<usize> {
    let line = |input: &[u8]| {
        let end = input.iter().position(|&byte| byte == b'\n')?;
        let digits = std::str::from_utf8(input.get(1..end - 1)?).ok()?;
        Some((digits.parse::<usize>().ok()?, end + 1))
    };
    let (count, mut at) = line(input)?;
    for _ in 0..count {
        let (bytes, used) = line(input.get(at..)?)?;
        at += used + bytes + 2;
    }
    (at <= input.len()).then_some(at)
}

/// Answers all whole commands of `input`; returns the number of their bytes.
fn answer(input: &[u8], answers: &mut Vec<u8>) -> usize {
    let mut used = 0;
    while let Some(bytes) = command_bytes(&input[used..]) {
        answers.extend_from_slice(ANSWER);
        used += bytes;
    }
    used
}

/// An ordinary program: non-blocking sockets, and epoll.
fn on_kernel(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    rustix::net::listen(&listener, i32::from(BACKLOG))?;
    listener.set_nonblocking(true)?;
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let watch = |fd: &dyn AsFd| {
        let data = epoll::EventData::new_u64(fd.as_fd().as_raw_fd() as u64);
        epoll::add(&instance, fd.as_fd(), data, epoll::EventFlags::IN)
    };
    watch(&listener)?;
    let mut clients: HashMap<u64, (TcpStream, Vec<u8>)> = HashMap::new();
    let (mut events, mut buffer) = (Vec::with_capacity(1_024), [0; RING_BYTES]);
    loop {
        events.clear();
        epoll::wait(&instance, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            if number == listener.as_raw_fd() as u64 {
                while let Ok((client, _)) = listener.accept() {
                    client.set_nonblocking(true)?;
                    client.set_nodelay(true)?;
                    watch(&client)?;
                    clients.insert(client.as_raw_fd() as u64, (client, Vec::new()));
                }
            } else if let Some((client, input)) = clients.get_mut(&number) {
                let is_over = match client.read(&mut buffer) {
                    Ok(0) => true,
                    Ok(count) => {
                        input.extend_from_slice(&buffer[..count]);
                        let mut answers = Vec::new();
                        input.drain(..answer(input, &mut answers));
                        client.write_all(&answers).is_err()
                    }
                    Err(error) => error.kind() != io::ErrorKind::WouldBlock,
                };
                if is_over {
                    clients.remove(&number);
                }
            }
        }
    }
}

/// Both rings of a connection.
struct Stream {
    id: ConnectionId,
    received: Box<[u8]>,
    sent: Box<[u8]>,
    taken: u64,
    published: u64,
    is_finished: bool,
}

/// Indexed by the engine's slot.
#[derive(Default)]
struct Streams(Vec<Option<Stream>>);

impl Streams {
    fn of(&mut self, id: ConnectionId) -> &mut Stream {
        if self.0.len() <= id.index() {
            self.0.resize_with(id.index() + 1, || None);
        }
        let place = &mut self.0[id.index()];
        if place.as_ref().is_none_or(|stream| stream.id != id) {
            *place = Some(Stream {
                id,
                received: vec![0; RING_BYTES].into(),
                sent: vec![0; RING_BYTES].into(),
                taken: 0,
                published: 0,
                is_finished: false,
            });
        }
        place.as_mut().expect("it was made")
    }
}

/// The places of `bytes` bytes from `offset` on: in a ring, and in the copy.
fn pieces(offset: u64, bytes: usize) -> [(Range<usize>, Range<usize>); 2] {
    let at = offset as usize % RING_BYTES;
    let first = bytes.min(RING_BYTES - at);
    [(at..at + first, 0..first), (0..bytes - first, first..bytes)]
}

impl Memory for Streams {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let stream = self.of(id);
        for (inside, part) in pieces(offset, bytes.len()) {
            stream.received[inside].copy_from_slice(&bytes[part]);
        }
        Ok(())
    }

    fn gather(&mut self, id: ConnectionId, offset: u64, target: &mut [u8]) {
        let stream = self.of(id);
        for (inside, part) in pieces(offset, target.len()) {
            target[part].copy_from_slice(&stream.sent[inside]);
        }
    }
}

struct Inline {
    engine: Engine,
    streams: Streams,
    listener: ListenerId,
    socket: PacketSocket,
    /// Room for the link's metadata, headers and payload.
    frame: Vec<u8>,
}

fn inline(interface: &str, address: &str, port: u16, spin_us: u16) -> io::Result<()> {
    let address: IpAddr = address.parse().expect("an IP address");
    let began = Clock::now();
    let mac = [2, 0x54, 0, 0, 0, 2];
    let options = PacketOptions {
        mac: Some(mac),
        group: None,
    };
    let socket = PacketSocket::open(interface, options).map_err(io::Error::other)?;
    let ours = InterfaceAddress {
        address,
        prefix_bits: 24,
    };
    let medium = Medium::Ethernet {
        mac: MacAddress(mac),
        resolve: true,
    };
    let config = Config {
        offload: Offload {
            transmit_checksum: true,
            segmentation_bytes_max: RING_BYTES as u32,
        },
        ..Config::new(medium, 1500, ours)
    };
    let seed = u64::from(std::process::id());
    let mut engine = Engine::new(config, Random::new(seed));
    let options = Options {
        nodelay: true,
        receive_bytes: RING_BYTES as u32,
        receive_bytes_max: RING_BYTES as u32,
        ..Options::default()
    };
    let listener = engine
        .listen(SocketAddr::new(address, port), BACKLOG.into(), options)
        .expect("an address of the engine's and a port");
    let mut inline = Inline {
        engine,
        streams: Streams::default(),
        listener,
        socket,
        frame: vec![0; VnetHeader::BYTES + HEADER_BUFFER_BYTES + RING_BYTES],
    };
    loop {
        let now = Instant::from_micros(began.elapsed().as_micros() as u64 + 1);
        if !inline.turn(now) && !inline.comes_within(Span::from_micros(spin_us.into())) {
            inline.sleep(now)?;
        }
    }
}

impl Inline {
    /// Takes frames, serves the connections, and sends; false when there was no work.
    fn turn(&mut self, now: Instant) -> bool {
        let count = self.socket.waiting_whole(BATCH);
        let frames = self.socket.oldest(count);
        let frames = frames.map(|arrival| (arrival.bytes, arrival.header.receive_offload()));
        self.engine.handle_frames(now, frames, &mut self.streams);
        (0..count).for_each(|_| self.socket.release());
        if self.engine.poll_timeout().is_some_and(|due| due <= now) {
            self.engine.handle_timeout(now);
        }
        while let Some(event) = self.engine.poll_event() {
            self.serve(now, event);
        }
        self.send(now) || count > 0
    }

    fn serve(&mut self, now: Instant, event: Event) {
        match event {
            Event::Acceptable(_) => while self.engine.accept(self.listener).is_some() {},
            Event::Progress {
                connection: id,
                received,
                remote_finished,
                ..
            } => {
                let stream = self.streams.of(id);
                let (mut input, mut answers) = (Vec::new(), Vec::new());
                for (inside, _) in pieces(stream.taken, (received - stream.taken) as usize) {
                    input.extend_from_slice(&stream.received[inside]);
                }
                stream.taken += answer(&input, &mut answers) as u64;
                for (inside, part) in pieces(stream.published, answers.len()) {
                    stream.sent[inside].copy_from_slice(&answers[part]);
                }
                stream.published += answers.len() as u64;
                let (taken, published) = (stream.taken, stream.published);
                let ends = remote_finished && !stream.is_finished;
                stream.is_finished |= ends;
                // A connection that has ended in between accepts these calls no more.
                let _ = self.engine.take(id, taken);
                let _ = self.engine.publish(id, published);
                if ends {
                    let _ = self.engine.finish(now, id);
                    let _ = self.engine.release(now, id);
                }
            }
            Event::Closed { connection, .. } => drop(self.engine.release(now, connection)),
            _ => {}
        }
    }

    /// Sends all pending frames; returns whether there were any.
    fn send(&mut self, now: Instant) -> bool {
        let mut has_sent = false;
        loop {
            let room = &mut self.frame[VnetHeader::BYTES..];
            let Some(mut transmit) = self.engine.poll_transmit(now, room) else {
                return has_sent;
            };
            let (headers, rest) = room.split_at_mut(transmit.header_bytes);
            let bytes = transmit.payload.map_or(0, |payload| payload.bytes as usize);
            let copy = &mut rest[..bytes];
            if let Some(payload) = transmit.payload {
                self.streams
                    .gather(payload.connection, payload.offset, copy);
            }
            transmit.complete_checksum(headers, toehold_tcp::ChecksumSum::ZERO.bytes(copy));
            let end = VnetHeader::BYTES + transmit.header_bytes + bytes;
            let metadata = VnetHeader::for_transmit(&transmit.offload);
            // When the queue is full, the frame counts as lost on the way.
            let _ = self
                .socket
                .send_behind_header(metadata, &mut self.frame[..end]);
            has_sent = true;
        }
    }

    /// Polls for frames without sleeping; returns whether a frame has come.
    fn comes_within(&self, span: Span) -> bool {
        let began = Clock::now();
        while began.elapsed() < span {
            if self.socket.peek().is_some() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        let timeout = self.engine.poll_timeout().map(|due| Timespec {
            tv_sec: 0,
            tv_nsec: i64::from((due.since(now).as_micros() as u32).clamp(1, 999_999)) * 1_000,
        });
        let queues = self.socket.queues();
        let mut link: Vec<PollFd> = queues
            .map(|queue| PollFd::from_borrowed_fd(queue, PollFlags::IN))
            .collect();
        poll(&mut link, timeout.as_ref())?;
        if link[0].revents().contains(PollFlags::ERR) {
            self.socket.clear_error();
        }
        Ok(())
    }
}
