//! A sample of many connections that measures the memory of each process.
//!
//! The clients wait at a gate twice. The first time all connections are open and have been used:
//! then the load begins on all clients at once. The second time the load is over and all
//! connections are still open: their memory is measured, and the adapter is asked how many are in
//! shared memory. Both take a while, in which no operation is measured.
//!
//! A process has a limit of descriptors. A load above this limit is shared by several clients, each
//! with its own server.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use toehold_measure::process::{self, Program};
use toehold_measure::procfs::{self, Process, ProcessMemory, Snapshot};
use toehold_measure::ready::Ready;

use super::super::arm::Arm;
use super::Scene;
use super::sample::{CLIENT_TIMEOUT, Job, READY_TIMEOUT, load_words, server_path};
use crate::generator::{
    DESCRIPTORS_SPARE, Gate, Load, Outcome, PRIOR_TIMEOUT, Pattern, Standing, TierCost,
};

/// The processes of a sample, by role.
struct Cast<'a> {
    clients: Vec<Program>,
    servers: Vec<Program>,
    /// The processes of an accelerated arm.
    adapter: Option<&'a Program>,
}

impl Cast<'_> {
    /// The existing processes of each role, and the role's name.
    fn families(&self) -> Vec<(&'static str, Vec<Process>)> {
        let all = procfs::processes();
        let of = |programs: &[Program]| {
            let each = programs.iter();
            each.flat_map(|program| procfs::family(&all, program.pid()))
                .collect()
        };
        let mut families = vec![("client", of(&self.clients)), ("server", of(&self.servers))];
        let adapter = self.adapter.map(|program| program.pid());
        families.extend(adapter.map(|pid| ("adapter", procfs::family(&all, pid))));
        families
    }
}

impl Job<'_> {
    /// The reason why the load is not possible here: its connections need more descriptors than its
    /// processes have.
    pub(super) fn beyond_descriptors(&self, limit: usize) -> Option<String> {
        if self.load.pattern != Pattern::Requests || self.application.is_some() {
            return None;
        }
        let most = if self.has_processes { CLIENTS_MAX } else { 1 };
        if clients_of(&self.load, limit) <= most {
            return None;
        }
        let needed = self.load.streams.div_ceil(most) + DESCRIPTORS_SPARE;
        Some(format!(
            "it needs {needed} descriptors in a process, and {limit} are allowed here (ulimit -Hn)"
        ))
    }
}

impl Scene {
    /// One sample.
    pub(super) fn sample_with_processes(&self, job: &Job<'_>) -> Result<Outcome, String> {
        let path = self.scratch.path().join("gate");
        let _ = fs::remove_file(&path);
        let gate = UnixListener::bind(&path)
            .and_then(|gate| gate.set_nonblocking(true).map(|()| gate))
            .map_err(|error| format!("no gate for the clients: {error}"))?;
        let loads = shares(&job.load, clients_of(&job.load, self.descriptors));
        let adapter = job.arm.is_accelerated().then(|| self.adapters.first());
        let mut cast = Cast {
            clients: Vec::new(),
            servers: Vec::new(),
            adapter: adapter.flatten(),
        };
        let mut addresses = Vec::new();
        for (at, load) in loads.iter().enumerate() {
            addresses.push(self.start_server(job.arm, load, at, &mut cast)?);
        }
        let available = procfs::memory_available();
        for (at, load) in loads.iter().enumerate() {
            let load = Load {
                gate: Some(Gate(path.clone())),
                ..load.clone()
            };
            let mut words = self.under(job.arm, job.arm.path, None);
            words.extend(self.words(&["lab", "client", &addresses[at], "--json"]));
            words.extend(load_words(&load));
            let role = format!("client{at}");
            let client = self.start(&role, &words, self.placement.client.as_deref())?;
            cast.clients.push(client);
        }

        let waiting = wait_at(&gate, &mut cast, PRIOR_TIMEOUT + CLIENT_TIMEOUT)?;
        let length = |seconds| Duration::from_secs_f64(seconds);
        drop(waiting);
        thread::sleep(length(job.load.warmup));
        let begun = Instant::now();
        let snapshots = |cast: &Cast<'_>| -> Vec<Snapshot> {
            let families = cast.families();
            families
                .iter()
                .map(|(_, family)| Snapshot::of(family))
                .collect()
        };
        let before = snapshots(&cast);
        thread::sleep(length(job.load.seconds));
        let after = snapshots(&cast);
        let elapsed = begun.elapsed().as_secs_f64();

        let waiting = wait_at(&gate, &mut cast, CLIENT_TIMEOUT)?;
        let memory = available.zip(procfs::memory_available());
        let families = cast.families();
        let costs = families.iter().zip(before.iter().zip(&after));
        let tiers = costs.map(|((name, family), (before, after))| TierCost {
            name: (*name).to_owned(),
            cores: after.since(before).cpu() / elapsed,
            memory: ProcessMemory::of(family),
        });
        let tiers = tiers.collect();
        let standing = Standing {
            clients: cast.clients.len(),
            socket_buffers: procfs::socket_buffers(),
            // Last, because the adapter's answer takes memory.
            direct: match cast.adapter {
                Some(_) => self.connections_moved(job.arm) / 2,
                None => 0,
            },
        };
        drop(waiting);

        let deadline = Instant::now() + CLIENT_TIMEOUT;
        let mut outcomes: Vec<Outcome> = Vec::new();
        for client in &mut cast.clients {
            let ended = client.wait_until(deadline);
            let ended = ended.ok_or("the client did not end in time")?;
            if !ended.succeeded() {
                let said = client.last_words();
                return Err(format!("the client {}: {said}", ended.words()));
            }
            let outcome = serde_json::from_str(&client.output())
                .map_err(|error| format!("the client's outcome cannot be read: {error}"))?;
            outcomes.push(outcome);
        }
        for server in &mut cast.servers {
            server.stop();
        }
        let mut outcome = Outcome::of_all(&outcomes, &job.load).ok_or("there was no client")?;
        outcome.memory = memory.map(|(before, after)| before.cast_signed() - after.cast_signed());
        outcome.tiers = tiers;
        outcome.standing = Some(standing);
        Ok(outcome)
    }

    /// Starts a server for a client with this load, and waits until it listens. Returns its
    /// addresses.
    fn start_server(
        &self,
        arm: &Arm,
        load: &Load,
        at: usize,
        cast: &mut Cast<'_>,
    ) -> Result<String, String> {
        let ports = free_ports(load.streams.div_ceil(PER_PORT))
            .map_err(|error| format!("no free port: {error}"))?;
        let addresses: Vec<String> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let addresses = addresses.join(",");
        let mut words = self.under(arm, server_path(arm), None);
        words.extend(self.words(&["lab", "server", "--listen", &addresses]));
        let role = format!("server{at}");
        let mut server = self.start(&role, &words, self.placement.server.as_deref())?;
        // It listens on its addresses in this order.
        for port in ports.iter().rev() {
            Ready::TcpPort(*port).wait(&mut server, READY_TIMEOUT)?;
        }
        cast.servers.push(server);
        Ok(addresses)
    }
}

/// The clients that a load needs where a process may have `limit` descriptors.
fn clients_of(load: &Load, limit: usize) -> usize {
    let each = limit.saturating_sub(DESCRIPTORS_SPARE).max(1);
    load.streams.div_ceil(each)
}

/// Divides the load among `clients` clients.
fn shares(load: &Load, clients: usize) -> Vec<Load> {
    let share = |all: usize, at: usize| all / clients + usize::from(at < all % clients);
    let each = (0..clients).map(|at| Load {
        streams: share(load.streams, at),
        active: load.active.map(|active| share(active, at).max(1)),
        rate: load.rate.map(|rate| rate / clients as f64),
        ..load.clone()
    });
    each.collect()
}

/// Ports on which no program listens now.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All ports are held until enough different ones were found.
    let held = (0..count).map(|_| TcpListener::bind("127.0.0.1:0"));
    let held = held.collect::<io::Result<Vec<TcpListener>>>()?;
    let ports = held
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()));
    ports.collect()
}

/// Waits until every client is at the gate. The clients go on when the result is dropped.
fn wait_at(
    gate: &UnixListener,
    cast: &mut Cast<'_>,
    timeout: Duration,
) -> Result<Vec<UnixStream>, String> {
    let deadline = Instant::now() + timeout;
    let mut waiting = Vec::new();
    while waiting.len() < cast.clients.len() {
        match gate.accept() {
            Ok((client, _)) => waiting.push(client),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(LOOK_INTERVAL);
            }
            Err(error) => return Err(format!("the gate for the clients failed: {error}")),
        }
        let programs = [("client", &mut cast.clients), ("server", &mut cast.servers)];
        for (role, programs) in programs {
            for program in programs {
                if let Some(ended) = program.poll() {
                    let said = program.last_words();
                    return Err(format!("the {role} {}: {said}", ended.words()));
                }
            }
        }
        if process::interrupted() || Instant::now() > deadline {
            return Err("the clients did not come so far in time".to_owned());
        }
    }
    Ok(waiting)
}

/// Most clients of a sample.
const CLIENTS_MAX: usize = 4;
/// The most connections to each port of a server. `connect` takes every second source port of the
/// usual range, 14,116 for each address and port, and then needs a long search for one of the
/// others.
const PER_PORT: usize = 10_000;
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_beyond_the_descriptors_of_a_process_is_shared() {
        let load = Load {
            pattern: Pattern::Requests,
            streams: 50_000,
            active: Some(16),
            rate: Some(900.0),
            ..Load::default()
        };
        assert_eq!(clients_of(&load, 50_064), 1);
        assert_eq!(clients_of(&load, 20_000), 3);
        let loads = shares(&load, 3);
        let streams: Vec<usize> = loads.iter().map(|load| load.streams).collect();
        assert_eq!(streams, [16_667, 16_667, 16_666]);
        let active: Vec<Option<usize>> = loads.iter().map(|load| load.active).collect();
        assert_eq!(active, [Some(6), Some(5), Some(5)]);
        assert_eq!(loads[2].rate, Some(300.0));
        for load in &loads {
            assert_eq!(load.check(), Ok(()));
        }
        assert_eq!(shares(&load, 1), [load]);
    }
}
