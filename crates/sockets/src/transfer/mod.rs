//! The bytes of a connection: sends and receives on the carrier, in a ring, and across the switches
//! between them.
//!
//! - [`fast_path`]: short messages in rings, [`host_path`]: plain calls on the carrier, both in the
//!   usual state;
//! - [`send`], [`receive`]: the general code for both directions;
//! - [`sendfile`]: `sendfile` and `splice`;
//! - [`peek`], [`peek_offset`]: looking at bytes without taking them;
//! - [`buffers`], [`control_messages`]: the program's `iovec`s and control messages;
//! - [`passed`]: descriptors that a message passes to another program;
//! - [`spinning`]: looking for news before a blocking call sleeps;
//! - [`host_call`]: a call on the carrier, as the connection counts it;
//! - [`kernel_call`]: a system call in the middle of a program's call.

pub(crate) mod buffers;
pub(crate) mod control_messages;
pub(crate) mod fast_path;
pub(crate) mod host_call;
pub(crate) mod host_path;
pub(crate) mod kernel_call;
pub(crate) mod passed;
pub(crate) mod peek;
pub(crate) mod peek_offset;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod sendfile;
pub(crate) mod spinning;
