//! Programs for a channel, as bytes: first the engine and its mischief, then the operations, their
//! pieces and their flags. The memory must come out as plain copies leave it. The corpus and the
//! fuzzer share this file.

use toehold_copy::{
    Channel, Cookie, Cpu, CpuNt, Faulty, Flags, InjectedFaults, Operation, Status, SubmitError,
    Waiting, crc32c,
};

/// Bytes that choose the engine.
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes that one step reads.
pub(crate) const STEP_BYTES: usize = 8;
/// Entries of the channel; the processor finishes the operations that no engine finishes.
const ENTRIES: usize = 16;
/// Bytes of the source, and of the target. Non-temporal copies begin at 64 KB.
const ARENA_BYTES: usize = 150_000;
/// Parts of a scatter-gather copy.
const PARTS_MAX: usize = 5;

/// The result of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Played {
    /// Operations accepted.
    pub(crate) submitted: u64,
    /// Operations refused, as they must be.
    pub(crate) refused: u64,
}

/// Plays `program`. Panics when a byte differs from the result of plain copies, or when the
/// counters do not add up.
pub(crate) fn play(program: &[u8]) -> Played {
    let mut header = [0u8; HEADER_BYTES];
    let given = program.len().min(HEADER_BYTES);
    header[..given].copy_from_slice(&program[..given]);
    let mut player = Player {
        channel: channel(&header),
        source: (0..ARENA_BYTES as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect(),
        target: vec![0x55; ARENA_BYTES],
        model: vec![0x55; ARENA_BYTES],
        next: 0,
        played: Played::default(),
        last: None,
    };
    for step in program[given..].chunks_exact(STEP_BYTES) {
        player.step(u64::from_le_bytes(step.try_into().expect("of that length")));
    }
    player.conclude()
}

fn channel(header: &[u8; HEADER_BYTES]) -> Channel {
    let number = |at: usize| u32::from(header[at]);
    match header[0] % 4 {
        0 => Channel::new(Cpu::new(), ENTRIES),
        1 => Channel::new(CpuNt::new(), ENTRIES),
        _ => Channel::new(
            Faulty::new(InjectedFaults {
                seed: u64::from(header[1]) << 8 | u64::from(header[2]),
                delay_polls_max: number(3) % 6,
                reorder: header[4] % 2 == 1,
                partial_in_256: number(5),
                full_in_256: number(6) % 200,
                unable_in_256: number(7),
                queue_entries: usize::from(header[8]) % 5,
                gone_after: u64::from(header[9]),
            }),
            ENTRIES,
        ),
    }
}

struct Player {
    channel: Channel,
    source: Vec<u8>,
    target: Vec<u8>,
    model: Vec<u8>,
    /// Everything in the target before this offset has been handed out. Pieces never overlap, so no
    /// fence is needed.
    next: usize,
    played: Played,
    /// The last operation that has a sum, and the sum.
    last: Option<(Cookie, Option<u32>)>,
}

impl Player {
    /// One step: three bits choose the operation; the others choose its length, its source and its
    /// flags.
    fn step(&mut self, step: u64) {
        while self.channel.vacant() < PARTS_MAX * 2 {
            self.channel.poll();
        }
        let (what, rest) = (step & 7, step >> 3);
        let len = (rest & 0x1_ffff) as usize;
        let flags = Flags::from_bits_truncate((rest >> 17 & 15) as u8);
        let gap = (rest >> 21 & 63) as usize;
        let from = (rest >> 27) as usize % ARENA_BYTES;
        match what {
            0 | 1 => self.copy(from, gap, len % 9000, flags),
            2 => self.copy(from, gap, len, flags),
            3 => self.fill(gap, len, rest.rotate_left(17), flags),
            4 => self.sum(from, gap, len % 9000),
            5 => self.pieces(gap, len % 9000, rest >> 27),
            6 => self.nonsense(from, len),
            _ => self.look(rest),
        }
    }

    /// A piece of the target that is not handed out yet, and a piece of the source of equal length.
    fn take(&mut self, from: usize, gap: usize, len: usize) -> (usize, usize, usize) {
        let at = (self.next + gap).min(ARENA_BYTES);
        let len = len.min(ARENA_BYTES - at);
        self.next = at + len;
        (from % (ARENA_BYTES - len + 1), at, len)
    }

    fn submit(&mut self, operation: Operation) -> Cookie {
        self.played.submitted += 1;
        // SAFETY: source and target outlive the channel's work: `conclude` drains it. Each piece of
        // the target is given out once, and nobody looks at it before.
        unsafe { self.channel.submit(operation) }.expect("there is room, and the pieces are apart")
    }

    fn copy(&mut self, from: usize, gap: usize, len: usize, flags: Flags) {
        let (from, at, len) = self.take(from, gap, len);
        self.model[at..at + len].copy_from_slice(&self.source[from..from + len]);
        let source = self.source[from..].as_ptr();
        let target = self.target[at..].as_mut_ptr();
        let cookie = self.submit(Operation::copy(source, target, len).with(flags));
        self.last = Some((cookie, None));
    }

    fn fill(&mut self, gap: usize, len: usize, pattern: u64, flags: Flags) {
        let (_, at, len) = self.take(0, gap, len);
        for (i, byte) in self.model[at..at + len].iter_mut().enumerate() {
            *byte = pattern.to_le_bytes()[i % 8];
        }
        let target = self.target[at..].as_mut_ptr();
        let cookie = self.submit(Operation::fill(target, len, pattern).with(flags));
        self.last = Some((cookie, None));
    }

    fn sum(&mut self, from: usize, gap: usize, len: usize) {
        let (from, at, len) = self.take(from, gap, len);
        let seed = at as u32;
        let bytes = &self.source[from..from + len];
        let sum = if len == 0 { 0 } else { crc32c(seed, bytes) };
        self.model[at..at + len].copy_from_slice(bytes);
        let source = bytes.as_ptr();
        let target = self.target[at..].as_mut_ptr();
        let cookie = self.submit(Operation::copy_crc32c(source, target, len, seed));
        self.last = Some((cookie, Some(sum)));
    }

    /// One copy in parts, cut differently at each end; parts may be empty.
    fn pieces(&mut self, gap: usize, len: usize, cuts: u64) {
        let (from, at, len) = self.take(7, gap, len);
        self.model[at..at + len].copy_from_slice(&self.source[from..from + len]);
        let parts = |mut cuts: u64| {
            let mut parts = Vec::new();
            let mut left = len;
            for _ in 1..PARTS_MAX {
                let part = (cuts & 0x7f) as usize * 16 % (left + 1);
                cuts >>= 7;
                parts.push(part);
                left -= part;
            }
            parts.push(left);
            parts
        };
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        let mut offset = 0;
        for part in parts(cuts) {
            sources.push((self.source[from + offset..].as_ptr(), part));
            offset += part;
        }
        let mut offset = 0;
        for part in parts(cuts.rotate_right(11)) {
            targets.push((self.target[at + offset..].as_mut_ptr(), part));
            offset += part;
        }
        // SAFETY: as in `submit`.
        let last = unsafe { self.channel.copy_vectored(&sources, &targets, Flags::FENCE) };
        assert_eq!(last.expect("the pieces are apart").is_some(), len > 0);
        self.last = None;
    }

    /// Submits operations that must be refused: an overlap, a null pointer, a range past the end of
    /// all addresses.
    fn nonsense(&mut self, from: usize, len: usize) {
        let len = len.clamp(1, ARENA_BYTES);
        let from = from % (ARENA_BYTES - len + 1);
        let overlapping = (from + len / 2).min(ARENA_BYTES - len);
        let base = self.model.as_mut_ptr();
        let null = std::ptr::null();
        let (operation, why) = match len % 3 {
            0 => (
                Operation::copy(base.wrapping_add(from), base.wrapping_add(overlapping), len),
                SubmitError::Overlap,
            ),
            1 => (Operation::copy(null, base, len), SubmitError::Null),
            _ => (
                Operation::copy(base, base.wrapping_add(ARENA_BYTES), usize::MAX - from),
                SubmitError::TooLong,
            ),
        };
        // SAFETY: refused, so nothing is done.
        assert_eq!(unsafe { self.channel.submit(operation) }, Err(why));
        self.played.refused += 1;
    }

    fn look(&mut self, how: u64) {
        match (how % 3, self.last.take()) {
            (0, _) => self.channel.flush(),
            (1, Some((cookie, sum))) => {
                let waited = self.channel.wait(cookie, Waiting::YIELD);
                let status = waited.expect("there is no deadline");
                if let (Some(crc32c), false) = (sum, status == Status::Retired) {
                    assert_eq!(status, Status::Done { crc32c });
                }
                assert!(status.is_over());
            }
            _ => assert!(self.channel.poll() <= self.channel.issued()),
        }
    }

    fn conclude(mut self) -> Played {
        self.channel.drain();
        assert_eq!(self.channel.watermark(), self.channel.issued());
        let counters = self.channel.counters();
        assert_eq!(counters.submitted, counters.completed);
        assert_eq!(counters.failed, 0);
        drop(self.channel);
        let mut bytes = self.target.iter().zip(&self.model);
        let differs = bytes.position(|(a, b)| a != b);
        assert_eq!(differs, None, "the first byte that differs");
        self.played
    }
}
