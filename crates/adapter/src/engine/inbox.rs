//! The inbox of an engine's thread: commands, from the daemon and from other threads, and frames
//! from another thread's queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use toehold_tcp::ReceiveOffload;

use super::Command;

/// Bytes of frames from links that may wait for a thread. When they are used up, the other threads
/// stop receiving until this thread has taken its frames.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// The limit including frames for which no thread stops receiving: neighbours' messages and
/// reassembled packets. Beyond it these are dropped.
const URGENT_FRAME_BYTES_MAX: usize = FRAME_BYTES_MAX + (1 << 20);
/// The cost of keeping a frame beside its bytes.
const FRAME_COST_BYTES: usize = 256;

/// A frame that one thread passes to another.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) bytes: Vec<u8>,
    pub(super) offload: ReceiveOffload,
    pub(super) purpose: PassPurpose,
}

/// The purpose for which a frame was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassPurpose {
    /// Handle the frame.
    Handle,
    /// Handle a reassembled frame, which was never on the link in this form.
    HandleWhole,
    /// Only listen: another thread handles the frame.
    Overhear,
}

/// A thread's own side.
#[derive(Debug)]
pub(super) struct Inbox {
    commands: Receiver<Command>,
    door: Arc<Door>,
}

/// The side of the daemon and of other threads.
#[derive(Debug)]
pub(super) struct Door {
    commands: Sender<Command>,
    bell: OwnedFd,
    frames: Mutex<Frames>,
    /// True when there are frames. Checked first, because there usually are none. Written under the
    /// lock. Relaxed, because the lock orders the frames, and a sleeping thread gets the bell.
    has_frames: AtomicBool,
}

#[derive(Debug, Default)]
struct Frames {
    waiting: VecDeque<Passed>,
    cost_bytes: usize,
    /// Threads that stopped receiving because there was no room here.
    blocked: Vec<Arc<Door>>,
    /// The thread has ended.
    is_closed: bool,
}

impl Inbox {
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn new() -> io::Result<Inbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, commands) = mpsc::channel();
        let door = Door {
            commands: sender,
            bell,
            frames: Mutex::default(),
            has_frames: AtomicBool::new(false),
        };
        Ok(Inbox {
            commands,
            door: Arc::new(door),
        })
    }

    pub(super) fn door(&self) -> Arc<Door> {
        self.door.clone()
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.door.bell.as_fd()
    }

    /// Clears the bell. The caller takes commands and frames afterwards.
    pub(super) fn silence(&self) {
        // It fails when the bell was not rung.
        let _ = rustix::io::read(&self.door.bell, &mut [0u8; 8]);
    }

    /// Makes the thread look again in its next turn.
    pub(super) fn ring(&self) {
        self.door.ring();
    }

    pub(super) fn next(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }

    #[inline]
    pub(super) fn has_frames(&self) -> bool {
        self.door.has_frames.load(Ordering::Relaxed)
    }

    /// All frames that have been passed on until now. Threads that waited for room are woken.
    pub(super) fn frames(&self) -> VecDeque<Passed> {
        self.take_frames(false)
    }

    fn take_frames(&self, is_closed: bool) -> VecDeque<Passed> {
        let mut frames = self.door.frames();
        frames.cost_bytes = 0;
        frames.is_closed = is_closed;
        self.door.has_frames.store(false, Ordering::Relaxed);
        let blocked = std::mem::take(&mut frames.blocked);
        let waiting = std::mem::take(&mut frames.waiting);
        drop(frames);
        blocked.iter().for_each(|door| door.ring());
        waiting
    }
}

impl Drop for Inbox {
    /// No thread may wait for a thread that has ended.
    fn drop(&mut self) {
        self.take_frames(true);
    }
}

impl Door {
    pub(super) fn send_command(&self, command: Command) {
        // It fails only when the thread is gone; then its carriers have ended, too.
        if self.commands.send(command).is_ok() {
            self.ring();
        }
    }

    /// Passes a frame on. Without room the frame comes back, and `from` is rung when there is room
    /// again.
    pub(super) fn pass(&self, frame: Passed, from: &Arc<Door>) -> Result<(), Passed> {
        let mut frames = self.frames();
        if !frames.has_room(&frame, FRAME_BYTES_MAX) {
            if !frames.blocked.iter().any(|door| Arc::ptr_eq(door, from)) {
                frames.blocked.push(from.clone());
            }
            return Err(frame);
        }
        self.push(frames, frame);
        Ok(())
    }

    /// Passes a frame on that cannot be kept by the sender; false when it was dropped.
    pub(super) fn pass_urgent(&self, frame: Passed) -> bool {
        let frames = self.frames();
        let has_room = frames.has_room(&frame, URGENT_FRAME_BYTES_MAX);
        if has_room {
            self.push(frames, frame);
        }
        has_room
    }

    fn push(&self, mut frames: MutexGuard<'_, Frames>, frame: Passed) {
        if frames.is_closed {
            return;
        }
        let is_first = frames.waiting.is_empty();
        frames.cost_bytes += cost_bytes(&frame);
        frames.waiting.push_back(frame);
        self.has_frames.store(true, Ordering::Relaxed);
        drop(frames);
        if is_first {
            self.ring();
        }
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // An eventfd takes it, unless it holds 2^64 - 2 already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl Frames {
    fn has_room(&self, frame: &Passed, bytes_max: usize) -> bool {
        self.is_closed || self.cost_bytes + cost_bytes(frame) <= bytes_max
    }
}

fn cost_bytes(frame: &Passed) -> usize {
    frame.bytes.len() + FRAME_COST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn frame(length: usize) -> Passed {
        Passed {
            bytes: vec![0; length],
            offload: ReceiveOffload::default(),
            purpose: PassPurpose::Handle,
        }
    }

    #[test]
    fn frames_wait_in_order_and_within_bounds() {
        let inbox = Inbox::new().expect("a descriptor");
        let other = Inbox::new().expect("a descriptor");
        let (door, from) = (inbox.door(), other.door());
        for length in [60_000, 1] {
            let count = FRAME_BYTES_MAX / (length + FRAME_COST_BYTES);
            let taken = (0..2 * count).filter(|_| door.pass(frame(length), &from).is_ok());
            assert_eq!(taken.count(), count);
            assert!(door.pass_urgent(frame(1)), "neighbours' messages have room");
            assert_eq!(inbox.frames().len(), count + 1);
        }
        assert!(!inbox.has_frames());
        assert!(door.pass(frame(1), &from).is_ok() && door.pass(frame(2), &from).is_ok());
        assert!(inbox.has_frames());
        let lengths = inbox.frames().into_iter().map(|frame| frame.bytes.len());
        assert_eq!(lengths.collect::<Vec<_>>(), [1, 2]);
        let urgent = (0..1_000).filter(|_| door.pass_urgent(frame(60_000)));
        assert_eq!(
            urgent.count(),
            URGENT_FRAME_BYTES_MAX / (60_000 + FRAME_COST_BYTES)
        );
    }

    /// Whether somebody has rung since it was last asked.
    fn was_rung(inbox: &Inbox) -> bool {
        let mut entry = [PollFd::new(&inbox.door.bell, PollFlags::IN)];
        let found = poll(&mut entry, Some(&Timespec::default()));
        inbox.silence();
        found == Ok(1)
    }

    #[test]
    fn thread_without_room_is_rung_when_there_is_room() {
        let inbox = Inbox::new().expect("a descriptor");
        let other = Inbox::new().expect("a descriptor");
        let (door, from) = (inbox.door(), other.door());
        while door.pass(frame(60_000), &from).is_ok() {}
        let again = door.pass(frame(60_000), &from);
        assert_eq!(again.map_err(|frame| frame.bytes.len()), Err(60_000));
        assert!(!was_rung(&other));
        inbox.frames();
        assert!(was_rung(&other));
        inbox.frames();
        assert!(!was_rung(&other), "once");
        while door.pass(frame(60_000), &from).is_ok() {}
        drop(inbox);
        assert!(was_rung(&other), "nobody waits for a thread that has ended");
        assert!(door.pass(frame(60_000), &from).is_ok());
    }
}
