//! What the library says first on a carrier that it has connected to the relay: where the carrier is to lead.
//!
//! Who holds the carrier says it, on the carrier itself: nobody else can say it for them, and nothing has to be matched with anything. The
//! *pass* tells for whom: the adapter gives each client one of its own ([`crate::rendezvous::Kind::Engine`]), 128 bits that nobody guesses.
//! The relay's port is open to every local user, and without a pass it leads nowhere.

use crate::offload::Address;
use crate::table::LAYOUT_VERSION;

/// First word of an opening: "TOEO".
const OPENING_MAGIC: u32 = u32::from_le_bytes(*b"TOEO");
/// Length of an opening: the carrier's stream begins so many bytes before the program's.
pub const OPENING_BYTES: usize = 48;

/// What a client shows to be known by; all zero is nobody's.
pub type Pass = [u64; 2];

/// A wish to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Whose wish it is.
    pub pass: Pass,
    /// Where to.
    pub remote: Address,
    /// The local port the program asked for, or 0. The address it asked for is what the carrier's own stands in for, if it does for any.
    pub local_port: u16,
}

impl Opening {
    /// Its bytes: magic, version, pass, remote address and port, local port, four zeros.
    pub fn to_bytes(&self) -> [u8; OPENING_BYTES] {
        let mut bytes = [0; OPENING_BYTES];
        let (magic, version) = (OPENING_MAGIC.to_ne_bytes(), LAYOUT_VERSION.to_ne_bytes());
        let pass = self.pass.map(u64::to_ne_bytes);
        let (remote_port, local_port) = (
            self.remote.port.to_ne_bytes(),
            self.local_port.to_ne_bytes(),
        );
        let fields: [&[u8]; 7] = [
            &magic,
            &version,
            &pass[0],
            &pass[1],
            &self.remote.ip,
            &remote_port,
            &local_port,
        ];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        bytes
    }

    /// The opening in `bytes`; `None` when they are no opening of this version.
    pub fn parse(bytes: &[u8; OPENING_BYTES]) -> Option<Opening> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (second, rest) = rest.split_first_chunk()?;
        let (ip, rest) = rest.split_first_chunk()?;
        let (remote_port, rest) = rest.split_first_chunk()?;
        let (local_port, _) = rest.split_first_chunk()?;
        let is_ours = u32::from_ne_bytes(*magic) == OPENING_MAGIC
            && u32::from_ne_bytes(*version) == LAYOUT_VERSION;
        is_ours.then_some(Opening {
            pass: [u64::from_ne_bytes(*first), u64::from_ne_bytes(*second)],
            remote: Address {
                ip: *ip,
                port: u16::from_ne_bytes(*remote_port),
            },
            local_port: u16::from_ne_bytes(*local_port),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_survives_the_way() {
        let opening = Opening {
            pass: [3, u64::MAX],
            remote: Address {
                ip: *b"0123456789abcdef",
                port: 80,
            },
            local_port: 4000,
        };
        let bytes = opening.to_bytes();
        assert_eq!(Opening::parse(&bytes), Some(opening));
        assert_eq!(bytes[44..], [0; 4]);
    }

    #[test]
    fn foreign_bytes_are_no_opening() {
        let opening = Opening {
            pass: [1, 2],
            remote: Address::default(),
            local_port: 0,
        };
        for wrong in [0, 3, 4, 7] {
            let mut bytes = opening.to_bytes();
            bytes[wrong] ^= 0x40;
            assert_eq!(Opening::parse(&bytes), None);
        }
        assert_eq!(Opening::parse(&[b'x'; OPENING_BYTES]), None);
    }
}
