//! The patch of each site, or the reason why a site cannot be patched.
//!
//! A patch is a jump of five bytes to a stub; `syscall` has two bytes. So a patch also overwrites
//! neighbouring instructions, which the stub executes instead. There are three kinds, in order of
//! preference:
//! ```text
//!             mov eax, 1   syscall   cmp rax, -4095   ret   int3 int3 int3 …
//! Before      jmp stub     syscall   …                          the neighbours before it
//! After       …            jmp stub  nop …                     it, and the neighbours after it
//! Hop         …            jmp ────────────────▶ jmp stub      padding near it
//! ```
//!
//! - With a patch *before* it, the program's own `syscall` remains and executes the calls that the
//!   handler passes on. Debuggers and profilers see the usual stacks.
//! - Otherwise `syscall` itself is overwritten, and the stub executes it.
//!
//! A patch must not overwrite a branch target. The sweep knows the targets of all direct branches,
//! but not those of computed jumps (switch tables). So near a computed jump, a patch overwrites
//! only one neighbour.

use core::ops::Range;

use crate::instruction::{Flow, INSTRUCTION_BYTES_MAX, Instruction, Map, decode};
use crate::movable::is_movable;
use crate::numbers::is_about_sockets;
use crate::sweep::Swept;

/// The length of a jump to a stub.
pub const JUMP_BYTES: usize = 5;
/// The length of `syscall`.
pub const SYSCALL_BYTES: usize = 2;
/// The most bytes that a patch overwrites in one place.
pub const PATCH_BYTES_MAX: usize = 24;
/// `syscall`.
const SYSCALL: &[u8] = &[0x0f, 0x05];
/// The opcode of a near `ret`, which is one byte.
const RET: u8 = 0xc3;

/// The patch of a site. Positions are offsets in the code that was swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The position of `syscall`.
    pub site: usize,
    /// The kind of patch.
    pub kind: Kind,
}

/// The bytes that a patch overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The instructions from here to `syscall`.
    Before {
        /// The start of the first of them.
        start: usize,
    },
    /// `syscall` and the instructions after it.
    After {
        /// The end of the moved bytes.
        moved_end: usize,
        /// The end of the overwritten bytes: larger than `moved_end` when padding follows a `ret`
        /// or a jump.
        end: usize,
    },
    /// `syscall`, and padding within the reach of a short jump.
    Hop {
        /// The start of the padding.
        padding: usize,
    },
}

/// The reason why a site is not patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It is the return from a signal handler: the kernel reads the frame at the stack pointer, and
    /// debuggers recognise exactly these bytes.
    SignalReturn,
    /// The bytes around it do not look like a system call; they may be data.
    Doubtful,
    /// No neighbour can be moved, and no padding is near.
    NoRoom,
}

impl core::fmt::Display for Obstacle {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(match self {
            Obstacle::SignalReturn => "it returns from a signal handler",
            Obstacle::Doubtful => "the bytes around it may be data",
            Obstacle::NoRoom => "no neighbour can be moved and no padding is near",
        })
    }
}

impl Patch {
    /// The ranges that are overwritten.
    #[must_use]
    pub fn places(&self) -> [Range<usize>; 2] {
        let site = self.site;
        match self.kind {
            Kind::Before { start } => [start..site, site..site],
            Kind::After { end, .. } => [site..end, site..site],
            Kind::Hop { padding } => [site..site + SYSCALL_BYTES, padding..padding + JUMP_BYTES],
        }
    }

    /// The instructions that the stub executes. A jump at their end keeps its target.
    #[must_use]
    pub fn moved(&self) -> Range<usize> {
        let site = self.site;
        match self.kind {
            Kind::Before { start } => start..site,
            Kind::After { moved_end, .. } => site + SYSCALL_BYTES..moved_end,
            Kind::Hop { .. } => site..site,
        }
    }

    /// True when `code` still has everything that the patch relies on: a system call at the site,
    /// and around it instructions that may be moved, or padding. For a patch that was planned
    /// earlier. Branches are not checked: only a plan ensures that none leads into the overwritten
    /// ranges.
    #[must_use]
    pub fn fits(&self, code: &[u8]) -> bool {
        let site = self.site;
        let is_site = |at: usize| code.get(at..).is_some_and(|rest| rest.starts_with(SYSCALL));
        if !is_site(site) {
            return false;
        }
        let after = site + SYSCALL_BYTES;
        let is_size = |bytes: usize| (JUMP_BYTES..=PATCH_BYTES_MAX).contains(&bytes);
        match self.kind {
            Kind::Before { start } => {
                start < site
                    && is_size(site - start)
                    && run_end(code, start, site, is_movable) == Some(site)
            }
            Kind::After { moved_end, end } => {
                if moved_end <= after || end < moved_end || !is_size(end - site) {
                    return false;
                }
                if run_end(code, after, moved_end, is_movable) == Some(moved_end) {
                    return end == moved_end;
                }
                // The last of them may be a jump or return, and padding may follow it.
                let moved = code.get(after..moved_end);
                let last = moved.and_then(last_of).map(|(at, _)| after + at);
                last.is_some_and(|last| {
                    run_end(code, after, last, is_movable) == Some(last)
                        && run_end(code, last, moved_end, leads_elsewhere) == Some(moved_end)
                        && run_end(code, moved_end, end, is_filler).is_some()
                })
            }
            Kind::Hop { padding } => {
                let is_near = i8::try_from(padding as i128 - after as i128).is_ok();
                is_near
                    && (after <= padding || padding + JUMP_BYTES <= site)
                    && run_end(code, padding, padding + JUMP_BYTES, is_filler).is_some()
            }
        }
    }

    fn overlaps(&self, place: &Range<usize>) -> bool {
        let mut places = self.places().into_iter();
        places.any(|mine| mine.start < place.end && place.start < mine.end)
    }
}

/// Plans the patch of the system call at `site`. `planned` are the patches of this code that were
/// planned before.
///
/// # Errors
///
/// When the site cannot be patched.
pub fn plan(swept: &Swept<'_>, site: usize, planned: &[Patch]) -> Result<Patch, Obstacle> {
    let around = Around {
        swept,
        site,
        planned,
    };
    if around.returns_from_signal() {
        return Err(Obstacle::SignalReturn);
    }
    if !around.is_convincing() {
        return Err(Obstacle::Doubtful);
    }
    let kind = around
        .before()
        .or_else(|| around.after())
        .or_else(|| around.hop())
        .ok_or(Obstacle::NoRoom)?;
    Ok(Patch { site, kind })
}

/// True when a site that cannot be patched seems to make a call about sockets. If the other sites
/// were patched, the library would see only a part of the operations on a connection.
#[must_use]
pub fn leaves_sockets(obstacle: Obstacle, code: &[u8], site: usize) -> bool {
    obstacle == Obstacle::NoRoom && is_about_sockets(code, site)
}

struct Around<'a> {
    swept: &'a Swept<'a>,
    site: usize,
    planned: &'a [Patch],
}

impl Around<'_> {
    /// The neighbours before `syscall`, if enough of them can be moved.
    fn before(&self) -> Option<Kind> {
        // A branch to `syscall` itself would miss the patch.
        if self.swept.is_target(self.site) {
            return None;
        }
        let mut start = self.site;
        for count in 1..=NEIGHBOURS_MAX {
            let previous = self.swept.before(start)?;
            if !is_movable(&self.swept.at(previous)?) || self.is_planned(&(previous..self.site)) {
                return None;
            }
            start = previous;
            if self.site - start >= JUMP_BYTES {
                return (count == 1 || !self.is_near_computed_jump())
                    .then_some(Kind::Before { start });
            }
            if self.swept.is_target(start) {
                return None;
            }
        }
        None
    }

    /// `syscall` and the instructions after it, if enough of them can be moved.
    fn after(&self) -> Option<Kind> {
        let mut end = self.site + SYSCALL_BYTES;
        let mut count = 0;
        loop {
            if self.swept.is_target(end) {
                return None;
            }
            let next = self.swept.at(end)?;
            let is_last = leads_elsewhere(&next);
            if !is_last && !is_movable(&next) {
                return None;
            }
            end += next.bytes();
            count += 1;
            let overwritten = if is_last { self.with_padding(end) } else { end };
            if overwritten - self.site >= JUMP_BYTES {
                let is_free = !self.is_planned(&(self.site..overwritten));
                let is_safe = count == 1 || !self.is_near_computed_jump();
                return (is_free && is_safe).then_some(Kind::After {
                    moved_end: end,
                    end: overwritten,
                });
            }
            if is_last || count == NEIGHBOURS_MAX {
                return None;
            }
        }
    }

    /// `end`, or a later position if padding after it makes room for a jump.
    fn with_padding(&self, end: usize) -> usize {
        let wanted = self.site + JUMP_BYTES;
        let mut at = end;
        while at < wanted && self.is_padding(at) && !self.swept.is_target(at) {
            let Some(instruction) = self.swept.at(at) else {
                return end;
            };
            at += instruction.bytes();
        }
        // A jump may end inside a longer padding instruction: the rest of it is never executed.
        if at >= wanted { end.max(wanted) } else { end }
    }

    /// Padding within the reach of a short jump.
    fn hop(&self) -> Option<Kind> {
        let after = self.site + SYSCALL_BYTES;
        let earliest = after.saturating_sub(128);
        let latest = after + 127;
        (earliest..=latest)
            .find(|&padding| self.is_room(padding))
            .map(|padding| Kind::Hop { padding })
    }

    /// True when unused padding with room for a jump begins at `padding`.
    fn is_room(&self, padding: usize) -> bool {
        let follows_end = || {
            let start = self.swept.before(padding)?;
            let instruction = self.swept.at(start)?;
            // A row of `int3` is padding, and does not end the code before it.
            Some(instruction.flow.ends() && instruction.opcode != 0xcc)
        };
        if self.swept.at(padding).is_none() || follows_end() != Some(true) {
            return false;
        }
        let mut at = padding;
        while at < padding + JUMP_BYTES {
            match self.swept.at(at) {
                Some(instruction) if self.is_padding(at) => at += instruction.bytes(),
                _ => return false,
            }
        }
        let place = padding..padding + JUMP_BYTES;
        !self.swept.has_target(padding..at) && !self.is_planned(&place)
    }

    /// True when the instruction at `at` is one with which compilers fill gaps.
    fn is_padding(&self, at: usize) -> bool {
        self.swept.at(at).is_some_and(|one| is_filler(&one))
    }

    fn is_planned(&self, place: &Range<usize>) -> bool {
        self.planned.iter().any(|patch| patch.overlaps(place))
    }

    /// True when `mov eax, 15` is right before it.
    fn returns_from_signal(&self) -> bool {
        const RT_SIGRETURN: [u8; 4] = 15_u32.to_le_bytes();
        let Some(start) = self.swept.before(self.site) else {
            return false;
        };
        let code = &self.swept.code()[start..self.site];
        matches!(code, [0xb8, number @ ..] | [0x48, 0xc7, 0xc0, number @ ..]
            if number == RT_SIGRETURN)
    }

    /// True when the instructions before it load a system call's number or arguments, and there are
    /// no undecodable bytes between them.
    fn is_convincing(&self) -> bool {
        let mut moves = 0;
        let mut at = self.site;
        for _ in 0..INSTRUCTIONS_THAT_CONVINCE {
            let Some(previous) = self.swept.before(at) else {
                return false;
            };
            let Some(instruction) = self.swept.at(previous) else {
                return false;
            };
            if writes_rax(&instruction) {
                return true;
            }
            // Go's wrapper gets the number in rax: it only moves the arguments to their registers.
            if instruction.map == Map::One && matches!(instruction.opcode, 0x89 | 0x8b) {
                moves += 1;
                if moves == MOVES_THAT_CONVINCE {
                    return true;
                }
            }
            at = previous;
        }
        false
    }

    /// True when a computed jump is before it, near enough to be in the same function.
    fn is_near_computed_jump(&self) -> bool {
        let from = self.site.saturating_sub(FUNCTION_BYTES);
        // A jump through a table of functions (PLT) is relative to the instruction pointer.
        let is_computed = |instruction: &Instruction| {
            instruction.flow == Flow::Computed && !instruction.is_relative_to_itself()
        };
        self.swept.any_between(from, self.site, is_computed)
    }
}

/// The end of the instructions that begin at `from`: at `to`, or after it. `None` unless `is_such`
/// accepts all of them.
fn run_end(
    code: &[u8],
    from: usize,
    to: usize,
    is_such: fn(&Instruction) -> bool,
) -> Option<usize> {
    let mut at = from;
    while at < to {
        let instruction = decode(code.get(at..)?)?;
        at += is_such(&instruction).then(|| instruction.bytes())?;
    }
    // Padding must be there to its end.
    (at <= code.len()).then_some(at)
}

/// True for instructions that may be the last of the moved ones: a near `ret` of one byte, and a
/// jump with a constant target. The stub contains an equivalent jump.
fn leads_elsewhere(instruction: &Instruction) -> bool {
    let is_return = instruction.opcode == RET && instruction.bytes() == 1;
    let is_jump = matches!(instruction.flow, Flow::Jump(_)) && instruction.prefixes == 0;
    instruction.map == Map::One && (is_return || is_jump)
}

/// The last of the instructions in `code`, and its position. `None` when `code` is not a sequence
/// of instructions.
pub(crate) fn last_of(code: &[u8]) -> Option<(usize, Instruction)> {
    let (mut at, mut last) = (0, None);
    while at < code.len() {
        let instruction = decode(&code[at..])?;
        last = Some((at, instruction));
        at += instruction.bytes();
    }
    last
}

/// True for instructions with which compilers fill gaps.
fn is_filler(instruction: &Instruction) -> bool {
    matches!(
        (instruction.map, instruction.opcode),
        (Map::One, 0xcc | 0x90) | (Map::Two, 0x1f)
    ) && instruction.rex & 1 == 0
}

/// True when an instruction puts a value into rax: `mov`, `lea`, `xor`, `pop`, `movsxd`, `movzx`.
fn writes_rax(instruction: &Instruction) -> bool {
    let modrm = instruction.modrm.unwrap_or(0);
    let register_is_rax = modrm >> 3 & 7 == 0 && instruction.rex & 4 == 0;
    let operand_is_rax = modrm & 0xc7 == 0xc0 && instruction.rex & 1 == 0;
    match (instruction.map, instruction.opcode) {
        (Map::One, 0xb8 | 0x58) => instruction.rex & 1 == 0,
        (Map::One, 0x8b | 0x8d | 0x63 | 0x33 | 0x03) => register_is_rax,
        (Map::One, 0xc7 | 0x89 | 0x31 | 0x83 | 0x01 | 0x29) => operand_is_rax,
        (Map::One, 0x98) => true,
        (Map::Two, 0xb6 | 0xb7 | 0x40..=0x4f) => register_is_rax,
        _ => false,
    }
}

const NEIGHBOURS_MAX: usize = 4;
const INSTRUCTIONS_THAT_CONVINCE: usize = 24;
const MOVES_THAT_CONVINCE: usize = 3;
/// The distance within which a computed jump is searched backwards.
const FUNCTION_BYTES: usize = 1024;

/// The distance before a site within which a plan needs decoded instructions.
pub(crate) const PLAN_BYTES_BEFORE: usize = 400;
/// The distance before and after a site within which a plan needs branch targets: the reach of a
/// hop, and the padding there.
pub(crate) const TARGET_BYTES: usize = 128 + JUMP_BYTES + INSTRUCTION_BYTES_MAX;
/// The distance after a site within which a plan needs decoded instructions: short branches may
/// lead back from there.
pub(crate) const PLAN_BYTES_AFTER: usize = TARGET_BYTES + 128 + INSTRUCTION_BYTES_MAX;
const _: () = assert!(PLAN_BYTES_BEFORE > TARGET_BYTES + 128);
// All instructions that are needed as evidence are in reach.
const _: () = assert!(PLAN_BYTES_BEFORE > INSTRUCTIONS_THAT_CONVINCE * INSTRUCTION_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support;

    /// Sweeps `code` and plans all its sites.
    fn plans(code: &[u8]) -> Vec<Result<Patch, Obstacle>> {
        support::with_code(code, |swept| {
            let mut sites = Vec::new();
            swept.sweep(0..code.len(), |at| sites.push(at));
            support::plans(swept, &sites)
        })
    }

    #[test]
    fn a_number_loaded_right_before_is_overwritten() {
        // mov eax, 1; syscall; ret
        let code = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let kind = Kind::Before { start: 0 };
        assert_eq!(plans(&code), [Ok(Patch { site: 5, kind })]);
    }

    #[test]
    fn a_branch_between_the_neighbours_forbids_to_overwrite_them() {
        // jz 7; mov eax, 1; 7: mov edi, eax; syscall; cmp rax, -4096; ret
        let code = [
            0x74, 5, 0xb8, 1, 0, 0, 0, 0x89, 0xc7, 0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff,
            0xc3,
        ];
        let kind = Kind::After {
            moved_end: 17,
            end: 17,
        };
        assert_eq!(plans(&code), [Ok(Patch { site: 9, kind })]);
    }

    #[test]
    fn a_branch_to_the_system_call_itself_forbids_a_patch_before_it() {
        // xor eax, eax; jz 7; mov eax, 1 (5 bytes at 4); 9: syscall; neg rax; ret; nop
        let code = [
            0x31, 0xc0, 0x74, 5, 0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3,
        ];
        let kind = Kind::After {
            moved_end: 14,
            end: 14,
        };
        assert_eq!(plans(&code), [Ok(Patch { site: 9, kind })]);
    }

    #[test]
    fn padding_after_a_return_makes_room() {
        // 0: mov eax, 1; jz 9; nop (2); 9: syscall; ret; int3 …
        let code = [
            0xb8, 1, 0, 0, 0, 0x74, 2, 0x66, 0x90, 0x0f, 0x05, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc,
        ];
        let kind = Kind::After {
            moved_end: 12,
            end: 14,
        };
        assert_eq!(plans(&code), [Ok(Patch { site: 9, kind })]);
    }

    #[test]
    fn a_jump_after_a_site_is_moved() {
        // 0: mov eax, 1; jz 7; 7: syscall; jmp 0
        let code = [
            0xb8, 1, 0, 0, 0, 0x74, 0, 0x0f, 0x05, 0xe9, 0xf2, 0xff, 0xff, 0xff,
        ];
        let kind = Kind::After {
            moved_end: 14,
            end: 14,
        };
        let patch = Patch { site: 7, kind };
        assert_eq!(plans(&code), [Ok(patch)]);
        assert!(patch.fits(&code));
        // A call, and a conditional jump.
        for opcode in [&[0xe8][..], &[0x0f, 0x85]] {
            let code = [&code[..9], opcode, &[0xf2, 0xff, 0xff, 0xff]].concat();
            assert_eq!(plans(&code), [Err(Obstacle::NoRoom)]);
            let (moved_end, end) = (code.len(), code.len());
            let kind = Kind::After { moved_end, end };
            assert!(!Patch { site: 7, kind }.fits(&code));
        }
    }

    #[test]
    fn a_short_hop_leads_to_padding() {
        // mov eax, 1; jz 7; 7: syscall; jz 0; ret; int3 …
        let code = [
            0xb8, 1, 0, 0, 0, 0x74, 0, 0x0f, 0x05, 0x74, 0xf5, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
        ];
        let kind = Kind::Hop { padding: 12 };
        assert_eq!(plans(&code), [Ok(Patch { site: 7, kind })]);
    }

    #[test]
    fn without_room_the_reason_is_reported() {
        // mov eax, 1; jz 7; 7: syscall; jmp 0
        let code = [0xb8, 1, 0, 0, 0, 0x74, 0, 0x0f, 0x05, 0xeb, 0xf5];
        assert_eq!(plans(&code), [Err(Obstacle::NoRoom)]);
    }

    #[test]
    fn a_call_about_sockets_that_has_no_room_is_known() {
        // mov eax, 44 (sendto); jz 7; 7: syscall; jz 0
        let code = [0xb8, 44, 0, 0, 0, 0x74, 0, 0x0f, 0x05, 0x74, 0xf5];
        assert_eq!(plans(&code), [Err(Obstacle::NoRoom)]);
        assert!(leaves_sockets(Obstacle::NoRoom, &code, 7));
        assert!(!leaves_sockets(Obstacle::Doubtful, &code, 7));
        assert!(!leaves_sockets(Obstacle::NoRoom, &[0x0f, 0x05], 0));
    }

    #[test]
    fn the_return_from_a_signal_is_left_alone() {
        let code = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b];
        assert_eq!(plans(&code), [Err(Obstacle::SignalReturn)]);
    }

    #[test]
    fn bytes_that_load_no_number_are_doubtful() {
        let code = [0xcc, 0xcc, 0xcc, 0xcc, 0x0f, 0x05, 0x90, 0x90, 0x90, 0x90];
        assert_eq!(plans(&code), [Err(Obstacle::Doubtful)]);
    }

    #[test]
    fn near_a_computed_jump_only_one_neighbour_is_moved() {
        // jmp rax; mov eax, 1 (5); mov edi, edx (2); syscall; ret: two neighbours would be needed.
        let mut code = vec![0xff, 0xe0, 0xb8, 1, 0, 0, 0, 0x89, 0xd7, 0x0f, 0x05, 0xc3];
        assert_eq!(plans(&code), [Err(Obstacle::NoRoom)]);
        // nop; nop: without the computed jump they may be used.
        (code[0], code[1]) = (0x90, 0x90);
        let kind = Kind::Before { start: 2 };
        assert_eq!(plans(&code), [Ok(Patch { site: 9, kind })]);
    }

    #[test]
    fn a_patch_fits_its_own_code_and_no_other() {
        // mov eax, 1; syscall; ret; int3 …: each kind of patch, and each byte on which it relies.
        let before = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let after = [0x0f, 0x05, 0x89, 0xc7, 0xc3, 0x90, 0x90];
        let hop = [0x0f, 0x05, 0xeb, 0xf5, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
        let patch = |site, kind| Patch { site, kind };
        let (moved_end, end) = (5, 5);
        let cases = [
            (
                &before[..],
                patch(5, Kind::Before { start: 0 }),
                vec![0, 5, 6],
            ),
            (
                &after,
                patch(0, Kind::After { moved_end, end }),
                vec![0, 1, 2, 4],
            ),
            (&hop, patch(0, Kind::Hop { padding: 4 }), vec![0, 1, 4, 8]),
        ];
        for (code, patch, relied_on) in cases {
            assert!(patch.fits(code), "{patch:?}");
            assert!(!patch.fits(&code[..patch.places()[0].end - 1]), "{patch:?}");
            for at in relied_on {
                let mut other = code.to_vec();
                // `hlt` is not movable, not padding and not part of a system call.
                other[at] = 0xf4;
                assert!(!patch.fits(&other), "{patch:?} {at}");
            }
        }
        let ends = [
            (2, 5),
            (5, 4),
            (5, 6),
            (6, 6),
            (5, usize::MAX),
            (usize::MAX, usize::MAX),
        ];
        for (moved_end, end) in ends {
            let kind = Kind::After { moved_end, end };
            assert_eq!(
                patch(0, kind).fits(&after),
                (moved_end, end) == (5, 6),
                "{kind:?}"
            );
        }
        for padding in [0, 1, 2, 3, 5, 200, usize::MAX] {
            assert!(!patch(0, Kind::Hop { padding }).fits(&hop), "{padding}");
        }
        for site in [1, 8, 9, usize::MAX] {
            assert!(!patch(site, Kind::Before { start: 0 }).fits(&before));
        }
        assert!(!patch(5, Kind::Before { start: 9 }).fits(&before));
    }

    #[test]
    fn two_patches_never_overlap() {
        // mov eax, 1; jz 7; 7: syscall; mov edi, eax; mov eax, 2 (5); syscall; ret
        let code = [
            0xb8, 1, 0, 0, 0, 0x74, 0, 0x0f, 0x05, 0x89, 0xc7, 0x90, 0x0f, 0x05, 0x48, 0x89, 0xc7,
            0xc3,
        ];
        let patches: Vec<Patch> = plans(&code).into_iter().flatten().collect();
        for (n, one) in patches.iter().enumerate() {
            for other in &patches[n + 1..] {
                assert!(!other.places().iter().any(|place| one.overlaps(place)));
            }
        }
        assert!(!patches.is_empty());
    }
}
