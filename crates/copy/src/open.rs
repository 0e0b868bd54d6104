//! Chooses an engine by name. The processor is the fallback, which always works.

use crate::dsa::Dsa;
use crate::{Auto, Calibration, Channel, Cpu, CpuNt, Worker, WorkerOptions};

/// An opened channel, with notes about the choice of its engine.
pub struct Opened {
    /// The channel. It works in any case.
    pub channel: Channel,
    /// One sentence for each wish that could not be met, and how a device was reached.
    pub notes: Vec<String>,
}

/// Opens a channel to the engine of this name, or to the engine that `TOEHOLD_COPY_ENGINE` names,
/// or to `auto`. If that engine is not available, a note says why, and the processor does the work.
///
/// ```
/// let opened = toehold_copy::open(Some("warp-drive"), 64);
/// assert_eq!(opened.channel.backend_name(), "cpu");
/// assert!(opened.notes[0].contains("warp-drive"));
/// ```
pub fn open(name: Option<&str>, entries: usize) -> Opened {
    let environment = std::env::var_os("TOEHOLD_COPY_ENGINE");
    let environment = environment.as_ref().map(|value| value.to_string_lossy());
    let name = name.or(environment.as_deref()).unwrap_or("auto");
    let mut notes = Vec::new();
    let channel = match open_named(name, entries, &mut notes) {
        Ok(channel) => channel,
        Err(why) => {
            notes.push(format!("{why}; the processor copies instead"));
            Channel::new(Cpu::new(), entries)
        }
    };
    Opened { channel, notes }
}

fn open_named(name: &str, entries: usize, notes: &mut Vec<String>) -> Result<Channel, String> {
    let worker = || {
        Worker::start(WorkerOptions {
            entries,
            ..WorkerOptions::default()
        })
        .map_err(|error| format!("the copy worker could not be started: {error}"))
    };
    match name {
        "cpu" => Ok(Channel::new(Cpu::new(), entries)),
        "cpu-nt" => {
            Calibration::install_remembered();
            Ok(Channel::new(CpuNt::new(), entries))
        }
        "worker" => {
            Calibration::install_remembered();
            Ok(Channel::new(worker()?, entries))
        }
        "auto" => {
            let (calibration, mut found) = Calibration::of_this_machine();
            notes.append(&mut found);
            let pays = calibration
                .copybreak_in
                .awake
                .min(calibration.copybreak_out.awake);
            let worker = match (pays != usize::MAX).then(worker) {
                None => None,
                Some(Ok(worker)) => Some(worker),
                Some(Err(why)) => {
                    notes.push(format!("{why}; every copy is made by hand"));
                    None
                }
            };
            Ok(Channel::new(Auto::new(&calibration, worker), entries))
        }
        "dsa" => {
            let (dsa, how) = Dsa::open(entries)?;
            notes.push(format!("the DSA engine is {how}"));
            Ok(Channel::new(dsa, entries))
        }
        #[cfg(feature = "dmadev")]
        "dmadev" => Ok(Channel::new(crate::Dmadev::open(entries)?, entries)),
        _ => Err(format!(
            "there is no copy engine `{name}` (there are {})",
            names().join(", ")
        )),
    }
}

/// The names [`open`] knows.
pub fn names() -> Vec<&'static str> {
    vec![
        "auto",
        "cpu",
        "cpu-nt",
        "worker",
        "dsa",
        #[cfg(feature = "dmadev")]
        "dmadev",
    ]
}

/// An engine, and whether it is available here.
pub(crate) struct Engine {
    pub(crate) name: &'static str,
    /// A description of the engine.
    pub(crate) about: String,
    /// The reason why the engine is not available here; `None` if it is.
    pub(crate) missing: Option<String>,
}

/// Every engine, and whether it is available here.
pub(crate) fn list_engines() -> Vec<Engine> {
    let engine = |name, about: &str| Engine {
        name,
        about: about.to_owned(),
        missing: None,
    };
    vec![
        engine("auto", "chooses between the others, by length"),
        engine("cpu", "memcpy, always there"),
        engine("cpu-nt", nontemporal_about()),
        engine("worker", "a thread of its own"),
        dsa_engine(),
        #[cfg(feature = "dmadev")]
        engine("dmadev", "a DMA device by way of DPDK"),
    ]
}

fn dsa_engine() -> Engine {
    let about = "Intel's Data Streaming Accelerator";
    match Dsa::open(1) {
        Ok((_, how)) => Engine {
            name: "dsa",
            about: format!("{about}: {how}"),
            missing: None,
        },
        Err(why) => Engine {
            name: "dsa",
            about: about.to_owned(),
            missing: Some(why),
        },
    }
}

fn nontemporal_about() -> &'static str {
    if cfg!(target_arch = "x86_64") {
        "non-temporal stores"
    } else {
        "as cpu on this architecture"
    }
}

/// The reason why the engine of this name is not available here; `None` if it is.
pub fn reason_missing(name: &str) -> Option<String> {
    match list_engines()
        .into_iter()
        .find(|engine| engine.name == name)
    {
        Some(engine) => engine.missing,
        None => Some(format!("this build has no engine `{name}`")),
    }
}
