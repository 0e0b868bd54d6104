//! The copy engine that the settings name.

use std::str::FromStr;

/// The copy engine that brings payload to the programs' rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyEngine {
    /// The engine's thread, before it takes the next frame.
    #[default]
    Off,
    /// A thread of its own.
    Worker,
    /// Intel's Data Streaming Accelerator.
    Dsa,
    /// A DMA device, by way of DPDK.
    Dmadev,
}

impl CopyEngine {
    const ALL: [CopyEngine; 4] = [
        CopyEngine::Off,
        CopyEngine::Worker,
        CopyEngine::Dsa,
        CopyEngine::Dmadev,
    ];

    /// As the settings spell it, and the copy crate.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CopyEngine::Off => "off",
            CopyEngine::Worker => "worker",
            CopyEngine::Dsa => "dsa",
            CopyEngine::Dmadev => "dmadev",
        }
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_on(self) -> bool {
        self != CopyEngine::Off
    }

    /// The reason why the copy engine is not available here; `None` if it is.
    pub(in crate::engine) fn missing(self) -> Option<String> {
        let why = self
            .is_on()
            .then(|| toehold_copy::reason_missing(self.name()))??;
        Some(format!("no copy engine `{}`: {why}", self.name()))
    }
}

impl FromStr for CopyEngine {
    type Err = String;

    fn from_str(value: &str) -> Result<CopyEngine, String> {
        let mut all = CopyEngine::ALL.into_iter();
        let names = || CopyEngine::ALL.map(CopyEngine::name).join(", ");
        all.find(|one| one.name() == value)
            .ok_or_else(|| format!("`{value}` is not a copy engine: {}", names()))
    }
}
