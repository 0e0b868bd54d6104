//! One end of a connection as the socket layer drives it, without sockets: the same calls on
//! [`End`] in the same order, with a model carrier. The model checker, the property tests and the
//! stress test use it.

use std::sync::Arc;

use super::carrier::Carrier;
use super::memory::{Memory, attach};
use toehold_channel::doorbell::{WakeWord, must_ring};
use toehold_channel::layout::RECORDS_OUTSTANDING_MAX;
use toehold_channel::ring::Fault;
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::{Entry, Mode};
use toehold_stream::credit::Credit;
use toehold_stream::end::End;
use toehold_stream::next::{self, Next};

#[cfg(loom)]
use super::single::Lock;
#[cfg(not(loom))]
use std::sync::Mutex as Lock;

/// A held lock of a direction.
#[cfg(loom)]
type Held<'a> = super::single::Held<'a, ()>;
#[cfg(not(loom))]
type Held<'a> = std::sync::MutexGuard<'a, ()>;

/// A connection: the region, both families' entries, the carrier's two directions.
pub(crate) struct Connection {
    memory: Memory,
    entries: [Entry; 2],
    /// Indexed by the side that sends on the carrier.
    carriers: [Carrier; 2],
    /// Indexed by side: one lock for sending, one for receiving, and one for the count of sleepers
    /// with the wake word.
    sending: [Lock<()>; 2],
    receiving: [Lock<()>; 2],
    sleepers: [Lock<u32>; 2],
}

/// One side of a [`Connection`].
#[derive(Clone)]
pub(crate) struct Party {
    connection: Arc<Connection>,
    side: usize,
}

/// The result of a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes, at least one.
    Bytes(Vec<u8>),
    /// No bytes yet.
    Nothing,
    /// No bytes ever again.
    End,
}

/// A fresh connection. Its carrier holds `room_bytes` in each direction; both ends are attached,
/// and both directions are on the carrier.
pub(crate) fn connect(room_bytes: usize) -> [Party; 2] {
    let connection = Arc::new(Connection {
        memory: Memory::new(),
        entries: [Entry::default(), Entry::default()],
        carriers: [Carrier::new(room_bytes), Carrier::new(room_bytes)],
        sending: [Lock::new(()), Lock::new(())],
        receiving: [Lock::new(()), Lock::new(())],
        sleepers: [Lock::new(0), Lock::new(0)],
    });
    [0, 1].map(|side| {
        let party = Party {
            connection: connection.clone(),
            side,
        };
        attach(&party.end());
        party
    })
}

/// As [`connect`], with both directions in their rings already and every record acknowledged.
pub(crate) fn connect_upgraded(room_bytes: usize) -> [Party; 2] {
    let parties = connect(room_bytes);
    for (one, other) in [(0, 1), (1, 0)] {
        assert_eq!(parties[one].try_up(), Ok(true));
        assert_eq!(parties[other].try_receive(1, false), Ok(Received::Nothing));
    }
    parties
}

impl Party {
    /// The channel's end.
    pub(crate) fn end(&self) -> End<'_> {
        let connection = &*self.connection;
        connection
            .memory
            .end(&connection.entries[self.side], self.side)
    }

    /// The region.
    #[cfg(not(loom))]
    pub(crate) fn memory(&self) -> &Memory {
        &self.connection.memory
    }

    /// The carrier towards the peer.
    pub(crate) fn carrier_out(&self) -> &Carrier {
        &self.connection.carriers[self.side]
    }

    /// The carrier from the peer.
    pub(crate) fn carrier_in(&self) -> &Carrier {
        &self.connection.carriers[1 - self.side]
    }

    /// Takes the send lock; repairs the state that a killed owner has left.
    fn lock_sending(&self) -> Held<'_> {
        let held = self.connection.sending[self.side].lock().unwrap();
        #[cfg(loom)]
        if held.is_inherited() {
            let end = self.end();
            match end.take_over_sending(Some(self.carrier_out().given())) {
                Ok(()) if end.tx_mode() == Mode::Ring => drop(self.ring(&end)),
                Ok(()) => {}
                Err(_) => self.carrier_out().reset(),
            }
        }
        held
    }

    /// Takes the receive lock; repairs the state that a killed owner has left.
    fn lock_receiving(&self) -> Held<'_> {
        let held = self.connection.receiving[self.side].lock().unwrap();
        #[cfg(loom)]
        if held.is_inherited() {
            let end = self.end();
            let repaired = end.take_over_receiving(Some(self.carrier_in().taken()));
            assert_eq!(repaired, Ok(()));
            if end.is_asked_for_credit() {
                let _held = self.lock_sending();
                if end.tx_mode() == Mode::Ring {
                    self.notify(&end).unwrap();
                }
            }
        }
        held
    }

    /// Another member of the family was killed: its sleep no longer counts.
    #[cfg(loom)]
    pub(crate) fn survive(&self) {
        *self.connection.sleepers[self.side].lock().unwrap() = 0;
        // A thread that is about to wait does so, too.
        drop(self.lock_receiving());
        drop(self.lock_sending());
    }

    /// Sends the bytes that can be sent now and returns their number.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> Result<usize, Fault> {
        let _held = self.lock_sending();
        let end = self.end();
        if end.tx_mode() != Mode::Ring {
            let sent = self.carrier_out().send(bytes);
            end.entry
                .tx_carrier
                .fetch_add(sent as u64, Ordering::Relaxed);
            return Ok(sent);
        }
        let sender = end.sender();
        let len = bytes.len().min(sender.credit(bytes.len() as u64)? as usize);
        if len > 0 {
            self.connection
                .memory
                .write(self.side, sender.reserve(len), &bytes[..len]);
            sender.publish(len);
            self.notify(&end)?;
        }
        Ok(len)
    }

    /// Sends all of `bytes`, sleeping for credit or room when there is none.
    pub(crate) fn send(&self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let sent = self.try_send(bytes)?;
            bytes = &bytes[sent..];
            if sent > 0 {
                continue;
            }
            if self.end().tx_mode() == Mode::Ring {
                self.wait_for_credit()?;
            } else {
                self.carrier_out().wait_for_room();
            }
        }
        Ok(())
    }

    /// Receives up to `len` bytes, which stay unread when `peek`.
    pub(crate) fn try_receive(&self, len: usize, peek: bool) -> Result<Received, Fault> {
        let _receiving = self.lock_receiving();
        let (received, look_for_sleeper) = self.receive_step(len, peek)?;
        // Inside the receive lock, as in the socket layer: a process that takes the lock over must
        // ring.
        let end = self.end();
        if look_for_sleeper && end.is_asked_for_credit() {
            let _sending = self.lock_sending();
            if end.tx_mode() == Mode::Ring {
                self.notify(&end)?;
            }
        }
        Ok(received)
    }

    fn receive_step(&self, len: usize, peek: bool) -> Result<(Received, bool), Fault> {
        let end = self.end();
        let carrier = self.carrier_in();
        let mut seen = next::Carrier::Unseen;
        loop {
            match end.next(seen, 0)? {
                Next::Ring(filled) => {
                    let receiver = end.receiver();
                    let len = len.min(filled.len as usize);
                    let bytes = self
                        .connection
                        .memory
                        .read(1 - self.side, receiver.peek(0, len, filled));
                    let crossed = !peek && receiver.consume(len, filled);
                    return Ok((Received::Bytes(bytes), crossed));
                }
                Next::Look => {
                    seen = self.look(carrier);
                    continue;
                }
                Next::Doorbells { max } => {
                    let are_needed = end.rx_mode() == Mode::Ring
                        && *self.connection.sleepers[self.side].lock().unwrap() > 0;
                    if are_needed {
                        return Ok((Received::Nothing, false));
                    }
                    let taken = carrier.receive(max.min(64) as usize, false).len();
                    end.entry
                        .rx_carrier
                        .fetch_add(taken as u64, Ordering::Relaxed);
                    if taken == 0 {
                        seen = self.look(carrier);
                        continue;
                    }
                }
                Next::Data { max } => {
                    let bytes = carrier.receive(len.min(max as usize), peek);
                    if !peek {
                        end.entry
                            .rx_carrier
                            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    }
                    return Ok((Received::Bytes(bytes), false));
                }
                Next::Wait => return Ok((Received::Nothing, false)),
                Next::End | Next::Cut => return Ok((Received::End, false)),
            }
            seen = next::Carrier::Unseen;
        }
    }

    /// The count and the end are read one after the other, in this order: bytes may come in
    /// between, and the end after the bytes.
    fn look(&self, carrier: &Carrier) -> next::Carrier {
        match carrier.waiting() {
            0 if carrier.is_at_end() => next::Carrier::Ended,
            0 => next::Carrier::Empty,
            waiting => next::Carrier::Waiting(waiting as u64),
        }
    }

    /// Receives up to `len` bytes; sleeps until there are some. No bytes at the end of the stream.
    pub(crate) fn receive(&self, len: usize) -> Result<Vec<u8>, Fault> {
        loop {
            match self.try_receive(len, false)? {
                Received::Bytes(bytes) => return Ok(bytes),
                Received::End => return Ok(Vec::new()),
                Received::Nothing => self.wait_for_bytes(),
            }
        }
    }

    /// Moves our direction to its ring if the rules allow it.
    pub(crate) fn try_up(&self) -> Result<bool, Fault> {
        let _held = self.lock_sending();
        let end = self.end();
        Ok(end.tx_mode() == Mode::Carrier && end.try_up()?)
    }

    /// Takes up to `seen` doorbells that a sleeper peeked at.
    #[cfg(loom)]
    pub(crate) fn take_seen(&self, seen: usize) {
        let _held = self.lock_receiving();
        self.drain_doorbells(&self.end(), seen as u64);
    }

    /// Asks the peer to send the unread bytes of the ring by the carrier.
    pub(crate) fn ask_to_resend(&self) -> bool {
        let _held = self.lock_receiving();
        self.end().ask_to_resend()
    }

    /// Moves our direction back to the carrier.
    pub(crate) fn go_down(&self) {
        let _held = self.lock_sending();
        let end = self.end();
        self.go_down_held(&end).unwrap();
        let acknowledged = end.theirs().consume.acknowledged.own();
        let outstanding = end.entry.tx_records.own() - acknowledged;
        assert!(outstanding <= RECORDS_OUTSTANDING_MAX);
    }

    /// Goes down and ends our direction: a half-close.
    pub(crate) fn shut_down(&self) {
        self.go_down();
        self.carrier_out().end();
    }

    /// Ends our direction in place: in its ring, unless the peer asks for its unread bytes by the
    /// carrier.
    #[cfg(loom)]
    pub(crate) fn close(&self) {
        let _held = self.lock_sending();
        let end = self.end();
        if end.tx_mode() == Mode::Ring && !end.forbid_resend() {
            self.go_down_held(&end).unwrap();
        }
        self.carrier_out().end();
    }

    /// Leaves the channel, if both directions are on the carrier and both ends know that.
    pub(crate) fn try_leave(&self) -> Result<bool, Fault> {
        let _receiving = self.lock_receiving();
        let _sending = self.lock_sending();
        self.end().try_leave()
    }

    /// Writes over both rings, as the end that frees them does.
    #[cfg(loom)]
    pub(crate) fn overwrite_rings(&self) {
        use toehold_channel::layout::CAPACITY_LOG2_MIN;
        use toehold_channel::ring::stretches;
        let len = 1 << CAPACITY_LOG2_MIN;
        for side in 0..2 {
            let whole = stretches(0, len, CAPACITY_LOG2_MIN);
            self.connection.memory.write(side, whole, &vec![0; len]);
        }
    }

    fn go_down_held(&self, end: &End<'_>) -> Result<(), Fault> {
        let unread = end.go_down(|peer_sleeps| {
            if peer_sleeps {
                let _ = self.ring(end);
            }
        });
        let entry = end.entry;
        if let Some(unread) = unread {
            let bytes = self.connection.memory.read(self.side, end.unread(unread)?);
            self.carrier_out().send_anyway(&bytes);
            let count = bytes.len() as u64;
            entry.tx_carrier.fetch_add(count, Ordering::Relaxed);
            end.unread_is_sent();
        }
        Ok(())
    }

    fn notify(&self, end: &End<'_>) -> Result<(), Fault> {
        if must_ring(&end.theirs().wake, |_| None)? && !self.ring(end) {
            self.go_down_held(end)?;
        }
        Ok(())
    }

    /// Asks for a doorbell, as a thread does before it sleeps.
    #[cfg(loom)]
    pub(crate) fn ask_for_doorbell(&self) {
        let bell = WakeWord::Bell.to_word();
        self.end().ours().wake.wake.store(bell, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Begins a call of the library: our direction follows the peer's wish.
    #[cfg(loom)]
    pub(crate) fn attend(&self) {
        let _held = self.lock_sending();
        let end = self.end();
        if end.is_wanted_down() || end.is_asked_to_resend() {
            self.go_down_held(&end).unwrap();
        }
    }

    /// Shares the carrier with a program that knows nothing of rings.
    #[cfg(loom)]
    pub(crate) fn lend(&self) {
        use toehold_stream::leaving::Refusal;
        use toehold_stream::silence::Doorbells;
        let end = self.end();
        end.refuse(Refusal::Paused);
        self.go_down();
        loop {
            let _held = self.lock_receiving();
            end.silence();
            if end.doorbells_to_take() == Doorbells::UnderWay {
                loom::thread::yield_now();
                continue;
            }
            end.ask_if_silent();
            while let Doorbells::Given(_) = end.doorbells_to_take() {
                let taken = self.carrier_in().receive(1, false).len() as u64;
                assert_eq!(taken, 1, "it was given");
                end.entry.rx_carrier.fetch_add(taken, Ordering::Relaxed);
            }
            return;
        }
    }

    /// Rings although no sleeper has asked for a doorbell.
    #[cfg(loom)]
    pub(crate) fn ring_once(&self) {
        let _held = self.lock_sending();
        let _ = self.ring(&self.end());
    }

    /// Sends a doorbell: one byte on the carrier. A full carrier needs none. False when the peer is
    /// silent.
    fn ring(&self, end: &End<'_>) -> bool {
        assert_eq!(end.tx_mode(), Mode::Ring, "the bell would be data");
        end.ring(|| {
            let rung = self.carrier_out().send(&[0]);
            let before = end
                .entry
                .tx_carrier
                .fetch_add(rung as u64, Ordering::Relaxed);
            end.entry
                .doorbells
                .fetch_add(rung as u32, Ordering::Relaxed);
            before + rung as u64
        })
    }

    /// Takes doorbells off the carrier, except those that have yet to wake a sleeper. Callers hold
    /// the receive lock.
    fn drain_doorbells(&self, end: &End<'_>, most: u64) {
        let waiting = end.doorbells(|| self.carrier_in().waiting() as u64);
        if waiting > 0 && *self.connection.sleepers[self.side].lock().unwrap() == 0 {
            let waiting = waiting.min(most) as usize;
            let taken = self.carrier_in().receive(waiting, false).len();
            end.entry
                .rx_carrier
                .fetch_add(taken as u64, Ordering::Relaxed);
        }
    }

    fn arm(&self, end: &End<'_>) {
        let mut sleepers = self.connection.sleepers[self.side].lock().unwrap();
        *sleepers += 1;
        end.ours()
            .wake
            .wake
            .store(WakeWord::Bell.to_word(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn disarm(&self, end: &End<'_>) {
        let mut sleepers = self.connection.sleepers[self.side].lock().unwrap();
        *sleepers -= 1;
        if *sleepers == 0 {
            end.ours()
                .wake
                .wake
                .store(WakeWord::None.to_word(), Ordering::SeqCst);
        }
    }

    fn wait_for_bytes(&self) {
        let end = self.end();
        {
            let _held = self.lock_receiving();
            end.ask_if_silent();
        }
        self.arm(&end);
        let news = end.reads_ring() && end.receiver().looks_filled() || end.is_record_due();
        if !news {
            self.carrier_in().wait_for_byte();
        }
        self.disarm(&end);
        let _held = self.lock_receiving();
        self.drain_doorbells(&end, u64::MAX);
    }

    /// Sleeps until the peer rings for credit, if it can; otherwise our direction goes down.
    fn wait_for_credit(&self) -> Result<(), Fault> {
        let end = self.end();
        {
            let _held = self.lock_receiving();
            end.incoming()?;
            self.drain_doorbells(&end, u64::MAX);
        }
        self.arm(&end);
        let sleep = {
            let _held = self.lock_sending();
            let asked = end.ask_for_credit(|| Ok(end.sender().credit_fresh()? == 0))?;
            if asked == Credit::Unreachable {
                self.go_down_held(&end)?;
            }
            asked == Credit::WillRing
        };
        if sleep && !self.carrier_in().wait_for_byte() {
            // The incoming direction ended, so the peer cannot ring.
            self.go_down();
        }
        end.stop_asking();
        self.disarm(&end);
        let _held = self.lock_receiving();
        self.drain_doorbells(&end, u64::MAX);
        Ok(())
    }
}
