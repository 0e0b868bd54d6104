//! Decodes the instructions and branches around each system call, without a full sweep.
//!
//! A plan needs only the neighbourhood of its site. A sweep of all code costs 6 ns per byte, and a
//! large program has millions of bytes. The search finds the same instructions there as a sweep, in
//! three steps:
//!
//! 1. It looks for the bytes of `syscall`.
//! 2. It decodes the code around them. In the middle of code the instruction boundaries are
//!    unknown. But no instruction is longer than 15 bytes, so one of any 15 successive positions is
//!    a boundary for the full sweep. The search decodes from all 15 until they meet: the meeting
//!    point is a boundary for the full sweep, too. In compiled code this takes a few instructions.
//! 3. It searches all code for bytes that may be a branch to one of the neighbourhoods. Bytes that
//!    look like a branch but are none can at worst make a patch impossible.
//!
//! The first and the third step read all code with vector instructions ([`wide`]).

use core::array;
use core::ops::Range;

use crate::instruction::{INSTRUCTION_BYTES_MAX, Instruction, decode};
use crate::plan::{PLAN_BYTES_AFTER, PLAN_BYTES_BEFORE, SYSCALL_BYTES, TARGET_BYTES};
use crate::sweep::Swept;

/// The distance before a position at which the search begins to decode, to be at a boundary there.
const GLANCE_BYTES: usize = 128;
/// The larger distance, used if [`GLANCE_BYTES`] was not enough.
const MEETING_BYTES: usize = 1024;

impl Swept<'_> {
    /// Finds the system calls in a part of the code (a section). Sweeps the neighbourhood of each,
    /// and calls `found` with its position. [`Swept::search_branches`] must be called afterwards.
    pub fn search(&mut self, part: Range<usize>, mut found: impl FnMut(usize)) {
        let code = self.code();
        let end = part.end.min(code.len());
        // Up to here, everything that a plan needs is swept, or there is no system call.
        let mut swept_to = part.start;
        let mut from = part.start;
        while let Some(at) = next_syscall(&code[..end], from) {
            from = at + SYSCALL_BYTES;
            if at >= swept_to {
                if !self.is_instruction(at, swept_to, end) {
                    continue;
                }
                let limit = at.saturating_sub(PLAN_BYTES_BEFORE);
                // If the streams do not meet, all code since the last system call is swept.
                swept_to = meet_before(code, limit, swept_to, end).unwrap_or(swept_to);
            } else if self.at(at).is_none() {
                continue;
            }
            swept_to = self.advance(swept_to, at + PLAN_BYTES_AFTER, end, |_| ());
            found(at);
        }
    }

    /// True when a sweep would find an instruction that begins at `at`. `earliest` is a known
    /// boundary.
    fn is_instruction(&self, at: usize, earliest: usize, end: usize) -> bool {
        let code = self.code();
        let mut position = meet_before(code, at, earliest, end).unwrap_or(earliest);
        while position < at {
            position = step(code, position, end);
        }
        position == at
    }

    /// True when `is_wanted` accepts an instruction that begins between `from` and `to`, swept or
    /// not, or when the boundaries there are unknown.
    pub(crate) fn any_between(
        &self,
        from: usize,
        to: usize,
        mut is_wanted: impl FnMut(&Instruction) -> bool,
    ) -> bool {
        let code = self.code();
        let Some(mut at) = meet_before(code, from, 0, to) else {
            return true;
        };
        while at < to {
            let instruction = decode(&code[at..to]);
            if at >= from && instruction.as_ref().is_some_and(&mut is_wanted) {
                return true;
            }
            at += instruction.map_or(1, |instruction| instruction.bytes());
        }
        false
    }

    /// Notes the branches that lead to the neighbourhoods of `sites`, which are all system calls of
    /// the code in order.
    pub fn search_branches(&mut self, sites: &[usize]) {
        let code = self.code();
        let ranges = Ranges::around(sites, code.len());
        let ranges = &ranges.ranges[..ranges.count];
        let mut note = |at| self.note_branch(at + DISTANCE_BYTES, word(code, at).cast_signed());
        let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        if bytes > code.len() / RANGES_PART_MAX {
            each_branch_anywhere(code, note);
        } else {
            each_branch(code, ranges, &mut note);
        }
    }
}

/// The neighbourhoods of sites, covered by a few ranges.
struct Ranges {
    ranges: [Range<usize>; RANGES_MAX],
    count: usize,
}

impl Ranges {
    fn around(sites: &[usize], length: usize) -> Ranges {
        let mut ranges = Ranges {
            ranges: [const { 0..0 }; RANGES_MAX],
            count: 0,
        };
        for &site in sites {
            let from = site.saturating_sub(TARGET_BYTES);
            ranges.add(from..(site + TARGET_BYTES).min(length));
        }
        ranges
    }

    /// Adds a range that begins no earlier than all others.
    fn add(&mut self, range: Range<usize>) {
        if self.count == RANGES_MAX {
            // Two ranges are merged, those with the smallest gap: the new one and the last, or two
            // others.
            let gap = |n: usize| self.ranges[n + 1].start.saturating_sub(self.ranges[n].end);
            let closest = (0..RANGES_MAX - 1).min_by_key(|&n| gap(n)).unwrap_or(0);
            let closest_gap = gap(closest);
            let last = &mut self.ranges[RANGES_MAX - 1];
            if range.start.saturating_sub(last.end) <= closest_gap {
                last.end = last.end.max(range.end);
                return;
            }
            self.ranges[closest].end = self.ranges[closest + 1].end;
            self.ranges[closest + 1..].rotate_left(1);
            self.count -= 1;
        }
        self.ranges[self.count] = range;
        self.count += 1;
    }
}

/// The start of the instruction after the one at `at`.
fn step(code: &[u8], at: usize, end: usize) -> usize {
    at + decode(&code[at..end]).map_or(1, |instruction| instruction.bytes())
}

/// [`meet`] from a distance before `limit`: a short distance first.
fn meet_before(code: &[u8], limit: usize, earliest: usize, end: usize) -> Option<usize> {
    [GLANCE_BYTES, MEETING_BYTES]
        .into_iter()
        .find_map(|bytes| meet(code, limit.saturating_sub(bytes), earliest, limit, end))
}

/// A boundary between `begin` and `limit` of a sweep from `earliest`; `None` when none is found. It
/// is `earliest` itself if `begin` is no later.
fn meet(code: &[u8], begin: usize, earliest: usize, limit: usize, end: usize) -> Option<usize> {
    if begin <= earliest {
        return Some(earliest);
    }
    let mut streams: [usize; INSTRUCTION_BYTES_MAX] = array::from_fn(|n| begin + n);
    loop {
        let lowest = streams.iter().copied().min()?;
        if lowest > limit {
            return None;
        }
        if streams.iter().all(|&stream| stream == lowest) {
            return Some(lowest);
        }
        let next = step(code, lowest, end);
        for stream in &mut streams {
            if *stream == lowest {
                *stream = next;
            }
        }
    }
}

/// The next position of the bytes of `syscall`, from `from` on.
fn next_syscall(code: &[u8], from: usize) -> Option<usize> {
    const SYSCALL: [u8; SYSCALL_BYTES] = [0x0f, 0x05];
    let is_here = |at: &usize| code[*at..].starts_with(&SYSCALL);
    let mut at = from;
    while let Some(bytes) = code.get(at..=at + CHUNK_BYTES) {
        let bytes: &[u8; CHUNK_BYTES + 1] = bytes.try_into().expect("their length");
        if wide::has_pair(bytes, SYSCALL) {
            return (at..at + CHUNK_BYTES).find(is_here);
        }
        at += CHUNK_BYTES;
    }
    (at..code.len()).find(is_here)
}

/// Calls `found` with the position of the displacement of everything that looks like a branch into
/// one of the ranges.
fn each_branch(code: &[u8], ranges: &[Range<usize>], found: &mut impl FnMut(usize)) {
    let mut exactly = |at: usize| {
        // Differences of addresses are computed modulo 2^32, like branch targets.
        let target = (at + DISTANCE_BYTES) as u32;
        let target = target.wrapping_add(word(code, at));
        let is_inside =
            |range: &Range<usize>| target.wrapping_sub(range.start as u32) < range.len() as u32;
        if ranges.iter().any(is_inside) {
            found(at);
        }
    };
    let first = |n: usize| ranges[n].clone();
    let done = match ranges.len() {
        0 => return,
        1 => each_chunk(code, &array::from_fn::<_, 1, _>(first), &mut exactly),
        2 => each_chunk(code, &array::from_fn::<_, 2, _>(first), &mut exactly),
        3 => each_chunk(code, &array::from_fn::<_, 3, _>(first), &mut exactly),
        _ => each_chunk(
            code,
            &array::from_fn::<_, RANGES_MAX, _>(first),
            &mut exactly,
        ),
    };
    (done..(code.len() + 1).saturating_sub(DISTANCE_BYTES))
        .filter(|&at| is_branch(code, at))
        .for_each(exactly);
}

/// Calls `found` with the position of the displacement of everything that looks like a branch and
/// may lead into one of the ranges. Returns the start of the rest of the code, which is too short
/// for a chunk.
///
/// It compares the two middle bytes of each displacement. They determine a target except for 256
/// bytes and for the branch's place in its block. Vector instructions compare twice as many of them
/// as whole displacements.
fn each_chunk<const N: usize>(
    code: &[u8],
    ranges: &[Range<usize>; N],
    found: &mut impl FnMut(usize),
) -> usize {
    let mut at = 0;
    loop {
        // The lowest and highest displacement from anywhere in the block into a range.
        let block = at;
        let ends: [(usize, usize); N] = array::from_fn(|n| {
            let lowest = ranges[n]
                .start
                .wrapping_sub(block + BLOCK_BYTES + DISTANCE_BYTES);
            let highest = ranges[n].end.wrapping_sub(block + DISTANCE_BYTES);
            (lowest >> MIDDLE_SHIFT, highest >> MIDDLE_SHIFT)
        });
        // Comparisons are signed, because vector instructions have no unsigned ones.
        let lowest: [u16; N] = array::from_fn(|n| (ends[n].0 as u16).wrapping_add(1 << 15));
        let last: [i16; N] = array::from_fn(|n| {
            let last = ends[n].1.wrapping_sub(ends[n].0) & (usize::MAX >> MIDDLE_SHIFT);
            // Two bytes have no more values: every target is inside such a long range.
            let last = last.min(u16::MAX.into()) as u16;
            last.wrapping_add(1 << 15).cast_signed()
        });
        while at < block + BLOCK_BYTES {
            let Some(bytes) = code.get(at..at + CHUNK_BYTES + DISTANCE_BYTES - 1) else {
                return at;
            };
            let bytes = bytes.first_chunk().expect("their length");
            if wide::has_middle_in(bytes, &lowest, &last) {
                each_opcode(code, at, &mut *found);
            }
            at += CHUNK_BYTES;
        }
    }
}

/// Calls `found` with the position of each branch displacement in the chunk at `chunk`.
fn each_opcode(code: &[u8], chunk: usize, mut found: impl FnMut(usize)) {
    let before = chunk
        .checked_sub(OPCODE_BYTES)
        .and_then(|from| code.get(from..));
    let Some(bytes) = before.and_then(|bytes| bytes.first_chunk::<{ CHUNK_BYTES + 1 }>()) else {
        (chunk..chunk + CHUNK_BYTES)
            .filter(|&at| is_branch(code, at))
            .for_each(found);
        return;
    };
    each_bit(opcodes(bytes).into(), |n| found(chunk + n));
}

/// Calls `found` with the position of the displacement of everything that looks like a branch.
fn each_branch_anywhere(code: &[u8], mut found: impl FnMut(usize)) {
    const BYTES: usize = 2 * CHUNK_BYTES;
    let mut at = OPCODE_BYTES;
    // One number for two chunks, because a loop of few rounds costs most at its end.
    while let Some(bytes) = code[at - OPCODE_BYTES..].first_chunk::<{ BYTES + DISTANCE_BYTES }>() {
        let low = bytes.first_chunk().map_or(0, opcodes);
        let high = bytes[CHUNK_BYTES..].first_chunk().map_or(0, opcodes);
        each_bit(u64::from(high) << CHUNK_BYTES | u64::from(low), |n| {
            found(at + n)
        });
        at += BYTES;
    }
    let end = (code.len() + 1).saturating_sub(DISTANCE_BYTES);
    (at.min(end)..end)
        .filter(|&at| is_branch(code, at))
        .for_each(found);
}

/// One bit for each position of a displacement that follows the opcode of a branch. The first of
/// these positions is after the first two bytes.
fn opcodes(bytes: &[u8; CHUNK_BYTES + 1]) -> u32 {
    // 0x80 times the byte's index in a word of eight, so that the highest byte of the product
    // collects the lowest bits of all bytes.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut is_branch = [0; CHUNK_BYTES];
    for (n, is_branch) in is_branch.iter_mut().enumerate() {
        let (first, second) = (bytes[n], bytes[n + 1]);
        let one = u8::from(second & 0xfe == 0xe8);
        let jcc = u8::from(first == 0x0f) & u8::from(second & 0xf0 == 0x80);
        let xbegin = u8::from(first == 0xc7) & u8::from(second == 0xf8);
        *is_branch = one | jcc | xbegin;
    }
    let (words, _) = is_branch.as_chunks::<8>();
    let bits = words.iter().enumerate().map(|(n, word)| {
        let bits = u64::from_le_bytes(*word).wrapping_mul(GATHER) >> 56;
        (bits as u32) << (8 * n)
    });
    bits.fold(0, |all, bits| all | bits)
}

fn each_bit(mut bits: u64, mut found: impl FnMut(usize)) {
    while bits != 0 {
        found(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// True when the bytes before `at` are the opcode of a branch with a displacement of four bytes:
/// `call`, `jmp`, `jcc`, `xbegin`.
fn is_branch(code: &[u8], at: usize) -> bool {
    matches!(
        code[..at],
        [.., 0xe8 | 0xe9] | [.., 0x0f, 0x80..=0x8f] | [.., 0xc7, 0xf8]
    )
}

/// The four bytes at `at`, which must exist.
fn word(code: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*code[at..].first_chunk().expect("four bytes"))
}

const DISTANCE_BYTES: usize = 4;
const OPCODE_BYTES: usize = 2;
/// The number of bytes that the loops over all code process at a time.
const CHUNK_BYTES: usize = 32;
const RANGES_MAX: usize = 4;
/// If the ranges cover more than 1 / `RANGES_PART_MAX` of the code, most chunks contain a branch
/// into one of them. Then all branches are searched at once.
const RANGES_PART_MAX: usize = 8;
/// The lowest bit of the two middle bytes of a distance.
const MIDDLE_SHIFT: u32 = 8;
/// The size of code whose addresses share the two middle bytes.
const BLOCK_BYTES: usize = 1024;

/// Comparisons of all bytes of a chunk at once. A compiler may turn loops in Rust into vector
/// instructions, or may not: in the preload library, which is optimised for size as well, it did
/// not, and a search took eight times as long. So the vector instructions are written explicitly
/// where they exist.
#[cfg(target_arch = "x86_64")]
mod wide {
    use core::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_cmpgt_epi16, _mm_loadu_si128,
        _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8, _mm_set1_epi16, _mm_setzero_si128,
        _mm_sub_epi16,
    };

    use super::{CHUNK_BYTES, DISTANCE_BYTES};

    const LANE_BYTES: usize = size_of::<__m128i>();
    const LANES: usize = CHUNK_BYTES / LANE_BYTES;
    /// [`_mm_movemask_epi8`] of all ones.
    const ALL: i32 = 0xffff;

    /// Whether these two bytes occur one after the other.
    pub(super) fn has_pair(bytes: &[u8; CHUNK_BYTES + 1], pair: [u8; 2]) -> bool {
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { compare_pairs(bytes, pair) }
    }

    /// Whether the middle bytes of a displacement that begins in the chunk, minus a range's
    /// `lowest`, are at most its `last`.
    pub(super) fn has_middle_in<const N: usize>(
        bytes: &[u8; CHUNK_BYTES + DISTANCE_BYTES - 1],
        lowest: &[u16; N],
        last: &[i16; N],
    ) -> bool {
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { compare_middles(bytes, lowest, last) }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn compare_pairs(bytes: &[u8; CHUNK_BYTES + 1], [first, second]: [u8; 2]) -> bool {
        let first = _mm_set1_epi8(first.cast_signed());
        let second = _mm_set1_epi8(second.cast_signed());
        let mut any = _mm_setzero_si128();
        for lane in 0..LANES {
            let at = lane * LANE_BYTES;
            let is_first = _mm_cmpeq_epi8(load(bytes, at), first);
            let is_second = _mm_cmpeq_epi8(load(bytes, at + 1), second);
            any = _mm_or_si128(any, _mm_and_si128(is_first, is_second));
        }
        _mm_movemask_epi8(any) != 0
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn compare_middles<const N: usize>(
        bytes: &[u8; CHUNK_BYTES + DISTANCE_BYTES - 1],
        lowest: &[u16; N],
        last: &[i16; N],
    ) -> bool {
        let mut are_outside = _mm_set1_epi8(-1);
        for n in 0..N {
            let lowest = _mm_set1_epi16(lowest[n].cast_signed());
            let last = _mm_set1_epi16(last[n]);
            for lane in 0..LANES {
                for phase in 0..2 {
                    let middles = load(bytes, 1 + lane * LANE_BYTES + phase);
                    let is_outside = _mm_cmpgt_epi16(_mm_sub_epi16(middles, lowest), last);
                    are_outside = _mm_and_si128(are_outside, is_outside);
                }
            }
        }
        _mm_movemask_epi8(are_outside) != ALL
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(bytes: &[u8], at: usize) -> __m128i {
        let lane: &[u8; LANE_BYTES] = bytes[at..].first_chunk().expect("a lane");
        // SAFETY: as many bytes, at any address.
        unsafe { _mm_loadu_si128(lane.as_ptr().cast()) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod wide {
    use super::{CHUNK_BYTES, DISTANCE_BYTES};

    pub(super) fn has_pair(bytes: &[u8; CHUNK_BYTES + 1], pair: [u8; 2]) -> bool {
        bytes.windows(2).any(|two| two == pair)
    }

    pub(super) fn has_middle_in<const N: usize>(
        bytes: &[u8; CHUNK_BYTES + DISTANCE_BYTES - 1],
        lowest: &[u16; N],
        last: &[i16; N],
    ) -> bool {
        let is_inside = |middle: u16| {
            let mut ranges = lowest.iter().zip(last);
            ranges.any(|(lowest, last)| middle.wrapping_sub(*lowest).cast_signed() <= *last)
        };
        let mut middles = bytes[1..].windows(2);
        middles.any(|two| is_inside(u16::from_le_bytes([two[0], two[1]])))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::support;

    /// The plans of all sites, by a full sweep or by a search.
    fn plans(code: &[u8], is_search: bool) -> Vec<String> {
        support::with_code(code, |swept| {
            let mut sites = Vec::new();
            if is_search {
                swept.search(0..code.len(), |at| sites.push(at));
                swept.search_branches(&sites);
            } else {
                swept.sweep(0..code.len(), |at| {
                    // Compilers make no system calls with a prefix.
                    if code[at] == 0x0f {
                        sites.push(at);
                    }
                });
            }
            let results = support::plans(swept, &sites).into_iter();
            let both = sites.iter().zip(results);
            both.map(|(site, result)| format!("{site} {result:?}"))
                .collect()
        })
    }

    #[test]
    fn the_bytes_of_system_calls_are_found_at_every_position() {
        for length in 2..40 {
            for at in 0..length - 1 {
                let mut code = vec![0x0f; length];
                code[at + 1] = 5;
                assert_eq!(next_syscall(&code, 0), Some(at));
                assert_eq!(next_syscall(&code, at + 1), None);
            }
        }
    }

    #[test]
    fn branches_are_found_at_every_position() {
        for opcode in [
            &[0xe8][..],
            &[0xe9],
            &[0x0f, 0x80],
            &[0x0f, 0x8f],
            &[0xc7, 0xf8],
        ] {
            for before in 0..150 {
                let mut code = vec![0x90; before];
                code.extend_from_slice(opcode);
                let at = code.len();
                code.extend_from_slice(&7_i32.to_le_bytes());
                code.resize(400, 0x90);
                let mut all = Vec::new();
                let ranges = [at + 11..at + 12, 1000..1001];
                each_branch(&code, &ranges, &mut |at| all.push(at));
                assert_eq!(all, [at], "{opcode:x?}");
                let ranges = [at + 12..at + 400, 1000..1001];
                each_branch(&code, &ranges, &mut |_| panic!("elsewhere"));
            }
        }
    }

    #[test]
    fn branches_into_a_range_of_any_length_are_found() {
        for distance in [
            0,
            0xff,
            0x100,
            0xfeff,
            0xff_fe00,
            0xff_ff00,
            0x100_0000,
            0x123_4567_i32,
        ] {
            for length in [0xff_0000, 0xff_ff00, 0x100_0000, 0x100_1000, 0x200_0000] {
                let mut code = vec![0x90; 200];
                code[100] = 0xe8;
                code[101..105].copy_from_slice(&distance.to_le_bytes());
                let (mut all, target) = (Vec::new(), 105 + distance as usize);
                let range = target.saturating_sub(length - 1)..target + 1;
                each_branch(&code, &[range], &mut |at| all.push(at));
                assert_eq!(all, [101], "{distance:x} {length:x}");
                let beyond = target + 1..target + length;
                each_branch(&code, &[beyond], &mut |at| {
                    assert_ne!(at, 101, "{distance:x} {length:x}");
                });
            }
        }
    }

    #[test]
    fn branches_between_blocks_are_found_with_every_carry() {
        let mut code = vec![0x90; 400_000];
        let places = [
            0, 65_530, 65_531, 65_532, 65_536, 131_066, 131_067, 200_000, 399_990,
        ];
        let targets = [
            0, 3, 65_535, 65_536, 65_537, 131_071, 262_143, 262_144, 399_999,
        ];
        for at in places {
            for target in targets {
                code[at] = 0xe8;
                let distance = target as i32 - (at as i32 + 5);
                code[at + 1..at + 5].copy_from_slice(&distance.to_le_bytes());
                for others in [&[][..], &[100_000..100_001, 300_000..300_002]] {
                    let range = target..target + 1;
                    let ranges = [&[range][..], others].concat();
                    let mut all = Vec::new();
                    each_branch(&code, &ranges, &mut |at| all.push(at));
                    assert_eq!(all, [at + 1], "{at} {target}");
                }
                code[at..at + 5].fill(0x90);
            }
        }
    }

    #[test]
    fn ranges_cover_all_neighbourhoods_and_leave_out_the_largest_gaps() {
        let sites: Vec<usize> = [0, 500, 10_000, 50_000, 50_400, 90_000, 90_001, 95_000].into();
        let ranges = Ranges::around(&sites, 95_010);
        let found = &ranges.ranges[..ranges.count];
        for &site in &sites {
            assert!(found.iter().any(|range| range.contains(&site)), "{site}");
        }
        let total: usize = found.iter().map(|range| range.len()).sum();
        assert!(total < 8000, "{found:?}");
        assert_eq!(Ranges::around(&[], 9).count, 0);
    }

    #[test]
    fn a_distant_branch_between_the_neighbours_is_known() {
        // jmp 8200; … 8195: mov eax, 1; mov edi, eax; syscall
        let mut code = vec![0x90; 9000];
        code[..5].copy_from_slice(&[0xe9, 0x03, 0x20, 0, 0]);
        code[8195..8204].copy_from_slice(&[0xb8, 1, 0, 0, 0, 0x89, 0xc7, 0x0f, 0x05]);
        assert!(plans(&code, true)[0].contains("After"));
        assert_eq!(plans(&code, true), plans(&code, false));
        code[..5].fill(0x90);
        assert!(plans(&code, true)[0].contains("Before"));
        assert_eq!(plans(&code, true), plans(&code, false));
    }

    #[test]
    fn the_search_ends_where_bytes_are_no_instructions() {
        let mut code = vec![0x06; 5000];
        code[4000..4007].copy_from_slice(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05]);
        assert_eq!(plans(&code, true), plans(&code, false));
    }

    proptest! {
        // Random bytes in which the first bytes of common instructions are frequent.
        #[test]
        fn a_search_finds_what_a_sweep_finds(
            bytes in prop::collection::vec(
                prop_oneof![
                    any::<u8>().prop_map(|byte| vec![byte]),
                    Just(vec![0x0f, 0x05]),
                    Just(vec![0xb8, 1, 0, 0, 0, 0x0f, 0x05]),
                    Just(vec![0x48, 0x89, 0xc7]),
                    Just(vec![0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]),
                    Just(vec![0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]),
                    Just(vec![0x90; 200]),
                ],
                0..600,
            ),
        ) {
            let code: Vec<u8> = bytes.concat();
            let (searched, swept) = (plans(&code, true), plans(&code, false));
            let site = |text: &String| text.split(' ').next().map(str::to_owned);
            let sites = |texts: &[String]| texts.iter().map(site).collect::<Vec<_>>();
            prop_assert_eq!(sites(&searched), sites(&swept));
        }
    }
}
