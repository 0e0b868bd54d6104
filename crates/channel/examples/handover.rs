//! Measures the rate at which this machine's memory passes bytes between cores: one thread copies
//! into a ring, another thread, on the next core, copies out. There are no sockets, no protocol and
//! no sleeping, so this rate is an upper limit for bulk transfers of the direct path. The size of
//! the ring decides where the reader finds the bytes: in the writer's own cache, in the shared
//! cache, or in memory.
//!
//!     cargo run --release -p toehold-channel --example handover

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const TOTAL_BYTES: u64 = 20 << 30;
const CHUNK_BYTES: usize = 32 << 10;
const BUFFER_BYTES: usize = 128 << 10;

fn pin(core: usize) {
    // SAFETY: zeroes are a valid `cpu_set_t`; the set outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

#[repr(align(128))]
struct Position(AtomicU64);

fn main() {
    for capacity_log2 in 16..=24 {
        let capacity = 1 << capacity_log2;
        let (head, tail) = (Position(AtomicU64::new(0)), Position(AtomicU64::new(0)));
        let mut ring = vec![1u8; capacity];
        let base = ring.as_mut_ptr() as usize;
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                let mut target = vec![0u8; BUFFER_BYTES];
                let mut at = 0u64;
                while at < TOTAL_BYTES {
                    while tail.0.load(Ordering::Acquire) == at {
                        std::hint::spin_loop();
                    }
                    let source = (base + at as usize % capacity) as *const u8;
                    let to = &mut target[at as usize % BUFFER_BYTES..][..CHUNK_BYTES];
                    // SAFETY: the chunk lies inside the ring; the other thread does not touch it
                    // until `head` passes it.
                    unsafe { toehold_copy::from_shared(source, to.as_mut_ptr(), CHUNK_BYTES) };
                    // No code reads the bytes: without this call the compiler would omit the copy.
                    std::hint::black_box(to);
                    at += CHUNK_BYTES as u64;
                    head.0.store(at, Ordering::Release);
                }
            });
            pin(0);
            let source = vec![2u8; BUFFER_BYTES];
            let mut at = 0u64;
            while at < TOTAL_BYTES {
                while at + CHUNK_BYTES as u64 - head.0.load(Ordering::Acquire) > capacity as u64 {
                    std::hint::spin_loop();
                }
                let target = (base + at as usize % capacity) as *mut u8;
                let from = &source[at as usize % BUFFER_BYTES..][..CHUNK_BYTES];
                // SAFETY: as above, before `tail` passes it.
                unsafe { toehold_copy::to_shared(from.as_ptr(), target, CHUNK_BYTES) };
                at += CHUNK_BYTES as u64;
                tail.0.store(at, Ordering::Release);
            }
        });
        let gigabits = TOTAL_BYTES as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e9;
        println!("ring {:>4} KiB: {gigabits:.0} Gbit/s", capacity >> 10);
        drop(ring);
    }
}
