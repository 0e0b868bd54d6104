//! Ranges of bytes that have arrived beyond a gap.
//!
//! The bytes themselves are already at their place in the host's ring; this module has only their
//! ranges: sorted, disjoint, never adjacent. Their number is bounded, because the remote decides
//! how many there are.

use crate::position::{Position, Span};

/// With this many ranges, a segment that would open another one is dropped; the remote sends it
/// again.
pub(crate) const RANGES_MAX: usize = 128;
/// The most blocks a SACK option holds (RFC 2018 section 3).
pub(crate) const SACK_BLOCKS_MAX: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Assembler {
    /// Invariant: sorted, and `ranges[i].end < ranges[i + 1].start`.
    ranges: Vec<Span>,
    /// The places where segments arrived lately, the latest first (RFC 2018 section 4).
    recent: [Position; SACK_BLOCKS_MAX],
}

/// There are [`RANGES_MAX`] ranges already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyRanges;

impl Assembler {
    /// Whether a range can be [`inserted`](Self::insert): checked before the bytes are placed.
    pub(crate) fn has_room_for(&self, span: Span) -> bool {
        self.ranges.len() < RANGES_MAX || !self.touching(span).is_empty()
    }

    /// Records a range.
    pub(crate) fn insert(&mut self, span: Span) -> Result<(), TooManyRanges> {
        debug_assert!(span.start < span.end, "an empty range says nothing");
        let touching = self.touching(span);
        if touching.is_empty() {
            if self.ranges.len() >= RANGES_MAX {
                return Err(TooManyRanges);
            }
            self.ranges.insert(touching.start, span);
        } else {
            let start = self.ranges[touching.start].start.min(span.start);
            let end = self.ranges[touching.end - 1].end.max(span.end);
            self.ranges[touching.start] = Span { start, end };
            self.ranges.drain(touching.start + 1..touching.end);
        }
        self.remember(span.start);
        Ok(())
    }

    /// The indices of ranges that overlap `span` or touch it.
    fn touching(&self, span: Span) -> core::ops::Range<usize> {
        let first = self.ranges.partition_point(|range| range.end < span.start);
        let last = self.ranges.partition_point(|range| range.start <= span.end);
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
        let after = self.ranges.partition_point(|range| range.start <= at);
        self.ranges[..after]
            .last()
            .copied()
            .filter(|range| at < range.end)
    }

    /// The end of the contiguous data that begins at `next`; removes the ranges that became part of
    /// it.
    pub(crate) fn advance(&mut self, mut next: Position) -> Position {
        let swallowed = self.ranges.partition_point(|range| range.start <= next);
        if let Some(last) = self.ranges[..swallowed].last() {
            next = next.max(last.end);
            self.ranges.drain(..swallowed);
            // `next` may have moved up to a range that used to be separate.
            return self.advance(next);
        }
        next
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The bytes in all ranges together.
    pub(crate) fn bytes(&self) -> u64 {
        let lengths = self.ranges.iter().map(|range| range.end - range.start);
        lengths.sum()
    }

    /// The range that contains all of `span`.
    pub(crate) fn containing(&self, span: Span) -> Option<Span> {
        self.range_of(span.start)
            .filter(|range| span.end <= range.end)
    }

    /// The first part of `span` that has arrived already.
    pub(crate) fn overlap(&self, span: Span) -> Option<Span> {
        let first = self.ranges.partition_point(|range| range.end <= span.start);
        let range = self.ranges.get(first)?;
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
    fn ranges(&self) -> Vec<(u64, u64)> {
        self.ranges
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
                assert_eq!(assembler.ranges(), expected);
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
        assert!(!assembler.has_room_for(span(5_005, 5_006)));
        assert_eq!(assembler.insert(span(5_005, 5_006)), Err(TooManyRanges));
        assert_eq!(assembler.insert(span(5, 10)), Ok(()));
    }
}
