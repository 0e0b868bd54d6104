//! SYN cookies (RFC 4987 section 3.6): the remote stores the state of a half-open connection.
//!
//! ```text
//!   ISN    | 27 bits of SipHash(ends, their ISN, minute, index, options) | minute mod 4 | MSS |
//!            31                                                        5   4 3        ... 0
//!   TSval  | its clock, the low six bits replaced: SACK, ECN, window scale (15: none)        |
//! ```
//!
//! The acknowledgement shows which kind of ECN feedback was negotiated ([`EcnMode::by_cookie`]).
//!
//! Without timestamps the remote's options are lost: then the connection works without SACK and
//! without window scaling.

use super::super::connection::{MSS_MIN, Offer};
use crate::config::EcnMode;
use crate::flow::FlowKey;
use crate::random::{Random, SipKey};
use crate::time::Instant;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Segment, SynOptions, Timestamps};

/// MSS values that a cookie can encode. The least is that of the smallest segment we ever send,
/// with timestamps: so a remote is not sent more than it takes.
const MSS_TABLE: [u16; 8] = [MSS_MIN + 12, 536, 1_024, 1_220, 1_360, 1_440, 1_460, 8_940];
/// A cookie is valid in the period in which it was made and in the next one.
const PERIOD_MICROS: u64 = 64_000_000;
const LOW_BITS: u32 = 5;
const OPTION_BITS: u32 = 6;
const NO_SCALE: u32 = 15;

#[derive(Clone, Copy)]
pub(crate) struct Cookies {
    key: SipKey,
}

impl Cookies {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            key: SipKey::draw(random),
        }
    }

    /// The ISN for a SYN-ACK, and the low bits of its TSval.
    pub(crate) fn make(&self, now: Instant, key: &FlowKey, offer: &Offer) -> (u32, u32) {
        let mss = offer.syn.mss.unwrap_or(536);
        let index = MSS_TABLE
            .iter()
            .rposition(|&entry| entry <= mss)
            .unwrap_or(0) as u32;
        let period = now.as_micros() / PERIOD_MICROS;
        let bits = option_bits(offer);
        let low = (period as u32 & 3) << 3 | index;
        (self.isn(key, offer.irs, period, low, bits), bits)
    }

    /// The offer that a cookie in the last acknowledgement of a handshake encodes, if the cookie is
    /// one of ours.
    pub(crate) fn open(
        &self,
        now: Instant,
        key: &FlowKey,
        segment: &Segment<'_>,
        our_clock: impl Fn(u32) -> u32,
    ) -> Option<(u32, Offer)> {
        let isn = segment.ack.wrapping_sub(1);
        let irs = segment.seq.wrapping_sub(1);
        let low = isn & ((1 << LOW_BITS) - 1);
        let bits = segment.timestamps.map_or(0, |timestamps| {
            our_clock(timestamps.echo) & ((1 << OPTION_BITS) - 1)
        });
        let current = now.as_micros() / PERIOD_MICROS;
        let period = (0..2)
            .filter_map(|age| current.checked_sub(age))
            .find(|period| *period as u32 & 3 == low >> 3)?;
        if self.isn(key, irs, period, low, bits) != isn {
            return None;
        }
        let shift = bits & 15;
        let syn = SynOptions {
            mss: Some(MSS_TABLE[(low & 7) as usize]),
            window_scale: (segment.timestamps.is_some() && shift != NO_SCALE)
                .then_some(shift as u8),
            sack_permitted: bits & 16 != 0,
            timestamps: segment.timestamps.map(|timestamps| Timestamps {
                value: timestamps.value,
                echo: 0,
            }),
            fast_open: None,
        };
        // The acknowledgement itself gives the window and the kind of ECN feedback.
        Some((
            isn,
            Offer {
                irs,
                window: 0,
                syn,
                ecn: if bits & 32 != 0 {
                    EcnMode::Classic
                } else {
                    EcnMode::Off
                },
                came: Ecn::NotCapable,
            },
        ))
    }

    fn isn(&self, key: &FlowKey, irs: u32, period: u64, low: u32, bits: u32) -> u32 {
        let ports = u64::from(key.local_port) << 16 | u64::from(key.remote_port);
        let words = [
            key.local.0[0],
            key.local.0[1],
            key.remote.0[0],
            key.remote.0[1],
            ports << 32 | u64::from(irs),
            period << 16 | u64::from(low) << 8 | u64::from(bits),
        ];
        (self.key.hash(&words) as u32) << LOW_BITS | low
    }
}

fn option_bits(offer: &Offer) -> u32 {
    if offer.syn.timestamps.is_none() {
        return 0;
    }
    let shift = offer.syn.window_scale.map_or(NO_SCALE, u32::from);
    shift | u32::from(offer.syn.sack_permitted) << 4 | u32::from(offer.ecn != EcnMode::Off) << 5
}

/// Replaces the low bits of a clock, without letting it run ahead.
pub(crate) fn stamp(clock: u32, bits: u32) -> u32 {
    let stamped = clock & !((1 << OPTION_BITS) - 1) | bits;
    if stamped > clock {
        stamped.wrapping_sub(1 << OPTION_BITS)
    } else {
        stamped
    }
}
