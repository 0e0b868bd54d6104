//! Boxes on the path that change headers or drop segments of the handshake.

use super::checker::{self, SYN};
use super::impair::complete;
use crate::Random;

/// A box that all packets of one direction pass. The default box changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Middlebox {
    /// The flags AE, CWR and ECE that are cleared, as the bits 4, 2 and 1.
    pub clears_flags: u8,
    /// The new ECN codepoint of each packet that is ECN-capable.
    pub codepoint: Option<u8>,
    /// Options of a kind that the box does not know become no-operations.
    pub removes_options: bool,
    /// SYNs and SYN-ACKs with one of these flags are dropped.
    pub drops_flags: u8,
    /// SYNs with payload are dropped.
    pub drops_syn_payload: bool,
}

/// The ECN codepoints, without "not ECN-capable": ECT(1), ECT(0) and CE.
const CODEPOINTS: [u8; 3] = [1, 2, 3];
const ALL_FLAGS: u8 = 7;
/// The kinds of AccECN's and of Fast Open's options.
const UNKNOWN_KINDS: [u8; 3] = [172, 174, 34];
const NO_OPERATION: u8 = 1;

impl Middlebox {
    /// A random box. It interferes in one way or in several.
    pub(super) fn draw(random: &mut Random) -> Self {
        let flags = |random: &mut Random| match random.below(4) {
            0 => ALL_FLAGS,
            1 => random.below(8) as u8,
            _ => 0,
        };
        Self {
            clears_flags: flags(random),
            codepoint: (random.below(4) == 0).then(|| match random.below(2) {
                0 => 0,
                _ => CODEPOINTS[random.below(3) as usize],
            }),
            removes_options: random.below(4) == 0,
            drops_flags: flags(random),
            drops_syn_payload: random.below(4) == 0,
        }
    }

    /// Changes a packet. False if the box drops the packet.
    pub(super) fn pass(&self, packet: &mut [u8]) -> bool {
        if *self == Self::default() {
            return true;
        }
        let Some(read) = checker::parse(packet) else {
            return true;
        };
        let (tcp_at, options_bytes) = (read.tcp_at, read.options_bytes);
        let (is_syn, has_payload) = (read.flags & SYN != 0, !read.payload.is_empty());
        let flags = u8::from(read.has_ae) << 2 | read.flags >> 6;
        if is_syn && (flags & self.drops_flags != 0 || has_payload && self.drops_syn_payload) {
            return false;
        }
        if let Some(codepoint) = self.codepoint {
            replace_codepoint(packet, codepoint);
        }
        packet[tcp_at + 12] &= !(self.clears_flags >> 2);
        packet[tcp_at + 13] &= !(self.clears_flags << 6);
        if self.removes_options {
            let options_at = tcp_at + 20;
            remove_options(&mut packet[options_at..options_at + options_bytes]);
        }
        complete(packet, tcp_at);
        true
    }
}

/// Replaces the ECN codepoint of a packet that has one.
fn replace_codepoint(packet: &mut [u8], codepoint: u8) {
    let (byte, shift) = match packet[0] >> 4 {
        4 => (1, 0),
        _ => (1, 4),
    };
    if packet[byte] >> shift & 3 != 0 {
        packet[byte] = packet[byte] & !(3 << shift) | codepoint << shift;
    }
}

fn remove_options(mut options: &mut [u8]) {
    while let [kind, rest @ ..] = options {
        let length = match (*kind, rest.first()) {
            (NO_OPERATION, _) => 1,
            (0, _) | (_, None) => return,
            (_, Some(&length)) => usize::from(length),
        };
        let Some((option, rest)) = options.split_at_mut_checked(length.max(1)) else {
            return;
        };
        if UNKNOWN_KINDS.contains(&option[0]) {
            option.fill(NO_OPERATION);
        }
        options = rest;
    }
}
