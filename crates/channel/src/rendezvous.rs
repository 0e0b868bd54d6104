//! The messages between the library and the adapter: of fixed size, over an `AF_UNIX`
//! `SOCK_SEQPACKET` socket in the user's runtime directory, descriptors beside them (`SCM_RIGHTS`).
//!
//! ```text
//!   library                                adapter
//!   Hello + table memfd           ──►      maps the table, keeps it by process
//!   Adopt + socket                ──►      serves a forked child that cannot connect by itself
//!   Pair(entry) + the socket      ──►      asks the kernel for its addresses, looks for its peer
//!   Namespace + a socket          ──►      asks there about sockets of that namespace
//!                                 ◄──      to both: Offer(entry, side, slot) [+ descriptors]
//!   Withdraw(entry)               ──►      forgets it
//!   Resume(entry) [+ the socket]  ──►      around exec: the Offer again; Answer: no channel
//!   Engine                        ──►      asks whether there is a TCP engine
//!                                 ◄──      Engine(token) [+ routing page, see crate::offload]
//!   Listen(address, backlog)      ──►      listens there on the engine's addresses as well
//!                                 ◄──      Listening: remotes that connect from now on are served
//!   Liveness(addresses, times)    ──►      probes the remote, as the program's socket would
//!   Unlisten(address)             ──►      looks whether that listener is still there
//!   (socket closes)               ──►      tells every peer: COMMAND_PEER_GONE in its entry
//!
//!   toehold capture               ──►      Capture(bytes kept, port, address)
//!   toehold adapter --set         ──►      Set(a memfd with NAME=VALUE)
//!                                 ◄──      Answer [+ a socket to read the capture from]
//!
//!   toehold status / detach       ──►      Query(kind, pid, fd)
//!                                 ◄──      Answer(kind, count) [+ memfd with JSON]
//! ```
//!
//! Neither side waits for the other in its sends, and the library looks for an offer only when the
//! `offer` word of its entry has changed. For `Engine` the library waits, a second at most, once
//! for each adapter it meets; for `Listening` a quarter of a second at most, in each `listen`.

/// File name of the adapter's socket in the runtime directory.
pub const SOCKET_NAME: &str = "adapter.sock";
/// First word of every message: "TOEH".
pub const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"TOEH");
/// Length of every message in bytes.
pub const MESSAGE_BYTES: usize = size_of::<Message>();

/// One message. Unused fields are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// [`MESSAGE_MAGIC`].
    pub magic: u32,
    /// [`crate::table::LAYOUT_VERSION`].
    pub version: u32,
    /// A [`Kind`] as a number.
    pub kind: u32,
    /// Entry in the sender's (or for an offer the receiver's) table.
    pub entry: u32,
    /// Generation of that entry.
    pub generation: u32,
    /// `Hello`: process id. `Query`: process id, 0 for all.
    pub pid: u32,
    /// `Offer`: 0 or 1. `Pair`: 1 when the slab is to be attached even if it was before.
    /// `Withdraw`: [`GOES_ON`] when the connection does, without its channel, which the peer may
    /// have left before. `Query`: descriptor or `u32::MAX` for all. `Answer`: how many it touched.
    pub side: u32,
    /// `Offer`: number of this channel in the pair, and so its place in the pair's slabs. `Pair`:
    /// how often the process has forked. Slabs that a child has inherited get no further channels.
    pub slot: u32,
    /// `Offer`: number of the pair of processes, which is never used again. The pair's memfd comes
    /// with the first offer that names the pair, and a slab's memfd with the first channel in that
    /// slab. `Engine`, from the adapter: first half of the client token ([`crate::preamble`]).
    pub pair: u64,
    /// `Pair`, for a connection that may become a carrier ([`crate::express`]): one more than the
    /// descriptor of the listener that accepted it. `Offer`, if no addresses are translated: the
    /// inode of that listener, which the adapter has found among the descriptors of the accepting
    /// process. Otherwise 0.
    pub listener: u64,
    /// `Engine`, from the adapter: second half of the client token.
    pub cookie: u64,
    /// `Listen`, `Liveness`, and `Pair` of a TCP connection: local address; IPv4 as an IPv4-mapped
    /// IPv6 address.
    pub local: [u8; 16],
    /// Remote address, in the form of the local one.
    pub remote: [u8; 16],
    /// Local port, host byte order.
    pub local_port: u16,
    /// Remote port, host byte order.
    pub remote_port: u16,
    /// `Offer`: which descriptors come with it, in this order: [`SLAB_ATTACHED`],
    /// [`PAIR_ATTACHED`], [`DOORBELLS_ATTACHED`]; and [`SAME_USER`].
    pub attached: u32,
}

/// In `side` of a `Withdraw`: the connection goes on.
pub const GOES_ON: u32 = 1;
/// In `attached`: the slab that the channel is in.
pub const SLAB_ATTACHED: u32 = 1;
/// In `attached`: the pair's memory.
pub const PAIR_ATTACHED: u32 = 2;
/// In `attached`: both ends are of one user, in one network namespace, and nothing translates
/// addresses between them. For ends of two users see [`Message::listener`].
pub const SAME_USER: u32 = 4;

/// In `attached`: the pair's doorbells ([`crate::doorbell::Doorbell::Pair`]): an epoll instance
/// that watches the `eventfd` of the message's receiver, then the `eventfd` of its peer. Each
/// `eventfd` wakes the process that it is named after.
pub const DOORBELLS_ATTACHED: u32 = 8;
/// The most descriptors beside a message: those of an offer.
pub const DESCRIPTORS_MAX: usize = 4;

const _: () = assert!(size_of::<Message>() == 96);

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Library: introduces its process; one descriptor, the table.
    Hello = 1,
    /// Library: asks to pair this connection; one descriptor, its socket. An engine's thread, which
    /// is in the adapter's process, sends the addresses instead.
    Pair = 2,
    /// Library: this connection is gone, has given its channel up, or stays on the host.
    Withdraw = 3,
    /// Adapter: gives an end its region, with the descriptors that the receiver does not have yet.
    Offer = 4,
    /// Command line: asks whether the adapter answers.
    Ping = 5,
    /// Command line: asks for the status; the answer carries a memfd with JSON.
    Status = 6,
    /// Command line: set [`crate::table::COMMAND_DETACH`].
    Detach = 7,
    /// Command line: withdraw that command.
    Attach = 8,
    /// Adapter: the command was carried out for `side` connections; or there is no channel to
    /// resume.
    Answer = 9,
    /// Library, over a connection inherited from its parent: one descriptor, the adapter's end of a
    /// new connection. A forked child that changed its user or root directory could not connect by
    /// itself.
    Adopt = 10,
    /// Library: asks for the descriptors of the channel of this entry and generation. Sent before
    /// the process replaces its program, or after the [`Kind::Hello`] of the new program. The reply
    /// comes on this socket, and the entry's `offer` word does not change. It is a [`Kind::Offer`]
    /// with the former side, slot and pair and with both descriptors, or a [`Kind::Answer`] with
    /// `side` 0, the entry and the generation, when the channel cannot be resumed: there is no such
    /// channel; or it was offered to another process and its slab has other channels; or the asker
    /// is another user and does not show the socket.
    Resume = 11,
    /// Library: asks for the engine. The reply is also an `Engine` message. It carries one
    /// descriptor (a [`crate::offload::RoutingPage`]) and a client token, or neither when there is
    /// no engine.
    Engine = 12,
    /// Library: the program listens at `local`, with the backlog in `slot`; `side` is 1 when it
    /// takes IPv6 only; `pair` is the listener's `TCP_FASTOPEN`. The message is sent again when
    /// that option changes.
    Listen = 14,
    /// Library: the program has closed a descriptor that listened at `local`. There may be others.
    Unlisten = 15,
    /// Adapter: its engine listens at the address of the client's last [`Kind::Listen`], or has
    /// decided not to. The last thread of the engine to do so reports it to the daemon, with the
    /// client's number in `pair`; the daemon then tells the client.
    Listening = 17,
    /// Library: the program's liveness settings for the remote of the engine's connection between
    /// `local` and `remote` ([`crate::liveness::Liveness`]).
    Liveness = 18,
    /// Library: some of its sockets are in another network namespace than the adapter; one
    /// descriptor, a `NETLINK_SOCK_DIAG` socket of that namespace. A later message replaces it.
    Namespace = 19,
    /// Command line: asks for the frames of the engine's link: at most `side` bytes of each (0:
    /// all), and only those from or to `remote_port` and `remote`, if these are not zero. The
    /// answer carries a socket from which a pcapng capture is read. An answer without a socket has
    /// a [`NoCapture`] in `side`.
    Capture = 16,
    /// Command line: changes one of the engine's settings; one descriptor, a memfd with
    /// `NAME=VALUE`. The answer's `side` is 1, or 0 with a memfd that contains the cause.
    Set = 20,
}

/// The reason why there is no capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NoCapture {
    /// The adapter has no engine, and so no link.
    NoEngine = 1,
    /// The caller is neither the adapter's user nor root.
    OtherUser = 2,
    /// The adapter has no descriptors left.
    NoDescriptors = 3,
}

/// The fault of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// Not [`MESSAGE_BYTES`] long, or without [`MESSAGE_MAGIC`].
    Foreign,
    /// A message of another version.
    Version(u32),
    /// A message of an unknown kind.
    Kind(u32),
}

/// The runtime directory of a family's adapter as a number: FNV-1a of the path's bytes. 0 stands
/// for no directory.
pub fn meeting_of(directory: &[u8]) -> u64 {
    /// Fowler, Noll and Vo's numbers for 64 bits (RFC 9923).
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    match directory {
        [] => 0,
        directory => directory.iter().fold(BASIS, step),
    }
}

impl Message {
    /// A message of `kind`, everything else zero.
    pub fn new(kind: Kind) -> Message {
        Message {
            magic: MESSAGE_MAGIC,
            version: crate::table::LAYOUT_VERSION,
            kind: kind as u32,
            ..Message::default()
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; MESSAGE_BYTES] {
        // SAFETY: `Message` is `repr(C)` without padding (its size is the sum of its fields,
        // asserted above).
        unsafe { &*(self as *const Message).cast() }
    }

    /// The message in `bytes`, and its kind.
    ///
    /// # Errors
    /// When the bytes are not a message of this version.
    pub fn parse(bytes: &[u8]) -> Result<(Message, Kind), MessageError> {
        if bytes.len() != MESSAGE_BYTES {
            return Err(MessageError::Foreign);
        }
        // SAFETY: the length was checked; every bit pattern is a valid `Message`; the read is
        // unaligned.
        let message = unsafe { bytes.as_ptr().cast::<Message>().read_unaligned() };
        if message.magic != MESSAGE_MAGIC {
            return Err(MessageError::Foreign);
        }
        if message.version != crate::table::LAYOUT_VERSION {
            return Err(MessageError::Version(message.version));
        }
        let kind = match message.kind {
            1 => Kind::Hello,
            2 => Kind::Pair,
            3 => Kind::Withdraw,
            4 => Kind::Offer,
            5 => Kind::Ping,
            6 => Kind::Status,
            7 => Kind::Detach,
            8 => Kind::Attach,
            9 => Kind::Answer,
            10 => Kind::Adopt,
            11 => Kind::Resume,
            12 => Kind::Engine,
            14 => Kind::Listen,
            15 => Kind::Unlisten,
            16 => Kind::Capture,
            17 => Kind::Listening,
            18 => Kind::Liveness,
            19 => Kind::Namespace,
            20 => Kind::Set,
            other => return Err(MessageError::Kind(other)),
        };
        Ok((message, kind))
    }
}

/// The IPv4 address in an IPv4-mapped IPv6 address.
pub fn unmapped(ip: [u8; 16]) -> Option<[u8; 4]> {
    let (prefix, v4) = ip.split_first_chunk::<12>()?;
    (*prefix == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
        .then(|| v4.first_chunk().copied())
        .flatten()
}

/// An IPv4 address as IPv4-mapped IPv6, so that both ends of a dual-stack connection spell it
/// alike.
pub fn mapped(v4: [u8; 4]) -> [u8; 16] {
    let mut out = [0u8; 16];
    out[10] = 0xff;
    out[11] = 0xff;
    out[12..].copy_from_slice(&v4);
    out
}
