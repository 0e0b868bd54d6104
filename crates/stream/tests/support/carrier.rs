//! A carrier as a channel sees it: bytes in order, a bound on how many wait, an end after the
//! bytes, and a way to sleep until there is a byte or the end. The lock stands for the kernel.

use std::collections::VecDeque;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex};

/// One direction of a kernel stream socket.
pub(crate) struct Carrier {
    state: Mutex<State>,
    changed: Condvar,
    room_bytes: usize,
}

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Bytes that were given since the beginning.
    given: u64,
    ended: bool,
    reset: bool,
}

impl Carrier {
    /// An empty carrier that holds at most `room_bytes`.
    pub(crate) fn new(room_bytes: usize) -> Carrier {
        Carrier {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            room_bytes,
        }
    }

    /// Takes as many of `bytes` as there is room for.
    pub(crate) fn send(&self, bytes: &[u8]) -> usize {
        let mut state = self.state.lock().unwrap();
        assert!(!state.ended, "a byte was sent after the end");
        let room = self.room_bytes.saturating_sub(state.bytes.len());
        let len = bytes.len().min(room);
        state.bytes.extend(&bytes[..len]);
        state.given += len as u64;
        self.changed.notify_all();
        drop(state);
        returns();
        len
    }

    /// Takes all of `bytes`, even without room.
    pub(crate) fn send_anyway(&self, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        assert!(!state.ended, "a byte was sent after the end");
        state.bytes.extend(bytes);
        state.given += bytes.len() as u64;
        self.changed.notify_all();
        drop(state);
        returns();
    }

    /// Ends the carrier: no more bytes will come.
    pub(crate) fn end(&self) {
        self.state.lock().unwrap().ended = true;
        self.changed.notify_all();
    }

    /// The first `len` bytes, or fewer. The bytes stay when `peek` is true.
    pub(crate) fn receive(&self, len: usize, peek: bool) -> Vec<u8> {
        let mut state = self.state.lock().unwrap();
        let len = len.min(state.bytes.len());
        if peek {
            return state.bytes.iter().take(len).copied().collect();
        }
        self.changed.notify_all();
        let bytes = state.bytes.drain(..len).collect();
        drop(state);
        returns();
        bytes
    }

    /// Bytes that were ever given, as the kernel counts them.
    #[cfg(loom)]
    pub(crate) fn given(&self) -> u64 {
        self.state.lock().unwrap().given
    }

    /// Bytes that were ever taken, as the kernel counts them.
    #[cfg(loom)]
    pub(crate) fn taken(&self) -> u64 {
        let state = self.state.lock().unwrap();
        state.given - state.bytes.len() as u64
    }

    /// Resets the carrier.
    #[cfg(loom)]
    pub(crate) fn reset(&self) {
        let mut state = self.state.lock().unwrap();
        (state.ended, state.reset) = (true, true);
        state.bytes.clear();
        self.changed.notify_all();
    }

    /// True when the carrier was reset.
    #[cfg(loom)]
    pub(crate) fn was_reset(&self) -> bool {
        self.state.lock().unwrap().reset
    }

    /// Bytes that wait (`FIONREAD`).
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().unwrap().bytes.len()
    }

    /// True when no byte waits and none will come.
    pub(crate) fn is_at_end(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.ended && state.bytes.is_empty()
    }

    /// Sleeps until a byte waits (true) or the end is reached (false): `recv(MSG_PEEK)`.
    pub(crate) fn wait_for_byte(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        while state.bytes.is_empty() && !state.ended {
            state = self.changed.wait(state).unwrap();
        }
        !state.bytes.is_empty()
    }

    /// Sleeps until there is room for a byte: `poll(POLLOUT)`.
    pub(crate) fn wait_for_room(&self) {
        let mut state = self.state.lock().unwrap();
        while state.bytes.len() >= self.room_bytes {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// The caller may be killed as its call returns.
fn returns() {
    #[cfg(loom)]
    toehold_channel::sync::kill::step();
}
