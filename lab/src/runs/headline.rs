//! The numbers of an outcome that figures show.

use serde::{Deserialize, Serialize};
use toehold_measure::metric::Better;

use crate::generator::{Latency, Outcome};

/// A number of an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Headline {
    /// The median latency.
    LatencyP50,
    /// The latency that 99 % of the samples do not exceed.
    LatencyP99,
    /// The latency that 99.9 % of the samples do not exceed.
    LatencyP999,
    /// Gbit/s.
    Throughput,
    /// Messages, requests or connections in a second.
    Rate,
    /// CPU time of all cores for each operation.
    CpuPerOperation,
    /// CPU time of all cores for each gigabyte.
    CpuPerGigabyte,
    /// The host's memory that its connections have brought into use, for each of them.
    MemoryPerConnection,
    /// Memory of client, server and adapter, with their page tables.
    MemoryOfProcesses,
}

impl Headline {
    /// Every metric.
    pub const ALL: [Headline; 9] = [
        Headline::LatencyP50,
        Headline::LatencyP99,
        Headline::LatencyP999,
        Headline::Throughput,
        Headline::Rate,
        Headline::CpuPerOperation,
        Headline::CpuPerGigabyte,
        Headline::MemoryPerConnection,
        Headline::MemoryOfProcesses,
    ];

    /// Its name and unit.
    pub fn label(self) -> &'static str {
        match self {
            Headline::LatencyP50 => "latency p50, us",
            Headline::LatencyP99 => "latency p99, us",
            Headline::LatencyP999 => "latency p99.9, us",
            Headline::Throughput => "throughput, Gbit/s",
            Headline::Rate => "operations/s",
            Headline::CpuPerOperation => "CPU of all cores, us/operation",
            Headline::CpuPerGigabyte => "CPU of all cores, s/GB",
            Headline::MemoryPerConnection => "memory of the host, KB/connection",
            Headline::MemoryOfProcesses => "memory of all processes, MB",
        }
    }

    /// The part of a sample's operations that lie beyond a percentile near the end.
    pub fn tail(self) -> Option<f64> {
        match self {
            Headline::LatencyP99 => Some(0.01),
            Headline::LatencyP999 => Some(0.001),
            _ => None,
        }
    }

    /// Which direction is an improvement.
    pub fn better(self) -> Better {
        match self {
            Headline::Throughput | Headline::Rate => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// Its value, if the outcome has one.
    pub fn of(self, outcome: &Outcome) -> Option<f64> {
        let latency = |get: fn(&Latency) -> u64| Some(get(outcome.latency.as_ref()?) as f64 / 1e3);
        let value = match self {
            Headline::LatencyP50 => latency(|latency| latency.p50)?,
            Headline::LatencyP99 => latency(|latency| latency.p99)?,
            Headline::LatencyP999 => latency(|latency| latency.p99_9)?,
            Headline::Throughput => outcome.bytes as f64 * 8e-9 / outcome.seconds,
            Headline::Rate => outcome.operations as f64 / outcome.seconds,
            Headline::CpuPerOperation => outcome.cpu_all? * 1e6 / outcome.operations as f64,
            Headline::CpuPerGigabyte => outcome.cpu_all? * 1e9 / outcome.bytes as f64,
            // With few connections, their memory is lost among pages that come and go for other
            // reasons.
            Headline::MemoryPerConnection if outcome.load.streams < COUNTABLE => return None,
            Headline::MemoryPerConnection => {
                outcome.memory? as f64 / 1024.0 / outcome.load.streams as f64
            }
            Headline::MemoryOfProcesses => {
                let tiers = outcome.tiers.iter();
                let each: Option<Vec<u64>> = tiers
                    .map(|tier| Some(tier.memory?.proportional + tier.memory?.page_tables))
                    .collect();
                let sum: u64 = each.filter(|each| !each.is_empty())?.iter().sum();
                sum as f64 / f64::from(1 << 20)
            }
        };
        value.is_finite().then_some(value)
    }
}

/// The number of connections from which their memory is reported: with 10 KB each, this many use a
/// megabyte.
const COUNTABLE: usize = 100;
