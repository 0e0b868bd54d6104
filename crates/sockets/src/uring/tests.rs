use std::time::{Duration, Instant};

use super::*;

/// A ring in memory of ours, as the kernel lays it out: head, tail, and the indices. It has one
/// request, which registers an invalid descriptor.
fn ring_of_ours(fd: i32) -> &'static Ring {
    const COUNT: usize = 2;
    const ENTRY_BYTES: usize = 64;
    let queue: &mut [u32; 2 + COUNT] = Box::leak(Box::new([0, 1, 0, 1]));
    let entries: &mut [u64; COUNT * ENTRY_BYTES / 8] = Box::leak(Box::default());
    entries[0] = u64::from(operation::EPOLL_CTL);
    let _held = LOCK.lock();
    let ring = RINGS
        .iter()
        .find(|ring| ring.fd.load(Ordering::Relaxed) == 0);
    let ring = ring.expect("free");
    let words = [
        (&ring.queue, queue.as_ptr() as usize),
        (&ring.queue_bytes, size_of_val(queue)),
        (&ring.entries, entries.as_ptr() as usize),
        (&ring.entry_bytes, ENTRY_BYTES),
    ];
    for (word, value) in words {
        word.store(value, Ordering::Relaxed);
    }
    let words = [
        (&ring.count, COUNT as u32),
        (&ring.flags, 0),
        (&ring.head, 0),
        (&ring.tail, 4),
        (&ring.array, 8),
    ];
    for (word, value) in words {
        word.store(value, Ordering::Relaxed);
    }
    ring.turn.claim(0);
    ring.fd.store(fd + 1, Ordering::Relaxed);
    ring
}

const FD: i32 = 1 << 20;
/// The operation that a second thread has handed over, plus 1; 0 before that.
static HANDED_OVER: AtomicU32 = AtomicU32::new(0);
static IS_FIRST: AtomicBool = AtomicBool::new(true);

/// Fails, as for a bad descriptor. The first time another thread hands the same request over
/// meanwhile.
unsafe fn control(_: i32, _: i32, _: i32, _: *mut libc::epoll_event) -> i32 {
    if IS_FIRST.swap(false, Ordering::Relaxed) {
        std::thread::spawn(|| {
            assert_eq!(in_turn(FD, 1, 0, control), 1);
            let _held = LOCK.lock();
            let request = find(FD).expect("there").request(0);
            HANDED_OVER.store(u32::from(request.opcode) + 1, Ordering::Release);
        });
        // The other thread has enough time to come here, but comes only when this thread's turn is
        // over. (It waits for up to a second, because a busy host may need that for many yields.)
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            std::thread::yield_now();
            assert_eq!(HANDED_OVER.load(Ordering::Acquire), 0, "it did not wait");
        }
    }
    libc::EBADF
}

#[test]
fn a_request_that_is_being_carried_out_is_not_handed_over_by_another_thread() {
    let ring = ring_of_ours(FD);
    assert_eq!(in_turn(FD, 5, 0, control), 1, "so many are there");
    assert_eq!(ring.request(0).opcode, operation::EPOLL_CTL);
    entered(FD);
    while HANDED_OVER.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let operation = HANDED_OVER.load(Ordering::Acquire) - 1;
    assert_eq!(operation, u32::from(operation::EPOLL_CTL));
    ring.fd.store(0, Ordering::Relaxed);
}
