//! Rivals compete with the engine of the first host for its outgoing link.

use super::{Happening, World};
use crate::sim::link::Fate;
use crate::sim::rival::{PACKET_BYTES, Rival};
use crate::{Duration, Instant};

/// The time that an answer waits for a second packet.
const ANSWER_DELAY: Duration = Duration::from_millis(40);

impl World {
    /// Starts the rivals of the scenario, together with the first transfer.
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

    /// The receiver answers every second packet at once, and a single packet after a delay, as TCP
    /// receivers do (RFC 5681 section 4.2). So each answer releases two packets.
    fn answer_later(&mut self, rival: usize, number: u64, at: Instant) {
        match self.rivals[rival].unanswered.take() {
            Some(earlier) => {
                for number in [earlier, number] {
                    self.push(at, Happening::Answer { rival, number });
                }
            }
            None => {
                self.rivals[rival].unanswered = Some(number);
                // If the next packet is answered before, this event does nothing.
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
                // The return link is never busy.
                let back = self.hosts[1].way_out.impairments.delay;
                self.answer_later(rival, number, at + back);
            }
        }
        if let Some(at) = self.rivals[rival].next_wake(self.now) {
            self.push(at, Happening::Rival { rival });
        }
    }
}
