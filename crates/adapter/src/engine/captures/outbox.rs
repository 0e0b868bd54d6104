//! The output of a capture: a bounded queue, and a thread that waits for the reader, so that the
//! engine need not.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::engine::sys;

/// Bytes that may wait for a reader.
pub(super) const QUEUE_BYTES_MAX: usize = 32 << 20;
/// The interval at which a thread whose reader does not read checks whether it must end.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// The time that a reader may take for the rest when the engine ends.
const ENDING_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Outbox {
    batches: Option<Sender<Vec<u8>>>,
    /// The thread's, for looking at.
    stream: UnixStream,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes handed over and not written. Relaxed: it bounds memory, and orders nothing.
    queued: AtomicUsize,
    /// The engine ends: do not wait any longer for a reader that does not read.
    is_ending: AtomicBool,
}

impl Outbox {
    pub(super) fn new(stream: UnixStream) -> io::Result<Outbox> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let ours = stream.try_clone()?;
        let (batches, inbox) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = thread::Builder::new().name("capture".into());
        let thread = thread.spawn(move || write_all(stream, &inbox, &theirs))?;
        Ok(Outbox {
            batches: Some(batches),
            stream: ours,
            shared,
            thread: Some(thread),
        })
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.shared.queued.load(Ordering::Relaxed) + bytes <= QUEUE_BYTES_MAX
    }

    /// True when the reader is gone, even if the thread has not noticed it yet.
    pub(super) fn is_abandoned(&self) -> bool {
        sys::has_hung_up(&self.stream)
    }

    /// Queues a batch. False when the reader is gone.
    pub(super) fn send(&self, batch: Vec<u8>) -> bool {
        let is_alive = self
            .thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished());
        if batch.is_empty() || !is_alive {
            return is_alive;
        }
        self.shared.queued.fetch_add(batch.len(), Ordering::Relaxed);
        self.batches
            .as_ref()
            .is_some_and(|batches| batches.send(batch).is_ok())
    }
}

impl Drop for Outbox {
    /// Gives the rest to a reader that still reads.
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, that was already reported.
            let _ = thread.join();
        }
    }
}

fn write_all(mut stream: UnixStream, inbox: &Receiver<Vec<u8>>, shared: &Shared) {
    let mut ends_at = None;
    for batch in inbox {
        if write(&mut stream, &batch, shared, &mut ends_at).is_err() {
            return;
        }
        shared.queued.fetch_sub(batch.len(), Ordering::Relaxed);
    }
}

fn write(
    stream: &mut UnixStream,
    mut bytes: &[u8],
    shared: &Shared,
    ends_at: &mut Option<Instant>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let is_ending = shared.is_ending.load(Ordering::Relaxed);
        if is_ending {
            let ends_at = *ends_at.get_or_insert_with(|| Instant::now() + ENDING_TIMEOUT);
            if Instant::now() >= ends_at {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock if !is_ending => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}
