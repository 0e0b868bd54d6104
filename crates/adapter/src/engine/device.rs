//! The kinds of link behind one interface.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

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

    /// Sends frames that were only queued so far. False when the link has to be asked again to
    /// take some of them ([`Unsent`]).
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        match self {
            Device::Xdp(socket) => socket.flush(),
            _ => true,
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

/// When the link is asked again to take frames that it did not take. There may be no other frames
/// that would take them along, and no other event: without another call they would wait for the
/// retransmission timeout.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unsent {
    due: Option<Instant>,
    pause: Duration,
}

impl Unsent {
    /// The pause before the link is asked again, and the longest one: it doubles while the link
    /// takes nothing, for example because its interface is down.
    const PAUSE_FIRST: Duration = Duration::from_millis(1);
    const PAUSE_LAST: Duration = Duration::from_millis(256);

    /// Notes whether the link has taken all frames.
    #[inline]
    pub(super) fn note(&mut self, is_all_sent: bool, now: impl FnOnce() -> Instant) {
        if is_all_sent {
            self.due = None;
        } else {
            self.postpone(now());
        }
    }

    #[cold]
    fn postpone(&mut self, now: Instant) {
        self.pause = match self.due {
            None => Self::PAUSE_FIRST,
            Some(due) if due <= now => (2 * self.pause).min(Self::PAUSE_LAST),
            Some(_) => return,
        };
        self.due = Some(now + self.pause);
    }

    /// When to flush at the latest.
    pub(super) fn due(self) -> Option<Instant> {
        self.due
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_asked_again_until_it_has_taken_all_and_seldom_if_it_takes_nothing() {
        let began = Instant::now();
        let mut unsent = Unsent::default();
        unsent.note(true, || unreachable!("nothing is due"));
        assert_eq!(unsent.due(), None);
        let (mut now, mut asked) = (began, 0);
        unsent.note(false, || now);
        while now < began + Duration::from_secs(3) {
            let due = unsent.due().expect("frames are left");
            assert!(due > now && due <= now + Unsent::PAUSE_LAST);
            // Other work in between changes nothing.
            unsent.note(false, || now);
            assert_eq!(unsent.due(), Some(due));
            now = due;
            asked += 1;
            unsent.note(false, || now);
        }
        assert!((10..30).contains(&asked), "{asked}");
        unsent.note(true, || now);
        assert_eq!(unsent.due(), None);
        unsent.note(false, || now);
        assert_eq!(unsent.due(), Some(now + Unsent::PAUSE_FIRST));
    }
}
