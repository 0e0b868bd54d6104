//! One step of a connection: what its stage allows, and the work that follows.

use std::time::Instant as Clock;

use toehold_tcp::{CloseReason, State};

use super::flow::{Flow, Opener, ProgramEnding, Stage};
use super::relay::{Around, Delivery, Gone};

/// The action for a connection after a step.
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
    /// The program is gone in order, and the remote has all it said: only the engine still waits
    /// for the remote's end, for a while.
    Departed,
    /// Nobody accepted it on the carrier that it is on: it needs an ordinary one.
    Refused,
}

impl Flow {
    /// Does all that can be done now.
    pub(super) fn advance(&mut self, cx: &mut Around<'_>) -> Next {
        match self.stage {
            Stage::Connecting if self.awaits_message => self.begin_by_message(cx),
            // A program that knows nothing of us may have sent something and finished; one that
            // gave up has not.
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
    fn begin_by_message(&mut self, cx: &mut Around<'_>) -> Next {
        let is_sound = self.collect(cx).is_ok();
        self.awaits_message = self.published == 0;
        match is_sound && (!self.awaits_message || !self.carrier.has_hung_up()) {
            true => Next::Wait,
            // It gave up, and the remote knows nothing.
            false => Next::ProgramGone,
        }
    }

    /// A seed that its program connects by. The program hears that it has connected when we have
    /// our end of the channel, so that it finds its own then.
    fn introduce(&mut self, cx: &mut Around<'_>) -> Next {
        if self.beside.channel().is_none() && !self.is_late() {
            return Next::Wait;
        }
        if self.carrier.tell_result(0).is_err() {
            return Next::ProgramGone;
        }
        self.stage = Stage::Pairing;
        self.pair(cx)
    }

    /// True when a seed is to be a connection like any other.
    fn is_late(&self) -> bool {
        let is_over = self.closed.is_some() || self.carrier.has_hung_up();
        // It has sent by the carrier, and waits for an answer.
        let has_spoken = self.opener == Opener::Program && self.carrier.is_readable();
        let ends = self.serving.map(|serving| serving.pairing_ends());
        is_over || has_spoken || ends.is_none_or(|ends| Clock::now() >= ends)
    }

    /// A seed: it is a carrier when both directions are rings, and a connection like any other when
    /// that takes too long. Before its first byte both ends are to know, so none is on the carrier.
    fn pair(&mut self, cx: &mut Around<'_>) -> Next {
        let is_late = self.is_late();
        let is_up = self.is_up(cx) || !is_late && self.goes_up_at_once(cx);
        if is_up && !cx.streams.move_up(self.id) {
            return Next::ProgramGone;
        }
        // The program's direction follows, and until it does nobody could say that there is room.
        if is_up && self.collect(cx).is_err() {
            return Next::ProgramGone;
        }
        let endpoint = cx.streams.endpoint(self.id);
        let is_carrier = endpoint.is_some_and(|endpoint| endpoint.is_in_rings());
        if !is_carrier && !is_late {
            return Next::Wait;
        }
        // A program that connects decides when it hears of the answer. It may have its end of the
        // channel by then, and ours is to understand how it ends.
        if !is_carrier && self.opener == Opener::Remote {
            self.serves_no_more();
        }
        self.stage = Stage::Open;
        self.relay(cx)
    }

    /// It waits for the program's `accept`. The remote's bytes go to the ring meanwhile, and stay
    /// there.
    fn queue(&mut self, cx: &mut Around<'_>) -> Next {
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
                // In the kernel's queue it would be found by `accept`, reset.
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

    /// True when nothing of the program's stands on the carrier. A used one has doorbells only.
    fn has_said_nothing(&self) -> bool {
        self.is_on_used() || self.carrier.has_nothing_to_read()
    }

    fn relay(&mut self, cx: &mut Around<'_>) -> Next {
        let mut delivery = Delivery::Complete;
        if !self.program.has_departed() {
            // A reset outranks what came before it.
            let is_reset = self.carrier.take_reset();
            if is_reset {
                self.collect_last_words(cx);
            }
            let moved = match is_reset {
                true => Err(Gone),
                false => self.move_both_ways(cx),
            };
            match moved {
                Ok(so_far) => delivery = so_far,
                Err(Gone) if self.depart(cx, is_reset) => {}
                Err(Gone) if is_reset && self.departs_unheard(cx) => {}
                Err(Gone) => return Next::ProgramGone,
            }
            if self.program == ProgramEnding::Closed {
                self.depart_from_carrier(cx);
            }
        }
        if self.program.has_departed() {
            delivery = Delivery::Complete;
            if self.arrived > self.taken {
                // RFC 1122 section 4.2.2.13: nobody will read what the remote still sends.
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
            // Whatever the program's socket does not take now, it takes when it has room.
            Some(_) if delivery == Delivery::Pending => Next::Wait,
            Some(CloseReason::Finished) => Next::Over,
            Some(_) => Next::RemoteGone,
        }
    }

    fn move_both_ways(&mut self, cx: &mut Around<'_>) -> Result<Delivery, Gone> {
        let delivery = self.deliver(cx)?;
        if self.closed.is_none() {
            self.collect(cx)?;
        }
        Ok(delivery)
    }
}
