//! The connection to the adapter: messages of fixed size, with descriptors beside them. The library
//! never waits for them.
//!
//! - [`offers`]: messages from the adapter;
//! - [`requests`]: the adapter's requests about connections that no call uses at the moment; in
//!   [`rounds`] how far the process is with them, and in [`pace`] how much time it spends on them;
//! - [`namespace`]: connections in another network namespace than the adapter.

pub(crate) mod namespace;
pub(crate) mod offers;
mod pace;
pub(crate) mod requests;
mod rounds;

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use toehold_freestanding::fd::OwnedFd;

use toehold_channel::rendezvous::{DESCRIPTORS_MAX, Kind, MESSAGE_BYTES, Message, SOCKET_NAME};
use toehold_channel::table::Reason;

use crate::lock;
use crate::process::{self, descriptors, table};
use crate::system::sys;

/// After a failure to reach the adapter, leave it alone for this long.
const RETRY_NS: u64 = 200_000_000;

static ADAPTER: AtomicI32 = AtomicI32::new(-1);
/// A connection to the adapter that our parent has opened for us. Nothing was sent on it yet.
static INHERITED: AtomicI32 = AtomicI32::new(-1);
/// Counts the adapter connections of this process, so that requests to a dead adapter are made
/// again.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// This process has tried to introduce itself to the adapter.
static HAS_TRIED: AtomicBool = AtomicBool::new(false);
static RETRY_AT_NS: AtomicU64 = AtomicU64::new(0);
/// The adapter has not yet read the most requests that this process may leave waiting.
static IS_CROWDED: AtomicBool = AtomicBool::new(false);
/// The last try to reach the adapter failed for lack of permission.
static IS_OUT_OF_REACH: AtomicBool = AtomicBool::new(false);
static LOCK: lock::Private = lock::Private::new();
/// A user whose adapter is trusted besides our own user's and root's; [`NOBODY`] if there is none.
static TRUSTED: AtomicU32 = AtomicU32::new(NOBODY);
/// No user has this number.
const NOBODY: u32 = u32::MAX;
/// Where the adapter listens, as `sockaddr_un` bytes; set once at start.
static ADDRESS: AtomicPtr<libc::sockaddr_un> = AtomicPtr::new(null_mut());

/// Takes the lock that is held while messages are sent or received, and while offers are taken.
pub(crate) fn lock() -> lock::PrivateHeld<'static> {
    LOCK.lock()
}

/// As [`lock`], but only if the lock is free.
pub(crate) fn try_lock() -> Option<lock::PrivateHeld<'static>> {
    LOCK.try_lock()
}

/// As [`lock`], if the lock is free soon. A thread that waits for the adapter's reply may hold it
/// for a second.
pub(crate) fn lock_soon() -> Option<lock::PrivateHeld<'static>> {
    const SOON_NS: u64 = 200_000;
    LOCK.lock_within_ns(SOON_NS)
}

/// Number of the current connection to the adapter. Requests made on an earlier connection must be
/// made again.
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// Makes the library trust an adapter of this user, too. In a user namespace the adapter's user may
/// have no number; then the kernel reports one number for all such users.
pub fn trust_adapter_of(user: u32) {
    // Relaxed: set once, before `main`.
    TRUSTED.store(user, Ordering::Relaxed);
}

/// Tells the library where its adapter listens.
#[unsafe(link_section = ".text.startup")]
pub fn set_runtime_directory(directory: &[u8]) {
    let base = sys::map_memory(size_of::<libc::sockaddr_un>()).cast::<libc::sockaddr_un>();
    if base.is_null() {
        return;
    }
    // SAFETY: freshly reserved, zeroed and ours.
    let address = unsafe { &mut *base };
    let name = SOCKET_NAME.as_bytes();
    if directory.len() + 1 + name.len() >= address.sun_path.len() {
        return;
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = directory.iter().chain(b"/").chain(name);
    for (place, &byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte as libc::c_char;
    }
    // Release pairs with the Acquire load in `connect_if_needed`.
    ADDRESS.store(base, Ordering::Release);
}

/// The directory of [`set_runtime_directory`]; empty without one.
pub(crate) fn runtime_directory() -> &'static [u8] {
    // Acquire pairs with the Release store in `set_runtime_directory`.
    let address = ADDRESS.load(Ordering::Acquire);
    if address.is_null() {
        return &[];
    }
    // SAFETY: reserved for a `sockaddr_un`, written before it was shown, and never released.
    let path = unsafe { &(*address).sun_path };
    // SAFETY: as many bytes of another signedness.
    let path = unsafe { core::slice::from_raw_parts(path.as_ptr().cast::<u8>(), path.len()) };
    let length = path
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(path.len());
    // The path ends with a slash and the socket's name.
    &path[..length.saturating_sub(1 + SOCKET_NAME.len())]
}

/// Called when the adapter asks for attention. It may be a new adapter, to which this process has
/// not introduced itself yet: then it does so now. False when that could not be tried now.
pub(crate) fn follow_successor() -> bool {
    if EPOCH.load(Ordering::Relaxed) == 0 {
        return true;
    }
    let Some(_held) = try_lock() else {
        return false;
    };
    if let Some(adapter) = connected().filter(|&adapter| has_hung_up(adapter)) {
        forget_socket(adapter);
        RETRY_AT_NS.store(0, Ordering::Relaxed);
    }
    connect_if_needed();
    true
}

/// Whether the other end of a socket is closed, and all that it sent was read.
fn has_hung_up(fd: i32) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `byte` is writable for its length.
    let got = unsafe {
        sys::raw(
            libc::SYS_recvfrom,
            fd as usize,
            &raw mut byte as usize,
            1,
            flags as usize,
            0,
            0,
        )
    };
    got == 0 || got == -(libc::ECONNRESET as isize)
}

/// After fork: the parent's adapter connection is not ours. The regions of the parent's later
/// connections come over it. So we replace it at once with a connection of our own, before this
/// process can change its user. Uses no allocation and no lock.
pub(crate) fn forked() {
    LOCK.reset();
    let own = ADAPTER.swap(-1, Ordering::Relaxed);
    let unused = INHERITED.swap(-1, Ordering::Relaxed);
    let parents = if own >= 0 { own } else { unused };
    if parents >= 0 {
        let adopted = connect_through(parents).map_or(-1, descriptors::own);
        INHERITED.store(adopted, Ordering::Relaxed);
    }
    for inherited in [own, unused] {
        if inherited >= 0 {
            descriptors::close_own(inherited);
        }
    }
    EPOCH.fetch_add(1, Ordering::Relaxed);
    HAS_TRIED.store(false, Ordering::Relaxed);
    RETRY_AT_NS.store(0, Ordering::Relaxed);
    IS_CROWDED.store(false, Ordering::Relaxed);
}

/// The descriptor of our adapter connection has changed.
pub(crate) fn moved(from: i32, to: i32) {
    let _ = ADAPTER.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    let _ = INHERITED.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
}

/// Makes this process known to the adapter the first time it has a connection. (The epoch does not
/// tell that: a child begins with another epoch than its parent.)
pub(crate) fn send_hello_once() {
    if !HAS_TRIED.load(Ordering::Relaxed) {
        let _held = LOCK.lock();
        connect_if_needed();
    }
}

/// The adapter's socket, if we have one.
pub(crate) fn connected() -> Option<i32> {
    let adapter = ADAPTER.load(Ordering::Relaxed);
    (adapter >= 0).then_some(adapter)
}

/// The adapter's socket, connecting if need be; the caller holds `LOCK`.
pub(crate) fn connect_if_needed() -> Option<i32> {
    if let Some(adapter) = connected() {
        return Some(adapter);
    }
    // Acquire pairs with the Release store in `set_runtime_directory`.
    let address = ADDRESS.load(Ordering::Acquire);
    let now = sys::now_ns();
    if address.is_null() || table::fd() < 0 || now < RETRY_AT_NS.load(Ordering::Relaxed) {
        return None;
    }
    RETRY_AT_NS.store(now + RETRY_NS, Ordering::Relaxed);
    HAS_TRIED.store(true, Ordering::Relaxed);
    EPOCH.fetch_add(1, Ordering::Relaxed);
    let adopted = INHERITED.swap(-1, Ordering::Relaxed);
    let fd = match adopted >= 0 {
        true => adopted,
        false => descriptors::own(connect_by_path(address)?),
    };
    let mut hello = Message::new(Kind::Hello);
    hello.pid = process::pid();
    if !send(fd, &hello, Some(table::fd())) {
        descriptors::close_own(fd);
        return None;
    }
    ADAPTER.store(fd, Ordering::Relaxed);
    Some(fd)
}

/// The reason why [`connect_if_needed`] has failed.
pub(crate) fn connect_failure() -> Reason {
    match IS_OUT_OF_REACH.load(Ordering::Relaxed) {
        true => Reason::OutOfReach,
        false => Reason::NoAdapter,
    }
}

fn connect_by_path(address: *const libc::sockaddr_un) -> Option<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    let fd = unsafe {
        sys::raw(
            libc::SYS_socket,
            libc::AF_UNIX as usize,
            kind as usize,
            0,
            0,
            0,
            0,
        )
    };
    if fd < 0 {
        return None;
    }
    let fd = fd as i32;
    // SAFETY: `address` was reserved for a `sockaddr_un` and never released.
    let connected = unsafe {
        sys::raw(
            libc::SYS_connect,
            fd as usize,
            address as usize,
            size_of::<libc::sockaddr_un>(),
            0,
            0,
            0,
        )
    };
    IS_OUT_OF_REACH.store(connected == -(libc::EACCES as isize), Ordering::Relaxed);
    if connected < 0 || !is_trusted(fd) {
        sys::close(fd);
        return None;
    }
    Some(fd)
}

/// Makes a connection of our own through the parent's connection, because this process may have
/// another user or root directory when it needs one. If some such requests are still unread, no
/// further request is sent: the adapter may be stopped, and descriptors in flight count against our
/// user's limit of open files. At that limit (often a thousand) no program of this user could send
/// a descriptor.
fn connect_through(inherited: i32) -> Option<i32> {
    if sys::bytes_unacknowledged(inherited) > ADOPTIONS_MAX {
        return None;
    }
    let mut ends = [-1i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `ends` is writable for two descriptors.
    let made = unsafe {
        sys::raw(
            libc::SYS_socketpair,
            libc::AF_UNIX as usize,
            kind as usize,
            0,
            ends.as_mut_ptr() as usize,
            0,
            0,
        )
    };
    let mut adopt = Message::new(Kind::Adopt);
    adopt.pid = process::pid();
    // The adapter sets this option, too, but perhaps only after we have sent our hello.
    let is_named = made >= 0 && name_sender(ends[0]);
    let sent = is_named && send(inherited, &adopt, Some(ends[1]));
    if made >= 0 {
        sys::close(ends[1]);
        if sent {
            return Some(ends[0]);
        }
        sys::close(ends[0]);
    }
    None
}

/// The most kernel memory, in bytes, that unread requests to be adopted may occupy: about ten
/// requests.
const ADOPTIONS_MAX: isize = 8 << 10;

/// Makes the kernel add our process and user to our messages (`SO_PASSCRED`, unix(7)).
fn name_sender(fd: i32) -> bool {
    let on: i32 = 1;
    // SAFETY: `on` is valid for its length.
    let set = unsafe {
        sys::raw(
            libc::SYS_setsockopt,
            fd as usize,
            libc::SOL_SOCKET as usize,
            libc::SO_PASSCRED as usize,
            &raw const on as usize,
            size_of::<i32>(),
            0,
        )
    };
    set >= 0
}

/// True for an adapter of our own user, of root, or of the user of [`trust_adapter_of`]. No other
/// adapter gets any message.
fn is_trusted(fd: i32) -> bool {
    #[derive(Clone, Copy, Default)]
    #[repr(C)]
    struct Credentials {
        pid: i32,
        uid: u32,
        gid: u32,
    }
    // SAFETY: no arguments.
    let uid = unsafe { sys::raw(libc::SYS_geteuid, 0, 0, 0, 0, 0, 0) } as u32;
    let trusted = TRUSTED.load(Ordering::Relaxed);
    sys::getsockopt::<Credentials>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)
        .is_ok_and(|peer| peer.uid != NOBODY && [0, uid, trusted].contains(&peer.uid))
}

/// Room in a control message for [`DESCRIPTORS_MAX`] descriptors and the sender's credentials.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

const _: () = {
    // SAFETY: arithmetic only.
    let (files, sender) = unsafe {
        let files = DESCRIPTORS_MAX * size_of::<i32>();
        (
            libc::CMSG_SPACE(files as u32),
            libc::CMSG_SPACE(size_of::<libc::ucred>() as u32),
        )
    };
    assert!((files + sender) as usize <= size_of::<ControlBuffer>());
};

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The request is under way.
    Sent,
    /// The adapter has many unread requests: ask later.
    Later,
    /// There is no adapter any more.
    Lost,
}

/// The most kernel memory, in bytes, that unread requests may occupy: a third of a socket's usual
/// buffer (unix(7)). The rest is for messages that cannot be sent later.
const REQUESTS_MAX: isize = 64 << 10;

/// Shows the adapter a connection's socket. A thousand connections may ask at the same moment, and
/// the adapter may not get a processor. Then most of them ask later.
pub(crate) fn ask(fd: i32, message: &Message, shown: i32) -> Asked {
    // For a Unix socket this is the memory of the messages that its peer has not read, including
    // the kernel's overhead.
    if sys::bytes_unacknowledged(fd) > REQUESTS_MAX {
        IS_CROWDED.store(true, Ordering::Relaxed);
        return Asked::Later;
    }
    match -transmit(fd, message, Some(shown)) as i32 {
        // ETOOMANYREFS: this user has as many descriptors in flight as its limit allows.
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS => {
            IS_CROWDED.store(true, Ordering::Relaxed);
            Asked::Later
        }
        error if error > 0 => {
            forget_socket(fd);
            Asked::Lost
        }
        _ => {
            IS_CROWDED.store(false, Ordering::Relaxed);
            Asked::Sent
        }
    }
}

/// Whether the last request had to be postponed.
pub(crate) fn is_crowded() -> bool {
    // Relaxed: a hint.
    IS_CROWDED.load(Ordering::Relaxed)
}

/// Sends a message that cannot come later. False when the adapter is gone, or reads so slowly that
/// the caller must give it up.
pub(crate) fn send(fd: i32, message: &Message, descriptor: Option<i32>) -> bool {
    transmit(fd, message, descriptor) == MESSAGE_BYTES as isize
}

/// The bytes sent, or the negative error.
fn transmit(fd: i32, message: &Message, descriptor: Option<i32>) -> isize {
    let mut iov = libc::iovec {
        iov_base: message.as_bytes().as_ptr().cast_mut().cast(),
        iov_len: MESSAGE_BYTES,
    };
    let mut control = ControlBuffer([0; 64]);
    // SAFETY: zeroes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
        // SAFETY: the buffer is larger than one header and one descriptor.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(first)
                .cast::<i32>()
                .write_unaligned(descriptor);
        }
    }
    // SAFETY: everything the header points to is alive here.
    unsafe { sys::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
}

/// Closes the connection to the adapter: this process sends no more messages.
pub(crate) fn leave() {
    let _held = LOCK.lock();
    for ours in [&ADAPTER, &INHERITED] {
        let fd = ours.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            descriptors::close_own(fd);
        }
    }
}

/// The adapter is gone. Our channels stay as they are; open requests must be made again.
pub(crate) fn forget_socket(fd: i32) {
    if ADAPTER
        .compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        descriptors::close_own(fd);
    }
}

/// A message and the descriptors beside it.
pub(crate) type Received = (Message, Kind, Attached);

/// The descriptors beside a message.
pub(crate) struct Attached {
    pub(crate) files: [Option<OwnedFd>; DESCRIPTORS_MAX],
    /// The kernel has dropped some, because this process has no numbers left.
    pub(crate) is_cut: bool,
}

/// The next message that has arrived, if any. Data that is not a valid message is skipped. The
/// caller holds the lock.
pub(crate) fn try_receive(adapter: i32) -> Option<Received> {
    loop {
        let mut bytes = [0u8; MESSAGE_BYTES];
        let mut iov = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: MESSAGE_BYTES,
        };
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: zeroes are a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = size_of::<ControlBuffer>() as _;
        // SAFETY: everything the header points to is alive and writable.
        let got = unsafe {
            sys::recvmsg(
                adapter,
                &mut header,
                libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
            )
        };
        if got <= 0 {
            if got == 0 || (got != -(libc::EAGAIN as isize) && got != -(libc::EINTR as isize)) {
                forget_socket(adapter);
            }
            return None;
        }
        let attached = Attached {
            files: descriptors_in(&header),
            is_cut: header.msg_flags & libc::MSG_CTRUNC != 0,
        };
        if let Ok((message, kind)) = Message::parse(&bytes[..got as usize]) {
            return Some((message, kind, attached));
        }
    }
}

fn descriptors_in(header: &libc::msghdr) -> [Option<OwnedFd>; DESCRIPTORS_MAX] {
    let mut out = [const { None }; DESCRIPTORS_MAX];
    // SAFETY: the kernel filled the control buffer that `header` describes; the macros stay inside
    // it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
                for n in 0..count {
                    let fd = libc::CMSG_DATA(at).cast::<i32>().add(n).read_unaligned();
                    let fd = OwnedFd::from_raw_fd(fd);
                    if let Some(place) = out.get_mut(n) {
                        *place = Some(fd);
                    }
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    out
}

/// Sends a message to the adapter, if we are connected to one.
pub(crate) fn send_message(message: &Message) {
    let _held = lock();
    if let Some(adapter) = connected()
        && !send(adapter, message, None)
    {
        forget_socket(adapter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_that_reads_nothing_gets_few_descriptors() {
        let mut ends = [-1i32; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `ends` is writable for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0);
        let children: Vec<i32> = (0..100).map_while(|_| connect_through(ends[0])).collect();
        assert!((4..=20).contains(&children.len()), "{}", children.len());
        for fd in children.into_iter().chain(ends) {
            sys::close(fd);
        }
    }
}
