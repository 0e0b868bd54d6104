//! The cost of copying on this machine, and the size from which the engine pays.
//!
//! A copy engine has a start-up cost and a memcpy has none. So there is a length below which the
//! engine is a loss: the *copybreak*. In ten years one driver's copybreak moved from 4 KB to 256
//! KB. Therefore it is measured, in under 50 ms, and remembered per machine.
//!
//! - *Per direction.* The submitting processor reads bytes that come [`In`](Direction::In) next;
//!   after an engine's copy it has to fetch them from elsewhere. Another processor or a device
//!   reads bytes that go [`Out`](Direction::Out).
//! - *With hysteresis.* Waking a sleeping engine costs a system call. So the copybreak of a
//!   sleeping engine is greater than that of an awake engine: [`Copybreak::asleep`] and
//!   [`Copybreak::awake`].
//! - *By temperature.* Copying memory in the caller's cache is fast by hand and slow by a helper,
//!   which has to fetch the bytes from that cache. So there is a range of lengths in which the
//!   engine pays only for cold memory.
//!
//! The calibration does not compare times of bare copies. It times the real case: a copy together
//! with work that takes as long as a cold `memcpy`, by hand and by the engine, in turns.

mod choose;
mod measure;
mod report;
mod store;

use std::fmt;
use std::time::Duration;

pub use report::calibration_report;

/// The direction of the bytes, seen from the submitting processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The submitter reads them next.
    In,
    /// Another processor or a device reads them.
    Out,
}

/// The lengths in bytes from which on the engine costs its caller less than a copy by hand.
/// `usize::MAX` is never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copybreak {
    /// While the engine is awake, for memory that is in no cache.
    pub awake: usize,
    /// While the engine is awake, for all memory: from here on the memory's temperature is not
    /// measured. At least `awake`.
    pub hot: usize,
    /// When the engine has to be woken. At least `awake`.
    pub asleep: usize,
}

impl Copybreak {
    /// The engine is never worth it.
    pub const NEVER: Copybreak = Copybreak {
        awake: usize::MAX,
        hot: usize::MAX,
        asleep: usize::MAX,
    };

    /// One length for all cases.
    pub const fn fixed(bytes: usize) -> Copybreak {
        Copybreak {
            awake: bytes,
            hot: bytes,
            asleep: bytes,
        }
    }
}

/// One length's costs, in nanoseconds. Medians.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Point {
    /// Length of the copy.
    pub bytes: usize,
    /// `memcpy`, source and target in the cache.
    pub hot_ns: f64,
    /// `memcpy`, neither in the cache.
    pub cold_ns: f64,
    /// Non-temporal, in the cache.
    pub nt_hot_ns: f64,
    /// Non-temporal, not in the cache.
    pub nt_cold_ns: f64,
    /// Engine, from submission to completion, memory in its caller's cache.
    pub engine_hot_ns: f64,
    /// Engine, from submission to completion, memory in no cache.
    pub engine_cold_ns: f64,
    /// A copy with other work beside it.
    pub outward: Jobs,
    /// As `outward`, and the caller reads the target afterwards.
    pub inward: Jobs,
}

/// A copy together with work that takes as long as a cold `memcpy` of that length, in nanoseconds.
/// Medians.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Jobs {
    /// By hand, memory in the cache.
    pub hand_hot_ns: f64,
    /// By hand, in the best way for the length, memory in no cache.
    pub hand_cold_ns: f64,
    /// By the engine, which is awake, memory in its caller's cache.
    pub engine_hot_ns: f64,
    /// By the engine, memory in no cache.
    pub engine_cold_ns: f64,
}

impl Jobs {
    fn scaled(self, times: f64) -> Jobs {
        Jobs {
            hand_hot_ns: self.hand_hot_ns * times,
            hand_cold_ns: self.hand_cold_ns * times,
            engine_hot_ns: self.engine_hot_ns * times,
            engine_cold_ns: self.engine_cold_ns * times,
        }
    }
}

/// The measured curves of a machine, and the choices computed from them.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    /// Names the machine, its kernel, and this version of the measurement.
    pub fingerprint: u64,
    /// Ascending by length. Engine columns are zero where no engine ran.
    pub points: Vec<Point>,
    /// The cost of a doorbell that has to wake the engine, in nanoseconds.
    pub wake_ns: f64,
    /// Ticks for four loads above which memory counts as cold.
    pub cold_ticks: u32,
    /// The number of streams of a copy past the cache.
    pub streams: u32,
    /// The length from which on cold memory is copied past the cache.
    pub nontemporal_from: usize,
    /// For bytes coming in.
    pub copybreak_in: Copybreak,
    /// For bytes going out.
    pub copybreak_out: Copybreak,
    /// The duration of measuring; zero for a remembered calibration.
    pub took: Duration,
    /// The reason why a copybreak differs from the measured one; `None` if none differs.
    pub overridden: Option<String>,
}

impl Calibration {
    /// The machine's calibration: remembered, or else measured and remembered, then overridden by
    /// `TOEHOLD_COPYBREAK`. The second value holds one sentence for each problem; the calibration
    /// is usable in any case.
    ///
    /// `TOEHOLD_COPY_CALIBRATION` names the calibration's file, or is `off`. Without the variable
    /// the file is below `$XDG_CACHE_HOME` or `~/.cache`, in `toehold/`.
    pub fn of_this_machine() -> (Calibration, Vec<String>) {
        let mut notes = Vec::new();
        let fingerprint = store::fingerprint();
        let file = store::path(fingerprint);
        let remembered = Calibration::remembered();
        let mut calibration = remembered.unwrap_or_else(|| {
            let fresh = measure::measure(fingerprint);
            // A calibration on a busy machine is good enough for this process, but not for the
            // file.
            let worth_keeping = file.as_deref().filter(|_| fresh.is_whole());
            if let Some(Err(error)) = worth_keeping.map(|file| store::save(file, &fresh)) {
                notes.push(format!("the calibration could not be remembered: {error}"));
            }
            fresh
        });
        if let Some(text) = std::env::var_os("TOEHOLD_COPYBREAK") {
            match text.to_string_lossy().parse::<Override>() {
                Ok(chosen) => calibration.apply(chosen, format!("TOEHOLD_COPYBREAK={chosen}")),
                Err(error) => notes.push(error.to_string()),
            }
        }
        calibration.install();
        (calibration, notes)
    }

    /// The machine's calibration from an earlier start, if there is one.
    fn remembered() -> Option<Calibration> {
        let fingerprint = store::fingerprint();
        store::load(&store::path(fingerprint)?, fingerprint)
    }

    /// Installs the remembered calibration for engines that do not calibrate themselves.
    pub(crate) fn install_remembered() {
        if let Some(remembered) = Calibration::remembered() {
            remembered.install();
        }
    }

    fn install(&self) {
        crate::residency::set_cold_ticks(self.cold_ticks);
        crate::residency::set_nontemporal_from(self.nontemporal_from);
        crate::nontemporal::set_streams(self.streams);
    }

    /// A calibration without measurements: copies are made by hand, and through the cache.
    fn untaken(fingerprint: u64) -> Calibration {
        Calibration {
            fingerprint,
            points: Vec::new(),
            wake_ns: 0.0,
            cold_ticks: u32::MAX,
            streams: 4,
            nontemporal_from: usize::MAX,
            copybreak_in: Copybreak::NEVER,
            copybreak_out: Copybreak::NEVER,
            took: Duration::ZERO,
            overridden: None,
        }
    }

    /// True when there was time for every length.
    fn is_whole(&self) -> bool {
        measure::is_whole(&self.points)
    }

    /// Measures now. The result is not written to a file.
    pub fn measure() -> Calibration {
        measure::measure(store::fingerprint())
    }

    /// The lengths from which on the engine pays, in this direction.
    pub fn copybreak(&self, direction: Direction) -> Copybreak {
        match direction {
            Direction::In => self.copybreak_in,
            Direction::Out => self.copybreak_out,
        }
    }

    /// Replaces the measured copybreaks by chosen ones. The report shows `why`.
    pub fn apply(&mut self, chosen: Override, why: String) {
        if let Some(bytes) = chosen.inward {
            self.copybreak_in = Copybreak::fixed(bytes);
        }
        if let Some(bytes) = chosen.outward {
            self.copybreak_out = Copybreak::fixed(bytes);
        }
        self.overridden = Some(why);
    }
}

/// Copybreaks chosen by the user: `off`, `64K`, or `in=16K,out=off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Override {
    /// For bytes coming in; `usize::MAX` is never.
    pub inward: Option<usize>,
    /// For bytes going out.
    pub outward: Option<usize>,
}

/// A text that is not an [`Override`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverrideError(String);

impl fmt::Display for OverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "a copybreak is `off`, a size like `64K`, or `in=16K,out=off`, and not `{text}`"
        )
    }
}

impl std::error::Error for OverrideError {}

impl std::str::FromStr for Override {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Override, OverrideError> {
        let error = || OverrideError(text.to_owned());
        if !text.contains('=') {
            let bytes = parse_size(text).ok_or_else(error)?;
            return Ok(Override {
                inward: Some(bytes),
                outward: Some(bytes),
            });
        }
        let mut chosen = Override::default();
        for part in text.split(',') {
            let (side, size) = part.split_once('=').ok_or_else(error)?;
            let bytes = Some(parse_size(size).ok_or_else(error)?);
            match side.trim() {
                "in" => chosen.inward = bytes,
                "out" => chosen.outward = bytes,
                _ => return Err(error()),
            }
        }
        Ok(chosen)
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = [("in", self.inward), ("out", self.outward)];
        let mut comma = "";
        for (side, bytes) in sides {
            if let Some(bytes) = bytes {
                write!(f, "{comma}{side}={}", report::Size(bytes))?;
                comma = ",";
            }
        }
        Ok(())
    }
}

fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    if text == "off" {
        return Some(usize::MAX);
    }
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    // `parse` alone would take a sign.
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits
        .parse::<usize>()
        .ok()?
        .checked_shl(shift)
        .filter(|size| size >> shift != 0 || shift == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_read_and_written() {
        let both = |bytes| Override {
            inward: Some(bytes),
            outward: Some(bytes),
        };
        assert_eq!("off".parse(), Ok(both(usize::MAX)));
        assert_eq!("64K".parse(), Ok(both(65536)));
        assert_eq!("0".parse(), Ok(both(0)));
        assert_eq!("2m".parse(), Ok(both(2 << 20)));
        let split = Override {
            inward: Some(16384),
            outward: Some(usize::MAX),
        };
        assert_eq!("in=16K,out=off".parse(), Ok(split));
        assert_eq!(split.to_string(), "in=16K,out=off");
        let one = Override {
            inward: None,
            outward: Some(1000),
        };
        assert_eq!("out=1000".parse(), Ok(one));
    }

    #[test]
    fn a_wrong_override_is_one_sentence() {
        for wrong in [
            "",
            "K",
            "-1",
            "+1",
            "64KB",
            "in=",
            "up=3",
            "in=1,",
            "1e6",
            "99999999999999999999",
        ] {
            let error = wrong.parse::<Override>().unwrap_err().to_string();
            assert!(
                error.contains(wrong) && error.starts_with("a copybreak is"),
                "{error}"
            );
        }
    }
}
