//! Scripts for the rules one by one; [`naive`] tries them together.

mod naive;

use super::*;
use toehold_channel::layout::SLAB_SLOTS;

impl Registry {
    /// The invariants of the module's documentation.
    fn check(&self) {
        for (key, registered) in &self.ends {
            assert_eq!(*key, registered.end.key());
            let client = &self.clients[&registered.client];
            assert!(client.entries.contains(&key.entry));
            assert_eq!(client.process.table, key.table);
            match registered.state {
                RequestState::Pending(tuple) => {
                    assert_eq!(tuple, registered.tuple);
                    assert_eq!(self.pending[&tuple], *key);
                    assert!(client.connected, "only who listens can wait");
                }
                RequestState::Channel(id, side) => {
                    assert_eq!(self.channels[&id].sides[side], Some(*key))
                }
            }
        }
        let owned: usize = self.clients.values().map(|c| c.entries.len()).sum();
        assert_eq!(owned, self.ends.len());
        let pending: usize = self.clients.values().map(|c| c.pending).sum();
        assert_eq!(pending, self.pending.len());
        let mut users: BTreeMap<u32, UserUse> = BTreeMap::new();
        for client in self.clients.values().filter(|c| !c.entries.is_empty()) {
            let user = users.entry(client.process.uid).or_default();
            user.ends += client.entries.len();
            user.pending += client.pending;
        }
        assert_eq!(users, self.users);
        let mut slots = BTreeSet::new();
        for channel in self.channels.values() {
            assert_ne!(channel.sides, [None, None]);
            assert!(
                slots.insert((channel.pair, channel.slot)),
                "one slot, one channel"
            );
            assert!(self.pairs.contains_key(&channel.pair));
        }
        for (id, pair) in &self.pairs {
            assert_eq!(self.pairs_by_clients.get(&pair.clients), Some(id));
            let in_use = self.channels.values().any(|channel| channel.pair == *id);
            assert_eq!(pair.slots.is_empty(), !in_use);
        }
        for client in self.clients.values() {
            assert!(client.connected || !client.entries.is_empty());
        }
        for (key, registered) in &self.ends {
            let is_pending = matches!(registered.state, RequestState::Pending(_));
            if let Some(other) = registered.met {
                assert!(is_pending && other != *key);
                assert_eq!(self.ends[&other].met, Some(*key));
            }
            if let Some(numbers) = registered.numbers {
                assert_eq!(self.by_numbers.contains(&(numbers, *key)), is_pending);
            }
        }
        for (numbers, key) in &self.by_numbers {
            assert_eq!(self.ends[key].numbers, Some(*numbers));
        }
        for key in &self.held_back {
            assert!(self.ends[key].met.is_some_and(|other| *key < other));
        }
        assert!(self.channels.len() <= self.limits.regions_max);
    }
}

const CURRENT: &dyn Fn(End) -> bool = &|_| true;

/// Client `n` is a process of its own, with a table of its own.
fn registry(clients: u64) -> Registry {
    let mut registry = Registry::new(Limits::with_regions(100), Policy::SameUser);
    for n in 0..clients {
        registry.join(ClientId(n), process(n, n));
    }
    registry
}

fn process(pid: u64, table: u64) -> Process {
    Process {
        pid: pid as u32,
        uid: 1000,
        table: TableId(table),
    }
}

fn ask(client: u64, entry: u32, local: u16, remote: u16) -> Ask {
    let address = |port| Address::Internet { ip: [1; 16], port };
    Ask {
        client: ClientId(client),
        entry,
        generation: 1,
        tuple: Tuple {
            netns: 1,
            local: address(local),
            remote: address(remote),
        },
        peer_uid: None,
        listener: 0,
        cookie: 0,
        numbers: None,
        partner: None,
        accepted: local < 100,
        forks: 0,
        wants_slab: false,
    }
}

fn matched(outcome: Outcome) -> Match {
    match outcome {
        Outcome::Matched(matched) => matched,
        other => panic!("no match: {other:?}"),
    }
}

/// Joins entry `entry` of the server (client 0) and of client 1, over ports of that number.
fn join(registry: &mut Registry, entry: u32) -> Match {
    join_with(registry, 1, entry)
}

fn join_with(registry: &mut Registry, client: u64, entry: u32) -> Match {
    let port = 5000 + entry as u16;
    registry.ask(ask(0, entry, 80, port), CURRENT);
    matched(registry.ask(ask(client, entry, port, 80), CURRENT))
}

#[test]
fn mirrored_tuples_meet_and_the_connecting_end_is_side_0() {
    let mut registry = registry(2);
    let first = registry.ask(ask(0, 7, 80, 5000), CURRENT);
    assert_eq!(first, Outcome::Waiting(Reason::NoPartner));
    let matched = matched(registry.ask(ask(1, 9, 5000, 80), CURRENT));
    assert_eq!(matched.sides[0].client, ClientId(1));
    assert_eq!(matched.sides[1].client, ClientId(0));
    assert_eq!(matched.sides.map(|side| side.end.entry), [9, 7]);
    assert_eq!(
        registry.partner(matched.sides[0].end),
        Some(matched.sides[1].end)
    );
    registry.check();
}

#[test]
fn other_namespaces_and_other_ports_do_not_meet() {
    let mut registry = registry(2);
    registry.ask(ask(0, 1, 80, 5000), CURRENT);
    let mut elsewhere = ask(1, 1, 5000, 80);
    elsewhere.tuple.netns = 2;
    let other_port = ask(1, 2, 5001, 80);
    let same_direction = ask(1, 3, 80, 5002);
    for ask in [elsewhere, other_port, same_direction] {
        let outcome = registry.ask(ask, CURRENT);
        assert_eq!(outcome, Outcome::Waiting(Reason::NoPartner));
    }
    registry.check();
}

#[test]
fn the_pairs_memory_goes_to_each_process_once() {
    let mut registry = registry(2);
    let first = join(&mut registry, 1);
    assert_eq!(first.sides.map(|side| side.pair_attached), [true, true]);
    let second = join(&mut registry, 2);
    assert_eq!(second.sides.map(|side| side.pair_attached), [false, false]);
    assert_eq!(first.pair, second.pair);
    assert_eq!([first.slot, second.slot], [0, 1]);
}

#[test]
fn connecting_the_other_way_round_is_another_pair() {
    let mut registry = registry(2);
    let one_way = join(&mut registry, 1);
    registry.ask(ask(1, 2, 81, 6000), CURRENT);
    let other_way = matched(registry.ask(ask(0, 2, 6000, 81), CURRENT));
    assert_ne!(one_way.pair, other_way.pair);
    assert_eq!(other_way.slot, 0);
    registry.check();
}

#[test]
fn a_program_may_talk_to_itself() {
    let mut registry = registry(1);
    registry.ask(ask(0, 1, 80, 5000), CURRENT);
    let matched = matched(registry.ask(ask(0, 2, 5000, 80), CURRENT));
    let attached = matched.sides.map(|side| side.pair_attached);
    assert_eq!(attached, [true, false], "one process, told once");
    assert_eq!(matched.sides.map(|side| side.end.entry), [2, 1]);
    registry.check();
}

#[test]
fn a_socket_connected_to_itself_has_no_partner() {
    let mut registry = registry(2);
    let outcome = registry.ask(ask(0, 1, 80, 80), CURRENT);
    assert_eq!(outcome, Outcome::Refused(Reason::Unsupported));
    registry.ask(
        Ask {
            cookie: 5,
            ..ask(0, 1, 80, 5000)
        },
        CURRENT,
    );
    let outcome = registry.ask(
        Ask {
            cookie: 5,
            ..ask(1, 1, 5000, 80)
        },
        CURRENT,
    );
    assert_eq!(outcome, Outcome::Refused(Reason::Unsupported));
    registry.check();
}

#[test]
fn without_accept_flags_the_lower_process_is_side_0() {
    let mut registry = registry(2);
    let unknown = |ask| Ask {
        accepted: false,
        ..ask
    };
    registry.ask(unknown(ask(1, 1, 5000, 80)), CURRENT);
    let matched = matched(registry.ask(unknown(ask(0, 1, 80, 5000)), CURRENT));
    assert_eq!(matched.sides.map(|side| side.client.0), [0, 1]);
}

#[test]
fn a_slot_is_reused_when_both_ends_have_withdrawn() {
    let mut registry = registry(2);
    let first = join(&mut registry, 1);
    join(&mut registry, 2);
    registry.withdraw(ClientId(0), 1, 1);
    assert_eq!(registry.poll_ended(), None);
    assert_eq!(join(&mut registry, 3).slot, 2);
    registry.withdraw(ClientId(1), 1, 1);
    assert_eq!(registry.poll_ended(), Some(Ended::Channel(first.channel)));
    assert_eq!(join(&mut registry, 4).slot, 0);
    registry.check();
}

#[test]
fn a_late_withdrawal_does_not_touch_the_entrys_successor() {
    let mut registry = registry(2);
    registry.ask(ask(0, 1, 80, 5000), CURRENT);
    let second = Ask {
        generation: 2,
        ..ask(0, 1, 80, 5001)
    };
    registry.ask(second, CURRENT);
    registry.withdraw(ClientId(0), 1, 1);
    matched(registry.ask(ask(1, 1, 5001, 80), CURRENT));
    assert_eq!(
        registry
            .end(TableId(0), 1)
            .expect("registered")
            .0
            .generation,
        2
    );
    registry.check();
}

#[test]
fn asking_again_ends_what_the_entry_was_part_of() {
    let mut registry = registry(2);
    let first = join(&mut registry, 1);
    let next = |ask| Ask {
        generation: 2,
        ..ask
    };
    let again = registry.ask(next(ask(0, 1, 80, 5001)), CURRENT);
    assert_eq!(again, Outcome::Waiting(Reason::NoPartner));
    assert_eq!(registry.partner(first.sides[0].end), None);
    let again = registry.ask(next(ask(1, 1, 5001, 80)), CURRENT);
    assert_eq!(matched(again).slot, 0, "the first channel has no end left");
    registry.check();
}

#[test]
fn asking_twice_for_one_channel_is_asking_once() {
    let mut registry = registry(2);
    let first = join(&mut registry, 1);
    let again = registry.ask(ask(1, 1, 5001, 80), CURRENT);
    assert_eq!(again, Outcome::Waiting(Reason::PartnerNotAttached));
    registry.withdraw(ClientId(0), 1, 1);
    let other = join(&mut registry, 2);
    assert_ne!(other.slot, first.slot, "the asker may be in the first");
    registry.check();
}

#[test]
fn what_one_process_has_been_introduced_for_its_family_cannot_have() {
    let mut registry = registry(2);
    registry.join(ClientId(2), process(2, 0));
    let matched = join(&mut registry, 1);
    let again = ask(2, 1, 80, 5001);
    let refused = Outcome::Refused(Reason::Shared);
    assert_eq!(registry.ask(again, CURRENT), refused);
    assert!(registry.partner(matched.sides[0].end).is_some());
    registry.leave(ClientId(0));
    // Its socket is gone, and with it perhaps the offer.
    let waiting = Outcome::Waiting(Reason::NoPartner);
    assert_eq!(registry.ask(again, CURRENT), waiting);
    registry.check();
}

#[test]
fn a_stale_end_is_dropped_when_met() {
    let mut registry = registry(2);
    registry.ask(ask(0, 1, 80, 5000), CURRENT);
    let outcome = registry.ask(ask(1, 1, 5000, 80), &|end| end.table != TableId(0));
    assert_eq!(outcome, Outcome::Waiting(Reason::NoPartner));
    assert_eq!(registry.end(TableId(0), 1), None);
    registry.check();
}

#[test]
fn users_are_not_introduced_to_each_other_unless_policy_says_so() {
    for (policy, allowed) in [(Policy::SameUser, false), (Policy::AnyUser, true)] {
        let mut registry = Registry::new(Limits::with_regions(4), policy);
        registry.join(ClientId(0), process(0, 0));
        let other = Process {
            uid: 1001,
            ..process(1, 1)
        };
        registry.join(ClientId(1), other);
        registry.ask(ask(0, 1, 80, 5000), CURRENT);
        let outcome = registry.ask(ask(1, 1, 5000, 80), CURRENT);
        if allowed {
            matched(outcome);
        } else {
            assert_eq!(outcome, Outcome::Refused(Reason::OtherUser));
        }
        registry.check();
    }
}

/// Two users share the adapter; one of them fills its quota, and the other has its own.
#[test]
fn a_user_s_quota_spans_its_processes_and_leaves_the_others_theirs() {
    let limits = Limits {
        user: UserLimits {
            ends_max: 4,
            pending_max: 3,
            in_channels_max: 2,
        },
        ..Limits::with_regions(10)
    };
    let mut registry = Registry::new(limits, Policy::AnyUser);
    let of = |uid, n| Process {
        uid,
        ..process(n, n)
    };
    for (client, uid) in [(0, 7), (1, 7), (2, 8), (3, 8)] {
        registry.join(ClientId(client), of(uid, client));
    }
    // A channel within user 7 has two ends of that user's.
    registry.ask(ask(0, 1, 80, 5000), CURRENT);
    matched(registry.ask(ask(1, 1, 5000, 80), CURRENT));
    registry.check();
    // So user 7 gets no second channel with anyone; both ends get the quota as the reason.
    registry.ask(ask(2, 1, 81, 5001), CURRENT);
    let refused = Outcome::Refused(Reason::OverQuota);
    assert_eq!(registry.ask(ask(0, 2, 5001, 81), CURRENT), refused);
    registry.check();
    // User 8 does not notice.
    matched(registry.ask(ask(3, 1, 5001, 81), CURRENT));
    registry.check();
    // Ends that wait count over all processes of the user.
    for (client, entry) in [(0, 10), (1, 11)] {
        let waits = registry.ask(ask(client, entry, 82, 6000 + entry as u16), CURRENT);
        assert_eq!(waits, Outcome::Waiting(Reason::NoPartner));
    }
    assert_eq!(registry.ask(ask(0, 12, 82, 7000), CURRENT), refused);
    registry.check();
    // Withdrawn ends free their quota.
    registry.withdraw(ClientId(0), 1, 1);
    registry.withdraw(ClientId(1), 1, 1);
    registry.check();
    let waits = registry.ask(ask(0, 12, 82, 7000), CURRENT);
    assert_eq!(waits, Outcome::Waiting(Reason::NoPartner));
    registry.check();
}

#[test]
fn quotas_refuse_and_recover() {
    let limits = Limits {
        ends_per_process_max: 3,
        pending_per_process_max: 2,
        ..Limits::with_regions(10)
    };
    let mut registry = Registry::new(limits, Policy::SameUser);
    registry.join(ClientId(0), process(0, 0));
    for entry in 0..2 {
        let outcome = registry.ask(ask(0, entry, 80, 5000 + entry as u16), CURRENT);
        assert_eq!(outcome, Outcome::Waiting(Reason::NoPartner));
    }
    let third = ask(0, 2, 80, 5002);
    let refused = Outcome::Refused(Reason::NoResources);
    assert_eq!(registry.ask(third, CURRENT), refused);
    registry.sweep(ClientId(0), &|end| end.entry != 1);
    assert_eq!(
        registry.ask(third, CURRENT),
        Outcome::Waiting(Reason::NoPartner)
    );
    registry.check();
}

#[test]
fn pairs_wait_for_a_region_and_get_one_when_it_is_free() {
    let mut registry = Registry::new(Limits::with_regions(1), Policy::SameUser);
    registry.join(ClientId(0), process(0, 0));
    registry.join(ClientId(1), process(1, 1));
    join(&mut registry, 1);
    registry.ask(ask(0, 2, 80, 5002), CURRENT);
    let outcome = registry.ask(ask(1, 2, 5002, 80), CURRENT);
    assert_eq!(outcome, Outcome::Waiting(Reason::NoResources));
    assert_eq!(registry.poll_held_back(CURRENT), None);
    assert_eq!(registry.held_back_count(), 1);
    registry.withdraw(ClientId(0), 1, 1);
    registry.withdraw(ClientId(1), 1, 1);
    let matched = registry.poll_held_back(CURRENT).expect("there is a region");
    assert_eq!(matched.sides[0].end.entry, 2);
    assert_eq!(registry.poll_held_back(CURRENT), None);
    registry.check();
}

#[test]
fn a_postponed_channel_is_offered_later_with_its_pair() {
    let mut registry = registry(2);
    let first = join(&mut registry, 1);
    registry.postpone(&first);
    assert_eq!(registry.channel_count(), 0);
    for side in &first.sides {
        let (end, tuple) = registry.end(side.end.table, 1).expect("it waits");
        assert_eq!(registry.waiting(tuple), Some(end));
    }
    registry.check();
    let again = registry.poll_held_back(CURRENT).expect("it was held back");
    assert_eq!(again.sides, first.sides);
    assert!(again.is_first_of_pair(), "its memory was never handed out");
    let second = join(&mut registry, 2);
    registry.postpone(&second);
    registry.check();
    let second = registry.poll_held_back(CURRENT).expect("it was held back");
    assert!(!second.is_first_of_pair());
    registry.check();
}

#[test]
fn a_channel_that_is_held_is_offered_when_it_is_reconsidered() {
    let mut registry = registry(2);
    let first = join(&mut registry, 1);
    registry.hold(&first);
    registry.check();
    assert_eq!((registry.channel_count(), registry.channels_made()), (0, 0));
    assert_eq!(registry.poll_held_back(CURRENT), None);
    // An end that waits alone does not matter.
    registry.ask(ask(0, 7, 80, 9000), CURRENT);
    registry.reconsider();
    registry.check();
    assert_eq!(registry.held_back_count(), 1);
    let again = registry.poll_held_back(CURRENT).expect("reconsidered");
    assert_eq!(again.sides, first.sides);
    assert!(again.is_first_of_pair(), "its memory was never handed out");
    registry.hold(&again);
    registry.withdraw(ClientId(0), 1, 1);
    registry.reconsider();
    assert_eq!(registry.poll_held_back(CURRENT), None);
    registry.check();
}

#[test]
fn partners_of_a_dead_process_are_notified_once() {
    let mut registry = registry(3);
    let matched = join(&mut registry, 1);
    registry.ask(ask(0, 5, 80, 9000), CURRENT);
    assert!(registry.leave(ClientId(0)), "it has a channel");
    assert_eq!(registry.pending.len(), 0);
    let bereft = registry.process_gone(ClientId(0), CURRENT);
    assert_eq!(bereft, [matched.sides[0].end]);
    assert_eq!(registry.process_gone(ClientId(0), CURRENT), []);
    registry.withdraw(ClientId(1), 1, 1);
    let ended = [Ended::Channel(matched.channel), Ended::Pair(matched.pair)];
    assert_eq!([(); 2].map(|()| registry.poll_ended()), ended.map(Some));
    assert!(!registry.leave(ClientId(1)));
    registry.check();
    assert!(registry.pairs.is_empty());
}

#[test]
fn a_new_program_of_a_process_has_the_channels_of_the_old_one() {
    let mut registry = registry(2);
    let first = join(&mut registry, 1);
    let second = join(&mut registry, 2);
    registry.leave(ClientId(1));
    registry.join(ClientId(2), process(1, 1));
    for matched in [first, second] {
        let end = matched.sides[0].end;
        let resumed = registry.resume(ClientId(2), end.entry, end.generation);
        let expected = Resumed {
            channel: matched.channel,
            pair: matched.pair,
            slot: matched.slot,
            side: 0,
            before: ClientId(1),
            is_by_another: false,
        };
        assert_eq!(resumed, Some(expected));
        assert_eq!(registry.partner(end), Some(matched.sides[1].end));
        registry.check();
    }
    assert!(!registry.knows(ClientId(1)), "nothing is left in its name");
    assert_ne!(join_with(&mut registry, 2, 3).pair, first.pair);
}

#[test]
fn a_forked_program_sees_no_channel_but_the_one_it_asks_for() {
    let mut registry = registry(2);
    let [first, second] = [1, 2].map(|entry| join(&mut registry, entry));
    registry.join(ClientId(2), process(2, 1));
    assert_eq!(
        registry.resume(ClientId(2), 1, 1),
        None,
        "another beside it"
    );
    registry.withdraw(ClientId(1), 2, 1);
    registry.withdraw(ClientId(0), 2, 1);
    assert!(registry.resume(ClientId(2), 1, 1).is_some());
    let third = join(&mut registry, 3);
    assert_eq!([first.slot, second.slot, third.slot], [0, 1, SLAB_SLOTS]);
    registry.check();
}

#[test]
fn who_has_forked_gets_no_channel_that_the_child_would_see() {
    let mut registry = registry(2);
    let before = join(&mut registry, 1);
    registry.ask(ask(0, 2, 80, 5002), CURRENT);
    let forked = Ask {
        forks: 1,
        ..ask(1, 2, 5002, 80)
    };
    let after = matched(registry.ask(forked, CURRENT));
    assert_eq!([before.slot, after.slot], [0, SLAB_SLOTS]);
    assert_eq!([before.forks, after.forks], [[0, 0], [1, 0]]);
    assert_eq!(before.pair, after.pair);
    registry.check();
}

#[test]
fn a_forked_program_may_have_a_channel_again_but_not_take_it() {
    let mut registry = registry(2);
    let matched = join(&mut registry, 1);
    registry.join(ClientId(2), process(2, 1));
    let resumed = registry.resume(ClientId(2), 1, 1).expect("of its family");
    assert_eq!((resumed.before, resumed.is_by_another), (ClientId(1), true));
    assert_eq!(registry.ends_of(ClientId(2)).count(), 0);
    assert_eq!(
        registry.ends_of(ClientId(1)).next(),
        Some(matched.sides[0].end)
    );
    registry.check();
}

#[test]
fn what_has_no_channel_cannot_be_resumed() {
    let mut registry = registry(3);
    join(&mut registry, 1);
    registry.ask(ask(0, 2, 80, 9000), CURRENT);
    for (client, entry, generation) in [(0, 2, 1), (0, 1, 2), (0, 3, 1), (2, 1, 1), (7, 1, 1)] {
        let resumed = registry.resume(ClientId(client), entry, generation);
        assert_eq!(resumed, None);
    }
    registry.withdraw(ClientId(1), 1, 1);
    let resumed = registry.resume(ClientId(0), 1, 1);
    assert!(resumed.is_some(), "there may be bytes that it has not read");
    registry.check();
}

#[test]
fn what_a_family_still_holds_is_its_survivor_s() {
    let mut registry = registry(2);
    registry.join(ClientId(2), process(2, 0));
    let kept = join(&mut registry, 1);
    let lost = join(&mut registry, 2);
    registry.leave(ClientId(0));
    let bereft = registry.process_gone(ClientId(0), &|end| end.entry == 2);
    assert_eq!(bereft, [lost.sides[0].end]);
    assert_eq!(registry.partner(kept.sides[0].end), Some(kept.sides[1].end));
    registry.check();
    registry.leave(ClientId(2));
    assert_eq!(registry.process_gone(ClientId(2), &|_| false), []);
    assert!(
        registry.knows(ClientId(2)),
        "what nobody inherits stays its own"
    );
    registry.check();
    let bereft = registry.process_gone(ClientId(2), CURRENT);
    assert_eq!(bereft, [kept.sides[0].end]);
    assert!(!registry.knows(ClientId(2)));
    registry.check();
}
