//! Passive opens through the engine: listeners, and the connections that they accept.

use core::sync::atomic::Ordering;

use toehold_channel::offload::{CarrierKey, Direction, store_true_ends};
use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::{FLAG_OFFLOAD, Reason};

use crate::adapter;
use crate::connection::Connection;
use crate::connection::orderings::{OFFLOAD_ACQUIRE, OFFLOAD_RELEASE};
use crate::epoll::early;
use crate::express::unread_watch;
use crate::offload::questions::REPLY_NS;
use crate::offload::{addresses, endings, liveness, questions, routing};
use crate::process::{self, descriptors};
use crate::system::{errno, sys};

/// The program listens: the engine may listen, too. This waits for the engine, so that a remote can
/// connect as soon as `listen` has returned.
pub(crate) fn listening(fd: i32, backlog: i32) {
    let option = |level, name| sys::getsockopt::<i32>(fd, level, name).unwrap_or(-1);
    if option(libc::SOL_SOCKET, libc::SO_PROTOCOL) != libc::IPPROTO_TCP || !questions::is_beside(fd)
    {
        return;
    }
    let Some(local) = addresses::local(fd) else {
        return;
    };
    let mut message = Message::new(Kind::Listen);
    (message.local, message.local_port) = (local.ip, local.port);
    message.pid = process::pid();
    // A negative backlog is the kernel's largest (`__sys_listen` compares without a sign).
    message.slot = backlog.cast_unsigned();
    message.side = u32::from(option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == 1);
    message.pair = u64::from(option(libc::IPPROTO_TCP, libc::TCP_FASTOPEN).max(0) as u32);
    let _held = adapter::lock();
    if let Some(adapter) = adapter::connected() {
        questions::say_and_wait(adapter, &message, Kind::Listening, REPLY_NS);
    }
    early::unconnected_closing(descriptors::note_listener(fd));
}

/// The program has set `TCP_FASTOPEN` on a socket. If the socket already listens, the engine must
/// be told.
pub(crate) fn fast_open_set(fd: i32) {
    if !routing::is_wanted() || !process::is_started() || process::borrowed_memory() {
        return;
    }
    let is_listening = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    if is_listening == Ok(1) {
        // For a listener `tcpi_sacked` is the backlog (tcp_get_info).
        let info = sys::getsockopt::<[u32; 8]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
        let backlog = info.map_or(0, |[.., sacked]| sacked);
        listening(fd, i32::try_from(backlog).unwrap_or(i32::MAX));
    }
}

/// True when the adapter was told that the program listens at `fd`, and must hear of the end.
#[inline]
pub(crate) fn is_announced(fd: i32) -> bool {
    routing::is_wanted() && descriptors::is_listener(fd)
}

/// Makes `call`, with which the program ends the listener at `fd`, if it is one. Then the adapter
/// is told.
pub(crate) fn ended_by<T>(fd: i32, call: impl FnOnce() -> T) -> T {
    told_after(is_ending(fd), call)
}

/// As [`ended_by`], for a call that ends several listeners; `is_ending` when it ends any.
pub(crate) fn told_after<T>(is_ending: bool, call: impl FnOnce() -> T) -> T {
    let result = call();
    if is_ending {
        stopped_listening();
    }
    result
}

/// As [`is_announced`], when the listener at `fd` is about to end: it is forgotten, and the caller
/// passes the answer to [`told_after`].
pub(crate) fn is_ending(fd: i32) -> bool {
    let is_ending = is_announced(fd) && !process::borrowed_memory();
    if is_ending {
        descriptors::forget(fd);
    }
    is_ending
}

#[cold]
fn stopped_listening() {
    errno::keep(|| adapter::send_message(&Message::new(Kind::Unlisten)));
}

/// The program has accepted a connection. If it comes from the adapter, stores its true addresses
/// and returns true.
pub(crate) fn accepted(connection: &Connection) -> bool {
    let Some(routing_page) = routing::known_routing_page() else {
        return false;
    };
    let fd = connection.fd;
    let (Some(local), Some(remote)) = (addresses::local(fd), addresses::remote(fd)) else {
        return false;
    };
    let direction = if remote.v4() == Some(routing_page.relay_source()) {
        Direction::Accepted
    } else if remote.ip == core::net::Ipv6Addr::LOCALHOST.octets() {
        Direction::AcceptedV6
    } else {
        return false;
    };
    let port = remote.port;
    let ends = routing_page.ends(direction, port, local.port);
    let Some((true_local, true_remote)) = ends else {
        return false;
    };
    let entry = connection.entry;
    store_true_ends(entry, true_local, true_remote);
    endings::note_carrier_key(connection, CarrierKey { direction, port });
    if !connection.local.attachment.has_region() {
        let relayed = Reason::Relayed as u32;
        entry.reason.store(relayed, Ordering::Relaxed);
    }
    entry.flags.fetch_or(FLAG_OFFLOAD, OFFLOAD_RELEASE);
    liveness::begin(connection);
    true
}

/// True when a connection that was accepted leads to the engine, by its remote address.
pub(crate) fn comes_from_engine(remote: &libc::sockaddr_storage) -> bool {
    let source = routing::known_routing_page().map(|page| page.relay_source());
    source.is_some() && addresses::of_storage(remote).and_then(|remote| remote.v4()) == source
}

/// A further connection is about to be accepted on a carrier. If the carrier comes from the
/// adapter, stores the connection's true addresses; false when the routing page does not have them.
pub(crate) fn accepted_again(carrier: &Connection) -> bool {
    let entry = carrier.entry;
    if entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_OFFLOAD == 0 {
        return true;
    }
    let ends = || {
        let key = CarrierKey::from_word(entry.carrier_key.load(Ordering::Relaxed))?;
        let port = carrier.local.express.local_port();
        routing::known_routing_page()?.ends(key.direction, key.port, port)
    };
    match ends() {
        Some((local, remote)) => {
            store_true_ends(entry, local, remote);
            true
        }
        None => false,
    }
}

/// A further connection was accepted: sends the settings that it has inherited from its listener.
pub(crate) fn watch_liveness(connection: &Connection) {
    let is_engine_s = connection.entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_OFFLOAD != 0;
    if is_engine_s && connection.local.express.begins_with_keepalive() {
        unread_watch::watch_liveness(connection);
    }
}
