//! The transmit fast path: data in order and plain acknowledgements of connections without
//! exceptions, over Ethernet and IP, with timestamps. All other frames go through
//! [`Engine::transmit_from`]. `connection/template.rs` makes the headers. IPv4 and IPv6 have
//! separate machine code, generated from one source: `TCP_AT` is the offset of the TCP header.
//!
//! Full segments that may be sent at once are a *run*: they are planned together, with one check of
//! windows and timers, and are written from one template. Each segment counts as sent only when it
//! is polled.

use super::transmit::{ChecksumWork, Payload, Transmit, TransmitOffload};
use super::{Engine, HEADER_BUFFER_BYTES};
use crate::connection::{Conditions, Layout, TCP_AT_V4, TCP_AT_V6, Template};
use crate::host::ConnectionId;
use crate::position::Position;
use crate::state::State;
use crate::time::Instant;
use crate::wire::checksum::Sum;
use crate::wire::put_u32;
use crate::wire::tcp::{CHECKSUM_AT, FLAGS_AT, Flags};

/// The segments that may directly follow the last one. Any event between two polls (a segment, a
/// call, a timer, other headers) ends the run: then the next segment is planned anew.
#[derive(Debug)]
pub(super) struct Run {
    /// The number of bytes that may follow, in segments of `payload_bytes`: over IPv4, and over
    /// IPv6. One of the two is zero.
    left_bytes: [u32; 2],
    /// Never zero.
    payload_bytes: u32,
    slot: u32,
    generation: u32,
    /// When the first segment was sent. The other segments of the run are sent at the same instant.
    now: Instant,
}

impl Run {
    pub(super) const fn none() -> Self {
        Self {
            left_bytes: [0; 2],
            payload_bytes: u32::MAX,
            slot: 0,
            generation: 0,
            now: Instant::ZERO,
        }
    }

    /// Ends the run: the next segment has to be planned.
    #[inline]
    pub(super) fn end(&mut self) {
        self.left_bytes = [0; 2];
    }

    /// Whether another segment of the run may be sent now.
    #[inline]
    pub(super) fn goes_on<const TCP_AT: usize>(&self, now: Instant) -> bool {
        self.left_bytes[family::<TCP_AT>()] >= self.payload_bytes && self.now == now
    }
}

/// The index of the address family in `left_bytes`.
const fn family<const TCP_AT: usize>() -> usize {
    (TCP_AT == TCP_AT_V6) as usize
}

/// A frame of the fast path with complete headers.
#[inline(always)]
fn fast_path_frame<const IS_SUMMED_BY_LINK: bool, const TCP_AT: usize>(
    h: &mut [u8; Template::BYTES_MAX],
    payload: Option<Payload>,
    segment_bytes: u16,
) -> Transmit {
    let checksum = if IS_SUMMED_BY_LINK {
        ChecksumWork::Link {
            start: TCP_AT as u16,
            at: CHECKSUM_AT as u16,
        }
    } else if payload.is_some() {
        ChecksumWork::Payload {
            sum: sum_fast_path_headers::<TCP_AT>(h),
            at: (TCP_AT + CHECKSUM_AT) as u16,
        }
    } else {
        let at = TCP_AT + CHECKSUM_AT;
        let sum = sum_fast_path_headers::<TCP_AT>(h);
        h[at..at + 2].copy_from_slice(&sum.checksum());
        ChecksumWork::Done
    };
    let header_bytes = TCP_AT + Template::TCP_BYTES;
    Transmit {
        header_bytes,
        payload,
        offload: TransmitOffload {
            checksum,
            segment_bytes,
            header_bytes: header_bytes as u16,
            is_v6: TCP_AT == TCP_AT_V6,
            has_cwr: false,
        },
    }
}

/// A part of a connection's stream.
#[inline(always)]
fn payload(slot: u32, generation: u32, seq: Position, bytes: u32) -> Option<Payload> {
    Some(Payload {
        connection: ConnectionId {
            index: slot,
            generation,
        },
        offset: seq.after(Position::FIRST_BYTE),
        bytes,
    })
}

/// Sums the headers for a link without checksum offload.
#[inline(never)]
fn sum_fast_path_headers<const TCP_AT: usize>(h: &[u8; Template::BYTES_MAX]) -> Sum {
    Sum::ZERO.bytes(&h[TCP_AT..TCP_AT + Template::TCP_BYTES])
}

impl Engine {
    /// The next segment of the connection at the head of the run queue, if
    /// [`Connection::may_send_fast`] is true and there is data.
    #[inline(always)]
    fn send_fast<const IS_SUMMED_BY_LINK: bool, const TCP_AT: usize>(
        &mut self,
        now: Instant,
        slot: u32,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        let connection = &mut self.slots[slot as usize];
        let Some(plan) = connection.plan_fast(now, &self.config) else {
            return self.transmit_slowly(now, out);
        };
        let bytes = plan.payload_bytes;
        if connection.loss_deadline < connection.asked_by {
            connection.asked_by = connection.loss_deadline;
            self.deadlines.ask_by(slot, connection.loss_deadline);
        }
        let h = out.first_chunk_mut().expect("the buffer is longer");
        connection.write_fast_path_headers::<TCP_AT>(now, bytes, h);
        put_u32(h, TCP_AT + 4, plan.seq.wire(connection.snd_first));
        let generation = connection.generation;
        let mut left_bytes = [0; 2];
        left_bytes[family::<TCP_AT>()] = plan.left_bytes;
        self.run = Run {
            left_bytes,
            payload_bytes: bytes,
            slot,
            generation,
            now,
        };
        self.fast_paths.sent += 1;
        self.counters.bytes_sent += u64::from(bytes);
        if plan.is_end {
            h[FLAGS_AT + TCP_AT] |= Flags::PSH.0 as u8;
            connection.note_end_of_plain_data();
            connection.conditions.clear(Conditions::QUEUED);
            self.turns.finish();
        } else if !self.turns.go_on() {
            self.run.end();
        }
        let payload = payload(slot, generation, plan.seq, bytes);
        if plan.is_large {
            h[FLAGS_AT + TCP_AT] |= Flags::PSH.0 as u8;
            return Some(fast_path_frame::<IS_SUMMED_BY_LINK, TCP_AT>(
                h,
                payload,
                connection.mss,
            ));
        }
        Some(fast_path_frame::<IS_SUMMED_BY_LINK, TCP_AT>(h, payload, 0))
    }

    /// The next frame of the connection at the head of the run queue, if no control frame comes
    /// first: a bare acknowledgement, or a frame of one of the other paths. The path is chosen
    /// here, so that each path begins with the values it needs.
    // Not inlined, and every call is a tail call: so no registers need to be saved.
    #[inline(never)]
    pub(super) fn transmit_next<const IS_SUMMED_BY_LINK: bool>(
        &mut self,
        now: Instant,
        slot: u32,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        if self.slots[slot as usize].may_send_fast(Layout::V4) {
            self.transmit_fast::<IS_SUMMED_BY_LINK, TCP_AT_V4>(now, slot, out)
        } else {
            self.transmit_next_v6::<IS_SUMMED_BY_LINK>(now, slot, out)
        }
    }

    /// [`Self::transmit_next`] when the fast path over IPv4 is not possible.
    #[inline(never)]
    fn transmit_next_v6<const IS_SUMMED_BY_LINK: bool>(
        &mut self,
        now: Instant,
        slot: u32,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        if self.run.goes_on::<TCP_AT_V6>(now) {
            let transmit = self.continue_run::<IS_SUMMED_BY_LINK, TCP_AT_V6>(out);
            if transmit.is_some() {
                return transmit;
            }
        }
        if self.slots[slot as usize].may_send_fast(Layout::V6) {
            self.transmit_fast::<IS_SUMMED_BY_LINK, TCP_AT_V6>(now, slot, out)
        } else {
            self.transmit_slowly(now, out)
        }
    }

    /// The next frame where [`Connection::may_send_fast`] is true.
    #[inline(always)]
    fn transmit_fast<const IS_SUMMED_BY_LINK: bool, const TCP_AT: usize>(
        &mut self,
        now: Instant,
        slot: u32,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        let connection = &mut self.slots[slot as usize];
        if connection.snd_nxt < connection.snd_end {
            return self.send_fast::<IS_SUMMED_BY_LINK, TCP_AT>(now, slot, out);
        }
        if !connection.conditions.has(Conditions::ACK_NOW) {
            return self.transmit_slowly(now, out);
        }
        if !connection.template.fits(0) {
            return self.acknowledge_after_data::<IS_SUMMED_BY_LINK>(now, slot, out);
        }
        let h = out.first_chunk_mut().expect("the buffer is longer");
        let is_over = Conditions::ACK_NOW | Conditions::QUEUED;
        connection.conditions.clear(is_over);
        connection.write_fast_path_acknowledgement::<TCP_AT>(now, h);
        self.run.end();
        self.turns.finish();
        self.fast_paths.sent += 1;
        Some(fast_path_frame::<IS_SUMMED_BY_LINK, TCP_AT>(h, None, 0))
    }

    /// Sends an acknowledgement when the kept headers are those of a payload segment.
    #[inline(never)]
    fn acknowledge_after_data<const IS_SUMMED_BY_LINK: bool>(
        &mut self,
        now: Instant,
        slot: u32,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        self.slots[slot as usize].template.fit(0);
        self.transmit_next::<IS_SUMMED_BY_LINK>(now, slot, out)
    }

    /// The next segment of the run.
    #[inline(always)]
    pub(super) fn continue_run<const IS_SUMMED_BY_LINK: bool, const TCP_AT: usize>(
        &mut self,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        if self.turns.is_last_in_a_row() {
            self.end_turn::<IS_SUMMED_BY_LINK, TCP_AT>(out)
        } else {
            self.send_another::<IS_SUMMED_BY_LINK, TCP_AT>(out)
        }
    }

    /// Sends the last segment before the next connection's turn.
    #[inline(never)]
    fn end_turn<const IS_SUMMED_BY_LINK: bool, const TCP_AT: usize>(
        &mut self,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        let transmit = self.send_another::<IS_SUMMED_BY_LINK, TCP_AT>(out);
        let connection = &self.slots[self.run.slot as usize];
        if transmit.is_some() && connection.conditions.has(Conditions::QUEUED) {
            self.turns.give_way();
            self.run.end();
        }
        transmit
    }

    #[inline(never)]
    fn send_another<const IS_SUMMED_BY_LINK: bool, const TCP_AT: usize>(
        &mut self,
        out: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        let run = &mut self.run;
        let connection = &mut self.slots[run.slot as usize];
        let bytes = run.payload_bytes;
        let Some(seq) = connection.send_another(bytes) else {
            run.end();
            return None;
        };
        run.left_bytes[family::<TCP_AT>()] -= bytes;
        let h = out.first_chunk_mut().expect("the buffer is longer");
        connection.copy_headers::<TCP_AT>(h);
        put_u32(h, TCP_AT + 4, seq.wire(connection.snd_first));
        self.fast_paths.sent += 1;
        self.counters.bytes_sent += u64::from(bytes);
        let payload = payload(run.slot, run.generation, seq, bytes);
        if connection.snd_nxt == connection.snd_end {
            h[FLAGS_AT + TCP_AT] |= Flags::PSH.0 as u8;
            connection.note_end_of_plain_data();
            connection.conditions.clear(Conditions::QUEUED);
            self.turns.finish();
        } else {
            self.turns.count();
        }
        Some(fast_path_frame::<IS_SUMMED_BY_LINK, TCP_AT>(h, payload, 0))
    }

    /// Checks that the segments of the run may be sent, by the connection at the head of the run
    /// queue.
    pub(super) fn assert_run(&self) {
        let run = &self.run;
        let left_bytes = run.left_bytes[0].max(run.left_bytes[1]);
        if left_bytes < run.payload_bytes {
            return;
        }
        let connection = &self.slots[run.slot as usize];
        let bytes = u64::from(left_bytes);
        assert_eq!(self.turns.current(), Some(run.slot), "a run out of turn");
        assert_eq!(connection.generation, run.generation, "another's run");
        assert_eq!(run.payload_bytes, u32::from(connection.mss), "not full");
        assert!(
            bytes <= connection.snd_end - connection.snd_nxt
                && bytes <= connection.snd_edge - connection.snd_nxt
                && bytes + (connection.snd_nxt - connection.snd_una) <= u64::from(connection.cwnd),
            "a run beyond what was published or a window"
        );
        let layouts = [Layout::V4, Layout::V6];
        let layout = layouts[usize::from(run.left_bytes[1] > 0)];
        assert!(
            connection.state == State::Established && connection.template.layout == layout,
            "a run of a connection that is not on the fast path"
        );
    }
}
