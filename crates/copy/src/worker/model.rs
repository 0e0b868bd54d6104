//! The queue under the model checker: the real code, two entries, every interleaving within bounds.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p toehold-copy --release --lib model`.

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

use super::queue::{Queue, Spins};

/// Starts a worker that copies the number of each entry to `copied`, with a step in between.
fn start(queue: &Arc<Queue<u32>>, copied: &Arc<AtomicU32>) -> thread::JoinHandle<()> {
    let (queue, copied) = (Arc::clone(queue), Arc::clone(copied));
    thread::spawn(move || {
        queue.run(
            Spins::up_to(Duration::ZERO),
            |_| true,
            |&number, tell| {
                // Relaxed: like payload, ordered by the queue's words or not at all.
                copied.store(number, Relaxed);
                tell(1);
                (2, number + 100)
            },
        )
    })
}

fn bounded() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder
}

#[test]
fn model_no_wake_up_is_lost_between_publishing_and_falling_asleep() {
    bounded().check(|| {
        let queue = Arc::new(Queue::new(2, 0));
        let copied = Arc::new(AtomicU32::new(0));
        let worker = start(&queue, &copied);
        for index in 0..2u64 {
            // SAFETY: one producer, at most two entries, each once.
            unsafe { queue.write(index, index as u32 + 1) };
            queue.publish(index + 1);
        }
        queue.stop();
        // A worker that missed its wake-up never returns, which the model reports as a deadlock.
        worker.join().unwrap();
        assert_eq!(queue.finished(), 2);
        assert_eq!(queue.result(1), 102);
        assert_eq!(queue.position(), 4);
    });
}

#[test]
fn model_a_sleeping_producer_is_woken_and_sees_what_was_copied() {
    bounded().check(|| {
        let queue = Arc::new(Queue::new(2, 0));
        let copied = Arc::new(AtomicU32::new(0));
        let worker = start(&queue, &copied);
        // SAFETY: one producer, an unused entry.
        unsafe { queue.write(0, 7) };
        queue.publish(1);
        while queue.finished() == 0 {
            queue.sleep_until_finished(0, u64::MAX);
        }
        assert_eq!(copied.load(Relaxed), 7);
        assert_eq!(queue.result(0), 107);
        queue.stop();
        worker.join().unwrap();
    });
}

#[test]
fn model_progress_is_never_ahead_of_the_bytes() {
    bounded().check(|| {
        let queue = Arc::new(Queue::new(2, 0));
        let copied = Arc::new(AtomicU32::new(0));
        let worker = start(&queue, &copied);
        // SAFETY: one producer, an unused entry.
        unsafe { queue.write(0, 7) };
        queue.publish(1);
        if queue.position() > 0 {
            assert_eq!(copied.load(Relaxed), 7);
        }
        queue.stop();
        worker.join().unwrap();
    });
}

#[test]
fn model_an_entry_is_used_again_only_after_it_was_read() {
    bounded().check(|| {
        let queue = Arc::new(Queue::new(2, 0));
        let copied = Arc::new(AtomicU32::new(0));
        let worker = start(&queue, &copied);
        for index in 0..3u64 {
            loop {
                let seen = queue.finished();
                if index < seen + 2 {
                    break;
                }
                queue.sleep_until_finished(seen, u64::MAX);
            }
            // SAFETY: one producer; the entry is free, as `finished` says.
            unsafe { queue.write(index, index as u32 + 1) };
            queue.publish(index + 1);
        }
        queue.stop();
        worker.join().unwrap();
        assert_eq!(copied.load(Relaxed), 3);
    });
}
