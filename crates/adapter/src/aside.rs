//! Work that another process can delay for as long as it wants: questions about it, and calls on a
//! file that it has.
//!
//! The kernel takes locks of a process to show its mappings (`mmap_lock`, and `exec_update_lock` to
//! open the list). A thread of the process may hold these locks while it waits for a program that
//! serves a file (FUSE) and does not answer. A write to a file holds the file's `inode_lock`, and
//! waits for memory in the same way. So the system adapter asks on other threads, and never waits
//! for them, except for a time that is bounded.
//!
//! A question that is not answered takes a thread until the process goes on, or ends. So questions
//! have keys, and those with one key get one thread at a time: the user whose processes are asked
//! about, or the pair of processes that have the file.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::proc;

/// The threads. Those that are free end when this is dropped.
pub(crate) struct Aside(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    has_work: Condvar,
    has_begun: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Question>,
    /// The keys of the questions that are asked now. Invariant: at most [`THREADS`].
    asked: BTreeSet<u64>,
    /// Threads that have begun to run.
    begun: usize,
    is_over: bool,
}

struct Question {
    key: u64,
    ask: Box<dyn FnOnce() -> Delivery + Send>,
}

/// Hands over an answer, without a wait.
type Delivery = Box<dyn FnOnce()>;

impl Aside {
    /// Starts the threads. They run when this returns: a filter for system calls that is set
    /// afterwards need not allow the calls of a thread that begins.
    ///
    /// # Errors
    /// When the system lets us have no threads.
    pub(crate) fn start() -> io::Result<Aside> {
        let aside = Aside(Arc::default());
        for _ in 0..THREADS {
            let shared = Arc::clone(&aside.0);
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn(move || shared.serve())?;
        }
        let mut state = aside.0.lock();
        while state.begun < THREADS {
            let waited = aside.0.has_begun.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Ok(aside)
    }

    /// Calls `ask` on one of the threads, and then `deliver`, which must not wait, with the answer.
    /// The key has no thread any more when the answer is there.
    pub(crate) fn ask<T: 'static>(
        &self,
        key: u64,
        ask: impl FnOnce() -> T + Send + 'static,
        deliver: impl FnOnce(T) + Send + 'static,
    ) {
        let ask = Box::new(|| {
            let answer = ask();
            Box::new(|| deliver(answer)) as Delivery
        });
        self.0.lock().queue.push_back(Question { key, ask });
        self.0.has_work.notify_one();
    }

    /// The answer of `ask`; `None` if it is not there after `limit`, or if no thread is free.
    pub(crate) fn ask_within<T: Send + 'static>(
        &self,
        key: u64,
        limit: Duration,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if !self.0.lock().has_thread_for(key) {
            return None;
        }
        let (sender, receiver) = sync_channel(1);
        // An error means that the answer comes too late.
        self.ask(key, ask, move |answer| drop(sender.send(answer)));
        receiver.recv_timeout(limit).ok()
    }
}

/// The answer of `ask`, a question about process `pid` which that process may delay; as
/// [`Aside::ask_within`]. Also `None` when there is no such process. Without `aside` the caller
/// waits for whatever delays the answer.
pub(crate) fn ask_about<T: Send + 'static>(
    aside: Option<&Aside>,
    pid: u32,
    limit: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let Some(aside) = aside else {
        return Some(ask());
    };
    let uid = proc::effective_user(pid)?;
    aside.ask_within(uid.into(), limit, ask)
}

impl State {
    fn has_thread_for(&self, key: u64) -> bool {
        self.asked.len() < THREADS && !self.asked.contains(&key)
    }

    /// The first question whose key no thread has now.
    fn next(&mut self) -> Option<Question> {
        let is_free = |question: &Question| !self.asked.contains(&question.key);
        let at = self.queue.iter().position(is_free)?;
        self.queue.remove(at)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        state.begun += 1;
        self.has_begun.notify_one();
        while !state.is_over {
            let Some(Question { key, ask }) = state.next() else {
                let waited = self.has_work.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.asked.insert(key);
            drop(state);
            let deliver = ask();
            self.lock().asked.remove(&key);
            deliver();
            // The next question with this key is found by this thread.
            state = self.lock();
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.has_work.notify_all();
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Aside")
    }
}

/// Questions that can be under way at a time.
const THREADS: usize = 8;
/// A thread reads a list of mappings line by line.
const STACK_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// Asks a question that is answered when the returned value is dropped.
    fn delayed(aside: &Aside, key: u64) -> std::sync::mpsc::Sender<()> {
        let (answer, answered) = channel::<()>();
        let (begin, begun) = channel();
        let ask = move || {
            begin.send(()).expect("the test waits");
            let _ = answered.recv();
        };
        aside.ask(key, ask, drop);
        begun.recv().expect("a thread asks");
        answer
    }

    fn question(aside: &Aside, key: u64) -> Receiver<u64> {
        let (answer, answered) = channel();
        let deliver = move |key| answer.send(key).expect("the test waits");
        aside.ask(key, move || key, deliver);
        answered
    }

    #[test]
    fn a_user_delays_only_answers_about_its_own_processes() {
        const LONG: Duration = Duration::from_secs(60);
        let aside = Aside::start().expect("threads");
        let delayed_answer = delayed(&aside, 7);
        let waiting = question(&aside, 7);
        assert_eq!(question(&aside, 8).recv(), Ok(8));
        assert_eq!(aside.ask_within(8, LONG, || 9), Some(9));
        assert_eq!(aside.ask_within(7, LONG, || 9), None, "its thread is taken");
        assert!(waiting.try_recv().is_err());
        drop(delayed_answer);
        assert_eq!(waiting.recv(), Ok(7));
    }

    #[test]
    fn a_key_is_free_when_its_answer_is_there() {
        const LONG: Duration = Duration::from_secs(60);
        let aside = Aside::start().expect("threads");
        for number in 0..10_000 {
            assert_eq!(aside.ask_within(7, LONG, move || number), Some(number));
        }
    }

    #[test]
    fn without_a_free_thread_nobody_waits() {
        const LONG: Duration = Duration::from_secs(60);
        let aside = Aside::start().expect("threads");
        let taken: Vec<_> = (0..THREADS as u64)
            .map(|key| delayed(&aside, key))
            .collect();
        assert_eq!(aside.ask_within(100, LONG, || 9), None);
        let waiting = question(&aside, 100);
        drop(taken);
        assert_eq!(waiting.recv(), Ok(100));
    }

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for() {
        let aside = Aside::start().expect("threads");
        let (keep, kept) = channel::<()>();
        let never = move || kept.recv().is_ok();
        assert_eq!(aside.ask_within(7, Duration::from_millis(1), never), None);
        drop(keep);
    }
}
