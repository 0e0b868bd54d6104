//! Finding a work queue that this process may use, and trying it before it is trusted.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Dsa;
use super::portal::{Mapped, Mode, Written};
use crate::{Channel, Operation, Recovery, Status, Waiting};

/// A work queue for user space, as described by sysfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// `wq0.0`.
    pub name: String,
    /// Shared with other processes.
    pub is_shared: bool,
    /// Descriptors it holds.
    pub size: usize,
    /// Bytes a descriptor may move.
    pub transfer_max: usize,
}

/// Looks for queues below `sys` (`/sys/bus/dsa/devices`). For every entry that is a queue: the
/// queue, or a sentence why it cannot be used.
///
/// # Errors
///
/// One sentence, when there is no such folder.
pub fn probe(sys: &Path) -> Result<Vec<Result<Found, String>>, String> {
    let entries = fs::read_dir(sys).map_err(|_| {
        "this kernel knows no DSA device (the idxd driver is not loaded)".to_owned()
    })?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("wq"))
        .collect();
    names.sort();
    Ok(names.into_iter().map(|name| look_at(sys, name)).collect())
}

fn look_at(sys: &Path, name: String) -> Result<Found, String> {
    let field = |file: &str| read_line(&sys.join(&name).join(file)).unwrap_or_default();
    let (state, kind) = (field("state"), field("type"));
    if kind != "user" {
        return Err(format!("{name} is for `{kind}`, not for user space"));
    }
    if state != "enabled" {
        return Err(format!("{name} is {state}"));
    }
    let number = |file: &str, least: usize, otherwise: usize| {
        field(file)
            .parse()
            .ok()
            .filter(|&n| n >= least)
            .unwrap_or(otherwise)
    };
    Ok(Found {
        is_shared: field("mode") == "shared",
        size: number("size", 1, 1),
        transfer_max: number("max_transfer_size", 4096, 4096),
        name,
    })
}

fn read_line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

pub(super) fn open(entries: usize) -> Result<(Dsa, String), String> {
    let sys = Path::new("/sys/bus/dsa/devices");
    let mut reasons = Vec::new();
    for found in probe(sys)? {
        match found.and_then(|queue| open_queue(&queue, entries, sys)) {
            Ok(opened) => return Ok(opened),
            Err(why) => reasons.push(why),
        }
    }
    if reasons.is_empty() {
        return Err("no DSA work queue is configured (accel-config enables one)".to_owned());
    }
    Err(reasons.join("; "))
}

fn open_queue(queue: &Found, entries: usize, sys: &Path) -> Result<(Dsa, String), String> {
    let name = &queue.name;
    let device = PathBuf::from("/dev/dsa").join(name);
    let open_device =
        || -> io::Result<File> { OpenOptions::new().read(true).write(true).open(&device) };
    let state = sys.join(name).join("state");
    let sentence = |error: io::Error| format!("{} cannot be opened: {error}", device.display());
    let mode = if queue.is_shared {
        Mode::Shared
    } else {
        Mode::Dedicated
    };
    let entries = entries.min(queue.size);
    let mapped = Mapped::new(open_device().map_err(sentence)?, mode, state.clone());
    let (dsa, how) = match mapped {
        Ok(portal) => (
            Dsa::new(portal, entries, queue.transfer_max),
            "its portal mapped".to_owned(),
        ),
        Err(why) => {
            let portal = Written::new(open_device().map_err(sentence)?, state);
            (
                Dsa::new(portal, entries, queue.transfer_max),
                format!("by write(), as {why}"),
            )
        }
    };
    let dsa = dsa.map_err(|error| format!("no memory for {name}: {error}"))?;
    try_out(dsa, name).map(|dsa| (dsa, format!("{name}, {how}")))
}

/// Lets the device copy a line, as a trial.
fn try_out(dsa: Dsa, name: &str) -> Result<Dsa, String> {
    let mut channel = Channel::new(dsa, 2);
    channel.set_recovery(Recovery::Report);
    // Fork can copy neither: this function is where they live.
    let (source, mut target) = ([0x5au8; 64], [0u8; 64]);
    let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), 64);
    // SAFETY: both live until the wait is over, or for good: see below.
    let submitted = unsafe { channel.submit(operation) };
    let refused = || format!("{name} takes no work");
    let cookie = submitted.map_err(|_| refused())?;
    let waiting = Waiting::YIELD.until(Instant::now() + TIME_LIMIT);
    match channel.wait(cookie, waiting) {
        Ok(Status::Done { .. }) if channel.counters().refused == 0 && target == source => {}
        Ok(_) => return Err(refused()),
        // A silent device might still write the target. Only closing its queue prevents that;
        // dropping the portal closes it.
        Err(_) => {
            drop(channel.into_backend());
            return Err(format!("{name} does not answer"));
        }
    }
    let backend: Box<dyn std::any::Any> = channel.into_backend();
    match backend.downcast::<Dsa>() {
        Ok(dsa) => Ok(*dsa),
        Err(_) => unreachable!("the channel was given a Dsa"),
    }
}

/// A line takes a microsecond.
const TIME_LIMIT: Duration = Duration::from_millis(10);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn machine(queues: &[(&str, &[(&str, &str)])]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (queue, files) in queues {
            let queue = sys.path().join(queue);
            fs::create_dir(&queue).unwrap();
            for (file, text) in *files {
                fs::write(queue.join(file), format!("{text}\n")).unwrap();
            }
        }
        sys
    }

    #[test]
    fn every_queue_is_found_or_explained() {
        let sys = machine(&[
            ("dsa0", &[]),
            ("wq0.0", &[("type", "kernel"), ("state", "enabled")]),
            ("wq0.1", &[("type", "user"), ("state", "disabled")]),
            (
                "wq0.2",
                &[
                    ("type", "user"),
                    ("state", "enabled"),
                    ("mode", "shared"),
                    ("size", "16"),
                    ("max_transfer_size", "2097152"),
                ],
            ),
            (
                "wq0.3",
                &[("type", "user"), ("state", "enabled"), ("size", "junk")],
            ),
        ]);
        let found = probe(sys.path()).unwrap();
        let queue = |name: &str, is_shared, size, transfer_max| {
            Ok(Found {
                name: name.to_owned(),
                is_shared,
                size,
                transfer_max,
            })
        };
        assert_eq!(
            found,
            [
                Err("wq0.0 is for `kernel`, not for user space".to_owned()),
                Err("wq0.1 is disabled".to_owned()),
                queue("wq0.2", true, 16, 2 << 20),
                queue("wq0.3", false, 1, 4096),
            ]
        );
    }

    #[test]
    fn a_machine_without_the_driver_is_one_sentence() {
        let why = probe(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(
            why,
            "this kernel knows no DSA device (the idxd driver is not loaded)"
        );
    }
}
