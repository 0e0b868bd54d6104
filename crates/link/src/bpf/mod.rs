//! The few commands of bpf(2) that our programs need, an assembler for these programs, and the
//! places of fields in the kernel's structures. The structures here are beginnings of `union
//! bpf_attr` (`linux/bpf.h`); the kernel takes the missing fields for zero.

mod assembler;
mod btf;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub use assembler::{Assembler, If, Instruction, Label, Register, Size};
pub use btf::{Btf, BtfError, Field};

/// A kind of map (`enum bpf_map_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapKind {
    /// Any key.
    Hash = 1,
    /// An array: keys are numbers from 0 on, and all entries exist from the beginning.
    Array = 2,
    /// An array with a separate value for each processor.
    PerCpuArray = 6,
    /// Sockets of AF_XDP.
    Xsk = 17,
    /// Connected sockets, by any key.
    SockHash = 18,
}

/// A kind of program, and where it is attached (`enum bpf_prog_type`, `enum bpf_attach_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramKind {
    /// Judges the frames of an interface.
    Xdp,
    /// As [`ProgramKind::Xdp`], also for frames in several pieces (Linux 5.18). The program sees
    /// the first piece.
    XdpInPieces,
    /// Judges the frames of an interface (TCX, Linux 6.6): after packet sockets of all protocols
    /// have seen them, and before the rest of the kernel does.
    Ingress,
    /// Runs at events of the TCP sockets of a control group.
    SockOps,
    /// Judges the bytes that the sockets of a [`MapKind::SockHash`] send.
    SkMsg,
    /// Runs by [`Program::run`] (Linux 5.14) and is attached to nothing. The program may read the
    /// kernel's memory. The helpers for that require a GPL-compatible licence, so programs of this
    /// kind also offer the GPL, at the recipient's choice.
    Syscall,
}

impl ProgramKind {
    fn number(self) -> u32 {
        match self {
            ProgramKind::Xdp | ProgramKind::XdpInPieces => 6,
            ProgramKind::Ingress => 3,
            ProgramKind::SockOps => 13,
            ProgramKind::SkMsg => 16,
            ProgramKind::Syscall => 31,
        }
    }

    /// The kernel takes programs of the kind `Syscall` only if they may sleep.
    fn flags(self) -> u32 {
        match self {
            ProgramKind::Syscall => BPF_F_SLEEPABLE,
            ProgramKind::XdpInPieces => BPF_F_XDP_HAS_FRAGS,
            _ => 0,
        }
    }

    fn license(self) -> &'static CStr {
        match self {
            ProgramKind::Syscall => c"Dual MIT/GPL",
            _ => LICENSE,
        }
    }

    fn attach_number(self) -> u32 {
        match self {
            ProgramKind::Xdp | ProgramKind::XdpInPieces => 37,
            ProgramKind::Ingress => 46,
            ProgramKind::SockOps => 3,
            ProgramKind::SkMsg => 7,
            ProgramKind::Syscall => 0,
        }
    }
}

/// A map of fixed-size keys and values.
#[derive(Debug)]
pub struct Map {
    file: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl Map {
    /// Makes a map.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(
        kind: MapKind,
        key_bytes: usize,
        value_bytes: usize,
        entries_max: u32,
    ) -> io::Result<Self> {
        Self::with_flags(kind, key_bytes, value_bytes, entries_max, 0)
    }

    /// Makes a hash map that takes memory entry by entry.
    ///
    /// # Errors
    /// The kernel's.
    pub fn growing(key_bytes: usize, value_bytes: usize, entries_max: u32) -> io::Result<Self> {
        let flags = BPF_F_NO_PREALLOC;
        Self::with_flags(MapKind::Hash, key_bytes, value_bytes, entries_max, flags)
    }

    fn with_flags(
        kind: MapKind,
        key_bytes: usize,
        value_bytes: usize,
        entries_max: u32,
        flags: u32,
    ) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            kind: u32,
            key_bytes: u32,
            value_bytes: u32,
            entries_max: u32,
            flags: u32,
        }
        let attributes = Attributes {
            kind: kind as u32,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            entries_max,
            flags,
        };
        // SAFETY: the attributes name no memory.
        let file = unsafe { bpf(BPF_MAP_CREATE, &attributes) }?;
        Ok(Self {
            // SAFETY: the kernel has just made this descriptor for us.
            file: unsafe { OwnedFd::from_raw_fd(file) },
            key_bytes,
            value_bytes,
        })
    }

    /// Sets the value of `key` to `value`.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// When key or value is not of the map's size.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key_bytes, self.value_bytes));
        let attributes = self.element(key, value.as_ptr());
        // SAFETY: key and value are readable for as long as the map's are.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attributes) }.map(drop)
    }

    /// Removes the entry of `key`.
    ///
    /// # Errors
    /// The kernel's: `ENOENT` if there is no such entry.
    ///
    /// # Panics
    /// When the key is not of the map's size.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key_bytes);
        let attributes = self.element(key, std::ptr::null());
        // SAFETY: the key is readable for as long as the map's are.
        unsafe { bpf(BPF_MAP_DELETE_ELEM, &attributes) }.map(drop)
    }

    /// The sum of the eight-byte values of `key` in a map with a value for each processor.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// When the key is not of the map's size, or a value is not of eight bytes.
    pub fn sum(&self, key: &[u8]) -> io::Result<u64> {
        assert_eq!((key.len(), self.value_bytes), (self.key_bytes, 8));
        let mut each = vec![0u64; PROCESSORS_MAX];
        let attributes = self.element(key, each.as_mut_ptr().cast());
        // SAFETY: the kernel writes eight bytes for each processor there can be, and no kernel is
        // built for more.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &attributes) }?;
        Ok(each.iter().sum())
    }

    fn element(&self, key: &[u8], value: *const u8) -> Element {
        Element {
            map: self.as_raw_fd() as u32,
            _pad: 0,
            key: key.as_ptr() as u64,
            value: value as u64,
            flags: 0,
        }
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[repr(C)]
struct Element {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A program that the kernel has verified.
#[derive(Debug)]
pub struct Program {
    file: OwnedFd,
    kind: ProgramKind,
}

impl Program {
    /// Loads a program into the kernel, which verifies it. Tools show at most fifteen letters of
    /// the program's name.
    ///
    /// # Errors
    /// The kernel's, with the log of its verifier.
    pub fn load(
        kind: ProgramKind,
        name: &str,
        instructions: &[Instruction],
    ) -> Result<Self, (io::Error, String)> {
        let quiet = Self::try_load(kind, name, instructions, &mut []);
        let is_refused =
            |error: &io::Error| !matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
        match quiet {
            // Only a rejected program has a log worth reading.
            Err(error) if is_refused(&error) => {
                let mut log = vec![0; LOG_BYTES];
                let again = Self::try_load(kind, name, instructions, &mut log);
                let said = CStr::from_bytes_until_nul(&log).unwrap_or_default();
                again.map_err(|error| (error, said.to_string_lossy().into_owned()))
            }
            other => other.map_err(|error| (error, String::new())),
        }
    }

    fn try_load(
        kind: ProgramKind,
        name: &str,
        instructions: &[Instruction],
        log: &mut [u8],
    ) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            kind: u32,
            instruction_count: u32,
            instructions: u64,
            license: u64,
            log_level: u32,
            log_bytes: u32,
            log: u64,
            kernel_version: u32,
            flags: u32,
            name: [u8; 16],
            interface: u32,
            attach_kind: u32,
        }
        // The last byte stays zero.
        let mut short = [0; 16];
        for (to, from) in short[..15].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let attributes = Attributes {
            kind: kind.number(),
            instruction_count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: kind.license().as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_bytes: log.len() as u32,
            log: if log.is_empty() {
                0
            } else {
                log.as_mut_ptr() as u64
            },
            kernel_version: 0,
            flags: kind.flags(),
            name: short,
            interface: 0,
            attach_kind: kind.attach_number(),
        };
        // SAFETY: instructions and licence are readable, the log is writable, each for what the
        // attributes say.
        let file = unsafe { bpf(BPF_PROG_LOAD, &attributes) }?;
        // SAFETY: the kernel has just made this descriptor for us.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(Self { file, kind })
    }

    /// Attaches the program to its target: an interface of this thread's network namespace, by its
    /// number, or a control group, by a descriptor of its directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(&self, target: u32, flags: u32) -> io::Result<Attachment> {
        #[repr(C)]
        struct Attributes {
            program: u32,
            target: u32,
            attach_kind: u32,
            flags: u32,
        }
        let attributes = Attributes {
            program: self.file.as_raw_fd() as u32,
            target,
            attach_kind: self.kind.attach_number(),
            flags,
        };
        // SAFETY: the attributes name no memory.
        let file = unsafe { bpf(BPF_LINK_CREATE, &attributes) }?;
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Attachment(unsafe { OwnedFd::from_raw_fd(file) }))
    }

    /// Attaches the program to a map of sockets, for as long as the map exists.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach_to_map(&self, map: &Map) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            target: u32,
            program: u32,
            attach_kind: u32,
            flags: u32,
        }
        let attributes = Attributes {
            target: map.as_raw_fd() as u32,
            program: self.file.as_raw_fd() as u32,
            attach_kind: self.kind.attach_number(),
            flags: 0,
        };
        // SAFETY: the attributes name no memory.
        unsafe { bpf(BPF_PROG_ATTACH, &attributes) }.map(drop)
    }

    /// Runs a program of [`ProgramKind::Syscall`] in this thread and returns its result. The
    /// program reads and changes `context`.
    ///
    /// # Errors
    /// The kernel's. A kernel before 5.19 requires `CAP_BPF` for this call if it forbids ordinary
    /// users to load programs.
    pub fn run(&self, context: &mut [u8]) -> io::Result<u32> {
        let mut attributes = Run {
            program: self.file.as_raw_fd() as u32,
            context_bytes: context.len() as u32,
            context: context.as_mut_ptr() as u64,
            ..Run::default()
        };
        let at = (&raw mut attributes).cast();
        // SAFETY: the context is readable and writable for its length, and nothing else is named.
        unsafe { bpf_raw(BPF_PROG_TEST_RUN, at, size_of::<Run>()) }?;
        Ok(attributes.retval)
    }

    /// The program's result for a frame that belongs to no interface.
    #[cfg(test)]
    pub(crate) fn try_out(&self, frame: &[u8]) -> io::Result<u32> {
        let mut attributes = Run {
            program: self.file.as_raw_fd() as u32,
            frame_bytes: frame.len() as u32,
            frame: frame.as_ptr() as u64,
            repeat: 1,
            ..Run::default()
        };
        let at = (&raw mut attributes).cast();
        // SAFETY: the frame is readable for its length; nothing is to be written but the
        // attributes.
        unsafe { bpf_raw(BPF_PROG_TEST_RUN, at, size_of::<Run>()) }?;
        Ok(attributes.retval)
    }
}

/// A program on its target. When this process ends, for whatever reason, the kernel detaches the
/// program.
#[derive(Debug)]
pub struct Attachment(OwnedFd);

impl Drop for Attachment {
    /// Detaches the program now. Closing the descriptor is not enough: a child that another thread
    /// is starting keeps a copy of the descriptor until its exec.
    fn drop(&mut self) {
        let link = self.0.as_raw_fd() as u32;
        // SAFETY: the attributes, one descriptor, name no memory. Where the target is gone there is
        // nothing to be taken off.
        let _ = unsafe { bpf(BPF_LINK_DETACH, &link) };
    }
}

/// The attributes of `BPF_PROG_TEST_RUN`, which Linux 6.1 also calls `BPF_PROG_RUN`.
#[repr(C)]
#[derive(Default)]
struct Run {
    program: u32,
    retval: u32,
    frame_bytes: u32,
    out_bytes: u32,
    frame: u64,
    out: u64,
    repeat: u32,
    nanoseconds: u32,
    context_bytes: u32,
    context_out_bytes: u32,
    context: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
}

/// # Safety
/// The attributes are a beginning of `union bpf_attr` for the command, and the memory that they
/// name is valid.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    // The commands of this function's callers write nothing into their attributes.
    let at = (&raw const *attributes).cast_mut().cast();
    // SAFETY: the caller's promise.
    unsafe { bpf_raw(command, at, size_of::<T>()) }
}

/// # Safety
/// As for [`bpf`].
unsafe fn bpf_raw(
    command: libc::c_long,
    attributes: *mut libc::c_void,
    bytes: usize,
) -> io::Result<RawFd> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as RawFd)
}

// enum bpf_cmd.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
/// The command of bpf(2) that runs a program.
pub const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_DETACH: libc::c_long = 34;
/// A flag of a map: entries take memory when they are made.
const BPF_F_NO_PREALLOC: u32 = 1;
/// A flag of a program: it may sleep.
const BPF_F_SLEEPABLE: u32 = 1 << 4;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// The helpers of these programs do not require the GPL.
const LICENSE: &CStr = c"Apache-2.0 OR MIT";
/// NR_CPUS at its largest (`arch/x86/Kconfig`).
const PROCESSORS_MAX: usize = 8192;
/// More than the verifier's log of such a short program.
const LOG_BYTES: usize = 256 * 1024;
