//! A TAP device: Ethernet frames to and from this machine's kernel (`linux/if_tun.h`), each behind
//! a [`VnetHeader`], so that segmentation and checksum offload work in both directions.
//!
//! One [`Tap`] is one queue of a device. For several queues of one device, open several [`Tap`]s
//! with its name; the kernel distributes the flows over the queues by a hash.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

use crate::interface::Interfaces;
use crate::sys::{InterfaceRequest, PARTS_MAX, Request, read_frame, set_tap_offload, write_frame};
use crate::vnet::VnetHeader;

const DEVICE: &str = "/dev/net/tun";
/// `linux/if_tun.h`: the work that the kernel may leave undone on the frames that we receive.
const TUN_F_CSUM: libc::c_uint = 1;
const TUN_F_TSO4: libc::c_uint = 2;
const TUN_F_TSO6: libc::c_uint = 4;
const TUN_F_TSO_ECN: libc::c_uint = 8;
const IFF_PERSIST: libc::c_int = 0x0800;

/// The options of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TapOptions {
    /// The device has several queues.
    pub multi_queue: bool,
    /// The kernel may hand over segments without checksum.
    pub receive_checksum: bool,
    /// The kernel may hand over segments larger than the MTU (LRO). Needs `receive_checksum`.
    pub receive_large: bool,
}

/// The reason why a TAP device cannot be opened.
#[derive(Debug)]
pub enum TapError {
    /// `/dev/net/tun` cannot be opened.
    Device(io::Error),
    /// The name is empty, too long, or has a zero byte.
    Name,
    /// The kernel refuses the device: usually CAP_NET_ADMIN is missing, or another process uses the
    /// device.
    Attach(io::Error),
    /// The device of this name exists with a different option: it was made for several queues
    /// (`true`), but one was requested; or for one (`false`), but several were requested.
    Queues(String, bool),
    /// The interface of this name is no TAP device.
    Other(String),
    /// The kernel does not offer the offloads of the options.
    Offload(io::Error),
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => {
                write!(
                    f,
                    "cannot open /dev/net/tun ({error}); is the tun module loaded?"
                )
            }
            Self::Name => f.write_str("a device name has 1 to 15 bytes, none of them zero"),
            Self::Attach(error) => write!(
                f,
                "cannot attach to the TAP device ({error}); this needs CAP_NET_ADMIN \
                 (setcap cap_net_admin+ep) or a device made for this user (ip tuntap add)"
            ),
            Self::Queues(name, true) => write!(
                f,
                "the device {name} was made for several queues: use several (--threads 2), or \
                make it without multi_queue"
            ),
            Self::Queues(name, false) => write!(
                f,
                "the device {name} was made for one queue; for several threads make it with \
                 multi_queue: ip tuntap add dev {name} mode tap vnet_hdr multi_queue user YOU"
            ),
            Self::Other(name) => write!(
                f,
                "the interface {name} is no TAP device: use packet:{name} or xdp:{name}, or a \
                 name that is free"
            ),
            Self::Offload(error) => write!(f, "the TAP device refuses offloads ({error})"),
        }
    }
}

impl std::error::Error for TapError {}

/// One queue of a TAP device, non-blocking.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
}

impl Tap {
    /// Attaches to the device `name`. If the device does not exist, it is made, and vanishes with
    /// its last queue.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn open(name: &str, options: TapOptions) -> Result<Self, TapError> {
        let mut request = InterfaceRequest::new(name).map_err(|_| TapError::Name)?;
        let queues = if options.multi_queue {
            libc::IFF_MULTI_QUEUE
        } else {
            0
        };
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues;
        request.set_value((flags as libc::c_short).to_ne_bytes());
        let file = open_device().map_err(TapError::Device)?;
        request
            .ask(&file, Request::TunAttach)
            // `tun_set_iff` compares IFF_MULTI_QUEUE with the flag that the device was made with.
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EINVAL) if !is_tap(name) => TapError::Other(name.to_owned()),
                Some(libc::EINVAL) => TapError::Queues(name.to_owned(), !options.multi_queue),
                _ => TapError::Attach(error),
            })?;
        let tap = Self { file };
        let (checksum, large) = (options.receive_checksum, options.receive_large);
        tap.set_offload(checksum, large)
            .map_err(TapError::Offload)?;
        Ok(tap)
    }

    /// Sets which work the kernel may leave to the reader of frames: checksums, and the cutting of
    /// large segments. Large segments come without checksums.
    ///
    /// # Errors
    /// The error of ioctl(2).
    pub fn set_offload(&self, receive_checksum: bool, receive_large: bool) -> io::Result<()> {
        let mut offload = if receive_checksum { TUN_F_CSUM } else { 0 };
        if receive_large {
            offload |= TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        }
        set_tap_offload(&self.file, offload)
    }

    /// True when the device persists after the last process has closed it. Such a device was made
    /// by an administrator, who also decides its settings.
    ///
    /// # Errors
    /// The error of ioctl(2).
    pub fn is_persistent(&self) -> io::Result<bool> {
        let mut request = InterfaceRequest::unnamed();
        request.ask(&self.file, Request::TunFlags)?;
        let flags = libc::c_short::from_ne_bytes(request.value());
        Ok(flags & IFF_PERSIST as libc::c_short != 0)
    }

    /// False when the device was deleted. This queue then belongs to no device, even if a device of
    /// the same name is made later.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.is_persistent().is_ok()
    }

    /// Takes a frame from the kernel into `frame`. `None` when no frame waits.
    ///
    /// # Errors
    /// The error of readv(2), for example when the device is down.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<Option<(usize, VnetHeader)>> {
        // SAFETY: exclusively borrowed, and as long as it says.
        unsafe { self.receive_raw(&[(frame.as_mut_ptr(), frame.len())]) }
    }

    /// As [`Tap::receive`], with the metadata at the beginning of `buffer` and the frame behind it:
    /// one buffer is faster than two. Returns the length of the frame without the metadata.
    ///
    /// # Errors
    /// As for [`Tap::receive`].
    pub fn receive_behind_header(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, VnetHeader)>> {
        let Some(count) = unless_blocked(rustix::io::read(&self.file, &mut *buffer))? else {
            return Ok(None);
        };
        let length = frame_length(count)?;
        let header = *buffer.first_chunk().expect("it was just read");
        Ok(Some((length, VnetHeader::from_bytes(header))))
    }

    /// As [`Tap::receive`], into several pieces one after the other (at most [`PARTS_MAX`]).
    /// Another process may be reading this memory.
    ///
    /// # Errors
    /// As for [`Tap::receive`].
    ///
    /// # Panics
    /// When there are more parts.
    ///
    /// # Safety
    /// Each part names writable memory of its length that no reference covers.
    pub unsafe fn receive_raw(
        &self,
        parts: &[(*mut u8, usize)],
    ) -> io::Result<Option<(usize, VnetHeader)>> {
        // SAFETY: the caller's promise.
        match unless_blocked(unsafe { read_frame(&self.file, parts) })? {
            Some((count, header)) => Ok(Some((frame_length(count)?, header))),
            None => Ok(None),
        }
    }

    /// Gives the kernel a frame: the concatenation of `parts` (at most [`PARTS_MAX`]). False when
    /// the device takes no frame at the moment.
    ///
    /// # Errors
    /// The error of writev(2).
    ///
    /// # Panics
    /// When there are more parts.
    pub fn send(&self, header: VnetHeader, parts: &[&[u8]]) -> io::Result<bool> {
        assert!(parts.len() <= PARTS_MAX, "a frame of {} parts", parts.len());
        let mut raw = [(std::ptr::null(), 0); PARTS_MAX];
        for (target, part) in raw.iter_mut().zip(parts) {
            *target = (part.as_ptr(), part.len());
        }
        // SAFETY: all parts are borrowed and as long as they say.
        unsafe { self.send_raw(header, &raw[..parts.len()]) }
    }

    /// As [`Tap::send`]. The frame is in `buffer`, behind [`VnetHeader::BYTES`] of room for
    /// `header`: one buffer is faster than two.
    ///
    /// # Errors
    /// As for [`Tap::send`].
    ///
    /// # Panics
    /// When there is no such room.
    pub fn send_behind_header(&self, header: VnetHeader, buffer: &mut [u8]) -> io::Result<bool> {
        buffer[..VnetHeader::BYTES].copy_from_slice(&header.to_bytes());
        Ok(unless_blocked(rustix::io::write(&self.file, buffer))?.is_some())
    }

    /// As [`Tap::send`], from memory that another process may be writing to at the same time.
    ///
    /// # Errors
    /// As for [`Tap::send`].
    ///
    /// # Panics
    /// As [`Tap::send`].
    ///
    /// # Safety
    /// Each part names readable memory of its length.
    pub unsafe fn send_raw(
        &self,
        header: VnetHeader,
        parts: &[(*const u8, usize)],
    ) -> io::Result<bool> {
        // SAFETY: the caller's promise.
        let written = unless_blocked(unsafe { write_frame(&self.file, header, parts) })?;
        Ok(written.is_some())
    }
}

impl AsFd for Tap {
    /// For `poll`: readable when a frame waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The length of a frame; `count` is the number of bytes read, metadata included.
pub(crate) fn frame_length(count: usize) -> io::Result<usize> {
    let length = count.checked_sub(VnetHeader::BYTES);
    length.ok_or(io::ErrorKind::UnexpectedEof.into())
}

/// The result of a call on a non-blocking descriptor; `None` when the call would have blocked.
pub(crate) fn unless_blocked<T, E: Into<io::Error>>(result: Result<T, E>) -> io::Result<Option<T>> {
    match result.map_err(E::into) {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the interface of this name is the tun driver's.
fn is_tap(name: &str) -> bool {
    let driver = Interfaces::here().and_then(|interfaces| interfaces.driver(name));
    driver.is_ok_and(|driver| driver == b"tun")
}

fn open_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(open(DEVICE, flags, Mode::empty())?)
}
