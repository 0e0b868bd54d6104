//! Senders of other implementations, which compete with the engine's for a link.
//!
//! A rival has packets of one size and no stream. When three later packets have arrived, it counts
//! a packet as lost and sends another. Its congestion controls follow those of Linux (`tcp_bbr.c`,
//! which is BBR's first version, and `tcp_cubic.c`) and share no code with the engine's. The
//! long-term rate of BBR against policers is absent.

use std::collections::VecDeque;

use crate::{Duration, Instant};

mod bbr;
mod cubic;

/// A full packet of a path of 1500 bytes.
pub(crate) const PACKET_BYTES: usize = 1_500;
/// The payload of a full packet, beside headers with a timestamp.
const PAYLOAD_BYTES: usize = PACKET_BYTES - 52;
/// The number of packets that may overtake a packet before it is assumed lost.
const REORDERING: u64 = 3;
/// After this long without an answer, every packet in flight is assumed lost.
const SILENCE_MAX: Duration = Duration::from_secs(1);
const INITIAL_WINDOW: f64 = 10.0;

/// The congestion control of a rival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// BBR, version 1: ignores loss.
    BbrOne,
    /// CUBIC, not paced.
    Cubic,
    /// NewReno, not paced.
    Reno,
}

#[derive(Debug)]
enum Control {
    Bbr(bbr::Bbr),
    Window(cubic::Window),
}

/// A packet in flight, with the inputs of a delivery rate.
#[derive(Debug)]
struct Packet {
    number: u64,
    sent_at: Instant,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
}

/// The input of the congestion control from one answer; counts are in packets.
#[derive(Clone, Copy, Debug)]
struct Step {
    now: Instant,
    round_trip: Duration,
    lost: u64,
    in_flight: u64,
    /// Packets a second.
    rate: f64,
    /// A round trip has passed.
    is_round: bool,
    /// Lost packets are being replaced.
    is_recovering: bool,
}

/// One sender.
#[derive(Debug)]
pub(crate) struct Rival {
    control: Control,
    out: VecDeque<Packet>,
    next: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    round_end: u64,
    /// Losses of packets before this number are one event.
    recovery_end: u64,
    is_recovering: bool,
    pace_at: Instant,
    wake_at: Instant,
    /// A packet that has arrived; its answer waits for the next packet.
    pub(crate) unanswered: Option<u64>,
}

impl Rival {
    pub(crate) fn new(kind: Kind, now: Instant) -> Self {
        Self {
            control: match kind {
                Kind::BbrOne => Control::Bbr(bbr::Bbr::new(now)),
                Kind::Cubic => Control::Window(cubic::Window::new(true)),
                Kind::Reno => Control::Window(cubic::Window::new(false)),
            },
            out: VecDeque::new(),
            next: 0,
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            round_end: 0,
            recovery_end: 0,
            is_recovering: false,
            pace_at: now,
            wake_at: now,
            unanswered: None,
        }
    }

    pub(crate) fn delivered_bytes(&self) -> u64 {
        self.delivered * PAYLOAD_BYTES as u64
    }

    /// Sends a packet now, if the window and the pace allow one; returns its number.
    pub(crate) fn send(&mut self, now: Instant) -> Option<u64> {
        let window = match &self.control {
            Control::Bbr(bbr) => bbr.window,
            Control::Window(window) => window.window,
        };
        if self.out.len() as f64 + 1.0 > window || now < self.pace_at {
            return None;
        }
        if let Control::Bbr(bbr) = &self.control
            && let Some(rate) = bbr.pacing_rate()
        {
            self.pace_at = self.pace_at.max(now) + Duration::from_micros((1e6 / rate) as u64);
        }
        if self.out.is_empty() {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        let number = self.next;
        self.next += 1;
        self.out.push_back(Packet {
            number,
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
        });
        Some(number)
    }

    /// The time of the rival's next action if no answer comes before; `None` if it will be woken
    /// earlier anyway.
    pub(crate) fn next_wake(&mut self, now: Instant) -> Option<Instant> {
        let at = if self.pace_at > now {
            self.pace_at
        } else {
            now + SILENCE_MAX
        };
        let is_earlier = self.wake_at <= now || at < self.wake_at;
        is_earlier.then(|| {
            self.wake_at = at;
            at
        })
    }

    /// Checks whether no answer has come for a long time.
    pub(crate) fn look_for_silence(&mut self, now: Instant) {
        let is_silent = now.since(self.delivered_at) >= SILENCE_MAX;
        let is_old = |packet: &Packet| now.since(packet.sent_at) >= SILENCE_MAX;
        if is_silent && self.out.front().is_some_and(is_old) {
            self.out.clear();
        }
    }

    /// The answer to a packet arrives.
    pub(crate) fn answer(&mut self, now: Instant, number: u64) {
        let Some(index) = self.out.iter().position(|packet| packet.number == number) else {
            return;
        };
        let packet = self.out.remove(index).expect("it was found");
        self.delivered += 1;
        self.delivered_at = now;
        self.first_sent_at = packet.sent_at;
        let mut lost = 0;
        let is_overtaken = |packet: &Packet| packet.number + REORDERING <= number;
        while self.out.front().is_some_and(is_overtaken) {
            let gone = self.out.pop_front().expect("it is there");
            lost += 1;
            if !self.is_recovering && gone.number >= self.recovery_end {
                self.is_recovering = true;
                self.recovery_end = self.next;
            }
        }
        if self.is_recovering && number >= self.recovery_end {
            self.is_recovering = false;
        }
        let is_round = packet.delivered >= self.round_end;
        if is_round {
            self.round_end = self.delivered;
        }
        let sending = packet.sent_at.since(packet.first_sent_at);
        let interval = sending.max(now.since(packet.delivered_at));
        let seconds = interval.as_secs_f64().max(1e-6);
        let step = Step {
            now,
            round_trip: now.since(packet.sent_at),
            lost,
            in_flight: self.out.len() as u64,
            rate: (self.delivered - packet.delivered) as f64 / seconds,
            is_round,
            is_recovering: self.is_recovering,
        };
        match &mut self.control {
            Control::Bbr(bbr) => bbr.step(&step),
            Control::Window(window) => window.step(&step),
        }
    }
}
