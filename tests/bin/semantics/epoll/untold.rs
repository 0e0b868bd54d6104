//! The part of a wait's event array beyond the events that the wait returns.

use std::thread;
use std::time::Duration;

use super::{ADD, IN, OUT};
use crate::role::{Role, send_all};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

const ONE: i32 = libc::EPOLLONESHOT;
const PLACES: usize = 3;
const TIME_LIMIT_MS: i32 = 800;
const PAUSE: Duration = Duration::from_millis(50);
const UNTOUCHED: libc::epoll_event = libc::epoll_event {
    events: 0x7e57_7e57,
    u64: 0x7e57_7e57_7e57_7e57,
};

/// A one-shot member that has reported its event reports nothing more, whatever bytes arrive and
/// wherever the connection moves. So waits time out, and leave the array untouched. Some programs
/// read the array after any wait.
pub(super) fn leaves_no_trace(role: &Role) {
    let listener = role.server().then(|| role.listen(0));
    let fd = match listener {
        Some(listener) => sys::accept(listener).fd(),
        None => role.connect(role.hear_port()),
    };
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, fd, OUT | ONE, 1).value();
    role.say("told", sys::epoll_wait(epoll, 1, 0).1.len());
    let sleeper = Sleeper::start(move || wait(epoll));
    role.warm(fd);
    role.say("while the connection moves", sleeper.result());
    let again = sys::epoll_create();
    sys::epoll_ctl(again, ADD, fd, IN | ONE, 1).value();
    if role.server() {
        send_all(fd, b"!");
        role.step();
        role.step();
        for _ in 0..3 {
            thread::sleep(PAUSE);
            send_all(fd, b"!");
        }
    } else {
        role.step();
        role.arrived(fd, 1);
        role.say("told", sys::epoll_wait(again, 1, 0).1.len());
        let sleeper = Sleeper::start(move || wait(again));
        role.step();
        role.say("while nothing is told", sleeper.result());
    }
    role.step();
}

/// The result of a wait, and the number of places in its array that the wait has changed.
fn wait(epoll: Fd) -> String {
    let mut events = [UNTOUCHED; PLACES];
    let (answer, _) = sys::epoll_wait_in(epoll, &mut events, TIME_LIMIT_MS);
    let touched = events.iter().filter(|&&event| {
        let libc::epoll_event { events, u64 } = event;
        (events, u64) != (UNTOUCHED.events, UNTOUCHED.u64)
    });
    format!("{answer}, {} touched", touched.count())
}
