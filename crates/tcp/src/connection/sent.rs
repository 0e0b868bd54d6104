//! Data sent and not yet acknowledged: one record for each transmission, in sequence
//! order.
//!
//! The payload is not here: it stays in the host's ring, and is read again for a retransmission. A
//! record is split when the remote acknowledges a part of it. The three sums below tell the send
//! path the bytes in flight without a look at any record.
//!
//! ```text
//!   snd_una                                             snd_nxt
//!   | sacked |  lost  | retransmitted |  outstanding  |
//!   in flight = (snd_nxt - snd_una) - sacked_bytes - lost_bytes        (pipe, RFC 6675 section 4)
//! ```
//!
//! The remote decides how many records there are, and to which of them an acknowledgement refers.
//! So no acknowledgement may walk over all of them: a walk ends at the first record that still has
//! to wait, and visits no record that was judged before.

use std::collections::VecDeque;

use crate::position::{Position, Span};
use crate::time::{Duration, Instant};

mod repair;

use repair::{Repairs, repairs};

/// The most records of a connection: with tiny segments this is the limit, not the window.
pub(crate) const RECORDS_MAX: usize = 16_384;
/// From this many records on, no SACK block splits one. A remote that reports single bytes must not
/// make us keep and move a record for each (Linux's CVE-2019-11478). A split moves at most half of
/// the records, 24 KB.
const SPLIT_RECORDS_MAX: usize = RECORDS_MAX / 8;
/// A record of a burst grows no longer than this, so that a loss timer that looks at records has
/// several to look at.
const BURST_BYTES_MAX: u32 = 1 << 20;
/// A connection with nothing in flight keeps no more capacity than this.
const IDLE_CAPACITY: usize = 16;
/// The largest capacity that an idle connection keeps.
const CAPACITY_KEPT: usize = 4 * IDLE_CAPACITY;

/// The remote has reported it by SACK (RFC 2018).
const SACKED: u8 = 1;
/// Deduced to be lost, and not retransmitted since.
const LOST: u8 = 2;
/// Sent more than once.
const RETRANSMITTED: u8 = 4;
/// A path probe: a segment of another size, which shares its record with no other segment.
const ALONE: u8 = 8;

/// One transmission.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) start: Position,
    //= RFC 8985#4
    //# For each data segment sent, the sender MUST store its most recent transmission time with a
    //# timestamp whose granularity is finer than 1/4 of the minimum RTT of the connection.
    pub(crate) sent_at: Instant,
    /// Length in sequence space, a SYN or FIN included.
    pub(crate) length: u32,
    flags: u8,
    /// For a sacked record: at least this many records after it are sacked as well, so a walk may
    /// skip them.
    run: u16,
}

impl Sent {
    pub(crate) fn end(&self) -> Position {
        self.start + u64::from(self.length)
    }

    pub(crate) fn is_retransmitted(&self) -> bool {
        self.flags & RETRANSMITTED != 0
    }

    /// In flight as far as we know; `again` selects records that were retransmitted, or those that
    /// were not.
    fn is_out(&self, again: bool) -> bool {
        let expected = if again { RETRANSMITTED } else { 0 };
        self.flags & (RETRANSMITTED | SACKED | LOST) == expected
    }

    /// In flight since it was retransmitted at `sent_at`.
    fn is_out_again(&self, sent_at: Instant) -> bool {
        self.is_out(true) && self.sent_at == sent_at
    }

    /// RFC 8985 section 6.2, RACK_sent_after: sent later, or sent at the same time with a larger
    /// end.
    fn is_after(&self, sent_at: Instant, end: Position) -> bool {
        (self.sent_at, self.end()) > (sent_at, end)
    }
}

/// The bytes that an acknowledgement newly reports as arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Bytes acknowledged or selectively acknowledged for the first time.
    pub(crate) bytes: u64,
    /// Those of `bytes` that were selectively acknowledged.
    pub(crate) sacked_bytes: u64,
    /// Those of `bytes` that were deduced to be lost, acknowledged, and not retransmitted since.
    pub(crate) mistaken_bytes: u64,
    /// When the oldest record that was sent only once was sent. `None` also when the
    /// acknowledgement number covers a retransmitted record: the other records may have arrived
    /// long before, and waited for that one (Linux, `tcp_clean_rtx_queue`:
    /// `FLAG_RETRANS_DATA_ACKED`).
    pub(crate) oldest_sent_at: Option<Instant>,
    /// The one of these records that was sent last.
    pub(crate) newest: Option<Sent>,
    /// The furthest end among records sent only once, for the detection of reordering.
    pub(crate) lowest_original: Option<Position>,
    pub(crate) furthest: Position,
}

impl Delivered {
    fn note(&mut self, record: &Sent) {
        self.count(record);
        if self
            .newest
            .is_none_or(|newest| record.is_after(newest.sent_at, newest.end()))
        {
            self.newest = Some(*record);
        }
    }

    /// Counts a record, except for its time of sending.
    fn count(&mut self, record: &Sent) {
        self.bytes += u64::from(record.length);
        self.furthest = self.furthest.max(record.end());
        if !record.is_retransmitted() {
            let oldest = self.oldest_sent_at.get_or_insert(record.sent_at);
            *oldest = (*oldest).min(record.sent_at);
            let lowest = self.lowest_original.get_or_insert(record.end());
            *lowest = (*lowest).min(record.end());
        }
    }
}

/// For records acknowledged in order: when the newest was sent, and how long after the oldest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InOrder {
    pub(crate) newest_sent_at: Instant,
    pub(crate) spread: Duration,
}

/// The records, and their sums.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    /// Invariant: in sequence order, without gaps, from snd_una to `newest`, or to snd_nxt if that
    /// is empty.
    earlier: VecDeque<Sent>,
    /// The last record, stored here for the fast paths: often it is the only one, and then the heap
    /// is not touched. A length of zero means that all records are in `earlier`.
    newest: Sent,
    /// Sum of the lengths of sacked records.
    pub(crate) sacked_bytes: u32,
    /// Sum of the lengths of records that are lost and not retransmitted.
    pub(crate) lost_bytes: u32,
    /// Present once something was out of order.
    repairs: Option<Box<Repairs>>,
    /// Counts records that were looked at or moved.
    #[cfg(test)]
    steps: usize,
}

impl Scoreboard {
    /// Whether one more record may be added.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.earlier.len() < RECORDS_MAX
    }

    /// Moves all records into `earlier`.
    fn gather(&mut self) -> &mut VecDeque<Sent> {
        if self.newest.length > 0 {
            self.earlier.push_back(self.newest);
            self.newest.length = 0;
        }
        &mut self.earlier
    }

    fn iter(&self) -> impl Iterator<Item = &Sent> {
        let newest = (self.newest.length > 0).then_some(&self.newest);
        self.earlier.iter().chain(newest)
    }

    /// Records the first transmission of a probe for the path's MTU.
    pub(crate) fn push_alone(&mut self, start: Position, length: u32, now: Instant) {
        self.gather().push_back(Sent {
            start,
            sent_at: now,
            length,
            flags: ALONE,
            run: 0,
        });
    }

    /// Whether all lost records lie in `span` and were sent once.
    pub(crate) fn is_only_loss(&self, span: Span) -> bool {
        let mut lost = self.iter().filter(|record| record.flags & LOST != 0);
        self.lost_bytes > 0
            && lost.all(|record| {
                let is_inside = span.start <= record.start && record.end() <= span.end;
                is_inside && !record.is_retransmitted()
            })
    }

    /// Records a first transmission. A burst is one record, because segments sent at once mostly
    /// share their fate. An acknowledgement or a SACK block splits it where they do not.
    #[inline(always)]
    pub(crate) fn push(&mut self, start: Position, length: u32, now: Instant) {
        if self.newest.length > 0 || !self.earlier.is_empty() {
            return self.push_behind(start, length, now);
        }
        self.newest = Sent {
            start,
            sent_at: now,
            length,
            flags: 0,
            run: 0,
        };
    }

    /// [`Self::push`] when there are records.
    #[inline(never)]
    fn push_behind(&mut self, start: Position, length: u32, now: Instant) {
        if self.newest.length == 0 {
            self.newest = self.earlier.pop_back().expect("one of the two is there");
        }
        debug_assert!(self.newest.end() == start, "gap");
        let is_same = self.newest.sent_at == now && self.newest.flags == 0;
        if is_same && self.newest.length < BURST_BYTES_MAX {
            self.newest.length += length;
            return;
        }
        self.earlier.push_back(self.newest);
        self.newest = Sent {
            start,
            sent_at: now,
            length,
            flags: 0,
            run: 0,
        };
    }

    /// Adds another part to the burst that was recorded last. False when the part needs a record of
    /// its own.
    #[inline(always)]
    pub(crate) fn extend(&mut self, length: u32) -> bool {
        debug_assert!(self.newest.length > 0);
        let may_grow = self.newest.length < BURST_BYTES_MAX;
        if may_grow {
            self.newest.length += length;
        }
        may_grow
    }

    /// Whether an in-order acknowledgement of new data needs only the simple steps.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.sacked_bytes | self.lost_bytes == 0
    }

    /// Removes all data before `una`, if none of it was retransmitted or reported out of order:
    /// returns when its oldest and newest part were sent. In any other case changes nothing and
    /// returns `None`.
    #[inline(always)]
    pub(crate) fn acknowledge_plainly(&mut self, una: Position) -> Option<InOrder> {
        let of_only = self.acknowledge_only(una);
        of_only.or_else(|| self.acknowledge_earlier(una))
    }

    /// [`Self::acknowledge_plainly`] when there is one record.
    #[inline(always)]
    pub(crate) fn acknowledge_only(&mut self, una: Position) -> Option<InOrder> {
        let only = &mut self.newest;
        if only.flags != 0 || !self.earlier.is_empty() {
            return None;
        }
        // The record ends at SND.NXT, and `una` is not beyond that.
        debug_assert!(only.length > 0 && una <= only.end());
        only.length -= una.after(only.start) as u32;
        only.start = una;
        Some(InOrder {
            newest_sent_at: only.sent_at,
            spread: Duration::ZERO,
        })
    }

    /// [`Self::acknowledge_plainly`] when there are several records.
    #[inline(never)]
    pub(crate) fn acknowledge_earlier(&mut self, una: Position) -> Option<InOrder> {
        let first = self.earlier.front_mut()?;
        let (end, sent_at) = (first.end(), first.sent_at);
        if first.flags != 0 || una > end {
            return self.acknowledge_several(una);
        }
        // The most frequent case: `una` lies in the first record, or at its end.
        first.length = end.after(una) as u32;
        first.start = una;
        if una == end {
            self.earlier.pop_front();
            self.shrink_if_empty();
        }
        Some(InOrder {
            newest_sent_at: sent_at,
            spread: Duration::ZERO,
        })
    }

    fn acknowledge_several(&mut self, una: Position) -> Option<InOrder> {
        let oldest_sent_at = self.oldest_sent_at()?;
        let mut newest_sent_at = oldest_sent_at;
        // A first walk only checks, so that nothing has changed if the simple case does not apply.
        let mut whole = 0;
        for record in self.iter() {
            if record.start >= una {
                break;
            }
            if record.flags != 0 {
                return None;
            }
            newest_sent_at = record.sent_at;
            whole += usize::from(record.end() <= una);
        }
        if whole > self.earlier.len() {
            self.earlier.clear();
            self.newest.length = 0;
        } else {
            self.earlier.drain(..whole);
            let first = self.earlier.front_mut().unwrap_or(&mut self.newest);
            if first.length > 0 && first.start < una {
                first.length -= (una - first.start) as u32;
                first.start = una;
            }
        }
        self.shrink_if_empty();
        Some(InOrder {
            newest_sent_at,
            spread: newest_sent_at.since(oldest_sent_at),
        })
    }

    /// Removes all data before `una`. By the echoed timestamp, the segment that the remote answers
    /// was sent no later than `answered` ([`Instant::NEVER`]: not known). A retransmission that was
    /// sent later had not arrived yet, so its time tells nothing (RFC 8985 section 6.2 step 2,
    /// condition 1).
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        una: Position,
        mut answered: Instant,
        delivered: &mut Delivered,
    ) {
        self.gather();
        let mut has_repair = false;
        while let Some(front) = self.earlier.front_mut() {
            if front.start >= una {
                break;
            }
            let mut covered = *front;
            let is_whole = covered.end() <= una;
            if !is_whole {
                covered.length = (una - covered.start) as u32;
                front.start = una;
                front.length -= covered.length;
                if covered.flags & LOST != 0 {
                    repairs(&mut self.repairs).lost.insert(una);
                }
            }
            if covered.flags & SACKED != 0 {
                self.sacked_bytes -= covered.length;
            } else {
                if covered.flags & LOST != 0 {
                    self.lost_bytes -= covered.length;
                    delivered.mistaken_bytes += u64::from(covered.length);
                }
                has_repair |= covered.is_retransmitted();
                // The echo belongs to the segment that arrived at the former acknowledgement number
                // (RFC 7323 section 4.3), and says nothing about data beyond that segment.
                if covered.is_retransmitted() && covered.sent_at > answered {
                    delivered.count(&covered);
                } else {
                    delivered.note(&covered);
                }
            }
            answered = Instant::NEVER;
            if !is_whole {
                break;
            }
            self.earlier.pop_front();
        }
        if has_repair {
            delivered.oldest_sent_at = None;
        }
        self.forget_repaired(una);
        self.shrink_if_empty();
    }

    #[inline(always)]
    fn shrink_if_empty(&mut self) {
        if self.earlier.is_empty() && self.earlier.capacity() > CAPACITY_KEPT {
            self.shrink();
        }
    }

    #[cold]
    fn shrink(&mut self) {
        // Releasing all memory at once would allocate again once per window. Releasing an eighth at
        // a time shrinks an idle connection enough, and a busy one is never empty.
        let target = (self.earlier.capacity() / 8 * 7).max(IDLE_CAPACITY);
        self.earlier.shrink_to(target);
    }

    /// Marks the records that a SACK block reports. If a split would make one record too many,
    /// marks only records that lie in the block entirely.
    pub(crate) fn sack(&mut self, block: Span, delivered: &mut Delivered) {
        let mut index = self
            .gather()
            .partition_point(|record| record.end() <= block.start);
        if let Some(record) = self.earlier.get(index).copied()
            && record.start < block.start
            && record.flags & SACKED == 0
        {
            if self.may_split() {
                self.split(index, block.start);
            }
            index += 1;
        }
        let first = index;
        while let Some(record) = self.earlier.get(index).copied()
            && record.start < block.end
        {
            self.count_steps(1);
            if record.flags & SACKED != 0 {
                index += usize::from(record.run) + 1;
                continue;
            }
            if record.end() > block.end {
                if !self.may_split() {
                    break;
                }
                self.split(index, block.end);
            }
            let record = &mut self.earlier[index];
            if record.flags & LOST != 0 {
                self.lost_bytes -= record.length;
            }
            record.flags = record.flags & !LOST | SACKED;
            self.sacked_bytes += record.length;
            delivered.sacked_bytes += u64::from(record.length);
            delivered.note(record);
            index += 1;
        }
        self.join(first, index);
    }

    /// All records from `first` up to `end` are sacked: notes that, so that the next walk skips
    /// them.
    fn join(&mut self, first: usize, end: usize) {
        let mut index = first;
        while index < end {
            let record = &mut self.earlier[index];
            let next = index + usize::from(record.run) + 1;
            record.run = (end - 1 - index).min(usize::from(u16::MAX)) as u16;
            index = next;
            self.count_steps(1);
        }
    }

    fn may_split(&self) -> bool {
        self.earlier.len() < SPLIT_RECORDS_MAX
    }

    /// Cuts the record at `index` in two.
    fn split(&mut self, index: usize, at: Position) {
        let record = &mut self.earlier[index];
        let mut tail = *record;
        record.length = (at - record.start) as u32;
        tail.start = at;
        tail.length -= record.length;
        tail.run = 0;
        self.earlier.insert(index + 1, tail);
        self.count_steps(index.min(self.earlier.len() - index));
        if tail.flags & LOST != 0 {
            repairs(&mut self.repairs).lost.insert(at);
        } else if tail.is_retransmitted() {
            let again = &mut repairs(&mut self.repairs).again;
            let place = again.partition_point(|(sent_at, _)| *sent_at <= tail.sent_at);
            again.insert(place, (tail.sent_at, at));
        }
    }

    #[inline(always)]
    fn count_steps(&mut self, _steps: usize) {
        #[cfg(test)]
        {
            self.steps += _steps;
        }
    }

    /// Whether the first record is lost and was not retransmitted.
    pub(crate) fn is_first_lost(&self) -> bool {
        let first = self.iter().next();
        first.is_some_and(|first| first.flags & LOST != 0)
    }

    /// Whether the first record was retransmitted.
    pub(crate) fn is_first_retransmitted(&self) -> bool {
        self.iter().next().is_some_and(Sent::is_retransmitted)
    }

    /// When the oldest record was sent.
    pub(crate) fn oldest_sent_at(&self) -> Option<Instant> {
        self.iter().next().map(|record| record.sent_at)
    }

    /// The length of the oldest record.
    pub(crate) fn oldest_bytes(&self) -> u32 {
        self.iter().next().map_or(0, |record| record.length)
    }

    /// Whether a record of at least `bytes` bytes ends at or before `end`.
    pub(crate) fn has_record_of(&self, bytes: u32, end: Position) -> bool {
        let mut records = self.iter().take_while(|record| record.end() <= end);
        records.any(|record| record.length >= bytes)
    }

    /// Retransmitted bytes that are in flight: neither acknowledged nor lost again.
    pub(crate) fn retransmitted_bytes(&self) -> u32 {
        let out = self.iter().filter(|record| record.is_out(true));
        out.map(|record| record.length).sum()
    }

    /// Checks the sums, and that there are no gaps. Returns the number of records.
    pub(crate) fn assert_invariants(&self, una: Position, nxt: Position) -> usize {
        if self.earlier.is_empty() && self.newest.length == 0 && self.repairs.is_none() {
            let sums = (self.sacked_bytes, self.lost_bytes);
            assert_eq!((una, sums), (nxt, (0, 0)), "no records, and yet bytes");
            return 0;
        }
        let (mut sacked, mut lost, mut at, mut count) = (0, 0, una, 0);
        let none = Repairs::default();
        let repairs = self.repairs.as_deref().unwrap_or(&none);
        let again = &repairs.again;
        let is_in_order = again.iter().is_sorted_by_key(|(sent_at, _)| sent_at);
        assert!(is_in_order, "sent again in another order");
        let mut run = 0;
        for record in self.iter() {
            count += 1;
            let is_sacked = record.flags & SACKED != 0;
            assert!(run == 0 || is_sacked, "a run ends too late");
            run = run.max(usize::from(record.run) + 1).saturating_sub(1);
            assert!(record.run == 0 || is_sacked, "a run of what?");
            let is_known = |record: &Sent| {
                let mut starts = repairs.lost.range(..=record.start);
                starts
                    .next_back()
                    .is_some_and(|start| *start == record.start)
            };
            assert!(
                record.flags & LOST == 0 || is_known(record),
                "lost and forgotten"
            );
            let is_awaited = |record: &Sent| {
                let first = again.partition_point(|(sent_at, _)| *sent_at < record.sent_at);
                let mut rest = again.range(first..);
                rest.any(|(_, start)| *start == record.start || record.start == una)
            };
            assert!(
                !record.is_out(true) || is_awaited(record),
                "sent again and forgotten"
            );
            assert!(
                !record.is_out(false) || record.end() > repairs.judged,
                "never judged"
            );
            assert_eq!(record.start, at, "records have a gap");
            assert!(record.length > 0, "an empty record");
            assert!(
                record.flags & (SACKED | LOST) != SACKED | LOST,
                "sacked and lost"
            );
            at = record.end();
            sacked += if record.flags & SACKED != 0 {
                record.length
            } else {
                0
            };
            lost += if record.flags & LOST != 0 {
                record.length
            } else {
                0
            };
        }
        assert_eq!(at, nxt, "records end before snd_nxt");
        assert_eq!(
            (sacked, lost),
            (self.sacked_bytes, self.lost_bytes),
            "sums disagree"
        );
        count
    }

    /// Bytes of memory held outside the connection itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        let of_repairs = |repairs: &Repairs| {
            let lost = repairs.lost.len() * size_of::<Position>();
            let again = repairs.again.capacity() * size_of::<(Instant, Position)>();
            size_of::<Repairs>() + lost + again
        };
        let repairs = self.repairs.as_deref().map_or(0, of_repairs);
        self.earlier.capacity() * size_of::<Sent>() + repairs
    }
}

const _: () = assert!(size_of::<Sent>() == 24, "a record is three words");

#[cfg(test)]
mod tests;
