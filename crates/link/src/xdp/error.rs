//! The reason why an AF_XDP link cannot be opened.

use std::fmt;
use std::fs;
use std::io;

/// The reason why there is no AF_XDP link.
#[derive(Debug)]
pub enum XdpError {
    /// There is no such interface.
    Interface(String, io::Error),
    /// The interface carries no Ethernet.
    Medium(String),
    /// Frames of this MTU do not fit.
    Mtu(String, u32),
    /// The driver reports that the MTU of the interface, or of the other end of a veth, is too
    /// large.
    DriverMtu(String),
    /// The other end of a veth has more transmit queues than this end has receive queues.
    PeerQueues(String),
    /// The interface's number of receive queues (first) differs from the requested number (second).
    Queues(String, u32, u32),
    /// The interface has fewer transmit queues (first number) than receive queues (second).
    TransmitQueues(String, u32, u32),
    /// Another program is attached to the interface, or another socket has its queue.
    Busy(String),
    /// These capabilities are missing.
    Privilege(Vec<&'static str>),
    /// This number of bytes cannot be locked.
    LockedMemory(usize),
    /// The kernel's verifier refuses the steering program.
    Verifier(io::Error, String),
    /// The kernel refuses the step that the text names.
    Setup(&'static str, io::Error),
}

impl XdpError {
    /// The meaning of an error of `action` on the interface.
    pub(super) fn of(action: &'static str, interface: &str, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Privilege(missing_capabilities()),
            Some(libc::EBUSY) => Self::Busy(interface.to_owned()),
            _ => Self::Setup(action, error),
        }
    }
}

impl fmt::Display for XdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name, error) => {
                write!(
                    f,
                    "there is no interface {name} ({error}); `ip link` lists them"
                )
            }
            Self::Medium(name) => write!(f, "the interface {name} carries no Ethernet"),
            Self::Mtu(name, mtu) => write!(
                f,
                "the MTU of {name} is {mtu}, and AF_XDP has room for {MTU_IN_PIECES_MAX}, or with \
                Linux before 6.6 for {MTU_MAX} (a veth for about 3500): ip link set {name} mtu 3000"
            ),
            Self::DriverMtu(name) => write!(
                f,
                "the driver of {name} takes no XDP program with this MTU; a veth counts that of \
                its other end: at most about 3500 on both"
            ),
            Self::PeerQueues(name) => write!(
                f,
                "the other end of {name} sends by more queues than {name} receives by: ethtool -L \
                on either end"
            ),
            Self::Queues(name, has, asked) => write!(
                f,
                "the interface {name} has {has} receive queue(s), of which {asked} would be \
                served, and frames of the others lost: \
                 --threads {has}, or ethtool -L {name} combined {asked}"
            ),
            Self::TransmitQueues(name, has, wanted) => write!(
                f,
                "the interface {name} has {has} transmit queue(s) and {wanted} receive queues, and \
                each of these needs one: ethtool -L {name} tx {wanted}, or rx {has}"
            ),
            Self::Busy(name) => write!(
                f,
                "the interface {name} has an XDP program already, or its queue an AF_XDP socket: \
                `ip link show {name}`"
            ),
            Self::Privilege(missing) => write!(
                f,
                "an XDP link needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, in the first network \
                namespace, and has not {}: run the adapter \
                 as root, or setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep",
                match &missing[..] {
                    [] => "all of them there".to_owned(),
                    missing => missing.join(", "),
                }
            ),
            Self::LockedMemory(bytes) => write!(
                f,
                "{bytes} bytes for frames cannot be locked: raise the limit (ulimit -l), or grant \
                CAP_IPC_LOCK"
            ),
            Self::Verifier(error, said) => {
                write!(
                    f,
                    "the kernel refuses the steering program ({error}): {said}"
                )
            }
            Self::Setup(action, error) => write!(f, "cannot {action} ({error})"),
        }
    }
}

impl std::error::Error for XdpError {}

/// The needed capabilities that are not in this thread's effective set (capabilities(7)).
fn missing_capabilities() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let is_missing = |&&(number, _): &&(u32, _)| held.is_some_and(|held| held >> number & 1 == 0);
    let missing = NEEDED.iter().filter(is_missing);
    missing.map(|&(_, name)| name).collect()
}

/// `linux/capability.h`.
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
/// A page, less the kernel's headroom before each frame (XDP_PACKET_HEADROOM), the Ethernet header
/// and a VLAN's tag.
pub(super) const MTU_MAX: u32 = 4096 - 256 - 14 - 4;
/// Frames in sixteen pieces; the kernel takes seventeen (MAX_SKB_FRAGS).
pub(super) const MTU_IN_PIECES_MAX: u32 = 16 * (4096 - 256) - 14 - 4;
