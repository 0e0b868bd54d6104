//! The engine's ports of addresses that it shares with the kernel.
//!
//! A port is the engine's while a program listens on it through the engine or has connections
//! there. The ports for outgoing connections of programs are the engine's, too. All other traffic
//! of the address stays with the kernel: other ports, ARP, neighbour discovery, echoes. A
//! [`PortTable`] has the list of ports, and the BPF program of `program` reads it. When the process
//! ends, for whatever reason, both vanish, and the whole address is the kernel's.
//!
//! A process that is stopped, or that ends slowly, still holds the BPF program, and a request for a
//! connection would get no answer. So each thread of the engine reports every second that it is
//! awake ([`PortTable::record_heartbeat`]). If one thread has not reported for [`SILENCE_MAX`], new
//! connections are the kernel's.

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

/// The use of a port of a shared address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortUse {
    /// The engine accepts new connections on this port, and may have connections there.
    Listening,
    /// The engine has connections on this port, and accepts no new ones.
    Connected,
}

/// A port of an address.
type End = (IpAddr, u16);

/// A claim of a thread, by its index, that a port is the engine's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Claim {
    /// Programs listen on the port, or have connections there.
    Used(usize),
    /// Outgoing connections of programs may use the port.
    Outgoing(usize),
}

/// The engine's ports. Several threads share this table, each with its own ports.
#[derive(Debug)]
pub struct PortTable {
    map: Map,
    /// The claims of each port, with their value in the map.
    current: Mutex<BTreeMap<End, BTreeMap<Claim, u32>>>,
    /// The time until which requests for connections are the engine's: eight bytes of nanoseconds.
    awake: Map,
    /// By thread: the time at which its silence becomes too long.
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

    /// The maps, for the BPF program.
    pub(crate) fn maps(&self) -> Maps {
        Maps {
            ports: self.map.as_raw_fd(),
            awake: self.awake.as_raw_fd(),
        }
    }

    /// Reports that a thread is awake. Each thread that uses ports must call this at intervals
    /// below [`SILENCE_MAX`]. Otherwise requests for connections go to the kernel.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn record_heartbeat(&self, thread: usize) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32);
        let mut all = self.awake_until.lock().expect("nobody panics with it");
        all.insert(thread, (now + SILENCE_MAX).as_nanos() as u64);
        let earliest = all.values().min().copied().unwrap_or(0);
        self.awake.insert(&[0; 4], &earliest.to_ne_bytes())
    }

    /// Sets how a thread uses a port; `None`: no longer. When no thread uses the port, it is the
    /// kernel's again.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn set(&self, thread: usize, end: End, how: Option<PortUse>) -> io::Result<()> {
        let bits = match how {
            Some(PortUse::Listening) => LISTENING | CONNECTED,
            Some(PortUse::Connected) => CONNECTED,
            None => 0,
        };
        let mut current = self.current.lock().expect("nobody panics with it");
        self.claim(&mut current, (end, Claim::Used(thread)), bits)
    }

    /// Sets the complete list of ports for outgoing connections of a thread's programs. These ports
    /// are the engine's for all segments except requests for connections.
    ///
    /// # Errors
    /// The error of bpf(2) for the first port that cannot be set. The thread then has no such
    /// ports.
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
            // If the removal fails, the port stays in the table without a connection. The engine
            // then answers its segments with a reset, as the kernel would.
            let _ = self.claim(&mut current, (*end, claim), 0);
        }
        set
    }

    /// Notes a claim on a port, and writes the union of all its claims to the kernel's map.
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

/// The reason why ports cannot be taken from the kernel.
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

/// The BPF program that keeps the engine's segments from the kernel on an interface with packet
/// sockets. Dropping this value detaches the program, and so does the end of the process.
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
            // The kernel does not know this kind of attachment.
            Some(libc::EINVAL) => PortError::TooOld,
            _ => PortError::of("attach the program for shared addresses", error),
        })?;
        Ok(Self {
            ports,
            interface,
            _attached: attached,
        })
    }

    /// The table of the engine's ports.
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

/// The longest silence of a thread before new connections are the kernel's. A remote repeats its
/// SYN after a second, so it gets the kernel's answer after a few seconds.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);
/// The most ports of all addresses: listeners of all programs, and a range of outgoing ports on
/// each address.
const PORTS_MAX: u32 = 1 << 20;
