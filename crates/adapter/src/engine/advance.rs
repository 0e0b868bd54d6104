//! One step of a connection: the work that its stage allows.

use std::time::Instant as Clock;

use toehold_tcp::{CloseReason, Departure, State};

use super::flow::{Flow, Opener, ProgramEnding, Stage};
use super::relay::{Delivery, Gone, StepContext};

/// The action for a connection after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for events.
    Wait,
    /// Both directions are complete, including their ends: close in order.
    Over,
    /// The program is gone, or its socket failed: reset the remote.
    ProgramGone,
    /// The engine's connection failed, and all bytes that came before were delivered: reset the
    /// program.
    RemoteGone,
    /// The program has closed in order, and the remote has all its bytes: the engine alone waits
    /// for the remote's end, for a while.
    Departed,
    /// The connection was not accepted on its parked carrier: it needs an ordinary carrier.
    Refused,
}

impl Flow {
    /// Does all possible work.
    pub(super) fn advance(&mut self, cx: &mut StepContext<'_>) -> Next {
        match self.stage {
            Stage::Connecting if self.awaits_message => self.begin_by_message(cx),
            // A program that does not know the library may have sent bytes and finished. A program
            // that has given up has sent nothing.
            Stage::Connecting if self.carrier.has_hung_up() && self.has_said_nothing() => {
                Next::ProgramGone
            }
            Stage::Connecting => Next::Wait,
            Stage::Answered => self.introduce(cx),
            Stage::Joining if self.closed.is_some() => Next::RemoteGone,
            Stage::Joining if !self.carrier.is_writable() => Next::Wait,
            Stage::Joining => match self.carrier.socket.take_error() {
                Ok(None) if self.serving.is_some() => {
                    self.stage = Stage::Pairing;
                    self.pair(cx)
                }
                Ok(None) => {
                    self.stage = Stage::Open;
                    self.relay(cx)
                }
                _ => Next::ProgramGone,
            },
            Stage::Pairing => self.pair(cx),
            Stage::Queued => self.queue(cx),
            Stage::Open => self.relay(cx),
        }
    }

    /// The SYN leaves with the program's first bytes.
    fn begin_by_message(&mut self, cx: &mut StepContext<'_>) -> Next {
        let is_sound = self.collect(cx).is_ok();
        self.awaits_message = self.published == 0;
        match is_sound && (!self.awaits_message || !self.carrier.has_hung_up()) {
            true => Next::Wait,
            // The program has given up, and the remote does not know of the connection.
            false => Next::ProgramGone,
        }
    }

    /// Introduces a seed that a program has made. The program is told that it has connected only
    /// when we have our end of the channel, so that it finds its own end then.
    fn introduce(&mut self, cx: &mut StepContext<'_>) -> Next {
        if self.beside.channel().is_none() && !self.is_late() {
            return Next::Wait;
        }
        if self.carrier.send_result(0).is_err() {
            return Next::ProgramGone;
        }
        self.stage = Stage::Pairing;
        self.pair(cx)
    }

    /// True when a seed must become an ordinary connection.
    fn is_late(&self) -> bool {
        let is_over = self.closed.is_some() || self.carrier.has_hung_up();
        // The program has sent bytes on the carrier, and waits for an answer.
        let has_spoken = self.opener == Opener::Program && self.carrier.is_readable();
        let ends = self.serving.map(|serving| serving.pairing_ends());
        is_over || has_spoken || ends.is_none_or(|ends| Clock::now() >= ends)
    }

    /// Pairs a seed. It becomes a carrier when both directions are rings; if that takes too long,
    /// it becomes an ordinary connection. Its first byte is held back until both ends know, so that
    /// no byte is on the carrier.
    fn pair(&mut self, cx: &mut StepContext<'_>) -> Next {
        let is_late = self.is_late();
        let is_up = self.is_up(cx) || !is_late && self.goes_up_at_once(cx);
        if is_up && !cx.streams.move_up(self.id) {
            return Next::ProgramGone;
        }
        // The program's direction follows later. Until then the program could not be told that
        // there is room.
        if is_up && self.collect(cx).is_err() {
            return Next::ProgramGone;
        }
        let endpoint = cx.streams.endpoint(self.id);
        let is_carrier = endpoint.is_some_and(|endpoint| endpoint.is_in_rings());
        if !is_carrier && !is_late {
            return Next::Wait;
        }
        // A program that connects decides when it gets the answer. It may have its end of the
        // channel by then, so our end must follow the turn.
        if !is_carrier && self.opener == Opener::Remote {
            self.serves_no_more();
        }
        self.stage = Stage::Open;
        self.relay(cx)
    }

    /// The connection waits for the program's `accept`. Meanwhile the remote's bytes go to the ring
    /// and stay there.
    fn queue(&mut self, cx: &mut StepContext<'_>) -> Next {
        let (Some(serving), Some(endpoint)) = (self.serving, cx.streams.endpoint(self.id)) else {
            return Next::ProgramGone;
        };
        let turns = endpoint.turns();
        let is_wanted_back = self.carrier.has_hung_up() || endpoint.is_unwanted();
        let is_reset = self.closed.is_some();
        if is_wanted_back && !is_reset && turns.give_up(serving.turn) {
            return Next::Refused;
        }
        if turns.is_waiting(serving.turn) {
            if is_reset {
                // In the kernel, `accept` would return such a connection, already reset.
                return Next::RemoteGone;
            }
            return match self.deliver(cx) {
                Ok(_) => Next::Wait,
                Err(_) => Next::ProgramGone,
            };
        }
        if turns.is_unaccepted(serving.turn) {
            return Next::Refused;
        }
        self.stage = Stage::Open;
        self.relay(cx)
    }

    /// True when no byte of the program is on the carrier. On a used carrier there are only
    /// doorbells.
    fn has_said_nothing(&self) -> bool {
        self.is_on_used() || self.carrier.has_nothing_to_read()
    }

    fn relay(&mut self, cx: &mut StepContext<'_>) -> Next {
        let mut delivery = Delivery::Complete;
        if !self.program.has_departed() {
            // A reset discards bytes that came before it.
            let reset = self.carrier.take_reset();
            let is_reset = reset.is_some();
            if let Some(reset) = reset {
                self.collect_last_words(cx, reset);
            }
            let moved = match is_reset {
                true => Err(Gone),
                false => self.move_both_ways(cx),
            };
            match moved {
                Ok(so_far) => delivery = so_far,
                Err(Gone) if self.depart(cx, is_reset) => {}
                Err(Gone) if is_reset && self.departs_unheard(cx) => {}
                Err(Gone) if is_reset && self.was_closed(cx) => {}
                Err(Gone) => return Next::ProgramGone,
            }
            if self.program == ProgramEnding::Closed {
                self.depart_from_carrier(cx);
            }
        }
        if let Some(departure) = self.departure(delivery) {
            cx.engine.note_departure(self.id, departure);
        }
        if self.program.has_departed() {
            delivery = Delivery::Complete;
            if self.arrived > self.taken {
                // RFC 1122 section 4.2.2.13: no program will read the remote's further bytes.
                return Next::ProgramGone;
            }
            let _ = self.give_back(cx);
            if cx
                .engine
                .info(self.id)
                .is_some_and(|info| info.state == State::FinWait2)
            {
                return Next::Departed;
            }
        }
        match self.closed {
            None => match self.consider_channel(cx) {
                Ok(()) => Next::Wait,
                Err(_) => Next::ProgramGone,
            },
            // The program's socket will take the other bytes when it has room.
            Some(_) if delivery == Delivery::Pending => Next::Wait,
            Some(CloseReason::Finished) => Next::Over,
            Some(_) => Next::RemoteGone,
        }
    }

    /// Whether no program waits for the remote. Once both streams have ended, the kernel does not
    /// tell whether the program has closed; it can only wait for its last bytes to arrive.
    fn departure(&self, delivery: Delivery) -> Option<Departure> {
        let have_both_finished = self.program.has_finished() && self.remote.has_finished();
        if self.program.has_departed() {
            return Some(Departure::Certain);
        }
        (have_both_finished && delivery == Delivery::Complete).then_some(Departure::Possible)
    }

    fn move_both_ways(&mut self, cx: &mut StepContext<'_>) -> Result<Delivery, Gone> {
        let delivery = self.deliver(cx)?;
        if self.closed.is_none() {
            self.collect(cx)?;
        }
        Ok(delivery)
    }
}
