//! One message and its descriptors, over a `SOCK_SEQPACKET` socket, in one system call each way.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
pub use toehold_channel::rendezvous::DESCRIPTORS_MAX;
use toehold_channel::rendezvous::{Kind, MESSAGE_BYTES, Message, MessageError};

/// The result of a receive.
#[derive(Debug)]
pub enum Received {
    /// A message and its descriptors.
    Message(Message, Kind, Vec<OwnedFd>),
    /// A message whose descriptors the kernel did not deliver, because there were too many or our
    /// limit is reached.
    Stripped(Message, Kind),
    /// Not a valid message. Its descriptors are already closed.
    Nonsense(MessageError),
    /// The other end has closed.
    Closed,
}

/// Receives one message. Blocks only when the socket does.
///
/// # Errors
/// The errors of `recvmsg`; `WouldBlock` when there is nothing.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Received> {
    receive_with(socket, 0).map(|heard| heard.received)
}

/// The sender of a message, as the kernel reports it (`SCM_CREDENTIALS`, unix(7)). If the socket
/// did not ask for senders ([`ask_for_senders`]), the process is 0 and the user is the overflow
/// user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its process number in our pid namespace; 0 if the process is not visible there.
    pub pid: u32,
    /// Its real user.
    pub uid: u32,
}

/// A received message, with its sender and descriptors.
#[derive(Debug)]
pub struct Heard {
    /// The message.
    pub received: Received,
    /// Its sender, if the kernel says so.
    pub sender: Option<Sender>,
    /// Descriptors of a stripped or invalid message.
    pub leftover: Vec<OwnedFd>,
}

/// Makes the kernel add the sender to each message. Either end of a socket may ask for this.
/// Messages that were sent before do not have it.
///
/// # Errors
/// The errors of `setsockopt`.
pub fn ask_for_senders(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `on` is valid for its length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Receives one message, if there is one. Never blocks, even if another process that shares the
/// socket has cleared `O_NONBLOCK`.
///
/// # Errors
/// The errors of `recvmsg`; `WouldBlock` when there is nothing.
pub fn try_receive(socket: BorrowedFd<'_>) -> io::Result<Received> {
    try_receive_from(socket).map(|heard| heard.received)
}

/// As [`try_receive`], with the sender.
///
/// # Errors
/// The errors of `recvmsg`; `WouldBlock` when there is nothing.
pub fn try_receive_from(socket: BorrowedFd<'_>) -> io::Result<Heard> {
    receive_with(socket, libc::MSG_DONTWAIT)
}

fn receive_with(socket: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<Heard> {
    // One byte more than a message, so that longer messages are recognised.
    let mut bytes = [0u8; MESSAGE_BYTES + 1];
    let mut control = Control::new();
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut header = control.header(&mut part);
    // SAFETY: `header` points to buffers that outlive the call, with their true lengths.
    let length = unsafe {
        let flags = flags | libc::MSG_CMSG_CLOEXEC;
        libc::recvmsg(socket.as_raw_fd(), &mut header, flags)
    };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `recvmsg` filled `header` and its control buffer, and nobody has taken the
    // descriptors yet.
    let (descriptors, sender) = unsafe { take_control(&header) };
    let is_cut = header.msg_flags & libc::MSG_TRUNC != 0;
    let is_stripped = header.msg_flags & libc::MSG_CTRUNC != 0;
    let (received, leftover) = match Message::parse(&bytes[..length as usize]) {
        _ if length == 0 && descriptors.is_empty() => (Received::Closed, descriptors),
        _ if is_cut => (Received::Nonsense(MessageError::Foreign), descriptors),
        Ok((message, kind)) if is_stripped => (Received::Stripped(message, kind), descriptors),
        Ok((message, kind)) => (Received::Message(message, kind, descriptors), Vec::new()),
        Err(error) => (Received::Nonsense(error), descriptors),
    };
    Ok(Heard {
        received,
        sender,
        leftover,
    })
}

/// Sends one message. Blocks only when the socket does; never raises `SIGPIPE`.
///
/// # Errors
/// The errors of `sendmsg`; `WouldBlock` when the socket is full.
///
/// # Panics
/// With more than [`DESCRIPTORS_MAX`] descriptors.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, descriptors, 0)
}

/// Sends one message, if the socket takes it. Never blocks, like [`try_receive`]; never raises
/// `SIGPIPE`.
///
/// # Errors
/// The errors of `sendmsg`; `WouldBlock` when the socket is full.
///
/// # Panics
/// With more than [`DESCRIPTORS_MAX`] descriptors.
pub fn try_send(
    socket: BorrowedFd<'_>,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, descriptors, libc::MSG_DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<()> {
    assert!(descriptors.len() <= DESCRIPTORS_MAX, "too many descriptors");
    let bytes = message.as_bytes();
    let mut control = Control::new();
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut header = control.header(&mut part);
    if descriptors.is_empty() {
        header.msg_control = std::ptr::null_mut();
        header.msg_controllen = 0;
    } else {
        let payload = (descriptors.len() * size_of::<RawFd>()) as u32;
        // SAFETY: plain arithmetic.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as _;
        // SAFETY: the control buffer has room for one header and `DESCRIPTORS_MAX` descriptors.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(payload) as _;
            let numbers = raw_numbers(descriptors);
            let target = libc::CMSG_DATA(first).cast::<RawFd>();
            target.copy_from_nonoverlapping(numbers.as_ptr(), descriptors.len());
        }
    }
    // SAFETY: `header` points to buffers that outlive the call, with their true lengths.
    let sent = unsafe {
        let flags = flags | libc::MSG_NOSIGNAL;
        libc::sendmsg(socket.as_raw_fd(), &header, flags)
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Room for the control data of [`DESCRIPTORS_MAX`] descriptors and of a sender, aligned as the
/// kernel wants it. The kernel closes descriptors that do not fit.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

impl Control {
    fn new() -> Control {
        Control([MaybeUninit::zeroed(); CONTROL_BYTES])
    }

    fn header(&mut self, part: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: `msghdr` is plain data, for which zeroes are a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = part;
        header.msg_iovlen = 1;
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = self.0.len() as _;
        header
    }
}

/// # Safety
/// `header` was filled by `recvmsg`, its control buffer is still there, and this is called once for
/// it.
unsafe fn take_control(header: &libc::msghdr) -> (Vec<OwnedFd>, Option<Sender>) {
    let (mut taken, mut sender) = (Vec::new(), None);
    // SAFETY: the kernel wrote well-formed headers into the buffer that `header` names.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: `next` is one of those headers.
        let (level, kind, length) =
            unsafe { ((*next).cmsg_level, (*next).cmsg_type, (*next).cmsg_len) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: plain arithmetic.
            let payload = length - unsafe { libc::CMSG_LEN(0) } as usize;
            for index in 0..payload / size_of::<RawFd>() {
                // SAFETY: within the payload; the kernel made each descriptor for us, and nobody
                // else has it.
                taken.push(unsafe {
                    let number = libc::CMSG_DATA(next).cast::<RawFd>().add(index);
                    OwnedFd::from_raw_fd(number.read_unaligned())
                });
            }
        }
        if level == libc::SOL_SOCKET && kind == SCM_PIDFD {
            // The socket's other owner has asked for it, and nobody here wants it.
            // SAFETY: the kernel wrote a descriptor behind that header, and nobody else has it.
            drop(unsafe {
                let number = libc::CMSG_DATA(next).cast::<RawFd>();
                OwnedFd::from_raw_fd(number.read_unaligned())
            });
        }
        if level == libc::SOL_SOCKET && kind == libc::SCM_CREDENTIALS {
            // SAFETY: the kernel wrote a `ucred` behind that header.
            let said = unsafe { libc::CMSG_DATA(next).cast::<libc::ucred>().read_unaligned() };
            sender = Some(Sender {
                pid: said.pid as u32,
                uid: said.uid,
            });
        }
        // SAFETY: as for the first.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    (taken, sender)
}

fn raw_numbers(descriptors: &[BorrowedFd<'_>]) -> [RawFd; DESCRIPTORS_MAX] {
    let mut numbers = [-1; DESCRIPTORS_MAX];
    for (number, descriptor) in numbers.iter_mut().zip(descriptors) {
        *number = descriptor.as_raw_fd();
    }
    numbers
}

/// A descriptor of the sending process, for a socket with `SO_PASSPIDFD` (Linux 6.5,
/// include/linux/socket.h). A client has made the socket that it sends to be adopted, and sets its
/// options at any time.
const SCM_PIDFD: libc::c_int = 4;

// SAFETY: plain arithmetic.
const CONTROL_BYTES: usize = unsafe {
    libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<RawFd>()) as u32)
        + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
} as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::check;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    /// include/uapi/asm-generic/socket.h.
    const SO_PASSPIDFD: libc::c_int = 76;

    /// A child that sends a message and then sleeps.
    fn sender(socket: &OwnedFd) -> libc::pid_t {
        // SAFETY: the child makes system calls only, and does not return.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0, "fork");
            if child == 0 {
                let _ = send(socket.as_fd(), &Message::new(Kind::Ping), &[]);
                libc::pause();
                libc::_exit(0);
            }
            child
        }
    }

    /// The number of our descriptors that stand for a process.
    fn descriptors_of(pid: libc::pid_t) -> usize {
        let own = std::fs::read_dir("/proc/self/fdinfo").expect("own descriptors");
        let texts = own.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
        let line = format!("Pid:\t{pid}");
        texts
            .filter(|text| text.lines().any(|it| it == line))
            .count()
    }

    #[test]
    fn a_process_descriptor_beside_a_message_is_not_kept() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, its) = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("sockets");
        ask_for_senders(ours.as_fd()).expect("a socket");
        let on: libc::c_int = 1;
        // SAFETY: `on` is valid for its length.
        let set = check(unsafe {
            libc::setsockopt(
                ours.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PASSPIDFD,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        });
        if set.is_err() {
            eprintln!("SKIPPED: no descriptors of processes beside messages before Linux 6.5");
            return;
        }
        let child = sender(&its);
        let heard = receive_with(ours.as_fd(), 0);
        let kept = descriptors_of(child);
        // SAFETY: our child, not reaped yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        let heard = heard.expect("a message");
        assert_eq!(heard.sender.map(|sender| sender.pid), Some(child as u32));
        assert!(
            matches!(&heard.received, Received::Message(_, Kind::Ping, shown) if shown.is_empty()),
            "{heard:?}"
        );
        assert_eq!(kept, 0);
    }
}
