//! Words that another process can write, and the one way to their values.
//!
//! A [`Word32`] or [`Word64`] lies in memory that a peer maps, or another process of the family,
//! which may belong to another user by now. A load gives an [`Untrusted`] value, about which
//! nothing is known; even a second load may give another value. The value can be compared. It
//! becomes a plain number only through a check:
//!
//! | check | for |
//! |---|---|
//! | [`at_most`](Untrusted::at_most), [`within`](Untrusted::within) | capacities, counts, indices |
//! | [`ahead_of`](Untrusted::ahead_of) | positions: how far one is ahead of another |
//! | [`one_of`](Untrusted::one_of), [`parsed`](Untrusted::parsed) | modes, states, wake words |
//! | [`capped`](Untrusted::capped), `masked` | replaced by a valid value |
//! | [`is`](Untrusted::is), [`has`](Untrusted::has) | states and flags |
//!
//! Each check compiles to its comparison alone.

use core::ops::RangeInclusive;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A value that another process wrote.
///
/// ```compile_fail
/// # use toehold_channel::untrusted::Untrusted;
/// let length = Untrusted::from(7u32);
/// let byte = [0u8; 8][length as usize];
/// ```
///
/// ```
/// # use toehold_channel::untrusted::Untrusted;
/// let length = Untrusted::from(7u32);
/// assert_eq!(length.at_most(7), Some(7));
/// assert_eq!(length.at_most(6), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Untrusted<T>(T);

impl<T> From<T> for Untrusted<T> {
    #[inline(always)]
    fn from(value: T) -> Untrusted<T> {
        Untrusted(value)
    }
}

impl<T: Copy + PartialOrd> Untrusted<T> {
    /// The value, when it is not more than `most`.
    #[inline(always)]
    pub fn at_most(self, most: T) -> Option<T> {
        (self.0 <= most).then_some(self.0)
    }

    /// The value, when it is in `range`.
    #[inline(always)]
    pub fn within(self, range: RangeInclusive<T>) -> Option<T> {
        range.contains(&self.0).then_some(self.0)
    }

    /// The value, when it is one of `allowed`.
    #[inline(always)]
    pub fn one_of<const N: usize>(self, allowed: [T; N]) -> Option<T> {
        allowed.contains(&self.0).then_some(self.0)
    }

    /// The meaning that `parse` finds in the value, if the value has one.
    #[inline(always)]
    pub fn parsed<U>(self, parse: impl FnOnce(T) -> Option<U>) -> Option<U> {
        parse(self.0)
    }

    /// The value, or `most` when it is more.
    #[inline(always)]
    pub fn capped(self, most: T) -> T {
        if self.0 <= most { self.0 } else { most }
    }

    /// Whether it is `value`.
    #[inline(always)]
    pub fn is(self, value: T) -> bool {
        self.0 == value
    }

    /// The value for display, or to be sent back to its writer. Never use it as an index, a length
    /// or an address.
    #[inline(always)]
    pub fn shown(self) -> T {
        self.0
    }
}

macro_rules! number {
    ($number:ty, $word:ident, $atomic:ident, $doc:literal) => {
        impl Untrusted<$number> {
            /// The distance by which it is ahead of `position`, when that is not more than `most`.
            /// Positions wrap.
            #[inline(always)]
            pub fn ahead_of(
                self,
                position: impl Into<Untrusted<$number>>,
                most: $number,
            ) -> Option<$number> {
                Untrusted(self.0.wrapping_sub(position.into().0)).at_most(most)
            }

            /// The distance by which it is beyond `position`; `None` when it is not beyond.
            #[inline(always)]
            pub fn beyond(self, position: Untrusted<$number>) -> Option<$number> {
                (self > position).then(|| self.0 - position.0)
            }

            /// The position `len` further on. It is as untrusted as this one.
            #[inline(always)]
            #[must_use]
            pub fn plus(self, len: $number) -> Untrusted<$number> {
                Untrusted(self.0.wrapping_add(len))
            }

            /// Its lower bits: a place in a table or ring of `mask + 1` places, a power of two.
            #[inline(always)]
            pub fn masked(self, mask: $number) -> $number {
                self.0 & mask
            }

            /// Whether one of `bits` is set.
            #[inline(always)]
            pub fn has(self, bits: $number) -> bool {
                self.0 & bits != 0
            }
        }

        impl PartialEq<$number> for Untrusted<$number> {
            #[inline(always)]
            fn eq(&self, value: &$number) -> bool {
                self.is(*value)
            }
        }

        #[doc = $doc]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $word($atomic);

        impl $word {
            /// A word in our own memory, with an initial value.
            pub fn new(value: $number) -> $word {
                $word($atomic::new(value))
            }

            /// The word's value now.
            #[inline(always)]
            pub fn load(&self, ordering: Ordering) -> Untrusted<$number> {
                Untrusted(self.0.load(ordering))
            }

            /// The word's value, for the one process that maps the memory.
            #[inline(always)]
            pub fn own(&self) -> $number {
                self.0.load(Ordering::Relaxed)
            }

            /// Stores `value`.
            #[inline(always)]
            pub fn store(&self, value: impl Into<Untrusted<$number>>, ordering: Ordering) {
                #[cfg(loom)]
                crate::sync::kill::step();
                self.0.store(value.into().0, ordering);
            }

            /// Stores `value` and returns the former value.
            #[inline(always)]
            pub fn swap(
                &self,
                value: impl Into<Untrusted<$number>>,
                ordering: Ordering,
            ) -> Untrusted<$number> {
                #[cfg(loom)]
                crate::sync::kill::step();
                Untrusted(self.0.swap(value.into().0, ordering))
            }

            /// Stores `new` if the word is `current`.
            ///
            /// # Errors
            /// The word's value, when it is not `current`.
            #[inline(always)]
            pub fn compare_exchange(
                &self,
                current: $number,
                new: $number,
                success: Ordering,
                failure: Ordering,
            ) -> Result<(), Untrusted<$number>> {
                #[cfg(loom)]
                crate::sync::kill::step();
                let exchanged = self.0.compare_exchange(current, new, success, failure);
                exchanged.map(drop).map_err(Untrusted)
            }

            /// Adds `value` and returns the former value.
            #[inline(always)]
            pub fn fetch_add(&self, value: $number, ordering: Ordering) -> Untrusted<$number> {
                #[cfg(loom)]
                crate::sync::kill::step();
                Untrusted(self.0.fetch_add(value, ordering))
            }

            /// Sets `bits` and returns the former value.
            #[inline(always)]
            pub fn fetch_or(&self, bits: $number, ordering: Ordering) -> Untrusted<$number> {
                #[cfg(loom)]
                crate::sync::kill::step();
                Untrusted(self.0.fetch_or(bits, ordering))
            }

            /// Stores `value` if that is more, and returns the former value.
            #[inline(always)]
            pub fn fetch_max(&self, value: $number, ordering: Ordering) -> Untrusted<$number> {
                #[cfg(loom)]
                crate::sync::kill::step();
                Untrusted(self.0.fetch_max(value, ordering))
            }
        }
    };
}

number!(
    u32,
    Word32,
    AtomicU32,
    "Four bytes that another process can write."
);
number!(
    u64,
    Word64,
    AtomicU64,
    "Eight bytes that another process can write."
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn checks_let_no_other_value_out(value: u64, other: u64, most: u64) {
            let word = Untrusted::from(value);
            prop_assert!(word.at_most(most).is_none_or(|value| value <= most));
            prop_assert!(word.within(other..=most).is_none_or(|v| v >= other && v <= most));
            prop_assert!(word.ahead_of(other, most).is_none_or(|len| len <= most));
            prop_assert!(word.one_of([other, most]).is_none_or(|v| v == other || v == most));
            prop_assert!(word.capped(most) <= most);
            prop_assert!(word.masked(most) <= most);
        }

        #[test]
        fn checks_let_the_right_value_out(value: u32, len in 0u32..1 << 22) {
            let word = Untrusted::from(value);
            prop_assert_eq!(word.at_most(value), Some(value));
            prop_assert_eq!(word.within(value..=value), Some(value));
            prop_assert_eq!(word.one_of([value]), Some(value));
            prop_assert_eq!(word.plus(len).ahead_of(word, len), Some(len));
            prop_assert!(word.is(value) && word.shown() == value);
        }
    }
}
