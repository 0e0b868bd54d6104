//! The engine's action on a frame, in words: from its counters and the connection, before and
//! after.

use std::fmt::Write;

use toehold_link::{PacketSummary, TcpSummary};
use toehold_tcp::{ConnectionId, ConnectionInfo, Counters, Malformed, Phase, State};

/// A frame that was taken in.
pub(super) struct Reception<'a> {
    pub(super) summary: PacketSummary,
    /// Before and after.
    pub(super) counters: [&'a Counters; 2],
    pub(super) before: Option<ConnectionInfo>,
    pub(super) after: Option<(ConnectionId, ConnectionInfo)>,
}

/// A frame that was made.
pub(super) struct Sending<'a> {
    pub(super) summary: PacketSummary,
    /// Before and after.
    pub(super) counters: [&'a Counters; 2],
    pub(super) after: Option<(ConnectionId, ConnectionInfo)>,
    /// Where in the stream its payload begins.
    pub(super) stream: Option<u64>,
    /// The size the link cuts it into; 0 when it does not.
    pub(super) segment_bytes: u16,
    pub(super) is_taken: bool,
}

type Count = fn(&Counters) -> u64;

/// The fates of a segment other than to be taken in its turn.
const FATES: [(Count, &str); 23] = [
    (|c| c.not_for_us, "dropped: not for this engine"),
    (|c| c.no_connection, "dropped: no such connection"),
    (|c| c.fragments_dropped, "dropped: no room for fragments"),
    (
        |c| c.backlog_overflows,
        "dropped: the listener's backlog is full",
    ),
    (|c| c.paws_refused, "dropped: an old timestamp (PAWS)"),
    (|c| c.beyond_window, "dropped: beyond the window"),
    (
        |c| c.host_had_no_room,
        "dropped: the program's ring has no room",
    ),
    (|c| c.too_many_gaps, "dropped: too many gaps"),
    (|c| c.duplicates_received, "duplicate: brings nothing new"),
    (|c| c.out_of_order_received, "queued out of order"),
    (
        |c| c.challenges_sent,
        "answered with a challenge ACK (RFC 5961)",
    ),
    (
        |c| c.challenges_suppressed,
        "no challenge ACK: over its rate limit",
    ),
    (
        |c| c.refusals_suppressed,
        "not refused: resets are over their rate limit",
    ),
    (|c| c.cookies_sent, "answered with a SYN cookie"),
    (|c| c.cookies_accepted, "a SYN cookie comes back"),
    (
        |c| c.fast_open_cookies_given,
        "answered with a Fast Open cookie",
    ),
    (
        |c| c.fast_opens_accepted,
        "opens a connection by Fast Open, with its payload",
    ),
    (
        |c| c.fast_opens_declined,
        "its Fast Open cookie opens nothing: an ordinary handshake",
    ),
    (
        |c| c.time_wait_reused,
        "takes the place of a connection in TIME-WAIT",
    ),
    (
        |c| c.time_wait_cut,
        "cuts another's TIME-WAIT short, because the table is full",
    ),
    (|c| c.resets_sent, "answered with a reset"),
    (|c| c.resets_received, "resets the connection"),
    (
        |c| c.recoveries_undone,
        "a recovery was unnecessary and is undone",
    ),
];

/// The reason why a segment goes out again, or at all.
const OCCASIONS: [(Count, &str); 3] = [
    (|c| c.retransmissions, "retransmission"),
    (|c| c.tail_probes, "tail loss probe"),
    (|c| c.mtu_probes, "path MTU probe"),
];

pub(super) fn received(frame: &Reception<'_>) -> String {
    let mut words = Words::default();
    let has_risen = |count: Count| count(frame.counters[1]) > count(frame.counters[0]);
    for reason in Malformed::ALL {
        if frame.counters[1].malformed(reason) > frame.counters[0].malformed(reason) {
            words.add_phrase(format_args!("dropped: malformed, {reason}"));
        }
    }
    for (count, text) in FATES {
        if has_risen(count) {
            words.add_phrase(format_args!("{text}"));
        }
    }
    match (frame.summary, frame.after) {
        (PacketSummary::Tcp(tcp), Some((id, after))) => {
            describe_progress(&mut words, &tcp, frame.before.as_ref(), &after);
            words.about(id);
        }
        (PacketSummary::Tcp(_), None) => {}
        (PacketSummary::Arp, _) => words.or("neighbour resolution"),
        _ => words.or("not TCP"),
    }
    words.or("taken in");
    words.text
}

/// Describes a segment's effect on its connection.
fn describe_progress(
    words: &mut Words,
    tcp: &TcpSummary,
    before: Option<&ConnectionInfo>,
    after: &ConnectionInfo,
) {
    let Some(before) = before else {
        return words.add_phrase(format_args!("opens a connection"));
    };
    let delivered = after.received - before.received;
    if delivered > 0 {
        let gap = if delivered > tcp.payload_bytes as u64 {
            ", a gap is closed"
        } else {
            ""
        };
        words.add_phrase(format_args!("delivered {delivered} bytes in order{gap}"));
    }
    let acknowledged = after.acknowledged - before.acknowledged;
    let is_pure = tcp.payload_bytes == 0 && tcp.flags == TcpSummary::ACK;
    if acknowledged > 0 {
        let pure = if is_pure { "pure ACK: " } else { "" };
        words.add_phrase(format_args!("{pure}acknowledges {acknowledged} bytes"));
    }
    if after.sacked > before.sacked {
        let more = after.sacked - before.sacked;
        words.add_phrase(format_args!("reports {more} bytes beyond a gap"));
    }
    if after.lost > before.lost {
        let more = after.lost - before.lost;
        words.add_phrase(format_args!("shows {more} bytes to be lost"));
    }
    match (before.remote_window, after.remote_window) {
        (1.., 0) if after.in_flight == 0 => words.add_phrase(format_args!("closes the window")),
        (0, 1..) if acknowledged == 0 => words.add_phrase(format_args!("opens the window")),
        _ => {}
    }
    if after.phase != before.phase {
        words.add_phrase(format_args!("{}", phase(after.phase)));
    }
    if after.remote_finished && !before.remote_finished {
        words.add_phrase(format_args!("the remote has finished"));
    }
    if after.state != before.state {
        let (from, to) = (state(before.state), state(after.state));
        words.add_phrase(format_args!("{from} to {to}"));
    }
    if is_pure {
        words.or("pure ACK: nothing new");
    }
}

pub(super) fn sent(frame: &Sending<'_>) -> String {
    let mut words = Words::default();
    let has_risen = |count: Count| count(frame.counters[1]) > count(frame.counters[0]);
    for (count, text) in OCCASIONS {
        if has_risen(count) {
            words.add_phrase(format_args!("{text}"));
        }
    }
    if has_risen(|c| c.probes) {
        let is_closed = frame.after.is_some_and(|(_, info)| info.remote_window == 0);
        let of = if is_closed { "window" } else { "keepalive" };
        words.add_phrase(format_args!("{of} probe"));
    }
    match frame.summary {
        PacketSummary::Tcp(tcp) => describe_segment(&mut words, &tcp, frame),
        PacketSummary::Arp => words.or("neighbour resolution"),
        _ => words.or("not TCP"),
    }
    if !frame.is_taken {
        words.add_phrase(format_args!("refused by the link: as good as lost"));
    }
    if let Some((id, _)) = frame.after {
        words.about(id);
    }
    words.text
}

fn describe_segment(words: &mut Words, tcp: &TcpSummary, frame: &Sending<'_>) {
    let has = |bits| tcp.has(bits);
    if has(TcpSummary::RST) {
        words.add_phrase(format_args!("reset"));
    }
    if has(TcpSummary::SYN) {
        let what = match (has(TcpSummary::ACK), frame.after) {
            (false, _) => "opens a connection",
            (true, Some(_)) => "answers a SYN",
            (true, None) => "answers a SYN with a cookie",
        };
        words.add_phrase(format_args!("{what}"));
    }
    if let (Some(from), 1..) = (frame.stream, tcp.payload_bytes) {
        let to = from + tcp.payload_bytes as u64;
        words.add_phrase(format_args!("bytes {from} to {to} of the stream"));
    }
    if frame.segment_bytes > 0 {
        let size = usize::from(frame.segment_bytes);
        let count = tcp.payload_bytes.div_ceil(size);
        words.add_phrase(format_args!("{count} segments of {size}, cut by the link"));
    }
    if has(TcpSummary::FIN) {
        words.add_phrase(format_args!("we have finished"));
    }
    if tcp.payload_bytes == 0 && tcp.flags == TcpSummary::ACK {
        words.or("pure ACK");
        if tcp.window == 0 {
            words.add_phrase(format_args!("our window is closed"));
        }
    }
}

/// Phrases, with what stands between them.
#[derive(Default)]
struct Words {
    text: String,
}

impl Words {
    fn add_phrase(&mut self, phrase: std::fmt::Arguments<'_>) {
        let between = if self.text.is_empty() { "" } else { "; " };
        // A string takes everything.
        let _ = write!(self.text, "{between}{phrase}");
    }

    /// Says something only when nothing was said.
    fn or(&mut self, phrase: &str) {
        if self.text.is_empty() {
            self.text.push_str(phrase);
        }
    }

    fn about(&mut self, id: ConnectionId) {
        let _ = write!(self.text, " (connection {})", id.index());
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Open => "recovery is over",
        Phase::Recovery => "recovery begins",
        Phase::Loss => "a timeout: slow start",
    }
}

/// The names of RFC 9293.
fn state(state: State) -> &'static str {
    match state {
        State::Closed => "CLOSED",
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECEIVED",
        State::Established => "ESTABLISHED",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
    }
}
