//! Two network namespaces of a run and the links between them.
//!
//! ```text
//!   near: client ── kernel ── n0p0 ══ veth ══ f0p0 ── kernel ── server :far
//!   near: client ── engine ══ TAP ═══════════ f1p0 ── kernel ── server :far
//!   near: client ── engine ── n2p0 ══ veth ══ f2p0 ── kernel ── server :far   packet, xdp
//! ```
//!
//! Each set of settings of a plan (kind, MTU and offloads of the link, switches of the engine) is a
//! separate link, so that arms can run in turn without changing settings. A link of kind veth has
//! as many ports as the plan asks for, each a pair of virtual interfaces.
//!
//! The namespaces' names contain their owner. They are removed at the end of the run, and those of
//! a killed run by the next run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::arm::{Arm, ArmPath, Link};
use super::plan_file::{PORTS_MAX, PlanFile};
use crate::error::LabError;

/// Link settings: two arms need two links if these differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wire {
    link: Link,
    mtu: Option<u32>,
    lso: bool,
    lro: bool,
    /// Whether an engine is at the near end.
    is_engine: bool,
    /// Its settings.
    engine: BTreeMap<String, String>,
}

impl Wire {
    fn of(arm: &Arm) -> Option<Wire> {
        (arm.link != Link::Loopback).then_some(Wire {
            link: arm.link,
            mtu: arm.mtu,
            lso: arm.lso.unwrap_or(true),
            lro: arm.lro.unwrap_or(true),
            is_engine: arm.path == ArmPath::Offload,
            engine: arm.engine.clone(),
        })
    }
}

/// Both namespaces; gone when dropped.
pub(super) struct Network {
    near: String,
    far: String,
    wires: Vec<Wire>,
    ports: usize,
}

impl Network {
    /// Creates the networks that the arms of a plan need; `None` when they all use loopback.
    ///
    /// # Errors
    ///
    /// One sentence: a program is not installed, or a privilege is missing.
    pub(super) fn of(plan: &PlanFile, owner: &str) -> Result<Option<Network>, LabError> {
        let mut wires: Vec<Wire> = Vec::new();
        for wire in plan.arms.iter().filter_map(Wire::of) {
            if !wires.contains(&wire) {
                wires.push(wire);
            }
        }
        if wires.is_empty() {
            return Ok(None);
        }
        if wires.len() > WIRES_MAX {
            return Err(LabError::usage(format!(
                "the arms have {} different links; a plan has {WIRES_MAX} at most",
                wires.len()
            )));
        }
        for (program, package) in [("ip", "iproute2"), ("ethtool", "ethtool")] {
            needs(program, package)?;
        }
        let network = Network {
            near: format!("{PREFIX}{owner}-near"),
            far: format!("{PREFIX}{owner}-far"),
            wires,
            ports: plan.ports(),
        };
        for name in [&network.near, &network.far] {
            ip(&["netns", "add", name]).map_err(|why| {
                LabError::new(format!(
                    "cannot make network namespaces, which needs root (CAP_SYS_ADMIN): {why}"
                ))
            })?;
            ip(&["-n", name, "link", "set", "lo", "up"]).map_err(LabError::new)?;
        }
        for at in 0..network.wires.len() {
            network.lay(at).map_err(LabError::new)?;
        }
        Ok(Some(network))
    }

    /// Makes the interfaces of a link. The adapter makes TAP devices.
    fn lay(&self, at: usize) -> Result<(), String> {
        let wire = &self.wires[at];
        if wire.link == Link::Tap {
            return Ok(());
        }
        for port in 0..self.ports_of(at) {
            let (near, far) = (near_device(at, port), far_device(at, port));
            ip(&[
                "link", "add", &near, "netns", &self.near, "type", "veth", "peer", "name", &far,
                "netns", &self.far,
            ])?;
            if !wire.is_engine {
                let address = format!("{}/24", near_address(at, port));
                ip(&["-n", &self.near, "addr", "add", &address, "dev", &near])?;
            }
            self.prepare(&self.near, &near, wire)?;
            self.finish_port(at, port)?;
        }
        Ok(())
    }

    /// Gives the far end of a port its settings and its address.
    fn finish_port(&self, at: usize, port: usize) -> Result<(), String> {
        let far = far_device(at, port);
        self.prepare(&self.far, &far, &self.wires[at])?;
        let address = format!("{}/24", far_address(at, port));
        ip(&["-n", &self.far, "addr", "add", &address, "dev", &far])?;
        Ok(())
    }

    fn prepare(&self, namespace: &str, device: &str, wire: &Wire) -> Result<(), String> {
        if let Some(mtu) = wire.mtu {
            let mtu = mtu.to_string();
            ip(&["-n", namespace, "link", "set", device, "mtu", &mtu])?;
        }
        let mut words = vec!["netns", "exec", namespace, "ethtool", "-K", device];
        let state = |is_on: bool| if is_on { "on" } else { "off" };
        match wire.link {
            // For a TAP device, the engine's own options decide about segmentation.
            Link::Tap => words.extend(["gso", state(wire.lso), "gro", state(wire.lro)]),
            // XDP sends frames unchanged, whatever these settings are.
            Link::Xdp => words.clear(),
            _ => {
                let (lso, lro) = (state(wire.lso), state(wire.lro));
                words.extend(["tso", lso, "gso", lso, "gro", lro]);
            }
        }
        if !words.is_empty() {
            ip(&words)?;
        }
        ip(&["-n", namespace, "link", "set", device, "up"])
    }

    /// The links with an engine at their near end.
    pub(super) fn engines(&self) -> Vec<usize> {
        let all = self.wires.iter().enumerate();
        let engines = all.filter(|(_, wire)| wire.is_engine);
        engines.map(|(at, _)| at).collect()
    }

    /// The adapter's options for the engine of a link.
    pub(super) fn engine_words(&self, at: usize) -> Vec<String> {
        let wire = &self.wires[at];
        let link = match wire.link {
            Link::Tap => format!("tap:{}@{}", far_device(at, 0), self.far),
            Link::Packet => format!("packet:{}", near_device(at, 0)),
            _ => format!("xdp:{}", near_device(at, 0)),
        };
        let mut words = vec!["--require-engine".to_owned(), "--link".to_owned(), link];
        words.extend([
            "--address".to_owned(),
            format!("{}/24", near_address(at, 0)),
        ]);
        if let Some(mtu) = wire.mtu.filter(|_| wire.link == Link::Tap) {
            words.extend(["--mtu".to_owned(), mtu.to_string()]);
        }
        if wire.link == Link::Tap {
            words.extend((!wire.lso).then(|| "--no-lso".to_owned()));
            words.extend((!wire.lro).then(|| "--no-lro".to_owned()));
        }
        // The kernel's own algorithm, so that the arms differ only in the path.
        let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
        let congestion = setting.unwrap_or_default().trim().to_owned();
        let is_chosen = wire.engine.contains_key("congestion");
        if !is_chosen && ENGINE_CONGESTION.contains(&congestion.as_str()) {
            words.extend(["--congestion".to_owned(), congestion]);
        }
        for (name, value) in &wire.engine {
            words.extend([format!("--{name}"), value.clone()]);
        }
        words
    }

    /// Finishes a link once its adapter answers.
    ///
    /// # Errors
    ///
    /// One sentence.
    pub(super) fn finish(&self, at: usize) -> Result<(), String> {
        if self.wires[at].link != Link::Tap {
            return Ok(());
        }
        let device = far_device(at, 0);
        let deadline = Instant::now() + DEVICE_TIMEOUT;
        while ip(&["-n", &self.far, "link", "show", &device]).is_err() {
            if Instant::now() > deadline {
                return Err("the adapter made no TAP device".to_owned());
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.finish_port(at, 0)
    }

    /// The link of an arm.
    pub(super) fn wire_of(&self, arm: &Arm) -> Option<usize> {
        let wire = Wire::of(arm)?;
        self.wires.iter().position(|other| *other == wire)
    }

    /// The address at which clients find the server of a link: one for each port in use.
    pub(super) fn server_addresses(&self, at: usize, ports: usize, port: u16) -> String {
        let ports = ports.clamp(1, self.ports_of(at));
        let all = (0..ports).map(|number| format!("{}:{port}", far_address(at, number)));
        all.collect::<Vec<_>>().join(",")
    }

    /// Frames that a link has carried so far, in both directions.
    pub(super) fn frames(&self, at: usize) -> Option<u64> {
        let mut frames = 0;
        for port in 0..self.ports_of(at) {
            let counters = format!("/sys/class/net/{}/statistics", far_device(at, port));
            let files = ["rx_packets", "tx_packets"].map(|name| format!("{counters}/{name}"));
            // In the namespace: `ip netns exec` shows the interfaces that are there.
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", &self.far, "cat"])
                .args(files);
            let output = command.output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            let numbers: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
            frames += (numbers.len() == 2).then(|| numbers.iter().sum::<u64>())?;
        }
        Some(frames)
    }

    /// The command words that run a program in the near namespace.
    pub(super) fn near(&self) -> [String; 4] {
        inside(&self.near)
    }

    /// As [`Network::near`], in the far one.
    pub(super) fn far(&self) -> [String; 4] {
        inside(&self.far)
    }

    /// The namespace that has vanished, if one has.
    pub(super) fn vanished(&self) -> Option<&str> {
        let names = [&self.near, &self.far].map(String::as_str);
        let is_gone = |name: &str| !Path::new(NAMESPACES).join(name).exists();
        names.into_iter().find(|name| is_gone(name))
    }

    fn ports_of(&self, at: usize) -> usize {
        match self.wires[at].is_engine {
            true => 1,
            false => self.ports,
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in [&self.near, &self.far] {
            // The namespace may have vanished, or may never have been made.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Removes the namespaces of killed runs: those whose owner is gone according to `lives`. The
/// programs in them have died with their run.
pub(super) fn clean_up_after_others(lives: impl Fn(&str) -> bool) {
    let entries = std::fs::read_dir(NAMESPACES).into_iter().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| {
            let rest = name.strip_prefix(PREFIX)?;
            rest.strip_suffix("-near").or(rest.strip_suffix("-far"))
        });
        if owner.is_some_and(|owner| !lives(owner)) {
            let _ = ip(&["netns", "del", &name.to_string_lossy()]);
        }
    }
}

/// Refuses a plan whose program is not installed.
///
/// # Errors
///
/// One sentence, with the package.
pub(super) fn needs(program: &str, package: &str) -> Result<(), LabError> {
    if is_installed(program) {
        return Ok(());
    }
    Err(LabError::new(format!(
        "the plan needs {program}, which is not installed (Debian package {package})"
    )))
}

/// Whether a program is in PATH.
pub(super) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| place.join(program).is_file())
}

fn inside(namespace: &str) -> [String; 4] {
    ["ip", "netns", "exec", namespace].map(str::to_owned)
}

fn near_device(at: usize, port: usize) -> String {
    format!("n{at}p{port}")
}

fn far_device(at: usize, port: usize) -> String {
    format!("f{at}p{port}")
}

/// Each port of each link is a network of its own.
fn near_address(at: usize, port: usize) -> String {
    format!("10.86.{}.2", at * PORTS_MAX + port)
}

fn far_address(at: usize, port: usize) -> String {
    format!("10.86.{}.1", at * PORTS_MAX + port)
}

/// Runs `ip`; its error message on one line if it fails.
fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(words)
        .output()
        .map_err(|error| format!("cannot run ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("it said nothing").to_owned();
    Err(format!("`ip {}` failed: {said}", words.join(" ")))
}

/// Most links of a plan: each has [`PORTS_MAX`] networks within 10.86/16.
const WIRES_MAX: usize = 256 / PORTS_MAX;

const PREFIX: &str = "toehold-lab-";
const NAMESPACES: &str = "/run/netns";
const DEVICE_TIMEOUT: Duration = Duration::from_secs(5);

/// The congestion control algorithms of the engine.
const ENGINE_CONGESTION: [&str; 4] = ["cubic", "reno", "dctcp", "bbr"];
