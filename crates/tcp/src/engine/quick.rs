//! The short way out: data in order and plain acknowledgements of connections without trouble, over
//! Ethernet and IPv4 with timestamps. Everything else goes by way of [`Engine::transmit_from`].
//!
//! ```text
//! 0        14   16     18 20  22  24   26   30   34     38   42   46   48     50  54    58   62   66
//! | macs.. |45..|length|id|DF.|ttl|csum|src |dst |ports |seq |ack |80fl|window|csum|nn8a |TSv |TSe |
//! ```
//!
//! Full segments that may leave at once are a *run*: planned together, with one look at windows and timers, and
//! written with one set of numbers. Still each of them counts as sent only when it is polled.

use super::transmit::{ChecksumWork, Payload, Transmit, TransmitOffload};
use super::{Engine, HEADER_BUFFER_BYTES};
use crate::connection::{Conditions, Connection, Context, QuickPlan, State, Template};
use crate::host::ConnectionId;
use crate::position::Position;
use crate::time::Instant;
use crate::wire::checksum::Sum;
use crate::wire::tcp::{CHECKSUM_AT, Flags};
use crate::wire::{put_u16, put_u32};

const IP_AT: usize = 14;
const TCP_AT: usize = 34;
const HEADER_BYTES: usize = Template::USUAL_BYTES;
/// Where the TCP header ends, in words, and the reserved bits.
const OFFSET: u8 = (((HEADER_BYTES - TCP_AT) / 4) << 4) as u8;

/// What the segment sent last has in common with those that may follow it at once. Whatever happens between
/// two polls (a segment, a call, a timer, other headers) ends it: then the next one is planned anew.
#[derive(Debug)]
pub(super) struct Run {
    /// How many bytes of full segments may follow; zero for less than one.
    left_bytes: u32,
    payload_bytes: u32,
    slot: u32,
    generation: u32,
    /// When the first one left; the others leave at the same moment, or not in this run.
    now: Instant,
    // What their headers say: from the acknowledgement to the checksum, which is the pseudo-header's, and the timestamps.
    total_length: [u8; 2],
    middle: [u8; 10],
    timestamps: [u8; 8],
    /// Sum of the IP header without its identification.
    ip_short: u16,
    /// For the link to cut it up.
    segment_bytes: u16,
}

impl Run {
    pub(super) const fn none() -> Self {
        Self {
            left_bytes: 0,
            payload_bytes: 0,
            slot: 0,
            generation: 0,
            now: Instant::ZERO,
            total_length: [0; 2],
            middle: [0; 10],
            timestamps: [0; 8],
            ip_short: 0,
            segment_bytes: 0,
        }
    }

    /// The next segment has to be planned.
    #[inline]
    pub(super) fn end(&mut self) {
        self.left_bytes = 0;
    }

    /// Whether another segment may follow at this moment.
    #[inline]
    pub(super) fn goes_on(&self, now: Instant) -> bool {
        self.left_bytes > 0 && self.now == now
    }

    #[inline(always)]
    fn begin(&mut self, now: Instant, slot: u32, connection: &Connection, plan: &QuickPlan) {
        let template = &connection.template;
        let ip_bytes = (HEADER_BYTES - IP_AT) as u32 + plan.payload_bytes;
        let tcp_bytes = (HEADER_BYTES - TCP_AT) as u32 + plan.payload_bytes;
        let is_large = plan.payload_bytes > u32::from(connection.mss);
        let acknowledgement = connection.rcv_nxt.wire(connection.irs);
        let words = u64::from(acknowledgement) << 32
            | u64::from(OFFSET) << 24
            | u64::from(plan.flags.0) << 16
            | u64::from(plan.window);
        let mut middle = [0; 10];
        middle[..8].copy_from_slice(&words.to_be_bytes());
        let pseudo = Sum::join_words(template.pseudo_short, tcp_bytes as u16, 0);
        middle[8..].copy_from_slice(&pseudo.to_ne_bytes());
        *self = Self {
            left_bytes: plan.left_bytes,
            payload_bytes: plan.payload_bytes,
            slot,
            generation: connection.generation,
            now,
            total_length: (ip_bytes as u16).to_be_bytes(),
            middle,
            timestamps: {
                let value = u64::from(connection.timestamp(now));
                (value << 32 | u64::from(connection.ts_recent)).to_be_bytes()
            },
            ip_short: Sum::join_words(template.ip_short, ip_bytes as u16, 0),
            segment_bytes: if is_large { connection.mss } else { 0 },
        };
    }

    /// Writes the headers drawn above.
    #[inline(always)]
    fn write(
        &self,
        connection: &Connection,
        seq: Position,
        flags: Flags,
        has_payload: bool,
        has_transmit_checksum: bool,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Transmit {
        let h: &mut [u8; HEADER_BYTES] = out.first_chunk_mut().expect("the buffer is longer");
        let wire = seq.wire(connection.iss);
        *h = connection.template.bytes;
        h[16..18].copy_from_slice(&self.total_length);
        put_u16(h, 18, wire as u16);
        let ip = Sum::join_words(self.ip_short, wire as u16, 0);
        h[24..26].copy_from_slice(&(!ip).to_ne_bytes());
        put_u32(h, 38, wire);
        h[42..52].copy_from_slice(&self.middle);
        h[47] |= flags.0;
        h[58..66].copy_from_slice(&self.timestamps);
        let at = TCP_AT + CHECKSUM_AT;
        let checksum = if has_transmit_checksum {
            ChecksumWork::Link {
                start: TCP_AT as u16,
                at: CHECKSUM_AT as u16,
            }
        } else {
            let sum = Sum::ZERO.bytes(&h[TCP_AT..]);
            if has_payload {
                ChecksumWork::Payload { sum, at: at as u16 }
            } else {
                h[at..at + 2].copy_from_slice(&sum.checksum());
                ChecksumWork::Done
            }
        };
        Transmit {
            header_bytes: HEADER_BYTES,
            payload: has_payload.then(|| Payload {
                connection: ConnectionId {
                    index: self.slot,
                    generation: self.generation,
                },
                offset: seq.byte(),
                bytes: self.payload_bytes,
            }),
            offload: TransmitOffload {
                checksum,
                segment_bytes: self.segment_bytes,
                header_bytes: HEADER_BYTES as u16,
                is_v6: false,
                has_cwr: false,
            },
        }
    }
}

impl Engine {
    /// The next segment of the connection whose turn it is, if it is a usual one.
    #[inline]
    pub(super) fn transmit_quickly(
        &mut self,
        now: Instant,
        slot: u32,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        let connection = &mut self.slots[slot as usize];
        if !connection.template.is_usual {
            return None;
        }
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        let plan = connection.plan_quickly(&mut cx)?;
        let deadline = connection.loss_deadline;
        if deadline < connection.asked_by {
            connection.asked_by = deadline;
            self.deadlines.ask_by(slot, deadline);
        }
        self.run.begin(now, slot, connection, &plan);
        let has_transmit_checksum = self.config.offload.transmit_checksum;
        let (seq, flags) = (plan.seq, Flags::default());
        let has_payload = plan.payload_bytes > 0;
        let connection = &*connection;
        let transmit = self.run.write(
            connection,
            seq,
            flags,
            has_payload,
            has_transmit_checksum,
            out,
        );
        self.counters.frames_sent += 1;
        if connection.snd_nxt == connection.snd_end {
            self.finish_turn(slot);
        } else if !self.turns.go_on() {
            self.run.end();
        }
        Some(transmit)
    }

    /// The next segment of the run.
    pub(super) fn continue_run(&mut self, out: &mut [u8; HEADER_BUFFER_BYTES]) -> Option<Transmit> {
        let run = &mut self.run;
        let connection = &mut self.slots[run.slot as usize];
        let (slot, bytes) = (run.slot, run.payload_bytes);
        let Some(seq) = connection.send_another(bytes) else {
            run.end();
            return None;
        };
        let is_end = connection.snd_nxt == connection.snd_end;
        let flags = if is_end { Flags::PSH } else { Flags::default() };
        let has_transmit_checksum = self.config.offload.transmit_checksum;
        let transmit = run.write(connection, seq, flags, true, has_transmit_checksum, out);
        run.left_bytes -= bytes;
        if run.left_bytes < bytes {
            run.end();
        }
        self.counters.frames_sent += 1;
        self.counters.segments_sent += 1;
        self.counters.bytes_sent += u64::from(bytes);
        if is_end {
            self.end_run(slot);
        } else if !self.turns.go_on() {
            self.run.end();
        }
        Some(transmit)
    }

    /// A run has ended where the host's data does.
    #[inline(never)]
    fn end_run(&mut self, slot: u32) {
        self.slots[slot as usize].note_end_of_data();
        self.finish_turn(slot);
    }

    #[inline(always)]
    fn finish_turn(&mut self, slot: u32) {
        self.slots[slot as usize]
            .conditions
            .clear(Conditions::QUEUED);
        self.turns.finish();
    }

    /// Checks that what may follow may indeed be sent, by a connection whose turn it is.
    pub(super) fn assert_run(&self) {
        let run = &self.run;
        if run.left_bytes == 0 {
            return;
        }
        let connection = &self.slots[run.slot as usize];
        let bytes = u64::from(run.left_bytes);
        assert_eq!(self.turns.current(), Some(run.slot), "a run out of turn");
        assert_eq!(connection.generation, run.generation, "another's run");
        assert_eq!(run.payload_bytes, u32::from(connection.mss), "not full");
        assert!(
            bytes <= connection.snd_end - connection.snd_nxt
                && bytes <= connection.snd_edge - connection.snd_nxt
                && bytes + (connection.snd_nxt - connection.snd_una) <= u64::from(connection.cwnd),
            "a run beyond what was published or a window"
        );
        assert!(
            connection.state == State::Established && connection.template.is_usual,
            "a run of a connection that is not usual"
        );
    }
}
