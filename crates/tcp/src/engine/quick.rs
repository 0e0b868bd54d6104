//! The short way out: data in order and plain acknowledgements of connections without trouble, over
//! Ethernet and IPv4 with timestamps. Everything else goes by way of [`Engine::transmit_from`].
//!
//! ```text
//! 0        14   16     18 20  22  24   26   30   34     38   42   46   48     50  54    58   62   66
//! | macs.. |45..|length|id|DF.|ttl|csum|src |dst |ports |seq |ack |80fl|window|csum|nn8a |TSv |TSe |
//! ```

use super::transmit::{ChecksumWork, Payload, Transmit, TransmitOffload};
use super::{Engine, HEADER_BUFFER_BYTES};
use crate::connection::{Conditions, Connection, Context, QuickPlan, Template};
use crate::host::ConnectionId;
use crate::time::Instant;
use crate::wire::checksum::Sum;
use crate::wire::tcp::CHECKSUM_AT;
use crate::wire::{put_u16, put_u32};

const IP_AT: usize = 14;
const TCP_AT: usize = 34;
const HEADER_BYTES: usize = Template::USUAL_BYTES;

impl Engine {
    /// The next segment of the connection at the front of the queue, if it is a usual one.
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
        let id = ConnectionId {
            index: slot,
            generation: connection.generation,
        };
        let is_done = connection.snd_nxt == connection.snd_end;
        let deadline = connection.loss_deadline;
        let is_earlier = deadline < connection.asked_by;
        if is_done {
            connection.conditions.clear(Conditions::QUEUED);
            self.turns.finish();
        } else {
            self.turns.go_on();
        }
        if is_earlier {
            self.ask_by(slot, deadline);
        }
        self.counters.frames_sent += 1;
        let has_transmit_checksum = self.config.offload.transmit_checksum;
        let connection = &self.slots[slot as usize];
        Some(write_usual(
            connection,
            now,
            id,
            &plan,
            has_transmit_checksum,
            out,
        ))
    }
}

/// Writes the headers drawn above.
#[inline]
fn write_usual(
    connection: &Connection,
    now: Instant,
    id: ConnectionId,
    plan: &QuickPlan,
    has_transmit_checksum: bool,
    out: &mut [u8; HEADER_BUFFER_BYTES],
) -> Transmit {
    let template = &connection.template;
    let h: &mut [u8; HEADER_BYTES] = out.first_chunk_mut().expect("the buffer is longer");
    *h = template.bytes;
    let payload_bytes = plan.payload_bytes;
    let seq = plan.seq.wire(connection.iss);
    let ip_bytes = (HEADER_BYTES - IP_AT) as u32 + payload_bytes;
    let tcp_bytes = (HEADER_BYTES - TCP_AT) as u32 + payload_bytes;
    put_u16(h, 16, ip_bytes as u16);
    put_u16(h, 18, seq as u16);
    let ip = Sum::join_words(template.ip_short, ip_bytes as u16, seq as u16);
    h[24..26].copy_from_slice(&(!ip).to_ne_bytes());
    put_u32(h, 38, seq);
    put_u32(h, 42, connection.rcv_nxt.wire(connection.irs));
    h[47] = plan.flags.0;
    put_u16(h, 48, plan.window);
    put_u32(h, 58, connection.timestamp(now));
    put_u32(h, 62, connection.ts_recent);
    let pseudo = Sum::join_words(
        template.pseudo_short,
        (tcp_bytes >> 16) as u16,
        tcp_bytes as u16,
    );
    let at = TCP_AT + CHECKSUM_AT;
    let checksum = if has_transmit_checksum {
        h[at..at + 2].copy_from_slice(&pseudo.to_ne_bytes());
        ChecksumWork::Link {
            start: TCP_AT as u16,
            at: CHECKSUM_AT as u16,
        }
    } else {
        let sum = Sum::from_short(pseudo).bytes(&h[TCP_AT..]);
        if payload_bytes == 0 {
            h[at..at + 2].copy_from_slice(&sum.checksum());
            ChecksumWork::Done
        } else {
            ChecksumWork::Payload { sum, at: at as u16 }
        }
    };
    let is_large = payload_bytes > u32::from(connection.mss);
    Transmit {
        header_bytes: HEADER_BYTES,
        payload: (payload_bytes > 0).then(|| Payload {
            connection: id,
            offset: plan.seq.byte(),
            bytes: payload_bytes,
        }),
        offload: TransmitOffload {
            checksum,
            segment_bytes: if is_large { connection.mss } else { 0 },
            header_bytes: HEADER_BYTES as u16,
            is_v6: false,
            has_cwr: false,
        },
    }
}
