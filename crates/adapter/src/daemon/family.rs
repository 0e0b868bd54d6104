//! Clients that are introduced by their family: forked children that cannot connect by themselves,
//! and processes that run a new program.
//!
//! A forked child may have changed its user or its root directory before it has a connection to ask
//! for. The socket that it inherited from its parent still leads to us: over this socket it sends
//! one end of a fresh socket pair, and is served there. It may use only the table that it shares
//! with its parent. For introductions it counts as its parent's user, because it has shown the
//! socket of its end. For everything else its own user counts.

use super::Daemon;
use super::connection::{IntroducedFacts, Outgoing};
use super::connections::Fault;
use super::introductions::is_current;
use crate::listener::{cookie_of, peer_of};
use crate::registry::{ClientId, End, Resumed, TableId};
use crate::wire::Sender;
use rustix::net::{AddressFamily, SocketType, getpeername, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use toehold_channel::rendezvous::{Kind, Message, PAIR_ATTACHED, SLAB_ATTACHED};

impl Daemon {
    /// Serves a socket that a client has sent as if it had been accepted.
    pub(super) fn handle_adopt(
        &mut self,
        id: ClientId,
        sender: Sender,
        socket: OwnedFd,
    ) -> Result<(), Fault> {
        let parent = &self.clients[&id];
        // A parent that was adopted itself, and has not sent its hello yet, also has its family's
        // table.
        let table = parent.held_table().ok_or(Fault::OutOfTurn)?;
        let uid = parent.policy_uid();
        check_adopted(socket.as_fd(), sender).map_err(|_| Fault::Descriptors)?;
        let facts = IntroducedFacts { uid, table };
        if self.is_ours_alone(&socket) {
            self.admit(socket, Some(facts));
        } else if self.adoptions.has_room(uid) {
            self.tables.keep(table);
            self.adoptions.add(socket, facts);
        }
        Ok(())
    }

    /// Whether the sender has closed a socket that it has sent. A client that still had the socket
    /// could make our next receive wait (`iolock` in the kernel). A user's adapter, and one without
    /// a witness, cannot tell.
    fn is_ours_alone(&self, socket: &OwnedFd) -> bool {
        let witness = self.proving.witness();
        witness.is_none_or(|witness| witness.is_ours_alone(socket.as_fd()))
    }

    /// Looks again at sockets whose senders had not closed them.
    pub(super) fn settle_adoptions(&mut self) {
        let now = Instant::now();
        for mut adoption in self.adoptions.take_due(now) {
            let facts = adoption.facts;
            if self.is_ours_alone(&adoption.socket) {
                self.admit(adoption.socket, Some(facts));
            } else if adoption.wait_again(now) {
                self.adoptions.put_back(adoption);
                continue;
            } else {
                let text = || "refused a forked process: its socket has another owner".into();
                self.log.log_limited("adoption", text);
            }
            self.tables.close(facts.table);
        }
    }

    /// Sends a process again the offer that its former program had mapped. A process of another
    /// user than the end's must show the socket.
    pub(super) fn handle_resume(
        &mut self,
        id: ClientId,
        message: &Message,
        shown: Option<OwnedFd>,
    ) -> Result<(), Fault> {
        let table = self.clients[&id].table.ok_or(Fault::OutOfTurn)?;
        let end = End {
            table,
            entry: message.entry,
            generation: message.generation,
        };
        let cookie = shown.and_then(|shown| cookie_of(shown.as_fd(), libc::SO_COOKIE).ok());
        let claimed = self.registry.claim(end).map(|(_, cookie)| cookie);
        let is_shown = cookie.is_some() && cookie == claimed;
        let may = is_shown || self.speaks_for(id, end);
        let resumed = if may { self.resume(id, end) } else { None };
        let reply = resumed.unwrap_or_else(|| Outgoing {
            message: Message {
                pid: std::process::id(),
                entry: end.entry,
                generation: end.generation,
                ..Message::new(Kind::Answer)
            },
            descriptors: Vec::new(),
            offer: None,
        });
        self.send(id, reply)
    }

    fn resume(&mut self, id: ClientId, end: End) -> Option<Outgoing> {
        self.tables.current(end)?;
        let resumed = self.registry.resume(id, end.entry, end.generation)?;
        self.forget_predecessor(resumed);
        self.release_regions();
        let memory = self.regions.get(resumed.channel, resumed.is_by_another)?;
        self.log
            .log_limited("resume", || "offered a channel again after an exec".into());
        Some(Outgoing {
            message: Message {
                entry: end.entry,
                generation: end.generation,
                side: resumed.side,
                slot: resumed.slot,
                pair: self.spoken(resumed.pair),
                attached: SLAB_ATTACHED | PAIR_ATTACHED,
                ..Message::new(Kind::Offer)
            },
            descriptors: vec![memory.slab, memory.pair],
            offer: None,
        })
    }

    /// Stops waiting for a process's former program once its last channel belongs to the new
    /// program.
    fn forget_predecessor(&mut self, resumed: Resumed) {
        let before = resumed.before;
        let is_over = !self.registry.knows(before)
            && (self.clients.get(&before)).is_some_and(|client| !client.is_open());
        if is_over {
            self.forget_client(before);
        }
    }

    /// Forgets ends that a family has closed without telling us. Clients that have left while their
    /// processes live on may have such ends.
    pub(super) fn sweep_departed(&mut self, table: TableId) {
        let departed = self.clients.iter();
        let departed = departed.filter(|(_, client)| !client.is_open());
        let departed = departed.filter(|(_, client)| client.table == Some(table));
        let departed: Vec<ClientId> = departed.map(|(&id, _)| id).collect();
        for id in departed {
            self.registry.sweep(id, &is_current(&self.tables));
            if !self.registry.knows(id) {
                self.forget_client(id);
            }
        }
    }
}

/// Checks that a socket from a client is like one that the listener has accepted, and that the
/// sender has made it: the adapter will count it for the process that the kernel names as its
/// maker. All receives and sends on it are without waiting, so `O_NONBLOCK` does not matter.
///
/// # Errors
/// When it is not a socket of this kind, not connected (then it would never report its end), or
/// another process's.
fn check_adopted(socket: BorrowedFd<'_>, sender: Sender) -> io::Result<()> {
    let family = sockopt::socket_domain(socket)?;
    let kind = sockopt::socket_type(socket)?;
    let is_ours = (family, kind) == (AddressFamily::UNIX, SocketType::SEQPACKET);
    if !is_ours || peer_of(socket)?.pid as u32 != sender.pid {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    getpeername(socket)?;
    Ok(())
}
