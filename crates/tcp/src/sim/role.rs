//! The programs of the simulation: the way in which each program uses its connection.

use crate::{Duration, Random};

/// The behaviour of the program at one end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// The number of bytes that the program sends.
    pub bytes: u64,
    /// The most bytes that the program writes at a time.
    pub write_bytes_max: u64,
    /// The most bytes that may be unacknowledged.
    pub send_buffer_bytes: u64,
    /// Pause between writes.
    pub think: Duration,
    /// The bytes that the program reads at a time; unread bytes stay in the window.
    pub read_bytes_max: u64,
    /// Pause between reads: a slow reader closes its window.
    pub read_pause: Duration,
    /// The program gives up, with a reset, after it has received this many bytes.
    pub aborts_after: Option<u64>,
    /// The program releases the connection as soon as it has written and read everything, as
    /// `close` does. It does not wait for the end of the connection.
    pub lets_go: bool,
}

impl Default for Role {
    fn default() -> Self {
        Self {
            bytes: 0,
            write_bytes_max: u64::MAX,
            send_buffer_bytes: 4 << 20,
            think: Duration::ZERO,
            read_bytes_max: u64::MAX,
            read_pause: Duration::ZERO,
            aborts_after: None,
            lets_go: false,
        }
    }
}

impl Role {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let bytes = match random.below(6) {
            0 => 0,
            1 => random.below(200),
            2 | 3 => random.below(20_000),
            _ => random.below(800_000),
        };
        let chatty = random.below(4) == 0;
        Self {
            bytes,
            write_bytes_max: if chatty {
                random.between(1 + bytes / 200, 1_000 + bytes / 200)
            } else {
                random.between(1_000, 100_000)
            },
            send_buffer_bytes: random.between(2_000, 500_000),
            think: Duration::from_micros(if chatty { random.below(50_000) } else { 0 }),
            read_bytes_max: random.between(500, 100_000) + bytes / 100,
            read_pause: Duration::from_micros(match random.below(4) {
                0 => random.below(100_000),
                _ => 0,
            }),
            aborts_after: (random.below(16) == 0).then(|| random.below(100_000)),
            lets_go: false,
        }
    }
}
