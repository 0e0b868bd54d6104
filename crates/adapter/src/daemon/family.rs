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
use crate::listener::cookie_of;
use crate::registry::{ClientId, End, Resumed, TableId};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{AddressFamily, SocketType, getpeername, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toehold_channel::rendezvous::{Kind, Message, PAIR_ATTACHED, SLAB_ATTACHED};

impl Daemon {
    /// Serves a socket that a client has sent as if it had been accepted.
    pub(super) fn handle_adopt(&mut self, id: ClientId, socket: OwnedFd) -> Result<(), Fault> {
        let parent = &self.clients[&id];
        // A parent that was adopted itself, and has not sent its hello yet, also has its family's
        // table.
        let table = parent.held_table().ok_or(Fault::OutOfTurn)?;
        let uid = parent.policy_uid();
        prepare(socket.as_fd()).map_err(|_| Fault::Descriptors)?;
        self.admit(socket, Some(IntroducedFacts { uid, table }));
        Ok(())
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

/// Prepares a socket from a client like one that the listener has accepted.
///
/// # Errors
/// When it is not a socket of this kind, or not connected: then it would never report its end.
fn prepare(socket: BorrowedFd<'_>) -> io::Result<()> {
    let family = sockopt::socket_domain(socket)?;
    let kind = sockopt::socket_type(socket)?;
    if (family, kind) != (AddressFamily::UNIX, SocketType::SEQPACKET) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    getpeername(socket)?;
    Ok(fcntl_setfl(
        socket,
        fcntl_getfl(socket)? | OFlags::NONBLOCK,
    )?)
}
