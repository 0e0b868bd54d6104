//! The header of a connection, and the acknowledgement at the end of a stream.
//!
//! ```text
//!   0        4     5      6          8         12         16         20        24       32
//!   | magic  | job | flags| nothing  | message | response | buffer   | millis  | nothing |
//! ```
//!
//! Numbers are little-endian.

/// The server's job on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    /// Answer each message with a response.
    Echo,
    /// Read to the end, then acknowledge.
    Sink,
    /// Send for a time, then end.
    Source,
    /// Answer one byte and end.
    Connect,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) job: Job,
    pub(super) polling: bool,
    pub(super) touch: bool,
    pub(super) sendfile: bool,
    /// This is one of many connections that the event loop serves.
    pub(super) shared: bool,
    pub(super) message: usize,
    pub(super) response: usize,
    /// Zero: the kernel's choice.
    pub(super) socket_buffer: usize,
    /// The time for which a source sends.
    pub(super) millis: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let flags = [self.polling, self.touch, self.sendfile, self.shared];
        let flags = flags
            .iter()
            .enumerate()
            .fold(0, |all, (bit, &set)| all | (u8::from(set) << bit));
        out[..4].copy_from_slice(&MAGIC);
        out[4] = match self.job {
            Job::Echo => 0,
            Job::Sink => 1,
            Job::Source => 2,
            Job::Connect => 3,
        };
        out[5] = flags;
        let numbers = [
            self.message as u32,
            self.response as u32,
            self.socket_buffer as u32,
            self.millis,
        ];
        for (at, number) in numbers.iter().enumerate() {
            out[8 + at * 4..12 + at * 4].copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// `None` when the bytes are no valid header, or ask for too much.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let number = |at: usize| {
            let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_le_bytes(word)
        };
        let size = |at: usize| {
            let size = number(at) as usize;
            (1..=MESSAGE_BYTES_MAX).contains(&size).then_some(size)
        };
        let flag = |bit: u8| bytes[5] & (1 << bit) != 0;
        (bytes[..4] == MAGIC).then_some(())?;
        Some(Header {
            job: match bytes[4] {
                0 => Job::Echo,
                1 => Job::Sink,
                2 => Job::Source,
                3 => Job::Connect,
                _ => return None,
            },
            polling: flag(0),
            touch: flag(1),
            sendfile: flag(2),
            shared: flag(3),
            message: size(8)?,
            response: size(12)?,
            socket_buffer: (number(16) as usize).min(1 << 30),
            millis: number(20).min(MILLIS_MAX),
        })
    }
}

/// The message of a sink at the end of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Acknowledgement {
    pub(super) bytes: u64,
    /// The sum of all bytes, where they were touched.
    pub(super) sum: u64,
}

impl Acknowledgement {
    pub(super) fn encode(self) -> [u8; ACKNOWLEDGEMENT_BYTES] {
        let mut out = [0; ACKNOWLEDGEMENT_BYTES];
        out[..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..].copy_from_slice(&self.sum.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; ACKNOWLEDGEMENT_BYTES]) -> Acknowledgement {
        let half = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Acknowledgement {
            bytes: half(0),
            sum: half(8),
        }
    }
}

/// Writes a message: always the same bytes.
pub(super) fn fill(message: &mut [u8]) {
    for (at, byte) in message.iter_mut().enumerate() {
        *byte = (at * 31 + 7) as u8;
    }
}

/// The sum of bytes, independent of the boundaries between reads.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

pub(super) const HEADER_BYTES: usize = 32;
pub(super) const ACKNOWLEDGEMENT_BYTES: usize = 16;
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;
const MILLIS_MAX: u32 = 2 * 3600 * 1000;
const MAGIC: [u8; 4] = *b"TLG1";
