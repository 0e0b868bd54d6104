//! The link's device.

use std::fmt::{self, Display};
use std::str::FromStr;

/// Where the frames come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device's kind.
    pub kind: DeviceKind,
    /// The device's name.
    pub name: String,
    /// The device's network namespace, by its name in `ip netns` or by an absolute path
    /// (`/proc/PID/ns/net`). `None`: our own.
    pub namespace: Option<String>,
}

/// The kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A TAP device, at whose other end is the kernel.
    Tap,
    /// A packet socket on an interface that is there already.
    Packet,
    /// AF_XDP sockets on an existing interface: frames for our addresses are ours, all others the
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

impl FromStr for Device {
    type Err = String;

    /// `KIND:NAME`, `KIND:NAME@NAMESPACE`.
    fn from_str(value: &str) -> Result<Device, String> {
        let (kind, name) = match value.split_once(':') {
            Some(("tap", name)) => (DeviceKind::Tap, name),
            Some(("packet", name)) => (DeviceKind::Packet, name),
            Some(("xdp", name)) => (DeviceKind::Xdp, name),
            _ => {
                return Err(format!(
                    "`{value}` is not a link: tap:NAME, packet:INTERFACE or xdp:INTERFACE, each \
                    with @NAMESPACE if it is in another"
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
}
