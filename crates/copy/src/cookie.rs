//! The name of one submitted operation.

use core::fmt;

/// Names one operation of one [`Channel`](crate::Channel), in order of submission.
///
/// Cookies of a channel count up from one and are never reused: at a thousand million operations a
/// second, 64 bits last for five centuries. So they can be compared, and "everything up to and
/// including this one" is a single comparison with
/// [`Channel::watermark`](crate::Channel::watermark).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cookie(u64);

impl Cookie {
    /// Comes before every operation: the watermark of a channel that has completed nothing.
    pub const NONE: Cookie = Cookie(0);

    /// The cookie with this number, as [`get`](Self::get) returned it.
    #[inline]
    pub const fn new(number: u64) -> Cookie {
        Cookie(number)
    }

    /// The number of this cookie, for C, logs and tables.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn next(self) -> Cookie {
        Cookie(self.0 + 1)
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
