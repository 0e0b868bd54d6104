//! Waiting for connections: which are ready, and how a thread spins or sleeps until one is.
//!
//! - [`ready`]: the readiness of one connection;
//! - [`poll`]: `poll` and `select` (`epoll_wait` is in [`crate::epoll`]);
//! - [`spin`]: how long to look before a sleep; [`sleep`]: sleeping in the kernel on one socket;
//! - [`sleepers`], [`arming`]: which members of a family sleep, and how they ask for a doorbell;
//! - [`seen_waits`]: whether the library sees how the program waits;
//! - [`kernel_waits`]: threads that wait for a connection inside the kernel.

pub(crate) mod arming;
pub(crate) mod kernel_waits;
pub(crate) mod poll;
pub(crate) mod ready;
pub(crate) mod seen_waits;
pub(crate) mod sleep;
pub(crate) mod sleepers;
pub(crate) mod spin;
