//! Turns that set an option.

use super::Player;
use crate::improvised::draw::Draw;
use crate::sys::{self, Fd, Ret};

impl Player {
    /// Sets an option that changes the results of calls, but not their timing.
    pub(super) fn set(&mut self, fd: Fd, draw: &Draw) -> (String, String) {
        let on = i32::from(draw.how.is_multiple_of(2));
        let set = |level, option, value: i32| sys::set_option(fd, level, option, value);
        let (name, result): (&str, Ret) = match draw.which % 5 {
            0 => ("TCP_NODELAY", set(libc::IPPROTO_TCP, libc::TCP_NODELAY, on)),
            1 => (
                "SO_KEEPALIVE",
                set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, on),
            ),
            2 => {
                self.exact_edges = false;
                self.low_water = if on == 1 { 100 } else { 1 };
                let result = set(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1 + on * 99);
                ("SO_RCVLOWAT", result)
            }
            3 => {
                self.exact_edges = false;
                let result = set(libc::SOL_SOCKET, libc::SO_OOBINLINE, on);
                ("SO_OOBINLINE", result)
            }
            _ => {
                sys::set_nonblocking(fd, on == 1);
                ("O_NONBLOCK", Ret(Ok(0)))
            }
        };
        (format!("{name} {on}"), result.to_string())
    }
}
