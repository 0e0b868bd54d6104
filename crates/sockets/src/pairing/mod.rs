//! A plain connection gets a channel, and gives it up again.
//!
//! ```text
//!   enough traffic ─► ask the adapter (never waiting) ─► its offer changes a word of our entry
//!   ─► map, verify our counts against the kernel's, announce `attached`
//!   ─► each sender moves its direction up at its next call
//! ```
//!
//! The counts are verified with `TCP_INFO`: if a single byte went past our hooks, our position in
//! the stream is wrong, and the connection stays on the host path ([`Reason::CountsDisagree`]). A
//! Unix socket has no such counts: [`crate::connection::unix`].
//!
//! - [`shown_socket`]: closing a socket while the adapter has a duplicate of it;
//! - [`leaving`]: how a channel is given back while its connection goes on.

pub(crate) mod leaving;
pub(crate) mod shown_socket;

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::doorbell::WakeWord;
use toehold_channel::layout::CAPACITY_LOG2_MIN;
use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::{
    Entry, FLAG_ASKED, FLAG_ATTACHED, FLAG_CONNECTING, FLAG_OFFLOAD, FLAG_PINNED, FLAG_SHUT_RX,
    FLAG_SHUT_TX, Reason,
};
use toehold_stream::worth::{self, Worth};

use crate::adapter::Asked;
use crate::adapter::{self, namespace, offers, requests};
use crate::connection::carrier::Carrier;
use crate::connection::orderings::PIN_SEQ_CST;
use crate::connection::{self, Connection};
use crate::connection::{counts, resets, settings, unix};
use crate::direction::switching;
use crate::epoll::membership;
use crate::express::withheld;
use crate::lock;
use crate::offload::addresses;
use crate::process::{self, holders};
use crate::system::{errno, sys};
use crate::transfer::host_call::is_gone;
use crate::waiting::seen_waits;

/// A connection that waits for an offer checks once in this many calls on the host path whether the
/// adapter is still there.
const CALLS_BETWEEN_LOOKS: u32 = 256;

/// A connection asks once in this many calls for an offer again that was postponed for lack of
/// descriptors, and for pairing again that was refused because of a user's quota. A multiple of the
/// number above.
const CALLS_BETWEEN_RETRIES: u32 = 4096;

/// A connection tries once in this many calls to send its request while the adapter has too many
/// unread requests.
const CALLS_BETWEEN_TRIES: u32 = 16;

/// The number given to [`set_calls_before_pairing`]; 0 stands for the number of [`Worth`].
static CALLS_TOLD: AtomicU32 = AtomicU32::new(0);

/// Makes connections ask for pairing after this many calls that moved bytes, on the direct and the
/// offload path.
///
/// Foreign test suites set it to 1: most of their connections end long before the usual number.
pub fn set_calls_before_pairing(calls: u32) {
    // Relaxed: set once, before `main`.
    CALLS_TOLD.store(calls, Ordering::Relaxed);
}

/// Connections with one of these flags are never paired.
const NEVER_PAIRED: u32 = FLAG_PINNED | FLAG_SHUT_TX | FLAG_SHUT_RX;

/// Called after calls that moved bytes on the host path: asks for pairing, or takes an offer.
/// Leaves errno alone.
pub(crate) fn after_host_call(connection: &Connection, moved: u64) {
    after_plain_call(connection, moved);
}

/// As [`after_host_call`], in line.
#[inline(always)]
pub(crate) fn after_plain_call(connection: &Connection, moved: u64) {
    requests::follow();
    let entry = connection.entry;
    let flags = entry.flags.load(Ordering::Relaxed);
    if flags & NEVER_PAIRED != 0 {
        return;
    }
    let calls = entry.carrier_calls.load(Ordering::Relaxed).wrapping_add(1);
    // Relaxed, and lost updates do not matter: a threshold, not a count.
    entry.carrier_calls.store(calls, Ordering::Relaxed);
    // Relaxed: `consider` looks again, and takes what is there.
    let offered = entry.offer.load(Ordering::Relaxed) != entry.offers_taken.load(Ordering::Relaxed);
    let asked = flags & FLAG_ASKED != 0;
    if offered
        || (!asked
            && worth(flags).is_reached(calls, moved)
            && seen_waits::may_be_seen(connection.local, calls))
        || (asked && (calls.is_multiple_of(CALLS_BETWEEN_LOOKS) || is_askable_again(connection)))
    {
        errno::keep(|| consider(connection));
    } else if !asked && calls.is_multiple_of(4) {
        let bytes =
            entry.rx_carrier.load(Ordering::Relaxed) + entry.tx_carrier.load(Ordering::Relaxed);
        if worth(flags).is_reached(0, bytes) {
            errno::keep(|| consider(connection));
        }
    }
}

#[inline]
fn worth(flags: u32) -> Worth {
    let usual = match flags & FLAG_OFFLOAD {
        0 => worth::DIRECT,
        _ => worth::OFFLOADED,
    };
    match CALLS_TOLD.load(Ordering::Relaxed) {
        0 => usual,
        calls => Worth { calls, ..usual },
    }
}

#[cold]
pub(crate) fn consider(connection: &Connection) {
    if connection.carrier() != Some(connection.fd) {
        // Another thread has closed the descriptor during the call, and the number may belong to
        // any file now.
        return;
    }
    if withheld::gives_back(connection) {
        return;
    }
    let entry = connection.entry;
    if entry.flags.load(Ordering::Relaxed) & (NEVER_PAIRED | FLAG_CONNECTING) != 0
        || connection.local.attachment.has_region()
    {
        return;
    }
    if entry.flags.load(Ordering::Relaxed) & FLAG_ASKED == 0 && !seen_waits::are_seen(connection) {
        entry
            .reason
            .store(Reason::UnseenWaits as u32, Ordering::Relaxed);
        return;
    }
    let calls = entry.carrier_calls.load(Ordering::Relaxed);
    let has_asked = entry.flags.load(Ordering::Relaxed) & FLAG_ASKED != 0;
    if !has_asked && adapter::is_crowded() && !calls.is_multiple_of(CALLS_BETWEEN_TRIES) {
        return;
    }
    let Some(_held) = adapter::try_lock() else {
        return;
    };
    if !connection.local.offered.load(Ordering::Relaxed).is_null() {
        attach(connection);
        return;
    }
    let Some(adapter) = adapter::connect_if_needed() else {
        entry
            .reason
            .store(adapter::connect_failure() as u32, Ordering::Relaxed);
        return;
    };
    let epoch = adapter::epoch();
    entry.pid.store(process::pid(), Ordering::Relaxed);
    entry.fd.store(connection.fd as u32, Ordering::Relaxed);
    let is_shown = namespace::is_wanted(connection) && namespace::show(connection, adapter);
    let asks = is_shown
        || is_released(entry)
        || connection.local.asked_epoch.load(Ordering::Relaxed) != epoch;
    if asks {
        match describe(connection) {
            Ok(message) => {
                if !ask(connection, adapter, &message) {
                    return;
                }
            }
            Err(reason) => {
                connection.pin(reason);
                return;
            }
        }
    }
    if !asks && calls.is_multiple_of(CALLS_BETWEEN_RETRIES) && offers::is_put_off(entry) {
        offers::retry(connection);
    }
    // The answer to a request that was just sent takes a while.
    if !asks || offers::offer_waits(connection) {
        offers::receive_offers(adapter, connection);
    }
    if !connection.local.offered.load(Ordering::Relaxed).is_null() {
        attach(connection);
    }
}

/// Asks for pairing of a new connection at once, regardless of its traffic. It was accepted at
/// `listener`, or has connected. Returns the adapter's socket.
pub(crate) fn ask_at_once(connection: &Connection, listener: Option<i32>) -> Option<i32> {
    let entry = connection.entry;
    let flags = entry.flags.load(Ordering::Relaxed);
    if flags & (NEVER_PAIRED | FLAG_CONNECTING | FLAG_OFFLOAD | FLAG_ASKED) != 0 {
        return None;
    }
    ask_now(connection, listener)
}

/// As [`ask_at_once`], for a carrier to the engine's relay before the engine has answered. True
/// when the request was sent.
pub(crate) fn ask_before_answer(connection: &Connection) -> bool {
    let flags = connection.entry.flags.load(Ordering::Relaxed);
    flags & (NEVER_PAIRED | FLAG_ASKED) == 0 && ask_now(connection, None).is_some()
}

fn ask_now(connection: &Connection, listener: Option<i32>) -> Option<i32> {
    let _held = adapter::lock();
    let adapter = adapter::connect_if_needed()?;
    if namespace::is_wanted(connection) && !namespace::show(connection, adapter) {
        return None;
    }
    let mut message = describe(connection).ok()?;
    message.listener = listener.map_or(0, |listener| listener as u64 + 1);
    ask(connection, adapter, &message).then_some(adapter)
}

/// Sends the request for a connection. False when that failed, or must be tried again.
fn ask(connection: &Connection, adapter: i32, message: &Message) -> bool {
    let (entry, local) = (connection.entry, connection.local);
    // The words are overwritten, so that a refusal which comes from now on belongs to this request.
    let before = shown_socket::begin(connection);
    match adapter::ask(adapter, message, connection.fd) {
        Asked::Sent => {
            (local.asked_epoch).store(adapter::epoch(), Ordering::Relaxed);
            entry.flags.fetch_or(FLAG_ASKED, Ordering::Relaxed);
            entry
                .reason
                .store(Reason::NoPartner as u32, Ordering::Relaxed);
            true
        }
        Asked::Later => {
            shown_socket::take_back(connection, before);
            entry
                .reason
                .store(Reason::Crowded as u32, Ordering::Relaxed);
            false
        }
        Asked::Lost => false,
    }
}

/// The request for a connection, or why it can never be paired. The descriptor goes with it,
/// because the adapter trusts only the socket itself.
fn describe(connection: &Connection) -> Result<Message, Reason> {
    let fd = connection.fd;
    let option = |name| sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, name).unwrap_or(-1);
    let is_offloaded = connection.entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    // A carrier to the engine was checked when it was made.
    if !is_offloaded {
        Carrier::at(fd).ok_or(Reason::NotTcp)?.note(fd);
    }
    let ulp = sys::getsockopt::<[u8; 16]>(fd, libc::IPPROTO_TCP, libc::TCP_ULP).unwrap_or_default();
    if ulp[0] != 0
        || option(libc::SO_RCVLOWAT) > 1
        || option(libc::SO_ZEROCOPY) > 0
        || option(libc::SO_OOBINLINE) > 0
    {
        return Err(Reason::Unsupported);
    }
    let mut message = Message::new(Kind::Pair);
    message.entry = connection.index;
    message.generation = connection.channel_generation();
    message.pid = process::pid();
    message.slot = process::forks();
    if Carrier::of(connection) == Carrier::Tcp
        && let (Some(local), Some(remote)) = (addresses::local(fd), addresses::remote(fd))
    {
        // The adapter compares them with the kernel's list of sockets. It does not ask the socket:
        // that would wait for a `send` that holds the socket's lock.
        (message.local, message.local_port) = (local.ip, local.port);
        (message.remote, message.remote_port) = (remote.ip, remote.port);
    }
    let is_parked = !connection.local.parked.load(Ordering::Relaxed).is_null();
    message.side = u32::from(is_parked);
    Ok(message)
}

/// Attaches the offered region if no call is in flight; otherwise the next call tries again. The
/// caller holds the adapter's lock.
fn attach(connection: &Connection) {
    let (entry, local) = (connection.entry, connection.local);
    let region = local.offered.load(Ordering::Relaxed);
    if holders::are_others(entry) {
        entry.reason.store(Reason::Shared as u32, Ordering::Relaxed);
        return;
    }
    let (Some(rx), Some(tx)) = (
        lock::try_lock(&entry.rx_lock),
        lock::try_lock(&entry.tx_lock),
    ) else {
        return;
    };
    if connection.carrier() != Some(connection.fd) {
        // As in `consider`. From here on, a thread that closes the descriptor waits for the locks.
        return;
    }
    connection.learn_nonblocking();
    if settings::needs_kernel(connection) {
        connection.pin(Reason::Unsupported);
        return;
    }
    // From now on new calls see the region and wait for the locks. Host-path calls count themselves
    // in before they look at `region`.
    let calls = [&local.rx_in_flight, &local.tx_in_flight];
    let is_given = (local.attachment).give(region, calls, |name| is_gone(connection.index, name));
    if is_given && entry.flags.load(PIN_SEQ_CST) & FLAG_PINNED != 0 {
        // The connection was pinned after `consider` looked. The pinning thread saw no region, so
        // it took nothing back.
        local.attachment.take();
        return;
    }
    if is_given && holders::are_others(entry) {
        // The process was forked after the look above. The child's calls are not counted here. (A
        // child that is forked from now on has the region.)
        local.attachment.take();
        entry.reason.store(Reason::Shared as u32, Ordering::Relaxed);
        return;
    }
    if !is_given {
        entry.reason.store(Reason::InCall as u32, Ordering::Relaxed);
        return;
    }
    let agree = match Carrier::of(connection) {
        Carrier::Tcp => counts::agree(connection),
        // The comparison needs the peer's count: `unix::compare` makes it later.
        Carrier::Unix => Some(true),
    };
    match agree {
        Some(true) => {}
        Some(false) => {
            local.attachment.take();
            connection.pin(Reason::CountsDisagree);
            return;
        }
        None => {
            local.attachment.take();
            return;
        }
    }
    entry
        .tx_capacity_log2
        .store(CAPACITY_LOG2_MIN, Ordering::Relaxed);
    settings::prepare_carrier(connection);
    entry.flags.fetch_or(FLAG_ATTACHED, Ordering::Relaxed);
    entry
        .reason
        .store(Reason::PartnerNotAttached as u32, Ordering::Relaxed);
    if let Some(end) = connection.end() {
        resets::publish(connection);
        // The peer rings until it is known how this program waits.
        entry.asker.store(0, Ordering::Relaxed);
        match Carrier::of(connection) {
            Carrier::Tcp => end.attach(WakeWord::Bell),
            Carrier::Unix => {
                end.attach_unwelcoming(WakeWord::Bell);
                unix::begin_comparing(connection, &end);
            }
        }
    }
    drop(rx);
    drop(tx);
    membership::take_from_kernel(connection);
    switching::service(connection);
}

/// True when the adapter refused the connection for a reason that may no longer hold.
#[inline]
fn is_askable_again(connection: &Connection) -> bool {
    let refusal = connection.entry.refusal.load(Ordering::Relaxed);
    // Nearly always the adapter has not answered, or knows no partner.
    refusal != Reason::None as u32
        && refusal != Reason::NoPartner as u32
        && (is_released(connection.entry) || namespace::is_wanted(connection))
}

/// True when the adapter refused the connection because an operator or a packet capture kept it on
/// its carrier, which is over now, or because the other end of a Unix socket was not accepted yet,
/// or because a user or this process had too many connections. The adapter has forgotten such a
/// request.
#[cold]
fn is_released(entry: &Entry) -> bool {
    let refusal = entry.refusal.load(Ordering::Relaxed);
    if refusal == Reason::Closing as u32 && Carrier::in_entry(entry) == Carrier::Unix {
        let calls = entry.carrier_calls.load(Ordering::Relaxed);
        return calls.is_multiple_of(CALLS_BETWEEN_LOOKS);
    }
    let is_limited = refusal == Reason::OverQuota as u32
        || refusal == Reason::NoResources as u32 && !offers::is_put_off(entry);
    if is_limited {
        let calls = entry.carrier_calls.load(Ordering::Relaxed);
        return calls.is_multiple_of(CALLS_BETWEEN_RETRIES);
    }
    (refusal == Reason::Detached as u32 || refusal == Reason::Captured as u32)
        && !connection::commanded(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_refused_by_a_limit_asks_again_after_many_calls() {
        for refused in [Reason::OverQuota, Reason::NoResources] {
            let entry = Entry::default();
            entry.refusal.store(refused as u32, Ordering::Relaxed);
            let is_released_after = |calls| {
                entry.carrier_calls.store(calls, Ordering::Relaxed);
                is_released(&entry)
            };
            assert!(!is_released_after(CALLS_BETWEEN_RETRIES - 1));
            assert!(is_released_after(CALLS_BETWEEN_RETRIES));
            assert!(!is_released_after(CALLS_BETWEEN_RETRIES + 1));
        }
    }

    #[test]
    fn connection_whose_offer_was_postponed_asks_for_the_offer_only() {
        let entry = Entry::default();
        let refused = Reason::NoResources as u32;
        entry.refusal.store(refused, Ordering::Relaxed);
        entry.offers_taken.store(1, Ordering::Relaxed);
        let calls = CALLS_BETWEEN_RETRIES;
        entry.carrier_calls.store(calls, Ordering::Relaxed);
        assert!(!is_released(&entry));
    }
}
