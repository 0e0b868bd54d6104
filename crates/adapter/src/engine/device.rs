//! The kinds of link behind one interface.

use std::os::fd::{AsFd, BorrowedFd};

use toehold_link::{PacketSocket, Tap, VnetHeader, XdpMode, XdpSocket};

use super::endpoint::Part;

/// An opened link.
#[derive(Debug)]
pub(super) enum Device {
    Tap(Tap),
    Packet(PacketSocket),
    Xdp(Box<XdpSocket>),
}

impl Device {
    /// True when the next frame's length is known only after it was read.
    pub(super) fn has_to_guess(&self) -> bool {
        matches!(self, Device::Tap(_))
    }

    /// The link's descriptors. One of them is readable when a frame waits.
    pub(super) fn queues(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (one, several) = match self {
            Device::Tap(tap) => (Some(tap.as_fd()), None),
            Device::Packet(socket) => (None, Some(socket.queues())),
            Device::Xdp(socket) => (Some(socket.as_fd()), None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Clears the error that an interface leaves when it goes down.
    pub(super) fn clear_error(&self) {
        if let Device::Packet(socket) = self {
            socket.clear_error();
        }
    }

    /// The interface is gone for good: the device would report that for ever.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Device::Tap(tap) if !tap.is_attached())
    }

    /// Frames lost since the last call, if the device reports them.
    pub(super) fn take_lost(&mut self) -> u64 {
        match self {
            Device::Tap(_) => 0,
            Device::Packet(socket) => socket.take_lost(),
            Device::Xdp(socket) => socket.take_lost(),
        }
    }

    /// Sends frames that were only queued so far.
    #[inline]
    pub(super) fn flush(&mut self) {
        if let Device::Xdp(socket) = self {
            // Frames that the interface does not take now are sent with the next ones.
            socket.flush();
        }
    }

    /// The largest MTU for which the link has room.
    pub(super) fn mtu_max(&self) -> Option<u16> {
        match self {
            Device::Xdp(socket) => Some(socket.mtu_max()),
            _ => None,
        }
    }

    /// The link's mode, if there are several.
    pub(super) fn mode(&self) -> Option<&'static str> {
        let Device::Xdp(socket) = self else {
            return None;
        };
        Some(match (socket.steering().mode(), socket.is_zero_copy()) {
            (XdpMode::Native, true) => "in the driver, zero copy",
            (XdpMode::Native, false) => "in the driver, copied once",
            (XdpMode::Generic, _) => "after the driver, copied once",
        })
    }
}

/// A device that frames are written to. (AF_XDP frames are made where they are sent from.)
#[derive(Clone, Copy, Debug)]
pub(super) enum Written<'a> {
    Tap(&'a Tap),
    Packet(&'a PacketSocket),
}

impl Written<'_> {
    /// Sends a frame in one piece, behind room for its metadata. True when the device took it.
    pub(super) fn send_behind_header(self, header: VnetHeader, buffer: &mut [u8]) -> bool {
        let sent = match self {
            Written::Tap(tap) => tap.send_behind_header(header, buffer),
            Written::Packet(socket) => socket.send_behind_header(header, buffer),
        };
        sent.unwrap_or(false)
    }

    /// Sends a frame in several pieces. True when the device took it.
    ///
    /// # Safety
    /// Each part names readable memory of its length.
    pub(super) unsafe fn send_raw(self, header: VnetHeader, parts: &[Part]) -> bool {
        // SAFETY: the caller's promise.
        let sent = unsafe {
            match self {
                Written::Tap(tap) => tap.send_raw(header, parts),
                Written::Packet(socket) => socket.send_raw(header, parts),
            }
        };
        sent.unwrap_or(false)
    }
}
