//! Two namespaces with two ways between them.

use std::process::Command;

use super::{Link, output};

/// All kernels': the usual one, and what the kernel does best with on a link without loss.
pub(super) const CONGESTION: &str = "reno";
/// The near end's addresses: by the kernel, and by the engine.
pub(super) const NEAR_KERNEL: &str = "10.85.0.2";
pub(super) const NEAR_ENGINE: &str = "10.84.0.2";
/// The far end's, one for each.
pub(super) const FAR_BY_KERNEL: &str = "10.85.0.1";
pub(super) const FAR_BY_ENGINE: &str = "10.84.0.1";

/// Both namespaces; gone when dropped.
pub(super) struct Network {
    near: String,
    far: String,
}

impl Network {
    pub(super) fn new() -> Result<Network, String> {
        let name = |end: &str| format!("toehold-bench-{}-{end}", std::process::id());
        let network = Network {
            near: name("near"),
            far: name("far"),
        };
        let (near, far) = (&*network.near, &*network.far);
        let set_up: [&[&str]; 12] = [
            &["netns", "add", near],
            &["netns", "add", far],
            &["-n", near, "link", "set", "lo", "up"],
            &["-n", far, "link", "set", "lo", "up"],
            &[
                "link", "add", "v0", "netns", near, "type", "veth", "peer", "name", "v1", "netns",
                far,
            ],
            &["-n", near, "addr", "add", "10.85.0.2/24", "dev", "v0"],
            &["-n", near, "link", "set", "v0", "up"],
            &["-n", far, "addr", "add", "10.85.0.1/24", "dev", "v1"],
            &["-n", far, "link", "set", "v1", "up"],
            &[
                "link", "add", "x0", "netns", near, "type", "veth", "peer", "name", "x1", "netns",
                far,
            ],
            &["-n", near, "link", "set", "x0", "up"],
            &["-n", far, "link", "set", "x1", "up"],
        ];
        for arguments in set_up {
            output(Command::new("ip").args(arguments))?;
        }
        let setting = format!("net.ipv4.tcp_congestion_control={CONGESTION}");
        for namespace in [near, far] {
            output(network.inside(namespace, "sysctl").args(["-qw", &setting]))?;
        }
        Ok(network)
    }

    /// Gives the far end its address on the adapter's link, and switches segmentation and gathering
    /// of all kernels' devices. A TAP device is new with the adapter; what the engine does there
    /// are options of its adapter.
    pub(super) fn bring_up(&self, link: Link, large: bool) -> Result<(), String> {
        let mut devices = vec![(&self.near, "v0"), (&self.far, "v1")];
        // It may be the first scene, or one after a link of the other kind.
        for device in ["v1", "x1"] {
            let no_more = ["addr", "del", "10.84.0.1/24", "dev", device];
            let _ = output(Command::new("ip").args(["-n", &self.far]).args(no_more));
        }
        let device = match link {
            Link::Tap => "toe0",
            Link::Packet => "v1",
            Link::Xdp => "x1",
        };
        for arguments in [
            ["addr", "add", "10.84.0.1/24", "dev", device].as_slice(),
            &["link", "set", device, "up"],
        ] {
            output(Command::new("ip").args(["-n", &self.far]).args(arguments))?;
        }
        if link != Link::Packet {
            devices.push((&self.far, device));
        }
        let state = if large { "on" } else { "off" };
        for (namespace, device) in devices {
            let mut command = self.inside(namespace, "ethtool");
            command.args(["-K", device, "gro", state]);
            match device {
                // What a TAP device may be given is the engine's to say.
                "toe0" => command.args(["gso", state]),
                // XDP at the other end leaves it to send frames as they are.
                "x1" => &mut command,
                _ => command.args(["gso", state, "tso", state]),
            };
            output(&mut command)?;
        }
        Ok(())
    }

    pub(super) fn near(&self, program: &str) -> Command {
        self.inside(&self.near, program)
    }

    pub(super) fn far(&self, program: &str) -> Command {
        self.inside(&self.far, program)
    }

    /// What the adapter calls its link.
    pub(super) fn link(&self, link: Link) -> String {
        match link {
            Link::Tap => format!("tap:toe0@{}", self.far),
            Link::Packet => "packet:v0".to_owned(),
            Link::Xdp => "xdp:x0".to_owned(),
        }
    }

    fn inside(&self, namespace: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, program]);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            // It may never have been made.
            let _ = Command::new("ip")
                .args(["netns", "del", namespace])
                .output();
        }
    }
}
