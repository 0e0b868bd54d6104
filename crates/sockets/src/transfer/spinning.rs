//! Spinning before a blocking transfer sleeps: one policy for bytes and for credit.

use core::sync::atomic::Ordering;

use toehold_stream::end::End;

use crate::adapter::requests;
use crate::connection::Connection;
use crate::system::sys;
use crate::waiting::sleep::{Call, timed_out};
use crate::waiting::spin::{self, ENDLESS_NS};

/// The result of spinning.
pub(crate) enum Looked {
    /// There is news.
    Found,
    /// There is no news: it is time to sleep.
    Nothing,
    /// The kernel reports these events of the carrier.
    Carrier(i16),
}

/// After this many spins that paid, a program looks at the adapter's requests. (Otherwise it looks
/// before a sleep, but a program whose spins always pay never sleeps.)
const SPINS_BETWEEN_REQUESTS: u32 = 64;

/// Calls `look` as long as spinning has recently paid. In poll mode there is no such limit:
/// spinning ends when the kernel reports one of `events` on the carrier, a signal handler ends the
/// call, the socket's time-out has passed, or a rule of the operator ends the mode.
///
/// # Errors
/// `EINTR` and `EAGAIN`, as the kernel's call would.
pub(crate) fn before_sleep(
    connection: &Connection,
    end: &End<'_>,
    call: Call,
    events: i16,
    mut look: impl FnMut() -> bool,
) -> Result<Looked, i32> {
    let (entry, local) = (connection.entry, connection.local);
    let processor = end.exchange_processors(sys::processor() + 1);
    let budget_ns = spin::budget_ns(&local.spin);
    let slice_ns = spin::slice_ns(budget_ns);
    // When the first slice of poll mode ended; 0 before.
    let mut since_ns = 0;
    let looked = loop {
        if spin::spin(&local.spin, slice_ns, processor, &mut look) {
            let count = entry.spins_paid.fetch_add(1, Ordering::Relaxed);
            if count.is_multiple_of(SPINS_BETWEEN_REQUESTS) {
                requests::follow();
            }
            return Ok(Looked::Found);
        }
        if call.is_interrupted(connection.number()) {
            return Err(libc::EINTR);
        }
        if budget_ns != ENDLESS_NS {
            break Looked::Nothing;
        }
        requests::follow();
        if spin::budget_ns(&local.spin) != ENDLESS_NS {
            break Looked::Nothing;
        }
        let seen = sys::poll_now(connection.number(), events);
        if seen != 0 {
            break Looked::Carrier(seen);
        }
        if since_ns == 0 {
            since_ns = sys::now_ns();
        } else if timed_out(connection.number(), call.option, since_ns) {
            return Err(libc::EAGAIN);
        }
    };
    if budget_ns != 0 {
        entry.spins_failed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(looked)
}
