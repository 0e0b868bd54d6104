//! The state of a connection's two directions, and the next actions that their owner may take.
//!
//! A connection has a *carrier*, which is a kernel socket, and perhaps a channel beside it. Each of
//! its directions goes by one of them, and changes at a recorded position. This crate decides and
//! makes no system call: two shells ask it, `sockets` in the application and the adapter's relay.
//! It needs no libc, no thread-local storage and no heap.
//!
//! - [`attachment`]: a process's region: given, used, taken away; and who sleeps.
//! - [`end`]: one end of a channel: its rings, and the switches between carrier and ring.
//! - [`express`]: carriers that serve one connection after another, and what waits for `accept`.
//! - [`hints`]: what a receiver is to look for, and the error that it has not been told.
//! - [`holders`]: which processes of a family hold a connection, and who is the last.
//! - [`interest`]: one epoll registration: who answers it, and what it was told.
//! - [`next`]: what a receiver does next: data, doorbells, the end of the stream.
//! - [`credit`]: what a sender without credit does next.
//! - [`leaving`]: who wants a channel no more, and how both ends leave it.
//! - [`resend`]: unread bytes that come once more by the carrier.
//! - [`silence`]: a carrier that gets no doorbells any more.
//! - [`ending`]: how a connection has ended whose carrier reports a reset.
//! - [`worth`]: which connections are worth a channel.
//! - [`takeover`]: what is repaired after a member of the family that was killed.
//! - [`mutex`]: a lock whose waiters sleep.
//! - [`sleepers`]: who of a family sleeps, and whom a doorbell is still to wake.
//! - [`spin`]: when to look again, and when to sleep.

#![cfg_attr(not(any(loom, test)), no_std)]

pub mod attachment;
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
