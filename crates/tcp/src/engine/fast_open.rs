//! Fast Open's cookies (RFC 7413): those that we give to remotes, and those that remotes gave us.
//!
//! Our own cookies are SipHash-2-4 of both addresses and the period. The engine stores none of
//! them, and engines that share an address share the key. A cookie is valid in its period and in
//! the next one. A remote that sends an older one gets a new one.
//!
//! ```text
//!   of a remote:  unknown ── a cookie came ──> known ── two periods ──> unknown
//!                    │                           │
//!                    └── no cookie came, or payload was not acknowledged, or the SYN timed out or
//!                        was refused, or the path is silent after the handshake
//!                                                │
//!                                                v
//!                                               off ── 60 s, twice as long each time ──> unknown
//! ```

use std::collections::BTreeMap;

use crate::connection::FastOpen;
use crate::flow::FlowKey;
use crate::host::ListenerId;
use crate::random::{Random, SipKey};
use crate::state::State;
use crate::time::{Duration, Instant};
use crate::wire::ip::Address;
use crate::wire::tcp::FastOpenCookie;

use super::Engine;
use super::listeners::Room;

/// RFC 7413 section 4.1.2: "The cookie expires after a certain amount of time."
const PERIOD_MICROS: u64 = 24 * 3_600 * 1_000_000;
/// The time that a remote's cookie is used: as long as ours are valid.
const LIFETIME: Duration = Duration::from_micros(2 * PERIOD_MICROS);
/// The most remotes that are remembered: bounds the memory, about 100 bytes each.
const REMOTES_MAX: usize = 1_024;
/// The time that Fast Open stays off after the first failure. Linux: 60 s, doubled by each further
/// failure (`tcp_fastopen_cache_get` of 3.7 to 4.12), at most 2^6 times as long
/// (`tcp_fastopen_active_should_disable` since then).
const OFF_FIRST: Duration = Duration::from_secs(60);
const DOUBLINGS_MAX: u32 = 6;
/// Linux: the third timeout in a row shows a path on which nothing passes after such a SYN
/// (`tcp_fastopen_active_detect_blackhole`).
const TIMEOUTS_OF_BLACK_HOLE: u8 = 3;

#[derive(Debug)]
pub(super) struct FastOpens {
    key: SipKey,
    remotes: BTreeMap<Remote, Known>,
}

/// RFC 7413 section 4.1.3.1: a cookie is valid for all ports of a remote, but some ports may not
/// support Fast Open. So there is one entry for each port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Remote {
    local: Address,
    remote: Address,
    port: u16,
}

impl Remote {
    fn of(key: &FlowKey) -> Self {
        Self {
            local: key.local,
            remote: key.remote,
            port: key.remote_port,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    noted_at: Instant,
    cookie: Option<FastOpenCookie>,
    mss: u16,
    /// Failures since the last success, and the time until which Fast Open stays off.
    failures: u32,
    /// Paths that became silent after the handshake. A handshake is no success for them.
    black_holes: u32,
    off_until: Instant,
}

impl FastOpens {
    pub(super) fn new(key: Option<[u64; 2]>, random: &mut Random) -> Self {
        Self {
            key: key.map_or_else(|| SipKey::draw(random), SipKey::of_words),
            remotes: BTreeMap::new(),
        }
    }

    //= RFC 7413#4.1.2
    //# The cookie SHOULD be a MAC tag with the following properties.
    /// The cookie for a remote, of `age` periods ago.
    fn cookie(&self, now: Instant, key: &FlowKey, age: u64) -> Option<FastOpenCookie> {
        let period = (now.as_micros() / PERIOD_MICROS).checked_sub(age)?;
        let [remote, local] = [key.remote.0, key.local.0];
        let words = [remote[0], remote[1], local[0], local[1], period];
        Some(FastOpenCookie::of_word(self.key.hash(&words)))
    }

    /// The Fast Open state for a new connection to a remote.
    fn first_syn(&self, now: Instant, key: &FlowKey) -> Option<FastOpen> {
        //= RFC 7413#4.2.1
        //# Any client attempting TFO MUST first request a cookie from the server with the following
        //# steps:
        let Some(known) = self.remotes.get(&Remote::of(key)) else {
            return Some(FastOpen::request());
        };
        //= RFC 7413#4.1.3.1
        //# For any negative responses, the client SHOULD disable Fast Open on the specific path
        //# (the source and destination IP addresses and ports) at least temporarily.
        //= RFC 7413#4.2.1
        //# We also RECOMMEND the client to record the set of servers that failed to respond to
        //# cookie requests and only attempt another cookie request after a certain period.
        if now < known.off_until {
            return None;
        }
        let is_fresh = now.since(known.noted_at) < LIFETIME;
        Some(match known.cookie.filter(|_| is_fresh) {
            Some(cookie) => FastOpen::with_cookie(cookie, known.mss),
            None => FastOpen::request(),
        })
    }

    //= RFC 7413#4.1.3
    //# The client MUST cache cookies from servers for later Fast Open connections.
    /// A remote has answered with a cookie, or has acknowledged payload of a SYN.
    fn note_success(
        &mut self,
        now: Instant,
        key: &FlowKey,
        cookie: Option<FastOpenCookie>,
        mss: u16,
    ) {
        let known = self.entry(now, key);
        if cookie.is_some() {
            (known.cookie, known.noted_at) = (cookie, now);
        }
        known.mss = mss;
        known.failures = 0;
        known.off_until = Instant::ZERO;
    }

    //= RFC 7413#4.1.3.1
    //# The client MUST cache negative responses from the server in order to avoid potential
    //# connection failures.
    /// A remote has not answered, or has not answered to Fast Open.
    fn note_failure(&mut self, now: Instant, key: &FlowKey) {
        let known = self.entry(now, key);
        known.failures = known.failures.saturating_add(1);
        known.turn_off(now);
    }

    /// The handshake with a remote has worked, and then nothing passed.
    fn note_black_hole(&mut self, now: Instant, key: &FlowKey) {
        let known = self.entry(now, key);
        known.black_holes = known.black_holes.saturating_add(1);
        known.turn_off(now);
    }

    fn entry(&mut self, now: Instant, key: &FlowKey) -> &mut Known {
        let remote = Remote::of(key);
        if self.remotes.len() >= REMOTES_MAX && !self.remotes.contains_key(&remote) {
            // The remote that was not heard of for the longest time.
            let oldest = self.remotes.iter().min_by_key(|(_, known)| known.noted_at);
            let oldest = oldest.map(|(&remote, _)| remote);
            oldest.and_then(|oldest| self.remotes.remove(&oldest));
        }
        self.remotes.entry(remote).or_insert(Known {
            noted_at: now,
            cookie: None,
            mss: 0,
            failures: 0,
            black_holes: 0,
            off_until: Instant::ZERO,
        })
    }
}

impl Known {
    /// Does without Fast Open for a while, and asks for a new cookie then.
    fn turn_off(&mut self, now: Instant) {
        let before = self.failures.saturating_add(self.black_holes) - 1;
        self.off_until = now + OFF_FIRST * (1 << before.min(DOUBLINGS_MAX));
        self.cookie = None;
    }
}

/// A listener's answer to the Fast Open option of a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// No answer: the handshake is an ordinary one.
    Ignore,
    /// The SYN-ACK carries a cookie; the handshake is an ordinary one.
    Give(FastOpenCookie),
    /// The host gets the connection at once; with a new cookie if the remote's is old.
    Accept(Option<FastOpenCookie>),
}

impl Engine {
    /// The answer of a listener to the Fast Open option of a SYN.
    pub(super) fn judge_fast_open(
        &mut self,
        now: Instant,
        listener: ListenerId,
        key: &FlowKey,
        cookie: Option<FastOpenCookie>,
    ) -> Verdict {
        let Some(cookie) = cookie else {
            return Verdict::Ignore;
        };
        //= RFC 7413#4.2
        //# When this flag is off, the server does not perform any TFO-related operations and MUST
        //# ignore all cookie options.
        //= RFC 7413#4.2
        //# If this variable goes over a preset system limit, the server MUST disable TFO for all
        //# new connection requests until PendingFastOpenRequests drops below the system limit.
        match self.listeners.fast_open_room(listener, now) {
            Room::Free => {}
            Room::Full => {
                self.counters.fast_opens_declined += 1;
                return Verdict::Ignore;
            }
            Room::Off => return Verdict::Ignore,
        }
        let current = self.fast_opens.cookie(now, key, 0);
        if Some(cookie) == current {
            return Verdict::Accept(None);
        }
        let is_older = Some(cookie) == self.fast_opens.cookie(now, key, 1);
        self.counters.fast_opens_declined += u64::from(!is_older && !cookie.is_request());
        self.counters.fast_open_cookies_given += 1;
        match current {
            Some(current) if is_older => Verdict::Accept(Some(current)),
            Some(current) => Verdict::Give(current),
            None => Verdict::Ignore,
        }
    }

    /// Lets a new connection try Fast Open, if its remote is not known to fail. True if there is a
    /// cookie for it.
    pub(super) fn begin_fast_open(&mut self, now: Instant, slot: u32) -> bool {
        let key = self.slots[slot as usize].key;
        let first = self.fast_opens.first_syn(now, &key);
        let has_cookie = first.as_ref().is_some_and(FastOpen::has_cookie);
        self.slots[slot as usize].fast_open = first.map(Box::new);
        has_cookie
    }

    /// Whether there is a cookie for the remote of a connection.
    pub(super) fn knows_cookie(&self, now: Instant, slot: u32) -> bool {
        let key = self.slots[slot as usize].key;
        let first = self.fast_opens.first_syn(now, &key);
        first.as_ref().is_some_and(FastOpen::has_cookie)
    }

    /// A connection has timed out: its first SYN, or data after its handshake. Unlike Linux, only
    /// data right after the SYN counts, and only the path to this remote.
    #[cold]
    pub(super) fn suspect_fast_open(&mut self, now: Instant, slot: u32) {
        let connection = &self.slots[slot as usize];
        if !connection.tried_fast_open() {
            return;
        }
        let key = connection.key;
        let is_unanswered = connection.state == State::SynSent || connection.state == State::Closed;
        if connection.retries == 1 && is_unanswered {
            self.fast_opens.note_failure(now, &key);
        } else if connection.retries == TIMEOUTS_OF_BLACK_HOLE && connection.is_stuck_behind_syn() {
            self.fast_opens.note_black_hole(now, &key);
        }
    }

    /// A reset or an ICMP message has ended a connection that has sent one SYN, with Fast Open.
    /// RFC 7413 section 4.1.3.1 counts such messages as negative responses. A reset may come from a
    /// middlebox: the next attempt does without Fast Open.
    #[cold]
    pub(super) fn note_refused_fast_open(&mut self, now: Instant, slot: u32) {
        let connection = &self.slots[slot as usize];
        // Otherwise the failure was counted when the SYN timed out.
        if connection.state == State::Closed && connection.retries == 0 {
            let key = connection.key;
            self.fast_opens.note_failure(now, &key);
        }
    }

    //= RFC 7413#4.2.2
    //# The client SHOULD perform the following steps upon receiving the SYN-ACK:
    /// The remote has answered the SYN of a connection that tries Fast Open.
    #[cold]
    pub(super) fn learn_fast_open(
        &mut self,
        now: Instant,
        slot: u32,
        cookie: Option<FastOpenCookie>,
        was_repeated: bool,
    ) {
        let connection = &self.slots[slot as usize];
        let (key, mss) = (connection.key, connection.remote_mss);
        let is_acknowledged = connection.has_syn_data();
        let cookie = cookie.filter(|cookie| !cookie.is_request());
        self.counters.fast_opens_acknowledged += u64::from(is_acknowledged);
        if is_acknowledged || cookie.is_some() {
            self.fast_opens.note_success(now, &key, cookie, mss);
        } else if !was_repeated {
            // Otherwise the failure was counted when the SYN timed out.
            self.fast_opens.note_failure(now, &key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(remote: u32) -> FlowKey {
        FlowKey {
            local: Address::v4(1),
            remote: Address::v4(remote),
            local_port: 1_000,
            remote_port: 80,
        }
    }

    #[test]
    fn the_remote_that_was_heard_of_longest_ago_makes_room_for_another() {
        let mut fast_opens = FastOpens::new(None, &mut Random::new(1));
        let cookie = Some(FastOpenCookie::of_word(7));
        let count = REMOTES_MAX as u32 + 1;
        for remote in 0..count {
            let now = Instant::from_micros(u64::from(remote));
            fast_opens.note_success(now, &key(remote), cookie, 1_460);
        }
        assert_eq!(fast_opens.remotes.len(), REMOTES_MAX);
        let now = Instant::from_micros(u64::from(count));
        let has_cookie = |remote| {
            let first = fast_opens.first_syn(now, &key(remote));
            first.is_some_and(|first| first.has_cookie())
        };
        assert!(!has_cookie(0));
        assert!(has_cookie(1) && has_cookie(count - 1));
    }

    #[test]
    fn failures_keep_fast_open_off_for_a_minute_to_an_hour_and_a_cookie_ends_them() {
        let mut fast_opens = FastOpens::new(None, &mut Random::new(1));
        let mut now = Instant::from_micros(1);
        for minutes in [1, 2, 4, 8, 16, 32, 64, 64] {
            fast_opens.note_failure(now, &key(1));
            let span = OFF_FIRST * minutes;
            let just_before = now + (span - Duration::from_micros(1));
            assert!(fast_opens.first_syn(just_before, &key(1)).is_none());
            now += span;
            let first = fast_opens.first_syn(now, &key(1));
            assert!(first.is_some_and(|first| !first.has_cookie()));
        }
        fast_opens.note_success(now, &key(1), Some(FastOpenCookie::of_word(7)), 1_460);
        fast_opens.note_failure(now, &key(1));
        assert!(fast_opens.first_syn(now + OFF_FIRST, &key(1)).is_some());
    }

    #[test]
    fn engines_with_one_key_give_the_same_cookies() {
        let of = |key, seed| FastOpens::new(key, &mut Random::new(seed));
        let now = Instant::from_micros(1);
        let cookie = |fast_opens: &FastOpens| fast_opens.cookie(now, &key(1), 0);
        let shared = Some([1, 2]);
        assert_eq!(cookie(&of(shared, 1)), cookie(&of(shared, 2)));
        assert_ne!(cookie(&of(None, 1)), cookie(&of(None, 2)));
        assert_ne!(
            cookie(&of(shared, 1)),
            of(shared, 1).cookie(now, &key(2), 0)
        );
    }
}
