//! The number of connections and listeners that each program has in the engine, on all engine
//! threads together.
//!
//! Each connection has a carrier, which is a descriptor of the process. So the number of all
//! connections is limited, and one program may have three quarters of those that the others leave.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::registry::ClientId;

#[derive(Debug, Default)]
struct Holding {
    flows: usize,
    /// In each thread.
    listeners: usize,
}

#[derive(Debug, Default)]
struct Programs {
    by_id: BTreeMap<ClientId, Holding>,
    /// Of all of them.
    flows: usize,
}

/// Programs with a connection or a listener.
#[derive(Debug)]
pub(super) struct Clients {
    programs: RwLock<Programs>,
    flows_max: usize,
}

/// A view of the programs, during which none is added or removed.
pub(super) struct Unchanging<'a>(RwLockReadGuard<'a, Programs>);

impl Unchanging<'_> {
    /// Whether all frames are for a single program.
    pub(super) fn is_one(&self) -> bool {
        self.0.by_id.len() == 1
    }
}

impl Clients {
    /// No programs yet; at most `flows_max` connections of all programs.
    pub(super) fn new(flows_max: usize) -> Clients {
        Clients {
            programs: RwLock::default(),
            flows_max,
        }
    }

    /// Counts another connection. False when the program has reached its quota, or its share of all
    /// connections.
    pub(super) fn admit(&self, client: ClientId, quota: usize) -> bool {
        let mut programs = self.write();
        let all = programs.flows;
        let flows = &mut programs.by_id.entry(client).or_default().flows;
        let left_by_others = self.flows_max.saturating_sub(all - *flows);
        let is_admitted = *flows < quota.min(left_by_others.saturating_mul(3).div_ceil(4));
        *flows += usize::from(is_admitted);
        programs.flows += usize::from(is_admitted);
        is_admitted
    }

    /// Counts off a connection that was admitted.
    pub(super) fn dismiss(&self, client: ClientId) {
        let mut programs = self.write();
        programs.flows -= 1;
        programs.change(client, |holding| holding.flows -= 1);
    }

    /// One of the threads begins to listen for a program. Called before remotes can connect.
    pub(super) fn listens(&self, client: ClientId) {
        self.write().by_id.entry(client).or_default().listeners += 1;
    }

    /// One of the threads stops listening for a program.
    pub(super) fn stops_listening(&self, client: ClientId) {
        self.write()
            .change(client, |holding| holding.listeners -= 1);
    }

    /// Locks the programs against changes.
    pub(super) fn unchanging(&self) -> Unchanging<'_> {
        Unchanging(self.programs.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The counts are consistent even if a thread panicked while it held the lock.
    fn write(&self) -> RwLockWriteGuard<'_, Programs> {
        self.programs
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Programs {
    fn change(&mut self, client: ClientId, change: impl FnOnce(&mut Holding)) {
        if let Some(holding) = self.by_id.get_mut(&client) {
            change(holding);
            if holding.flows + holding.listeners == 0 {
                self.by_id.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: usize = 10_000;
    const MANY: usize = 100 * QUOTA;

    #[test]
    fn quotas_are_of_programs_and_not_of_threads() {
        let clients = Clients::new(MANY);
        let admitted = std::thread::scope(|scope| {
            let threads = [0, 1].map(|_| {
                let many = || (0..QUOTA).filter(|_| clients.admit(ClientId(1), QUOTA));
                scope.spawn(move || many().count())
            });
            threads.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(admitted.iter().sum::<usize>(), QUOTA);
        assert!(clients.admit(ClientId(2), QUOTA), "others have their own");
        clients.dismiss(ClientId(1));
        assert!(clients.admit(ClientId(1), QUOTA));
    }

    #[test]
    fn however_many_connections_a_program_has_others_may_have_some() {
        let clients = Clients::new(100);
        let admitted = [1, 2, 3].map(|id| {
            let all = std::iter::repeat_with(|| clients.admit(ClientId(id), QUOTA));
            all.take_while(|is_admitted| *is_admitted).count()
        });
        assert_eq!(admitted, [75, 19, 5]);
        assert!(!clients.admit(ClientId(1), QUOTA));
        // Connections that end make room.
        for _ in 0..75 {
            clients.dismiss(ClientId(1));
        }
        assert!(clients.admit(ClientId(3), QUOTA));
    }

    #[test]
    fn a_single_program_gets_all_frames() {
        let clients = Clients::new(MANY);
        assert!(!clients.unchanging().is_one());
        assert!(clients.admit(ClientId(1), QUOTA));
        clients.listens(ClientId(1));
        assert!(clients.unchanging().is_one());
        clients.listens(ClientId(2));
        assert!(!clients.unchanging().is_one(), "somebody may connect");
        clients.stops_listening(ClientId(2));
        clients.dismiss(ClientId(1));
        assert!(clients.unchanging().is_one());
        clients.stops_listening(ClientId(1));
        assert!(clients.unchanging().0.by_id.is_empty());
    }
}
