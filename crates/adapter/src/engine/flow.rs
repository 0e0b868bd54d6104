//! One connection of the engine, and the socket that carries its bytes to and from a program.
//!
//! The *stage* says how far program and remote have found each other:
//!
//! ```text
//!   a program connects ─► Connecting ──────────────────────────────────► Open
//!                             │ a seed                                    ▲
//!                             └─► Answered ──────────────────► Pairing ───┤
//!                                                                 ▲       │
//!   a remote connects ─► Joining ──── a seed ─────────────────────┘       │
//!                           ▲ └───────────────────────────────────────────┤
//!                           │ refused                                     │
//!   on a used carrier ─► Queued ───── accepted ───────────────────────────┘
//!
//!   Connecting   the program connected to the relay; the remote has not answered
//!   Answered   the remote has answered; the program hears of it with its channel (`carriers`)
//!   Joining   a remote connected; the program's listener has not taken the carrier
//!   Pairing   as Open, but the first byte waits for a channel: it is to be a carrier (`carriers`)
//!   Queued    a remote connected; the program has not accepted it on the carrier that it is on
//!   Open      bytes go both ways
//! ```
//!
//! Beside it change:
//!
//! - The remote's stream. It flows; it has finished (`remote_finished`); the program was told so
//!   (`program_told`), when it could find all that had arrived (`is_delivered`): by the end of our
//!   direction of the carrier, after which no doorbell can be sent, or by the turn's end
//!   (`Serving::is_told`), which leaves the carrier open. Only a connection that may serve again
//!   ends by the turn's end.
//! - The program's stream, and the program. It flows; it has finished (`program_finished`) and may
//!   still read; or the program has closed in order and leaves its carrier to the next connection
//!   (`Serving::has_ended`). The program is gone (`has_departed`) one step after that, or when its
//!   carrier failed after it had closed. What it sent is on its way, and nothing is delivered to
//!   it. A program that is gone has finished.
//! - The carrier's readiness, as epoll has told it: what there is to read (`readable`) and room to
//!   write (`writable`) until a call finds none; a program that has closed or finished (`hung_up`);
//!   a socket that failed (`failed`), which has hung up, too, and is asked once for its error; an
//!   urgent byte (`has_urgent`).
//! - The channel: none asked for; asked for (`entry`); there (`place`). A connection that has more
//!   in flight than a channel holds (`outgrows_channel`) gives its channel back and asks for no
//!   other one.
//! - The engine's connection, which is there until it is `closed`.
//!
//! A step that has more to do than its turn allows says so (`is_unfinished`), and the runner looks
//! at the connection again in the next turn. `is_due` says that the connection is in the runner's
//! list for this turn.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant as Clock;

use toehold_channel::offload::{CarrierKey, Direction};
use toehold_channel::preamble::PREAMBLE_BYTES;
use toehold_stream::express::Turn;
use toehold_tcp::{CloseReason, ConnectionId, Instant};

use super::carriers::{Carrier, Serving};
use super::endpoint::Endpoint;
use super::{Holder, sys};

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Answered,
    Joining,
    Pairing,
    Queued,
    Open,
}

/// The bound of a connection's receive window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// The program has not taken more yet than the buffers on the way to it hold.
    First,
    /// The program reads: the length of the path.
    Path,
    /// The program reads, and the budget had no room for a larger ring: so many bytes.
    Budget(usize),
}

impl Window {
    /// Whether the program has shown that it reads.
    pub(super) fn is_of_reader(self) -> bool {
        self != Window::First
    }
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) id: ConnectionId,
    pub(super) holder: Holder,
    pub(super) serial: u32,
    pub(super) stage: Stage,
    /// The program connected; a remote did otherwise.
    pub(super) is_active: bool,
    pub(super) carrier: TcpStream,
    /// Bytes of the program's stream that the engine has, and that the remote has acknowledged.
    pub(super) published: u64,
    pub(super) acknowledged: u64,
    /// Bytes of the remote's stream that have arrived; of these, the ones that are in the ring and
    /// wait for no copy; and those that the program, or its socket, has.
    pub(super) arrived: u64,
    pub(super) received: u64,
    pub(super) taken: u64,
    pub(super) window: Window,
    /// The largest one without a channel.
    pub(super) window_bytes_max: u32,
    /// All that has arrived is where the program finds it, even should we be gone.
    pub(super) is_delivered: bool,
    pub(super) remote_finished: bool,
    pub(super) program_finished: bool,
    /// The program was told that the remote has finished.
    pub(super) program_told: bool,
    /// The readiness of the carrier when it was last seen.
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) hung_up: bool,
    /// It has had an urgent byte: a read ends there, whatever is behind it.
    pub(super) has_urgent: bool,
    pub(super) failed: bool,
    pub(super) closed: Option<CloseReason>,
    /// Bytes that went to the carrier and came from it, doorbells, the preamble and the urgent byte
    /// included.
    pub(super) carrier_sent: u64,
    pub(super) carrier_got: u64,
    /// Calls that moved bytes on the carrier, and bytes before them, since a channel was last asked
    /// for or given up.
    pub(super) calls: u32,
    pub(super) bytes_before: u64,
    /// Bytes that the remote has acknowledged, and that the program has taken, in all: when it was
    /// last asked how fast they go, and when.
    pub(super) moved: u64,
    pub(super) moved_at: Instant,
    /// More is in flight than a channel's rings hold: the carrier serves it.
    pub(super) outgrows_channel: bool,
    /// The entry a channel was asked for with, and where the channel has its bit.
    pub(super) entry: Option<u32>,
    pub(super) place: Option<(u64, u32)>,
    /// There is more to read from its carrier, of which no event will tell.
    pub(super) is_unfinished: bool,
    /// The program has closed, and its carrier is gone; what it sent before is on its way.
    pub(super) has_departed: bool,
    /// Its carrier may serve further connections.
    pub(super) serving: Option<Serving>,
    /// It is in the list of connections to be looked at.
    pub(super) is_due: bool,
}

impl Flow {
    pub(super) fn new(
        id: ConnectionId,
        holder: Holder,
        serial: u32,
        stage: Stage,
        carrier: TcpStream,
        window_bytes_max: u32,
    ) -> Flow {
        Flow {
            id,
            holder,
            serial,
            stage,
            is_active: stage == Stage::Connecting,
            carrier,
            published: 0,
            acknowledged: 0,
            arrived: 0,
            received: 0,
            taken: 0,
            window: Window::First,
            window_bytes_max,
            is_delivered: true,
            remote_finished: false,
            program_finished: false,
            program_told: false,
            readable: false,
            writable: false,
            hung_up: false,
            has_urgent: false,
            failed: false,
            closed: None,
            carrier_sent: 0,
            // The preamble is no part of the program's stream.
            carrier_got: if stage == Stage::Connecting {
                PREAMBLE_BYTES as u64
            } else {
                0
            },
            calls: 0,
            bytes_before: 0,
            moved: 0,
            moved_at: Instant::ZERO,
            outgrows_channel: false,
            entry: None,
            place: None,
            is_unfinished: false,
            has_departed: false,
            serving: None,
            is_due: false,
        }
    }

    /// A connection on a carrier that has served others.
    pub(super) fn on_used(
        id: ConnectionId,
        holder: Holder,
        carrier: Carrier,
        window_bytes_max: u32,
    ) -> (Flow, Endpoint) {
        let stage = match carrier.serving.target {
            Some(_) => Stage::Queued,
            None => Stage::Connecting,
        };
        let serial = carrier.serial;
        let flow = Flow::new(id, holder, serial, stage, carrier.socket, window_bytes_max);
        let flow = Flow {
            carrier_sent: carrier.sent,
            carrier_got: carrier.got,
            readable: carrier.readable,
            writable: true,
            entry: Some(carrier.entry),
            place: Some(carrier.place),
            serving: Some(carrier.serving),
            ..flow
        };
        (flow, carrier.endpoint)
    }

    /// Begins anew, on an ordinary carrier: the program has had nothing of the connection.
    pub(super) fn on_another(self, serial: u32, carrier: TcpStream) -> Flow {
        let (id, holder, most) = (self.id, self.holder, self.window_bytes_max);
        let flow = Flow::new(id, holder, serial, Stage::Joining, carrier, most);
        Flow {
            acknowledged: self.acknowledged,
            arrived: self.arrived,
            received: self.arrived,
            remote_finished: self.remote_finished,
            closed: self.closed,
            is_delivered: false,
            ..flow
        }
    }

    /// True while it waits for a channel before its first byte.
    pub(super) fn is_seed(&self) -> bool {
        let is_early = matches!(
            self.stage,
            Stage::Answered | Stage::Joining | Stage::Pairing
        );
        self.serving.is_some() && is_early
    }

    /// True for a connection on a carrier that has served others.
    pub(super) fn is_on_used(&self) -> bool {
        (self.serving).is_some_and(|serving| serving.turn != Turn::FIRST)
    }

    /// The carrier's readiness has changed.
    pub(super) fn note_carrier(&mut self, bits: u32) {
        let has = |bit: libc::c_int| bits & bit as u32 != 0;
        self.readable |= has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        self.writable |= has(libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR);
        self.has_urgent |= has(libc::EPOLLPRI);
        self.hung_up |= has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        self.failed |= has(libc::EPOLLERR);
    }

    /// The engine has got on.
    pub(super) fn note_progress(&mut self, received: u64, acknowledged: u64, finished: bool) {
        self.arrived = received;
        self.acknowledged = acknowledged;
        self.remote_finished = finished;
    }

    /// The engine's connection is closed.
    pub(super) fn note_closed(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
    }

    /// The remote has answered. A program that is to have its channel before its first byte hears
    /// of it when we have our end of that; any other may know.
    pub(super) fn answer(&mut self, now: Clock) -> io::Result<()> {
        match &mut self.serving {
            Some(serving) if serving.turn == Turn::FIRST => {
                serving.made = now;
                self.stage = Stage::Answered;
                Ok(())
            }
            _ => {
                self.stage = Stage::Open;
                self.tell_result(0)
            }
        }
    }

    /// Tells a program that waits for its connect: 0, or an errno.
    pub(super) fn tell_result(&mut self, errno: u8) -> io::Result<()> {
        sys::send_urgent(&self.carrier, errno)?;
        self.carrier_sent += 1;
        Ok(())
    }

    /// Where the routing page speaks of the carrier, if it does. From a loopback alias a program
    /// knows itself where it connects from.
    pub(super) fn place_of_carrier(&self) -> Option<CarrierKey> {
        let (direction, end) = if self.is_active {
            let end = self.carrier.peer_addr().ok();
            let end = end.filter(|end| end.ip() == Ipv4Addr::LOCALHOST);
            (Direction::Connected, end)
        } else {
            let end = self.carrier.local_addr().ok();
            let is_v6 = end.is_some_and(|end| end.is_ipv6());
            let direction = if is_v6 {
                Direction::AcceptedV6
            } else {
                Direction::Accepted
            };
            (direction, end)
        };
        let port = end?.port();
        Some(CarrierKey { direction, port })
    }

    /// Lets the carrier end in order instead of with a reset.
    pub(super) fn end_in_order(&self) {
        let _ = sys::reset_when_closed(&self.carrier, false);
    }
}

/// Whether a connection that was there ended so because nothing came back.
pub(super) fn is_silence(reason: CloseReason) -> bool {
    use CloseReason::{Forbidden, NoRoute, TimedOut, Unreachable};
    matches!(reason, TimedOut | Unreachable | NoRoute | Forbidden)
}

/// The errno that connect(2) would have returned.
pub(super) fn errno_of(reason: CloseReason) -> u8 {
    let errno = match reason {
        CloseReason::Refused | CloseReason::Reset => libc::ECONNREFUSED,
        CloseReason::Unreachable => libc::EHOSTUNREACH,
        CloseReason::NoRoute => libc::ENETUNREACH,
        CloseReason::Forbidden => libc::EACCES,
        CloseReason::TimedOut => libc::ETIMEDOUT,
        // Nobody but us ends what is not yet there: its address is gone.
        CloseReason::Aborted => libc::EADDRNOTAVAIL,
        CloseReason::Finished => libc::ECONNABORTED,
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
            CloseReason::NoRoute,
            CloseReason::Forbidden,
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
