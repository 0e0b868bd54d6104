//! Settings in the making: collected word by word from options and from a file.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toehold_channel::offload::{OWN_MAX, RULES_MAX, Rule, RuleAction};

use super::connection::{DestinationLine, Named};
use super::rule::{own_address, rule, rule_of, to_sixteen_bytes};
use super::value::{address, number, switch};
use super::{
    ByDestination, Checksum, CopyEngine, Device, DeviceKind, Settings, SettingsError, Share, share,
    words,
};
use crate::operator_file::text_of;

/// Settings in the making; [`Draft::finish`] checks them as a whole.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    device: Option<Device>,
    addresses: Vec<(IpAddr, u8)>,
    shares: Vec<Share>,
    outgoing: Option<RangeInclusive<u16>>,
    gateways: Vec<IpAddr>,
    mtu: Option<u16>,
    without: Vec<String>,
    switches: BTreeMap<&'static str, bool>,
    checksum: Option<Checksum>,
    copy_engine: Option<CopyEngine>,
    copybreak: Option<Option<usize>>,
    coalesce_us: Option<u64>,
    batch: Option<usize>,
    quota: Option<usize>,
    memory_mb: Option<usize>,
    usual: Named,
    destinations: Vec<DestinationLine>,
    threads: Option<usize>,
    rules: Vec<Rule>,
    /// At least one setting was given.
    is_begun: bool,
}

impl Draft {
    /// Takes one setting.
    ///
    /// # Errors
    /// A sentence about the word or the value.
    pub fn set(&mut self, word: &str, value: &str) -> Result<(), SettingsError> {
        self.try_set(word, value).map_err(SettingsError::Value)
    }

    fn try_set(&mut self, word: &str, value: &str) -> Result<(), String> {
        self.is_begun = true;
        match word {
            "link" => self.device = Some(value.parse()?),
            "address" => {
                let (ip, bits) = own_address(value)?;
                if self.addresses.iter().any(|(own, _)| *own == ip) {
                    return Err(format!("`{ip}` is an address of the engine's already"));
                }
                self.addresses.push((ip, bits));
            }
            "share" => {
                let share: Share = value.parse()?;
                if self.shares.iter().any(|other| other.ip == share.ip) {
                    let ip = share.ip;
                    return Err(format!(
                        "`{ip}` is shared already: give all its ports at once, {ip}:80,443"
                    ));
                }
                self.shares.push(share);
            }
            "outgoing" => self.outgoing = Some(share::port_range(value)?),
            "gateway" => self.gateways.push(address(value)?),
            "mtu" => self.mtu = Some(number(value, "packet size", MTU_MIN..=u16::MAX)?),
            "without" => match value {
                "lso" | "lro" | "checksum" => self.without.push(value.to_owned()),
                _ => return Err(format!("`{value}` is not an offload: lso, lro, checksum")),
            },
            "lso" => drop(self.switches.insert("lso", switch(value)?)),
            "lro" => drop(self.switches.insert("lro", switch(value)?)),
            "checksum" => self.checksum = Some(value.parse()?),
            "split-headers" => drop(self.switches.insert("split-headers", switch(value)?)),
            "copy-engine" => self.copy_engine = Some(value.parse()?),
            "copybreak" => {
                self.copybreak = Some(match value {
                    "auto" => None,
                    _ => {
                        let bytes = number(value, "number of bytes", 1..=COPYBREAK_MAX);
                        Some(bytes.map_err(|cause| format!("{cause}, nor `auto`"))?)
                    }
                });
            }
            "coalesce" => {
                let what = "time in microseconds";
                self.coalesce_us = Some(number(value, what, 0..=COALESCE_US_MAX)?);
            }
            "batch" => self.batch = Some(number(value, "number of frames", 1..=BATCH_MAX)?),
            "quota" => self.quota = Some(number(value, "number of connections", 1..=QUOTA_MAX)?),
            "memory" => {
                let what = "number of megabytes";
                self.memory_mb = Some(number(value, what, MEMORY_MB_MIN..=MEMORY_MB_MAX)?);
            }
            "to" => self.destinations.push(value.parse()?),
            "threads" => {
                let what = "number of engine threads";
                self.threads = Some(number(value, what, 1..=THREADS_MAX)?);
            }
            "offload" => self.rules.push(rule(value, RuleAction::Offload)?),
            "host" => self.rules.push(rule(value, RuleAction::Host)?),
            "direct" => self.rules.push(rule(value, RuleAction::Direct)?),
            _ if self.usual.set(word, value)? => {}
            _ => {
                return Err(format!("`{word}` is not a setting: {}", words::list()));
            }
        }
        Ok(())
    }

    /// Takes every line of a file.
    ///
    /// # Errors
    /// The line, with its error.
    pub fn read(&mut self, file: &Path) -> Result<(), SettingsError> {
        let text = text_of(file).map_err(|error| SettingsError::File(file.into(), error))?;
        let mut lines_of = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let text = line.split('#').next().unwrap_or_default().trim();
            let (word, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            if word.is_empty() {
                continue;
            }
            let earlier = lines_of.insert(word, index + 1);
            let values = value.split_ascii_whitespace().count();
            let set = match earlier {
                _ if values != 1 && words::is_known(word) && !words::takes_many(word) => {
                    Err(format!("`{word}` takes one value"))
                }
                Some(line) if words::is_single(word) => Err(format!(
                    "`{word}` is set already, on line {line}: keep one of the two"
                )),
                _ => self.try_set(word, value.trim()),
            };
            set.map_err(|cause| SettingsError::Line {
                file: file.into(),
                line: index + 1,
                cause,
            })?;
            if let ("share", Some(share)) = (word, self.shares.last_mut()) {
                share.origin = Some(format!("{}, line {}", file.display(), index + 1));
            }
        }
        Ok(())
    }

    /// The settings as a whole; `None` when there are none at all.
    ///
    /// # Errors
    /// When something is missing or contradicts something else.
    pub fn finish(self) -> Result<Option<Settings>, SettingsError> {
        let whole = |cause| Err(SettingsError::Whole(cause));
        let Some(device) = self.device.clone() else {
            return match self.is_begun {
                false => Ok(None),
                true => whole(
                    "an engine needs a link: --link tap:NAME, packet:INTERFACE or xdp:INTERFACE",
                ),
            };
        };
        self.check_addresses(device.kind)?;
        self.check_gateways()?;
        // AF_XDP hands over frames as they are on the wire, and takes only complete frames.
        let helps = device.kind != DeviceKind::Xdp;
        let is_without = |word: &str| self.without.iter().any(|without| without == word);
        let is_on = |word: &str| self.switches.get(word).copied();
        let has = |word: &str| helps && is_on(word).unwrap_or(true) && !is_without(word);
        let checksum = match self.checksum.unwrap_or_default() {
            Checksum::Trust if !helps => Checksum::Trust,
            _ if !helps || is_without("checksum") => Checksum::Off,
            checksum => checksum,
        };
        if device.kind == DeviceKind::Packet && !has("lro") {
            return whole(NO_LRO);
        }
        let settings = Settings {
            device,
            lso: has("lso") && checksum.is_by_link(),
            lro: has("lro") && checksum.is_by_link(),
            checksum,
            split_headers: is_on("split-headers").unwrap_or(true),
            copy_engine: self.copy_engine.unwrap_or_default(),
            copybreak: self.copybreak.flatten(),
            addresses: match self.shares.is_empty() {
                true => self.addresses,
                false => self.shares.iter().map(Share::alone).collect(),
            },
            shares: self.shares,
            outgoing: self.outgoing,
            gateways: self.gateways,
            mtu: self.mtu,
            coalesce: Duration::from_micros(self.coalesce_us.unwrap_or(0)),
            batch: self.batch.unwrap_or(BATCH_DEFAULT),
            quota: self.quota.unwrap_or(QUOTA_DEFAULT),
            memory_bytes: self.memory_mb.unwrap_or(MEMORY_MB_DEFAULT) << 20,
            connections: ByDestination::new(self.usual, self.destinations),
            threads: self.threads.unwrap_or(1),
            rules: self.rules,
        };
        if settings.all_rules().len() > RULES_MAX {
            return whole("more rules than an engine can show its clients (64)");
        }
        Ok(Some(settings))
    }

    /// Refuses an engine without an address, and addresses that it cannot have.
    fn check_addresses(&self, kind: DeviceKind) -> Result<(), SettingsError> {
        let whole = |cause| Err(SettingsError::Whole(cause));
        if self.addresses.is_empty() && self.shares.is_empty() {
            return whole(
                "an engine needs an address of its own, --address 10.84.0.2/24, or one of the \
                host's, --share 192.0.2.7:80",
            );
        }
        if !self.shares.is_empty() {
            self.check_shares(kind)?;
        } else if self.outgoing.is_some() {
            return whole(
                "`outgoing` names ports of an address that is the host's, too: share 192.0.2.7",
            );
        }
        if self.addresses.len() > OWN_MAX {
            return whole("more addresses than an engine can have (16)");
        }
        let own = self.addresses.iter().map(|(ip, _)| *ip);
        let mut all = own.chain(self.shares.iter().map(|share| share.ip));
        match self.mtu.is_some_and(|mtu| mtu < MTU_MIN_V6) && all.any(|ip| ip.is_ipv6()) {
            true => whole("IPv6 needs an MTU of 1280 or more (RFC 8200)"),
            false => Ok(()),
        }
    }

    /// Refuses gateways that the link does not lead to, and more than one of a family.
    fn check_gateways(&self) -> Result<(), SettingsError> {
        let whole = |cause| Err(SettingsError::Whole(cause));
        let of_family = |v4: bool| self.gateways.iter().filter(move |ip| ip.is_ipv4() == v4);
        if of_family(true).count() > 1 || of_family(false).count() > 1 {
            return whole("there can be only one gateway of each address family");
        }
        let is_own = |gateway: &IpAddr| self.addresses.iter().any(|(own, _)| own == gateway);
        if self.gateways.iter().any(is_own) {
            return whole("a gateway is another host, and not an address of the engine's own");
        }
        let is_on_link = |gateway: &IpAddr| {
            let prefix = |&(ip, bits): &(IpAddr, u8)| rule_of(ip, bits, 0, RuleAction::Host);
            let mut prefixes = self.addresses.iter().map(prefix);
            prefixes.any(|prefix| prefix.matches(to_sixteen_bytes(*gateway), 0))
        };
        match self.gateways.iter().all(is_on_link) {
            true => Ok(()),
            false => whole("a gateway has to be in the prefix of one of the addresses"),
        }
    }

    /// Refuses settings that do not go together with shared addresses.
    fn check_shares(&self, kind: DeviceKind) -> Result<(), SettingsError> {
        let whole = |cause| Err(SettingsError::Whole(cause));
        if !self.addresses.is_empty() {
            return whole(
                "`share` and `address` do not go together: the engine has addresses of its own or \
                the host's",
            );
        }
        if !self.gateways.is_empty() {
            return whole("with `share` the kernel's routes are used: leave `gateway` out");
        }
        let is_offload = |rule: &Rule| rule.action == RuleAction::Offload;
        if self.outgoing.is_none() && self.rules.iter().any(is_offload) {
            return whole(
                "with `share` connections of this host's programs are the kernel's: leave \
                `offload` out, or say from which ports they go: outgoing 61000-65535",
            );
        }
        if self.shares.len() > OWN_MAX {
            return whole("more addresses than an engine can have (16)");
        }
        match kind {
            DeviceKind::Tap => whole(
                "an address is shared on the interface that has it: --link packet:INTERFACE or \
                xdp:INTERFACE",
            ),
            DeviceKind::Packet | DeviceKind::Xdp => Ok(()),
        }
    }
}

impl Settings {
    /// Changes a setting that can be changed while the engine runs.
    ///
    /// # Errors
    /// A sentence about the word or the value.
    pub fn change(&mut self, word: &str, value: &str) -> Result<(), SettingsError> {
        let mut draft = Draft::default();
        draft.set(word, value)?;
        let is_on = draft.switches.get(word).copied().unwrap_or(true);
        let fixed = |cause: String| Err(SettingsError::Value(cause));
        match word {
            "lso" | "lro" if self.device.kind == DeviceKind::Xdp => {
                return fixed(format!("an xdp link has no {word}: frames are whole there"));
            }
            "lro" if self.device.kind == DeviceKind::Packet => return fixed(NO_LRO.into()),
            "lso" | "lro" if is_on && !self.checksum.is_by_link() => {
                return fixed(format!("{word} needs checksum=on"));
            }
            "lso" => self.lso = is_on,
            "lro" => self.lro = is_on,
            "checksum" => {
                let checksum = draft.checksum.unwrap_or_default();
                let is_whole = self.device.kind == DeviceKind::Xdp;
                if is_whole && matches!(checksum, Checksum::On | Checksum::Verify) {
                    return fixed(format!(
                        "an xdp link has no checksum={}: frames are whole there, and the engine \
                        verifies them (off), or nobody does (trust)",
                        checksum.name()
                    ));
                }
                self.checksum = checksum;
                self.lso &= checksum.is_by_link();
                self.lro &= checksum.is_by_link();
            }
            "split-headers" => self.split_headers = is_on,
            "copy-engine" => self.copy_engine = draft.copy_engine.unwrap_or_default(),
            "copybreak" => self.copybreak = draft.copybreak.flatten(),
            "coalesce" => {
                self.coalesce = Duration::from_micros(draft.coalesce_us.unwrap_or_default());
            }
            "batch" => self.batch = draft.batch.unwrap_or(BATCH_DEFAULT),
            "quota" => self.quota = draft.quota.unwrap_or(QUOTA_DEFAULT),
            "memory" => {
                self.memory_bytes = draft.memory_mb.unwrap_or(MEMORY_MB_DEFAULT) << 20;
            }
            _ if words::is_of_connections(word) => self.connections.change(draft.usual),
            _ => {
                return fixed(format!(
                    "`{word}` cannot be changed while the adapter runs: {}",
                    words::changeable()
                ));
            }
        }
        Ok(())
    }
}

/// RFC 791: every host must take 576 bytes; less than 68 is no IP.
const MTU_MIN: u16 = 576;
/// RFC 8200 section 5; the kernel has no IPv6 on an interface with less.
const MTU_MIN_V6: u16 = 1_280;
/// A longer wait would look like an outage.
const COALESCE_US_MAX: u64 = 10_000;
/// Frames taken in a row, and most of them.
const BATCH_DEFAULT: usize = 256;
const BATCH_MAX: usize = 65_536;
/// The longest payload.
const COPYBREAK_MAX: usize = 65_536;
const NO_LRO: &str = "a packet link takes segments as its interface has them: ethtool -K \
    INTERFACE gro off, and tso off at the other end of a veth";
/// Connections of one program, and most of them.
const QUOTA_DEFAULT: usize = 32_768;
/// At least a first ring each way for some hundred connections of each thread.
const MEMORY_MB_MIN: usize = 64;
const MEMORY_MB_MAX: usize = 1 << 20;
const MEMORY_MB_DEFAULT: usize = 1_024;
const QUOTA_MAX: usize = 1 << 20;
/// Each is a client of the adapter, which serves no more than 32 of one process.
const THREADS_MAX: usize = 16;

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::net::SocketAddr;

    use super::*;
    use toehold_tcp::{CongestionControl, EcnMode};

    pub(in super::super) fn draft(settings: &[(&str, &str)]) -> Draft {
        let mut draft = Draft::default();
        for (word, value) in settings {
            draft.set(word, value).expect("valid");
        }
        draft
    }

    #[test]
    fn a_whole_file_is_understood() {
        let scratch = tempfile::NamedTempFile::new().expect("scratch file");
        let text = "# a comment\nlink tap:toe0@peer\n\n\
            address 10.84.0.2/24 # ours\naddress fd84::2/64\n\
                    gateway 10.84.0.1\nmtu 9000\nwithout lso\ncoalesce 50\nbatch 8\nquota \
                    5\nthreads 2\ncongestion reno\necn on\npacing off\ninitial-window 4\n\
            keepalive 60\nwindow 32\noffload [fd00::/8]:80\nhost 10.84.0.9\n";
        fs::write(scratch.path(), text).expect("written");
        let mut draft = Draft::default();
        draft.read(scratch.path()).expect("understood");
        let settings = draft.finish().expect("whole").expect("there");
        assert_eq!(settings.device.namespace.as_deref(), Some("peer"));
        assert_eq!(
            (settings.lso, settings.lro, settings.mtu),
            (false, true, Some(9000))
        );
        assert_eq!(
            (settings.coalesce, settings.batch),
            (Duration::from_micros(50), 8)
        );
        assert_eq!((settings.quota, settings.threads), (5, 2));
        let anywhere = SocketAddr::from(([10, 84, 0, 7], 80));
        let options = crate::engine::tcp_config::options(&settings.connections.of(anywhere));
        assert_eq!(options.congestion, CongestionControl::NewReno);
        assert_eq!((options.ecn, options.pacing), (EcnMode::Classic, false));
        let idle = options.keepalive.map(|keepalive| keepalive.idle);
        assert_eq!(idle, Some(toehold_tcp::Duration::from_secs(60)));
        assert_eq!(options.receive_bytes_max, 32 << 20);
        assert_eq!(options.initial_window_segments, 4);
        assert_eq!(settings.rules.len(), 2);
        assert_eq!(settings.rules[0].port, 80);
        let action = |ip: &str, port| {
            let ip = to_sixteen_bytes(ip.parse().expect("address"));
            let rules = settings.all_rules();
            rules
                .iter()
                .find(|rule| rule.matches(ip, port))
                .map(|rule| rule.action)
        };
        assert_eq!(action("fd00::1", 80), Some(RuleAction::Offload));
        assert_eq!(action("fd00::1", 81), None);
        assert_eq!(action("10.84.0.9", 1), Some(RuleAction::Host));
        assert_eq!(action("10.84.0.2", 1), Some(RuleAction::OffloadOnRequest));
        assert_eq!(action("10.84.0.7", 1), Some(RuleAction::OffloadOnRequest));
        assert_eq!(action("8.8.8.8", 1), Some(RuleAction::OffloadOnRequest));
        assert_eq!(action("127.0.0.1", 1), Some(RuleAction::Direct));
    }

    #[test]
    fn a_wrong_line_is_named_with_its_cause() {
        let scratch = tempfile::NamedTempFile::new().expect("scratch file");
        for (line, cause) in [
            ("address 10.0.0.2/33", "no prefix length"),
            (
                "address 10.0.0.2",
                "no prefix length, which says which hosts are on the link",
            ),
            (
                "address 10.0.0.0/24",
                "is a network and not the address of a host: 10.0.0.1/24",
            ),
            (
                "address 10.0.0.255/24",
                "is the broadcast address of its network",
            ),
            ("address fd84::/64", "not the address of a host: fd84::1/64"),
            ("address 0.0.0.0/0", "not the address of an interface"),
            ("address 127.0.0.1/8", "not the address of an interface"),
            ("address 224.0.0.1/8", "not the address of an interface"),
            (
                "address 255.255.255.255/32",
                "not the address of an interface",
            ),
            ("address ::1/128", "not the address of an interface"),
            ("link eth:toe0", "not a link"),
            ("threads 2", "is set already, on line 1"),
            ("link", "takes one value"),
            ("linc tap:a tap:b", "`linc` is not a setting: link, "),
            ("route 10.0.0.0/8", "not a setting"),
            ("mtu 60", "not a packet size (576 to 65535)"),
            ("offload 10.0.0.0/", "no prefix length from 0 to 32"),
            (
                "offload [fd84::/64]80",
                "`80` is not a port: expected :PORT",
            ),
            ("coalesce 10001", "not a time"),
            ("batch 0", "not a number of frames"),
            ("quota 0", "not a number of connections"),
            ("quota 1048577", "not a number of connections"),
            (
                "congestion vegas",
                "not a congestion control: cubic, reno, dctcp, bbr",
            ),
            ("ecn yes", "`yes` is neither on, off nor accurate"),
            ("pacing 1", "`1` is neither on nor off"),
            ("initial-window 65", "not a number of segments (1 to 64)"),
            (
                "copy-engine gpu",
                "not a copy engine: off, worker, dsa, dmadev",
            ),
            (
                "copybreak 65537",
                "not a number of bytes (1 to 65536), nor `auto`",
            ),
            ("split-headers 1", "`1` is neither on nor off"),
            ("lro yes", "`yes` is neither on nor off"),
            ("keepalive 0", "not a number of seconds (1 to 32767)"),
            ("window 65", "`65` is not a number of megabytes (1 to 64)"),
            ("offload 10.0.0.0/8:0", "not a port"),
        ] {
            fs::write(scratch.path(), format!("threads 1\n{line}\n")).expect("written");
            let error = Draft::default().read(scratch.path()).expect_err("wrong");
            let words = error.to_string();
            assert!(words.contains("line 2") && words.contains(cause), "{words}");
        }
    }

    #[test]
    fn settings_without_a_link_are_refused() {
        for (word, value) in [
            ("address", "10.84.0.2/24"),
            ("congestion", "bbr"),
            ("threads", "2"),
            ("quota", "5"),
            ("to", "10.0.0.0/8 window 4"),
            ("without", "lso"),
        ] {
            let mut draft = Draft::default();
            draft.set(word, value).expect("a setting");
            let error = draft.finish().expect_err("no link").to_string();
            assert!(error.contains("an engine needs a link"), "{word}: {error}");
        }
        assert!(matches!(Draft::default().finish(), Ok(None)));
    }

    #[test]
    fn the_manual_has_every_word_and_no_other() {
        for one in words::WORDS {
            let error = Draft::default()
                .set(one.word, "?")
                .err()
                .map(|error| error.to_string());
            let error = error.expect("`?` is not a value");
            assert!(!error.contains("is not a setting"), "{error}");
        }
        let unknown = Draft::default().set("route", "?").expect_err("no setting");
        assert!(unknown.to_string().contains(&words::list()));
    }

    #[test]
    fn switches_change_while_the_engine_runs_and_nothing_else_does() {
        let settings = |link| {
            let draft = draft(&[("link", link), ("address", "10.0.0.2/24")]);
            draft.finish().expect("whole").expect("there")
        };
        let before = settings("tap:toe0");
        assert!(before.split_headers && !before.copy_engine.is_on());
        for word in words::WORDS.iter().filter(|one| one.changes) {
            let value = match word.value {
                value if value.contains("off") => "off",
                "cubic|reno|dctcp|bbr" => "reno",
                _ => "64",
            };
            let mut after = before.clone();
            after.change(word.word, value).expect(word.word);
        }
        for word in words::WORDS.iter().filter(|one| !one.changes) {
            let value = match word.word {
                "link" => "tap:toe0",
                "address" => "10.0.0.2/24",
                "without" => "lso",
                "threads" => "2",
                "mtu" => "1500",
                "outgoing" => "61000-65535",
                "to" => "10.0.0.1 ecn on",
                _ => "10.0.0.1",
            };
            let error = before.clone().change(word.word, value);
            let error = error.expect_err(word.word).to_string();
            assert!(error.contains("cannot be changed"), "{error}");
        }
        let mut after = before.clone();
        after.change("checksum", "off").expect("a switch");
        assert!(!after.lso && !after.lro && !after.checksum.is_by_link());
        for other in [Checksum::Trust, Checksum::Verify] {
            let mut after = before.clone();
            after.change("checksum", other.name()).expect("a way");
            assert_eq!(after.checksum, other);
            assert!(after.lso && after.lro);
        }
        let error = after.change("checksum", "maybe").expect_err("no way");
        let ways = "`maybe` is not a checksum mode: on, verify, trust, off";
        assert!(error.to_string().contains(ways), "{error}");
        let error = after.change("lro", "on").expect_err("without checksums");
        assert!(error.to_string().contains("needs checksum=on"));
        let mut packet = settings("packet:eth0");
        assert!(packet.change("lro", "off").is_err() && packet.change("lso", "off").is_ok());
        let mut xdp = settings("xdp:eth0");
        assert_eq!(xdp.checksum, Checksum::Off);
        assert!(xdp.change("checksum", "on").is_err());
        assert!(xdp.change("checksum", "trust").is_ok());
        assert_eq!(xdp.checksum, Checksum::Trust);
    }

    #[test]
    fn a_prefix_of_one_or_two_addresses_has_hosts_only() {
        for address in [
            "10.0.0.0/31",
            "10.0.0.1/31",
            "10.0.0.0/32",
            "fd84::/127",
            "10.0.0.255/16",
        ] {
            draft(&[("address", address)]);
        }
    }

    #[test]
    fn an_address_is_named_once() {
        for (word, first, again, cause) in [
            (
                "address",
                "10.0.0.2/24",
                "10.0.0.2/16",
                "the engine's already",
            ),
            ("share", "192.0.2.7:80", "192.0.2.7:81", "is shared already"),
        ] {
            let scratch = tempfile::NamedTempFile::new().expect("scratch file");
            fs::write(scratch.path(), format!("{word} {first}\n{word} {again}\n"))
                .expect("written");
            let error = Draft::default().read(scratch.path()).expect_err("twice");
            let words = error.to_string();
            assert!(words.contains("line 2") && words.contains(cause), "{words}");
        }
    }

    #[test]
    fn ipv6_needs_an_mtu_of_its_own() {
        let narrow = [
            ("link", "tap:toe0"),
            ("address", "fd84::2/64"),
            ("mtu", "1279"),
        ];
        let error = draft(&narrow).finish().expect_err("too narrow").to_string();
        assert!(error.contains("1280 or more"), "{error}");
    }

    #[test]
    fn what_is_missing_is_said() {
        assert!(draft(&[]).finish().expect("nothing wanted").is_none());
        for settings in [
            &[("address", "10.0.0.2/24")][..],
            &[("link", "tap:toe0")],
            &[
                ("link", "tap:a"),
                ("address", "10.0.0.2/24"),
                ("gateway", "10.0.1.1"),
            ],
            &[
                ("link", "tap:a"),
                ("address", "10.0.0.2/24"),
                ("gateway", "10.0.0.2"),
            ],
        ] {
            assert!(draft(settings).finish().is_err(), "{settings:?}");
        }
    }
}
