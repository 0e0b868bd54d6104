//! The two ends of a connection find each other: by mirrored tuples, or by sequence numbers and the
//! caller's proof.

use super::{Ask, End, EntryKey, Match, Numbers, Outcome, Registry, RequestState, TableId, Tuple};

impl Registry {
    /// Introduces two waiting ends after the caller has proved that they belong together. `None` if
    /// one of them no longer waits, or if they may not be introduced.
    pub fn unite(&mut self, ends: [End; 2]) -> Option<Match> {
        let [one, other] = ends.map(|end| {
            let registered = self.ends.get(&end.key());
            let waits = registered.filter(|registered| {
                registered.end == end && matches!(registered.state, RequestState::Pending(_))
            });
            waits.map(|registered| (end.key(), registered.client))
        });
        let ((one, client), (other, _)) = (one?, other?);
        if self.refusal_of_user(client, other).is_some() || one == other {
            return None;
        }
        self.part(one);
        self.part(other);
        self.meet(one, other);
        match self.introduce(one, other) {
            Outcome::Matched(matched) => Some(matched),
            _ => None,
        }
    }

    /// The waiting ends whose sequence numbers fit these numbers: seldom more than one.
    pub fn candidates(&self, numbers: &Numbers) -> impl Iterator<Item = End> {
        let wanted = numbers.of_partner().into_iter();
        let keys = wanted.flat_map(|numbers| {
            let first = EntryKey {
                table: TableId(0),
                entry: 0,
            };
            let those = self.by_numbers.range((numbers, first)..);
            those
                .take_while(move |(its, _)| *its == numbers)
                .map(|(_, key)| *key)
        });
        keys.map(|key| self.ends[&key].end)
    }

    /// The end that waits together with this one until both can be introduced.
    pub fn met(&self, end: End) -> Option<End> {
        let registered = self.ends.get(&end.key())?;
        let other = registered.met.filter(|_| registered.end == end)?;
        Some(self.ends[&other].end)
    }

    /// The connection of an end as the other end sees it, if the two have a channel, and belong to
    /// two namespaces or know different addresses.
    pub fn translated(&self, end: End) -> Option<Tuple> {
        let (own, _) = self.claim(end)?;
        let (other, _) = self.claim(self.partner(end)?)?;
        (own != other.mirrored()).then_some(other)
    }

    /// The waiting partner of the asking end.
    pub fn other_of(&self, ask: &Ask) -> Option<End> {
        let key = self.partner_of(ask)?;
        Some(self.ends[&key].end)
    }

    /// The end that waits under a tuple.
    #[cfg(test)]
    pub(super) fn waiting(&self, tuple: Tuple) -> Option<End> {
        let key = self.pending.get(&tuple)?;
        Some(self.ends[key].end)
    }

    /// The waiting partner of the asking end: the proved one, or the one with the mirrored tuple.
    /// Two ends with mirrored tuples whose sequence numbers do not fit belong to two connections.
    pub(super) fn partner_of(&self, ask: &Ask) -> Option<EntryKey> {
        let is_pending = |key: &EntryKey| {
            let state = self.ends.get(key).map(|registered| registered.state);
            matches!(state, Some(RequestState::Pending(_)))
        };
        let is_proved = |end: &End| self.ends.get(&end.key()).is_some_and(|it| it.end == *end);
        let proved = ask.partner.filter(is_proved).map(End::key);
        if let Some(proved) = proved.filter(is_pending) {
            return Some(proved);
        }
        let mirror = self.pending.get(&ask.tuple.mirrored()).copied()?;
        let both = ask.numbers.zip(self.ends[&mirror].numbers);
        let fit = both.is_none_or(|(own, other)| own.fit(&other));
        fit.then_some(mirror)
    }

    /// Links two waiting ends. Each may have been linked to another end before.
    pub(super) fn meet(&mut self, one: EntryKey, other: EntryKey) {
        for (key, other) in [(one, other), (other, one)] {
            self.part(key);
            let registered = self.ends.get_mut(&key).expect("both wait");
            registered.met = Some(other);
        }
    }

    /// Removes the link of a waiting end.
    pub(super) fn part(&mut self, key: EntryKey) {
        let met = self.ends.get_mut(&key).and_then(|it| it.met.take());
        let Some(other) = met else { return };
        self.held_back.remove(&key.min(other));
        if let Some(other) = self.ends.get_mut(&other) {
            other.met = None;
        }
    }
}
