//! The path's MTU: how ICMP and black holes reduce it (RFC 1191, RFC 8201, RFC 4821 section 7.7),
//! and the search that raises it again (RFC 4821 section 7, RFC 8899 section 5).
//!
//! ```text
//!   path_mss              candidate                ceiling
//!   | works ............. | one segment of this size | what the route allows
//!             acknowledged: becomes path_mss
//!             lost, alone: becomes the ceiling; the window stays as it is
//! ```
//!
//! A probe is new data in a segment of its own, so its loss costs only a retransmission.

use super::{Conditions, Connection, Context};
use crate::position::{Position, Span};
use crate::time::{Duration, Instant};

/// RFC 8899 section 5.1.1, PMTU_RAISE_TIMER: how long after a router's report a larger MTU is tried
/// again.
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// After a suspected black hole: sooner, because most of them are outages.
const RAISE_AFTER_BLACK_HOLE: Duration = Duration::from_secs(30);
/// After this many timeouts in a row the path is suspected (RFC 4821 section 7.7); and the segment
/// size with which the connection then continues.
const BLACK_HOLE_RETRIES: u8 = 3;
const BLACK_HOLE_MSS: u16 = 1_024;
const BLACK_HOLE_MSS_MIN: u16 = 512;
/// When this many full segments' worth of bytes has arrived in smaller segments, the proof that
/// small segments pass has expired.
const PROOF_SEGMENTS_MAX: u32 = 16;
/// RFC 4821 section 7.5: the search ends when it could gain no more than this.
const GAIN_BYTES_MIN: u16 = 32;
/// RFC 4821 section 7.3: the window must hold this many probes, or a loss would cost a timeout.
const WINDOW_PROBES_MIN: u32 = 4;

/// The search for a larger MTU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathSearch {
    /// The MSS that the link or the route allows.
    route_mss: u16,
    /// Sizes above this are not tried in this search.
    ceiling: u16,
    /// When the next probe may be sent.
    probe_at: Instant,
    /// The probe in flight, and its size.
    probe: Option<(Span, u16)>,
    /// The last probe that was lost: its retransmission is no response to congestion. Empty: none.
    lost_probe: Span,
    black_hole_test: BlackHoleTest,
}

/// Distinguishes the causes of timeouts in a row: an outage stops segments of every size, a black
/// hole lets small ones pass.
///
/// ```text
///          timeouts in a row            acknowledged alone           a timeout
///   None -----------------> SmallSent ---------------> SmallPassed -----------> SmallSentAgain
///    ^                          |                           |                         |
///    +--------------------------+---------------------------+     acknowledged alone: |
///         a full segment is acknowledged: an outage                      a black hole v
/// ```
/// Positions are low bits of stream positions; sizes are MSS values, options included.
#[derive(Clone, Copy, Debug, Default)]
enum BlackHoleTest {
    #[default]
    None,
    /// The lost bytes are sent again in a segment of this size (second number). The first number is
    /// that segment's end, once it was sent.
    SmallSent(u32, u16),
    /// The small segment has arrived, and all data before this position. No full segment has
    /// arrived since.
    SmallPassed(u32, u16),
    /// A large segment has timed out since, and a small one is in flight again.
    SmallSentAgain(u32, u16),
}

/// The next size to try on a path that drops segments of `size`: a guess.
fn smaller(size: u16) -> u16 {
    (size / 2).clamp(BLACK_HOLE_MSS_MIN, BLACK_HOLE_MSS)
}

impl PathSearch {
    /// `path_mss` is smaller than `route_mss` when a router has told another connection that the
    /// path takes less than the route.
    pub(super) fn new(now: Instant, route_mss: u16, path_mss: u16) -> Self {
        Self {
            route_mss,
            ceiling: route_mss,
            probe_at: if path_mss < route_mss {
                now + RAISE_AFTER
            } else {
                Instant::NEVER
            },
            probe: None,
            lost_probe: Span::default(),
            black_hole_test: BlackHoleTest::None,
        }
    }
}

impl Connection {
    /// RFC 1191 and RFC 8201: the path takes less than assumed. Segments in flight that are too
    /// large are lost.
    pub(crate) fn narrow_path(&mut self, cx: &mut Context<'_>, path_mss: u16) {
        if path_mss >= self.path_mss {
            // A probe was too large, and a router has reported that.
            self.path.ceiling = self.path.ceiling.min(path_mss);
            return;
        }
        self.lower_path(cx, path_mss, RAISE_AFTER);
        if self.snd_una < self.snd_nxt && self.state.is_synchronized() {
            self.scoreboard.mark_larger_lost(u32::from(self.mss));
            self.scoreboard.mark_first_lost(u32::from(self.mss));
            self.conditions.set(Conditions::FORCE_RETRANSMIT);
        }
    }

    /// The MSS in our SYN: RFC 9293 section 3.7.1 and RFC 8201 section 5.3, "the MSS that a host
    /// advertises" follows from its own link, and not from the size that the path takes in the
    /// other direction.
    pub(crate) fn advertised_mss(&self) -> u16 {
        self.path.route_mss
    }

    /// The MSS of the link or route has changed.
    pub(crate) fn change_route(&mut self, cx: &mut Context<'_>, route_mss: u16) {
        let route_mss = route_mss.min(self.options.mss_max.max(super::MSS_MIN));
        self.path.route_mss = route_mss;
        self.path.ceiling = route_mss;
        // A probe that was sent before the change proves nothing about the new link, nor does its
        // loss.
        let too_large = self.path.probe.take_if(|(_, size)| *size > route_mss);
        if let Some((span, _)) = too_large {
            self.path.lost_probe = span;
        }
        if route_mss > self.path_mss {
            self.may_widen = true;
            self.path.probe_at = cx.now;
        } else {
            self.narrow_path(cx, route_mss);
        }
    }

    /// RFC 4821 section 7.7: timeouts in a row may mean that the path drops large segments. Most
    /// are outages, and "full-stop timeouts" alone do not tell the two apart. So the first segment
    /// is sent again as a small one, and nothing else changes until that has proved something.
    pub(super) fn test_for_black_hole(&mut self) {
        let una = self.snd_una.0 as u32;
        let is_due = self.retries >= BLACK_HOLE_RETRIES;
        self.path.black_hole_test = match self.path.black_hole_test {
            BlackHoleTest::SmallPassed(_, size)
                if self.scoreboard.oldest_bytes() > self.payload_of(size) =>
            {
                BlackHoleTest::SmallSentAgain(una, size)
            }
            BlackHoleTest::SmallSent(_, size) => BlackHoleTest::SmallSent(una, smaller(size)),
            BlackHoleTest::SmallSentAgain(_, size) => BlackHoleTest::SmallSentAgain(una, size),
            // The loss of another small segment disproves nothing.
            passed @ BlackHoleTest::SmallPassed(..) if !is_due => passed,
            BlackHoleTest::None if !is_due => BlackHoleTest::None,
            BlackHoleTest::None | BlackHoleTest::SmallPassed(..) => {
                BlackHoleTest::SmallSent(una, smaller(self.path_mss))
            }
        };
    }

    /// True while a small segment is in flight to test the path. No other segment follows: the
    /// acknowledgement of two would look like that of a full segment.
    pub(super) fn is_black_hole_test_in_flight(&self) -> bool {
        match self.path.black_hole_test {
            BlackHoleTest::SmallSent(end, _) | BlackHoleTest::SmallSentAgain(end, _) => {
                end.wrapping_sub(self.snd_una.0 as u32) as i32 > 0
            }
            BlackHoleTest::None | BlackHoleTest::SmallPassed(..) => false,
        }
    }

    /// The largest payload to be retransmitted now: less than a segment while the path is
    /// suspected.
    pub(super) fn retransmission_bytes_max(&mut self) -> u32 {
        let mss = u32::from(self.mss);
        let (BlackHoleTest::SmallSent(_, size) | BlackHoleTest::SmallSentAgain(_, size)) =
            self.path.black_hole_test
        else {
            return mss;
        };
        let small = self.payload_of(size).min(mss);
        if let BlackHoleTest::SmallSent(end, _) | BlackHoleTest::SmallSentAgain(end, _) =
            &mut self.path.black_hole_test
        {
            *end = (self.snd_una.0 as u32).wrapping_add(small);
        }
        small
    }

    /// Whether `ack` acknowledges a full segment, on a path that is suspected. Call this while the
    /// segments are still on the scoreboard.
    #[inline]
    pub(super) fn is_full_segment_acknowledged(&self, ack: Position) -> bool {
        !matches!(self.path.black_hole_test, BlackHoleTest::None)
            && self.scoreboard.has_record_of(u32::from(self.mss), ack)
    }

    /// Everything before `una` has arrived, in a full segment (`is_full`) or in smaller ones: draws
    /// the conclusion about the path.
    #[cold]
    fn conclude_black_hole_test(&mut self, cx: &mut Context<'_>, una: Position, is_full: bool) {
        let una = una.0 as u32;
        let is_beyond = |end: u32| una.wrapping_sub(end) as i32 > 0;
        let too_old = PROOF_SEGMENTS_MAX * u32::from(self.mss);
        self.path.black_hole_test = match self.path.black_hole_test {
            BlackHoleTest::SmallSent(end, size) if !is_beyond(end) => {
                BlackHoleTest::SmallPassed(una, size)
            }
            BlackHoleTest::SmallPassed(before, size)
                if !is_full && una.wrapping_sub(before) < too_old =>
            {
                BlackHoleTest::SmallPassed(before, size)
            }
            BlackHoleTest::SmallSentAgain(end, size) if !is_beyond(end) => {
                if size < self.path_mss {
                    self.lower_path(cx, size, RAISE_AFTER_BLACK_HOLE);
                }
                BlackHoleTest::None
            }
            _ => BlackHoleTest::None,
        };
    }

    /// The payload bytes of a segment of this size.
    fn payload_of(&self, size: u16) -> u32 {
        let is_stamped = self.conditions.has(Conditions::TIMESTAMPS);
        u32::from(size) - if is_stamped { 12 } else { 0 }
    }

    fn lower_path(&mut self, cx: &mut Context<'_>, path_mss: u16, again_after: Duration) {
        cx.counters.mtu_reductions += 1;
        self.path_mss = path_mss;
        self.update_mss();
        // The window may now be larger than an initial window of these segments.
        self.conditions.set(Conditions::WINDOW_MOVED);
        self.path.probe = None;
        self.path.ceiling = self.path.route_mss;
        self.path.probe_at = cx.now + again_after;
        self.may_widen = true;
    }

    /// The payload of a probe, if a probe is due and does no harm.
    pub(super) fn path_probe_bytes(&self, cx: &Context<'_>, usable: u64) -> Option<u64> {
        let is_due = self.may_widen && self.path.probe.is_none() && cx.now >= self.path.probe_at;
        if !is_due || !self.conditions.has(Conditions::SACK) || !self.scoreboard.is_plain() {
            return None;
        }
        if self.candidate() <= self.path_mss {
            return None; // The remote takes no more.
        }
        let is_stamped = self.conditions.has(Conditions::TIMESTAMPS);
        let bytes = u64::from(self.candidate() - if is_stamped { 12 } else { 0 });
        let has_window = u64::from(self.cwnd) >= bytes * u64::from(WINDOW_PROBES_MIN);
        (usable >= bytes && has_window).then_some(bytes)
    }

    /// The ceiling first, because most searches begin after an outage; then the middle of the
    /// range.
    fn candidate(&self) -> u16 {
        let path = &self.path;
        let size = if path.ceiling == path.route_mss {
            path.ceiling
        } else {
            self.path_mss + (path.ceiling - self.path_mss) / 2
        };
        size.min(self.remote_mss)
    }

    /// Notes that a probe is being sent.
    pub(super) fn note_path_probe(&mut self, cx: &mut Context<'_>, span: Span) {
        cx.counters.mtu_probes += 1;
        self.path.probe = Some((span, self.candidate()));
    }

    /// Lost bytes are sent again. If the probe is one of several losses, the arrival of its
    /// bytes proves nothing about its size (RFC 4821 section 7.6.4). Another probe follows when all
    /// losses are repaired.
    pub(super) fn note_repair_of_path_probe(&mut self, span: Span) {
        let is_of_probe =
            |(probe, _): &mut (Span, u16)| probe.start < span.end && span.start < probe.end;
        self.path.probe.take_if(is_of_probe);
    }

    /// Everything before `una` has arrived, so the probe may have arrived. `is_full`: the
    /// acknowledged segments include a full one.
    #[inline]
    pub(super) fn settle_path_probe(&mut self, cx: &mut Context<'_>, una: Position, is_full: bool) {
        if let Some((span, size)) = self.path.probe
            && una >= span.end
        {
            self.path.probe = None;
            self.path_mss = size;
            self.update_mss();
            self.go_on_searching(cx.now);
        }
        if !matches!(self.path.black_hole_test, BlackHoleTest::None) {
            self.conclude_black_hole_test(cx, una, is_full);
        }
    }

    /// True when the probe is the only loss. Then the probe was too large, and this is no
    /// congestion (RFC 4821 section 7.6.2): the data only has to be sent again.
    pub(super) fn lost_only_the_probe(&mut self, now: Instant) -> bool {
        let span = match self.path.probe {
            Some((span, _)) => span,
            None => self.path.lost_probe,
        };
        if span.start == span.end || !self.scoreboard.is_only_loss(span) {
            return false;
        }
        self.path.lost_probe = span;
        self.forget_path_probe(now);
        true
    }

    /// The probe was too large, or a timeout suggests that.
    pub(super) fn forget_path_probe(&mut self, now: Instant) {
        if let Some((_, size)) = self.path.probe.take() {
            self.path.ceiling = size - 1;
            self.go_on_searching(now);
        }
    }

    fn go_on_searching(&mut self, now: Instant) {
        let path = &mut self.path;
        if path.ceiling < self.path_mss + GAIN_BYTES_MIN {
            let is_whole = self.path_mss >= path.route_mss.min(self.remote_mss);
            self.may_widen = !is_whole;
            path.ceiling = path.route_mss;
            path.probe_at = now + RAISE_AFTER;
        } else if self.path_mss >= path.route_mss.min(self.remote_mss) {
            self.may_widen = false;
        } else {
            path.probe_at = now;
        }
    }
}
