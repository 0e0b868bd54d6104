//! Room for a few instructions in memory that a program executes, and that it has no use for:
//! behind the last byte of its code, up to the page's end.
//!
//! Whoever writes there changes nothing for the program, so it stays whole at every moment. Where
//! a program has no such room, the vDSO has some, as a rule. Otherwise the code lies where the
//! program's own is, at the beginning of the page of its first instruction: that program ends by a
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
    /// For a program with its first instruction at `first`: in the midst of its code.
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

    /// True when it is in nobody's way.
    pub(crate) fn is_spare(&self) -> bool {
        self.is_spare
    }
}

/// An address of the program's file behind which there is room for so many bytes.
pub(crate) fn behind_code(image: &Image<'_>, bytes: u64) -> Option<u64> {
    let loads = || image.segments().filter(|segment| segment.kind == PT_LOAD);
    // Where a segment has more memory than bytes in the file, variables lie behind its code.
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
        // Two segments in one page: the second one may be mapped over the first.
        (loads().filter(is_here).count() == 1).then_some(at)
    })
}

/// Room behind the code of a program, or else behind the vDSO. `read` reads its memory.
pub(crate) fn find(
    behind_code: Option<u64>,
    vdso: u64,
    bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Option<Room> {
    let behind_vdso = || fitting(vdso.checked_add(vdso_bytes(vdso, read)?)?, bytes);
    behind_code.or_else(behind_vdso).map(Room::spare)
}

/// How many bytes the vDSO has: its section headers are the last of them.
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

/// The first address from `end` on, in the page that `end` is in, behind which there is room for
/// `bytes`.
fn fitting(end: u64, bytes: u64) -> Option<u64> {
    let at = end.checked_next_multiple_of(ALIGNMENT)?;
    let page_end = end.checked_next_multiple_of(PAGE)?;
    (at.checked_add(bytes)? <= page_end).then_some(at)
}

const PAGE: u64 = 4096;
const ALIGNMENT: u64 = 16;
/// An ELF header.
const HEADER_BYTES: usize = 64;
/// Those that we know have two pages.
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
