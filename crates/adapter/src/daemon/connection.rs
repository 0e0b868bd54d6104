//! One client: its socket, its process, and its queue of messages.

use crate::diag::Diag;
use crate::listener::{number_of, owned, peer_of};
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
    /// `None` when we only wait for the client's process to end.
    socket: Option<OwnedFd>,
    pub(super) pid: u32,
    /// Its process number in its own pid namespace, which its table's entries contain.
    pub(super) own_pid: u32,
    /// The user of its last message.
    pub(super) uid: u32,
    /// The unit of the service manager that its process belongs to.
    pub(super) unit: Option<String>,
    /// Set for a client that another client has introduced.
    introduced_facts: Option<IntroducedFacts>,
    /// A descriptor of the process, because a process number may be reused. `None` for a process in
    /// a pid namespace that is not visible to us.
    pub(super) pidfd: Option<OwnedFd>,
    /// Its table, once it has introduced itself.
    pub(super) table: Option<TableId>,
    /// Pair requests since its stale ends were last looked for.
    pub(super) asks_since_sweep: u32,
    /// Answers for the network namespace that the client has shown.
    pub(super) diag: Option<Diag>,
    /// The socket that was shown last, while another process may still have it.
    pub(super) shown_diag: Option<Diag>,
    outbound: VecDeque<Outgoing>,
    /// Whether epoll watches the socket for room.
    pub(super) awaits_room: bool,
}

/// Facts about a client that are taken from the client that has introduced it.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntroducedFacts {
    /// The user for decisions of policy.
    pub(super) uid: u32,
    /// Its family's table. It is kept mapped for this client from the start, because the other
    /// client may be gone before this one sends its hello.
    pub(super) table: TableId,
}

/// A queued message.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) message: Message,
    pub(super) descriptors: Vec<SharedFd>,
    /// The end whose `offer` word changes once the message is sent.
    pub(super) offer: Option<End>,
}

/// The reason why the queue is not empty after a flush.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything is sent.
    All,
    /// The socket is full.
    SocketFull,
    /// The kernel's limit of descriptors in flight is reached, or it has no memory at the moment.
    Throttled,
    /// The client is gone.
    Gone,
}

impl Connection {
    /// A client on a socket that was just accepted or, with facts from its introducer, adopted.
    pub(super) fn new(
        socket: OwnedFd,
        introduced_facts: Option<IntroducedFacts>,
    ) -> io::Result<Connection> {
        let peer = peer_of(socket.as_fd())?;
        let pid = peer.pid as u32;
        let pidfd = open_peer(socket.as_fd(), &peer)?;
        let (own_pid, unit) = (proc::own_number(pid), proc::unit(pid));
        // Read before this check: if the process has ended since, the values may be another
        // process's.
        let is_its = pidfd.as_ref().is_some_and(|pidfd| !has_ended(pidfd));
        Ok(Connection {
            pid,
            own_pid: own_pid.filter(|_| is_its).unwrap_or(pid),
            uid: peer.uid,
            unit: unit.filter(|_| is_its),
            introduced_facts,
            pidfd,
            socket: Some(socket),
            table: None,
            asks_since_sweep: 0,
            diag: None,
            shown_diag: None,
            outbound: VecDeque::new(),
            awaits_room: false,
        })
    }

    /// Answers in the queue.
    fn answers(&self) -> usize {
        let queued = self.outbound.iter();
        queued.filter(|outgoing| outgoing.offer.is_none()).count()
    }

    /// Queues a message; `false` when there are too many already.
    pub(super) fn queue(&mut self, outgoing: Outgoing) -> bool {
        let queued = self.outbound.len();
        let has_room = match outgoing.offer {
            Some(_) => queued < OUTBOUND_MAX,
            // Offers must not use up the room for answers.
            None => queued < ANSWERS_MAX || self.answers() < ANSWERS_MAX,
        };
        if !has_room {
            return false;
        }
        self.outbound.push_back(outgoing);
        true
    }

    /// Sends as many messages as the socket takes. `sent` is called for each offer after it was
    /// sent.
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

    /// Closes the socket and drops the queue.
    pub(super) fn close(&mut self) {
        self.socket = None;
        // The socket would keep the namespace alive.
        self.diag = None;
        self.shown_diag = None;
        self.outbound.clear();
    }

    /// Waits for another process of the family to end, because the first one has.
    pub(super) fn follow(&mut self, pid: u32) -> io::Result<()> {
        self.pidfd = open_process(pid as libc::pid_t)?;
        self.pid = pid;
        self.own_pid = proc::own_number(pid).unwrap_or(pid);
        Ok(())
    }

    pub(super) fn introduced_facts(&self) -> Option<IntroducedFacts> {
        self.introduced_facts
    }

    /// The user for decisions of policy.
    pub(super) fn policy_uid(&self) -> u32 {
        self.introduced_facts.map_or(self.uid, |facts| facts.uid)
    }

    /// The table that is kept mapped for it.
    pub(super) fn held_table(&self) -> Option<TableId> {
        self.table
            .or(self.introduced_facts.map(|facts| facts.table))
    }

    /// Its socket, while it is open.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Whether the process has ended. A process that is not visible to us counts as ended when its
    /// socket closes.
    pub(super) fn process_has_ended(&self) -> bool {
        self.pidfd.as_ref().is_none_or(has_ended)
    }
}

/// A descriptor of the process that has connected, or has made the two sockets. Its number may be
/// reused by now, so the kernel is asked for the process itself (`SO_PEERPIDFD`, Linux 6.5). On an
/// older kernel the process is opened by number, and used only if its user matches.
fn open_peer(socket: BorrowedFd<'_>, peer: &libc::ucred) -> io::Result<Option<OwnedFd>> {
    match number_of(socket, SO_PEERPIDFD) {
        Ok(pidfd) => return owned(pidfd).map(Some),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => {}
            Some(libc::EMFILE | libc::ENFILE) => return Err(error),
            // The process has ended, or is in another pid namespace.
            _ => return Ok(None),
        },
    }
    let found = open_process(peer.pid)?;
    Ok(found.filter(|_| proc::effective_user(peer.pid as u32) == Some(peer.uid)))
}

/// include/uapi/asm-generic/socket.h.
const SO_PEERPIDFD: libc::c_int = 77;

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut entry = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut entry, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Opens a process as a descriptor. `None` for a process that has ended or is not in our pid
/// namespace (number 0), and on a kernel without pidfds.
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
const OUTBOUND_MAX: usize = 4096;
/// The most answers in the queue: a well-behaved client waits for an answer before its next
/// request.
const ANSWERS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use toehold_channel::rendezvous::Kind;

    /// Tries to make a sleeping child with this process number.
    fn child_of_number(mut pid: libc::pid_t) -> Option<libc::pid_t> {
        // SAFETY: zeroes are a value; the child makes system calls only.
        unsafe {
            let mut args: libc::clone_args = std::mem::zeroed();
            args.exit_signal = libc::SIGCHLD as u64;
            if pid != 0 {
                args.set_tid = &raw mut pid as u64;
                args.set_tid_size = 1;
            }
            let made = libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args));
            if made == 0 {
                libc::pause();
                libc::_exit(0);
            }
            (made > 0).then_some(made as libc::pid_t)
        }
    }

    fn end(child: libc::pid_t) {
        // SAFETY: our child, not reaped yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    fn sockets() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None)
    }

    /// Two sockets that were made by a child which has ended.
    fn sockets_of_the_dead() -> (OwnedFd, libc::pid_t) {
        let (ours, its) = sockets().expect("sockets");
        // SAFETY: the child makes system calls only, and ends without returning.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            if let Ok((one, _)) = sockets() {
                let _ = wire::send(its.as_fd(), &Message::new(Kind::Ping), &[one.as_fd()]);
            }
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: our child.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        let wire::Received::Message(_, _, mut shown) =
            wire::receive(ours.as_fd()).expect("a message")
        else {
            panic!("no message");
        };
        (shown.pop().expect("a socket"), child)
    }

    #[test]
    fn a_client_is_not_taken_for_a_later_process_of_its_number() {
        let (socket, dead) = sockets_of_the_dead();
        let is_old = number_of(socket.as_fd(), SO_PEERPIDFD)
            .is_err_and(|error| error.raw_os_error() == Some(libc::ENOPROTOOPT));
        let Some(later) = child_of_number(dead).filter(|_| !is_old) else {
            eprintln!("SKIPPED: only root chooses the number of a process, and from Linux 6.5 on");
            return;
        };
        let connection = Connection::new(socket, None);
        let has_ended = connection.as_ref().map(Connection::process_has_ended);
        // Ended before the assertions, because the sleeping child holds the test's output open.
        end(later);
        assert_eq!(later, dead);
        assert!(has_ended.expect("a client"));
        let connection = connection.expect("a client");
        assert_eq!(connection.pid, dead as u32);
        assert_eq!(connection.unit, None);
        // For a living process the descriptor is found.
        let (socket, _other) = sockets().expect("sockets");
        let connection = Connection::new(socket, None).expect("a client");
        assert!(!connection.process_has_ended());
    }

    #[test]
    fn answers_do_not_pile_up_as_offers_may() {
        let (socket, _other) = sockets().expect("sockets");
        let mut connection = Connection::new(socket, None).expect("a client");
        let outgoing = |offer| Outgoing {
            message: Message::new(Kind::Answer),
            descriptors: Vec::new(),
            offer,
        };
        let end = End {
            table: TableId(0),
            entry: 0,
            generation: 1,
        };
        let answers = (0..OUTBOUND_MAX).take_while(|_| connection.queue(outgoing(None)));
        assert_eq!(answers.count(), ANSWERS_MAX);
        let offers = (0..=OUTBOUND_MAX).take_while(|_| connection.queue(outgoing(Some(end))));
        assert_eq!(offers.count(), OUTBOUND_MAX - ANSWERS_MAX);
        // Many offers leave room for answers.
        connection.outbound.clear();
        assert!((0..2 * ANSWERS_MAX).all(|_| connection.queue(outgoing(Some(end)))));
        let answers = (0..OUTBOUND_MAX).take_while(|_| connection.queue(outgoing(None)));
        assert_eq!(answers.count(), ANSWERS_MAX);
    }
}
