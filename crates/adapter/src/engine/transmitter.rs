//! Sends the engine's frames on the link.
//!
//! ```text
//!   small    headers, and a copy of the payload behind them ──► the link, in one piece
//!   large    headers ──► the link      payload, where the program has it ──► the link
//!   AF_XDP   headers, and a copy of the payload behind them ──► memory that the link sends from
//! ```
//!
//! A device takes a frame in one piece faster than in several: up to a page, the copy costs less
//! than the difference.

use toehold_link::{VnetHeader, XdpSocket};
use toehold_tcp::{ChecksumSum, ChecksumWork, HEADER_BUFFER_BYTES, Memory, Transmit};

use super::device::{Device, Written};
use super::endpoint::Part;
use super::memory::{PARTS_MAX, Streams};

/// The pieces of a frame, in order, as given to the link.
pub(super) type Pieces = [Part; 1 + PARTS_MAX];

#[derive(Debug)]
pub(super) struct FrameTransmitter {
    /// Room for the link's metadata, the headers, and payload that fits.
    frame: Box<[u8]>,
    /// A larger payload whose checksum we have to compute.
    payload: Box<[u8]>,
}

impl FrameTransmitter {
    pub(super) fn new(payload_bytes_max: usize) -> FrameTransmitter {
        FrameTransmitter {
            frame: vec![0; VnetHeader::BYTES + HEADER_BUFFER_BYTES].into(),
            payload: vec![0; payload_bytes_max].into(),
        }
    }

    /// Where headers are to be written before [`FrameTransmitter::send`].
    pub(super) fn header(&mut self) -> &mut [u8] {
        &mut self.frame[VnetHeader::BYTES..]
    }

    /// Gives a frame with complete headers to the link. Returns its pieces, and whether the link
    /// took it.
    pub(super) fn send(
        &mut self,
        device: &mut Device,
        streams: &mut Streams,
        transmit: &mut Transmit,
    ) -> (Pieces, bool) {
        let device = match device {
            Device::Tap(tap) => Written::Tap(tap),
            Device::Packet(socket) => Written::Packet(socket),
            Device::Xdp(socket) => return self.send_from_memory(socket, streams, transmit),
        };
        let headers_end = VnetHeader::BYTES + transmit.header_bytes;
        let payload_bytes = transmit.payload.map_or(0, |payload| payload.bytes as usize);
        let end = headers_end + payload_bytes;
        let is_small = end <= self.frame.len();
        let mut pieces: Pieces = [(std::ptr::null(), 0); 1 + PARTS_MAX];
        if let Some(payload) = transmit.payload {
            let (id, offset) = (payload.connection, payload.offset);
            let is_ours_to_sum = matches!(transmit.offload.checksum, ChecksumWork::Payload { .. });
            if is_small || is_ours_to_sum {
                // The checksum must match the bytes that are sent, so it is computed over a private
                // copy.
                let (headers, rest) =
                    self.frame[VnetHeader::BYTES..].split_at_mut(transmit.header_bytes);
                let room = if is_small { rest } else { &mut *self.payload };
                let copy = &mut room[..payload_bytes];
                streams.gather(id, offset, copy);
                if is_ours_to_sum {
                    transmit.complete_checksum(headers, ChecksumSum::ZERO.bytes(copy));
                }
                pieces[1] = (copy.as_ptr(), payload_bytes);
            } else {
                pieces[1..].copy_from_slice(&streams.sent(id, offset, payload_bytes));
            }
        }
        pieces[0] = (
            self.frame[VnetHeader::BYTES..].as_ptr(),
            transmit.header_bytes,
        );
        let metadata = VnetHeader::for_transmit(&transmit.offload);
        let sent = if is_small {
            device.send_behind_header(metadata, &mut self.frame[..end])
        } else {
            // SAFETY: headers and copy are ours; what the streams name stays mapped until they are
            // changed, which nothing does here.
            unsafe { device.send_raw(metadata, &pieces) }
        };
        // Otherwise the frame counts as lost on the way: the interface is down, or a queue is full.
        (pieces, sent)
    }

    /// As [`FrameTransmitter::send`], but copies the frame directly into the link's memory.
    fn send_from_memory(
        &mut self,
        socket: &mut XdpSocket,
        streams: &mut Streams,
        transmit: &mut Transmit,
    ) -> (Pieces, bool) {
        let mut pieces: Pieces = [(std::ptr::null(), 0); 1 + PARTS_MAX];
        let headers = &mut self.frame[VnetHeader::BYTES..][..transmit.header_bytes];
        pieces[0] = (headers.as_ptr(), headers.len());
        let payload_bytes = transmit.payload.map_or(0, |payload| payload.bytes as usize);
        let end = headers.len() + payload_bytes;
        // The MTU may have grown since the memory was divided.
        let room = socket.room().filter(|room| end <= room.len());
        let Some(room) = room else {
            return (pieces, false);
        };
        let (head, rest) = room.split_at_mut(headers.len());
        if let Some(payload) = transmit.payload {
            let copy = &mut rest[..payload_bytes];
            streams.gather(payload.connection, payload.offset, copy);
            if matches!(transmit.offload.checksum, ChecksumWork::Payload { .. }) {
                transmit.complete_checksum(headers, ChecksumSum::ZERO.bytes(copy));
            }
            // A capture reads it before the next frame is made.
            pieces[1] = (copy.as_ptr(), payload_bytes);
        }
        head.copy_from_slice(headers);
        socket.publish(end);
        (pieces, true)
    }
}
