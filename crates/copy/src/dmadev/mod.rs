//! The `dmadev` engine: any DMA device that DPDK drives.
//!
//! Only devices that use this process's own addresses (`SVA`) are supported: other devices need
//! memory to be pinned and mapped for them first. Even so, only registered memory is used: a device
//! may bypass later changes of the page tables, and then a fork loses bytes. DPDK's skeleton
//! device, a thread that copies, needs neither hardware nor privileges nor huge pages, and is the
//! default.
//!
//! For other devices `TOEHOLD_DMADEV_EAL` holds DPDK's own arguments, separated by spaces. DPDK
//! starts once in a process and stays.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock};

use crate::backend::{Backend, Outcome, Refused};
use crate::operation::{Flags, Kind};
use crate::{Cookie, Operation};

/// The `dmadev` engine.
pub struct Dmadev {
    device: i16,
    can_fill: bool,
    /// Accepted operations that are not reported, oldest first: a virtual channel completes in
    /// order.
    in_flight: VecDeque<Cookie>,
    /// False in a child: the device is the parent's.
    is_ours: bool,
}

impl Dmadev {
    /// Starts DPDK, unless it runs already, and takes a free device.
    ///
    /// # Errors
    ///
    /// A sentence.
    pub fn open(entries: usize) -> Result<Dmadev, String> {
        start_dpdk()?;
        let mut taken = TAKEN
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut reasons = Vec::new();
        let mut from = 0;
        // SAFETY: DPDK has started.
        while let Ok(device @ 0..) = i16::try_from(unsafe { toehold_dmadev_next(from) }) {
            from = device + 1;
            match Dmadev::take(device, entries, &taken) {
                Ok(engine) => {
                    taken.push(device);
                    return Ok(engine);
                }
                Err(why) => reasons.push(why),
            }
        }
        if reasons.is_empty() {
            return Err("DPDK found no DMA device".to_owned());
        }
        Err(reasons.join("; "))
    }

    fn take(device: i16, entries: usize, taken: &[i16]) -> Result<Dmadev, String> {
        let mut info = Info {
            capabilities: 0,
            entries_min: 0,
            entries_max: 0,
            name: [0; 64],
        };
        // SAFETY: DPDK has started; the structure is the shim's.
        if unsafe { toehold_dmadev_info(device, &mut info) } != 0 {
            return Err(format!("device {device} does not describe itself"));
        }
        // SAFETY: the shim ends the name with a zero.
        let name = unsafe { CStr::from_ptr(info.name.as_ptr()) }
            .to_string_lossy()
            .into_owned();
        let can = |capability: u64| info.capabilities & capability == capability;
        if taken.contains(&device) {
            return Err(format!("{name} is in use"));
        }
        if !can(CAPABILITY_MEM_TO_MEM | CAPABILITY_COPY) {
            return Err(format!("{name} does not copy memory"));
        }
        if !can(CAPABILITY_SVA) {
            return Err(format!("{name} does not use this process's addresses"));
        }
        let entries = u16::try_from(entries).unwrap_or(u16::MAX);
        let entries = entries.max(info.entries_min).min(info.entries_max);
        // SAFETY: the device is ours alone, and stopped.
        match unsafe { toehold_dmadev_start(device, entries) } {
            0 => Ok(Dmadev {
                device,
                can_fill: can(CAPABILITY_FILL),
                in_flight: VecDeque::new(),
                is_ours: true,
            }),
            error => Err(format!("{name} does not start (error {})", -error)),
        }
    }
}

// SAFETY: an operation's outcome is reported when the device says that it is done with it. Dropping
// stops the device.
unsafe impl Backend for Dmadev {
    fn name(&self) -> &'static str {
        "dmadev"
    }

    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        let Ok(len) = u32::try_from(operation.len) else {
            return Err(Refused::Unable);
        };
        if !self.is_ours {
            return Err(Refused::Unable);
        }
        let cache = c_int::from(operation.flags.contains(Flags::CACHE));
        let (source, target) = (operation.source.cast(), operation.target.cast());
        let index = match operation.kind {
            // SAFETY: started in `take`; the submitter vouches for the memory.
            Kind::Copy => unsafe { toehold_dmadev_copy(self.device, source, target, len, cache) },
            // SAFETY: as above, and the device can.
            Kind::Fill if self.can_fill => unsafe {
                toehold_dmadev_fill(self.device, target, len, operation.value, cache)
            },
            Kind::Fill | Kind::CopyCrc32c => return Err(Refused::Unable),
        };
        match index {
            0.. => {
                self.in_flight.push_back(cookie);
                Ok(())
            }
            error if error == -libc::ENOSPC => Err(Refused::Full),
            _ => Err(Refused::Unable),
        }
    }

    fn flush(&mut self) {
        if self.is_ours {
            // SAFETY: started in `take`. It fails only for a channel that is not there.
            unsafe { toehold_dmadev_submit(self.device) };
        }
    }

    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        let mut status = [0; COMPLETIONS_MAX as usize];
        while !self.in_flight.is_empty() {
            // SAFETY: started in `take`; room for as many as asked for.
            let count = unsafe {
                toehold_dmadev_completed(self.device, COMPLETIONS_MAX, status.as_mut_ptr())
            };
            for &status in &status[..usize::from(count.min(COMPLETIONS_MAX))] {
                let Some(cookie) = self.in_flight.pop_front() else {
                    break;
                };
                // The device does not report its progress, so the processor starts over.
                let failed = Outcome::Partial {
                    bytes: 0,
                    address: 0,
                };
                report(cookie, if status == 0 { Outcome::DONE } else { failed });
            }
            if count < COMPLETIONS_MAX {
                return;
            }
        }
    }

    fn helper_cpu_ns(&self) -> Option<u64> {
        // The skeleton device's thread belongs to DPDK, which does not report its processor time.
        None
    }

    fn needs_registration(&self) -> bool {
        true
    }

    fn forget_after_fork(&mut self) {
        self.is_ours = false;
        self.in_flight.clear();
    }
}

impl Drop for Dmadev {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: started in `take`.
            unsafe { toehold_dmadev_stop(self.device) };
            let mut taken = TAKEN
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            taken.retain(|&device| device != self.device);
        }
    }
}

/// Starts DPDK once. It moves the calling thread to a processor of its choice; we move it back.
fn start_dpdk() -> Result<(), String> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            let chosen = std::env::var("TOEHOLD_DMADEV_EAL").ok();
            let words = chosen.as_deref().unwrap_or(EAL_DEFAULT).split_whitespace();
            let args: Vec<CString> = std::iter::once("toehold")
                .chain(words)
                .map(|w| CString::new(w).unwrap_or_default())
                .collect();
            let mut pointers: Vec<*mut c_char> =
                args.iter().map(|arg| arg.as_ptr().cast_mut()).collect();
            // DPDK keeps the strings.
            std::mem::forget(args);
            let before = Affinity::get();
            // SAFETY: as many strings as it is told, which live for ever. DPDK may reorder the
            // pointers.
            let parsed =
                unsafe { toehold_dmadev_init(pointers.len() as c_int, pointers.as_mut_ptr()) };
            before.set();
            if parsed < 0 {
                return Err(
                    "DPDK does not start with the arguments in TOEHOLD_DMADEV_EAL, or without"
                        .to_owned(),
                );
            }
            Ok(())
        })
        .clone()
}

/// The processors that the calling thread may use.
struct Affinity(libc::cpu_set_t);

impl Affinity {
    fn get() -> Affinity {
        // SAFETY: an all-zero set is the empty set; the call fills it.
        let mut set = unsafe { std::mem::zeroed() };
        // SAFETY: the set is on our stack.
        unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        Affinity(set)
    }

    fn set(&self) {
        // SAFETY: the set is on our stack.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) };
    }
}

/// Devices in use by this process.
static TAKEN: Mutex<Vec<i16>> = Mutex::new(Vec::new());

/// No huge pages, no files, no buses: just the skeleton device.
const EAL_DEFAULT: &str = "--no-huge --no-shconf --no-pci --no-telemetry --iova-mode=va \
    --log-level=critical --vdev=dma_skeleton";

const COMPLETIONS_MAX: u16 = 64;

const CAPABILITY_MEM_TO_MEM: u64 = 1 << 0;
const CAPABILITY_SVA: u64 = 1 << 4;
const CAPABILITY_COPY: u64 = 1 << 32;
const CAPABILITY_FILL: u64 = 1 << 34;

#[repr(C)]
struct Info {
    capabilities: u64,
    entries_min: u16,
    entries_max: u16,
    name: [c_char; 64],
}

unsafe extern "C" {
    fn toehold_dmadev_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn toehold_dmadev_next(from: i16) -> c_int;
    fn toehold_dmadev_info(device: i16, out: *mut Info) -> c_int;
    fn toehold_dmadev_start(device: i16, entries: u16) -> c_int;
    fn toehold_dmadev_stop(device: i16) -> c_int;
    fn toehold_dmadev_copy(
        device: i16,
        source: *const c_void,
        target: *mut c_void,
        len: u32,
        cache: c_int,
    ) -> c_int;
    fn toehold_dmadev_fill(
        device: i16,
        target: *mut c_void,
        len: u32,
        pattern: u64,
        cache: c_int,
    ) -> c_int;
    fn toehold_dmadev_submit(device: i16) -> c_int;
    fn toehold_dmadev_completed(device: i16, max: u16, status: *mut c_int) -> u16;
}
