//! The individual checks. They change nothing on the host.

use std::fs::{self, OpenOptions};
use std::io;
use std::mem;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    MemfdFlags, SealFlags, StatVfs, StatVfsMountFlags, fcntl_add_seals, memfd_create, statvfs,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};

use toehold_adapter::client::{self, ClientError};
use toehold_adapter::runtime_dir::RuntimeDir;
use toehold_measure::cpus;
use toehold_measure::syscalls::Tracepoint;

use super::{Check, NeededFor};
use crate::library;

/// All checks, in the order of the report.
pub(super) fn all(runtime_dir: &Path) -> Vec<Check> {
    vec![
        kernel(),
        sealed_memory(),
        namespace_cookie(try_cookie()),
        library_found(),
        directory(runtime_dir),
        adapter(runtime_dir),
        cores(),
        open_files(),
        shared_memory_mount(),
        congestion_control(),
        autocorking(),
        tun(),
        packet(),
        af_xdp(),
        locked_memory(),
        syscall_counting(),
    ]
}

fn kernel() -> Check {
    let release = line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let check = Check::ok("kernel", NeededFor::Direct, format!("Linux {release}"));
    match version(&release) {
        Some(version) if version < KERNEL_MIN => check.warn(format!(
            "older than Linux {}.{}; the checks below show what it supports",
            KERNEL_MIN.0, KERNEL_MIN.1
        )),
        Some(_) => check,
        None => check.warn("its version is unknown; the checks below show what it supports"),
    }
}

fn sealed_memory() -> Check {
    let name = "sealed memory";
    match try_sealing() {
        Ok(()) => Check::ok(name, NeededFor::Direct, "memfd_create with seals works"),
        Err(error) => Check::ok(
            name,
            NeededFor::Direct,
            format!("memfd_create with seals: {error}"),
        )
        .missing("a sandbox may forbid it: allow memfd_create and fcntl(F_ADD_SEALS)"),
    }
}

fn try_sealing() -> io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("toehold-doctor", flags)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, seals)?)
}

fn namespace_cookie(cookie: io::Result<u64>) -> Check {
    let name = "namespace identity";
    match cookie {
        Ok(_) => Check::ok(name, NeededFor::Direct, "SO_NETNS_COOKIE works"),
        // Without the cookie the adapter assumes that all sockets are in its own namespace; the
        // kernel's list of sockets there confirms that or does not.
        Err(error) => Check::ok(name, NeededFor::Direct, format!("SO_NETNS_COOKIE: {error}")).warn(
            "Linux 5.14 or later has it; without it connections are paired in the adapter's \
             network namespace only",
        ),
    }
}

fn try_cookie() -> io::Result<u64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut cookie = 0u64;
    let mut length = mem::size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is `length` writable bytes, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn library_found() -> Check {
    let name = "library";
    match library::find() {
        Ok(path) => Check::ok(name, NeededFor::Direct, path.display().to_string()),
        Err(error) => Check::ok(name, NeededFor::Direct, error.to_string())
            .missing("install Toehold with `make install`, or set TOEHOLD_LIB"),
    }
}

fn directory(path: &Path) -> Check {
    let name = "runtime directory";
    let found = |finding: String| Check::ok(name, NeededFor::Direct, finding);
    // A socket needs an inode, and so does a directory that does not exist yet.
    let there = path.ancestors().find(|one| one.exists());
    if let Some(full) = there.and_then(full_file_system) {
        return found(full).missing(
            "the adapter cannot make its socket: free some room, or set TOEHOLD_RUNTIME_DIR",
        );
    }
    let opened = RuntimeDir::open_either(path);
    // Where an adapter answers already, no new socket is needed: a container mounts the directory
    // read-only.
    let is_own = !opened.as_ref().is_ok_and(RuntimeDir::is_system);
    if let Some(there) = there.filter(|it| is_own && is_read_only(it))
        && client::ping(path).is_err()
    {
        let there = there.display();
        return found(format!("the file system of {there} is read-only"))
            .missing("the adapter cannot make its socket: set TOEHOLD_RUNTIME_DIR");
    }
    match opened {
        Ok(dir) if dir.is_system() => found(format!("{} is the system adapter's", path.display())),
        Ok(_) => found(format!("{} is private", path.display())),
        Err(error) if error.is_missing() => found(format!(
            "{} does not exist yet; it is created when needed",
            path.display()
        )),
        Err(error) => {
            found(error.to_string()).missing("programs run on kernel TCP until this is corrected")
        }
    }
}

/// Reports when the file system of `path` has no free block or inode.
fn full_file_system(path: &Path) -> Option<String> {
    let room = statvfs(path).ok()?;
    let what = lacks(&room)?;
    Some(format!("the file system of {} {what}", path.display()))
}

fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// The resource that a file system has run out of. Some file systems do not count blocks or inodes:
/// then their total is 0.
fn lacks(room: &StatVfs) -> Option<&'static str> {
    if room.f_blocks > 0 && room.f_bavail == 0 {
        Some("is full")
    } else if room.f_files > 0 && room.f_favail == 0 {
        Some("has no inode left")
    } else {
        None
    }
}

fn adapter(runtime_dir: &Path) -> Check {
    let found = |finding: String| Check::ok("adapter", NeededFor::Direct, finding);
    match client::ping(runtime_dir) {
        Ok(info) => found(format!(
            "answers (pid {}, layout {})",
            info.pid, info.layout_version
        )),
        Err(ClientError::NoAdapter(_) | ClientError::StaleSocket(_)) => {
            found("none is running; `toehold run` starts one".to_owned())
        }
        Err(error @ ClientError::OtherVersion { .. }) => {
            found(error.to_string()).missing("stop it; `toehold run` then starts its own")
        }
        Err(error) => {
            found(error.to_string()).warn("connections stay on kernel TCP until an adapter answers")
        }
    }
}

fn cores() -> Check {
    let cores = cpus::allowed().len();
    let check = Check::ok("cores", NeededFor::Direct, format!("{cores} usable"));
    match cores {
        1 => check.warn("with one core, spinning does not help, so the gain is smaller"),
        _ => check,
    }
}

fn open_files() -> Check {
    let (soft, hard) = limit(Resource::Nofile);
    let check = Check::ok(
        "open files",
        NeededFor::Direct,
        format!("limit {soft} (hard {hard})"),
    );
    if soft == hard && soft < OPEN_FILES_COMFORTABLE {
        return check.warn("servers with many connections need more: raise it with ulimit -n");
    }
    check
}

fn shared_memory_mount() -> Check {
    Check::ok(
        "/dev/shm",
        NeededFor::Direct,
        "not used: rings live in anonymous sealed files",
    )
}

fn congestion_control() -> Check {
    let name =
        line("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|| "unknown".into());
    let check = Check::ok("congestion control", NeededFor::Compare, name.clone());
    if name == "bbr" {
        return check.warn(
            "bbr paces, also on loopback: for a comparison with the kernel at its best use cubic \
            or reno (sysctl net.ipv4.tcp_congestion_control)",
        );
    }
    check
}

fn autocorking() -> Check {
    let on = line("/proc/sys/net/ipv4/tcp_autocorking").is_none_or(|value| value != "0");
    Check::ok(
        "autocorking",
        NeededFor::Compare,
        if on {
            "on, the kernel's default"
        } else {
            "off"
        },
    )
}

fn tun() -> Check {
    let check = |finding: String| Check::ok(TUN, NeededFor::Offload, finding);
    match OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        Ok(_) if has_capability(CAP_NET_ADMIN) => {
            check("/dev/net/tun opens, CAP_NET_ADMIN held".into())
        }
        Ok(_) => check("/dev/net/tun opens, CAP_NET_ADMIN is not held".into())
            .missing("needed to create a device: run the adapter as root or with that capability"),
        Err(error) => check(format!("/dev/net/tun: {error}"))
            .missing("load the module (modprobe tun) and give this user access to the device"),
    }
}

fn packet() -> Check {
    let check = |finding: String| Check::ok(PACKET, NeededFor::Offload, finding);
    match raw_socket(AddressFamily::PACKET) {
        Ok(_) => check("can be opened".into()),
        Err(error) => check(format!("socket: {error}"))
            .missing("for --link packet:INTERFACE: run the adapter as root or with CAP_NET_RAW"),
    }
}

fn af_xdp() -> Check {
    let check = |finding: String| Check::ok(AF_XDP, NeededFor::Offload, finding);
    match raw_socket(AddressFamily::XDP) {
        Ok(_) => check("sockets can be opened".into()),
        Err(error) => check(format!("socket: {error}"))
            .missing("needs CAP_NET_RAW and a kernel with CONFIG_XDP_SOCKETS; TAP works without"),
    }
}

fn locked_memory() -> Check {
    let (soft, _) = limit(Resource::Memlock);
    let size = if soft == u64::MAX {
        "unlimited".to_owned()
    } else {
        format!("{} KiB", soft / 1024)
    };
    let check = Check::ok("locked memory", NeededFor::Offload, format!("limit {size}"));
    if soft < LOCKED_BYTES_COMFORTABLE && !has_capability(CAP_IPC_LOCK) {
        return check.warn("AF_XDP's packet memory may not fit: raise it with ulimit -l");
    }
    check
}

fn syscall_counting() -> Check {
    let check = |finding: String| Check::ok("system calls", NeededFor::Compare, finding);
    match Tracepoint::find() {
        Ok(_) => check("can be counted".into()),
        Err(reason) => {
            check(format!("not counted: {reason}")).warn("everything else is still measured")
        }
    }
}

/// Major and minor of a kernel release like `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether this process holds a capability in effect.
fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << number) != 0)
}

/// The soft and the hard limit.
fn limit(resource: Resource) -> (u64, u64) {
    let limit = getrlimit(resource);
    let of = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    (of(limit.current), of(limit.maximum))
}

fn raw_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(
        family,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn line(path: &str) -> Option<String> {
    Some(
        fs::read_to_string(path)
            .ok()?
            .lines()
            .next()?
            .trim()
            .to_owned(),
    )
}

/// Names of the checks that kinds of link depend on.
pub(super) const TUN: &str = "TUN/TAP";
pub(super) const PACKET: &str = "packet sockets";
pub(super) const AF_XDP: &str = "AF_XDP";

/// The first kernel with everything that the direct path uses (SO_NETNS_COOKIE is the newest part).
const KERNEL_MIN: (u32, u32) = (5, 14);

/// With a lower limit a busy server may run out of descriptors.
const OPEN_FILES_COMFORTABLE: u64 = 4096;

/// Packet memory for a few queues.
const LOCKED_BYTES_COMFORTABLE: u64 = 64 << 20;

// <linux/capability.h>
const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.14+"), Some((5, 14)));
        assert_eq!(version("unknown"), None);
        assert!(version("5.9.1").expect("a version") < KERNEL_MIN);
    }

    #[test]
    fn without_the_numbers_of_namespaces_programs_are_accelerated_in_one() {
        let refused = io::Error::from_raw_os_error(libc::ENOPROTOOPT);
        let check = namespace_cookie(Err(refused));
        assert_eq!(check.state, super::super::State::Warn);
        assert!(super::super::first_failed(&[check]).is_none());
    }

    #[test]
    fn full_file_systems_are_distinguished_from_those_that_count_nothing() {
        let with = |blocks, blocks_free, inodes, inodes_free| {
            let mut room = statvfs("/").expect("a file system");
            (room.f_blocks, room.f_bavail) = (blocks, blocks_free);
            (room.f_files, room.f_favail) = (inodes, inodes_free);
            lacks(&room)
        };
        assert_eq!(with(0, 0, 0, 0), None);
        assert_eq!(with(9, 1, 9, 1), None);
        assert_eq!(with(9, 0, 9, 1), Some("is full"));
        assert_eq!(with(9, 1, 9, 0), Some("has no inode left"));
    }

    #[test]
    fn a_refused_directory_is_missing_with_its_reason() {
        let open = tempfile::tempdir().expect("a directory");
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(open.path(), all).expect("ours");
        let check = directory(open.path());
        assert_eq!(check.state, super::super::State::Missing);
        assert!(check.finding.contains(open.path().to_str().expect("text")));
    }
}
