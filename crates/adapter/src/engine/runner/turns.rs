//! Carriers that serve one connection after another: what is to be done for them in time.

use std::time::{Duration, Instant as Clock};

use toehold_tcp::ConnectionId;

use super::Runner;
use crate::engine::carriers::{LOOK_FIRST, LOOK_LAST};
use crate::engine::flow::Flow;

/// A pause between two looks at seeds: the program and the daemon need the processor.
const SEED_PAUSE: Duration = Duration::from_micros(20);

/// Connections whose programs have not been seen waiting for them, and when to look at them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    watched: Vec<ConnectionId>,
    due: Option<Clock>,
    between: Duration,
}

impl Turns {
    /// A turn begins.
    pub(super) fn watch(&mut self, id: ConnectionId) {
        self.watched.push(id);
        if self.due.is_none() {
            self.between = LOOK_FIRST;
            self.due = Some(Clock::now() + LOOK_FIRST);
        }
    }

    /// When to look at them.
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

    /// Retires carriers that nobody needs, and looks at turns whose programs may not have heard.
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

    /// In place of a sleep while connections wait for a channel before their first byte: true when
    /// some do. A program waits for them, for a millisecond or two.
    pub(super) fn pause_for_seeds(&mut self) -> bool {
        if !self.pairing.is_empty() {
            std::thread::sleep(SEED_PAUSE);
        }
        !self.pairing.is_empty()
    }

    /// Takes the channels of connections that wait for them before their first byte, and sees how
    /// far they are: between any two connections that are looked at, because programs wait.
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
