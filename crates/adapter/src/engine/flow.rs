//! One connection of the engine, and the socket that carries its bytes to and from a program.
//!
//! The *stage* is the progress of the connection's setup:
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
//!   Answered   the remote has answered; the program is told when it has its channel (`carriers`)
//!   Joining   a remote connected; the program's listener has not taken the carrier
//!   Pairing   as Open, but the first byte waits for a channel, to make a carrier (`carriers`)
//!   Queued    a remote connected; the program has not accepted it on the carrier that it is on
//!   Open      bytes go both ways
//! ```
//!
//! These states change independently of the stage and of each other: the end of the remote's stream
//! ([`RemoteEnding`]) and of the program's ([`ProgramEnding`]); the carrier (`carrier`); the
//! channel ([`ChannelState`]); and the engine's connection, which exists until it is `closed`.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant as Clock;

use toehold_channel::offload::{CarrierKey, Direction};
use toehold_channel::preamble::PREAMBLE_BYTES;
use toehold_stream::express::Turn;
use toehold_tcp::{CloseReason, ConnectionId, Instant};

use super::Holder;
use super::carrier::Carrier;
use super::carriers::{Reusable, Serving};
use super::channels::ChannelKey;
use super::endpoint::Endpoint;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Answered,
    Joining,
    Pairing,
    Queued,
    Open,
}

/// Which end has opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opener {
    Program,
    Remote,
}

/// The progress of the end of the remote's stream.
///
/// ```text
///   NotYet ─► Finished ─┬─► ToldByTurn
///                 ▲     │       │ its direction goes to the carrier
///                 └─────┼───────┤ the program wants unread bytes there first
///                       │       ▼
///                       └─► ToldByCarrier
/// ```
///
/// The program is told when all bytes that have arrived are available to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteEnding {
    NotYet,
    /// The remote has finished. The program was not told yet.
    Finished,
    /// The program was told by the turn's end. The carrier stays open for further connections. Only
    /// for a connection with a [`Serving`].
    ToldByTurn,
    /// The program was told by the end of our direction of the carrier: no doorbell can be sent.
    ToldByCarrier,
}

impl RemoteEnding {
    pub(super) fn has_finished(self) -> bool {
        self != RemoteEnding::NotYet
    }
}

/// The progress of the end of the program's stream, and whether the program still exists.
///
/// ```text
///   NotYet ─┬─► Closed ─► LeftCarrier
///           │      │ its carrier serves no more
///           │      ▼
///           ├─► Finished ─┐
///           └─────────────┴─► Gone
/// ```
///
/// To a program that is gone ([`ProgramEnding::has_departed`]) nothing is delivered. Its last bytes
/// are still sent to the remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramEnding {
    NotYet,
    /// The program has finished, and may still read.
    Finished,
    /// The program has closed in order, by the turn's end. Only for a connection with a
    /// [`Serving`].
    Closed,
    /// As [`ProgramEnding::Closed`], and it is known how much the program has read. The carrier
    /// goes on without the connection.
    LeftCarrier,
    /// The program had closed before its carrier failed, or was killed with no bytes unread.
    Gone,
}

impl ProgramEnding {
    pub(super) fn has_finished(self) -> bool {
        self != ProgramEnding::NotYet
    }

    /// It has closed by the turn's end.
    pub(super) fn has_closed(self) -> bool {
        matches!(self, ProgramEnding::Closed | ProgramEnding::LeftCarrier)
    }

    pub(super) fn has_departed(self) -> bool {
        matches!(self, ProgramEnding::LeftCarrier | ProgramEnding::Gone)
    }
}

/// The state of the channel beside the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelState {
    Nothing,
    /// A channel was asked for with this entry.
    Asked {
        entry: u32,
    },
    /// The channel is there.
    Channel(ChannelKey),
}

impl ChannelState {
    /// A channel was asked for, if there was an entry for it.
    pub(super) fn asked(entry: Option<u32>) -> ChannelState {
        entry.map_or(ChannelState::Nothing, |entry| ChannelState::Asked { entry })
    }

    pub(super) fn channel(self) -> Option<ChannelKey> {
        match self {
            ChannelState::Channel(key) => Some(key),
            ChannelState::Nothing | ChannelState::Asked { .. } => None,
        }
    }
}

/// The limit of a connection's receive window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// The first window: the program has not yet shown that it reads.
    First,
    /// The program reads: the path decides.
    Path,
    /// The program reads, but the budget had no room for a larger ring: this many bytes.
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
    pub(super) stage: Stage,
    pub(super) opener: Opener,
    pub(super) carrier: Carrier,
    /// Bytes of the program's stream that the engine has, and that the remote has acknowledged.
    pub(super) published: u64,
    pub(super) acknowledged: u64,
    /// Bytes of the remote's stream that have arrived; those of them that are complete in the ring,
    /// without a copy under way; and those that the program, or its socket, has taken.
    pub(super) arrived: u64,
    pub(super) received: u64,
    pub(super) taken: u64,
    pub(super) window: Window,
    /// The largest window without a channel.
    pub(super) window_bytes_max: u32,
    pub(super) remote: RemoteEnding,
    pub(super) program: ProgramEnding,
    /// When the program was last known to have its socket open, after it has finished.
    pub(super) held_at: Option<Instant>,
    pub(super) closed: Option<CloseReason>,
    /// Calls that moved bytes on the carrier, and bytes before them, since a channel was last asked
    /// for or given up.
    pub(super) calls: u32,
    pub(super) bytes_before: u64,
    /// Bytes that the remote has acknowledged plus those that the program has taken, at the last
    /// measurement of the rate; and the time of that measurement.
    pub(super) moved: u64,
    pub(super) moved_at: Instant,
    pub(super) beside: ChannelState,
    /// More bytes are in flight than a channel's rings hold, so the carrier serves the connection.
    pub(super) outgrows_channel: bool,
    /// Its carrier may serve further connections.
    pub(super) serving: Option<Serving>,
    /// A message of the program opens the connection: bytes of its stream may be under way before
    /// the remote has answered.
    pub(super) opens_by_message: bool,
    /// The SYN waits for the program's first bytes.
    pub(super) awaits_message: bool,
    /// The connection is in the runner's list for this turn.
    pub(super) is_due: bool,
}

impl Flow {
    pub(super) fn new(
        id: ConnectionId,
        holder: Holder,
        stage: Stage,
        carrier: Carrier,
        window_bytes_max: u32,
    ) -> Flow {
        let opener = match stage {
            Stage::Connecting => Opener::Program,
            _ => Opener::Remote,
        };
        Flow {
            id,
            holder,
            stage,
            opener,
            carrier,
            published: 0,
            acknowledged: 0,
            arrived: 0,
            received: 0,
            taken: 0,
            window: Window::First,
            window_bytes_max,
            remote: RemoteEnding::NotYet,
            program: ProgramEnding::NotYet,
            held_at: None,
            closed: None,
            calls: 0,
            bytes_before: 0,
            moved: 0,
            moved_at: Instant::ZERO,
            beside: ChannelState::Nothing,
            outgrows_channel: false,
            serving: None,
            opens_by_message: false,
            awaits_message: false,
            is_due: false,
        }
    }

    /// A connection on a carrier of its own.
    pub(super) fn on_own(
        id: ConnectionId,
        holder: Holder,
        stage: Stage,
        (socket, serial): (TcpStream, u32),
        window_bytes_max: u32,
    ) -> Flow {
        // The preamble is not part of the program's stream.
        let got = match stage {
            Stage::Connecting => PREAMBLE_BYTES as u64,
            _ => 0,
        };
        let carrier = Carrier::new(socket, serial, got);
        Flow::new(id, holder, stage, carrier, window_bytes_max)
    }

    /// A connection on a carrier that has served others.
    pub(super) fn on_used(
        id: ConnectionId,
        holder: Holder,
        used: Reusable,
        window_bytes_max: u32,
    ) -> (Flow, Endpoint) {
        let stage = match used.serving.target {
            Some(_) => Stage::Queued,
            None => Stage::Connecting,
        };
        let mut carrier = used.carrier;
        carrier.note_writable();
        let flow = Flow {
            beside: ChannelState::Channel(used.channel),
            serving: Some(used.serving),
            ..Flow::new(id, holder, stage, carrier, window_bytes_max)
        };
        (flow, used.endpoint)
    }

    /// Begins again on an ordinary carrier. The program has not seen the connection yet.
    pub(super) fn on_another(self, carrier: (TcpStream, u32)) -> Flow {
        let (id, holder, most) = (self.id, self.holder, self.window_bytes_max);
        Flow {
            acknowledged: self.acknowledged,
            arrived: self.arrived,
            received: self.arrived,
            remote: match self.remote {
                RemoteEnding::NotYet => RemoteEnding::NotYet,
                _ => RemoteEnding::Finished,
            },
            closed: self.closed,
            ..Flow::on_own(id, holder, Stage::Joining, carrier, most)
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

    /// Stores the progress of the engine's connection.
    pub(super) fn note_progress(&mut self, received: u64, acknowledged: u64, finished: bool) {
        self.arrived = received;
        self.acknowledged = acknowledged;
        if finished && !self.remote.has_finished() {
            self.remote = RemoteEnding::Finished;
        }
    }

    /// The engine's connection is closed.
    pub(super) fn note_closed(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
    }

    /// The remote has answered. A program that gets its channel before its first byte is told when
    /// we have our end of the channel. Any other program is told at once.
    pub(super) fn answer(&mut self, now: Clock) -> io::Result<()> {
        match &mut self.serving {
            Some(serving) if serving.turn == Turn::FIRST => {
                serving.made = now;
                self.stage = Stage::Answered;
                Ok(())
            }
            _ => {
                self.stage = Stage::Open;
                self.carrier.send_result(0)
            }
        }
    }

    /// The carrier serves no further connection: a close of the program ends the connection, not
    /// only the turn.
    pub(super) fn serves_no_more(&mut self) {
        self.serving = None;
        if self.program == ProgramEnding::Closed {
            self.program = ProgramEnding::Finished;
        }
    }

    /// The carrier's key in the routing page, if it has one. A carrier from a loopback alias needs
    /// none, because the alias tells the local address.
    pub(super) fn place_of_carrier(&self) -> Option<CarrierKey> {
        let socket = &self.carrier.socket;
        let (direction, end) = match self.opener {
            Opener::Program => {
                let end = socket.peer_addr().ok();
                let end = end.filter(|end| end.ip() == Ipv4Addr::LOCALHOST);
                (Direction::Connected, end)
            }
            Opener::Remote => {
                let end = socket.local_addr().ok();
                let is_v6 = end.is_some_and(|end| end.is_ipv6());
                let direction = if is_v6 {
                    Direction::AcceptedV6
                } else {
                    Direction::Accepted
                };
                (direction, end)
            }
        };
        let port = end?.port();
        Some(CarrierKey { direction, port })
    }
}

/// Whether an established connection has ended because the remote was silent.
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
        // Only we abort a connection that is not established: its address is gone.
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
