//! Turns that only observe and change nothing.

use super::Player;
use crate::improvised::draw::{Draw, pick};
use crate::sys::{self, Fd};

/// Time-outs of waits, in milliseconds. A wait that finds no event sleeps for this time.
const TIMES_MS: &[i32] = &[0, 0, 0, 2];

impl Player {
    pub(super) fn look(&self, fd: Fd, draw: &Draw) -> (String, String) {
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
        let time_ms = pick(TIMES_MS, draw.how);
        let (name, seen) = match draw.which % 11 {
            0 => ("poll", format!("{:?}", sys::poll(&[(fd, all)], time_ms))),
            1 => (
                "ppoll",
                format!("{:?}", sys::ppoll(&[(fd, all)], i64::from(time_ms))),
            ),
            2 => (
                "select",
                sys::select(&[fd], &[fd], Some(i64::from(time_ms)), false).to_string(),
            ),
            3 => (
                "pselect",
                sys::select(&[fd], &[fd], Some(i64::from(time_ms)), true).to_string(),
            ),
            4 => (
                "level",
                format!("{:?}", sys::epoll_wait(self.level, 4, time_ms)),
            ),
            5 | 6 if self.exact_edges => (
                "edge",
                format!("{:?}", sys::epoll_wait(self.edge, 4, time_ms)),
            ),
            8 => ("among others", self.look_among_others(fd, draw, time_ms)),
            9 => ("from outside", self.look_from_outside(time_ms)),
            7 => ("FIONREAD", sys::readable_bytes(fd).to_string()),
            _ => ("SO_ERROR", sys::socket_error(fd)),
        };
        (name.to_owned(), seen)
    }

    /// The set also has files of other types, and numbers that are not open.
    fn look_among_others(&self, fd: Fd, draw: &Draw, time_ms: i32) -> String {
        let (read, write) = sys::pipe();
        let event = sys::eventfd();
        if draw.fd.is_multiple_of(2) {
            sys::write(write, b"x").value();
        }
        let input = libc::POLLIN;
        let set = [
            (read, input),
            (fd, input | libc::POLLRDHUP),
            (-1, input),
            (event, input | libc::POLLOUT),
            (self.fds[0], draw.which as i16 & libc::POLLOUT),
            (self.level, input),
            (1 << 20, input),
        ];
        let seen = match draw.how & 16 {
            0 => format!("{:?}", sys::poll(&set, time_ms)),
            _ => {
                let both = [read, fd, self.level, event];
                let time = Some(i64::from(time_ms));
                sys::select(&both, &[fd, event], time, draw.how & 32 != 0).to_string()
            }
        };
        for one in [read, write, event] {
            sys::close(one).value();
        }
        seen
    }

    /// Observes the level-triggered instance from outside, by poll(2) and by an outer instance.
    fn look_from_outside(&self, time_ms: i32) -> String {
        let outer = sys::epoll_create();
        sys::epoll_ctl(outer, libc::EPOLL_CTL_ADD, self.level, libc::EPOLLIN, 9).value();
        let seen = format!(
            "{:?} {:?}",
            sys::poll(&[(self.level, libc::POLLIN)], time_ms),
            sys::epoll_wait(outer, 4, time_ms)
        );
        sys::close(outer).value();
        seen
    }
}
