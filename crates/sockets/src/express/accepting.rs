//! `accept`: a connection that came by a parked carrier.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, sockaddr, socklen_t};
use toehold_channel::express::Event;
use toehold_channel::table::{FLAG_NONBLOCK, FLAG_PARKED};
use toehold_stream::express::Queued;

use super::carriers::{self, Role};
use super::{LOCK, listener, parking, published, seeds, sudden_end, turns};
use crate::connection::closing;
use crate::connection::{self, Connection};
use crate::epoll::parked;
use crate::memory::pairs::Pair;
use crate::offload::{addresses, names, passive_open};
use crate::process;
use crate::process::descriptors::{self, Kind};
use crate::system::{errno, faults, sys};

/// If the kernel had no connection the last time, it is asked again after this many connections
/// from the queues. If it had one, it is asked after each connection, because more connections wait
/// there and the queues fill faster.
const BETWEEN_KERNELS: u32 = 16;
static BETWEEN: AtomicU32 = AtomicU32::new(BETWEEN_KERNELS);
static SINCE_KERNEL: AtomicU32 = AtomicU32::new(0);

/// `accept4` on `fd`, if a connection waits that came by a parked carrier. `None`: the kernel must
/// be asked. The caller has checked that this process may use express.
///
/// # Safety
/// `address` and `len` are as `accept4(2)` wants them.
pub(crate) unsafe fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    if !published::is_served(fd) || flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
        return None;
    }
    let mut since = SINCE_KERNEL.load(Ordering::Relaxed);
    if since >= BETWEEN.load(Ordering::Relaxed) {
        since = 0;
        SINCE_KERNEL.store(since, Ordering::Relaxed);
        let waits = sys::poll_now(fd, libc::POLLIN) & libc::POLLIN != 0;
        let between = if waits { 1 } else { BETWEEN_KERNELS };
        BETWEEN.store(between, Ordering::Relaxed);
        if waits {
            return None;
        }
    }
    let mut room = 0;
    if !address.is_null() {
        // With a bad pointer, the kernel would lose the connection. SAFETY: the caller's promise.
        match unsafe { faults::read(len) } {
            Some(wanted) if wanted.cast_signed() >= 0 => room = wanted,
            Some(_) => return Some(errno::result(Err(libc::EINVAL)) as c_int),
            None => return Some(errno::bad_pointer() as c_int),
        }
    }
    // Without a queue there is nothing to take, and the lock is not needed.
    let taken = match published::has_queue() {
        true => errno::keep(take_next(flags)),
        false => None,
    };
    let Some(taken) = taken else {
        return has_none(fd, since).then(|| {
            SINCE_KERNEL.store(0, Ordering::Relaxed);
            errno::set(libc::EAGAIN);
            -1
        });
    };
    match taken {
        Ok(accepted) => {
            SINCE_KERNEL.store(since.wrapping_add(1), Ordering::Relaxed);
            if !address.is_null() {
                // The connection is accepted even if its address cannot be written. SAFETY: the
                // caller's promise.
                let _ = unsafe { write_remote_name(accepted, address, room, len) };
            }
            Some(accepted)
        }
        Err(error) => {
            errno::set(error);
            Some(-1)
        }
    }
}

/// True when the kernel's `accept` would find nothing, after `since` connections from the queues.
/// Most programs call `accept` until it fails. The kernel makes a socket and a file before it
/// looks, and then destroys both again, so these two checks are cheaper. (The kernel's call could
/// also fail with `EMFILE`, but while connections come from the queues there are free numbers.)
fn has_none(fd: c_int, since: u32) -> bool {
    since != 0 && sys::poll_now(fd, libc::POLLIN) == 0 && sys::is_nonblocking(fd)
}

/// Writes the remote address of a connection, cut to the room.
unsafe fn write_remote_name(
    fd: c_int,
    address: *mut sockaddr,
    room: socklen_t,
    len: *mut socklen_t,
) -> Result<(), i32> {
    let connection = connection::at(fd).ok_or(libc::EBADF)?;
    let words = &connection.local.express.remote;
    let bytes = [0, 1, 2, 3].map(|n| words[n].load(Ordering::Relaxed));
    let family = i32::from(bytes[0] as libc::sa_family_t);
    if let Some(remote) = names::remote_by_engine(&connection) {
        // The carrier knows its family. (The kernel would have to be asked twice otherwise.)
        let name = addresses::sockaddr_of_family(family, remote);
        // SAFETY: the caller's promise.
        return unsafe { addresses::write(name, address, room, len) };
    }
    let whole = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        _ => size_of::<libc::sockaddr_in6>(),
    };
    // SAFETY: zeroes are a valid `sockaddr_storage`.
    let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    // SAFETY: `bytes` has 32 of them, and there is room for more.
    unsafe {
        let target = (&raw mut name).cast::<u8>();
        core::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), target, size_of_val(&bytes));
    }
    // SAFETY: the caller's promise.
    unsafe { addresses::write((name, whole as socklen_t), address, room, len) }
}

/// Takes the next queued connection that was not withdrawn. The number of tries is limited, because
/// a hostile peer may queue withdrawn connections without end; then the kernel is asked instead.
fn take_next(flags: c_int) -> impl FnOnce() -> Option<Result<c_int, i32>> {
    move || {
        let _held = LOCK.lock();
        let mut waiting = (0..published::WAITING_MAX).map_while(|_| listener::next());
        waiting.find_map(|(pair, queued)| {
            let carrier = claimed(pair, queued)?;
            give(pair, queued, &carrier, flags)
        })
    }
}

/// The parked carrier of a queued connection.
fn claimed(pair: &'static Pair, queued: Queued) -> Option<Connection> {
    let index = pair.carrier(queued.slot)?.load(Ordering::Relaxed);
    let carrier = carriers::carrier(index.checked_sub(1)?)?;
    let turn = turns::turn_of(carrier.entry)?;
    let is_it = carrier.entry.flags.load(Ordering::Relaxed) & FLAG_PARKED != 0
        && turn.number().wrapping_add(1) == queued.turn.number();
    is_it.then_some(carrier)
}

/// Gives the program the connection. `None` when it was withdrawn.
fn give(
    pair: &'static Pair,
    queued: Queued,
    carrier: &Connection,
    flags: c_int,
) -> Option<Result<c_int, i32>> {
    let (entry, local) = (carrier.entry, carrier.local);
    let command = match flags & SOCK_CLOEXEC {
        0 => libc::F_DUPFD,
        _ => libc::F_DUPFD_CLOEXEC,
    };
    let end = carrier.end()?;
    let fd = sys::fcntl(carrier.fd, command, 0);
    if fd < 0 {
        listener::keep(pair, queued);
        return Some(Err(-fd as i32));
    }
    let fd = fd as c_int;
    let is_known = passive_open::accepted_again(carrier);
    // Before the connection is the program's, and the carrier ends with it.
    sudden_end::undo(&local.express);
    if !is_known || !end.turns().accept(queued.turn) || !descriptors::has_place(fd) {
        sys::close(fd);
        carriers::close(Role::Accepting, carrier);
        return None;
    }
    let nonblock = flags & SOCK_NONBLOCK != 0;
    if nonblock != (entry.flags.load(Ordering::Relaxed) & FLAG_NONBLOCK != 0) {
        parking::set_nonblocking(carrier, nonblock);
    }
    carriers::leave(Role::Accepting, local);
    if let Some(place) = pair.carrier(queued.slot) {
        place.store(0, Ordering::Relaxed);
    }
    if descriptors::kind(fd) == Kind::Connection {
        // The former connection with this number was closed without our knowledge.
        closing::closed_before(fd);
    }
    let options = local.express.first_options.load(Ordering::Relaxed);
    parking::begin_turn(carrier, fd, options);
    entry.pid.store(process::pid(), Ordering::Relaxed);
    descriptors::note_connection(fd, carrier.index, entry.generation.load(Ordering::Relaxed));
    parked::serve(carrier, fd);
    passive_open::watch_liveness(&Connection { fd, ..*carrier });
    seeds::carrier_serves(Role::Accepting);
    published::count(Event::Accepted);
    Some(Ok(fd))
}
