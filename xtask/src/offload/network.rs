//! Two namespaces with two paths between them.

use std::process::Command;

use toehold_network::Namespace;

use super::{Link, output};

/// The congestion control of all kernels: a usual algorithm, with which the kernel performs best on
/// a link without loss.
pub(super) const CONGESTION: &str = "reno";
/// The near end's addresses: by the kernel, and by the engine.
pub(super) const NEAR_KERNEL: &str = "10.85.0.2";
pub(super) const NEAR_ENGINE: &str = "10.84.0.2";
/// The far end's addresses, one for each path.
pub(super) const FAR_BY_KERNEL: &str = "10.85.0.1";
pub(super) const FAR_BY_ENGINE: &str = "10.84.0.1";

/// Both namespaces; gone when dropped.
pub(super) struct Network {
    near: Namespace,
    far: Namespace,
}

impl Network {
    pub(super) fn new() -> Result<Network, String> {
        let network = Network {
            near: Namespace::new()?,
            far: Namespace::new()?,
        };
        let Network { near, far } = &network;
        near.add_veth("v0", far, "v1", "")?;
        near.add_veth("x0", far, "x1", "")?;
        near.ip("addr add 10.85.0.2/24 dev v0")?;
        far.ip("addr add 10.85.0.1/24 dev v1")?;
        for (namespace, device) in [(near, "v0"), (far, "v1"), (near, "x0"), (far, "x1")] {
            namespace.ip(&format!("link set {device} up"))?;
        }
        for namespace in [near, far] {
            // A file of /proc/sys/net belongs to the thread's namespace.
            let set = || std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION);
            let set = namespace.within(set);
            set.map_err(|error| format!("congestion control {CONGESTION}: {error}"))?;
            // A client of short connections would use up the ports that are free in a minute.
            let set = || {
                std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65535")?;
                std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1")
            };
            let set = namespace.within(set);
            set.map_err(|error| format!("ports of connections: {error}"))?;
        }
        Ok(network)
    }

    /// Gives the far end its address on the adapter's link, and switches segmentation and receive
    /// offload of all kernels' devices. A TAP device is created with the adapter; the adapter's
    /// options set the engine's offloads.
    pub(super) fn bring_up(&self, link: Link, large: bool) -> Result<(), String> {
        let mut devices = vec![(&self.near, "v0"), (&self.far, "v1")];
        // Errors are ignored: in the first scene no device has the address, and later only the
        // device of the previous link has it.
        for device in ["v1", "x1"] {
            let _ = self.far.ip(&format!("addr del 10.84.0.1/24 dev {device}"));
        }
        let device = match link {
            Link::Tap => "toe0",
            Link::Packet => "v1",
            Link::Xdp => "x1",
        };
        self.far
            .ip(&format!("addr add 10.84.0.1/24 dev {device}"))?;
        self.far.ip(&format!("link set {device} up"))?;
        if link != Link::Packet {
            devices.push((&self.far, device));
        }
        let state = if large { "on" } else { "off" };
        for (namespace, device) in devices {
            let mut command = namespace.command("ethtool");
            command.args(["-K", device, "gro", state]);
            match device {
                // For a TAP device, the engine decides about offloads.
                "toe0" => command.args(["gso", state]),
                // XDP at the other end requires that it sends frames unchanged.
                "x1" => &mut command,
                _ => command.args(["gso", state, "tso", state]),
            };
            output(&mut command)?;
        }
        Ok(())
    }

    pub(super) fn near(&self, program: &str) -> Command {
        self.near.command(program)
    }

    pub(super) fn far(&self, program: &str) -> Command {
        self.far.command(program)
    }

    /// The adapter's name for its link.
    pub(super) fn link(&self, link: Link) -> String {
        match link {
            Link::Tap => format!("tap:toe0@{}", self.far.path()),
            Link::Packet => "packet:v0".to_owned(),
            Link::Xdp => "xdp:x0".to_owned(),
        }
    }
}
