//! Other processes, as `/proc` shows them.

pub(crate) mod mappings;

use crate::diag::{Diag, Moved};
use crate::printable::printable;
use crate::registry::{Address, Tuple};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// The TCP and Unix sockets of processes, found by descriptor.
#[derive(Debug, Default)]
pub(crate) struct Sockets<'a> {
    /// Answers for our network namespace.
    diag: Option<&'a Diag>,
    /// Unix sockets by inode, with their names, by network namespace.
    unix: BTreeMap<u64, HashMap<u32, String>>,
    /// The TCP sockets of each network namespace. The kernel takes a while to list many sockets, so
    /// each list is read once.
    lists: BTreeMap<u64, SocketList>,
    /// The number of times that the kernel was asked for the bytes of a connection.
    asked: usize,
}

/// The most connections whose bytes the kernel is asked for in one answer, which takes some
/// milliseconds.
const ASKED_MAX: usize = 2_000;

/// The TCP sockets of a namespace. The order of these maps has no visible effect.
#[derive(Debug, Default)]
struct SocketList {
    by_inode: HashMap<u64, Listed>,
    /// The inodes of sockets that a process has open.
    by_addresses: HashMap<Ends, u64>,
    /// The sockets that no process has open.
    unheld: HashSet<Ends>,
}

/// The socket at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OtherEnd {
    /// A process has it open.
    Held {
        /// Its inode.
        inode: u64,
        /// Its user.
        uid: u32,
    },
    /// Only the kernel has it: it was not accepted yet, or it was closed.
    Unheld,
}

/// Local and remote address.
type Ends = (SocketAddr, SocketAddr);

/// One socket of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    addresses: Ends,
    uid: u32,
}

impl SocketList {
    /// The sockets of a process's namespace. In our own namespace the kernel is asked for single
    /// sockets instead.
    fn of(pid: u32, diag: Option<&Diag>) -> SocketList {
        let diag = diag.filter(|_| is_in_ours(pid));
        match diag.and_then(Diag::tcp_sockets) {
            Some(found) => SocketList::gather(found.iter().map(|one| {
                let addresses = (one.local, one.remote);
                let uid = one.uid;
                (one.inode.into(), Listed { addresses, uid })
            })),
            None => SocketList::read(pid),
        }
    }

    /// Reads the list in `/proc`.
    fn read(pid: u32) -> SocketList {
        let text = ["tcp", "tcp6"].map(|name| read_net(pid, name));
        let lines = text.iter().flat_map(|text| text.lines().skip(1));
        SocketList::gather(lines.filter_map(parse_line))
    }

    fn gather(sockets: impl Iterator<Item = (u64, Listed)>) -> SocketList {
        let mut list = SocketList::default();
        for (inode, listed) in sockets {
            // A socket has an inode while it has a file: from `accept` until its last close.
            if inode == 0 {
                list.unheld.insert(listed.addresses);
                continue;
            }
            list.by_inode.insert(inode, listed);
            list.by_addresses.insert(listed.addresses, inode);
        }
        list
    }
}

impl Sockets<'_> {
    /// Finds them with a [`Diag`] of our own namespace.
    pub(crate) fn new(diag: Option<&Diag>) -> Sockets<'_> {
        Sockets {
            diag,
            ..Sockets::default()
        }
    }

    /// Local and remote address of a descriptor of a process, if it is a TCP socket and we may
    /// look.
    pub(crate) fn addresses(&mut self, pid: u32, fd: u32) -> Option<(SocketAddr, SocketAddr)> {
        let inode = socket_inode(pid, fd)?;
        let namespace = network_namespace(pid)?;
        let list = self
            .lists
            .entry(namespace)
            .or_insert_with(|| SocketList::of(pid, self.diag));
        let listed = list.by_inode.get(&inode)?;
        Some(listed.addresses)
    }

    /// The name of a descriptor of a process, if it is a Unix socket and we may look.
    pub(crate) fn unix_name(&mut self, pid: u32, fd: u32) -> Option<String> {
        let inode = u32::try_from(socket_inode(pid, fd)?).ok()?;
        let name = self.unix_list(pid)?.get(&inode)?;
        Some(spell_unix(name, inode))
    }

    /// The names of both ends of a connection of a process.
    pub(crate) fn spell(&mut self, pid: u32, tuple: Tuple) -> (String, String) {
        let mut spell = |address| match address {
            Address::Unix { inode } => {
                let list = self.unix_list(pid);
                let name = list.and_then(|list| list.get(&inode));
                spell_unix(name.map_or("", String::as_str), inode)
            }
            Address::Internet { .. } => String::new(),
        };
        match tuple.spoken() {
            Some((local, remote)) => (local.to_string(), remote.to_string()),
            None => (spell(tuple.local), spell(tuple.remote)),
        }
    }

    fn unix_list(&mut self, pid: u32) -> Option<&HashMap<u32, String>> {
        let namespace = network_namespace(pid)?;
        let list = self.unix.entry(namespace);
        Some(list.or_insert_with(|| {
            let diag = self.diag.filter(|_| is_in_ours(pid));
            let known = diag.and_then(Diag::unix_names);
            known.unwrap_or_else(|| unix_list(pid))
        }))
    }

    /// The socket at the other end of a connection, when it is in the network namespace of `pid`.
    pub(crate) fn other_end(
        &mut self,
        pid: u32,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<OtherEnd> {
        let namespace = network_namespace(pid)?;
        let list = self
            .lists
            .entry(namespace)
            .or_insert_with(|| SocketList::of(pid, self.diag));
        let Some(&inode) = list.by_addresses.get(&(remote, local)) else {
            let is_unheld = list.unheld.contains(&(remote, local));
            return is_unheld.then_some(OtherEnd::Unheld);
        };
        let uid = list.by_inode.get(&inode)?.uid;
        Some(OtherEnd::Held { inode, uid })
    }

    /// The bytes that the kernel has counted of a connection of a process in our network namespace.
    pub(crate) fn moved(
        &mut self,
        pid: u32,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<Moved> {
        if self.asked == ASKED_MAX || !is_in_ours(pid) {
            return None;
        }
        self.asked += 1;
        self.diag?.moved(local, remote)
    }

    /// Whether a process has the socket with these addresses open, in the network namespace of
    /// `pid`.
    pub(crate) fn is_open(&mut self, pid: u32, tuple: Tuple) -> bool {
        if let Address::Unix { inode } = tuple.local {
            return self
                .unix_list(pid)
                .is_some_and(|list| list.contains_key(&inode));
        }
        let (Some(namespace), Some((local, remote))) = (network_namespace(pid), tuple.spoken())
        else {
            return false;
        };
        let list = self
            .lists
            .entry(namespace)
            .or_insert_with(|| SocketList::of(pid, self.diag));
        list.by_addresses.contains_key(&(local, remote))
    }
}

/// The inode of a socket of a process, if we may look.
pub(crate) fn socket_inode(pid: u32, fd: u32) -> Option<u64> {
    let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let inode = target.to_str()?.strip_prefix("socket:[")?;
    inode.strip_suffix(']')?.parse().ok()
}

fn is_in_ours(pid: u32) -> bool {
    network_namespace(pid) == network_namespace(std::process::id())
}

/// A Unix socket for display: its name, which is not unique, and its inode.
fn spell_unix(name: &str, inode: u32) -> String {
    format!("{}#{inode}", printable(name))
}

/// The Unix sockets of a process's network namespace that are open, with their names.
fn unix_list(pid: u32) -> HashMap<u32, String> {
    parse_unix_list(&read_net(pid, "unix"))
}

/// A list of sockets in `/proc`, as much of it as is read. A process may have filled its own
/// network namespace with any number of sockets.
fn read_net(pid: u32, name: &str) -> String {
    let file = fs::File::open(format!("/proc/{pid}/net/{name}"));
    file.map_or(String::new(), |file| read_lines(file, NET_BYTES_MAX))
}

/// The lines within the first `bytes_max` bytes of a file.
fn read_lines(file: impl Read, bytes_max: u64) -> String {
    let mut bytes = Vec::new();
    // An error ends the list.
    let _ = file.take(bytes_max).read_to_end(&mut bytes);
    if bytes.len() as u64 == bytes_max {
        let end = bytes.iter().rposition(|&byte| byte == b'\n');
        bytes.truncate(end.map_or(0, |end| end + 1));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The most bytes of a list: some 100,000 sockets, which the kernel lists in a tenth of a second.
const NET_BYTES_MAX: u64 = 16 << 20;

/// As `/proc/net/unix` shows them. A name there may contain a line end, and after it a forged line
/// about another socket. That socket also has its real line. So when two lines are about one
/// socket, neither name is used.
fn parse_unix_list(text: &str) -> HashMap<u32, String> {
    let mut found = HashMap::new();
    for (inode, name) in text.lines().skip(1).filter_map(parse_unix_line) {
        let name = match found.contains_key(&inode) {
            false => name,
            true => String::new(),
        };
        found.insert(inode, name);
    }
    found
}

/// Inode and name of one line of `/proc/net/unix`: six fields, inode, and the name where there is
/// one.
fn parse_unix_line(line: &str) -> Option<(u32, String)> {
    let mut fields = line.trim_start().splitn(7, ' ').skip(6);
    let rest = fields.next()?.trim_start();
    let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
    let inode = inode.parse().ok().filter(|inode| *inode != 0)?;
    Some((inode, name.to_owned()))
}

/// The addresses at which TCP sockets listen in our network namespace.
pub(crate) fn listening() -> BTreeSet<SocketAddr> {
    /// `TCP_LISTEN` (include/net/tcp_states.h).
    const LISTEN: &str = "0A";
    let mut found = BTreeSet::new();
    for name in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
        let lines = text.lines().skip(1);
        found.extend(lines.filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let local = parse_address(fields.next()?)?;
            (fields.nth(1)? == LISTEN).then_some(local)
        }));
    }
    found
}

/// Whether a process is alive. A process that has ended but was not reaped is not alive.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
}

/// When a process was started, to a hundredth of a second.
pub(crate) fn started(pid: u32) -> Option<SystemTime> {
    /// Index of the field `starttime`, counted from the state (proc(5)).
    const STARTTIME: usize = 19;
    /// Ticks of a second, on all supported processors (`USER_HZ`).
    const TICKS: u64 = 100;
    let since_boot = |text: &str| -> Option<Duration> {
        let mut fields = text.rsplit(')').next()?.split_ascii_whitespace();
        let ticks: u64 = fields.nth(STARTTIME)?.parse().ok()?;
        Some(Duration::from_millis(ticks * 1000 / TICKS))
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    let boot = SystemTime::now().checked_sub(Duration::try_from_secs_f64(uptime).ok()?)?;
    boot.checked_add(since_boot(&stat)?)
}

/// The unit of the service manager that a process belongs to, if we may look.
pub(crate) fn unit(pid: u32) -> Option<String> {
    unit_of(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The innermost unit of `/proc/PID/cgroup`. Each line there is `NUMBER:CONTROLLERS:PATH`. The
/// hierarchy of systemd has no controllers but perhaps a name.
fn unit_of(text: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        matches!(controllers, "" | "name=systemd").then_some(fields.next()?)
    });
    lines.find_map(|path| {
        let mut names = path.rsplit('/');
        let unit = names.find(|name| name.ends_with(".service") || name.ends_with(".scope"));
        unit.map(str::to_owned)
    })
}

/// The rest of the line of a process's status that begins with `name`.
fn status(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::to_owned)
}

/// The effective user of a process, which may differ from the owner of its folder.
pub(crate) fn effective_user(pid: u32) -> Option<u32> {
    let users = status(pid, "Uid:")?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The number of filters for system calls that bind a process; where the kernel does not count
/// them, 1 for any.
pub(crate) fn filters(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok())
    };
    number("Seccomp_filters:").or_else(|| Some(u32::from(number("Seccomp:")? != 0)))
}

/// The inode of the network namespace a process is in.
pub(crate) fn network_namespace(pid: u32) -> Option<u64> {
    let link = fs::metadata(format!("/proc/{pid}/ns/net"));
    link.ok().map(|namespace| namespace.ino())
}

/// The number of a process in its own pid namespace: the last of `NSpid` in its status.
pub(crate) fn own_number(pid: u32) -> Option<u32> {
    let numbers = status(pid, "NSpid:")?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Whether an interface of our network namespace is a hardware device, according to `/sys`.
pub(crate) fn is_of_hardware(interface: u32) -> bool {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten();
    let mut folders = entries.flatten().map(|entry| entry.path());
    let is_it = |folder: &std::path::PathBuf| {
        let number = fs::read_to_string(folder.join("ifindex")).unwrap_or_default();
        number.trim().parse() == Ok(interface)
    };
    let folder = folders.find(is_it);
    folder.is_some_and(|folder| folder.join("device").exists())
}

/// The environment that a program was started with.
#[derive(Debug)]
pub(crate) struct Environment(Vec<u8>);

impl Environment {
    /// The environment; empty for a program that we may not inspect.
    pub(crate) fn of(pid: u32) -> Environment {
        Environment(fs::read(format!("/proc/{pid}/environ")).unwrap_or_default())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        let mut variables = self.0.split(|&byte| byte == 0);
        variables.find_map(|variable| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(OsStr::from_bytes(value))
        })
    }
}

/// Every process that is visible to us.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The open files of a process that we may inspect: descriptor number and file name.
pub(crate) fn descriptors(pid: u32) -> impl Iterator<Item = (u32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let target = fs::read_link(entry.path()).ok()?;
        Some((number, target.to_str()?.to_owned()))
    })
}

/// For each of these sockets, a process that has it open, if we may inspect such a process.
pub(crate) fn holders(inodes: &BTreeSet<u64>) -> BTreeMap<u64, u32> {
    let mut found = BTreeMap::new();
    if inodes.is_empty() {
        return found;
    }
    for pid in processes() {
        for (_, target) in descriptors(pid) {
            let inode = target
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| inodes.contains(inode)) {
                found.entry(inode).or_insert(pid);
            }
        }
    }
    found
}

/// The process that traces this one, as debuggers and strace do; 0 if it is not visible to us.
pub(crate) fn tracer(pid: u32) -> Option<u32> {
    status(pid, "TracerPid:")?.trim().parse().ok()
}

/// The kernel's name for a process's program (its first 15 bytes).
pub(crate) fn name(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// The user of a process.
pub(crate) fn user(pid: u32) -> Option<u32> {
    let process = fs::metadata(format!("/proc/{pid}"));
    process.ok().map(|process| process.uid())
}

/// The name of a family's table in `/proc`.
const TABLE_NAME: &str = "/memfd:toehold-table";

/// The descriptor number of the family's table in a process.
pub(crate) fn table_descriptor(pid: u32) -> Option<u32> {
    let mut all = descriptors(pid);
    let table = all.find(|(_, target)| target.starts_with(TABLE_NAME));
    table.map(|(number, _)| number)
}

/// Whether a thread of the kernel takes requests of io_uring that a process makes (`SQPOLL`).
pub(crate) fn has_polled_ring(pid: u32) -> bool {
    let mut rings = descriptors(pid).filter(|(_, target)| target == "anon_inode:[io_uring]");
    rings.any(|(number, _)| {
        let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        let mut lines = about.lines();
        let thread = lines.find_map(|line| line.strip_prefix("SqThread:"));
        thread.is_some_and(|number| number.trim() != "-1")
    })
}

/// Inode, addresses and user of one line of `/proc/net/tcp` or `tcp6`.
fn parse_line(line: &str) -> Option<(u64, Listed)> {
    let mut fields = line.split_ascii_whitespace();
    let local = parse_address(fields.nth(1)?)?;
    let remote = parse_address(fields.next()?)?;
    let uid = fields.nth(4)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    let addresses = (local, remote);
    Some((inode, Listed { addresses, uid }))
}

/// `0100007F:1F90`: 32-bit words of the address as the processor reads them, then the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = [0u8; 16];
    for (index, target) in bytes.chunks_exact_mut(4).enumerate() {
        let Some(word) = address.get(index * 8..index * 8 + 8) else {
            break;
        };
        target.copy_from_slice(&u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        32 => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn the_innermost_unit_of_a_process_is_found() {
        let unit = |text| unit_of(text);
        let nginx = Some("nginx.service".to_owned());
        assert_eq!(unit("0::/system.slice/nginx.service\n"), nginx);
        assert_eq!(unit("0::/system.slice/nginx.service/worker\n"), nginx);
        let hybrid = "12:cpu:/\n1:name=systemd:/system.slice/nginx.service\n0::/\n";
        assert_eq!(unit(hybrid), nginx);
        let user = "0::/user.slice/user-1.slice/user@1.service/app.slice/run-7.scope\n";
        assert_eq!(unit(user).as_deref(), Some("run-7.scope"));
        assert_eq!(unit("0::/\n"), None);
    }

    #[test]
    fn lines_of_both_lists_are_understood() {
        let v4 = "   0: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  \
                  1000        0 4711 1 0000000000000000 20 4 30 10 -1";
        let expected = ("127.0.0.1:8080".parse(), "127.0.0.2:50000".parse());
        let expected = Listed {
            addresses: (expected.0.expect("address"), expected.1.expect("address")),
            uid: 1000,
        };
        if cfg!(target_endian = "little") {
            assert_eq!(parse_line(v4), Some((4711, expected)));
        }
        let v6 = parse_address("00000000000000000000000001000000:0016");
        if cfg!(target_endian = "little") {
            assert_eq!(v6, Some("[::1]:22".parse().expect("address")));
        }
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for line in [
            "",
            "0:",
            "0: 0100007F 0:0 01",
            "0: XYZ:1 0:0",
            "0: 01:1 02:2 01 0 0 0 0 0 x",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }

    fn tuple(local: SocketAddr, remote: SocketAddr) -> Tuple {
        let address = |of: SocketAddr| Address::Internet {
            ip: match of.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            },
            port: of.port(),
        };
        Tuple {
            netns: 1,
            local: address(local),
            remote: address(remote),
        }
    }

    #[test]
    fn lines_of_unix_sockets_are_understood() {
        let line = "0000000000000000: 00000003 00000000 00000000 0001 03 4711 /run/a b.sock";
        let expected = Some((4711, "/run/a b.sock".to_owned()));
        assert_eq!(parse_unix_line(line), expected);
        let line = "0000000000000000: 00000003 00000000 00000000 0001 03  4712";
        assert_eq!(parse_unix_line(line), Some((4712, String::new())));
        let closed = "0000000000000000: 00000003 00000000 00000000 0001 03 0 /run/a";
        for line in [closed, "", "0:", "0: 1 2 3 4 5", "0: 1 2 3 4 5 x"] {
            assert_eq!(parse_unix_line(line), None, "{line}");
        }
    }

    #[test]
    fn a_long_list_is_read_up_to_the_last_line_that_fits() {
        let read = |bytes_max| read_lines(&b"one\ntwo\nthree"[..], bytes_max);
        assert_eq!(read(100), "one\ntwo\nthree");
        assert_eq!(read(10), "one\ntwo\n");
        assert_eq!(read(8), "one\ntwo\n");
        assert_eq!(read(7), "one\n");
        assert_eq!(read(3), "");
    }

    /// A name that contains a line end and a forged line of `/proc/net/unix`.
    #[test]
    fn a_socket_name_with_a_line_end_forges_no_line() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let (one, other) = UnixStream::pair().expect("a pair");
        let own_pid = std::process::id();
        let inode = |fd: i32| socket_inode(own_pid, fd as u32).expect("a socket") as u32;
        let [a, b] = [one.as_raw_fd(), other.as_raw_fd()].map(inode);
        let forged = format!("z{a}\nffff: 00000003 00000000 00000000 0001 03 {b} /run/postgresql");
        let address = SocketAddr::from_abstract_name(&forged).expect("an address");
        let _listener = UnixListener::bind_addr(&address).expect("bound");
        let tuple = Tuple {
            netns: 1,
            local: Address::Unix { inode: b },
            remote: Address::Unix { inode: a },
        };
        let plain = (format!("#{b}"), format!("#{a}"));
        let diag = Diag::open().expect("sock_diag");
        for diag in [Some(&diag), None] {
            assert_eq!(Sockets::new(diag).spell(own_pid, tuple), plain);
        }
        assert_eq!(spell_unix("/a\u{1b}[31m\u{202e}", 7), "/a[31m#7");
    }

    #[test]
    fn own_unix_sockets_are_found_by_descriptor() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let client = UnixStream::connect(&path).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        let own_pid = std::process::id();
        let inode = |fd: i32| socket_inode(own_pid, fd as u32).expect("a socket") as u32;
        let [a, b] = [client.as_raw_fd(), server.as_raw_fd()].map(inode);
        let tuple = Tuple {
            netns: 1,
            local: Address::Unix { inode: b },
            remote: Address::Unix { inode: a },
        };
        let diag = Diag::open().expect("sock_diag");
        let mut sockets = Sockets::new(Some(&diag));
        let named = format!("{}#{b}", path.display());
        let fd = server.as_raw_fd() as u32;
        assert_eq!(sockets.unix_name(own_pid, fd), Some(named.clone()));
        assert_eq!(sockets.spell(own_pid, tuple), (named, format!("#{a}")));
        assert!(sockets.is_open(own_pid, tuple));
        drop(server);
        assert!(!Sockets::default().is_open(own_pid, tuple));
    }

    #[test]
    fn own_sockets_are_found_by_descriptor() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("bind");
            let target = listener.local_addr().expect("address");
            let stream = TcpStream::connect(target).expect("connect");
            let diag = Diag::open().expect("sock_diag");
            let mut sockets = Sockets::new(Some(&diag));
            let own_pid = std::process::id();
            let found = sockets.addresses(own_pid, stream.as_raw_fd() as u32);
            assert_eq!(found, Some((stream.local_addr().expect("address"), target)));
            assert_eq!(sockets.addresses(own_pid, u32::MAX), None);
            let local = stream.local_addr().expect("address");
            let Some(OtherEnd::Held { inode, uid }) = sockets.other_end(own_pid, target, local)
            else {
                panic!("this process has it open");
            };
            assert_eq!(uid, crate::runtime_dir::user_id());
            let holders = holders(&BTreeSet::from([inode]));
            assert!(holders.contains_key(&inode), "{holders:?}");
            let tuple = tuple(local, target);
            assert!(sockets.is_open(own_pid, tuple));
            drop(stream);
            assert!(!Sockets::default().is_open(own_pid, tuple));
        }
    }

    /// A connection that waits in its listener's queue is on this host, too.
    #[test]
    fn an_end_that_was_not_accepted_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let target = listener.local_addr().expect("address");
        let stream = TcpStream::connect(target).expect("connect");
        let local = stream.local_addr().expect("address");
        let diag = Diag::open().expect("sock_diag");
        let other_end = |diag| Sockets::new(diag).other_end(std::process::id(), local, target);
        for diag in [Some(&diag), None] {
            assert_eq!(other_end(diag), Some(OtherEnd::Unheld));
        }
        let _accepted = listener.accept().expect("accept");
        for diag in [Some(&diag), None] {
            assert!(matches!(other_end(diag), Some(OtherEnd::Held { .. })));
        }
    }

    #[test]
    fn own_listeners_are_found_while_they_listen() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let listener = TcpListener::bind(address).expect("bind");
            let local = listener.local_addr().expect("address");
            assert!(listening().contains(&local), "{local}");
            drop(listener);
            assert!(!listening().contains(&local), "{local}");
        }
    }

    #[test]
    fn a_process_runs_until_it_has_ended() {
        let own_pid = std::process::id();
        assert!(is_running(own_pid));
        assert_eq!(effective_user(own_pid), Some(crate::runtime_dir::user_id()));
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let pid = child.id();
        // After the wait the process is reaped, so it does not exist any more.
        child.wait().expect("our child");
        assert!(!is_running(pid));
        assert!(!is_running(0));
    }

    #[test]
    fn a_process_was_started_before_now_and_after_its_parent() {
        let before = SystemTime::now();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let started = started(child.id()).expect("it runs");
        // Two clocks are compared, and the kernel's counts hundredths of a second.
        let slack = Duration::from_millis(100);
        assert!(started + slack >= before && started <= SystemTime::now() + slack);
        child.kill().expect("our child");
        child.wait().expect("our child");
    }

    #[test]
    fn a_process_has_a_network_namespace_while_it_lives() {
        assert!(network_namespace(std::process::id()).is_some());
        assert_eq!(network_namespace(0), None);
    }
}
