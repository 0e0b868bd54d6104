//! Rivals compete with the engine of the first host for its way out.

use super::{Happening, World};
use crate::sim::link::Fate;
use crate::sim::rival::{PACKET_BYTES, Rival};
use crate::{Duration, Instant};

/// How long an answer waits for a second packet.
const ANSWER_DELAY: Duration = Duration::from_millis(40);

impl World {
    /// Lets the rivals of the scenario begin, with the first transfer.
    pub(super) fn bring_rivals(&mut self) {
        for (rival, &kind) in self.scenario.rivals.clone().iter().enumerate() {
            self.rivals.push(Rival::new(kind, Instant::ZERO));
            self.push(Instant::ZERO, Happening::Rival { rival });
        }
    }

    pub(super) fn wake_rival(&mut self, rival: usize) {
        self.rivals[rival].look_for_silence(self.now);
        self.let_rival_send(rival);
    }

    pub(super) fn answer_rival(&mut self, rival: usize, number: u64) {
        self.rivals[rival].answer(self.now, number);
        self.let_rival_send(rival);
    }

    /// The receiver answers every second packet at once, and one alone after a while, as receivers
    /// of TCP do (RFC 5681 section 4.2): so each answer lets two packets go.
    fn answer_later(&mut self, rival: usize, number: u64, at: Instant) {
        match self.rivals[rival].unanswered.take() {
            Some(earlier) => {
                for number in [earlier, number] {
                    self.push(at, Happening::Answer { rival, number });
                }
            }
            None => {
                self.rivals[rival].unanswered = Some(number);
                // Should the next one be answered before, this does nothing.
                let number = Happening::Answer { rival, number };
                self.push(at + ANSWER_DELAY, number);
            }
        }
    }

    fn let_rival_send(&mut self, rival: usize) {
        while let Some(number) = self.rivals[rival].send(self.now) {
            let link = &mut self.hosts[0].way_out;
            let fate = link.pass(self.now, PACKET_BYTES, &mut self.random);
            if let Fate::Arrives { at, .. } = fate {
                // The way back is never busy.
                let back = self.hosts[1].way_out.impairments.delay;
                self.answer_later(rival, number, at + back);
            }
        }
        if let Some(at) = self.rivals[rival].next_wake(self.now) {
            self.push(at, Happening::Rival { rival });
        }
    }
}
