//! A copy engine copies payload to the programs' rings while the TCP engine takes the next frames:
//! I/OAT's *asynchronous copy*.
//!
//! ```text
//!   a frame in a buffer ──► TCP: its bytes count as arrived
//!            │
//!            └── submitted ──► the copy engine ──► over: published, as far as nothing before it
//!                                                  is still under way; the buffer serves again
//! ```
//!
//! A buffer stays untouched until its copy is over, so the next frame is read into another one.
//! Payload below the copybreak is copied at once. So is payload when no buffer is left, which
//! limits the copies under way. Before a ring is taken away, its copies are waited for.

use std::collections::VecDeque;
use std::fmt;

use toehold_copy::{Buffer, Channel, Cookie, Operation, Waiting};
use toehold_tcp::ConnectionId;

use super::endpoint::Room;
use super::settings::CopyEngine;

/// The most copies under way, and so the most buffers that wait for them.
const UNDER_WAY_MAX: usize = 32;
/// Operations in the copy engine's queue. A copy across the end of a ring needs two.
const ENTRIES: usize = 2 * UNDER_WAY_MAX;

#[derive(Default)]
pub(super) struct Copying {
    /// Declared before the buffers, so that it is dropped first: its drop waits for the copies
    /// under way.
    engine: Option<Channel>,
    name: &'static str,
    copybreak: usize,
    /// In the order in which they were submitted.
    under_way: VecDeque<UnderWay>,
    /// Buffers that no copy needs any more.
    idle: Vec<Buffer>,
    /// The current frame is in a buffer that may be kept until a copy is over.
    may_keep: bool,
    submitted: u64,
    submitted_bytes: u64,
}

/// One payload on its way to a ring.
struct UnderWay {
    id: ConnectionId,
    /// Where in the stream it begins.
    offset: u64,
    /// Its operations: two if it crosses the end of the ring.
    cookies: [Cookie; 2],
    /// The source buffer, kept here once the frame has been handled.
    buffer: Option<Buffer>,
}

impl fmt::Debug for Copying {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Copying")
            .field("name", &self.name)
            .field("copybreak", &self.copybreak)
            .field("under_way", &self.under_way.len())
            .finish_non_exhaustive()
    }
}

impl Copying {
    /// Uses this copy engine from now on, or none. Waits for copies under way first.
    pub(super) fn set(&mut self, engine: CopyEngine, copybreak: usize) {
        self.copybreak = copybreak;
        if self.name == engine.name() {
            return;
        }
        self.finish_all();
        self.name = engine.name();
        self.engine = engine
            .is_on()
            .then(|| toehold_copy::open(Some(engine.name()), ENTRIES).channel);
        self.idle.clear();
    }

    /// Uses this channel for payload of `copybreak` bytes or more.
    #[cfg(test)]
    pub(super) fn use_channel(&mut self, channel: Channel, copybreak: usize) {
        self.engine = Some(channel);
        self.copybreak = copybreak;
    }

    /// Whether a frame's buffer may be kept if a copy from it begins.
    pub(super) fn may_begin(&self) -> bool {
        self.engine.is_some() && self.under_way.len() < UNDER_WAY_MAX
    }

    /// Says that the next frame is in a buffer that may be kept.
    pub(super) fn offer_buffer(&mut self) {
        self.may_keep = self.may_begin();
    }

    /// The frame in `buffer` was handled. If a copy from it is under way, `buffer` is replaced by
    /// another one.
    pub(super) fn take_buffer_back(&mut self, buffer: &mut Buffer) {
        self.may_keep = false;
        let waits = |one: &&mut UnderWay| one.buffer.is_none();
        let Some(begun) = self.under_way.back_mut().filter(waits) else {
            return;
        };
        let spare = self
            .idle
            .pop()
            .map_or_else(|| Buffer::new(buffer.len()), Ok);
        match spare {
            Ok(spare) => begun.buffer = Some(std::mem::replace(buffer, spare)),
            // There is no memory for another buffer, so this one must be free at once.
            Err(_) => self.finish_all(),
        }
    }

    /// Begins a copy of payload to its place, if that is worth it. False when the caller must copy
    /// it.
    ///
    /// # Safety
    /// `room` is as long as the payload, and mapped and ours to write until the copy is over, which
    /// [`Copying::finish`] waits for.
    pub(super) unsafe fn begin(
        &mut self,
        id: ConnectionId,
        offset: u64,
        payload: &[u8],
        room: [Room; 2],
    ) -> bool {
        let Some(engine) = &mut self.engine else {
            return false;
        };
        if !self.may_keep || payload.len() < self.copybreak {
            return false;
        }
        let mut from = payload.as_ptr();
        let mut cookies = [None; 2];
        for (cookie, (target, len)) in cookies.iter_mut().zip(room) {
            if len > 0 {
                // SAFETY: the payload stands in the buffer that was offered, which
                // `take_buffer_back` keeps until the copy is over; the room is the caller's
                // promise. `from` walks over the payload, which is as long as the room.
                *cookie = unsafe {
                    let submitted = engine.submit(Operation::copy(from, target, len));
                    from = from.add(len);
                    submitted.ok()
                };
                if cookie.is_none() {
                    // SAFETY: as above.
                    unsafe { toehold_copy::to_shared(from.sub(len), target, len) };
                }
            }
        }
        engine.flush();
        let (Some(first), second) = (cookies[0].or(cookies[1]), cookies[1]) else {
            // The copy engine took nothing, and the payload was copied at once.
            return true;
        };
        let cookies = [first, second.unwrap_or(first)];
        self.may_keep = false;
        self.submitted += 1;
        self.submitted_bytes += payload.len() as u64;
        self.under_way.push_back(UnderWay {
            id,
            offset,
            cookies,
            buffer: None,
        });
        true
    }

    /// The number of the `arrived` bytes of a connection's stream that are complete in its ring.
    #[inline]
    pub(super) fn copied(&self, id: ConnectionId, arrived: u64) -> u64 {
        let of_this = self.under_way.iter().filter(|one| one.id == id);
        of_this.fold(arrived, |end, one| end.min(one.offset))
    }

    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Takes completed copies and calls `each` with their connections. True when there were any.
    pub(super) fn settle(&mut self, mut each: impl FnMut(ConnectionId)) -> bool {
        let Some(engine) = &mut self.engine else {
            return false;
        };
        let before = self.under_way.len();
        engine.poll();
        let mut at = 0;
        while let Some(one) = self.under_way.get_mut(at) {
            if !(one.cookies.into_iter()).all(|cookie| engine.status(cookie).is_over()) {
                at += 1;
                continue;
            }
            each(one.id);
            self.idle.extend(one.buffer.take());
            self.under_way.remove(at);
        }
        self.under_way.len() < before
    }

    /// Waits for the copy that was submitted first.
    pub(super) fn wait(&mut self) {
        if let (Some(engine), Some(first)) = (&mut self.engine, self.under_way.front()) {
            // Without a deadline it does not time out.
            let _ = engine.wait_through(first.cookies[1], Waiting::PARK);
        }
    }

    /// Waits until no copy to a connection's ring is under way.
    pub(super) fn finish(&mut self, id: ConnectionId) {
        let last = self.under_way.iter().rev().find(|one| one.id == id);
        if let (Some(engine), Some(last)) = (&mut self.engine, last) {
            let _ = engine.wait_through(last.cookies[1], Waiting::PARK);
            // The other completed copies are reported by the next `settle`.
            let buffers = (self.under_way.iter_mut())
                .filter(|one| one.id == id)
                .filter_map(|one| one.buffer.take());
            self.idle.extend(buffers);
            self.under_way.retain(|one| one.id != id);
        }
    }

    fn finish_all(&mut self) {
        while let Some(one) = self.under_way.front() {
            let id = one.id;
            self.finish(id);
        }
    }

    /// The copy engine's name, and its copybreak in bytes, if it is used.
    pub(super) fn engine(&self) -> (&'static str, Option<usize>) {
        let copybreak = Some(self.copybreak).filter(|bytes| *bytes < usize::MAX);
        (self.name, copybreak.filter(|_| self.engine.is_some()))
    }

    /// Number of payloads and bytes that it has copied.
    pub(super) fn submitted(&self) -> (u64, u64) {
        (self.submitted, self.submitted_bytes)
    }
}
