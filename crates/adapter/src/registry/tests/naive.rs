//! Random operations on the registry and on a model that knows only lists.

use super::*;
use proptest::prelude::*;

/// An event. There are so few names that all combinations occur.
#[derive(Clone, Debug)]
enum Step {
    Join {
        client: u64,
        table: u64,
    },
    Ask {
        client: u64,
        entry: u32,
        ports: (u16, u16),
        accepted: bool,
        /// True: the event concerns the use of the entry that is registered now, if one is.
        again: bool,
    },
    Stale {
        table: u64,
        entry: u32,
    },
    Withdraw {
        client: u64,
        entry: u32,
    },
    Resume {
        client: u64,
        entry: u32,
    },
    Leave {
        client: u64,
    },
    Die {
        client: u64,
        family: bool,
    },
    PollHeldBack,
}

fn step() -> impl Strategy<Value = Step> {
    let client = || 0..5u64;
    let entry = || 0..4u32;
    prop_oneof![
        2 => (client(), 0..3u64).prop_map(|(client, table)| Step::Join { client, table }),
        8 => (client(), entry(), (1..4u16, 1..4u16), any::<bool>(), any::<bool>()).prop_map(
            |(client, entry, ports, accepted, again)| Step::Ask {
                client, entry, ports, accepted, again
            }
        ),
        1 => (0..3u64, entry()).prop_map(|(table, entry)| Step::Stale { table, entry }),
        3 => (client(), entry()).prop_map(|(client, entry)| Step::Withdraw { client, entry }),
        2 => (client(), entry()).prop_map(|(client, entry)| Step::Resume { client, entry }),
        1 => client().prop_map(|client| Step::Leave { client }),
        1 => (client(), any::<bool>()).prop_map(|(client, family)| Step::Die { client, family }),
        1 => Just(Step::PollHeldBack),
    ]
}

/// The naive model: all ends in one list; it answers every question by a walk over that list.
#[derive(Debug, Default)]
struct Naive {
    /// Each client, its table, and whether the client is connected.
    clients: Vec<(ClientId, TableId, bool)>,
    ends: Vec<NaiveEnd>,
    stale: BTreeSet<End>,
    regions_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct NaiveEnd {
    client: ClientId,
    end: End,
    tuple: Tuple,
    channel: Option<ChannelId>,
}

impl Naive {
    fn table(&self, client: ClientId) -> Option<TableId> {
        let known = self.clients.iter().find(|known| known.0 == client);
        known.map(|known| known.1)
    }

    fn forget(&mut self, gone: impl Fn(&NaiveEnd) -> bool) {
        self.ends.retain(|end| !gone(end));
        let ends = &self.ends;
        let owns = |client| ends.iter().any(|end| end.client == client);
        self.clients
            .retain(|&(id, _, connected)| connected || owns(id));
    }

    fn channels(&self) -> usize {
        let channels = self.ends.iter().filter_map(|end| end.channel);
        channels.collect::<BTreeSet<_>>().len()
    }

    fn is_in_use_by_family(&self, ask: &Ask, end: End) -> bool {
        self.ends.iter().any(|known| {
            known.end == end
                && known.channel.is_some()
                && known.client != ask.client
                && self.is_connected(known.client)
        })
    }

    fn is_offered(&self, ask: &Ask, end: End) -> bool {
        self.ends.iter().any(|known| {
            (known.end, known.client, known.tuple) == (end, ask.client, ask.tuple)
                && known.channel.is_some()
        })
    }

    fn is_connected(&self, client: ClientId) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|known| known.0 == client && known.2)
    }

    /// The end that the registry should pair, after the rules that come before pairing.
    fn ask(&mut self, ask: &Ask, end: End) -> Option<NaiveEnd> {
        self.forget(|known| known.end.key() == end.key());
        if ask.tuple == ask.tuple.mirrored() {
            return None;
        }
        self.forget(|known| known.channel.is_none() && known.tuple == ask.tuple);
        let mirrors =
            |known: &&NaiveEnd| known.channel.is_none() && known.tuple == ask.tuple.mirrored();
        let mut mirror = self.ends.iter().find(mirrors).copied();
        if let Some(met) = mirror.filter(|met| self.stale.contains(&met.end)) {
            self.forget(|known| known.end == met.end);
            mirror = None;
        }
        self.ends.push(NaiveEnd {
            client: ask.client,
            end,
            tuple: ask.tuple,
            channel: None,
        });
        mirror
    }

    fn put_in_channel(&mut self, matched: &Match) {
        for side in &matched.sides {
            let known = self.ends.iter_mut().find(|known| known.end == side.end);
            known.expect("an end the model knows").channel = Some(matched.channel);
        }
    }

    fn partner(&self, end: End) -> Option<End> {
        let channel = self.ends.iter().find(|known| known.end == end)?.channel?;
        let other = |known: &&NaiveEnd| known.channel == Some(channel) && known.end != end;
        self.ends.iter().find(other).map(|known| known.end)
    }

    fn agrees_with(&self, registry: &Registry) {
        assert_eq!(self.ends.len(), registry.ends.len());
        for known in &self.ends {
            let registered = registry.end(known.end.table, known.end.entry);
            assert_eq!(registered, Some((known.end, known.tuple)));
            assert_eq!(registry.partner(known.end), self.partner(known.end));
        }
        assert_eq!(self.channels(), registry.channel_count());
        assert_eq!(self.clients.len(), registry.clients.len());
    }
}

/// A name that joins again is the same process with another program.
fn pid_of(id: ClientId) -> u64 {
    id.0 % 10
}

/// Decides which ends die with their process although its family lives. Any rule will do.
fn takes_along(end: End) -> bool {
    end.entry.is_multiple_of(2)
}

/// Runs the steps on the registry and on the model.
struct Run {
    registry: Registry,
    naive: Naive,
    generation: u32,
    /// The number of times that each client's name has joined.
    lives: BTreeMap<u64, u64>,
    /// Pairs whose memory a process has received.
    introduced: BTreeSet<(PairId, ClientId)>,
    /// Channels that were made and not yet reported as ended.
    channels: BTreeSet<ChannelId>,
    pairs: BTreeSet<PairId>,
}

impl Run {
    fn step(&mut self, step: Step) {
        match step {
            Step::Join { client, table } => self.join(client, TableId(table)),
            Step::Ask {
                client,
                entry,
                ports,
                accepted,
                again,
            } => {
                self.generation += 1;
                let table = self.naive.table(self.id(client)).unwrap_or(TableId(0));
                let known = self.registry.end(table, entry).filter(|_| again);
                let ask = Ask {
                    generation: known.map_or(self.generation, |(end, _)| end.generation),
                    accepted,
                    ..ask(self.id(client).0, entry, ports.0, ports.1)
                };
                self.ask(ask);
            }
            Step::Stale { table, entry } => {
                let end = self.registry.end(TableId(table), entry);
                self.naive.stale.extend(end.map(|(end, _)| end));
            }
            Step::Withdraw { client, entry } => self.withdraw(self.id(client), entry),
            Step::Resume { client, entry } => self.resume(self.id(client), entry),
            Step::Leave { client } => self.leave(self.id(client)),
            Step::Die { client, family } => self.die(self.id(client), family),
            Step::PollHeldBack => self.poll_held_back(),
        }
        self.registry.check();
        self.naive.agrees_with(&self.registry);
        self.check_ended();
    }

    fn check_ended(&mut self) {
        while let Some(ended) = self.registry.poll_ended() {
            let was_there = match ended {
                Ended::Channel(id) => self.channels.remove(&id),
                Ended::Pair(id) => self.pairs.remove(&id),
            };
            assert!(was_there, "{ended:?} ends once");
        }
        let channels = self.naive.ends.iter().filter_map(|end| end.channel);
        assert_eq!(self.channels, channels.collect());
        assert_eq!(self.pairs, self.registry.pairs.keys().copied().collect());
    }

    /// Client numbers are never reused: a name that joins again is another client.
    fn id(&self, client: u64) -> ClientId {
        let lives = self.lives.get(&client).copied().unwrap_or(0);
        ClientId(lives * 10 + client)
    }

    fn join(&mut self, client: u64, table: TableId) {
        if !self.naive.is_connected(self.id(client)) {
            *self.lives.entry(client).or_insert(0) += 1;
            let id = self.id(client);
            self.registry.join(id, process(pid_of(id), table.0));
            self.naive.clients.push((id, table, true));
        }
    }

    fn ask(&mut self, ask: Ask) {
        if !self.naive.is_connected(ask.client) {
            return;
        }
        let table = self.naive.table(ask.client).expect("connected");
        let end = End {
            table,
            entry: ask.entry,
            generation: ask.generation,
        };
        let stale = self.naive.stale.clone();
        let outcome = self.registry.ask(ask, &|end| !stale.contains(&end));
        if self.naive.is_in_use_by_family(&ask, end) {
            assert_eq!(outcome, Outcome::Refused(Reason::Shared));
            return;
        }
        if self.naive.is_offered(&ask, end) {
            assert_eq!(outcome, Outcome::Waiting(Reason::PartnerNotAttached));
            return;
        }
        let room = {
            let mirror = self.naive.ask(&ask, end);
            mirror.map(|mirror| (mirror, self.naive.channels() < self.naive.regions_max))
        };
        match (outcome, room) {
            (Outcome::Matched(matched), Some((mirror, true))) => {
                let ends = matched.sides.map(|side| side.end);
                assert!(ends == [mirror.end, end] || ends == [end, mirror.end]);
                self.take(&matched);
            }
            (Outcome::Waiting(Reason::NoResources), Some((_, false)))
            | (Outcome::Waiting(Reason::NoPartner), None) => {}
            (Outcome::Refused(Reason::Unsupported), None) => {
                assert_eq!(ask.tuple, ask.tuple.mirrored());
            }
            other => panic!("the model disagrees: {other:?}"),
        }
    }

    fn take(&mut self, matched: &Match) {
        for side in &matched.sides {
            let is_news = self.introduced.insert((matched.pair, side.client));
            assert_eq!(
                side.pair_attached, is_news,
                "each process is told of a pair once"
            );
        }
        self.naive.put_in_channel(matched);
        self.channels.insert(matched.channel);
        self.pairs.insert(matched.pair);
    }

    fn withdraw(&mut self, id: ClientId, entry: u32) {
        let Some(table) = self.naive.table(id) else {
            return;
        };
        let Some((end, _)) = self.registry.end(table, entry) else {
            return;
        };
        self.registry.withdraw(id, entry, end.generation);
        self.naive.forget(|known| known.end == end);
    }

    fn resume(&mut self, id: ClientId, entry: u32) {
        let Some(table) = self.naive.table(id).filter(|_| self.naive.is_connected(id)) else {
            return;
        };
        let Some((end, _)) = self.registry.end(table, entry) else {
            return;
        };
        let resumed = self.registry.resume(id, entry, end.generation);
        let known = self.naive.ends.iter_mut().find(|known| known.end == end);
        let known = known.expect("both know it");
        let is_by_another = pid_of(known.client) != pid_of(id);
        let before = resumed.map(|resumed| (resumed.channel, resumed.before));
        if before.is_none() && known.channel.is_some() {
            // Another process of the family does not see this process's channel.
            assert!(is_by_another);
            return;
        }
        assert_eq!(before, known.channel.map(|channel| (channel, known.client)));
        if known.channel.is_some() && pid_of(known.client) == pid_of(id) {
            known.client = id;
        }
        self.naive.forget(|_| false);
    }

    fn leave(&mut self, id: ClientId) {
        let goes_on = self.registry.leave(id);
        for known in &mut self.naive.clients {
            known.2 &= known.0 != id;
        }
        self.naive
            .forget(|known| known.client == id && known.channel.is_none());
        assert_eq!(goes_on, self.naive.table(id).is_some());
    }

    /// The caller says whether other processes of the family live that the registry does not know.
    fn die(&mut self, id: ClientId, family: bool) {
        self.leave(id);
        let Some(table) = self.naive.table(id) else {
            return;
        };
        let survivors = self.naive.clients.iter();
        let survivors = survivors.filter(|known| known.0 != id && known.1 == table && known.2);
        let survivor = survivors.map(|known| known.0).min_by_key(|id| id.0);
        assert_eq!(self.registry.survivor(id), survivor);
        let is_gone = |end: End| takes_along(end) || !(family || survivor.is_some());
        let bereft: BTreeSet<End> = self
            .registry
            .process_gone(id, &is_gone)
            .into_iter()
            .collect();
        let dies = |known: &NaiveEnd| known.client == id && is_gone(known.end);
        let dying: BTreeSet<End> = self
            .naive
            .ends
            .iter()
            .filter(|known| dies(known))
            .map(|known| known.end)
            .collect();
        let expected = dying.iter().filter_map(|&end| self.naive.partner(end));
        let expected: BTreeSet<End> = expected.filter(|end| !dying.contains(end)).collect();
        assert_eq!(
            bereft.difference(&dying).copied().collect::<BTreeSet<_>>(),
            expected
        );
        for known in &mut self.naive.ends {
            if known.client == id && !dying.contains(&known.end) {
                known.client = survivor.unwrap_or(id);
            }
        }
        self.naive.forget(|known| dying.contains(&known.end));
    }

    fn poll_held_back(&mut self) {
        let stale = self.naive.stale.clone();
        let is_current = |end: End| !stale.contains(&end);
        let before = self.registry.held_back_count();
        let room = self.registry.channel_count() < self.naive.regions_max;
        let matched = self.registry.poll_held_back(&is_current);
        assert!(room || matched.is_none());
        // The registry has removed the stale ends that it met on the way.
        let registry = &self.registry;
        self.naive.forget(|known| {
            stale.contains(&known.end)
                && registry
                    .end(known.end.table, known.end.entry)
                    .map(|(end, _)| end)
                    != Some(known.end)
        });
        if let Some(matched) = matched {
            assert!(before > self.registry.held_back_count());
            self.take(&matched);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_naive_model(
        steps in proptest::collection::vec(step(), 1..120),
        regions_max in 1..8usize,
    ) {
        let mut run = Run {
            registry: Registry::new(Limits::with_regions(regions_max), Policy::SameUser),
            naive: Naive { regions_max, ..Naive::default() },
            generation: 0,
            lives: BTreeMap::new(),
            introduced: BTreeSet::new(),
            channels: BTreeSet::new(),
            pairs: BTreeSet::new(),
        };
        for step in steps {
            run.step(step);
        }
    }
}
