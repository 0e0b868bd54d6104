//! One client: its socket, its process, and what is still to be sent to it.

use crate::diag::Diag;
use crate::listener::peer_of;
use crate::proc;
use crate::regions::SharedFd;
use crate::registry::{End, TableId};
use crate::wire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toehold_channel::rendezvous::Message;

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    /// Gone when the client is only waited for to end.
    socket: Option<OwnedFd>,
    pub(super) pid: u32,
    /// Its number in its own pid namespace, by which its table's entries name it.
    pub(super) own_pid: u32,
    /// The user that it was when it last said something.
    pub(super) uid: u32,
    /// The unit of the service manager that its process belongs to.
    pub(super) unit: Option<String>,
    /// For a client that another one brought to us.
    vouched: Option<Voucher>,
    /// The process itself, so that its number cannot be mistaken for its successor's. Absent for a
    /// process that we cannot see, in another pid namespace.
    pub(super) pidfd: Option<OwnedFd>,
    /// Its table, once it said hello.
    pub(super) table: Option<TableId>,
    /// Pair requests since its stale ends were last looked for.
    pub(super) asks_since_sweep: u32,
    /// Speaks of the network namespace that the client has shown.
    pub(super) diag: Option<Diag>,
    outbound: VecDeque<Outgoing>,
    /// Whether the socket is watched for room.
    pub(super) awaits_room: bool,
}

/// The facts about a client that are believed on the word of the one that brought it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voucher {
    /// The user that policy takes it for.
    pub(super) uid: u32,
    /// Its family's table. It is kept for this client from the start: who vouched may be gone
    /// before it says hello.
    pub(super) table: TableId,
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) message: Message,
    pub(super) descriptors: Vec<SharedFd>,
    /// The end whose `offer` word changes once the message is sent.
    pub(super) offer: Option<End>,
}

/// Why the queue is not empty after a flush.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything is sent.
    All,
    /// The socket is full.
    SocketFull,
    /// The kernel lets no more descriptors be under way, or has no memory, for now.
    Throttled,
    /// The client is gone.
    Gone,
}

impl Connection {
    /// A client on a socket just accepted or, with a voucher, adopted.
    pub(super) fn new(socket: OwnedFd, vouched: Option<Voucher>) -> io::Result<Connection> {
        let peer = peer_of(socket.as_fd())?;
        let pid = peer.pid as u32;
        Ok(Connection {
            pid,
            own_pid: proc::own_number(pid).unwrap_or(pid),
            uid: peer.uid,
            unit: proc::unit(pid),
            vouched,
            pidfd: open_process(peer.pid)?,
            socket: Some(socket),
            table: None,
            asks_since_sweep: 0,
            diag: None,
            outbound: VecDeque::new(),
            awaits_room: false,
        })
    }

    /// Queues a message; `false` when there are too many already.
    pub(super) fn queue(&mut self, outgoing: Outgoing) -> bool {
        if self.outbound.len() >= OUTBOUND_MAX {
            return false;
        }
        self.outbound.push_back(outgoing);
        true
    }

    /// Sends what the socket takes. `sent` hears of each offer after it is in the client's socket.
    pub(super) fn flush(&mut self, mut sent: impl FnMut(End)) -> Flushed {
        let Some(socket) = &self.socket else {
            return Flushed::Gone;
        };
        while let Some(next) = self.outbound.front() {
            let descriptors: Vec<_> = next.descriptors.iter().map(|fd| fd.as_fd()).collect();
            if let Err(error) = wire::try_send(socket.as_fd(), &next.message, &descriptors) {
                return match error.raw_os_error() {
                    Some(libc::EAGAIN) => Flushed::SocketFull,
                    Some(libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM) => Flushed::Throttled,
                    Some(libc::EINTR) => continue,
                    _ => Flushed::Gone,
                };
            }
            if let Some(end) = next.offer {
                sent(end);
            }
            self.outbound.pop_front();
        }
        Flushed::All
    }

    /// Closes the socket and forgets what was to be sent.
    pub(super) fn close(&mut self) {
        self.socket = None;
        // It would keep the namespace.
        self.diag = None;
        self.outbound.clear();
    }

    /// Waits for another process of the family to end, because the first one has.
    pub(super) fn follow(&mut self, pid: u32) -> io::Result<()> {
        self.pidfd = open_process(pid as libc::pid_t)?;
        self.pid = pid;
        self.own_pid = proc::own_number(pid).unwrap_or(pid);
        Ok(())
    }

    pub(super) fn vouched(&self) -> Option<Voucher> {
        self.vouched
    }

    /// The user that policy takes it for.
    pub(super) fn policy_uid(&self) -> u32 {
        self.vouched.map_or(self.uid, |voucher| voucher.uid)
    }

    /// The table that is kept mapped for it.
    pub(super) fn held_table(&self) -> Option<TableId> {
        self.table.or(self.vouched.map(|voucher| voucher.table))
    }

    /// Its socket, while it is open.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Whether the process has ended. One that we cannot see has, as far as we know, when its
    /// socket closes.
    pub(super) fn process_has_ended(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return true;
        };
        let mut entry = [PollFd::new(pidfd, PollFlags::IN)];
        poll(&mut entry, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// A process as a descriptor; nothing for one that has ended already or lies outside our pid
/// namespace (number 0), and on a kernel that knows no such thing.
fn open_process(pid: libc::pid_t) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid) else {
        return Ok(None);
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::SRCH | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Most messages kept for a client whose socket is full.
pub(super) const OUTBOUND_MAX: usize = 4096;
