//! A TAP device: Ethernet frames to and from this machine's kernel (`linux/if_tun.h`), each behind
//! a [`VnetHeader`], so that segmentation and checksum offload work in both directions.
//!
//! One [`Tap`] is one queue of a device. Several queues of one device are several [`Tap`]s opened
//! with the same name; the kernel hashes flows over them.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::interface::request;
use crate::sys::owned;
use crate::vnet::VnetHeader;

const DEVICE: &CStr = c"/dev/net/tun";
/// `linux/if_tun.h`: what we are willing to receive unfinished.
const TUN_F_CSUM: libc::c_uint = 1;
const TUN_F_TSO4: libc::c_uint = 2;
const TUN_F_TSO6: libc::c_uint = 4;
const TUN_F_TSO_ECN: libc::c_uint = 8;
const IFF_PERSIST: libc::c_int = 0x0800;
/// Pieces of one frame besides its metadata: headers, and a payload that begins in one ring and
/// ends in another, wrapping around the ends of both.
pub const PARTS_MAX: usize = 5;

/// How a queue is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TapOptions {
    /// The device has several queues.
    pub multi_queue: bool,
    /// The kernel may hand over segments without checksum.
    pub receive_checksum: bool,
    /// The kernel may hand over segments larger than the MTU (LRO). Needs `receive_checksum`.
    pub receive_large: bool,
}

/// Why a TAP device cannot be had.
#[derive(Debug)]
pub enum TapError {
    /// `/dev/net/tun` cannot be opened.
    Device(io::Error),
    /// The name is empty, too long, or has a zero byte.
    Name,
    /// The kernel refuses the device: usually CAP_NET_ADMIN is missing, or somebody else has it.
    Attach(io::Error),
    /// The device of this name exists, and was made for several queues (`true`) where one was asked
    /// for, or the other way round; or it is no TAP device.
    Queues(String, bool),
    /// The kernel does not offer what the options ask for.
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
                "the device {name} was made for one queue, or is no TAP device; for several \
                threads make it with multi_queue: \
                 ip tuntap add dev {name} mode tap vnet_hdr multi_queue user YOU"
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
    /// Attaches to the device `name`, which is made if it does not exist, and then vanishes with
    /// its last queue.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn open(name: &str, options: TapOptions) -> Result<Self, TapError> {
        let mut request = request(name).map_err(|_| TapError::Name)?;
        let queues = if options.multi_queue {
            libc::IFF_MULTI_QUEUE
        } else {
            0
        };
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        let file = open_device().map_err(TapError::Device)?;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives until the call returns.
        let attached = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
        if attached < 0 {
            let error = io::Error::last_os_error();
            // `tun_set_iff` compares IFF_MULTI_QUEUE with what the device was made with.
            return Err(match error.raw_os_error() {
                Some(libc::EINVAL) => TapError::Queues(name.to_owned(), !options.multi_queue),
                _ => TapError::Attach(error),
            });
        }
        let mut offload = if options.receive_checksum {
            TUN_F_CSUM
        } else {
            0
        };
        if options.receive_large {
            offload |= TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        }
        let argument = libc::c_ulong::from(offload);
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        let offloaded = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, argument) };
        if offloaded < 0 {
            return Err(TapError::Offload(io::Error::last_os_error()));
        }
        Ok(Self { file })
    }

    /// True when the device stays when nobody has it open: then somebody made it, and its settings
    /// are theirs.
    ///
    /// # Errors
    /// Whatever `ioctl` says.
    pub fn is_persistent(&self) -> io::Result<bool> {
        // SAFETY: `ifreq` is a C structure of integers and unions of them: zeros are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: TUNGETIFF writes one `ifreq`, which lives until the call returns.
        let told = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNGETIFF, &mut request) };
        if told < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call, which succeeded, filled in the name and the flags.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        Ok(flags & IFF_PERSIST as libc::c_short != 0)
    }

    /// Takes a frame from the kernel into `frame`. `None` when there is none.
    ///
    /// # Errors
    /// Whatever `readv` says, for one when the device is down.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<Option<(usize, VnetHeader)>> {
        // SAFETY: exclusively borrowed, and as long as it says.
        unsafe { self.receive_raw(&[(frame.as_mut_ptr(), frame.len())]) }
    }

    /// As [`Tap::receive`], with the metadata at the beginning of `buffer` and the frame behind it:
    /// in one piece the kernel hands it over fastest. The length is the frame's.
    ///
    /// # Errors
    /// As for [`Tap::receive`].
    pub fn receive_behind_header(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, VnetHeader)>> {
        let (base, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: `buffer` is writable for its length.
        let count = unsafe { libc::read(self.file.as_raw_fd(), base.cast(), len) };
        let length = frame_length(count)?;
        let header = || VnetHeader::from_bytes(*buffer.first_chunk().expect("what was read"));
        Ok(length.map(|length| (length, header())))
    }

    /// As [`Tap::receive`], into several pieces one after the other (at most [`PARTS_MAX`]), which
    /// somebody else may be reading.
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
        assert!(parts.len() <= PARTS_MAX, "a frame of {} parts", parts.len());
        let mut header = [0u8; VnetHeader::BYTES];
        let vector = |(base, len): (*mut u8, usize)| libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        };
        let mut vectors = [vector((header.as_mut_ptr(), header.len())); PARTS_MAX + 1];
        for (target, part) in vectors[1..].iter_mut().zip(parts) {
            *target = vector(*part);
        }
        let count = parts.len() as libc::c_int + 1;
        // SAFETY: `header` is writable for its length; of the others the caller promises it.
        let count = unsafe { libc::readv(self.file.as_raw_fd(), vectors.as_ptr(), count) };
        let length = frame_length(count)?;
        Ok(length.map(|length| (length, VnetHeader::from_bytes(header))))
    }

    /// Gives the kernel a frame that is the concatenation of `parts` (at most [`PARTS_MAX`]). False
    /// when the device takes none at the moment.
    ///
    /// # Errors
    /// Whatever `writev` says.
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

    /// As [`Tap::send`], of a frame that stands in `buffer` behind [`VnetHeader::BYTES`] of room
    /// for `header`: in one piece the kernel takes it fastest.
    ///
    /// # Errors
    /// As for [`Tap::send`].
    ///
    /// # Panics
    /// When there is no such room.
    pub fn send_behind_header(&self, header: VnetHeader, buffer: &mut [u8]) -> io::Result<bool> {
        buffer[..VnetHeader::BYTES].copy_from_slice(&header.to_bytes());
        let (base, len) = (buffer.as_ptr(), buffer.len());
        // SAFETY: `buffer` is readable for its length.
        is_taken(unsafe { libc::write(self.file.as_raw_fd(), base.cast(), len) })
    }

    /// As [`Tap::send`], of memory that somebody else may be writing to: the kernel reads whatever
    /// stands there.
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
        assert!(parts.len() <= PARTS_MAX, "a frame of {} parts", parts.len());
        let header = header.to_bytes();
        let vector = |(base, len): (*const u8, usize)| libc::iovec {
            iov_base: base.cast_mut().cast(),
            iov_len: len,
        };
        let mut vectors = [vector((header.as_ptr(), header.len())); PARTS_MAX + 1];
        for (target, part) in vectors[1..].iter_mut().zip(parts) {
            *target = vector(*part);
        }
        let count = parts.len() as libc::c_int + 1;
        // SAFETY: `writev` only reads; the caller's promise.
        is_taken(unsafe { libc::writev(self.file.as_raw_fd(), vectors.as_ptr(), count) })
    }
}

impl AsFd for Tap {
    /// For `poll`: readable when a frame waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What a read says: a frame's length without its metadata, or that there is none.
pub(crate) fn frame_length(count: isize) -> io::Result<Option<usize>> {
    match usize::try_from(count) {
        Ok(count) => {
            let length = count.checked_sub(VnetHeader::BYTES);
            length.ok_or(io::ErrorKind::UnexpectedEof.into()).map(Some)
        }
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            error => Err(error),
        },
    }
}

/// What a write says.
pub(crate) fn is_taken(written: isize) -> io::Result<bool> {
    if written >= 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

fn open_device() -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    owned(unsafe { libc::open(DEVICE.as_ptr(), flags) })
}
