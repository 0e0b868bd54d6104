//! Waiting for bytes: how a receive announces its sleep, and sleeps.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{Doorbell, WakeWord};
use toehold_channel::sync::fence;
use toehold_channel::table::{FLAG_ACCEPTED, Mode};
use toehold_channel::untrusted::Untrusted;
use toehold_stream::end::{End, Incoming};

use crate::adapter::requests;
use crate::connection::pending_errors;
use crate::connection::{Connection, HINT_LOOK};
use crate::direction::{doorbells, takeover};
use crate::express::{self, turns, unseen_waits};
use crate::lock;
use crate::process::pair_doorbells::{self, Claim, PairSleep, SLEEP_MAX_NS};
use crate::system::deferral::Handlers;
use crate::system::{cancellation, deferral, errno, real, sys};
use crate::transfer::spinning::{self, Looked};
use crate::waiting::sleep::{self, Call, Deadline};
use crate::waiting::{arming, seen_waits, sleepers};

/// After this many non-blocking calls in a row that find nothing, the program seems to poll: it
/// needs no doorbell.
const EMPTY_CALLS_POLLING: u32 = 8;
/// The most doorbells that a sleeper peeks at and takes off at once.
const DOORBELLS_PEEKED_MAX: usize = 64;
/// The result of a sleep without news, after which the call looks again.
const LOOKS_AGAIN: isize = -2;
/// Time between two looks of a sleeper that is not certainly woken by a byte.
const STEP_NS: u64 = 1_000_000;
/// The number of sleeps in a row that may end because of doorbells that other sleepers have not
/// seen yet. Usually the others are about to take them.
const VAIN_SLEEPS_MAX: u32 = 8;
/// After this many (steps included) the other sleepers are not coming: a process of the family is
/// stopped, or in a debugger.
const VAIN_SLEEPS_ENDLESS: u32 = 64;

/// The waits of one call.
#[derive(Default)]
pub(super) struct Waits {
    deadline: Deadline,
    /// Sleeps, since the last bytes, that ended because of doorbells which stay for others.
    vain: u32,
    pair_sleep: PairSleep,
    /// Signal handlers that ran before the first wait, or that did not end the waits before the
    /// call had moved bytes. Later ones may end the call.
    handlers: Option<Handlers>,
}

impl Waits {
    /// Resets the counts, because bytes have come.
    #[inline]
    pub(super) fn got_bytes(&mut self) {
        self.vain = 0;
    }

    /// The length of the next step, at most `step_ns`, for a sleep that is not certainly woken.
    ///
    /// # Errors
    /// `EAGAIN` when the time of the call (`SO_RCVTIMEO`) is over.
    pub(super) fn step_ns(&mut self, fd: i32, step_ns: u64) -> Result<u64, i32> {
        let left_ns = self.deadline.left_ns(fd, libc::SO_RCVTIMEO)?;
        Ok(if left_ns == 0 {
            step_ns
        } else {
            left_ns.min(step_ns)
        })
    }

    /// The events for a sleep in steps; `None` when a byte certainly wakes the sleeper.
    fn steps(&self, end: &End<'_>) -> Option<i16> {
        if self.vain > VAIN_SLEEPS_MAX {
            // Doorbells for others would end each sleep at once.
            return Some(libc::POLLRDHUP);
        }
        // The bytes before a switch wake the sleeper. But another thread may take them, and then no
        // doorbell comes for the bytes behind the switch.
        (end.records_pending()).then_some(libc::POLLIN | libc::POLLRDHUP)
    }
}

/// A non-blocking call found nothing, and it is unknown how the program will wait: asks for a
/// doorbell. True when something arrived meanwhile.
pub(super) fn arm_for_unknown_wait(connection: &Connection) -> bool {
    takeover::look(connection);
    let entry = connection.entry;
    let empty = entry.rx_empty.load(Ordering::Relaxed).wrapping_add(1);
    entry.rx_empty.store(empty, Ordering::Relaxed);
    let is_unseen =
        !seen_waits::is_seen(connection.local) && unseen_waits::found_nothing(connection, empty);
    let is_polling = empty > EMPTY_CALLS_POLLING && !is_unseen;
    if !sleepers::resting(connection).is(WakeWord::None.to_word()) || is_polling {
        return false;
    }
    let Some(end) = connection.inside() else {
        // The next look shows what has happened to the connection.
        return true;
    };
    let rung;
    {
        let held = lock::lock(&entry.wake_lock);
        if held.is_none() {
            sleepers::wake_by_carrier(connection, &end);
        }
        rung = sleepers::ask_for_unknown_wait(connection, &end);
    }
    // Pairs with the barrier in `Sender::publish`.
    fence(Ordering::SeqCst);
    if rung || is_unseen {
        // A doorbell that was asked for earlier may be on the carrier, although this program has
        // already read its bytes. It would keep the program from sleeping, so it is taken off.
        doorbells::try_drain(connection, &end);
    }
    if is_unseen && turns::is_over(connection, &end) {
        return true;
    }
    if !end.records_pending() {
        return end.rx_mode() == Mode::Ring && end.receiver().looks_filled();
    }
    // The peer may have moved to the ring between our look at the carrier and the doorbell. Bytes
    // still on their way on the carrier wake by themselves.
    let Some(_held) = takeover::lock_receiving(connection) else {
        // Unknown without the lock: the caller looks again, a limited number of times.
        return true;
    };
    matches!(end.incoming(), Ok(Incoming::Ring(filled)) if filled.len > 0)
}

/// Blocks until there may be something to receive beyond ring position `seen`.
pub(super) fn wait_for_bytes(
    connection: &Connection,
    end: &End<'_>,
    seen: Untrusted<u64>,
    waits_so_far: &mut Waits,
    has_moved: bool,
) -> Result<(), i32> {
    let mut left_ns =
        (waits_so_far.deadline).left_after_first(connection.number(), libc::SO_RCVTIMEO)?;
    seen_waits::seen(connection);
    let call = Call {
        handlers: *(waits_so_far.handlers).get_or_insert_with(deferral::handlers),
        option: libc::SO_RCVTIMEO,
        has_moved,
    };
    let news = || {
        // Relaxed: the look after the wait loads it again.
        (end.reads_ring() && end.theirs().publish.tail.load(Ordering::Relaxed) != seen)
            || end.is_record_due()
            || !end.theirs().wake.closed.load(Ordering::Relaxed).is(0)
    };
    if end.rx_mode() == Mode::Ring && spin(connection, end, call, news)? {
        return Ok(());
    }
    while requests::follow_before_sleep() {
        // Between two slices of work for the adapter, bytes and signals come first.
        if news() || sys::poll_now(connection.number(), libc::POLLIN) != 0 {
            return Ok(());
        }
        if call.is_interrupted(connection.number()) {
            return Err(libc::EINTR);
        }
        left_ns = waits_so_far
            .deadline
            .left_ns(connection.number(), libc::SO_RCVTIMEO)?;
    }
    let steps = waits_so_far.steps(end);
    let claim = match steps {
        None => waits_so_far.pair_sleep.claim_next(None),
        Some(_) => None,
    };
    let mut pair_sleep = PairSleep::None;
    let (slept, is_rung) = sleep_armed(connection, end, (call, claim), news, |doorbells| {
        match (steps, doorbells) {
            (Some(events), _) => sleep_a_step(connection, events, left_ns, call),
            (None, None) => sleep(connection, left_ns, call),
            (None, Some(doorbells)) => {
                sleep_on_pair(connection, left_ns, call, doorbells, &mut pair_sleep)
            }
        }
    });
    waits_so_far.pair_sleep = match pair_sleep {
        // It was not in vain.
        PairSleep::Rung if is_rung => PairSleep::None,
        pair_sleep => pair_sleep,
    };
    after_sleep(connection, end, slept, waits_so_far)?;
    waits_so_far.handlers = Some(call.after_wait(connection.number()));
    Ok(())
}

/// Looks for `news` as long as that pays: true when there is some.
///
/// # Errors
/// `EINTR` and `EAGAIN`, as the kernel's call would.
fn spin(
    connection: &Connection,
    end: &End<'_>,
    call: Call,
    news: impl FnMut() -> bool,
) -> Result<bool, i32> {
    match spinning::before_sleep(connection, end, call, NEWS, news)? {
        Looked::Found => return Ok(true),
        Looked::Carrier(seen) if seen & !libc::POLLIN != 0 => {
            let hints = &connection.entry.rx_hints;
            hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
        }
        Looked::Carrier(_) | Looked::Nothing => {}
    }
    Ok(false)
}

/// The result of a wait for bytes.
enum Slept {
    /// It did not sleep, because there was news.
    Not,
    /// This many bytes are on the carrier.
    Bytes(usize),
    /// The carrier has ended.
    Ended,
    /// There is no news, and the call looks again.
    LooksAgain,
    Failed(i32),
}

/// Asks the peer for a doorbell, and sleeps by `sleep` unless there is `news`. From then on a byte
/// on the carrier wakes the thread for any news that it has not seen in the region. If the
/// doorbells of pairs are claimed, `sleep` gets the claim when the peer may ring the pair's
/// doorbell instead. The claim ends with the sleep. True when the peer has rung.
fn sleep_armed(
    connection: &Connection,
    end: &End<'_>,
    (call, claim): (Call, Option<Claim>),
    news: impl Fn() -> bool,
    sleep: impl FnOnce(Option<&Claim>) -> isize,
) -> (Slept, bool) {
    let local = connection.local;
    let start = sys::now_ns();
    let takes = pair_doorbells::taken_with(claim.as_ref());
    let doorbell = arming::arm_for(connection, end, takes);
    let claim = pair_doorbells::kept_if(claim, doorbell == Doorbell::Pair);
    local.attachment.sleepers.begin_reading();
    let is_there = news() && (!only_closed_news(end) || turns::is_over(connection, end));
    let slept = if is_there {
        Slept::Not
    } else if call.is_interrupted(connection.number()) {
        Slept::Failed(libc::EINTR)
    } else {
        let undo = || {
            local.attachment.sleepers.end_reading();
            arming::disarm(connection, end);
            if let Some(claim) = &claim {
                claim.release_for_ended();
            }
            // The caller's guard.
            local.attachment.leave_for_ended();
        };
        match cancellation::sleeping(undo, || sleep(claim.as_ref())) {
            0 => Slept::Ended,
            count @ 1.. => Slept::Bytes(count as usize),
            LOOKS_AGAIN => Slept::LooksAgain,
            _ => Slept::Failed(errno::get()),
        }
    };
    local.attachment.sleepers.end_reading();
    let is_rung = arming::disarm(connection, end);
    drop(claim);
    local.spin.slept(sys::now_ns() - start);
    (slept, is_rung)
}

/// Handles the end of a sleep.
///
/// # Errors
/// `EINTR` and `EAGAIN`, as the kernel's call would.
fn after_sleep(
    connection: &Connection,
    end: &End<'_>,
    slept: Slept,
    waits_so_far: &mut Waits,
) -> Result<(), i32> {
    match slept {
        Slept::Not => {}
        Slept::Bytes(count) => {
            doorbells::take_seen(connection, end, count);
            slept_in_vain(connection, end, waits_so_far);
        }
        Slept::Ended => {
            let hints = &connection.entry.rx_hints;
            hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
        }
        Slept::LooksAgain => {
            errno::keep(express::look_after);
            if waits_so_far.vain > VAIN_SLEEPS_MAX {
                waits_so_far.vain += 1;
            }
            if waits_so_far.vain == VAIN_SLEEPS_ENDLESS {
                sleepers::wake_by_carrier(connection, end);
            }
        }
        Slept::Failed(error @ (libc::EINTR | libc::EAGAIN)) => return Err(error),
        // The descriptor was closed. The next look finds another one, or that there is none.
        Slept::Failed(libc::EBADF) => {}
        Slept::Failed(error) => pending_errors::keep(connection, error),
    }
    Ok(())
}

/// A sleep has ended because of bytes on the carrier. If they are doorbells for others, and the
/// others do not come, the peer is asked to leave the ring: then the kernel wakes every sleeper.
fn slept_in_vain(connection: &Connection, end: &End<'_>, waits_so_far: &mut Waits) {
    let is_vain = doorbells::are_needed(connection) && !end.receiver().looks_filled();
    waits_so_far.vain = match is_vain {
        true => waits_so_far.vain + 1,
        false => 0,
    };
}

/// Sleeps for a moment, or until one of `events` is on the carrier. The result is that of
/// [`sleep`].
fn sleep_a_step(connection: &Connection, events: i16, left_ns: u64, call: Call) -> isize {
    let limit_ns = match left_ns {
        0 => STEP_NS,
        left_ns => left_ns.min(STEP_NS),
    };
    sleep_in_poll(connection, events, limit_ns, call)
}

/// As [`sleep`], until a doorbell of a pair has rung, too. `pair_sleep` becomes the end of this
/// sleep.
fn sleep_on_pair(
    connection: &Connection,
    left_ns: u64,
    call: Call,
    doorbells: &Claim,
    pair_sleep: &mut PairSleep,
) -> isize {
    connection.entry.wakeups.fetch_add(1, Ordering::Relaxed);
    let limit_ns = limit_ns(connection, left_ns, Some(SLEEP_MAX_NS));
    let mut places = [sleep::place(connection.number(), NEWS), doorbells.place()];
    let result = errno::keep(|| sleep::sleep_on(&mut places, limit_ns));
    let [carrier, pair] = places;
    if result.is_ok() && doorbells.take_from(pair) {
        *pair_sleep = PairSleep::Rung;
    } else if result == Ok(0) && limit_ns == Some(SLEEP_MAX_NS) {
        *pair_sleep = PairSleep::TooLong;
    }
    match result {
        Ok(_) if carrier.revents == 0 => LOOKS_AGAIN,
        Ok(_) => came_or_ended(carrier.revents),
        Err(libc::EINTR) if call.goes_on_after_signal(connection.number()) => LOOKS_AGAIN,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

/// Sleeps until bytes are on the carrier (a number of them), it ended (0), the call must look again
/// ([`LOOKS_AGAIN`]), or something went wrong (-1 and errno).
fn sleep(connection: &Connection, left_ns: u64, call: Call) -> isize {
    let entry = connection.entry;
    // After a handler with `SA_RESTART` the kernel would go on with its own call.
    if left_ns != 0 || call.has_moved || express::look_limit_ns().is_some() {
        entry.wakeups.fetch_add(1, Ordering::Relaxed);
        let limit_ns = limit_ns(connection, left_ns, None);
        return sleep_in_poll(connection, NEWS, limit_ns.unwrap_or(0), call);
    }
    let mut bells = [0u8; DOORBELLS_PEEKED_MAX];
    // SAFETY: `bells` is writable for its length. A `recv` of libc, so that time-outs, signals and
    // cancellation work as usual. A stale doorbell makes it return at once, and is then taken off
    // like any other.
    let result = unsafe {
        real::recv(
            connection.number(),
            bells.as_mut_ptr().cast(),
            bells.len(),
            libc::MSG_PEEK,
        )
    };
    entry.wakeups.fetch_add(1, Ordering::Relaxed);
    result
}

/// As [`sleep`], in `ppoll`, for at most `limit_ns`; 0 means no limit. If the time of the program's
/// call is over then, the next wait finds that out.
fn sleep_in_poll(connection: &Connection, events: i16, limit_ns: u64, call: Call) -> isize {
    let fd = connection.number();
    match errno::keep(|| sleep::sleep_in_call(fd, events, limit_ns, call)) {
        Ok(Some(seen)) => came_or_ended(seen),
        Ok(None) => LOOKS_AGAIN,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

/// The longest that a sleep may take, in which the library's own `ppoll` waits: `left_ns` of the
/// program's time-out, or all of it if that is 0; until the next look at a turn; and `longest`.
fn limit_ns(connection: &Connection, left_ns: u64, longest: Option<u64>) -> Option<u64> {
    let program_ns = match left_ns {
        0 => timeout_ns(connection),
        left_ns => left_ns,
    };
    let program_ns = (program_ns != 0).then_some(program_ns);
    let limits = [program_ns, express::look_limit_ns(), longest];
    limits.into_iter().flatten().min()
}

/// The socket's time-out for receives; 0 for none.
fn timeout_ns(connection: &Connection) -> u64 {
    let words = &connection.local.express;
    let is_accepted = connection.entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED != 0;
    // A socket that became a carrier, or was replaced by one, had no options.
    match words.is_carrier() && !words.has_lasting_option() && !is_accepted {
        true => 0,
        false => sleep::timeout_ns(connection.number(), libc::SO_RCVTIMEO),
    }
}

/// The events that end a sleep.
const NEWS: i16 = libc::POLLIN | libc::POLLRDHUP;

/// The result of a sleep that these events of the carrier have ended: 1 for bytes, 0 for an end. If
/// there are doorbells before the end, the next look takes them, too.
fn came_or_ended(events: i16) -> isize {
    isize::from(events == libc::POLLIN)
}

/// True when the only news is that the peer has closed. Then the carrier's end is under way, and
/// the thread may sleep until it comes.
fn only_closed_news(end: &End<'_>) -> bool {
    !(end.is_record_due() || end.reads_ring() && end.receiver().looks_filled())
}
