//! One step of a connection: what its stage allows, and the work that follows.

use toehold_tcp::{CloseReason, State};

use super::flow::{Flow, Stage};
use super::relay::Around;

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
}

impl Flow {
    /// Does all that can be done now.
    pub(super) fn advance(&mut self, cx: &mut Around<'_>) -> Next {
        match self.stage {
            // A program that knows nothing of us may have sent something and finished; one that
            // gave up has not.
            Stage::Connecting if self.hung_up && self.has_nothing_to_read() => Next::ProgramGone,
            Stage::Connecting => Next::Wait,
            Stage::Joining if self.closed.is_some() => Next::RemoteGone,
            Stage::Joining if !self.writable => Next::Wait,
            Stage::Joining => match self.carrier.take_error() {
                Ok(None) => {
                    self.stage = Stage::Open;
                    self.relay(cx)
                }
                _ => Next::ProgramGone,
            },
            Stage::Open => self.relay(cx),
        }
    }

    fn has_nothing_to_read(&self) -> bool {
        let mut byte = [0u8; 1];
        !matches!(self.carrier.peek(&mut byte), Ok(1))
    }

    fn relay(&mut self, cx: &mut Around<'_>) -> Next {
        if !self.has_departed {
            // A reset outranks what came before it.
            let is_reset =
                std::mem::take(&mut self.failed) && !matches!(self.carrier.take_error(), Ok(None));
            if is_reset {
                self.collect_last_words(cx);
            }
            let is_gone = is_reset
                || self.deliver(cx).is_err()
                || (self.closed.is_none() && self.collect(cx).is_err());
            if is_gone && !self.depart(cx, is_reset) {
                return Next::ProgramGone;
            }
        }
        if self.has_departed {
            self.is_delivered = true;
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
            Some(_) if !self.is_delivered => Next::Wait,
            Some(CloseReason::Finished) => Next::Over,
            Some(_) => Next::RemoteGone,
        }
    }
}
