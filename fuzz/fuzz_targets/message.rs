//! Bytes from the adapter's socket: a message of ours, which is written back unchanged, or an
//! error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toehold_channel::rendezvous::Message;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((message, kind)) = Message::parse(bytes) {
        assert_eq!(message.kind, kind as u32);
        assert_eq!(message.as_bytes(), bytes);
    }
});
