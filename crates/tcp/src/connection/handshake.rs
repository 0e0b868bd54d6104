//! Active, passive and simultaneous open (RFC 9293 section 3.5 and 3.10.7.3), and the negotiation
//! of options by SYNs.

use super::accurate_ecn;
use super::input::Response;
use super::receive::QUICK_ACKS;
use super::recovery::{Rack, Recovery};
use super::{AccurateEcn, Conditions, Connection, Context, LossTimer, News, Prediction, Template};
use crate::config::{Config, CongestionControl, EcnMode, Options};
use crate::flow::FlowKey;
use crate::position::Position;
use crate::state::{CloseReason, Phase, State};
use crate::time::Instant;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, Segment, SynOptions, WINDOW_SCALE_MAX};

/// RFC 9293 section 3.7.1: without the option, 536 for IPv4 and 1220 for IPv6.
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1_220;

/// The engine's knowledge about a connection that is about to open.
pub(crate) struct OpenContext<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) key: FlowKey,
    pub(crate) options: Options,
    pub(crate) iss: u32,
    pub(crate) ts_offset: u32,
    /// Payload bytes, options not deducted, that the path takes.
    pub(crate) path_mss: u16,
    /// Payload bytes, options not deducted, that the route takes, whatever routers have reported
    /// about the path.
    pub(crate) route_mss: u16,
    pub(crate) generation: u32,
}

/// The offer in a remote's SYN, or in a SYN cookie that encodes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) irs: u32,
    pub(crate) window: u16,
    pub(crate) syn: SynOptions,
    /// The ECN feedback that both ends support.
    pub(crate) ecn: EcnMode,
    /// The ECN codepoint of the packet.
    pub(crate) came: Ecn,
}

impl Offer {
    /// The offer of a SYN with ECN codepoint `came`, to an end that would use `ecn`.
    pub(crate) fn of(segment: &Segment<'_>, came: Ecn, ecn: EcnMode) -> Self {
        Self {
            irs: segment.seq,
            window: segment.window,
            syn: segment.syn_options(),
            ecn: ecn.by_syn(segment.flags),
            came,
        }
    }

    /// The three ECN flags of a SYN-ACK that agrees to the offered feedback.
    pub(crate) fn agreeing_flags(&self) -> Flags {
        match self.ecn {
            EcnMode::Off => Flags::default(),
            EcnMode::Classic => Flags::ECE,
            EcnMode::Accurate => accurate_ecn::reflection(self.came),
        }
    }
}

impl Connection {
    /// An active open: a SYN is to be sent.
    pub(crate) fn connect(open: &OpenContext<'_>) -> Self {
        Self::new(open, State::SynSent)
    }

    /// A passive open: a SYN arrived, a SYN-ACK is to be sent.
    pub(crate) fn accept(open: &OpenContext<'_>, offer: &Offer) -> Self {
        let mut connection = Self::new(open, State::SynReceived);
        //= RFC 9293#3.5
        //# Note that a TCP implementation MUST keep track of whether a connection has reached
        //# SYN-RECEIVED state as the result of a passive OPEN or an active OPEN (MUST-11).
        connection.conditions.set(Conditions::PASSIVE);
        connection.news.0 |= News::UNSEEN;
        connection.negotiate(open.config, open.now, offer);
        connection
    }

    /// A passive open from a SYN cookie: the handshake is complete already.
    pub(crate) fn accept_cookie(
        open: &OpenContext<'_>,
        offer: &Offer,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
    ) -> Self {
        let mut connection = Self::accept(open, offer);
        connection.snd_nxt = Position::FIRST_BYTE;
        connection.scoreboard.push(Position::SYN, 1, cx.now);
        connection.advertise_unscaled();
        connection.last_ack_sent = connection.rcv_nxt;
        connection.finish_handshake(cx, segment, Position::FIRST_BYTE);
        connection.scoreboard.acknowledge(
            Position::FIRST_BYTE,
            Instant::NEVER,
            &mut Default::default(),
        );
        connection.snd_una = Position::FIRST_BYTE;
        connection
    }

    fn new(open: &OpenContext<'_>, state: State) -> Self {
        let options = open.options;
        let mss_max = options.mss_max.max(super::MSS_MIN);
        let (path_mss, route_mss) = (open.path_mss.min(mss_max), open.route_mss.min(mss_max));
        let mut connection = Self {
            rcv_nxt: Position::FIRST_BYTE,
            rcv_edge: Position::FIRST_BYTE,
            rcv_taken: Position::FIRST_BYTE,
            snd_una: Position::SYN,
            snd_nxt: Position::SYN,
            snd_end: Position::FIRST_BYTE,
            snd_edge: Position::FIRST_BYTE,
            asked_by: Instant::NEVER,
            conditions: first_conditions(&options),
            snd_first: open.iss.wrapping_add(1),
            rcv_first: 0,
            ts_recent: 0,
            prediction: Prediction::NONE,
            ts_offset: open.ts_offset,
            cwnd: 0,
            rcv_limit: 0,
            mss: 0,
            state,
            snd_wscale: 0,
            rcv_wscale: window_scale(open.config, options.receive_bytes_max),
            news: News::default(),
            loss_timer: LossTimer::Idle,
            generation: open.generation,
            ack_deadline: Instant::NEVER,
            loss_deadline: Instant::NEVER,
            scoreboard: Default::default(),
            assembler: Default::default(),
            rtt: super::RttEstimator::new(),
            congestion: super::Congestion::new(options.congestion, open.now, open.iss.into()),
            rack: Rack::default(),
            recovery: Recovery::default(),
            key: open.key,
            snd_wl1: Position::SYN,
            snd_window_max: 0,
            snd_small_end: Position::FIRST_BYTE,
            duplicate: crate::position::Span::default(),
            fin_at: Position::SYN,
            remote_mss: u16::MAX,
            path_mss,
            path: super::path::PathSearch::new(open.now, route_mss, path_mss),
            retries: 0,
            is_told: false,
            quick_acks: QUICK_ACKS,
            answered_at: super::half_seconds(open.now).wrapping_sub(1),
            options,
            departure: None,
            //= RFC 9768#3.1.1
            //# The TCP Client MUST NOT enter AccECN mode (or any feedback mode) before it has
            //# received the first SYN/ACK.
            accurate_ecn: None,
            is_ecn_agreed: true,
            fast_open: None,
            stalled_since: open.now,
            stalled_at: Position::SYN.0 as u32 - 1,
            no_route_at: Position::SYN.0 as u32 - 1,
            heard_at: open.now,
            ts_recent_at: super::coarse(open.now),
            phase: Phase::Open,
            may_widen: path_mss < route_mss,
            has_duplicate: false,
            tune_had_gap: false,
            last_ack_sent: Position::FIRST_BYTE,
            sent_at: open.now,
            idle_deadline: Instant::NEVER,
            pace_at: Instant::ZERO,
            tune_until: open.now,
            tune_taken: Position::FIRST_BYTE,
            tune_most: 0,
            close_reason: CloseReason::Finished,
            listener: 0,
            template: Template::empty(),
        };
        let window_max = options.receive_bytes_max.min(connection.window_max());
        connection.rcv_limit = options.receive_bytes.min(window_max);
        connection.update_mss();
        connection.cwnd = connection.initial_window();
        connection
    }

    /// The options of our SYN or SYN-ACK.
    pub(crate) fn syn_options(&self, config: &Config) -> SynOptions {
        let is_answer = self.state == State::SynReceived;
        let has = |condition| self.conditions.has(condition);
        let offers = |wanted: bool, agreed: bool| if is_answer { agreed } else { wanted };
        let timestamps = offers(config.timestamps, has(Conditions::TIMESTAMPS));
        // Negotiation leaves `rcv_wscale` at zero where the remote does not scale.
        let scales = offers(config.window_scaling, self.remote_scales());
        SynOptions {
            //= RFC 9293#3.7.1
            //# TCP implementations SHOULD send an MSS Option in every SYN segment when its receive
            //# MSS differs from the default 536 for IPv4 or 1220 for IPv6 (SHLD-5), and MAY send it
            //# always (MAY-3).
            mss: Some(self.advertised_mss()),
            //= RFC 7323#2.3
            //# The Window Scale option MUST be sent with shift.cnt = R, where R is the value that
            //# the TCP would like to use for its receive window.
            window_scale: scales.then_some(self.rcv_wscale),
            //= RFC 2018#2
            //# It MUST NOT be sent on non-SYN segments.
            sack_permitted: offers(config.sack, has(Conditions::SACK)),
            timestamps: timestamps.then_some(crate::wire::tcp::Timestamps {
                value: 0, // Filled in where the segment is written.
                echo: 0,
            }),
            fast_open: self.fast_open_option(),
        }
    }

    /// Whether the remote's SYN had a window scale option that we accepted.
    fn remote_scales(&self) -> bool {
        self.conditions.has(Conditions::SCALES)
    }

    /// Agrees on options: each is used only if both sides have it.
    fn negotiate(&mut self, config: &Config, now: Instant, offer: &Offer) {
        let syn = &offer.syn;
        self.rcv_first = offer.irs.wrapping_add(1);
        self.rcv_nxt = Position::FIRST_BYTE;
        let is_v4 = self.key.remote.is_v4();
        //= RFC 9293#3.7.1
        //# If an MSS Option is not received at connection setup, TCP implementations MUST assume a
        //# default send MSS of 536 (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
        self.remote_mss = syn.mss.unwrap_or(if is_v4 {
            MSS_DEFAULT_V4
        } else {
            MSS_DEFAULT_V6
        });
        self.conditions
            //= RFC 2018#4
            //# If the data receiver has not received a SACK-Permitted option for a given
            //# connection, it MUST NOT send SACK options on that connection.
            .put(Conditions::SACK, config.sack && syn.sack_permitted);
        self.conditions
            //= RFC 9768#3.1.2
            //# If the TCP Client has set itself into Classic ECN feedback mode it MUST then comply
            //# with [RFC3168].
            .put(Conditions::ECN, offer.ecn != EcnMode::Off);
        self.accurate_ecn = (offer.ecn == EcnMode::Accurate).then(|| {
            Box::new(match self.state {
                State::SynSent => AccurateEcn::of_client(offer.came),
                _ => AccurateEcn::of_server(offer.came),
            })
        });
        match syn.timestamps {
            Some(timestamps) if config.timestamps => {
                self.conditions.set(Conditions::TIMESTAMPS);
                self.ts_recent = timestamps.value;
                self.ts_recent_at = super::coarse(now);
            }
            _ => self.conditions.clear(Conditions::TIMESTAMPS),
        }
        match syn.window_scale {
            Some(shift) if config.window_scaling => {
                //= RFC 7323#2.3
                //# Upon receiving a <SYN> segment with a Window Scale option containing shift.cnt =
                //# S, a TCP MUST set Snd.Wind.Shift to S and MUST set Rcv.Wind.Shift to R;
                //# otherwise, it MUST set both Snd.Wind.Shift and Rcv.Wind.Shift to zero.
                self.conditions.set(Conditions::SCALES);
                self.snd_wscale = shift;
            }
            _ => {
                //= RFC 7323#2.2
                //# This option is an offer, not a promise; both sides MUST send Window Scale
                //# options in their <SYN> segments to enable window scaling in either direction.
                // RFC 7323 section 2.2: neither side scales unless both offer it.
                self.snd_wscale = 0;
                self.rcv_wscale = 0;
                self.rcv_limit = self.rcv_limit.min(u32::from(u16::MAX));
            }
        }
        // "The window field in a segment where the SYN bit is set MUST NOT be scaled."
        self.snd_edge = Position::FIRST_BYTE + u64::from(offer.window);
        self.snd_window_max = u32::from(offer.window);
        self.snd_wl1 = Position::SYN;
        self.update_mss();
    }

    /// RFC 9293 section 3.10.7.3.
    pub(super) fn handle_in_syn_sent(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        came: Ecn,
    ) -> Response {
        let flags = segment.flags;
        let ack = Position::from_wire(segment.ack, self.snd_first, self.snd_una);
        // First, check the ACK bit: SEG.ACK =< ISS or SEG.ACK > SND.NXT is refused.
        let has_ack = flags.has(Flags::ACK);
        if has_ack && (ack <= Position::SYN || ack > self.snd_nxt) {
            return if flags.has(Flags::RST) {
                Response::Done
            } else {
                Response::Refuse
            };
        }
        //= RFC 5961#3.2
        //# In all other cases the receiver MUST silently discard the segment.
        // Second, the RST bit: believed only with an acceptable ACK (RFC 5961 section 3.2).
        if flags.has(Flags::RST) {
            if has_ack {
                cx.counters.resets_received += 1;
                self.close(CloseReason::Refused);
            }
            return Response::Done;
        }
        // Fourth, the SYN bit.
        if !flags.has(Flags::SYN) {
            return Response::Done;
        }
        let mut offer = Offer::of(segment, came, self.options.ecn);
        if has_ack {
            offer.ecn = self.options.ecn.by_syn_ack(flags);
        }
        self.negotiate(cx.config, cx.now, &offer);
        self.rcv_edge = self.rcv_nxt + u64::from(self.rcv_limit.min(u32::from(u16::MAX)));
        self.last_ack_sent = self.rcv_nxt;
        if has_ack {
            if let Some(accurate) = &mut self.accurate_ecn {
                accurate.note_report_on_syn(flags);
            }
            let was_retransmitted = self.retries > 0;
            self.handle_acknowledgement(cx, segment, Position::SYN, ack);
            self.take_window_of_syn(ack, segment.window);
            self.establish(cx, was_retransmitted);
            self.settle_syn_payload();
            self.decide_pacing();
            self.conditions.set(Conditions::ACK_NOW);
        } else {
            //= RFC 9293#3.5
            //# A TCP implementation MUST support simultaneous open attempts (MUST-10).
            //= RFC 9768#3.1.2
            //# Host A MUST then enter the same feedback mode as it would have entered had it been a
            //# responding host and received the same SYN.
            //= RFC 9768#3.1.2
            //# Then host A MUST send the same SYN/ACK as it would have sent had it been a
            //# responding host.
            if let Some(accurate) = &mut self.accurate_ecn {
                **accurate = AccurateEcn::of_both(came, self.retries);
            }
            // "Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment and send it." The record of
            // our SYN becomes the record of the SYN-ACK.
            self.state = State::SynReceived;
            self.scoreboard.mark_first_lost(1);
        }
        Response::Done
    }

    /// RFC 7323 section 2.2: takes the window of a SYN without scaling, after the general path has
    /// scaled it: "the window field in a segment where the SYN bit is set MUST NOT be scaled".
    pub(super) fn take_window_of_syn(&mut self, ack: Position, window: u16) {
        self.snd_edge = ack + u64::from(window);
        self.snd_window_max = u32::from(window);
    }

    /// Our SYN-ACK is acknowledged.
    pub(super) fn finish_handshake(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        ack: Position,
    ) {
        self.snd_edge = ack + (u64::from(segment.window) << self.snd_wscale);
        self.snd_window_max = self
            .snd_window_max
            .max(u32::from(segment.window) << self.snd_wscale);
        let was_retransmitted = self.retries > 0;
        self.establish(cx, was_retransmitted);
    }

    /// Whether the round trip of the handshake is long enough for pacing.
    #[cold]
    pub(super) fn decide_pacing(&mut self) {
        let round_trip = self.rtt.smoothed().unwrap_or_default();
        let is_long = round_trip >= Options::PACED_ROUND_TRIP_MIN;
        let is_paced = self.options.pacing && is_long || self.conditions.has(Conditions::MODELLED);
        self.conditions.put(Conditions::PACING, is_paced);
    }

    fn establish(&mut self, cx: &mut Context<'_>, was_retransmitted: bool) {
        self.state = State::Established;
        self.news.0 = self.news.0 & !News::ENDING | News::CONNECTED;
        self.rtt.begin_data(was_retransmitted);
        self.phase = Phase::Open;
        self.forget_losses_of_handshake();
        self.congestion.ssthresh = u32::MAX;
        // RFC 5681 section 3.1: after a lost SYN the initial window is one segment.
        self.cwnd = if was_retransmitted {
            u32::from(self.mss)
        } else {
            self.initial_window()
        };
        self.conditions.set(Conditions::QUICK_ACK);
        self.conditions
            .clear(Conditions::CWND_LIMITED | Conditions::FORCE_RETRANSMIT);
        // The first round of window tuning begins with the first acknowledgement of data. The round
        // trip is known then, also at the passive end.
        self.tune_until = cx.now;
        self.arm_keepalive(cx.now);
        if self.conditions.has(Conditions::PASSIVE) {
            cx.counters.connections_accepted += 1;
        }
    }
}

//= RFC 7323#2.3
//# Thus, the shift count MUST be limited to 14 (which allows windows of 2^30 = 1 GiB).
/// The smallest shift that can express the largest window we may ever offer.
pub(crate) fn window_scale(config: &Config, receive_bytes_max: u32) -> u8 {
    if !config.window_scaling {
        return 0;
    }
    (0..WINDOW_SCALE_MAX)
        .find(|shift| receive_bytes_max >> shift <= u32::from(u16::MAX))
        .unwrap_or(WINDOW_SCALE_MAX)
}

/// The conditions of a connection that opens with these options.
fn first_conditions(options: &Options) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.put(Conditions::NODELAY, options.nodelay);
    let is_modelled = options.congestion == CongestionControl::Bbr;
    conditions.put(Conditions::MODELLED | Conditions::PACING, is_modelled);
    conditions
}
