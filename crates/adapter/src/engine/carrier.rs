//! The carrier of one of the engine's connections: the socket, how ready it is, and how many bytes
//! it has moved.
//!
//! epoll reports only changes. So readiness stays valid until a call finds otherwise: the carrier
//! is readable until a read finds nothing, and writable until a write finds no room.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use toehold_channel::doorbell::DOORBELL;
use toehold_stream::next::Carrier as Seen;

use super::sys;

/// The state of the carrier's line. Each state is worse than the one before; a carrier never
/// returns to a better state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    /// Both directions are open.
    Whole,
    /// The program has ended its direction, or both directions have ended.
    HungUp,
    /// As [`Line::HungUp`], and the socket has an error that was not read yet.
    Failed,
}

/// A reset of the carrier by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    Alone,
    /// The program had ended its direction before.
    AfterEnd,
}

#[derive(Debug)]
pub(super) struct Carrier {
    pub(super) socket: TcpStream,
    /// The number under which epoll watches it, for all its connections.
    pub(super) serial: u32,
    /// Bytes sent on it and received from it, including doorbells, the preamble and the urgent
    /// byte.
    pub(super) sent: u64,
    pub(super) got: u64,
    is_readable: bool,
    is_writable: bool,
    /// There was an urgent byte: a read ends there, even if there are bytes behind it.
    has_urgent: bool,
    line: Line,
}

impl Carrier {
    /// A carrier from which `got` bytes were already read.
    pub(super) fn new(socket: TcpStream, serial: u32, got: u64) -> Carrier {
        Carrier {
            socket,
            serial,
            sent: 0,
            got,
            is_readable: false,
            is_writable: false,
            has_urgent: false,
            line: Line::Whole,
        }
    }

    /// Takes an event of the carrier.
    pub(super) fn note(&mut self, bits: u32) {
        let has = |bit: libc::c_int| bits & bit as u32 != 0;
        self.is_readable |= has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        self.is_writable |= has(libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR);
        self.has_urgent |= has(libc::EPOLLPRI);
        if has(libc::EPOLLERR) {
            self.line = Line::Failed;
        } else if has(libc::EPOLLRDHUP | libc::EPOLLHUP) {
            self.line = self.line.max(Line::HungUp);
        }
    }

    /// There may be bytes to read for which no event comes.
    pub(super) fn note_readable(&mut self) {
        self.is_readable = true;
    }

    /// There may be room for which no event comes.
    pub(super) fn note_writable(&mut self) {
        self.is_writable = true;
    }

    /// Checks whether there is room, before an event comes.
    pub(super) fn look_for_room(&mut self) {
        self.is_writable |= sys::is_writable(&self.socket);
    }

    /// A read has returned fewer bytes than requested. So there are no more, unless the read ended
    /// at an urgent byte or before the end of the stream.
    pub(super) fn note_short_read(&mut self) {
        self.is_readable &= self.has_hung_up() || self.has_urgent;
    }

    pub(super) fn is_readable(&self) -> bool {
        self.is_readable
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The program has ended its direction, or the socket has failed.
    pub(super) fn has_hung_up(&self) -> bool {
        self.line != Line::Whole
    }

    /// It can serve a further connection.
    pub(super) fn is_sound(&self) -> bool {
        !self.has_hung_up() && !self.has_urgent
    }

    /// Whether the program has reset the carrier. The socket is asked once for each error event.
    pub(super) fn take_reset(&mut self) -> Option<Reset> {
        if self.line < Line::Failed {
            return None;
        }
        self.line = Line::HungUp;
        match self.socket.take_error() {
            Ok(None) => None,
            // As tcp_reset reports it in `TCP_CLOSE_WAIT`.
            Ok(Some(error)) if error.raw_os_error() == Some(libc::EPIPE) => Some(Reset::AfterEnd),
            _ => Some(Reset::Alone),
        }
    }

    /// Writes as many bytes as there is room for; `None` without room.
    pub(super) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let result = again_when_interrupted(|| self.socket.write_vectored(parts));
        if let Ok(count) = result {
            self.sent += count as u64;
        }
        unless_would_block(result, &mut self.is_writable)
    }

    /// Reads available bytes: `None` when there are none, 0 bytes at the end.
    pub(super) fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let result = again_when_interrupted(|| self.socket.read_vectored(parts));
        if let Ok(count) = result {
            self.got += count as u64;
        }
        unless_would_block(result, &mut self.is_readable)
    }

    /// The bytes that are on the carrier now, without later ones.
    pub(super) fn look(&mut self) -> io::Result<Seen> {
        let waiting = bytes_waiting(&self.socket);
        if waiting > 0 {
            return Ok(Seen::Waiting(waiting as u64));
        }
        match self.socket.peek(&mut [0u8; 1]) {
            Ok(0) => Ok(Seen::Ended),
            Ok(_) => Ok(Seen::Unseen),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.is_readable = false;
                    Ok(Seen::Empty)
                }
                io::ErrorKind::Interrupted => Ok(Seen::Unseen),
                _ => Err(error),
            },
        }
    }

    /// True when no byte is on it.
    pub(super) fn has_nothing_to_read(&self) -> bool {
        !matches!(self.socket.peek(&mut [0u8; 1]), Ok(1))
    }

    /// Sends a doorbell. If the carrier is full or broken, the program already has something to
    /// notice. Returns how many bytes were sent on the carrier in all.
    pub(super) fn ring(&mut self) -> u64 {
        self.sent += self
            .socket
            .write(&[DOORBELL])
            .map_or(0, |count| count as u64);
        self.sent
    }

    /// Sends the result of `connect` to the program: 0, or an errno.
    pub(super) fn send_result(&mut self, errno: u8) -> io::Result<()> {
        sys::send_urgent(&self.socket, errno)?;
        self.sent += 1;
        Ok(())
    }

    /// Ends our direction.
    pub(super) fn end_sending(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Makes the carrier end in order instead of with a reset.
    pub(super) fn end_in_order(&self) {
        let _ = sys::reset_when_closed(&self.socket, false);
    }

    /// Its two addresses, ours first.
    pub(super) fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.socket.local_addr()?, self.socket.peer_addr()?))
    }
}

fn again_when_interrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// `None` for a call that would block; then also clears the carrier's readiness.
fn unless_would_block(result: io::Result<usize>, is_ready: &mut bool) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            *is_ready = false;
            Ok(None)
        }
        result => result.map(Some),
    }
}

fn bytes_waiting(socket: &impl AsFd) -> usize {
    rustix::io::ioctl_fionread(socket).map_or(0, |waiting| waiting as usize)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const IN: u32 = libc::EPOLLIN as u32;
    const OUT: u32 = libc::EPOLLOUT as u32;
    const ERROR: u32 = libc::EPOLLERR as u32;
    const HANG_UP: u32 = libc::EPOLLRDHUP as u32;

    /// A carrier, and its program's socket.
    fn carrier() -> (Carrier, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let program = TcpStream::connect(listener.local_addr().expect("bound"));
        let program = program.expect("it listens");
        let (socket, _) = listener.accept().expect("connected");
        socket.set_nonblocking(true).expect("a socket");
        (Carrier::new(socket, 1, 0), program)
    }

    #[test]
    fn carrier_is_ready_until_a_call_finds_otherwise() {
        let (mut carrier, mut program) = carrier();
        carrier.note(IN | OUT);
        program.write_all(b"abc").expect("room");
        let mut bytes = [0; 8];
        let mut read = |carrier: &mut Carrier| {
            let count = carrier.read(&mut [IoSliceMut::new(&mut bytes)]);
            count.expect("open")
        };
        while read(&mut carrier).is_some() {}
        assert_eq!((carrier.got, carrier.is_readable()), (3, false));
        let much = vec![0; 1 << 20];
        while let Some(count) = carrier.write(&[IoSlice::new(&much)]).expect("open") {
            assert!(count > 0 && carrier.is_writable());
        }
        assert!(carrier.sent > 0 && !carrier.is_writable());
        carrier.note(IN | OUT);
        assert!(carrier.is_readable() && carrier.is_writable() && carrier.is_sound());
    }

    /// Otherwise the end, or the bytes behind an urgent byte, would never be read, because no event
    /// comes for them.
    #[test]
    fn short_read_is_the_last_one_unless_more_is_known() {
        for (bits, is_last) in [
            (IN, true),
            (IN | HANG_UP, false),
            (IN | libc::EPOLLPRI as u32, false),
        ] {
            let (mut carrier, _program) = carrier();
            carrier.note(bits);
            carrier.note_short_read();
            assert_eq!(carrier.is_readable(), !is_last);
            assert_eq!(carrier.is_sound(), is_last);
        }
    }

    #[test]
    fn reset_is_asked_for_once_for_each_error() {
        let (mut carrier, program) = carrier();
        carrier.note(ERROR);
        assert_eq!(carrier.take_reset(), None, "the socket knows of none");
        assert!(carrier.has_hung_up());
        sys::reset_when_closed(&program, true).expect("a socket");
        drop(program);
        assert_eq!(carrier.take_reset(), None, "nobody has told of it");
        carrier.note(ERROR);
        carrier.note(HANG_UP);
        assert_eq!(carrier.take_reset(), Some(Reset::Alone));
        assert_eq!(carrier.take_reset(), None);
        assert!(carrier.has_hung_up());
    }
}
