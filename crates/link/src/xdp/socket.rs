//! A socket for the frames of one receive queue, with its own memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpDesc, XdpDescOptions, XdpOptionsFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, sockopt,
};

use super::error::{MTU_IN_PIECES_MAX, XdpError};
use super::interface::take;
use super::partial::lacks_checksum;
use super::pieces::{FRAME_BYTES_MAX, Pieces};
use super::rings::{self, Consumer, Producer};
use super::steering::{XdpMode, XdpSteering};
use super::umem::Umem;
use crate::vnet::VnetHeader;

/// The options of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpOptions {
    /// The most received frames that may wait; a power of two.
    pub receive_frames: u32,
    /// The most sent frames that may be on their way; a power of two.
    pub send_frames: u32,
}

impl Default for XdpOptions {
    /// Room for one frame of each of some thousand connections at once.
    fn default() -> Self {
        Self {
            receive_frames: 4096,
            send_frames: 2048,
        }
    }
}

/// The kernel's losses (`struct xdp_statistics`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XdpStatistics {
    /// Frames that came while all of our memory was in use.
    pub no_memory: u64,
    /// Frames that came while the receive ring was full.
    pub ring_full: u64,
    /// Frames lost for other reasons: too long.
    pub dropped: u64,
    /// Frames of ours that the kernel did not understand: always 0.
    pub invalid: u64,
}

/// A non-blocking socket that receives one queue's frames, and sends frames.
#[derive(Debug)]
pub struct XdpSocket {
    receive: Consumer<XdpDesc>,
    fill: Producer<u64>,
    transmit: Producer<XdpDesc>,
    completion: Consumer<u64>,
    /// Chunks of released frames; the kernel gets them back together.
    seen: Vec<u64>,
    /// Chunks for frames of ours.
    free: Vec<u64>,
    is_zero_copy: bool,
    /// `Some` if frames may be longer than a chunk.
    pieces: Option<Pieces>,
    /// Losses that were already reported.
    lost_before: u64,
    /// The kernel of this machine may have left checksums out.
    may_lack_checksums: bool,
    socket: OwnedFd,
    /// This field must be dropped after the socket: the kernel writes to this memory as long as the
    /// socket is open.
    umem: Umem,
    steering: Arc<XdpSteering>,
}

impl XdpSocket {
    /// Opens a socket for a receive queue. From now on it gets that queue's frames for the engine.
    /// The thread must be in the interface's network namespace.
    ///
    /// # Errors
    /// See [`XdpError`].
    ///
    /// # Panics
    /// When a number of the options is not a power of two.
    pub fn open(
        steering: Arc<XdpSteering>,
        queue: u32,
        options: XdpOptions,
    ) -> Result<Self, XdpError> {
        let interface = steering.interface();
        let setup = |action| move |error| XdpError::of(action, &interface.name, error);
        let (family, flags) = (AddressFamily::XDP, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, None)
            .map_err(|error| setup("open an AF_XDP socket")(error.into()))?;
        let XdpOptions {
            receive_frames,
            send_frames,
        } = options;
        let chunks = (receive_frames + send_frames) as usize;
        let umem = Umem::new(chunk_bytes(interface.mtu), chunks);
        let umem = umem.map_err(setup("get memory for frames"))?;
        umem.register(&socket)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOBUFS) => XdpError::LockedMemory(umem.bytes()),
                _ => XdpError::of("register memory for frames", &interface.name, error),
            })?;
        let ring = setup("make a ring");
        let fill = Producer::new(&socket, rings::FILL, receive_frames).map_err(&ring)?;
        let completion = Consumer::new(&socket, rings::COMPLETION, send_frames).map_err(&ring)?;
        let receive = Consumer::new(&socket, rings::RECEIVE, receive_frames).map_err(&ring)?;
        let transmit = Producer::new(&socket, rings::TRANSMIT, send_frames).map_err(&ring)?;
        enlarge_send_buffer(&socket, umem.bytes());
        take(|| bind(&socket, queue, &steering))
            .map_err(setup("bind an AF_XDP socket to the receive queue"))?;
        let is_zero_copy = is_zero_copy(&socket).map_err(setup("ask for zero copy"))?;
        let mut addresses = umem.addresses();
        let mut opened = Self {
            receive,
            fill,
            transmit,
            completion,
            seen: addresses.by_ref().take(receive_frames as usize).collect(),
            free: addresses.rev().collect(),
            is_zero_copy,
            pieces: steering.in_pieces().then(Pieces::new),
            lost_before: 0,
            may_lack_checksums: interface.is_veth || steering.mode() == XdpMode::Generic,
            umem,
            socket,
            steering: steering.clone(),
        };
        opened.refill();
        steering
            .enter(queue, opened.socket.as_fd())
            .map_err(setup("enter a socket"))?;
        Ok(opened)
    }

    /// The oldest received frame, which stays in place until [`XdpSocket::release`]. No system
    /// call.
    #[inline]
    pub fn peek(&mut self) -> Option<(VnetHeader, &[u8])> {
        if self.receive.peek().is_none() {
            self.refill();
            return None;
        }
        if let Some(pieces) = &mut self.pieces {
            pieces.gather(&mut self.receive, &self.umem, 1);
        }
        self.oldest(1).next()
    }

    #[inline]
    fn frame(&self, arrived: XdpDesc) -> (VnetHeader, &[u8]) {
        // SAFETY: the kernel has given this chunk to us, and gets it back when it is released.
        let frame = unsafe { self.umem.slice(arrived.addr, arrived.len as usize) };
        self.with_header(frame)
    }

    #[inline]
    fn with_header<'a>(&self, frame: &'a [u8]) -> (VnetHeader, &'a [u8]) {
        // As with a TAP: a frame whose checksum a kernel of this machine has left out has not
        // crossed a wire that could damage it.
        let header = if self.may_lack_checksums && lacks_checksum(frame) {
            VnetHeader::UNFINISHED
        } else {
            VnetHeader::default()
        };
        (header, frame)
    }

    /// The number of frames at the last look of [`XdpSocket::peek`], less the frames released
    /// since; at most `most`. It may be lower if frames are longer than a chunk. No system call.
    #[inline]
    #[must_use]
    pub fn waiting(&mut self, most: usize) -> usize {
        match &mut self.pieces {
            None => most.min(self.receive.known() as usize),
            Some(pieces) => pieces.gather(&mut self.receive, &self.umem, most),
        }
    }

    /// The oldest frames, as many as [`XdpSocket::waiting`] has returned. Each frame stays until it
    /// is released.
    #[inline]
    pub fn oldest(&self, count: usize) -> impl Iterator<Item = (VnetHeader, &[u8])> + Clone {
        (0..count).filter_map(|ahead| match &self.pieces {
            None => Some(self.frame(self.receive.peek_at(ahead as u32)?)),
            Some(pieces) => Some(self.with_header(pieces.frame(ahead, &self.umem)?)),
        })
    }

    /// Gives the memory of the oldest frame back to the kernel.
    ///
    /// # Panics
    /// When no frame waits.
    #[inline]
    pub fn release(&mut self) {
        let chunk_bytes = self.umem.chunk_bytes() as u64;
        let pieces = self.pieces.as_mut().map_or(Some(1), Pieces::release);
        let count = pieces.expect("there is a frame to release");
        for _ in 0..count {
            let arrived = self.receive.pop().expect("there is a frame to release");
            self.seen.push(arrived.addr / chunk_bytes * chunk_bytes);
        }
        if self.seen.len() >= REFILL_FRAMES {
            self.refill();
        }
    }

    /// Room for a frame of ours; [`XdpSocket::publish`] sends it. `None` while all chunks are on
    /// their way.
    #[inline]
    pub fn room(&mut self) -> Option<&mut [u8]> {
        let chunk_bytes = self.umem.chunk_bytes();
        let needed = match self.pieces {
            None => 1,
            Some(_) => FRAME_BYTES_MAX.div_ceil(chunk_bytes),
        };
        if self.free.len() < needed {
            self.reclaim();
        }
        if self.free.len() < needed {
            self.flush();
            self.reclaim();
        }
        if self.free.len() < needed {
            return None;
        }
        if let Some(pieces) = &mut self.pieces {
            return Some(pieces.room());
        }
        let &address = self.free.last()?;
        // SAFETY: this chunk is among those that are ours.
        Some(unsafe { self.umem.slice_mut(address, chunk_bytes) })
    }

    /// Queues the frame of this length in [`XdpSocket::room`]; the next [`XdpSocket::flush`] sends
    /// it. The frame must be complete: neither the kernel nor the interface computes its checksum
    /// or cuts it.
    ///
    /// # Panics
    /// When there is no room, or less than `length`.
    pub fn publish(&mut self, length: usize) {
        let chunk_bytes = self.umem.chunk_bytes();
        let mut put = |length, options| {
            let address = self.free.pop().expect("the room that was given out");
            // The ring has a place for every chunk.
            let is_put = self.transmit.push(XdpDesc {
                addr: address,
                len: length as u32,
                options,
            });
            assert!(is_put, "there are as many places as frames of ours");
            address
        };
        let Some(pieces) = &self.pieces else {
            assert!(length <= chunk_bytes, "a frame that had room");
            put(length, XdpDescOptions::empty());
            return;
        };
        for (part, is_last) in pieces.parts(length, chunk_bytes) {
            let options = match is_last {
                true => XdpDescOptions::empty(),
                false => XdpDescOptions::XDP_PKT_CONTD,
            };
            let address = put(part.len(), options);
            // SAFETY: this chunk was among those that are ours, and the kernel looks at it after
            // the next flush.
            let chunk = unsafe { self.umem.slice_mut(address, part.len()) };
            chunk.copy_from_slice(part);
        }
    }

    /// Lets the kernel send the published frames. False when it has not taken all, and takes the
    /// rest at the next call only, or when the socket is polled. With zero copy the driver takes
    /// the rest by itself.
    pub fn flush(&mut self) -> bool {
        self.transmit.publish();
        let mut waiting = self.transmit.waiting();
        while waiting > 0 && self.transmit.needs_wake_up() {
            let before = waiting;
            self.kick();
            waiting = self.transmit.waiting();
            // In copy mode each call copies a batch, and returns EAGAIN until all is sent. If the
            // interface no longer has this transmit queue, the call does nothing and returns
            // success (`xsk_generic_xmit`).
            let is_stuck = waiting == before;
            if is_stuck || self.is_zero_copy {
                break;
            }
        }
        waiting == 0 || self.is_zero_copy
    }

    /// Whether the interface reads and writes our memory itself.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// The program that steers frames to this socket.
    #[must_use]
    pub fn steering(&self) -> &Arc<XdpSteering> {
        &self.steering
    }

    /// Frames lost so far.
    ///
    /// # Errors
    /// The error of getsockopt(2).
    pub fn statistics(&self) -> io::Result<XdpStatistics> {
        let counted = sockopt::xdp_statistics(&self.socket)?;
        // Linux before 5.9 does not count these two.
        let no_memory = counted.rx_fill_ring_empty_descs.unwrap_or(0);
        let ring_full = counted.rx_ring_full.unwrap_or(0);
        // In copy mode the kernel counts a frame without memory twice: also among the frames
        // dropped for other reasons (`net/xdp/xsk.c`, `__xsk_rcv`).
        let among_others = if self.is_zero_copy { 0 } else { no_memory };
        Ok(XdpStatistics {
            no_memory,
            ring_full,
            dropped: counted.rx_dropped.saturating_sub(among_others),
            invalid: counted.tx_invalid_descs + counted.rx_invalid_descs,
        })
    }

    /// Frames lost since the last call, for any reason.
    pub fn take_lost(&mut self) -> u64 {
        let now = self.statistics().map_or(self.lost_before, |counts| {
            counts.no_memory + counts.ring_full + counts.dropped
        });
        now - std::mem::replace(&mut self.lost_before, now)
    }

    /// The largest MTU for which this socket has room.
    #[must_use]
    pub const fn mtu_max(&self) -> u16 {
        if self.pieces.is_some() {
            return MTU_IN_PIECES_MAX as u16;
        }
        (self.umem.chunk_bytes() as u32 - PACKET_HEADROOM - ETHERNET_AND_VLAN_BYTES) as u16
    }

    /// Gives all released chunks back to the kernel.
    fn refill(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        for address in self.seen.drain(..) {
            let is_put = self.fill.push(address);
            debug_assert!(is_put, "there are as many places as frames that may come");
        }
        self.fill.publish();
        if self.fill.needs_wake_up() {
            // A driver that found no memory waits for a call. This call receives nothing.
            let _ = recv(&self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Takes back the chunks of sent frames.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.pop() {
            self.free.push(address);
        }
    }

    /// Makes the kernel look at the transmit ring. The caller reads the ring afterwards, which says
    /// more than the call's result.
    fn kick(&self) {
        let _ = send(&self.socket, &[], SendFlags::DONTWAIT);
    }
}

impl AsFd for XdpSocket {
    /// For `poll`: readable when a frame has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The smallest chunk that holds a frame with the kernel's headroom. The kernel accepts chunks of
/// 2,048 and 4,096 bytes.
const fn chunk_bytes(mtu: u32) -> usize {
    let needed = PACKET_HEADROOM + mtu + ETHERNET_AND_VLAN_BYTES;
    if needed <= 2048 { 2048 } else { 4096 }
}

/// Enlarges the socket's send buffer, so that only the rings limit the frames on their way. Without
/// the capability the buffer keeps its size, and fewer frames are sent at once.
fn enlarge_send_buffer(socket: &OwnedFd, bytes: usize) {
    // The kernel counts each frame with its own overhead.
    let bytes = (2 * bytes).min(i32::MAX as usize);
    let _ = sockopt::set_socket_send_buffer_size_force(socket, bytes);
}

fn bind(socket: &OwnedFd, queue: u32, steering: &XdpSteering) -> io::Result<()> {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    let in_pieces = steering.in_pieces();
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, in_pieces);
    let bind = |copy| {
        let address = SocketAddrXdp::new(flags | copy, steering.interface().index, queue);
        rustix::net::bind(socket, &address)
    };
    let copied = SocketAddrXdpFlags::XDP_COPY;
    let bound = match steering.mode() {
        // Zero copy if the driver supports it; for frames in pieces, if the driver supports that,
        // too.
        XdpMode::Native => match bind(SocketAddrXdpFlags::empty()) {
            Err(Errno::OPNOTSUPP) if in_pieces => bind(copied),
            bound => bound,
        },
        XdpMode::Generic => bind(copied),
    };
    Ok(bound?)
}

fn is_zero_copy(socket: &OwnedFd) -> io::Result<bool> {
    let options = sockopt::xdp_options(socket)?;
    Ok(options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

/// XDP_PACKET_HEADROOM.
const PACKET_HEADROOM: u32 = 256;
const ETHERNET_AND_VLAN_BYTES: u32 = 18;
/// The number of chunks that are given back to the kernel together.
const REFILL_FRAMES: usize = 64;
