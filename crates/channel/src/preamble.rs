//! The connect preamble: the first bytes that the library sends on a carrier to the relay. They
//! name the carrier's destination.
//!
//! They are sent on the carrier itself, so they need not be matched with it, and only a holder of
//! the carrier can send them. The *client token* identifies the client: the adapter gives each
//! client 128 random bits ([`crate::rendezvous::Kind::Engine`]). Every local user can reach the
//! relay's port, and the relay refuses a preamble without a known token.

use core::num::{NonZeroU8, NonZeroU32};

use crate::express::REQUEST_BYTES;
use crate::offload::Address;
use crate::table::LAYOUT_VERSION;

/// First word of a preamble: "TOEO".
const PREAMBLE_MAGIC: u32 = u32::from_le_bytes(*b"TOEO");
/// Length of a preamble in bytes. The program's stream begins after it.
pub const PREAMBLE_BYTES: usize = REQUEST_BYTES;

/// The bits that identify a client; all zero identifies none.
pub type ClientToken = [u64; 2];

/// A request to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectPreamble {
    /// The client that asks.
    pub token: ClientToken,
    /// The destination.
    pub remote: Address,
    /// The local port that the program asked for, or 0. The local address that it asked for follows
    /// from the carrier's own address, if that is a loopback alias.
    pub local_port: u16,
    /// The carrier is to serve further connections: both ends ask for a channel at once, and the
    /// program's first byte goes there.
    pub is_seed: bool,
    /// The program opens the connection with a message (`MSG_FASTOPEN`), which follows the
    /// preamble. The SYN asks for a cookie, or carries the beginning of the message.
    pub is_fast_open: bool,
    /// As [`Self::is_fast_open`], but the message comes later (`TCP_FASTOPEN_CONNECT`). If the
    /// engine has a cookie of the remote, the SYN waits for the message.
    pub is_deferred: bool,
    /// `TCP_SYNCNT`, if the program has set it.
    pub syn_retries_max: Option<NonZeroU8>,
    /// `TCP_USER_TIMEOUT`, if the program has set it.
    pub user_timeout_ms: Option<NonZeroU32>,
}

impl ConnectPreamble {
    /// Its bytes: magic, version, token, remote address and port, local port, 1 for a seed, SYN
    /// retries, 1 for a fast open, 1 for a deferred one, user timeout, four zeros.
    pub fn to_bytes(&self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        let (magic, version) = (PREAMBLE_MAGIC.to_ne_bytes(), LAYOUT_VERSION.to_ne_bytes());
        let token = self.token.map(u64::to_ne_bytes);
        let (remote_port, local_port) = (
            self.remote.port.to_ne_bytes(),
            self.local_port.to_ne_bytes(),
        );
        let user_timeout_ms = self.user_timeout_ms.map_or(0, NonZeroU32::get);
        let syn_retries_max = self.syn_retries_max.map_or(0, NonZeroU8::get);
        let fields: [&[u8]; 9] = [
            &magic,
            &version,
            &token[0],
            &token[1],
            &self.remote.ip,
            &remote_port,
            &local_port,
            &[
                self.is_seed.into(),
                syn_retries_max,
                self.is_fast_open.into(),
                self.is_deferred.into(),
            ],
            &user_timeout_ms.to_ne_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        bytes
    }

    /// The preamble in `bytes`; `None` when they are no preamble of this version.
    pub fn parse(bytes: &[u8; PREAMBLE_BYTES]) -> Option<ConnectPreamble> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (second, rest) = rest.split_first_chunk()?;
        let (ip, rest) = rest.split_first_chunk()?;
        let (remote_port, rest) = rest.split_first_chunk()?;
        let (local_port, rest) = rest.split_first_chunk()?;
        let ([is_seed, syn_retries_max, is_fast_open, is_deferred], rest) =
            rest.split_first_chunk()?;
        let (user_timeout_ms, _) = rest.split_first_chunk()?;
        let is_ours = u32::from_ne_bytes(*magic) == PREAMBLE_MAGIC
            && u32::from_ne_bytes(*version) == LAYOUT_VERSION;
        is_ours.then_some(ConnectPreamble {
            token: [u64::from_ne_bytes(*first), u64::from_ne_bytes(*second)],
            remote: Address {
                ip: *ip,
                port: u16::from_ne_bytes(*remote_port),
            },
            local_port: u16::from_ne_bytes(*local_port),
            is_seed: *is_seed == 1,
            is_fast_open: *is_fast_open == 1,
            is_deferred: *is_deferred == 1,
            syn_retries_max: NonZeroU8::new(*syn_retries_max),
            user_timeout_ms: NonZeroU32::new(u32::from_ne_bytes(*user_timeout_ms)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preamble_survives_the_way() {
        let preamble = ConnectPreamble {
            token: [3, u64::MAX],
            remote: Address {
                ip: *b"0123456789abcdef",
                port: 80,
            },
            local_port: 4000,
            is_seed: false,
            is_fast_open: false,
            is_deferred: false,
            syn_retries_max: NonZeroU8::new(6),
            user_timeout_ms: NonZeroU32::new(30_000),
        };
        for flags in 0..8 {
            let [is_seed, is_fast_open, is_deferred] = [1, 2, 4].map(|bit| flags & bit != 0);
            let preamble = ConnectPreamble {
                is_seed,
                is_fast_open,
                is_deferred,
                ..preamble
            };
            let bytes = preamble.to_bytes();
            assert_eq!(ConnectPreamble::parse(&bytes), Some(preamble));
            let said = [is_seed.into(), 6, is_fast_open.into(), is_deferred.into()];
            assert_eq!(bytes[44..48], said);
        }
    }

    #[test]
    fn foreign_bytes_are_no_preamble() {
        let preamble = ConnectPreamble {
            token: [1, 2],
            remote: Address::default(),
            local_port: 0,
            is_seed: false,
            is_fast_open: false,
            is_deferred: false,
            syn_retries_max: None,
            user_timeout_ms: None,
        };
        for wrong in [0, 3, 4, 7] {
            let mut bytes = preamble.to_bytes();
            bytes[wrong] ^= 0x40;
            assert_eq!(ConnectPreamble::parse(&bytes), None);
        }
        assert_eq!(ConnectPreamble::parse(&[b'x'; PREAMBLE_BYTES]), None);
    }
}
