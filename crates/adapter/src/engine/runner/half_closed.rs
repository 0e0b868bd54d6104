//! Connections whose program has finished and whose remote has not: looks for programs that have
//! closed meanwhile.
//!
//! On the carrier both look alike: a program that only ends its stream (`shutdown`) and one that
//! closes. The kernel knows whether a program has the socket open. If it cannot be asked, a
//! keepalive on the carrier tells after a while ([`sys::report_peer_close`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant as Clock};

use toehold_tcp::ConnectionId;

use super::Runner;
use crate::diag::Diag;
use crate::engine::flow::Flow;
use crate::engine::relay::StepContext;
use crate::engine::sys;

/// The time between two looks at one connection, while the kernel keeps closed sockets longer.
const BETWEEN_LOOKS_MAX: Duration = Duration::from_secs(10);
/// Connections that are looked at in one turn.
const LOOKS_PER_TURN_MAX: usize = 64;

/// The connections that are looked at, in the order of their next look.
#[derive(Debug, Default)]
pub(super) struct HalfClosed {
    waiting: VecDeque<(ConnectionId, Clock)>,
    /// Answers for the namespace of the carriers. Opened when it is needed.
    diag: Option<Diag>,
}

impl HalfClosed {
    /// The program of a connection has finished.
    pub(super) fn watch(&mut self, flow: &Flow) {
        if self.diag.is_none() {
            // A kernel without answers about TCP says that there is no such socket.
            let ends = flow.carrier.ends().ok();
            let knows = |diag: &Diag| {
                ends.is_some_and(|(ours, theirs)| diag.is_held(ours, theirs) == Some(true))
            };
            self.diag = Diag::open().ok().filter(knows);
        }
        if self.diag.is_some() {
            self.waiting.push_back((flow.id, next_look()));
        } else {
            let _ = sys::report_peer_close(&flow.carrier.socket);
        }
    }

    /// The time of the next look.
    pub(super) fn due(&self) -> Option<Clock> {
        self.waiting.front().map(|&(_, due)| due)
    }
}

impl Runner {
    /// Looks at the connections that are due.
    pub(super) fn look_at_half_closed(&mut self) {
        if self.half_closed.waiting.is_empty() {
            return;
        }
        let (clock, now) = (Clock::now(), self.now());
        for _ in 0..LOOKS_PER_TURN_MAX {
            let HalfClosed { waiting, diag } = &mut self.half_closed;
            let Some(&(id, _)) = waiting.front().filter(|(_, due)| *due <= clock) else {
                return;
            };
            waiting.pop_front();
            let flow = self.flows.get_mut(id.index()).and_then(Option::as_mut);
            let flow = flow.filter(|flow| flow.id == id && flow.is_half_closed());
            let (Some(flow), Some(diag)) = (flow, diag) else {
                continue;
            };
            let (engine, streams) = (&mut self.engine, &mut self.streams);
            let mut around = StepContext::new(now, engine, streams, &mut self.channels);
            if flow.look_for_program(&mut around, diag) {
                waiting.push_back((id, next_look()));
            } else {
                self.later.push(id.index() as u32);
            }
        }
    }
}

fn next_look() -> Clock {
    let kept = Duration::from_secs(sys::fin_timeout_seconds());
    Clock::now() + BETWEEN_LOOKS_MAX.min(kept / 2)
}
