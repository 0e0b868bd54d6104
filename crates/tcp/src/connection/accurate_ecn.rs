//! More accurate ECN feedback (RFC 9768). RFC 3168's receiver says once a round trip that there was
//! a mark; this one says how many packets were marked, and how many bytes.
//!
//! ```text
//!   header   AE CWR ECE   the number of marked packets, modulo 8 (the ACE field)
//!   option   172 | 8 | bytes that came as ECT(0) | bytes that came marked     24 bits each
//! ```
//!
//! In the handshake the three bits mean something else: a SYN has all of them, and its answers tell
//! how the network has delivered the packet before.

use crate::config::EcnMode;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{EcnCounters, Flags};

/// Both ends count packets from 5 on (section 3.2.1): a path that clears the bits shows.
const PACKETS_AT_FIRST: u8 = 5;
/// So many marked packets are told at once where there is data to be acknowledged.
const UNTOLD_MAX: u8 = 2;
/// And where there is none, so that two ends do not answer each other's answers for ever.
const UNTOLD_MAX_WITHOUT_DATA: u8 = 3;
/// So many SYN-ACKs agree, of which nobody has heard; later ones do without.
const ATTEMPTS: u8 = 2;
/// The ACE field's numbers.
const ACE_NUMBERS: u32 = 8;
/// A counter of the option has 24 bits.
const COUNTER_MASK: u32 = 0xff_ffff;

impl EcnMode {
    /// Table 2 of section 3.1.2, and section 3.1.3 for combinations that nobody sends yet: the
    /// answer to a SYN with these flags.
    pub(super) fn by_syn(self, flags: Flags) -> EcnMode {
        match (self, flags.ace()) {
            (EcnMode::Off, _) | (_, 0b000) => EcnMode::Off,
            // RFC 3168 section 6.1.1: both ECE and CWR make an ECN-setup SYN.
            (_, 0b011) | (EcnMode::Classic, 0b111) => EcnMode::Classic,
            (EcnMode::Classic, _) => EcnMode::Off,
            (EcnMode::Accurate, _) => EcnMode::Accurate,
        }
    }

    /// As [`Self::by_syn`], of a SYN-ACK.
    pub(super) fn by_syn_ack(self, flags: Flags) -> EcnMode {
        match (self, flags.ace()) {
            (EcnMode::Off, _) | (_, 0b000 | 0b111) => EcnMode::Off,
            // RFC 3168 section 6.1.1: a SYN-ACK agrees with ECE alone; the third bit was not known.
            (_, 0b001) | (EcnMode::Classic, 0b101) => EcnMode::Classic,
            (EcnMode::Classic, _) => EcnMode::Off,
            // Section 3.1.3: the combination 101 is reserved, and stands for a server that has it.
            (EcnMode::Accurate, _) => EcnMode::Accurate,
        }
    }
}

/// The handshake's encoding of how a packet came (table 2, and table 3 of section 3.2.2.1).
fn reflection(came: Ecn) -> Flags {
    Flags::of_ace(match came {
        Ecn::NotCapable => 0b010,
        Ecn::Ect1 => 0b011,
        Ecn::Ect0 => 0b100,
        Ecn::CongestionExperienced => 0b110,
    })
}

/// The part of an acknowledgement that tells of marks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feedback {
    /// The three bits.
    pub(super) ace: u8,
    /// The option, where there is one.
    pub(super) counters: Option<EcnCounters>,
    /// So many more of our packets have arrived.
    pub(super) delivered: u32,
    /// It has neither payload nor SACK blocks.
    pub(super) is_bare: bool,
    /// The bytes of a marked packet where no option says.
    pub(super) mss: u32,
}

/// The counters of a connection with this feedback.
#[derive(Debug)]
pub(crate) struct AccurateEcn {
    /// r.cep: marked packets that came, modulo 256.
    came_packets: u8,
    /// As many were told.
    told_packets: u8,
    /// r.e0b, r.ceb and r.e1b.
    came_bytes: EcnCounters,
    /// The last packet came marked.
    was_marked: bool,
    /// How the remote's latest SYN or SYN-ACK came.
    handshake_came: Ecn,
    /// A marked SYN-ACK is in `came_packets`, which counts one at most.
    has_counted_syn_ack: bool,
    /// Timeouts of our SYN before the remote's came: a SYN-ACK's attempts begin anew.
    syn_retries: u8,
    /// Our next acknowledgement answers a SYN-ACK.
    owes_reflection: bool,
    /// s.cep: the remote has told of so many marked packets, modulo 8.
    heard_packets: u8,
    /// s.ceb: and of so many marked bytes, modulo 2^24.
    heard_bytes: u32,
    /// Marked bytes by the field alone since the last option, which will tell of them again.
    assumed_bytes: u32,
    /// Nothing was heard since the handshake's first two packets.
    is_first: bool,
    /// The remote's first acknowledgement may tell how our SYN-ACK came.
    may_reflect: bool,
    /// The path delivers the three bits as they are: only then feedback is answered, and packets
    /// may be marked.
    is_clear: bool,
    /// Every SYN and SYN-ACK of the handshake had ECN: a client may be without if one had not.
    is_agreed: bool,
}

impl AccurateEcn {
    /// For the end whose SYN came so.
    pub(super) fn of_server(syn_came: Ecn) -> Self {
        Self {
            came_packets: PACKETS_AT_FIRST,
            told_packets: PACKETS_AT_FIRST,
            // Section 3.2.1: ECT counters begin at 1, so that a path that clears them shows.
            came_bytes: EcnCounters {
                ect0: 1,
                ce: 0,
                ect1: 1,
            },
            was_marked: false,
            handshake_came: syn_came,
            has_counted_syn_ack: false,
            syn_retries: 0,
            owes_reflection: false,
            heard_packets: PACKETS_AT_FIRST,
            heard_bytes: 0,
            assumed_bytes: 0,
            is_first: true,
            may_reflect: true,
            is_clear: true,
            is_agreed: true,
        }
    }

    /// For the end that has sent the SYN, and whose SYN-ACK came so.
    pub(super) fn of_client(syn_ack_came: Ecn) -> Self {
        let is_marked = syn_ack_came == Ecn::CongestionExperienced;
        let came_packets = PACKETS_AT_FIRST + u8::from(is_marked);
        Self {
            came_packets,
            told_packets: came_packets,
            has_counted_syn_ack: is_marked,
            owes_reflection: true,
            may_reflect: false,
            ..Self::of_server(syn_ack_came)
        }
    }

    /// For an end that has sent SYNs itself, so many after the first, when the remote's came
    /// (simultaneous open).
    pub(super) fn of_both(syn_came: Ecn, syn_retries: u8) -> Self {
        Self {
            syn_retries,
            // The third SYN asks for nothing.
            is_agreed: syn_retries < ATTEMPTS,
            ..Self::of_server(syn_came)
        }
    }

    /// The remote's SYN came once more: our answer tells of this one.
    pub(super) fn note_repeated_syn(&mut self, flags: Flags, came: Ecn) {
        self.handshake_came = came;
        self.is_agreed &= flags.ace() != 0b000;
    }

    /// The SYN-ACK of a remote that has opened the connection at the same time came so: our next
    /// acknowledgement tells of it, as a client's does (section 3.2.2.1). A mark on it is counted
    /// as on every segment.
    pub(super) fn note_syn_ack(&mut self, came: Ecn) {
        self.handshake_came = came;
        self.has_counted_syn_ack |= came == Ecn::CongestionExperienced;
        self.owes_reflection = true;
    }

    /// The remote's SYN-ACK came once more, and is acknowledged now.
    pub(super) fn note_repeated_syn_ack(&mut self, came: Ecn) {
        let is_marked = came == Ecn::CongestionExperienced;
        if is_marked && !self.has_counted_syn_ack {
            self.came_packets = self.came_packets.wrapping_add(1);
        }
        self.note_syn_ack(came);
    }

    /// Whether data may leave as ECN-capable.
    pub(super) fn may_be_marked(&self) -> bool {
        self.is_clear && self.is_agreed
    }

    /// Whether the next acknowledgement has to be one without payload.
    pub(super) fn owes_reflection(&self) -> bool {
        self.owes_reflection
    }

    /// The three bits of a SYN-ACK that leaves now, after so many timeouts. Later ones do without,
    /// in case a box on the path drops the others; our feedback stays.
    pub(super) fn syn_ack_flags(&mut self, retries: u8) -> Flags {
        if retries.saturating_sub(self.syn_retries) < ATTEMPTS {
            return reflection(self.handshake_came);
        }
        self.is_agreed = false;
        Flags::default()
    }

    /// The three bits of a SYN after so many timeouts.
    pub(super) fn syn_flags(retries: u8) -> Flags {
        match retries < ATTEMPTS {
            true => Flags::ACE,
            false => Flags::default(),
        }
    }

    /// The three bits of the next segment.
    pub(super) fn flags(&self) -> Flags {
        Flags::of_ace(self.came_packets % ACE_NUMBERS as u8)
    }

    /// The three bits of a segment that leaves now: `is_bare` with neither payload nor SACK blocks.
    pub(super) fn tell(&mut self, is_bare: bool) -> Flags {
        self.told_packets = self.came_packets;
        // Section 3.2.2.1: "the only exception to the rule that the ACE field carries [...] r.cep".
        match core::mem::replace(&mut self.owes_reflection, false) && is_bare {
            true => reflection(self.handshake_came),
            false => self.flags(),
        }
    }

    /// The counters of the option.
    pub(crate) fn counters(&self) -> EcnCounters {
        self.came_bytes
    }

    /// An acceptable segment has come, as `packets` packets where a link has put them together.
    /// Before it everything was acknowledged, or not. Whether it is to be acknowledged at once
    /// (section 3.2.2.5.1).
    pub(super) fn note_arrival(
        &mut self,
        came: Ecn,
        payload_bytes: usize,
        packets: usize,
        is_acknowledged: bool,
    ) -> bool {
        let is_marked = came == Ecn::CongestionExperienced;
        if is_marked {
            self.came_packets = self.came_packets.wrapping_add(packets as u8);
        }
        let count = match came {
            Ecn::NotCapable => None,
            Ecn::Ect0 => Some(&mut self.came_bytes.ect0),
            Ecn::Ect1 => Some(&mut self.came_bytes.ect1),
            Ecn::CongestionExperienced => Some(&mut self.came_bytes.ce),
        };
        if let Some(count) = count {
            *count = count.wrapping_add(payload_bytes as u32) & COUNTER_MASK;
        }
        let has_payload = payload_bytes > 0;
        let turns = has_payload && is_marked && !self.was_marked;
        self.was_marked = is_marked;
        let untold_max = match has_payload || !is_acknowledged {
            true => UNTOLD_MAX,
            false => UNTOLD_MAX_WITHOUT_DATA,
        };
        turns || self.came_packets.wrapping_sub(self.told_packets) >= untold_max
    }

    /// How many of our bytes have come marked, after an acknowledgement that is not older than
    /// others.
    pub(super) fn hear(&mut self, feedback: Feedback) -> u32 {
        let ace = feedback.ace;
        if core::mem::replace(&mut self.is_first, false) {
            // Section 3.2.2.3: zero is no value of a counter that begins at 5, nor of a reflection:
            // the path clears the bits.
            self.is_clear = ace != 0b000;
            if self.may_reflect && feedback.is_bare {
                self.heard_packets = PACKETS_AT_FIRST + u8::from(ace == 0b110);
                return 0;
            }
        }
        if !self.is_clear {
            return 0;
        }
        let delta = u32::from(ace.wrapping_sub(self.heard_packets)) % ACE_NUMBERS;
        self.heard_packets = ace;
        let Some(counters) = feedback.counters else {
            let bytes = likely(delta, feedback.delivered).saturating_mul(feedback.mss);
            self.assumed_bytes = self.assumed_bytes.saturating_add(bytes);
            return bytes;
        };
        // Packets without payload are in no counter: their marks say nothing of our data.
        let more = counters.ce.wrapping_sub(self.heard_bytes) & COUNTER_MASK;
        if more > COUNTER_MASK / 2 {
            // The upper half stands for less: an option that another has overtaken.
            return 0;
        }
        self.heard_bytes = counters.ce;
        more.saturating_sub(core::mem::take(&mut self.assumed_bytes))
    }
}

/// The likely number of marked packets where the field may have wrapped around: the largest that it
/// can stand for (section 3.2.2.5.2). Where it has not changed at all, none: links put segments
/// together, and then an acknowledgement for eight packets and more is an ordinary one.
fn likely(delta: u32, delivered: u32) -> u32 {
    if delta == 0 || delivered < ACE_NUMBERS {
        return delta;
    }
    delivered - (delivered - delta) % ACE_NUMBERS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 2 of section 3.1.2, line by line, and section 3.1.3.
    #[test]
    fn both_ends_agree_as_the_table_says() {
        use EcnMode::{Accurate, Classic, Off};
        let syn = |mode: EcnMode| -> Vec<EcnMode> {
            (0..8).map(|ace| mode.by_syn(Flags::of_ace(ace))).collect()
        };
        let expected: Vec<EcnMode> = vec![
            Off, Accurate, Accurate, Classic, Accurate, Accurate, Accurate, Accurate,
        ];
        assert_eq!(expected, syn(Accurate));
        let expected: Vec<EcnMode> = vec![Off, Off, Off, Classic, Off, Off, Off, Classic];
        assert_eq!(expected, syn(Classic));
        let answer = |mode: EcnMode| {
            let answers = (0..8).map(|ace| mode.by_syn_ack(Flags::of_ace(ace)));
            answers.collect::<Vec<EcnMode>>()
        };
        let expected = [
            Off, Classic, Accurate, Accurate, Accurate, Accurate, Accurate, Off,
        ];
        assert_eq!(answer(Accurate), expected);
        assert_eq!(
            answer(Classic),
            [Off, Classic, Off, Off, Off, Classic, Off, Off]
        );
        assert!(answer(Off).iter().all(|&mode| mode == Off));
    }

    #[test]
    fn the_first_mark_and_every_second_one_are_told_at_once() {
        let mut ours = AccurateEcn::of_server(Ecn::NotCapable);
        let came = [
            (Ecn::Ect0, false),
            (Ecn::CongestionExperienced, true),
            (Ecn::CongestionExperienced, false),
            (Ecn::CongestionExperienced, true),
            (Ecn::Ect0, false),
        ];
        for (ecn, at_once) in came {
            assert_eq!(ours.note_arrival(ecn, 1_000, 1, true), at_once);
            if at_once {
                ours.tell(true);
            }
        }
        assert_eq!(ours.flags(), Flags::of_ace((5 + 3) % 8));
        let counters = ours.counters();
        assert_eq!(
            (counters.ect0, counters.ce, counters.ect1),
            (2_001, 3_000, 1)
        );
        // Without payload only the number counts, and from three on.
        for at_once in [false, false, true] {
            let came = Ecn::CongestionExperienced;
            assert_eq!(ours.note_arrival(came, 0, 1, true), at_once);
        }
    }

    const MSS: u32 = 1_000;

    fn heard(ours: &mut AccurateEcn, ace: u8, ce: Option<u32>, delivered: u32) -> u32 {
        let counters = ce.map(|ce| EcnCounters {
            ce,
            ..EcnCounters::default()
        });
        ours.hear(Feedback {
            ace,
            counters,
            delivered,
            is_bare: true,
            mss: MSS,
        })
    }

    #[test]
    fn the_option_tells_apart_what_the_field_cannot() {
        let mut ours = AccurateEcn::of_client(Ecn::NotCapable);
        assert_eq!(heard(&mut ours, 7, None, 2), 2 * MSS);
        // Ten of twelve, where the field has 2.
        assert_eq!(heard(&mut ours, 1, None, 12), 10 * MSS);
        assert_eq!(heard(&mut ours, 1, None, 44), 0);
        assert_eq!(heard(&mut ours, 1, Some(20_000), 44), 8_000);
        // An older option is no news, and neither is a mark on a bare acknowledgement.
        assert_eq!(heard(&mut ours, 1, Some(100), 1), 0);
        assert_eq!(heard(&mut ours, 2, Some(20_000), 1), 0);
        assert_eq!(heard(&mut ours, 3, Some(21_000), 1), MSS);
    }

    /// Data tells by the field, and the acknowledgement behind it by the option.
    #[test]
    fn a_mark_that_is_told_twice_counts_once() {
        let mut ours = AccurateEcn::of_client(Ecn::NotCapable);
        for packet in 1..=20 {
            let ace = (5 + packet as u8) % 8;
            assert_eq!(heard(&mut ours, ace, None, 1), MSS);
            assert_eq!(heard(&mut ours, ace, Some(packet * MSS), 0), 0);
        }
        // The packets were larger than was assumed.
        assert_eq!(heard(&mut ours, 2, None, 1), MSS);
        assert_eq!(heard(&mut ours, 2, Some(21_400), 0), 400);
        // Or smaller: later marks are not set off against that.
        assert_eq!(heard(&mut ours, 3, None, 1), MSS);
        assert_eq!(heard(&mut ours, 3, Some(21_500), 0), 0);
        assert_eq!(heard(&mut ours, 4, Some(22_500), 1), MSS);
    }

    #[test]
    fn a_path_that_clears_the_bits_is_sent_nothing_that_can_be_marked() {
        let mut ours = AccurateEcn::of_server(Ecn::NotCapable);
        assert!(ours.may_be_marked());
        assert_eq!(heard(&mut ours, 0, None, 0), 0);
        assert!(!ours.may_be_marked());
        let mut ours = AccurateEcn::of_client(Ecn::NotCapable);
        assert_eq!(heard(&mut ours, 0, None, 1), 0);
        assert!(!ours.may_be_marked());
        let mut ours = AccurateEcn::of_server(Ecn::NotCapable);
        assert_eq!(heard(&mut ours, 0b110, None, 0), 0);
        assert!(ours.may_be_marked());
        assert_eq!(heard(&mut ours, 7, None, 1), MSS);
    }
}
