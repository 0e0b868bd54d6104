//! A call on the carrier, as the connection counts it: see [`toehold_stream::calls`].

use core::sync::atomic::{AtomicU64, Ordering, fence};

use toehold_stream::calls::{Calls, Name, Seat};

use crate::connection::Connection;
use crate::system::sys::{self, Compared};
use crate::system::threads;

/// The mark of one call, in its stack frame.
#[derive(Default)]
pub(crate) struct Mark(AtomicU64);

/// The content of the mark of a call on connection `index`. Without the number of the connection, a
/// later call on another connection, in the frame of one that was left, would look like that one.
#[inline]
fn content(mark: u64, index: u32) -> u64 {
    /// Spreads the bits over both halves. Other code is unlikely to write these.
    const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;
    (mark ^ u64::from(index) << 32 ^ SPREAD).wrapping_mul(SPREAD)
}

impl Mark {
    #[inline]
    fn address(&self) -> u64 {
        core::ptr::from_ref(self).expose_provenance() as u64
    }

    /// Writes the mark of a call on connection `index`. Returns the call's name.
    #[inline]
    fn named(&self, index: u32) -> Name {
        let mark = self.address();
        // Relaxed: published when the call enters a place.
        self.0.store(content(mark, index), Ordering::Relaxed);
        Name {
            mark,
            thread: threads::number(),
        }
    }

    /// The call is counted out. Otherwise the mark could be taken for the one of a call that was
    /// left here before.
    #[inline]
    fn clear(&self) {
        // Release pairs with the fence in `is_gone`.
        self.0.store(0, Ordering::Release);
    }
}

/// A call that is counted. Its mark cannot move meanwhile.
pub(crate) struct Counted<'a> {
    seat: Seat<'static>,
    mark: &'a Mark,
}

impl<'a> Counted<'a> {
    /// Counts a call of one direction, `calls`, that begins. `None` when the connection has a
    /// channel, which must be used instead.
    #[inline(always)]
    pub(crate) fn begin(
        connection: &Connection,
        calls: &'static Calls,
        mark: &'a Mark,
    ) -> Option<Counted<'a>> {
        let name = mark.named(connection.index);
        let attachment = &connection.local.attachment;
        // Either `pairing::attach` sees our count, or we see its region.
        let Some(seat) = attachment.begin_host_call(calls, name) else {
            mark.clear();
            return None;
        };
        Some(Counted { seat, mark })
    }

    /// Counts a call that is not of one connection.
    #[inline]
    pub(crate) fn begin_general(calls: &'static Calls, mark: &'a Mark) -> Counted<'a> {
        let seat = calls.enter(mark.named(NO_CONNECTION));
        Counted { seat, mark }
    }

    /// Counts the call out of `calls`.
    #[inline]
    pub(crate) fn end(self, calls: &Calls) {
        calls.leave(self.seat, self.mark.address());
        self.mark.clear();
    }
}

/// True when no call on `connection` runs of those that `calls` counts.
pub(crate) fn are_over(connection: &Connection, calls: &Calls) -> bool {
    calls.are_over(|name| is_gone(connection.index, name))
}

/// As [`are_over`], of calls that are not of one connection.
pub(crate) fn are_general_over(calls: &Calls) -> bool {
    calls.are_over(|name| is_gone(NO_CONNECTION, name))
}

/// In place of the number of a connection.
const NO_CONNECTION: u32 = u32::MAX;

/// Tells of a counted call on connection `index` whether it was left, as [`Calls::are_over`] asks.
pub(crate) fn is_gone(index: u32, name: Name) -> bool {
    // The kernel compares four bytes at a time. The lower half comes first in memory.
    const _: () = assert!(cfg!(target_endian = "little"));
    let content = content(name.mark, index);
    let halves = [(0, content as u32), (4, (content >> 32) as u32)];
    let mut compared =
        (halves.into_iter()).map(|(at, half)| sys::compare(name.mark as usize + at, half));
    let is_gone = match compared.find(|compared| *compared != Compared::Equal) {
        Some(Compared::Different) => true,
        // If the thread lives, it may be the only one that may read its stack.
        Some(Compared::NoMemory) if name.thread == 0 => true,
        _ => threads::has_ended(name.thread),
    };
    // Acquire pairs with the Release store in `Mark::clear`.
    fence(Ordering::Acquire);
    is_gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are_over(connection: &Connection) -> bool {
        super::are_over(connection, &connection.local.rx_in_flight)
    }

    fn begin<'a>(connection: &Connection, mark: &'a Mark) -> Counted<'a> {
        let calls = &connection.local.rx_in_flight;
        Counted::begin(connection, calls, mark).expect("there is no region")
    }

    #[test]
    fn call_that_a_handler_leaves_by_a_jump_counts_until_its_frame_is_used_again() {
        let connection = Connection::of_a_test(-1);
        for bit in [0, 32] {
            let mark = Mark::default();
            let _left = begin(&connection, &mark);
            assert!(!are_over(&connection), "its frame is there");
            mark.0.fetch_xor(1 << bit, Ordering::Relaxed);
            assert!(are_over(&connection));
        }
    }

    #[test]
    fn call_that_was_left_is_not_taken_for_a_later_one_in_its_frame() {
        let [first, second] = [1, 2].map(|index| Connection {
            index,
            ..Connection::of_a_test(-1)
        });
        let mark = Mark::default();
        let _left = begin(&first, &mark);
        let later = begin(&second, &mark);
        assert!(are_over(&first) && !are_over(&second));
        later.end(&second.local.rx_in_flight);
        assert!(are_over(&second));
    }

    #[test]
    fn call_of_a_thread_that_is_cancelled_counts_until_the_thread_is_gone() {
        threads::find();
        if !cfg!(target_env = "gnu") {
            eprintln!("SKIPPED: the number of a thread is not known in this libc");
            return;
        }
        let connection = Connection::of_a_test(-1);
        let call = || {
            // As on the stack of an ended thread, which libc keeps.
            let _left = begin(&connection, Box::leak(Box::default()));
            assert!(!are_over(&connection), "the thread lives");
        };
        std::thread::scope(|scope| scope.spawn(call).join().expect("no panic"));
        // The kernel takes the thread off its list a moment after `join`.
        while !are_over(&connection) {
            std::thread::yield_now();
        }
    }
}
