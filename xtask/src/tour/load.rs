//! Continuous requests through the three services; each answer is checked.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of clients. Each makes [`BATCH`] requests on one connection to nginx.
const CLIENTS: usize = 2;
/// Requests of one client, one after the other.
const BATCH: usize = 25;
/// The number of items in the database; `app.sql` makes them.
const ITEMS: usize = 200;
/// The pause between two batches, so that other programs of a small host get their turn.
const PAUSE: Duration = Duration::from_millis(20);

/// Clients that ask for items until they are dropped.
#[derive(Debug)]
pub(super) struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    has_ended: AtomicBool,
    /// While a client's lock is held, the client sends no request.
    asking: [Mutex<()>; CLIENTS],
    /// The number of right answers.
    answers: AtomicUsize,
    /// The first wrong answer.
    wrong: Mutex<Option<String>>,
}

impl Load {
    /// Starts the clients. `curl` makes a curl command that reaches the services.
    pub(super) fn start(curl: impl Fn() -> Command + Clone + Send + 'static) -> Load {
        let shared = Arc::new(Shared::default());
        let start = |client: usize| {
            let (shared, curl) = (Arc::clone(&shared), curl.clone());
            std::thread::spawn(move || shared.ask(client, curl))
        };
        let clients = (0..CLIENTS).map(start).collect();
        Load { shared, clients }
    }

    /// Calls `work` while no client sends requests.
    pub(super) fn paused<T>(&self, work: impl FnOnce() -> T) -> T {
        let _held: Vec<_> = self.shared.asking.iter().map(locked).collect();
        work()
    }

    /// The number of correct answers so far.
    ///
    /// # Errors
    /// The first wrong answer, or the first request without one.
    pub(super) fn answers(&self) -> Result<usize, String> {
        match &*locked(&self.shared.wrong) {
            Some(wrong) => Err(wrong.clone()),
            // No other data is read after this load.
            None => Ok(self.shared.answers.load(Ordering::Relaxed)),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

impl Shared {
    fn ask(&self, client: usize, curl: impl Fn() -> Command) {
        // A flag and a count, which publish no other data.
        let mut first = 1 + client * BATCH;
        while !self.has_ended.load(Ordering::Relaxed) {
            let asking = locked(&self.asking[client]);
            match batch(curl(), first) {
                Ok(()) => {
                    self.answers.fetch_add(BATCH, Ordering::Relaxed);
                }
                Err(error) => {
                    locked(&self.wrong).get_or_insert(error);
                    return;
                }
            }
            drop(asking);
            first = (first + BATCH - 1) % (ITEMS - BATCH) + 1;
            std::thread::sleep(PAUSE);
        }
    }
}

/// Asks for a batch of items over one connection.
fn batch(mut curl: Command, first: usize) -> Result<(), String> {
    let last = first + BATCH - 1;
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "20"]);
    curl.arg(format!("http://127.0.0.1/items/[{first}-{last}]"));
    let output = curl.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start curl: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("items {first} to {last}: {}", said.trim()));
    }
    let expected: String = (first..=last).map(item).collect();
    if output.stdout != expected.as_bytes() {
        return Err(format!(
            "items {first} to {last}: other bytes than asked for"
        ));
    }
    Ok(())
}

/// An item as `app.sql` makes it.
fn item(number: usize) -> String {
    format!("item {number}\n{}", "0123456789abcdef".repeat(number))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}
