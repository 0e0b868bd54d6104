//! Stored plans: the patches of a program, for its next start.
//!
//! The plans are in a directory of this user: `toehold-plans` in the user's runtime directory, or
//! `/tmp/toehold-plans-UID`. The directory has a fixed number of entries, each a file. The
//! program's device and inode select the entry, and an entry for another program is overwritten. So
//! the directory cannot grow, and no search is needed.
//!
//! ```text
//! magic │ planner │ program │ a count for each segment of code │ patches, four numbers each │ sum
//! ```
//!
//! - *Planner* and *program* identify this program's file and the other program's file, each in its
//!   current version ([`Version`]). A build id would not suffice, because edited and stripped
//!   copies of a program keep it.
//! - A file that was changed a moment ago may change again and keep its version. Its plan is not
//!   stored.
//! - A user who can write entries could make us overwrite wrong bytes. So the directory and the
//!   entry must belong to this user, and no other user may enter or read them. They are opened
//!   without following links, and everything is done relative to the checked directory.
//! - An entry may be incomplete, because it is written under its final name: the checksum shows
//!   that. The patches of a complete entry are compared with the program's code ([`Patch::fits`]),
//!   and no two may overlap.
//!
//! On any error the plan is made again, without a message.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;

use toehold_freestanding::call;
use toehold_sites::plan::{Kind, Patch};

use super::file::Version;
use super::system::{self, Error, File, Result, checked, push_decimal};

/// The directory, opened and checked.
#[derive(Debug)]
pub(crate) struct Plans {
    directory: File,
    planner: Version,
}

impl Plans {
    /// The plans of this user, in the runtime directory `named` or in the usual one. Plans for
    /// another `library` are not used, because the planner is installed with the library.
    pub(crate) fn of_user(named: Option<&CStr>, library: &CStr) -> Result<Plans> {
        let planner = Version::of(&system::status(libc::AT_FDCWD, library, 0)?);
        Plans::open(&path(named), planner)
    }

    /// The plans in the directory at `path`, which is made if it is missing. The path ends with a
    /// null byte.
    fn open(path: &[u8], planner: Version) -> Result<Plans> {
        let path = CStr::from_bytes_with_nul(path).map_err(|_| bad())?;
        // SAFETY: a path that ends with a null byte.
        let made = unsafe { call!(SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o700) };
        match checked(made) {
            Ok(_) | Err(Error::Kernel(libc::EEXIST)) => {}
            Err(error) => return Err(error),
        }
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_RDONLY;
        let directory = File::open(path, flags)?;
        check_private(&directory.status()?)?;
        Ok(Plans { directory, planner })
    }

    /// The patches of each of the `codes` of a program, which are the bytes of its code segments.
    pub(crate) fn find(&self, program: Version, codes: &[&[u8]]) -> Result<Vec<Vec<Patch>>> {
        // O_NONBLOCK, so that a pipe in this place does not block.
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = self.entry(program, flags)?;
        let status = file.status()?;
        check_private(&status)?;
        let is_file = status.st_mode & libc::S_IFMT == libc::S_IFREG;
        if !is_file || status.st_size as u64 > ENTRY_BYTES_MAX as u64 {
            return Err(bad());
        }
        let bytes = file.read_to_end(ENTRY_BYTES_MAX)?;
        self.parse(program, codes, &bytes).ok_or_else(bad)
    }

    /// Opens or makes the entry of a program.
    fn entry(&self, program: Version, flags: i32) -> Result<File> {
        let directory = self.directory.as_raw_fd();
        File::open_at(directory, &Name::of(program), flags, 0o600)
    }

    /// Removes the entry of a program.
    fn remove(&self, program: Version) {
        let name = Name::of(program);
        let directory = self.directory.as_raw_fd();
        // SAFETY: a name that ends with a null byte.
        unsafe { call!(SYS_unlinkat, directory, name.as_ptr(), 0) };
    }

    /// Parses an entry; `None` unless it is complete and for this program.
    fn parse(&self, program: Version, codes: &[&[u8]], bytes: &[u8]) -> Option<Vec<Vec<Patch>>> {
        let (content, sum) = bytes.split_last_chunk::<8>()?;
        if *sum != self::sum(content).to_le_bytes() {
            return None;
        }
        let mut rest = content.strip_prefix(&*self.head(program))?;
        let mut word = || -> Option<u32> {
            let (word, after) = rest.split_first_chunk::<4>()?;
            rest = after;
            Some(u32::from_le_bytes(*word))
        };
        if word()? as usize != codes.len() {
            return None;
        }
        let counts: Vec<u32> = codes.iter().map(|_| word()).collect::<Option<_>>()?;
        let mut all = Vec::new();
        for (code, count) in codes.iter().zip(counts) {
            let words = || Some([word()?, word()?, word()?, word()?]);
            let words = core::iter::repeat_with(words).take(count as usize);
            let patches: Vec<Patch> = words.map(|words| patch(words?)).collect::<Option<_>>()?;
            if !are_apart(&patches) || !patches.iter().all(|patch| patch.fits(code)) {
                return None;
            }
            all.push(patches);
        }
        rest.is_empty().then_some(all)
    }

    /// Stores the patches of each code segment of a program. `now` is the time in seconds since
    /// 1970.
    pub(crate) fn keep(&self, now: u64, program: Version, patches: &[&[Patch]]) -> Result<()> {
        if !program.is_settled(now) {
            return Err(Error::Failed("the program's file has just been changed"));
        }
        let mut bytes = self.head(program);
        let mut put = |word: usize| -> Result<()> {
            let word = u32::try_from(word).map_err(|_| bad())?;
            bytes.extend_from_slice(&word.to_le_bytes());
            Ok(())
        };
        put(patches.len())?;
        patches.iter().try_for_each(|patches| put(patches.len()))?;
        for patch in patches.iter().copied().flatten() {
            words(patch).into_iter().try_for_each(&mut put)?;
        }
        bytes.extend_from_slice(&sum(&bytes).to_le_bytes());
        if bytes.len() > ENTRY_BYTES_MAX {
            return Err(Error::Failed("the program has too many system calls"));
        }
        // An existing file or link with this name is replaced, never written to.
        self.remove(program);
        let file = self.entry(program, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
        file.write_all(&bytes).inspect_err(|_| self.remove(program))
    }

    fn head(&self, program: Version) -> Vec<u8> {
        let words = [MAGIC].into_iter().chain(self.planner.installed());
        let words = words.chain(program.words());
        words.flat_map(u64::to_le_bytes).collect()
    }
}

/// The path of this user's plans, with a null byte. Helpers of the library have no environment.
fn path(named: Option<&CStr>) -> Vec<u8> {
    let mut usual = b"/run/user/".to_vec();
    push_decimal(&mut usual, system::user());
    usual.push(0);
    let usual = CStr::from_bytes_with_nul(&usual).unwrap_or(c"");
    let is_directory = |path: &&CStr| {
        let status = system::status(libc::AT_FDCWD, path, 0);
        status.is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFDIR)
    };
    // A user could not remove root's directory inside the user's own directory.
    let is_another_s = |path: &&CStr| {
        let status = system::status(libc::AT_FDCWD, path, 0);
        status.is_ok_and(|status| status.st_uid != system::user())
    };
    let named = named.filter(|path| path.to_bytes().starts_with(b"/") && !is_another_s(path));
    let mut path = Vec::new();
    match named.or_else(|| Some(usual).filter(is_directory)) {
        Some(runtime) => {
            path.extend_from_slice(runtime.to_bytes());
            path.extend_from_slice(b"/toehold-plans");
        }
        None => {
            path.extend_from_slice(b"/tmp/toehold-plans-");
            push_decimal(&mut path, system::user());
        }
    }
    path.push(0);
    path
}

/// The file name of an entry.
struct Name([u8; 3]);

impl Name {
    /// The name of a program's entry.
    fn of(program: Version) -> Name {
        let digit = |number: u64| b"0123456789abcdef"[number as usize % 16];
        let number = program.mixed() % ENTRIES;
        Name([digit(number / 16), digit(number), 0])
    }
}

impl core::ops::Deref for Name {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0).unwrap_or(c"")
    }
}

/// Rejects files that belong to another user, and files that others may use.
fn check_private(status: &libc::stat) -> Result<()> {
    let is_private = status.st_uid == system::user() && status.st_mode & 0o077 == 0;
    is_private.then_some(()).ok_or_else(bad)
}

/// True when no two patches overwrite the same byte.
fn are_apart(patches: &[Patch]) -> bool {
    let places = patches.iter().flat_map(Patch::places);
    let mut places: Vec<Range<usize>> = places.filter(|place| !place.is_empty()).collect();
    places.sort_unstable_by_key(|place| place.start);
    places.windows(2).all(|two| two[0].end <= two[1].start)
}

/// A patch as four numbers: its kind, its site, and two numbers of the kind.
fn words(patch: &Patch) -> [usize; 4] {
    match patch.kind {
        Kind::Before { start } => [0, patch.site, start, 0],
        Kind::After { moved_end, end } => [1, patch.site, moved_end, end],
        Kind::Hop { padding } => [2, patch.site, padding, 0],
    }
}

fn patch(words: [u32; 4]) -> Option<Patch> {
    let [kind, site, a, b] = words.map(|word| word as usize);
    let kind = match kind {
        0 => Kind::Before { start: a },
        1 => Kind::After {
            moved_end: a,
            end: b,
        },
        2 => Kind::Hop { padding: a },
        _ => return None,
    };
    Some(Patch { site, kind })
}

/// A checksum against incomplete entries, not against forged ones (FNV-1a).
fn sum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn bad() -> Error {
    Error::Failed("there is no such plan")
}

/// `TOEPLAN1`.
const MAGIC: u64 = u64::from_le_bytes(*b"TOEPLAN1");
const ENTRIES: u64 = 64;
/// An entry has room for 8000 system calls. The directory uses at most 8 MiB.
const ENTRY_BYTES_MAX: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::{Path, PathBuf};

    use super::*;

    // mov eax, 1; syscall; ret, twice; and no system call.
    const CODE: &[u8] = &[
        0xb8, 1, 0, 0, 0, 0x0f, 5, 0xc3, 0xb8, 1, 0, 0, 0, 0x0f, 5, 0xc3,
    ];
    const CODES: [&[u8]; 2] = [CODE, &[0xc3]];

    fn planned() -> [Vec<Patch>; 2] {
        let at = |start| Patch {
            site: start + 5,
            kind: Kind::Before { start },
        };
        [vec![at(0), at(8)], Vec::new()]
    }

    fn version(path: &Path) -> Version {
        let mut path = path.as_os_str().as_bytes().to_vec();
        path.push(0);
        let path = CStr::from_bytes_with_nul(&path).expect("no null bytes");
        Version::of(&system::status(libc::AT_FDCWD, path, 0).expect("a file"))
    }

    fn open(path: &Path) -> Result<Plans> {
        let mut path = path.as_os_str().as_bytes().to_vec();
        path.push(0);
        Plans::open(&path, version(Path::new("/proc/self/exe")))
    }

    fn later() -> u64 {
        system::seconds() + 60
    }

    fn name(program: Version) -> String {
        Name::of(program).to_str().expect("digits").into()
    }

    #[test]
    fn plans_are_not_kept_in_another_user_s_directory() {
        let scratch = tempfile::tempdir().expect("room");
        let mut named = scratch.path().as_os_str().as_bytes().to_vec();
        named.push(0);
        let named = CStr::from_bytes_with_nul(&named).expect("no null bytes");
        assert!(path(Some(named)).starts_with(named.to_bytes()));
        // Only root can give a directory away.
        if chown(scratch.path(), Some(65_534), None).is_ok() {
            assert!(!path(Some(named)).starts_with(named.to_bytes()));
        }
    }

    struct Bench {
        scratch: tempfile::TempDir,
        plans: Plans,
        program: Version,
    }

    impl Bench {
        fn new() -> Bench {
            let scratch = tempfile::tempdir().expect("room");
            let plans = open(&scratch.path().join("plans")).expect("a directory");
            let file = scratch.path().join("program");
            fs::write(&file, CODE).expect("room");
            let program = version(&file);
            Bench {
                scratch,
                plans,
                program,
            }
        }

        fn directory(&self) -> PathBuf {
            self.scratch.path().join("plans")
        }

        fn entry(&self) -> PathBuf {
            self.directory().join(name(self.program))
        }

        fn keep(&self) -> Result<()> {
            let planned = planned();
            let patches = planned.each_ref().map(|patches| &patches[..]);
            self.plans.keep(later(), self.program, &patches)
        }

        fn find(&self) -> Option<Vec<Vec<Patch>>> {
            self.plans.find(self.program, &CODES).ok()
        }
    }

    #[test]
    fn a_plan_is_found_again_and_its_entry_is_private() {
        let bench = Bench::new();
        assert_eq!(bench.find(), None);
        bench.keep().expect("room");
        assert_eq!(bench.find().as_deref(), Some(&planned()[..]));
        let mode = |path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode(bench.directory()), mode(bench.entry())),
            (0o700, 0o600)
        );
        // The second time, the entry is replaced.
        bench.keep().expect("room");
        assert_eq!(fs::read_dir(bench.directory()).expect("ours").count(), 1);
    }

    #[test]
    fn the_plan_of_a_changed_program_or_of_another_toehold_is_not_used() {
        let mut bench = Bench::new();
        bench.keep().expect("room");
        let (program, planner) = (bench.program, bench.plans.planner);
        bench.program = program.with_another_change();
        assert_eq!(name(program), name(bench.program));
        assert_eq!(bench.find(), None);
        bench.program = program;
        bench.plans.planner = planner.with_another_change();
        assert_eq!(bench.find(), None);
        bench.plans.planner = planner;
        assert!(bench.find().is_some());
    }

    #[test]
    fn the_plan_of_a_program_that_has_just_been_changed_is_not_kept() {
        let bench = Bench::new();
        let kept = bench.plans.keep(system::seconds(), bench.program, &[]);
        assert!(kept.is_err());
        // The time is before the change, as with a clock that was set back.
        let kept = bench.plans.keep(0, bench.program, &[]);
        assert!(kept.is_err());
        assert!(!bench.entry().exists());
    }

    #[test]
    fn an_entry_that_is_torn_or_has_a_wrong_byte_is_refused() {
        let bench = Bench::new();
        bench.keep().expect("room");
        let whole = fs::read(bench.entry()).expect("ours");
        for length in 0..whole.len() {
            fs::write(bench.entry(), &whole[..length]).expect("room");
            assert_eq!(bench.find(), None, "{length}");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x11;
            fs::write(bench.entry(), &wrong).expect("room");
            assert_eq!(bench.find(), None, "{at}");
        }
        fs::write(bench.entry(), vec![0; ENTRY_BYTES_MAX + 1]).expect("room");
        assert_eq!(bench.find(), None);
        bench.keep().expect("room");
        assert!(bench.find().is_some());
    }

    #[test]
    fn a_forged_entry_overwrites_nothing_but_whole_instructions_at_system_calls() {
        let bench = Bench::new();
        let forged = |patches: &[Patch]| {
            let kept = bench.plans.keep(later(), bench.program, &[patches, &[]]);
            kept.expect("room");
            bench.find().is_some()
        };
        let [good, _] = planned();
        assert!(forged(&good));
        let before = |site, start| Patch {
            site,
            kind: Kind::Before { start },
        };
        for wrong in [
            before(5, 8),
            before(13, 7),
            before(14, 8),
            before(u32::MAX as usize, 0),
        ] {
            assert!(!forged(&[wrong]), "{wrong:?}");
        }
        assert!(!forged(&[good[0], good[0]]));
        // The largest possible number of patches.
        let mut bytes = fs::read(bench.entry()).expect("ours");
        let head = bench.plans.head(bench.program).len();
        bytes[head + 4..][..4].fill(0xff);
        bytes.truncate(bytes.len() - 8);
        bytes.extend(sum(&bytes).to_le_bytes());
        fs::write(bench.entry(), &bytes).expect("room");
        assert_eq!(bench.find(), None);
    }

    #[test]
    fn links_pipes_and_entries_of_others_are_refused_and_replaced() {
        let bench = Bench::new();
        bench.keep().expect("room");
        let elsewhere = bench.scratch.path().join("elsewhere");
        fs::rename(bench.entry(), &elsewhere).expect("ours");
        symlink(&elsewhere, bench.entry()).expect("room");
        assert_eq!(bench.find(), None);
        bench.keep().expect("room");
        assert!(!bench.entry().is_symlink() && bench.find().is_some());
        fs::remove_file(bench.entry()).expect("ours");
        let directory = bench.plans.directory.as_raw_fd();
        // SAFETY: a name that ends with a null byte.
        let made = unsafe { libc::mkfifoat(directory, Name::of(bench.program).as_ptr(), 0o600) };
        assert_eq!(made, 0);
        assert_eq!(bench.find(), None);
        bench.keep().expect("room");
        for mode in [0o640, 0o602] {
            fs::set_permissions(bench.entry(), fs::Permissions::from_mode(mode)).expect("ours");
            assert_eq!(bench.find(), None, "{mode:o}");
        }
        if system::user() == 0 {
            bench.keep().expect("room");
            chown(bench.entry(), Some(65_534), None).expect("root");
            assert_eq!(bench.find(), None);
        }
    }

    #[test]
    fn a_directory_that_is_a_link_or_not_private_or_of_another_user_is_refused() {
        let bench = Bench::new();
        let directory = bench.directory();
        let link = bench.scratch.path().join("link");
        symlink(&directory, &link).expect("room");
        assert!(open(&link).is_err());
        assert!(open(&bench.scratch.path().join("program")).is_err());
        assert!(open(&bench.scratch.path().join("no/plans")).is_err());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o750)).expect("ours");
        assert!(open(&directory).is_err());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("ours");
        assert!(open(&directory).is_ok());
        if system::user() == 0 {
            chown(&directory, Some(65_534), None).expect("root");
            assert!(open(&directory).is_err());
        }
    }

    #[test]
    fn a_directory_that_takes_no_entries_keeps_none() {
        let bench = Bench::new();
        bench.keep().expect("room");
        // No file can be made in a deleted directory, whatever rights the process has.
        fs::remove_dir_all(bench.directory()).expect("ours");
        assert!(bench.keep().is_err());
        assert_eq!(bench.find(), None);
    }
}
