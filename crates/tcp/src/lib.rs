//! The offload engine: a complete TCP/IP that does no I/O.
