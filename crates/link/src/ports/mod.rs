//! Addresses that the engine shares with the kernel: which of their ports are the engine's.
//!
//! A port is the engine's while a program listens there through the engine, or has connections
//! there, and when it is one of those that connections of programs go out from. All else of the
//! address stays with the kernel: other ports, ARP, neighbour discovery, echoes. A [`PortTable`]
//! says which ports; a program by which `program` decides looks there. It goes with the process,
//! however that ends: then all of the address is the kernel's.
//!
//! A process that is stopped, or that ends slowly, holds the program still, and nobody would answer
//! a request for a connection. So the engine's threads say every second that they are awake
//! ([`PortTable::note_awake`]). Where one has not for [`SILENCE_MAX`], new connections are the
//! kernel's.

pub(crate) mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::bpf::{Attachment, Map, MapKind, Program, ProgramKind};
use crate::interface::Interfaces;
use program::{CONNECTED, KEY_BYTES, LISTENING, Maps, Way};

/// How a port of a shared address is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortUse {
    /// The engine takes new connections there, and has some.
    Listening,
    /// The engine has connections there, and takes no new ones.
    Connected,
}

/// A port of an address.
type End = (IpAddr, u16);

/// A thread, by its index, says that a port is the engine's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Claim {
    /// Programs listen there, or have connections.
    Used(usize),
    /// Connections of programs go out from there.
    Outgoing(usize),
}

/// Which ports are the engine's. Several threads have it, each with ports of its own.
#[derive(Debug)]
pub struct PortTable {
    map: Map,
    /// By port: what is said of it.
    current: Mutex<BTreeMap<End, BTreeMap<Claim, u32>>>,
    /// Until when requests for connections are the engine's: eight bytes of nanoseconds.
    awake: Map,
    /// By thread: until when it will have been silent for too long.
    awake_until: Mutex<BTreeMap<usize, u64>>,
}

impl PortTable {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            map: Map::growing(KEY_BYTES, 4, PORTS_MAX)?,
            current: Mutex::default(),
            awake: Map::new(MapKind::Array, 4, 8, 1)?,
            awake_until: Mutex::default(),
        })
    }

    /// The maps of the program that looks here.
    pub(crate) fn maps(&self) -> Maps {
        Maps {
            ports: self.map.as_raw_fd(),
            awake: self.awake.as_raw_fd(),
        }
    }

    /// A thread is awake. Each that uses ports has to say so within [`SILENCE_MAX`], again and
    /// again, or requests for connections go to the kernel.
    ///
    /// # Errors
    /// Whatever bpf(2) says.
    pub fn note_awake(&self, thread: usize) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32);
        let mut all = self.awake_until.lock().expect("nobody panics with it");
        all.insert(thread, (now + SILENCE_MAX).as_nanos() as u64);
        let earliest = all.values().min().copied().unwrap_or(0);
        self.awake.insert(&[0; 4], &earliest.to_ne_bytes())
    }

    /// How a thread uses a port from here on; `None`: not any more. The port is the kernel's again
    /// when no thread uses it.
    ///
    /// # Errors
    /// Whatever bpf(2) says.
    pub fn set(&self, thread: usize, end: End, how: Option<PortUse>) -> io::Result<()> {
        let bits = match how {
            Some(PortUse::Listening) => LISTENING | CONNECTED,
            Some(PortUse::Connected) => CONNECTED,
            None => 0,
        };
        let mut current = self.current.lock().expect("nobody panics with it");
        self.claim(&mut current, (end, Claim::Used(thread)), bits)
    }

    /// The ports that connections of a thread's programs go out from, from here on: these, and no
    /// others. They are the engine's for everything but requests for connections.
    ///
    /// # Errors
    /// Whatever bpf(2) says of the first that cannot be set; then the thread has none.
    pub fn set_outgoing(&self, thread: usize, ends: &BTreeSet<End>) -> io::Result<()> {
        let claim = Claim::Outgoing(thread);
        let mut current = self.current.lock().expect("nobody panics with it");
        let known: Vec<End> = (current.iter())
            .filter(|(_, claims)| claims.contains_key(&claim))
            .map(|(end, _)| *end)
            .collect();
        let set = ends.iter().try_for_each(|end| {
            let is_known = known.binary_search(end).is_ok();
            match is_known {
                true => Ok(()),
                false => self.claim(&mut current, (*end, claim), CONNECTED),
            }
        });
        let stays = |end: &End| set.is_ok() && ends.contains(end);
        let all = known.iter().chain(ends.iter().filter(|_| set.is_err()));
        for end in all.filter(|end| !stays(end)) {
            // A port that is left in the table has no connection: the engine answers with a reset,
            // as the kernel would.
            let _ = self.claim(&mut current, (*end, claim), 0);
        }
        set
    }

    /// Notes what somebody says of a port, and has the kernel know what all of them say.
    fn claim(
        &self,
        current: &mut BTreeMap<End, BTreeMap<Claim, u32>>,
        (end, claim): (End, Claim),
        bits: u32,
    ) -> io::Result<()> {
        let claims = current.entry(end).or_default();
        let before = all_of(claims);
        match bits {
            0 => claims.remove(&claim),
            bits => claims.insert(claim, bits),
        };
        let after = all_of(claims);
        if after == 0 {
            current.remove(&end);
        }
        match (before, after) {
            (0, 0) => Ok(()),
            (_, 0) => self.map.remove(&key_of(end)),
            _ if before == after => Ok(()),
            _ => self.map.insert(&key_of(end), &after.to_ne_bytes()),
        }
    }
}

fn all_of(claims: &BTreeMap<Claim, u32>) -> u32 {
    claims.values().fold(0, |all, one| all | one)
}

fn key_of((ip, port): End) -> [u8; KEY_BYTES] {
    let ip = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&ip);
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key
}

/// Why the kernel cannot be kept from a port.
#[derive(Debug)]
pub enum PortError {
    /// There is no such interface.
    Interface(String, io::Error),
    /// CAP_BPF or CAP_NET_ADMIN is missing.
    Privilege,
    /// The kernel is older than Linux 6.6.
    TooOld,
    /// The kernel's verifier refuses the program.
    Verifier(io::Error, String),
    /// The kernel refuses what the text names.
    Setup(&'static str, io::Error),
}

impl PortError {
    fn of(action: &'static str, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Privilege,
            _ => Self::Setup(action, error),
        }
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name, error) => write!(
                f,
                "there is no interface {name} ({error}); `ip link` lists them"
            ),
            Self::Privilege => f.write_str(
                "to share an address needs CAP_BPF and CAP_NET_ADMIN, beside the link's own \
                capabilities: run the adapter as root, or setcap \
                cap_net_admin,cap_net_raw,cap_bpf+ep",
            ),
            Self::TooOld => f.write_str(
                "to share an address over a packet link needs Linux 6.6 (TCX); an xdp link does \
                without, or an address of the engine's own (address)",
            ),
            Self::Verifier(error, said) => write!(
                f,
                "the kernel refuses the program that tells its ports from the engine's ({error}): \
                {said}"
            ),
            Self::Setup(action, error) => write!(f, "cannot {action} ({error})"),
        }
    }
}

impl std::error::Error for PortError {}

/// The program that keeps the kernel from the engine's segments on an interface with packet
/// sockets. It is there as long as this: when the process ends, the kernel takes the program off.
#[derive(Debug)]
pub struct PortSteering {
    ports: PortTable,
    interface: u32,
    _attached: Attachment,
}

impl PortSteering {
    /// Attaches the program to the interface `name` of this thread's network namespace. No port is
    /// the engine's yet.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn attach(name: &str) -> Result<Self, PortError> {
        let setup = |action| move |error| PortError::of(action, error);
        let interfaces = Interfaces::here().map_err(setup("ask about interfaces"))?;
        let interface = interfaces.index(name);
        let interface = interface.map_err(|error| PortError::Interface(name.to_owned(), error))?;
        let ports = PortTable::new().map_err(setup("make a map of ports"))?;
        let program = program::steering(ports.maps(), Way::Ingress);
        let program = Program::load(ProgramKind::Ingress, "toehold_ports", &program);
        let program = program.map_err(|(error, said)| match said.is_empty() {
            true => PortError::of("load the program for shared addresses", error),
            false => PortError::Verifier(error, said),
        })?;
        let attached = program.attach(interface, 0);
        let attached = attached.map_err(|error| match error.raw_os_error() {
            // No such attachment.
            Some(libc::EINVAL) => PortError::TooOld,
            _ => PortError::of("attach the program for shared addresses", error),
        })?;
        Ok(Self {
            ports,
            interface,
            _attached: attached,
        })
    }

    /// Which ports are the engine's.
    #[must_use]
    pub const fn ports(&self) -> &PortTable {
        &self.ports
    }

    /// The interface's number.
    #[must_use]
    pub const fn interface(&self) -> u32 {
        self.interface
    }
}

/// How long a thread may say nothing before new connections are the kernel's. A remote asks once a
/// second, and hears within a few of them from whoever is there.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Listeners of all programs on all addresses, and a range of ports on each.
const PORTS_MAX: u32 = 1 << 20;
