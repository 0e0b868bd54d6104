//! Traffic control of the loopback device (tc(8)). An operator may give it a queueing discipline
//! that delays, limits or drops packets, for example to test a slow network. Packets of carriers
//! pass it, but bytes in shared memory do not.
//!
//! The device has no queue by itself (`noqueue`). The kernel announces changes to every listener
//! (`RTNLGRP_TC`, net/sched/sch_api.c); then the adapter asks for the current state.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

use crate::attributes::{MESSAGE_HEADER_BYTES, attribute, messages};

/// Whether the loopback device of the adapter's network namespace is shaped.
#[derive(Debug)]
pub(crate) struct Shaping {
    changes: OwnedFd,
    questions: OwnedFd,
    asked: u32,
    is_shaped: bool,
}

impl Shaping {
    /// Begins to listen, in the adapter's network namespace.
    ///
    /// # Errors
    /// That the kernel gives no such socket.
    pub(crate) fn open() -> io::Result<Shaping> {
        let mut shaping = Shaping {
            changes: route_socket(CHANGES_GROUP)?,
            questions: route_socket(0)?,
            asked: 0,
            is_shaped: false,
        };
        shaping.is_shaped = shaping.look().unwrap_or_default();
        Ok(shaping)
    }

    /// Readable when there are changes.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Takes the changes that have come. True when the device has begun or ceased to be shaped.
    pub(crate) fn learn(&mut self) -> bool {
        let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
        let mut next = || recvfrom(&self.changes, &mut datagram[..], RecvFlags::DONTWAIT);
        // If announcements were lost (ENOBUFS), something has changed, too.
        while let Ok(_) | Err(Errno::NOBUFS | Errno::INTR) = next() {}
        let now = self.look().unwrap_or(self.is_shaped);
        mem::replace(&mut self.is_shaped, now) != now
    }

    /// Whether packets of carriers that stay in this namespace are shaped.
    pub(crate) fn is_shaped(&self) -> bool {
        self.is_shaped
    }

    /// Asks for the queueing disciplines of all devices: the kernel cannot be asked for one
    /// device's. `None` when it gives no whole answer.
    fn look(&mut self) -> Option<bool> {
        self.asked = self.asked.wrapping_add(1);
        let request = question(self.asked);
        let kernel = SocketAddrNetlink::new(KERNEL_PORT, 0);
        sendto(&self.questions, &request, SendFlags::DONTWAIT, &kernel).ok()?;
        let mut is_shaped = false;
        let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
        for _ in 0..DATAGRAMS_MAX {
            let (length, _, sender) =
                recvfrom(&self.questions, &mut datagram[..], RecvFlags::DONTWAIT).ok()?;
            let sender = sender.and_then(|it| SocketAddrNetlink::try_from(it).ok());
            if sender.is_none_or(|sender| sender.pid() != KERNEL_PORT) {
                continue;
            }
            for message in messages(&datagram[..length]) {
                match answer(message, self.asked) {
                    Answer::Discipline(kind) => is_shaped |= kind != b"noqueue\0",
                    Answer::End => return Some(is_shaped),
                    Answer::Refused => return None,
                    Answer::Other => {}
                }
            }
        }
        None
    }
}

fn route_socket(groups: u32) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // `NETLINK_ROUTE` is protocol 0.
    let socket = socket_with(family, kind, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
enum Answer<'a> {
    /// The name of the root queueing discipline of the loopback device.
    Discipline(&'a [u8]),
    Other,
    End,
    Refused,
}

fn question(number: u32) -> [u8; QUESTION_BYTES] {
    let mut request = [0; QUESTION_BYTES];
    request[..4].copy_from_slice(&(QUESTION_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETQDISC.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[8..12].copy_from_slice(&number.to_ne_bytes());
    request
}

fn answer(message: &[u8], number: u32) -> Answer<'_> {
    let word = |at: usize| {
        let bytes = message.get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    if word(8) != Some(number) {
        return Answer::Other;
    }
    let kind = word(4).unwrap_or_default() as u16;
    match i32::from(kind) {
        libc::NLMSG_DONE => return Answer::End,
        libc::NLMSG_ERROR => return Answer::Refused,
        _ => {}
    }
    let attributes = message.get(MESSAGE_HEADER_BYTES + TC_BYTES..);
    match (word(DEVICE_AT), word(PARENT_AT), attributes) {
        (Some(LOOPBACK), Some(ROOT), Some(attributes)) if kind == libc::RTM_NEWQDISC => {
            attribute(attributes, libc::TCA_KIND).map_or(Answer::Other, Answer::Discipline)
        }
        _ => Answer::Other,
    }
}

/// `struct tcmsg` (include/uapi/linux/rtnetlink.h), behind the header of a message.
const TC_BYTES: usize = 20;
/// `tcm_ifindex` and `tcm_parent`, counted from the message's begin.
const DEVICE_AT: usize = MESSAGE_HEADER_BYTES + 4;
const PARENT_AT: usize = MESSAGE_HEADER_BYTES + 12;
/// `TC_H_ROOT`: a discipline with another parent only classifies (`clsact`), or is inside another
/// one.
const ROOT: u32 = u32::MAX;
/// The loopback device's number in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
const QUESTION_BYTES: usize = MESSAGE_HEADER_BYTES + TC_BYTES;
/// `RTNLGRP_TC` as a bit.
const CHANGES_GROUP: u32 = 1 << 3;
const KERNEL_PORT: u32 = 0;
/// The kernel fills datagrams of a list up to this length (netlink_dump).
const DATAGRAM_BYTES_MAX: usize = 32_768;
/// Enough for some ten thousand devices.
const DATAGRAMS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u32, device: u32, parent: u32, name: &[u8]) -> Vec<u8> {
        let mut message = question(number).to_vec();
        message[4..6].copy_from_slice(&libc::RTM_NEWQDISC.to_ne_bytes());
        message[DEVICE_AT..DEVICE_AT + 4].copy_from_slice(&device.to_ne_bytes());
        message[PARENT_AT..PARENT_AT + 4].copy_from_slice(&parent.to_ne_bytes());
        message.extend((4 + name.len() as u16).to_ne_bytes());
        message.extend(libc::TCA_KIND.to_ne_bytes());
        message.extend(name);
        message
    }

    #[test]
    fn discipline_is_that_of_all_that_the_loopback_device_sends() {
        const CLSACT: u32 = 0xffff_fff1;
        let it = message(7, LOOPBACK, ROOT, b"tbf\0");
        assert_eq!(answer(&it, 7), Answer::Discipline(b"tbf\0"));
        assert_eq!(answer(&it, 8), Answer::Other, "another question's");
        for (device, parent) in [(2, ROOT), (LOOPBACK, CLSACT), (LOOPBACK, 0x1_0000)] {
            assert_eq!(
                answer(&message(7, device, parent, b"tbf\0"), 7),
                Answer::Other
            );
        }
        for length in 0..it.len() {
            assert_eq!(answer(&it[..length], 7), Answer::Other, "cut off");
        }
    }

    #[test]
    fn kernel_answers() {
        let mut shaping = Shaping::open().expect("a socket");
        assert!(shaping.look().is_some());
    }
}
