//! Requests to the adapter that wait for their reply.

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::offload::RoutingPage;
use toehold_channel::rendezvous::{Kind, Message};

use crate::adapter::{self, offers};
use crate::offload::routing;
use crate::process::family;
use crate::system::sys;

/// The time that a program's first `connect` or `listen` waits for the adapter's answer about its
/// engine, and each `listen` for the engine to listen as well. With a stopped adapter these calls
/// take this long. The time is long, because the program's listeners are served only if the answer
/// comes, and on a busy host the adapter may have to wait for a processor.
pub(super) const REPLY_NS: u64 = 1_000_000_000;
/// The adapter's epoch in which the engine was asked for.
static ASKED_EPOCH: AtomicU32 = AtomicU32::new(0);

/// The routing page of the adapter's engine; asks for it if need be. `None` without an adapter or
/// an engine.
pub(super) fn routing_page() -> Option<RoutingPage> {
    if !family::has_table() {
        return None;
    }
    let _held = adapter::lock();
    let adapter = adapter::connect_if_needed()?;
    if ASKED_EPOCH.load(Ordering::Relaxed) != adapter::epoch() {
        ASKED_EPOCH.store(adapter::epoch(), Ordering::Relaxed);
        routing::forget();
        let question = Message::new(Kind::Engine);
        say_and_wait(adapter, &question, Kind::Engine, REPLY_NS);
    }
    routing::known_routing_page()
}

/// True when the program's socket and the relay are in the same network namespace.
pub(super) fn is_beside(fd: i32) -> bool {
    routing_page()
        .is_some_and(|routing_page| routing_page.netns() == sys::namespace_of(fd).unwrap_or(0))
}

/// Sends a message to the adapter and waits, for at most `limit_ns`, until a reply of this kind and
/// all messages before it are handled. The caller holds the adapter's lock.
pub(super) fn say_and_wait(adapter: i32, message: &Message, reply: Kind, limit_ns: u64) {
    if !adapter::send(adapter, message, None) {
        return adapter::forget_socket(adapter);
    }
    let start = sys::now_ns();
    loop {
        while let Some((message, kind, attached)) = adapter::try_receive(adapter) {
            offers::handle_message(&message, kind, attached);
            if kind == reply {
                return;
            }
        }
        let left = limit_ns.saturating_sub(sys::now_ns() - start);
        let is_lost = adapter::connected() != Some(adapter);
        if left == 0 || is_lost || !sys::wait_for(adapter, libc::POLLIN, left) {
            return;
        }
    }
}
