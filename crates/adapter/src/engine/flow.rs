//! One connection of the engine, and the socket that carries its bytes to and from a program.
//!
//! ```text
//!   Opening   the program connected to the relay; the remote has not answered
//!   Joining   a remote connected; the program's listener has not taken the carrier
//!   Open      bytes go both ways
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};

use toehold_tcp::{CloseReason, ConnectionId, Engine, Instant};

use super::memory::{RING_BYTES, Streams};
use super::sys;
use crate::registry::ClientId;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Opening,
    Joining,
    Open,
}

/// What is to be done with a connection after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for more.
    Wait,
    /// Everything went both ways, ends included: close in order.
    Over,
    /// The program is gone, or its socket failed: reset the remote.
    ProgramGone,
    /// The engine's connection failed and all that came before was delivered: reset the program.
    RemoteGone,
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) id: ConnectionId,
    pub(super) client: ClientId,
    pub(super) serial: u32,
    pub(super) stage: Stage,
    carrier: TcpStream,
    /// Bytes of the program's stream that the engine has, and that the remote has acknowledged.
    published: u64,
    acknowledged: u64,
    /// Bytes of the remote's stream that have arrived, and that the program's socket has.
    received: u64,
    taken: u64,
    remote_finished: bool,
    program_finished: bool,
    /// The program was told that the remote has finished.
    program_told: bool,
    /// What the carrier was last seen to be ready for.
    readable: bool,
    writable: bool,
    hung_up: bool,
    failed: bool,
    closed: Option<CloseReason>,
    /// It is in the list of connections to be looked at.
    pub(super) is_due: bool,
}

impl Flow {
    pub(super) fn new(
        id: ConnectionId,
        client: ClientId,
        serial: u32,
        stage: Stage,
        carrier: TcpStream,
    ) -> Flow {
        Flow {
            id,
            client,
            serial,
            stage,
            carrier,
            published: 0,
            acknowledged: 0,
            received: 0,
            taken: 0,
            remote_finished: false,
            program_finished: false,
            program_told: false,
            readable: false,
            writable: false,
            hung_up: false,
            failed: false,
            closed: None,
            is_due: false,
        }
    }

    /// The carrier's readiness has changed.
    pub(super) fn note_carrier(&mut self, bits: u32) {
        let has = |bit: libc::c_int| bits & bit as u32 != 0;
        self.readable |= has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        self.writable |= has(libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR);
        self.hung_up |= has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        self.failed |= has(libc::EPOLLERR);
    }

    /// The engine has got on.
    pub(super) fn note_progress(&mut self, received: u64, acknowledged: u64, finished: bool) {
        self.received = received;
        self.acknowledged = acknowledged;
        self.remote_finished = finished;
    }

    /// The engine's connection is closed.
    pub(super) fn note_closed(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
    }

    /// The remote has answered: the program may know.
    pub(super) fn open(&mut self) -> io::Result<()> {
        self.stage = Stage::Open;
        self.tell_result(0)
    }

    /// Tells a program that waits for its connect: 0, or an errno.
    pub(super) fn tell_result(&self, errno: u8) -> io::Result<()> {
        sys::send_urgent(&self.carrier, errno)
    }

    /// Does all that can be done now.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        streams: &mut Streams,
    ) -> Next {
        match self.stage {
            // A program that knows nothing of us may have sent something and finished; one that gave up has not.
            Stage::Opening if self.hung_up && self.has_nothing_to_read() => Next::ProgramGone,
            Stage::Opening => Next::Wait,
            Stage::Joining if self.closed.is_some() => Next::RemoteGone,
            Stage::Joining if !self.writable => Next::Wait,
            Stage::Joining => match self.carrier.take_error() {
                Ok(None) => {
                    self.stage = Stage::Open;
                    self.relay(now, engine, streams)
                }
                _ => Next::ProgramGone,
            },
            Stage::Open => self.relay(now, engine, streams),
        }
    }

    fn has_nothing_to_read(&self) -> bool {
        let mut byte = [0u8; 1];
        !matches!(self.carrier.peek(&mut byte), Ok(1))
    }

    fn relay(&mut self, now: Instant, engine: &mut Engine, streams: &mut Streams) -> Next {
        // A reset outranks what came before it.
        if self.failed && !matches!(self.carrier.take_error(), Ok(None)) {
            return Next::ProgramGone;
        }
        self.failed = false;
        if self.deliver(now, engine, streams).is_err() {
            return Next::ProgramGone;
        }
        if self.closed.is_none() && self.collect(now, engine, streams).is_err() {
            return Next::ProgramGone;
        }
        match self.closed {
            None => Next::Wait,
            // Whatever the program's socket does not take now, it takes when it has room.
            Some(_) if self.taken < self.received => Next::Wait,
            Some(CloseReason::Finished) => Next::Over,
            Some(_) => Next::RemoteGone,
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        streams: &mut Streams,
    ) -> io::Result<()> {
        let before = self.taken;
        while self.writable && self.taken < self.received {
            let parts = streams.arrived(self.id, self.received).map(IoSlice::new);
            match self.carrier.write_vectored(&parts) {
                Ok(count) => {
                    self.taken += count as u64;
                    streams.take(self.id, self.taken);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.writable = false,
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        if self.taken > before && self.closed.is_none() {
            // It fails only for a connection that has closed, of which an event is on its way.
            let _ = engine.take(now, self.id, self.taken);
        }
        if self.remote_finished && self.taken == self.received && !self.program_told {
            self.program_told = true;
            self.carrier.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    fn collect(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        streams: &mut Streams,
    ) -> io::Result<()> {
        let before = self.published;
        let mut finished_now = false;
        let mut result = Ok(());
        while self.readable && !self.program_finished {
            let room = RING_BYTES as u64 - (self.published - self.acknowledged);
            if room == 0 || self.published - before >= RING_BYTES as u64 {
                break;
            }
            let parts = streams.free_to_send(self.id, self.published, self.acknowledged);
            let mut parts = parts.map(IoSliceMut::new);
            match self.carrier.read_vectored(&mut parts) {
                Ok(0) => {
                    self.program_finished = true;
                    finished_now = true;
                }
                Ok(count) => {
                    self.published += count as u64;
                    // Less than there was room for: there is no more, unless the end is next.
                    self.readable = self.hung_up || count as u64 == room;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.readable = false,
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        result = Err(error);
                        break;
                    }
                },
            }
        }
        if self.published > before {
            // As above: what has closed will say so.
            let _ = engine.publish(self.id, self.published);
        }
        if finished_now {
            let _ = engine.finish(now, self.id);
        }
        result
    }

    /// Lets the carrier end in order instead of with a reset.
    pub(super) fn end_in_order(&self) {
        let _ = sys::reset_when_closed(&self.carrier, false);
    }
}

/// What connect(2) would have said.
pub(super) fn errno_of(reason: CloseReason) -> u8 {
    let errno = match reason {
        CloseReason::Refused | CloseReason::Reset => libc::ECONNREFUSED,
        CloseReason::Unreachable => libc::EHOSTUNREACH,
        CloseReason::TimedOut => libc::ETIMEDOUT,
        CloseReason::Aborted | CloseReason::Finished => libc::ECONNABORTED,
    };
    errno as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_fits_into_the_urgent_byte() {
        for reason in [
            CloseReason::Refused,
            CloseReason::Reset,
            CloseReason::Unreachable,
            CloseReason::TimedOut,
            CloseReason::Aborted,
            CloseReason::Finished,
        ] {
            assert_ne!(errno_of(reason), 0);
        }
        for errno in [libc::ENETUNREACH, libc::EADDRNOTAVAIL, libc::EAGAIN] {
            assert!(u8::try_from(errno).is_ok());
        }
    }
}
