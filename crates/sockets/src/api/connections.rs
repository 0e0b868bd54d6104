//! Calls that make a connection, name its ends, and end it.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};
use toehold_channel::table::Reason;

use crate::connection::carrier::Carrier;
use crate::connection::{self, closing, tracking};
use crate::direction::switching::shutting;
use crate::epoll::news;
use crate::express::{
    self, accepting, claiming, listener, opening, published, seeds, spares, turns,
};
use crate::offload::active_open::{self, Opened};
use crate::offload::names::{self, Side};
use crate::offload::{addresses, loopback_alias, passive_open, routing};
use crate::process;
use crate::process::descriptors::{self, FRESH_CUSTOMIZED, Kind};
use crate::system::{errno, faults, real, sys};

/// `connect(2)`.
pub unsafe fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let mut why = None;
    let mut to = (address, len);
    let beside;
    // Without a family the kernel answers EINVAL before it looks how far the socket is
    // (`__inet_stream_connect` in net/ipv4/af_inet.c).
    let is_readable = || has_family(len) && addresses::is_readable(address, len);
    if descriptors::kind(fd) == Kind::Connection && is_readable() {
        if unsafe { disconnects(address, len) } {
            if Carrier::at(fd) != Some(Carrier::Unix) {
                errno::keep(|| let_go(fd));
                return unsafe { real::connect(fd, address, len) };
            }
        } else if claiming::claim_success(fd) {
            return 0;
        }
    }
    let is_announced = passive_open::is_announced(fd);
    if (is_announced || listener::are_any())
        && is_readable()
        && unsafe { disconnects(address, len) }
    {
        errno::keep(|| listener::closing(fd));
        if is_announced {
            return passive_open::ended_by(fd, || unsafe { real::connect(fd, address, len) });
        }
    }
    if routing::has_business() && is_readable() {
        match unsafe { active_open::connect(fd, address, len) } {
            Opened::Done(result) => return result,
            Opened::Failed(error) => return errno::result(Err(error)) as c_int,
            Opened::Kernel(reason) => why = reason,
            Opened::Beside(end) => {
                let (storage, len) = errno::keep(|| addresses::sockaddr_for(fd, end));
                beside = storage;
                to = ((&raw const beside).cast(), len);
            }
        }
    }
    let mut fresh = None;
    if to.0 == address {
        // Asked once in this call: the answer costs a system call.
        fresh = opening::fresh(fd);
        if let Some(fresh) = fresh
            && is_readable()
            && let Some(result) = unsafe { claiming::connect(fd, fresh, address, len) }
        {
            return result;
        }
    }
    let result = unsafe { real::connect(fd, to.0, to.1) };
    let error = if result == 0 { 0 } else { errno::get() };
    if error != 0 {
        // The socket is no longer in its initial state (tcp_done in net/ipv4/tcp.c).
        descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
    }
    if matches!(error, 0 | libc::EINPROGRESS | libc::EINTR) {
        let is_ours = fresh.is_some();
        errno::keep(|| unsafe { note_connect(fd, address, len, error, is_ours) });
        if let (Some(c), Some(reason)) = (connection::at(fd), why) {
            if reason == Reason::Policy {
                c.pin(reason);
            } else {
                c.entry.reason.store(reason as u32, Ordering::Relaxed);
            }
        } else if let Some(fresh) = fresh
            && error != libc::EINTR
        {
            errno::keep(|| unsafe { seeds::connected(fd, fresh, address, len) });
        }
    }
    result
}

/// True for `AF_UNSPEC`, with which a program gives its connection up and puts the socket into its
/// initial state.
///
/// # Safety
/// `address` is null or readable for `len` bytes.
unsafe fn disconnects(address: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: long enough for the family.
    let family = || i32::from(unsafe { (*address).sa_family });
    !address.is_null() && has_family(len) && family() == libc::AF_UNSPEC
}

/// True when an address of `len` bytes is long enough to name its family.
fn has_family(len: socklen_t) -> bool {
    len as usize >= size_of::<libc::sa_family_t>()
}

/// Drops bytes in the channel, as the kernel drops its own: the peer sees a reset (`tcp_disconnect`
/// in net/ipv4/tcp.c).
fn let_go(fd: c_int) {
    if process::borrowed_memory() {
        return;
    }
    let before = sys::getsockopt::<[i32; 2]>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    sys::set_linger(fd, [1, 0]);
    closing::closing(fd);
    sys::set_linger(fd, before.unwrap_or_default());
}

/// `connect` on `fd` was answered with `error`, or 0. With `is_ours` the caller knows that memory
/// is not borrowed, and that the library has seen the program make the TCP socket. If another
/// socket has the number by now, its pairing is refused (`pairing::describe` asks the kernel).
unsafe fn note_connect(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
    error: i32,
    is_ours: bool,
) {
    if address.is_null() || !has_family(len) || descriptors::kind(fd) != Kind::Foreign {
        return;
    }
    // SAFETY: long enough for the family, and the kernel has read it.
    let family = unsafe { (*address).sa_family } as i32;
    let Some(carrier) = Carrier::of_family(family) else {
        return;
    };
    // A Unix socket is connected at once, or not at all.
    let has_failed = carrier == Carrier::Unix && error != 0;
    if !process::is_started() || has_failed || !is_ours && process::borrowed_memory() {
        return;
    }
    // Only a connecting socket gives EINPROGRESS, so the socket need not be asked.
    let is_under_way = error == libc::EINPROGRESS;
    let is_stream =
        || sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
    if is_ours || is_under_way || is_stream() {
        tracking::track(fd, false);
        carrier.note(fd);
        express::note_connect();
    }
}

/// `accept(2)`.
pub unsafe fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let may_seed = match unsafe { accept_by_express(fd, address, len, 0) } {
        AcceptStep::Done(result) => return result,
        AcceptStep::AskKernel { may_seed } => may_seed,
    };
    let room = unsafe { room_in(address, len) };
    let mut result = unsafe { real::accept(fd, address, len) };
    if result < 0 && makes_room() {
        result = unsafe { real::accept(fd, address, len) };
    }
    unsafe { note_accept(result, address, room) };
    if may_seed {
        seed(fd, result);
    }
    unsafe { name_accepted(result, address, room, len) };
    result
}

/// `accept4(2)`.
pub unsafe fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let may_seed = match unsafe { accept_by_express(fd, address, len, flags) } {
        AcceptStep::Done(result) => return result,
        AcceptStep::AskKernel { may_seed } => may_seed,
    };
    let room = unsafe { room_in(address, len) };
    let mut result = unsafe { real::accept4(fd, address, len, flags) };
    if result < 0 && makes_room() {
        result = unsafe { real::accept4(fd, address, len, flags) };
    }
    unsafe { note_accept(result, address, room) };
    if may_seed {
        seed(fd, result);
    }
    unsafe { name_accepted(result, address, room, len) };
    result
}

/// The next step of an `accept`.
enum AcceptStep {
    /// A connection came by a parked carrier, or the call ends without one.
    Done(c_int),
    /// Ask the kernel. With `may_seed` the accepted connection may become a seed, because this
    /// process may use express.
    AskKernel { may_seed: bool },
}

unsafe fn accept_by_express(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> AcceptStep {
    // Asked once in this call: the answer costs a system call.
    let may_act = published::is_served(fd) && express::may_act();
    if !may_act {
        return AcceptStep::AskKernel { may_seed: false };
    }
    let mut result = unsafe { accepting::accept(fd, address, len, flags) };
    if result == Some(-1) && makes_room() {
        result = unsafe { accepting::accept(fd, address, len, flags) };
    }
    match result {
        Some(result) => AcceptStep::Done(result),
        None => AcceptStep::AskKernel { may_seed: true },
    }
}

/// A call has failed. True when it lacked descriptors, and parked carriers have released some.
#[cold]
fn makes_room() -> bool {
    express::is_on()
        && matches!(errno::get(), libc::EMFILE | libc::ENFILE)
        && errno::keep(express::make_room)
}

/// The kernel has accepted `result` at the listener `fd`. The caller has asked whether this process
/// may act.
fn seed(fd: c_int, result: c_int) {
    if result >= 0 && published::is_served(fd) {
        errno::keep(|| seeds::accepted(result, fd));
    }
}

/// `socket(2)`.
pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if let Some(kept) = spares::socket(domain, kind, protocol) {
        return kept;
    }
    let mut result = unsafe { real::socket(domain, kind, protocol) };
    if result < 0 && makes_room() {
        result = unsafe { real::socket(domain, kind, protocol) };
    }
    if result >= 0 && express::is_on() {
        errno::keep(|| claiming::made(result, domain, kind, protocol));
    }
    result
}

/// The kernel has answered an `accept` with `fd`. The program's buffer has `room` for the address.
///
/// # Safety
/// `address` is null or valid for as much as the kernel has written.
unsafe fn note_accept(fd: c_int, address: *mut sockaddr, room: socklen_t) {
    if fd < 0 || !process::is_started() {
        return;
    }
    // If the program asked for no address, the family is found later, when pairing is considered;
    // here it would cost a call.
    let mut carrier = Carrier::Tcp;
    if !address.is_null() && room as usize >= size_of::<libc::sa_family_t>() {
        // SAFETY: the kernel has written the family.
        let family = unsafe { (*address).sa_family } as i32;
        match Carrier::of_family(family) {
            Some(known) => carrier = known,
            None => return,
        }
    }
    if descriptors::kind(fd) == Kind::Connection {
        // The former connection with this number was closed without our knowledge.
        closing::closed_before(fd);
    }
    errno::keep(|| {
        tracking::track(fd, true);
        carrier.note(fd);
    });
}

/// The size of the program's buffer for an address, read before the kernel overwrites it.
unsafe fn room_in(address: *const sockaddr, len: *const socklen_t) -> socklen_t {
    if address.is_null() {
        return 0;
    }
    // SAFETY: the argument of the program's call.
    unsafe { faults::read(len) }.unwrap_or(0)
}

/// Gives the program the true remote address of a connection from the engine; the carrier has
/// another one.
unsafe fn name_accepted(fd: c_int, address: *mut sockaddr, room: socklen_t, len: *mut socklen_t) {
    if !routing::is_wanted() || fd < 0 {
        return;
    }
    let Some(c) = connection::at(fd) else {
        return;
    };
    let is_engine_s = errno::keep(|| passive_open::accepted(&c));
    if address.is_null() || len.is_null() {
        return;
    }
    if !is_engine_s {
        unsafe { name_alias(fd, Side::Remote, address, room, len) };
    } else if let Some(Ok(true_name)) = names::answer(&c, Side::Remote) {
        // The kernel has written there.
        let _ = unsafe { addresses::write(true_name, address, room, len) };
    }
}

/// `getsockname(2)`.
pub unsafe fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match unsafe { true_name(fd, Side::Local, address, len) } {
        Some(result) => result,
        None => {
            let is_wanted = routing::is_wanted();
            let room = if is_wanted {
                unsafe { room_in(address, len) }
            } else {
                0
            };
            let result = unsafe { real::getsockname(fd, address, len) };
            if result == 0 && is_wanted {
                unsafe { name_alias(fd, Side::Local, address, room, len) };
            }
            result
        }
    }
}

/// If the kernel's answer is a loopback alias, replaces it with the engine's address.
unsafe fn name_alias(
    fd: c_int,
    side: Side,
    address: *mut sockaddr,
    room: socklen_t,
    len: *mut socklen_t,
) {
    if let Some(name) = errno::keep(|| loopback_alias::true_name(fd, side)) {
        // The kernel has written there.
        let _ = unsafe { addresses::write(name, address, room, len) };
    }
}

/// `getpeername(2)`.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match unsafe { true_name(fd, Side::Remote, address, len) } {
        Some(result) => result,
        None => {
            let is_wanted = routing::is_wanted();
            let room = if is_wanted {
                unsafe { room_in(address, len) }
            } else {
                0
            };
            let result = unsafe { real::getpeername(fd, address, len) };
            if result == 0 && connection::at(fd).is_some_and(|c| turns::are_both_over(&c)) {
                // inet_getname: a closed socket has no peer.
                return errno::result(Err(libc::ENOTCONN)) as c_int;
            }
            if result == 0 && is_wanted {
                unsafe { name_alias(fd, Side::Remote, address, room, len) };
            }
            result
        }
    }
}

#[unsafe(link_section = ".text.startup")]
unsafe fn true_name(
    fd: c_int,
    side: Side,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> Option<c_int> {
    let c = connection::at(fd).filter(|_| !address.is_null())?;
    let answer = names::answer(&c, side)?;
    // SAFETY: the argument of the program's call.
    let room = unsafe { faults::read(len) }?;
    // SAFETY: as above.
    let told = answer.and_then(|name| unsafe { addresses::write(name, address, room, len) });
    Some(errno::result(told.map(|()| 0)) as c_int)
}

/// `bind(2)`.
pub unsafe fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
    if routing::is_wanted()
        && process::is_started()
        && !process::borrowed_memory()
        && addresses::is_readable(address, len)
    {
        errno::keep(tracking::prepare);
        let alias = errno::keep(|| unsafe { loopback_alias::alias(fd, address, len) });
        if let Some((storage, len)) = alias {
            return unsafe { real::bind(fd, (&raw const storage).cast(), len) };
        }
    }
    unsafe { real::bind(fd, address, len) }
}

/// `listen(2)`.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    let result = unsafe { real::listen(fd, backlog) };
    if result == 0 {
        errno::keep(tracking::prepare);
        errno::keep(|| {
            express::await_rule();
            listener::listening(fd, backlog);
        });
        if routing::is_wanted() && process::is_started() && !process::borrowed_memory() {
            errno::keep(|| passive_open::listening(fd, backlog));
        }
    }
    result
}

/// `shutdown(2)`.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    let mut is_listener_over = false;
    if let Some(c) = connection::at(fd) {
        if (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            if turns::are_both_over(&c) {
                // inet_shutdown, `TCP_CLOSE`.
                return errno::result(Err(libc::ENOTCONN)) as c_int;
            }
            errno::keep(|| shutting(&c, how));
        }
    } else {
        // The kernel also shuts a socket that is not connected (inet_shutdown in
        // net/ipv4/af_inet.c). A listener stops listening, unless only its sending half is shut.
        descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            if listener::are_any() {
                errno::keep(|| listener::closing(fd));
            }
            is_listener_over = passive_open::is_ending(fd);
        }
    }
    let call = || unsafe { real::shutdown(fd, how) };
    let result = passive_open::told_after(is_listener_over, call);
    if let Some(c) = connection::at(fd) {
        news::push_ready_and_wake(&c);
    }
    result
}
