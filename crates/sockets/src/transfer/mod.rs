//! The bytes of a connection: sends and receives by the carrier, by a ring, and across the switches
//! between them.
//!
//! - [`fast_path`]: short messages where nothing changes;
//! - [`send`], [`receive`]: the general code for both directions;
//! - [`sendfile`]: `sendfile` and `splice`;
//! - [`peek`], [`peek_offset`]: looking at bytes without taking them;
//! - [`buffers`], [`control_messages`]: the program's `iovec`s; what comes beside bytes;
//! - [`spinning`]: looking for news before a blocking call sleeps;
//! - [`kernel_call`]: a call of the kernel's in the midst of a program's call.

pub(crate) mod buffers;
pub(crate) mod control_messages;
pub(crate) mod fast_path;
pub(crate) mod kernel_call;
pub(crate) mod peek;
pub(crate) mod peek_offset;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod sendfile;
pub(crate) mod spinning;
