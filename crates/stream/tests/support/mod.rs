//! Common parts of this crate's tests.

#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod carrier;
pub(crate) mod memory;
pub(crate) mod party;
#[cfg(not(loom))]
pub(crate) mod walk;

/// Under the model checker each side is one thread, so its locks are always free. This lock adds no
/// schedules.
#[cfg(loom)]
pub(crate) mod single {
    use std::cell::{Cell, RefCell, RefMut};
    use std::convert::Infallible;
    use std::ops::{Deref, DerefMut};

    /// A mutex for one thread at a time; taking it twice panics. The next owner learns whether an
    /// owner was killed.
    pub(crate) struct Lock<T> {
        value: RefCell<T>,
        is_of_the_dead: Cell<bool>,
    }

    /// A taken [`Lock`].
    pub(crate) struct Held<'a, T> {
        value: RefMut<'a, T>,
        lock: &'a Lock<T>,
    }

    impl<T> Held<'_, T> {
        /// True when the last owner was killed while it held the lock.
        pub(crate) fn is_inherited(&self) -> bool {
            self.lock.is_of_the_dead.take()
        }
    }

    impl<T> Deref for Held<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.value
        }
    }

    impl<T> DerefMut for Held<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.value
        }
    }

    impl<T> Drop for Held<'_, T> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.lock.is_of_the_dead.set(true);
            }
        }
    }

    // SAFETY: the two parties of a model use their own locks only, and loom runs one thread at a
    // time.
    unsafe impl<T: Send> Sync for Lock<T> {}

    impl<T> Lock<T> {
        /// A free lock.
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock {
                value: RefCell::new(value),
                is_of_the_dead: Cell::new(false),
            }
        }

        /// Takes the lock.
        pub(crate) fn lock(&self) -> Result<Held<'_, T>, Infallible> {
            Ok(Held {
                value: self.value.borrow_mut(),
                lock: self,
            })
        }
    }
}

/// A small generator with a seed (splitmix64): a failure is replayed by its seed.
pub(crate) struct Random(pub u64);

impl Random {
    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A length of up to `1 << bits` bytes; short ones are as likely as long ones.
    pub(crate) fn len(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        1 + self.below(1 << bits)
    }
}

/// Byte number `position` of a stream: never 0, so that a doorbell taken for data is noticed, and
/// with a period that no power of two divides.
pub(crate) fn byte_at(position: u64) -> u8 {
    (position % 251) as u8 + 1
}

/// Bytes `position..position + len` of a stream.
pub(crate) fn bytes_at(position: u64, len: usize) -> Vec<u8> {
    (position..position + len as u64).map(byte_at).collect()
}

/// Fails unless `bytes` are those of a stream at `position`.
pub(crate) fn check_bytes(position: u64, bytes: &[u8]) {
    for (at, &byte) in bytes.iter().enumerate() {
        let position = position + at as u64;
        assert_eq!(byte, byte_at(position), "byte {position} of the stream");
    }
}
