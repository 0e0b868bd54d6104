//! Positions: sequence numbers that do not wrap.
//!
//! The wire carries 32 bits. Inside the engine every sequence number is a 64-bit position, so that
//! positions can be compared directly. Only the two functions here handle wrapping.
//!
//! ```text
//!   position   -1      0       1       ...   n
//!   wire       ISN     ISN+1   ISN+2         ISN+1+n       (mod 2^32)
//!   meaning    SYN     byte 0  byte 1        FIN, after n bytes
//! ```
//!
//! Positions count the bytes of the stream. They are signed, so that the SYN and any old segment up
//! to 2^31 before it have positions too. A connection stores the number of its first byte instead
//! of its initial sequence number.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A position in one direction's sequence space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position(pub(crate) i64);

impl Position {
    /// The position of the SYN.
    pub(crate) const SYN: Self = Self(-1);
    /// The position of the first byte of the stream.
    pub(crate) const FIRST_BYTE: Self = Self(0);

    /// The position of a byte of the stream.
    pub(crate) const fn of_byte(offset: u64) -> Self {
        Self(offset as i64)
    }

    /// The number of stream bytes before this position.
    pub(crate) const fn byte(self) -> u64 {
        if self.0 < 0 { 0 } else { self.0 as u64 }
    }

    /// The 32 bits of this position on the wire, in a stream whose first byte has the number
    /// `first`.
    #[inline]
    pub(crate) const fn wire(self, first: u32) -> u32 {
        first.wrapping_add(self.0 as u32)
    }

    /// The distance back to a position that is not later.
    #[inline]
    pub(crate) const fn after(self, earlier: Self) -> u64 {
        debug_assert!(earlier.0 <= self.0, "it is later");
        self.0.wrapping_sub(earlier.0) as u64
    }

    /// The position nearest to `near` whose number is `wire`.
    #[inline]
    pub(crate) const fn from_wire(wire: u32, first: u32, near: Self) -> Self {
        let distance = wire.wrapping_sub(near.wire(first)) as i32;
        Self(near.0.wrapping_add(distance as i64))
    }
}

/// Before every position of any number on the wire.
impl Default for Position {
    fn default() -> Self {
        Self(-(1 << 32))
    }
}

impl Add<u64> for Position {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add_unsigned(bytes))
    }
}

impl AddAssign<u64> for Position {
    #[inline]
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

/// The distance back to an earlier position; zero when it is not earlier.
impl Sub for Position {
    type Output = u64;
    #[inline]
    fn sub(self, earlier: Self) -> u64 {
        self.0.wrapping_sub(earlier.0).max(0) as u64
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+}", self.0)
    }
}

/// A half-open range of positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    /// The first position inside.
    pub(crate) start: Position,
    /// The first position after. Invariant: `start <= end`.
    pub(crate) end: Position,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_numbers_wrap_where_positions_do_not() {
        let isn = u32::MAX - 2;
        let first = isn + 1;
        assert_eq!(Position::SYN.wire(first), isn);
        assert_eq!(Position::of_byte(0).wire(first), u32::MAX - 1);
        assert_eq!(Position::of_byte(2).wire(first), 0);
        for offset in [0, 1, 2, 3, (1u64 << 32) - 1, 1 << 32, 1 << 40] {
            let position = Position::of_byte(offset);
            let near = position + 70_000;
            let wire = |position: Position| position.wire(first);
            assert_eq!(Position::from_wire(wire(position), first, near), position);
            assert_eq!(Position::from_wire(wire(near), first, position), near);
        }
    }

    /// Numbers at and around every place where 32 bits or their sign wrap.
    fn edges() -> impl Iterator<Item = u32> {
        let around =
            |edge: u32| (0..=4u32).map(move |step| edge.wrapping_add(step).wrapping_sub(2));
        [0, 1 << 15, 1 << 16, 1 << 31, (1 << 31) + (1 << 16)]
            .into_iter()
            .flat_map(around)
    }

    #[test]
    fn every_number_stands_for_the_nearest_position() {
        // Positions of a connection: at its beginning, and around each wrap of the numbers, up to
        // petabytes.
        let nears = [0i64, 1 << 31, 1 << 32, 3 << 31, 1 << 50].map(|near| near..=near + 2);
        for near in nears.into_iter().flatten().map(|near| Position(near - 1)) {
            for (first, distance) in edges().flat_map(|a| edges().map(move |b| (a, b))) {
                let wire = near.wire(first).wrapping_add(distance);
                let found = Position::from_wire(wire, first, near);
                assert_eq!(found.wire(first), wire);
                // RFC 1982 section 3.2: the halves before and behind; of the two numbers that are
                // opposite each other, the one before.
                let apart = found.0 - near.0;
                assert!((-(1 << 31)..1 << 31).contains(&apart), "{apart}");
                assert_eq!(apart, i64::from(distance as i32));
            }
        }
    }

    /// The number of the first byte, and a later position at which the numbers wrap for the second
    /// time: its number is 0.
    const TURN: (u32, Position) = (0x9e37_79b9, Position((2 << 32) - 0x9e37_79b9));

    /// Distances that a number on the wire can express: all that are close to one at which bits of
    /// the number change their values together, and one of every [`STRIDE`] of the others. With
    /// `TOEHOLD_ALL_NUMBERS` set, all 2^32.
    fn distances() -> impl Iterator<Item = i64> {
        let stride = match std::env::var_os("TOEHOLD_ALL_NUMBERS") {
            Some(_) => 1,
            None => STRIDE,
        };
        let turns = (0..32).flat_map(|bit| [-1 << bit, 1 << bit]);
        let close = turns.flat_map(|turn: i64| turn - 3..=turn + 3);
        let close = close.filter(|distance| ALL.contains(distance));
        ALL.step_by(stride).chain(close)
    }

    /// All distances.
    const ALL: core::ops::Range<i64> = -(1 << 31)..1 << 31;
    /// A prime, so that every bit of the distances changes between two of them.
    const STRIDE: usize = 257;

    #[test]
    fn each_number_is_found_at_its_distance() {
        let (first, near) = TURN;
        let mut wrong = 0;
        for distance in distances() {
            let found = Position::from_wire(distance as u32, first, near);
            wrong |= found.0 ^ near.0.wrapping_add(distance);
        }
        assert_eq!(wrong, 0);
    }

    #[test]
    fn each_distance_has_its_number() {
        let (first, near) = TURN;
        let mut wrong = 0;
        for distance in distances() {
            wrong |= Position(near.0.wrapping_add(distance)).wire(first) ^ distance as u32;
        }
        assert_eq!(wrong, 0);
    }

    #[test]
    fn positions_compare_as_numbers_do_within_half_of_them() {
        // Serial arithmetic (RFC 1982) on wire numbers, which positions replace.
        let is_before = |a: u32, b: u32| a != b && b.wrapping_sub(a) < 1 << 31;
        let near = Position::of_byte(1 << 40);
        for (first, a) in edges().flat_map(|first| edges().map(move |a| (first, a))) {
            let a = near.wire(first).wrapping_add(a);
            for b in edges().map(|b| near.wire(first).wrapping_add(b)) {
                let [x, y] = [a, b].map(|wire| Position::from_wire(wire, first, near));
                if x.0.abs_diff(y.0) < 1 << 31 {
                    assert_eq!(x < y, is_before(a, b), "{a} and {b}");
                    assert_eq!(x == y, a == b);
                    assert_eq!(y - x, (y.0 - x.0).max(0) as u64);
                    assert_eq!(x.min(y) + (x.max(y).after(x.min(y))), x.max(y));
                }
            }
        }
    }

    #[test]
    fn an_old_segment_has_a_position_before_the_syn() {
        let old = Position::from_wire(99, 101, Position::FIRST_BYTE);
        assert!(old < Position::SYN);
    }
}
