//! An arm of a plan: a set of settings, and which of them go together.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::tool::Tool;

/// A set of settings.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Arm {
    /// Its name in the report.
    pub name: String,
    /// The path of its bytes.
    pub path: ArmPath,
    /// Another path of the server's, for a control: an accelerated client without a partner.
    pub server_path: Option<ArmPath>,
    /// The way in which accelerated programs wait.
    #[serde(default)]
    pub wait: Wait,
    /// Whether short connections of accelerated programs use carriers again.
    #[serde(default)]
    pub express: bool,
    /// The family of its sockets.
    #[serde(default)]
    pub family: Family,
    /// Another load generator, in place of our own.
    pub program: Option<Tool>,
    /// Whether the programs themselves poll.
    #[serde(default)]
    pub polling: bool,
    /// The size of the sockets' buffers, if it is not the kernel's choice.
    pub socket_buffer: Option<usize>,
    /// The link between its client and its server.
    #[serde(default)]
    pub link: Link,
    /// The link's MTU in bytes, if it is not the usual one.
    pub mtu: Option<u32>,
    /// Whether the link cuts large segments for the sender (TSO, GSO). It does unless told.
    pub lso: Option<bool>,
    /// Whether the link joins segments for the receiver (GRO). It does unless told.
    pub lro: Option<bool>,
    /// Settings of the engine, by their names in toehold-engine(5).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub engine: BTreeMap<String, String>,
    /// The arm with which this one is compared, if not the base.
    pub against: Option<String>,
    /// A negative control: it must not differ from the arm it is compared with.
    #[serde(default)]
    pub control: bool,
}

impl Arm {
    /// Whether its client is under the library.
    pub fn is_accelerated(&self) -> bool {
        matches!(self.path, ArmPath::Direct | ArmPath::Offload)
    }

    /// Refuses settings that do not go together.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_local = self.link == Link::Loopback;
        if self.path == ArmPath::Sockmap && self.family == Family::Unix {
            return Err("the path sockmap is for TCP".to_owned());
        }
        let fits = match self.path {
            ArmPath::Host => matches!(self.link, Link::Loopback | Link::Veth),
            ArmPath::Offload => matches!(self.link, Link::Tap | Link::Packet | Link::Xdp),
            ArmPath::Direct | ArmPath::Sockmap | ArmPath::Limit | ArmPath::OneCopy => is_local,
        };
        if !fits {
            return Err(match self.path {
                ArmPath::Host => "the path host has the link loopback or veth",
                ArmPath::Offload => "the path offload needs the link tap, packet or xdp",
                _ => "this path has no link: both ends are on one host",
            }
            .to_owned());
        }
        if self.express && self.path != ArmPath::Direct {
            return Err("express is for the path direct".to_owned());
        }
        if !is_local && (self.family == Family::Unix || self.server_path.is_some()) {
            return Err("an arm with a link is TCP, its server on the kernel".to_owned());
        }
        if !matches!(
            self.server_path,
            None | Some(ArmPath::Host | ArmPath::Direct)
        ) {
            return Err("a server's path is host or direct".to_owned());
        }
        let is_bare = matches!(self.path, ArmPath::Limit | ArmPath::OneCopy);
        if self.program.is_some() && (!is_local || is_bare || self.family == Family::Unix) {
            return Err("another program is measured over TCP on loopback".to_owned());
        }
        let is_switched = self.lso.is_some() || self.lro.is_some();
        if is_local && (self.mtu.is_some() || is_switched) {
            return Err("mtu, lso and lro are settings of a link".to_owned());
        }
        if self.link == Link::Xdp && is_switched {
            return Err("an xdp link neither cuts nor joins segments".to_owned());
        }
        if !self.engine.is_empty() && self.path != ArmPath::Offload {
            return Err("settings of the engine belong to the path offload".to_owned());
        }
        let is_known = |name: &&String| ENGINE_SETTINGS.contains(&name.as_str());
        if let Some(name) = self.engine.keys().find(|name| !is_known(name)) {
            let known = ENGINE_SETTINGS.join(", ");
            return Err(format!(
                "`{name}` is not a setting of the engine here: {known}"
            ));
        }
        match self.mtu {
            Some(mtu) if !MTUS.contains(&mtu) => Err(format!(
                "an MTU is a number from {} to {}",
                MTUS.start(),
                MTUS.end()
            )),
            _ => Ok(()),
        }
    }

    /// In words, for `toehold lab show`.
    pub(super) fn describe(&self) -> String {
        let mut out = format!("{:?}, {:?}", self.path, self.family).to_lowercase();
        if let Some(program) = self.program {
            let _ = write!(out, ", by {}", program.name());
        }
        if self.is_accelerated() {
            out.push_str(&format!(", wait {:?}", self.wait).to_lowercase());
        }
        if self.express {
            out.push_str(", express");
        }
        if self.link != Link::Loopback {
            out.push_str(&format!(", over {:?}", self.link).to_lowercase());
        }
        if let Some(mtu) = self.mtu {
            let _ = write!(out, ", MTU {mtu}");
        }
        for (name, state) in [("LSO", self.lso), ("LRO", self.lro)] {
            if let Some(is_on) = state {
                let _ = write!(out, ", {name} {}", if is_on { "on" } else { "off" });
            }
        }
        for (name, value) in &self.engine {
            let _ = write!(out, ", {name} {value}");
        }
        if let Some(base) = &self.against {
            let _ = write!(out, ", against {base}");
        }
        out
    }
}

/// The path of an arm's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArmPath {
    /// Kernel sockets.
    Host,
    /// Kernel sockets between which programs in the kernel pass bytes without TCP.
    Sockmap,
    /// Shared memory of the direct path.
    Direct,
    /// The engine at the client's end, a kernel at the server's.
    Offload,
    /// Bare threads: the limit of the machine.
    Limit,
    /// Two bare processes, the receiver copying from the sender's memory.
    OneCopy,
}

/// The way in which accelerated programs wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Spin while that saves time.
    #[default]
    Adaptive,
    /// Spin always.
    Poll,
    /// Sleep always.
    Event,
}

/// A family of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// TCP over loopback.
    #[default]
    Tcp,
    /// AF_UNIX.
    Unix,
}

/// The link between client and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// No link: one namespace.
    #[default]
    Loopback,
    /// Two kernels with a pair of virtual interfaces.
    Veth,
    /// An engine with a TAP device of the other kernel.
    Tap,
    /// An engine with a packet socket on a virtual interface.
    Packet,
    /// An engine with AF_XDP on a virtual interface.
    Xdp,
}

/// Settings of the engine that an arm may have. The link's settings are separate settings of the
/// arm, and a run decides about addresses and rules.
pub const ENGINE_SETTINGS: [&str; 14] = [
    "batch",
    "coalesce",
    "congestion",
    "copy-engine",
    "copybreak",
    "ecn",
    "initial-window",
    "keepalive",
    "memory",
    "pacing",
    "quota",
    "split-headers",
    "threads",
    "window",
];

/// From the minimum of IPv4 (RFC 791, 3.1) to the maximum of a virtual interface.
const MTUS: std::ops::RangeInclusive<u32> = 576..=65_535;

#[cfg(test)]
mod tests {
    use super::super::PlanFile;

    const PLAN: &str = "name = \"a\"\nabout = \"b\"\n[[arm]]\nname = \"kernel\"\npath = \"host\"\n";
    const BLOCK: &str =
        "[[block]]\ntitle = \"t\"\nmetric = \"latency-p50\"\npattern = \"ping-pong\"\n";

    #[test]
    fn settings_that_do_not_go_together_are_refused() {
        let refused = |settings: &str| {
            let plan = format!("{PLAN}[[arm]]\nname = \"x\"\n{settings}\n{BLOCK}");
            PlanFile::parse(&plan, "p").expect_err("refused").sentence
        };
        for (settings, why) in [
            ("path = \"offload\"", "tap, packet or xdp"),
            ("path = \"direct\"\nlink = \"veth\"", "one host"),
            ("path = \"host\"\nmtu = 9000", "settings of a link"),
            ("path = \"sockmap\"\nfamily = \"unix\"", "for TCP"),
            ("path = \"sockmap\"\nlink = \"veth\"", "one host"),
            (
                "path = \"host\"\nserver-path = \"sockmap\"",
                "host or direct",
            ),
            ("path = \"host\"\nlink = \"veth\"\nmtu = 5", "576 to 65535"),
            (
                "path = \"offload\"\nlink = \"xdp\"\nlso = false",
                "neither cuts",
            ),
            (
                "path = \"host\"\nengine = { coalesce = \"50\" }",
                "belong to the path offload",
            ),
            (
                "path = \"offload\"\nlink = \"tap\"\nengine = { lso = \"on\" }",
                "`lso` is not a setting",
            ),
            ("path = \"host\"\nagainst = \"y\"", "no other arm"),
            ("path = \"limit\"\nprogram = \"wrk\"", "over TCP"),
            ("path = \"host\"\nprogram = \"tbench\"", "2 seconds"),
        ] {
            assert!(refused(settings).contains(why), "{settings}");
        }
    }
}
