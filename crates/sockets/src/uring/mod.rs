//! io_uring: requests that the kernel carries out past the library.
//!
//! A program and the kernel share the memory of a ring of requests. `io_uring_enter` submits these
//! requests. A request that reads, writes or polls a connection is right only if the connection is
//! entirely on the kernel. So the library also maps every ring that is made by `syscall(2)`, and
//! looks at each request before the kernel gets it:
//!
//! ```text
//!   setup ──► map the queue          enter ──► of each request: its descriptor to the kernel
//!     │                                │
//!     └── a thread of the kernel's     └── a ring that we do not know
//!         takes the requests                   │
//!                    └─────────────────────────┴──► all connections of the process to the kernel
//! ```
//!
//! Requests that register with epoll (`EPOLL_CTL`) are carried out here, as long as no other
//! request comes before them, and are replaced by requests that do nothing (`NOP`): libuv registers
//! all sockets of Node.js in this way. A request that fails here is left to the kernel, which then
//! reports the error. The kernel must only get requests that were looked at, so threads that submit
//! to one ring take [`turn`]s.
//!
//! A connection that a request makes (`ACCEPT`, `CONNECT`) stays on the kernel, and the library
//! does not know it. The name of a mapping tells `toehold status` about this.
//!
//! A mapping keeps a ring open, so the mapping ends before the program's last descriptor of the
//! ring is closed. liburing makes its system calls past `syscall(2)`. If the program uses liburing
//! as a shared library, its functions are seen ([`liburing`]); if liburing is linked statically,
//! they are not. If such requests have moved bytes before a connection gets a channel, the kernel's
//! counts show it (`pairing::counts_agree`), and the connection gets no channel. docs/security.md
//! explains the remaining cases.
//!
//! Layouts and numbers are those of include/uapi/linux/io_uring.h.

pub(crate) mod liburing;
mod turn;

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use toehold_channel::table::Reason;
use toehold_freestanding::memory;

use crate::connection;
use crate::connection::closing;
use crate::direction::switching;
use crate::lock;
use crate::process::descriptors::{self, Kind};
use crate::process::{self, confinement, kept_bytes};
use crate::system::errno;
use crate::transfer::passed;
use turn::Turn;

/// The most rings of a process that are looked at.
const RINGS_MAX: usize = 16;
/// The most requests that are copied at once.
const BATCH: usize = 64;

static RINGS: [Ring; RINGS_MAX] = [const { Ring::none() }; RINGS_MAX];
/// Held while rings come and go, and while one is read.
static LOCK: lock::Private = lock::Private::new();
/// Number of rings. While it is 0, closing a descriptor costs only this look.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A ring of requests, mapped. Its fields change under [`LOCK`].
struct Ring {
    /// The descriptor plus one, 0 for none.
    fd: AtomicI32,
    /// The queue's cursors and its indices.
    queue: AtomicUsize,
    queue_bytes: AtomicUsize,
    /// The requests.
    entries: AtomicUsize,
    entry_bytes: AtomicUsize,
    /// Number of requests, a power of two.
    count: AtomicU32,
    /// `IORING_SETUP_*`.
    flags: AtomicU32,
    /// Offsets of the cursors and the indices in the queue; there are no indices when their offset
    /// is 0.
    head: AtomicU32,
    tail: AtomicU32,
    array: AtomicU32,
    turn: Turn,
}

/// The part of a request that is needed.
#[derive(Clone, Copy, Default)]
struct Request {
    opcode: u8,
    flags: u8,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    operation_flags: u32,
    other_fd: i32,
    /// Its place among the requests.
    index: u32,
}

/// `epoll_ctl(2)`, as a program calls it: 0, or an errno.
pub(crate) type Control = unsafe fn(i32, i32, i32, *mut libc::epoll_event) -> i32;

/// `struct io_uring_params` as words.
const PARAMETER_WORDS: usize = 30;
const ENTRIES: usize = 0;
const FLAGS: usize = 2;
const SQ_HEAD: usize = 10;
const SQ_TAIL: usize = 11;
const SQ_ARRAY: usize = 16;

/// The `IORING_SETUP_*` flags that do not change which thread takes requests, and from where.
/// Excluded are `SQPOLL`, `SQ_AFF`, `NO_MMAP`, `REGISTERED_FD_ONLY`, and all later flags.
const UNDERSTOOD: u32 = 0x1_3ff9;
const SETUP_IOPOLL: u32 = 1 << 0;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// `IORING_ENTER_REGISTERED_RING`.
const ENTER_REGISTERED_RING: u32 = 1 << 4;
/// `IORING_OFF_SQES`.
const OFFSET_OF_ENTRIES: i64 = 0x1000_0000;
/// `IOSQE_FIXED_FILE`: the descriptor is an index into the registered files, which were looked at
/// before.
const FIXED_FILE: u8 = 1;
/// `SPLICE_F_FD_IN_FIXED`.
const OTHER_FD_FIXED: u32 = 1 << 31;

mod operation {
    pub(super) const NOP: u8 = 0;
    /// Operations that make connections: `ACCEPT`, `CONNECT`.
    pub(super) const CONNECTS: [u8; 2] = [13, 16];
    /// Operations that send a message: `SENDMSG`, `SENDMSG_ZC`.
    pub(super) const MESSAGES: [u8; 2] = [9, 48];
    pub(super) const CLOSE: u8 = 19;
    pub(super) const FILES_UPDATE: u8 = 20;
    pub(super) const EPOLL_CTL: u8 = 29;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const TEE: u8 = 33;
    /// Operations that only write: `WRITEV`, `WRITE_FIXED`, `SENDMSG`, `WRITE`, `SEND`, `SEND_ZC`,
    /// `SENDMSG_ZC`.
    pub(super) const WRITES: [u8; 7] = [2, 5, 9, 23, 26, 47, 48];
    /// Operations whose `fd` is no descriptor of a file that they use: `NOP`, `POLL_REMOVE`,
    /// `TIMEOUT`, `TIMEOUT_REMOVE`, `ASYNC_CANCEL`, `LINK_TIMEOUT`, `PROVIDE_BUFFERS`,
    /// `REMOVE_BUFFERS`, `MSG_RING`, `SOCKET`, `WAITID`, the `FUTEX_*`.
    pub(super) const WITHOUT: [u8; 14] = [0, 7, 11, 12, 14, 15, 31, 32, 40, 45, 50, 51, 52, 53];
}

mod register {
    pub(super) const FILES: u32 = 2;
    pub(super) const FILES_UPDATE: u32 = 6;
    pub(super) const RESTRICTIONS: u32 = 11;
    pub(super) const FILES2: u32 = 13;
    pub(super) const FILES_UPDATE2: u32 = 14;
    pub(super) const RESIZE_RINGS: u32 = 33;
    /// The ring is named by its index among the registered rings.
    pub(super) const USE_REGISTERED_RING: u32 = 1 << 31;
}

impl Ring {
    const fn none() -> Ring {
        Ring {
            fd: AtomicI32::new(0),
            queue: AtomicUsize::new(0),
            queue_bytes: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            entry_bytes: AtomicUsize::new(0),
            count: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            array: AtomicU32::new(0),
            turn: Turn::none(),
        }
    }

    /// Maps the ring at `fd`; false when that fails.
    fn map(&self, fd: i32, parameters: &[u32; PARAMETER_WORDS]) -> bool {
        let count = parameters[ENTRIES] as usize;
        let has_array = parameters[FLAGS] & SETUP_NO_SQARRAY == 0;
        let array = if has_array { parameters[SQ_ARRAY] } else { 0 };
        let (head, tail) = (parameters[SQ_HEAD], parameters[SQ_TAIL]);
        let cursors = head.max(tail) as usize + size_of::<u32>();
        let queue_bytes = match has_array {
            true => array as usize + count * size_of::<u32>(),
            false => cursors,
        };
        let entry_bytes = match parameters[FLAGS] & SETUP_SQE128 {
            0 => 64,
            _ => 128,
        };
        let (Some(queue), Some(entries)) = (
            map(fd, queue_bytes, 0, libc::PROT_READ),
            map(
                fd,
                count * entry_bytes,
                OFFSET_OF_ENTRIES,
                libc::PROT_READ | libc::PROT_WRITE,
            ),
        ) else {
            return false;
        };
        for (word, value) in [
            (&self.queue, queue),
            (&self.queue_bytes, queue_bytes),
            (&self.entries, entries),
            (&self.entry_bytes, entry_bytes),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in [
            (&self.count, count as u32),
            (&self.flags, parameters[FLAGS]),
            (&self.head, head),
            (&self.tail, tail),
            (&self.array, array),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        self.turn.claim(0);
        self.fd.store(fd + 1, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Unmaps the ring.
    fn unmap(&self) {
        let entry_bytes = self.entry_bytes.load(Ordering::Relaxed);
        let entries_bytes = entry_bytes * self.count.load(Ordering::Relaxed) as usize;
        let queue_bytes = self.queue_bytes.load(Ordering::Relaxed);
        self.fd.store(0, Ordering::Relaxed);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: both were mapped by `map` with these lengths, and are used under the lock only,
        // while `fd` is not 0.
        unsafe {
            memory::unmap(self.queue.load(Ordering::Relaxed) as *mut _, queue_bytes);
            memory::unmap(
                self.entries.load(Ordering::Relaxed) as *mut _,
                entries_bytes,
            );
        }
    }

    /// The queue's head: the kernel has taken the requests before it.
    fn head(&self) -> u32 {
        self.word(self.head.load(Ordering::Relaxed) as usize)
    }

    /// The head's value after the kernel has taken `count` more requests.
    fn end_of(&self, count: u32) -> u32 {
        self.head().wrapping_add(count)
    }

    /// A word of the queue, which the program and the kernel write.
    fn word(&self, at: usize) -> u32 {
        let queue = self.queue.load(Ordering::Relaxed);
        // SAFETY: inside the mapping: the cursors and `count` indices are; aligned, as the kernel
        // lays them out; read as an atomic, because others write it.
        let word = unsafe { &*((queue + at) as *const AtomicU32) };
        // Pairs with the Release of `io_uring_get_sqe` and the like in the program, which store the
        // tail: the requests before it are complete.
        word.load(Ordering::Acquire)
    }

    /// Copies requests, from number `skip` after the head on. Returns how many.
    fn read(&self, skip: u32, wanted: u32, out: &mut [Request; BATCH]) -> usize {
        let head = self.head();
        let tail = self.word(self.tail.load(Ordering::Relaxed) as usize);
        let count = self.count.load(Ordering::Relaxed);
        let there = tail.wrapping_sub(head).min(count).min(wanted);
        let array = self.array.load(Ordering::Relaxed) as usize;
        let mut copied = 0;
        for n in skip..there.min(skip.saturating_add(BATCH as u32)) {
            let place = head.wrapping_add(n) & (count - 1);
            let index = match array {
                0 => place,
                _ => self.word(array + place as usize * size_of::<u32>()),
            };
            out[copied] = match index < count {
                true => self.request(index),
                // The kernel drops a request with a bad index.
                false => Request::default(),
            };
            copied += 1;
        }
        copied
    }

    fn request(&self, index: u32) -> Request {
        // SAFETY: entry `index` of `count` is inside the mapping and 64 bytes at least.
        let request = unsafe { request_at(self.entry(index)) };
        Request { index, ..request }
    }

    fn entry(&self, index: u32) -> *mut u8 {
        let bytes = self.entry_bytes.load(Ordering::Relaxed);
        (self.entries.load(Ordering::Relaxed) + index as usize * bytes) as *mut u8
    }

    /// Replaces a request's operation `from` by `to`, if it still is `from`.
    fn replace(&self, index: u32, from: u8, to: u8) -> bool {
        if index >= self.count.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: inside the mapping.
        unsafe { replace_at(self.entry(index), from, to) }
    }
}

/// # Safety
/// `entry` is the address of a `struct io_uring_sqe`.
unsafe fn request_at(entry: *const u8) -> Request {
    // SAFETY: the caller's promise; volatile, because the program may write it.
    unsafe {
        Request {
            opcode: entry.read_volatile(),
            flags: entry.add(1).read_volatile(),
            fd: entry.add(4).cast::<i32>().read_volatile(),
            offset: entry.add(8).cast::<u64>().read_volatile(),
            address: entry.add(16).cast::<u64>().read_volatile(),
            len: entry.add(24).cast::<u32>().read_volatile(),
            operation_flags: entry.add(28).cast::<u32>().read_volatile(),
            other_fd: entry.add(44).cast::<i32>().read_volatile(),
            index: 0,
        }
    }
}

/// [`Ring::replace`], of a request in memory.
///
/// # Safety
/// As for [`request_at`].
unsafe fn replace_at(entry: *mut u8, from: u8, to: u8) -> bool {
    // SAFETY: the caller's promise: the operation is the first byte. An atomic, because another
    // thread may hand over the same requests.
    let operation = unsafe { AtomicU8::from_ptr(entry) };
    // Relaxed: the call that hands the request over comes later in this thread, or in one that has
    // lost this exchange.
    operation
        .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// Maps part of a ring, without inheritance by children.
fn map(fd: i32, len: usize, offset: i64, protection: i32) -> Option<usize> {
    let (none, shared) = (core::ptr::null_mut(), libc::MAP_SHARED);
    // SAFETY: a new mapping of the program's own ring.
    unsafe {
        let base = memory::map(none, len, protection, shared, fd, offset).ok()?;
        memory::advise(base, len, libc::MADV_DONTFORK);
        Some(base as usize)
    }
}

fn find(fd: i32) -> Option<&'static Ring> {
    RINGS
        .iter()
        .find(|ring| ring.fd.load(Ordering::Relaxed) == fd + 1)
}

fn is_served() -> bool {
    process::is_started() && !process::borrowed_memory() || kept_bytes::has_any()
}

/// The library cannot see all requests of this process, so all of its connections go to the kernel.
#[cold]
fn leave_all_to_kernel() {
    confinement::leave_process(Reason::UnseenWaits);
    kept_bytes::each(|fd, _| confinement::give_up_kept_bytes(fd));
}

/// `io_uring_setup` has made the ring at `fd`.
///
/// # Safety
/// `parameters` is what the kernel filled.
pub(crate) unsafe fn opened(fd: i32, parameters: *const u32) {
    if !is_served() {
        return;
    }
    // SAFETY: the caller's promise.
    let parameters = unsafe { &*parameters.cast::<[u32; PARAMETER_WORDS]>() };
    let is_understood = parameters[FLAGS] & !UNDERSTOOD == 0;
    let is_mapped = is_understood && {
        let _held = LOCK.lock();
        // The former descriptor with this number was closed past the library.
        find(fd).into_iter().for_each(Ring::unmap);
        let free = RINGS
            .iter()
            .find(|ring| ring.fd.load(Ordering::Relaxed) == 0);
        free.is_some_and(|ring| ring.map(fd, parameters))
    };
    if !is_mapped {
        leave_all_to_kernel();
    }
}

/// `io_uring_enter` is about to submit `wanted` requests of the ring at `fd`. Only this thread
/// submits until [`entered`]. Returns how many requests it may submit: those that were looked at.
pub(crate) fn entering_in_turn(fd: i32, wanted: u32, flags: u32, control: Control) -> u32 {
    if !is_served() || wanted == 0 {
        return wanted;
    }
    in_turn(fd, wanted, flags, control)
}

/// The part of [`entering_in_turn`] for a process that the library serves.
fn in_turn(fd: i32, wanted: u32, flags: u32, control: Control) -> u32 {
    let me = errno::thread();
    let is_mine = flags & ENTER_REGISTERED_RING == 0 && begin_turn(fd, me);
    let Some(seen) = look(fd, wanted, flags, control) else {
        return wanted;
    };
    if !is_mine {
        return wanted;
    }
    if let Some(ring) = find(fd) {
        ring.turn.tell_end(me, ring.end_of(seen));
    }
    seen
}

/// Called after the system call for which [`entering_in_turn`] was called.
pub(crate) fn entered(fd: i32) {
    if let Some(ring) = find(fd) {
        ring.turn.over(errno::thread());
    }
}

/// Waits for this thread's turn. False for a ring to which only one thread may submit, and for an
/// unknown ring.
fn begin_turn(fd: i32, me: usize) -> bool {
    /// The longest time of a turn, in which a thread looks at requests and calls the kernel. A
    /// thread that takes longer was stopped or cancelled.
    const WAIT_NS_MAX: u64 = 1_000_000_000;
    let (mut wait, mut began) = (lock::Wait::default(), 0);
    loop {
        let has_waited = wait.turn_ns(&mut began) > WAIT_NS_MAX;
        let _held = LOCK.lock();
        let Some(ring) = find(fd) else { return false };
        if ring.flags.load(Ordering::Relaxed) & SETUP_SINGLE_ISSUER != 0 {
            return false;
        }
        if has_waited {
            ring.turn.claim(me);
            return true;
        }
        if ring.turn.begin(me, ring.head()) {
            return true;
        }
    }
}

/// As [`entering_in_turn`], of liburing's function: its rings are used by one thread at a time.
pub(crate) fn entering(fd: i32, wanted: u32, flags: u32, control: Control) {
    if is_served() && wanted != 0 {
        look(fd, wanted, flags, control);
    }
}

/// Looks at the requests that are about to be submitted, and returns how many there are; `None` for
/// an unknown ring.
fn look(fd: i32, wanted: u32, flags: u32, control: Control) -> Option<u32> {
    let mut requests = [Request::default(); BATCH];
    let mut done = 0;
    let mut are_first = true;
    loop {
        let copied = {
            let _held = LOCK.lock();
            let by_number = flags & ENTER_REGISTERED_RING == 0;
            let ring = find(fd).filter(|_| by_number);
            ring.map(|ring| {
                are_first &= ring.flags.load(Ordering::Relaxed) & SETUP_IOPOLL == 0;
                ring.read(done, wanted, &mut requests)
            })
        };
        let Some(copied) = copied else {
            leave_all_to_kernel();
            return None;
        };
        for request in &requests[..copied] {
            are_first &= request.only_registers();
            let replace = |from, to| {
                let _held = LOCK.lock();
                find(fd).is_some_and(|ring| ring.replace(request.index, from, to))
            };
            if !(are_first && request.is_carried_out(control, replace)) {
                hand_over(request);
            }
        }
        done += copied as u32;
        if copied < BATCH {
            return Some(done);
        }
    }
}

impl Request {
    /// True for a request that registers with epoll, and that the kernel would carry out at once.
    fn only_registers(&self) -> bool {
        self.opcode == operation::EPOLL_CTL && self.flags == 0 && self.operation_flags == 0
    }

    /// Registers with epoll here, and replaces the request by one that does nothing, by calling
    /// `replace`. False when the kernel must carry out the request itself.
    fn is_carried_out(&self, control: Control, replace: impl Fn(u8, u8) -> bool) -> bool {
        if !replace(operation::EPOLL_CTL, operation::NOP) {
            return false;
        }
        let (instance, event) = (self.fd, self.address as *mut libc::epoll_event);
        // SAFETY: the program promises the kernel an event there.
        let error = unsafe { control(instance, self.len as i32, self.offset as i32, event) };
        if error == 0 {
            return true;
        }
        replace(operation::NOP, operation::EPOLL_CTL);
        // The kernel will return this error, too, and change nothing.
        matches!(error, libc::EEXIST | libc::ENOENT)
    }
}

/// Set when the mapping is made by which `toehold status` sees that this process, or its parent,
/// makes connections by io_uring.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// As `toehold_adapter::proc` reads it.
const CONNECTS_BY_RING: &CStr = c"toehold-unpatched:it makes connections by requests of io_uring, \
    which the kernel carries out; these run on kernel TCP";

/// The kernel is about to carry out a request.
fn hand_over(request: &Request) {
    let is_fixed = request.flags & FIXED_FILE != 0;
    // Relaxed: no other memory depends on it.
    if operation::CONNECTS.contains(&request.opcode) && !IS_TOLD.swap(true, Ordering::Relaxed) {
        memory::tell_by_name(CONNECTS_BY_RING);
    }
    match request.opcode {
        operation::EPOLL_CTL => used_by_kernel(request.offset as i32, false),
        operation::CLOSE if !is_fixed => {
            kept_bytes::closing(request.fd);
            closing::closing(request.fd);
        }
        operation::FILES_UPDATE => {
            // SAFETY: the program promises the kernel `len` descriptors there.
            unsafe { all_used_by_kernel(request.address as *const i32, request.len) };
        }
        opcode if operation::WITHOUT.contains(&opcode) => {}
        opcode => {
            let is_splice = [operation::SPLICE, operation::TEE].contains(&opcode);
            if is_splice && request.operation_flags & OTHER_FD_FIXED == 0 {
                used_by_kernel(request.other_fd, false);
            }
            if operation::MESSAGES.contains(&opcode) {
                // SAFETY: the program promises the kernel a message there.
                unsafe { passed::note_descriptors_of_request(request.address as *const _) };
            }
            if !is_fixed {
                used_by_kernel(request.fd, operation::WRITES.contains(&opcode));
            }
        }
    }
}

/// The program gives descriptors to a ring.
///
/// # Safety
/// As for [`all_used_by_kernel`].
pub(crate) unsafe fn given(fds: *const i32, count: u32) {
    if is_served() {
        // SAFETY: the caller's promise.
        unsafe { all_used_by_kernel(fds, count) };
    }
}

/// # Safety
/// `fds` is readable for `count` descriptors, or null.
unsafe fn all_used_by_kernel(fds: *const i32, count: u32) {
    if fds.is_null() {
        return;
    }
    for n in 0..count as usize {
        // SAFETY: the caller's promise.
        used_by_kernel(unsafe { fds.add(n).read_unaligned() }, false);
    }
}

/// The kernel is going to use `fd` by itself, perhaps only to write.
fn used_by_kernel(fd: i32, writes_only: bool) {
    if !writes_only {
        confinement::give_up_kept_bytes(fd);
    }
    match descriptors::kind(fd) {
        Kind::Connection => {
            let Some(connection) = connection::at(fd) else {
                return;
            };
            if writes_only {
                switching::keep_on_carrier_for(&connection, Reason::UnseenWaits);
            } else {
                switching::quiesce(&connection, Reason::UnseenWaits);
            }
        }
        // A program that waits for an instance in this way waits for all of its members.
        Kind::Epoll => leave_all_to_kernel(),
        Kind::Foreign if fd >= 0 => descriptors::note_unseen(fd),
        Kind::Foreign | Kind::Own => {}
    }
}

/// `io_uring_register` is about to do `opcode`.
///
/// # Safety
/// `argument` is as io_uring_register(2) wants it for `opcode`.
pub(crate) unsafe fn registering(fd: i32, opcode: u32, argument: *const u32, count: u32) {
    if !is_served() {
        return;
    }
    // SAFETY: the caller's promise: the arguments are the structures of these operations.
    unsafe {
        let long = |word: usize| argument.add(word).cast::<u64>().read_unaligned();
        match opcode & !register::USE_REGISTERED_RING {
            register::FILES => all_used_by_kernel(argument.cast(), count),
            _ if argument.is_null() => {}
            register::FILES_UPDATE => all_used_by_kernel(long(2) as *const i32, count),
            register::FILES2 => all_used_by_kernel(long(4) as *const i32, *argument),
            register::FILES_UPDATE2 => {
                all_used_by_kernel(long(2) as *const i32, argument.add(6).read());
            }
            // The ring moves in memory, or allows fewer operations: the next call does not find it
            // and so leaves all connections to the kernel.
            register::RESIZE_RINGS | register::RESTRICTIONS => closing(fd),
            _ => {}
        }
    }
}

/// True when any ring is known.
#[inline]
pub(crate) fn are_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// `fd` is about to be closed, or another file is about to take its number.
#[inline]
pub(crate) fn closing(fd: i32) {
    if are_any() && !process::borrowed_memory() {
        let _held = LOCK.lock();
        find(fd).into_iter().for_each(Ring::unmap);
    }
}

/// As [`closing`], of all numbers from `first` to `last`.
pub(crate) fn closing_range(first: u32, last: u32) {
    for ring in &RINGS {
        let fd = ring.fd.load(Ordering::Relaxed) - 1;
        if fd >= 0 && (first..=last).contains(&(fd as u32)) {
            closing(fd);
        }
    }
}

/// After fork: a child has none of the mappings.
pub(crate) fn forked() {
    LOCK.reset();
    COUNT.store(0, Ordering::Relaxed);
    for ring in &RINGS {
        ring.fd.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
