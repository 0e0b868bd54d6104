//! Memory that the library maps: tables that grow, and memory shared with peers.
//!
//! - [`chunks`]: tables that grow as they are used;
//! - [`pairs`]: the ready bitmaps of two processes; [`slabs`]: the regions of eight channels;
//! - [`pieces`]: memory for one call, beyond its stack;
//! - [`mlockall`]: `mlockall(2)` beside large mappings that are mostly untouched.

pub(crate) mod chunks;
pub(crate) mod mlockall;
pub(crate) mod pairs;
pub(crate) mod pieces;
pub(crate) mod slabs;

/// Sets words of one owner to zero. A loop over an array of them takes three times as long.
macro_rules! clear {
    ($owner:ident: $($word:ident),+ $(,)?) => {
        $($owner.$word.store(0, core::sync::atomic::Ordering::Relaxed);)+
    };
}
pub(crate) use clear;
