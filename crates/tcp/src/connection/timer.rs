//! Timers: one for loss (the nearest of four kinds), one for delayed acknowledgements, one for
//! idleness. They are deadlines in the connection. The engine keeps the earliest of them in its
//! heap and is not told when a deadline moves later, so progress costs only a store.

use super::GRANULARITY;
use super::{Conditions, Connection, Context};
use crate::config::Config;
use crate::position::Position;
use crate::state::{CloseReason, Departure, Phase, State};
use crate::time::{Duration, Instant};

/// RFC 8985 section 7.2: the longest time by which a remote may delay the acknowledgement of a
/// single segment.
const REMOTE_ACK_DELAY_MAX: Duration = Duration::from_millis(200);
/// RFC 8985 section 7.2 leaves the lower bound to the implementation: our timers are no finer.
const PROBE_AFTER_MIN: Duration = Duration::from_millis(2);

/// Unanswered retransmissions or probes before the remote is given up, if no program waits for it.
/// Linux counts the time that so many retransmissions take with the shortest timeout, which are few
/// where the timeout is longer.
const RETRIES_AFTER_DEPARTURE: u8 = 8;
/// The least time for which such a remote may keep its window closed.
const CLOSED_AFTER_DEPARTURE: Duration =
    Duration::from_millis(200 * ((1 << (RETRIES_AFTER_DEPARTURE + 1)) - 1));

/// The timer that expires at `loss_deadline`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum LossTimer {
    Idle,
    /// RFC 6298.
    Retransmit,
    /// RFC 8985 section 7. While nothing is in flight this may be set without a deadline, in
    /// preparation for the next transmission.
    TailProbe,
    /// RFC 8985 section 6.2: a record's reordering window ends.
    Reorder,
    /// RFC 9293 section 3.8.6.1: zero-window probes.
    Persist,
}

impl Connection {
    /// The earliest moment at which [`Self::handle_timeout`] has something to do.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Instant {
        let pace = if self.conditions.has(Conditions::PACED) {
            self.pace_at
        } else {
            Instant::NEVER
        };
        self.ack_deadline
            .min(self.loss_deadline)
            .min(self.idle_deadline)
            .min(pace)
    }

    /// Handles the timers that have expired.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        if self.ack_deadline <= cx.now {
            self.ack_deadline = Instant::NEVER;
            self.conditions.set(Conditions::ACK_NOW);
            self.is_told = false;
        }
        if self.pace_at <= cx.now {
            self.conditions.clear(Conditions::PACED);
        }
        if self.loss_deadline <= cx.now {
            self.handle_loss_timeout(cx);
        }
        if self.idle_deadline <= cx.now {
            self.handle_idle_timeout(cx);
        }
    }

    fn handle_loss_timeout(&mut self, cx: &mut Context<'_>) {
        let timer = core::mem::replace(&mut self.loss_timer, LossTimer::Idle);
        self.loss_deadline = Instant::NEVER;
        match timer {
            LossTimer::Idle => {}
            LossTimer::Reorder => {
                let was_open = self.phase == Phase::Open;
                self.detect_losses(cx);
                if was_open && self.phase == Phase::Recovery {
                    // RFC 6937 section 3.1 counts delivered data. Nothing was delivered, so send
                    // one segment.
                    self.cwnd = self.in_flight() + u32::from(self.mss);
                }
                self.arm_loss_timer(cx.now, cx.config);
            }
            LossTimer::TailProbe => {
                self.note_stall(cx.now);
                //= RFC 8985#7.3
                //# After attempting to send a loss probe, regardless of whether a loss probe was
                //# sent, the sender MUST re-arm the RTO timer, not the PTO timer, if the FlightSize
                //# is not zero.
                self.conditions.set(Conditions::TAIL_PROBE_DUE);
                self.arm_retransmission_timer(cx);
            }
            LossTimer::Retransmit => {
                if self.gives_up(cx) {
                    return;
                }
                if self.state.is_synchronized() {
                    self.test_for_black_hole();
                }
                self.handle_retransmission_timeout(cx);
                self.arm_retransmission_timer(cx);
            }
            LossTimer::Persist => {
                if self.gives_up(cx) {
                    return;
                }
                //= RFC 9293#3.8.6.1
                //# Probing of zero (offered) windows MUST be supported (MUST-36).
                // RFC 9293 section 3.8.6.2.1: after the override timeout, data that fits is sent;
                // if none fits, the window is probed.
                let fits = self.snd_edge > self.snd_nxt;
                self.conditions.set(if fits {
                    Conditions::FORCE_SMALL
                } else {
                    //= RFC 9293#3.8.6.1
                    //# (Section 3.8.1), and SHOULD increase exponentially the interval between
                    //# successive probes (SHLD-30).
                    Conditions::PROBE_DUE
                });
                self.rtt.back_off();
                self.arm_loss_timer(cx.now, cx.config);
            }
        }
    }

    //= RFC 9293#3.8.3
    //# The following procedure MUST be used to handle excessive retransmissions of data segments
    //# (MUST-20):
    //= RFC 9293#3.8.3
    //# SYN retransmissions MUST be handled in the general way just described for data
    //# retransmissions, including notification of the application layer.
    /// Counts a retry, and ends the connection when there were too many (RFC 9293 section 3.8.3).
    fn gives_up(&mut self, cx: &mut Context<'_>) -> bool {
        self.note_stall(cx.now);
        self.retries = self.retries.saturating_add(1);
        //= RFC 9293#3.8.3
        //# (d) An application MUST (MUST-21) be able to set the value for R2 for a particular
        //# connection.
        let user_timeout = self.options.user_timeout;
        let is_too_long = user_timeout.map(|limit| cx.now.since(self.stalled_since) >= limit);
        let is_too_many = if self.state.is_synchronized() {
            is_too_long.unwrap_or_else(|| {
                self.retries > cx.config.retries_max || self.is_given_up_early(cx)
            })
        } else {
            // Like Linux (tcp_write_timeout): the earlier of two limits.
            let most = self
                .options
                .syn_retries_max
                .map_or(cx.config.syn_retries_max, |most| most.get());
            self.retries > most || is_too_long.unwrap_or(false)
        };
        if is_too_many {
            self.close_for_silence();
        }
        is_too_many
    }

    /// Like Linux (tcp_orphan_retries): no program waits for the remote, so the remote keeps our
    /// memory for less time. If the remote answers probes and keeps its window closed, it is given
    /// up when the interval between probes cannot grow any more.
    fn is_given_up_early(&self, cx: &Context<'_>) -> bool {
        let is_long = cx.now.since(self.stalled_since) >= CLOSED_AFTER_DEPARTURE;
        let is_slowest = self.rtt.timeout(cx.config) >= cx.config.rto_max;
        let is_closed = self.snd_edge == self.snd_una && is_long && is_slowest;
        (self.retries > RETRIES_AFTER_DEPARTURE || is_closed)
            && self.departure() == Some(Departure::Certain)
    }

    /// Like Linux (tcp_write_err): if there was a soft error and the remote was not heard since,
    /// the soft error is the reason.
    fn close_for_silence(&mut self) {
        let has_no_way = self.no_route_at == self.snd_una.0 as u32;
        self.close(if has_no_way {
            self.close_reason
        } else {
            CloseReason::TimedOut
        });
    }

    //= RFC 9293#3.9.1.8
    //# There MUST be a mechanism for reporting soft TCP error conditions to the application
    //# (MUST-47).
    //= RFC 9293#3.9.2.2
    //# Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST
    //# NOT abort the connection (MUST-56)
    /// An ICMP message says that the segment at `seq` found no route to the remote. A message about
    /// a probe is ignored (tcp_v4_err requires a number in flight).
    pub(crate) fn note_no_route(&mut self, seq: Position, why: CloseReason) {
        let is_over = matches!(self.state, State::TimeWait | State::Closed);
        if self.snd_una <= seq && seq <= self.snd_nxt && !is_over {
            self.no_route_at = self.snd_una.0 as u32;
            self.close_reason = why;
        }
    }

    /// The remote is alive, although it acknowledged nothing new.
    pub(super) fn forget_no_route(&mut self) {
        self.no_route_at = (self.snd_una.0 as u32).wrapping_sub(1);
    }

    /// Whether `stalled_since` refers to the data that waits for an acknowledgement now.
    fn is_stalled(&self) -> bool {
        self.stalled_at == self.snd_una.0 as u32
    }

    /// The connection makes no progress. Answers from a remote that keeps its window closed do not
    /// end a stall. Keepalive probes before this data was sent are not among its retries: as on
    /// Linux, probes and retransmissions have a limit each (`icsk_probes_out`, `icsk_retransmits`).
    /// A connection for which perhaps no program waits gets no retries back, so that its remote
    /// cannot prolong it.
    fn note_stall(&mut self, now: Instant) {
        if !self.is_stalled() {
            self.stalled_since = self.scoreboard.oldest_sent_at().unwrap_or(now);
            self.stalled_at = self.snd_una.0 as u32;
            if self.departure() != Some(Departure::Possible) {
                self.retries = 0;
            }
        }
    }

    /// Ends the stall: later timeouts count from zero, although nothing was acknowledged.
    pub(super) fn end_stall(&mut self) {
        // A value that SND.UNA has passed and will not take again.
        self.stalled_at = (self.snd_una.0 as u32).wrapping_sub(1);
    }

    /// Limits a timer's deadline to the end of the user timeout.
    fn within_user_timeout(&self, at: Instant) -> Instant {
        match self.options.user_timeout {
            Some(limit) if self.is_stalled() => at.min(self.stalled_since + limit),
            _ => at,
        }
    }

    fn handle_idle_timeout(&mut self, cx: &mut Context<'_>) {
        self.idle_deadline = Instant::NEVER;
        match self.state {
            // RFC 9293 section 3.10.8, TIME-WAIT TIMEOUT; also a FIN-WAIT-2 for which no program
            // waits.
            State::TimeWait => self.close(CloseReason::Finished),
            State::FinWait2 if self.conditions.has(Conditions::RELEASED) => {
                self.close(CloseReason::Finished);
            }
            _ => self.keep_alive(cx),
        }
    }

    /// RFC 9293 section 3.8.4.
    fn keep_alive(&mut self, cx: &mut Context<'_>) {
        let Some(keepalive) = self.options.keepalive else {
            return;
        };
        if !self.state.is_synchronized() || self.state == State::TimeWait {
            return;
        }
        let silence = cx.now.since(self.heard_at);
        //= RFC 9293#3.8.4
        //# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or
        //# acknowledgment packets have been received for the connection within an interval
        //# (MUST-26).
        let is_outstanding = self.snd_una < self.snd_nxt;
        if is_outstanding || silence < keepalive.idle {
            // As on Linux (tcp_keepalive_timer): the retransmission timer is watching, or the
            // remote was heard in the meantime.
            let again_in = match is_outstanding {
                true => keepalive.idle,
                false => keepalive.idle - silence,
            };
            self.idle_deadline = cx.now + again_in.max(GRANULARITY);
            return;
        }
        // Like Linux (tcp_keepalive_timer): the user timeout, if set, limits the silence.
        let is_too_much = match self.options.user_timeout {
            Some(limit) => self.retries > 0 && silence >= limit,
            //= RFC 9293#3.8.4
            //# Consequently, if a keep-alive mechanism is implemented it MUST NOT interpret failure
            //# to respond to any specific probe as a dead connection (MUST-29).
            None => self.retries >= keepalive.probes_max.get(),
        };
        if is_too_much {
            self.close_for_silence();
            return;
        }
        self.retries = self.retries.saturating_add(1);
        self.conditions.set(Conditions::PROBE_DUE);
        self.idle_deadline = cx.now + keepalive.interval.max(GRANULARITY);
    }

    /// Starts watching for silence, if the host wants that.
    pub(super) fn arm_keepalive(&mut self, now: Instant) {
        self.conditions
            .put(Conditions::KEEPALIVE, self.options.keepalive.is_some());
        self.heard_at = now;
        if let Some(keepalive) = self.options.keepalive {
            self.idle_deadline = now + keepalive.idle;
        }
    }

    /// Re-arms the loss timer after progress. A pending reordering timer stays.
    pub(super) fn arm_loss_timer(&mut self, now: Instant, config: &Config) {
        if self.snd_una == self.snd_nxt {
            if self.is_waiting_for_window() {
                if self.loss_timer != LossTimer::Persist || !self.loss_deadline.is_armed() {
                    //= RFC 9293#3.8.6.1
                    //# The transmitting host SHOULD send the first zero-window probe when a zero
                    //# window has existed for the retransmission timeout period (SHLD-29)
                    self.loss_timer = LossTimer::Persist;
                    self.loss_deadline = self.within_user_timeout(now + self.rtt.timeout(config));
                }
            } else {
                self.stop_persisting();
                self.loss_timer = LossTimer::Idle;
                self.loss_deadline = Instant::NEVER;
            }
        } else if self.loss_timer != LossTimer::Reorder {
            self.arm_probe_or_retransmission(now, config, 0);
        }
    }

    /// The window has opened: stops the persist timer.
    fn stop_persisting(&mut self) {
        if self.loss_timer == LossTimer::Persist {
            self.rtt.forget_backoff();
            self.end_stall();
        }
    }

    //= RFC 8985#7.2
    //# The sender SHOULD start or restart a loss probe PTO timer after transmitting new data
    //# (that was not itself a loss probe) or upon receiving an ACK that cumulatively acknowledges
    //# new data unless it is already in fast recovery, RTO recovery, or segments have been SACKed
    //# (i.e., RACK.segs_sacked is not zero).
    /// RFC 8985 section 7.2: arms a tail loss probe where one is allowed, otherwise the timer of
    /// RFC 6298. `follows` more bytes are about to be in flight.
    fn arm_probe_or_retransmission(&mut self, now: Instant, config: &Config, follows: u64) {
        self.stop_persisting();
        let timeout = self.rtt.timeout(config);
        if self.phase == Phase::Open
            && config.tail_probes
            //= RFC 8985#4
            //# The connection MUST use selective acknowledgment (SACK) options [RFC2018], and the
            //# sender MUST keep SACK scoreboard information on a per-connection basis ("SACK
            //# scoreboard" has the same meaning here as in [RFC6675], Section 3).
            && self.conditions.has(Conditions::SACK)
            && self.scoreboard.sacked_bytes == 0
            //= RFC 8985#7.3
            //# When the PTO timer expires, the sender MUST check whether both of the following
            //# conditions are met before sending a loss probe:
            //= RFC 8985#7.3
            //# If either one of these two conditions is not met, then the sender MUST skip sending
            //# a loss probe and MUST proceed to re-arm the RTO timer, as specified at the end of
            //# this section.
            && self.rack.probe_end.is_none()
            && self.rtt.has_sample_since_probe()
            && self.state.is_synchronized()
            && let Some(smoothed) = self.rtt.smoothed()
        {
            let mut probe_after = (smoothed * 2).max(PROBE_AFTER_MIN);
            if self.snd_nxt - self.snd_una + follows <= u64::from(self.mss) {
                probe_after = probe_after + REMOTE_ACK_DELAY_MAX;
            }
            self.loss_timer = LossTimer::TailProbe;
            self.loss_deadline = now + probe_after.min(timeout);
        } else {
            self.loss_timer = LossTimer::Retransmit;
            self.loss_deadline = now + timeout;
        }
    }

    /// [`Self::arm_probe_or_retransmission`] for a connection whose current or last timer is a tail
    /// loss probe, and whose timeout was not backed off since. `flight` bytes are in flight, or
    /// about to be, in segments of `mss`.
    #[inline(always)]
    pub(super) fn arm_tail_probe(&mut self, now: Instant, config: &Config, flight: u64, mss: u64) {
        let (smoothed, timeout) = self.rtt.settled(config);
        let mut probe_after = (2 * smoothed).max(PROBE_AFTER_MIN.as_micros());
        if flight <= mss {
            probe_after += REMOTE_ACK_DELAY_MAX.as_micros();
        }
        debug_assert!(self.loss_timer == LossTimer::TailProbe);
        self.loss_deadline = now.later(Duration::from_micros(probe_after.min(timeout)));
    }

    pub(super) fn arm_retransmission_timer(&mut self, cx: &Context<'_>) {
        self.loss_timer = LossTimer::Retransmit;
        self.loss_deadline = self.within_user_timeout(cx.now + self.rtt.timeout(cx.config));
    }

    /// RFC 8985 section 6.2: RACK's own timer takes precedence while it is pending.
    pub(super) fn arm_reorder_timer(&mut self, at: Instant) {
        if at.is_armed() {
            self.loss_timer = LossTimer::Reorder;
            self.loss_deadline = at;
        } else if self.loss_timer == LossTimer::Reorder {
            self.loss_timer = LossTimer::Idle;
            self.loss_deadline = Instant::NEVER;
        }
    }

    /// After a transmission: RFC 6298 section 5.1, "if the timer is not running, start it"; RFC
    /// 8985 section 7.2, "start or restart a loss probe PTO timer after transmitting new data", of
    /// which `follows` bytes are still to leave at this moment.
    #[inline]
    pub(super) fn arm_after_sending(&mut self, now: Instant, config: &Config, follows: u64) {
        if matches!(
            self.loss_timer,
            LossTimer::Idle | LossTimer::Persist | LossTimer::TailProbe
        ) {
            self.arm_probe_or_retransmission(now, config, follows);
        }
    }
}
