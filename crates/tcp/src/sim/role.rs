//! The programs of the simulation: how each uses its connection.

use crate::{Duration, Random};

/// The behaviour of the program at one end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// How much it sends.
    pub bytes: u64,
    /// The most it writes at a time.
    pub write_bytes_max: u64,
    /// How much may be unacknowledged.
    pub send_buffer_bytes: u64,
    /// Pause between writes.
    pub think: Duration,
    /// How much it reads at a time; what it does not read stays in the window.
    pub read_bytes_max: u64,
    /// Pause between reads: a slow reader closes its window.
    pub read_pause: Duration,
    /// Gives up, with a reset, after having received this much.
    pub aborts_after: Option<u64>,
    /// Lets go of the connection as soon as it has said and read everything, as `close` does, and
    /// does not wait for its end.
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
