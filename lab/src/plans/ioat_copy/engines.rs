//! The engines this experiment compares.

use toehold_copy::{Calibration, Channel};

/// An engine under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Engine {
    /// `memcpy`, called directly.
    Cpu,
    /// Non-temporal stores, called directly.
    CpuNt,
    /// The worker thread.
    Worker,
    /// The automatic choice.
    Auto,
    /// A DPDK device.
    Dmadev,
    /// Intel's Data Streaming Accelerator.
    Dsa,
}

impl Engine {
    /// Engines whose copy is complete when the call returns.
    pub(super) const SYNCHRONOUS: [Engine; 2] = [Engine::Cpu, Engine::CpuNt];

    /// Engines that copy while the caller continues.
    const ASYNCHRONOUS: [Engine; 4] = [Engine::Worker, Engine::Auto, Engine::Dmadev, Engine::Dsa];

    /// The automatic choice, and the engines with which it is compared.
    pub(super) const IN_CONTESTS: [Engine; 4] =
        [Engine::Cpu, Engine::CpuNt, Engine::Worker, Engine::Auto];

    /// The asynchronous engines that are available here.
    pub(super) fn available() -> Vec<Engine> {
        let known = toehold_copy::names();
        let is_here = |engine: &Engine| {
            known.contains(&engine.name()) && toehold_copy::reason_missing(engine.name()).is_none()
        };
        Self::ASYNCHRONOUS.into_iter().filter(is_here).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::Cpu => "cpu",
            Engine::CpuNt => "cpu-nt",
            Engine::Worker => "worker",
            Engine::Auto => "auto",
            Engine::Dmadev => "dmadev",
            Engine::Dsa => "dsa",
        }
    }

    pub(super) fn named(name: &str) -> Result<Engine, String> {
        let all = Self::SYNCHRONOUS.into_iter().chain(Self::ASYNCHRONOUS);
        all.into_iter()
            .find(|engine| engine.name() == name)
            .ok_or(format!("no engine `{name}`"))
    }

    pub(super) fn open(self) -> Result<Channel, String> {
        let opened = toehold_copy::open(Some(self.name()), ENTRIES);
        if opened.channel.backend_name() == self.name() {
            return Ok(opened.channel);
        }
        Err(opened.notes.join("; "))
    }
}

/// One sentence for each engine that is not available here.
pub(super) fn missing() -> Vec<String> {
    let mut notes: Vec<String> = Engine::ASYNCHRONOUS
        .into_iter()
        .filter_map(|engine| {
            let why = toehold_copy::reason_missing(engine.name())?;
            Some(format!("{} is not measured: {why}", engine.name()))
        })
        .collect();
    let (calibration, _) = Calibration::of_this_machine();
    if calibration.copybreak_out.awake == usize::MAX {
        notes.push("auto does not use the worker here: the calibration found no gain".to_owned());
    }
    notes
}

/// More than the largest batch.
pub(super) const ENTRIES: usize = 128;
