//! The last frames of a meeting, kept for the case that the meeting fails.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;

use toehold_link::{Capture, Direction, Frame};

use crate::cell::Cell;
use crate::link::Fate;

const FRAMES_MAX: usize = 4_000;
/// All headers, and some payload.
const FRAME_BYTES_MAX: usize = 128;

#[derive(Default)]
pub(crate) struct Record {
    frames: VecDeque<Recorded>,
    dropped: u64,
}

struct Recorded {
    micros: u64,
    direction: Direction,
    kept: Vec<u8>,
    length: usize,
    fate: Fate,
}

impl Record {
    pub(crate) fn add(&mut self, micros: u64, direction: Direction, frame: &[u8], fate: Fate) {
        if self.frames.len() == FRAMES_MAX {
            self.frames.pop_front();
            self.dropped += 1;
        }
        self.frames.push_back(Recorded {
            micros,
            direction,
            kept: frame[..frame.len().min(FRAME_BYTES_MAX)].to_vec(),
            length: frame.len(),
            fate,
        });
    }

    /// Writes a capture, and returns its path.
    pub(crate) fn keep(&self, cell: &Cell) -> io::Result<PathBuf> {
        let name = cell.to_string().replace('/', "-");
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.pcapng"));
        let mut capture = Capture::new(BufWriter::new(File::create(&path)?), "toe0")?;
        for frame in &self.frames {
            let comment = match frame.fate {
                Fate::Passed => String::new(),
                fate => format!("{fate:?}").to_lowercase(),
            };
            capture.frame(&Frame {
                micros: frame.micros,
                direction: frame.direction,
                parts: &[&frame.kept],
                length: frame.length,
                lost: 0,
                comment: &comment,
            })?;
        }
        if self.dropped > 0 {
            capture.statistics(0, self.dropped)?;
        }
        Ok(path)
    }
}
