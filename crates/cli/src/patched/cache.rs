//! The patches of programs that were planned before, so that a start need not sweep all code again.
//!
//! A file in the user's cache directory has the patches of one program:
//!
//! ```text
//! words   form of this file │ program │ launcher │ for each segment of code: count, patches │ sum
//! ```
//!
//! The program is known by its inode, length and times of change, which no program can set. A build
//! id would not do: edited and stripped copies keep theirs. The launcher is known in the same way,
//! because another one may plan otherwise.
//!
//! # Trust
//!
//! The directory and the file must belong to this user, and nobody else may write them. The patches
//! are checked against the program's code all the same: one that does not fit is a reason to sweep.
//! Every failure here means: no cache.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use toehold_sites::plan::{Kind, Patch};

/// The form of the file.
const FORM: u64 = 0x746f_6568_6f6c_6401;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// When there are more, all are forgotten.
const FILES_MAX: usize = 512;
/// A file that changed this recently may change again without another time.
const SETTLED: Duration = Duration::from_secs(2);

/// One program's place in the cache.
#[derive(Debug)]
pub(crate) struct Place {
    directory: PathBuf,
    path: PathBuf,
    identity: Vec<u64>,
    is_settled: bool,
}

impl Place {
    /// The place of the program in `file`; `None` without a directory for it.
    pub(crate) fn of(file: &File) -> Option<Place> {
        let variable = |name| env::var_os(name).map(PathBuf::from);
        let caches = variable("XDG_CACHE_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".cache")))
            .filter(|path| path.is_absolute())?;
        Place::below(&caches, file)
    }

    fn below(caches: &Path, file: &File) -> Option<Place> {
        let program = file.metadata().ok()?;
        let launcher = fs::metadata("/proc/self/exe").ok()?;
        let mut identity = vec![FORM];
        for one in [&program, &launcher] {
            identity.extend([one.dev(), one.ino(), one.size()]);
            let times = [one.mtime(), one.mtime_nsec(), one.ctime(), one.ctime_nsec()];
            identity.extend(times.map(i64::cast_unsigned));
        }
        let changed = Duration::new(
            u64::try_from(program.ctime()).ok()?,
            u32::try_from(program.ctime_nsec()).ok()?,
        );
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed);
        let directory = caches.join("toehold").join("sites");
        let name = format!("{:016x}", sum(&identity[1..3]));
        Some(Place {
            path: directory.join(name),
            directory,
            identity,
            is_settled: age.is_ok_and(|age| age > SETTLED),
        })
    }

    /// The patches for these pieces of code, as they were kept.
    pub(crate) fn find(&self, codes: &[&[u8]]) -> Option<Vec<Vec<Patch>>> {
        if !is_ours_alone(&fs::symlink_metadata(&self.directory).ok()?) {
            return None;
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&self.path).ok()?;
        let about = file.metadata().ok()?;
        if !about.is_file() || !is_ours_alone(&about) || about.len() > FILE_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let words = bytes.chunks_exact(8).map(|word| {
            let word = word.try_into().expect("eight bytes");
            u64::from_le_bytes(word)
        });
        let words: Vec<u64> = words.collect();
        let (last, words) = words.split_last()?;
        let rest = words.strip_prefix(self.identity.as_slice())?;
        if *last != sum(words) {
            return None;
        }
        read(rest, codes)
    }

    /// Keeps the patches of each piece of code, if it can.
    pub(crate) fn keep(&self, patches: &[&[Patch]]) {
        let mut words = self.identity.clone();
        for patches in patches {
            words.push(patches.len() as u64);
            words.extend(patches.iter().flat_map(words_of));
        }
        words.push(sum(&words));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if self.is_settled {
            // The next start sweeps again.
            let _ = self.write(&bytes);
        }
    }

    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        if !is_ours_alone(&fs::symlink_metadata(&self.directory)?) {
            return Ok(());
        }
        let kept: Vec<PathBuf> = fs::read_dir(&self.directory)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        if kept.len() >= FILES_MAX {
            kept.iter().try_for_each(fs::remove_file)?;
        }
        // Another start may write the same file: whole, and then in its place.
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(bytes)?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// True when a file is this user's, and nobody else may write it.
fn is_ours_alone(about: &fs::Metadata) -> bool {
    let user = rustix::process::geteuid().as_raw();
    about.uid() == user && about.mode() & 0o022 == 0 && !about.is_symlink()
}

fn words_of(patch: &Patch) -> [u64; 4] {
    let (kind, a, b) = match patch.kind {
        Kind::Before { start } => (0, start, 0),
        Kind::After { moved_end, end } => (1, moved_end, end),
        Kind::Hop { padding } => (2, padding, 0),
    };
    [patch.site as u64, kind, a as u64, b as u64]
}

fn patch_of(words: &[u64]) -> Option<Patch> {
    let number = |n: usize| usize::try_from(*words.get(n)?).ok();
    let kind = match *words.get(1)? {
        0 => Kind::Before { start: number(2)? },
        1 => Kind::After {
            moved_end: number(2)?,
            end: number(3)?,
        },
        2 => Kind::Hop {
            padding: number(2)?,
        },
        _ => return None,
    };
    Some(Patch {
        site: number(0)?,
        kind,
    })
}

/// The patches of each piece of code; `None` when one does not fit.
fn read(mut words: &[u64], codes: &[&[u8]]) -> Option<Vec<Vec<Patch>>> {
    let mut all = Vec::new();
    for code in codes {
        let (count, rest) = words.split_first()?;
        let bytes = usize::try_from(*count).ok()?.checked_mul(4)?;
        let (these, rest) = rest.split_at_checked(bytes)?;
        let mut patches: Vec<Patch> = Vec::new();
        for four in these.chunks_exact(4) {
            let patch = patch_of(four)?;
            if !patch.fits(code, &patches) {
                return None;
            }
            patches.push(patch);
        }
        all.push(patches);
        words = rest;
    }
    words.is_empty().then_some(all)
}

/// Tells apart what a failing disk or a writer of another program has left (FNV-1a).
fn sum(words: &[u64]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// `mov eax, 1; syscall; ret`, twice.
    const CODE: [u8; 16] = [
        0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3, 0xb8, 2, 0, 0, 0, 0x0f, 0x05, 0xc3,
    ];

    fn patches() -> Vec<Patch> {
        let patch = |start: usize| Patch {
            site: start + 5,
            kind: Kind::Before { start },
        };
        vec![patch(0), patch(8)]
    }

    fn place(caches: &Path) -> Place {
        let program = File::open("/proc/self/exe").expect("this test");
        let mut place = Place::below(caches, &program).expect("a place");
        place.is_settled = true;
        place
    }

    #[test]
    fn kept_patches_are_found() {
        let caches = tempfile::tempdir().expect("scratch");
        let place = place(caches.path());
        assert_eq!(place.find(&[&CODE]), None);
        place.keep(&[&patches()]);
        assert_eq!(place.find(&[&CODE]), Some(vec![patches()]));
    }

    #[test]
    fn patches_of_other_code_are_none() {
        let caches = tempfile::tempdir().expect("scratch");
        let place = place(caches.path());
        place.keep(&[&patches()]);
        let mut other = CODE;
        other[6] = 0x0b;
        assert_eq!(place.find(&[&other]), None);
        assert_eq!(place.find(&[&CODE[..14]]), None);
        assert_eq!(place.find(&[&CODE, &CODE]), None);
        assert_eq!(place.find(&[]), None);
    }

    #[test]
    fn a_changed_program_is_another() {
        let caches = tempfile::tempdir().expect("scratch");
        let mut place = place(caches.path());
        place.keep(&[&patches()]);
        place.identity[6] += 1;
        assert_eq!(place.find(&[&CODE]), None);
    }

    #[test]
    fn every_damaged_file_is_ignored() {
        let caches = tempfile::tempdir().expect("scratch");
        let place = place(caches.path());
        place.keep(&[&patches()]);
        let whole = fs::read(&place.path).expect("kept");
        for len in 0..whole.len() {
            fs::write(&place.path, &whole[..len]).expect("ours");
            assert_eq!(place.find(&[&CODE]), None, "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&place.path, &damaged).expect("ours");
            assert_eq!(place.find(&[&CODE]), None, "byte {at}");
        }
    }

    #[test]
    fn files_that_others_may_write_are_ignored() {
        let caches = tempfile::tempdir().expect("scratch");
        let place = place(caches.path());
        place.keep(&[&patches()]);
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        };
        mode(&place.path, 0o666);
        assert_eq!(place.find(&[&CODE]), None);
        mode(&place.path, 0o600);
        mode(&place.directory, 0o777);
        assert_eq!(place.find(&[&CODE]), None);
        mode(&place.directory, 0o700);
        assert_eq!(place.find(&[&CODE]), Some(vec![patches()]));
    }
}
