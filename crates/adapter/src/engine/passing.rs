//! Passes frames to the engine thread that owns their connection.
//!
//! The kernel distributes the link's frames over the queues: for a few seconds to the queue to
//! which a connection's frames were last written, otherwise by a hash (`tun_automq_select_queue` in
//! drivers/net/tun.c). Connections belong to threads by our own hash ([`toehold_tcp::Share`]). So
//! after a silence, and when a remote connects, the first frame may come to the wrong thread, which
//! passes it on. The answer is written to the right queue, and the following frames come there.
//! AF_XDP spreads by the interface's own hash: with two threads, every second connection's frames
//! are passed on. Packet sockets get the frames of their own connections (`PACKET_FANOUT_CBPF`):
//! only ARP and packets with unusual headers are passed on there.
//!
//! A thread without a processor does not take its frames. When its inbox is full, a thread with
//! another frame for it *stalls*: it keeps that frame and receives no more until the inbox has
//! room. Meanwhile frames wait in the link's queue, and their senders notice that. No frame is lost
//! between threads.

use std::sync::Arc;

use toehold_tcp::{Engine, FrameOwner, Instant, ReceiveOffload};

use super::captures::Captures;
use super::common::Common;
use super::inbox::{Door, PassPurpose, Passed};
use super::memory::Streams;

/// The receivers of frames.
pub(super) struct Takers<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) streams: &'a mut Streams,
    pub(super) common: &'a Common,
    pub(super) passed_on: &'a mut PassedOn,
}

/// Frames passed on by one thread.
#[derive(Debug)]
pub(super) struct PassedOn {
    /// The thread's own door.
    door: Arc<Door>,
    /// Set while the thread stalls: the frame for which there was no room, and its thread.
    kept: Option<(usize, Passed)>,
    pub(super) taken: u64,
    /// Dropped frames: neighbours' messages and reassembled packets.
    pub(super) refused: u64,
    pub(super) stalls: u64,
}

impl PassedOn {
    pub(super) fn new(door: Arc<Door>) -> PassedOn {
        PassedOn {
            door,
            kept: None,
            taken: 0,
            refused: 0,
            stalls: 0,
        }
    }

    /// True while no frame may be taken from the link.
    #[inline]
    pub(super) fn is_stalled(&self) -> bool {
        self.kept.is_some()
    }

    /// Tries to pass the kept frame on. True when frames may be taken from the link again.
    pub(super) fn resume(&mut self, doors: &[Arc<Door>]) -> bool {
        if let Some((there, frame)) = self.kept.take() {
            self.pass(doors, there, frame);
        }
        self.kept.is_none()
    }

    fn pass(&mut self, doors: &[Arc<Door>], there: usize, frame: Passed) {
        match doors[there].pass(frame, &self.door) {
            Ok(()) => self.taken += 1,
            Err(frame) => self.kept = Some((there, frame)),
        }
    }

    fn pass_urgent(&mut self, doors: &[Arc<Door>], there: usize, frame: Passed) {
        if doors[there].pass_urgent(frame) {
            self.taken += 1;
        } else {
            self.refused += 1;
        }
    }
}

impl Takers<'_> {
    fn captures(&self) -> &Captures {
        &self.common.captures
    }

    /// A frame that the link has given us. Not to be called while [`PassedOn::is_stalled`].
    #[inline]
    pub(super) fn take(&mut self, now: Instant, frame: &[u8], offload: ReceiveOffload) {
        if self.engine.config().share.count() == 1 {
            return self.handle(now, frame, offload);
        }
        self.sort(now, frame, offload, (PassPurpose::Handle, Origin::Link));
    }

    /// Whether frames of the link may be handled together, because no capture needs the effect of
    /// each.
    #[inline]
    pub(super) fn take_together(&self) -> bool {
        !self.captures().is_watched()
    }

    /// Handles several frames of the link. Returns how many were taken: when another thread has no
    /// room for one of them, the later ones stay on the link. Only if [`Takers::take_together`],
    /// and not while [`PassedOn::is_stalled`].
    #[inline]
    pub(super) fn take_all<'f, I>(&mut self, now: Instant, (frames, count): (I, usize)) -> usize
    where
        I: Iterator<Item = (&'f [u8], ReceiveOffload)> + Clone,
    {
        if self.engine.config().share.count() == 1 {
            self.engine.handle_frames(now, frames, self.streams);
            return count;
        }
        let taken = self.sort_all(now, frames);
        match self.passed_on.is_stalled() {
            true => taken,
            false => count,
        }
    }

    /// As [`Takers::take_all`], with several threads: successive frames of our own connections are
    /// handled together.
    fn sort_all<'f, I>(&mut self, now: Instant, mut frames: I) -> usize
    where
        I: Iterator<Item = (&'f [u8], ReceiveOffload)> + Clone,
    {
        let own = FrameOwner::Engine(self.engine.config().share.index());
        let mut taken = 0;
        while !self.passed_on.is_stalled() {
            let is_own = |(frame, _): &(&[u8], _)| self.engine.frame_owner(frame) == own;
            let run = frames.clone().take_while(is_own).count();
            if run > 0 {
                let together = frames.clone().take(run);
                self.engine.handle_frames(now, together, self.streams);
                taken += run;
                frames.nth(run - 1);
            }
            let Some((frame, offload)) = frames.next() else {
                break;
            };
            self.sort(now, frame, offload, (PassPurpose::Handle, Origin::Link));
            taken += 1;
        }
        taken
    }

    /// A frame that another thread has given us.
    pub(super) fn take_passed(&mut self, now: Instant, passed: &Passed) {
        match passed.purpose {
            PassPurpose::Overhear => self.engine.overhear(&passed.bytes),
            purpose => {
                let purpose = (purpose, Origin::Thread);
                self.sort(now, &passed.bytes, passed.offload, purpose);
            }
        }
    }

    /// All threads agree on the owner of a frame, so a frame that was passed on is not passed on
    /// again.
    fn sort(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        (purpose, origin): (PassPurpose, Origin),
    ) {
        let here = self.engine.config().share.index();
        match self.engine.frame_owner(frame) {
            FrameOwner::Engine(there) | FrameOwner::Assembler(there) if there != here => {
                self.pass(there, frame, offload, (purpose, origin));
            }
            FrameOwner::Assembler(_) => self.put_together(now, frame),
            whose => {
                if whose == FrameOwner::Everybody {
                    let others = 0..self.common.doors.len();
                    for there in others.filter(|there| *there != here) {
                        self.pass(
                            there,
                            frame,
                            offload,
                            (PassPurpose::Overhear, Origin::Thread),
                        );
                    }
                }
                match purpose {
                    PassPurpose::HandleWhole => {
                        self.engine.handle_frame(now, frame, offload, self.streams);
                    }
                    _ => self.handle(now, frame, offload),
                }
            }
        }
    }

    #[inline]
    fn handle(&mut self, now: Instant, frame: &[u8], offload: ReceiveOffload) {
        let watched = self.captures().before_frame(self.engine, frame);
        self.engine.handle_frame(now, frame, offload, self.streams);
        if let Some(before) = watched {
            self.captures().note_received(self.engine, &before, frame);
        }
    }

    fn put_together(&mut self, now: Instant, frame: &[u8]) {
        let watched = self.captures().before_frame(self.engine, frame);
        let whole = self.engine.put_together(now, frame);
        if let Some(before) = watched {
            self.captures().note_received(self.engine, &before, frame);
        }
        if let Some(whole) = whole {
            // No link has verified a checksum that spans packets.
            let purpose = (PassPurpose::HandleWhole, Origin::Thread);
            self.sort(now, &whole, ReceiveOffload::default(), purpose);
        }
    }

    fn pass(
        &mut self,
        there: usize,
        frame: &[u8],
        offload: ReceiveOffload,
        (purpose, origin): (PassPurpose, Origin),
    ) {
        let passed = Passed {
            bytes: frame.to_vec(),
            offload,
            purpose,
        };
        let doors = &self.common.doors;
        match origin {
            Origin::Link => {
                debug_assert!(!self.passed_on.is_stalled(), "one frame is kept");
                self.passed_on.pass(doors, there, passed);
                self.passed_on.stalls += u64::from(self.passed_on.is_stalled());
            }
            Origin::Thread => self.passed_on.pass_urgent(doors, there, passed),
        }
    }
}

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The link, on which the next frames can wait.
    Link,
    /// A thread, this one or another: the frame cannot wait.
    Thread,
}

#[cfg(test)]
mod tests {
    use toehold_tcp::{Counters, HEADER_BUFFER_BYTES, MacAddress, Medium, Options, Random, Share};

    use super::*;
    use crate::engine::inbox::Inbox;
    use crate::engine::settings::Draft;
    use crate::engine::tcp_config::{config, mac};

    const NOW: Instant = Instant::ZERO;
    const REMOTE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const VERIFIED: ReceiveOffload = ReceiveOffload {
        checksum_verified: true,
    };

    struct Thread {
        engine: Engine,
        streams: Streams,
        passed_on: PassedOn,
        inbox: Inbox,
    }

    struct Threads {
        common: Common,
        all: Vec<Thread>,
    }

    impl Threads {
        fn new(count: u32) -> Threads {
            let mut draft = Draft::default();
            for (word, value) in [("link", "tap:toe0"), ("address", "10.84.0.2/24")] {
                draft.set(word, value).expect("valid");
            }
            let settings = draft.finish().expect("whole").expect("there");
            let mut random = Random::new(3);
            let all = Share::among(count, &mut random).into_iter();
            let all = all.map(|share| {
                let inbox = Inbox::new().expect("a descriptor");
                Thread {
                    engine: Engine::new(
                        config(&settings, mac(&settings), 1500, share),
                        Random::new(1),
                    ),
                    streams: Streams::new(1 << 30),
                    passed_on: PassedOn::new(inbox.door()),
                    inbox,
                }
            });
            let all: Vec<Thread> = all.collect();
            let doors = all.iter().map(|thread| thread.inbox.door()).collect();
            let (common, _) = Common::new(&settings, None, doors, &mut random).expect("loopback");
            Threads { common, all }
        }

        fn takers(&mut self, index: usize) -> Takers<'_> {
            let thread = &mut self.all[index];
            Takers {
                engine: &mut thread.engine,
                streams: &mut thread.streams,
                common: &self.common,
                passed_on: &mut thread.passed_on,
            }
        }

        /// The link gives a frame to a thread.
        fn arrive(&mut self, index: usize, frame: &[u8]) {
            self.takers(index).take(NOW, frame, VERIFIED);
        }

        /// Every thread takes what the others have passed on.
        fn exchange(&mut self) {
            for index in 0..self.all.len() {
                for passed in self.all[index].inbox.frames() {
                    self.takers(index).take_passed(NOW, &passed);
                }
            }
        }

        fn waiting(&self) -> usize {
            let waiting = self.all.iter().map(|thread| thread.inbox.frames().len());
            waiting.sum()
        }

        fn counts(&self, count: fn(&Counters) -> u64) -> Vec<u64> {
            let threads = self.all.iter();
            threads
                .map(|thread| count(&thread.engine.counters()))
                .collect()
        }

        fn mac(&self) -> [u8; 6] {
            match self.all[0].engine.config().medium {
                Medium::Ethernet {
                    mac: MacAddress(mac),
                    ..
                } => mac,
                Medium::Ip => unreachable!("a TAP device carries Ethernet"),
            }
        }

        /// A frame from the remote with an IPv4 packet, or a fragment of one that this port
        /// numbers.
        fn packet(&self, port: u16, place: u16, payload: &[u8]) -> Vec<u8> {
            let mut frame = [&self.mac()[..], &REMOTE_MAC, &[0x08, 0x00]].concat();
            let length = (20 + payload.len() as u16).to_be_bytes();
            let mut header = vec![0x45, 0, length[0], length[1]];
            header.extend(port.to_be_bytes());
            header.extend(place.to_be_bytes());
            header.extend([64, 6, 0, 0, 10, 84, 0, 1, 10, 84, 0, 2]);
            let words = header.chunks(2);
            let sum: u32 = (words.map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
            frame.extend(header);
            frame.extend(payload);
            frame
        }
    }

    /// A connection request from this port. Its checksum is the link's business.
    fn syn(port: u16) -> Vec<u8> {
        let mut segment = [port.to_be_bytes(), 80u16.to_be_bytes()].concat();
        segment.extend([0; 8]);
        segment.extend([0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
        segment
    }

    #[test]
    fn each_frame_is_handled_by_its_owner_and_by_nobody_else() {
        let mut threads = Threads::new(3);
        for port in 1..=300 {
            let frame = threads.packet(port, 0, &syn(port));
            threads.arrive(usize::from(port % 3), &frame);
        }
        threads.exchange();
        assert_eq!(threads.waiting(), 0, "passed on once");
        let handled = threads.counts(|counters| counters.segments_received);
        assert_eq!(handled.iter().sum::<u64>(), 300);
        assert!(handled.iter().all(|count| *count > 60), "{handled:?}");
        let passed = threads.all.iter().map(|thread| thread.passed_on.taken);
        assert!(passed.sum::<u64>() > 120);
    }

    /// The link gives a thread frames of all connections at once.
    #[test]
    fn frames_that_come_together_are_handled_by_their_owners() {
        let mut threads = Threads::new(2);
        let frames: Vec<Vec<u8>> = (1..=200)
            .map(|port| threads.packet(port, 0, &syn(port)))
            .collect();
        for together in frames.chunks(16) {
            let all = together.iter().map(|frame| (&frame[..], VERIFIED));
            let taken = threads.takers(0).take_all(NOW, (all, together.len()));
            assert_eq!(taken, together.len());
        }
        threads.exchange();
        let is_here =
            |frame: &&Vec<u8>| threads.all[0].engine.frame_owner(frame) == FrameOwner::Engine(0);
        let here = frames.iter().filter(is_here).count() as u64;
        let handled = threads.counts(|counters| counters.segments_received);
        assert_eq!(handled, [here, 200 - here]);
        assert_eq!(threads.all[0].passed_on.taken, 200 - here);
    }

    #[test]
    fn fragments_meet_in_one_thread_and_the_whole_goes_to_its_owner() {
        let mut threads = Threads::new(3);
        for port in 1..=60 {
            let segment = {
                let mut segment = syn(port);
                // The engine must verify this checksum itself.
                let ends = [10, 84, 0, 1, 10, 84, 0, 2, 0, 6, 0, 20];
                let words = ends.chunks(2).chain(segment.chunks(2));
                let sum: u32 =
                    (words.map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))).sum();
                let folded = (sum & 0xffff) + (sum >> 16);
                segment[16..18].copy_from_slice(&(!(folded as u16)).to_be_bytes());
                segment
            };
            let first = threads.packet(port, 0x2000, &segment[..8]);
            let second = threads.packet(port, 1, &segment[8..]);
            threads.arrive(usize::from(port % 3), &second);
            threads.arrive(usize::from(port % 2), &first);
        }
        threads.exchange();
        threads.exchange();
        assert_eq!(threads.waiting(), 0);
        let handled = threads.counts(|counters| counters.segments_received);
        assert_eq!(handled.iter().sum::<u64>(), 60);
        assert!(handled.iter().all(|count| *count > 5), "{handled:?}");
        let bad = threads.counts(|counters| counters.malformed_total());
        assert_eq!(bad, [0, 0, 0]);
    }

    #[test]
    fn one_engine_answers_a_neighbour_and_all_learn_its_address() {
        let mut threads = Threads::new(3);
        let mut question = [&[0xff; 6][..], &REMOTE_MAC, &[0x08, 0x06]].concat();
        question.extend([0, 1, 8, 0, 6, 4, 0, 1]);
        question.extend(REMOTE_MAC);
        question.extend([10, 84, 0, 1, 0, 0, 0, 0, 0, 0, 10, 84, 0, 2]);
        threads.arrive(1, &question);
        threads.exchange();
        for index in 0..3 {
            let engine = &mut threads.all[index].engine;
            let mut header = [0; HEADER_BUFFER_BYTES];
            let answer = engine.poll_transmit(NOW, &mut header);
            assert_eq!(answer.is_some(), index == 1);
            assert!(engine.poll_transmit(NOW, &mut header).is_none());
            let remote = "10.84.0.1:80".parse().expect("address");
            let opened = engine.connect(NOW, None, remote, Options::default());
            opened.expect("opened");
            assert!(engine.poll_transmit(NOW, &mut header).is_some());
            assert_eq!(header[12..14], [0x08, 0x00], "no question of its own");
            assert_eq!(header[..6], REMOTE_MAC);
        }
    }

    #[test]
    fn thread_whose_frame_finds_no_room_waits_until_there_is() {
        let mut threads = Threads::new(2);
        let port = (1..).find(|&port| {
            let frame = threads.packet(port, 0, &syn(port));
            threads.all[0].engine.frame_owner(&frame) == FrameOwner::Engine(1)
        });
        let port = port.expect("half of them");
        let mut payload = syn(port);
        payload.resize(60_000, 0);
        let frame = threads.packet(port, 0, &payload);
        let mut arrived = 0;
        let mut handled = 0;
        while arrived < 1_000 {
            while arrived < 1_000 && !threads.all[0].passed_on.is_stalled() {
                threads.arrive(0, &frame);
                arrived += 1;
            }
            handled += threads.waiting();
            let doors = &threads.common.doors;
            assert!(
                threads.all[0].passed_on.resume(doors),
                "there is room again"
            );
        }
        handled += threads.waiting();
        let passed_on = &threads.all[0].passed_on;
        assert!(passed_on.stalls > 10, "{passed_on:?}");
        assert_eq!((passed_on.taken, passed_on.refused), (1_000, 0));
        assert_eq!(handled, 1_000);
        // When several frames come together, those behind it stay on the link.
        let together = (0..1_000).map(|_| (&frame[..], VERIFIED));
        let taken = threads.takers(0).take_all(NOW, (together, 1_000));
        assert!(threads.all[0].passed_on.is_stalled() && taken < 1_000);
        assert_eq!(threads.waiting(), taken - 1, "one is kept");
    }
}
