//! How many connections and listeners each program has in the engine, on all engine threads
//! together.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::registry::ClientId;

#[derive(Debug, Default)]
struct Holding {
    flows: usize,
    /// In each thread.
    listeners: usize,
}

/// Programs with a connection or a listener.
#[derive(Debug, Default)]
pub(super) struct Clients(RwLock<BTreeMap<ClientId, Holding>>);

/// The programs, none of which comes or goes meanwhile.
pub(super) struct Unchanging<'a>(RwLockReadGuard<'a, BTreeMap<ClientId, Holding>>);

impl Unchanging<'_> {
    /// Whether there is one program that all frames are for.
    pub(super) fn is_one(&self) -> bool {
        self.0.len() == 1
    }
}

impl Clients {
    /// Counts another connection; false when the program is at its quota.
    pub(super) fn admit(&self, client: ClientId, quota: usize) -> bool {
        let mut clients = self.write();
        let flows = &mut clients.entry(client).or_default().flows;
        let is_admitted = *flows < quota;
        *flows += usize::from(is_admitted);
        is_admitted
    }

    /// A connection that was admitted is over.
    pub(super) fn dismiss(&self, client: ClientId) {
        self.change(client, |holding| holding.flows -= 1);
    }

    /// One of the threads listens in the name of a program; before anybody can connect.
    pub(super) fn listens(&self, client: ClientId) {
        self.write().entry(client).or_default().listeners += 1;
    }

    /// One of the threads does no longer.
    pub(super) fn stops_listening(&self, client: ClientId) {
        self.change(client, |holding| holding.listeners -= 1);
    }

    /// Keeps them as they are.
    pub(super) fn unchanging(&self) -> Unchanging<'_> {
        Unchanging(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, client: ClientId, change: impl FnOnce(&mut Holding)) {
        let mut clients = self.write();
        if let Some(holding) = clients.get_mut(&client) {
            change(holding);
            if holding.flows + holding.listeners == 0 {
                clients.remove(&client);
            }
        }
    }

    /// Counts are whole between two steps of a thread that panicked, too.
    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<ClientId, Holding>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: usize = 10_000;

    #[test]
    fn quotas_are_of_programs_and_not_of_threads() {
        let clients = Clients::default();
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
    fn frames_are_for_one_while_nobody_else_has_anything() {
        let clients = Clients::default();
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
        assert!(clients.0.read().expect("no panic").is_empty());
    }
}
