//! Epoll instances with accelerated members.
//!
//! An epoll instance stays the kernel's. While a member has a channel its kernel registration is
//! replaced by one of ours: edge-triggered, watching only for doorbells and the carrier's end, with
//! a tag instead of the program's data. The program's registration is kept here and answered from
//! shared memory:
//!
//! ```text
//!   peers mark bits ──► ready bitmaps ──(sweep)──► ready list ──(look at each)──► events
//!   kernel events   ──► tagged: onto the ready list; others: straight to the program
//! ```
//!
//! The ready list is the kernel's own algorithm (fs/eventpoll.c): a level-triggered member that was
//! reported goes back to its tail, an edge-triggered one leaves it until news arrives. Cost is by
//! members with news, not by members.
//!
//! From below to above:
//!
//! - [`registration`]: what a program registered; [`instance`]: where; [`lists`] threads it;
//!   [`wake_balance`]: which news ends sleeps on it;
//! - [`kernel_registrations`]: what the kernel has of it; [`membership`]: who answers it;
//!   [`early`]: before there is a connection; [`orphans`]: after its descriptor is closed;
//!   [`news`]: what no peer marks; [`parked`]: of parked carriers; [`first_wait`]: while the
//!   program may wait past us;
//! - [`harvest`]: events; [`kernel_events`]: those that the kernel has; [`sleeping`]; [`nested`]:
//!   an instance from outside;
//! - [`waiting`]: `epoll_wait`; [`two_looks`]: an answer of the kernel and of rings;
//!   [`kernel_wait`]: without accelerated members; [`yielding`]: a busy thread yields to a waiting
//!   peer; [`control`](mod@control): `epoll_ctl`; [`lifetime`].

pub(crate) mod control;
pub(crate) mod early;
pub(crate) mod first_wait;
mod harvest;
pub(crate) mod instance;
mod kernel_events;
mod kernel_registrations;
pub(crate) mod kernel_wait;
pub(crate) mod lifetime;
mod lists;
pub(crate) mod membership;
pub(crate) mod nested;
pub(crate) mod news;
pub(crate) mod orphans;
pub(crate) mod parked;
mod registration;
pub(crate) mod sleeping;
mod two_looks;
pub(crate) mod waiting;
mod wake_balance;
mod yielding;
