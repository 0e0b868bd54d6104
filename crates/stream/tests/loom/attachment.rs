//! A region is given and taken away, concurrently with calls on the carrier and threads inside.
//!
//! A checked cell stands for data that two sides must not access at one time. One cell is the
//! carrier's byte count, which `attach` compares with the kernel's. Another cell is the region's
//! memory, which the thread that took the region frees. loom fails the test when two accesses are
//! not ordered.

use std::sync::Arc;

use super::explore;
use loom::cell::UnsafeCell;
use loom::thread::JoinHandle;
use toehold_channel::sync::{AtomicU32, Ordering, spin_hint};
use toehold_stream::attachment::{Attachment, Sleepers};
use toehold_stream::calls::{Calls, Name};

struct Process {
    attachment: Attachment,
    calls: [Calls; 2],
    /// The marks in the frames of two threads: 1 while a call is there.
    marks: [AtomicU32; 2],
    /// 1 when the connection is to stay on its carrier.
    pinned: AtomicU32,
    /// Calls on the carrier change this value; the thread that gives a region reads it.
    counted: UnsafeCell<u32>,
    /// Threads inside the region change this value; the thread that has taken the region frees it.
    memory: UnsafeCell<u32>,
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Sync for Process {}
// SAFETY: as above.
unsafe impl Send for Process {}

impl Process {
    fn new() -> Arc<Process> {
        Arc::new(Process {
            attachment: Attachment::default(),
            calls: Default::default(),
            marks: [AtomicU32::new(0), AtomicU32::new(0)],
            pinned: AtomicU32::new(0),
            counted: UnsafeCell::new(0),
            memory: UnsafeCell::new(0),
        })
    }

    fn region(&self) -> *mut u8 {
        (&raw const self.memory).cast_mut().cast()
    }

    /// Makes a call of thread `of`, if there is no region. True when there was no region.
    fn call_by(&self, of: usize, direction: usize, moves: impl FnOnce()) -> bool {
        let (calls, name) = (&self.calls[direction], Process::name(of));
        self.marks[of].store(1, Ordering::Relaxed);
        let seat = self.attachment.begin_host_call(calls, name);
        if let Some(seat) = seat {
            moves();
            calls.leave(seat, name.mark);
        }
        // Release pairs with the Acquire load in `attach`.
        self.marks[of].store(0, Ordering::Release);
        seat.is_some()
    }

    fn name(of: usize) -> Name {
        Name {
            mark: 8 * (of as u64 + 1),
            thread: 0,
        }
    }

    /// A call that moves a byte on the carrier, if there is no region. True when there was no
    /// region.
    fn call(&self, direction: usize) -> bool {
        self.call_by(direction, direction, || {
            // SAFETY: loom checks it.
            self.counted.with_mut(|count| unsafe { *count += 1 });
        })
    }

    /// A thread jumps out of a call, if there is no region, and other code uses the memory.
    fn left(&self, direction: usize) {
        self.marks[direction].store(1, Ordering::Relaxed);
        let calls = &self.calls[direction];
        let name = Process::name(direction);
        let _ = self.attachment.begin_host_call(calls, name);
        self.marks[direction].store(0, Ordering::Relaxed);
    }

    fn counted(&self) -> u32 {
        // SAFETY: loom checks it.
        self.counted.with(|count| unsafe { *count })
    }

    fn attach(&self) -> bool {
        let [rx, tx] = &self.calls;
        self.attachment.give(self.region(), [rx, tx], |name| {
            // Acquire pairs with the Release store in `call_by`.
            self.marks[name.mark as usize / 8 - 1].load(Ordering::Acquire) == 0
        })
    }

    /// A thread works in the region, if there is a region.
    fn work(&self) -> bool {
        let entered = self.attachment.enter();
        if entered.is_some() {
            // SAFETY: loom checks it.
            self.memory.with(|memory| unsafe { assert_eq!(*memory, 0) });
        }
        entered.is_some()
    }

    fn free(&self) {
        // SAFETY: loom checks it.
        self.memory.with_mut(|memory| unsafe { *memory = 1 });
    }
}

#[test]
fn no_call_is_on_the_carrier_while_a_region_is_given() {
    explore(3, || {
        let process = Process::new();
        let other = process.clone();
        let thread = loom::thread::spawn(move || other.call(1));
        let attached = process.attach();
        // `pairing::attach` compares the counts here.
        let counted = if attached { process.counted() } else { 0 };
        let was_hosts = thread.join().unwrap();
        if attached {
            assert_eq!(
                counted,
                u32::from(was_hosts),
                "the call is counted, or went by the region"
            );
        } else {
            // The call is in flight, or both sides have stepped back.
            assert!(!process.attachment.has_region());
        }
    });
}

#[test]
fn region_is_given_when_the_calls_of_both_directions_are_over() {
    explore(2, || {
        let process = Process::new();
        let threads: Vec<_> = (0..2)
            .map(|direction| {
                let other = process.clone();
                loom::thread::spawn(move || {
                    other.in_flight_only(direction);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(process.attach(), "nothing is on its way");
        assert!(!process.call(0) && !process.call(1), "calls see the region");
    });
}

impl Process {
    /// A call that finds no byte to move.
    fn in_flight_only(&self, direction: usize) -> bool {
        self.call_by(direction, direction, || {})
    }

    /// Attaches while `thread` makes a call: that is counted, or goes by the region. If the
    /// process cannot attach, it can once the call is over.
    fn attach_beside(&self, thread: JoinHandle<bool>) {
        let attached = self.attach();
        let counted = if attached { self.counted() } else { 0 };
        let was_hosts = thread.join().unwrap();
        if attached {
            assert_eq!(counted, u32::from(was_hosts));
        } else {
            assert!(self.attach(), "no call runs any more");
        }
    }
}

#[test]
fn call_that_was_left_is_counted_out_and_the_next_one_in_its_frame_is_not() {
    explore(3, || {
        let process = Process::new();
        let other = process.clone();
        let thread = loom::thread::spawn(move || {
            other.left(1);
            other.call(1)
        });
        process.attach_beside(thread);
    });
}

#[test]
fn place_of_a_call_that_was_left_is_taken_by_one_call() {
    explore(3, || {
        let process = Process::new();
        process.left(1);
        let other = process.clone();
        let thread = loom::thread::spawn(move || {
            // In a frame of its own, with the place or beside it.
            other.call_by(0, 1, || {
                // SAFETY: loom checks it.
                other.counted.with_mut(|count| unsafe { *count += 1 });
            })
        });
        process.attach_beside(thread);
    });
}

impl Process {
    /// Keeps the connection on its carrier, as `Connection::pin`.
    fn pin(&self) {
        // Pairs with the load in `attach_unpinned`: one of the two sides sees the other's store.
        self.pinned.fetch_or(1, Ordering::SeqCst);
    }

    /// As [`Process::call`], by a thread that looks first whether the connection is pinned.
    fn call_seeing_pin(&self, direction: usize) -> bool {
        // Pairs with the store in `pin`.
        if self.pinned.load(Ordering::SeqCst) == 0 {
            return self.call(direction);
        }
        let is_on_carrier = self.attachment.begin_pinned_call();
        if is_on_carrier {
            // SAFETY: loom checks it.
            self.counted.with_mut(|count| unsafe { *count += 1 });
        }
        is_on_carrier
    }

    /// As [`Process::attach`], by a thread that looks afterwards whether the connection is pinned.
    fn attach_unpinned(&self) -> bool {
        let is_given = self.attach();
        // Pairs with the store in `pin`.
        if is_given && self.pinned.load(Ordering::SeqCst) != 0 {
            self.attachment.take();
            return false;
        }
        is_given
    }
}

#[test]
fn call_on_a_pinned_connection_is_not_on_the_carrier_while_a_region_is_given() {
    explore(3, || {
        let process = Process::new();
        let [pinning, calling] = [(); 2].map(|()| process.clone());
        let pins = loom::thread::spawn(move || pinning.pin());
        let calls = loom::thread::spawn(move || calling.call_seeing_pin(1));
        let attached = process.attach_unpinned();
        let counted = if attached { process.counted() } else { 0 };
        let was_carriers = calls.join().unwrap();
        pins.join().unwrap();
        if attached {
            assert_eq!(counted, u32::from(was_carriers));
        } else {
            assert!(!process.attachment.has_region());
        }
    });
}

#[test]
fn no_thread_is_inside_a_region_that_was_taken_unused() {
    explore(3, || {
        let process = Process::new();
        assert!(process.attach());
        let other = process.clone();
        let thread = loom::thread::spawn(move || {
            other.work();
        });
        let taken = process.attachment.take_unused();
        if taken.is_some() {
            process.free();
        }
        thread.join().unwrap();
        assert_eq!(taken.is_none(), process.attachment.has_region());
    });
}

#[test]
fn release_waits_for_whoever_is_inside() {
    explore(3, || {
        let process = Process::new();
        assert!(process.attach());
        let other = process.clone();
        let thread = loom::thread::spawn(move || {
            other.work();
        });
        process.attachment.take();
        while process.attachment.is_used() {
            spin_hint();
        }
        process.free();
        thread.join().unwrap();
        assert!(process.attachment.enter().is_none());
    });
}

#[test]
fn sleeper_keeps_the_region_until_it_wakes() {
    explore(3, || {
        let process = Process::new();
        assert!(process.attach());
        let other = process.clone();
        let thread = loom::thread::spawn(move || {
            // The thread is inside while it declares that it sleeps, and while it declares that it
            // woke: see `epoll::sleeping::arm_member`.
            let Some((_, inside)) = other.attachment.enter() else {
                return;
            };
            other.attachment.sleepers.enter();
            drop(inside);
            let inside = other.attachment.enter();
            if inside.is_some() {
                // SAFETY: loom checks it.
                other
                    .memory
                    .with(|memory| unsafe { assert_eq!(*memory, 0) });
            }
            other.attachment.sleepers.leave();
        });
        if process.attachment.take_unused().is_some() {
            process.free();
        }
        thread.join().unwrap();
    });
}

/// A sender sleeps for credit, a reader wakes, and a third thread would withdraw the request for
/// credit, as `direction::stop_wanting` does.
#[test]
fn request_of_a_sleeping_sender_is_never_taken_back() {
    explore(3, || {
        let sleepers = Arc::new((Sleepers::default(), AtomicU32::new(1)));
        let (counts, wanted) = &*sleepers;
        // The sender sleeps already, and a reader sleeps as well.
        counts.enter();
        counts.enter();
        counts.begin_reading();
        let others = sleepers.clone();
        let reader = loom::thread::spawn(move || {
            others.0.end_reading();
            others.0.leave();
            others.0.enter();
            others.0.begin_reading();
        });
        if !counts.any_for_credit() {
            wanted.store(0, Ordering::Relaxed);
        }
        reader.join().unwrap();
        assert_eq!(wanted.load(Ordering::Relaxed), 1);
        counts.leave();
        assert!(!counts.any_for_credit() && counts.any());
    });
}
