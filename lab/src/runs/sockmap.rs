//! Sockmap: two programs in the kernel move a sender's bytes directly into the receiver's queue,
//! without TCP.
//!
//! ```text
//!   connect, accept ── sock_ops, of the run's control group ──► sockets, by addresses and ports
//!                                                                  │
//!   send ── sk_msg: the socket of the reversed addresses ──────────┴──► that socket's queue
//! ```
//!
//! Only sockets of programs that are started in the run's control group ([`Sockmap::words`]) take
//! part. If the other socket is not in the map, the send is refused (EACCES): bytes that pass TCP
//! and bytes that go around it could change their order.
//!
//! Both programs disappear with the run: the first is attached by a link of this process, the
//! second to a map of it. The control group is removed at the end; that of a killed run is removed
//! by the next run.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use toehold_link::bpf::{
    Assembler, Attachment, If, Instruction, Map, MapKind, Program, ProgramKind, Register, Size,
};

/// The programs in the kernel, and the control group that they are for.
#[derive(Debug)]
pub(super) struct Sockmap {
    group: PathBuf,
    redirected: Map,
    /// The map to which the second program is attached.
    _sockets: Map,
    _attached: Attachment,
}

impl Sockmap {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    ///
    /// One sentence: why this machine or this user has no sockmap.
    pub(super) fn new(owner: &str) -> Result<Sockmap, String> {
        let root = root().ok_or("sockmap needs a cgroup2 file system, and none is mounted")?;
        let refused = |what: &str, error: &io::Error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::EROFS) => {
                format!("sockmap needs root (CAP_BPF, CAP_NET_ADMIN): cannot {what}: {error}")
            }
            Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => format!(
                "this kernel has no sockmap (CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF, \
                 CONFIG_NET_SOCK_MSG): cannot {what}: {error}"
            ),
            _ => format!("cannot {what} of sockmap: {error}"),
        };
        let map = |kind, key, value, entries| {
            Map::new(kind, key, value, entries).map_err(|error| refused("make a map", &error))
        };
        let sockets = map(MapKind::SockHash, KEY_BYTES as usize, 4, SOCKETS_MAX)?;
        let redirected = map(MapKind::PerCpuArray, 4, 8, 1)?;
        let load = |kind, name, instructions: &[Instruction]| {
            Program::load(kind, name, instructions).map_err(|(error, said)| {
                let said = said.lines().last().unwrap_or_default().to_owned();
                format!("{} {said}", refused("load a program", &error))
            })
        };
        let (fd, count) = (sockets.as_raw_fd(), redirected.as_raw_fd());
        let collect = load(ProgramKind::SockOps, "toehold_collect", &collect(fd))?;
        let redirect = load(ProgramKind::SkMsg, "toehold_redir", &redirect(fd, count))?;
        redirect
            .attach_to_map(&sockets)
            .map_err(|error| refused("attach a program", &error))?;
        let group = root.join(format!("{PREFIX}{owner}"));
        let made = fs::create_dir(&group).and_then(|()| {
            let directory = File::open(&group)?;
            collect.attach(directory.as_raw_fd() as u32, 0)
        });
        let attached = made.map_err(|error| {
            let _ = fs::remove_dir(&group);
            refused("make a control group", &error)
        })?;
        Ok(Sockmap {
            group,
            redirected,
            _sockets: sockets,
            _attached: attached,
        })
    }

    /// The command words that start a program in the control group.
    pub(super) fn words(&self) -> [String; 4] {
        let processes = self.group.join("cgroup.procs");
        let enter = "echo $$ >\"$0\" && exec \"$@\"";
        ["sh", "-c", enter, &processes.to_string_lossy()].map(str::to_owned)
    }

    /// The number of calls so far that were redirected past TCP.
    pub(super) fn redirected(&self) -> u64 {
        self.redirected.sum(&[0; 4]).unwrap_or(0)
    }
}

impl Drop for Sockmap {
    fn drop(&mut self) {
        remove(&self.group);
    }
}

/// Removes the control groups of killed runs: those whose owner is gone according to `lives`.
pub(super) fn clean_up_after_others(lives: impl Fn(&str) -> bool) {
    let entries = root().map(fs::read_dir).into_iter().flatten().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if owner.is_some_and(|owner| !lives(owner)) {
            remove(&entry.path());
        }
    }
}

/// A group that still has a dying process is busy for a moment.
fn remove(group: &Path) {
    for _ in 0..REMOVE_TRIES {
        match fs::remove_dir(group) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            _ => return,
        }
    }
}

/// The mount point of version 2 control groups.
fn root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' '));
    fields.find_map(|mut fields| {
        let place = fields.nth(1)?;
        (fields.next() == Some("cgroup2")).then(|| PathBuf::from(place))
    })
}

/// sock_ops: puts each established socket of IPv4 into the map.
fn collect(sockets: i32) -> Vec<Instruction> {
    use Register::{R0, R1, R2, R3, R4, R10};
    let mut a = Assembler::new();
    let (established, end) = (a.label(), a.label());
    a.load(Size::Word, R2, R1, OPS_OP);
    a.jump_if_word(R2, If::Equal, ACTIVE_ESTABLISHED, established);
    a.jump_if_word(R2, If::NotEqual, PASSIVE_ESTABLISHED, end);
    a.place(established);
    a.load(Size::Word, R2, R1, OPS_FAMILY);
    a.jump_if_word(R2, If::NotEqual, libc::AF_INET as u32, end);
    a.load(Size::Word, R2, R1, OPS_LOCAL_ADDRESS);
    a.store(Size::Word, R10, KEY, R2);
    a.load(Size::Word, R2, R1, OPS_REMOTE_ADDRESS);
    a.store(Size::Word, R10, KEY + 4, R2);
    a.load(Size::Word, R2, R1, OPS_LOCAL_PORT);
    a.store(Size::Word, R10, KEY + 8, R2);
    a.load(Size::Word, R2, R1, OPS_REMOTE_PORT);
    // A local port is in the machine's order, a remote one in the network's.
    a.swap_word(R2);
    a.store(Size::Word, R10, KEY + 12, R2);
    a.load_map(R2, sockets);
    a.copy(R3, R10);
    a.add(R3, i32::from(KEY));
    a.set(R4, 0);
    a.call(SOCK_HASH_UPDATE);
    a.place(end);
    a.set(R0, 1);
    a.exit();
    a.finish()
}

/// sk_msg: passes sent bytes to the socket at the other end, and counts.
fn redirect(sockets: i32, redirected: i32) -> Vec<Instruction> {
    use Register::{R0, R1, R2, R3, R4, R6, R10};
    let mut a = Assembler::new();
    let end = a.label();
    a.copy(R6, R1);
    a.store_number(Size::Word, R10, COUNTER, 0);
    a.load_map(R1, redirected);
    a.copy(R2, R10);
    a.add(R2, i32::from(COUNTER));
    a.call(MAP_LOOKUP);
    a.jump_if_null(R0, end);
    // A counter for each processor, so no other processor adds to it.
    a.load(Size::Double, R1, R0, 0);
    a.add(R1, 1);
    a.store(Size::Double, R0, 0, R1);
    a.load(Size::Word, R2, R6, MSG_REMOTE_ADDRESS);
    a.store(Size::Word, R10, KEY, R2);
    a.load(Size::Word, R2, R6, MSG_LOCAL_ADDRESS);
    a.store(Size::Word, R10, KEY + 4, R2);
    a.load(Size::Word, R2, R6, MSG_REMOTE_PORT);
    a.swap_word(R2);
    a.store(Size::Word, R10, KEY + 8, R2);
    a.load(Size::Word, R2, R6, MSG_LOCAL_PORT);
    a.store(Size::Word, R10, KEY + 12, R2);
    a.copy(R1, R6);
    a.load_map(R2, sockets);
    a.copy(R3, R10);
    a.add(R3, i32::from(KEY));
    a.set(R4, INGRESS);
    // We return the verdict of the helper: SK_PASS, or SK_DROP if the partner is not in the map.
    a.call(MSG_REDIRECT_HASH);
    a.exit();
    a.place(end);
    a.set(R0, 0);
    a.exit();
    a.finish()
}

/// Local address, remote address, local port, remote port: a word each, on the stack.
const KEY_BYTES: i16 = 16;
const KEY: i16 = -KEY_BYTES;
const COUNTER: i16 = KEY - 4;

/// `struct bpf_sock_ops`: where its words are.
const OPS_OP: i16 = 0;
const OPS_FAMILY: i16 = 20;
const OPS_REMOTE_ADDRESS: i16 = 24;
const OPS_LOCAL_ADDRESS: i16 = 28;
const OPS_REMOTE_PORT: i16 = 64;
const OPS_LOCAL_PORT: i16 = 68;
/// `struct sk_msg_md`.
const MSG_REMOTE_ADDRESS: i16 = 20;
const MSG_LOCAL_ADDRESS: i16 = 24;
const MSG_REMOTE_PORT: i16 = 60;
const MSG_LOCAL_PORT: i16 = 64;

/// BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB.
const ACTIVE_ESTABLISHED: u32 = 4;
const PASSIVE_ESTABLISHED: u32 = 5;
/// `enum bpf_func_id`.
const MAP_LOOKUP: i32 = 1;
const SOCK_HASH_UPDATE: i32 = 70;
const MSG_REDIRECT_HASH: i32 = 71;
/// BPF_F_INGRESS.
const INGRESS: i32 = 1;

/// The most entries: both ends of as many connections as the generator opens.
const SOCKETS_MAX: u32 = 1 << 16;
const PREFIX: &str = "toehold-lab-";
const REMOVE_TRIES: u32 = 50;
