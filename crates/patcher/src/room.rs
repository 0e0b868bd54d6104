//! Finds room for a few instructions in executable memory that a program does not use: after the
//! last byte of its code, up to the end of the page.
//!
//! Code that is written there does not change the program, so the program is intact at every
//! moment. If a program has no such room, the vDSO usually has some. Otherwise the code overwrites
//! the program's own, at the beginning of the page of its first instruction: such a program ends
//! with a fault if its helper is killed before it has restored the program's code.
//! fault if its helper is killed before it has put the program's code back.

use toehold_sites::elf::{Image, PT_LOAD, Segment};

use super::system::Result;

/// A place in a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    address: u64,
    is_spare: bool,
}

impl Room {
    /// For a program whose first instruction is at `first`: inside its code.
    pub(crate) fn first_page(first: u64) -> Room {
        Room {
            address: first & !(PAGE - 1),
            is_spare: false,
        }
    }

    fn spare(address: u64) -> Room {
        Room {
            address,
            is_spare: true,
        }
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// True when no other code is overwritten.
    pub(crate) fn is_spare(&self) -> bool {
        self.is_spare
    }
}

/// An address in the program's file after which there is room for `bytes` bytes.
pub(crate) fn behind_code(image: &Image<'_>, bytes: u64) -> Option<u64> {
    let loads = || image.segments().filter(|segment| segment.kind == PT_LOAD);
    // If a segment has more bytes in memory than in the file, variables follow its code.
    let is_room =
        |segment: &Segment| segment.is_code() && segment.memory_bytes == segment.file_bytes;
    loads().filter(is_room).find_map(|segment| {
        let end = segment.address.checked_add(segment.file_bytes)?;
        let at = fitting(end, bytes)?;
        let page = at & !(PAGE - 1);
        let is_here = |other: &Segment| {
            let begin = other.address & !(PAGE - 1);
            begin <= page && page < other.address.saturating_add(other.memory_bytes)
        };
        // If two segments share a page, the second may be mapped over the first.
        (loads().filter(is_here).count() == 1).then_some(at)
    })
}

/// Room after the code of a program, otherwise after the vDSO. `read` reads the program's memory.
pub(crate) fn find(
    behind_code: Option<u64>,
    vdso: u64,
    bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Option<Room> {
    let behind_vdso = || fitting(vdso.checked_add(vdso_bytes(vdso, read)?)?, bytes);
    behind_code.or_else(behind_vdso).map(Room::spare)
}

/// The size of the vDSO: its section headers are at its end.
fn vdso_bytes(vdso: u64, read: impl Fn(u64, &mut [u8]) -> Result<()>) -> Option<u64> {
    let mut header = [0; HEADER_BYTES];
    if vdso == 0 || read(vdso, &mut header).is_err() || !header.starts_with(b"\x7fELF") {
        return None;
    }
    let short = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let sections = u64::from_le_bytes(header[40..48].try_into().expect("eight bytes"));
    let end = sections.checked_add(short(58) * short(60))?;
    (sections > 0 && end < VDSO_BYTES_MAX).then_some(end)
}

/// The first address from `end` on, in the page of `end`, after which there is room for `bytes`.
fn fitting(end: u64, bytes: u64) -> Option<u64> {
    let at = end.checked_next_multiple_of(ALIGNMENT)?;
    let page_end = end.checked_next_multiple_of(PAGE)?;
    (at.checked_add(bytes)? <= page_end).then_some(at)
}

const PAGE: u64 = 4096;
const ALIGNMENT: u64 = 16;
/// An ELF header.
const HEADER_BYTES: usize = 64;
/// Known vDSOs have two pages.
const VDSO_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_ends_with_its_page() {
        assert_eq!(fitting(0x1000, 16), None);
        assert_eq!(fitting(0x1001, 16), Some(0x1010));
        assert_eq!(fitting(0x1ff0, 16), Some(0x1ff0));
        assert_eq!(fitting(0x1ff1, 1), None);
        assert_eq!(fitting(u64::MAX, 1), None);
    }
}
