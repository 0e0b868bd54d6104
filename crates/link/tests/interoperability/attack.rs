//! An attacker on the link: it sends segments in the name of the kernel's program with wrong
//! sequence numbers, segments that no stack sends, and SYNs in the names of many hosts.

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use toehold_tcp::{ChecksumSum, Random};

use crate::cell::Cell;
use crate::engine::{HARDWARE, SERVICE};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;
/// An offset inside a request: no number in the middle of a request is ever the expected one.
const BETWEEN: u32 = 33;
/// Half-open connections that the flooded engine holds.
pub(crate) const HALF_OPEN_MAX: usize = 256;
/// SYNs in a row, before other frames get a turn.
const FLOOD_BURST: u32 = 64;
const NAP: Duration = Duration::from_micros(100);

/// The attack on a meeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attack {
    /// A salvo of segments before each request, in the name of its sender.
    Salvos,
    /// SYNs from made-up clients, for as long as the meeting lasts.
    Flood,
}

/// The attacker, and the threads that wait for it.
pub(crate) struct Attacker {
    shared: Arc<Pace>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Salvos wanted and fired.
#[derive(Default)]
pub(crate) struct Pace {
    wanted: AtomicU64,
    fired: AtomicU64,
    is_over: AtomicBool,
    pub(crate) frames: AtomicU64,
}

impl Pace {
    /// Waits for a salvo.
    pub(crate) fn await_salvo(&self) {
        let wanted = 1 + self.wanted.fetch_add(1, Ordering::AcqRel);
        while self.fired.load(Ordering::Acquire) < wanted && !self.is_over.load(Ordering::Acquire) {
            thread::sleep(NAP);
        }
    }
}

impl Attacker {
    /// Starts the attack, in the network of the calling thread.
    pub(crate) fn start(cell: Cell, attack: Attack, seed: u64) -> io::Result<Self> {
        let socket = Wire::open(c"toe0")?;
        let shared = Arc::new(Pace::default());
        let pace = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut random = Random::new(seed);
            while !pace.is_over.load(Ordering::Acquire) {
                match attack {
                    Attack::Salvos => fire_salvos(cell, &socket, &pace, &mut random)?,
                    Attack::Flood => flood(cell, &socket, &pace, &mut random)?,
                }
            }
            Ok(())
        });
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    pub(crate) fn pace(&self) -> Arc<Pace> {
        Arc::clone(&self.shared)
    }

    /// Stops the attack; returns the number of frames that it sent.
    pub(crate) fn stop(&mut self) -> Result<u64, String> {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let result = thread
                .join()
                .map_err(|_| "the attacker panicked".to_owned())?;
            result.map_err(|error| format!("the attacker: {error}"))?;
        }
        Ok(self.shared.frames.load(Ordering::Acquire))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn flood(cell: Cell, wire: &Wire, pace: &Pace, random: &mut Random) -> io::Result<()> {
    for _ in 0..FLOOD_BURST {
        // The first two hosts of the network are the kernel and the engine.
        let host = random.between(3, 254) as u8;
        let forged = Forged {
            source_mac: [2, 0, 0, 0, 7, host],
            source: cell.address(host),
            source_port: random.between(1_024, 65_535) as u16,
            seq: random.bits() as u32,
            ack: 0,
            flags: SYN,
            options: vec![
                2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
            ],
            payload: 0,
        };
        wire.send(&forged.frame(cell.engine_address()))?;
    }
    let sent = pace.frames.fetch_add(FLOOD_BURST.into(), Ordering::AcqRel);
    if sent >= 2 * HALF_OPEN_MAX as u64 {
        // Threads that wait for the attack may begin.
        pace.fired.store(u64::MAX, Ordering::Release);
    }
    thread::sleep(Duration::from_millis(1));
    Ok(())
}

/// Waits for a request, reads the numbers of the conversation from the link, and sends segments
/// that do not belong to the conversation.
fn fire_salvos(cell: Cell, wire: &Wire, pace: &Pace, random: &mut Random) -> io::Result<()> {
    let mut overheard = None;
    while !pace.is_over.load(Ordering::Acquire) {
        let mut frame = [0; 2_048];
        while let Some(length) = wire.receive(&mut frame)? {
            overheard = Overheard::of(cell, &frame[..length]).or(overheard);
        }
        let fired = pace.fired.load(Ordering::Acquire);
        if let Some(seen) = &overheard
            && fired < pace.wanted.load(Ordering::Acquire)
        {
            let salvo = seen.salvo(cell, random);
            for frame in &salvo {
                wire.send(frame)?;
            }
            pace.frames.fetch_add(salvo.len() as u64, Ordering::AcqRel);
            pace.fired.store(fired + 1, Ordering::Release);
        } else {
            thread::sleep(NAP);
        }
    }
    Ok(())
}

/// The position of the kernel's program, by its last segment.
#[derive(Clone)]
struct Overheard {
    mac: [u8; 6],
    port: u16,
    engine_port: u16,
    next: u32,
    ack: u32,
    options: Vec<u8>,
}

impl Overheard {
    fn of(cell: Cell, frame: &[u8]) -> Option<Self> {
        let is_v4 = cell.kernel_address().is_ipv4();
        let (protocol_at, source, tcp) = if is_v4 {
            (23, 26..30, 34)
        } else {
            (20, 22..38, 54)
        };
        let is_kernels = frame.get(source)? == octets(cell.kernel_address());
        let segment = frame.get(tcp..)?;
        if frame[protocol_at] != 6
            || !is_kernels
            || segment.len() < 20
            || segment[13] & (SYN | RST) != 0
        {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().expect("four"));
        let half = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
        let header = usize::from(segment[12] >> 4) * 4;
        let length = if is_v4 {
            usize::from(u16::from_be_bytes([frame[16], frame[17]])) - 20
        } else {
            usize::from(u16::from_be_bytes([frame[18], frame[19]]))
        };
        Some(Self {
            mac: frame[6..12].try_into().expect("six"),
            port: half(0),
            engine_port: half(2),
            next: word(4).wrapping_add((length - header) as u32),
            ack: word(8),
            options: segment[20..header].to_vec(),
        })
    }

    /// RFC 5961's three attacks, the probes of port scanners, and segments that no stack sends.
    fn salvo(&self, cell: Cell, random: &mut Random) -> Vec<Vec<u8>> {
        let wild = random.bits() as u32 | 1 << 31;
        let far = self.next.wrapping_add(wild);
        let forged = |flags, seq, ack, payload| Forged {
            source_mac: self.mac,
            source: cell.kernel_address(),
            source_port: self.port,
            seq,
            ack,
            flags,
            options: self.options.clone(),
            payload,
        };
        let between = self.next.wrapping_add(BETWEEN);
        let unsent = self.ack.wrapping_add(1 << 30);
        let segments = [
            // Resets and SYNs (sections 3 and 4): in the window, outside of the window, at its
            // edge.
            forged(RST, between, 0, 0),
            forged(RST | ACK, far, self.ack, 0),
            forged(RST, self.next.wrapping_sub(1), 0, 0),
            forged(SYN, self.next, 0, 0),
            forged(SYN, far, 0, 0),
            forged(SYN | ACK, between, self.ack, 0),
            // Data and acknowledgements (section 5).
            forged(ACK, self.next, unsent, 0),
            forged(ACK | PSH, self.next, unsent, 64),
            forged(ACK | PSH, self.next, self.ack.wrapping_sub(1 << 30), 64),
            forged(ACK | FIN, self.next, unsent, 0),
            // No flags, all flags at once, and pairs of flags that exclude each other.
            forged(0, self.next, 0, 0),
            forged(0, self.next, 0, 20),
            forged(FIN | PSH | URG, self.next, 0, 0),
            forged(SYN | FIN, between, 0, 0),
            forged(SYN | RST, between, 0, 0),
            forged(FIN, self.next, 0, 0),
            forged(!(ACK | RST), between, 0, 8),
        ];
        let to = |segment: &Forged| segment.frame_to(cell.engine_address(), self.engine_port);
        let mut salvo: Vec<Vec<u8>> = segments.iter().map(to).collect();
        salvo.extend(self.broken(cell, forged(ACK | PSH, self.next, self.ack, 64)));
        salvo
    }

    /// A segment that would be accepted, with damage in its headers.
    fn broken(&self, cell: Cell, segment: Forged) -> Vec<Vec<u8>> {
        let whole = segment.frame_to(cell.engine_address(), self.engine_port);
        let (ip, tcp) = (
            14,
            if cell.engine_address().is_ipv4() {
                34
            } else {
                54
            },
        );
        let damaged = |at: usize, value: u8| {
            let mut frame = whole.clone();
            frame[at] = value;
            frame
        };
        vec![
            // A header that is longer than the segment, a header that is too short, and a wrong
            // checksum.
            damaged(tcp + 12, 0xf0),
            damaged(tcp + 12, 0x10),
            damaged(tcp + 16, whole[tcp + 16] ^ 0x55),
            // A wrong version, a length beyond the frame, and frames that end early.
            damaged(ip, 0x95),
            damaged(if tcp == 34 { 16 } else { 18 }, 0x7f),
            whole[..tcp + 10].to_vec(),
            whole[..ip + 5].to_vec(),
        ]
    }
}

/// A segment with a forged sender.
struct Forged {
    source_mac: [u8; 6],
    source: IpAddr,
    source_port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    /// Options, in whole words.
    options: Vec<u8>,
    payload: usize,
}

impl Forged {
    fn frame(&self, destination: IpAddr) -> Vec<u8> {
        self.frame_to(destination, SERVICE)
    }

    fn frame_to(&self, destination: IpAddr, port: u16) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend_from_slice(&self.source_port.to_be_bytes());
        tcp.extend_from_slice(&port.to_be_bytes());
        tcp.extend_from_slice(&self.seq.to_be_bytes());
        tcp.extend_from_slice(&self.ack.to_be_bytes());
        tcp.push((5 + self.options.len() as u8 / 4) << 4);
        tcp.push(self.flags);
        tcp.extend_from_slice(&[0xff, 0xff, 0, 0, 0, 1]);
        tcp.extend_from_slice(&self.options);
        tcp.resize(tcp.len() + self.payload, 0xee);
        let (source, target) = (octets(self.source), octets(destination));
        let pseudo = ChecksumSum::ZERO.bytes(&source).bytes(&target).word(6);
        let checksum = pseudo.word(tcp.len() as u16).bytes(&tcp).checksum();
        tcp[16..18].copy_from_slice(&checksum);
        let mut frame = HARDWARE.to_vec();
        frame.extend_from_slice(&self.source_mac);
        if destination.is_ipv4() {
            frame.extend_from_slice(&[8, 0, 0x45, 0]);
            frame.extend_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
            frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0]);
        } else {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend_from_slice(&(tcp.len() as u16).to_be_bytes());
            frame.extend_from_slice(&[6, 64]);
        }
        frame.extend_from_slice(&source);
        frame.extend_from_slice(&target);
        if destination.is_ipv4() {
            let checksum = ChecksumSum::ZERO.bytes(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&checksum);
        }
        frame.extend_from_slice(&tcp);
        frame
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Sends and receives frames on a device, past the kernel's TCP (packet(7)).
struct Wire(OwnedFd);

impl Wire {
    fn open(device: &CStr) -> io::Result<Self> {
        // SAFETY: the name is a C string.
        let index = unsafe { libc::if_nametoindex(device.as_ptr()) };
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol.into()) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `socket` has just returned it, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a C structure of integers: zeros are a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives until the call returns, and is as long as it says.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), length) };
        if bound == 0 {
            Ok(Self(socket))
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// A full queue of the device counts as a lost frame.
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: borrowed, and as long as it says.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        let error = io::Error::last_os_error();
        let is_full = matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN));
        if sent >= 0 || is_full {
            Ok(())
        } else {
            Err(error)
        }
    }

    fn receive(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: exclusively borrowed, and as long as it says.
        let count = unsafe {
            libc::recv(
                self.0.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                0,
            )
        };
        if let Ok(count) = usize::try_from(count) {
            return Ok(Some(count));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        }
    }
}
