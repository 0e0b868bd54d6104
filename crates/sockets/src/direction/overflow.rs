//! Connections whose ring stays full go back to the carrier.
//!
//! A ring holds less than the kernel's buffers, and programs rely on the size of those: some write
//! all they have before either end reads, and some servers count what they could not send.

use core::sync::atomic::Ordering;

use toehold_channel::layout::CAPACITY_LOG2_ENGINE;
use toehold_channel::table::{FLAG_OFFLOAD, Mode};
use toehold_stream::end::End;

use crate::connection::Connection;

/// True when the rest is to go by the carrier: the ring is full, and small. The direction comes
/// back to a larger one. The caller holds the send lock, and asks nothing of the peer then: a
/// doorbell that nobody reads would turn the end of this process into a reset.
pub(crate) fn is_due(connection: &Connection, end: &End<'_>) -> bool {
    let sender = end.sender();
    let entry = connection.entry;
    let is_offloaded = entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    let is_small = if is_offloaded {
        entry.tx_capacity_log2.load(Ordering::Relaxed) < CAPACITY_LOG2_ENGINE.into()
    } else {
        sender.may_grow()
    };
    end.tx_mode() == Mode::Ring && is_small && sender.credit_fresh() == Ok(0)
}
