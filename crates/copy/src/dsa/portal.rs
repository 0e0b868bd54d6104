//! Portals, through which descriptors are submitted.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::descriptor::Descriptor;

/// The entrance of a work queue.
pub trait Portal: Send {
    /// Submits a descriptor.
    ///
    /// # Errors
    ///
    /// [`PortalError::Busy`] when the queue is full just now.
    ///
    /// # Safety
    ///
    /// The memory and the completion record that the descriptor names are the device's until the
    /// record says otherwise, or until the portal has been dropped.
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Result<(), PortalError>;

    /// Whether the device is still there.
    fn is_alive(&self) -> bool;
}

/// The reason why a descriptor was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortalError {
    /// The queue is full.
    Busy,
    /// The device is not there any more.
    Gone,
}

/// The mode in which a queue is shared, which decides the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Used by this process alone: `movdir64b`, and we count the used entries.
    Dedicated,
    /// Shared with other processes: `enqcmd`, which returns whether there was room.
    Shared,
}

/// A queue's portal page, mapped into this process.
pub(super) struct Mapped {
    page: *mut u8,
    mode: Mode,
    /// Keeps the queue ours.
    _device: File,
    /// The sysfs file that contains `enabled`.
    state: PathBuf,
}

// SAFETY: the page is a device's, and one thread at a time stores to it.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the queue's portal.
    ///
    /// # Errors
    ///
    /// When the kernel does not allow it, or the processor has not got the instruction.
    pub(super) fn new(device: File, mode: Mode, state: PathBuf) -> io::Result<Mapped> {
        if !has_instruction(mode) {
            let name = if mode == Mode::Shared {
                "enqcmd"
            } else {
                "movdir64b"
            };
            let why = format!("this processor has no {name}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        // SAFETY: a new mapping, at no address in particular.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PORTAL_BYTES,
                libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                device.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped {
            page: page.cast(),
            mode,
            _device: device,
            state,
        })
    }
}

impl Portal for Mapped {
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Result<(), PortalError> {
        // SAFETY: the page is mapped; `new` found the instruction; the caller vouches for the
        // descriptor.
        unsafe { store(self.page, descriptor, self.mode) }
    }

    fn is_alive(&self) -> bool {
        std::fs::read_to_string(&self.state).is_ok_and(|state| state.trim() == "enabled")
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.page.cast(), PORTAL_BYTES) };
    }
}

/// A queue that takes descriptors by write(2), for a kernel that lets no program map the portal.
pub(super) struct Written {
    device: File,
    state: PathBuf,
}

impl Written {
    pub(super) fn new(device: File, state: PathBuf) -> Written {
        Written { device, state }
    }
}

impl Portal for Written {
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Result<(), PortalError> {
        // SAFETY: a descriptor is 64 bytes of plain numbers without gaps.
        let bytes: [u8; 64] = unsafe { std::mem::transmute(*descriptor) };
        match self.device.write(&bytes) {
            Ok(64) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(PortalError::Busy),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(PortalError::Busy),
            _ => Err(PortalError::Gone),
        }
    }

    fn is_alive(&self) -> bool {
        std::fs::read_to_string(&self.state).is_ok_and(|state| state.trim() == "enabled")
    }
}

/// # Safety
///
/// `page` is a mapped portal, and the processor has the mode's instruction.
#[cfg(target_arch = "x86_64")]
unsafe fn store(page: *mut u8, descriptor: &Descriptor, mode: Mode) -> Result<(), PortalError> {
    let is_full: u8;
    // SAFETY: stores 64 bytes to the portal. The fence puts the cleared record, and whatever else
    // was written for the device to see, before it.
    unsafe {
        match mode {
            Mode::Dedicated => {
                std::arch::asm!("sfence", "movdir64b {p}, [{d}]", p = in(reg) page,
                    d = in(reg) descriptor, options(nostack, preserves_flags));
                is_full = 0;
            }
            Mode::Shared => {
                std::arch::asm!("sfence", "enqcmd {p}, [{d}]", "setz {f}", p = in(reg) page,
                    d = in(reg) descriptor, f = out(reg_byte) is_full, options(nostack));
            }
        }
    }
    if is_full == 0 {
        Ok(())
    } else {
        Err(PortalError::Busy)
    }
}

/// # Safety
///
/// Never called: `has_instruction` is false here.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store(_page: *mut u8, _descriptor: &Descriptor, _mode: Mode) -> Result<(), PortalError> {
    Err(PortalError::Gone)
}

fn has_instruction(mode: Mode) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        let bit = match mode {
            Mode::Dedicated => 28,
            Mode::Shared => 29,
        };
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx >> bit & 1 == 1
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = mode;
        false
    }
}

/// A page for each way of submitting.
const PORTAL_BYTES: usize = 4096;
