//! Carriers for programs' outgoing connections: programs claim them, and the engine accepts.
//!
//! With the claim the program's library writes the connection's destination, and queues both. It
//! claims a carrier only after the engine has declared it free: both ends may have closed a
//! connection whose last bytes the remote has not acknowledged yet.

use std::collections::BTreeMap;
use std::time::Instant;

use toehold_channel::express::ENTRIES_MAX;
use toehold_channel::preamble::PREAMBLE_BYTES;

use super::{IDLE_MAX, Parked, Reusable, retire};
use crate::engine::channels::Channels;

/// A channel's place: its pair of processes, and its slot.
type Place = (u64, u32);

/// Parked carriers that programs may claim.
#[derive(Debug, Default)]
pub(super) struct OfPrograms(BTreeMap<Place, Parked>);

impl OfPrograms {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Parks a carrier, and tells its program that it may claim the carrier.
    pub(super) fn park(&mut self, parked: Parked, channels: &mut Channels) {
        let reusable = &parked.reusable;
        let place = reusable.channel.place;
        channels.await_claim(place);
        reusable.endpoint.turns().free(reusable.serving.turn);
        self.0.insert(place, parked);
    }

    /// The next queued connection of a pair's program: its carrier and its destination.
    pub(super) fn accept(
        &mut self,
        pair: u64,
        channels: &Channels,
    ) -> Option<(Reusable, [u8; PREAMBLE_BYTES])> {
        // The bound ends the turn of a program that keeps queueing nonsense.
        for _ in 0..ENTRIES_MAX {
            let queued = channels.next_claim(pair)?;
            let place = (pair, queued.slot);
            let Some(parked) = self.0.get(&place) else {
                continue;
            };
            let turns = parked.reusable.endpoint.turns();
            // Otherwise the program has given the carrier up meanwhile, and the carrier's end shows
            // this.
            if turns.accept(queued.turn) {
                let preamble = turns.requested();
                let mut reusable = self.take(place)?;
                reusable.serving = reusable.serving.next(queued.turn);
                return Some((reusable, preamble));
            }
        }
        None
    }

    /// Takes a carrier away.
    pub(super) fn take(&mut self, place: Place) -> Option<Reusable> {
        Some(self.0.remove(&place)?.reusable)
    }

    /// A parked carrier.
    pub(super) fn at(&mut self, place: Place) -> Option<&mut Reusable> {
        Some(&mut self.0.get_mut(&place)?.reusable)
    }

    /// Retires carriers that have been parked for too long, and hands over their numbers. A carrier
    /// that was claimed meanwhile is accepted soon.
    pub(super) fn look(
        &mut self,
        channels: &mut Channels,
        now: Instant,
        mut each: impl FnMut(u32),
    ) {
        let is_idle = |parked: &Parked| {
            let turns = parked.reusable.endpoint.turns();
            now.saturating_duration_since(parked.since) >= IDLE_MAX
                && turns.retire(parked.reusable.serving.turn).is_none()
        };
        let idle = self.0.iter().filter(|(_, parked)| is_idle(parked));
        let idle: Vec<Place> = idle.map(|(place, _)| *place).collect();
        for place in idle {
            if let Some(reusable) = self.take(place) {
                each(reusable.carrier.serial);
                retire(reusable, channels);
            }
        }
    }

    /// The time of the next look.
    pub(super) fn look_due(&self) -> Option<Instant> {
        let times = self.0.values().map(|parked| parked.since);
        times.min().map(|since| since + IDLE_MAX)
    }
}
