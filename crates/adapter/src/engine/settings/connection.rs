//! The settings of connections: of all, and of those to certain destinations.

use std::net::SocketAddr;

use toehold_channel::offload::{Rule, RuleAction};
use toehold_tcp::{CongestionControl, Duration, EcnMode};

use super::rule::{rule, to_sixteen_bytes};
use super::value::{congestion, name_of, number, switch};
use super::words;
use crate::engine::report::NewConnections;
use crate::engine::rings::RING_BYTES_MAX;

/// The settings of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// The congestion control.
    pub congestion: CongestionControl,
    /// The mode of explicit congestion notification.
    pub ecn: EcnMode,
    /// Whether the connection spreads data over the round trip.
    pub pacing: bool,
    /// The initial congestion window, in segments.
    pub initial_window: u8,
    /// Most bytes in flight, each way.
    pub window_bytes: u32,
    /// The longest silence of the remote before it is probed, if the program has not set a time
    /// itself; `None`: no probes.
    pub keepalive: Option<Duration>,
    /// Whether payload may go with SYNs, where the program wants it (RFC 7413).
    pub fast_open: FastOpen,
}

/// Which connections Fast Open may open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastOpen {
    /// None.
    #[default]
    Off,
    /// Connections that programs make.
    Client,
    /// Connections that remotes make.
    Server,
    /// Both.
    On,
}

impl FastOpen {
    /// The most connections in their handshake at a listener whose program has requested a backlog
    /// of `wanted`.
    pub(in crate::engine) fn pending_max(self, wanted: usize) -> usize {
        match self {
            FastOpen::Off | FastOpen::Client => 0,
            FastOpen::Server | FastOpen::On => wanted,
        }
    }

    /// Whether SYNs may carry the first bytes of programs' connections.
    pub(in crate::engine) fn is_for_programs(self) -> bool {
        matches!(self, FastOpen::Client | FastOpen::On)
    }

    fn name(self) -> &'static str {
        match self {
            FastOpen::Off => "off",
            FastOpen::Client => "client",
            FastOpen::Server => "server",
            FastOpen::On => "on",
        }
    }

    fn named(value: &str) -> Result<FastOpen, String> {
        use FastOpen::{Client, Off, On, Server};
        let all = [Off, Client, Server, On];
        let found = all.into_iter().find(|one| one.name() == value);
        found.ok_or_else(|| format!("`{value}` is neither off, client, server nor on"))
    }
}

impl Default for ConnectionSettings {
    fn default() -> ConnectionSettings {
        ConnectionSettings {
            congestion: CongestionControl::default(),
            ecn: EcnMode::Off,
            pacing: true,
            initial_window: INITIAL_WINDOW_DEFAULT,
            window_bytes: WINDOW_MB_DEFAULT << 20,
            keepalive: None,
            fast_open: FastOpen::default(),
        }
    }
}

/// The settings of connections by their destination: a remote's address and port, or the engine's
/// own for connections that a remote makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByDestination {
    /// The settings of connections that no line matches.
    usual: ConnectionSettings,
    /// Of each setting, the first line that matches and names it decides.
    lines: Vec<DestinationLine>,
}

/// A line of the file that begins with `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DestinationLine {
    /// Its action says nothing.
    destination: Rule,
    named: Named,
}

/// The settings that a line or an option names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    congestion: Option<CongestionControl>,
    ecn: Option<EcnMode>,
    pacing: Option<bool>,
    initial_window: Option<u8>,
    window_bytes: Option<u32>,
    keepalive: Option<Option<Duration>>,
    fast_open: Option<FastOpen>,
}

fn ecn(value: &str) -> Result<EcnMode, String> {
    match value {
        "off" => Ok(EcnMode::Off),
        "on" => Ok(EcnMode::Classic),
        "accurate" => Ok(EcnMode::Accurate),
        _ => Err(format!("`{value}` is neither on, off nor accurate")),
    }
}

fn name_of_ecn(mode: EcnMode) -> &'static str {
    match mode {
        EcnMode::Off => "off",
        EcnMode::Classic => "on",
        EcnMode::Accurate => "accurate",
    }
}

impl ByDestination {
    pub(super) fn new(usual: Named, lines: Vec<DestinationLine>) -> ByDestination {
        ByDestination {
            usual: usual.over(ConnectionSettings::default()),
            lines,
        }
    }

    /// Changes the named settings of connections that no line matches.
    pub(super) fn change(&mut self, named: Named) {
        self.usual = named.over(self.usual);
    }

    /// The settings of a connection to this destination.
    pub fn of(&self, destination: SocketAddr) -> ConnectionSettings {
        let (ip, port) = (to_sixteen_bytes(destination.ip()), destination.port());
        let matching = self.lines.iter().rev();
        let matching = matching.filter(|line| line.destination.matches(ip, port));
        matching.fold(self.usual, |others, line| line.named.over(others))
    }

    /// For `toehold status`.
    pub(in crate::engine) fn reported(&self) -> NewConnections {
        let usual = &self.usual;
        NewConnections {
            window_mb: usual.window_bytes >> 20,
            congestion: name_of(usual.congestion),
            ecn: name_of_ecn(usual.ecn),
            pacing: usual.pacing,
            initial_window: usual.initial_window,
            keepalive_s: usual.keepalive.map(|idle| idle.as_micros() / 1_000_000),
            fast_open: usual.fast_open.name(),
            lines_by_destination: self.lines.len(),
        }
    }
}

impl Named {
    /// Takes a setting. False: the word is not a setting of connections.
    pub(super) fn set(&mut self, word: &str, value: &str) -> Result<bool, String> {
        match word {
            "congestion" => self.congestion = Some(congestion(value)?),
            "ecn" => self.ecn = Some(ecn(value)?),
            "pacing" => self.pacing = Some(switch(value)?),
            "initial-window" => {
                let what = "number of segments";
                self.initial_window = Some(number(value, what, 1..=INITIAL_WINDOW_MAX)?);
            }
            "window" => {
                let what = "number of megabytes";
                self.window_bytes = Some(number(value, what, 1..=WINDOW_MB_MAX)? << 20);
            }
            "keepalive" => {
                let what = "number of seconds";
                self.keepalive = Some(match value {
                    "off" => None,
                    _ => {
                        let seconds = number(value, what, 1..=KEEPALIVE_SECONDS_MAX);
                        let or_off = |cause| format!("{cause}, nor `off`");
                        Some(Duration::from_secs(seconds.map_err(or_off)?))
                    }
                });
            }
            "fast-open" => self.fast_open = Some(FastOpen::named(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The settings that are named here, and those of `others` for the rest.
    fn over(self, others: ConnectionSettings) -> ConnectionSettings {
        ConnectionSettings {
            congestion: self.congestion.unwrap_or(others.congestion),
            ecn: self.ecn.unwrap_or(others.ecn),
            pacing: self.pacing.unwrap_or(others.pacing),
            initial_window: self.initial_window.unwrap_or(others.initial_window),
            window_bytes: self.window_bytes.unwrap_or(others.window_bytes),
            keepalive: self.keepalive.unwrap_or(others.keepalive),
            fast_open: self.fast_open.unwrap_or(others.fast_open),
        }
    }
}

impl std::str::FromStr for DestinationLine {
    type Err = String;

    /// `CIDR[:PORT] SETTING VALUE [SETTING VALUE ...]`
    fn from_str(text: &str) -> Result<DestinationLine, String> {
        let mut given = text.split_ascii_whitespace();
        let destination = given
            .next()
            .ok_or("`to` takes a destination and settings")?;
        let mut line = DestinationLine {
            destination: rule(destination, RuleAction::Offload)?,
            named: Named::default(),
        };
        let mut earlier = Vec::new();
        while let Some(word) = given.next() {
            let value = given.next().ok_or(format!("`{word}` has no value"))?;
            if earlier.contains(&word) {
                return Err(format!("`{word}` is given twice: keep one of the two"));
            }
            earlier.push(word);
            if !line.named.set(word, value)? {
                return Err(format!(
                    "`{word}` is not a setting of a connection: {}",
                    words::of_connections()
                ));
            }
        }
        if earlier.is_empty() {
            return Err(format!(
                "`{destination}` has no setting: {}",
                words::of_connections()
            ));
        }
        Ok(line)
    }
}

/// RFC 6928; beyond, the first burst alone may fill the queue of a bottleneck.
const INITIAL_WINDOW_DEFAULT: u8 = 10;
const INITIAL_WINDOW_MAX: u8 = 64;
/// As on Linux (`TCP_KEEPIDLE`).
const KEEPALIVE_SECONDS_MAX: u64 = 32_767;
/// Enough for 1.3 Gbit/s at a round trip of 100 ms; and as much as a ring holds.
const WINDOW_MB_DEFAULT: u32 = 16;
const WINDOW_MB_MAX: u32 = (RING_BYTES_MAX >> 20) as u32;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> ByDestination {
        let lines = texts.iter().map(|text| text.parse().expect("understood"));
        ByDestination::new(Named::default(), lines.collect())
    }

    fn of(settings: &ByDestination, destination: &str) -> ConnectionSettings {
        settings.of(destination.parse().expect("an address"))
    }

    #[test]
    fn the_first_line_that_names_a_setting_decides() {
        let settings = lines(&[
            "10.84.0.7:80 congestion bbr",
            "10.84.0.0/24 congestion reno ecn on window 4",
            "[fd84::/64]:443 pacing off initial-window 4 keepalive 60",
        ]);
        let usual = ConnectionSettings::default();
        assert_eq!(of(&settings, "10.85.0.1:80"), usual);
        let near = of(&settings, "10.84.0.9:80");
        let reno = ConnectionSettings {
            congestion: CongestionControl::NewReno,
            ecn: EcnMode::Classic,
            window_bytes: 4 << 20,
            ..usual
        };
        assert_eq!(near, reno);
        let both = of(&settings, "10.84.0.7:80");
        let congestion = CongestionControl::Bbr;
        assert_eq!(both, ConnectionSettings { congestion, ..reno });
        assert_eq!(of(&settings, "10.84.0.7:81"), reno);
        let six = of(&settings, "[fd84::9]:443");
        assert_eq!((six.pacing, six.initial_window), (false, 4));
        assert_eq!(six.keepalive, Some(Duration::from_secs(60)));
        assert_eq!(of(&settings, "[fd84::9]:80"), usual);
    }

    #[test]
    fn fast_open_is_for_either_end() {
        let of = |value| FastOpen::named(value).expect("known");
        for (value, pending_max, is_for_programs) in [
            ("off", 0, false),
            ("client", 0, true),
            ("server", 7, false),
            ("on", 7, true),
        ] {
            assert_eq!(of(value).pending_max(7), pending_max, "{value}");
            assert_eq!(of(value).is_for_programs(), is_for_programs, "{value}");
            assert_eq!(of(value).name(), value);
        }
    }

    #[test]
    fn a_change_leaves_lines_as_they_are() {
        let mut settings = lines(&["10.84.0.7 ecn off keepalive off"]);
        for (word, value) in [("ecn", "on"), ("keepalive", "60"), ("window", "8")] {
            let mut named = Named::default();
            assert_eq!(named.set(word, value), Ok(true));
            settings.change(named);
        }
        let usual = of(&settings, "10.84.0.8:1");
        assert!(usual.ecn == EcnMode::Classic && usual.keepalive.is_some());
        let line = of(&settings, "10.84.0.7:1");
        assert!(line.ecn == EcnMode::Off && line.keepalive.is_none());
        assert_eq!(line.window_bytes, 8 << 20);
    }

    #[test]
    fn a_wrong_line_has_its_cause() {
        for (text, cause) in [
            ("", "takes a destination and settings"),
            ("10.84.0.7", "`10.84.0.7` has no setting: window, "),
            ("10.84.0.7 ecn", "`ecn` has no value"),
            ("10.84.0.7 ecn on ecn off", "`ecn` is given twice"),
            (
                "10.84.0.7 mtu 1500",
                "`mtu` is not a setting of a connection",
            ),
            (
                "10.84.0.7 fast-open yes",
                "`yes` is neither off, client, server nor on",
            ),
            ("10.84.0.7:0 ecn on", "`0` is not a port"),
            ("10.84.0.7 window 65", "not a number of megabytes (1 to 64)"),
            (
                "10.84.0.7 keepalive 0",
                "not a number of seconds (1 to 32767), nor `off`",
            ),
            ("redis ecn on", "`redis` is not an address"),
        ] {
            let error = text.parse::<DestinationLine>().expect_err("wrong");
            assert!(error.contains(cause), "{error}");
        }
    }
}
