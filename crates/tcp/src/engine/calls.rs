//! The host's calls.

use core::net::{IpAddr, SocketAddr};

use super::Engine;
use super::neighbours::Occasion;
use super::next_hops::NextHop;
use crate::config::{EcnMode, InterfaceAddress, Keepalive, Medium, Offload, Options, Route};
use crate::connection::{Conditions, Connection, Context, News};
use crate::flow::FlowKey;
use crate::host::{CallError, ConnectError, ConnectionId, ConnectionInfo, ListenError, ListenerId};
use crate::position::Position;
use crate::state::{CloseReason, Departure, State};
use crate::time::{Duration, Instant};
use crate::wire::ethernet::MacAddress;
use crate::wire::ip::Address;

impl Engine {
    /// Listens on one of our addresses, or (unspecified) on all of them. At most `backlog`
    /// established connections wait to be accepted.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        options: Options,
    ) -> Result<ListenerId, ListenError> {
        if local.port() == 0 {
            return Err(ListenError::NoPort);
        }
        let address = (!local.ip().is_unspecified()).then(|| Address::from(local.ip()));
        if address.is_some_and(|address| !self.interface.is_ours(address)) {
            return Err(ListenError::AddressNotOurs);
        }
        //= RFC 9293#3.9.1.1
        //# Every passive OPEN call either creates a new connection record in LISTEN state, or it
        //# returns an error; it MUST NOT affect any previously created connection record (MUST-41).
        //= RFC 9293#3.9.1.1
        //# A TCP implementation that supports multiple concurrent connections MUST provide an OPEN
        //# call that will functionally allow an application to LISTEN on a port while a connection
        //# block with the same local port is in SYN-SENT or SYN-RECEIVED state (MUST-42).
        self.listeners.add(address, local.port(), backlog, options)
    }

    /// Changes the options of connections that will come in through `listener`.
    pub fn set_listener_options(&mut self, listener: ListenerId, options: Options) {
        self.listeners.set_options(listener, options);
    }

    /// Changes the most connections that may wait to be accepted, as a further listen(2) does.
    pub fn set_backlog(&mut self, listener: ListenerId, backlog: usize) {
        self.listeners.set_backlog(listener, backlog);
    }

    /// The most connections that may wait to be accepted; `None` when there is no such listener.
    #[must_use]
    pub fn backlog(&self, listener: ListenerId) -> Option<usize> {
        self.listeners.backlog(listener)
    }

    /// Lets connections that come in through `listener` be opened by Fast Open (RFC 7413), with the
    /// payload of their SYN. At most `pending_max` of them may be in the handshake at a time. Zero,
    /// the default: payload of SYNs is not taken.
    pub fn set_fast_open(&mut self, listener: ListenerId, pending_max: usize) {
        self.listeners.set_fast_open(listener, pending_max);
    }

    /// Stops listening. Connections that were not accepted are reset.
    pub fn unlisten(&mut self, listener: ListenerId) {
        for id in self.listeners.remove(listener) {
            let connection = &mut self.slots[id.index()];
            if connection.generation == id.generation {
                connection.abort(CloseReason::Aborted);
                self.settle(id.index);
            }
        }
    }

    /// The next connection that came in through `listener`.
    pub fn accept(&mut self, listener: ListenerId) -> Option<ConnectionId> {
        loop {
            let id = self.listeners.accept(listener)?;
            let connection = &mut self.slots[id.index()];
            let is_alive = connection.generation == id.generation
                && !connection.conditions.has(Conditions::FREE);
            if is_alive {
                connection.news.0 &= !News::UNSEEN;
                self.settle(id.index);
                return Some(id);
            }
        }
    }

    /// Opens a connection to `remote`, from `local` or from an address and port that the engine
    /// chooses. If several engines share the addresses, the engine chooses a port whose connection
    /// it owns. A port that the caller names must be given to its owner ([`crate::Share::owner`]).
    ///
    /// # Errors
    /// See [`ConnectError`]. Errors that the network reports come as events.
    pub fn connect(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: Options,
    ) -> Result<ConnectionId, ConnectError> {
        let remote_address = Address::from(remote.ip());
        //= RFC 9293#3.9.1.1
        //# A TCP implementation MUST reject as an error a local OPEN call for an
        //# invalid remote IP address (e.g., a broadcast or multicast address)
        //# (MUST-46).
        let is_valid = remote_address.is_unicast() && !self.interface.is_broadcast(remote_address);
        if !is_valid || remote.port() == 0 {
            return Err(ConnectError::Unreachable);
        }
        //= RFC 9293#3.9.1.1
        //# The optional "local IP address" parameter MUST be supported to allow the specification
        //# of the local IP address (MUST-43).
        //= RFC 9293#3.9.1.1
        //# If an application on a multihomed host does not specify the local IP address when
        //# actively opening a TCP connection, then the TCP implementation MUST ask the IP layer to
        //# select a local IP address before sending the (first) SYN (MUST-44).
        let local_address = match local
            .map(|local| local.ip())
            .filter(|ip| !ip.is_unspecified())
        {
            Some(ip) => Some(Address::from(ip)).filter(|&ip| self.interface.is_ours(ip)),
            None => self.interface.source_for(remote_address),
        };
        let Some(local_address) = local_address else {
            return Err(if local.is_some() {
                ConnectError::AddressNotOurs
            } else {
                ConnectError::Unreachable
            });
        };
        let mut key = FlowKey {
            local: local_address,
            remote: remote_address,
            local_port: local.map_or(0, |local| local.port()),
            remote_port: remote.port(),
        };
        if self.interface.next_hop(&key) == NextHop::NoRoute {
            return Err(ConnectError::Unreachable);
        }
        if !self.make_room() {
            return Err(ConnectError::NoSlotLeft);
        }
        if key.local_port == 0 {
            key.local_port = self.ephemeral_port(key).ok_or(ConnectError::NoPortLeft)?;
        } else if self.find_flow(&key).is_some() {
            return Err(ConnectError::AddressInUse);
        }
        self.counters.connections_opened += 1;
        let slot = self.insert(|engine, generation| {
            Connection::connect(&engine.open_context(now, key, options, generation))
        });
        self.settle(slot);
        Ok(ConnectionId {
            index: slot,
            generation: self.slots[slot as usize].generation,
        })
    }

    /// Opens a connection by Fast Open (RFC 7413): data published before the SYN is sent goes with
    /// the SYN, if the remote has given us a cookie; otherwise the SYN asks for one. Call this
    /// right after [`Self::connect`]. The remote's program may get this data twice, in two
    /// connections. True if the SYN can carry data.
    pub fn open_fast(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(slot) = self.slot_of(id) else {
            return false;
        };
        let connection = &self.slots[slot as usize];
        let is_new = connection.state == State::SynSent && connection.snd_nxt == Position::SYN;
        is_new && self.begin_fast_open(now, slot)
    }

    /// Delays the SYN of a connection until the first [`Self::publish`]. [`Self::open_fast`] must
    /// have returned true for it.
    pub fn hold_syn(&mut self, id: ConnectionId) {
        if let Some(slot) = self.slot_of(id) {
            self.slots[slot as usize].hold_syn();
        }
    }

    /// Whether the next connection to the remote of `id` may send payload with its SYN.
    pub fn has_fast_open_cookie(&self, now: Instant, id: ConnectionId) -> bool {
        let slot = self.slot_of(id);
        slot.is_some_and(|slot| self.knows_cookie(now, slot))
    }

    /// RFC 6056 section 3.3.4: the first free port from a place that depends on the destination and
    /// moves on with each connection. Otherwise a client with many short connections would look at
    /// all ports in TIME-WAIT each time.
    fn ephemeral_port(&mut self, key: FlowKey) -> Option<u16> {
        let (first, last) = self.config.ephemeral_ports;
        let count = u32::from(last.saturating_sub(first)) + 1;
        let hash = super::hash_ends(self.secrets.ports, &key);
        let place = (hash >> 32) as usize % super::PORT_PLACES;
        let tried = self.ports_tried[place];
        let offset = (hash as u32 % count) + u32::from(tried);
        let port = |step: u32| first + ((offset + step) % count) as u16;
        let is_free = |&step: &u32| {
            let local_port = port(step);
            let key = FlowKey { local_port, ..key };
            self.config.share.is_ours(&key) && self.find_flow(&key).is_none()
        };
        let step = (0..count).find(is_free)?;
        self.ports_tried[place] = ((u32::from(tried) + step + 1) % count) as u16;
        Some(port(step))
    }

    pub(super) fn find_flow(&self, key: &FlowKey) -> Option<u32> {
        let tag = self.flows.tag(key);
        self.flows.find(tag, |slot| {
            !tag.is_hash() || self.slots[slot as usize].key == *key
        })
    }

    /// The host has published the first `end` bytes of its stream.
    ///
    /// # Errors
    /// [`CallError::BadOffset`] for an `end` before an earlier one, or after [`Self::finish`].
    #[inline]
    pub fn publish(&mut self, id: ConnectionId, end: u64) -> Result<(), CallError> {
        let end = Position::of_byte(end);
        match self.slots.get_mut(id.index()) {
            Some(connection)
                if connection.generation == id.generation && connection.may_send_up_to(end) =>
            {
                self.run.end();
                connection.snd_end = end;
                let before = connection.conditions;
                connection.conditions.set(Conditions::QUEUED);
                if !before.has(Conditions::QUEUED) {
                    self.turns.push(id.index);
                }
                Ok(())
            }
            _ => self.publish_slowly(id, end),
        }
    }

    /// [`Self::publish`] when no byte is new, when the connection is not the next to send, or when
    /// the bytes cannot be published.
    #[inline(never)]
    fn publish_slowly(&mut self, id: ConnectionId, end: Position) -> Result<(), CallError> {
        let slot = self.slot_of(id).ok_or(CallError::NoConnection)?;
        if !self.slots[slot as usize].publish(end) {
            return Err(CallError::BadOffset);
        }
        self.settle_output(slot);
        Ok(())
    }

    /// The host has taken the first `taken` bytes of the received stream; their room in the ring is
    /// free.
    ///
    /// # Errors
    /// [`CallError::BadOffset`] for bytes that have not arrived, or for fewer bytes than before.
    #[inline]
    pub fn take(&mut self, id: ConnectionId, taken: u64) -> Result<(), CallError> {
        let position = Position::of_byte(taken);
        match self.slots.get_mut(id.index()) {
            Some(connection)
                if connection.generation == id.generation && connection.has_more_for(position) =>
            {
                self.run.end(); // The window has moved.
                if connection.open_window(position) {
                    self.settle_output(id.index);
                }
                Ok(())
            }
            _ => self.take_slowly(id, position),
        }
    }

    /// [`Self::take`] when no byte is new, at the end of a stream, or when the bytes cannot be
    /// taken.
    #[inline(never)]
    fn take_slowly(&mut self, id: ConnectionId, taken: Position) -> Result<(), CallError> {
        let slot = self.slot_of(id).ok_or(CallError::NoConnection)?;
        let is_told = self.slots[slot as usize].take(taken);
        self.run.end();
        if is_told.ok_or(CallError::BadOffset)? {
            self.settle_output(slot);
        }
        Ok(())
    }

    /// The host will publish nothing more: after the last byte the remote gets a FIN.
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn finish(&mut self, now: Instant, id: ConnectionId) -> Result<(), CallError> {
        self.call(now, id, |connection, _| {
            connection.finish();
            Ok(())
        })
    }

    /// Ends the connection at once, with a reset.
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn abort(&mut self, now: Instant, id: ConnectionId) -> Result<(), CallError> {
        self.call(now, id, |connection, _| {
            connection.abort(CloseReason::Aborted);
            Ok(())
        })
    }

    /// The host releases the connection: its id is invalid from now on. Published bytes are still
    /// delivered, so the ring must stay readable until [`Self::holds_ring`] is false. But if
    /// received data was left unread, the connection is reset.
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn release(&mut self, now: Instant, id: ConnectionId) -> Result<(), CallError> {
        self.call(now, id, |connection, cx| {
            connection.release(cx);
            Ok(())
        })
    }

    /// The program behind the connection is gone, or may be, but the host keeps the connection
    /// until the remote has all bytes.
    ///
    /// From now on a remote that keeps its window closed is given up, even if it answers the probes
    /// (RFC 6429 section 3): after [`Config::retries_max`](crate::Config::retries_max) probes if
    /// the departure is possible. If it is certain, the remote is given up earlier, also when it is
    /// silent, as Linux gives up the remote of a closed socket. [`Self::release`] is a certain
    /// departure.
    pub fn note_departure(&mut self, id: ConnectionId, departure: Departure) {
        if let Some(slot) = self.slot_of(id) {
            self.slots[slot as usize].note_departure(departure);
        }
    }

    /// Whether the engine may still read bytes of this connection's send ring.
    #[must_use]
    pub fn holds_ring(&self, id: ConnectionId) -> bool {
        self.slots.get(id.index()).is_some_and(|connection| {
            connection.generation == id.generation
                && !matches!(connection.state, State::Closed | State::TimeWait)
                && !connection.conditions.has(Conditions::FREE)
        })
    }

    /// For the simulator, right after the end of a connection that its host had released: whether
    /// the engine has given up its remote.
    pub(crate) fn has_given_up(&self, id: ConnectionId) -> bool {
        self.slots.get(id.index()).is_some_and(|connection| {
            let is_freed = connection.generation == id.generation.wrapping_add(1)
                && connection.conditions.has(Conditions::FREE);
            (is_freed || connection.generation == id.generation)
                && connection.state == State::Closed
                && connection.close_reason == CloseReason::TimedOut
        })
    }

    /// Sets whether small segments are sent at once (TCP_NODELAY), and whether they are held back
    /// entirely (MSG_MORE, TCP_CORK).
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn set_coalescing(
        &mut self,
        now: Instant,
        id: ConnectionId,
        nodelay: bool,
        corked: bool,
    ) -> Result<(), CallError> {
        self.call(now, id, |connection, _| {
            connection.conditions.put(Conditions::NODELAY, nodelay);
            connection.conditions.put(Conditions::CORKED, corked);
            Ok(())
        })
    }

    /// Sets when a silent remote is probed, and when the connection is given up.
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn set_liveness(
        &mut self,
        now: Instant,
        id: ConnectionId,
        keepalive: Option<Keepalive>,
        user_timeout: Option<Duration>,
    ) -> Result<(), CallError> {
        self.call(now, id, |connection, cx| {
            connection.set_liveness(cx, keepalive, user_timeout);
            Ok(())
        })
    }

    /// Sets the work that the link does for the engine from now on.
    pub fn set_offload(&mut self, offload: Offload) {
        self.run.end();
        self.config.offload = offload;
    }

    /// Bounds the receive window: it is at least `least` bytes from now on, and grows to at most
    /// `most`, as far as the remote's options allow. A window that was offered is not taken back.
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn bound_window(
        &mut self,
        now: Instant,
        id: ConnectionId,
        least: u32,
        most: u32,
    ) -> Result<(), CallError> {
        self.call(now, id, |connection, _| {
            connection.bound_window(least, most);
            Ok(())
        })
    }

    /// Payload bytes of a connection that have arrived beyond a gap, without the memory overhead.
    #[must_use]
    pub fn early_bytes(&self, id: ConnectionId) -> u64 {
        self.slot_of(id)
            .map_or(0, |slot| self.slots[slot as usize].assembler.bytes())
    }

    /// Discards data that has arrived beyond a gap: the host may use its memory for something else,
    /// and the remote will send the data again (RFC 2018 section 8; Linux, `tcp_prune_ofo_queue`).
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn discard_early(&mut self, id: ConnectionId) -> Result<(), CallError> {
        let slot = self.slot_of(id).ok_or(CallError::NoConnection)?;
        let bytes = self.slots[slot as usize].discard_early();
        self.counters.early_bytes_discarded += bytes;
        Ok(())
    }

    /// The connection between these two endpoints, unless the host has released it.
    #[must_use]
    pub fn connection_between(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ConnectionId> {
        let key = FlowKey {
            local: local.ip().into(),
            remote: remote.ip().into(),
            local_port: local.port(),
            remote_port: remote.port(),
        };
        let slot = self.find_flow(&key)?;
        let connection = &self.slots[slot as usize];
        let id = connection.id(slot);
        self.slot_of(id).map(|_| id)
    }

    /// The properties of a connection.
    #[must_use]
    pub fn info(&self, id: ConnectionId) -> Option<ConnectionInfo> {
        let connection = &self.slots[self.slot_of(id)? as usize];
        let socket = |address: Address, port| SocketAddr::new(IpAddr::from(address), port);
        Some(ConnectionInfo {
            local: socket(connection.key.local, connection.key.local_port),
            remote: socket(connection.key.remote, connection.key.remote_port),
            state: connection.state,
            received: connection.received_bytes(),
            acknowledged: connection.acknowledged_bytes(),
            remote_finished: connection.conditions.has(Conditions::FIN_RECEIVED),
            congestion_window: connection.cwnd,
            slow_start_threshold: connection.congestion.ssthresh,
            in_flight: connection.in_flight(),
            remote_window: connection.snd_edge - connection.snd_una,
            mss: connection.mss,
            round_trip: connection.rtt.smoothed(),
            round_trip_variation: connection.rtt.variation(),
            round_trip_minimum: connection.rtt.minimum(),
            timeout: connection.rtt.timeout(&self.config),
            retries: connection.retries,
            phase: connection.phase,
            sent: connection.snd_nxt.min(connection.snd_end).byte(),
            sacked: connection.scoreboard.sacked_bytes,
            lost: connection.scoreboard.lost_bytes,
            retransmitted: connection.scoreboard.retransmitted_bytes(),
            advertised_mss: connection.advertised_mss(),
            timestamps: connection.conditions.has(Conditions::TIMESTAMPS),
            selective: connection.conditions.has(Conditions::SACK),
            ecn: match connection.conditions.has(Conditions::ECN) {
                false => EcnMode::Off,
                true if connection.accurate_ecn.is_some() => EcnMode::Accurate,
                true => EcnMode::Classic,
            },
            congestion: connection.options.congestion,
            pacing: connection.conditions.has(Conditions::PACING),
            window_scales: connection
                .conditions
                .has(Conditions::SCALES)
                .then_some((connection.snd_wscale, connection.rcv_wscale)),
            receive_limit: connection.rcv_limit,
            memory_bytes: connection.memory_bytes(),
            syn_data: connection.has_syn_data(),
        })
    }

    /// Tells the engine a neighbour's address, on links where the engine does not resolve
    /// neighbours.
    pub fn set_neighbour(&mut self, neighbour: IpAddr, mac: MacAddress) {
        let learned = self
            .neighbours
            .learn(neighbour.into(), mac, Occasion::Confirmation);
        self.note(neighbour.into(), learned);
    }

    /// The next neighbour that the engine needs, on links where the engine does not resolve
    /// neighbours. The answer is [`Self::set_neighbour`].
    pub fn poll_unresolved(&mut self) -> Option<IpAddr> {
        self.unresolved.pop_front().map(IpAddr::from)
    }

    /// The next route that the engine needs, from an address of ours to a remote, if
    /// [`Config::asks_next_hops`](crate::Config::asks_next_hops) is set. Each must be answered by
    /// [`Self::set_next_hop`].
    pub fn poll_next_hop(&mut self) -> Option<(IpAddr, IpAddr)> {
        let (local, remote) = self.interface.next_hops.as_mut()?.poll()?;
        Some((local.into(), remote.into()))
    }

    /// Sets the next hop for packets between these two addresses: the remote itself if it is on the
    /// link. `None`: there is no route, which ends connections that are still in the handshake.
    pub fn set_next_hop(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: IpAddr,
        hop: Option<IpAddr>,
    ) {
        self.note_next_hop(now, (local.into(), remote.into()), hop.map(Address::from));
    }

    /// The host's routes to these destinations may have changed. Connections ask again when they
    /// next send.
    pub fn forget_next_hops(&mut self, destination: IpAddr, prefix_bits: u8) {
        let is_meant = self.interface.forget_next_hops(destination, prefix_bits);
        self.run.end();
        for connection in &mut self.slots {
            if connection.state != State::Closed && is_meant(connection.key.remote) {
                connection.template.forget();
            }
        }
    }

    /// Whether there is a connection at this local end, in any state.
    #[must_use]
    pub fn is_used(&self, local: SocketAddr) -> bool {
        let address = Address::from(local.ip());
        self.slots.iter().any(|connection| {
            !connection.conditions.has(Conditions::FREE)
                && connection.state != State::Closed
                && connection.key.local == address
                && connection.key.local_port == local.port()
        })
    }

    /// The link has another interface: `mac` is our hardware address now, and neighbours may have
    /// other addresses.
    pub fn change_interface(&mut self, mac: MacAddress) {
        let Medium::Ethernet { mac: ours, .. } = &mut self.config.medium else {
            return;
        };
        *ours = mac;
        self.own_mac = mac.to_word() << 16;
        self.neighbours.forget();
        self.forget_routes();
    }

    /// Adds an address, or changes the prefix of one.
    pub fn add_address(&mut self, address: InterfaceAddress) {
        self.interface.add(address);
        self.forget_routes();
    }

    /// Removes an address. Its connections end at once, each with a reset to its remote, as Linux
    /// ends them by `SOCK_DESTROY`. The host removes listeners on this address.
    pub fn remove_address(&mut self, address: IpAddr) {
        let address = Address::from(address);
        for slot in 0..self.slots.len() {
            let connection = &mut self.slots[slot];
            let is_open =
                !connection.conditions.has(Conditions::FREE) && connection.state != State::Closed;
            if is_open && connection.key.local == address {
                connection.abort(CloseReason::Aborted);
                self.settle(slot as u32);
            }
        }
        self.interface.remove(address);
    }

    /// Replaces the routes to hosts beyond the link. Connections continue on the new routes; a
    /// connection without a route ends when it next sends.
    pub fn set_routes(&mut self, routes: &[Route]) {
        self.interface.set_routes(routes);
        self.forget_routes();
    }

    /// Headers that contain a next hop are written again.
    fn forget_routes(&mut self) {
        self.run.end();
        for connection in &mut self.slots {
            if connection.state != State::Closed {
                connection.template.forget();
            }
        }
    }

    /// The link's MTU has changed. Connections use a smaller MTU at once, and probe a larger one.
    pub fn set_mtu(&mut self, now: Instant, mtu: u16) {
        self.interface.set_mtu(mtu);
        for slot in 0..self.slots.len() {
            let connection = &mut self.slots[slot];
            if connection.conditions.has(Conditions::FREE) || connection.state == State::Closed {
                continue;
            }
            let route_mss = self.interface.route_mss(connection.key.remote);
            let mut cx = Context {
                now,
                config: &self.config,
                counters: &mut self.counters,
            };
            connection.change_route(&mut cx, route_mss);
            self.settle(slot as u32);
        }
    }

    fn call(
        &mut self,
        now: Instant,
        id: ConnectionId,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let slot = self.slot_of(id).ok_or(CallError::NoConnection)?;
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        let result = act(&mut self.slots[slot as usize], &mut cx);
        self.settle(slot);
        result
    }
}
