//! Options that several subcommands share.

use clap::ValueEnum;
use serde::Serialize;
use toehold_measure::cpus::Pin;

/// The path that a connection's bytes may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PathChoice {
    /// The best path each connection can have: the engine where a rule of the adapter's says so,
    /// shared memory on this host, else the kernel
    Auto,
    /// Kernel TCP only: the program runs without the library
    Host,
    /// Shared memory to programs on this host, kernel TCP to all others
    Direct,
    /// The adapter's own TCP engine for network connections
    Offload,
}

impl PathChoice {
    /// The word for the option and for `TOEHOLD_PATH`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            PathChoice::Auto => "auto",
            PathChoice::Host => "host",
            PathChoice::Direct => "direct",
            PathChoice::Offload => "offload",
        }
    }
}

/// Whether short connections may use parked carriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExpressChoice {
    /// Each connection has a TCP connection of its own
    Off,
    /// TCP connections to programs on this host are used again
    On,
    /// As on, and every new connection is to become such a carrier: for tests
    #[value(hide = true)]
    Always,
}

impl ExpressChoice {
    /// The word for the option and for `TOEHOLD_EXPRESS`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ExpressChoice::Off => "off",
            ExpressChoice::On => "on",
            ExpressChoice::Always => "always",
        }
    }
}

/// Whether programs that make system calls themselves are patched.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PatchChoice {
    /// When such a program starts
    On,
    /// They run on the kernel
    Off,
}

/// Which adapter a program uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdapterChoice {
    /// The system adapter where one answers, else the user's own
    #[default]
    Auto,
    /// The user's own; `run` starts it when none runs
    User,
    /// The system adapter (`toehold adapter --system`), which serves all users
    System,
}

/// How a program waits for bytes that have not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WaitChoice {
    /// Spin while spinning has recently paid and a core is free, else sleep
    Adaptive,
    /// Spin always: lowest latency, one busy core for each waiting thread
    Poll,
    /// Sleep always: lowest CPU time
    Event,
}

impl WaitChoice {
    /// The word for the option and for `TOEHOLD_WAIT`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            WaitChoice::Adaptive => "adaptive",
            WaitChoice::Poll => "poll",
            WaitChoice::Event => "event",
        }
    }
}

/// The cores of the two sides of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PinChoice {
    /// Both on one core.
    Same,
    /// The server on the first half of the cores, the client on the other half.
    Split,
    /// Wherever the scheduler puts them.
    None,
}

impl PinChoice {
    /// The choice as a type of the measuring core.
    pub(crate) fn pin(self) -> Pin {
        match self {
            PinChoice::Same => Pin::Same,
            PinChoice::Split => Pin::Split,
            PinChoice::None => Pin::None,
        }
    }
}
