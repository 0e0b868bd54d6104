//! Where a connection's directions are wanted (up, down, or down for good): by the operator, the
//! adapter, the peer, or a use of the descriptor that rings cannot serve.

use core::sync::atomic::{Ordering, fence};

use toehold_channel::doorbell::WakeWord;
use toehold_channel::layout::{SIDE_ACQUIRE, SIDE_RELEASE};
use toehold_channel::ring::Fault;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_NONE, COMMAND_PEER_GONE, COMMAND_SPARE, COMMAND_YIELD, Entry,
    FLAG_CONNECTING, FLAG_PINNED, FLAG_REFUSED, FLAG_SHUT_RX, FLAG_SHUT_TX, FLAG_UNCOMPARED,
    FLAG_UNSEEN, Mode, Reason, is_eviction,
};
use toehold_stream::end::{End, Incoming};
use toehold_stream::leaving::Refusal;
use toehold_stream::silence::Doorbells;

use crate::connection::resets::fault_of_peer;
use crate::connection::{self, Connection, HINT_EOF};
use crate::connection::{settings, unix};
use crate::direction::doorbells::{self, Awaited};
use crate::direction::{self, notifier, takeover};
use crate::epoll::{membership, news};
use crate::express::{turns, unread_watch};
use crate::lock::Held;
use crate::pairing::leaving;
use crate::system::{errno, sys};
use crate::transfer::peek_offset;
use crate::waiting::sleepers;

/// Does what the operator, the adapter, the peer or the state of the connection ask of our
/// direction: up, down, or nothing. The caller holds the send lock.
#[inline]
pub(crate) fn follow_requests(connection: &Connection, end: &End<'_>) -> Result<(), i32> {
    let hints = connection.entry.rx_hints.load(Ordering::Relaxed);
    match has_no_request(connection, end, hints) {
        true => Ok(()),
        false => follow_requests_slowly(connection, end),
    }
}

/// As [`follow_requests`], for a send of the program's: a region that is wanted back from an idle
/// connection stays.
#[inline]
pub(crate) fn follow_requests_in_use(connection: &Connection, end: &End<'_>) -> Result<(), i32> {
    let hints = connection.entry.rx_hints.load(Ordering::Relaxed);
    if has_no_request(connection, end, hints) {
        return Ok(());
    }
    keep_region(connection, end);
    follow_requests_slowly(connection, end)
}

/// The connection is in use: withdraws the adapter's wish for its region, if that was for an idle
/// one, and neither end has begun to follow it.
#[cold]
pub(crate) fn keep_region(connection: &Connection, end: &End<'_>) -> bool {
    let (entry, command) = (connection.entry, &connection.entry.command);
    let is_up = entry.tx_mode.load(Ordering::Relaxed).is(Mode::Ring as u32);
    if command.load(Ordering::Relaxed) != COMMAND_SPARE || !is_up || end.refusal() != Refusal::None
    {
        return false;
    }
    // Relaxed: the adapter only counts. One that has another command now keeps that.
    command
        .compare_exchange(
            COMMAND_SPARE,
            COMMAND_NONE,
            Ordering::Relaxed,
            Ordering::Relaxed,
        )
        .is_ok()
}

/// Conditions that [`follow_requests`], a send on the carrier or the general code has to handle
/// first. No connection with a region connects or is refused.
const NOT_CONTENT: u32 = FLAG_PINNED | FLAG_SHUT_TX | FLAG_CONNECTING | FLAG_REFUSED | FLAG_UNSEEN;

/// True when our direction is a ring, and nobody wants it elsewhere. The caller holds the send
/// lock, and has loaded the receive hints.
#[inline(always)]
pub(crate) fn has_no_request(connection: &Connection, end: &End<'_>, hints: u32) -> bool {
    let entry = connection.entry;
    end.tx_mode() == Mode::Ring
        && !connection::commanded(entry)
        && end.is_welcome()
        && entry.flags.load(Ordering::Relaxed) & NOT_CONTENT == 0
        && hints & HINT_EOF == 0
}

#[cold]
fn follow_requests_slowly(connection: &Connection, end: &End<'_>) -> Result<(), i32> {
    let entry = connection.entry;
    let noted = FormerReason::of(entry);
    let flags = entry.flags.load(Ordering::Relaxed);
    // Acquire pairs with the adapter's Release store in `Tables::set_peer_gone`.
    let command = entry.command.load(Ordering::Acquire);
    if flags & FLAG_UNCOMPARED != 0 {
        unix::compare(connection, end);
    }
    // Its registrations can only be answered by the kernel.
    let held_down = end.tx_mode() != Mode::Ring && membership::holds_down(connection);
    noted.note_reason(command, held_down);
    if !end.is_welcome() && turns::is_unaccepted(connection, end) {
        return Err(errno::GOES_BACK);
    }
    let has_to_be_down = publish_refusal(connection, end, command, held_down);
    match (end.tx_mode() == Mode::Ring, has_to_be_down) {
        (true, true) => move_down(connection, end, command),
        (true, false) => Ok(()),
        (false, true) => {
            if end.records_pending() || end.rx_mode() != Mode::Carrier {
                // The peer went up before it saw that we refuse: the kernel knows nothing of what
                // it sends.
                membership::take_from_kernel(connection);
            }
            Ok(())
        }
        (false, false) => go_up(connection, end, &noted),
    }
}

/// The reason of a connection as it was before its flags were looked at.
struct FormerReason<'a> {
    entry: &'a Entry,
    reason: u32,
}

impl FormerReason<'_> {
    fn of(entry: &Entry) -> FormerReason<'_> {
        FormerReason {
            entry,
            // Acquire pairs with the Release store in `Connection::pin`: where its reason is seen,
            // its flag is, too. Where the pin comes later, it replaces ours, or `replace` does
            // nothing.
            reason: entry.reason.load(Ordering::Acquire),
        }
    }

    /// Notes for `toehold status` why our direction is to be on the carrier. A reason of the
    /// connection's own outlasts a command, so it is the one that is noted.
    fn note_reason(&self, command: u32, held_down: bool) {
        let flags = self.entry.flags.load(Ordering::Relaxed);
        self.replace(match command {
            COMMAND_PEER_GONE => Reason::PeerGone,
            // Noted by `Connection::pin`.
            _ if flags & FLAG_PINNED != 0 => return,
            _ if has_ended(self.entry) => Reason::Closing,
            _ if held_down => Reason::Shared,
            _ if is_unseen_below(self.entry) => Reason::UnseenWaits,
            COMMAND_DETACH => Reason::Detached,
            COMMAND_YIELD => Reason::Captured,
            command if is_eviction(command) => Reason::NoResources,
            _ => return,
        });
    }

    /// Notes another reason, unless somebody has noted one since.
    fn replace(&self, reason: Reason) {
        let noted = &self.entry.reason;
        // Relaxed: the word says all that there is to say.
        let _ = noted.compare_exchange(
            self.reason,
            reason as u32,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

/// True when one of the two directions has ended, so far as the program knows.
fn has_ended(entry: &Entry) -> bool {
    entry.flags.load(Ordering::Relaxed) & (FLAG_SHUT_TX | FLAG_SHUT_RX) != 0
        || entry.rx_hints.load(Ordering::Relaxed) & HINT_EOF != 0
}

/// True when our direction came down for want of room, and the program may wait for that past the
/// library.
fn is_unseen_below(entry: &Entry) -> bool {
    entry.flags.load(Ordering::Relaxed) & FLAG_UNSEEN != 0
        && !entry.tx_mode.load(Ordering::Relaxed).is(Mode::Ring as u32)
}

/// True when our direction is still where the operator or a packet capture had it, on the carrier,
/// and neither wants it there any more: its next use has it go up, or a look at all connections.
pub(crate) fn is_released(entry: &Entry) -> bool {
    let reason = entry.reason.load(Ordering::Relaxed);
    let was_kept = reason == Reason::Detached as u32 || reason == Reason::Captured as u32;
    let mode = entry.tx_mode.load(Ordering::Relaxed);
    was_kept && mode.is(Mode::Carrier as u32) && !connection::commanded(entry)
}

/// Tells the peer whether its direction is to come down, too. True when ours has to be on the
/// carrier.
fn publish_refusal(connection: &Connection, end: &End<'_>, command: u32, held_down: bool) -> bool {
    let entry = connection.entry;
    let flags = entry.flags.load(Ordering::Relaxed);
    let pinned = flags & FLAG_PINNED != 0;
    // A side that brings its own direction down wants the other direction down, too.
    end.refuse(if end.has_left() || is_eviction(command) {
        Refusal::Over
    } else if pinned || matches!(command, COMMAND_DETACH | COMMAND_YIELD) || held_down {
        Refusal::Paused
    } else {
        Refusal::None
    });
    // While our direction is on the carrier each call comes by here, and compares.
    pinned
        || flags & FLAG_UNCOMPARED != 0
        || command != 0
        || held_down
        || has_ended(entry)
        || is_unseen_below(entry)
        || end.is_wanted_down()
}

/// Our direction is a ring, and goes back to the carrier.
fn move_down(connection: &Connection, end: &End<'_>, command: u32) -> Result<(), i32> {
    // The peer stores `head` before `abandoned`.
    let is_lost = !end.theirs().wake.abandoned.load(SIDE_ACQUIRE).is(0)
        && !end.is_asked_to_resend()
        && end.theirs().consume.head.load(Ordering::Relaxed)
            != connection.entry.tx_ring.load(Ordering::Relaxed);
    if is_lost {
        return Err(fault_of_peer(connection, Fault::Record));
    }
    // A peer that refuses has brought its own direction down and expects that of ours: it needs no
    // call. A program without rings may read beside it, and would take a doorbell for data.
    let wake = &end.theirs().wake;
    let is_attentive =
        || wake.refuse.load(SIDE_ACQUIRE).is(0) && wake.abandoned.load(SIDE_ACQUIRE).is(0);
    match command {
        COMMAND_YIELD if is_attentive() => notifier::call_peer(connection, end),
        // Both directions are to come down: a peer that sleeps should hear of it.
        _ if (command == COMMAND_DETACH || is_eviction(command)) && is_attentive() => {
            notifier::ring_if_open(connection, end);
        }
        _ => {}
    }
    direction::go_down(connection, end);
    Ok(())
}

/// Our direction is on the carrier, and goes up to the ring if the peer is there.
fn go_up(connection: &Connection, end: &End<'_>, noted: &FormerReason<'_>) -> Result<(), i32> {
    membership::take_from_kernel(connection);
    let is_up = end
        .try_up()
        .map_err(|fault| fault_of_peer(connection, fault))?;
    if is_up {
        noted.replace(Reason::None);
        unread_watch::went_up(connection);
    }
    Ok(())
}

/// Lets our direction follow commands and the peer when the program itself is not sending.
pub(crate) fn service(connection: &Connection) {
    let Some(end) = connection.inside() else {
        return;
    };
    {
        let Some(_held) = takeover::try_lock_sending(connection) else {
            return;
        };
        let _ = follow_requests(connection, &end);
    }
    leaving::declare(connection, &end);
    if end.tx_mode() == Mode::Carrier
        && end.rx_mode() == Mode::Carrier
        && !end.records_pending()
        && settings::low_water(connection) == 1
        && !end.ours().wake.refuse.load(Ordering::Relaxed).is(0)
    {
        membership::hand_back(connection, &end);
    }
}

/// The program wants something of its socket that rings cannot express: both directions are brought
/// down, now or at the peer's next send, and stay there. Unread bytes in the ring stay readable.
pub(crate) fn retire(connection: &Connection, reason: Reason) {
    connection.pin(reason);
    service(connection);
}

/// Brings our direction down for good, and asks the peer to bring its own down before it sends
/// again. False when there is no channel, or when the send lock cannot be had. The caller goes on
/// to use the carrier in any case. With our direction still in the ring, the peer would take those
/// bytes for doorbells; so the connection is reset then.
pub(crate) fn leave_ring(connection: &Connection, reason: Reason) -> bool {
    connection.pin(reason);
    let Some(_held) = takeover::lock_sending(connection) else {
        if connection
            .inside()
            .is_some_and(|end| end.tx_mode() != Mode::Carrier)
        {
            sys::disconnect(connection.number());
        }
        return false;
    };
    let Some(end) = connection.end() else {
        return false;
    };
    end.refuse(Refusal::Paused);
    direction::go_down(connection, &end);
    true
}

/// Another program gets the descriptor, too, and this one goes on with it: both directions become
/// the kernel's for good, so that what either writes is in the stream. Unread bytes in the ring
/// stay for this program.
pub(crate) fn keep_on_carrier(connection: &Connection) {
    keep_on_carrier_for(connection, Reason::Passed);
}

/// As [`keep_on_carrier`], for another reason: the kernel writes to it beside this program.
pub(crate) fn keep_on_carrier_for(connection: &Connection, reason: Reason) {
    if leave_ring(connection, reason)
        && let Some(end) = connection.inside()
    {
        silence(connection, &end);
        end_carrier_after_turn(connection, &end);
    }
}

/// Somebody who knows nothing of rings may read the carrier beside this program: takes all
/// doorbells off it, and has the peer give no more ([`toehold_stream::silence`]). Our direction is
/// on the carrier. No lock is held.
fn silence(connection: &Connection, end: &End<'_>) {
    if end.asks_for_credit() {
        // A thread waits for credit, and only a doorbell can wake it.
        return doorbells::try_drain(connection, end);
    }
    let start = sys::now_ns();
    loop {
        let waited = sys::now_ns() - start;
        {
            let Some(_held) = takeover::lock_receiving(connection) else {
                return;
            };
            let awaited = doorbells::awaited(connection, end);
            if waited >= awaited.map_or(0, Awaited::for_ns) {
                end.silence();
                end.ask_if_silent();
                if awaited == Some(Awaited::Doorbell) {
                    // Without this doorbell that thread would not wake up.
                    return;
                }
                if doorbells::take_all(connection, end) {
                    // The doorbell may have been for an epoll instance.
                    news::push_ready_and_wake(connection);
                    return;
                }
            }
        }
        if waited >= DOORBELL_NS {
            return sys::disconnect(connection.number());
        }
        pause_after(waited);
    }
}

/// Yields at first, and after a while sleeps longer each time.
fn pause_after(waited_ns: u64) {
    match waited_ns < Awaited::Look.for_ns() {
        true => sys::yield_now(),
        false => sys::sleep(Awaited::Look.for_ns() / 4),
    }
}

/// The time that a doorbell may be under way, because the peer is just sending it or the kernel
/// delays it ([`notifier::notify_late`]).
const DOORBELL_NS: u64 = 400_000_000;

/// The descriptor is about to be used without the library (by another program, or by a kernel
/// feature). Moves both directions to the carrier and keeps them there. Our own direction goes down
/// at once. The peer is asked to bring its direction down, and to send the ring's unread bytes on
/// the carrier ([`ask_to_resend`]). If the peer came down before, it is too late for that: unread
/// bytes in the ring cannot follow the descriptor. Other threads of the program may be reading
/// them, so this function waits while they do. If nobody reads, the connection is reset rather than
/// continued with a gap.
pub(crate) fn quiesce(connection: &Connection, reason: Reason) {
    /// Time within which a peer finishes a send that was in progress when it was asked, unless it
    /// does not get a processor.
    const SETTLE_NS: u64 = 2_000_000;
    /// A program whose threads read all the time is kept from passing the descriptor for no longer.
    const READ_NS_MAX: u64 = 2_000_000_000;
    connection.pin(reason);
    let Some(end) = connection.inside() else {
        return;
    };
    ask_to_resend(connection, &end);
    if !leave_ring(connection, reason) {
        return;
    }
    membership::give_to_kernel(connection);
    settings::restore_low_water(connection);
    peek_offset::restore(connection);
    connection.entry.resting_wake.store(0, Ordering::Relaxed);
    sleepers::set_wake(&end, WakeWord::None);
    if !end.asks_for_credit() {
        end.silence();
    }
    let start = sys::now_ns();
    // The time of the last byte that a thread has read, after `start`.
    let mut read_at_ns = 0;
    let mut position = read_so_far(connection);
    let mut unread = true;
    let mut is_quiet = false;
    while sys::now_ns() - start < SETTLE_NS || unread || !is_quiet {
        {
            let Some(_held) = takeover::lock_receiving(connection) else {
                // It is unknown whether bytes are unread, so assume that there are some.
                unread = true;
                break;
            };
            is_quiet = doorbells::take_all(connection, &end);
            unread = match end.incoming() {
                Ok(Incoming::Ring(filled)) => filled.len > 0,
                Ok(Incoming::Carrier { limit: u64::MAX }) => return,
                // The peer's direction is in its ring, behind unread bytes of the carrier.
                Ok(Incoming::Carrier { limit }) => {
                    let given = end.doorbells_to_take();
                    let is_rung = matches!(given, Doorbells::Given(bytes) if bytes > limit);
                    is_rung || end.receiver().looks_filled()
                }
                // The bytes come behind the doorbells.
                Ok(Incoming::Skip { .. }) => {
                    is_quiet = false;
                    false
                }
                Err(_) => false,
            };
        }
        let waited = sys::now_ns() - start;
        let now_read = read_so_far(connection);
        if now_read != position {
            (position, read_at_ns) = (now_read, waited);
        }
        if waited >= READ_NS_MAX || waited - read_at_ns >= DOORBELL_NS {
            break;
        }
        pause_after(waited);
    }
    end.ours().wake.abandoned.store(1, SIDE_RELEASE);
    if unread || !is_quiet {
        // The bytes that have come on the carrier since are dropped, too, because they follow the
        // lost bytes.
        sys::disconnect(connection.number());
    } else {
        end_carrier_after_turn(connection, &end);
    }
}

/// If the peer has ended its turn, no FIN comes on the carrier, at least not soon. A program
/// without rings must find the end of the stream there all the same.
fn end_carrier_after_turn(connection: &Connection, end: &End<'_>) {
    if turns::is_over(connection, end) {
        sys::shutdown(connection.number(), libc::SHUT_RD);
    }
}

/// The bytes that this end has taken from the carrier and from the ring.
fn read_so_far(connection: &Connection) -> [u64; 2] {
    let entry = connection.entry;
    // Relaxed: only compared with later values.
    [
        entry.rx_carrier.load(Ordering::Relaxed),
        entry.rx_ring.load(Ordering::Relaxed).shown(),
    ]
}

/// Asks the peer to send its ring's unread bytes, and everything after them, on the carrier
/// ([`toehold_stream::resend`]), and rings it. The peer brings its direction down in its current or
/// next call of the library. If the request is not possible, the unread bytes stay in the ring. No
/// lock is held.
///
/// A peer that is killed before that sends nothing. Then the doorbell is unread, so the peer's
/// kernel resets the connection, and the reader learns that bytes are missing.
fn ask_to_resend(connection: &Connection, end: &End<'_>) {
    if end.tx_mode() != Mode::Ring || !notifier::is_open(connection, end) {
        // The peer cannot be rung, or there is no peer.
        return;
    }
    let is_asked = takeover::lock_receiving(connection).is_some_and(|_held| end.ask_to_resend());
    let Some(_held) = takeover::lock_sending(connection).filter(|_| is_asked) else {
        return;
    };
    end.refuse(Refusal::Paused);
    // Pairs with the fence in `arming::arm`: a peer that goes to sleep sees the word, or is rung.
    fence(Ordering::SeqCst);
    if end.tx_mode() == Mode::Ring {
        // A fault has ended the connection by now.
        let _ = notifier::notify(connection, end);
    }
    if end.tx_mode() == Mode::Ring {
        // Also rings a peer that is awake.
        notifier::ring_if_open(connection, end);
    }
}

/// Brings our direction down if the peer has asked for its unread bytes on the carrier, where it
/// waits for them. Called when a program looks for events, without any lock of the connection.
pub(crate) fn resend_if_asked(connection: &Connection, end: &End<'_>) {
    if !end.is_asked_to_resend() {
        return;
    }
    // The holder of the lock is in a send, and each send begins with this check. It is also made
    // again at the next look.
    if let Some(_held) = takeover::try_lock_sending(connection) {
        let _ = follow_requests(connection, end);
    }
}

/// The program shuts its sending side. Published bytes stay readable, and the end comes on the
/// carrier.
pub(crate) fn shutting(connection: &Connection, how: i32) {
    let entry = connection.entry;
    let mut flags = 0;
    if how != libc::SHUT_RD {
        flags |= FLAG_SHUT_TX;
    }
    if how != libc::SHUT_WR {
        flags |= FLAG_SHUT_RX;
    }
    if let Some(end) = connection.inside() {
        let held = takeover::lock_sending(connection);
        entry.flags.fetch_or(flags, Ordering::Relaxed);
        if flags & FLAG_SHUT_TX != 0 {
            // Back to the carrier first, so that a second send meets the kernel's EPIPE. If the
            // lock cannot be had, that send sees the flag and brings the direction down. Bits are
            // only added to both words, so they may be written without the lock.
            if held.is_some() {
                direction::go_down(connection, &end);
            }
            end.ours()
                .wake
                .closed
                .fetch_or(toehold_channel::layout::CLOSED_TX, SIDE_RELEASE);
        }
    } else {
        entry.flags.fetch_or(flags, Ordering::Relaxed);
    }
    if how == libc::SHUT_RD {
        // After the end of the stream, the kernel reports everything else.
        retire(connection, Reason::Closing);
    }
    settings::before_shutdown(connection);
}

/// The receive path gave credit to a sender that may sleep. `receiving` is the receive lock.
///
/// The lock is opened only after the sender was notified. If this process is killed before, the
/// process that takes the lock over notifies the sender ([`crate::direction::takeover`]).
#[cold]
pub(crate) fn notify_of_credit(connection: &Connection, end: &End<'_>, receiving: Held<'_>) {
    if takeover::notify_of_credit(connection, end) {
        return;
    }
    // The next call may move the direction up, which needs other locks.
    drop(receiving);
    let Some(_held) = takeover::lock_sending(connection) else {
        // A doorbell that is sent without the lock could come between another thread's data. The
        // peer's request stays, and the next receive that crosses half of the ring looks again.
        return;
    };
    if end.tx_mode() != Mode::Ring {
        let _ = follow_requests(connection, end);
    }
    if end.tx_mode() == Mode::Ring {
        let _ = notifier::notify(connection, end);
    }
}

#[cfg(test)]
mod tests {
    use toehold_channel::table::COMMAND_EVICT;

    use super::*;

    /// A command and its end, with the reason that was noted at each.
    fn commanded(entry: &Entry, command: u32) -> [Option<Reason>; 2] {
        [command, COMMAND_NONE].map(|command| {
            FormerReason::of(entry).note_reason(command, false);
            Reason::from_word(entry.reason.load(Ordering::Relaxed))
        })
    }

    const COMMANDS: [(u32, Reason); 4] = [
        (COMMAND_DETACH, Reason::Detached),
        (COMMAND_YIELD, Reason::Captured),
        (COMMAND_EVICT, Reason::NoResources),
        (COMMAND_SPARE, Reason::NoResources),
    ];

    #[test]
    fn a_command_does_not_replace_a_reason_of_the_connections_own() {
        for (command, reason) in COMMANDS {
            let entry = Entry::default();
            assert_eq!(commanded(&entry, command), [Some(reason); 2]);
            // As `Connection::pin`.
            entry.flags.store(FLAG_PINNED, Ordering::Relaxed);
            let own = Reason::Unsupported;
            entry.reason.store(own as u32, Ordering::Relaxed);
            assert_eq!(commanded(&entry, command), [Some(own); 2]);
            assert!(!is_released(&entry), "it is kept");
        }
    }

    #[test]
    fn a_command_does_not_replace_an_end_of_the_stream() {
        for (command, _) in COMMANDS {
            for flag in [FLAG_SHUT_TX, FLAG_SHUT_RX] {
                let entry = Entry::default();
                entry.flags.store(flag, Ordering::Relaxed);
                assert_eq!(commanded(&entry, command), [Some(Reason::Closing); 2]);
            }
            let entry = Entry::default();
            entry.rx_hints.store(HINT_EOF, Ordering::Relaxed);
            assert_eq!(commanded(&entry, command), [Some(Reason::Closing); 2]);
        }
    }

    #[test]
    fn a_connection_that_is_pinned_meanwhile_keeps_the_reason() {
        let entry = Entry::default();
        let noted = FormerReason::of(&entry);
        entry.flags.store(FLAG_PINNED, Ordering::Relaxed);
        entry.reason.store(Reason::Passed as u32, Ordering::Relaxed);
        noted.replace(Reason::None);
        let reason = Reason::from_word(entry.reason.load(Ordering::Relaxed));
        assert_eq!(reason, Some(Reason::Passed));
    }

    #[test]
    fn the_end_of_the_peers_process_is_the_last_reason() {
        let entry = Entry::default();
        entry.flags.store(FLAG_PINNED, Ordering::Relaxed);
        let noted = commanded(&entry, COMMAND_PEER_GONE);
        assert_eq!(noted, [Some(Reason::PeerGone); 2]);
    }
}
