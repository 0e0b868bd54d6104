//! The doorbells of pairs ([`toehold_channel::doorbell::Doorbell::Pair`]), and how many of them
//! each user gets.

use super::user_quotas::UserQuotas;
use crate::epoll::Epoll;
use crate::regions::SharedFd;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::AsFd;

/// A doorbell of a pair. The process that rings it has an `eventfd`. The process that it wakes has
/// only an epoll instance that watches the `eventfd`. `O_NONBLOCK` and the count belong to the
/// file: with the `eventfd`, that process could make the other's write wait.
pub(super) struct Doorbell {
    pub(super) rung: SharedFd,
    pub(super) heard: SharedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Doorbell> {
        let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let heard = Epoll::new()?;
        heard.add(rung.as_fd(), 0, libc::EPOLLIN | libc::EPOLLET)?;
        Ok(Doorbell {
            rung: SharedFd::new(rung),
            heard: SharedFd::new(heard.into()),
        })
    }
}

/// Doorbells for each user: 4,096 at once, and one more in each second. The kernel counts the watch
/// of an epoll instance for the adapter's user (`fs.epoll.max_user_watches`), also when only other
/// processes have the instance. A user that collects them would use up all of them.
pub(super) type Quotas = UserQuotas<4096, 1>;
