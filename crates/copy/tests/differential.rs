//! Every engine against plain copies, with random operations, lengths, alignments and flags: the
//! memory must come out equal.

use proptest::collection::vec;
use proptest::prelude::*;
use toehold_copy::{
    Auto, Calibration, Channel, Cpu, CpuNt, Faulty, Flags, InjectedFaults, Operation, Override,
    Status, Waiting, Worker, WorkerOptions, crc32c,
};

/// One step of a program. Its numbers are reduced to the valid range.
#[derive(Clone, Debug)]
enum Step {
    Copy {
        from: usize,
        to: usize,
        len: usize,
        flags: u8,
    },
    Fill {
        to: usize,
        len: usize,
        pattern: u64,
        flags: u8,
    },
    Crc {
        from: usize,
        to: usize,
        len: usize,
        seed: u32,
    },
    Vectored {
        from: Vec<usize>,
        to: Vec<usize>,
        gap: usize,
    },
    Poll,
    Flush,
}

const ARENA_BYTES: usize = 300_000;

/// The memory of a program. Each step writes its own piece of the target, so unfenced operations
/// never overlap.
struct Arena {
    source: Vec<u8>,
    target: Vec<u8>,
    model: Vec<u8>,
    next: usize,
}

impl Arena {
    fn new() -> Arena {
        let source = (0..ARENA_BYTES as u32)
            .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
            .collect();
        Arena {
            source,
            target: vec![0x55; ARENA_BYTES],
            model: vec![0x55; ARENA_BYTES],
            next: 0,
        }
    }

    /// A piece of the target for `len` bytes, `gap` after the last piece, or a shorter piece.
    fn take(&mut self, gap: usize, len: usize) -> (usize, usize) {
        let at = (self.next + gap).min(ARENA_BYTES);
        let len = len.min(ARENA_BYTES - at);
        self.next = at + len;
        (at, len)
    }
}

fn run(mut channel: Channel, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut arena = Arena::new();
    let mut sums = Vec::new();
    // SAFETY of every submission: the arena outlives the channel, and the channel is drained before
    // the target is read. Each piece of the target is handed out once.
    for step in steps {
        while channel.vacant() < 16 {
            channel.poll();
        }
        match *step {
            Step::Copy {
                from,
                to,
                len,
                flags,
            } => {
                let (at, len) = arena.take(to % 100, len);
                let from = from % (ARENA_BYTES - len + 1);
                arena.model[at..at + len].copy_from_slice(&arena.source[from..from + len]);
                let operation = Operation::copy(
                    arena.source[from..].as_ptr(),
                    arena.target[at..].as_mut_ptr(),
                    len,
                );
                let operation = operation.with(Flags::from_bits_truncate(flags));
                // SAFETY: see above.
                unsafe { channel.submit(operation) }.unwrap();
            }
            Step::Fill {
                to,
                len,
                pattern,
                flags,
            } => {
                let (at, len) = arena.take(to % 100, len);
                for (i, byte) in arena.model[at..at + len].iter_mut().enumerate() {
                    *byte = pattern.to_le_bytes()[i % 8];
                }
                let operation = Operation::fill(arena.target[at..].as_mut_ptr(), len, pattern);
                let operation = operation.with(Flags::from_bits_truncate(flags));
                // SAFETY: see above.
                unsafe { channel.submit(operation) }.unwrap();
            }
            Step::Crc {
                from,
                to,
                len,
                seed,
            } => {
                let (at, len) = arena.take(to % 100, len);
                let from = from % (ARENA_BYTES - len + 1);
                let bytes = &arena.source[from..from + len];
                arena.model[at..at + len].copy_from_slice(bytes);
                let sum = if len == 0 { 0 } else { crc32c(seed, bytes) };
                let target = arena.target[at..].as_mut_ptr();
                let operation = Operation::copy_crc32c(bytes.as_ptr(), target, len, seed);
                // SAFETY: see above.
                let cookie = unsafe { channel.submit(operation) }.unwrap();
                sums.push((cookie, sum));
            }
            Step::Vectored {
                ref from,
                ref to,
                gap,
            } => {
                let total = from.iter().sum::<usize>().min(to.iter().sum());
                let (mut sources, mut targets) = (Vec::new(), Vec::new());
                let (start, total) = arena.take(gap % 100, total);
                arena.model[start..start + total].copy_from_slice(&arena.source[7..7 + total]);
                let mut at = 0;
                for &len in from.iter().chain(&[usize::MAX]) {
                    let len = len.min(total - at);
                    sources.push((arena.source[7 + at..].as_ptr(), len));
                    at += len;
                }
                let mut at = 0;
                for &len in to.iter().chain(&[usize::MAX]) {
                    let len = len.min(total - at);
                    targets.push((arena.target[start + at..].as_mut_ptr(), len));
                    at += len;
                }
                // SAFETY: see above.
                let last =
                    unsafe { channel.copy_vectored(&sources, &targets, Flags::FENCE) }.unwrap();
                prop_assert_eq!(last.is_some(), total > 0);
            }
            Step::Poll => {
                let mark = channel.poll();
                prop_assert!(mark <= channel.issued());
            }
            Step::Flush => channel.flush(),
        }
        // The channel keeps a CRC's result for as many operations as it has entries.
        if let Some(&(cookie, sum)) = sums.last() {
            let status = channel.wait(cookie, Waiting::YIELD).unwrap();
            if status != Status::Retired {
                prop_assert_eq!(status, Status::Done { crc32c: sum });
            }
        }
    }
    channel.drain();
    prop_assert_eq!(channel.watermark(), channel.issued());
    let counters = channel.counters();
    prop_assert_eq!(counters.submitted, counters.completed);
    prop_assert_eq!(counters.failed, 0);
    drop(channel);
    let differs = arena
        .target
        .iter()
        .zip(&arena.model)
        .position(|(a, b)| a != b);
    prop_assert_eq!(differs, None);
    Ok(())
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![0..100usize, 0..5000usize, 60_000..70_000usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<usize>(), any::<usize>(), lens(), 0..16u8)
            .prop_map(|(from, to, len, flags)| Step::Copy { from, to, len, flags }),
        1 => (any::<usize>(), lens(), any::<u64>(), 0..16u8)
            .prop_map(|(to, len, pattern, flags)| Step::Fill { to, len, pattern, flags }),
        1 => (any::<usize>(), any::<usize>(), 0..9000usize, any::<u32>())
            .prop_map(|(from, to, len, seed)| Step::Crc { from, to, len, seed }),
        1 => (vec(0..700usize, 0..6), vec(0..700usize, 0..6), any::<usize>())
            .prop_map(|(from, to, gap)| Step::Vectored { from, to, gap }),
        1 => Just(Step::Poll),
        1 => Just(Step::Flush),
    ]
}

fn worker(entries: usize) -> Worker {
    Worker::start(WorkerOptions {
        entries,
        ..WorkerOptions::default()
    })
    .unwrap()
}

/// A calibration with a copybreak of 4 KB, so that both the processor and the worker get copies.
fn calibration() -> Calibration {
    let mut calibration = Calibration::measure();
    let at = Override {
        inward: Some(4096),
        outward: Some(4096),
    };
    calibration.apply(at, "the test".to_owned());
    calibration
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn cpu_copies_like_a_copy(steps in vec(step(), 0..40)) {
        run(Channel::new(Cpu::new(), 32), &steps)?;
    }

    #[test]
    fn cpu_nt_copies_like_a_copy(steps in vec(step(), 0..40)) {
        run(Channel::new(CpuNt::new(), 32), &steps)?;
    }

    #[test]
    fn worker_copies_like_a_copy(steps in vec(step(), 0..40)) {
        run(Channel::new(worker(32), 32), &steps)?;
    }

    #[test]
    fn a_worker_with_a_shorter_queue_than_its_channel_copies_like_a_copy(
        steps in vec(step(), 0..40),
    ) {
        run(Channel::new(worker(2), 64), &steps)?;
    }

    #[test]
    fn auto_copies_like_a_copy(steps in vec(step(), 0..40)) {
        run(Channel::new(Auto::new(&calibration(), Some(worker(32))), 32), &steps)?;
    }

    #[test]
    fn whatever_the_engine_does_wrong_the_bytes_are_right(
        steps in vec(step(), 0..40),
        seed in any::<u64>(),
        delay_polls_max in 0..6u32,
        reorder in any::<bool>(),
        partial_in_256 in 0..=256u32,
        full_in_256 in 0..200u32,
        unable_in_256 in 0..=256u32,
        queue_entries in 0..5usize,
        gone_after in 0..30u64,
    ) {
        let faults = InjectedFaults {
            seed, delay_polls_max, reorder, partial_in_256, full_in_256, unable_in_256,
            queue_entries, gone_after,
        };
        run(Channel::new(Faulty::new(faults), 32), &steps)?;
    }
}

/// The lengths around every threshold, up to 8 MB, at unaligned addresses.
#[test]
fn long_copies_arrive_whole() {
    let mut source = vec![0u8; (8 << 20) + 64];
    for (i, byte) in source.iter_mut().enumerate() {
        *byte = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    }
    let mut target = vec![0u8; source.len()];
    for name in ["cpu", "cpu-nt", "worker", "auto"] {
        let mut channel = toehold_copy::open(Some(name), 8).channel;
        assert_eq!(channel.backend_name(), name);
        for len in [65535, 65536, 65537, (1 << 20) - 1, (1 << 20) + 17, 8 << 20] {
            for (from, to) in [(0, 0), (1, 0), (0, 63), (33, 7)] {
                target[to..to + len].fill(0);
                channel.scope(|scope| {
                    let ticket = scope.copy(&source[from..from + len], &mut target[to..]);
                    let written = ticket.wait(Waiting::PARK).unwrap();
                    assert!(
                        written == &source[from..from + len],
                        "{name} {len} {from} {to}"
                    );
                });
            }
        }
    }
}
