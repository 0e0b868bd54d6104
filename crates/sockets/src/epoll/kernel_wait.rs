//! The kernel's own `epoll_wait` on an instance without accelerated members, which may get some
//! during the call.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use libc::epoll_event;
use toehold_freestanding::guarded;

use crate::epoll::instance::{Counted, Epoll, Instance};
use crate::epoll::nested::ReportedInstances;
use crate::epoll::registration::untag;
use crate::epoll::two_looks::{Parts, once_each};
use crate::epoll::waiting::closed;
use crate::system::sys;

/// A thread is about to sleep in the kernel's own wait, on an instance without accelerated members.
/// It is counted as a sleeper, so that a thread that moves a member to the library wakes it: peers
/// do not ring for ready bitmaps without sleepers. `None`: the instance needs the library by now.
#[inline]
pub(crate) fn begin_kernel_wait(instance: Instance) -> Option<KernelWait> {
    let epoll = instance.epoll;
    // A full barrier between this and the look: either we see the new member, or the thread that
    // adds it sees us.
    let wait = KernelWait(epoll, epoll.sleepers.enter());
    (!instance.needs_library()).then_some(wait)
}

/// A sleep that [`begin_kernel_wait`] has counted, until it is dropped.
pub(crate) struct KernelWait(&'static Epoll, Counted);

impl KernelWait {
    /// The sleep is over.
    #[inline]
    pub(crate) fn end(&self) {
        let &KernelWait(epoll, counted) = self;
        if epoll.pair_count.load(Ordering::Relaxed) == 0 {
            // A ready bitmap that is added at this moment keeps its sleep word set, so its peer
            // rings once unnecessarily.
            epoll.sleepers.leave(counted);
        } else {
            epoll.end_sleep(counted);
        }
    }
}

impl Drop for KernelWait {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

/// A copy of the first places of a program's buffer, made before the kernel writes there. Some of
/// the kernel's events may turn out to be the library's, and their places are restored.
pub(crate) struct Before {
    events: [MaybeUninit<epoll_event>; PLACES_KEPT],
    count: usize,
}

/// Number of places that are copied. During one sleep, more connections than this rarely move to
/// the library.
const PLACES_KEPT: usize = 8;

impl Before {
    /// Of the `count` places at `events`, which may be bad.
    #[inline]
    pub(crate) fn of(events: *const epoll_event, count: usize) -> Before {
        let mut before = Before::none();
        let count = count.min(PLACES_KEPT);
        let bytes = count * size_of::<epoll_event>();
        let target = before.events.as_mut_ptr().cast();
        // SAFETY: there is room for as many.
        if unsafe { guarded::try_to_shared_short(events.cast(), target, bytes) }.is_ok() {
            before.count = count;
        }
        before
    }

    /// Nothing is known.
    #[inline]
    pub(crate) const fn none() -> Before {
        Before {
            events: [const { MaybeUninit::uninit() }; PLACES_KEPT],
            count: 0,
        }
    }

    /// Restores the places from `from` to `to`.
    fn restore(&self, events: &mut [epoll_event], from: usize, to: usize) {
        // Places beyond the copied ones are not restored.
        let to = to.min(self.count);
        let places = from.min(to)..to;
        for (event, before) in events[places.clone()].iter_mut().zip(&self.events[places]) {
            // SAFETY: the first `count` were written.
            *event = unsafe { before.assume_init() };
        }
    }
}

/// The kernel's own call returned `events` on an instance that got accelerated members while it
/// slept: removes the library's events and looks at their members. `None`: no event is left, so
/// wait again.
pub(crate) fn after_kernel_wait(
    instance: Instance,
    events: &mut [epoll_event],
    returned: usize,
    before: &Before,
) -> Option<i32> {
    // A registration of ours is in the kernel before it is in our table.
    let is_tagged = |event: &epoll_event| untag(event.u64).is_some();
    if !instance.needs_library() && !events[..returned].iter().any(is_tagged) {
        return Some(returned as i32);
    }
    let Instance {
        epoll, generation, ..
    } = instance;
    let kept = epoll.sort_kernel_events(&mut events[..returned], &ReportedInstances::NONE);
    if kept > 0 {
        epoll.kernel_news_ns.store(sys::now_ns(), Ordering::Relaxed);
    }
    let more = match kept < events.len() {
        true => epoll.sweep_and_harvest(generation, &mut events[kept..]),
        false => 0,
    };
    before.restore(events, kept + more, returned);
    match kept + more {
        0 if instance.is_open() => None,
        0 => Some(closed()),
        total => {
            let parts = Parts {
                first: kept,
                total,
                // Its members became ours within the call.
                has_moved: true,
            };
            Some(once_each(epoll, events, parts))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ANOTHER: u64 = 1 << 40;

    /// The data of twelve places, of which the kernel wrote the first `returned`, and the program
    /// is told of `told`.
    fn restored(told: usize, returned: usize) -> Vec<u64> {
        let event = |u64| epoll_event { events: 0, u64 };
        let mut events: Vec<epoll_event> = (0..12).map(event).collect();
        let before = Before::of(events.as_ptr(), events.len());
        for at in &mut events[..returned] {
            *at = event(OF_ANOTHER);
        }
        before.restore(&mut events, told, returned);
        events.iter().map(|event| event.u64).collect()
    }

    #[test]
    fn places_that_were_kept_are_as_before_and_others_are_left_alone() {
        for returned in 0..=12 {
            for told in 0..=returned {
                for (at, data) in restored(told, returned).into_iter().enumerate() {
                    let is_changed = at < returned && (at < told || at >= PLACES_KEPT);
                    let expected = if is_changed { OF_ANOTHER } else { at as u64 };
                    assert_eq!(data, expected, "{told} of {returned}: {at}");
                }
            }
        }
    }
}
