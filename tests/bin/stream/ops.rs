//! One transfer by every call and every way of waiting.

use toehold_e2e::load::Random;

use crate::sys::{self, Fd, Ret};

/// Waits for a descriptor in a way chosen at random each time.
struct Waiter {
    fd: Fd,
    events: i16,
    level: Fd,
    edge: Fd,
}

impl Waiter {
    fn new(fd: Fd, events: i16) -> Waiter {
        let epoll = |flags| {
            let epoll = sys::epoll_create();
            // EPOLLIN and EPOLLOUT are POLLIN and POLLOUT by value, as epoll_ctl(2) has them.
            sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, i32::from(events) | flags, 0).value();
            epoll
        };
        Waiter {
            fd,
            events,
            level: epoll(0),
            edge: epoll(libc::EPOLLET),
        }
    }

    /// Returns when the descriptor may be ready; it need not be.
    fn wait(&self, random: &mut Random) {
        const FOREVER_MS: i32 = 60_000;
        let result = match random.below(5) {
            0 => sys::poll(&[(self.fd, self.events)], FOREVER_MS).0,
            1 => sys::ppoll(&[(self.fd, self.events)], i64::from(FOREVER_MS)).0,
            2 => {
                let fds: &[Fd] = &[self.fd];
                let (read, write) = if self.events == libc::POLLIN {
                    (fds, &[][..])
                } else {
                    (&[][..], fds)
                };
                sys::select(
                    read,
                    write,
                    Some(i64::from(FOREVER_MS)),
                    random.below(2) == 0,
                )
                .result
            }
            3 => sys::epoll_wait(self.level, 1, FOREVER_MS).0,
            // Right after a refusal an edge must come; before a refusal, the edge may have come
            // already.
            _ => sys::epoll_wait(self.edge, 1, FOREVER_MS).0,
        };
        assert!(
            result.is(libc::EINTR) || result.value() > 0,
            "nothing happened for {FOREVER_MS} ms: a lost wake-up"
        );
    }
}

/// The receiving direction.
pub(crate) struct Receiver {
    fd: Fd,
    waiter: Waiter,
}

impl Receiver {
    pub(crate) fn new(fd: Fd) -> Receiver {
        Receiver {
            fd,
            waiter: Waiter::new(fd, libc::POLLIN),
        }
    }

    /// Some bytes, 0 at the end of the stream, or errno.
    pub(crate) fn receive(&mut self, random: &mut Random, bytes: &mut [u8]) -> Result<usize, i32> {
        let call = random.below(9);
        if call < 3 {
            self.waiter.wait_if_empty(random);
        }
        loop {
            let result = self.once(call, bytes);
            match result.0 {
                Ok(_) => return Ok(result.len()),
                Err(libc::EAGAIN) => self.waiter.wait(random),
                Err(libc::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn once(&self, call: u64, bytes: &mut [u8]) -> Ret {
        match call {
            0 => sys::recv(self.fd, bytes, libc::MSG_DONTWAIT),
            1 => sys::read(self.fd, bytes),
            2 => sys::recvmsg(self.fd, bytes, libc::MSG_DONTWAIT).0,
            3 => sys::recv(self.fd, bytes, 0),
            4 => sys::readv(self.fd, bytes),
            5 => sys::recvfrom(self.fd, bytes, 0),
            6 => sys::recv(self.fd, &mut bytes[..1], libc::MSG_WAITALL),
            7 => self.peek_then_read(bytes),
            _ => sys::recvmsg(self.fd, bytes, 0).0,
        }
    }

    /// The bytes of a peek must equal the bytes that are then read.
    fn peek_then_read(&self, bytes: &mut [u8]) -> Ret {
        let peeked = sys::recv(self.fd, bytes, libc::MSG_PEEK);
        if peeked.len() == 0 {
            return peeked;
        }
        let copy = bytes[..peeked.len()].to_vec();
        let read = sys::recv(self.fd, &mut bytes[..peeked.len()], libc::MSG_DONTWAIT);
        assert!(
            read.len() > 0 && bytes[..read.len()] == copy[..read.len()],
            "a peek was untrue"
        );
        read
    }
}

impl Waiter {
    /// Waits without a refusal before: only level-triggered waiting is sure to return.
    fn wait_if_empty(&self, random: &mut Random) {
        if random.below(2) == 0 {
            assert!(
                sys::poll(&[(self.fd, self.events)], 60_000).0.value() > 0,
                "a lost wake-up"
            );
        }
    }
}

/// The sending direction.
pub(crate) struct Sender {
    fd: Fd,
    waiter: Waiter,
}

impl Sender {
    pub(crate) fn new(fd: Fd) -> Sender {
        Sender {
            fd,
            waiter: Waiter::new(fd, libc::POLLOUT),
        }
    }

    /// The number of `bytes` that were sent, or errno.
    pub(crate) fn send(&mut self, random: &mut Random, bytes: &[u8]) -> Result<usize, i32> {
        let call = random.below(7);
        if call == 0 {
            self.waiter.wait_if_empty(random);
        }
        loop {
            let result = self.once(call, bytes);
            match result.0 {
                Ok(_) => return Ok(result.len()),
                Err(libc::EAGAIN) => self.waiter.wait(random),
                Err(libc::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn once(&self, call: u64, bytes: &[u8]) -> Ret {
        match call {
            0 | 1 => sys::send(self.fd, bytes, libc::MSG_DONTWAIT),
            2 => sys::write(self.fd, bytes),
            3 => sys::writev(self.fd, bytes),
            4 => sys::sendmsg(self.fd, bytes, libc::MSG_NOSIGNAL),
            5 => sys::send(self.fd, bytes, libc::MSG_MORE),
            _ => sys::send(self.fd, bytes, 0),
        }
    }
}
