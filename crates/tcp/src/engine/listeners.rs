//! Listeners, and the connections that wait to be accepted.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::config::Options;
use crate::host::{ConnectionId, Event, ListenError, ListenerId};
use crate::time::{Duration, Instant};
use crate::wire::ip::Address;

/// As on Linux (reqsk_fastopen_remove).
const HELD_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Listener {
    /// `None`: all of our addresses.
    pub(crate) address: Option<Address>,
    pub(crate) port: u16,
    pub(crate) options: Options,
    /// The most connections that may wait in `ready`.
    backlog: usize,
    half_open: usize,
    /// Half-open connections that Fast Open has given to the host, and the most of them.
    fast_opened: usize,
    fast_opened_max: usize,
    /// For each connection that Fast Open gave to the host and that was reset: until when it still
    /// counts in `fast_opened`.
    held: VecDeque<Instant>,
    ready: VecDeque<ConnectionId>,
    /// An `Acceptable` event is in the queue, or the host has fetched one and has not accepted all
    /// connections.
    is_announced: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_id: BTreeMap<u32, Listener>,
    /// Listeners' ids by port and address: there may be thousands, and each SYN needs a look-up.
    by_end: BTreeMap<(u16, Option<Address>), u32>,
    next_id: u32,
    half_open: usize,
    announced: VecDeque<ListenerId>,
    /// Connections that have ended before they were accepted.
    abandoned: VecDeque<ConnectionId>,
}

impl Listeners {
    pub(crate) fn add(
        &mut self,
        address: Option<Address>,
        port: u16,
        backlog: usize,
        options: Options,
    ) -> Result<ListenerId, ListenError> {
        let Entry::Vacant(place) = self.by_end.entry((port, address)) else {
            return Err(ListenError::AddressInUse);
        };
        let id = self.next_id;
        place.insert(id);
        self.next_id += 1;
        let listener = Listener {
            address,
            port,
            options,
            backlog: backlog.max(1),
            half_open: 0,
            fast_opened: 0,
            //= RFC 7413#4.2
            //# It MUST be turned on explicitly by the application.
            fast_opened_max: 0,
            held: VecDeque::new(),
            ready: VecDeque::new(),
            is_announced: false,
        };
        self.by_id.insert(id, listener);
        Ok(ListenerId(id))
    }

    /// Changes the options of connections that come in later.
    pub(crate) fn set_options(&mut self, id: ListenerId, options: Options) {
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.options = options;
        }
    }

    /// Changes how many connections may wait to be accepted. Those that wait already stay.
    pub(crate) fn set_backlog(&mut self, id: ListenerId, backlog: usize) {
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.backlog = backlog.max(1);
        }
    }

    /// The most connections that may wait to be accepted.
    pub(crate) fn backlog(&self, id: ListenerId) -> Option<usize> {
        Some(self.by_id.get(&id.0)?.backlog)
    }

    /// Changes how many half-open connections Fast Open may give to the host.
    pub(crate) fn set_fast_open(&mut self, id: ListenerId, pending_max: usize) {
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.fast_opened_max = pending_max;
        }
    }

    /// Removes a listener; returns the connections that were not accepted.
    pub(crate) fn remove(&mut self, id: ListenerId) -> VecDeque<ConnectionId> {
        let Some(listener) = self.by_id.remove(&id.0) else {
            return VecDeque::new();
        };
        self.by_end.remove(&(listener.port, listener.address));
        listener.ready
    }

    /// The listener for a segment to this address and port. A listener on this address is preferred
    /// to one on all addresses.
    pub(crate) fn find(&self, address: Address, port: u16) -> Option<(ListenerId, &Listener)> {
        let of = |address| self.by_end.get(&(port, address));
        let id = of(Some(address)).or_else(|| of(None))?;
        Some((ListenerId(*id), self.by_id.get(id)?))
    }

    /// Whether no further established connection can wait at this listener.
    pub(crate) fn is_full(&self, id: ListenerId) -> bool {
        self.by_id.get(&id.0).is_some_and(Listener::is_full)
    }

    /// Half-open connections of all listeners.
    pub(crate) fn half_open(&self) -> usize {
        self.half_open
    }

    pub(crate) fn begin_half_open(&mut self, id: ListenerId) {
        self.half_open += 1;
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.half_open += 1;
        }
    }

    pub(crate) fn end_half_open(&mut self, id: ListenerId, is_fast_opened: bool) {
        self.half_open -= 1;
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.half_open -= 1;
            listener.fast_opened -= usize::from(is_fast_opened);
        }
    }

    /// Whether one more connection may be opened by Fast Open.
    pub(crate) fn fast_open_room(&mut self, id: ListenerId, now: Instant) -> Room {
        let Some(listener) = self.by_id.get_mut(&id.0) else {
            return Room::Off;
        };
        let most = listener.fast_opened_max;
        if most == 0 {
            return Room::Off;
        }
        while listener.held.front().is_some_and(|&until| until <= now) {
            listener.held.pop_front();
        }
        match listener.fast_opened + listener.held.len() < most {
            true => Room::Free,
            false => Room::Full,
        }
    }

    /// Counts a half-open connection that the host has already.
    pub(crate) fn begin_fast_open(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.fast_opened += 1;
        }
    }

    /// A connection of Fast Open was reset: it still counts for a while.
    pub(crate) fn hold_fast_open(&mut self, id: ListenerId, now: Instant) {
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.held.push_back(now + HELD_FOR);
        }
    }

    /// Queues an established connection for `accept`. False when there is no room or no listener.
    pub(crate) fn push_ready(&mut self, id: ListenerId, connection: ConnectionId) -> bool {
        let Some(listener) = self.by_id.get_mut(&id.0) else {
            return false;
        };
        if listener.is_full() {
            return false;
        }
        listener.ready.push_back(connection);
        if !listener.is_announced {
            listener.is_announced = true;
            self.announced.push_back(id);
        }
        true
    }

    /// The next connection to be accepted.
    pub(crate) fn accept(&mut self, id: ListenerId) -> Option<ConnectionId> {
        let listener = self.by_id.get_mut(&id.0)?;
        let connection = listener.ready.pop_front();
        if connection.is_none() {
            listener.is_announced = false;
        }
        connection
    }

    /// A connection for which bytes were placed has ended before it was accepted.
    pub(crate) fn abandon(&mut self, connection: ConnectionId) {
        self.abandoned.push_back(connection);
    }

    /// Whether [`Self::pop_news`] would return an event.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.announced.is_empty() || !self.abandoned.is_empty()
    }

    /// The next event: a listener that has become acceptable, or a connection that has ended.
    pub(crate) fn pop_news(&mut self) -> Option<Event> {
        if let Some(connection) = self.abandoned.pop_front() {
            return Some(Event::Abandoned(connection));
        }
        loop {
            let id = self.announced.pop_front()?;
            if self.by_id.contains_key(&id.0) {
                return Some(Event::Acceptable(id));
            }
        }
    }
}

/// A listener's room for Fast Open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// The listener does not use Fast Open.
    Off,
    /// The most connections allowed have not completed their handshake.
    Full,
    Free,
}

impl Listener {
    /// Whether no further established connection can wait here.
    pub(crate) fn is_full(&self) -> bool {
        self.ready.len() >= self.backlog
    }
}
