//! The runtime directory, in which the programs of a user find the adapter.
//!
//! It contains the adapter's socket, and a user that can write to it can pose as the adapter. So it
//! is accepted only if it is a real directory (no symbolic link), belongs to this user, and no
//! other user can enter it. Any other directory is refused, with a sentence that tells what to do;
//! the caller then stays on the host path.
//!
//! Its path is, in this order: `--runtime-dir`; `$TOEHOLD_RUNTIME_DIR`; `$XDG_RUNTIME_DIR/toehold`,
//! if that directory is this user's (`sudo -E` leaves another user's); `/tmp/toehold-UID`.
//!
//! The *system adapter* serves all users. Its directory is `$TOEHOLD_SYSTEM_DIR`, or `/run/toehold`
//! without that variable. It belongs to root, all users may enter it, and only root may change it.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A runtime directory that was checked: not a link, and either ours and private or the system
/// adapter's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir {
    path: PathBuf,
    is_system: bool,
}

impl RuntimeDir {
    /// Opens the directory at `path`, creating it (mode 0700) when it does not exist.
    ///
    /// # Errors
    ///
    /// Everything [`RuntimeDir::open`] refuses, and a directory that cannot be created.
    pub fn open_or_create(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        check_length(path)?;
        check_parent(path)?;
        create(path, DIR_MODE)?;
        RuntimeDir::open(path)
    }

    /// Opens the directory at `path`, which has to exist already.
    ///
    /// # Errors
    ///
    /// See [`RuntimeDirError`]: a missing directory, a link, another owner, a mode that lets
    /// others in, a parent in which others could replace it, or a path too long for a socket.
    pub fn open(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        check_length(path)?;
        let entry = directory(path)?;
        if entry.uid() != user_id() {
            return Err(RuntimeDirError::ForeignOwner {
                path: path.into(),
                uid: entry.uid(),
            });
        }
        let mode = entry.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(RuntimeDirError::OpenToOthers {
                path: path.into(),
                mode,
            });
        }
        check_parent(path)?;
        Ok(RuntimeDir {
            path: path.into(),
            is_system: false,
        })
    }

    /// Opens the system adapter's directory at `path`, creating it (mode 0755) when it does not
    /// exist. For root.
    ///
    /// # Errors
    ///
    /// Everything [`RuntimeDir::open_system`] refuses, and a directory that cannot be created.
    pub fn open_or_create_system(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        check_length(path)?;
        check_parent(path)?;
        if create(path, SYSTEM_DIR_MODE)? {
            // The umask may have taken bits away.
            fs::set_permissions(path, fs::Permissions::from_mode(SYSTEM_DIR_MODE))
                .map_err(|error| RuntimeDirError::io("open to all", path, error))?;
        }
        RuntimeDir::open_system(path)
    }

    /// Opens the system adapter's directory at `path`, which has to exist already.
    ///
    /// # Errors
    ///
    /// See [`RuntimeDirError`]: a missing directory, a link, another owner than root, a mode that
    /// lets others write, a parent in which others could replace it, or a path too long for a
    /// socket.
    pub fn open_system(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        check_length(path)?;
        let entry = directory(path)?;
        if entry.uid() != ROOT {
            return Err(RuntimeDirError::NotRoots {
                path: path.into(),
                uid: entry.uid(),
            });
        }
        let mode = entry.mode() & 0o7777;
        if mode & 0o022 != 0 {
            return Err(RuntimeDirError::WritableToOthers {
                path: path.into(),
                mode,
            });
        }
        check_parent(path)?;
        Ok(RuntimeDir {
            path: path.into(),
            is_system: true,
        })
    }

    /// Opens a directory as a client does: this user's own, or the system adapter's.
    ///
    /// # Errors
    ///
    /// Those of [`RuntimeDir::open`], when it is neither.
    pub fn open_either(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        RuntimeDir::open(path).or_else(|error| RuntimeDir::open_system(path).map_err(|_| error))
    }

    /// Whether it is the system adapter's.
    pub fn is_system(&self) -> bool {
        self.is_system
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the adapter of this directory listens.
    pub fn socket_path(&self) -> PathBuf {
        self.path.join(SOCKET_NAME)
    }
}

/// The path of the runtime directory without an option: from the environment, or
/// `/tmp/toehold-UID`.
pub fn default_path() -> PathBuf {
    default_path_from(|name| std::env::var_os(name), owner, user_id())
}

/// The path of the system adapter's directory: from the environment, or `/run/toehold`.
pub fn system_path() -> PathBuf {
    system_path_from(|name| std::env::var_os(name))
}

fn system_path_from(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let named = variable("TOEHOLD_SYSTEM_DIR").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named.unwrap_or_else(|| SYSTEM_PATH.into())
}

/// As [`default_path`], but ignores `$TOEHOLD_RUNTIME_DIR`.
pub fn default_path_without_ours() -> PathBuf {
    let others = |name: &str| {
        (name != OWN_VARIABLE)
            .then(|| std::env::var_os(name))
            .flatten()
    };
    default_path_from(others, owner, user_id())
}

/// The owner of a directory that is there.
fn owner(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|entry| entry.uid())
}

fn default_path_from(
    variable: impl Fn(&str) -> Option<OsString>,
    owner: impl Fn(&Path) -> Option<u32>,
    uid: u32,
) -> PathBuf {
    // The XDG specification asks for absolute paths and for ignoring any other; a relative path of
    // our own variable would mean another directory after every chdir.
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    if let Some(path) = absolute(OWN_VARIABLE) {
        return path;
    }
    // If root made a directory there, the other user could not remove it.
    let is_ours = |base: &PathBuf| owner(base).is_none_or(|owner| owner == uid);
    match absolute("XDG_RUNTIME_DIR").filter(is_ours) {
        Some(base) => base.join("toehold"),
        None => PathBuf::from(format!("/tmp/toehold-{uid}")),
    }
}

/// The reason why a runtime directory was refused.
#[derive(Debug)]
pub enum RuntimeDirError {
    /// It is a symbolic link, which its owner could point elsewhere at any time.
    Link {
        /// The path that was refused.
        path: PathBuf,
    },
    /// The path is not a directory.
    NotADirectory {
        /// The path that was refused.
        path: PathBuf,
    },
    /// Another user owns it.
    ForeignOwner {
        /// The path that was refused.
        path: PathBuf,
        /// The owner.
        uid: u32,
    },
    /// Its mode lets other users in.
    OpenToOthers {
        /// The path that was refused.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The system adapter's directory belongs to a user who is not root.
    NotRoots {
        /// The path that was refused.
        path: PathBuf,
        /// The owner.
        uid: u32,
    },
    /// The mode of the system adapter's directory lets other users write.
    WritableToOthers {
        /// The path that was refused.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Others may replace it, because they can write to the directory above it.
    ParentOpen {
        /// The directory above the refused one.
        parent: PathBuf,
    },
    /// Its path leaves no room for the name of a socket.
    TooLong {
        /// The path that was refused.
        path: PathBuf,
    },
    /// The operating system said no.
    Io {
        /// The attempted action: "create" or "look at".
        action: &'static str,
        /// The path it was tried on.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl RuntimeDirError {
    fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        RuntimeDirError::Io {
            action,
            path: path.into(),
            source,
        }
    }

    /// Whether the directory merely does not exist yet.
    pub fn is_missing(&self) -> bool {
        match self {
            RuntimeDirError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

impl fmt::Display for RuntimeDirError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuntimeDirError::Link { path } => write!(
                out,
                "runtime directory {} is a symbolic link; remove it or name another with \
                --runtime-dir",
                path.display()
            ),
            RuntimeDirError::NotADirectory { path } => write!(
                out,
                "{} is not a directory; remove it or name another with --runtime-dir",
                path.display()
            ),
            RuntimeDirError::ForeignOwner { path, uid } => write!(
                out,
                "runtime directory {} belongs to user {uid}, not to you; name another with \
                --runtime-dir",
                path.display()
            ),
            RuntimeDirError::OpenToOthers { path, mode } => write!(
                out,
                "runtime directory {} lets other users in (mode {mode:04o}); run: chmod 700 {}",
                path.display(),
                path.display()
            ),
            RuntimeDirError::NotRoots { path, uid } => write!(
                out,
                "directory {} of the system adapter belongs to user {uid}, not to root",
                path.display()
            ),
            RuntimeDirError::WritableToOthers { path, mode } => write!(
                out,
                "other users can write to directory {} of the system adapter (mode {mode:04o}); \
                 run: chmod 755 {}",
                path.display(),
                path.display()
            ),
            RuntimeDirError::ParentOpen { parent } => write!(
                out,
                "other users can replace the runtime directory, because {} is theirs or writable \
                 to them, without the sticky bit; name another with --runtime-dir",
                parent.display()
            ),
            RuntimeDirError::TooLong { path } => write!(
                out,
                "runtime directory {} is too long for a socket's address ({PATH_BYTES_MAX} bytes); \
                 name a shorter one with --runtime-dir",
                path.display()
            ),
            RuntimeDirError::Io {
                action,
                path,
                source,
            } => {
                write!(
                    out,
                    "cannot {action} the runtime directory {}: {source}",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for RuntimeDirError {}

/// The metadata of `path`, which has to be a directory and not a link to one.
fn directory(path: &Path) -> Result<fs::Metadata, RuntimeDirError> {
    let entry =
        fs::symlink_metadata(path).map_err(|error| RuntimeDirError::io("look at", path, error))?;
    if entry.file_type().is_symlink() {
        return Err(RuntimeDirError::Link { path: path.into() });
    }
    if !entry.is_dir() {
        return Err(RuntimeDirError::NotADirectory { path: path.into() });
    }
    Ok(entry)
}

/// Refuses a directory that somebody else could rename away and replace.
fn check_parent(path: &Path) -> Result<(), RuntimeDirError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let entry =
        fs::metadata(parent).map_err(|error| RuntimeDirError::io("look at", parent, error))?;
    let is_writable_by_others = entry.mode() & 0o022 != 0;
    let is_ours = entry.uid() == user_id() || entry.uid() == ROOT;
    let is_sticky = entry.mode() & 0o1000 != 0;
    if (is_writable_by_others || !is_ours) && !is_sticky {
        return Err(RuntimeDirError::ParentOpen {
            parent: parent.into(),
        });
    }
    Ok(())
}

fn check_length(path: &Path) -> Result<(), RuntimeDirError> {
    if path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
        return Err(RuntimeDirError::TooLong { path: path.into() });
    }
    Ok(())
}

/// Creates a directory; false when the path already exists. Then the existing file is checked like
/// any other.
fn create(path: &Path, mode: u32) -> Result<bool, RuntimeDirError> {
    check_length(path)?;
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(RuntimeDirError::io("create", path, error)),
    }
}

/// The effective user of this process.
pub(crate) fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The adapter's socket within the runtime directory.
pub const SOCKET_NAME: &str = "adapter.sock";

const OWN_VARIABLE: &str = "TOEHOLD_RUNTIME_DIR";
const DIR_MODE: u32 = 0o700;
const SYSTEM_DIR_MODE: u32 = 0o755;
const SYSTEM_PATH: &str = "/run/toehold";
const ROOT: u32 = 0;

/// `sockaddr_un.sun_path` holds 108 bytes with its terminator; 24 are kept for the socket's name.
const PATH_BYTES_MAX: usize = 107 - 24;
const _: () = assert!(SOCKET_NAME.len() < 24);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A scratch directory with the permissions of an ordinary one.
    fn scratch() -> TempDir {
        let dir = tempfile::tempdir().expect("scratch directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        dir
    }

    fn refusal(path: &Path) -> RuntimeDirError {
        RuntimeDir::open_or_create(path).expect_err("must be refused")
    }

    #[test]
    fn a_missing_directory_is_created_private() {
        let scratch = scratch();
        let dir = RuntimeDir::open_or_create(&scratch.path().join("rt")).expect("created");
        let mode = fs::metadata(dir.path()).expect("metadata").mode() & 0o777;
        assert_eq!(mode, 0o700);
        assert_eq!(
            RuntimeDir::open_or_create(dir.path()).expect("opened again"),
            dir
        );
    }

    #[test]
    fn opening_does_not_create() {
        let scratch = scratch();
        let error = RuntimeDir::open(&scratch.path().join("rt")).expect_err("missing");
        assert!(error.is_missing());
    }

    #[test]
    fn a_link_is_refused_even_to_a_good_directory() {
        let scratch = scratch();
        let good = RuntimeDir::open_or_create(&scratch.path().join("good")).expect("created");
        let link = scratch.path().join("link");
        symlink(good.path(), &link).expect("link");
        assert!(matches!(refusal(&link), RuntimeDirError::Link { .. }));
    }

    #[test]
    fn a_file_is_refused() {
        let scratch = scratch();
        let file = scratch.path().join("rt");
        fs::write(&file, "").expect("file");
        assert!(matches!(
            refusal(&file),
            RuntimeDirError::NotADirectory { .. }
        ));
    }

    #[test]
    fn a_mode_that_lets_others_in_is_refused_with_the_remedy() {
        let scratch = scratch();
        let path = scratch.path().join("rt");
        RuntimeDir::open_or_create(&path).expect("created");
        for mode in [0o750, 0o701, 0o777, 0o704] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            let error = refusal(&path);
            assert!(
                matches!(error, RuntimeDirError::OpenToOthers { .. }),
                "{mode:o}"
            );
            assert!(error.to_string().contains("chmod 700"));
        }
    }

    #[test]
    fn another_owner_is_refused() {
        if user_id() == 0 {
            let scratch = scratch();
            let path = scratch.path().join("rt");
            RuntimeDir::open_or_create(&path).expect("created");
            std::os::unix::fs::chown(&path, Some(65_534), None).expect("chown");
            assert!(matches!(
                refusal(&path),
                RuntimeDirError::ForeignOwner { uid: 65_534, .. }
            ));
        } else {
            // Works without the right to change owners: the root directory is not ours either.
            let error = RuntimeDir::open(Path::new("/")).expect_err("not ours");
            assert!(matches!(
                error,
                RuntimeDirError::ForeignOwner { uid: 0, .. }
            ));
        }
    }

    #[test]
    fn a_parent_open_to_all_is_refused_unless_sticky() {
        let scratch = scratch();
        let path = scratch.path().join("rt");
        for mode in [0o777, 0o775, 0o757] {
            fs::set_permissions(scratch.path(), fs::Permissions::from_mode(mode)).expect("mode");
            assert!(matches!(refusal(&path), RuntimeDirError::ParentOpen { .. }));
        }
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777)).expect("mode");
        RuntimeDir::open_or_create(&path).expect("sticky like /tmp");
    }

    #[test]
    fn nothing_is_made_in_a_directory_of_another_user() {
        if user_id() != 0 {
            return;
        }
        let scratch = scratch();
        std::os::unix::fs::chown(scratch.path(), Some(65_534), None).expect("chown");
        let path = scratch.path().join("rt");
        assert!(matches!(refusal(&path), RuntimeDirError::ParentOpen { .. }));
        let system = RuntimeDir::open_or_create_system(&path).expect_err("another's");
        assert!(matches!(system, RuntimeDirError::ParentOpen { .. }));
        assert!(!path.exists());
    }

    #[test]
    fn the_system_directory_is_root_s_and_nobody_else_can_change_it() {
        let scratch = scratch();
        let path = scratch.path().join("rt");
        if user_id() != 0 {
            let made = RuntimeDir::open_or_create_system(&path).expect_err("not root's");
            assert!(matches!(made, RuntimeDirError::NotRoots { .. }));
            return;
        }
        let dir = RuntimeDir::open_or_create_system(&path).expect("created");
        assert!(dir.is_system());
        let mode = fs::metadata(&path).expect("metadata").mode() & 0o777;
        assert_eq!(mode, 0o755);
        let either = RuntimeDir::open_either(&path).expect("the system's");
        assert!(either.is_system());
        for mode in [0o775, 0o757, 0o777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            let error = RuntimeDir::open_system(&path).expect_err("others write");
            assert!(matches!(error, RuntimeDirError::WritableToOthers { .. }));
            RuntimeDir::open_either(&path).expect_err("others write");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        std::os::unix::fs::chown(&path, Some(65_534), None).expect("chown");
        let error = RuntimeDir::open_system(&path).expect_err("not root's");
        assert!(matches!(
            error,
            RuntimeDirError::NotRoots { uid: 65_534, .. }
        ));
        let link = scratch.path().join("link");
        symlink("/", &link).expect("link");
        let error = RuntimeDir::open_system(&link).expect_err("a link");
        assert!(matches!(error, RuntimeDirError::Link { .. }));
    }

    #[test]
    fn the_environment_names_the_system_directory() {
        let named = |name: &str| (name == "TOEHOLD_SYSTEM_DIR").then(|| "/x".into());
        assert_eq!(system_path_from(named), Path::new("/x"));
        assert_eq!(system_path_from(|_| None), Path::new("/run/toehold"));
        let relative = |_: &str| Some("here".into());
        assert_eq!(system_path_from(relative), Path::new("/run/toehold"));
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        assert!(matches!(refusal(&long), RuntimeDirError::TooLong { .. }));
    }

    #[test]
    fn the_environment_is_asked_in_order() {
        let ours = |_: &Path| Some(7);
        let both = |name: &str| match name {
            "TOEHOLD_RUNTIME_DIR" => Some("/run/mine".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            _ => None,
        };
        assert_eq!(default_path_from(both, ours, 7), Path::new("/run/mine"));
        let xdg = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/7".into());
        assert_eq!(
            default_path_from(xdg, ours, 7),
            Path::new("/run/user/7/toehold")
        );
        let another_s = |_: &Path| Some(1000);
        let path = default_path_from(xdg, another_s, 7);
        assert_eq!(path, Path::new("/tmp/toehold-7"));
        assert_eq!(
            default_path_from(|_| None, ours, 7),
            Path::new("/tmp/toehold-7")
        );
        let relative = |_: &str| Some("here".into());
        assert_eq!(
            default_path_from(relative, ours, 7),
            Path::new("/tmp/toehold-7")
        );
    }
}
