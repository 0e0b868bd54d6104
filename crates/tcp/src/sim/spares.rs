//! Buffers of packets that are no longer needed, for later packets.

#[derive(Debug, Default)]
pub(super) struct Spares(Vec<Vec<u8>>);

impl Spares {
    /// An empty buffer.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// A buffer with these bytes.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.take();
        copy.extend_from_slice(bytes);
        copy
    }

    /// Returns the buffer of a packet that is no longer needed.
    pub(super) fn give(&mut self, mut packet: Vec<u8>) {
        packet.clear();
        self.0.push(packet);
    }
}
