//! The impaired link between engine and kernel: a direction loses, delays, repeats or damages
//! frames.

use std::time::{Duration, Instant};

use toehold_link::VnetHeader;
use toehold_tcp::{ChecksumSum, Random};

use crate::cell::Impairment;

const ETHERNET_BYTES: usize = 14;
/// A frame that is kept back is overtaken by a few frames, or by none when no other frame is sent.
const HELD_FRAMES_MAX: u64 = 4;
const HELD_TIME_MAX: Duration = Duration::from_millis(10);
const NEEDS_CHECKSUM: u8 = 1;
/// At most one frame of ARP or neighbour discovery is impaired in each direction. Either stack
/// gives up after three failed attempts to find a neighbour (RFC 4861 section 7.2.2), and then
/// there is no connection to test.
const STRANGERS_STRUCK_MAX: u64 = 1;
/// The first impaired frame is at most this one: the shortest meetings have some more frames.
const FIRST_MAX: u64 = 12;

/// The fate of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Passed,
    Lost,
    Held,
    Repeated,
    Damaged,
}

/// One direction of the link.
pub(crate) struct Way {
    impairment: Impairment,
    random: Random,
    /// The number of frames that could have been impaired so far, and the number of the frame that
    /// is impaired first, so that at least one is.
    seen: u64,
    first: u64,
    held: Vec<Held>,
    pub(crate) struck: u64,
    /// Frames without TCP among the impaired ones.
    strangers_struck: u64,
    /// One of this many packets is marked; `None` marks none.
    marks_every: Option<u64>,
}

struct Held {
    overtakers: u64,
    until: Instant,
    frame: (VnetHeader, Vec<u8>),
}

impl Way {
    pub(crate) fn new(impairment: Impairment, seed: u64, marks_every: Option<u64>) -> Self {
        let mut random = Random::new(seed);
        let every = match impairment {
            Impairment::None => 1,
            Impairment::Loss { every }
            | Impairment::Reordering { every }
            | Impairment::Duplication { every }
            | Impairment::Corruption { every } => every,
        };
        let first = 1 + random.below(every.min(FIRST_MAX));
        Self {
            impairment,
            random,
            seen: 0,
            first,
            held: Vec::new(),
            struck: 0,
            strangers_struck: 0,
            marks_every,
        }
    }

    /// Sends this frame: delivers the frames that arrive now, and returns the fate of the frame.
    pub(crate) fn pass(
        &mut self,
        now: Instant,
        header: VnetHeader,
        frame: &mut [u8],
        deliver: &mut dyn FnMut(VnetHeader, &[u8]),
    ) -> Fate {
        if let Some(every) = self.marks_every
            && self.random.below(every) == 0
        {
            mark(frame);
        }
        let impairment = self.impairment;
        let fate = match impairment {
            Impairment::Loss { every } if self.strikes(every, frame) => Fate::Lost,
            Impairment::Duplication { every } if self.strikes(every, frame) => {
                deliver(header, frame);
                deliver(header, frame);
                Fate::Repeated
            }
            Impairment::Reordering { every } if self.strikes(every, frame) => {
                self.held.push(Held {
                    overtakers: 1 + self.random.below(HELD_FRAMES_MAX),
                    until: now + HELD_TIME_MAX,
                    frame: (header, frame.to_vec()),
                });
                return Fate::Held;
            }
            // Frames without IP have no checksum but Ethernet's own, which would detect all such
            // damage.
            Impairment::Corruption { every } if is_ip(frame) && self.strikes(every, frame) => {
                complete(header, frame);
                let at = self
                    .random
                    .between(ETHERNET_BYTES as u64, frame.len() as u64 - 1);
                frame[at as usize] ^= 1 << self.random.below(8);
                deliver(VnetHeader::default(), frame);
                Fate::Damaged
            }
            _ => {
                deliver(header, frame);
                Fate::Passed
            }
        };
        for held in &mut self.held {
            held.overtakers -= 1;
        }
        self.release(now, deliver);
        fate
    }

    /// Delivers the frames that were kept back for long enough.
    pub(crate) fn release(&mut self, now: Instant, deliver: &mut dyn FnMut(VnetHeader, &[u8])) {
        let is_due = |held: &Held| held.overtakers == 0 || held.until <= now;
        while let Some(at) = self.held.iter().position(is_due) {
            let (header, frame) = self.held.remove(at).frame;
            deliver(header, &frame);
        }
    }

    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    fn strikes(&mut self, every: u64, frame: &[u8]) -> bool {
        let is_stranger = tcp_header(frame).is_none();
        if is_stranger && self.strangers_struck == STRANGERS_STRUCK_MAX {
            return false;
        }
        self.seen += 1;
        let strikes =
            self.seen == self.first || self.seen > self.first && self.random.below(every) == 0;
        self.struck += u64::from(strikes);
        self.strangers_struck += u64::from(strikes && is_stranger);
        strikes
    }
}

fn is_ip(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd])) && frame.len() > ETHERNET_BYTES
}

/// Marks a packet as if a queue on its path were long, if its sender supports ECN (RFC 3168).
fn mark(frame: &mut [u8]) {
    // The two bits lie across the first bytes of an IPv6 header.
    let (at, shift) = match frame.get(12..14) {
        Some([0x08, 0x00]) => (15, 0),
        Some([0x86, 0xdd]) => (15, 4),
        _ => return,
    };
    let Some(byte) = frame.get_mut(at) else {
        return;
    };
    if *byte >> shift & 3 == 0 {
        return;
    }
    *byte |= 3 << shift;
    if shift == 0 {
        let header = &mut frame[ETHERNET_BYTES..][..20];
        header[10..12].fill(0);
        let checksum = ChecksumSum::ZERO.bytes(header).checksum();
        header[10..12].copy_from_slice(&checksum);
    }
}

/// Completes a checksum that was offloaded to the link, so that the receiver notices later damage.
fn complete(header: VnetHeader, frame: &mut [u8]) {
    let bytes = header.to_bytes();
    if bytes[0] & NEEDS_CHECKSUM == 0 {
        return;
    }
    let start = usize::from(u16::from_ne_bytes([bytes[6], bytes[7]]));
    let at = start + usize::from(u16::from_ne_bytes([bytes[8], bytes[9]]));
    let checksum = ChecksumSum::ZERO.bytes(&frame[start..]).checksum();
    frame[at..at + 2].copy_from_slice(&checksum);
}

/// Observes whether a side's window stays closed for a while.
#[derive(Default)]
pub(crate) struct Closure {
    first: Option<Instant>,
    last: Option<Instant>,
    pub(crate) segments: u64,
}

/// Closed windows that follow each other faster than this can belong to one burst.
const PROBE_TIME_MIN: Duration = Duration::from_millis(150);

impl Closure {
    pub(crate) fn look_at(&mut self, now: Instant, frame: &[u8]) {
        if window(frame) == Some(0) {
            self.segments += 1;
            self.first.get_or_insert(now);
            self.last = Some(now);
        }
    }

    /// True when a closed window was announced again in answer to a probe, one timeout after it
    /// closed.
    pub(crate) fn was_probed(&self) -> bool {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last - first >= PROBE_TIME_MIN,
            _ => false,
        }
    }
}

/// The window field of a segment that acknowledges and is neither a SYN nor a reset.
fn window(frame: &[u8]) -> Option<u16> {
    let header = tcp_header(frame)?;
    let is_plain = header[13] & 0b0001_0110 == 0b0001_0000;
    is_plain.then(|| u16::from_be_bytes([header[14], header[15]]))
}

fn tcp_header(frame: &[u8]) -> Option<&[u8]> {
    let (protocol, tcp) = match frame.get(12..14)? {
        [0x08, 0x00] => (*frame.get(23)?, 14 + usize::from(frame[14] & 0xf) * 4),
        [0x86, 0xdd] => (*frame.get(20)?, 54),
        _ => return None,
    };
    frame.get(tcp..tcp + 20).filter(|_| protocol == 6)
}
