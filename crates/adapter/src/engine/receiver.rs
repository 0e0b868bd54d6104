//! Frames, from the link to the engine.
//!
//! ```text
//!   usually                 headers + payload ──► a buffer of ours ──► the program's ring
//!   while a stream runs     headers ──► the buffer      payload ──► the program's ring
//! ```
//!
//! The second way is I/OAT's *split headers*: it saves the copy, and the cache space that the copy
//! would use. A packet socket shows a large frame's headers before the frame is read, so all frames
//! that continue a stream go that way. A TAP device shows nothing of a frame before it is read, so
//! the place of the payload is a guess: that the next frame continues the stream of the last one.
//! The guess is made only while large frames have just continued a stream, and only if all frames
//! are for a single program, because a wrong guess puts one program's bytes where another could see
//! them. After a wrong guess the frame is put together again and takes the slow path.
//!
//! A copy engine may make the copy of the first way (`copying`). Then the next frame is read into
//! another buffer.

use toehold_copy::Buffer;
use toehold_link::{FRAMES_TOGETHER_MAX, PacketSocket, Tap, VnetHeader, XdpSocket};
use toehold_tcp::{Expected, Headers, Instant, ReceiveOffload};

use super::device::Device;
use super::endpoint::Room;
use super::passing::Takers;
use super::settings::Checksum;

/// The largest frame of a link, with LRO.
const FRAME_BYTES_MAX: usize = 65_536 + 64;
/// The smallest frame for which a guess is made.
const FRAME_BYTES_WORTH: usize = 8_192;
/// The number of such frames in a row that must continue the stream before a guess is made.
const RUN_BEFORE_GUESSING: u32 = 3;

/// The acts that are allowed with payload before its frame has been handed to the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllowedPlacement {
    /// Put it where it belongs.
    pub(super) place: bool,
    /// Put it where it probably belongs.
    pub(super) guess: bool,
}

pub(super) struct FrameReceiver {
    /// A frame behind its metadata.
    buffer: Buffer,
    /// Number of recent large frames that continued a stream, and their headers' length.
    run: u32,
    headers: Headers,
    /// Payloads read to where they belong.
    placed: u64,
    checksum: Checksum,
}

impl Default for FrameReceiver {
    fn default() -> FrameReceiver {
        FrameReceiver {
            buffer: Buffer::new(VnetHeader::BYTES + FRAME_BYTES_MAX).expect("memory for a frame"),
            run: 0,
            headers: Headers::default(),
            placed: 0,
            checksum: Checksum::default(),
        }
    }
}

impl FrameReceiver {
    /// The division of the work with checksums.
    pub(super) fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Sets how the work with checksums is divided from now on.
    pub(super) fn set_checksum(&mut self, checksum: Checksum) {
        self.checksum = checksum;
    }

    /// Takes the link's next frame, and frames behind it in memory, up to `most`. Returns how many
    /// there were.
    #[inline]
    pub(super) fn take(
        &mut self,
        device: &mut Device,
        now: Instant,
        takers: Takers<'_>,
        (may, most): (AllowedPlacement, usize),
    ) -> usize {
        match device {
            Device::Tap(tap) => self.take_from_tap(tap, now, takers, may).into(),
            Device::Packet(socket) => {
                socket.take_turns();
                let count = match takers.take_together() {
                    true => socket.waiting_whole(most),
                    false => 0,
                };
                if count > 1 {
                    return self.take_all_from_ring(socket, now, takers, count);
                }
                self.take_from_socket(socket, now, takers, may).into()
            }
            Device::Xdp(socket) => self.take_from_memory(socket, now, takers, most),
        }
    }

    fn take_from_tap(
        &mut self,
        tap: &Tap,
        now: Instant,
        mut takers: Takers<'_>,
        may: AllowedPlacement,
    ) -> bool {
        let expected = takers.engine.expected(self.headers);
        let guess = expected.filter(|_| may.place && may.guess && self.is_run());
        let room = guess.and_then(|expected| Some((expected, takers.streams.room(expected)?)));
        let received = match room {
            None => tap.receive_behind_header(&mut self.buffer),
            Some((_, room)) => {
                let parts = self.parts(self.headers, room);
                // SAFETY: the buffer is ours; a ring's room is mapped and ours to write. No
                // reference to either lives.
                unsafe { tap.receive_raw(&parts) }
            }
        };
        // An error because the interface is down is ignored: the remotes will send again.
        let Ok(Some((length, header))) = received else {
            return false;
        };
        let offload = self.checksum.believed(header);
        if self.hand_over(now, &mut takers, (length, offload), room) {
            return true;
        }
        if length >= FRAME_BYTES_WORTH {
            self.note_large(length, &takers, expected);
        }
        true
    }

    #[inline]
    fn take_from_socket(
        &mut self,
        socket: &mut PacketSocket,
        now: Instant,
        mut takers: Takers<'_>,
        may: AllowedPlacement,
    ) -> bool {
        let Some(arrival) = socket.peek() else {
            return false;
        };
        let (header, length) = (arrival.header, arrival.length);
        let offload = self.checksum.believed(header);
        if length <= arrival.bytes.len() {
            takers.take(now, arrival.bytes, offload);
            socket.release();
            return true;
        }
        if !arrival.is_kept {
            // The kernel had no memory for it.
            socket.release_lost();
            return true;
        }
        let expected = may
            .place
            .then(|| takers.engine.place_of(arrival.bytes, length, offload))
            .flatten();
        let room = expected.and_then(|expected| Some((expected, takers.streams.room(expected)?)));
        let parts = match room {
            None => self.parts(Headers::V4, [(std::ptr::null_mut(), 0); 2]),
            Some((expected, room)) => self.parts(expected.headers, room),
        };
        // SAFETY: the buffer is ours; a ring's room is mapped and ours to write. No reference to
        // either lives.
        if unsafe { socket.receive_raw(&parts) } == Some(length) {
            self.hand_over(now, &mut takers, (length, offload), room);
        }
        true
    }

    /// Passes a frame to the engine. Its payload may be in `room`, where it is expected. True when
    /// the guess was right.
    fn hand_over(
        &mut self,
        now: Instant,
        takers: &mut Takers<'_>,
        (length, offload): (usize, ReceiveOffload),
        room: Option<(Expected, [Room; 2])>,
    ) -> bool {
        let is_longer = |(expected, _): &(Expected, _)| length > expected.headers.bytes();
        if let Some((expected, room)) = room.filter(is_longer) {
            let headers_bytes = expected.headers.bytes();
            let payload_bytes = length - headers_bytes;
            let fits = payload_bytes <= room[0].1 + room[1].1;
            let headers = &self.buffer[VnetHeader::BYTES..][..headers_bytes];
            let engine = &mut takers.engine;
            if fits && engine.handle_placed(now, headers, payload_bytes, offload, expected) {
                takers.streams.note_placed(expected, payload_bytes);
                self.placed += 1;
                return true;
            }
            self.put_together(expected.headers, room, length);
        }
        takers.streams.copying.offer_buffer();
        let frame = &self.buffer[VnetHeader::BYTES..][..length];
        takers.take(now, frame, offload);
        takers.streams.copying.take_buffer_back(&mut self.buffer);
        false
    }

    /// Whether large frames have been continuing a stream, so that it is worth guessing that the
    /// next does.
    #[inline]
    pub(super) fn is_run(&self) -> bool {
        self.run >= RUN_BEFORE_GUESSING
    }

    /// The number of payloads that were read to where they belong.
    pub(super) fn placed(&self) -> u64 {
        self.placed
    }

    fn frame(&mut self) -> &mut [u8] {
        &mut self.buffer[VnetHeader::BYTES..]
    }

    /// A large frame was read to the buffer, without a guess: records whether it continued the
    /// stream whose next byte was `expected`.
    fn note_large(&mut self, length: usize, takers: &Takers<'_>, expected: Option<Expected>) {
        let Some(headers) = Headers::of(self.frame()) else {
            return self.run = 0;
        };
        let after = takers.engine.expected(headers);
        let continues = headers == self.headers && continues(expected, length, after);
        self.run = if continues { self.run + 1 } else { 0 };
        self.headers = headers;
    }

    /// The places for the next frame: for its headers, for its payload, and for bytes beyond the
    /// expected ones.
    fn parts(&mut self, headers: Headers, [first, second]: [Room; 2]) -> [Room; 4] {
        let (headers, rest) = self.frame().split_at_mut(headers.bytes());
        let whole = |part: &mut [u8]| (part.as_mut_ptr(), part.len());
        [whole(headers), first, second, whole(rest)]
    }

    /// After a wrong guess: copies the frame's payload back to the buffer, in front of the bytes
    /// that did not fit.
    fn put_together(&mut self, headers: Headers, room: [Room; 2], length: usize) {
        let payload = &mut self.frame()[headers.bytes()..length];
        let inside = payload.len().min(room[0].1 + room[1].1);
        payload.copy_within(..payload.len() - inside, inside);
        let (first, second) = payload[..inside].split_at_mut(inside.min(room[0].1));
        for (part, (base, _)) in [first, second].into_iter().zip(room) {
            // SAFETY: the ring is mapped for at least as long as `part`, which is ours.
            unsafe { toehold_copy::from_shared(base, part.as_mut_ptr(), part.len()) };
        }
    }

    /// Passes frames to the engine in place, in ring slots that are ours until they are released.
    /// Returns how many.
    fn take_all_from_ring(
        &self,
        socket: &mut PacketSocket,
        now: Instant,
        mut takers: Takers<'_>,
        count: usize,
    ) -> usize {
        let checksum = self.checksum;
        let frames = socket
            .oldest(count)
            .map(|arrival| (arrival.bytes, checksum.believed(arrival.header)));
        let taken = takers.take_all(now, (frames, count));
        (0..taken).for_each(|_| socket.release());
        taken
    }

    /// Passes frames to the engine in place, in memory that is ours until it is released. Returns
    /// how many.
    #[inline]
    fn take_from_memory(
        &self,
        socket: &mut XdpSocket,
        now: Instant,
        mut takers: Takers<'_>,
        most: usize,
    ) -> usize {
        let checksum = self.checksum;
        let Some((header, frame)) = socket.peek() else {
            return 0;
        };
        if !takers.take_together() {
            takers.take(now, frame, checksum.believed(header));
            socket.release();
            return 1;
        }
        let count = socket.waiting(most.min(FRAMES_TOGETHER_MAX));
        let frames = socket.oldest(count);
        let frames = frames.map(|(header, frame)| (frame, checksum.believed(header)));
        let taken = takers.take_all(now, (frames, count));
        (0..taken).for_each(|_| socket.release());
        taken
    }
}

/// Whether a frame of that length was all payload that continued a stream.
fn continues(before: Option<Expected>, length: usize, after: Option<Expected>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            let payload_bytes = (length - after.headers.bytes()) as u64;
            before.connection == after.connection && before.offset + payload_bytes == after.offset
        }
        _ => false,
    }
}

const _: () = assert!(FRAME_BYTES_WORTH > Headers::V6.bytes());

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the parts in order, as a read into them does.
    fn scatter(frame: &[u8], parts: &[Room]) {
        let mut rest = frame;
        for &(base, len) in parts {
            let (part, after) = rest.split_at(len.min(rest.len()));
            // SAFETY: each part is memory of the test's, of that length.
            unsafe { toehold_copy::to_shared(part.as_ptr(), base, part.len()) };
            rest = after;
        }
    }

    #[test]
    fn frame_that_was_guessed_wrong_is_put_together() {
        let mut receiver = FrameReceiver::default();
        let frame: Vec<u8> = (0..30_000u32).map(|at| (at % 251) as u8).collect();
        let mut ring = vec![0u8; 1 << 16];
        let lengths = [87, 200, 900, 5_000, 29_999, 30_000];
        for (first, second) in [(0, 0), (1, 0), (5_000, 0), (100, 700), (20_000, 40_000)] {
            let base = ring.as_mut_ptr();
            let room = [(base, first), (base.wrapping_add(first), second)];
            for (headers, length) in lengths
                .map(|length| [(Headers::V4, length), (Headers::V6, length)])
                .concat()
            {
                let parts = receiver.parts(headers, room);
                scatter(&frame[..length], &parts);
                receiver.put_together(headers, room, length);
                let is_whole = receiver.frame()[..length] == frame[..length];
                assert!(is_whole, "{length} bytes, room for {first} and {second}");
            }
        }
    }
}
