//! Descriptions of frames between two engines, over a wire that loses chosen frames.

use std::net::SocketAddr;

use toehold_tcp::{
    Config, Duration, Engine, HEADER_BUFFER_BYTES, Instant, InterfaceAddress, MacAddress, Medium,
    Memory, Options, Random, ReceiveOffload,
};

use super::*;
use crate::engine::memory::Streams;

const CLIENT: &str = "10.0.0.1";
const SERVER: &str = "10.0.0.2";
const PORT: u16 = 80;

struct Host {
    engine: Engine,
    streams: Streams,
}

impl Host {
    fn new(ip: &str, number: u8) -> Host {
        let address = InterfaceAddress {
            address: ip.parse().expect("address"),
            prefix_bits: 24,
        };
        let medium = Medium::Ethernet {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            resolve: true,
        };
        let config = Config::new(medium, 1500, address);
        Host {
            engine: Engine::new(config, Random::new(number.into())),
            streams: Streams::new(1 << 30),
        }
    }

    /// Publishes `count` more bytes.
    fn publish(&mut self, id: ConnectionId, from: u64, count: u64) {
        let parts = self.streams.free_to_send(id, from, 0, count);
        parts.into_iter().for_each(|part| part.fill(0x5a));
        self.engine.publish(id, from + count).expect("published");
    }
}

/// Two hosts, and what was said of the server's frames.
struct Wire {
    now: Instant,
    client: Host,
    server: Host,
    said: Vec<(Direction, String)>,
}

impl Wire {
    fn new() -> Wire {
        Wire {
            now: Instant::from_micros(1),
            client: Host::new(CLIENT, 1),
            server: Host::new(SERVER, 2),
            said: Vec::new(),
        }
    }

    /// Lets frames pass until none is left. `loses` names the client's frames to drop, from 0.
    fn run(&mut self, loses: &[usize]) {
        let mut number = 0;
        loop {
            let from_client = frames_of(&mut self.client, self.now);
            let is_quiet = from_client.is_empty();
            for frame in from_client {
                if !loses.contains(&number) {
                    self.feed_server(&frame);
                }
                number += 1;
            }
            let from_server = self.drain_server();
            if is_quiet && from_server.is_empty() {
                return;
            }
            for frame in from_server {
                let (engine, streams) = (&mut self.client.engine, &mut self.client.streams);
                engine.handle_frame(self.now, &frame, ReceiveOffload::default(), streams);
            }
        }
    }

    fn feed_server(&mut self, frame: &[u8]) {
        let Host { engine, streams } = &mut self.server;
        let before = FrameContext::of(engine, frame);
        engine.handle_frame(self.now, frame, ReceiveOffload::default(), streams);
        let comment = before.comment(engine);
        self.said.push((Direction::In, comment));
    }

    fn drain_server(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        loop {
            let engine = &mut self.server.engine;
            let before = engine.counters();
            let mut header = [0; HEADER_BUFFER_BYTES];
            let Some(transmit) = engine.poll_transmit(self.now, &mut header) else {
                return out;
            };
            let frame = whole(transmit, &mut header, &mut self.server.streams);
            let about = (PacketSummary::of(&frame), true);
            let comment = comment_on(&self.server.engine, &before, &transmit, about);
            self.said.push((Direction::Out, comment));
            out.push(frame);
        }
    }

    /// Time passes, and what is due is done.
    fn wait(&mut self, duration: Duration) {
        self.now += duration;
        self.client.engine.handle_timeout(self.now);
        self.server.engine.handle_timeout(self.now);
    }

    /// A connection that is open on both sides, and both its ends.
    fn connect(&mut self) -> (ConnectionId, ConnectionId) {
        let server = SocketAddr::new(SERVER.parse().expect("address"), PORT);
        let listener = self.server.engine.listen(server, 5, Options::default());
        let opened = self
            .client
            .engine
            .connect(self.now, None, server, Options::default());
        self.run(&[]);
        let accepted = self.server.engine.accept(listener.expect("a listener"));
        (opened.expect("opened"), accepted.expect("accepted"))
    }

    fn count(&self, way: Direction, words: &str) -> usize {
        let said = self.said.iter();
        said.filter(|(direction, comment)| *direction == way && comment.contains(words))
            .count()
    }

    #[track_caller]
    fn was_said(&self, way: Direction, words: &str) {
        assert!(self.count(way, words) > 0, "{words}: {:#?}", self.said);
    }
}

fn whole(mut transmit: Transmit, header: &mut [u8], streams: &mut Streams) -> Vec<u8> {
    let mut frame = header[..transmit.header_bytes].to_vec();
    if let Some(payload) = transmit.payload {
        let mut bytes = vec![0; payload.bytes as usize];
        streams.gather(payload.connection, payload.offset, &mut bytes);
        let sum = toehold_tcp::ChecksumSum::ZERO.bytes(&bytes);
        transmit.complete_checksum(&mut frame, sum);
        frame.extend(bytes);
    }
    frame
}

fn frames_of(host: &mut Host, now: Instant) -> Vec<Vec<u8>> {
    let mut header = [0; HEADER_BUFFER_BYTES];
    let mut out = Vec::new();
    while let Some(transmit) = host.engine.poll_transmit(now, &mut header) {
        out.push(whole(transmit, &mut header, &mut host.streams));
    }
    out
}

#[test]
fn connecting_and_delivery_are_described() {
    let mut wire = Wire::new();
    let (client, server) = wire.connect();
    wire.was_said(Direction::In, "neighbour resolution");
    wire.was_said(Direction::In, "opens a connection");
    wire.was_said(Direction::Out, "answers a SYN");
    wire.was_said(Direction::In, "SYN-RECEIVED to ESTABLISHED");
    wire.client.publish(client, 0, 5_000);
    wire.run(&[]);
    let whole = format!(
        "delivered 1448 bytes in order (connection {})",
        server.index()
    );
    assert_eq!(wire.count(Direction::In, &whole), 3, "{:#?}", wire.said);
    wire.was_said(Direction::Out, "pure ACK");
    wire.server.publish(server, 0, 100);
    wire.run(&[]);
    wire.was_said(Direction::Out, "bytes 0 to 100 of the stream");
    wire.wait(Duration::from_secs(1));
    wire.run(&[]);
    wire.was_said(Direction::In, "pure ACK: acknowledges 100 bytes");
}

#[test]
fn payload_of_syns_is_reported() {
    let mut wire = Wire::new();
    let server = SocketAddr::new(SERVER.parse().expect("address"), PORT);
    let listener = wire.server.engine.listen(server, 5, Options::default());
    let listener = listener.expect("a listener");
    wire.server.engine.set_fast_open(listener, 1);
    let opens = [
        "answered with a Fast Open cookie",
        "opens a connection by Fast Open, with its payload",
    ];
    for words in opens {
        let (now, client) = (wire.now, &mut wire.client.engine);
        let opened = client.connect(now, None, server, Options::default());
        let opened = opened.expect("opened");
        client.open_fast(now, opened);
        wire.client.publish(opened, 0, 100);
        wire.run(&[]);
        wire.was_said(Direction::In, words);
    }
    assert_eq!(wire.server.engine.counters().bytes_received, 200);
}

#[test]
fn loss_is_reported_on_both_sides() {
    let mut wire = Wire::new();
    let (client, server) = wire.connect();
    wire.client.publish(client, 0, 10_000);
    wire.run(&[1]);
    wire.was_said(Direction::In, "queued out of order");
    wire.was_said(Direction::In, "in order, a gap is closed");
    // The server's own, of which the client's acknowledgement is lost.
    wire.server.publish(server, 0, 100);
    wire.run(&[0, 1]);
    wire.wait(Duration::from_secs(1));
    wire.run(&[0]);
    wire.wait(Duration::from_secs(2));
    wire.run(&[]);
    let again = ["tail loss probe", "retransmission"];
    let counts = again.map(|words| wire.count(Direction::Out, words));
    assert!(counts.iter().sum::<usize>() > 0, "{:#?}", wire.said);
}

#[test]
fn closed_window_is_announced_and_probed() {
    let mut wire = Wire::new();
    let (client, server) = wire.connect();
    // The client takes nothing, so its window closes.
    let more = u64::from(Options::default().receive_bytes_max);
    wire.server.publish(server, 0, more.min(900_000));
    for _ in 0..40 {
        wire.run(&[]);
        wire.wait(Duration::from_millis(500));
    }
    wire.was_said(Direction::In, "closes the window");
    wire.was_said(Direction::Out, "window probe");
    let received = wire.client.engine.info(client).expect("open").received;
    wire.client.streams.take(client, received);
    let taken = wire.client.engine.take(client, received);
    taken.expect("taken");
    wire.run(&[]);
    wire.was_said(Direction::In, "opens the window");
}

#[test]
fn ends_are_told() {
    let mut wire = Wire::new();
    let (client, server) = wire.connect();
    let now = wire.now;
    wire.client.engine.finish(now, client).expect("open");
    wire.run(&[]);
    wire.was_said(
        Direction::In,
        "the remote has finished; ESTABLISHED to CLOSE-WAIT",
    );
    wire.server.engine.abort(now, server).expect("open");
    wire.run(&[]);
    wire.was_said(Direction::Out, "reset");
    let mut other = Wire::new();
    let (client, _) = other.connect();
    let now = other.now;
    other.client.engine.abort(now, client).expect("open");
    other.run(&[]);
    other.was_said(Direction::In, "resets the connection");
}

#[test]
fn dropped_frames_are_described_with_the_reason() {
    let mut wire = Wire::new();
    let (client, _) = wire.connect();
    wire.client.publish(client, 0, 100);
    let frames = frames_of(&mut wire.client, wire.now);
    let [frame] = &frames[..] else {
        panic!("one segment")
    };
    let mut corrupt = frame.clone();
    *corrupt.last_mut().expect("not empty") ^= 1;
    wire.feed_server(&corrupt);
    wire.was_said(Direction::In, "dropped: malformed, wrong TCP checksum");
    let mut foreign = frame.clone();
    foreign[5] ^= 1;
    wire.feed_server(&foreign);
    wire.was_said(Direction::In, "dropped: not for this engine");
    wire.feed_server(frame);
    wire.feed_server(frame);
    wire.was_said(Direction::In, "duplicate: brings nothing new");
    wire.feed_server(&[0; 10]);
    wire.was_said(
        Direction::In,
        "dropped: malformed, truncated Ethernet header",
    );
}
