//! The offload path as the program's side sees it: connections that the adapter's TCP engine
//! carries.
//!
//! ```text
//!   connect  ─► rules ─► carrier to the relay, connect preamble ─► (Connecting)
//!            ─► one urgent byte: connected, or an errno
//!   listen   ─► a message to the adapter; its engine listens as well
//!   accept   ─► a carrier from the adapter's own address: the routing page has its true addresses
//! ```
//!
//! The carrier is a kernel connection to the adapter, established long before the remote has
//! answered: until the urgent byte is there the program must see a connection that is still being
//! made. The byte is urgent, so that a program that reads past our hooks never takes it for data.
//! The library takes it off in order, so that no urgent mark is left.
//!
//! - [`routing`]: the adapter's routing page, and the program's choice of path;
//! - [`questions`]: questions to the adapter that wait for their reply;
//! - [`active_open`]: active opens; [`awaiting`]: until the engine has answered;
//! - [`fast_open`]: messages that open their connection;
//! - [`passive_open`]: listeners, accepted carriers;
//! - [`loopback_alias`]: sockets bound to one of the engine's addresses;
//! - [`endings`]: why connections ended;
//! - [`addresses`], [`names`]: socket addresses, and the addresses that the program sees;
//! - [`liveness`]: keepalive and user timeout, for silent remotes.

pub(crate) mod active_open;
pub(crate) mod addresses;
pub(crate) mod awaiting;
pub(crate) mod endings;
pub(crate) mod fast_open;
pub(crate) mod liveness;
pub(crate) mod loopback_alias;
pub(crate) mod names;
pub(crate) mod passive_open;
pub(crate) mod questions;
pub(crate) mod routing;
