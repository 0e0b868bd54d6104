//! Bad pointers of the program: the kernel answers `EFAULT`, and so does the library.
//!
//! The kernel notices a bad pointer by a fault in its own copy. The library does the same: its
//! handler for SIGSEGV and SIGBUS is in front of the program's. After a fault in a copy of the
//! library, execution continues where the copy returns an error
//! ([`toehold_freestanding::guarded`]). Every other fault belongs to the program: its own handler
//! or the default action follows, as if the library were not there:
//!
//! ```text
//!   fault ─► front ─┬─ in a copy of ours ──► the copy fails
//!                   ├─ the program's handler: a jump there, on the same stack
//!                   └─ none: the default action, and the instruction once more
//! ```
//!
//! The handlers are put in front when the process has its first connection or epoll instance
//! ([`arm`]). A program that has neither keeps its own handlers. The program's calls see and change
//! only the handlers that it has installed itself.
//!
//! # What stays
//!
//! If a thread blocks SIGSEGV, or the program ignores it, a bad pointer ends the program, because
//! the kernel calls no handler then.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::c_int;
use toehold_freestanding::guarded;

use crate::process;
use crate::system::{real, sys};

/// Set when the library stands in front.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
/// Held while a handler is changed, with all signals blocked.
static LOCK: AtomicBool = AtomicBool::new(false);

/// The program's handling of one signal.
#[derive(Debug)]
struct Wanted {
    handler: AtomicUsize,
    flags: AtomicU64,
}

static WANTED: [Wanted; SIGNALS.len()] = [const {
    Wanted {
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicU64::new(0),
    }
}; SIGNALS.len()];

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

fn wanted(signal: c_int) -> Option<&'static Wanted> {
    let place = SIGNALS.iter().position(|&one| one == signal)?;
    Some(&WANTED[place])
}

/// True when bad pointers are answered with `EFAULT`. Before that the process has no connection.
#[inline(always)]
pub(crate) fn are_armed() -> bool {
    // Relaxed: no other memory depends on it.
    IS_ARMED.load(Ordering::Relaxed)
}

/// True when `count` elements at `pointer` can be read. Without handlers that cannot be tested, so
/// the answer is true.
#[inline]
pub(crate) fn can_read<T>(pointer: *const T, count: usize) -> bool {
    let bytes = count.checked_mul(size_of::<T>());
    !are_armed() || bytes.is_some_and(|bytes| guarded::probe(pointer as usize, bytes).is_ok())
}

/// True when `len` bytes at `address`, an argument of a call that makes a connection, can be read.
/// Unlike [`can_read`] it also works before there are handlers: then the kernel is asked about the
/// first and the last byte.
pub(crate) fn is_readable(address: *const u8, len: usize) -> bool {
    if are_armed() {
        return can_read(address, len);
    }
    let Some(last) = len.checked_sub(1) else {
        return true;
    };
    [0, last]
        .iter()
        .all(|&at| sys::kernel_can_read(address.wrapping_add(at)))
}

/// The value at `pointer`. `None`: the value cannot be read, and the call must go to the kernel to
/// get the error.
///
/// # Safety
/// Nobody writes it meanwhile, if it is there.
pub(crate) unsafe fn read<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: it was looked at; the caller's promise.
    is_readable(pointer.cast(), size_of::<T>()).then(|| unsafe { pointer.read_unaligned() })
}

/// Copies `len` bytes to the program, as the kernel would.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// The bytes are readable. Those at `target` are the call's, if they are there.
pub(crate) unsafe fn give(bytes: *const u8, target: *mut u8, len: usize) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    unsafe { guarded::try_from_shared(bytes, target, len) }.map_err(|_| libc::EFAULT)
}

/// As [`give`], of a value.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// The place is the call's, if it is there.
pub(crate) unsafe fn put<T: Copy>(value: T, target: *mut T) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    unsafe { give((&raw const value).cast(), target.cast(), size_of::<T>()) }
}

/// As [`can_read`], for one value that is smaller than a page.
#[inline(always)]
pub(crate) fn is_there<T>(pointer: *const T) -> bool {
    const { assert!(size_of::<T>() > 0 && size_of::<T>() < 4096) };
    let (first, beyond) = (pointer as usize, size_of::<T>() - 1);
    // If the value ends in another page, its end is checked, too.
    !are_armed()
        || guarded::look(first).is_ok()
            && (first % 4096 + beyond < 4096 || guarded::look(first.wrapping_add(beyond)).is_ok())
}

/// True when `count` elements at `pointer` can be written. Only for memory that the kernel would
/// always write. Without handlers the answer is true.
#[inline]
pub(crate) fn can_write<T>(pointer: *mut T, count: usize) -> bool {
    let bytes = count.checked_mul(size_of::<T>());
    let probe = |bytes| guarded::probe_for_writing(pointer as usize, bytes);
    !are_armed() || bytes.is_some_and(|bytes| probe(bytes).is_ok())
}

/// True when a call by number may read the value at `pointer` (or `pointer` is null). Otherwise the
/// call must go to the kernel: it will refuse the pointer, or the process has no connection yet.
#[must_use]
pub fn may_read<T>(pointer: *const T) -> bool {
    are_armed() && (pointer.is_null() || can_read(pointer, 1))
}

/// True when the kernel can read the eight bytes around `address`. Unlike the other checks here it
/// costs a system call, and needs no handler.
#[must_use]
pub fn kernel_can_read(address: usize) -> bool {
    sys::kernel_can_read(address as *const u8)
}

/// A value of the program, shorter than a page. `None` when the kernel cannot read it. Costs two
/// calls of [`kernel_can_read`].
///
/// # Safety
/// Any bytes are a valid `T`.
#[must_use]
pub unsafe fn seen<T>(address: usize) -> Option<T> {
    let last = address.checked_add(size_of::<T>() - 1)?;
    let is_there = address != 0 && kernel_can_read(address) && kernel_can_read(last);
    // SAFETY: the kernel has just read both ends.
    is_there.then(|| unsafe { (address as *const T).read_unaligned() })
}

/// `struct sigaction` in the kernel's form.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl KernelAction {
    const NONE: KernelAction = KernelAction {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
}

/// `SA_RESTORER` (arch/x86/include/uapi/asm/signal.h).
const RESTORER: u64 = 0x0400_0000;
/// Bytes of the kernel's signal mask.
const MASK_BYTES: usize = 8;

/// One of the two forms of `struct sigaction`.
trait Action: Copy {
    fn handler(&self) -> usize;
    fn flags(&self) -> u64;
    fn set(&mut self, handler: usize, flags: u64);
}

impl Action for KernelAction {
    fn handler(&self) -> usize {
        self.handler
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set(&mut self, handler: usize, flags: u64) {
        (self.handler, self.flags) = (handler, flags);
        if handler == front_address() && flags & RESTORER == 0 {
            self.flags |= RESTORER;
            self.restorer = restorer_address();
        }
    }
}

impl Action for libc::sigaction {
    fn handler(&self) -> usize {
        self.sa_sigaction
    }

    fn flags(&self) -> u64 {
        self.sa_flags as u32 as u64
    }

    fn set(&mut self, handler: usize, flags: u64) {
        self.sa_sigaction = handler;
        self.sa_flags = flags as i32;
    }
}

/// `action` with the library's handler in front. An ignored signal stays ignored.
fn in_front<A: Action>(action: A) -> A {
    let (mut action, handler) = (action, action.handler());
    let on_stack = match handler {
        libc::SIG_IGN => return action,
        libc::SIG_DFL => libc::SA_ONSTACK,
        _ => 0,
    };
    let flags = (action.flags() | (libc::SA_SIGINFO | on_stack) as u64)
        & !(libc::SA_RESETHAND as u32 as u64);
    action.set(front_address(), flags);
    action
}

/// Puts the library's handlers in front, once.
#[inline]
pub(crate) fn arm() {
    if cfg!(all(target_arch = "x86_64", not(test))) && !are_armed() {
        arm_now();
    }
}

#[cold]
fn arm_now() {
    if process::borrowed_memory() {
        return;
    }
    let _held = Held::lock();
    for (&signal, wanted) in SIGNALS.iter().zip(&WANTED) {
        let mut action = KernelAction::NONE;
        // SAFETY: the action is live, here and below.
        let result = unsafe { kernel_sigaction(signal, core::ptr::null(), &mut action) };
        if result == 0 && action.handler != front_address() {
            wanted.note(&action);
            let action = in_front(action);
            // SAFETY: as above.
            unsafe { kernel_sigaction(signal, &action, core::ptr::null_mut()) };
        }
    }
    // Relaxed: see `are_armed`.
    IS_ARMED.store(true, Ordering::Relaxed);
}

/// The process was just forked: no other thread holds the lock.
pub(crate) fn forked() {
    // Relaxed: there is one thread.
    LOCK.store(false, Ordering::Relaxed);
}

impl Wanted {
    fn note(&self, action: &impl Action) {
        self.put((action.handler(), action.flags()));
    }

    /// The handler and flags. The caller holds the lock.
    fn get(&self) -> (usize, u64) {
        // Relaxed: only the words themselves are used.
        let relaxed = Ordering::Relaxed;
        (self.handler.load(relaxed), self.flags.load(relaxed))
    }

    fn put(&self, (handler, flags): (usize, u64)) {
        self.flags.store(flags, Ordering::Relaxed);
        // Release pairs with the Acquire load in `decide`: what the program prepared for its
        // handler is there.
        self.handler.store(handler, Ordering::Release);
    }
}

/// The held lock. All signals of the thread are blocked.
struct Held(u64);

impl Held {
    fn lock() -> Held {
        let mask = sys::block_signals(!0);
        // Acquire pairs with the Release store in `drop`.
        while LOCK.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        Held(mask)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `lock`.
        LOCK.store(false, Ordering::Release);
        sys::set_signal_mask(self.0);
    }
}

/// The place of a signal whose handlers the library precedes.
fn concern(signal: c_int) -> Option<&'static Wanted> {
    wanted(signal).filter(|_| are_armed() && !process::borrowed_memory())
}

/// `sigaction(2)` of a signal that is a fault.
///
/// # Safety
/// As for the C function.
pub(crate) unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let install = |new, old| {
        // SAFETY: the caller's promise; or a live action.
        unsafe { real::sigaction(signal, new, old) as isize }
    };
    // SAFETY: the caller's promise.
    unsafe { exchange(signal, new, old, install) as c_int }
}

/// `rt_sigaction`, by number. The kernel's answer.
///
/// # Safety
/// As for the system call.
pub unsafe fn sigaction_by_number(
    signal: c_int,
    new: *const KernelAction,
    old: *mut KernelAction,
    mask_bytes: usize,
) -> isize {
    if mask_bytes != MASK_BYTES || !new.is_null() && !can_read(new, 1) {
        let number = libc::SYS_rt_sigaction;
        let [new, old] = [new as usize, old as usize];
        // SAFETY: the kernel refuses it.
        return unsafe { sys::raw(number, signal as usize, new, old, mask_bytes, 0, 0) };
    }
    // SAFETY: the caller's promise; or a live action.
    let install = |new, old| unsafe { kernel_sigaction(signal, new, old) };
    // SAFETY: the caller's promise.
    unsafe { exchange(signal, new, old, install) }
}

/// True for the signals whose handlers the library precedes.
#[must_use]
pub fn is_concerned(signal: c_int) -> bool {
    wanted(signal).is_some()
}

/// # Safety
/// As for `sigaction(2)`; `install` makes that call for this signal, and answers 0 for success.
unsafe fn exchange<A: Action>(
    signal: c_int,
    new: *const A,
    old: *mut A,
    install: impl Fn(*const A, *mut A) -> isize,
) -> isize {
    let Some(wanted) = concern(signal) else {
        return install(new, old);
    };
    let _held = Held::lock();
    let before = wanted.get();
    // SAFETY: null, or the program's action.
    let given = unsafe { new.as_ref() }.copied();
    let result = match given {
        None => install(new, old),
        Some(action) => {
            // Stored first, so that a fault that comes now finds the new handler.
            wanted.note(&action);
            let result = install(&in_front(action), old);
            if result != 0 {
                wanted.put(before);
            }
            result
        }
    };
    // SAFETY: null, or the program's, which was just written.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| result == 0)
        && old.handler() == front_address()
    {
        old.set(before.0, before.1);
    }
    result
}

/// The simpler calls (`signal(2)`, `sigset(3)`) for a signal that is a fault: `call` is libc's.
///
/// # Safety
/// As for the C functions.
pub(crate) unsafe fn signal(
    signal: c_int,
    handler: usize,
    call: unsafe fn(c_int, usize) -> usize,
) -> usize {
    let Some(wanted) = concern(signal) else {
        // SAFETY: the caller's promise, here and below.
        return unsafe { call(signal, handler) };
    };
    let _held = Held::lock();
    let (before, _) = wanted.get();
    // SAFETY: as above.
    let result = unsafe { call(signal, handler) };
    if result != libc::SIG_ERR {
        let mut action = KernelAction::NONE;
        // SAFETY: the action is live.
        unsafe {
            let answer = kernel_sigaction(signal, core::ptr::null(), &mut action);
            if answer == 0 && action.handler == handler {
                wanted.note(&action);
                kernel_sigaction(signal, &in_front(action), core::ptr::null_mut());
            }
        }
    }
    if result == front_address() {
        before
    } else {
        result
    }
}

/// # Safety
/// As for `rt_sigaction`.
unsafe fn kernel_sigaction(
    signal: c_int,
    new: *const KernelAction,
    old: *mut KernelAction,
) -> isize {
    let number = libc::SYS_rt_sigaction;
    let [signal, new, old] = [signal as usize, new as usize, old as usize];
    // SAFETY: the caller's promise.
    unsafe { sys::raw(number, signal, new, old, MASK_BYTES, 0, 0) }
}

#[cfg(target_arch = "x86_64")]
use front::{front, restorer};

#[cfg(target_arch = "x86_64")]
fn front_address() -> usize {
    front as *const () as usize
}

#[cfg(target_arch = "x86_64")]
fn restorer_address() -> usize {
    restorer as *const () as usize
}

/// On other processors there is no handler in front: no action has this address.
#[cfg(not(target_arch = "x86_64"))]
fn front_address() -> usize {
    usize::MAX
}

#[cfg(not(target_arch = "x86_64"))]
fn restorer_address() -> usize {
    0
}

#[cfg(target_arch = "x86_64")]
mod front {
    use core::arch::naked_asm;
    use core::sync::atomic::Ordering;

    use libc::{REG_EFL, REG_RIP, REG_RSP, c_int, siginfo_t, ucontext_t};
    use toehold_freestanding::guarded::{self, RESUME_FLAGS_CLEAR, RESUME_FLAGS_SET, Resume};

    use super::{KernelAction, kernel_sigaction, wanted};
    use crate::system::sys;

    /// The handler that the kernel calls. It jumps to the program's handler with the registers and
    /// the stack as the kernel left them, so that tracebacks show no frame of the library.
    ///
    /// # Safety
    /// The kernel calls it.
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn front(_: c_int, _: *mut siginfo_t, _: *mut ucontext_t) {
        naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "call {decide}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "ret",
            decide = sym decide,
        )
    }

    /// The end of a handler, in the form that debuggers and unwinders know.
    ///
    /// # Safety
    /// A handler returns here.
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn restorer() {
        naked_asm!("mov rax, 15", "syscall")
    }

    /// The program's handler, or 0 when the fault is already handled.
    unsafe extern "C" fn decide(
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut ucontext_t,
    ) -> usize {
        // SAFETY: the kernel's arguments. Codes above 0 are the kernel's: a fault.
        let code = unsafe { (*info).si_code };
        if code > 0 {
            // SAFETY: as above.
            let registers = unsafe { &mut (*context).uc_mcontext.gregs };
            let [instruction, stack] =
                [REG_RIP, REG_RSP].map(|register| registers[register as usize] as usize);
            // SAFETY: this thread's, at its fault.
            if let Some(resume) = unsafe { guarded::recover(instruction, stack) } {
                let Resume { instruction, stack } = resume;
                registers[REG_RIP as usize] = instruction as i64;
                registers[REG_RSP as usize] = stack as i64;
                let flags = &mut registers[REG_EFL as usize];
                *flags = *flags & !RESUME_FLAGS_CLEAR | RESUME_FLAGS_SET;
                return 0;
            }
        }
        let Some(wanted) = wanted(signal) else {
            return 0;
        };
        // Acquire pairs with the Release store in `Wanted::put`.
        let handler = wanted.handler.load(Ordering::Acquire);
        // Relaxed: a mark beside the handler.
        let flags = wanted.flags.load(Ordering::Relaxed);
        match handler {
            libc::SIG_DFL | libc::SIG_IGN => {
                default(signal, code, info);
                0
            }
            handler if flags & libc::SA_RESETHAND as u32 as u64 != 0 => {
                // Relaxed: only the word itself is used.
                wanted.handler.store(libc::SIG_DFL, Ordering::Relaxed);
                handler
            }
            handler => handler,
        }
    }

    /// Restores the default action. A fault occurs again at its instruction; any other signal is
    /// sent again, and is delivered when this handler returns.
    fn default(signal: c_int, code: c_int, info: *const siginfo_t) {
        /// A hardware memory error in a page that the program is not accessing now (sigaction(2)).
        const BUS_MCEERR_AO: c_int = 5;
        // SAFETY: the action is live.
        unsafe { kernel_sigaction(signal, &KernelAction::NONE, core::ptr::null_mut()) };
        if code <= 0 || signal == libc::SIGBUS && code == BUS_MCEERR_AO {
            sys::queue_signal_here(signal, info);
        }
    }
}
