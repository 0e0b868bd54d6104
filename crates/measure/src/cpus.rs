//! The cores on which the server and the client run.

use std::mem;

use serde::Serialize;

/// The cores of the two sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pin {
    /// Both on one core.
    Same,
    /// The server on the first half of the cores, the client on the other half.
    Split,
    /// Any core: the scheduler decides.
    None,
}

/// The cores of each side; `None` leaves a side to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The server's cores.
    pub server: Option<Vec<usize>>,
    /// The client's cores.
    pub client: Option<Vec<usize>>,
}

impl Placement {
    /// Divides `allowed` by `pin`; `None` when there are too few cores.
    pub fn new(pin: Pin, allowed: &[usize]) -> Option<Placement> {
        match pin {
            Pin::None => Some(Placement::default()),
            Pin::Same => {
                // Interrupts tend to arrive on the first core; the last one is quieter.
                let core = vec![*allowed.last()?];
                Some(Placement {
                    server: Some(core.clone()),
                    client: Some(core),
                })
            }
            Pin::Split if allowed.len() < 2 => None,
            Pin::Split => {
                let (server, client) = allowed.split_at(allowed.len() / 2);
                Some(Placement {
                    server: Some(server.to_vec()),
                    client: Some(client.to_vec()),
                })
            }
        }
    }
}

/// The cores this process may run on.
pub fn allowed() -> Vec<usize> {
    let mut set = empty_set();
    // SAFETY: `set` is a valid, writable cpu_set_t and its size is given.
    let result = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) };
    if result != 0 {
        return vec![0];
    }
    // SAFETY: every index is below CPU_SETSIZE, the number of bits of `set`.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|core| unsafe { libc::CPU_ISSET(*core, &set) })
        .collect()
}

/// A list of cores in the kernel's form.
pub fn set_of(cores: &[usize]) -> libc::cpu_set_t {
    let mut set = empty_set();
    for core in cores
        .iter()
        .filter(|core| **core < libc::CPU_SETSIZE as usize)
    {
        // SAFETY: the index was checked against CPU_SETSIZE, the number of bits of `set`.
        unsafe { libc::CPU_SET(*core, &mut set) };
    }
    set
}

/// Keeps the calling thread on some cores until this value is dropped.
#[derive(Debug)]
pub struct Kept {
    before: Vec<usize>,
}

impl Kept {
    /// Confines the calling thread; if the kernel refuses, nothing changes.
    pub fn on(cores: &[usize]) -> Kept {
        let before = allowed();
        confine(cores);
        Kept { before }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        confine(&self.before);
    }
}

fn confine(cores: &[usize]) {
    let set = set_of(cores);
    // SAFETY: `set` is a complete cpu_set_t and its size is given; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) };
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: cpu_set_t is an array of integers, for which all zeros is the empty set.
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_share_one_core() {
        let placement = Placement::new(Pin::Same, &[0, 1]).expect("two cores");
        assert_eq!(placement.server, Some(vec![1]));
        assert_eq!(placement.client, placement.server);
    }

    #[test]
    fn sides_do_not_overlap_when_split() {
        let placement = Placement::new(Pin::Split, &[0, 2, 4]).expect("three cores");
        assert_eq!(placement.server, Some(vec![0]));
        assert_eq!(placement.client, Some(vec![2, 4]));
        assert_eq!(Placement::new(Pin::Split, &[3]), None);
    }

    #[test]
    fn a_thread_is_kept_and_let_go() {
        let before = allowed();
        let kept = Kept::on(&before[..1]);
        assert_eq!(allowed(), before[..1]);
        drop(kept);
        assert_eq!(allowed(), before);
    }

    #[test]
    fn this_process_runs_somewhere() {
        assert!(!allowed().is_empty());
    }
}
