//! Liveness settings: keepalive and user timeout of a program's socket (socket(7), tcp(7)), which
//! the library reports to the adapter. The carrier's other end is the adapter and never silent, so
//! the carrier's own timers tell nothing about the remote.

use core::num::NonZeroU32;

use crate::rendezvous::{Kind, Message};

/// `SO_KEEPALIVE` and `TCP_USER_TIMEOUT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// Keepalive probes; `None` when the program wants none.
    pub keepalive: Option<Keepalive>,
    /// The time that data may stay unacknowledged; `None` when the engine's default applies.
    pub user_timeout_ms: Option<NonZeroU32>,
}

/// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle_seconds: u32,
    /// Time between probes.
    pub interval_seconds: u32,
    /// Unanswered probes after which the connection is given up.
    pub probes_max: u8,
}

impl Liveness {
    /// The message with these settings. The caller fills in the addresses of the connection.
    pub fn message(&self) -> Message {
        let keepalive = self.keepalive.map_or(0, |keepalive| {
            u64::from(keepalive.idle_seconds) << 32 | u64::from(keepalive.interval_seconds)
        });
        let probes_max = self.keepalive.map_or(0, |keepalive| keepalive.probes_max);
        Message {
            pair: keepalive,
            slot: probes_max.into(),
            cookie: self.user_timeout_ms.map_or(0, |ms| ms.get().into()),
            ..Message::new(Kind::Liveness)
        }
    }

    /// The settings in a message. Numbers that the kernel does not take (tcp(7)) are brought within
    /// its bounds.
    pub fn said(message: &Message) -> Liveness {
        let seconds = |word: u64| (word as u32).clamp(1, SECONDS_MAX);
        let keepalive = Keepalive {
            idle_seconds: seconds(message.pair >> 32),
            interval_seconds: seconds(message.pair),
            probes_max: message.slot.min(PROBES_MAX) as u8,
        };
        Liveness {
            keepalive: (message.slot > 0).then_some(keepalive),
            user_timeout_ms: NonZeroU32::new(message.cookie.min(u32::MAX.into()) as u32),
        }
    }
}

/// `MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL` and `MAX_TCP_KEEPCNT` (include/net/tcp.h).
const SECONDS_MAX: u32 = 32_767;
const PROBES_MAX: u32 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_survives_the_way() {
        let keepalive = Keepalive {
            idle_seconds: 7_200,
            interval_seconds: 75,
            probes_max: 9,
        };
        for keepalive in [None, Some(keepalive)] {
            for user_timeout_ms in [None, NonZeroU32::new(1), NonZeroU32::new(u32::MAX)] {
                let liveness = Liveness {
                    keepalive,
                    user_timeout_ms,
                };
                assert_eq!(Liveness::said(&liveness.message()), liveness);
            }
        }
    }

    #[test]
    fn numbers_without_sense_are_brought_within_bounds() {
        let message = Message {
            pair: u64::MAX << 32,
            slot: u32::MAX,
            cookie: u64::MAX,
            ..Message::new(Kind::Liveness)
        };
        let keepalive = Keepalive {
            idle_seconds: 32_767,
            interval_seconds: 1,
            probes_max: 127,
        };
        let liveness = Liveness {
            keepalive: Some(keepalive),
            user_timeout_ms: NonZeroU32::new(u32::MAX),
        };
        assert_eq!(Liveness::said(&message), liveness);
    }
}
