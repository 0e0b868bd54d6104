//! Which connections are worth a channel: those that have shown some traffic.
//!
//! A channel costs memory and a request to the adapter. For a short connection neither pays off.

/// Traffic that makes a channel worth its memory. Either number is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth {
    /// Calls that moved bytes on the carrier.
    pub calls: u32,
    /// Bytes on the carrier, both ways.
    pub bytes: u64,
}

/// Between two programs.
pub const DIRECT: Worth = Worth {
    calls: 24,
    bytes: 256 << 10,
};

/// Between a program and the engine: two requests and their answers are enough. Until then each
/// byte passes the kernel twice, which delays everything else in the engine's thread.
pub const OFFLOADED: Worth = Worth {
    calls: 4,
    bytes: 128 << 10,
};

impl Worth {
    /// True when a connection has had this much traffic.
    #[inline]
    pub fn is_reached(self, calls: u32, bytes: u64) -> bool {
        calls >= self.calls || bytes >= self.bytes
    }
}
