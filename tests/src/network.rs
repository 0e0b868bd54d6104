//! Two network namespaces with an adapter's link between them: the near one has the adapter and the
//! programs under test, the far one has a kernel and programs that do not know of Toehold.
//!
//! ```text
//!   near: program ── lo ── adapter (10.84.0.2, fd84::2)
//!                             ══ toe0 ══ (10.84.0.1, fd84::1) kernel ── program :far
//! ```
//!
//! `toe0` is a TAP device of the far namespace, or the far end of a veth whose near end has a
//! packet socket or AF_XDP sockets.

use std::ffi::OsStr;
use std::fs::read_to_string;
use std::process::Command;

use toehold_network::Namespace;

use crate::host;
use crate::process::{TIME_LIMIT, wait_until};
use crate::toehold::Toehold;

/// The engine's address.
pub const NEAR: &str = "10.84.0.2";
/// The engine's IPv6 address.
pub const NEAR_V6: &str = "fd84::2";
/// The far kernel's address.
pub const FAR: &str = "10.84.0.1";
/// The far kernel's IPv6 address.
pub const FAR_V6: &str = "fd84::1";

/// The number of engine threads for tests that do not choose one: every test can run with several.
const THREADS_VARIABLE: &str = "TOEHOLD_ENGINE_THREADS";

/// The kind of link for tests that do not choose one: every test can run on each.
const LINK_VARIABLE: &str = "TOEHOLD_ENGINE_LINK";

/// The most threads of any test; an AF_XDP link uses one queue for each.
const QUEUES: &str = "numrxqueues 4 numtxqueues 4";

/// The kind of the adapter's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A TAP device of the far namespace.
    Tap,
    /// A packet socket on a veth.
    Packet,
    /// AF_XDP sockets on a veth.
    Xdp,
}

impl Link {
    /// The one that this run of the tests is about.
    pub fn of_this_run() -> Link {
        match std::env::var(LINK_VARIABLE).as_deref() {
            Err(_) | Ok("" | "tap") => Link::Tap,
            Ok("packet") => Link::Packet,
            Ok("xdp") => Link::Xdp,
            Ok(other) => panic!("{LINK_VARIABLE} is {other}: tap, packet or xdp"),
        }
    }
}

/// Two namespaces; gone when dropped.
#[derive(Debug)]
pub struct Network {
    near: Namespace,
    far: Namespace,
    link: Link,
}

impl Network {
    /// Makes both namespaces, or says loudly why it cannot.
    pub fn new() -> Option<Network> {
        Network::with(Link::of_this_run())
    }

    /// As [`Network::new`], with a link of this kind.
    pub fn with(link: Link) -> Option<Network> {
        if host::program("ip").is_none() {
            host::skipped("ip (iproute2) is not installed");
            return None;
        }
        let make = || {
            let made = Namespace::new();
            made.map_err(|error| host::skipped(&error.to_string())).ok()
        };
        let network = Network {
            near: make()?,
            far: make()?,
            link,
        };
        if link != Link::Tap && !network.join() {
            host::skipped("cannot make a pair of virtual interfaces (CAP_NET_ADMIN is needed)");
            return None;
        }
        Some(network)
    }

    /// Makes a veth: `toe0` in the far namespace, `v0` in the near one.
    pub fn join(&self) -> bool {
        let veth = self.near.add_veth("v0", &self.far, "toe0", QUEUES);
        veth.is_ok() && self.use_queues("1") && self.near_ip(&["link", "set", "v0", "up"])
    }

    /// Makes another veth between the namespaces, with names for its near and its far end, and an
    /// address for each.
    pub fn join_again(&self, near: [&str; 2], far: [&str; 2]) -> bool {
        let veth = self.near.add_veth(near[0], &self.far, far[0], "");
        let ip = |end: [&str; 2], ip: &dyn Fn(&[&str]) -> bool| {
            ip(&["addr", "add", end[1], "dev", end[0]]) && ip(&["link", "set", end[0], "up"])
        };
        veth.is_ok()
            && ip(near, &|arguments| self.near_ip(arguments))
            && ip(far, &|arguments| self.far_ip(arguments))
    }

    /// Has the veth use so many of its queues each way.
    fn use_queues(&self, count: &str) -> bool {
        // XDP needs an end that receives with at least as many queues as the other end sends with.
        let ends = [
            (&self.far, "toe0", "tx"),
            (&self.near, "v0", "rx"),
            (&self.far, "toe0", "tx"),
        ];
        self.link != Link::Xdp
            || ends.iter().all(|(namespace, device, way)| {
                let mut ethtool = namespace.command("ethtool");
                // ethtool reports an error when nothing changes (ethtool(8)).
                ethtool.args(["-L", device, way, count]).output().is_ok()
            })
    }

    /// Starts an adapter in the near namespace whose engine's link leads to the far one; `options`
    /// go to the adapter.
    pub fn start(&self, options: &[&str]) -> Option<Toehold> {
        let mut arguments = vec!["--address", "10.84.0.2/24", "--address", "fd84::2/64"];
        arguments.extend(options);
        self.start_with(&arguments)
    }

    /// As [`Network::start`], with no address but those among the options.
    pub fn start_with(&self, options: &[&str]) -> Option<Toehold> {
        let link = match self.link {
            Link::Tap => format!("tap:toe0@{}", self.far.path()),
            Link::Packet => "packet:v0".to_owned(),
            Link::Xdp => "xdp:v0".to_owned(),
        };
        let threads = std::env::var(THREADS_VARIABLE).unwrap_or_default();
        let mut arguments = vec!["--link", &link];
        arguments.extend(options);
        let said = options.windows(2).find_map(|two| match two[0] {
            "--config" => threads_in(&read_to_string(two[1]).ok()?),
            "--threads" => Some(two[1].to_owned()),
            _ => None,
        });
        if said.is_none() && !threads.is_empty() {
            arguments.extend(["--threads", &threads]);
        }
        let default = if threads.is_empty() { "1" } else { &threads };
        self.use_queues(said.as_deref().unwrap_or(default));
        let starter = self.near.starter();
        let starter = starter.each_ref().map(String::as_str);
        let toehold = Toehold::start_in(&starter, &arguments);
        if !self.bring_up() {
            host::skipped("cannot make a TAP device (CAP_NET_ADMIN and the tun module are needed)");
            return None;
        }
        Some(toehold)
    }

    /// Gives the far kernel its addresses on the link: a TAP device is new whenever the adapter is.
    pub fn bring_up(&self) -> bool {
        if self.link != Link::Tap {
            self.far_ip(&["addr", "flush", "dev", "toe0"]);
        }
        let device = || self.far_ip(&["link", "show", "toe0"]);
        wait_until(TIME_LIMIT, device)
            && self.far_ip(&["addr", "add", "10.84.0.1/24", "dev", "toe0"])
            && self.far_ip(&["addr", "add", "fd84::1/64", "dev", "toe0", "nodad"])
            && self.far_ip(&["link", "set", "toe0", "up"])
    }

    /// Sets the link's MTU, at both ends where there are two; whether that succeeded.
    pub fn set_mtu(&self, mtu: &str) -> bool {
        let near = ["link", "set", "v0", "mtu", mtu];
        (self.link == Link::Tap || self.near_ip(&near))
            && self.far_ip(&["link", "set", "toe0", "mtu", mtu])
    }

    /// Runs `ip` in the near namespace; whether it succeeded.
    pub fn near_ip(&self, arguments: &[&str]) -> bool {
        self.near.ip(&arguments.join(" ")).is_ok()
    }

    /// A command that runs `program` in the near namespace, on its kernel.
    pub fn near(&self, program: impl AsRef<OsStr>) -> Command {
        self.near.command(program)
    }

    /// Runs `ip` in the far namespace; whether it succeeded.
    pub fn far_ip(&self, arguments: &[&str]) -> bool {
        self.far.ip(&arguments.join(" ")).is_ok()
    }

    /// A command that runs `program` in the far namespace, on its kernel.
    pub fn far(&self, program: impl AsRef<OsStr>) -> Command {
        self.far.command(program)
    }
}

/// The number of threads that an engine's settings ask for.
fn threads_in(settings: &str) -> Option<String> {
    let mut lines = settings.lines();
    let value = lines.find_map(|line| line.strip_prefix("threads "))?;
    Some(value.trim().to_owned())
}
