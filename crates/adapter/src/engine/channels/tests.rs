//! The engine as a client, against the daemon's end of its socket.

use std::net::Ipv4Addr;

use toehold_channel::doorbell;

use super::*;
use toehold_channel::layout::{REGION_BYTES, SLAB_SLOTS};
use toehold_stream::express::{Push, Turn};

use crate::regions::{begin_region, create_pair, create_slab};

struct Bench {
    channels: Channels,
    daemon: OwnedFd,
}

/// The daemon's offer, and the program's view of the ready bitmaps.
struct Made {
    message: Message,
    slab: OwnedFd,
    pair: OwnedFd,
    program: Pair,
}

impl Bench {
    fn new() -> Bench {
        let (channels, daemon) = Channels::new().expect("a table");
        let mut bench = Bench { channels, daemon };
        let (hello, kind) = bench.heard().expect("it says hello");
        assert_eq!((kind, hello.pid), (Kind::Hello, std::process::id()));
        bench
    }

    /// The next message to the daemon.
    fn heard(&mut self) -> Option<(Message, Kind)> {
        match wire::try_receive(self.daemon.as_fd()) {
            Ok(Received::Message(message, kind, _)) => Some((message, kind)),
            _ => None,
        }
    }

    /// Asks for a channel beside the carrier of a port; the request.
    fn ask(&mut self, port: u16) -> Message {
        let end = |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let index = self.channels.ask(0, (end(80), end(port)), true);
        let (message, kind) = self.heard().expect("a request");
        assert_eq!((kind, Some(message.entry)), (Kind::Pair, index));
        message
    }

    fn offer(&self, made: &Made, descriptors: &[BorrowedFd<'_>]) {
        let message = Message {
            attached: [0, SLAB_ATTACHED, SLAB_ATTACHED | PAIR_ATTACHED][descriptors.len()],
            ..made.message
        };
        let sent = wire::try_send(self.daemon.as_fd(), &message, descriptors);
        sent.expect("room");
    }

    /// Everything offered and found good.
    fn taken(&mut self) -> Vec<Offer> {
        let mut all = Vec::new();
        self.channels.offers(|_, offer| all.push(offer));
        all
    }

    /// Slots of flows that have news.
    fn news(&self) -> Vec<u32> {
        let mut all = Vec::new();
        let any = self.channels.sweep(|flow| all.push(flow), |_| {});
        assert_eq!(any, !all.is_empty());
        all
    }

    /// A channel of its own for a flow, in a pair of its own.
    fn entered(&mut self, pair: u64, slot: u32, flow: u32) -> (Message, Made) {
        let asked = self.ask(1_000 + flow as u16);
        let made = Made::new(&asked, pair, slot);
        self.offer(&made, &[made.slab.as_fd(), made.pair.as_fd()]);
        let offer = self.taken().pop().expect("a good offer");
        assert_eq!(
            (offer.entry, offer.pair, offer.slot),
            (asked.entry, pair, slot)
        );
        self.channels.enter(pair, slot, flow);
        (asked, made)
    }

    fn state(&self, index: u32) -> u32 {
        let entry = self.channels.table.entry(index);
        entry.state.load(Ordering::Relaxed)
    }
}

/// A client with a pair of processes, whose program lets so many connections wait.
pub(in crate::engine) fn with_queue(pair: u64, places: u32) -> Channels {
    let mut bench = Bench::new();
    let (_, made) = bench.entered(pair, 0, 0);
    made.program.acceptable().open(places);
    bench.channels
}

impl Made {
    fn new(asked: &Message, pair: u64, slot: u32) -> Made {
        let file = create_pair().expect("memfd");
        let slab = create_slab().expect("memfd");
        begin_region(&slab, slot).expect("memory");
        Made {
            message: Message {
                entry: asked.entry,
                generation: asked.generation,
                side: 0,
                slot,
                pair,
                ..Message::new(Kind::Offer)
            },
            slab,
            program: Pair::map(file.as_fd(), 1).expect("a pair"),
            pair: file,
        }
    }

    /// The engine's ready bitmap, as the program sees it.
    fn bitmap(&self) -> &ReadyBitmap {
        self.program.bitmap(0, 0).expect("there is one")
    }
}

#[test]
fn entry_is_used_again_under_another_generation() {
    let mut bench = Bench::new();
    let first = bench.ask(1_000);
    assert_eq!((first.local_port, first.remote_port), (80, 1_000));
    assert_eq!(bench.state(first.entry), EntryState::Live as u32);
    let other = bench.ask(1_001);
    assert_ne!(other.entry, first.entry);
    bench.channels.withdraw(first.entry, None);
    let (message, kind) = bench.heard().expect("told");
    assert_eq!((kind, message.entry), (Kind::Withdraw, first.entry));
    assert_eq!(message.generation, first.generation);
    assert_eq!(bench.state(first.entry), EntryState::Free as u32);
    let again = bench.ask(1_002);
    assert_eq!(again.entry, first.entry);
    assert_ne!(again.generation, first.generation);
}

#[test]
fn claims_of_a_parked_carrier_lead_to_its_queue() {
    let mut bench = Bench::new();
    let (_, made) = bench.entered(3, 5, 9);
    let claims = |bench: &Bench| {
        let (mut flows, mut pairs) = (Vec::new(), Vec::new());
        (bench.channels).sweep(|flow| flows.push(flow), |pair| pairs.push(pair));
        (flows, pairs)
    };
    doorbell::mark(made.bitmap(), 5);
    assert_eq!(claims(&bench), (vec![9], vec![]));
    let queued = Queued {
        slot: 5,
        turn: Turn::numbered(1).expect("small"),
    };
    let queue = Pusher {
        words: &made.program.header().queues[0],
        pushed: &made.program.queued,
    };
    assert_eq!(queue.push(queued), Ok(Push::Closed), "nothing is parked");
    bench.channels.hand_over((3, 5), None);
    bench.channels.await_claim((3, 5));
    assert_eq!(bench.channels.next_claim(3), None);
    assert_eq!(queue.push(queued), Ok(Push::Queued));
    doorbell::mark(made.bitmap(), 5);
    assert_eq!(claims(&bench), (vec![], vec![3]));
    assert_eq!(bench.channels.next_claim(3), Some(queued));
    assert_eq!(bench.channels.next_claim(3), None);
    bench.channels.hand_over((3, 5), Some(4));
    doorbell::mark(made.bitmap(), 5);
    assert_eq!(claims(&bench), (vec![4], vec![]));
}

#[test]
fn queues_of_a_pair_that_was_forgotten_go_on_where_they_were() {
    let mut bench = Bench::new();
    let (asked, made) = bench.entered(3, 5, 9);
    bench.channels.await_claim((3, 5));
    made.program.acceptable().open(ENTRIES_MAX as u32);
    let queued = |number| Queued {
        slot: 5,
        turn: Turn::numbered(number).expect("small"),
    };
    let theirs = Pusher {
        words: &made.program.header().queues[0],
        pushed: &made.program.queued,
    };
    for number in 1..4 {
        assert_eq!(theirs.push(queued(number)), Ok(Push::Queued));
        assert_eq!(bench.channels.next_claim(3), Some(queued(number)));
        let ours = bench.channels.queue(3).expect("a pair");
        assert_eq!(ours.push(queued(number)), Ok(Push::Queued));
        assert_eq!(made.program.acceptable().pop(), Ok(Some(queued(number))));
    }
    bench.channels.withdraw(asked.entry, Some((3, 5)));
    bench.heard().expect("told");
    bench.channels.pairs.clear();
    let again = bench.ask(1_100);
    let message = Message {
        entry: again.entry,
        generation: again.generation,
        ..made.message
    };
    let made = Made { message, ..made };
    bench.offer(&made, &[made.slab.as_fd(), made.pair.as_fd()]);
    assert_eq!(bench.taken().len(), 1);
    bench.channels.enter(3, 5, 9);
    let theirs = Pusher {
        words: &made.program.header().queues[0],
        pushed: &made.program.queued,
    };
    assert_eq!(theirs.push(queued(4)), Ok(Push::Queued));
    assert_eq!(bench.channels.next_claim(3), Some(queued(4)));
    let ours = bench.channels.queue(3).expect("a pair");
    assert_eq!(ours.push(queued(4)), Ok(Push::Queued));
}

/// It may say that there are more than there can be, or name a channel that is none.
#[test]
fn a_queue_of_nonsense_is_empty() {
    let mut bench = Bench::new();
    let (_, made) = bench.entered(3, 5, 9);
    bench.channels.await_claim((3, 5));
    let words = &made.program.header().queues[0];
    words.tail.store(1_000_000u32, Ordering::Relaxed);
    assert_eq!(bench.channels.next_claim(3), None);
    words.tail.store(1u32, Ordering::Relaxed);
    words.entries[0].store(u64::MAX, Ordering::Relaxed);
    assert_eq!(bench.channels.next_claim(3), None);
    assert_eq!(bench.channels.next_claim(4), None, "no such pair");
}

#[test]
fn daemon_that_does_not_listen_costs_no_entry() {
    let mut bench = Bench::new();
    let end = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
    let mut asked = 0;
    while bench.channels.ask(0, (end, end), false).is_some() {
        asked += 1;
        assert!(asked < 100_000, "the socket is never full");
    }
    assert_eq!(bench.channels.free.len(), 1);
    assert!(bench.channels.ask(0, (end, end), false).is_none());
    assert_eq!(bench.channels.used as usize, asked + 1);
}

#[test]
fn news_is_found_by_the_bit_of_its_channel() {
    let mut bench = Bench::new();
    let (_, one) = bench.entered(5, 0, 40);
    let (asked, other) = bench.entered(6, 130, 41);
    assert!(bench.news().is_empty());
    doorbell::mark(other.bitmap(), 130);
    assert_eq!(bench.news(), [41]);
    assert!(bench.news().is_empty(), "once");
    doorbell::mark(one.bitmap(), 0);
    doorbell::mark(one.bitmap(), 1);
    doorbell::mark(other.bitmap(), 130);
    assert_eq!(bench.news(), [40, 41], "and nobody has bit 1");
    bench.channels.withdraw(asked.entry, Some((6, 130)));
    doorbell::mark(other.bitmap(), 130);
    assert!(bench.news().is_empty(), "its channel is gone");
}

#[test]
fn programs_see_the_wake_word_set_while_the_engine_sleeps() {
    let mut bench = Bench::new();
    let (asked, made) = bench.entered(5, 0, 40);
    let sleeping = || made.bitmap().sleeping.load(Ordering::SeqCst);
    bench.channels.set_sleeping(true);
    assert_eq!(sleeping(), 1);
    bench.channels.set_sleeping(false);
    assert_eq!(sleeping(), 0);
    bench.channels.withdraw(asked.entry, Some((5, 0)));
    bench.channels.set_sleeping(true);
    assert_eq!(sleeping(), 0, "nobody would ring");
}

#[test]
fn ready_bitmaps_of_a_program_are_its_own_side_s() {
    let mut bench = Bench::new();
    let (_, made) = bench.entered(5, 0, 40);
    let theirs = bench.channels.their_bitmap(5, 2).expect("a bitmap");
    doorbell::mark(theirs, 9);
    let seen = made.program.bitmap(1, 2).expect("a bitmap");
    assert_eq!(seen.bits[0].load(Ordering::SeqCst), 1 << 9);
    assert!(
        bench
            .channels
            .their_bitmap(5, READY_BITMAPS as u32)
            .is_none()
    );
    assert!(bench.channels.their_bitmap(6, 0).is_none());
}

#[test]
fn pair_that_is_not_known_is_asked_for() {
    let mut bench = Bench::new();
    let asked = bench.ask(1_000);
    let made = Made::new(&asked, 5, 0);
    bench.offer(&made, &[made.slab.as_fd()]);
    assert!(bench.taken().is_empty());
    let (message, kind) = bench.heard().expect("a question");
    assert_eq!((kind, message.entry), (Kind::Resume, asked.entry));
    assert_eq!(message.generation, asked.generation);
    bench.offer(&made, &[made.slab.as_fd(), made.pair.as_fd()]);
    assert_eq!(bench.taken().len(), 1);
    // Known from here on.
    let asked = bench.ask(1_001);
    let next = Made::new(&asked, 5, 1);
    begin_region(&made.slab, 1).expect("memory");
    bench.offer(&next, &[]);
    assert_eq!(bench.taken().len(), 1);
    // The next slab is not.
    let next = Made::new(&asked, 5, SLAB_SLOTS);
    bench.offer(&next, &[]);
    assert!(bench.taken().is_empty());
    let (message, kind) = bench.heard().expect("a question");
    assert_eq!((kind, message.entry), (Kind::Resume, asked.entry));
    bench.offer(&next, &[next.slab.as_fd()]);
    assert_eq!(bench.taken().len(), 1);
}

#[test]
fn slab_that_is_shown_again_stays_and_another_takes_its_place() {
    let mut bench = Bench::new();
    let (_, made) = bench.entered(5, 0, 40);
    let asked = bench.ask(1_001);
    begin_region(&made.slab, 1).expect("memory");
    let mut beside = Made::new(&asked, 5, 1);
    beside.slab = made.slab.try_clone().expect("descriptors");
    bench.offer(&beside, &[beside.slab.as_fd(), made.pair.as_fd()]);
    let offer = bench.taken().pop().expect("a good offer");
    let base = |bench: &Bench| bench.channels.pairs[&5].slabs[0].expect("mapped").0;
    let before = base(&bench);
    let region =
        std::ptr::from_ref(offer.endpoint.end().ours()) as usize - before.as_ptr() as usize;
    assert!(
        (REGION_BYTES..2 * REGION_BYTES).contains(&region),
        "the second"
    );
    let asked = bench.ask(1_002);
    let other = Made::new(&asked, 5, 1);
    bench.offer(&other, &[other.slab.as_fd()]);
    assert_eq!(bench.taken().len(), 1);
    let number = bench.channels.pairs[&5].slabs[0].expect("mapped").1;
    assert_eq!(Some(number), memfd::number(other.slab.as_fd()).ok());
}

#[test]
fn offers_for_unknown_ends_and_invalid_offers_are_ignored() {
    let mut bench = Bench::new();
    let asked = bench.ask(1_000);
    let good = || Made::new(&asked, 5, 0);
    let mut late = good();
    late.message.generation -= 1;
    let mut unknown = good();
    unknown.message.entry = 9;
    let mut beyond = good();
    beyond.message.slot = READY_BITS as u32;
    let mut swapped = good();
    std::mem::swap(&mut swapped.slab, &mut swapped.pair);
    swapped.message.pair = 6;
    for made in [&late, &unknown, &beyond, &swapped] {
        bench.offer(made, &[made.slab.as_fd(), made.pair.as_fd()]);
    }
    let foreign = memfd::create(c"foreign", REGION_BYTES).expect("memfd");
    let made = good();
    bench.offer(&made, &[foreign.as_fd(), made.pair.as_fd()]);
    let mut short = good();
    short.message.slot = 9 * SLAB_SLOTS;
    bench.offer(&short, &[]);
    assert!(bench.taken().is_empty());
    bench.offer(&made, &[made.slab.as_fd(), made.pair.as_fd()]);
    assert_eq!(bench.taken().len(), 1, "a good one is still taken");
    // And not once its connection is gone.
    bench.channels.withdraw(asked.entry, None);
    bench.offer(&made, &[made.slab.as_fd(), made.pair.as_fd()]);
    assert!(bench.taken().is_empty());
}

#[test]
fn pairs_without_a_channel_are_forgotten_when_there_are_many() {
    let mut bench = Bench::new();
    let (_, kept) = bench.entered(1_000, 0, 3);
    for pair in 0..IDLE_PAIRS_MAX as u64 + 2 {
        let (asked, _) = bench.entered(pair, 0, 4);
        bench.channels.withdraw(asked.entry, Some((pair, 0)));
        bench.heard();
    }
    assert!(bench.channels.pairs.len() <= IDLE_PAIRS_MAX + 1);
    doorbell::mark(kept.bitmap(), 0);
    assert_eq!(bench.news(), [3], "what is used is kept");
}
