//! Remembering a calibration: a small text file per machine.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Calibration, Copybreak, Jobs, Point};

/// Changes whenever the measurement or the file does.
const VERSION: &str = "toehold-copy-calibration 4";

/// A hash of everything that the curves depend on: processor, caches, number of processors, kernel,
/// and this library's version, which stands for the C library's `memcpy`.
pub(super) fn fingerprint() -> u64 {
    let mut text = String::from(VERSION);
    text.push_str(env!("CARGO_PKG_VERSION"));
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    // Frequencies in the rest of the text change from moment to moment.
    for line in first.lines() {
        if [
            "vendor_id",
            "model",
            "cpu family",
            "stepping",
            "microcode",
            "flags",
            "CPU ",
            "Features",
        ]
        .iter()
        .any(|key| line.starts_with(key))
        {
            text.push_str(line);
        }
    }
    for index in 0..4 {
        let size = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        text.push_str(&fs::read_to_string(size).unwrap_or_default());
    }
    text.push_str(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default());
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let _ = write!(text, "{processors}");
    fnv1a(text.as_bytes())
}

/// The calibration's file; `None` if nothing is to be remembered.
pub(super) fn path(fingerprint: u64) -> Option<PathBuf> {
    match std::env::var_os("TOEHOLD_COPY_CALIBRATION") {
        Some(choice) if choice == "off" => return None,
        Some(choice) if !choice.is_empty() => return Some(PathBuf::from(choice)),
        _ => {}
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(
        cache
            .join("toehold")
            .join(format!("copy-{fingerprint:016x}")),
    )
}

/// The calibration in this file, if it is complete and belongs to this machine.
pub(super) fn load(file: &Path, fingerprint: u64) -> Option<Calibration> {
    if fs::metadata(file).ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    parse(&fs::read_to_string(file).ok()?).filter(|found| found.fingerprint == fingerprint)
}

/// Writes the file in one step, so that no reader sees half of it.
pub(super) fn save(file: &Path, calibration: &Calibration) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = file.with_extension(format!("draft-{}", std::process::id()));
    fs::write(&draft, render(calibration))?;
    fs::rename(&draft, file).inspect_err(|_| {
        // The draft is useless now. If it cannot be removed, it stays.
        let _ = fs::remove_file(&draft);
    })
}

fn render(calibration: &Calibration) -> String {
    let mut text = format!("{VERSION}\n");
    let Calibration {
        fingerprint,
        wake_ns,
        cold_ticks,
        streams,
        nontemporal_from,
        ..
    } = calibration;
    let breaks = [calibration.copybreak_in, calibration.copybreak_out];
    let _ = writeln!(text, "machine {fingerprint}");
    let _ = writeln!(text, "wake {wake_ns}");
    let _ = writeln!(text, "cold {cold_ticks}");
    let _ = writeln!(text, "past {nontemporal_from} {streams}");
    for (name, at) in ["in", "out"].iter().zip(breaks) {
        let _ = writeln!(text, "{name} {} {} {}", at.awake, at.hot, at.asleep);
    }
    for p in &calibration.points {
        let _ = write!(text, "point {}", p.bytes);
        for ns in numbers(p) {
            let _ = write!(text, " {ns}");
        }
        text.push('\n');
    }
    text.push_str("end\n");
    text
}

/// A point's numbers, in the order of the file.
fn numbers(p: &Point) -> [f64; NUMBERS] {
    let jobs = |jobs: &Jobs| {
        [
            jobs.hand_hot_ns,
            jobs.hand_cold_ns,
            jobs.engine_hot_ns,
            jobs.engine_cold_ns,
        ]
    };
    let ([a, b, c, d], [e, f, g, h]) = (jobs(&p.outward), jobs(&p.inward));
    let (nt_hot, nt_cold) = (p.nt_hot_ns, p.nt_cold_ns);
    let (hot, cold) = (p.engine_hot_ns, p.engine_cold_ns);
    [
        p.hot_ns, p.cold_ns, nt_hot, nt_cold, hot, cold, a, b, c, d, e, f, g, h,
    ]
}

fn point(bytes: usize, numbers: [f64; NUMBERS]) -> Point {
    let jobs = |at: usize| Jobs {
        hand_hot_ns: numbers[at],
        hand_cold_ns: numbers[at + 1],
        engine_hot_ns: numbers[at + 2],
        engine_cold_ns: numbers[at + 3],
    };
    Point {
        bytes,
        hot_ns: numbers[0],
        cold_ns: numbers[1],
        nt_hot_ns: numbers[2],
        nt_cold_ns: numbers[3],
        engine_hot_ns: numbers[4],
        engine_cold_ns: numbers[5],
        outward: jobs(6),
        inward: jobs(10),
    }
}

/// Of one point, its length aside.
const NUMBERS: usize = 14;

fn parse(text: &str) -> Option<Calibration> {
    let mut lines = text.lines();
    if lines.next()? != VERSION {
        return None;
    }
    let mut field = |key: &str| -> Option<Vec<&str>> {
        let mut words = lines.next()?.split(' ');
        (words.next()? == key).then(|| words.collect())
    };
    let one = |words: Vec<&str>| -> Option<String> { words.first().map(|word| word.to_string()) };
    let at = |words: Vec<&str>| -> Option<Copybreak> {
        let awake = words.first()?.parse().ok()?;
        let hot = words.get(1)?.parse().ok()?;
        let asleep = words.get(2)?.parse().ok()?;
        (awake <= hot && awake <= asleep).then_some(Copybreak { awake, hot, asleep })
    };
    let fingerprint = one(field("machine")?)?.parse().ok()?;
    let wake_ns = one(field("wake")?)?.parse().ok()?;
    let cold_ticks = one(field("cold")?)?.parse().ok()?;
    let past = field("past")?;
    let nontemporal_from = past.first()?.parse().ok()?;
    let streams = past.get(1)?.parse().ok().filter(|n| matches!(n, 1 | 4))?;
    let copybreak_in = at(field("in")?)?;
    let copybreak_out = at(field("out")?)?;
    let mut points = Vec::new();
    let mut is_whole = false;
    for line in lines {
        if line == "end" {
            is_whole = true;
            break;
        }
        let words: Vec<&str> = line.strip_prefix("point ")?.split(' ').collect();
        let bytes = words.first()?.parse().ok()?;
        let ns: Vec<f64> = words[1..]
            .iter()
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        points.push(point(bytes, ns.try_into().ok()?));
    }
    is_whole.then_some(Calibration {
        fingerprint,
        points,
        wake_ns,
        cold_ticks,
        streams,
        nontemporal_from,
        copybreak_in,
        copybreak_out,
        took: Duration::ZERO,
        overridden: None,
    })
}

/// Fowler, Noll and Vo's hash: the name of a file, not a secret.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Several times what we write: anything longer is something else.
const FILE_BYTES_MAX: u64 = 16 * 1024;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn example() -> Calibration {
        Calibration {
            fingerprint: 42,
            points: vec![
                Point {
                    bytes: 1024,
                    hot_ns: 12.5,
                    ..Point::default()
                },
                Point {
                    bytes: 4096,
                    cold_ns: 500.0,
                    inward: Jobs {
                        engine_cold_ns: 1.0,
                        ..Jobs::default()
                    },
                    ..Point::default()
                },
            ],
            wake_ns: 1500.0,
            cold_ticks: 700,
            streams: 1,
            nontemporal_from: 65536,
            copybreak_in: Copybreak {
                awake: 4096,
                hot: 16384,
                asleep: usize::MAX,
            },
            copybreak_out: Copybreak::fixed(1024),
            took: Duration::ZERO,
            overridden: None,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(parse(&render(&example())), Some(example()));
    }

    #[test]
    fn a_torn_or_foreign_file_is_no_calibration() {
        let whole = render(&example());
        for end in 0..whole.len() - 1 {
            assert_eq!(parse(&whole[..end]), None, "cut at {end}");
        }
        assert_eq!(parse(&whole.replace("machine", "elsewhere")), None);
        assert_eq!(parse(&whole.replace("12.5", "fast")), None);
        assert_eq!(
            parse(&whole.replace("1024 1024 1024", "1024 1024 1023")),
            None
        );
    }

    proptest::proptest! {
        /// The file belongs to the user, and its content may be anything.
        #[test]
        fn a_file_with_anything_in_it_is_read_without_harm(
            at in 0..400usize,
            insert in "\\PC{0,20}",
            cut in 0..50usize,
        ) {
            let whole = render(&example());
            let at = at.min(whole.len());
            let end = (at + cut).min(whole.len());
            let spoilt = format!("{}{insert}{}", &whole[..at], &whole[end..]);
            if let Some(found) = parse(&spoilt) {
                proptest::prop_assert!(found.copybreak_in.awake <= found.copybreak_in.asleep);
                proptest::prop_assert!(found.copybreak_out.awake <= found.copybreak_out.asleep);
            }
            let _ = parse(&insert);
            let _ = insert.parse::<super::super::Override>();
        }
    }
}
