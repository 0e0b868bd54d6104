//! Which processes of systemd's services have the library.

use crate::proc::mappings::Mappings;
use crate::proc::{self, Environment};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A process of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Whether it has the library.
    pub has_library: bool,
    /// Whether the environment that it was started with names libraries to load first. A program
    /// may have written over it since.
    pub has_preload: bool,
    /// When it was started, to a hundredth of a second.
    pub started: Option<SystemTime>,
}

/// The processes that we may inspect, by unit of the service manager.
pub fn processes_by_unit() -> BTreeMap<String, Vec<Process>> {
    let mut units: BTreeMap<String, Vec<Process>> = BTreeMap::new();
    for pid in proc::processes() {
        if let Some((unit, mappings)) = proc::unit(pid).zip(Mappings::of(pid)) {
            units.entry(unit).or_default().push(Process {
                pid,
                has_library: mappings.have_library(),
                has_preload: Environment::of(pid).get("LD_PRELOAD").is_some(),
                started: proc::started(pid),
            });
        }
    }
    units
}
