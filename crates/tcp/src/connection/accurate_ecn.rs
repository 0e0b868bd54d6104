//! More accurate ECN feedback (RFC 9768). A receiver of RFC 3168 reports once per round trip that
//! there was a mark. A receiver of RFC 9768 reports how many packets were marked, and how many
//! bytes.
//!
//! ```text
//!   header   AE CWR ECE   the number of marked packets, modulo 8 (the ACE field)
//!   option   172 | 8 | bytes that came as ECT(0) | bytes that came marked     24 bits each
//! ```
//!
//! In the handshake the three bits have another meaning: a SYN sets all of them, and the answers
//! report the ECN codepoint with which the previous packet arrived.

use crate::config::EcnMode;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{EcnCounters, Flags, Segment};

/// Both ends count packets from 5 on (section 3.2.1), so that a path that clears the bits is
/// detected.
const PACKETS_AT_FIRST: u8 = 5;
//= RFC 9768#3.2.2.5.1
//# If there is unacknowledged data at the receiver, 'n' SHOULD be 2.
/// This many unreported marked packets are reported at once, if there is data to acknowledge.
const UNREPORTED_MAX: u8 = 2;
//= RFC 9768#3.2.2.5.1
//# If there is no unacknowledged data at the receiver, 'n' SHOULD be 3
//= RFC 9768#3.2.2.5.1
//# and MUST be no less than 3.
//= RFC 9768#3.2.2.5.1
//# In either case, 'n' MUST be no greater than 7.
/// The limit without data to acknowledge, so that two ends do not answer each other for ever.
const UNREPORTED_MAX_WITHOUT_DATA: u8 = 3;
//= RFC 9768#3.1.4.1
//# If the sender of an AccECN SYN (the TCP Client) times out before receiving the SYN/ACK, it
//# SHOULD attempt to negotiate the use of AccECN at least one more time by continuing to set all
//# three TCP ECN flags (AE,CWR,ECE) = (1,1,1) on the first retransmitted SYN (using the usual
//# retransmission time-outs).
//= RFC 9768#3.1.4.1
//# If this first retransmission also fails to be acknowledged, in deployment scenarios where AccECN
//# path traversal might be problematic, the TCP Client SHOULD send subsequent retransmissions of
//# the SYN with the three TCP-ECN flags cleared (AE,CWR,ECE) = (0,0,0).
/// How many SYN-ACKs ask for ECN without an answer; later ones do not.
const ATTEMPTS: u8 = 2;
/// The number of values of the ACE field.
const ACE_NUMBERS: u32 = 8;
//= RFC 9768#3.2.3.1
//# Whenever the Data Receiver includes any of the counter fields (ECEB, EE0B, EE1B) in an AccECN
//# Option, it MUST encode the 24 least significant bits of the current value of the associated
//# counter into the field (respectively r.ceb, r.e0b, r.e1b).
/// A counter of the option has 24 bits.
const COUNTER_MASK: u32 = 0xff_ffff;

impl EcnMode {
    //= RFC 9768#3.1.5
    //# MUST NOT use reception of packets with ECT set in the IP-ECN field as an implicit signal
    //# that the peer is ECN-capable.
    /// The ECN mode to answer a SYN with these flags: table 2 of section 3.1.2, and section 3.1.3
    /// for combinations that are not in use yet.
    pub(super) fn by_syn(self, flags: Flags) -> EcnMode {
        match (self, flags.ace()) {
            //= RFC 9768#3.1.2
            //# When an AccECN-enabled TCP Server (B) receives a SYN with (AE,CWR,ECE) = (0,0,0) it
            //# MUST set both its half connections into the Not ECN feedback mode, return a SYN/ACK
            //# with (AE,CWR,ECE) = (0,0,0) as shown and continue with ECN disabled.
            (EcnMode::Off, _) | (_, 0b000) => EcnMode::Off,
            //= RFC 9768#3.1.2
            //# When an AccECN-enabled TCP Server (B) receives a SYN with (AE,CWR,ECE) = (0,1,1) it
            //# MUST do one of the following:
            //= RFC 9768#3.1.2
            //# set both its half connections into the Classic ECN feedback mode and return a
            //# SYN/ACK with (AE,CWR,ECE) = (0,0,1) as shown. Then it MUST comply with [RFC3168].
            // RFC 3168 section 6.1.1: both ECE and CWR make an ECN-setup SYN.
            (_, 0b011) | (EcnMode::Classic, 0b111) => EcnMode::Classic,
            (EcnMode::Classic, _) => EcnMode::Off,
            //= RFC 9768#3.1.1
            //# If a TCP Server (host B) that is AccECN-enabled receives a SYN with the above three
            //# flags set, it MUST set both its half-connections into AccECN mode.
            //= RFC 9768#3.1.3
            //# If a TCP Server that implements AccECN receives a SYN with the three TCP header
            //# flags (AE,CWR,ECE) set to any combination other than (0,0,0), (0,1,1), or (1,1,1)
            //# and it does not have logic specific to such a combination, the Server MUST negotiate
            //# the use of AccECN as if the three flags had been set to (1,1,1).
            (EcnMode::Accurate, _) => EcnMode::Accurate,
        }
    }

    /// The feedback of a connection that was stored only in a cookie, and whose SYN-ACK has agreed
    /// to some feedback: the acknowledgement that returns the cookie shows which.
    ///
    /// Section 5.1: in an acknowledgement without payload, the values 2 to 7 of the field mean that
    /// the client has asked for accurate feedback. With payload, the field is the client's counter,
    /// 5 or a little more; CWR alone may be RFC 3168's.
    pub(crate) fn by_cookie(self, agreed: EcnMode, segment: &Segment<'_>) -> EcnMode {
        let ace_min = match segment.payload.is_empty() {
            true => 0b010,
            false => 0b100,
        };
        match (self, agreed) {
            (EcnMode::Accurate, EcnMode::Classic) if segment.flags.ace() >= ace_min => self,
            _ => agreed,
        }
    }

    /// [`Self::by_syn`] for a SYN-ACK.
    pub(super) fn by_syn_ack(self, flags: Flags) -> EcnMode {
        match (self, flags.ace()) {
            //= RFC 9768#3.1.2
            //# Such broken TCP Servers (B) cannot support ECN, so as soon as an AccECN-capable TCP
            //# Client (A) receives such a broken SYN/ACK it MUST fall back to Not ECN mode for both
            //# its half connections and continue with ECN disabled.
            //= RFC 9768#3.1.2
            //# Therefore, as soon as an AccECN-capable TCP Client (A) receives the SYN/ACK shown it
            //# MUST set both its half connections into the feedback mode shown in the rightmost
            //# column.
            (EcnMode::Off, _) | (_, 0b000 | 0b111) => EcnMode::Off,
            // RFC 3168 section 6.1.1: a SYN-ACK agrees with ECE alone; that RFC has no third bit.
            (_, 0b001) | (EcnMode::Classic, 0b101) => EcnMode::Classic,
            (EcnMode::Classic, _) => EcnMode::Off,
            //= RFC 9768#3.1.1
            //# Once a TCP Client (A) has sent the above SYN to declare that it supports AccECN, and
            //# once it has received the above SYN/ACK segment that confirms that the TCP Server
            //# supports AccECN, the TCP Client MUST set both its half-connections into AccECN mode.
            //= RFC 9768#3.1.3
            //# If a TCP Client has sent a SYN requesting AccECN feedback with (AE,CWR,ECE) =
            //# (1,1,1) then receives a SYN/ACK with the currently reserved combination (AE,CWR,ECE)
            //# = (1,0,1) but it does not have logic specific to such a combination, the Client MUST
            //# enable AccECN mode as if the SYN/ACK confirmed that the Server supported AccECN and
            //# as if it fed back that the IP-ECN field on the SYN had arrived unchanged.
            // Section 3.1.3: the combination 101 is reserved, and means that the server supports
            // this feedback.
            (EcnMode::Accurate, _) => EcnMode::Accurate,
        }
    }
}

//= RFC 9768#3.1.1
//# Then it MUST set the AE, CWR, and ECE TCP flags on the SYN/ACK to the combination in the top
//# block of Table 2 that feeds back the IP-ECN field that arrived on the SYN.
//= RFC 9768#3.1.3
//# However, an AccECN Server implementation MUST NOT send a SYN/ACK with this combination
//# (AE,CWR,ECE) = (1,0,1).
/// The handshake's encoding of a packet's ECN codepoint (table 2, and table 3 of section 3.2.2.1).
pub(super) fn reflection(came: Ecn) -> Flags {
    Flags::of_ace(match came {
        Ecn::NotCapable => 0b010,
        Ecn::Ect1 => 0b011,
        Ecn::Ect0 => 0b100,
        Ecn::CongestionExperienced => 0b110,
    })
}

/// The part of an acknowledgement that reports marks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feedback {
    /// The three ECN bits.
    pub(super) ace: u8,
    /// The option, if there is one.
    pub(super) counters: Option<EcnCounters>,
    /// The number of our packets that have newly arrived.
    pub(super) delivered: u32,
    /// The acknowledgement reports progress, so it was sent after all others that arrived.
    pub(super) is_newest: bool,
    /// The segment has neither payload nor SACK blocks.
    pub(super) is_bare: bool,
    /// The assumed size of a marked packet when no option gives bytes.
    pub(super) mss: u32,
}

/// The counters of a connection with this feedback.
#[derive(Debug)]
pub(crate) struct AccurateEcn {
    /// r.cep: marked packets that arrived, modulo 256.
    received_packets: u8,
    /// The number of them that were reported.
    reported_packets: u8,
    /// r.e0b, r.ceb and r.e1b.
    came_bytes: EcnCounters,
    /// The last packet arrived marked.
    was_marked: bool,
    /// The ECN codepoint of the remote's latest SYN or SYN-ACK.
    handshake_received: Ecn,
    /// `received_packets` includes a marked SYN-ACK, of which at most one is counted.
    has_counted_syn_ack: bool,
    /// Timeouts of our SYN before the remote's SYN arrived: the count for the SYN-ACK begins there.
    syn_retries: u8,
    /// Our next acknowledgement answers a SYN-ACK.
    owes_reflection: bool,
    /// s.cep: how many marked packets the remote has reported, modulo 8.
    heard_packets: u8,
    /// s.ceb: how many marked bytes the remote has reported, modulo 2^24.
    heard_bytes: u32,
    /// Marked bytes counted by the field alone since the last option. The next option will include
    /// them.
    assumed_bytes: u32,
    /// No feedback was received after the handshake's first two packets.
    is_first: bool,
    /// The remote's first acknowledgement may report the codepoint of our SYN-ACK.
    may_reflect: bool,
    /// The path delivers the three bits unchanged: only then feedback is used, and packets may be
    /// marked.
    is_clear: bool,
    /// The path has delivered our SYN or SYN-ACK with its ECN codepoint: only then packets may be
    /// marked.
    is_intact: bool,
}

impl AccurateEcn {
    /// For the end that received a SYN with this codepoint.
    pub(super) fn of_server(syn_came: Ecn) -> Self {
        Self {
            received_packets: PACKETS_AT_FIRST,
            reported_packets: PACKETS_AT_FIRST,
            // Section 3.2.1: ECT counters begin at 1, so that a path that clears them is detected.
            came_bytes: EcnCounters {
                ect0: 1,
                ce: 0,
                ect1: 1,
            },
            //= RFC 9768#3.2.2.2
            //# If a TCP Server in AccECN mode receives a CE mark in the IP-ECN field of a SYN
            //# (SYN=1, ACK=0), it MUST NOT increment r.cep (it remains at its initial value of 5).
            was_marked: false,
            handshake_received: syn_came,
            has_counted_syn_ack: false,
            syn_retries: 0,
            owes_reflection: false,
            heard_packets: PACKETS_AT_FIRST,
            heard_bytes: 0,
            assumed_bytes: 0,
            is_first: true,
            may_reflect: true,
            is_clear: true,
            is_intact: true,
        }
    }

    //= RFC 9768#3.2.2.3
    //# However, the TCP Client MUST remain in the AccECN feedback mode and it MUST continue to feed
    //# back any ECN markings on arriving packets (in its role as Data Receiver).
    /// For the end that sent the SYN and received a SYN-ACK with this codepoint.
    pub(super) fn of_client(syn_ack_came: Ecn) -> Self {
        let is_marked = syn_ack_came == Ecn::CongestionExperienced;
        let received_packets = PACKETS_AT_FIRST + u8::from(is_marked);
        Self {
            received_packets,
            reported_packets: received_packets,
            has_counted_syn_ack: is_marked,
            //= RFC 9768#3.2.2.2
            //# If a TCP Client in AccECN mode receives CE feedback in the TCP flags of a SYN/ACK,
            //# it MUST NOT increment s.cep (it remains at its initial value of 5), so that it stays
            //# in step with r.cep on the Server.
            owes_reflection: true,
            may_reflect: false,
            ..Self::of_server(syn_ack_came)
        }
    }

    /// For an end that had sent `1 + syn_retries` SYNs itself when the remote's SYN arrived
    /// (simultaneous open).
    pub(super) fn of_both(syn_came: Ecn, syn_retries: u8) -> Self {
        Self {
            syn_retries,
            ..Self::of_server(syn_came)
        }
    }

    //= RFC 9768#3.1.5
    //# MUST feed back the IP-ECN field on the latest valid SYN or acceptable SYN/ACK to arrive.
    //= RFC 9768#3.2.2.2
    //# If a TCP Server in AccECN mode receives a CE mark in the IP-ECN field of a SYN (SYN=1,
    //# ACK=0), it MUST NOT increment r.cep (it remains at its initial value of 5).
    /// The remote's SYN arrived again: our answer reports this one.
    pub(super) fn note_repeated_syn(&mut self, came: Ecn) {
        self.handshake_received = came;
    }

    /// The flags of the SYN-ACK report how our SYN arrived, which was not ECN-capable. A path that
    /// changes such a codepoint may change others as well (section 3.2.2.3). The combination 101
    /// reports no change (section 3.1.3).
    pub(super) fn note_report_on_syn(&mut self, flags: Flags) {
        self.is_intact = matches!(flags.ace(), 0b010 | 0b101);
    }

    /// The SYN-ACK of a simultaneous open arrived: our next acknowledgement reports its codepoint,
    /// as a client's does (section 3.2.2.1). A mark on it is counted as on every segment.
    pub(super) fn note_syn_ack(&mut self, came: Ecn) {
        self.handshake_received = came;
        self.has_counted_syn_ack |= came == Ecn::CongestionExperienced;
        self.owes_reflection = true;
    }

    /// The remote's SYN-ACK arrived again, and is acknowledged now.
    pub(super) fn note_repeated_syn_ack(&mut self, came: Ecn) {
        let is_marked = came == Ecn::CongestionExperienced;
        //= RFC 9768#3.2.2.2
        //# If a TCP Client in AccECN mode receives a CE mark in the IP-ECN field of a SYN/ACK, it
        //# MUST increment r.cep, but no more than once no matter how many CE-marked SYN/ACKs it
        //# receives (i.e., incremented from 5 to 6, but no further).
        if is_marked && !self.has_counted_syn_ack {
            self.received_packets = self.received_packets.wrapping_add(1);
        }
        self.note_syn_ack(came);
    }

    /// Whether the path allows that data is sent as ECN-capable.
    pub(super) fn may_be_marked(&self) -> bool {
        self.is_clear && self.is_intact
    }

    /// Whether the next acknowledgement must have no payload.
    pub(super) fn owes_reflection(&self) -> bool {
        self.owes_reflection
    }

    //= RFC 9768#3.1.5
    //# SHOULD acknowledge a valid SYN arriving with (AE,CWR,ECE) = (0,0,0) by emitting an AccECN
    //# SYN/ACK (with the appropriate combination of TCP-ECN flags to feed back the IP-ECN field of
    //# this latest SYN);
    //= RFC 9768#3.2.3.2.2
    //# If this retransmission times out, to expedite connection setup, the TCP Server SHOULD
    //# retransmit the SYN/ACK with (AE,CWR,ECE) = (0,0,0) and no AccECN Option, but it remains in
    //# AccECN feedback mode (per Section 3.1.5).
    /// The three bits of a SYN-ACK that is sent after `retries` timeouts. Later ones do not ask for
    /// ECN, in case a box on the path drops those that do; our feedback stays.
    pub(super) fn syn_ack_flags(&self, retries: u8) -> Flags {
        match retries.saturating_sub(self.syn_retries) < ATTEMPTS {
            true => reflection(self.handshake_received),
            false => Flags::default(),
        }
    }

    //= RFC 9768#3.1.1
    //# During the TCP three-way handshake at the start of a connection, to request more Accurate
    //# ECN feedback the TCP Client (host A) MUST set the TCP flags (AE,CWR,ECE) = (1,1,1) in the
    //# initial SYN segment.
    //= RFC 9768#3.1.3
    //# However, an AccECN Client implementation MUST NOT send a SYN with any combination other than
    //# the three listed.
    /// The three bits of a SYN after `retries` timeouts.
    pub(super) fn syn_flags(retries: u8) -> Flags {
        match retries < ATTEMPTS {
            true => Flags::ACE,
            false => Flags::default(),
        }
    }

    /// The three bits of the next segment.
    pub(super) fn flags(&self) -> Flags {
        Flags::of_ace(self.received_packets % ACE_NUMBERS as u8)
    }

    //= RFC 9768#3.2
    //# Whenever a Data Receiver feeds back the value of any counter, it MUST report the most recent
    //# value, no matter whether it is in a pure ACK, or an ACK piggybacked on a packet used by the
    //# other half-connection, whether new payload data or a retransmission.
    //= RFC 9768#3.2.2
    //# On such a packet, a Data Receiver MUST encode the 3 least significant bits of its r.cep
    //# counter into the ACE field that it feeds back to the Data Sender.
    //= RFC 9768#3.2.2.2
    //# Whenever the Data Receiver sends an ACK with SYN=0 (with or without data), unless the
    //# handshake encoding in Section 3.2.2.1 applies, the Data Receiver MUST encode the least
    //# significant 3 bits of its r.cep counter into the ACE field (see Appendix A.2).
    /// The three bits of the segment that is being sent. `is_bare`: it has neither payload nor SACK
    /// blocks.
    pub(super) fn ace_flags(&mut self, is_bare: bool) -> Flags {
        self.reported_packets = self.received_packets;
        //= RFC 9768#3.2.2.1
        //# A TCP Client (A) in AccECN mode MUST feed back which of the 4 possible values of the
        //# IP-ECN field was on the SYN/ACK by writing it into the ACE field of a pure ACK with no
        //# SACK blocks using the binary encoding in Table 3 (which is the same as that used on the
        //# SYN/ACK in Table 2).
        // Section 3.2.2.1: "the only exception to the rule that the ACE field carries [...] r.cep".
        match core::mem::replace(&mut self.owes_reflection, false) && is_bare {
            true => reflection(self.handshake_received),
            false => self.flags(),
        }
    }

    /// The counters of the option.
    pub(crate) fn counters(&self) -> EcnCounters {
        self.came_bytes
    }

    /// Counts an acceptable segment that arrived as `packets` packets, which a link may have
    /// coalesced. `is_acknowledged`: everything before it was acknowledged. Returns whether the
    /// segment must be acknowledged at once (section 3.2.2.5.1).
    pub(super) fn note_arrival(
        &mut self,
        came: Ecn,
        payload_bytes: usize,
        packets: usize,
        is_acknowledged: bool,
    ) -> bool {
        let is_marked = came == Ecn::CongestionExperienced;
        if is_marked {
            //= RFC 9768#3.2
            //# The Data Receiver MUST increment the CE packet counter (r.cep), for every Acceptable
            //# packet that it receives with the CE code point in the IP-ECN field, including
            //# CE-marked control packets and retransmissions but excluding CE on SYN packets
            //# (SYN=1; ACK=0).
            self.received_packets = self.received_packets.wrapping_add(packets as u8);
        }
        let count = match came {
            Ecn::NotCapable => None,
            Ecn::Ect0 => Some(&mut self.came_bytes.ect0),
            Ecn::Ect1 => Some(&mut self.came_bytes.ect1),
            Ecn::CongestionExperienced => Some(&mut self.came_bytes.ce),
        };
        if let Some(count) = count {
            //= RFC 9768#3.2
            //# A Data Receiver that supports sending of AccECN TCP Options MUST increment the
            //# r.ceb, r.e0b or r.e1b byte counters by the number of TCP payload octets in
            //# Acceptable packets marked with the CE, ECT(0) and ECT(1) codepoint in their IP-ECN
            //# field, including any payload octets on control packets and retransmissions, but not
            //# including any payload octets on SYN packets (SYN=1; ACK=0).
            *count = count.wrapping_add(payload_bytes as u32) & COUNTER_MASK;
        }
        let has_payload = payload_bytes > 0;
        //= RFC 9768#3.2.2.5.1
        //# An AccECN Data Receiver SHOULD emit an ACK whenever a data packet marked CE arrives
        //# after the previous packet was not CE.
        let turns = has_payload && is_marked && !self.was_marked;
        self.was_marked = is_marked;
        //= RFC 9768#3.2.2.5.1
        //# An AccECN receiver of a packet MUST emit an ACK if 'n' CE marks have arrived since the
        //# previous ACK.
        let untold_max = match has_payload || !is_acknowledged {
            true => UNREPORTED_MAX,
            false => UNREPORTED_MAX_WITHOUT_DATA,
        };
        turns || self.received_packets.wrapping_sub(self.reported_packets) >= untold_max
    }

    //= RFC 9768#3.2.2
    //# With one exception (Section 3.2.2.1), a host with both of its half-connections in AccECN
    //# mode MUST interpret the AE, CWR and ECE flags as the 3-bit ACE counter on a segment with the
    //# SYN flag cleared (SYN=0).
    /// How many of our bytes were marked, by the feedback of an acknowledgement that is not an old
    /// one.
    pub(super) fn hear(&mut self, feedback: Feedback) -> u32 {
        let ace = feedback.ace;
        if core::mem::replace(&mut self.is_first, false) {
            //= RFC 9768#3.2.2.4
            //# Note that the Data Sender MUST NOT test whether the arriving counter in the initial
            //# ACE field has been initialized to a specific valid value - the above check solely
            //# tests whether the ACE fields have been incorrectly zeroed.
            //= RFC 9768#3.2.2.1
            //# {Note 1}: If the Server is in AccECN mode and in SYN-RCVD state, and if it receives
            //# a value of zero on a pure ACK with SYN=0 and no SACK blocks, for the rest of the
            //# connection the Server MUST NOT set ECT on outgoing packets
            // Section 3.2.2.4: neither a counter that begins at 5 nor the report on a SYN-ACK can
            // be zero here: the path clears the bits.
            self.is_clear = ace != 0b000;
            if self.may_reflect && feedback.is_bare {
                //= RFC 9768#3.2.2.1
                //# When an AccECN Server in SYN-RCVD state receives a pure ACK with SYN=0 and no
                //# SACK blocks, instead of treating the ACE field as a counter, it MUST infer the
                //# meaning of each possible value of the ACE field from Table 4, which also shows
                //# the value that an AccECN Server MUST set s.cep to as a result.
                //= RFC 9768#3.2.2.2
                //# If a TCP Server in AccECN mode and in SYN-RCVD state receives CE feedback in the
                //# TCP flags of a pure ACK with no SACK blocks, it MUST increment s.cep (from 5 to
                //# 6).
                //= RFC 9768#3.2.2.3
                //# However, the Server MUST remain in the AccECN feedback mode and it MUST continue
                //# to feed back any ECN markings on arriving packets (in its role as Data
                //# Receiver).
                self.heard_packets = PACKETS_AT_FIRST + u8::from(ace == 0b110);
                // Our SYN-ACK was not ECN-capable, and arrived otherwise (section 3.2.2.3).
                self.is_intact = !matches!(ace, 0b011 | 0b100 | 0b110);
                return 0;
            }
        }
        //= RFC 9768#3.2.2.1
        //# and MUST NOT respond to AccECN feedback.
        //= RFC 9768#3.2.2.1
        //# Nonetheless, as a Data Receiver it MUST NOT disable AccECN feedback.
        if !self.is_clear {
            return 0;
        }
        // An acknowledgement without progress may have been overtaken by another. Its number would
        // look like up to seven marks. So the number counts with the next progress, as on Linux
        // (__tcp_accecn_process). The counters of the option are wide enough to show their order.
        let ace = match feedback.is_newest {
            true => ace,
            false => self.heard_packets,
        };
        let delta = u32::from(ace.wrapping_sub(self.heard_packets)) % ACE_NUMBERS;
        //= RFC 9768#3.2.3.2.5
        //# An endpoint using AccECN feedback MUST always reconcile the information provided in the
        //# ACE field with that in any AccECN Option, so that the state of the ACE-related packet
        //# counter can be relied on if future feedback does not carry an AccECN Option.
        self.heard_packets = ace;
        let Some(counters) = feedback.counters else {
            let bytes = likely(delta, feedback.delivered).saturating_mul(feedback.mss);
            self.assumed_bytes = self.assumed_bytes.saturating_add(bytes);
            return bytes;
        };
        //= RFC 9768#3.2.3.2.4
        //# Note that the Data Sender MUST NOT test whether the arriving byte counters in an initial
        //# AccECN Option have been initialized to specific valid values - the above checks solely
        //# test whether these fields have been incorrectly zeroed.
        // Packets without payload are not in the byte counters: their marks say nothing about our
        // data.
        let more = counters.ce.wrapping_sub(self.heard_bytes) & COUNTER_MASK;
        if more > COUNTER_MASK / 2 {
            // A difference in the upper half is negative: the option was overtaken by another.
            return 0;
        }
        self.heard_bytes = counters.ce;
        more.saturating_sub(core::mem::take(&mut self.assumed_bytes))
    }
}

//= RFC 9768#3.2.2.5.2
//# If the Data Sender has not received AccECN TCP Options to give it more dependable information,
//# and it detects that the ACE field could have cycled, it SHOULD deem whether it cycled by taking
//# the safest likely case under the prevailing conditions.
//= RFC 9768#3.2.2.5.2
//# If the ACE counter on an ACK seems to imply that the minimum number of newly CE-marked packets
//# is greater than the number of newly acknowledged packets, the Data Sender SHOULD consider the
//# ACE counter to be correct (and its count of control packets to be incomplete), unless it can be
//# sure that it is counting all control packets correctly.
//= RFC 9768#3.2.3.2.3
//# While a host is in this mode that assumes incoming AccECN Options are not available, it MUST
//# adopt the conservative interpretation of the ACE field discussed in Section 3.2.2.5.
/// The likely number of marked packets if the field may have wrapped: the largest number that fits
/// (section 3.2.2.5.2). If the field has not changed, none: links coalesce segments, and then an
/// acknowledgement for eight packets or more is ordinary.
fn likely(delta: u32, delivered: u32) -> u32 {
    if delta == 0 || delivered < ACE_NUMBERS {
        return delta;
    }
    delivered - (delivered - delta) % ACE_NUMBERS
}

#[cfg(test)]
mod tests {
    use super::*;

    //= RFC 9768#3.1.3
    //= type=test
    //# If a TCP Server that implements AccECN receives a SYN with the three TCP header flags
    //# (AE,CWR,ECE) set to any combination other than (0,0,0), (0,1,1), or (1,1,1) and it does not
    //# have logic specific to such a combination, the Server MUST negotiate the use of AccECN as if
    //# the three flags had been set to (1,1,1).
    //= RFC 9768#3.1.3
    //= type=test
    //# If a TCP Client has sent a SYN requesting AccECN feedback with (AE,CWR,ECE) = (1,1,1) then
    //# receives a SYN/ACK with the currently reserved combination (AE,CWR,ECE) = (1,0,1) but it
    //# does not have logic specific to such a combination, the Client MUST enable AccECN mode as if
    //# the SYN/ACK confirmed that the Server supported AccECN and as if it fed back that the IP-ECN
    //# field on the SYN had arrived unchanged.
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
    fn the_first_mark_and_every_second_one_are_reported_at_once() {
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
                ours.ace_flags(true);
            }
        }
        assert_eq!(ours.flags(), Flags::of_ace((5 + 3) % 8));
        let counters = ours.counters();
        assert_eq!(
            (counters.ect0, counters.ce, counters.ect1),
            (2_001, 3_000, 1)
        );
        // Without payload only the number counts, and acknowledgements are forced from three on.
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
            is_newest: true,
            is_bare: true,
            mss: MSS,
        })
    }

    //= RFC 9768#3.2.2.5.2
    //= type=test
    //# If the Data Sender has not received AccECN TCP Options to give it more dependable
    //# information, and it detects that the ACE field could have cycled, it SHOULD deem whether it
    //# cycled by taking the safest likely case under the prevailing conditions.
    //= RFC 9768#3.2.3.2.3
    //= type=test
    //# While a host is in this mode that assumes incoming AccECN Options are not available, it MUST
    //# adopt the conservative interpretation of the ACE field discussed in Section 3.2.2.5.
    //= RFC 9768#3.2.3.2.4
    //= type=test
    //# Note that the Data Sender MUST NOT test whether the arriving byte counters in an initial
    //# AccECN Option have been initialized to specific valid values - the above checks solely test
    //# whether these fields have been incorrectly zeroed.
    #[test]
    fn the_option_distinguishes_counts_that_the_field_cannot() {
        let mut ours = AccurateEcn::of_client(Ecn::NotCapable);
        assert_eq!(heard(&mut ours, 7, None, 2), 2 * MSS);
        // Ten of twelve packets, while the field shows 2.
        assert_eq!(heard(&mut ours, 1, None, 12), 10 * MSS);
        assert_eq!(heard(&mut ours, 1, None, 44), 0);
        assert_eq!(heard(&mut ours, 1, Some(20_000), 44), 8_000);
        // An older option is no news, and neither is a mark on a bare acknowledgement.
        assert_eq!(heard(&mut ours, 1, Some(100), 1), 0);
        assert_eq!(heard(&mut ours, 2, Some(20_000), 1), 0);
        assert_eq!(heard(&mut ours, 3, Some(21_000), 1), MSS);
    }

    //= RFC 9768#3.2.3.2.5
    //= type=test
    //# An endpoint using AccECN feedback MUST always reconcile the information provided in the ACE
    //# field with that in any AccECN Option, so that the state of the ACE-related packet counter
    //# can be relied on if future feedback does not carry an AccECN Option.
    /// A segment with data reports by the field, and the acknowledgement after it by the option.
    #[test]
    fn a_mark_that_is_reported_twice_counts_once() {
        let mut ours = AccurateEcn::of_client(Ecn::NotCapable);
        for packet in 1..=20 {
            let ace = (5 + packet as u8) % 8;
            assert_eq!(heard(&mut ours, ace, None, 1), MSS);
            assert_eq!(heard(&mut ours, ace, Some(packet * MSS), 0), 0);
        }
        // The packets were larger than assumed.
        assert_eq!(heard(&mut ours, 2, None, 1), MSS);
        assert_eq!(heard(&mut ours, 2, Some(21_400), 0), 400);
        // Or smaller: later marks are not reduced by the difference.
        assert_eq!(heard(&mut ours, 3, None, 1), MSS);
        assert_eq!(heard(&mut ours, 3, Some(21_500), 0), 0);
        assert_eq!(heard(&mut ours, 4, Some(22_500), 1), MSS);
    }

    //= RFC 9768#3.2.2.1
    //= type=test
    //# When an AccECN Server in SYN-RCVD state receives a pure ACK with SYN=0 and no SACK blocks,
    //# instead of treating the ACE field as a counter, it MUST infer the meaning of each possible
    //# value of the ACE field from Table 4, which also shows the value that an AccECN Server MUST
    //# set s.cep to as a result.
    //= RFC 9768#3.2.2.2
    //= type=test
    //# If a TCP Server in AccECN mode and in SYN-RCVD state receives CE feedback in the TCP flags
    //# of a pure ACK with no SACK blocks, it MUST increment s.cep (from 5 to 6).
    //= RFC 9768#3.2.2.4
    //= type=test
    //# Note that the Data Sender MUST NOT test whether the arriving counter in the initial ACE
    //# field has been initialized to a specific valid value - the above check solely tests whether
    //# the ACE fields have been incorrectly zeroed.
    #[test]
    fn a_path_that_clears_the_bits_is_sent_nothing_that_can_be_marked() {
        let mut ours = AccurateEcn::of_server(Ecn::NotCapable);
        assert!(ours.may_be_marked());
        assert_eq!(heard(&mut ours, 0, None, 0), 0);
        assert!(!ours.may_be_marked());
        let mut ours = AccurateEcn::of_client(Ecn::NotCapable);
        assert_eq!(heard(&mut ours, 0, None, 1), 0);
        assert!(!ours.may_be_marked());
        // Every other value is equally valid as a counter, and only the value for a mark counts as
        // one. Three values report that the path has changed the codepoint of our SYN-ACK.
        for ace in 1..8 {
            let mut ours = AccurateEcn::of_server(Ecn::NotCapable);
            assert_eq!(heard(&mut ours, ace, None, 0), 0);
            let has_changed = matches!(ace, 0b011 | 0b100 | 0b110);
            assert_eq!(ours.may_be_marked(), !has_changed);
            let number = if ace == 0b110 { 6 } else { 5 };
            assert_eq!(heard(&mut ours, number, None, 1), 0);
            assert_eq!(heard(&mut ours, 7, None, 1), MSS * u32::from(7 - number));
            let mut ours = AccurateEcn::of_client(Ecn::NotCapable);
            heard(&mut ours, ace, None, 1);
            assert!(ours.may_be_marked());
        }
    }
}
