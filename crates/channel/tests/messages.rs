//! Rendezvous messages: any bytes that arrive are either a message of ours or an error.

#![cfg(not(loom))]

use proptest::prelude::*;
use toehold_channel::rendezvous::{Kind, MESSAGE_BYTES, MESSAGE_MAGIC, Message, MessageError};
use toehold_channel::table::LAYOUT_VERSION;

const KINDS: std::ops::RangeInclusive<u32> = 1..=9;

/// The bytes of a message whose first three words are given.
fn with_head(magic: u32, version: u32, kind: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = [magic, version, kind].map(u32::to_le_bytes).concat();
    bytes.extend(rest);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_of_another_length_are_foreign(
        bytes in prop::collection::vec(any::<u8>(), 0..3 * MESSAGE_BYTES)
    ) {
        prop_assume!(bytes.len() != MESSAGE_BYTES);
        prop_assert_eq!(Message::parse(&bytes), Err(MessageError::Foreign));
    }

    #[test]
    fn a_parsed_message_is_written_with_the_same_bytes(
        kind in KINDS,
        rest in prop::collection::vec(any::<u8>(), MESSAGE_BYTES - 12),
    ) {
        let bytes = with_head(MESSAGE_MAGIC, LAYOUT_VERSION, kind, &rest);
        let (message, parsed) = Message::parse(&bytes).unwrap();
        prop_assert_eq!(parsed as u32, kind);
        prop_assert_eq!(&message.as_bytes()[..], &bytes[..]);
    }

    #[test]
    fn a_wrong_head_is_refused_for_its_first_wrong_word(
        magic in prop_oneof![Just(MESSAGE_MAGIC), any::<u32>()],
        version in prop_oneof![Just(LAYOUT_VERSION), any::<u32>()],
        kind in prop_oneof![KINDS, any::<u32>()],
    ) {
        let answer = Message::parse(&with_head(magic, version, kind, &[0; MESSAGE_BYTES - 12]));
        if magic != MESSAGE_MAGIC {
            prop_assert_eq!(answer, Err(MessageError::Foreign));
        } else if version != LAYOUT_VERSION {
            prop_assert_eq!(answer, Err(MessageError::Version(version)));
        } else if !KINDS.contains(&kind) {
            prop_assert_eq!(answer, Err(MessageError::Kind(kind)));
        } else {
            prop_assert!(answer.is_ok());
        }
    }
}

#[test]
fn a_new_message_parses_as_its_kind() {
    for kind in [Kind::Hello, Kind::Pair, Kind::Offer, Kind::Answer] {
        let message = Message::new(kind);
        assert_eq!(Message::parse(message.as_bytes()), Ok((message, kind)));
    }
}
