//! A library's side of the rendezvous, reduced to what the adapter can see: a table, a socket,
//! messages.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod children;
pub(crate) mod page;
pub(crate) mod program;
pub(crate) mod scene;
pub(crate) mod sockets;
pub(crate) mod stuck;

use rustix::net::{getpeername, getsockname};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use toehold_adapter::daemon::{Daemon, Error, Options, Stopper};
use toehold_adapter::memfd;
use toehold_adapter::wire::{self, Received};
use toehold_channel::layout::{
    Control, PAIR_BYTES, PAIR_MAGIC, REGION_MAGIC, SLAB_BYTES, place_in_slab, slab_of,
};
use toehold_channel::rendezvous::{
    DOORBELLS_ATTACHED, Kind, Message, PAIR_ATTACHED, SLAB_ATTACHED, mapped,
};
use toehold_channel::table::{
    COMMAND_NONE, COMMAND_SPARE, Entry, EntryState, FLAG_ACCEPTED, FLAG_ASKED, TABLE_BYTES, Table,
    WaitMode,
};

/// An adapter that serves a scratch directory on a thread of its own.
pub(crate) struct Adapter {
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Adapter {
    pub(crate) fn start(dir: &Path) -> Adapter {
        Adapter::start_with(Options {
            foreground: false,
            ..Options::foreground(dir.into())
        })
    }

    pub(crate) fn start_with(options: Options) -> Adapter {
        Adapter::start_after(options, || ())
    }

    /// An adapter that serves only after `act` is done. It listens before that, and reads nothing.
    pub(crate) fn start_after(options: Options, act: impl FnOnce()) -> Adapter {
        raise_descriptor_limit();
        let (ready, bound) = std::sync::mpsc::channel();
        let (go, may_go) = std::sync::mpsc::channel();
        // The daemon stays on the thread that made it.
        let thread = std::thread::spawn(move || {
            let mut daemon = Daemon::bind(options)?;
            ready
                .send(daemon.stopper().expect("eventfd"))
                .expect("the test waits");
            may_go.recv().expect("the test goes on");
            daemon.serve()
        });
        let stopper = bound.recv().expect("the adapter listens");
        act();
        go.send(()).expect("it waits");
        Adapter {
            stopper,
            thread: Some(thread),
        }
    }

    pub(crate) fn stop(mut self) {
        self.stopper.stop();
        self.join();
    }

    /// Waits until the adapter leaves by itself.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            assert!(wait_until(|| thread.is_finished()), "the adapter goes on");
            thread.join().expect("no panic").expect("no error");
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let is_over = wait_until(|| thread.is_finished());
            let ended = is_over && thread.join().is_ok();
            assert!(
                ended || std::thread::panicking(),
                "the adapter panicked, or goes on"
            );
        }
    }
}

/// A scratch runtime directory, private as the adapter requires.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("scratch directory"))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("toehold")
    }
}

/// Longer than any step of a test takes on a busy host. After this time a wait is in vain.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Asks `is_so` again and again until it is so, for at most [`LONG`]. Says whether it is so.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begun.elapsed() > LONG {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a descriptor is readable, or its other end is closed, for at most [`LONG`]. Says
/// whether it is.
fn becomes_readable(file: &impl AsFd) -> bool {
    let mut poll = libc::pollfd {
        fd: file.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `poll` is one element.
    unsafe { libc::poll(&mut poll, 1, LONG.as_millis() as libc::c_int) == 1 }
}

/// Raises a flag when dropped: a thread of a scope that waits for the flag ends, even if the
/// own thread of the scope panics.
pub(crate) struct Done<'a>(pub(crate) &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A family's table.
pub(crate) struct FakeTable {
    pub(crate) file: OwnedFd,
    base: NonNull<u8>,
}

impl FakeTable {
    pub(crate) fn new() -> FakeTable {
        let file = memfd::create(c"table", TABLE_BYTES).expect("memfd");
        let base = memfd::map(file.as_fd(), TABLE_BYTES).expect("map");
        let table = FakeTable { file, base };
        let own_pid = std::process::id();
        table
            .words()
            .initialise(own_pid, WaitMode::Adaptive, b"fake-program");
        table
    }

    /// This table, as another process of the family has it.
    pub(crate) fn again(&self) -> FakeTable {
        FakeTable {
            file: self.file.try_clone().expect("dup"),
            base: self.base,
        }
    }

    pub(crate) fn words(&self) -> Table {
        // SAFETY: `base` is a mapping of a table, ended by nobody before the process does.
        unsafe { Table::at(self.base.as_ptr()) }
    }

    pub(crate) fn entry(&self, index: u32) -> &Entry {
        let entry: *const Entry = self.words().entry(index).expect("in range");
        // SAFETY: the mapping is never ended.
        unsafe { &*entry }
    }

    /// Fills an entry in, as the library does for a connection; returns its index and generation.
    pub(crate) fn open(&self, fd: u32, accepted: bool) -> (u32, u32) {
        let unused = self
            .words()
            .header()
            .entries_used
            .load(Ordering::Relaxed)
            .shown();
        let index = self.words().allocate(unused, |_| false).expect("room");
        let entry = self.entry(index);
        let generation = entry.generation.fetch_add(1, Ordering::Relaxed) + 1;
        entry
            .channel_generation
            .store(generation, Ordering::Relaxed);
        let flags = FLAG_ASKED | if accepted { FLAG_ACCEPTED } else { 0 };
        entry.flags.store(flags, Ordering::Relaxed);
        entry.fd.store(fd, Ordering::Relaxed);
        entry.pid.store(std::process::id(), Ordering::Relaxed);
        entry.holders.store(1, Ordering::Relaxed);
        entry.offer.store(0, Ordering::Relaxed);
        entry.command.store(0, Ordering::Relaxed);
        entry.refusal.store(0, Ordering::Relaxed);
        entry
            .state
            .store(EntryState::Live as u32, Ordering::Release);
        (index, generation)
    }

    pub(crate) fn close(&self, index: u32) {
        self.entry(index)
            .state
            .store(EntryState::Free as u32, Ordering::Release);
    }
}

/// One end of a connection in a test: its entry, its generation and the ports that name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeEnd {
    pub(crate) entry: u32,
    pub(crate) generation: u32,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

/// An offer that arrived, its memory mapped and checked.
pub(crate) struct FakeOffer {
    pub(crate) message: Message,
    pub(crate) region: NonNull<u8>,
    pub(crate) pair: Option<File>,
    pub(crate) slab: Option<File>,
    /// The receiver's, and its peer's.
    pub(crate) doorbells: Option<[File; 2]>,
}

impl FakeOffer {
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: in a mapping that is never ended; all atomics.
        unsafe { self.region.cast().as_ref() }
    }
}

/// Slabs by pair, side and number.
type Slabs = RefCell<BTreeMap<(u64, u32, u32), NonNull<u8>>>;

/// A library that has said hello, or is about to.
pub(crate) struct FakeLibrary {
    pub(crate) socket: OwnedFd,
    pub(crate) table: FakeTable,
    slabs: Slabs,
}

impl FakeLibrary {
    /// Connects and says hello with a fresh table.
    pub(crate) fn new(dir: &Path) -> FakeLibrary {
        FakeLibrary::with_table(dir, FakeTable::new())
    }

    pub(crate) fn with_table(dir: &Path, table: FakeTable) -> FakeLibrary {
        let socket = connect(dir);
        let library = FakeLibrary::at(socket, table);
        library.hello(library.table.file.as_fd());
        library
    }

    /// A library that has not said hello.
    pub(crate) fn at(socket: OwnedFd, table: FakeTable) -> FakeLibrary {
        FakeLibrary {
            socket,
            table,
            slabs: Slabs::default(),
        }
    }

    /// A forked child as it comes to the adapter: through its parent's connection, with its
    /// parent's table.
    pub(crate) fn adopted(&self) -> FakeLibrary {
        let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
        self.adopt(&[theirs.as_fd()]);
        let child = FakeLibrary::at(socket, self.table.again());
        child.hello(child.table.file.as_fd());
        child
    }

    pub(crate) fn adopt(&self, descriptors: &[BorrowedFd<'_>]) {
        let adopt = Message::new(Kind::Adopt);
        wire::send(self.socket.as_fd(), &adopt, descriptors).expect("sent");
    }

    /// A new program of the same process as it comes to the adapter: the old socket is closed, the
    /// table stays.
    pub(crate) fn replaced(self, dir: &Path) -> FakeLibrary {
        drop(self.socket);
        FakeLibrary::with_table(dir, self.table)
    }

    /// Asks again for the channel of an end, and returns the reply.
    pub(crate) fn resume(&self, end: FakeEnd) -> Result<FakeOffer, Message> {
        let resume = Message {
            entry: end.entry,
            generation: end.generation,
            ..Message::new(Kind::Resume)
        };
        wire::send(self.socket.as_fd(), &resume, &[]).expect("sent");
        match wire::receive(self.socket.as_fd()).expect("received") {
            Received::Message(message, Kind::Offer, descriptors) => {
                Ok(self.take_offer(message, descriptors))
            }
            Received::Message(message, Kind::Answer, _) => Err(message),
            other => panic!("unexpected: {other:?}"),
        }
    }

    pub(crate) fn hello(&self, table: BorrowedFd<'_>) {
        let mut hello = Message::new(Kind::Hello);
        hello.pid = std::process::id();
        wire::send(self.socket.as_fd(), &hello, &[table]).expect("sent");
    }

    /// Opens an entry and asks for a partner. The ports make the tuple.
    pub(crate) fn pair(&self, accepted: bool, local_port: u16, remote_port: u16) -> FakeEnd {
        let (entry, generation) = self.table.open(u32::from(local_port), accepted);
        let end = FakeEnd {
            entry,
            generation,
            local_port,
            remote_port,
        };
        self.ask(end);
        end
    }

    pub(crate) fn ask(&self, end: FakeEnd) {
        self.ask_showing(end, sockets::of(end.local_port, end.remote_port));
    }

    /// Opens an entry. Returns the request for a partner that the library would send with `shown`.
    pub(crate) fn request(&self, accepted: bool, shown: BorrowedFd<'_>) -> Message {
        let (entry, generation) = self.table.open(0, accepted);
        let request = Message {
            entry,
            generation,
            ..Message::new(Kind::Pair)
        };
        naming(shown, request)
    }

    /// Opens an entry and asks for a partner, with a descriptor.
    pub(crate) fn pair_showing(&self, accepted: bool, shown: BorrowedFd<'_>) -> FakeEnd {
        let (entry, generation) = self.table.open(0, accepted);
        let end = FakeEnd {
            entry,
            generation,
            local_port: 0,
            remote_port: 0,
        };
        self.ask_showing(end, shown);
        end
    }

    /// Asks for a partner of an end, and shows a descriptor as its socket.
    pub(crate) fn ask_showing(&self, end: FakeEnd, shown: BorrowedFd<'_>) {
        let message = naming(shown, pair_message(end));
        wire::send(self.socket.as_fd(), &message, &[shown]).expect("sent");
    }

    /// Reports that the connection of an end is gone.
    pub(crate) fn withdraw(&self, end: FakeEnd) {
        self.give_up(end, 0);
    }

    /// Reports that an end has no channel any more. Its connection goes on if `goes_on` is
    /// [`GOES_ON`].
    ///
    /// [`GOES_ON`]: toehold_channel::rendezvous::GOES_ON
    pub(crate) fn give_up(&self, end: FakeEnd, goes_on: u32) {
        let withdraw = Message {
            entry: end.entry,
            generation: end.generation,
            side: goes_on,
            ..Message::new(Kind::Withdraw)
        };
        wire::send(self.socket.as_fd(), &withdraw, &[]).expect("sent");
    }

    /// Waits until the adapter has handled everything sent so far; returns the offers that came in
    /// between.
    pub(crate) fn settle(&self) -> Vec<FakeOffer> {
        wire::send(self.socket.as_fd(), &Message::new(Kind::Ping), &[]).expect("sent");
        let mut offers = Vec::new();
        loop {
            match wire::receive(self.socket.as_fd()).expect("received") {
                Received::Message(_, Kind::Answer, _) => return offers,
                Received::Message(message, Kind::Offer, descriptors) => {
                    offers.push(self.take_offer(message, descriptors));
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// Waits until `is_so` holds, for work that the adapter does by itself.
    pub(crate) fn settle_until(&self, mut is_so: impl FnMut() -> bool) -> Vec<FakeOffer> {
        let (mut offers, begun) = (Vec::new(), Instant::now());
        while begun.elapsed() <= LONG {
            offers.extend(self.settle());
            if is_so() {
                // The cause may have come after the turn before.
                offers.extend(self.settle());
                return offers;
            }
            std::thread::yield_now();
        }
        panic!("not so after {LONG:?}");
    }

    /// Waits for one offer.
    pub(crate) fn offer(&self) -> FakeOffer {
        match wire::receive(self.socket.as_fd()).expect("received") {
            Received::Message(message, Kind::Offer, descriptors) => {
                self.take_offer(message, descriptors)
            }
            other => panic!("no offer: {other:?}"),
        }
    }

    pub(crate) fn refusal(&self, end: FakeEnd) -> u32 {
        self.table.entry(end.entry).refusal.load(Ordering::Acquire)
    }

    pub(crate) fn offers(&self, end: FakeEnd) -> u32 {
        self.table.entry(end.entry).offer.load(Ordering::Acquire)
    }

    pub(crate) fn command(&self, end: FakeEnd) -> u32 {
        self.table.entry(end.entry).command.load(Ordering::Acquire)
    }

    /// A connection that is used after the adapter has asked for its region does this.
    pub(crate) fn keep_region(&self, end: FakeEnd) {
        let command = &self.table.entry(end.entry).command;
        let relaxed = Ordering::Relaxed;
        let _ = command.compare_exchange(COMMAND_SPARE, COMMAND_NONE, relaxed, relaxed);
    }

    /// The number of times that the adapter has called the family's attention.
    pub(crate) fn attention(&self) -> u32 {
        let table = self.table.words();
        table.header().attention.load(Ordering::Acquire)
    }

    /// Whether the adapter has closed our socket.
    pub(crate) fn is_dropped(&self) -> bool {
        loop {
            match wire::receive(self.socket.as_fd()) {
                Ok(Received::Message(..)) => {}
                Ok(Received::Closed) => return true,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return true,
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    fn take_offer(&self, message: Message, mut descriptors: Vec<OwnedFd>) -> FakeOffer {
        let mut next = |bit| {
            let is_attached = message.attached & bit != 0;
            is_attached.then(|| File::from(descriptors.remove(0)))
        };
        let (slab, pair) = (next(SLAB_ATTACHED), next(PAIR_ATTACHED));
        let doorbells = (next(DOORBELLS_ATTACHED), next(DOORBELLS_ATTACHED));
        assert!(
            descriptors.is_empty(),
            "a slab, a pair and its doorbells at most"
        );
        if let Some(pair) = &pair {
            assert_eq!(pair.metadata().expect("metadata").len(), PAIR_BYTES as u64);
            let mut magic = [0u8; 8];
            pair.read_exact_at(&mut magic, 0).expect("read");
            assert_eq!(u64::from_ne_bytes(magic), PAIR_MAGIC);
        }
        let name = (message.pair, message.side, slab_of(message.slot));
        let mut slabs = self.slabs.borrow_mut();
        if let Some(slab) = &slab {
            let base = memfd::map(slab.as_fd(), SLAB_BYTES);
            slabs.insert(name, base.expect("sealed, of the right length"));
        }
        let base = slabs.get(&name).expect("shown before");
        let offer = FakeOffer {
            message,
            // SAFETY: inside the mapping.
            region: unsafe { base.add(place_in_slab(message.slot)) },
            pair,
            slab,
            doorbells: doorbells.0.zip(doorbells.1).map(<[File; 2]>::from),
        };
        assert_eq!(offer.control().magic.load(Ordering::Relaxed), REGION_MAGIC);
        offer
    }
}

/// A message that names the addresses of a TCP socket, as the library's do.
pub(crate) fn naming(socket: BorrowedFd<'_>, mut message: Message) -> Message {
    let ends = (getsockname(socket).ok(), getpeername(socket).ok().flatten());
    if let (Some(Ok(local)), Some(Ok(remote))) = (
        ends.0.map(SocketAddr::try_from),
        ends.1.map(SocketAddr::try_from),
    ) {
        let ip = |address: SocketAddr| match address.ip() {
            IpAddr::V4(v4) => mapped(v4.octets()),
            IpAddr::V6(v6) => v6.octets(),
        };
        (message.local, message.local_port) = (ip(local), local.port());
        (message.remote, message.remote_port) = (ip(remote), remote.port());
    }
    message
}

pub(crate) fn pair_message(end: FakeEnd) -> Message {
    Message {
        entry: end.entry,
        generation: end.generation,
        ..Message::new(Kind::Pair)
    }
}

/// Two connected sockets of one kind, blocking.
pub(crate) fn socket_pair(kind: libc::c_int) -> (OwnedFd, OwnedFd) {
    let mut ends = [-1; 2];
    // SAFETY: `ends` has room for two; the kernel made both for us.
    unsafe {
        let kind = kind | libc::SOCK_CLOEXEC;
        let made = libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
        assert_eq!(made, 0, "socketpair: {}", io::Error::last_os_error());
        let ends = ends.map(|end| OwnedFd::from_raw_fd(end));
        limit_waits(ends[0].as_fd());
        // As the library does: a message sent before the adapter asks must carry its sender's
        // identity, too.
        wire::ask_for_senders(ends[0].as_fd()).expect("a socket");
        ends.into()
    }
}

/// Enough for two for each of ten thousand connections, and for the adapter's own.
const DESCRIPTORS: u64 = 65_536;

/// Fewer than an unlimited process has.
const DESCRIPTORS_FEW: u64 = 1024;

/// Raises this process's limit on descriptors to the most that it may have; root may choose.
fn raise_descriptor_limit() {
    // SAFETY: `limit` is valid for both calls.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            let mut more = limit;
            more.rlim_cur = limit.rlim_max.max(DESCRIPTORS);
            more.rlim_max = more.rlim_cur;
            // A test that plays a process with few descriptors has asked for few.
            if limit.rlim_max >= DESCRIPTORS_FEW && libc::setrlimit(libc::RLIMIT_NOFILE, &more) == 0
            {
                return;
            }
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Lets calls on a socket fail that have waited for [`LONG`]: a message that does not come is a
/// failure, and no test that never ends.
fn limit_waits(socket: BorrowedFd<'_>) {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, direction, Some(LONG)).expect("a socket");
    }
}

/// A socket connected to the adapter of a directory. The socket blocks, so tests need no clock.
pub(crate) fn connect(dir: &Path) -> OwnedFd {
    try_connect(dir).expect("connected")
}

pub(crate) fn try_connect(dir: &Path) -> io::Result<OwnedFd> {
    let path = dir.join("adapter.sock");
    // SAFETY: `sockaddr_un` is plain data; the socket is ours; the address is valid for its size.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0, "socket: {}", io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(socket);
        limit_waits(socket.as_fd());
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (target, &byte) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
            *target = byte as libc::c_char;
        }
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        if libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(socket)
    }
}

/// Sends a message with more descriptors than any valid message has.
pub(crate) fn send_many(socket: &OwnedFd, message: &Message, descriptors: &[BorrowedFd<'_>]) {
    let bytes = message.as_bytes();
    let payload = size_of_val(descriptors) as u32;
    let mut control = vec![0u64; 128];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the control buffer is aligned and has room for the header and the descriptors.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(payload) as _;
        assert!(header.msg_controllen <= size_of_val(&control[..]));
        let first = libc::CMSG_FIRSTHDR(&header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(payload) as _;
        for (index, descriptor) in descriptors.iter().enumerate() {
            libc::CMSG_DATA(first)
                .cast::<i32>()
                .add(index)
                .write_unaligned(descriptor.as_raw_fd());
        }
        libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL)
    };
    assert_eq!(sent, bytes.len() as isize);
}

/// Sets the real and effective user of this thread alone; the saved user stays root.
pub(crate) fn become_user(uid: u32) {
    // SAFETY: plain system call, of which the C library's would change all threads.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, 0) };
    assert_eq!(done, 0, "setresuid: {}", std::io::Error::last_os_error());
}

/// Calls `act` as a user: messages sent meanwhile carry that user's identity.
pub(crate) fn as_user<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    become_user(uid);
    let done = act();
    become_user(0);
    done
}
