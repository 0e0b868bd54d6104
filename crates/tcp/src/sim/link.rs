//! A link with impairments: the fate of a frame between two hosts.

use super::middlebox::Middlebox;
use crate::{Duration, Instant, Random};

/// The properties of one direction of a link. The default is perfect and infinitely fast.
#[derive(Clone, Copy, Debug)]
pub struct Impairments {
    /// Propagation delay.
    pub delay: Duration,
    /// Random delay added to each frame, without reordering.
    pub jitter: Duration,
    /// Frames arrive only at multiples of this time, as over a radio link that gathers them. Zero:
    /// at any time.
    pub gathers: Duration,
    /// Rate in bytes per millisecond; zero is unlimited.
    pub bytes_per_ms: u64,
    /// Bytes that may wait for a limited link.
    pub queue_bytes_max: u64,
    /// Frames lost singly, per million.
    pub loss_per_million: u32,
    /// Chance per million that a burst of losses begins.
    pub burst_per_million: u32,
    /// Frames lost in a burst. A burst lasts at most a second.
    pub burst_frames: u32,
    /// Frames duplicated, per million.
    pub duplicate_per_million: u32,
    /// Frames held back, per million.
    pub reorder_per_million: u32,
    /// The longest delay of a frame that is held back.
    pub reorder_delay: Duration,
    /// Frames with one bit flipped, per million.
    pub corrupt_per_million: u32,
    /// Frames whose window field is lowered on the way, per million.
    pub shrink_per_million: u32,
    /// A limited queue marks instead of dropping, above half its size (RFC 3168).
    pub marks: bool,
    /// The largest packet that passes; zero: as large as the link's MTU.
    pub path_mtu: u16,
    /// An ICMP message reports packets that are too big.
    pub reports_too_big: bool,
    /// The first and the last moment of an outage.
    pub partition: (Duration, Duration),
    /// A box at the end of the link.
    pub middlebox: Middlebox,
}

impl Default for Impairments {
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(50),
            jitter: Duration::ZERO,
            gathers: Duration::ZERO,
            bytes_per_ms: 0,
            queue_bytes_max: u64::MAX,
            loss_per_million: 0,
            burst_per_million: 0,
            burst_frames: 0,
            duplicate_per_million: 0,
            reorder_per_million: 0,
            reorder_delay: Duration::ZERO,
            corrupt_per_million: 0,
            shrink_per_million: 0,
            marks: false,
            path_mtu: 0,
            reports_too_big: false,
            partition: (Duration::ZERO, Duration::ZERO),
            middlebox: Middlebox::default(),
        }
    }
}

impl Impairments {
    /// A random link; each impairment is present in a quarter of the links.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let rare = |random: &mut Random, most: u64| {
            if random.below(4) == 0 {
                random.between(1, most) as u32
            } else {
                0
            }
        };
        let delay = Duration::from_micros(
            [20, 200, 2_000, 20_000, 100_000][random.below(5) as usize] + random.below(500),
        );
        let bytes_per_ms = if random.below(2) == 0 {
            random.between(50, 20_000)
        } else {
            0
        };
        let begin = Duration::from_millis(random.below(10_000));
        let partition = if random.below(8) == 0 {
            (
                begin,
                begin + Duration::from_millis(random.between(100, 20_000)),
            )
        } else {
            (Duration::ZERO, Duration::ZERO)
        };
        let narrows = random.below(8) == 0;
        Self {
            delay,
            jitter: Duration::from_micros(if random.below(4) == 0 {
                random.below(delay.as_micros())
            } else {
                0
            }),
            gathers: Duration::ZERO,
            bytes_per_ms,
            queue_bytes_max: random.between(15_000, 300_000),
            loss_per_million: rare(random, 100_000),
            burst_per_million: rare(random, 5_000),
            burst_frames: random.between(2, 30) as u32,
            duplicate_per_million: rare(random, 50_000),
            reorder_per_million: rare(random, 100_000),
            reorder_delay: Duration::from_micros(random.between(1, 2 * delay.as_micros())),
            corrupt_per_million: rare(random, 20_000),
            shrink_per_million: if random.below(8) == 0 {
                random.below(50_000) as u32
            } else {
                0
            },
            marks: random.below(3) == 0,
            path_mtu: if narrows { 1_300 } else { 0 },
            reports_too_big: random.below(4) != 0,
            partition,
            middlebox: Middlebox::default(),
        }
    }
}

/// The fate of a frame.
#[derive(Debug)]
pub(crate) enum Fate {
    Lost,
    /// Too big for the path; the sender may be told.
    TooBig,
    /// Arrives, perhaps twice, perhaps changed.
    Arrives {
        at: Instant,
        /// The arrival time of a copy of the frame.
        again_at: Option<Instant>,
        mark: bool,
        corrupt: bool,
        shrink: bool,
    },
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) impairments: Impairments,
    /// When all frames accepted so far will have been sent.
    busy_until: Instant,
    /// Jitter keeps frames in order: none arrives before its predecessor.
    last_arrival: Instant,
    burst_left: u32,
    burst_ends_at: Instant,
}

impl Link {
    pub(crate) fn new(impairments: Impairments) -> Self {
        Self {
            impairments,
            busy_until: Instant::ZERO,
            last_arrival: Instant::ZERO,
            burst_left: 0,
            burst_ends_at: Instant::ZERO,
        }
    }

    /// Decides the fate of a frame of `bytes` bytes.
    pub(crate) fn pass(&mut self, now: Instant, bytes: usize, random: &mut Random) -> Fate {
        let link = &self.impairments;
        if link.path_mtu != 0 && bytes > usize::from(link.path_mtu) {
            return Fate::TooBig;
        }
        let (begin, end) = link.partition;
        if now >= Instant::ZERO + begin && now < Instant::ZERO + end {
            return Fate::Lost;
        }
        if self.burst_left > 0 && now < self.burst_ends_at {
            self.burst_left -= 1;
            return Fate::Lost;
        }
        if random.chance(link.burst_per_million) {
            self.burst_left = link.burst_frames;
            self.burst_ends_at = now + Duration::from_secs(1);
        }
        if random.chance(link.loss_per_million) {
            return Fate::Lost;
        }
        let mut departure = now;
        let mut mark = false;
        if link.bytes_per_ms > 0 {
            let start = self.busy_until.max(now);
            let queued = start.since(now).as_micros() * link.bytes_per_ms / 1_000;
            if queued + bytes as u64 > link.queue_bytes_max {
                return Fate::Lost;
            }
            mark = link.marks && queued > link.queue_bytes_max / 2;
            departure =
                start + Duration::from_micros((bytes as u64 * 1_000).div_ceil(link.bytes_per_ms));
            self.busy_until = departure;
        }
        let jitter = Duration::from_micros(random.below(link.jitter.as_micros() + 1));
        let mut arrival = (departure + link.delay + jitter).max(self.last_arrival);
        if link.gathers > Duration::ZERO {
            let step = link.gathers.as_micros();
            arrival = Instant::from_micros(arrival.as_micros().next_multiple_of(step));
        }
        if random.chance(link.reorder_per_million) {
            arrival += Duration::from_micros(random.below(link.reorder_delay.as_micros() + 1));
        } else {
            self.last_arrival = arrival;
        }
        let is_duplicated = random.chance(link.duplicate_per_million);
        let again_at = is_duplicated.then(|| arrival + Duration::from_micros(random.below(1_000)));
        Fate::Arrives {
            at: arrival,
            again_at,
            mark,
            corrupt: random.chance(link.corrupt_per_million),
            shrink: random.chance(link.shrink_per_million),
        }
    }
}
