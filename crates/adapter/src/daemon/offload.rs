//! Requests of clients to the engine, if there is one.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::memfd;
use crate::printable::printable;
use toehold_channel::liveness::Liveness;
use toehold_channel::rendezvous::{Kind, Message, NoCapture, unmapped};
use toehold_tcp::{Duration, Keepalive};

use super::connection::{Connection, Outgoing};
use super::connections::Fault;
use super::{Daemon, Reload};
use crate::engine::{Engine, Filter, Holder, Listening, LivenessChange};
use crate::regions::SharedFd;
use crate::registry::{ClientId, TableId};

impl Daemon {
    /// Makes the engine's threads clients of the daemon.
    pub(super) fn admit_engine(&mut self) {
        let sockets = self.engine.as_mut().map(Engine::take_clients);
        for socket in sockets.unwrap_or_default() {
            self.engine_clients.insert(ClientId(self.client_next));
            self.admit(socket, None);
        }
    }

    /// Applies changed settings to the engine. If the settings are wrong, nothing changes.
    pub(super) fn reload_engine(&mut self) {
        let Some(Reload(read)) = self.options.reload.clone() else {
            return;
        };
        let followed = match (read(), &mut self.engine) {
            (Err(cause), _) => Err(cause),
            (Ok(None), Some(_)) => Err("a running engine cannot be removed".to_owned()),
            (Ok(Some(settings)), Some(engine)) => engine.reconfigure(&settings),
            (Ok(_), None) => Err("there is no engine to change".to_owned()),
        };
        match followed {
            Ok(()) => {
                self.log.answer("settings reloaded");
                let complaints = self.engine.as_ref().map(Engine::complaints);
                for complaint in complaints.unwrap_or_default() {
                    self.log.answer(complaint);
                }
            }
            Err(cause) => self.log.answer(&format!("settings are unchanged: {cause}")),
        }
    }

    /// Clients that are programs.
    pub(super) fn programs(&self) -> impl Iterator<Item = &Connection> {
        let programs = self.clients.iter();
        let programs = programs.filter(|(id, _)| !self.engine_clients.contains(id));
        programs.map(|(_, client)| client)
    }

    /// The engine's own tables, which have nothing to report or command.
    pub(super) fn engine_tables(&self) -> BTreeSet<TableId> {
        let clients = self.engine_clients.iter();
        clients
            .filter_map(|id| self.clients.get(id)?.table)
            .collect()
    }

    /// Answers whether there is an engine. A client that has introduced itself may use it.
    pub(super) fn handle_engine(&mut self, id: ClientId) -> Result<(), Fault> {
        let routing_page = self.engine.as_ref().map(Engine::routing_page);
        let mut message = Message::new(Kind::Engine);
        if let (Some(engine), Ok(holder)) = (&self.engine, self.holder(id)) {
            [message.pair, message.cookie] = engine.give_token(holder);
        }
        let outgoing = Outgoing {
            message,
            descriptors: routing_page.into_iter().collect(),
            offer: None,
        };
        self.send(id, outgoing)
    }

    /// Begins a capture of the engine's link. The frames contain the programs' data, so only the
    /// adapter's own user (and root) may capture, whatever the policy about introductions is.
    pub(super) fn handle_capture(&mut self, id: ClientId, message: &Message) -> Result<(), Fault> {
        let filter = Filter {
            port: message.remote_port,
            host: (message.remote != [0; 16]).then(|| address(message.remote, 0).ip()),
        };
        let kept_max = match message.side {
            0 => usize::MAX,
            bytes => bytes as usize,
        };
        let begun = match &self.engine {
            _ if !self.is_operator(id) => Err(NoCapture::OtherUser),
            None => Err(NoCapture::NoEngine),
            Some(engine) => {
                let stream = engine.capture(kept_max, filter);
                stream.map_err(|_| NoCapture::NoDescriptors)
            }
        };
        match begun {
            Ok(stream) => self.answer(id, 0, Some(SharedFd::new(stream))),
            Err(why) => self.answer(id, why as u32, None),
        }
    }

    /// Changes one of the engine's settings: a sealed memfd holds `NAME=VALUE`. On failure the
    /// memfd of the answer contains the cause.
    pub(super) fn handle_set(&mut self, id: ClientId, said: OwnedFd) -> Result<(), Fault> {
        let is_operator = self.is_operator(id);
        let changed = match &mut self.engine {
            _ if !is_operator => Err("only the adapter's own user and root may".to_owned()),
            None => Err("the adapter has no TCP engine".to_owned()),
            Some(engine) => change(engine, said.as_fd()),
        };
        match changed {
            Ok(text) => {
                self.log.answer(&format!("set {text}"));
                self.answer(id, 1, None)
            }
            Err(cause) => {
                let file = memfd::create(c"toehold-cause", cause.len()).and_then(|file| {
                    let file = File::from(file);
                    file.write_all_at(cause.as_bytes(), 0)?;
                    Ok(OwnedFd::from(file))
                });
                self.answer(id, 0, file.ok().map(SharedFd::new))
            }
        }
    }

    pub(super) fn handle_listen(&mut self, id: ClientId, message: &Message) -> Result<(), Fault> {
        let holder = self.holder(id)?;
        if let Some(engine) = &self.engine {
            engine.listen(Listening {
                holder,
                local: address(message.local, message.local_port),
                backlog: message.slot as usize,
                fast_open_pending_max: message.pair.try_into().unwrap_or(usize::MAX),
                is_v6_only: message.side == 1,
            });
        }
        Ok(())
    }

    /// All of the engine's threads listen for a client, which is told now. Only the engine can send
    /// this message.
    pub(super) fn handle_listening(
        &mut self,
        id: ClientId,
        message: &Message,
    ) -> Result<(), Fault> {
        if !self.engine_clients.contains(&id) {
            return Err(Fault::Nonsense);
        }
        let client = ClientId(message.pair);
        let outgoing = Outgoing {
            message: Message::new(Kind::Listening),
            descriptors: Vec::new(),
            offer: None,
        };
        if let Err(fault) = self.send(client, outgoing) {
            self.drop_client(client, &fault);
        }
        Ok(())
    }

    /// A program has changed its liveness settings for one of its remotes.
    pub(super) fn handle_liveness(&mut self, id: ClientId, message: &Message) -> Result<(), Fault> {
        let Holder { family, .. } = self.holder(id)?;
        let liveness = Liveness::said(message);
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let keepalive = liveness.keepalive.map(|keepalive| Keepalive {
            idle: seconds(keepalive.idle_seconds),
            interval: seconds(keepalive.interval_seconds),
            probes_max: NonZeroU8::new(keepalive.probes_max).unwrap_or(NonZeroU8::MIN),
        });
        let user_timeout = liveness.user_timeout_ms;
        let user_timeout = user_timeout.map(|ms| Duration::from_millis(ms.get().into()));
        if let Some(engine) = &self.engine {
            engine.set_liveness(LivenessChange {
                family,
                local: address(message.local, message.local_port),
                remote: address(message.remote, message.remote_port),
                keepalive,
                user_timeout,
            });
        }
        Ok(())
    }

    pub(super) fn handle_unlisten(&mut self, id: ClientId) -> Result<(), Fault> {
        self.holder(id)?;
        self.look_at_listeners();
        Ok(())
    }

    /// A client is gone: its token is valid only for the carriers that it has made.
    pub(super) fn revoke_token(&self, id: ClientId) {
        if let Some(engine) = &self.engine {
            engine.revoke_token(id);
        }
    }

    /// Called when a program may have stopped listening.
    pub(super) fn look_at_listeners(&self) {
        if let Some(engine) = &self.engine {
            engine.look_at_listeners();
        }
    }

    /// The holder for a client that has introduced itself.
    fn holder(&self, id: ClientId) -> Result<Holder, Fault> {
        let family = self.clients.get(&id).and_then(|client| client.table);
        let family = family.ok_or(Fault::OutOfTurn)?;
        Ok(Holder { client: id, family })
    }
}

/// Makes the change in a file, and returns the file's text.
fn change(engine: &mut Engine, said: BorrowedFd<'_>) -> Result<String, String> {
    let bytes = memfd::contents(said, SETTING_BYTES_MAX);
    let bytes = bytes.map_err(|_| "a setting comes in a sealed file in memory".to_owned())?;
    let text = printable(&String::from_utf8_lossy(&bytes));
    let Some((word, value)) = text.split_once('=') else {
        return Err(format!("`{text}` is not NAME=VALUE"));
    };
    engine.change(word, value)?;
    Ok(text)
}

/// The longest setting that is read.
const SETTING_BYTES_MAX: usize = 4_096;

fn address(ip: [u8; 16], port: u16) -> SocketAddr {
    let ip = unmapped(ip).map_or(IpAddr::from(ip), IpAddr::from);
    SocketAddr::new(ip, port)
}
