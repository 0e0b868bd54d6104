//! Events that the kernel returned: tagged ones go to the ready list, the others straight to the
//! program.

use core::sync::atomic::Ordering;

use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLPRI, EPOLLRDHUP, epoll_event};
use toehold_channel::table::{FLAG_PARKED, Mode};

use crate::connection::{self, Connection, HINT_LOOK};
use crate::direction::doorbells;
use crate::epoll::instance::Epoll;
use crate::epoll::lists::{push_news, push_ready};
use crate::epoll::membership::{become_quiet, believe_kernel};
use crate::epoll::nested::ReportedInstances;
use crate::epoll::parked::note_end;
use crate::epoll::registration::{State, registration, untag};
use crate::express::{self, published, turns};
use crate::offload::awaiting::{self, Answer};
use crate::system::errno;

impl Epoll {
    /// Sorts the kernel's events. Tagged events go to the ready list. Ordinary events stay; so do
    /// events of nested instances, if they hold and are not among `told`. Returns how many events
    /// stayed.
    pub(super) fn sort_kernel_events(
        &self,
        events: &mut [epoll_event],
        told: &ReportedInstances,
    ) -> usize {
        if events.is_empty() {
            return 0;
        }
        self.judge_nested(events, told);
        take_answers(events);
        drain_carriers(events);
        believe_all(events);
        let (mut kept, mut spent) = (0, 0);
        let held = self.lock.lock();
        for at in 0..events.len() {
            let event = events[at];
            let Some(number) = untag(event.u64) else {
                events[kept] = event;
                kept += 1;
                continue;
            };
            let Some(one) = registration(number) else {
                continue;
            };
            if matches!(one.state(), State::Once | State::Early) {
                if let Some(event) = one.report_once(&event) {
                    events[kept] = event;
                    kept += 1;
                }
                continue;
            }
            let Some(connection) = one.behind().filter(|one| one.end().is_some()) else {
                continue;
            };
            let hints = connection::hints_of(event.events);
            if hints != 0 {
                let known = &connection.entry.rx_hints;
                known.fetch_or(hints, Ordering::Relaxed);
            }
            if hints & HINT_LOOK != 0 {
                note_end(&connection);
            }
            connection.entry.wakeups.fetch_add(1, Ordering::Relaxed);
            if one.is_ours() {
                if one.state() == State::Polled && one.is_spent() {
                    spent = number;
                }
                if is_kernel_edge(&connection, event.events) {
                    one.rearm();
                    push_news(self, number);
                } else {
                    push_ready(self, number);
                }
            }
        }
        drop(held);
        if published::has_ended() {
            errno::keep(express::look_after);
        }
        if spent != 0 {
            become_quiet(spent);
        }
        kept
    }
}

/// Takes the engine's answers among `events`, and gives the withheld registrations back to the
/// kernel. An urgent byte that was taken is no longer news. No lock is held.
fn take_answers(events: &mut [epoll_event]) {
    for event in events {
        let one = untag(event.u64).and_then(registration);
        let Some(one) = one.filter(|one| one.state() == State::Held) else {
            continue;
        };
        if let Some(connection) = one.behind()
            && errno::keep(|| awaiting::look(&connection)) != Answer::Pending
        {
            event.events &= !(EPOLLPRI as u32);
        }
    }
}

/// Takes over the registrations that another process has changed in the kernel: each of them may
/// have had its only event among `events`. No lock is held.
fn believe_all(events: &[epoll_event]) {
    for number in events.iter().filter_map(|event| untag(event.u64)) {
        if registration(number).is_some_and(|one| one.state() == State::Plain) {
            believe_kernel(number);
        }
    }
}

/// Takes the doorbells that woke us off their carriers. No lock is held: this takes system calls.
fn drain_carriers(events: &[epoll_event]) {
    let rung = events
        .iter()
        .filter(|event| event.events & EPOLLIN as u32 != 0)
        .filter_map(|event| registration(untag(event.u64)?));
    for one in rung.filter(|one| !matches!(one.state(), State::Once | State::Early)) {
        let Some(connection) = one.behind() else {
            continue;
        };
        let is_parked = connection.entry.flags.load(Ordering::Relaxed) & FLAG_PARKED != 0;
        if one.state() == State::Parked && !is_parked {
            // The doorbell may be for a thread that waits past the library.
            continue;
        }
        let Some(end) = connection.inside() else {
            continue;
        };
        if is_parked && turns::awaits_accept(&connection, &end) {
            // The doorbell may be for a thread that will wait past the library once it has accepted
            // the connection.
            continue;
        }
        doorbells::try_drain(&connection, &end);
    }
}

/// True when the kernel's event of a carrier is an edge for the program, too, because its bytes are
/// on the carrier. The end of a connection is an edge by itself, once; so is room after a send that
/// was refused ([`writing_blocked`], `Registration::is_new_edge`).
fn is_kernel_edge(connection: &Connection, events: u32) -> bool {
    if events & EPOLLPRI as u32 != 0 {
        return true;
    }
    if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32 != 0 {
        return false;
    }
    let Some(end) = connection.end() else {
        return true;
    };
    events & EPOLLIN as u32 != 0 && (end.rx_mode() != Mode::Ring || end.records_pending())
}
