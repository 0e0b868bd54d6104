//! The connections of clients: accepted, read, and closed.

use super::connection::{Connection, Flushed, IntroducedFacts, Outgoing};
use super::poller::Source;
use super::survivors::{Outcome, Search};
use super::{Daemon, spare_descriptor};
use crate::descriptors::closes_at_once;
use crate::proc::Sockets;
use crate::registry::{ClientId, End, Policy, Process, TableId};
use crate::runtime_dir::user_id;
use crate::tables::TableError;
use crate::wire::{self, Heard, Received, Sender};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;
use toehold_channel::rendezvous::{Kind, Message, MessageError};

/// The reason why a client is dropped. It keeps the channels that it has.
#[derive(Debug)]
pub(super) enum Fault {
    /// Not a valid message, or one that only an adapter sends.
    Nonsense,
    /// A message of another version.
    Version(u32),
    /// A message with the wrong number of descriptors.
    Descriptors,
    /// A message without a sender from the kernel.
    Nameless,
    /// A second hello, or a request before the first hello.
    OutOfTurn,
    /// A table that cannot be used.
    Table(TableError),
    /// The client does not read its messages.
    Deaf,
    /// It sent a file that is neither a socket nor memory.
    Foreign,
}

impl Fault {
    fn words(&self) -> String {
        match self {
            Fault::Nonsense => "sent an invalid request".into(),
            Fault::Version(version) => format!("has another version of the protocol ({version})"),
            Fault::Nameless => "sent a request without credentials".into(),
            Fault::Descriptors => "sent the wrong descriptors".into(),
            Fault::OutOfTurn => "did not send its hello first and once".into(),
            Fault::Table(error) => format!("sent a table that cannot be used: {error}"),
            Fault::Deaf => "does not read its messages".into(),
            Fault::Foreign => "sent a file that is neither a socket nor memory".into(),
        }
    }
}

/// The most client sockets at a time.
pub(super) const CLIENTS_MAX: usize = 4096;
/// The most sockets of one process, including those of its former programs that we still remember.
pub(super) const CLIENTS_PER_PROCESS_MAX: usize = 32;
/// The most sockets of one user that the system adapter serves.
pub(super) const CLIENTS_PER_USER_MAX: usize = CLIENTS_MAX / 4;
/// The most messages of one user's processes that the system adapter handles in a turn.
const MESSAGES_PER_USER_TURN: usize = 256;
/// Messages handled for one client before the next one's turn.
const MESSAGES_PER_TURN: usize = 64;
/// Clients that are accepted before existing clients have their turn.
const ARRIVALS_PER_TURN: usize = 64;

/// The relation of a message's sender to the client on whose socket it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The client itself.
    Client,
    /// Another process of the client's user.
    SameUser,
    /// A process of another user, which has inherited the socket.
    Stranger,
}

/// The standing of a sender towards a client with this process number and user. Processes that are
/// not visible in our pid namespace all have the number 0, and users that are not visible in our
/// user namespace all have one number, too. So the number of an invisible process shows nothing:
/// its client keeps the user that it had when it connected.
fn standing(client_pid: u32, client_uid: u32, sender: Sender) -> Standing {
    let is_visible = sender.pid != 0;
    if is_visible && sender.pid == client_pid {
        Standing::Client
    } else if sender.uid == client_uid && (is_visible || sender.uid != OVERFLOW_USER) {
        Standing::SameUser
    } else {
        Standing::Stranger
    }
}

/// The kernel's number for users that a user namespace does not have (`DEFAULT_OVERFLOWUID` in
/// include/linux/highuid.h).
const OVERFLOW_USER: u32 = 65_534;

impl Daemon {
    pub(super) fn handle_arrivals(&mut self) {
        for _ in 0..ARRIVALS_PER_TURN {
            match self.listener.accept() {
                Ok(socket) => {
                    let before = self.ticks();
                    self.admit(socket, None);
                    // The rejected client had sent descriptors whose closing took long.
                    if self.ticks() != before {
                        return;
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => return self.turn_one_away(),
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    _ => return,
                },
            }
        }
    }

    pub(super) fn admit(&mut self, socket: OwnedFd, introduced_facts: Option<IntroducedFacts>) {
        let named = wire::ask_for_senders(socket.as_fd());
        let connection = match named.and_then(|()| Connection::new(socket, introduced_facts)) {
            Ok(connection) => connection,
            Err(error) => {
                let text = || format!("refused a client: {error}");
                return self.log.log_limited("descriptors", text);
            }
        };
        if let Some(why) = self.inadmissible(&connection) {
            let pid = connection.pid;
            self.log
                .log_limited(why, || format!("refused process {pid}: {why}"));
            return;
        }
        let id = ClientId(self.client_next);
        self.client_next += 1;
        let socket = connection.socket().expect("just opened");
        if self.poller.watch(socket, Source::Client(id)).is_ok() {
            if let Some(facts) = introduced_facts {
                self.tables.keep(facts.table);
            }
            self.clients.insert(id, connection);
        }
    }

    fn inadmissible(&self, connection: &Connection) -> Option<&'static str> {
        let own_uid = user_id();
        let is_known = connection.introduced_facts().is_some() || connection.uid == own_uid;
        if self.options.policy == Policy::SameUser && !is_known {
            return Some("it belongs to another user");
        }
        if self.clients.len() >= CLIENTS_MAX {
            return Some("too many clients");
        }
        let same = |other: &&Connection| other.pid == connection.pid;
        if self.clients.values().filter(same).count() >= CLIENTS_PER_PROCESS_MAX {
            return Some("too many clients of one process");
        }
        let same_user = |other: &&Connection| other.uid == connection.uid;
        if self.options.is_system
            && self.clients.values().filter(same_user).count() >= CLIENTS_PER_USER_MAX
        {
            return Some("too many clients of one user");
        }
        if self.foreign.is_full(connection.uid) {
            return Some("its user has sent files that are neither sockets nor memory");
        }
        None
    }

    /// Whether a client's user has used up its share of this turn. Its other messages wait for the
    /// next turn.
    fn had_its_turn(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(&id).filter(|_| self.options.is_system) else {
            return false;
        };
        let heard = self.heard.entry(client.uid).or_default();
        *heard = heard.saturating_add(1);
        *heard > MESSAGES_PER_USER_TURN
    }

    /// Ends the turn of a client's user if the work for its message, or for its end, took long: the
    /// number of ticks differs from `ticks`.
    fn charge(&mut self, uid: Option<u32>, ticks: u32) {
        if let Some(uid) = uid.filter(|_| self.ticks() != ticks) {
            self.heard.insert(uid, usize::MAX);
        }
    }

    fn uid_of(&self, id: ClientId) -> Option<u32> {
        self.clients.get(&id).map(|client| client.uid)
    }

    /// Called without free descriptors. Accepts a client with the spare descriptor and closes it,
    /// because a waiting client would wake us again and again.
    fn turn_one_away(&mut self) {
        self.spare = None;
        drop(self.listener.accept());
        self.spare = spare_descriptor();
        self.log.log_limited("descriptors", || {
            "no descriptors left: refusing clients".into()
        });
    }

    pub(super) fn handle_messages(&mut self, id: ClientId) {
        for _ in 0..MESSAGES_PER_TURN {
            if self.had_its_turn(id) {
                return;
            }
            let (uid, ticks) = (self.uid_of(id), self.ticks());
            let goes_on = self.handle_next(id);
            self.charge(uid, ticks);
            if !goes_on {
                return;
            }
        }
    }

    /// Handles a client's next message. False when there is none.
    fn handle_next(&mut self, id: ClientId) -> bool {
        let Some(heard) = self.receive(id) else {
            return false;
        };
        let handled = match heard {
            Ok(heard) if matches!(heard.received, Received::Closed) => {
                self.part(id);
                return false;
            }
            Ok(heard) => self.handle_heard(id, heard),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                io::ErrorKind::Interrupted => Ok(()),
                _ => {
                    self.part(id);
                    return false;
                }
            },
        };
        self.reserve_descriptor();
        if let Err(fault) = &handled {
            self.drop_client(id, fault);
        }
        handled.is_ok()
    }

    fn handle_heard(&mut self, id: ClientId, heard: Heard) -> Result<(), Fault> {
        let sender = heard.sender;
        let client = self.clients.get_mut(&id).expect("it spoke");
        let standing = sender.map(|sender| standing(client.pid, client.uid, sender));
        if let (Some(Standing::Client), Some(sender)) = (standing, sender) {
            client.uid = sender.uid;
        }
        let is_strangers = standing == Some(Standing::Stranger);
        match self.handle_standing(id, heard, is_strangers) {
            // A stranger's files stay open here. So the socket that brings them is closed.
            Err(fault) if is_strangers && !matches!(fault, Fault::Foreign) => {
                self.log_stranger(sender);
                Ok(())
            }
            handled => handled,
        }
    }

    /// Handles a message. The rights of a client follow from its current user. If the socket is
    /// shared with a process of another user, a message of that user is accepted only if it brings
    /// a new socket for that process.
    fn handle_standing(
        &mut self,
        id: ClientId,
        heard: Heard,
        is_strangers: bool,
    ) -> Result<(), Fault> {
        let Heard {
            received,
            sender,
            leftover,
        } = heard;
        self.dispose(id, sender, leftover)?;
        match received {
            Received::Stripped(message, Kind::Pair) if !is_strangers => {
                self.handle_stripped_pair(id, &message)
            }
            Received::Message(message, kind, descriptors) => {
                let descriptors = self.check_descriptors(id, sender, descriptors)?;
                let sender = sender.ok_or(Fault::Nameless)?;
                if is_strangers && kind != Kind::Adopt {
                    self.log_stranger(Some(sender));
                    return Ok(());
                }
                self.handle_message(id, &message, kind, sender, descriptors)
            }
            Received::Nonsense(MessageError::Version(version)) => Err(Fault::Version(version)),
            Received::Stripped(..) | Received::Nonsense(_) | Received::Closed => {
                Err(Fault::Nonsense)
            }
        }
    }

    fn log_stranger(&mut self, sender: Option<Sender>) {
        let pid = sender.map_or(0, |sender| sender.pid);
        self.log.log_limited("fault", || {
            format!("ignored a message that process {pid} sent with another's credentials")
        });
    }

    /// Passes on the descriptors of a message, if each of them can be used and closed without
    /// blocking.
    fn check_descriptors(
        &mut self,
        id: ClientId,
        sender: Option<Sender>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<OwnedFd>, Fault> {
        let mut shown = descriptors.iter();
        if !self.options.is_system || shown.all(|one| closes_at_once(one.as_fd())) {
            return Ok(descriptors);
        }
        self.dispose(id, sender, descriptors)?;
        Ok(Vec::new())
    }

    /// Closes descriptors that are not used. Their sender decides, and not the client: a process
    /// that was root when it made its socket may be another user's by now.
    fn dispose(
        &mut self,
        id: ClientId,
        sender: Option<Sender>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Fault> {
        let uid = self.uid_of(id).filter(|_| self.options.is_system);
        let Some(uid) = uid.filter(|_| !descriptors.is_empty()) else {
            return Ok(());
        };
        let uid = sender.map_or(uid, |sender| sender.uid);
        // Root can stop the adapter in any case, so it is not restricted.
        let is_roots = sender.is_some_and(|sender| sender.uid == 0);
        if is_roots || self.foreign.dispose(uid, descriptors) {
            return Ok(());
        }
        if self.foreign.is_full(uid) {
            let its = self.clients.iter();
            let its = its.filter(|(other, client)| **other != id && client.uid == uid);
            let its: Vec<ClientId> = its
                .filter(|(_, it)| it.is_open())
                .map(|(&id, _)| id)
                .collect();
            for client in its {
                self.drop_client(client, &Fault::Foreign);
            }
        }
        Err(Fault::Foreign)
    }

    /// A client's next message. The reserved descriptor is taken again at once, before the next
    /// client takes it.
    fn receive(&mut self, id: ClientId) -> Option<io::Result<Heard>> {
        let socket = self.clients.get(&id).and_then(Connection::socket)?;
        self.room = None;
        let received = wire::try_receive_from(socket);
        self.reserve_descriptor();
        Some(received)
    }

    /// Reserves a descriptor for the next message's. Without a free one the kernel would drop it.
    pub(super) fn reserve_descriptor(&mut self) {
        if self.room.is_none() {
            self.room = self.spare.as_ref().and_then(|spare| spare.try_clone().ok());
        }
    }

    /// Whether a client may see and command connections of other processes.
    pub(super) fn is_operator(&self, id: ClientId) -> bool {
        let own_uid = user_id();
        let client = self.clients.get(&id);
        client.is_some_and(|client| client.uid == own_uid || client.uid == 0)
    }

    fn handle_message(
        &mut self,
        id: ClientId,
        message: &Message,
        kind: Kind,
        sender: Sender,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), Fault> {
        let is_engine = self.engine_clients.contains(&id);
        let expected = match kind {
            Kind::Hello | Kind::Adopt | Kind::Namespace | Kind::Set => 1..=1,
            Kind::Pair if !is_engine => 1..=1,
            Kind::Resume => 0..=1,
            _ => 0..=0,
        };
        if !expected.contains(&descriptors.len()) {
            return Err(Fault::Descriptors);
        }
        match kind {
            Kind::Hello => self.handle_hello(id, descriptors.pop().expect("counted above")),
            Kind::Adopt => self.handle_adopt(id, sender, descriptors.pop().expect("counted above")),
            Kind::Resume => self.handle_resume(id, message, descriptors.pop()),
            Kind::Pair => self.handle_pair(id, message, descriptors.pop()),
            Kind::Namespace => self.handle_namespace(id, descriptors.pop().expect("counted above")),
            Kind::Withdraw => self.handle_withdraw(id, message),
            Kind::Ping => self.answer(id, 0, None),
            Kind::Status | Kind::Detach | Kind::Attach if !self.is_operator(id) => {
                self.answer(id, 0, None)
            }
            Kind::Status => self.handle_status(id),
            Kind::Capture => self.handle_capture(id, message),
            Kind::Set => self.handle_set(id, descriptors.pop().expect("counted above")),
            Kind::Detach | Kind::Attach => self.handle_command(id, message, kind),
            Kind::Engine => self.handle_engine(id),
            Kind::Listen => self.handle_listen(id, message),
            Kind::Unlisten => self.handle_unlisten(id),
            Kind::Liveness => self.handle_liveness(id, message),
            Kind::Listening => self.handle_listening(id, message),
            Kind::Offer | Kind::Answer => Err(Fault::Nonsense),
        }
    }

    fn handle_hello(&mut self, id: ClientId, table: OwnedFd) -> Result<(), Fault> {
        let connection = self.clients.get_mut(&id).expect("it spoke");
        if connection.table.is_some() {
            return Err(Fault::OutOfTurn);
        }
        let table = match connection.introduced_facts() {
            None => self.tables.open(table),
            Some(facts) => self.tables.recognise(facts.table, table),
        };
        let table = table.map_err(Fault::Table)?;
        connection.table = Some(table);
        let uid = match self.options.policy {
            Policy::SameUser => connection.policy_uid(),
            // All users may be introduced to each other, but each has its own quota.
            Policy::AnyUser => connection.uid,
        };
        let process = Process {
            pid: connection.pid,
            uid,
            table,
        };
        self.registry.join(id, process);
        self.sweep_departed(table);
        self.store_program_options(table);
        self.show_to_captures(table);
        let pid = process.pid;
        self.log
            .log_limited("hello", || format!("process {pid} connected"));
        Ok(())
    }

    pub(super) fn drop_client(&mut self, id: ClientId, fault: &Fault) {
        if let Fault::Version(_) = fault {
            // The client learns our version from any message. It does not matter if the client is
            // gone.
            let _ = self.answer(id, 0, None);
        }
        if let Some(connection) = self.clients.get(&id) {
            let pid = connection.pid;
            self.log.log_limited("fault", || {
                format!("disconnected process {pid}: it {}", fault.words())
            });
        }
        self.part(id);
    }

    /// Ends a client's connection. Its channels go on while its process does.
    fn part(&mut self, id: ClientId) {
        let Some(connection) = self.clients.get_mut(&id) else {
            return;
        };
        if let Some(socket) = connection.socket() {
            self.poller.unwatch(socket);
        }
        connection.close();
        self.look_at_listeners();
        self.revoke_token(id);
        self.throttled.remove(&id);
        if self.has_no_client() {
            self.idle_since = Instant::now();
        }
        if !self.registry.leave(id) {
            return self.forget_client(id);
        }
        self.await_process(id);
    }

    /// Handles the end of a client's process, now or when it has ended.
    fn await_process(&mut self, id: ClientId) {
        let connection = &self.clients[&id];
        let alive = connection
            .pidfd
            .as_ref()
            .filter(|_| !connection.process_has_ended());
        let watched = alive.map(|pidfd| self.poller.watch(pidfd.as_fd(), Source::Process(id)));
        if !matches!(watched, Some(Ok(()))) {
            self.release_process(id);
        }
    }

    pub(super) fn handle_process_end(&mut self, id: ClientId) {
        let is_closed = |client: &Connection| !client.is_open();
        if self.had_its_turn(id) || !self.clients.get(&id).is_some_and(is_closed) {
            return;
        }
        let (uid, ticks) = (self.uid_of(id), self.ticks());
        self.release_process(id);
        self.charge(uid, ticks);
    }

    /// A process has ended. Looks for a living process of its family first.
    fn release_process(&mut self, id: ClientId) {
        let survivor = self.connected_survivor(id);
        let search = self.search(id).filter(|_| survivor.is_none());
        let Some(search) = search else {
            return self.release_with(id, survivor);
        };
        let Some(aside) = &self.aside else {
            return self.release_with(id, search.run());
        };
        let Some(connection) = self.clients.get_mut(&id) else {
            return;
        };
        // It would report the end again and again.
        connection.pidfd = None;
        let found = aside.found.clone();
        let key = connection.uid.into();
        let deliver = move |survivor| found.add(Outcome::Survivor(id, survivor));
        aside.threads.ask(key, move || search.run(), deliver);
    }

    /// Goes on with what other threads have found or done.
    pub(super) fn handle_found(&mut self) {
        let found = self.aside.as_ref().map(|aside| aside.found.take());
        for outcome in found.into_iter().flatten() {
            match outcome {
                Outcome::Survivor(id, survivor) => {
                    let (uid, ticks) = (self.uid_of(id), self.ticks());
                    // Another process of the family may have connected meanwhile.
                    let survivor = self.connected_survivor(id).or(survivor);
                    self.release_with(id, survivor);
                    self.charge(uid, ticks);
                }
                Outcome::GaveBack(region) => {
                    if self.regions.gave_back(region) {
                        self.registry.reconsider();
                    }
                }
            }
        }
    }

    /// A process has ended, and its family has this survivor. Its partners are told, except for
    /// ends that its family still holds.
    fn release_with(&mut self, id: ClientId, survivor: Option<u32>) {
        let Some(connection) = self.clients.get_mut(&id) else {
            return;
        };
        let (pid, own_pid) = (connection.pid, connection.own_pid);
        let (tables, registry) = (&self.tables, &self.registry);
        let sockets = RefCell::new(Sockets::new(self.diag.as_ref()));
        let is_gone = |end: End| {
            let held = survivor
                .zip(tables.current(end))
                .is_some_and(|(survivor, entry)| {
                    let is_open = || {
                        let (_, tuple) = registry.end(end.table, end.entry)?;
                        Some(sockets.borrow_mut().is_open(survivor, tuple))
                    };
                    match entry.holder_count(Ordering::Relaxed) {
                        0 => false,
                        // The single counted holder is the dead process, if it could not count
                        // itself out.
                        1 if entry.pid.load(Ordering::Relaxed) == own_pid => {
                            is_open().unwrap_or(false)
                        }
                        _ => true,
                    }
                });
            !held
        };
        let gone = registry
            .ends_of(id)
            .filter(|&end| is_gone(end))
            .collect::<BTreeSet<_>>();
        let followed = survivor.map(|survivor| connection.follow(survivor));
        self.report_ended(pid, id, &|end| gone.contains(&end));
        if self.registry.knows(id) {
            if matches!(followed, Some(Ok(()))) {
                return self.await_process(id);
            }
            self.report_ended(pid, id, &|_| true);
        }
        self.forget_client(id);
    }

    /// Tells the partners of the ends that have ended with a process.
    fn report_ended(&mut self, pid: u32, id: ClientId, is_gone: &dyn Fn(End) -> bool) {
        let bereft = self.registry.process_gone(id, is_gone);
        for &end in &bereft {
            self.tables.set_peer_gone(end);
        }
        if !bereft.is_empty() {
            let count = bereft.len();
            let text = || format!("process {pid} ended; it had {count} channels");
            self.log.log_limited("gone", text);
        }
    }

    /// A living process of a dead client's family that is another client.
    fn connected_survivor(&self, id: ClientId) -> Option<u32> {
        let survivor = self.registry.survivor(id)?;
        self.clients.get(&survivor).map(|survivor| survivor.pid)
    }

    /// The search for a process that has a dead client's table mapped; `None` if the table names no
    /// process except the client's.
    fn search(&self, id: ClientId) -> Option<Search> {
        let connection = self.clients.get(&id)?;
        let table = connection.table?;
        let file = self.tables.file(table)?;
        let members: BTreeSet<u32> = self.tables.get(table)?.members().collect();
        let members = members.into_iter().map(|own| self.host_pid(table, own));
        let pids: BTreeSet<u32> = members.filter(|&pid| pid != connection.pid).collect();
        (!pids.is_empty()).then_some(Search { pids, file })
    }

    /// Our number of a family's process whose number in its own pid namespace is `own`.
    pub(super) fn host_pid(&self, table: TableId, own: u32) -> u32 {
        let mut clients = self.clients.values();
        let known = clients.find(|it| it.own_pid == own && it.table == Some(table));
        known.map_or(own, |client| client.pid)
    }

    pub(super) fn forget_client(&mut self, id: ClientId) {
        let gone = self.clients.remove(&id);
        if let Some(table) = gone.and_then(|gone| gone.held_table()) {
            self.tables.close(table);
        }
    }

    /// Queues a message for a client and sends what its socket takes.
    pub(super) fn send(&mut self, id: ClientId, outgoing: Outgoing) -> Result<(), Fault> {
        let Some(connection) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        if !connection.queue(outgoing) {
            return Err(Fault::Deaf);
        }
        self.flush(id);
        Ok(())
    }

    /// Sends what a client's socket takes now.
    pub(super) fn flush(&mut self, id: ClientId) {
        let Some(connection) = self.clients.get_mut(&id) else {
            return;
        };
        let tables = &self.tables;
        let flushed = connection.flush(|end| tables.bump_offer(end));
        let awaits_room = flushed == Flushed::SocketFull;
        match flushed {
            Flushed::All | Flushed::SocketFull => {}
            Flushed::Throttled => {
                self.throttled.insert(id);
            }
            // The client's hang-up event will follow; messages that it sent before come first.
            Flushed::Gone => return,
        }
        if awaits_room != connection.awaits_room {
            connection.awaits_room = awaits_room;
            let socket = connection.socket().expect("flushed just now");
            let source = Source::Client(id);
            if self
                .poller
                .watch_writable(socket, source, awaits_room)
                .is_err()
            {
                self.part(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_processes_are_not_taken_for_each_other() {
        let from = |pid, uid| Sender { pid, uid };
        assert_eq!(standing(7, 1000, from(7, 1000)), Standing::Client);
        assert_eq!(standing(7, 1000, from(7, 1001)), Standing::Client);
        assert_eq!(standing(7, 1000, from(8, 1000)), Standing::SameUser);
        assert_eq!(standing(7, 1000, from(8, 1001)), Standing::Stranger);
        // Two processes outside our pid namespace.
        assert_eq!(standing(0, 1000, from(0, 1001)), Standing::Stranger);
        assert_eq!(standing(0, 1000, from(0, 1000)), Standing::SameUser);
        // Two users outside our user namespace.
        let nobody = from(0, OVERFLOW_USER);
        assert_eq!(standing(0, OVERFLOW_USER, nobody), Standing::Stranger);
    }
}
