//! Ranges of bytes that have arrived beyond a gap.
//!
//! The bytes themselves are already at their place in the host's ring; this module has only their
//! ranges: sorted, disjoint, never adjacent. Their number is bounded, because the remote decides
//! how many there are. The bound grows with the window: a slow start that overflows a queue can
//! lose every second segment of a flight. If the receiver then dropped segments for want of ranges,
//! the remote would send most of the flight again.

use std::collections::VecDeque;

use crate::position::{Position, Span};

/// With as many ranges as the window has room for, a segment that would open another one is
/// dropped; the remote sends it again.
pub(crate) const RANGES_MAX: usize = 8_192;
/// A small window has room for so many ranges, however small the segments are.
const RANGES_MIN: usize = 128;
/// A larger window has room for one range in so many bytes of it: every second segment may be lost.
const BYTES_PER_RANGE: usize = 2_048;
/// Once all gaps are filled, memory for more ranges than this is given back.
const RANGES_KEPT: usize = RANGES_MIN;
/// The most blocks a SACK option holds (RFC 2018 section 3).
pub(crate) const SACK_BLOCKS_MAX: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Assembler {
    /// Invariant: sorted, and `ranges[i].end < ranges[i + 1].start`.
    ///
    /// Gaps are filled from the front, and new ranges are added at the end. A deque does both
    /// without moving the other ranges. It is boxed because few connections have any: an idle
    /// connection is 16 bytes smaller.
    #[allow(clippy::box_collection)]
    held: Option<Box<VecDeque<Span>>>,
    /// The places where segments arrived lately, the latest first (RFC 2018 section 4).
    recent: [Position; SACK_BLOCKS_MAX],
}

/// There are [`RANGES_MAX`] ranges already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyRanges;

/// The ranges of a connection without gaps.
static NONE: VecDeque<Span> = VecDeque::new();

impl Assembler {
    fn ranges(&self) -> &VecDeque<Span> {
        self.held.as_deref().unwrap_or(&NONE)
    }

    /// Whether a range can be [`inserted`](Self::insert) when the window has this size: checked
    /// before the bytes are placed.
    pub(crate) fn has_room_for(&self, span: Span, window_bytes: u32) -> bool {
        let most = window_bytes as usize / BYTES_PER_RANGE;
        self.ranges().len() < most.clamp(RANGES_MIN, RANGES_MAX) || !self.touching(span).is_empty()
    }

    /// Records a range.
    pub(crate) fn insert(&mut self, span: Span) -> Result<(), TooManyRanges> {
        debug_assert!(span.start < span.end, "an empty range says nothing");
        let touching = self.touching(span);
        let ranges = self.held.get_or_insert_default();
        if touching.is_empty() {
            if ranges.len() >= RANGES_MAX {
                return Err(TooManyRanges);
            }
            ranges.insert(touching.start, span);
        } else {
            let start = ranges[touching.start].start.min(span.start);
            let end = ranges[touching.end - 1].end.max(span.end);
            ranges[touching.start] = Span { start, end };
            ranges.drain(touching.start + 1..touching.end);
        }
        self.remember(span.start);
        Ok(())
    }

    /// The indices of ranges that overlap `span` or touch it.
    fn touching(&self, span: Span) -> core::ops::Range<usize> {
        let first = self
            .ranges()
            .partition_point(|range| range.end < span.start);
        let last = self
            .ranges()
            .partition_point(|range| range.start <= span.end);
        first..last.max(first)
    }

    /// Moves the latest arrival to the front of `recent`, dropping any other in the same range.
    fn remember(&mut self, at: Position) {
        let Some(range) = self.range_of(at) else {
            return;
        };
        let mut slot = 0;
        let mut kept = [at; SACK_BLOCKS_MAX];
        for &old in &self.recent {
            let is_distinct = !(range.start <= old && old < range.end);
            if is_distinct && slot + 1 < SACK_BLOCKS_MAX {
                slot += 1;
                kept[slot] = old;
            }
        }
        kept[slot + 1..].fill(Position::default());
        self.recent = kept;
    }

    fn range_of(&self, at: Position) -> Option<Span> {
        let after = self.ranges().partition_point(|range| range.start <= at);
        let before = after.checked_sub(1)?;
        let range = self.ranges().get(before).copied();
        range.filter(|range| at < range.end)
    }

    /// The end of the contiguous data that begins at `next`; removes the ranges that became part of
    /// it.
    pub(crate) fn advance(&mut self, mut next: Position) -> Position {
        let Some(ranges) = &mut self.held else {
            return next;
        };
        // `next` may move up to a range that used to be separate.
        while let Some(range) = ranges.front().filter(|range| range.start <= next) {
            next = next.max(range.end);
            ranges.pop_front();
        }
        if ranges.is_empty() && ranges.capacity() > RANGES_KEPT {
            self.held = None;
        }
        next
    }

    /// Bytes of memory outside `self`.
    pub(crate) fn heap_bytes(&self) -> usize {
        let held = self.held.as_deref();
        held.map_or(0, |ranges| {
            size_of_val(ranges) + ranges.capacity() * size_of::<Span>()
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges().is_empty()
    }

    /// The bytes in all ranges together.
    pub(crate) fn bytes(&self) -> u64 {
        let lengths = self.ranges().iter().map(|range| range.end - range.start);
        lengths.sum()
    }

    /// The range that contains all of `span`.
    pub(crate) fn containing(&self, span: Span) -> Option<Span> {
        self.range_of(span.start)
            .filter(|range| span.end <= range.end)
    }

    /// The first part of `span` that has arrived already.
    pub(crate) fn overlap(&self, span: Span) -> Option<Span> {
        let first = self
            .ranges()
            .partition_point(|range| range.end <= span.start);
        let range = self.ranges().get(first)?;
        (range.start < span.end).then(|| Span {
            start: range.start.max(span.start),
            end: range.end.min(span.end),
        })
    }

    //= RFC 2018#4
    //# The first SACK block (i.e., the one immediately following the kind and length fields in
    //# the option) MUST specify the contiguous block of data containing the segment which
    //# triggered this ACK, unless that segment advanced the Acknowledgment Number field in the
    //# header.
    //= RFC 2018#4
    //# The data receiver SHOULD include as many distinct SACK blocks as possible in the SACK
    //# option.
    //= RFC 2018#4
    //# The SACK option SHOULD be filled out by repeating the most recently reported SACK blocks
    //# (based on first SACK blocks in previous SACK options) that are not subsets of a SACK block
    //# already included in the SACK option being constructed.
    /// The blocks of the next SACK option: RFC 2018 section 4, "the first SACK block MUST specify
    /// the contiguous block of data containing the segment which triggered this ACK", then the
    /// most recently reported ones.
    pub(crate) fn sack_blocks(&self) -> impl Iterator<Item = Span> + '_ {
        let mut said = [Position::default(); SACK_BLOCKS_MAX];
        self.recent
            .iter()
            .enumerate()
            .filter_map(move |(index, &at)| {
                let range = self.range_of(at)?;
                said[index] = range.start;
                (!said[..index].contains(&range.start)).then_some(range)
            })
    }

    #[cfg(test)]
    fn spans(&self) -> Vec<(u64, u64)> {
        self.ranges()
            .iter()
            .map(|range| (range.start.byte(), range.end.byte()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span {
            start: Position::of_byte(start),
            end: Position::of_byte(end),
        }
    }

    #[test]
    fn agrees_with_a_bitmap() {
        let mut random = crate::Random::new(3);
        for _ in 0..200 {
            let mut assembler = Assembler::default();
            let mut bitmap = [false; 200];
            for _ in 0..60 {
                let start = random.below(190);
                let end = random.between(start + 1, (start + 12).min(200));
                assembler.insert(span(start, end)).unwrap();
                bitmap[start as usize..end as usize].fill(true);
                let mut expected = Vec::new();
                let mut at = 0;
                while at < bitmap.len() {
                    let run = bitmap[at..].iter().take_while(|&&set| set).count();
                    if run > 0 {
                        expected.push((at as u64, (at + run) as u64));
                    }
                    at += run.max(1);
                }
                assert_eq!(assembler.spans(), expected);
                let first = assembler.sack_blocks().next().unwrap();
                assert!(first.start.byte() <= start && end <= first.end.byte());
            }
            let filled = bitmap.iter().take_while(|&&set| set).count() as u64;
            assert_eq!(assembler.advance(Position::of_byte(0)).byte(), filled);
        }
    }

    //= RFC 2018#4
    //= type=test
    //# The first SACK block (i.e., the one immediately following the kind and length fields in
    //# the option) MUST specify the contiguous block of data containing the segment which
    //# triggered this ACK, unless that segment advanced the Acknowledgment Number field in the
    //# header.
    //= RFC 2018#4
    //= type=test
    //# The SACK option SHOULD be filled out by repeating the most recently reported SACK blocks
    //# (based on first SACK blocks in previous SACK options) that are not subsets of a SACK block
    //# already included in the SACK option being constructed.
    #[test]
    fn blocks_come_most_recent_first_and_once() {
        let mut assembler = Assembler::default();
        for start in [10, 30, 50, 70, 90] {
            assembler.insert(span(start, start + 5)).unwrap();
        }
        assembler.insert(span(35, 40)).unwrap();
        let blocks: Vec<_> = assembler
            .sack_blocks()
            .map(|span| (span.start.byte(), span.end.byte()))
            .collect();
        assert_eq!(blocks, [(30, 40), (90, 95), (70, 75), (50, 55)]);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut assembler = Assembler::default();
        for index in 0..RANGES_MAX as u64 {
            assembler.insert(span(index * 10, index * 10 + 5)).unwrap();
        }
        assert!(!assembler.has_room_for(span(100_005, 100_006), u32::MAX));
        assert_eq!(assembler.insert(span(100_005, 100_006)), Err(TooManyRanges));
        assert_eq!(assembler.insert(span(5, 10)), Ok(()));
    }

    /// Each range takes 16 bytes, so the ranges of a window take less than a hundredth of it.
    #[test]
    fn a_window_has_room_for_as_many_ranges_as_it_can_lose_segments() {
        let mut assembler = Assembler::default();
        for index in 0..1_024 {
            let next = span(index * 2_048, index * 2_048 + 1_024);
            assert!(assembler.has_room_for(next, 2 << 20), "{index}");
            assert_eq!(assembler.has_room_for(next, 65_535), index < 128);
            assembler.insert(next).unwrap();
        }
        assert!(!assembler.has_room_for(span(1_500, 1_600), 2 << 20));
    }

    #[test]
    fn memory_for_many_ranges_is_given_back() {
        let mut assembler = Assembler::default();
        for index in 1..1_000 {
            assembler.insert(span(index * 10, index * 10 + 5)).unwrap();
        }
        assert!(assembler.heap_bytes() >= 999 * 16);
        for index in 0..1_000 {
            assembler.advance(Position::of_byte(index * 10));
        }
        assert!(assembler.is_empty() && assembler.heap_bytes() == 0);
    }
}
