//! Turns that move bytes.

use std::os::fd::AsRawFd;

use super::{Did, Player};
use crate::files::{call_sendfile, splice};
use crate::improvised::draw::{Draw, pick};
use crate::role::Checksum;
use crate::sys::{self, Fd, Ret};
use crate::transfer::{RECEIVERS, SENDERS};

const RECEIVE_FLAGS: &[i32] = &[
    0,
    libc::MSG_PEEK,
    libc::MSG_TRUNC,
    libc::MSG_PEEK | libc::MSG_TRUNC,
    libc::MSG_WAITALL,
    libc::MSG_PEEK | libc::MSG_WAITALL,
];

impl Player {
    /// The next `len` bytes of this role's stream, or fewer if the other role has many unread
    /// bytes.
    pub(in crate::improvised) fn next_bytes(&self, len: usize) -> Vec<u8> {
        self.stream(len.min(self.room()))
    }

    /// The next `len` bytes of this role's stream.
    pub(in crate::improvised) fn stream(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.outgoing.fill(self.sent as u64, &mut bytes);
        bytes
    }

    pub(in crate::improvised) fn send(
        &mut self,
        fd: Fd,
        draw: &Draw,
        did: &mut Did,
    ) -> (String, String) {
        let bytes = self.next_bytes(draw.len);
        let len = bytes.len();
        // The call that sends two messages needs an even length. If the other end is closed, a
        // reset may answer the first part, before or after the second part is sent. So that call is
        // not used then.
        let senders = if len.is_multiple_of(2) && len > 0 && !self.ended {
            8
        } else {
            5
        };
        let (name, sender) = SENDERS[draw.which as usize % senders];
        let (name, result) = match draw.how % 3 {
            0 => ("send DONTWAIT", sys::send(fd, &bytes, libc::MSG_DONTWAIT)),
            _ => (name, sender(fd, &bytes)),
        };
        did.sent = result.len();
        self.sent += did.sent;
        (format!("{name} {len}"), result.to_string())
    }

    pub(super) fn receive(&mut self, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
        let mut bytes = vec![0; draw.len];
        let mut flags = pick(RECEIVE_FLAGS, draw.which);
        let wanted = match flags & libc::MSG_WAITALL {
            0 => self.low_water.min(draw.len).max(1),
            _ => draw.len.max(1),
        };
        let waits = self.waits_for(wanted);
        if waits && draw.which.is_multiple_of(8) {
            return self.receive_in_vain(fd, wanted);
        }
        let nonblocking = draw.how.is_multiple_of(4) || waits;
        let (name, result) = if nonblocking {
            flags |= libc::MSG_DONTWAIT;
            (format!("recv {flags:#x}"), sys::recv(fd, &mut bytes, flags))
        } else if draw.how % 4 == 1 {
            (format!("recv {flags:#x}"), sys::recv(fd, &mut bytes, flags))
        } else {
            flags = 0;
            if bytes.is_empty() {
                bytes.push(0);
            }
            let (name, receiver) = RECEIVERS[(draw.how / 4) as usize % RECEIVERS.len()];
            if waits {
                (
                    name.to_owned(),
                    sys::recv(fd, &mut bytes, libc::MSG_DONTWAIT),
                )
            } else {
                (name.to_owned(), receiver(fd, &mut bytes))
            }
        };
        let taken = result.len().min(self.unread);
        if flags & libc::MSG_PEEK == 0 {
            did.received = taken;
        }
        let seen = if flags & libc::MSG_TRUNC != 0 {
            String::new()
        } else {
            Checksum::of(&bytes[..result.len().min(bytes.len())]).to_string()
        };
        (
            format!("{name} {}", bytes.len()),
            format!("{result} {seen}"),
        )
    }

    /// A receive that waits until its time-out expires.
    fn receive_in_vain(&self, fd: Fd, wanted: usize) -> (String, String) {
        const TIME_US: i64 = 3000;
        let time = |tv_usec| libc::timeval { tv_sec: 0, tv_usec };
        let set = |us| sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time(us)).value();
        set(TIME_US);
        let result = sys::recv(fd, &mut vec![0; wanted], libc::MSG_PEEK | libc::MSG_WAITALL);
        set(0);
        (format!("recv {wanted} in vain"), result.to_string())
    }

    /// Moves bytes inside the kernel: out of a file or a pipe, or into a pipe.
    pub(super) fn splice(&mut self, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
        match draw.which % 4 {
            0 if self.ended => self.send(fd, draw, did),
            0 => self.splice_out(fd, draw, did),
            1 => self.send_file(fd, draw, did),
            // On TCP, only the socket's own flag decides whether splice waits, and splice waits for
            // any byte. On a Unix socket splice waits as a receive does.
            _ if self.waits_for(1) || self.low_water > 1 && self.role.family == libc::AF_UNIX => {
                self.receive(fd, draw, did)
            }
            _ => self.splice_in(fd, draw, did),
        }
    }

    fn splice_out(&mut self, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
        let bytes = self.next_bytes(draw.len);
        let (from, to) = sys::pipe();
        sys::write(to, &bytes).value();
        let result = splice(from, fd, bytes.len(), 0);
        for end in [from, to] {
            sys::close(end).value();
        }
        did.sent = result.len();
        self.sent += did.sent;
        (format!("splice {} out", bytes.len()), result.to_string())
    }

    fn send_file(&mut self, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
        let bytes = self.next_bytes(draw.len);
        let mut file = tempfile::tempfile().expect("the temporary directory is writable");
        std::io::Write::write_all(&mut file, &bytes).expect("there is room");
        let result = call_sendfile(fd, file.as_raw_fd(), Some(&mut 0), bytes.len());
        did.sent = result.len();
        self.sent += did.sent;
        (format!("sendfile {}", bytes.len()), result.to_string())
    }

    /// Splices until all wanted bytes have come, because the kernel may return them in parts of any
    /// size.
    fn splice_in(&mut self, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
        let wanted = draw.len.max(1);
        let (from, to) = sys::pipe();
        let mut all = Vec::new();
        let last = loop {
            let (have, left) = (all.len(), self.unread - all.len());
            let result = match draw.how.is_multiple_of(4) && left > 0 {
                true => call_sendfile(to, fd, None, wanted - have),
                false => splice(fd, to, wanted - have, 0),
            };
            let mut part = vec![0; result.len()];
            sys::read(from, &mut part);
            all.extend(part);
            if result.len() == 0 || all.len() == wanted || all.len() >= self.unread {
                break result;
            }
        };
        for end in [from, to] {
            sys::close(end).value();
        }
        did.received = all.len().min(self.unread);
        let last = match last.len() {
            0 => last,
            _ => Ret(Ok(all.len() as i64)),
        };
        (
            format!("splice {wanted} in"),
            format!("{last} {}", Checksum::of(&all)),
        )
    }
}
