//! Client tokens: a carrier's token identifies its client.
//!
//! The relay is a port of loopback, which every local user can reach. A carrier's request is made
//! for the client whose token it shows, and is refused without a valid token. Quotas are counted by
//! client. The daemon gives a token to each client, and says when the client is gone. Carriers that
//! the client had made by then may still wait at the relay: a program may connect and then execute
//! another program, which has the carrier. So a token is taken back only after the thread of the
//! relay has accepted these carriers.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use toehold_channel::preamble::ClientToken;

use super::Holder;
use crate::entropy;
use crate::registry::ClientId;

/// The tokens of all clients that have asked for one: at most one for each client.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    holders: HashMap<ClientToken, Holder>,
    by_client: BTreeMap<ClientId, ClientToken>,
}

impl Tokens {
    /// A client's token. A client always gets the same one.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub(super) fn give(&self, holder: Holder) -> io::Result<ClientToken> {
        let mut book = self.book();
        if let Some(token) = book.by_client.get(&holder.client) {
            return Ok(*token);
        }
        let [first, second, ..] = entropy::bits()?;
        let token = [first, second];
        book.holders.insert(token, holder);
        book.by_client.insert(holder.client, token);
        Ok(token)
    }

    /// A client is gone. Returns its token, which stays valid until [`Tokens::take_back`].
    pub(super) fn leave(&self, client: ClientId) -> Option<ClientToken> {
        self.book().by_client.remove(&client)
    }

    /// Revokes the token of a client that is gone.
    pub(super) fn take_back(&self, token: ClientToken) {
        self.book().holders.remove(&token);
    }

    /// Whether a client has a token, and is not gone.
    pub(super) fn has(&self, client: ClientId) -> bool {
        self.book().by_client.contains_key(&client)
    }

    /// The holder of a token.
    pub(super) fn holder(&self, token: ClientToken) -> Option<Holder> {
        self.book().holders.get(&token).copied()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing here panics between two steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::TableId;

    fn holder(client: u64) -> Holder {
        Holder {
            client: ClientId(client),
            family: TableId(9),
        }
    }

    #[test]
    fn each_client_has_one_token_until_it_is_taken_back() {
        let tokens = Tokens::default();
        let [one, other] = [1, 2].map(|id| tokens.give(holder(id)).expect("random numbers"));
        assert_ne!(one, other);
        assert_eq!(tokens.give(holder(1)).expect("known"), one);
        assert_eq!(tokens.holder(one), Some(holder(1)));
        assert_eq!(tokens.holder(other), Some(holder(2)));
        assert_eq!(tokens.leave(ClientId(1)), Some(one));
        assert_eq!(tokens.leave(ClientId(1)), None);
        assert_eq!(tokens.holder(one), Some(holder(1)), "its carriers may wait");
        tokens.take_back(one);
        tokens.take_back(one);
        assert_eq!(tokens.holder(one), None);
        assert!(!tokens.has(ClientId(1)) && tokens.has(ClientId(2)));
        assert_eq!(tokens.holder(other), Some(holder(2)));
        assert_ne!(tokens.give(holder(1)).expect("random numbers"), one);
    }

    #[test]
    fn no_client_has_the_token_of_zeros() {
        assert_eq!(Tokens::default().holder([0; 2]), None);
    }
}
