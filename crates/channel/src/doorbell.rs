//! Waking a peer that sleeps, and only then.
//!
//! A side's *wake word* tells the other side how to wake it:
//!
//! ```text
//!   sleeper                                   notifier
//!   wake := BELL (or bitmap.sleeping := 1)    publish tail (or head)
//!   fence SeqCst                              fence SeqCst (in `publish` / `consume`)
//!   look again: tail, credit, records         load wake
//!   nothing? sleep in the kernel              BELL?  set it to NONE; who set it rings
//! ```
//!
//! Because of the two fences, at least one of the two loads comes after the other side's store.
//! Either the notifier's load sees BELL, or the sleeper's second look sees the publication. So no
//! wake-up is lost, and a side that is awake costs its peer one load.
//!
//! With `BITMAP` the notifier first sets the channel's bit on the named ready bitmap, so that a
//! process awake in `epoll_wait` finds the channel when it scans the words. The notifier rings only
//! when it has changed that ready bitmap's `sleeping` from 1 to 0. The notifier sets the bit with a
//! read-modify-write (a full barrier) and then loads `sleeping`; the sleeper stores `sleeping`,
//! fences, then scans the bits. So no wake-up is lost, by the argument above.
//!
//! A doorbell is a byte on the carrier, or a write to the pair's `eventfd`, which costs a third of
//! that ([`Doorbell`]). BELL and the value of `sleeping` come in two forms, which say which one the
//! sleeper takes. A sleeper that takes the `eventfd` watches its carriers too, so the notifier may
//! always ring the carrier instead. The sleeper looks again after it has taken the event of the
//! `eventfd`, so a write for an earlier sleep costs one look and hides no later write.

use crate::layout::{READY_BITMAPS, READY_BITS, ReadyBitmap, Wake};
use crate::ring::Fault;
use crate::sync::Ordering;
use crate::untrusted::Untrusted;

/// The byte of a doorbell. A different byte in its place means that the program has written to the
/// carrier past the library.
pub const DOORBELL: u8 = 0;

/// True when all of `bytes`, which were read where doorbells should be, are doorbells.
pub fn are_doorbells(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == DOORBELL)
}

/// Every access to a wake word (`Wake::wake`), to the bits of a ready bitmap and to its `sleeping`.
/// Each side's pairs with the other side's, as drawn above: the sleeper's stores with the loads in
/// [`due`], the notifier's exchange in [`mark`] with the sleeper's scan.
pub const WAKE_SEQ_CST: Ordering = Ordering::SeqCst;

/// The wake-up that a side wants for new bytes and credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeWord {
    /// The side looks by itself: no wake-up is needed.
    None,
    /// The side sleeps, or may sleep: send one doorbell on the carrier.
    Bell,
    /// One thread of the side sleeps: ring the pair's `eventfd` once, or the carrier.
    PairBell,
    /// Set `bit` in ready bitmap `bitmap`; ring the carrier if that bitmap's owner sleeps.
    Bitmap {
        /// Ready bitmap of the sleeping side.
        bitmap: u32,
        /// The channel's slot.
        bit: u32,
    },
}

const WORD_NONE: u32 = 0;
const WORD_BELL: u32 = 1;
const WORD_PAIR_BELL: u32 = 2;
const WORD_BITMAP: u32 = 1 << 31;
const BITMAP_SHIFT: u32 = 16;
const _: () = assert!(READY_BITS <= 1 << BITMAP_SHIFT && READY_BITMAPS < 1 << 15);

impl WakeWord {
    /// Its number.
    #[inline]
    pub fn to_word(self) -> u32 {
        match self {
            WakeWord::None => WORD_NONE,
            WakeWord::Bell => WORD_BELL,
            WakeWord::PairBell => WORD_PAIR_BELL,
            WakeWord::Bitmap { bitmap, bit } => WORD_BITMAP | bitmap << BITMAP_SHIFT | bit,
        }
    }

    /// Decodes a wake word that a peer wrote.
    ///
    /// # Errors
    /// [`Fault::Wake`] when `word` encodes no wake word.
    #[inline(always)]
    pub fn from_untrusted(word: Untrusted<u32>) -> Result<WakeWord, Fault> {
        word.parsed(WakeWord::from_word).ok_or(Fault::Wake)
    }

    /// Decodes a number; `None` when it encodes no wake word.
    #[inline(always)]
    fn from_word(word: u32) -> Option<WakeWord> {
        if word == WORD_NONE {
            Some(WakeWord::None)
        } else if word & WORD_BITMAP != 0 {
            let bitmap = (word & !WORD_BITMAP) >> BITMAP_SHIFT;
            let bit = word & ((1 << BITMAP_SHIFT) - 1);
            if bitmap as usize >= READY_BITMAPS || bit as usize >= READY_BITS {
                return None;
            }
            Some(WakeWord::Bitmap { bitmap, bit })
        } else if word == WORD_BELL {
            Some(WakeWord::Bell)
        } else if word == WORD_PAIR_BELL {
            Some(WakeWord::PairBell)
        } else {
            None
        }
    }
}

/// In [`ReadyBitmap::sleeping`]: nobody sleeps.
pub const SLEEPS_NOT: u32 = 0;
/// In [`ReadyBitmap::sleeping`]: a thread sleeps until the carrier is rung.
pub const SLEEPS_ON_CARRIER: u32 = 1;
/// In [`ReadyBitmap::sleeping`]: a thread sleeps until the pair's `eventfd` or the carrier is rung.
pub const SLEEPS_ON_PAIR: u32 = 2;

/// The doorbell that wakes a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// A byte on the carrier.
    Carrier,
    /// A write to the pair's `eventfd`, or a byte on the carrier if the notifier has no such
    /// `eventfd`.
    Pair,
}

/// Decides whether the peer must be rung, and how, after bytes or credit were published to the side
/// that owns `wake`. `bitmap` finds one of that side's ready bitmaps. Consumes the request: only
/// one of several notifiers is told to ring.
///
/// # Errors
/// [`Fault::Wake`] when the word makes no sense.
#[inline(always)]
pub fn due<'b>(
    wake: &Wake,
    bitmap: impl FnOnce(u32) -> Option<&'b ReadyBitmap>,
) -> Result<Option<Doorbell>, Fault> {
    let mut word = wake.wake.load(WAKE_SEQ_CST);
    let mut changes = 0;
    while let Some((bell, doorbell)) = bell_of(word) {
        match (wake.wake).compare_exchange(bell, WORD_NONE, WAKE_SEQ_CST, WAKE_SEQ_CST) {
            Ok(_) => return Ok(Some(doorbell)),
            // Another notifier or a sleeper changed the word first. A sleeper that did so looks by
            // itself, but it may have stored a ready bitmap, whose bit still has to be set, or a
            // bell that other sleepers need, too.
            Err(instead) => word = instead,
        }
        changes += 1;
        if changes == CHANGES_MAX {
            return Ok(Some(Doorbell::Carrier));
        }
    }
    let WakeWord::Bitmap { bitmap: index, bit } = WakeWord::from_untrusted(word)? else {
        return Ok(None);
    };
    let bitmap = bitmap(index).ok_or(Fault::Wake)?;
    mark(bitmap, bit);
    let sleeping = bitmap.sleeping.load(WAKE_SEQ_CST);
    Ok(if sleeping.is(SLEEPS_ON_CARRIER) {
        wakes(bitmap, SLEEPS_ON_CARRIER).then_some(Doorbell::Carrier)
    } else if sleeping.is(SLEEPS_ON_PAIR) {
        wakes(bitmap, SLEEPS_ON_PAIR).then_some(Doorbell::Pair)
    } else {
        None
    })
}

/// A wake word that asks for a doorbell, and that doorbell.
#[inline(always)]
fn bell_of(word: Untrusted<u32>) -> Option<(u32, Doorbell)> {
    if word == WORD_BELL {
        Some((WORD_BELL, Doorbell::Carrier))
    } else if word == WORD_PAIR_BELL {
        Some((WORD_PAIR_BELL, Doorbell::Pair))
    } else {
        None
    }
}

/// A peer whose wake word has changed so often during one look gets a doorbell in any case.
const CHANGES_MAX: u32 = 4;

/// True when it is up to this notifier to ring: the sleep word is `sleeping`, and now it is not. If
/// it has changed meanwhile, another notifier rings, or the sleeper looks again after its store.
#[inline(always)]
fn wakes(bitmap: &ReadyBitmap, sleeping: u32) -> bool {
    let awake = SLEEPS_NOT;
    (bitmap.sleeping)
        .compare_exchange(sleeping, awake, WAKE_SEQ_CST, Ordering::Relaxed)
        .is_ok()
}

/// As [`due`], of a peer that takes every doorbell on its carrier.
///
/// # Errors
/// As [`due`].
#[inline(always)]
pub fn must_ring<'b>(
    wake: &Wake,
    bitmap: impl FnOnce(u32) -> Option<&'b ReadyBitmap>,
) -> Result<bool, Fault> {
    due(wake, bitmap).map(|due| due.is_some())
}

/// Sets `bit` of `bitmap`.
///
/// There is no load before the read-modify-write, because the owner clears the bits that it finds:
/// in request-response traffic the bit is almost always clear, and a load would fetch the line from
/// the other core a second time.
#[inline(always)]
pub fn mark(bitmap: &ReadyBitmap, bit: u32) {
    bitmap.bits[bit as usize / 64].fetch_or(1 << (bit % 64), WAKE_SEQ_CST);
    // `due` loads `sleeping` next. Two `SeqCst` accesses stay in order, but loom models that
    // for fences only. Pairs with the sleeper's fence, after it has stored `sleeping`.
    #[cfg(loom)]
    crate::sync::fence(Ordering::SeqCst);
}
