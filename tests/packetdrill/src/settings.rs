//! The settings that a script wants for the stack. The script sets them by `sysctl`, and this
//! module reads them back.

use toehold_tcp::{
    Config, CongestionControl, Duration, EcnMode, InterfaceAddress, Medium, Offload, Options, Route,
};

/// The largest payload of one frame, if the runner asks for segmentation offload.
const SEGMENTATION_BYTES_MAX: u32 = 65_000;
const MTU: u16 = 1_500;

/// Those kernel settings for which the engine has a counterpart.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) receive_bytes: u32,
    pub(crate) receive_bytes_max: u32,
    pub(crate) send_bytes: u32,
    pub(crate) send_bytes_max: u32,
    pub(crate) unsent_bytes_max: u32,
    timestamps: bool,
    sack: bool,
    window_scaling: bool,
    /// 0: never; 1: request and accept ECN; 2: only accept it.
    ecn: u32,
    congestion: CongestionControl,
    syn_retries_max: u8,
    retries_max: u8,
    rto_max: Duration,
    /// The engine answers every SYN with a cookie.
    always_cookies: bool,
    restart_after_idle: bool,
    tail_probes: bool,
    segmentation: bool,
    /// The runner compares segments without the PSH bit.
    pub(crate) no_push: bool,
    mtu: u16,
}

impl Settings {
    /// Reads the settings of this network namespace. `flags` is the runner's `--so_flags`: the
    /// words `segmentation`, `no-push` and `mtu=BYTES`, separated by commas.
    pub(crate) fn read(flags: &str) -> Self {
        Self::from_lookup(flags, &|name| {
            std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()
        })
    }

    fn from_lookup(flags: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str, at: usize, otherwise: u32| {
            let text = lookup(name)?;
            let word = text.split_whitespace().nth(at)?;
            Some(word.parse().unwrap_or(otherwise))
        };
        let value = |name, at, otherwise| number(name, at, otherwise).unwrap_or(otherwise);
        let congestion = lookup("tcp_congestion_control").unwrap_or_default();
        Self {
            receive_bytes: value("tcp_rmem", 1, 131_072),
            receive_bytes_max: value("tcp_rmem", 2, 6_291_456),
            send_bytes: value("tcp_wmem", 1, 16_384),
            send_bytes_max: value("tcp_wmem", 2, 4_194_304),
            unsent_bytes_max: value("tcp_notsent_lowat", 0, u32::MAX),
            timestamps: value("tcp_timestamps", 0, 1) != 0,
            sack: value("tcp_sack", 0, 1) != 0,
            window_scaling: value("tcp_window_scaling", 0, 1) != 0,
            ecn: value("tcp_ecn", 0, 2),
            congestion: match congestion.trim() {
                "reno" => CongestionControl::NewReno,
                "dctcp" => CongestionControl::Dctcp,
                _ => CongestionControl::Cubic,
            },
            syn_retries_max: value("tcp_syn_retries", 0, 6).min(255) as u8,
            retries_max: value("tcp_retries2", 0, 15).min(255) as u8,
            rto_max: Duration::from_millis(value("tcp_rto_max_ms", 0, 120_000).into()),
            always_cookies: value("tcp_syncookies", 0, 1) == 2,
            restart_after_idle: value("tcp_slow_start_after_idle", 0, 1) != 0,
            tail_probes: value("tcp_early_retrans", 0, 3) != 0,
            segmentation: flags.split(',').any(|word| word == "segmentation"),
            no_push: flags.split(',').any(|word| word == "no-push"),
            mtu: flags
                .split(',')
                .find_map(|word| word.strip_prefix("mtu=")?.parse().ok())
                .unwrap_or(MTU),
        }
    }

    /// The engine's configuration. Scripts bind the addresses they use; these addresses are for
    /// scripts that do not.
    pub(crate) fn config(&self) -> Config {
        let v4 = InterfaceAddress {
            address: [192, 168, 0, 1].into(),
            prefix_bits: 16,
        };
        let mut config = Config::new(Medium::Ip, self.mtu, v4);
        config.addresses.push(InterfaceAddress {
            address: [0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1].into(),
            prefix_bits: 48,
        });
        let default_route = |any: core::net::IpAddr| Route {
            destination: any,
            prefix_bits: 0,
            gateway: any,
        };
        config.routes.push(default_route([0, 0, 0, 0].into()));
        config.routes.push(default_route([0u16; 8].into()));
        config.offload = Offload {
            transmit_checksum: false,
            segmentation_bytes_max: if self.segmentation {
                SEGMENTATION_BYTES_MAX
            } else {
                0
            },
        };
        config.connections_max = 64;
        config.timestamps = self.timestamps;
        config.sack = self.sack;
        config.window_scaling = self.window_scaling;
        config.syn_retries_max = self.syn_retries_max;
        config.retries_max = self.retries_max;
        config.rto_max = self.rto_max;
        if self.always_cookies {
            config.half_open_max = 0;
        }
        config.restart_after_idle = self.restart_after_idle;
        config.tail_probes = self.tail_probes;
        config.delayed_ack = Duration::from_millis(40);
        config
    }

    /// The options of a connection before the script changes them.
    pub(crate) fn options(&self, is_active: bool) -> Options {
        Options {
            congestion: self.congestion,
            // Linux, `enum tcp_ecn_mode`.
            ecn: match (self.ecn, is_active) {
                (0, _) | (2 | 5, true) => EcnMode::Off,
                (3, _) | (4 | 5, false) => EcnMode::Accurate,
                _ => EcnMode::Classic,
            },
            receive_bytes: self.receive_bytes,
            receive_bytes_max: self.receive_bytes_max,
            ..Options::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_namespace() {
        let lookup = |name: &str| match name {
            "tcp_rmem" => Some("4096\t540000\t15728640\n".to_owned()),
            "tcp_timestamps" => Some("0\n".to_owned()),
            "tcp_congestion_control" => Some("reno\n".to_owned()),
            "tcp_ecn" => Some("2\n".to_owned()),
            _ => None,
        };
        let settings = Settings::from_lookup("segmentation", &lookup);
        let config = settings.config();
        assert!(!config.timestamps && config.sack);
        assert_eq!(
            config.offload.segmentation_bytes_max,
            SEGMENTATION_BYTES_MAX
        );
        let options = settings.options(true);
        assert_eq!(options.receive_bytes_max, 15_728_640);
        assert_eq!(options.congestion, CongestionControl::NewReno);
        let accepting = settings.options(false);
        assert_eq!(
            (options.ecn, accepting.ecn),
            (EcnMode::Off, EcnMode::Classic)
        );
    }
}
