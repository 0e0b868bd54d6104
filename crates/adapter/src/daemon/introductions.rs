//! Pairing: the requests of clients, the offers to them, and the regions that are taken back when
//! none is left.

use super::Daemon;
use super::connection::{Connection, Outgoing};
use super::connections::Fault;
use super::doorbells::Doorbell;
use super::survivors::Outcome as Done;
use crate::diag::Diag;
use crate::pressure::Sampled;
use crate::proc;
use crate::proof::{self, Proved};
use crate::regions::Memory;
use crate::registry::{
    Address, Ask, ChannelId, ClientId, End, Ended, Introduction, Match, Outcome, PairId, Tuple,
};
use crate::tables::Tables;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;
use toehold_channel::layout::CAPACITY_LOG2_MAX;
use toehold_channel::rendezvous::{
    DOORBELLS_ATTACHED, GOES_ON, Kind, Message, PAIR_ATTACHED, SAME_USER, SLAB_ATTACHED,
};
use toehold_channel::table::{COMMAND_DETACH, Reason};

impl Daemon {
    /// Asks for a partner of the end that `shown` is. The engine's threads show nothing: they are
    /// in this process, and say what is so.
    pub(super) fn handle_pair(
        &mut self,
        id: ClientId,
        message: &Message,
        shown: Option<OwnedFd>,
    ) -> Result<(), Fault> {
        let end = self.end_of(id, message)?;
        let connection = self.clients.get_mut(&id).expect("it spoke");
        connection.asks_since_sweep = connection.asks_since_sweep.saturating_add(1);
        let Some(entry) = self.tables.current(end) else {
            // Closed since; or nonsense, which costs nobody anything.
            return Ok(());
        };
        if entry.command.load(Ordering::Relaxed) == COMMAND_DETACH {
            self.tables.set_verdict(end, Reason::Detached);
            return Ok(());
        }
        let is_engine = shown.is_none();
        self.take_namespace(id);
        let proved = self.examine(id, message, shown);
        self.reserve_descriptor();
        let proved = match proved {
            Ok(proved) => proved,
            Err(reason) => {
                self.tables.set_verdict(end, reason);
                return Ok(());
            }
        };
        // Where a rule speaks of captures, the other end decides, too.
        let is_known = !self.options.rules.has_capture_rule();
        if !is_engine && is_known && self.is_captured(end, &proved.tuple) {
            self.tables.set_verdict(end, Reason::Captured);
            self.forget_socket(proved.cookie);
            return Ok(());
        }
        let ask = self.ask_of(id, message, end, &proved);
        self.tables.clear_evict(end);
        match self.ask(&ask) {
            Outcome::Waiting(reason) | Outcome::Refused(reason) => {
                self.tables.set_verdict(end, reason);
                // A reason that keeps two ends apart that know of each other is told to both.
                let other = ask.partner.or_else(|| self.registry.other_of(&ask));
                if let Some(other) = other.filter(|_| reason != Reason::Unsupported) {
                    self.tables.set_verdict(other, reason);
                }
                self.forget_socket(proved.cookie);
            }
            Outcome::Matched(matched) => drop(self.introduce(&matched)),
        }
        Ok(())
    }

    /// The proof by the socket that a client has shown, or the client's word where that is enough.
    ///
    /// The socket is closed before any answer: the program may close its own then, and the
    /// connection ends with it.
    fn examine(
        &mut self,
        id: ClientId,
        message: &Message,
        shown: Option<OwnedFd>,
    ) -> Result<Proved, Reason> {
        match shown {
            Some(shown) if !self.may_claim(id) => {
                drop(shown);
                Err(Reason::OverQuota)
            }
            Some(shown) => self.prove(id, message, shown),
            None => Ok(Proved {
                tuple: tuple_of(message, self.diag.as_ref().map_or(0, Diag::namespace)),
                cookie: 0,
                facts: None,
                peer_uid: None,
            }),
        }
    }

    /// The request of an end, which is current, for the registry.
    fn ask_of(&mut self, id: ClientId, message: &Message, end: End, proved: &Proved) -> Ask {
        let listener = self.listener_of(id, message);
        let uid = self.clients[&id].uid;
        let partner = self.partner_by_facts(end, uid, proved);
        let mapped = self.tables.get(end.table).expect("a current entry's");
        Ask {
            client: id,
            entry: end.entry,
            generation: end.generation,
            tuple: proved.tuple,
            cookie: proved.cookie,
            numbers: proved.facts.map(|facts| facts.numbers),
            partner,
            peer_uid: proved.peer_uid,
            accepted: mapped.is_accepted(end.entry),
            listener,
            forks: message.slot,
            wants_slab: message.side == 1,
        }
    }

    /// Asks the registry: once more without the client's stale ends, where these may be why there
    /// is no room.
    fn ask(&mut self, ask: &Ask) -> Outcome {
        let outcome = self.registry.ask(*ask, &is_current(&self.tables));
        let client = self.clients.get_mut(&ask.client).expect("it spoke");
        let is_swept = client.asks_since_sweep < ASKS_PER_SWEEP_MIN;
        if outcome != Outcome::Refused(Reason::NoResources) || is_swept {
            return outcome;
        }
        client.asks_since_sweep = 0;
        self.registry.sweep(ask.client, &is_current(&self.tables));
        self.registry.ask(*ask, &is_current(&self.tables))
    }

    /// A request whose socket we had no place for.
    pub(super) fn handle_stripped_pair(
        &mut self,
        id: ClientId,
        message: &Message,
    ) -> Result<(), Fault> {
        let end = self.end_of(id, message)?;
        self.tables.set_verdict(end, Reason::NoResources);
        Ok(())
    }

    /// The end that a client's message is about.
    fn end_of(&self, id: ClientId, message: &Message) -> Result<End, Fault> {
        let table = self.clients[&id].table.ok_or(Fault::OutOfTurn)?;
        Ok(End {
            table,
            entry: message.entry,
            generation: message.generation,
        })
    }

    fn prove(&self, id: ClientId, message: &Message, shown: OwnedFd) -> Result<Proved, Reason> {
        let own = self.diag.as_ref().ok_or(Reason::NoProof)?;
        let Tuple { local, remote, .. } = tuple_of(message, own.namespace());
        let shown_diag = self
            .clients
            .get(&id)
            .and_then(|client| client.diag.as_ref());
        let shown = (shown, [local, remote]);
        proof::examine(shown, own, shown_diag, self.proving.witness())
    }

    /// The inode of the socket that a connection was accepted at, if the client's process has it.
    /// Whoever has that socket may accept what comes there.
    fn listener_of(&self, id: ClientId, message: &Message) -> u64 {
        let client = &self.clients[&id];
        let inode = u32::try_from(message.listener)
            .ok()
            .and_then(|number| proc::socket_inode(client.pid, number.checked_sub(1)?));
        // Afterwards: while the process lives, its number is no other's.
        inode.filter(|_| !client.process_has_ended()).unwrap_or(0)
    }

    /// Whether the user of a client may make one claim more now.
    fn may_claim(&mut self, id: ClientId) -> bool {
        let uid = self.clients.get(&id).map(|client| client.uid);
        uid.is_none_or(|uid| self.proving.may_claim(uid, 1, Instant::now()))
    }

    /// A client shows a namespace. Nobody else's claims are looked at with it.
    pub(super) fn handle_namespace(&mut self, id: ClientId, shown: OwnedFd) -> Result<(), Fault> {
        let diag = Diag::shown(shown).ok_or(Fault::Descriptors)?;
        self.clients.get_mut(&id).expect("it spoke").shown_diag = Some(diag);
        self.take_namespace(id);
        Ok(())
    }

    /// Begins to use the socket that a client has shown for its namespace. The witness must see
    /// that the client has closed it: a client that still had the socket could make a call of ours
    /// wait (`nl_cb_mutex` in the kernel). The library closes the socket before its next request.
    fn take_namespace(&mut self, id: ClientId) {
        let witness = self.proving.witness();
        let is_ours = |diag: &Diag| witness.is_none_or(|witness| diag.is_ours_alone(witness));
        let client = self.clients.get_mut(&id).expect("it spoke");
        if client.shown_diag.as_ref().is_some_and(is_ours) {
            client.diag = client.shown_diag.take();
        }
    }

    /// Whether an end's socket is established at this moment: it was when it was shown, and another
    /// may have its addresses since.
    fn is_established(&self, client: ClientId, end: End) -> bool {
        if self.engine_clients.contains(&client) {
            return true;
        }
        let Some((tuple, cookie)) = self.registry.claim(end) else {
            return false;
        };
        let diag = self.diag_of(client, tuple.netns);
        diag.is_some_and(|diag| diag.established(&tuple, cookie).is_some())
    }

    /// The [`Diag`] that speaks of a namespace: our own, or the one that a client has shown.
    pub(super) fn diag_of(&self, client: ClientId, netns: u64) -> Option<&Diag> {
        let shown_diag = self.clients.get(&client).and_then(|it| it.diag.as_ref());
        let mut diags = self.diag.iter().chain(shown_diag);
        diags.find(|diag| diag.namespace() == netns)
    }

    /// Whether a client may speak for an end: the one in whose name it is, or another process of
    /// the family and of that one's user.
    pub(super) fn speaks_for(&self, id: ClientId, end: End) -> bool {
        let uid = |id| self.clients.get(&id).map(|client: &Connection| client.uid);
        let owner = self.registry.owner(end);
        owner.is_none_or(|owner| owner == id || uid(owner) == uid(id))
    }

    pub(super) fn handle_withdraw(&mut self, id: ClientId, message: &Message) -> Result<(), Fault> {
        let end = self.end_of(id, message)?;
        if !self.speaks_for(id, end) {
            return Ok(());
        }
        let partner = self.registry.partner(end);
        // A partner that left the channel before can give up the region now. Where the connection
        // has ended, the carrier tells the partner.
        if let Some(partner) = partner.filter(|_| message.side == GOES_ON) {
            self.calls.want(partner.table);
        }
        self.registry.withdraw(id, end.entry, end.generation);
        // It has given its region back, which is all that was wanted; it may ask again.
        self.tables.clear_evict(end);
        Ok(())
    }

    /// Gives up the memory of what has ended.
    pub(super) fn release_regions(&mut self) {
        let now = Instant::now();
        while let Some(ended) = self.registry.poll_ended() {
            if let Ended::Channel(channel) = ended {
                self.budgets.forget(channel);
            }
            self.regions.close(ended, now);
        }
    }

    /// Gives back pages of channels that have ended, on other threads: a process that has the slab
    /// may hold the lock of its file.
    pub(super) fn give_back_pages(&mut self) {
        let Some(aside) = &self.aside else { return };
        while let Some(part) = self.regions.poll_give_back() {
            let found = aside.found.clone();
            let key = part.pair.0;
            let deliver = move |region: Option<_>| {
                if let Some(region) = region {
                    found.add(Done::GaveBack(region));
                }
            };
            aside.givers.ask(key, move || part.run(), deliver);
        }
    }

    /// A pair's number as clients know it.
    pub(super) fn spoken(&self, pair: PairId) -> u64 {
        self.pair_numbers.wrapping_add(pair.0)
    }

    /// The sides of a match whose sockets are established no more.
    fn gone(&self, matched: &Match) -> Vec<Introduction> {
        let sides = matched.sides.iter().copied();
        let gone = sides.filter(|side| !self.is_established(side.client, side.end));
        gone.collect()
    }

    /// Introduces what had to wait for a region, as far as there are regions and
    /// descriptors now.
    pub(super) fn introduce_held_back(&mut self) {
        while self.regions.has_room_for_any() {
            let next = self.registry.poll_held_back(&is_current(&self.tables));
            let introduced = next.map(|matched| self.introduce(&matched));
            if !matches!(introduced, Some(Ok(()))) {
                return;
            }
        }
    }

    /// Makes a channel's memory and offers it to both ends. Without memory or descriptors for it
    /// both wait.
    pub(super) fn introduce(&mut self, matched: &Match) -> io::Result<()> {
        let ends = matched.sides.each_ref().map(|side| side.end);
        // Its slot may be that of a channel which has ended in this turn.
        self.release_regions();
        if !self.regions.has_room(matched) {
            self.registry.postpone(matched);
            self.set_verdicts(ends, Reason::NoResources);
            self.log.log_limited("memory", || {
                "no descriptors left for the memory of more programs".into()
            });
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if !self.is_match_valid(matched, ends) {
            return Ok(());
        }
        if let Some(reason) = self.reason_against(ends) {
            self.registry.hold(matched);
            self.set_verdicts(ends, reason);
            return Ok(());
        }
        let memory = self.regions.create(matched).inspect_err(|error| {
            for end in ends {
                self.tables.set_verdict(end, Reason::NoResources);
            }
            if error.kind() == io::ErrorKind::WouldBlock {
                self.registry.hold(matched);
                return;
            }
            self.registry.postpone(matched);
            let why = || format!("cannot make a region: {error}");
            self.log.log_limited("memory", why);
        })?;
        self.count_in_budget(matched.channel, ends);
        self.show_to_captures_by_both(ends);
        self.log
            .log_limited("pair", || "paired a connection of two programs".into());
        self.offer_to_both(matched, ends, &memory);
        Ok(())
    }

    fn set_verdicts(&self, ends: [End; 2], reason: Reason) {
        for end in ends {
            self.tables.set_verdict(end, reason);
        }
    }

    /// Whether the sockets of a match are established still, and the facts that matched them hold.
    /// Otherwise the match is postponed, and both ends know why.
    fn is_match_valid(&mut self, matched: &Match, ends: [End; 2]) -> bool {
        let mut gone = self.gone(matched);
        let has_facts = self.proving.witness().is_some() && !self.is_engines(ends);
        if gone.is_empty() && has_facts {
            let holds = self.holds_by_facts(ends);
            // The facts are of these two sockets if both are there still.
            gone = self.gone(matched);
            if gone.is_empty() && !holds {
                self.postpone_for_facts(matched);
                self.set_verdicts(ends, Reason::NoPartner);
                return false;
            }
        }
        if gone.is_empty() {
            return true;
        }
        self.registry.postpone(matched);
        for side in gone {
            let End {
                entry, generation, ..
            } = side.end;
            self.registry.withdraw(side.client, entry, generation);
        }
        self.set_verdicts(ends, Reason::Closing);
        false
    }

    /// The reason why two ends that belong together are not introduced for now.
    fn reason_against(&mut self, ends: [End; 2]) -> Option<Reason> {
        let uid = |id| self.clients.get(&id).map(|client: &Connection| client.uid);
        match self.registry.know_each_other(ends, uid) {
            false => Some(Reason::OtherUser),
            true if self.rule_against(ends).is_some() => Some(Reason::Policy),
            true => (!self.has_budget(ends)).then_some(Reason::OverBudget),
        }
    }

    fn offer_to_both(&mut self, matched: &Match, ends: [End; 2], memory: &Memory) {
        let uids = matched.sides.each_ref().map(|side| {
            let client: Option<&Connection> = self.clients.get(&side.client);
            client.map(|client| client.uid)
        });
        // A carrier that goes through address translation, or between namespaces, is one that rules
        // of the kernel's have a say in, for each connection anew.
        let is_plain = self.registry.translated(ends[0]).is_none();
        let is_one_user = is_plain && uids[0].is_some() && uids[0] == uids[1];
        // One end has accepted the connection.
        let listener = ends.iter().map(|&end| self.registry.listener(end)).max();
        let listener = listener.filter(|_| is_plain).unwrap_or(0);
        let doorbells = self.doorbells_for(matched, ends, uids);
        for (side, introduction) in matched.sides.iter().enumerate() {
            let mut offer = offer_of(matched, side as u32, introduction, memory);
            if let Some(doorbells) = &doorbells {
                let own_and_peers = [&doorbells[side].heard, &doorbells[1 - side].rung];
                offer.message.attached |= DOORBELLS_ATTACHED;
                offer.descriptors.extend(own_and_peers.map(Clone::clone));
            }
            offer.message.pair = self.spoken(matched.pair);
            if is_one_user {
                offer.message.attached |= SAME_USER;
            }
            offer.message.listener = listener;
            if self.send(introduction.client, offer).is_err() {
                self.drop_client(introduction.client, &Fault::Deaf);
            }
        }
    }

    /// The doorbells of a new pair, by side. Only the two processes keep them: a program that
    /// replaces itself does without. The engine looks at its rings by itself, and a process needs
    /// no doorbell to wake itself. Without free descriptors there are none, and carriers are rung.
    fn doorbells_for(
        &mut self,
        matched: &Match,
        ends: [End; 2],
        uids: [Option<u32>; 2],
    ) -> Option<[Doorbell; 2]> {
        if !matched.sides.iter().all(|side| side.pair_attached) || self.is_engines(ends) {
            return None;
        }
        let now = Instant::now();
        for uid in uids {
            self.doorbell_quotas.take(uid?, 1, now).then_some(())?;
        }
        Some([Doorbell::new().ok()?, Doorbell::new().ok()?])
    }

    /// Under pressure, has the least active channels give up their regions. A program that sleeps
    /// does so at its next call, unless that uses the channel. Until then its region costs the
    /// pages it last used.
    pub(super) fn relieve_pressure(&mut self) {
        let now = Instant::now();
        if self
            .weighed
            .is_none_or(|weighed| now >= weighed + self.options.sample_interval)
        {
            self.weighed = Some(now);
            let shares = self
                .registry
                .channels()
                .map(|(_, ends)| shares(&self.tables, ends));
            self.shares_beyond_one = shares.map(|shares| shares - 1).sum();
        }
        let in_use = self.registry.channel_count() + self.shares_beyond_one;
        // When slabs run out there is pressure, too.
        let in_use = in_use.max(self.shares_of_slabs());
        if !self.pressure.is_on(in_use, self.options.regions_max) {
            self.sample_next = None;
            return;
        }
        if self.sample_due.is_some_and(|due| now < due) {
            return;
        }
        let (registry, tables) = (&self.registry, &self.tables);
        let channels: BTreeMap<ChannelId, [End; 2]> = registry.channels().collect();
        let sampled = channels.iter().map(|(&id, &ends)| {
            let sampled = Sampled {
                activity: activity(tables, ends),
                shares: shares(tables, ends),
                is_told: ends.iter().any(|&end| tables.is_commanded(end)),
            };
            (id, sampled)
        });
        let chosen = self.pressure.sample(sampled);
        tables.set_spare(chosen.iter().flat_map(|id| channels[id]));
        self.sample_due = Some(now + self.options.sample_interval);
        // One more sample finds the channels that were kept: a library that keeps one sends no
        // message. Once enough is under way, the messages of libraries bring the next sample.
        let may_find_more = self.pressure.wants_more() || !chosen.is_empty();
        self.sample_next = self.sample_due.filter(|_| may_find_more);
        if !chosen.is_empty() {
            let text = || format!("evicting the {} least active regions", chosen.len());
            self.log.log_limited("pressure", text);
        }
    }

    /// The used part of the slabs that there may be, in shares.
    fn shares_of_slabs(&self) -> usize {
        let [used, most] = self.regions.slabs();
        let shares = used as u128 * self.options.regions_max as u128 / most.max(1) as u128;
        usize::try_from(shares).unwrap_or(usize::MAX)
    }
}

fn offer_of(matched: &Match, side: u32, to: &Introduction, memory: &Memory) -> Outgoing {
    let slab = to.wants_slab || !memory.shown[side as usize];
    let attached =
        if slab { SLAB_ATTACHED } else { 0 } | if to.pair_attached { PAIR_ATTACHED } else { 0 };
    let slab = slab.then_some(&memory.slab);
    let pair = to.pair_attached.then_some(&memory.pair);
    Outgoing {
        message: Message {
            entry: to.end.entry,
            generation: to.end.generation,
            side,
            slot: matched.slot,
            attached,
            ..Message::new(Kind::Offer)
        },
        descriptors: slab.into_iter().chain(pair).cloned().collect(),
        offer: Some(to.end),
    }
}

pub(super) fn is_current(tables: &Tables) -> impl Fn(End) -> bool + '_ {
    |end| tables.current(end).is_some()
}

fn tuple_of(message: &Message, netns: u64) -> Tuple {
    Tuple {
        netns,
        local: Address::Internet {
            ip: message.local,
            port: message.local_port,
        },
        remote: Address::Internet {
            ip: message.remote,
            port: message.remote_port,
        },
    }
}

/// Ring bytes both ends have moved: it stands still while a channel is idle.
fn activity(tables: &Tables, ends: [End; 2]) -> u64 {
    let of_end = |end| {
        tables.current(end).map_or(0u64, |entry| {
            let sent = entry.tx_ring.load(Ordering::Relaxed).shown();
            sent.wrapping_add(entry.rx_ring.load(Ordering::Relaxed).shown())
        })
    };
    of_end(ends[0]).wrapping_add(of_end(ends[1]))
}

/// Megabytes that a channel's rings may hold, at least one.
fn shares(tables: &Tables, ends: [End; 2]) -> usize {
    let of_end = |end| {
        tables.current(end).map_or(0, |entry| {
            let log2 = entry.tx_capacity_log2.load(Ordering::Relaxed);
            1usize << log2.capped(CAPACITY_LOG2_MAX)
        })
    };
    ((of_end(ends[0]) + of_end(ends[1])) >> 20).max(1)
}

/// A client at its quota has its stale ends looked for at most once in so many requests: that walks
/// all its ends.
const ASKS_PER_SWEEP_MIN: u32 = 1024;
