//! Carriers that serve one connection after another: their timed work.

use std::time::{Duration, Instant as Clock};

use toehold_tcp::ConnectionId;

use super::Runner;
use crate::engine::carriers::{LOOK_FIRST, LOOK_LAST};
use crate::engine::flow::Flow;

/// The pause between two looks at seeds. The program and the daemon need the processor.
const SEED_PAUSE: Duration = Duration::from_micros(20);

/// Connections whose programs may not have noticed them yet, and the time of the next look.
#[derive(Debug, Default)]
pub(super) struct Turns {
    watched: Vec<ConnectionId>,
    due: Option<Clock>,
    between: Duration,
}

impl Turns {
    /// Notes that a turn begins.
    pub(super) fn watch(&mut self, id: ConnectionId) {
        self.watched.push(id);
        if self.due.is_none() {
            self.between = LOOK_FIRST;
            self.due = Some(Clock::now() + LOOK_FIRST);
        }
    }

    /// The time of the next look.
    pub(super) fn due(&self) -> Option<Clock> {
        self.due
    }
}

impl Runner {
    /// Opens connections that programs have queued, on carriers that they have claimed.
    pub(super) fn open_claimed(&mut self) {
        while let Some(pair) = self.claims.pop() {
            while let Some((used, preamble)) = self.carriers.accept(pair, &self.channels) {
                self.open_on_used(used, &preamble);
            }
        }
    }

    /// Retires unused carriers, and looks at turns that programs may not have noticed.
    pub(super) fn look_at_carriers(&mut self) {
        if self.carriers.look_due().is_none() && self.turns.due.is_none() {
            return;
        }
        let now = Clock::now();
        self.carriers.look(&mut self.channels, now);
        if self.turns.due.is_none_or(|due| now < due) {
            return;
        }
        let (flows, streams) = (&mut self.flows, &mut self.streams);
        self.turns.watched.retain(|&id| {
            let flow = flows.get_mut(id.index()).and_then(Option::as_mut);
            let flow = flow.filter(|flow| flow.id == id);
            flow.is_some_and(|flow| flow.look_at_turn(streams))
        });
        self.turns.between = (2 * self.turns.between).min(LOOK_LAST);
        let is_any = !self.turns.watched.is_empty();
        self.turns.due = is_any.then(|| now + self.turns.between);
    }

    /// Pauses briefly instead of sleeping if connections wait for a channel before their first
    /// byte; true if some do. A program waits for such a connection for one or two milliseconds.
    pub(super) fn pause_for_seeds(&mut self) -> bool {
        if !self.pairing.is_empty() {
            std::thread::sleep(SEED_PAUSE);
        }
        !self.pairing.is_empty()
    }

    /// Takes the channels of connections that wait for them before their first byte, and checks
    /// these connections' progress. This runs between any two looked-at connections, because
    /// programs wait.
    pub(super) fn look_at_seeds(&mut self) {
        if self.pairing.is_empty() {
            return;
        }
        self.take_offers();
        for slot in std::mem::take(&mut self.pairing) {
            let is_seed = |flow: &Option<Flow>| flow.as_ref().is_some_and(Flow::is_seed);
            if self.flows.get(slot as usize).is_some_and(is_seed) {
                self.pairing.push(slot);
                self.advance(slot);
            }
        }
    }
}
