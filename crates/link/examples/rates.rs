//! Measures the cost of a frame on each link, without any TCP: `cargo run --release -p toehold-link
//! --example rates [ROUNDS]`, as root.
//!
//! ```text
//!   this end: a TAP's file, or a socket on `near0` ══ in a namespace: `toe0` or `far0`
//! ```
//!
//! In: the other end sends some hundred frames, many per call; then this end takes them. The
//! processor time of each end is measured. If the kernel handles an arrival at once, that time
//! counts for the sender. Out: this end sends frames that the other kernel drops at once; that time
//! counts for this end. All links take turns; results are medians of processor time, so waiting
//! does not count.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use toehold_link::{
    PacketOptions, PacketSocket, Tap, TapOptions, VnetHeader, XdpOptions, XdpSocket, XdpSteering,
};
use toehold_measure::stats;
use toehold_network::Namespace;

const OURS: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 2);
/// Frames in a row, and the number of rows.
const ROW: usize = 512;
const ROWS: usize = 400;
/// Frames that are given to the link at once, as an engine answers a batch.
const BATCH: usize = 64;
const LENGTHS: [usize; 2] = [66, 1514];
const KINDS: [&str; 3] = ["tap", "packet", "xdp"];

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(5, |text| text.parse().expect("a number"));
    let stage = Stage::new();
    println!("| | frame | this end | the other end | lost |\n|---|---|---|---|---|");
    for is_out in [false, true] {
        for length in LENGTHS {
            let mut samples: Vec<Vec<Sample>> = KINDS.iter().map(|_| Vec::new()).collect();
            for _ in 0..rounds {
                for (kind, samples) in KINDS.iter().zip(&mut samples) {
                    let mut link = stage.open(kind);
                    let sample = match is_out {
                        true => send(&mut link, length),
                        false => stage.receive(kind, &mut link, length),
                    };
                    samples.push(sample);
                }
            }
            let way = if is_out { "out" } else { "in" };
            for (kind, samples) in KINDS.iter().zip(samples) {
                let [here, there] = [|one: &Sample| one.here, |one: &Sample| one.there];
                let (here, there) = (median_of(&samples, here), median_of(&samples, there));
                let lost: u64 = samples.iter().map(|one| one.lost).sum();
                println!("| {way}, {kind} | {length} B | {here:.0} ns | {there:.0} ns | {lost} |");
            }
        }
    }
}

/// Nanoseconds per frame at each end, and frames that did not arrive.
struct Sample {
    here: f64,
    there: f64,
    lost: u64,
}

fn median_of(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    stats::median(&samples.iter().map(of).collect::<Vec<f64>>())
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn each(spent: Duration, frames: u64) -> f64 {
    spent.as_nanos() as f64 / frames.max(1) as f64
}

enum Link {
    Tap(Tap, Box<[u8]>),
    Packet(PacketSocket, Box<[u8]>),
    Xdp(Box<XdpSocket>),
}

impl Link {
    /// Takes a frame, if there is one, and reads its headers. True when the frame was sent to this
    /// end by the test.
    fn take(&mut self) -> Option<bool> {
        let is_sent = |frame: &[u8]| frame[23] == 253 && frame[30] == OURS.octets()[0];
        match self {
            Link::Tap(tap, buffer) => {
                let Ok(Some((length, _))) = tap.receive_behind_header(buffer) else {
                    return None;
                };
                Some(is_sent(&buffer[VnetHeader::BYTES..][..length]))
            }
            Link::Packet(socket, _) => {
                let is_sent = is_sent(socket.peek()?.bytes);
                socket.release();
                Some(is_sent)
            }
            Link::Xdp(socket) => {
                let (_, frame) = socket.peek()?;
                let is_sent = is_sent(frame);
                socket.release();
                Some(is_sent)
            }
        }
    }

    /// Sends a frame; returns whether the link accepted it.
    fn give(&mut self, frame: &[u8]) -> bool {
        match self {
            Link::Tap(tap, buffer) => {
                let whole = &mut buffer[..VnetHeader::BYTES + frame.len()];
                whole[VnetHeader::BYTES..].copy_from_slice(frame);
                matches!(
                    tap.send_behind_header(VnetHeader::default(), whole),
                    Ok(true)
                )
            }
            Link::Packet(socket, buffer) => {
                let whole = &mut buffer[..VnetHeader::BYTES + frame.len()];
                whole[VnetHeader::BYTES..].copy_from_slice(frame);
                matches!(
                    socket.send_behind_header(VnetHeader::default(), whole),
                    Ok(true)
                )
            }
            Link::Xdp(socket) => {
                let Some(room) = socket.room() else {
                    return false;
                };
                room[..frame.len()].copy_from_slice(frame);
                socket.publish(frame.len());
                true
            }
        }
    }

    fn flush(&mut self) {
        if let Link::Xdp(socket) = self {
            socket.flush();
        }
    }
}

fn send(link: &mut Link, length: usize) -> Sample {
    let frame = frame(length, 0x88b5);
    let (before, mut sent) = (processor_time(), 0);
    for _ in 0..ROWS * ROW / BATCH {
        for _ in 0..BATCH {
            sent += u64::from(link.give(&frame));
        }
        link.flush();
    }
    Sample {
        here: each(processor_time() - before, sent),
        there: 0.0,
        lost: (ROWS * ROW) as u64 - sent,
    }
}

fn frame(length: usize, kind: u16) -> Vec<u8> {
    // The packet socket's own address; a TAP and the program accept all addresses.
    let mut frame = vec![2, 0, 0, 0, 0, 1];
    frame.extend([2, 0, 0, 0, 0, 9]);
    frame.extend(kind.to_be_bytes());
    frame.extend([0x45, 0]);
    frame.extend((length as u16 - 14).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 253, 0, 0, 10, 84, 0, 1]);
    frame.extend(OURS.octets());
    frame.resize(length, 0);
    frame
}

/// The other end. It ends when it is dropped.
struct Stage {
    far: Namespace,
    near: Namespace,
}

impl Stage {
    fn new() -> Self {
        let make = || Namespace::new().expect("network namespaces need root");
        let (near, far) = (make(), make());
        near.add_veth("near0", &far, "far0", "").expect("a veth");
        for (namespace, words) in [
            (&near, "link set near0 up"),
            (&far, "link set far0 up"),
            (&far, "tuntap add dev toe0 mode tap vnet_hdr"),
            (&far, "link set toe0 txqueuelen 8192 up"),
        ] {
            namespace.ip(words).expect("ip does as it is told");
        }
        Self { far, near }
    }

    fn open(&self, kind: &str) -> Link {
        match kind {
            "tap" => self.far.within(|| {
                let tap = Tap::open("toe0", TapOptions::default()).expect("a TAP device");
                Link::Tap(tap, vec![0; 1 << 16].into())
            }),
            "packet" => self.near.within(|| {
                let options = PacketOptions {
                    mac: Some([2, 0, 0, 0, 0, 1]),
                    group: None,
                };
                let socket = PacketSocket::open("near0", options).expect("a packet socket");
                Link::Packet(socket, vec![0; 1 << 16].into())
            }),
            _ => self.near.within(|| {
                let steering = XdpSteering::attach("near0", 1).expect("a program");
                steering.set_addresses(&[OURS.into()]).expect("an address");
                let socket = XdpSocket::open(Arc::new(steering), 0, XdpOptions::default());
                Link::Xdp(Box::new(socket.expect("a socket")))
            }),
        }
    }

    fn receive(&self, kind: &str, link: &mut Link, length: usize) -> Sample {
        let interface = if kind == "tap" { "toe0" } else { "far0" };
        let source = self.far.within(|| Source::open(interface));
        let frame = frame(length, 0x0800);
        let (go, gone) = (mpsc::sync_channel(0), mpsc::sync_channel(0));
        thread::scope(|scope| {
            let (go, wait) = go;
            let (done, sent) = gone;
            scope.spawn(move || {
                while wait.recv().is_ok() {
                    let before = processor_time();
                    source.send(&frame);
                    let spent = processor_time() - before;
                    if done.send(spent).is_err() {
                        return;
                    }
                }
            });
            let (mut here, mut there, mut taken) = (Duration::ZERO, Duration::ZERO, 0);
            for _ in 0..ROWS {
                go.send(()).expect("the source waits for it");
                there += sent.recv().expect("the source says so");
                let before = processor_time();
                while let Some(is_sent) = link.take() {
                    taken += u64::from(is_sent);
                }
                here += processor_time() - before;
            }
            drop(go);
            let all = (ROWS * ROW) as u64;
            Sample {
                here: each(here, taken),
                there: each(there, all),
                lost: all - taken,
            }
        })
    }
}

/// A packet socket that sends many frames per call.
struct Source {
    socket: OwnedFd,
}

impl Source {
    fn open(interface: &str) -> Self {
        let name = std::ffi::CString::new(interface).expect("a name");
        // SAFETY: the descriptor is new; `sockaddr_ll` is plain data; values and address are
        // readable for their lengths.
        unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(socket >= 0, "{}", io::Error::last_os_error());
            let on: libc::c_int = 1;
            let length = size_of_val(&on) as libc::socklen_t;
            let bypass = libc::PACKET_QDISC_BYPASS;
            libc::setsockopt(
                socket,
                libc::SOL_PACKET,
                bypass,
                (&raw const on).cast(),
                length,
            );
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as libc::c_ushort;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()).cast_signed();
            let length = size_of_val(&address) as libc::socklen_t;
            let bound = libc::bind(socket, (&raw const address).cast(), length);
            assert_eq!(bound, 0, "{}", io::Error::last_os_error());
            Self {
                socket: OwnedFd::from_raw_fd(socket),
            }
        }
    }

    /// Sends a row of frames.
    fn send(&self, frame: &[u8]) {
        let mut vector = libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        };
        // SAFETY: `mmsghdr` is plain data, for which zeros are a value; each message names the
        // frame, which is only read.
        unsafe {
            let mut message: libc::mmsghdr = std::mem::zeroed();
            message.msg_hdr.msg_iov = &mut vector;
            message.msg_hdr.msg_iovlen = 1;
            let mut all = [message; ROW];
            let mut sent = 0;
            while sent < ROW {
                let (rest, count) = (&mut all[sent..], (ROW - sent) as u32);
                let now = libc::sendmmsg(self.socket.as_raw_fd(), rest.as_mut_ptr(), count, 0);
                assert!(now > 0, "{}", io::Error::last_os_error());
                sent += now as usize;
            }
        }
    }
}
