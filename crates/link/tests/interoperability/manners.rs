//! Settings of both ends, and marks of the link. A meeting has the usual settings or drawn ones.
//! Over many seeds all combinations occur.

use std::fs;

use toehold_tcp::{Config, CongestionControl, EcnMode, Options, Random};

use crate::cell::{Cell, Impairment};

/// Settings of the kernel that change how it sends or receives, each with values other than the
/// usual one. `ip-sysctl.rst` describes them.
const SYSCTLS: [(&str, &[&str]); 20] = [
    ("tcp_timestamps", &["0", "2"]),
    ("tcp_sack", &["0"]),
    ("tcp_dsack", &["0"]),
    ("tcp_window_scaling", &["0"]),
    ("tcp_ecn", &["0", "1"]),
    ("tcp_mtu_probing", &["1", "2"]),
    ("tcp_recovery", &["0", "2", "4"]),
    ("tcp_frto", &["0"]),
    ("tcp_early_retrans", &["0"]),
    ("tcp_congestion_control", &["reno", "cubic", "bbr"]),
    ("tcp_rmem", &["4096 4096 8192", "4096 20000 40000"]),
    ("tcp_wmem", &["4096 4096 8192", "4096 30000 60000"]),
    ("tcp_syncookies", &["0"]),
    ("tcp_shrink_window", &["1"]),
    ("tcp_slow_start_after_idle", &["0"]),
    ("tcp_comp_sack_nr", &["0", "255"]),
    ("tcp_autocorking", &["0"]),
    ("tcp_min_tso_segs", &["1", "16"]),
    ("tcp_limit_output_bytes", &["4096"]),
    ("tcp_reordering", &["1", "30"]),
];

/// The settings of the two ends of a meeting.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Manners {
    /// The seed with which settings are drawn; `None` means the usual settings.
    seed: Option<u64>,
    /// The cell's transfers are long.
    has_large_frames: bool,
    /// Frames are lost. Without SACK, a segment that is lost twice waits for the sender's timeout.
    /// Without timestamps, a doubled timeout stays doubled: timeouts grow to minutes, both in the
    /// kernel and in the engine.
    is_lossy: bool,
}

impl Manners {
    /// The settings that every host has.
    pub(crate) const USUAL: Manners = Manners {
        seed: None,
        has_large_frames: false,
        is_lossy: false,
    };

    /// The settings of a cell, drawn with this seed.
    pub(crate) fn drawn(cell: &Cell, seed: u64) -> Manners {
        let name = cell.to_string();
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Manners {
            seed: Some(name.bytes().fold(seed ^ 0x7031_3a99_e250_0001, mix)),
            has_large_frames: cell.link.offloads,
            is_lossy: matches!(
                cell.impairment,
                Impairment::Loss { .. } | Impairment::Corruption { .. }
            ),
        }
    }

    /// Sets the kernel of this thread's network namespace; returns the settings made. A setting
    /// that the kernel does not have, or not for a namespace, stays unchanged.
    pub(crate) fn set_kernel(self, cell: Cell) -> String {
        let mut said = String::new();
        let Some(seed) = self.seed else { return said };
        if self.has_fast_open() {
            // The value enables both sides, even for a listener that does not ask for it
            // (`ip-sysctl.rst`).
            let written = fs::write("/proc/sys/net/ipv4/tcp_fastopen", "0x403");
            said += &format!("tcp_fastopen=0x403 ({written:?}) ");
        }
        let mut random = Random::new(seed ^ 1);
        for (name, values) in SYSCTLS {
            let value = values[random.below(values.len() as u64) as usize];
            // Each setting sometimes differs alone, and sometimes together with others.
            let is_drawn = random.below(6) == 0;
            // Such a kernel rejects an acknowledgement whose number is beyond its current window,
            // even if its earlier window had room for that number (RFC 7323 section 2.4). So after
            // a loss both ends wait for their timeouts, which grow to minutes.
            let is_fit = match name {
                "tcp_shrink_window" => cell.impairment == Impairment::None,
                "tcp_sack" => !self.is_lossy,
                "tcp_rmem" | "tcp_wmem" => !cell.link.offloads,
                _ => true,
            };
            if is_drawn && is_fit && fs::write(format!("/proc/sys/net/ipv4/{name}"), value).is_ok()
            {
                said += &format!("{name}={value:?} ");
            }
        }
        said
    }

    /// Whether the connecting program sends its first bytes with the SYN (RFC 7413), and the
    /// listening program accepts them.
    pub(crate) fn has_fast_open(self) -> bool {
        let is_drawn = |seed| Random::new(seed ^ 5).below(2) == 0;
        self.seed.is_some_and(is_drawn)
    }

    /// Sets the configuration of an engine that is about to be made.
    pub(crate) fn set_engine(self, config: &mut Config) {
        let Some(seed) = self.seed else { return };
        let mut random = Random::new(seed ^ 2);
        let mut seldom = || random.below(6) == 0;
        config.timestamps = !seldom();
        config.sack = !seldom() || self.is_lossy;
        config.window_scaling = !seldom();
        config.tail_probes = !seldom();
        config.restart_after_idle ^= seldom();
    }

    /// The engine's options for each connection.
    pub(crate) fn options(self) -> Options {
        let mut options = Options::default();
        let Some(seed) = self.seed else {
            return options;
        };
        let mut random = Random::new(seed ^ 3);
        let mut of = |most: u64| random.below(most) as usize;
        options.congestion = [
            CongestionControl::Cubic,
            CongestionControl::NewReno,
            CongestionControl::Dctcp,
            CongestionControl::Bbr,
        ][of(4)];
        options.ecn = [EcnMode::Off, EcnMode::Classic, EcnMode::Accurate][of(3)];
        options.pacing = of(2) == 0;
        options.nodelay = of(2) == 0;
        // With small windows or segments, a transfer of many large frames takes minutes.
        let small = if self.has_large_frames {
            128 << 10
        } else {
            4_096
        };
        options.receive_bytes = [64 << 10, small, 1_000_000][of(3)];
        options.receive_bytes_max = options.receive_bytes * [1, 4][of(2)];
        options.initial_window_segments = [10, 1, 64][of(3)];
        if of(6) == 0 && !self.has_large_frames {
            options.mss_max = [88, 300, 1_000][of(3)];
        }
        options
    }

    /// One of this many ECN-capable packets is marked, as by a congested router (RFC 3168).
    pub(crate) fn marks_every(self) -> Option<u64> {
        let mut random = Random::new(self.seed? ^ 4);
        [None, Some(3), Some(20)][random.below(3) as usize]
    }
}
