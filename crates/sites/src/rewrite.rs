//! Writes patches by pages: one write for a page costs less than one for each patch, and the kernel
//! copies the page only once.

use core::ops::Range;

use crate::plan::PATCH_BYTES_MAX;
use crate::stub::Overwrite;

const PAGE_BYTES: usize = 4096;

/// Sorts `overwrites` of code at `address`, and groups them by the page in which they begin.
pub fn by_page(
    overwrites: &mut [Overwrite],
    address: u64,
) -> impl Iterator<Item = &'_ [Overwrite]> {
    overwrites.sort_unstable_by_key(|overwrite| overwrite.at);
    let page = move |overwrite: &Overwrite| (address + overwrite.at as u64) / PAGE_BYTES as u64;
    overwrites.chunk_by(move |a, b| page(a) == page(b))
}

/// Code bytes with the patches of a page, from the first to the last overwritten byte.
#[derive(Debug)]
pub struct Rewrite {
    at: usize,
    bytes: [u8; BYTES_MAX],
    length: usize,
}

/// The last patch may begin at the end of the page.
const BYTES_MAX: usize = PAGE_BYTES + PATCH_BYTES_MAX;

impl Rewrite {
    /// The bytes of `code` with some of its overwrites, as grouped by [`by_page`].
    ///
    /// # Panics
    ///
    /// When the overwrites are outside the code, or not in one page.
    #[must_use]
    pub fn of(code: &[u8], overwrites: &[Overwrite]) -> Rewrite {
        let end = |overwrite: &Overwrite| overwrite.at + overwrite.bytes().len();
        let from = overwrites.first().map_or(0, |first| first.at);
        let to = overwrites.iter().map(end).max().unwrap_or(from);
        let mut bytes = [0; BYTES_MAX];
        bytes[..to - from].copy_from_slice(&code[from..to]);
        for overwrite in overwrites {
            let new = overwrite.bytes();
            bytes[overwrite.at - from..][..new.len()].copy_from_slice(new);
        }
        Rewrite {
            at: from,
            bytes,
            length: to - from,
        }
    }

    /// The range in the code.
    #[must_use]
    pub fn place(&self) -> Range<usize> {
        self.at..self.at + self.length
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, Patch};
    use crate::stub::{Addresses, overwrites};

    #[test]
    fn the_patches_of_a_page_are_one_write_with_the_code_between_them() {
        let code: Vec<u8> = (0..8192u32).map(|n| n as u8).collect();
        let addresses = Addresses {
            code: 0x40_0000,
            stub: 0x30_0000,
            table: 0x2f_0000,
            entry: 0,
        };
        let patch = |start: usize| Patch {
            site: start + 7,
            kind: Kind::Before { start },
        };
        // The last patch of the first page ends in the second page.
        let mut all = [5000, 16, 4093, 100].map(|start| {
            let [one, _] = overwrites(&patch(start), &addresses).expect("near");
            one.expect("a jump")
        });
        let [second, first, last, middle] = all;
        let writes: Vec<Rewrite> = by_page(&mut all, addresses.code)
            .map(|overwrites| Rewrite::of(&code, overwrites))
            .collect();
        let places: Vec<_> = writes.iter().map(Rewrite::place).collect();
        assert_eq!(places, [16..4100, 5000..5007]);
        let mut expected = code[16..4100].to_vec();
        for overwrite in [first, middle, last] {
            expected[overwrite.at - 16..][..7].copy_from_slice(overwrite.bytes());
        }
        assert_eq!(writes[0].bytes(), expected);
        assert_eq!(writes[1].bytes(), second.bytes());
    }
}
