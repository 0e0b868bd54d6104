//! Channels: duplex byte streams in shared memory beside a kernel socket.
