//! Losses and their repair: which records are lost, and which of them are sent again.

use std::collections::{BTreeSet, VecDeque};

use super::{LOST, RETRANSMITTED, SACKED, Scoreboard, Sent};
use crate::position::{Position, Span};
use crate::time::{Duration, Instant};

/// The most outdated entries that the list of retransmitted records may hold, beyond twice the
/// number of records.
const STALE_MAX: usize = 64;

/// Index of the records that are lost and of those that were retransmitted.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// All records before this position that were sent once have been judged by
    /// [`Scoreboard::detect_losses`].
    pub(super) judged: Position,
    /// The starts of lost records; may hold starts of other records too.
    pub(super) lost: BTreeSet<Position>,
    /// Times and starts of retransmitted records, in the order of time; may hold other records too.
    pub(super) again: VecDeque<(Instant, Position)>,
}

/// Not a method, so that the records can be borrowed at the same time.
pub(super) fn repairs(of: &mut Option<Box<Repairs>>) -> &mut Repairs {
    of.get_or_insert_default()
}

impl Scoreboard {
    /// RFC 8985 section 6.2 step 5, RACK_detect_loss: marks records that must be lost, by the
    /// record delivered last and the time that such a record would have taken. Returns the bytes
    /// newly lost, and the time of the next check.
    ///
    /// Records sent once are in time order, and so are retransmitted records in `again`: each walk
    /// ends at the first record that is not lost yet, and the next walk begins there.
    pub(crate) fn detect_losses(
        &mut self,
        newest_sent_at: Instant,
        newest_end: Position,
        delay: Duration,
        now: Instant,
    ) -> (u32, Instant) {
        let lost_before = self.lost_bytes;
        let mut look_again_at = Instant::NEVER;
        // Without `repairs` no record was judged: begin at the first.
        let mut judged =
            (self.repairs.as_deref()).map_or_else(Position::default, |repairs| repairs.judged);
        let mut index = self
            .gather()
            .partition_point(|record| record.end() <= judged);
        while let Some(record) = self.earlier.get(index) {
            if record.is_out(false) {
                if record.is_after(newest_sent_at, newest_end) {
                    break;
                }
                let lost_at = record.sent_at + delay;
                if lost_at > now {
                    look_again_at = lost_at;
                    break;
                }
                self.mark_lost(index);
            }
            judged = self.earlier[index].end();
            self.count_steps(1);
            index += 1;
        }
        if !self.is_plain() || self.repairs.is_some() {
            repairs(&mut self.repairs).judged = judged;
        }
        while let Some((sent_at, start)) = self.oldest_again() {
            self.count_steps(1);
            let index = self.index_of(start);
            let record = self.earlier.get(index);
            if let Some(record) = record.filter(|record| record.is_out_again(sent_at)) {
                if record.is_after(newest_sent_at, newest_end) {
                    break;
                }
                let lost_at = sent_at + delay;
                if lost_at > now {
                    look_again_at = look_again_at.min(lost_at);
                    break;
                }
                self.mark_lost(index);
            }
            repairs(&mut self.repairs).again.pop_front();
        }
        (self.lost_bytes - lost_before, look_again_at)
    }

    /// The record that was retransmitted first, and when.
    fn oldest_again(&self) -> Option<(Instant, Position)> {
        self.repairs.as_ref()?.again.front().copied()
    }

    /// The index of the record that contains `at`, or of the first one after it.
    fn index_of(&self, at: Position) -> usize {
        self.earlier.partition_point(|record| record.end() <= at)
    }

    fn mark_lost(&mut self, index: usize) {
        let record = &mut self.earlier[index];
        debug_assert!(record.flags & (SACKED | LOST) == 0);
        record.flags |= LOST;
        self.lost_bytes += record.length;
        repairs(&mut self.repairs).lost.insert(record.start);
    }

    /// Marks the first record that is not sacked as lost (RFC 6582: the segment a partial ACK asks
    /// for).
    pub(crate) fn mark_first_lost(&mut self, mss: u32) -> u32 {
        let Some(index) = self
            .gather()
            .iter()
            .position(|record| record.flags & SACKED == 0)
        else {
            return 0;
        };
        if self.earlier[index].length > mss {
            self.split(index, self.earlier[index].start + u64::from(mss));
        }
        let record = self.earlier[index];
        if record.flags & LOST != 0 {
            return 0;
        }
        self.mark_lost(index);
        record.length
    }

    /// The path dropped all segments larger than `mss`: marks them lost. A record of a burst counts
    /// as larger, because its segments were as large as the path allowed.
    pub(crate) fn mark_larger_lost(&mut self, mss: u32) {
        for index in 0..self.gather().len() {
            let record = &self.earlier[index];
            if record.length > mss && record.flags & (SACKED | LOST) == 0 {
                self.mark_lost(index);
            }
        }
    }

    /// After a retransmission timeout: the first record is lost, and so are all that were sent
    /// before `horizon` (RFC 8985 section 6.3). If the first record is sacked, the remote has
    /// discarded data that it had reported (RFC 2018 section 8): then all its reports are ignored.
    pub(crate) fn handle_timeout(&mut self, horizon: Instant) {
        let is_reneging = self
            .gather()
            .front()
            .is_some_and(|first| first.flags & SACKED != 0);
        for index in 0..self.earlier.len() {
            let record = &mut self.earlier[index];
            if is_reneging && record.flags & SACKED != 0 {
                record.flags &= !SACKED;
                record.run = 0;
                self.sacked_bytes -= record.length;
            }
            //= RFC 2018#5
            //# The data sender MUST retransmit the segment at the left edge of the window after a
            //# retransmit timeout, whether or not the SACKed bit is on for that segment.
            let is_old = index == 0 || record.sent_at <= horizon || is_reneging;
            if is_old && record.flags & (SACKED | LOST) == 0 {
                self.mark_lost(index);
            }
        }
    }

    /// After a spurious timeout or recovery: no record counts as lost any more.
    pub(crate) fn forgive(&mut self) {
        if self.lost_bytes == 0 {
            return;
        }
        for record in self.gather() {
            record.flags &= !LOST;
        }
        self.lost_bytes = 0;
        let again = self.earlier.iter().filter(|record| record.is_out(true));
        let mut again: Vec<_> = again.map(|record| (record.sent_at, record.start)).collect();
        again.sort_unstable();
        *repairs(&mut self.repairs) = Repairs {
            again: again.into(),
            ..Repairs::default()
        };
    }

    /// Takes the first lost record for retransmission, cut to at most `mss`, if the remote's
    /// window, which ends at `edge`, allows it.
    pub(crate) fn retransmit_lost(
        &mut self,
        mss: u32,
        edge: Position,
        now: Instant,
    ) -> Option<Span> {
        if self.lost_bytes == 0 {
            return None;
        }
        self.gather();
        while let Some(&start) = repairs(&mut self.repairs).lost.first() {
            self.count_steps(1);
            let index = self.index_of(start);
            let record = self.earlier.get(index);
            let is_lost = record.is_some_and(|record| record.flags & LOST != 0);
            if !is_lost {
                repairs(&mut self.repairs).lost.pop_first();
                continue;
            }
            let bytes_max = self.bytes_within(index, mss, edge)?;
            repairs(&mut self.repairs).lost.pop_first();
            self.lost_bytes -= self.retransmit(index, bytes_max, now);
            return Some(self.span(index));
        }
        unreachable!("a lost record stands among those that are lost");
    }

    /// Bytes of the record at `index` that may be sent again, at most `mss`, into a window that
    /// ends at `edge`. RFC 9293 section 3.8.6 would allow all of them (MAY-7). But a remote that
    /// has shrunk its window drops a segment that ends beyond it, and with it the acknowledgement
    /// that the segment carries. As on Linux (`__tcp_retransmit_skb`), if the window is closed the
    /// first segment is sent as a probe.
    fn bytes_within(&self, index: usize, mss: u32, edge: Position) -> Option<u32> {
        let window = edge - self.earlier[index].start;
        match window {
            0 if index > 0 => None,
            // Too many splits would make too many records to walk over.
            1.. if window < u64::from(mss) && self.may_split() => Some(window as u32),
            _ => Some(mss),
        }
    }

    /// Takes the last record for a tail loss probe, cut to at most `mss`. The record must begin
    /// within the window, which ends at `edge`, or be the only one.
    pub(crate) fn retransmit_last(
        &mut self,
        mss: u32,
        edge: Position,
        now: Instant,
    ) -> Option<Span> {
        let mut index = self.gather().len().checked_sub(1)?;
        let last = self.earlier[index];
        if last.length > mss {
            self.split(index, last.end_minus(mss));
            index += 1;
        }
        self.bytes_within(index, mss, edge)?;
        let was_lost = self.earlier[index].flags & LOST != 0;
        let length = self.retransmit(index, mss, now);
        if was_lost {
            self.lost_bytes -= length;
        }
        Some(self.span(index))
    }

    fn retransmit(&mut self, index: usize, mss: u32, now: Instant) -> u32 {
        if self.earlier[index].length > mss {
            self.split(index, self.earlier[index].start + u64::from(mss));
        }
        let record = &mut self.earlier[index];
        record.flags = record.flags & !LOST | RETRANSMITTED;
        record.sent_at = now;
        let (start, length) = (record.start, record.length);
        if repairs(&mut self.repairs).again.len() >= 2 * self.earlier.len() + STALE_MAX {
            self.forget_stale();
        }
        repairs(&mut self.repairs).again.push_back((now, start));
        length
    }

    #[cold]
    fn forget_stale(&mut self) {
        let records = &self.earlier;
        repairs(&mut self.repairs)
            .again
            .retain(|&(sent_at, start)| {
                let index = records.partition_point(|record| record.end() <= start);
                let record = records.get(index);
                record.is_some_and(|record| record.is_out_again(sent_at))
            });
        self.count_steps(self.earlier.len());
    }

    fn span(&self, index: usize) -> Span {
        let record = &self.earlier[index];
        Span {
            start: record.start,
            end: record.end(),
        }
    }

    /// Drops index entries for positions before `una`.
    pub(super) fn forget_repaired(&mut self, una: Position) {
        if self.earlier.is_empty() {
            self.repairs = None;
        }
        let Some(repairs) = &mut self.repairs else {
            return;
        };
        let lost = &mut repairs.lost;
        while lost.first().is_some_and(|start| *start < una) {
            lost.pop_first();
        }
        if self.lost_bytes == 0 {
            lost.clear();
        }
    }
}

impl Sent {
    fn end_minus(&self, bytes: u32) -> Position {
        self.start + u64::from(self.length - bytes)
    }
}
