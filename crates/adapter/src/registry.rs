//! The registry: connected clients, ends that wait for a partner, and channels.
//!
//! This is the adapter's core. It does no I/O and has no clock: [`crate::daemon`] passes the
//! clients' requests to it and carries out its answers.
//!
//! ```text
//!   client   one process's socket to us; several of one fork family share a table
//!   end      one end of a connection: (table, entry, generation); the asking client owns it
//!
//!              ask                       mirror asks
//!   (unknown) ─────► pending (by tuple) ─────────────► in a channel (pair, slot, side)
//!       ▲               │ withdraw, client left            │ withdraw, process gone
//!       └───────────────┴──────────────────────────────────┘
//! ```
//!
//! Invariants, checked by [`Registry::check`] in tests:
//! - an end is pending under its own tuple, or on one side of one channel, never both;
//! - a channel has at least one end, and its slot is taken in its pair until the last has left;
//! - a pair is identified by *(client of side 0, client of side 1)*, so that within a pair a
//!   process is always on the same side and owns that side's ready bitmaps; two processes that
//!   connect to each other in both directions are two pairs.
//!
//! - two waiting ends that are known to belong together refer to each other (`met`).
//!
//! The caller has checked the socket of an [`Ask`], so the ask is true at that moment. The caller
//! checks again when two ends meet. Ends meet by mirrored tuples, which identify a connection
//! within a namespace, unless their sequence numbers contradict that. When tuples are not
//! sufficient, the caller finds candidates by their numbers ([`Registry::candidates`]), proves one
//! of them, and names it in the ask. Each socket is claimed once. An end whose table entry has a
//! new use is *stale*. Only shared memory shows that, so the caller passes a closure that tells it.

mod meeting;
mod model;
#[cfg(test)]
mod tests;

pub use model::*;

use crate::slots::Slots;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use toehold_channel::layout::READY_BITS;
use toehold_channel::table::{ENTRIES, Reason};

/// The registry. See the module's documentation.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    policy: Policy,
    clients: BTreeMap<ClientId, Client>,
    /// The use of each user whose clients have ends.
    users: BTreeMap<u32, UserUse>,
    ends: BTreeMap<EntryKey, Registered>,
    pending: BTreeMap<Tuple, EntryKey>,
    /// Pending ends by their numbers, where those are known.
    by_numbers: BTreeSet<(Numbers, EntryKey)>,
    /// Ends by the cookie of their socket, where they have one: a socket is claimed once.
    claims: BTreeMap<u64, EntryKey>,
    /// Pending ends that have met and will be introduced when there is a region; the smaller key of
    /// each two.
    held_back: BTreeSet<EntryKey>,
    channels: BTreeMap<ChannelId, Channel>,
    pairs: BTreeMap<PairId, Pair>,
    pairs_by_clients: BTreeMap<[ClientId; 2], PairId>,
    channel_next: u64,
    pair_next: u64,
    /// Channels and pairs that have ended since the caller last asked.
    ended: VecDeque<Ended>,
    /// Cookies of sockets that are no longer claimed, since the caller last asked.
    unclaimed: VecDeque<u64>,
}

/// Most ends one process can have registered: its table holds no more.
pub const ENDS_PER_PROCESS_MAX: usize = ENTRIES;
/// Most ends one process can have waiting for a partner.
pub const PENDING_PER_PROCESS_MAX: usize = 32_768;
/// Channels one pair can number: its ready bitmaps have no more bits.
pub const CHANNELS_PER_PAIR_MAX: u32 = READY_BITS as u32;
const _: () = assert!(PENDING_PER_PROCESS_MAX <= ENDS_PER_PROCESS_MAX);
/// Most ends that the processes of one user can have registered with the system adapter.
pub const ENDS_PER_USER_MAX: usize = 4 * ENDS_PER_PROCESS_MAX;

impl Registry {
    /// An empty registry.
    pub fn new(limits: Limits, policy: Policy) -> Registry {
        Registry {
            limits,
            policy,
            clients: BTreeMap::new(),
            users: BTreeMap::new(),
            ends: BTreeMap::new(),
            pending: BTreeMap::new(),
            by_numbers: BTreeSet::new(),
            claims: BTreeMap::new(),
            held_back: BTreeSet::new(),
            channels: BTreeMap::new(),
            pairs: BTreeMap::new(),
            pairs_by_clients: BTreeMap::new(),
            channel_next: 1,
            pair_next: 1,
            ended: VecDeque::new(),
            unclaimed: VecDeque::new(),
        }
    }

    /// The number of channels that were made, those that have ended included.
    pub fn channels_made(&self) -> u64 {
        self.channel_next - 1
    }

    /// Adds a process that has introduced itself. Its `id` is never used again: a client that comes
    /// back is a new client.
    ///
    /// # Panics
    /// When `id` is in use.
    pub fn join(&mut self, id: ClientId, process: Process) {
        let client = Client {
            process,
            connected: true,
            entries: BTreeSet::new(),
            pending: 0,
        };
        let before = self.clients.insert(id, client);
        assert!(before.is_none(), "client {id:?} joined twice");
    }

    /// A client asks for a partner. `is_current` tells whether an end still is what its table entry
    /// describes.
    ///
    /// A new request for an entry ends the entry's former pairing, with two exceptions. If another
    /// process of the family has been introduced for this entry, the request is refused. If this
    /// very request has already been answered by an introduction, an offer is under way: then the
    /// channel must not end, because its region could be given to another channel while the client
    /// attaches it.
    pub fn ask(&mut self, ask: Ask, is_current: &dyn Fn(End) -> bool) -> Outcome {
        let Some(client) = self.clients.get(&ask.client) else {
            return Outcome::Refused(Reason::NoAdapter);
        };
        let key = EntryKey {
            table: client.process.table,
            entry: ask.entry,
        };
        if self.is_in_use_by_family(key, &ask) {
            return Outcome::Refused(Reason::Shared);
        }
        if self.is_offered(key, &ask) {
            return Outcome::Waiting(Reason::PartnerNotAttached);
        }
        self.forget(key);
        if let Some(&other) = self.claims.get(&ask.cookie)
            && self.keep_if_current(other, is_current)
        {
            // Another entry has already claimed this socket, so it is not the other end.
            let is_mirror = self.ends[&other].tuple == ask.tuple.mirrored();
            return Outcome::Refused(match is_mirror {
                true => Reason::Unsupported,
                false => Reason::Shared,
            });
        }
        if ask.tuple == ask.tuple.mirrored() {
            // A socket connected to itself: both directions would share one entry.
            return Outcome::Refused(Reason::Unsupported);
        }
        if let Some(&older) = self.pending.get(&ask.tuple) {
            // An end has one owner: the client that asked last.
            self.forget(older);
        }
        let mirror = self.partner_of(&ask);
        let mirror = mirror.filter(|&mirror| self.keep_if_current(mirror, is_current));
        if let Some(reason) = self.refusal(&ask, mirror) {
            return Outcome::Refused(reason);
        }
        self.insert_pending(key, &ask);
        match mirror {
            None => Outcome::Waiting(Reason::NoPartner),
            Some(mirror) => {
                self.meet(mirror, key);
                self.introduce(mirror, key)
            }
        }
    }

    /// An end is gone, or stays on the host. Any process of its family may say so.
    pub fn withdraw(&mut self, client: ClientId, entry: u32, generation: u32) {
        let Some(client) = self.clients.get(&client) else {
            return;
        };
        let key = EntryKey {
            table: client.process.table,
            entry,
        };
        let registered = self.ends.get(&key);
        if registered.is_some_and(|registered| registered.end.generation == generation) {
            self.forget(key);
        }
    }

    /// A client has lost the offer for an end, because its process runs another program now:
    /// returns the channel. If the end belonged to the same process, it belongs to this client from
    /// now on. Another process of the family may ask, too, if it was forked before it ran its
    /// program; but then the end keeps its owner, and the request is refused if the process would
    /// see channels other than this one.
    pub fn resume(&mut self, id: ClientId, entry: u32, generation: u32) -> Option<Resumed> {
        let process = self.clients.get(&id)?.process;
        let key = EntryKey {
            table: process.table,
            entry,
        };
        let registered = self.ends.get(&key)?;
        let RequestState::Channel(channel, side) = registered.state else {
            return None;
        };
        if registered.end.generation != generation {
            return None;
        }
        let before = registered.client;
        let is_by_another = self.clients[&before].process.pid != process.pid;
        let Channel { pair, slot, .. } = self.channels[&channel];
        if is_by_another {
            let pair = self.pairs.get_mut(&pair).expect("a channel's pair");
            if !pair.slots.close_slab(slot) {
                return None;
            }
        } else if before != id {
            self.hand_over(key, id);
            self.remove_if_unused(before);
        }
        Some(Resumed {
            channel,
            pair,
            slot,
            side: side as u32,
            before,
            is_by_another,
        })
    }

    /// The client's socket is closed, so its pending ends are forgotten. Its channels go on as long
    /// as its process lives. `true` when there are channels; then [`Registry::process_gone`] must
    /// be called later.
    pub fn leave(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        client.connected = false;
        for key in client.keys() {
            if matches!(self.ends[&key].state, RequestState::Pending(_)) {
                self.forget(key);
            }
        }
        self.remove_if_unused(id);
        self.clients.contains_key(&id)
    }

    /// The process of a client that has left has ended, and its ends for which `is_gone` is true
    /// have ended, too. Its family holds the others: they go to a connected client of the family,
    /// or stay with this client if there is none. Returns the partners of the ended ends.
    pub fn process_gone(&mut self, id: ClientId, is_gone: &dyn Fn(End) -> bool) -> Vec<End> {
        let Some(client) = self.clients.get(&id) else {
            return Vec::new();
        };
        let survivor = self.survivor(id);
        let mut bereft = Vec::new();
        for key in client.keys() {
            let end = self.ends[&key].end;
            if is_gone(end) {
                bereft.extend(self.partner(end));
                self.forget(key);
            } else if let Some(survivor) = survivor {
                self.hand_over(key, survivor);
            }
        }
        self.remove_if_unused(id);
        bereft
    }

    /// Introduces two ends that were held back because there was no region, if there is a region
    /// now.
    pub fn poll_held_back(&mut self, is_current: &dyn Fn(End) -> bool) -> Option<Match> {
        while self.channels.len() < self.limits.regions_max {
            let older = self.held_back.pop_first()?;
            let Some(younger) = self.ends[&older].met else {
                continue;
            };
            let current = [older, younger].map(|key| self.keep_if_current(key, is_current));
            if current != [true, true] {
                continue;
            }
            if let Outcome::Matched(matched) = self.introduce(older, younger) {
                return Some(matched);
            }
        }
        None
    }

    /// A channel could not be made, and no offer was sent: both ends wait until it is possible.
    ///
    /// # Panics
    /// Unless `matched` is the last answer of this registry.
    pub fn postpone(&mut self, matched: &Match) {
        self.hold(matched);
        let [one, other] = matched.sides.map(|side| side.end.key());
        self.held_back.insert(one.min(other));
    }

    /// A channel must not be made, and no offer was sent: both ends wait until
    /// [`Registry::reconsider`].
    ///
    /// # Panics
    /// Unless `matched` is the last answer of this registry.
    pub fn hold(&mut self, matched: &Match) {
        let channel = self.channels.remove(&matched.channel);
        assert!(
            channel.is_some(),
            "only what was just matched can be postponed"
        );
        // `channels_made` must not count this channel.
        self.channel_next = matched.channel.0;
        for side in &matched.sides {
            let key = side.end.key();
            let registered = self.ends.get_mut(&key).expect("just matched");
            registered.state = RequestState::Pending(registered.tuple);
            let (tuple, numbers) = (registered.tuple, registered.numbers);
            self.pending.insert(tuple, key);
            self.by_numbers
                .extend(numbers.map(|numbers| (numbers, key)));
            self.client_mut(side.client).pending += 1;
            self.user_mut(side.client).pending += 1;
        }
        let [one, other] = matched.sides.map(|side| side.end.key());
        self.meet(one, other);
        let pair = self.pairs.get_mut(&matched.pair).expect("just matched");
        pair.slots.release(matched.slot);
        if matched.is_first_of_pair() {
            // The pair's memory was never given out, so the next channel must count as the first
            // again.
            self.remove_pair(matched.pair);
        }
    }

    /// Introduces all ends again that wait for each other.
    pub fn reconsider(&mut self) {
        let met = |key: &EntryKey| self.ends[key].met.is_some_and(|other| *key < other);
        let both = self.pending.values().copied().filter(met);
        let both: Vec<EntryKey> = both.collect();
        self.held_back.extend(both);
    }

    /// The next socket that is no longer claimed.
    pub fn poll_unclaimed(&mut self) -> Option<u64> {
        self.unclaimed.pop_front()
    }

    /// Whether a socket is claimed.
    pub fn is_claimed(&self, cookie: u64) -> bool {
        self.claims.contains_key(&cookie)
    }

    /// The next channel or pair that has ended.
    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Forgets the stale ends of a client, which it has not withdrawn.
    pub fn sweep(&mut self, id: ClientId, is_current: &dyn Fn(End) -> bool) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        for key in client.keys() {
            self.keep_if_current(key, is_current);
        }
    }

    /// The end registered for an entry, with its tuple.
    pub fn end(&self, table: TableId, entry: u32) -> Option<(End, Tuple)> {
        let registered = self.ends.get(&EntryKey { table, entry })?;
        Some((registered.end, registered.tuple))
    }

    /// The proved facts of an end: its tuple and the cookie of its socket.
    pub fn claim(&self, end: End) -> Option<(Tuple, u64)> {
        let registered = self.ends.get(&end.key())?;
        (registered.end == end).then_some((registered.tuple, registered.cookie))
    }

    /// Whether one of two Unix sockets has the other's user as its peer's user. Inode numbers may
    /// be reused, so this check keeps users apart. `uid` is the user of a client. For TCP sockets
    /// the answer is always true.
    pub fn know_each_other(&self, ends: [End; 2], uid: impl Fn(ClientId) -> Option<u32>) -> bool {
        let known = ends.map(|end| self.ends.get(&end.key()));
        let [Some(one), Some(other)] = known else {
            return false;
        };
        let knows = |end: &Registered, peer: &Registered| {
            end.peer_uid.is_none() || end.peer_uid == uid(peer.client)
        };
        knows(one, other) || knows(other, one)
    }

    /// The inode of the listener that accepted an end, or 0 if it is not known.
    pub fn listener(&self, end: End) -> u64 {
        self.ends.get(&end.key()).map_or(0, |known| known.listener)
    }

    /// The client that owns an end.
    pub fn owner(&self, end: End) -> Option<ClientId> {
        let registered = self.ends.get(&end.key())?;
        (registered.end == end).then_some(registered.client)
    }

    /// Another connected client of the same family.
    pub fn survivor(&self, id: ClientId) -> Option<ClientId> {
        let table = self.clients.get(&id)?.process.table;
        let mut family = self.clients.iter();
        let survivor = family.find(|(other, client)| {
            **other != id && client.connected && client.process.table == table
        });
        survivor.map(|(&survivor, _)| survivor)
    }

    /// The ends that a client owns.
    pub fn ends_of(&self, id: ClientId) -> impl Iterator<Item = End> {
        let keys = self.clients.get(&id).map_or(Vec::new(), Client::keys);
        keys.into_iter().map(|key| self.ends[&key].end)
    }

    /// Whether a client has ends, or may still get some.
    pub fn knows(&self, id: ClientId) -> bool {
        self.clients.contains_key(&id)
    }

    /// The other end of the channel that `end` is part of, while it is registered.
    pub fn partner(&self, end: End) -> Option<End> {
        let registered = self.ends.get(&end.key())?;
        if registered.end != end {
            return None;
        }
        let RequestState::Channel(id, side) = registered.state else {
            return None;
        };
        let other = self.channels[&id].sides[1 - side]?;
        Some(self.ends[&other].end)
    }

    /// Every channel with both its ends, oldest first.
    pub fn channels(&self) -> impl Iterator<Item = (ChannelId, [End; 2])> {
        self.channels.iter().filter_map(|(&id, channel)| {
            let [Some(left), Some(right)] = channel.sides else {
                return None;
            };
            Some((id, [self.ends[&left].end, self.ends[&right].end]))
        })
    }

    /// The number of channels: each has a region.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// The number of pairs that wait for a region.
    pub fn held_back_count(&self) -> usize {
        self.held_back.len()
    }

    fn refusal(&self, ask: &Ask, mirror: Option<EntryKey>) -> Option<Reason> {
        let client = &self.clients[&ask.client];
        if client.entries.len() >= self.limits.ends_per_process_max
            || client.pending >= self.limits.pending_per_process_max
        {
            return Some(Reason::NoResources);
        }
        let (own, limits) = (client.process.uid, self.limits.user);
        let used = self.users.get(&own).copied().unwrap_or_default();
        if used.ends >= limits.ends_max || used.pending >= limits.pending_max {
            return Some(Reason::OverQuota);
        }
        self.refusal_of_user(ask.client, mirror?)
    }

    /// The reason why a client's user may not be introduced to another end's.
    fn refusal_of_user(&self, client: ClientId, other: EntryKey) -> Option<Reason> {
        let own = self.clients[&client].process.uid;
        let uid = self.clients[&self.ends[&other].client].process.uid;
        if self.policy == Policy::SameUser && uid != own {
            return Some(Reason::OtherUser);
        }
        (!self.may_have_channel([own, uid])).then_some(Reason::OverQuota)
    }

    /// Whether the users of two ends may have another channel.
    fn users_have_room(&self, ends: [EntryKey; 2]) -> bool {
        let uid = |key| self.clients[&self.ends[&key].client].process.uid;
        self.may_have_channel(ends.map(uid))
    }

    fn may_have_channel(&self, users: [u32; 2]) -> bool {
        // A channel between two programs of one user counts both its ends.
        let wanted = if users[0] == users[1] { 2 } else { 1 };
        users.iter().all(|uid| {
            let used = self.users.get(uid).copied().unwrap_or_default();
            used.in_channels() + wanted <= self.limits.user.in_channels_max
        })
    }

    fn is_in_use_by_family(&self, key: EntryKey, ask: &Ask) -> bool {
        self.ends.get(&key).is_some_and(|registered| {
            registered.client != ask.client
                && registered.end.generation == ask.generation
                && matches!(registered.state, RequestState::Channel(..))
                && self.is_connected(registered.client)
        })
    }

    /// Whether exactly this request was already answered with an offer to this client.
    fn is_offered(&self, key: EntryKey, ask: &Ask) -> bool {
        self.ends.get(&key).is_some_and(|registered| {
            registered.client == ask.client
                && registered.end.generation == ask.generation
                && registered.tuple == ask.tuple
                && matches!(registered.state, RequestState::Channel(..))
        })
    }

    fn insert_pending(&mut self, key: EntryKey, ask: &Ask) {
        let end = End {
            table: key.table,
            entry: key.entry,
            generation: ask.generation,
        };
        let registered = Registered {
            end,
            client: ask.client,
            tuple: ask.tuple,
            cookie: ask.cookie,
            numbers: ask.numbers,
            met: None,
            peer_uid: ask.peer_uid,
            accepted: ask.accepted,
            listener: ask.listener,
            forks: ask.forks,
            wants_slab: ask.wants_slab,
            state: RequestState::Pending(ask.tuple),
        };
        self.ends.insert(key, registered);
        if ask.cookie != 0 {
            self.claims.insert(ask.cookie, key);
        }
        self.pending.insert(ask.tuple, key);
        self.by_numbers
            .extend(ask.numbers.map(|numbers| (numbers, key)));
        let client = self.client_mut(ask.client);
        client.entries.insert(key.entry);
        client.pending += 1;
        let user = self.user_mut(ask.client);
        user.ends += 1;
        user.pending += 1;
    }

    /// Makes a channel of two pending ends.
    fn introduce(&mut self, older: EntryKey, younger: EntryKey) -> Outcome {
        if self.channels.len() >= self.limits.regions_max {
            self.held_back.insert(older.min(younger));
            return Outcome::Waiting(Reason::NoResources);
        }
        if !self.users_have_room([older, younger]) {
            return Outcome::Waiting(Reason::OverQuota);
        }
        let sides = self.in_order_of_sides(older, younger);
        let clients = sides.map(|key| self.ends[&key].client);
        let (pair_id, is_new) = self.pair_of(clients);
        let pair = self.pairs.get_mut(&pair_id).expect("looked up above");
        let forks = sides.map(|key| self.ends[&key].forks);
        let Some(slot) = pair.slots.take(forks) else {
            return Outcome::Waiting(Reason::NoResources);
        };
        let id = ChannelId(self.channel_next);
        self.channel_next += 1;
        for (side, key) in sides.into_iter().enumerate() {
            self.unpend(key);
            let registered = self.ends.get_mut(&key).expect("both are registered");
            registered.state = RequestState::Channel(id, side);
        }
        let channel = Channel {
            pair: pair_id,
            slot,
            sides: sides.map(Some),
        };
        self.channels.insert(id, channel);
        // A process that is connected with itself gets the pair once, with its first offer.
        let attached = [is_new, is_new && clients[0] != clients[1]];
        let introductions = [0, 1].map(|side| Introduction {
            client: clients[side],
            end: self.ends[&sides[side]].end,
            pair_attached: attached[side],
            wants_slab: self.ends[&sides[side]].wants_slab,
        });
        Outcome::Matched(Match {
            channel: id,
            pair: pair_id,
            slot,
            forks,
            sides: introductions,
        })
    }

    /// Side 0 is the connecting end; when both or neither say they accepted, the lower process id,
    /// then the lower entry.
    fn in_order_of_sides(&self, one: EntryKey, other: EntryKey) -> [EntryKey; 2] {
        let rank = |key: EntryKey| {
            let registered = &self.ends[&key];
            let pid = self.clients[&registered.client].process.pid;
            (registered.accepted, pid, registered.client, key)
        };
        if rank(one) <= rank(other) {
            [one, other]
        } else {
            [other, one]
        }
    }

    fn pair_of(&mut self, clients: [ClientId; 2]) -> (PairId, bool) {
        if let Some(&id) = self.pairs_by_clients.get(&clients) {
            return (id, false);
        }
        let id = PairId(self.pair_next);
        self.pair_next += 1;
        let slots = Slots::new(self.limits.channels_per_pair_max);
        self.pairs.insert(id, Pair { clients, slots });
        self.pairs_by_clients.insert(clients, id);
        (id, true)
    }

    /// Whether a registered end is current; forgets it when it is not.
    fn keep_if_current(&mut self, key: EntryKey, is_current: &dyn Fn(End) -> bool) -> bool {
        let current = is_current(self.ends[&key].end);
        if !current {
            self.forget(key);
        }
        current
    }

    /// Removes an end. Returns its channel if it was that channel's last end.
    fn forget(&mut self, key: EntryKey) {
        self.unpend(key);
        let Some(registered) = self.ends.remove(&key) else {
            return;
        };
        if self.claims.get(&registered.cookie) == Some(&key) {
            self.claims.remove(&registered.cookie);
            // Without numbers the caller has not remembered the socket.
            let is_remembered = registered.numbers.is_some();
            (self.unclaimed).extend(is_remembered.then_some(registered.cookie));
        }
        let client = self.client_mut(registered.client);
        client.entries.remove(&key.entry);
        self.count_off(registered.client);
        if let RequestState::Channel(id, side) = registered.state {
            let channel = self.channels.get_mut(&id).expect("an end names a channel");
            channel.sides[side] = None;
            if channel.sides == [None, None] {
                self.end_channel(id);
            }
        }
        self.remove_if_unused(registered.client);
    }

    fn end_channel(&mut self, id: ChannelId) {
        let channel = self.channels.remove(&id).expect("the caller looked it up");
        let pair = self.pairs.get_mut(&channel.pair).expect("a channel's pair");
        pair.slots.release(channel.slot);
        self.ended.push_back(Ended::Channel(id));
        if pair.slots.is_empty() {
            let clients = pair.clients;
            // A pair outlives its channels while both processes are connected, because they keep
            // its memory mapped.
            if clients.iter().any(|id| !self.is_connected(*id)) {
                self.remove_pair(channel.pair);
            }
        }
    }

    fn unpend(&mut self, key: EntryKey) {
        let Some(registered) = self.ends.get(&key) else {
            return;
        };
        let RequestState::Pending(tuple) = registered.state else {
            return;
        };
        let (client, numbers) = (registered.client, registered.numbers);
        self.part(key);
        self.pending.remove(&tuple);
        if let Some(numbers) = numbers {
            self.by_numbers.remove(&(numbers, key));
        }
        self.client_mut(client).pending -= 1;
        self.user_mut(client).pending -= 1;
    }

    fn hand_over(&mut self, key: EntryKey, survivor: ClientId) {
        let registered = self.ends.get_mut(&key).expect("the caller looked it up");
        let before = std::mem::replace(&mut registered.client, survivor);
        self.client_mut(before).entries.remove(&key.entry);
        self.count_off(before);
        self.client_mut(survivor).entries.insert(key.entry);
        self.user_mut(survivor).ends += 1;
    }

    /// Counts one end off for the user of a client.
    fn count_off(&mut self, client: ClientId) {
        let uid = self.clients[&client].process.uid;
        let user = self.users.get_mut(&uid).expect("it had an end");
        user.ends -= 1;
        if user.ends == 0 {
            self.users.remove(&uid);
        }
    }

    /// The use of the user of a client.
    fn user_mut(&mut self, client: ClientId) -> &mut UserUse {
        let uid = self.clients[&client].process.uid;
        self.users.entry(uid).or_default()
    }

    fn remove_if_unused(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        if client.connected || !client.entries.is_empty() {
            return;
        }
        self.clients.remove(&id);
        let of_client = |(pair, (clients, slots)): (&PairId, (&[ClientId; 2], &Slots))| {
            (clients.contains(&id) && slots.is_empty()).then_some(*pair)
        };
        let pairs = self.pairs.iter();
        let pairs = pairs.map(|(id, pair)| (id, (&pair.clients, &pair.slots)));
        let unused: Vec<PairId> = pairs.filter_map(of_client).collect();
        for pair in unused {
            self.remove_pair(pair);
        }
    }

    fn remove_pair(&mut self, id: PairId) {
        if let Some(pair) = self.pairs.remove(&id) {
            self.pairs_by_clients.remove(&pair.clients);
            self.ended.push_back(Ended::Pair(id));
        }
    }

    fn is_connected(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|client| client.connected)
    }

    fn client_mut(&mut self, id: ClientId) -> &mut Client {
        self.clients
            .get_mut(&id)
            .expect("a registered end's client is registered")
    }
}
