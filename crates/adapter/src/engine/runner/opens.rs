//! Active opens, which programs request at the relay, or by a carrier that they have claimed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant as Clock;

use toehold_channel::offload::Direction;
use toehold_channel::preamble::{ConnectPreamble, PREAMBLE_BYTES};
use toehold_tcp::{ConnectError, ConnectionId, Options};

use super::Runner;
use super::connections::spelled;
use crate::engine::arrivals::{Arrivals, Wanted, spoken};
use crate::engine::carriers::{self, Reusable, Serving};
use crate::engine::flow::{ChannelState, Flow, Stage};
use crate::engine::listeners::Own;
use crate::engine::relay::StepContext;
use crate::engine::tcp_config::{first_and_largest_log2, options};
use crate::engine::{ActiveOpen, Command, ConnectTimeouts, Holder, Request, sys};

/// The most seeds of programs that wait for their channels at a time.
const PAIRING_OF_PROGRAMS_MAX: usize = 16;

impl Runner {
    /// Gives the requests of programs at the relay to the responsible threads.
    pub(super) fn give_all(&mut self, take: impl FnOnce(&mut Arrivals) -> Vec<Wanted>) {
        let wanted = self.arrivals.as_mut().map(take);
        for (request, carrier) in wanted.unwrap_or_default() {
            self.give(request, carrier);
        }
    }

    /// Gives a request with a local port to the thread that owns the port, and other requests to
    /// each thread in turn.
    fn give(&mut self, request: Request, carrier: TcpStream) {
        let local = local_end(&self.own, &request).ok().flatten();
        let share = self.engine.config().share;
        let there = match local {
            Some(local) => share.owner(local, request.remote),
            // Each thread knows only the cookies that its own connections have received.
            None if request.is_fast_open => place_of(request.remote, share.count()),
            None => {
                self.last_given = (self.last_given + 1) % share.count();
                self.last_given
            }
        };
        let refusals = 0;
        let given = ActiveOpen {
            request,
            carrier,
            refusals,
        };
        self.give_to(there, given);
    }

    fn give_to(&mut self, there: usize, given: ActiveOpen) {
        if there == self.engine.config().share.index() {
            self.open(given);
        } else {
            self.common.doors[there].send_command(Command::Open(given));
        }
    }

    /// Begins an active open, on a carrier that was made for it.
    pub(super) fn open(&mut self, given: ActiveOpen) {
        match self.connect(&given.request) {
            Ok(id) => self.begin(id, given),
            Err(refusal) => match self.next_to_try(&given, refusal) {
                Some((next, refusals)) => self.give_to(next, ActiveOpen { refusals, ..given }),
                None => refusal.send_errno(&given.carrier),
            },
        }
    }

    /// Begins an active open, on a carrier that its program has claimed. The connection may have
    /// any destination: the preamble is read as on a new carrier.
    pub(super) fn open_on_used(&mut self, used: Reusable, preamble: &[u8; PREAMBLE_BYTES]) {
        let preamble = ConnectPreamble::parse(preamble);
        let holder = preamble.and_then(|preamble| self.common.tokens.holder(preamble.token));
        let Some((preamble, holder)) = preamble.zip(holder) else {
            return carriers::retire(used, &mut self.channels);
        };
        let request = Request {
            holder,
            carrier: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), used.serving.port),
            remote: spoken(preamble.remote),
            local_port: preamble.local_port,
            is_seed: false,
            // Programs claim no carrier for it.
            is_fast_open: false,
            is_deferred: false,
            connect_timeouts: ConnectTimeouts::of(&preamble),
        };
        match self.connect(&request) {
            Ok(id) => self.begin_on_used(id, holder, used),
            Err(refusal) => {
                refusal.send_errno(&used.carrier.socket);
                carriers::retire(used, &mut self.channels);
            }
        }
    }

    /// Lets the engine connect.
    fn connect(&mut self, request: &Request) -> Result<ConnectionId, Refusal> {
        let shared = self.link.shares().is_some();
        let source = match shared {
            true => Some(self.outgoing_source(request).ok_or(Refusal::Silent)?),
            false => None,
        };
        if !self.admit(request.holder.client) {
            return Err(Refusal::of(OUT_OF_CONNECTIONS, shared));
        }
        let connected = match source {
            Some(source) => (self.connect_from(source, request))
                .map_err(|error| Refusal::of_call(error, true, true)),
            None => self.connect_from_own(request),
        };
        if connected.is_err() {
            self.common.clients.dismiss(request.holder.client);
        }
        connected
    }

    fn connect_from_own(&mut self, request: &Request) -> Result<ConnectionId, Refusal> {
        let local = local_end(&self.own, request);
        let local = local.map_err(|_| Refusal::of(libc::EADDRNOTAVAIL, false))?;
        let now = self.now();
        let options = self.options_for(request);
        let opened = self.engine.connect(now, local, request.remote, options);
        opened.map_err(|error| Refusal::of_call(error, local.is_none(), false))
    }

    fn options_for(&self, request: &Request) -> Options {
        Options {
            user_timeout: request.connect_timeouts.user_timeout,
            syn_retries_max: request.connect_timeouts.syn_retries_max,
            ..options(&self.connections.of(request.remote))
        }
    }

    /// Connects from one of the ports that connections go out from.
    fn connect_from(
        &mut self,
        source: IpAddr,
        request: &Request,
    ) -> Result<ConnectionId, ConnectError> {
        let remote = request.remote;
        let common = self.common.clone();
        let outgoing = common.outgoing.as_ref().ok_or(ConnectError::NoPortLeft)?;
        let options = self.options_for(request);
        let share = self.engine.config().share;
        let now = self.now();
        for port in outgoing.for_one(source, remote, self.serial) {
            let local = SocketAddr::new(source, port);
            if share.owner(local, remote) != share.index() {
                continue;
            }
            match self.engine.connect(now, Some(local), remote, options) {
                Err(ConnectError::AddressInUse) => {}
                opened => return opened,
            }
        }
        self.note_exhausted(remote);
        Err(ConnectError::NoPortLeft)
    }

    /// Shows the program the ends of its connection, before the remote has answered.
    fn begin(&mut self, id: ConnectionId, given: ActiveOpen) {
        let ActiveOpen {
            request, carrier, ..
        } = given;
        if request.carrier.ip() == Ipv4Addr::LOCALHOST {
            let (port, relay) = (request.carrier.port(), self.common.relay_port);
            self.publish_ends(id, (Direction::Connected, port, relay));
        }
        self.insert(id, request.holder, Stage::Connecting, carrier);
        if request.is_fast_open {
            self.begin_fast_open(id, &request);
        }
        if request.is_seed && self.pairing.len() < PAIRING_OF_PROGRAMS_MAX {
            self.begin_seed_of_program(id, request.carrier);
        }
    }

    /// Opens a connection by a message of the program. The SYN carries the bytes of the message
    /// that are on the carrier, or it asks for a cookie. If there is a cookie and the message is
    /// still to come, the SYN waits for it.
    fn begin_fast_open(&mut self, id: ConnectionId, request: &Request) {
        let now = self.now();
        let flow = self.flows.get_mut(id.index()).and_then(Option::as_mut);
        let Some(flow) = flow.filter(|flow| flow.id == id) else {
            return;
        };
        flow.opens_by_message = true;
        let settings = self.connections.of(request.remote);
        if !settings.fast_open.is_for_programs() {
            return;
        }
        let has_cookie = self.engine.open_fast(now, id);
        if request.is_deferred && has_cookie {
            self.engine.hold_syn(id);
            flow.awaits_message = true;
        }
        flow.carrier.note_readable();
        let (engine, streams) = (&mut self.engine, &mut self.streams);
        let mut around = StepContext::new(now, engine, streams, &mut self.channels);
        // The next look detects that the program is gone.
        let _ = flow.collect(&mut around);
    }

    /// Shows programs whether the next message to this connection's remote may go with a SYN.
    pub(super) fn show_cookie(&self, id: ConnectionId) {
        let now = self.now();
        if let Some(info) = self.engine.info(id) {
            let is_wanted = self.connections.of(info.remote).fast_open.is_for_programs();
            let is_known = is_wanted && self.engine.has_fast_open_cookie(now, id);
            (self.common.routing_page).set_cookie(spelled(info.remote), is_known);
        }
    }

    /// Asks for the channel of a carrier that its program may later claim for further connections.
    /// The program asks, too.
    fn begin_seed_of_program(&mut self, id: ConnectionId, program: SocketAddr) {
        let flow = self.flows.get_mut(id.index()).and_then(Option::as_mut);
        let Some(flow) = flow.filter(|flow| flow.id == id) else {
            return;
        };
        let Ok(relay) = flow.carrier.socket.local_addr() else {
            return;
        };
        let ends = (relay, program);
        flow.beside = ChannelState::asked(self.channels.ask(id.index() as u32, ends, true));
        if flow.beside != ChannelState::Nothing {
            flow.serving = Some(Serving::first(None, program.port(), Clock::now()));
        }
    }

    /// As [`Runner::begin`], on a used carrier.
    fn begin_on_used(&mut self, id: ConnectionId, holder: Holder, mut used: Reusable) {
        let (port, relay) = (used.serving.port, self.common.relay_port);
        self.publish_ends(id, (Direction::Connected, port, relay));
        let most = self
            .engine
            .info(id)
            .map_or(0, |info| self.connections.of(info.remote).window_bytes);
        let (slot, serial, place) = (id.index(), used.carrier.serial, used.channel.place);
        let turn = used.serving.turn;
        let logs = first_and_largest_log2(None, false);
        used.endpoint.begin_turn(turn, logs);
        let (flow, endpoint) = Flow::on_used(id, holder, used, most);
        self.streams.set_endpoint(id, Some(endpoint));
        self.channels.hand_over(place, Some(slot as u32));
        self.carriers.serves(serial, slot as u32);
        self.place(slot, flow);
    }

    /// The remote has answered a program's connect.
    pub(super) fn answer(&mut self, id: ConnectionId) {
        self.bound_window(id);
        self.forget_patience(id);
        let Some(flow) = self.flow(id) else { return };
        let opens_by_message = flow.opens_by_message;
        // If the answer cannot be delivered, the program is gone, and its socket shows this.
        let _ = flow.answer(Clock::now());
        let (is_on_used, is_seed) = (flow.is_on_used(), flow.is_seed());
        if opens_by_message {
            self.show_cookie(id);
        }
        if is_seed {
            self.pairing.push(id.index() as u32);
        }
        if is_on_used && let Some(endpoint) = self.streams.endpoint(id) {
            let window = endpoint.window_bytes() as u32;
            let info = self.engine.info(id);
            endpoint.bound_sending(first_and_largest_log2(info, false).1);
            let now = self.now();
            // The call fails only for a connection that does not exist.
            let _ = self.engine.bound_window(now, id, window, window);
            self.turns.watch(id);
        }
    }

    /// Ends the time limit of the handshake, which came with the connect. The program's own
    /// settings follow.
    fn forget_patience(&mut self, id: ConnectionId) {
        let Some(info) = self.engine.info(id) else {
            return;
        };
        let keepalive = options(&self.connections.of(info.remote)).keepalive;
        let now = self.now();
        // The call fails only for a connection that does not exist.
        let _ = self.engine.set_liveness(now, id, keepalive, None);
    }

    /// The next thread to try, if it may have ports or room left.
    fn next_to_try(&self, given: &ActiveOpen, refusal: Refusal) -> Option<(usize, usize)> {
        let share = self.engine.config().share;
        let refusals = given.refusals + 1;
        let may_try = refusal.is_of_thread() && refusals < share.count();
        may_try.then(|| ((share.index() + 1) % share.count(), refusals))
    }
}

/// The thread that makes connections to a remote by messages.
fn place_of(remote: SocketAddr, threads: usize) -> usize {
    (spelled(remote).hash() >> 32) as usize % threads
}

/// The errno of connect(2) when all ports are in use; connections that end make room. connect(2)
/// returns `EAGAIN` only for Unix sockets: programs take it for "not yet", and Python for a
/// success.
const OUT_OF_CONNECTIONS: libc::c_int = libc::EADDRNOTAVAIL;

/// The carrier comes from the alias of an address that is gone.
#[derive(Debug, PartialEq, Eq)]
struct AddressGone;

/// The local address and port that a program has requested, if any. A port of a loopback alias
/// stands for the same port of the address.
fn local_end(own: &Own, request: &Request) -> Result<Option<SocketAddr>, AddressGone> {
    let Request {
        carrier,
        local_port: port,
        ..
    } = *request;
    if carrier.ip() != Ipv4Addr::LOCALHOST {
        let bound = own.iter().find(|(_, alias)| carrier.ip() == *alias);
        let &(ip, _) = bound.ok_or(AddressGone)?;
        return Ok(Some(SocketAddr::new(ip, carrier.port())));
    }
    let of_family = |(ip, _): &&(IpAddr, IpAddr)| ip.is_ipv4() == request.remote.is_ipv4();
    let first = own.iter().find(of_family).filter(|_| port != 0);
    Ok(first.map(|&(ip, _)| SocketAddr::new(ip, port)))
}

/// The reason why the engine does not connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The program's call fails with this errno.
    Errno(libc::c_int),
    /// As [`Refusal::Errno`], unless another thread has ports or room left.
    OfThread(libc::c_int),
    /// The address is shared with the host. The carrier ends without an answer, and its program
    /// then connects by the kernel.
    Silent,
    /// As [`Refusal::Silent`], unless another thread has ports or room left.
    SilentOfThread,
}

impl Refusal {
    fn of(errno: libc::c_int, is_shared: bool) -> Refusal {
        match is_shared {
            true => Refusal::Silent,
            false => Refusal::Errno(errno),
        }
    }

    /// The refusal for an error of the engine. `is_any_port`: the program has not requested a port.
    fn of_call(error: ConnectError, is_any_port: bool, is_shared: bool) -> Refusal {
        let is_used_up = matches!(error, ConnectError::NoPortLeft | ConnectError::NoSlotLeft);
        match (is_used_up && is_any_port, is_shared) {
            (true, true) => Refusal::SilentOfThread,
            (true, false) => Refusal::OfThread(errno_of_call(error)),
            (false, _) => Refusal::of(errno_of_call(error), is_shared),
        }
    }

    fn is_of_thread(self) -> bool {
        matches!(self, Refusal::OfThread(_) | Refusal::SilentOfThread)
    }

    /// Tells the program.
    fn send_errno(self, carrier: &TcpStream) {
        if let Refusal::Errno(errno) | Refusal::OfThread(errno) = self {
            let _ = sys::send_urgent(carrier, errno as u8);
        }
    }
}

/// The errno that connect(2) would have returned.
fn errno_of_call(error: ConnectError) -> libc::c_int {
    match error {
        ConnectError::AddressInUse | ConnectError::NoPortLeft => libc::EADDRNOTAVAIL,
        ConnectError::AddressNotOurs | ConnectError::Unreachable => libc::ENETUNREACH,
        ConnectError::NoSlotLeft => OUT_OF_CONNECTIONS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{ClientId, TableId};

    fn request(carrier: &str, remote: &str, local_port: u16) -> Request {
        Request {
            holder: Holder {
                client: ClientId(1),
                family: TableId(1),
            },
            carrier: carrier.parse().expect("address"),
            remote: remote.parse().expect("address"),
            local_port,
            is_seed: false,
            is_fast_open: false,
            is_deferred: false,
            connect_timeouts: ConnectTimeouts::default(),
        }
    }

    #[test]
    fn another_thread_is_asked_only_where_it_may_have_what_we_lack() {
        for error in [ConnectError::NoPortLeft, ConnectError::NoSlotLeft] {
            for is_shared in [false, true] {
                assert!(Refusal::of_call(error, true, is_shared).is_of_thread());
                assert!(!Refusal::of_call(error, false, is_shared).is_of_thread());
            }
        }
        let unreachable = |is_shared| Refusal::of_call(ConnectError::Unreachable, true, is_shared);
        assert_eq!(unreachable(false), Refusal::Errno(libc::ENETUNREACH));
        assert_eq!(unreachable(true), Refusal::Silent, "the kernel connects");
    }

    #[test]
    fn program_connects_from_where_it_asked_to() {
        let own = [("10.84.0.2", 1), ("fd84::2", 2), ("10.84.0.3", 3)].map(|(ip, last)| {
            (
                ip.parse().expect("address"),
                IpAddr::from(Ipv4Addr::new(127, 99, 0, last)),
            )
        });
        let end = |carrier, remote, port| {
            let end = local_end(&own, &request(carrier, remote, port));
            end.map(|end| end.map_or(String::new(), |end| end.to_string()))
        };
        let is = |text: &str| Ok(text.to_owned());
        let (v4, v6) = ("10.84.0.1:80", "[fd84::1]:80");
        assert_eq!(end("127.0.0.1:4000", v4, 0), is(""), "as the engine likes");
        assert_eq!(end("127.0.0.1:4000", v4, 4000), is("10.84.0.2:4000"));
        assert_eq!(end("127.0.0.1:4000", v6, 4000), is("[fd84::2]:4000"));
        assert_eq!(end("127.99.0.3:4000", v4, 4000), is("10.84.0.3:4000"));
        // The program bound without a port; the kernel chose the port when it connected.
        assert_eq!(end("127.99.0.3:4000", v4, 0), is("10.84.0.3:4000"));
        assert_eq!(end("127.99.0.2:4000", v6, 0), is("[fd84::2]:4000"));
        assert_eq!(end("127.99.0.4:4000", v4, 0), Err(AddressGone));
    }
}
