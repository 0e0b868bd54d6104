//! The state of a connection's two directions, and the next actions that their owner may take.
//!
//! A connection has a *carrier*, which is a kernel socket, and perhaps a channel beside it. Each
//! direction uses the carrier or the channel, and changes at a recorded position. This crate
//! decides and makes no system call. Two shells ask it: `sockets` in the application, and the
//! adapter's relay. The crate needs no libc, no thread-local storage and no heap.
//!
//! - [`attachment`]: the region of a connection in one process, and its sleeping threads.
//! - [`calls`]: the calls on the carrier that threads of one process are in.
//! - [`end`]: one end of a channel: its rings, and the switches between carrier and ring.
//! - [`express`]: carriers that serve several connections, one after another; the queue for
//!   `accept`.
//! - [`hints`]: flags for the receiver, and an error that was not reported yet.
//! - [`holders`]: which processes of a family hold a connection, and which is the last.
//! - [`interest`]: one epoll registration: its owner, and the events that were reported.
//! - [`next`]: what a receiver does next: data, doorbells, the end of the stream.
//! - [`credit`]: what a sender without credit does next.
//! - [`leaving`]: how both ends leave a channel that one of them no longer wants.
//! - [`resend`]: unread bytes of a ring that are sent again on the carrier.
//! - [`silence`]: a carrier that gets no doorbells any more.
//! - [`ending`]: resets that only answer a doorbell.
//! - [`worth`]: which connections are worth a channel.
//! - [`takeover`]: repairs after a member of the family was killed.
//! - [`mutex`]: a lock whose waiters sleep.
//! - [`sleepers`]: the sleeping members of a family, and those that a doorbell still has to wake.
//! - [`spin`]: when to look again, and when to sleep.

#![cfg_attr(not(any(loom, test)), no_std)]

pub mod attachment;
pub mod calls;
pub mod credit;
pub mod end;
pub mod ending;
pub mod express;
pub mod hints;
pub mod holders;
pub mod interest;
pub mod leaving;
pub mod mutex;
pub mod next;
pub mod resend;
pub mod silence;
pub mod sleepers;
pub mod spin;
pub mod takeover;
pub mod worth;
