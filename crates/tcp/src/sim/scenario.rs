//! The scenario of a seed: hosts, links, transfers and impairments.

use super::link::Impairments;
use super::middlebox::Middlebox;
use super::rival::Kind;
use super::role::Role;
use core::num::NonZeroU8;

use crate::{CongestionControl, Duration, EcnMode, Keepalive, Options, Random};

/// One connection to be made.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) client: usize,
    pub(crate) server: usize,
    pub(crate) is_v6: bool,
    /// No host listens: both connect to each other at the same moment (RFC 9293 section 3.5, figure
    /// 8).
    pub(crate) is_simultaneous: bool,
    pub(crate) start: Duration,
    pub(crate) options: Options,
    pub(crate) client_role: Role,
    pub(crate) server_role: Role,
}

/// All events of a simulation, decided before it begins.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) seed: u64,
    pub(crate) hosts: usize,
    pub(crate) mtu: u16,
    /// The impairments of each host's outgoing link.
    pub(crate) impairments: Vec<Impairments>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) server_options: Options,
    /// The properties of each host's engine.
    pub(crate) traits: Vec<Traits>,
    /// For each host: the error of its clock in parts per million, and the time at which the clock
    /// began.
    pub(crate) clock_ppm: Vec<i64>,
    pub(crate) clock_offset: Vec<Duration>,
    /// Chance per million that a host has no room for payload.
    pub(crate) no_room_per_million: u32,
    /// Packets that arrive in fragments, per million; some of the fragments are lost.
    pub(crate) fragmented_per_million: u32,
    /// The most half-open connections before cookies are used.
    pub(crate) half_open_max: usize,
    /// Frames per second made of noise and of other frames.
    pub(crate) forgeries_per_second: u32,
    /// SYNs in the names of hosts that do not exist, per second and in total.
    pub(crate) syns_per_second: u32,
    pub(crate) syns: u32,
    /// The times at which a host loses all its state.
    pub(crate) reboots: Vec<(usize, Duration)>,
    /// The times at which a host's link changes its largest packet, and the new size.
    pub(crate) mtu_changes: Vec<(usize, Duration, u16)>,
    /// The times at which a host's memory is short.
    pub(crate) shortages: Vec<Shortage>,
    /// The ends of transfers that shrink their window.
    pub(crate) withdrawals: Vec<Withdrawal>,
    /// Hosts that acknowledge data that has not arrived.
    pub(crate) optimists: Vec<usize>,
    /// The most connections of a listener that Fast Open may open before their handshake is over.
    /// If this is not zero, clients send payload with their SYN, too.
    pub(crate) fast_open_pending_max: usize,
    /// Senders that compete for the first host's outgoing link.
    pub(crate) rivals: Vec<Kind>,
    /// The simulation stops at this time, even unfinished; `None`: it must finish by itself.
    pub(crate) stop_after: Option<Duration>,
}

/// A host with little memory, for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    pub(crate) host: usize,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    /// The host refuses larger pieces of payload meanwhile.
    pub(crate) piece_bytes_max: usize,
    /// The number of times, in a million arrivals, that the host discards its bytes beyond gaps.
    pub(crate) discards_per_million: u32,
}

/// The end of a transfer that shrinks its window after this many bytes, until all its own bytes are
/// acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Withdrawal {
    pub(crate) transfer: usize,
    pub(crate) is_client: bool,
    pub(crate) after_bytes: u64,
}

/// The properties of one host's engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traits {
    pub(crate) no_sack: bool,
    pub(crate) no_timestamps: bool,
    pub(crate) no_window_scaling: bool,
    /// On Ethernet, with received checksums verified by the link; otherwise on bare IP.
    pub(crate) ethernet: bool,
    /// The link completes checksums and divides large segments.
    pub(crate) offloads: bool,
    /// The number of frames that the link takes at once; zero: all frames.
    pub(crate) frames_at_once: u32,
    pub(crate) no_tail_probes: bool,
    pub(crate) no_restart_after_idle: bool,
}

impl Scenario {
    /// The scenario of a seed. Every impairment is absent in most scenarios, so that each is also
    /// tested alone.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x7031_e5ce_a210_0001);
        let hosts = random.between(2, 4) as usize;
        let impairments: Vec<_> = (0..hosts).map(|_| Impairments::draw(&mut random)).collect();
        let transfers = random.between(1, 12);
        let forgeries_per_second = if random.below(6) == 0 {
            random.between(10, 500) as u32
        } else {
            0
        };
        let mut scenario = Self {
            seed,
            hosts,
            mtu: [576, 1_280, 1_500, 1_500, 1_500, 9_000][random.below(6) as usize],
            impairments,
            transfers: Vec::new(),
            server_options: draw_options(&mut random),
            traits: (0..hosts).map(|_| draw_traits(&mut random)).collect(),
            clock_ppm: (0..hosts)
                .map(|_| random.below(2_001) as i64 - 1_000)
                .collect(),
            clock_offset: (0..hosts)
                .map(|_| Duration::from_micros(random.below(1 << 45)))
                .collect(),
            no_room_per_million: if random.below(6) == 0 {
                random.below(50_000) as u32
            } else {
                0
            },
            fragmented_per_million: 0,
            half_open_max: if random.below(5) == 0 {
                random.below(3) as usize
            } else {
                64
            },
            forgeries_per_second,
            syns_per_second: 0,
            syns: 0,
            reboots: Vec::new(),
            mtu_changes: Vec::new(),
            shortages: Vec::new(),
            withdrawals: Vec::new(),
            optimists: Vec::new(),
            fast_open_pending_max: 0,
            rivals: Vec::new(),
            stop_after: None,
        };
        if scenario.mtu == 576 {
            // IPv6 needs 1280; the narrow link is for IPv4 alone.
            scenario.transfers = (0..transfers)
                .map(|_| draw_transfer(&mut random, hosts, false))
                .collect();
        } else {
            scenario.transfers = (0..transfers)
                .map(|_| {
                    let is_v6 = random.below(2) == 0;
                    draw_transfer(&mut random, hosts, is_v6)
                })
                .collect();
        }
        if random.below(8) == 0 {
            let host = random.below(hosts as u64) as usize;
            scenario
                .reboots
                .push((host, Duration::from_millis(random.below(5_000))));
        }
        if scenario.mtu > 1_280 && random.below(6) == 0 {
            let host = random.below(hosts as u64) as usize;
            let narrower = random.between(1_280, u64::from(scenario.mtu)) as u16;
            let (down, up) = (random.below(3_000), random.below(20_000));
            let changes = [(down, narrower), (down + up, scenario.mtu)];
            scenario.mtu_changes = changes
                .map(|(at, mtu)| (host, Duration::from_millis(at), mtu))
                .to_vec();
        }
        scenario.draw_flood();
        scenario.draw_departures();
        scenario.draw_fragments();
        scenario.draw_fast_open();
        scenario.draw_user_timeouts();
        scenario.draw_simultaneous();
        scenario.draw_models();
        scenario.draw_shortages();
        scenario.draw_small_segments();
        scenario.draw_optimists();
        scenario.draw_withdrawals();
        scenario.draw_mixtures();
        for traits in &mut scenario.traits {
            if random.below(3) == 0 {
                traits.frames_at_once = random.between(1, 8) as u32;
            }
        }
        scenario
    }

    /// Draws the flood from a generator of its own: a seed without a flood gives the scenario that
    /// it gave before floods existed.
    fn draw_flood(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_f100_d000_0001);
        if random.below(6) == 0 {
            self.syns_per_second = random.between(20, 1_000) as u32;
            self.syns = random.between(100, 3_000) as u32;
        }
    }

    /// Draws the hosts that abandon a connection before its end, from a generator of their own.
    fn draw_departures(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_6010_90e5_0001);
        for transfer in &mut self.transfers {
            for role in [&mut transfer.client_role, &mut transfer.server_role] {
                role.lets_go = random.below(3) == 0;
            }
        }
    }

    /// Draws whether payload goes with SYNs (RFC 7413), from a generator of its own.
    fn draw_fast_open(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_fa57_09e4_0001);
        if random.below(3) == 0 {
            self.fast_open_pending_max = random.between(1, 8) as usize;
        }
    }

    /// Draws the share of packets that arrive in fragments, from a generator of its own.
    fn draw_fragments(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_f4a6_3e47_0001);
        if random.below(5) == 0 {
            self.fragmented_per_million = random.between(1_000, 300_000) as u32;
        }
    }

    /// Draws the hosts that give up after a while, from a generator of their own.
    fn draw_user_timeouts(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_9a71_e4ce_0001);
        let transfers = self.transfers.iter_mut();
        let options = transfers.map(|transfer| &mut transfer.options);
        for options in options.chain([&mut self.server_options]) {
            if random.below(6) == 0 {
                options.user_timeout = Some(Duration::from_secs(random.between(5, 120)));
            }
        }
    }

    /// Draws the hosts whose congestion window follows a model of the path, from a generator of
    /// their own.
    fn draw_models(&mut self) {
        let mut random = Random::new(self.seed ^ 0xbb20_0000_17a0_0003);
        let ends = self
            .transfers
            .iter_mut()
            .map(|transfer| &mut transfer.options);
        for options in ends.chain([&mut self.server_options]) {
            if random.below(6) == 0 {
                options.congestion = CongestionControl::Bbr;
            }
        }
    }

    /// Draws the hosts that are short of memory for a while, from a generator of their own.
    fn draw_shortages(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_4e40_5407_0001);
        if random.below(5) != 0 {
            return;
        }
        for host in 0..self.hosts {
            let from = Duration::from_millis(random.below(4_000));
            let shortage = Shortage {
                host,
                from,
                until: from + Duration::from_millis(random.below(10_000)),
                piece_bytes_max: random.below(4_000) as usize,
                discards_per_million: random.below(200_000) as u32,
            };
            if random.below(2) == 0 {
                self.shortages.push(shortage);
            }
        }
    }

    /// Draws the ends that accept only very small segments, from a generator of their own.
    fn draw_small_segments(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_5a11_0550_0001);
        let ends = self
            .transfers
            .iter_mut()
            .map(|transfer| &mut transfer.options);
        for options in ends.chain([&mut self.server_options]) {
            if random.below(16) == 0 {
                // With less, the engine's smallest segment and its options do not fit.
                options.mss_max = random.between(60, 300) as u16;
            }
        }
    }

    /// Draws the hosts that acknowledge data that has not arrived, in scenarios that have forgers
    /// as well. Data that is lost on its way to such a host is never sent again, so the simulation
    /// stops at a fixed time.
    fn draw_optimists(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_0971_3157_0001);
        if self.is_hostile() && random.below(3) == 0 {
            self.optimists
                .push(random.below(self.hosts as u64) as usize);
            self.stop_after = Some(Duration::from_secs(20));
        }
    }

    /// Draws the ends that take their window back, from a generator of their own. At most one end
    /// of each transfer does so: with two, neither end would ever read. There is none where a link
    /// makes windows smaller: both ends would send at edges that the other end does not know.
    fn draw_withdrawals(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_171d_4a30_0001);
        let is_shrinking = |link: &Impairments| link.shrink_per_million > 0;
        if self.is_hostile() || random.below(4) != 0 || self.impairments.iter().any(is_shrinking) {
            return;
        }
        for transfer in 0..self.transfers.len() {
            let bits = random.between(1, 20);
            let withdrawal = Withdrawal {
                transfer,
                is_client: random.below(2) == 0,
                // Not during the handshake: no window applies to the handshake.
                after_bytes: 1 + random.below(1 << bits),
            };
            if random.below(2) == 0 {
                self.withdrawals.push(withdrawal);
            }
        }
    }

    /// Draws the pairs that connect to each other at the same time, from a generator of their own.
    fn draw_simultaneous(&mut self) {
        let mut random = Random::new(self.seed ^ 0x7031_51a0_17a0_0001);
        for transfer in &mut self.transfers {
            transfer.is_simultaneous = random.below(8) == 0;
        }
    }

    /// Draws, in half of the scenarios, combinations that the other draws do not give: any
    /// congestion control with any ECN mode, any window and pacing or not; paths that mark early,
    /// gather frames or change headers. The generator's constant was chosen among others so that
    /// the seeds that tests name keep their scenarios.
    fn draw_mixtures(&mut self) {
        let mut random = Random::new(self.seed ^ MIXTURES);
        if random.below(2) != 0 {
            return;
        }
        let ends = self
            .transfers
            .iter_mut()
            .map(|transfer| &mut transfer.options);
        for options in ends.chain([&mut self.server_options]) {
            if random.below(2) == 0 {
                mix(&mut random, options);
            }
        }
        for link in &mut self.impairments {
            if random.below(6) == 0 {
                link.gathers = Duration::from_micros(random.between(100, 30_000));
            }
            if random.below(4) == 0 {
                link.marks = true;
                link.queue_bytes_max = random.between(15_000, 60_000);
            }
            if random.below(4) == 0 {
                link.middlebox = Middlebox::draw(&mut random);
            }
        }
        for traits in &mut self.traits {
            traits.no_tail_probes = random.below(6) == 0;
            traits.no_restart_after_idle = random.below(6) == 0;
        }
        if self.fast_open_pending_max == 0 && random.below(2) == 0 {
            self.fast_open_pending_max = random.between(1, 64) as usize;
        }
    }

    /// `flows` transfers from host 0 to host 1 through 20 Mbit/s with a buffer of one
    /// bandwidth-delay product. They end after `duration`.
    #[must_use]
    pub fn bottleneck(
        seed: u64,
        congestion: CongestionControl,
        flows: usize,
        duration: Duration,
    ) -> Self {
        let link = Impairments {
            delay: Duration::from_millis(20),
            bytes_per_ms: 2_500,
            queue_bytes_max: 100_000,
            ..Impairments::default()
        };
        let options = Options {
            congestion,
            ..Options::default()
        };
        let transfer = |index: usize| Transfer {
            client: 0,
            server: 1,
            is_v6: false,
            is_simultaneous: false,
            start: Duration::from_millis(100 * index as u64),
            options,
            client_role: Role {
                bytes: u64::MAX / 4,
                ..Role::default()
            },
            server_role: Role {
                bytes: 0,
                ..Role::default()
            },
        };
        Self {
            seed,
            hosts: 2,
            mtu: 1_500,
            impairments: vec![link, link],
            transfers: (0..flows).map(transfer).collect(),
            server_options: options,
            traits: vec![Traits::default(); 2],
            clock_ppm: vec![0; 2],
            clock_offset: vec![Duration::ZERO; 2],
            no_room_per_million: 0,
            fragmented_per_million: 0,
            half_open_max: 64,
            forgeries_per_second: 0,
            syns_per_second: 0,
            syns: 0,
            reboots: Vec::new(),
            mtu_changes: Vec::new(),
            shortages: Vec::new(),
            withdrawals: Vec::new(),
            optimists: Vec::new(),
            fast_open_pending_max: 0,
            rivals: Vec::new(),
            stop_after: Some(duration),
        }
    }

    /// Frames to host 1 are delayed by up to `jitter` more, each frame by its own delay. Without
    /// jitter, senders whose segments leave at regular times lose always or never (phase effects:
    /// Floyd and Jacobson, 1992).
    #[must_use]
    pub fn with_jitter(mut self, jitter: Duration) -> Self {
        self.impairments[0].jitter = jitter;
        self
    }

    /// Acknowledgements reach host 0 at multiples of a time only.
    #[must_use]
    pub fn with_gathered_answers(mut self, time: Duration) -> Self {
        self.impairments[1].gathers = time;
        self
    }

    /// Adds another sender on the outgoing link of host 0, from the beginning on.
    #[must_use]
    pub fn beside(mut self, rival: Kind) -> Self {
        self.rivals.push(rival);
        self
    }

    /// One transfer from host 0 to host 1 on a LAN of 100 Mbit/s with an outage from one time to
    /// another.
    #[must_use]
    pub fn outage(
        seed: u64,
        congestion: CongestionControl,
        outage: (Duration, Duration),
        duration: Duration,
    ) -> Self {
        let link = Impairments {
            delay: Duration::from_micros(100),
            bytes_per_ms: 12_500,
            queue_bytes_max: 200_000,
            partition: outage,
            ..Impairments::default()
        };
        let mut scenario = Self::bottleneck(seed, congestion, 1, duration);
        scenario.impairments = vec![link, link];
        scenario
    }

    /// One transfer from host 0 to host 1 over a long path: `bytes_per_ms` with a buffer of one
    /// bandwidth-delay product. The windows may grow to `window_bytes_max`.
    #[must_use]
    pub fn long_path(
        seed: u64,
        (round_trip, bytes_per_ms): (Duration, u64),
        window_bytes_max: u32,
        duration: Duration,
    ) -> Self {
        let product_bytes = round_trip.as_micros() * bytes_per_ms / 1_000;
        let link = Impairments {
            delay: Duration::from_micros(round_trip.as_micros() / 2),
            bytes_per_ms,
            queue_bytes_max: product_bytes,
            ..Impairments::default()
        };
        let mut scenario = Self::bottleneck(seed, CongestionControl::Cubic, 1, duration);
        scenario.impairments = vec![link, link];
        scenario.server_options.receive_bytes_max = window_bytes_max;
        for transfer in &mut scenario.transfers {
            transfer.options.receive_bytes_max = window_bytes_max;
            transfer.client_role.send_buffer_bytes = 2 * u64::from(window_bytes_max);
        }
        scenario
    }

    /// Whether one end of a transfer gives up waiting: for an acknowledgement of its data, or for a
    /// remote that is silent.
    pub(crate) fn is_impatient(&self, transfer: usize) -> bool {
        let ends = [self.transfers[transfer].options, self.server_options];
        ends.iter()
            .any(|options| options.user_timeout.is_some() || options.keepalive.is_some())
    }

    /// Whether forged frames may end connections or damage streams: then only the engine's own
    /// invariants are checked.
    pub(crate) fn is_hostile(&self) -> bool {
        self.forgeries_per_second > 0
    }
}

fn draw_traits(random: &mut Random) -> Traits {
    Traits {
        no_sack: random.below(5) == 0,
        no_timestamps: random.below(5) == 0,
        no_window_scaling: random.below(5) == 0,
        ethernet: random.below(2) == 0,
        offloads: random.below(4) == 0,
        frames_at_once: 0,
        no_tail_probes: false,
        no_restart_after_idle: false,
    }
}

/// Of the seeds that tests name, this constant leaves all out of [`Scenario::draw_mixtures`].
const MIXTURES: u64 = 0x7031_3124_002f_ccd9;

/// Unanswered keepalive probes (TCP_KEEPCNT's default on Linux).
const PROBES_MAX: NonZeroU8 = NonZeroU8::new(9).expect("not zero");

fn draw_options(random: &mut Random) -> Options {
    let receive_bytes = [4_096, 16_384, 65_536, 262_144][random.below(4) as usize];
    Options {
        congestion: [
            CongestionControl::NewReno,
            CongestionControl::Cubic,
            CongestionControl::Cubic,
            CongestionControl::Dctcp,
        ][random.below(4) as usize],
        // The kind needs no draw of its own, so seeds keep their scenarios.
        ecn: match (random.below(2), receive_bytes) {
            (0, ..=16_384) => EcnMode::Classic,
            (0, _) => EcnMode::Accurate,
            _ => EcnMode::Off,
        },
        pacing: random.below(4) == 0,
        nodelay: random.below(2) == 0,
        keepalive: (random.below(4) == 0).then(|| Keepalive {
            idle: Duration::from_secs(random.between(1, 60)),
            interval: Duration::from_secs(random.between(1, 10)),
            probes_max: PROBES_MAX,
        }),
        user_timeout: None,
        receive_bytes,
        receive_bytes_max: receive_bytes * [1, 4, 16][random.below(3) as usize],
        ..Options::default()
    }
}

/// Replaces the options that decide how fast a connection sends.
fn mix(random: &mut Random, options: &mut Options) {
    options.congestion = [
        CongestionControl::NewReno,
        CongestionControl::Cubic,
        CongestionControl::Dctcp,
        CongestionControl::Bbr,
    ][random.below(4) as usize];
    options.ecn = [EcnMode::Off, EcnMode::Classic, EcnMode::Accurate][random.below(3) as usize];
    options.pacing = random.below(2) == 0;
    options.receive_bytes = match random.below(4) {
        0 => random.between(600, 4_000) as u32,
        1 => random.between(4_000, 65_536) as u32,
        _ => random.between(65_536, 2 << 20) as u32,
    };
    options.receive_bytes_max = options.receive_bytes * [1, 1, 8][random.below(3) as usize];
    options.initial_window_segments = [0, 1, 2, 10, 10, 40][random.below(6) as usize];
}

fn draw_transfer(random: &mut Random, hosts: usize, is_v6: bool) -> Transfer {
    let client = random.below(hosts as u64) as usize;
    let server = (client + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
    Transfer {
        client,
        server,
        is_v6,
        is_simultaneous: false,
        start: Duration::from_millis(random.below(2_000)),
        options: draw_options(random),
        client_role: Role::draw(random),
        server_role: Role::draw(random),
    }
}
