//! Payload: bytes that differ from place to place, from connection to connection and from one
//! direction to the other.

use std::sync::LazyLock;

use toehold_tcp::Random;

/// A prime, so that no segment size divides it: a shift by whole segments is noticed.
const PERIOD: usize = 65_537;
/// The most bytes that are checked in one piece.
const PIECE: usize = 16_384;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(0x70e_401d);
    let period: Vec<u8> = (0..PERIOD).map(|_| random.bits() as u8).collect();
    period.iter().chain(&period[..PIECE]).copied().collect()
});

/// One direction of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    start: usize,
}

impl Stream {
    /// The stream that the client with this port sends, or receives.
    pub(crate) fn new(client_port: u16, by_client: bool) -> Self {
        let start = usize::from(client_port) * 7_919 + usize::from(by_client) * 31_337;
        Self {
            start: start % PERIOD,
        }
    }

    /// Bytes from `offset` on: as many as there are in one piece, at most `most`.
    pub(crate) fn piece(self, offset: u64, most: usize) -> &'static [u8] {
        let at = (self.start + (offset % PERIOD as u64) as usize) % PERIOD;
        &TABLE[at..at + most.min(PIECE)]
    }

    pub(crate) fn fill(self, mut offset: u64, mut target: &mut [u8]) {
        while !target.is_empty() {
            let piece = self.piece(offset, target.len());
            let (now, later) = target.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            offset += piece.len() as u64;
            target = later;
        }
    }

    /// Checks that `bytes` are those of the stream from `offset` on. The error is the position of
    /// the first wrong byte.
    pub(crate) fn check(self, mut offset: u64, mut bytes: &[u8]) -> Result<(), u64> {
        while !bytes.is_empty() {
            let piece = self.piece(offset, bytes.len());
            let (now, later) = bytes.split_at(piece.len());
            if now != piece {
                let wrong = now.iter().zip(piece).position(|(a, b)| a != b);
                return Err(offset + wrong.unwrap_or(0) as u64);
            }
            offset += piece.len() as u64;
            bytes = later;
        }
        Ok(())
    }
}

#[test]
fn streams_are_what_they_are_filled_with_and_nothing_else() {
    let (mine, yours) = (Stream::new(40_000, true), Stream::new(40_000, false));
    let mut bytes = vec![0; 100_000];
    mine.fill(123, &mut bytes);
    assert_eq!(mine.check(123, &bytes), Ok(()));
    assert_eq!(yours.check(123, &bytes), Err(123));
    bytes[77_000] ^= 1;
    assert_eq!(mine.check(123, &bytes), Err(77_123));
}
