//! The operator's settings of the engine: its link, its addresses, its routes, and which
//! destinations are its business.
//!
//! These words serve as command line options and, one to a line, as a file:
//!
//! ```text
//!   # the link, and who we are on it
//!   link     tap:toe0            a TAP device of this network namespace
//!   link     tap:toe0@peer       one of the namespace `peer`, as `ip netns` names it
//!   link     packet:eth0         an existing interface: a network card, a veth; also with @peer
//!   link     xdp:eth0            by AF_XDP; frames for other addresses stay with the kernel
//!   address  10.84.0.2/24
//!   share    192.0.2.7:80,443     instead of `address`: these ports of the host's own address
//!   outgoing 61000-65535          connections of programs go out from these ports of it
//!   gateway  10.84.0.1
//!   mtu      9000
//!   without  lso                 also: lro, checksum
//!   lro      off                 the same, spelled as a switch; also lso
//!   checksum verify              of those that arrive, here; or trust, off
//!   split-headers off            payload of large frames goes by a buffer of the adapter's
//!   copy-engine worker           payload is copied by a thread of its own, or by a device
//!   copybreak 16384              from so many bytes on
//!   coalesce 50                  after each wake-up, wait so many microseconds for more work
//!   batch    256                 most frames taken before everybody else's turn
//!   quota    32768               most connections of one program at a time
//!   memory   1024                megabytes for bytes in flight, of all connections
//!   window   16                  most megabytes of one connection in flight, each way
//!   congestion cubic             or reno, dctcp, bbr, of new connections
//!   ecn      on                  explicit congestion notification, of new connections
//!   pacing   off                 data in bursts over long paths, too
//!   initial-window 10            segments of the first burst
//!   keepalive 60                 probe remotes that are silent for so many seconds
//!   to 10.85.0.0/16 congestion bbr window 64    for connections there, the last six otherwise
//!   threads  2                   engine threads, each with a queue of the device
//!   offload  10.84.0.0/24:6379   connections there are the engine's, whoever makes them
//!   host     10.84.0.9           connections there are the kernel's, always
//!   direct   10.84.0.8           connections there use the kernel or shared memory
//! ```

mod checksum;
mod connection;
mod copy_engine;
mod share;
pub mod words;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use toehold_channel::offload::{OWN_MAX, RULES_MAX, Rule, RuleAction};
use toehold_channel::rendezvous::mapped;
use toehold_tcp::{CongestionControl, Route};

pub use self::checksum::Checksum;
pub use self::connection::{ByDestination, ConnectionSettings};
use self::connection::{DestinationLine, Named};
pub use self::copy_engine::CopyEngine;
pub use self::share::Share;
use super::rings::RING_BYTES_MAX;

/// Everything an engine needs to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The link's device.
    pub device: Device,
    /// The engine's addresses, each with its prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The host's addresses that the engine shares with the kernel, which are then all that it has:
    /// `addresses` are these, with the prefix lengths that the kernel knows.
    pub shares: Vec<Share>,
    /// Ports of shared addresses from which connections of programs go out; `None`: these are the
    /// kernel's.
    pub outgoing: Option<RangeInclusive<u16>>,
    /// The kernel's routes, where addresses are shared.
    pub(super) host_routes: Vec<Route>,
    /// Where everything beyond the link goes; at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// The largest IP packet; the device's own when `None`.
    pub mtu: Option<u16>,
    /// The kernel cuts our segments.
    pub lso: bool,
    /// The kernel hands us segments uncut.
    pub lro: bool,
    /// The work with checksums. An xdp link does none of it, whatever this says.
    pub checksum: Checksum,
    /// Payload of large frames is received straight into the program's ring, and headers apart.
    pub split_headers: bool,
    /// The copy engine for payload that does not arrive where it belongs.
    pub copy_engine: CopyEngine,
    /// Shorter payload is copied at once. `None`: as the copy engine is calibrated.
    pub copybreak: Option<usize>,
    /// How long the engine waits after a wake-up for more to be done at once.
    pub coalesce: Duration,
    /// Most frames taken off the link before everybody else's turn.
    pub batch: usize,
    /// Most connections of one program at a time: those it made, and those that others made to what
    /// it listens on.
    pub quota: usize,
    /// Most memory of the engine's own for bytes in flight, of all connections together.
    pub memory_bytes: usize,
    /// How new connections behave.
    pub connections: ByDestination,
    /// Threads of the engine, each with its share of the device's frames.
    pub threads: usize,
    /// Rules before those that follow from the addresses and gateways.
    pub rules: Vec<Rule>,
}

/// Where the frames come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device's kind.
    pub kind: DeviceKind,
    /// The device's name.
    pub name: String,
    /// The network namespace it is in, by its name in `ip netns` or by an absolute path
    /// (`/proc/PID/ns/net`); ours when `None`.
    pub namespace: Option<String>,
}

/// The kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A TAP device, at whose other end is the kernel.
    Tap,
    /// A packet socket on an interface that is there already.
    Packet,
    /// AF_XDP sockets on such an interface: frames for our addresses are ours, all others the
    /// kernel's.
    Xdp,
}

impl Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Tap => "tap",
            DeviceKind::Packet => "packet",
            DeviceKind::Xdp => "xdp",
        };
        write!(out, "{kind}:{}", self.name)?;
        match &self.namespace {
            Some(namespace) => write!(out, "@{namespace}"),
            None => Ok(()),
        }
    }
}

/// The error in a setting, in words.
#[derive(Debug)]
pub enum SettingsError {
    /// A value.
    Value(String),
    /// A line of a file.
    Line {
        /// The file.
        file: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// The error.
        cause: String,
    },
    /// The file could not be read.
    File(PathBuf, io::Error),
    /// Settings that do not go together, or are missing.
    Whole(&'static str),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Value(cause) => out.write_str(cause),
            SettingsError::Line { file, line, cause } => {
                write!(out, "{}, line {line}: {cause}", file.display())
            }
            SettingsError::File(file, error) => {
                write!(out, "cannot read {}: {error}", file.display())
            }
            SettingsError::Whole(cause) => out.write_str(cause),
        }
    }
}

impl std::error::Error for SettingsError {}

/// Settings as they come in; [`Draft::finish`] looks at the whole.
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
    /// A setting has come in, whichever.
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
            "link" => self.device = Some(device(value)?),
            "address" => self.addresses.push(own_address(value)?),
            "share" => self.shares.push(value.parse()?),
            "outgoing" => self.outgoing = Some(share::port_range(value)?),
            "gateway" => self.gateways.push(address(value)?),
            "mtu" => self.mtu = Some(number(value, "MTU", MTU_MIN..=u16::MAX)?),
            "without" => match value {
                "lso" | "lro" | "checksum" => self.without.push(value.to_owned()),
                _ => return Err(format!("`{value}` is no offload: lso, lro, checksum")),
            },
            "lso" => drop(self.switches.insert("lso", switch(value)?)),
            "lro" => drop(self.switches.insert("lro", switch(value)?)),
            "checksum" => self.checksum = Some(value.parse()?),
            "split-headers" => drop(self.switches.insert("split-headers", switch(value)?)),
            "copy-engine" => self.copy_engine = Some(value.parse()?),
            "copybreak" => {
                self.copybreak = Some(match value {
                    "auto" => None,
                    _ => Some(number(value, "number of bytes", 1..=COPYBREAK_MAX)?),
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
                return Err(format!("`{word}` is no setting: {}", words::list()));
            }
        }
        Ok(())
    }

    /// Takes every line of a file.
    ///
    /// # Errors
    /// With the line and what is wrong with it.
    pub fn read(&mut self, file: &Path) -> Result<(), SettingsError> {
        let text =
            fs::read_to_string(file).map_err(|error| SettingsError::File(file.into(), error))?;
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
        if self.addresses.is_empty() && self.shares.is_empty() {
            return whole(
                "an engine needs an address of its own, --address 10.84.0.2/24, or one of the \
                host's, --share 192.0.2.7:80",
            );
        }
        if !self.shares.is_empty() {
            self.check_shares(device.kind)?;
        } else if self.outgoing.is_some() {
            return whole(
                "`outgoing` names ports of an address that is the host's, too: share 192.0.2.7",
            );
        }
        if self.addresses.len() > OWN_MAX {
            return whole("more addresses than an engine can have (16)");
        }
        let of_family = |v4: bool| self.gateways.iter().filter(move |ip| ip.is_ipv4() == v4);
        if of_family(true).count() > 1 || of_family(false).count() > 1 {
            return whole("one gateway of each family is enough");
        }
        let reachable = |gateway: &IpAddr| {
            let on_link = |&(ip, bits): &(IpAddr, u8)| rule_of(ip, bits, 0, RuleAction::Host);
            let on_link = self.addresses.iter().map(on_link);
            on_link
                .into_iter()
                .any(|rule| rule.matches(spell(*gateway), 0))
        };
        if !self.gateways.iter().all(reachable) {
            return whole("a gateway has to be in the prefix of one of the addresses");
        }
        // AF_XDP hands over whole frames, and takes only complete ones.
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
            host_routes: Vec::new(),
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
        let mut ips: Vec<IpAddr> = self.shares.iter().map(|share| share.ip).collect();
        ips.sort_unstable();
        if ips.windows(2).any(|two| two[0] == two[1]) {
            return whole("an address is shared once, with all its ports: share 192.0.2.7:80,443");
        }
        match kind {
            DeviceKind::Tap => whole(
                "an address is shared on the interface that has it: --link packet:INTERFACE or \
                xdp:INTERFACE",
            ),
            DeviceKind::Packet if self.shares.iter().any(|share| share.ip.is_ipv6()) => whole(
                "on a packet link only IPv4 addresses are shared; IPv6 ones are on an xdp link",
            ),
            DeviceKind::Packet | DeviceKind::Xdp => Ok(()),
        }
    }
}

impl Settings {
    /// Changes one that can be changed while the engine runs.
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

    /// The rules, and those that follow: what the engine can reach is its business for programs
    /// that ask for it. That goes for our own addresses, too: such programs know them from the
    /// routing page, and what stands in for them.
    pub fn all_rules(&self) -> Vec<Rule> {
        let on_link =
            |&(ip, bits): &(IpAddr, u8)| rule_of(ip, bits, 0, RuleAction::OffloadOnRequest);
        let beyond = |ip: &IpAddr| rule_of(*ip, 0, 0, RuleAction::OffloadOnRequest);
        let mut rules = self.rules.clone();
        if !self.gateways.is_empty() || self.outgoing.is_some() {
            // "Everything" is not what is this host's own.
            let own: [(IpAddr, u8); 4] = [
                ([127, 0, 0, 0].into(), 8),
                (Ipv6Addr::LOCALHOST.into(), 128),
                ([0, 0, 0, 0].into(), 32),
                (Ipv6Addr::UNSPECIFIED.into(), 128),
            ];
            rules.extend(own.map(|(ip, bits)| rule_of(ip, bits, 0, RuleAction::Direct)));
        }
        if self.shares.is_empty() {
            rules.extend(self.addresses.iter().map(on_link));
        } else if self.outgoing.is_some() {
            // Frames to ourselves would not come back.
            let own = |share: &Share| rule_of(share.ip, share.alone().1, 0, RuleAction::Direct);
            rules.extend(self.shares.iter().map(own));
            // The kernel knows which of these go by the link: it is asked for each connection.
            for everywhere in [IpAddr::from([0; 4]), IpAddr::from([0; 16])] {
                let is_of_family = |share: &Share| share.ip.is_ipv4() == everywhere.is_ipv4();
                if self.shares.iter().any(is_of_family) {
                    rules.push(beyond(&everywhere));
                }
            }
        }
        rules.extend(self.gateways.iter().map(beyond));
        rules
    }
}

fn device(value: &str) -> Result<Device, String> {
    let (kind, name) = match value.split_once(':') {
        Some(("tap", name)) => (DeviceKind::Tap, name),
        Some(("packet", name)) => (DeviceKind::Packet, name),
        Some(("xdp", name)) => (DeviceKind::Xdp, name),
        _ => {
            return Err(format!(
                "`{value}` is no link: tap:NAME, packet:INTERFACE or xdp:INTERFACE, each with \
                @NAMESPACE if it is in another"
            ));
        }
    };
    let (name, namespace) = match name.split_once('@') {
        Some((name, namespace)) => (name, Some(namespace.to_owned())),
        None => (name, None),
    };
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err("a device name has 1 to 15 bytes".into());
    }
    if namespace
        .as_ref()
        .is_some_and(|name| name.is_empty() || name.contains('/') && !name.starts_with('/'))
    {
        return Err(format!("`{value}` names no network namespace"));
    }
    Ok(Device {
        kind,
        name: name.into(),
        namespace,
    })
}

fn address(value: &str) -> Result<IpAddr, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is no address"))
}

/// A number within bounds; `what` says what it is to be.
fn number<T: FromStr + PartialOrd + Display>(
    value: &str,
    what: &str,
    bounds: RangeInclusive<T>,
) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| bounds.contains(number));
    let (least, most) = (bounds.start(), bounds.end());
    number.ok_or_else(|| format!("`{value}` is no {what} ({least} to {most})"))
}

/// Algorithms by their names on Linux.
const CONGESTION_CONTROLS: [(&str, CongestionControl); 4] = [
    ("cubic", CongestionControl::Cubic),
    ("reno", CongestionControl::NewReno),
    ("dctcp", CongestionControl::Dctcp),
    ("bbr", CongestionControl::Bbr),
];

fn congestion(value: &str) -> Result<CongestionControl, String> {
    let found = CONGESTION_CONTROLS.iter().find(|(name, _)| *name == value);
    let names = || CONGESTION_CONTROLS.map(|(name, _)| name).join(", ");
    found
        .map(|(_, control)| *control)
        .ok_or_else(|| format!("`{value}` is no congestion control: {}", names()))
}

/// As [`Draft::set`] takes it.
pub(super) fn name_of(control: CongestionControl) -> &'static str {
    let found = CONGESTION_CONTROLS.iter().find(|(_, one)| *one == control);
    found.map_or("unknown", |(name, _)| name)
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{value}` is neither on nor off")),
    }
}

/// `ADDRESS/BITS`. An address alone would have nobody on its link.
fn own_address(value: &str) -> Result<(IpAddr, u8), String> {
    if !value.contains('/') {
        let ip = address(value)?;
        let usual = if ip.is_ipv4() { 24 } else { 64 };
        return Err(format!(
            "`{value}` has no prefix length, which says who is on the link: {value}/{usual}, for \
            example"
        ));
    }
    prefix(value)
}

/// `ADDRESS/BITS`, or an address alone.
pub(crate) fn prefix(value: &str) -> Result<(IpAddr, u8), String> {
    let (ip, bits) = value.split_once('/').unwrap_or((value, ""));
    let ip = address(ip)?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        "" => Some(longest),
        bits => bits.parse().ok().filter(|bits| *bits <= longest),
    };
    let bits = bits.ok_or(format!(
        "`{value}` has no prefix length from 0 to {longest}"
    ))?;
    Ok((ip, bits))
}

/// `PREFIX`, `PREFIX:PORT`, or `[PREFIX]:PORT` where the prefix is IPv6.
fn rule(value: &str, action: RuleAction) -> Result<Rule, String> {
    let (network, port) = match value
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((network, rest)) => (network, rest.strip_prefix(':')),
        None => match value.split_once(':') {
            Some((network, port)) if !port.contains(':') => (network, Some(port)),
            _ => (value, None),
        },
    };
    let port = match port {
        None => 0,
        Some(text) => text
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or(format!("`{text}` is no port"))?,
    };
    let (ip, bits) = prefix(network)?;
    Ok(rule_of(ip, bits, port, action))
}

pub(crate) fn rule_of(ip: IpAddr, bits: u8, port: u16, action: RuleAction) -> Rule {
    let bits = u32::from(bits);
    Rule {
        prefix: spell(ip),
        prefix_bits: if ip.is_ipv4() {
            96 + bits.min(32)
        } else {
            bits
        },
        port,
        action,
    }
}

/// An address as the library and the adapter spell it.
pub(crate) fn spell(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// RFC 791: every host must take 576 bytes; less than 68 is no IP.
const MTU_MIN: u16 = 576;
/// More would be felt as an outage.
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
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use toehold_tcp::EcnMode;

    pub(super) fn draft(settings: &[(&str, &str)]) -> Draft {
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
            let ip = spell(ip.parse().expect("address"));
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
                "no prefix length, which says who is on the link",
            ),
            ("link eth:toe0", "no link"),
            ("threads 2", "is set already, on line 1"),
            ("link", "takes one value"),
            ("linc tap:a tap:b", "`linc` is no setting: link, "),
            ("route 10.0.0.0/8", "no setting"),
            ("mtu 60", "no MTU"),
            ("coalesce 10001", "no time"),
            ("batch 0", "no number of frames"),
            ("quota 0", "no number of connections"),
            ("quota 1048577", "no number of connections"),
            (
                "congestion vegas",
                "no congestion control: cubic, reno, dctcp, bbr",
            ),
            ("ecn yes", "`yes` is neither on, off nor accurate"),
            ("pacing 1", "`1` is neither on nor off"),
            ("initial-window 65", "no number of segments (1 to 64)"),
            (
                "copy-engine gpu",
                "no copy engine: off, worker, dsa, dmadev",
            ),
            ("copybreak 65537", "no number of bytes (1 to 65536)"),
            ("split-headers 1", "`1` is neither on nor off"),
            ("lro yes", "`yes` is neither on nor off"),
            ("keepalive 0", "no number of seconds (1 to 32767)"),
            ("window 65", "`65` is no number of megabytes (1 to 64)"),
            ("offload 10.0.0.0/8:0", "no port"),
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
            let error = error.expect("`?` is no value");
            assert!(!error.contains("is no setting"), "{error}");
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
        let ways = "`maybe` is no way with checksums: on, verify, trust, off";
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
        ] {
            assert!(draft(settings).finish().is_err(), "{settings:?}");
        }
    }
}
